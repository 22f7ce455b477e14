"""Memory is used again, and never by two arrays at once."""

import concurrent.futures
import gc

import numpy as np
import pytest

from dask_tiled.reading import buffers

SHAPE, DTYPE = (3, 512, 1024), np.dtype("u2")


@pytest.fixture(autouse=True)
def nothing_idle():
    """Begin and end without memory that waits."""
    buffers._idle.clear()
    yield
    buffers._idle.clear()


def test_arrays_are_like_those_of_numpy():
    """Of the shape and type that were asked for, writeable and contiguous."""
    array = buffers.empty(SHAPE, DTYPE)
    assert (array.shape, array.dtype) == (SHAPE, DTYPE)
    assert array.flags.writeable
    assert array.flags.c_contiguous


def test_memory_is_used_again():
    """Once an array and its views are gone, and not before."""
    array = buffers.empty(SHAPE, DTYPE)
    address = array.ctypes.data
    view = array[1:, ::2]
    del array
    assert buffers.empty(SHAPE, DTYPE).ctypes.data != address
    buffers._idle.clear()
    del view
    assert buffers.empty(SHAPE, DTYPE).ctypes.data == address


def test_living_arrays_share_no_memory():
    """Whatever came and went before."""
    arrays = [buffers.empty(SHAPE, DTYPE) for _ in range(3)]
    del arrays[1]
    arrays += [buffers.empty((2, 512, 1024), DTYPE), buffers.empty(SHAPE, DTYPE)]
    for k, array in enumerate(arrays):
        array[:] = k
    assert [int(array.min()) for array in arrays] == [int(array.max()) for array in arrays]


def test_little_memory_waits():
    """Many results that go at once do not stay."""
    arrays = [buffers.empty((buffers.IDLE_BYTES // 4,), np.dtype("u1")) for _ in range(8)]
    del arrays
    gc.collect()
    assert sum(block.nbytes for block in buffers._idle) <= buffers.IDLE_BYTES


def test_a_much_smaller_array_does_not_hold_a_large_block():
    """A block serves arrays of at least half its size."""
    large = buffers.empty((8, *SHAPE), DTYPE)
    del large
    array = buffers.empty(SHAPE, DTYPE)
    owner = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert owner._block.nbytes == array.nbytes


def test_threads_get_memory_of_their_own():
    """What one thread writes, no other overwrites."""

    def fill(number):
        array = buffers.empty(SHAPE, DTYPE)
        array[:] = number
        return bool((array == number).all())

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(fill, range(200)))
