"""Conversion of decoded pixels, end to end: corrections, other dtypes, values of missing frames.

Corrections are compared with a NumPy formula for whole frames.
"""

import itertools
import math

import numpy as np
import pytest
from checks import refused
from hypothesis import given
from hypothesis import strategies as st
from strategies import cuts

from dask_tiled import Corrections, DatasetError, TilingRequest, describe, map_tiles, open_dataset
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.testing import counting_frames, write_mib, write_npy, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")


# The reference formula


def good_counts(excluded):
    """Count the good pixels of the 3x3 box around each pixel."""
    return box_sums(~excluded[None], "f8")[0]


def box_sums(frames, dtype):
    """Sum the 3x3 box around each pixel."""
    padded = np.pad(frames.astype(dtype), ((0, 0), (1, 1), (1, 1)))
    (height, width), sums = frames.shape[1:], 0
    for y, x in itertools.product(range(3), repeat=2):
        sums = sums + padded[:, y : y + height, x : x + width]
    return sums


def corrected(frames, dark=None, gain=None, excluded=None):
    """Correct whole frames in NumPy."""
    dtype = np.result_type(frames.dtype, "f4")
    out = frames.astype(dtype)
    if dark is not None:
        out -= dark.astype(dtype)
    if gain is not None:
        out *= gain.astype(dtype)
    if excluded is not None and excluded.any():
        sums = box_sums(np.where(excluded, 0, out), "f8")
        out[:, excluded] = (sums / np.maximum(good_counts(excluded), 1))[:, excluded]
    return out


def assert_corrected(found, expected, excluded):
    """Compare good pixels exactly, and means of neighbours to within two rounding errors."""
    good = np.ones(expected.shape[-2:], bool) if excluded is None else ~excluded
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found[..., good], expected[..., good])
    scale = float(np.nanmax(np.abs(expected))) if expected.size else 0
    np.testing.assert_allclose(
        found[..., ~good], expected[..., ~good], rtol=0, atol=2 * scale * np.finfo(found.dtype).eps
    )


def some_excluded(shape, share, rng):
    """Return a random mask of pixels, each with a good neighbour."""
    excluded = rng.random(shape) < share
    return excluded & (good_counts(excluded) > 0)


