"""Memory of chunks that is used again: never while somebody holds a chunk, nor afterwards."""

import gc
import pickle
import weakref

import dask
import dask.array as da
import numpy as np
import pytest

import dask_tiled
from dask_tiled.array.dask_graph import lending
from dask_tiled.array.dask_graph.lending import Spare
from dask_tiled.testing import write_npy

SHAPE = (24, 16, 16)
PIXELS = np.random.default_rng(0).integers(0, 4000, SHAPE).astype(">u2")


@pytest.fixture
def arr(tmp_path, monkeypatch):
    monkeypatch.setattr(lending, "LEAST_PIXELS", 1)
    return dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", PIXELS), chunks=(2, -1, -1))


def address(chunk):
    return chunk.__array_interface__["data"][0]


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_memory_is_used_again(arr, scheduler):
    found = []
    result = arr.map_blocks(lambda chunk: found.append(address(chunk)) or chunk[:, :1, :1] + 1)
    found.clear()
    wanted = PIXELS[:, :1, :1].astype("u2") + 1
    np.testing.assert_array_equal(result.compute(scheduler=scheduler), wanted)
    assert len(found) >= 12
    assert len(set(found)) <= 3


def test_what_a_function_keeps_stays(arr):
    kept = {}

    def keep(chunk, block_id):
        kept[block_id] = chunk[1:, 3:].T
        return chunk[:, :1, :1] + 1

    arr.map_blocks(keep, dtype=arr.dtype).compute(scheduler="sync")
    whole = np.concatenate([kept[k, 0, 0].T for k in range(12)])
    np.testing.assert_array_equal(whole, PIXELS[1::2, 3:])


def test_results_are_nobody_else_s(arr):
    same = arr.map_blocks(lambda chunk: chunk)
    np.testing.assert_array_equal(same.compute(), PIXELS)
    held = arr.map_blocks(lambda chunk: chunk).persist()
    np.testing.assert_array_equal(held + 0, PIXELS)
    both = da.stack([arr.map_blocks(np.negative), arr.map_blocks(lambda chunk: chunk)])
    np.testing.assert_array_equal(both[1].compute(), PIXELS)
    chunks = dask.compute(*arr.map_blocks(lambda chunk: chunk).to_delayed().ravel())
    np.testing.assert_array_equal(np.concatenate(chunks), PIXELS)


def test_waiting_memory_is_bounded_and_goes_with_what_lends_it():
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
