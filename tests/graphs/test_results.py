"""Tasks write their chunks into the result, which equals dask's concatenation."""

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from checks import coarsened, peak_memory

import dask_tiled
from dask_tiled.graphs import results
from dask_tiled.graphs.results import OutputBuffer
from dask_tiled.plans import plan
from dask_tiled.testing import write_mib, write_raw
from dask_tiled.tiling.bases import Grid

FRAMES = np.random.default_rng(0).integers(0, 4000, (6, 5, 16, 64)).astype("u2")
ROWS, BLOCKS, WHOLE = (2, 5, 16, 64), (4, 2, 8, 64), FRAMES.shape


def binned(x, function, by):
    """Bin neighbouring pixels."""
    return (da.coarsen if isinstance(x, da.Array) else coarsened)(function, x, by)


def mapped(x, function):
    """Call a function tile by tile, or on all pixels of a NumPy array."""
    if isinstance(x, da.Array):
        return dask_tiled.map_tiles(lambda tile, _: function(tile), x)
    return function(x)


def called(x, function, *others):
    """Call a function chunk by chunk, or on all pixels of a NumPy array."""
    if isinstance(x, da.Array):
        more = [da.from_array(other, chunks=x.chunks) for other in others]
        return da.map_blocks(lambda *blocks: function(sum(blocks)), x, *more)
    return function(sum((x, *others)))


EXPRESSIONS = {
    "pixels": lambda x: x,
    "computed": lambda x: x.astype("f4") - 3,
    "moved": lambda x: x.transpose(2, 0, 3, 1),
    "cut": lambda x: x[1:, ::2, 3:],
    "split": lambda x: (x * 2).reshape(6, 5, 4, 4, 64),
    "of new axes": lambda x: np.sqrt(x)[:, None, :, None],
    "with a new axis": lambda x: (x + 1)[..., None],
    "made of a new axis": lambda x: x[:, :, None] * 2,
    "sums of bins": lambda x: binned(x, np.sum, {2: 4, 3: 4}),
    "means of bins": lambda x: binned(x, np.mean, {0: 2, 3: 2}),
    "means of floats": lambda x: binned(x.astype("f4"), np.mean, {2: 8, 3: 64}),
    "lowest of bins": lambda x: binned(x.transpose(3, 2, 1, 0), np.min, {0: 2, 3: 2}),
    "by a function": lambda x: called(x, lambda block: block[..., ::-1] / 3),
    "by functions of functions": lambda x: np.sqrt(called(called(x, np.abs), lambda x: x / 3)) + 1,
    "by a function of others": lambda x: called(x[1:] * 2, np.sqrt, FRAMES[1:]),
    "mapped": lambda x: mapped(x, lambda tile: tile / 3),
    "mapped frames": lambda x: mapped(x[::2], lambda tile: tile[..., ::-1]),
}


@pytest.fixture(autouse=True)
def small_results_too(monkeypatch):
    monkeypatch.setattr(results, "LEAST_RESULT_PIXELS", 2)
    monkeypatch.setattr(plan, "LEAST_TASK_BYTES", 1)
    with dask.config.set(scheduler="threads", num_workers=4):
        yield


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return {
        "big-endian": write_mib(folder / "scan.mib", FRAMES, kind="U16"),
        "native": write_raw(folder / "scan.raw", FRAMES),
        "packed": write_mib(folder / "packed.mib", FRAMES, kind="R64"),
    }


def opened(paths, name, chunks, **options):
    if name == "native":
        options |= {"format": "raw", "dtype": "u2", "sig_shape": FRAMES.shape[2:]}
    return dask_tiled.open_dataset(
        paths[name], nav_shape=FRAMES.shape[:2], chunks=chunks, **options
    )


@pytest.fixture
def concatenating_nothing(monkeypatch, paths):
    opened(paths, "native", WHOLE)  # opening the first array probes dask

    def refuse(*_args, **_options):
        raise AssertionError("dask has concatenated chunks")

    monkeypatch.setattr(da.core, "concatenate3", refuse)