@st.composite
def corrections_for(draw, shape):
    """Draw corrections as a user passes them, and as the formula takes them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dark = rng.integers(0, 90, shape).astype("f4") / 4 if draw(st.booleans()) else None
    gain = rng.uniform(0.5, 2, shape) if draw(st.booleans()) else None
    excluded = some_excluded(shape, draw(st.sampled_from([0, 0.02, 0.2, 0.6])), rng)
    pixels = draw(st.sampled_from([excluded, np.argwhere(excluded), None]))
    if pixels is None:
        excluded = np.zeros(shape, bool)
    return Corrections(dark, gain, pixels), {"dark": dark, "gain": gain, "excluded": excluded}


def chunks_of(shape):
    return st.tuples(*(st.integers(-(-n // 4), n) for n in shape))


def take(tile, _info):
    return tile.copy()


REQUESTS = st.builds(
    TilingRequest,
    st.sampled_from(["tile", "frame"]),
    st.none() | st.integers(1, 4),
    st.none() | st.sampled_from([64, 1000]),
)


@pytest.mark.thorough
@given(data=st.data())
def test_corrections_of_any_layout(layouts, data):
    """Corrected arrays equal the formula; chunks, slices and tiles equal them bit for bit."""
    draw = data.draw
    options, frames = layouts[draw(st.sampled_from(sorted(layouts)), label="layout")]
    corrections, terms = draw(corrections_for(frames.shape[1:]), label="corrections")
    count = len(frames) + 3
    chosen = st.lists(st.integers(-count, count - 1), min_size=1, max_size=9)
    roi = draw(st.none() | chosen, label="roi")
    sync_offset = draw(st.integers(-4, 4), label="sync_offset")
    places = np.arange(count) if roi is None else np.arange(count)[roi]
    numbers = places + sync_offset
    there = (numbers >= 0) & (numbers < len(frames))
    fill_value = draw(st.sampled_from([0, -5, np.nan]), label="fill_value")
    exact = corrected(frames, **terms)
    expected = np.full((len(places), *frames.shape[1:]), fill_value, exact.dtype)
    expected[there] = exact[numbers[there]]

    def opened(**more):
        return open_dataset(
            **options,
            nav_shape=(count,),
            sync_offset=sync_offset,
            roi=roi,
            fill_value=fill_value,
            corrections=corrections,
            **more,
        )

    arr = opened(io=draw(st.sampled_from(["auto", *BACKENDS]), label="io"))
    whole = arr.compute()
    assert arr.dtype == whole.dtype == exact.dtype
    assert_corrected(whole[there], expected[there], terms["excluded"])
    np.testing.assert_array_equal(whole[~there], expected[~there])

    chunked = opened(chunks=draw(chunks_of(arr.shape), label="chunks"))
    np.testing.assert_array_equal(chunked.compute(), whole)
    index = draw(cuts(arr.shape), label="index")
    np.testing.assert_array_equal(arr[index].compute(), whole[index])
    np.testing.assert_array_equal(chunked[index].compute(), whole[index])
    request = draw(REQUESTS, label="request")
    tiled = map_tiles(take, chunked[index], dtype=arr.dtype, tiling=request, sig_shape=None)
    np.testing.assert_array_equal(tiled.compute(), whole[index])


# Excluded pixels near the edges of slices

EXCLUDED = [(0, 0), (0, 1), (2, 3), (3, 3), (3, 4), (5, 6), (5, 0), (4, 6)]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Open a scan with excluded pixels in corners and side by side; also return its pixels."""
    frames = counting_frames((3, 6, 7), "u2")
    path = write_raw(tmp_path_factory.mktemp("small") / "scan.raw", frames, frame_header=5)
    rng = np.random.default_rng(1)
    excluded = np.zeros((6, 7), bool)
    excluded[tuple(np.transpose(EXCLUDED))] = True
    terms = {"dark": rng.normal(20, 5, (6, 7)), "gain": rng.normal(1, 0.1, (6, 7))}
    arr = open_dataset(
        path,
        "raw",
        dtype="u2",
        sig_shape=(6, 7),
        frame_header=5,
        corrections=Corrections(**terms, excluded_pixels=EXCLUDED),
    )
    expected = corrected(frames, **terms, excluded=excluded)
    assert_corrected(arr.compute(), expected, excluded)
    return arr, arr.compute()


def test_single_pixels(small):
    """An excluded pixel is repaired from neighbours outside of the slice."""
    arr, expected = small
    for y, x in np.ndindex(6, 7):
        np.testing.assert_array_equal(arr[:, y, x].compute(), expected[:, y, x])
        np.testing.assert_array_equal(arr[1, y : y + 1, x].compute(), expected[1, y : y + 1, x])


@pytest.mark.parametrize("depth", [1, 6, 12, 24])
def test_excluded_pixels_between_chips(tmp_path, depth):
    """The neighbours of a pixel may lie on all four chips of a quad detector."""
    frames = counting_frames((3, 6, 128), "u4", bits=depth)
    path = write_mib(tmp_path / "quad.mib", frames, kind="R64", depth=depth, quad=True, hdr=False)
    excluded = np.zeros((6, 128), bool)
    excluded[[2, 2, 3, 5, 0], [63, 64, 63, 127, 0]] = True
    arr = open_dataset(path, corrections=Corrections(excluded_pixels=excluded))
    expected = corrected(frames.astype(open_dataset(path).dtype), excluded=excluded)
    whole = arr.compute()
    assert_corrected(whole, expected, excluded)
    for y, x in np.argwhere(excluded):
        np.testing.assert_array_equal(arr[:, y, x].compute(), whole[:, y, x])
        crop = np.s_[1:, y : y + 2, max(0, x - 1) : x + 1]
        np.testing.assert_array_equal(arr[crop].compute(), whole[crop])


