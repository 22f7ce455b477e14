"""Placement of frames: nav_shape, sync_offset, roi, and missing frames."""

import math
import os
import warnings

import dask.array as da
import numpy as np
import pytest
from checks import refused
from hypothesis import given
from strategies import selections, shown

from dask_tiled import (
    DatasetError,
    MissingFramesWarning,
    TiledArray,
    TruncatedFileError,
    describe,
    open_dataset,
)
from dask_tiled.reading import descriptors
from dask_tiled.testing import counting_frames, write_mib, write_mrc, write_npy, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((12, 3, 4), "u2")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_raw(tmp_path_factory.mktemp("frames") / "scan.raw", FRAMES)


def opened(path, **options):
    return open_dataset(path, "raw", dtype="u2", sig_shape=(3, 4), **options)


def described(path, **options):
    return describe(path, "raw", dtype="u2", sig_shape=(3, 4), **options)


def assert_same(arr, expected):
    found = arr.compute()
    assert found.dtype == arr.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


# All options together


@pytest.mark.thorough
@given(selection=selections())
def test_frames_are_where_they_belong_or_missing(path, selection):
    """missing="raise" refuses exactly what describe().missing lists."""
    nav_shape, sync_offset, roi = selection
    options = {"nav_shape": nav_shape, "sync_offset": sync_offset, "roi": roi, "fill_value": 5}
    expected, absent = shown(FRAMES, nav_shape, sync_offset, roi, fill_value=5)
    arr = opened(path, **options, missing="fill")
    assert_same(arr, expected)
    assert arr.description.missing.tolist() == absent
    count = math.prod(nav_shape)
    assert ("missing" in str(arr.description)) == bool(absent)
    if roi is None and sync_offset == 0:
        assert ("not shown" in str(arr.description)) == (count < len(FRAMES))
    options["missing"] = "raise"
    if absent:
        with refused(path, "frames are missing", TruncatedFileError) as caught:
            opened(path, **options)
        count = math.prod(expected.shape[:-2])
        assert caught.value.expected == f"{count} frames"
        assert caught.value.found == f"{count - len(absent)} frames"
    else:
        assert described(path, **options).missing.tolist() == []


# nav_shape


def test_larger_nav_shape_ends_in_missing_frames(path):
    arr = opened(path, nav_shape=(4, 4), fill_value=9)
    assert arr.description.missing.tolist() == [12, 13, 14, 15]
    assert arr.description.missing.dtype == np.int64
    assert "4 of 16 frames, shown as 9" in str(arr.description)
    assert "4 of 16 frames, shown as 9" in arr.description._repr_html_()
    assert (arr[3].compute() == 9).all()
    assert_same(arr[2:], shown(FRAMES, (4, 4), fill_value=9)[0][2:])


def test_missing_frames_warn_unless_filled_on_request(path):
    with pytest.warns(
        MissingFramesWarning, match=r"4 of 16 frames are missing, and read as 9"
    ) as w:
        opened(path, nav_shape=(4, 4), fill_value=9)
    assert len(w) == 1
    cases = {
        "2 of 12 frames": {"sync_offset": -2, "nav_shape": (12,)},
        "5 of 12 frames": {"sync_offset": 5, "nav_shape": (3, 4)},
        "6 of 16 frames": {"sync_offset": 2, "nav_shape": (4, 4)},
        "1 of 2 frames": {"roi": [3, 15], "nav_shape": (4, 4)},
    }
    for numbers, options in cases.items():
        with pytest.warns(MissingFramesWarning, match=f": {numbers} are missing") as w:
            opened(path, **options)
        assert len(w) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(path, nav_shape=(12,))
        opened(path, nav_shape=(3, 3))
        opened(path, nav_shape=(4, 4), missing="fill")
        arr = opened(path, nav_shape=(4, 4), missing="fill")
        arr[1:].sum().compute()


