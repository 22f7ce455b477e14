"""Memory of chunks is reused, but never while a chunk or a view of it exists."""

import gc
import mmap
import os
import pickle
import weakref

import dask
import dask.array as da
import numpy as np
import pytest

import dask_tiled
from dask_tiled.graphs import lending
from dask_tiled.graphs.lending import Spare
from dask_tiled.testing import write_npy

SHAPE = (24, 16, 16)
PIXELS = np.random.default_rng(0).integers(0, 4000, SHAPE).astype(">u2")


@pytest.fixture
def arr(tmp_path, monkeypatch):
    monkeypatch.setattr(lending, "LEAST_LENT_PIXELS", 1)
    return dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", PIXELS), chunks=(2, -1, -1))


def address(chunk):
    return chunk.__array_interface__["data"][0]


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_memory_is_reused(arr, scheduler):
    found = []
    result = arr.map_blocks(lambda chunk: found.append(address(chunk)) or chunk[:, :1, :1] + 1)
    found.clear()
    wanted = PIXELS[:, :1, :1].astype("u2") + 1
    np.testing.assert_array_equal(result.compute(scheduler=scheduler), wanted)
    assert len(found) >= 12
    assert len(set(found)) <= 3


def test_chunks_that_a_function_keeps_are_not_reused(arr):
    kept = {}

    def keep(chunk, block_id):
        kept[block_id] = chunk[1:, 3:].T
        return chunk[:, :1, :1] + 1

    arr.map_blocks(keep, dtype=arr.dtype).compute(scheduler="sync")
    whole = np.concatenate([kept[k, 0, 0].T for k in range(12)])
    np.testing.assert_array_equal(whole, PIXELS[1::2, 3:])


def test_memory_of_results_is_not_reused(arr):
    same = arr.map_blocks(lambda chunk: chunk)
    np.testing.assert_array_equal(same.compute(), PIXELS)
    held = arr.map_blocks(lambda chunk: chunk).persist()
    np.testing.assert_array_equal(held + 0, PIXELS)
    both = da.stack([arr.map_blocks(np.negative), arr.map_blocks(lambda chunk: chunk)])
    np.testing.assert_array_equal(both[1].compute(), PIXELS)
    chunks = dask.compute(*arr.map_blocks(lambda chunk: chunk).to_delayed().ravel())
    np.testing.assert_array_equal(np.concatenate(chunks), PIXELS)


@pytest.mark.thorough
def test_spare_memory_is_bounded():
    spare = Spare()
    chunks = [spare.chunk((2, 3), np.dtype("f4")) for _ in range(5)]
    assert len({*map(address, chunks)}) == 5
    assert all(chunk.flags.c_contiguous and chunk.flags.writeable for chunk in chunks)
    del chunks
    gc.collect()
    assert len(spare._waiting) == 2
    held = spare.chunk((2, 3), np.dtype("f4"))
    for show in (lambda x: x[1:], lambda x: x.T, memoryview, np.ma.array):
        held = show(held)
        gc.collect()
        assert len(spare._waiting) == 1
    del held
    gc.collect()
    assert len(spare._waiting) == 2
    assert spare.chunk((9,), np.dtype("f8")).nbytes == 72
    assert spare.chunk((9,), np.dtype(object)) is None
    assert pickle.loads(pickle.dumps(spare)).chunk((2, 3), np.dtype("f4")) is None


@pytest.mark.thorough
def test_a_view_keeps_only_its_own_chunk():
    spare = Spare()
    first, kept = (spare.chunk((8, 8), np.dtype("u2")) for _ in range(2))
    pool = weakref.ref(spare._waiting)
    del first
    assert len(pool()) == 1
    kept = kept[0, :1]
    del spare
    gc.collect()
    assert pool() is None
    del kept


@pytest.fixture
def native(tmp_path, monkeypatch):
    """Yield an array of a file at rest, whose chunks are private pages, and its path."""
    monkeypatch.setattr(lending, "LEAST_LENT_PIXELS", 1)
    path = write_npy(tmp_path / "native.npy", PIXELS.astype("u2"))
    with dask.config.set({"dask-tiled.rest-seconds": 0}):
        yield dask_tiled.open_dataset(path, chunks=(8, -1, -1)), path


def is_mapped(chunk):
    shown = getattr(chunk.base, "base", None)
    return chunk.flags.writeable and isinstance(getattr(shown, "obj", None), mmap.mmap)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_functions_get_private_pages(native, scheduler):
    arr, path = native
    before, mapped = path.read_bytes(), []

    def change(chunk):
        mapped.append(is_mapped(chunk))
        chunk += 1
        return chunk.sum(axis=(1, 2))

    result = arr.map_blocks(change, dtype="u8", drop_axis=(1, 2))
    mapped.clear()
    found = result.compute(scheduler=scheduler)
    np.testing.assert_array_equal(found, (PIXELS.astype("u8") + 1).sum(axis=(1, 2)))
    assert mapped == [True] * 3
    assert path.read_bytes() == before
    np.testing.assert_array_equal(arr.compute(), PIXELS)


def test_kept_and_returned_chunks_survive_truncation(native):
    arr, path = native
    kept = {}

    def keep(chunk, block_id):
        kept[block_id[0]] = chunk[:, ::-1].T
        return chunk[:, 3:]

    found = arr.map_blocks(keep, dtype=arr.dtype, chunks=(8, 13, 16)).persist(scheduler="sync")
    os.truncate(path, 0)
    np.testing.assert_array_equal(found.compute(), PIXELS[:, 3:])
    whole = np.concatenate([kept[k].T[:, ::-1] for k in range(3)])
    np.testing.assert_array_equal(whole, PIXELS)


def test_a_file_that_changes_under_a_function_raises(native):
    arr, path = native

    def touch(chunk):
        os.utime(path, (0, 0))
        return chunk[:, :1, :1] + 1

    with pytest.raises(dask_tiled.errors.StaleFileError):
        arr.map_blocks(touch, chunks=(8, 1, 1), meta=np.empty((0, 0, 0), "u2")).compute(
            scheduler="sync"
        )


def test_several_arrays_and_constants_reach_a_function(native):
    arr, _ = native
    found = da.map_blocks(
        lambda a, b, c: a + b * c, arr, np.uint16(2), da.from_array(PIXELS, (8, 16, 16))
    )
    np.testing.assert_array_equal(found.compute(), PIXELS + np.uint16(2) * PIXELS)
    same = da.map_blocks(lambda a, b: a - b, arr, arr[:, ::-1])
    np.testing.assert_array_equal(same.compute(), PIXELS.astype("u2") - PIXELS[:, ::-1])
    total = arr[:8].map_blocks(np.sum, drop_axis=(0, 1, 2), dtype="u8")
    assert total.compute() == PIXELS[:8].sum()
