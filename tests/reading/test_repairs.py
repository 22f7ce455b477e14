"""Repair of large regions of excluded pixels, as behind a beam stop."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tiled import Corrections, DatasetError, open_dataset, tiles
from dask_tiled.testing import counting_frames, write_npy, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")


def repaired(frames, excluded):
    """Repair frames in float64, pixel by pixel, from the edge of each region inwards."""
    frames, good = frames.astype("f8"), ~excluded
    steps = [*itertools.product((-1, 0, 1), repeat=excluded.ndim)]
    while not good.all():
        found = {}
        for place in map(tuple, np.argwhere(~good)):
            near = [tuple(np.add(place, step)) for step in steps]
            near = [x for x in near if min(x) >= 0 and (np.less(x, good.shape)).all() and good[x]]
            if near:
                found[place] = np.mean([frames[:, *x] for x in near], axis=0)
        for place, value in found.items():
            frames[:, *place], good[place] = value, True
    return frames


def beam_stop(shape):
    y, x = np.indices(shape)
    stop = np.hypot(y - 0.4 * shape[0], x - 0.55 * shape[1]) < 0.3 * min(shape)
    return stop | ((abs(y - 0.4 * shape[0]) < 2) & (x > 0.5 * shape[1]))


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    frames = counting_frames((3, 4, 24, 32), "u2", bits=12)
    return frames, write_npy(tmp_path_factory.mktemp("stop") / "scan.npy", frames)


def test_beam_stop_is_filled_from_its_edge_inwards(scan):
    frames, path = scan
    stop = beam_stop((24, 32))
    stop[20, 3] = True  # a single pixel elsewhere
    arr = open_dataset(path, corrections=Corrections(excluded_pixels=stop))
    found = arr.compute()
    expected = repaired(frames.reshape(-1, 24, 32), stop).reshape(frames.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(found[..., ~stop], frames[..., ~stop])
    assert found[..., stop].min() > 0


@pytest.mark.parametrize(
    "index",
    [
        np.s_[:, :, 9, 17], np.s_[1, :, 8:11, 15:20], np.s_[:, 2, ::5, ::-3], np.s_[..., 9:10, 25:],
        np.s_[0, 0, 4:, 20], np.s_[..., ::-1, 16],
    ],
    ids=str,
)  # fmt: skip
def test_slices_of_a_beam_stop_are_the_same(scan, index):
    """Slices equal the whole bit for bit, though the good pixels lie outside."""
    _, path = scan
    corrections = Corrections(np.full((24, 32), 0.3), None, beam_stop((24, 32)))
    whole = open_dataset(path, corrections=corrections).compute()
    arr = open_dataset(path, corrections=corrections, chunks=(2, 3, 24, 32))
    np.testing.assert_array_equal(arr[index].compute(), whole[index])


def test_chunks_across_a_beam_stop(scan):
    _, path = scan
    corrections = Corrections(excluded_pixels=beam_stop((24, 32)))
    whole = open_dataset(path, corrections=corrections).compute()
    arr = open_dataset(path, corrections=corrections, chunks=(3, 2, 7, 11))
    np.testing.assert_array_equal(arr.compute(), whole)
    np.testing.assert_allclose(arr.sum((0, 1)).compute(), whole.sum((0, 1)), rtol=1e-6)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_mask(tmp_path_factory, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    seed = data.draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    excluded = rng.random(shape) < data.draw(st.sampled_from([0.1, 0.5, 0.9]))
    excluded.ravel()[rng.integers(excluded.size)] = False
    frames = rng.integers(0, 999, (2, *shape)).astype("u2")
    path = write_raw(tmp_path_factory.mktemp("any") / "scan.raw", frames)
    given = {"dtype": "u2", "sig_shape": shape, "corrections": Corrections(None, None, excluded)}
    arr = open_dataset(path, "raw", **given)
    whole = arr.compute()
    np.testing.assert_allclose(whole, repaired(frames, excluded), rtol=1e-5)
    index = tuple(slice(*sorted(rng.integers(0, n + 1, 2))) for n in shape)
    np.testing.assert_array_equal(arr[:, *index].compute(), whole[:, *index])


@pytest.mark.parametrize("fill", [0, np.nan, -1.5])
def test_fill_of_excluded_pixels(scan, fill):
    frames, path = scan
    stop = beam_stop((24, 32))
    dark = np.full((24, 32), 2.0)
    arr = open_dataset(path, corrections=Corrections(dark, None, stop, fill))
    expected = np.where(stop, np.float32(fill), frames.astype("f4") - 2)
    np.testing.assert_array_equal(arr.compute(), expected)
    np.testing.assert_array_equal(arr[:, 1, 5:12, ::-2].compute(), expected[:, 1, 5:12, ::-2])
    masked = tiles.apply_masks(arr, ~stop)[..., 0].compute() if fill == 0 else None
    assert masked is None or (masked == expected.sum((2, 3))).all()


def test_all_pixels_may_be_filled(scan):
    _, path = scan
    every = np.ones((24, 32), bool)
    arr = open_dataset(path, corrections=Corrections(excluded_pixels=every, fill=7))
    assert (arr.compute() == 7).all()
    with pytest.raises(DatasetError, match=r"all pixels are excluded.*fill="):
        open_dataset(path, corrections=Corrections(excluded_pixels=every))


def test_fill_of_frames_without_axes(tmp_path):
    path = write_npy(tmp_path / "points.npy", np.arange(6, dtype="u2").reshape(2, 3))
    corrections = Corrections(excluded_pixels=True, fill=3)
    assert (open_dataset(path, sig_dims=0, corrections=corrections).compute() == 3).all()