def test_trillion_missing_frames(path):
    """Missing frames take neither time nor memory until they are computed."""
    arr = opened(path, nav_shape=(1 << 20, 1 << 20), chunks=(1 << 14, 1 << 14, 3, 4))
    assert f"{(1 << 40) - 12} of {1 << 40} frames" in str(arr.description)
    assert_same(arr[0, :14], shown(FRAMES, (14,))[0])
    assert_same(arr[-1, -1, 1], np.zeros(4, "u2"))
    with pytest.raises(TruncatedFileError, match=f"{1 << 40} frames"):
        opened(path, nav_shape=(1 << 20, 1 << 20), missing="raise")


def test_scan_shape_from_the_file(tmp_path):
    """sync_offset and roi apply to the scan shape that a file gives."""
    frames = counting_frames((3, 4, 8, 8), "u2", bits=12)
    mib = write_mib(tmp_path / "scan.mib", frames)
    npy = write_npy(tmp_path / "scan.npy", frames)
    for scan in (mib, npy):
        flat = frames.reshape(12, 8, 8)
        assert_same(open_dataset(scan, sync_offset=-5), shown(flat, (3, 4), -5)[0])
        mask = np.eye(3, 4, dtype=bool)
        assert_same(open_dataset(scan, roi=mask), frames[mask])


def test_single_image_as_a_scan(tmp_path):
    """A file without navigation axes has one position."""
    image = counting_frames((5, 6), "u2")
    path = write_npy(tmp_path / "image.npy", image)
    assert_same(open_dataset(path), image)
    assert_same(open_dataset(path, roi=[0, 0]), np.stack([image, image]))
    assert_same(open_dataset(path, roi=np.True_), image[None])
    assert_same(open_dataset(path, nav_shape=(3,), sync_offset=-1), shown(image[None], (3,), -1)[0])
    missing = open_dataset(path, sync_offset=1, fill_value=3)
    assert missing.description.missing.tolist() == [0]
    assert_same(missing, np.full_like(image, 3))


def test_pixels_as_frames(tmp_path):
    """Options of frames apply to frames without signal axes."""
    values = counting_frames((3, 4), "u2")
    path = write_npy(tmp_path / "values.npy", values)
    arr = open_dataset(path, sig_dims=0, nav_shape=(5, 4), sync_offset=-2, fill_value=1)
    expected = np.ones(20, "u2")
    expected[2:14] = values.ravel()
    assert_same(arr, expected.reshape(5, 4))
    assert_same(open_dataset(path, sig_dims=0, roi=[7, 1]), values.ravel()[[7, 1]])


# sync_offset


@pytest.mark.parametrize("sync_offset", [2**62, -(2**63), 2**63 - 1, 2**200])
@pytest.mark.parametrize("roi", [None, [11, 0]])
def test_huge_offsets_do_not_wrap_around(path, sync_offset, roi):
    arr = opened(path, sync_offset=sync_offset, roi=roi, fill_value=5)
    assert (arr.compute() == 5).all()
    assert (arr[1].compute() == 5).all()
    assert len(arr.description.missing) == len(arr)


@pytest.mark.parametrize("sync_offset", [1.0, "1", None, True, np.float64(2), (1,), np.array([1])])
def test_invalid_offsets_are_refused(path, sync_offset):
    with refused(path, "sync_offset") as caught:
        opened(path, sync_offset=sync_offset)
    assert caught.value.found == repr(sync_offset)


# roi


def test_masked_places_of_a_roi_are_not_selected(path):
    mask, hidden = np.arange(12).reshape(3, 4) % 3 == 0, np.arange(12).reshape(3, 4) > 5
    arr = opened(path, nav_shape=(3, 4), roi=np.ma.array(mask, mask=hidden, fill_value=True))
    assert_same(arr, FRAMES[[0, 3]])
    arr = opened(path, nav_shape=(3, 4), roi=np.ma.array([5, 99, 0], mask=[0, 1, 0]))
    assert_same(arr, FRAMES[[5, 0]])
    with pytest.raises(DatasetError, match="selects no frame"):
        opened(path, roi=np.ma.masked_all(12, bool))


def test_empty_rois_are_refused(path):
    for roi in ([], (), np.zeros(12, bool), np.empty(0, int)):
        with pytest.raises(DatasetError, match="selects no frame"):
            opened(path, roi=roi)


