"""Diffraction patterns by number: centred, cropped, padded and binned while they are read."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tiled import Corrections, DatasetError, Patterns, iter_batches, open_dataset, open_series
from dask_tiled.testing import write_mib

NAV, SIG = (4, 6), (16, 32)
PIXELS = np.random.default_rng(0).integers(0, 4000, (*NAV, *SIG), "u2")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_mib(tmp_path_factory.mktemp("patterns") / "a.mib", PIXELS, nav_shape=NAV)


@pytest.fixture(scope="module")
def arr(path):
    return open_dataset(path, nav_shape=NAV).with_axes(scan_y="2 nm", scan_x="0.5 nm")


def expected(size, binning, center, shift, pixels=PIXELS):
    """Move each frame in a large field of zeros, cut the window, and add blocks of pixels."""
    far = 100
    found = []
    for frame, by in zip(pixels.reshape(-1, *SIG), shift.reshape(-1, 2), strict=True):
        field = np.pad(frame.astype("f8"), far)
        y, x = np.rint(np.add(center, by)).astype(int) + far
        h, w = (n * binning for n in size)
        window = field[y - h // 2 :, x - w // 2 :][:h, :w]
        found.append(window.reshape(size[0], binning, size[1], binning).sum((1, 3)))
    return np.array(found)


@pytest.mark.thorough
@settings(max_examples=50)
@given(
    size=st.tuples(st.integers(1, 20), st.integers(1, 36)),
    binning=st.integers(1, 3),
    center=st.tuples(st.floats(-3, 18), st.floats(-3, 35)),
    seed=st.none() | st.integers(0, 9),
    kind=st.sampled_from(["opened", "result", "memory"]),
)
def test_patterns_are_windows_around_the_beam(arr, size, binning, center, seed, kind):
    rng = np.random.default_rng(seed or 0)
    shift = np.zeros((*NAV, 2)) if seed is None else rng.normal(0, 3, (*NAV, 2))
    source = {"opened": arr, "result": arr + 0, "memory": PIXELS}[kind]
    options = {"size": size, "binning": binning, "center": center}
    patterns = Patterns(source, shift=None if seed is None else shift, **options)
    whole = expected(**options, shift=shift)
    order = rng.permutation(24)[:9]
    assert patterns.dtype == np.float32
    np.testing.assert_array_equal(patterns[order], whole[order])
    np.testing.assert_array_equal(patterns[3], whole[3])
    np.testing.assert_array_equal(patterns[-2:], whole[-2:])


def test_the_whole_frame_by_default(arr, path):
    for patterns in (Patterns(arr, dtype="u2"), Patterns(path, nav_shape=NAV, dtype="u2")):
        np.testing.assert_array_equal(patterns[:], PIXELS.reshape(-1, *SIG))
    halves = PIXELS.reshape(24, 8, 2, 16, 2).sum((2, 4))
    np.testing.assert_array_equal(Patterns(arr, binning=2)[:], halves)


def test_positions_in_units_of_the_axes(arr):
    places = np.array([*np.ndindex(NAV)]) * [2, 0.5]
    np.testing.assert_array_equal(Patterns(arr).positions, places)
    np.testing.assert_array_equal(Patterns(PIXELS).positions, [*np.ndindex(NAV)])


def test_batches_of_patterns(arr):
    """With dark and gain, and a shift, in the same pass."""
    dark, gain = np.full(SIG, 3, "f4"), np.full(SIG, 0.5, "f4")
    corrected = open_dataset(
        arr.description.files[0].path, nav_shape=NAV, corrections=Corrections(dark, gain)
    )
    shift = np.random.default_rng(1).integers(-4, 5, (*NAV, 2)).astype(float)
    patterns = Patterns(corrected, size=(8, 8), shift=shift)
    pixels = (PIXELS.astype("f4") - 3) * 0.5
    whole = expected((8, 8), 1, (8, 16), shift, pixels)
    label = np.arange(24).reshape(NAV)
    source, names = {"frame": patterns, "label": label}, ["frame", "label", "index", "position"]
    seen = []
    for batch in iter_batches(source, 7, fields=names, shuffle="all"):
        seen += batch["index"].tolist()
        np.testing.assert_array_equal(batch["frame"], whole[batch["index"]])
        assert (batch["label"] == batch["index"]).all()
        np.testing.assert_array_equal(batch["position"], patterns.positions[batch["index"]])
    assert sorted(seen) == [*range(24)]


def test_patterns_of_a_series(path):
    series = open_series([path, path], nav_shape=NAV)
    patterns = Patterns(series, size=(4, 4))
    assert patterns.positions.shape == (48, 3)
    np.testing.assert_array_equal(patterns[[1, 25]][0], patterns[25])


@pytest.mark.parametrize(
    ("source", "options", "problem"),
    [
        (PIXELS, {"size": 4}, "invalid size.*two numbers"),
        (PIXELS, {"size": (0, 4)}, "size"),
        (PIXELS, {"size": (2.5, 4)}, "size"),
        (PIXELS, {"binning": 0}, "binning"),
        (PIXELS, {"center": (np.nan, 1)}, "invalid center"),
        (PIXELS, {"shift": np.zeros((6, 4, 2))}, "invalid shift"),
        (PIXELS, {"dtype": "c8"}, "invalid dtype"),
        (PIXELS, {"nav_shape": NAV}, "unknown option.*nav_shape"),
        (PIXELS[0, 0], {}, "not a scan of images"),
        (da.zeros((3, 4, 5))[da.ones(3) > 0], {}, "unknown size"),
    ],
)
def test_wrong_arguments(source, options, problem):
    with pytest.raises(DatasetError, match=f"(?s){problem}"):
        Patterns(source, **options)


def test_wrong_numbers_and_samples(arr):
    patterns = Patterns(arr)
    for wrong in (24, [0, 24], [[0, 1]], -25):
        with pytest.raises(IndexError):
            patterns[wrong]
    with pytest.raises(DatasetError, match="patterns are samples as they are"):
        next(iter_batches(patterns, 4, samples="row"))