def test_counts_of_excluded_pixels_are_ignored(tmp_path):
    """NaN and infinity in excluded pixels do not reach any slice."""
    frames = np.arange(2 * 4 * 5, dtype="f4").reshape(2, 4, 5)
    frames[:, 1, 1:3] = np.nan, np.inf
    path = write_npy(tmp_path / "scan.npy", frames)
    arr = open_dataset(path, corrections=Corrections(excluded_pixels=[(1, 1), (1, 2)]))
    whole = arr.compute()
    assert np.isfinite(whole).all()
    for index in (np.s_[:, 1, 1], np.s_[:, 1:2, 2:], np.s_[:, 1::2, 1::3], np.s_[0, 0:2, 2:3]):
        np.testing.assert_array_equal(arr[index].compute(), whole[index])


# Missing frames, and blocks of frames


def test_missing_frames_are_not_corrected(small):
    """Missing frames hold fill_value exactly, and other frames are corrected."""
    arr, expected = small
    source = arr.description.files[0].path
    options = {"dtype": "u2", "sig_shape": (6, 7), "frame_header": 5}
    for fill in (-7.5, np.nan):
        shown = open_dataset(
            source,
            "raw",
            **options,
            nav_shape=(2, 4),
            sync_offset=-2,
            fill_value=fill,
            corrections=arr.description.conversion.corrections,
        )
        found = shown.compute().reshape(8, 6, 7)
        np.testing.assert_array_equal(found[2:5], expected)
        np.testing.assert_array_equal(found[[0, 1, 5, 6, 7]], np.float32(fill))
        pixel = shown[..., 3, 3].compute().ravel()
        np.testing.assert_array_equal(pixel[2:5], expected[:, 3, 3])
        np.testing.assert_array_equal(pixel[[0, 1, 5, 6, 7]], np.float32(fill))


@pytest.mark.thorough
@pytest.mark.parametrize("size", [200, 600])
@pytest.mark.parametrize("convert", ["corrections", "dtype"])
def test_conversion_in_blocks(tmp_path, size, convert):
    """Several blocks of frames, and frames larger than a block, with missing frames between."""
    frames = counting_frames((9, size, size), "u2", bits=12)
    path = write_mib(tmp_path / "scan.mib", frames, hdr=False)
    roi = [8, -1, 0, 9, 3, 3, 11, 2, 7, 10, 1]
    numbers = np.array([8, 11, 0, 9, 3, 3, 11, 2, 7, 10, 1])
    options = {"nav_shape": (12,), "roi": roi, "fill_value": -3}
    if convert == "dtype":
        arr, exact = open_dataset(path, dtype="i4", **options), frames.astype("i4")
    else:
        excluded = np.zeros((size, size), bool)
        excluded[5, 7] = True
        terms = {"dark": np.full((size, size), 2.0), "excluded": excluded}
        corrections = Corrections(terms["dark"], None, excluded)
        arr = open_dataset(path, corrections=corrections, **options)
        exact = corrected(frames, **terms)
    expected = np.full((11, size, size), -3, exact.dtype)
    expected[numbers < 9] = exact[numbers[numbers < 9]]
    np.testing.assert_array_equal(arr.compute(), expected)
    np.testing.assert_array_equal(arr[1:, ::2, 3:].compute(), expected[1:, ::2, 3:])


# Dtypes, signal axes and invalid corrections


NATIVE = ["?", "i1", "<u2", ">i2", "<u4", ">i8", "f2", "f4", ">f8"]