def test_roi_of_indices(path):
    """Indices may repeat, run backwards and be negative, as in NumPy."""
    places = (5, 0, 11, 5, 5, -1, -12, 3)
    for roi in (places, np.array(places, "i1")):
        arr = opened(path, nav_shape=(3, 4), roi=roi, sync_offset=np.int8(0))
        assert_same(arr, FRAMES[[*places]])
    assert_same(opened(path, roi=np.arange(12, dtype="u8")[::-1]), FRAMES[::-1])
    assert_same(opened(path, roi=range(10, 0, -3)), FRAMES[10:0:-3])


def test_roi_has_known_chunks(path):
    """A roi gives known chunks, unlike dask's indexing by a mask."""
    mask = np.arange(12) % 3 == 0
    arr = opened(path, roi=mask, chunks=(3, -1, -1))
    assert arr.chunks == ((3, 1), (3,), (4,))
    assert type(arr) is TiledArray
    plain = opened(path)[da.from_array(mask)]
    np.testing.assert_array_equal(plain.compute(), arr.compute())
    assert math.isnan(plain.shape[0])


def test_roi_is_copied(path):
    roi = np.array([3, 1])
    arr = opened(path, roi=roi)
    roi[:] = 0
    assert_same(arr, FRAMES[[3, 1]])
    mask = np.ones(12, bool)
    arr = opened(path, roi=mask)
    mask[:] = False
    assert_same(arr, FRAMES)


@pytest.mark.parametrize("roi", [[12], [-13], [0, 99, 1], np.array([2**63 + 5, 2**64 - 1], "u8")])
def test_roi_outside_of_the_scan_is_refused(path, roi):
    with refused(path, "outside of the scan") as caught:
        opened(path, nav_shape=(3, 4), roi=roi)
    assert caught.value.found not in range(-12, 12)
    assert caught.value.found in list(roi)


