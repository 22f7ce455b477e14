"""Sparse masks give the same results as dense masks."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import sparse
from checks import on_tiles
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tiled import TilingError, open_dataset, tiles
from dask_tiled.testing import counting_frames, write_npy

pytestmark = pytest.mark.usefixtures("synchronous")

NAV, SIG, N = (3, 5), (12, 16), 7


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    frames = counting_frames(NAV + SIG, "u2", bits=12)
    return write_npy(tmp_path_factory.mktemp("sparse") / "scan.npy", frames)


def dense_masks(dtype="f8", share=0.1):
    rng = np.random.default_rng(3)
    masks = rng.integers(1, 9, (N, *SIG)) * (rng.random((N, *SIG)) < share)
    masks[2] = 0  # a mask may be empty
    return (masks * (1 - 2j if np.dtype(dtype).kind == "c" else 1)).astype(dtype)


def forms(masks):
    """Yield the same masks in all supported forms."""
    flat = masks.reshape(len(masks), -1)
    yield from (make(flat) for make in (scipy.sparse.csr_matrix, scipy.sparse.csc_array))
    yield from (make(masks) for make in (scipy.sparse.coo_array, sparse.COO, sparse.GCXS))
    yield sparse.COO(flat)
    yield [scipy.sparse.coo_matrix(mask) for mask in masks]
    yield [sparse.COO(masks[0]), *masks[1:]]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [bool, "u1", "f4", "f8", "c8"])
def test_all_forms(path, dtype):
    arr, masks = open_dataset(path), dense_masks(dtype)
    expected = tiles.apply_masks(arr, masks)
    for form in forms(masks):
        found = tiles.apply_masks(arr, form)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert on_tiles(found)
        np.testing.assert_allclose(found.compute(), expected.compute(), rtol=1e-6)


def test_single_mask(path):
    arr, mask = open_dataset(path), dense_masks()[0]
    expected = tiles.apply_masks(arr, mask).compute()
    for form in (scipy.sparse.csr_array(mask), sparse.COO(mask), [sparse.COO(mask)]):
        np.testing.assert_array_equal(tiles.apply_masks(arr, form).compute(), expected)


@pytest.mark.parametrize("dtype", [bool, "i1", "f2", "u4", "i8", "f4", ">f8", "c8", "c16"])
@pytest.mark.parametrize("from_file", [False, True])
def test_pixels_of_all_types(tmp_path, dtype, from_file):
    frames = (np.arange(9 * 12 * 16).reshape(9, *SIG) % 5 - 2).astype(dtype)
    arr = da.from_array(frames, chunks=(2, 5, 9))
    if from_file:
        arr = open_dataset(write_npy(tmp_path / "a.npy", frames), nav_shape=(9,), chunks=(5, 7, 16))
    masks = dense_masks("f4")
    found = tiles.apply_masks(arr, scipy.sparse.coo_array(masks))
    expected = np.tensordot(frames.astype("c16"), masks, ((1, 2), (1, 2)))
    expected = expected.astype(found.dtype) if found.dtype.kind == "c" else expected.real
    np.testing.assert_allclose(found.compute(), expected, rtol=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99), st.integers(1, 3), st.integers(1, 9), st.floats(0, 1))
def test_any_masks(seed, sig_ndim, n, share):
    rng = np.random.default_rng(seed)
    frame = tuple(rng.integers(1, 9, sig_ndim))
    frames = rng.random((rng.integers(1, 11), *frame))
    masks = rng.random((n, *frame)) * (rng.random((n, *frame)) < share)
    arr = da.from_array(frames, chunks=(4, *frame))
    found = tiles.apply_masks(arr, sparse.COO(masks), sig_ndim=sig_ndim).compute()
    axes = tuple(range(1, sig_ndim + 1))
    np.testing.assert_allclose(found, np.tensordot(frames, masks, (axes, axes)), atol=1e-12)


def test_many_masks_of_large_frames_take_little_memory():
    """As dense masks these would take 32 GiB."""
    frame = (2048, 2048)
    rng = np.random.default_rng(0)
    rows, places = np.repeat(np.arange(1000), 100), rng.integers(0, 2048**2, 100_000)
    shape = (1000, 2048**2)
    masks = scipy.sparse.csr_array((np.ones(100_000, "f4"), (rows, places)), shape)
    frames = da.ones((3, *frame), chunks=(1, *frame), dtype="u1")
    found = tiles.apply_masks(frames, masks).compute()
    np.testing.assert_array_equal(found, np.broadcast_to(masks.sum(axis=1), (3, 1000)))


def test_computed_together_and_named(path):
    arr, masks = open_dataset(path), dense_masks()
    one, two = tiles.apply_masks(arr, sparse.COO(masks)), tiles.apply_masks(arr, masks)
    np.testing.assert_allclose(*dask.compute(one, two), rtol=1e-6)
    assert one.name == tiles.apply_masks(arr, scipy.sparse.coo_array(masks)).name
    assert one.name != tiles.apply_masks(arr, sparse.COO(2 * masks)).name


@pytest.mark.parametrize(
    ("masks", "problem"),
    [
        (scipy.sparse.csr_array(np.ones((3, 5))), "shape of a frame"),
        (sparse.COO(np.ones((2, 16, 12))), "shape of a frame"),
        ([sparse.COO(np.ones(SIG)), np.ones(3)], "shape of a frame"),
        (scipy.sparse.csr_array((0, 12 * 16)), "shape of a frame"),
        (sparse.COO(np.ones((2, *SIG)), fill_value=1.0), "fill value of sparse masks must be 0"),
        (sparse.COO(np.ones(SIG).astype("M8[s]")), "invalid dtype of masks"),
    ],
    ids=range(6),
)
def test_invalid_masks_are_refused(path, masks, problem):
    with pytest.raises(TilingError, match=problem) as caught:
        tiles.apply_masks(open_dataset(path), masks)
    assert caught.value.expected is not None
    assert caught.value.found is not None