@pytest.mark.parametrize("native", NATIVE)
def test_corrections_of_every_dtype(tmp_path, native):
    """Pixels are corrected as float32 where that holds the counts, otherwise as float64."""
    frames = counting_frames((2, 301, 307), native)
    path = write_npy(tmp_path / "scan.npy", frames)
    rng = np.random.default_rng(0)
    dark, gain = rng.random((2, 301, 307))
    excluded = np.zeros((301, 307), bool)
    excluded[[300, 300, 5], [306, 305, 0]] = True
    corrections = Corrections(dark, gain, excluded)
    arr = open_dataset(path, corrections=corrections)
    pixels = frames.astype(frames.dtype.newbyteorder("="))
    assert arr.dtype == describe(path, corrections=corrections).dtype
    assert arr.dtype == np.result_type(pixels.dtype, "f4")
    expected = corrected(pixels, dark=dark, gain=gain, excluded=excluded)
    assert_corrected(arr.compute(), expected, excluded)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "c16", ">f4"])
def test_corrections_before_conversion(tmp_path, dtype):
    """Corrected pixels are computed in the default dtype, then converted."""
    frames = counting_frames((3, 4, 5), "u2", bits=12)
    path = write_npy(tmp_path / "scan.npy", frames)
    corrections = Corrections(np.full((4, 5), 3), np.full((4, 5), 0.3), [(1, 1)])
    first = open_dataset(path, corrections=corrections).compute()
    arr = open_dataset(path, corrections=corrections, dtype=dtype)
    assert arr.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(arr.compute(), first.astype(arr.dtype))
    np.testing.assert_array_equal(arr[:, 1, 1].compute(), first[:, 1, 1].astype(arr.dtype))


def test_corrections_of_spectra_and_volumes(tmp_path):
    """Corrections support one signal axis, three, and none."""
    array = counting_frames((2, 3, 4, 5), "u1").astype("i2")
    path = write_npy(tmp_path / "scan.npy", array)
    spectra = open_dataset(path, sig_dims=1, corrections=Corrections(excluded_pixels=[0, 2]))
    expected = array.astype("f4")
    expected[..., 0] = array[..., 1]
    expected[..., 2] = (expected[..., 1] + expected[..., 3]) / 2
    np.testing.assert_array_equal(spectra.compute(), expected)
    np.testing.assert_array_equal(spectra[..., 2].compute(), expected[..., 2])

    volumes = open_dataset(path, sig_dims=3, corrections=Corrections(excluded_pixels=[(0, 0, 0)]))
    expected = array.astype("f4")
    expected[:, 0, 0, 0] = (array[:, :2, :2, :2].sum(axis=(1, 2, 3)) - array[:, 0, 0, 0]) / 7
    np.testing.assert_allclose(volumes.compute(), expected, rtol=1e-6)
    np.testing.assert_allclose(volumes[:, 0, 0, 0].compute(), expected[:, 0, 0, 0], rtol=1e-6)

    dark, gain = np.float32(3), 0.5
    points = open_dataset(path, sig_dims=0, corrections=Corrections(dark, gain))
    np.testing.assert_array_equal(points.compute(), (array.astype("f4") - 3) / 2)
    np.testing.assert_array_equal(points[1, :, 2].compute(), (array[1, :, 2] - np.float32(3)) / 2)


@pytest.mark.parametrize(
    "corrections",
    [
        Corrections(dark=np.ones((7, 6))), "dataset", np.ones((6, 7)), {"dark": np.ones((6, 7))},
        Corrections, 0,
    ],
)  # fmt: skip
def test_unsuitable_corrections_are_refused(small, corrections):
    """Opening the file raises an error that names it."""
    path = small[0].description.files[0].path
    options = {"dtype": "u2", "sig_shape": (6, 7), "frame_header": 5}
    with pytest.raises(DatasetError) as caught:
        open_dataset(path, "raw", **options, corrections=corrections)
    assert caught.value.path == path
    assert caught.value.expected is not None
    assert caught.value.found is not None