@pytest.mark.usefixtures("concatenating_nothing")
@pytest.mark.parametrize(
    ("name", "chunks"), [("big-endian", ROWS), ("packed", BLOCKS), ("native", WHOLE)]
)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_tasks_write_into_the_result(paths, name, chunks, expression):
    """The result is an owned, writeable, C-contiguous array that dask did not concatenate."""
    function = EXPRESSIONS[expression]
    found, wanted = function(opened(paths, name, chunks)).compute(), function(FRAMES)
    assert found.dtype == wanted.dtype
    assert found.base is None
    assert found.flags.writeable
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["pixels", "computed", "split", "sums of bins"])
def test_small_chunks_share_a_task(paths, name, monkeypatch):
    """One result has few tasks; several that read the same chunks read them once."""
    result = EXPRESSIONS[name](arr := opened(paths, "big-endian", (1, 1, 16, 64)))
    many = dask_tiled.explain(result).tasks
    monkeypatch.setattr(plan, "LEAST_TASK_BYTES", FRAMES.nbytes // 2)
    assert dask_tiled.explain(result).tasks == 4  # two chunks, their memory, and the last step
    assert many == 32
    np.testing.assert_array_equal(result.compute(), EXPRESSIONS[name](FRAMES))
    both = dask_tiled.explain(result, arr.sum((2, 3)), arr - 1)
    assert both.bytes_read == FRAMES.nbytes


MADE = {
    "converted": lambda x: x.astype("f4"),
    "with an image": lambda x: (x - FRAMES[0, 0].astype("f4")) / 3,
    "of several": lambda x: np.sqrt(x) + x,
}


@pytest.mark.usefixtures("concatenating_nothing")
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_expressions_are_computed_in_the_result(tmp_path, make):
    """Chunks need no memory of their own, not even for a while."""
    frames = np.tile(FRAMES, (8, 4, 1, 1))
    path = write_mib(tmp_path / "scan.mib", frames, kind="U16")
    options = {"chunks": (24, 20, 16, 64), "io": "mmap"}  # a buffer is half of such a chunk
    arr = dask_tiled.open_dataset(path, nav_shape=frames.shape[:2], **options)
    with dask.config.set(scheduler="synchronous"):
        make(arr).compute()  # compiles, which needs memory
        with peak_memory() as most:
            found = make(arr).compute()
    assert most[0] < 1.25 * found.nbytes  # each chunk is half of it
    np.testing.assert_array_equal(found, make(frames))


def one_for_all(block):
    return block.mean(keepdims=True)


def one_or_all(block):
    return block[:1]


def masked(block):
    return np.ma.masked_greater(block, 2000)


def of_many_types(block):
    return block.astype(["u2", "f4", "i8"][block[0, 0, 0, 0] % 3])


def ordered(block):
    return np.asfortranarray(block).astype(">f4")


def listed(block):
    return block.view([("a", "u1"), ("b", "u1")])


@pytest.mark.parametrize(
    "function", [one_for_all, one_or_all, masked, of_many_types, ordered, listed]
)
def test_unexpected_chunks_of_functions(paths, function):
    """Results equal dask's when functions return another shape, type, order or array class."""
    arr = opened(paths, "big-endian", ((1, 3, 2), 2, 16, 64))
    found = arr.map_blocks(function, meta=np.empty((0,) * 4))
    with dask.config.set(array_optimize=da.optimize):
        wanted = found.compute()
    result = found.compute()
    assert type(result) is type(wanted)
    assert result.dtype == wanted.dtype
    assert result.flags == wanted.flags
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("axis", [1, 3])
def test_chunks_smaller_than_a_bin(paths, axis):
    """Chunks without any whole bin still have tasks."""
    arr = opened(paths, "big-endian", (6, 2, 16, 33))
    found = da.coarsen(np.sum, arr, {axis: 2}, trim_excess=True).compute()
    pairs = np.moveaxis(FRAMES, axis, -1)[..., : FRAMES.shape[axis] // 2 * 2].astype("u8")
    wanted = np.moveaxis(pairs[..., ::2] + pairs[..., 1::2], -1, axis)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["big-endian", "native"])
def test_results_share_no_memory(paths, name):
    """Writing to a result changes neither another result nor a delayed block."""
    arr = opened(paths, name, ROWS)
    one, total, block = dask.compute(arr, arr.sum(), arr.to_delayed()[0, 0, 0, 0])
    again = arr.compute()
    one[...] = 0
    np.testing.assert_array_equal(again, FRAMES)
    np.testing.assert_array_equal(block, FRAMES[:2])
    assert total == FRAMES.sum(dtype="u8")


@pytest.mark.parametrize("index", [(), (0, 0), (0, 0, 0, 0), slice(0, 0)])
def test_results_of_one_chunk_own_their_memory(paths, index):
    found = opened(paths, "native", WHOLE)[index].compute()
    assert type(found) is type(FRAMES[index])
    np.testing.assert_array_equal(found, FRAMES[index])
    if found.ndim:
        assert found.flags.writeable
        assert found.flags.owndata


def test_threads_that_begin_together_allocate_once(monkeypatch):
    grid, made, together = Grid.of([(2, 2), (3,)]), [], Barrier(2)
    result = OutputBuffer(grid.shape)

    def empty(shape, dtype):
        made.append(shape)
        time.sleep(0.1)
        return np.zeros(shape, dtype)

    def part(number):
        together.wait(100)
        return result.part(grid, (number, 0), np.dtype("f4"))

    monkeypatch.setattr(results, "np", SimpleNamespace(empty=empty))
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(part, range(2))
    assert made == [(4, 3)]
    assert first.base is second.base


def test_unpickled_results_have_no_memory():
    """Chunks from other processes are concatenated."""
    grid = Grid.of(((1, 2), (4,)))
    result = OutputBuffer(grid.shape)
    copy = pickle.loads(pickle.dumps(result))
    here = result.part(grid, (0, 0), np.dtype("u2"))
    here[...] = 7
    assert copy.part(grid, (1, 0), np.dtype("u2")) is None
    elsewhere = np.full((2, 4), 9, "u2")
    found = result.whole([[here], [elsewhere]])
    np.testing.assert_array_equal(found, [[7] * 4, [9] * 4, [9] * 4])
    np.testing.assert_array_equal(copy.whole([[here], [elsewhere]]), found)