@pytest.mark.parametrize(
    "roi",
    [
        [1.0, 2.0], "abc", 3, [[0], [1, 2]], [None], slice(2), np.ones((4, 3), bool),
        np.ones(12, bool), np.zeros((3, 4), bool), [], [True, False], np.ones((3, 4), "u1"),
        [2**70], np.array(["2020"], "M8[D]"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_rois_are_refused(path, roi):
    """Masks are boolean and have the scan's shape."""
    with refused(path, "roi"):
        opened(path, nav_shape=(3, 4), roi=roi)


# Missing frames


def test_missing_frames_open_no_file(path, monkeypatch):
    arr = opened(path, nav_shape=(20,), fill_value=4)
    opens = []

    def refuse(*args, **_):
        opens.append(args)
        raise OSError

    descriptors._idle.clear()
    monkeypatch.setattr(descriptors, "open_file", refuse)
    assert (arr[12:].compute() == 4).all()
    assert opens == []
    with pytest.raises(OSError):  # noqa: PT011 - raised by refuse
        arr[11:13].compute()


@pytest.mark.parametrize("missing", ["", "ignore", False, True, 0, ["fill"]])
def test_invalid_rules_for_missing_frames_are_refused(path, missing):
    with refused(path, "missing frames") as caught:
        opened(path, missing=missing)
    assert caught.value.expected == "fill or raise"


# fill_value

FILLS = {
    "u2": [0, 65535, 1.0, True, np.uint8(3), np.array(4), None],
    "i1": [-128, 127, -1.0],
    "f4": [0.5, np.nan, np.inf, -np.inf, -0.0, 3, 0.1, np.float32(0.1)],
    "f8": [0.1, np.nan, 1e300, 2**53],
    "c8": [1 + 2j, 3, complex(np.nan, 0)],
    "?": [True, 1, 0],
    "M8[s]": [np.datetime64("NaT", "s"), np.datetime64("2020-01-01")],
}


@pytest.mark.parametrize(("dtype", "value"), [(d, v) for d in FILLS for v in FILLS[d]])
def test_fill_values_of_every_type(tmp_path, dtype, value):
    """Fill values keep their bits, also negative zero."""
    path = write_raw(tmp_path / "scan.raw", np.zeros((1, 2, 2), dtype))
    arr = open_dataset(path, "raw", dtype=dtype, sig_shape=(2, 2), nav_shape=(2,), fill_value=value)
    found = arr.compute()
    expected = np.zeros((), dtype) if value is None else np.asarray(value).astype(dtype)
    assert found.dtype == dtype
    assert found[1].tobytes() == expected.tobytes() * 4
    assert found[0].tobytes() == bytes(found[0].nbytes)


MISFITS = {
    "u2": [-1, 65536, 0.5, np.nan, np.inf, "a", "5", [1], [1, 2], 2**70, 1j, ..., b"x"],
    "u1": [256, 3 + 0j + 1j, np.datetime64("2020-01-01")],
    "f4": [1e39, 1j, "nan", 2**24 + 1, np.array([1.0])],
    "?": [2, -1, 0.5],
}


@pytest.mark.parametrize(("dtype", "value"), [(d, v) for d in MISFITS for v in MISFITS[d]], ids=str)
def test_invalid_fill_values_are_refused(tmp_path, dtype, value):
    """The error is raised on opening, even if no frame is missing."""
    path = write_raw(tmp_path / "scan.raw", np.zeros((1, 2, 2), dtype))
    with refused(path, "fill_value") as caught:
        open_dataset(path, "raw", dtype=dtype, sig_shape=(2, 2), fill_value=value)
    assert caught.value.expected == f"a {np.dtype(dtype)}"


# Names


def test_selections_have_different_names(path):
    """Each option that may change a pixel changes the array's name."""
    variants = [
        {},
        {"nav_shape": (3, 4)},
        {"nav_shape": (13,)},
        {"sync_offset": -1},
        {"nav_shape": (13,), "fill_value": 1},
        {"roi": [0, 1]},
        {"roi": [1, 0]},
        {"roi": [1, 0, 0]},
        {"roi": [1, 0], "sync_offset": 1},
        {"roi": [1, 0], "fill_value": 1},
    ]
    names = [opened(path, **options).name for options in variants]
    assert len(set(names)) == len(names)
    assert [opened(path, **options).name for options in variants] == names
    mask = np.arange(12) < 2
    assert opened(path, roi=mask).name == opened(path, roi=[0, -11]).name


def stopped(path, name):
    """Write 15 of 25 announced frames, and return them."""
    frames = counting_frames((15, 4, 8), "u2")
    if name == "mib":
        write_mib(path.with_suffix(".mib"), frames, nav_shape=(5, 5), scan_keys=True)
        return path.with_suffix(".mib"), frames
    path = write_mrc(path.with_suffix(".mrc"), np.concatenate([frames, frames[:10]]))
    os.truncate(path, os.path.getsize(path) - 10 * frames[0].nbytes)
    return path, frames


@pytest.mark.parametrize("name", ["mib", "mrc"])
@pytest.mark.parametrize(("wanted", "shape"), [((-1, 5), (3, 5)), ((5, -1), (5, 3)), (-1, (15,))])
def test_open_sizes_of_stopped_scans_count_the_frames_that_exist(tmp_path, name, wanted, shape):
    path, frames = stopped(tmp_path / "scan", name)
    with pytest.raises(TruncatedFileError, match="announced"):
        open_dataset(path)
    arr = open_dataset(path, nav_shape=wanted)
    assert_same(arr, frames.reshape(*shape, *frames.shape[1:]))
    with pytest.raises(DatasetError, match=r"a multiple of 4 frames.*15 frames.*first 12 frames"):
        open_dataset(path, nav_shape=(-1, 4))
    for missing, lost in (((-1, 4), 1), ((2, -1, 4), 1), ((-1, 16), 1), ((-1, 5), 0)):
        filled = open_dataset(path, nav_shape=missing, missing="fill", fill_value=7)
        scan = filled.reshape(-1, *frames.shape[1:])
        assert filled.description.missing.tolist() == [15][:lost]
        np.testing.assert_array_equal(scan[:15], frames)
        assert (scan[15:].compute() == 7).all()