@pytest.mark.parametrize("dtype", [None, "f4", "c16"])
@pytest.mark.parametrize("native", ["c8", "M8[s]", "S3", "u2,f4"])
def test_uncorrectable_pixels_are_refused(tmp_path, native, dtype):
    path = write_npy(tmp_path / "scan.npy", np.zeros((2, 3, 3), native))
    with refused(path, r"corrected|converted"):
        open_dataset(path, corrections=Corrections(excluded_pixels=[(1, 1)]), dtype=dtype)


def test_names_tell_conversions_apart(tmp_path):
    path = write_npy(tmp_path / "scan.npy", np.zeros((2, 3, 3), "u2"))
    ones, twos = np.ones((3, 3)), np.full((3, 3), 2)
    variants = [
        {},
        {"dtype": "f4"},
        {"dtype": "i2"},
        {"corrections": Corrections()},
        {"corrections": Corrections(ones)},
        {"corrections": Corrections(twos)},
        {"corrections": Corrections(None, ones)},
        {"corrections": Corrections(ones), "dtype": "f8"},
        {"corrections": Corrections(excluded_pixels=[(0, 0)])},
    ]
    names = [open_dataset(path, **options).name for options in variants]
    assert len(set(names)) == len(names)
    assert open_dataset(path, dtype="u2").name == open_dataset(path, dtype=">u2").name == names[0]
    again = open_dataset(path, corrections=Corrections(ones.astype("i1")))
    assert again.name == names[4]


# Other dtypes


@pytest.mark.thorough
@given(data=st.data())
def test_any_layout_in_another_dtype(layouts, data):
    """Conversion equals NumPy's astype."""
    draw = data.draw
    known = sorted(
        name
        for name, (options, frames) in layouts.items()
        if "dtype" not in options and frames.dtype.kind in "iu"
    )
    options, frames = layouts[draw(st.sampled_from(known), label="layout")]
    dtype = draw(st.sampled_from(["u1", "i1", "u2", ">i2", "u4", "f4", ">f8", "c8", "?"]))
    expected = frames.astype(np.dtype(dtype).newbyteorder("="))
    missing = draw(st.integers(0, 3), label="missing")
    expected = np.concatenate([expected, np.ones((missing, *frames.shape[1:]), expected.dtype)])
    arr = open_dataset(
        **options,
        dtype=dtype,
        nav_shape=len(expected),
        fill_value=1,
        chunks=draw(chunks_of(expected.shape), label="chunks"),
        io=draw(st.sampled_from(["auto", *BACKENDS]), label="io"),
    )
    index = draw(cuts(expected.shape), label="index")
    assert arr.dtype == expected.dtype
    found = arr.compute()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(arr[index].compute(), expected[index])


def test_fill_value_has_the_requested_dtype(tmp_path):
    path = write_npy(tmp_path / "scan.npy", np.zeros((2, 3, 3), "u2"))
    arr = open_dataset(path, dtype="i4", nav_shape=(3,), fill_value=-1)
    assert (arr[2].compute() == -1).all()
    arr = open_dataset(path, dtype="f4", nav_shape=(3,), fill_value=math.nan)
    assert np.isnan(arr[2].compute()).all()
    with pytest.raises(DatasetError, match="fill_value"):
        open_dataset(path, dtype="u1", nav_shape=(3,), fill_value=256)


@pytest.mark.parametrize("dtype", ["nonsense", "M8[s]", "S3", "O", "u2,u2", "V2", ..., "U1"])
def test_unsupported_dtypes_are_refused(tmp_path, dtype):
    path = write_npy(tmp_path / "scan.npy", np.zeros((2, 3, 3), "u2"))
    with refused(path) as caught:
        open_dataset(path, dtype=dtype)
    assert caught.value.found is not None


def test_structured_dtype_of_the_file_is_accepted(tmp_path):
    frames = np.zeros((2, 3), [("a", "<u2"), ("b", ">f4")])
    frames["a"], frames["b"] = 3, 4
    path = write_npy(tmp_path / "scan.npy", frames)
    arr = open_dataset(path, dtype=frames.dtype, sig_dims=1)
    np.testing.assert_array_equal(arr.compute()["b"], frames["b"])
