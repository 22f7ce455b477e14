"""iter_blocks yields chunks in order, prefetches within limits and leaves no thread behind."""

import threading
import time

import dask.array as da
import numpy as np
import pytest
from checks import wait_for
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_tiled
from dask_tiled import StaleFileError, TilingError, iter_blocks, open_dataset
from dask_tiled.testing import counting_frames


def threads():
    """List the threads that read ahead: those of a pool, which are numbered."""
    return [t for t in threading.enumerate() if t.name.startswith("dask-tiled_")]


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    assert not threads()


@pytest.fixture
def volume(tmp_path):
    pixels = counting_frames((8, 6, 5), "u2")
    np.save(tmp_path / "a.npy", pixels)
    return tmp_path / "a.npy", pixels


class Loads:
    """An array that lists its chunks when they are started."""

    def __init__(self, n=20, fails=()):
        self.started, self.lock, self.fails = [], threading.Lock(), fails
        self.arr = da.map_blocks(self.load, chunks=((10,) * n,), dtype="u1", meta=np.empty(0, "u1"))

    def load(self, block_id):
        with self.lock:
            self.started.append(block_id[0])
        if block_id[0] in self.fails:
            raise ValueError(f"chunk {block_id[0]} cannot be read")
        return np.full(10, block_id[0], "u1")


def settles(loads, count):
    """Wait until some chunks are started; return whether no more are started soon after."""
    wait_for(lambda: len(loads.started) >= count)
    time.sleep(0.1)
    return len(loads.started) == count


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_all_chunks_in_order(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    pixels = np.arange(np.prod(shape)).reshape(shape)
    arr = da.from_array(pixels, chunks=chunks)
    out, order = np.zeros_like(pixels), []
    options = {
        "prefetch": data.draw(st.integers(0, 4)),
        "max_bytes": data.draw(st.sampled_from([0, 100, 10**9])),
    }
    for block in iter_blocks(arr, **options):
        out[block.where] = block.pixels
        order.append(tuple(s.start for s in block.where))
    np.testing.assert_array_equal(out, pixels)
    assert order == sorted(order)
    assert len(order) == arr.npartitions


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_opened_files_and_lists_of_arrays(volume, prefetch):
    path, pixels = volume
    arr = open_dataset(path, chunks=(3, 6, 5))
    found = list(iter_blocks((arr, arr + 1, arr[::2]), prefetch=prefetch))
    assert [block.number for block in found] == [0, 0, 0, 1, 1, 1, *[2] * (len(found) - 6)]
    for number, expected in enumerate([pixels, pixels + 1, pixels[::2]]):
        parts = [block.pixels for block in found if block.number == number]
        np.testing.assert_array_equal(np.concatenate(parts), expected)
    for block in found:
        assert block.pixels.flags.writeable


def test_prefetch_limits_chunks():
    loads = Loads()
    blocks = iter_blocks(loads.arr, prefetch=3)
    assert not loads.started
    next(blocks)
    assert settles(loads, 4)
    next(blocks)
    assert settles(loads, 5)
    blocks.close()
    assert settles(loads, 5)


def test_max_bytes_limits_chunks():
    loads = Loads()
    blocks = iter_blocks(loads.arr, prefetch=8, max_bytes=25)
    next(blocks)
    assert settles(loads, 3)
    blocks.close()
    loads = Loads()
    blocks = iter_blocks(loads.arr, prefetch=8, max_bytes=1)  # a larger chunk is read alone
    next(blocks)
    assert settles(loads, 2)
    assert sum(1 for _ in blocks) == 19


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_blocks_before_an_error_are_yielded(prefetch):
    blocks = iter_blocks(Loads(fails=[4, 5]).arr, prefetch=prefetch)
    assert [int(next(blocks).pixels[0]) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="chunk 4") as caught:
        next(blocks)
    assert any("slice(40, 50" in note for note in caught.value.__notes__)
    assert not threads()
    assert list(blocks) == []


def test_errors_name_deleted_files(volume):
    path, _ = volume
    blocks = iter_blocks(open_dataset(path, chunks=(1, 6, 5)), prefetch=1)
    next(blocks)
    path.unlink()
    with pytest.raises(StaleFileError, match=r"a\.npy"):
        list(blocks)


def test_an_iterator_of_arrays_may_fail(volume):
    path, _ = volume
    paths = [path, path, path.with_name("gone.npy"), path]
    blocks = iter_blocks((open_dataset(p) for p in paths), prefetch=4)
    assert [next(blocks).number for _ in range(2)] == [0, 1]
    with pytest.raises(FileNotFoundError, match=r"gone\.npy"):
        next(blocks)


def test_a_consumer_may_stop_or_fail():
    loads = Loads()
    for block in iter_blocks(loads.arr, prefetch=4):
        if block.where[0].start == 50:
            break
    del block
    blocks = iter_blocks(loads.arr, prefetch=4)
    with pytest.raises(IndexError):
        sum(block.pixels[10] for block in blocks)
    blocks.close()


def test_iterators_within_iterators():
    arr = Loads(6).arr
    total = 0
    for one in iter_blocks(arr, prefetch=2):
        total += sum(int(one.pixels[0]) * int(two.pixels[0]) for two in iter_blocks(arr))
    assert total == 15 * 15


def test_invalid_arguments_raise():
    arr = Loads(3).arr
    with pytest.raises(dask_tiled.DatasetError, match="prefetch"):
        iter_blocks(arr, prefetch=-1)
    with pytest.raises(dask_tiled.DatasetError, match="max_bytes"):
        iter_blocks(arr, max_bytes=1.5)
    with pytest.raises(TilingError, match="unknown size"):
        next(iter_blocks(arr[arr > 1]))
    with pytest.raises(TilingError, match="not an array"):
        next(iter_blocks(["scan.mib"]))
