"""Jobs on files of terabytes: numbers of chunks and tasks, and bytes of their graphs; merged chunks
give the results of NumPy."""

import statistics

import dask
import dask.array as da
import numpy as np
import pytest
from checks import depth_of
from dask._task_spec import DataNode
from dask.core import flatten
from distributed.protocol.core import dumps
from distributed.protocol.serialize import ToPickle, serialize, to_serialize
from distributed.scheduler import _cull, _materialize_graph

import dask_tiled
from dask_tiled import scheme_of, tiles
from dask_tiled.testing import counting_frames, write_npy

SIG = (256, 256)
SCAN = (1024, 74_505)  # 10 TB of uint16
MASKS = np.ones((2, *SIG), np.float32)
GIB = 1 << 30


def brightest(tile, *_):
    return tile.max(axis=(-2, -1))


def added(total, tile, _):
    return total + tile.sum(axis=0)


def opened(path, scan=SCAN, **options):
    """Open a sparse file of zeros."""
    with path.open("wb") as file:
        file.truncate(scan[0] * scan[1] * SIG[0] * SIG[1] * 2)
    layout = {"dtype": "u2", "nav_shape": scan, "sig_shape": SIG}
    return dask_tiled.open_dataset(path, "raw", **layout, **options)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("large") / "scan.raw")


def sent(arr):
    """Return the tasks that a scheduler gets to compute an array, and the bytes of their graph."""
    graphs = []

    class Sent(BaseException):
        pass

    def scheduler(graph, keys, **_):
        graphs.append((graph, keys))
        raise Sent

    with pytest.raises(Sent):
        dask.compute(arr, scheduler=scheduler)
    ((graph, keys),) = graphs
    _, frames = serialize(to_serialize(graph), on_error="raise")
    tasks = _cull(_materialize_graph(graph, validate=False)[0], {*flatten([keys])})
    return tasks, sum(memoryview(frame).nbytes for frame in frames)


JOBS = {
    "sum": lambda arr: arr.sum(),
    "mean": lambda arr: arr.mean(axis=(0, 1)),
    "std": lambda arr: arr.std(axis=(0, 1)),
    "frame sums": lambda arr: arr.sum(axis=(2, 3)),
    "scaled": lambda arr: (arr - 3.0).sum(axis=(2, 3)) / 2,
    "masks": lambda arr: tiles.apply_masks(arr, MASKS),
    "centre of mass": tiles.center_of_mass,
    "histogram": lambda arr: da.histogram(arr, bins=16, range=(0, 1 << 16))[0],
    "map_tiles": lambda arr: dask_tiled.map_tiles(brightest, arr, dtype="u2", sig_shape=()),
    "reduce_tiles": lambda arr: dask_tiled.reduce_tiles(
        arr, init=np.zeros(SIG), step=added, combine=np.add
    ),
    "argmax": lambda arr: arr.argmax(axis=0)[:, 0, :2],
}


@pytest.mark.thorough
def test_slices_of_results_of_ten_terabytes(large, monkeypatch):
    """Two pixels of each frame are few bytes, and few tasks, though rows are short for tiles."""
    monkeypatch.setattr("dask_tiled.plans.plan.LEAST_TASK_BYTES", 4 << 20)
    tasks, _ = sent(JOBS["argmax"](large))
    assert len(tasks) <= 100


@pytest.mark.thorough
def test_sums_of_terabytes_of_blocks(large):
    """Blocks need a task each; results are combined in three levels."""
    blocks = large[:512].map_blocks(np.fft.fft2, dtype="c16")
    tasks, nbytes = sent(blocks.sum(axis=(0, 1)))
    assert blocks.npartitions > 40_000
    assert len(tasks) <= blocks.npartitions * 1.03
    assert nbytes <= 100 * len(tasks)
    assert depth_of(tasks) <= 1 + 3 + 2


@pytest.mark.thorough
@pytest.mark.parametrize("name", JOBS)
def test_ten_terabytes_are_few_small_tasks(large, name):
    """No more than three tasks combine results in turn, between reading and concatenating."""
    tasks, nbytes = sent(JOBS[name](large))
    run = [task for task in tasks.values() if not isinstance(task, DataNode)]
    assert len(run) <= 12_000
    assert nbytes <= max(2000 * len(run), 1_000_000)
    some = run[:: max(1, len(run) // 99)]
    messages = [sum(map(len, dumps({"run_spec": ToPickle(task)}))) for task in some]
    assert statistics.median(messages) <= 4096
    assert depth_of(tasks) <= 1 + 3 + 2


def test_chunks_grow_with_the_file(large, tmp_path):
    pixels = SCAN[0] * SCAN[1] * SIG[0] * SIG[1]
    assert 5000 < large.npartitions <= 10_000
    assert np.prod(large.chunksize) * 2 <= 2.5 * GIB
    limit = dict(scheme_of(large).reasons)["chunk limit"]
    assert "10000 chunks" in limit
    assert pixels * 2 / 10_000 <= np.prod(large.chunksize) * 2
    usual = opened(tmp_path / "one.raw", (1024, 7450))
    assert np.prod(usual.chunksize) * 2 <= 1 << 27
    assert "array.chunk-size" in dict(scheme_of(usual).reasons)["chunk limit"]


def test_chunks_grow_no_further_than_memory(large):
    desc = large.description
    small = dask_tiled.negotiate(desc, memory_bytes=1 << 30)
    assert max(small.chunks[1]) * SIG[0] * SIG[1] * 2 <= 1 << 29
    assert dask_tiled.negotiate(desc, memory_bytes=1 << 40).chunks == large.chunks
    by_chunk = dask_tiled.negotiate(desc, "chunk", memory_bytes=1 << 40)
    assert max(by_chunk.chunks[1]) * SIG[0] * SIG[1] * 2 <= 1 << 27
    given = dask_tiled.negotiate(desc, chunk_bytes=1 << 26)
    assert max(given.chunks[1]) * SIG[0] * SIG[1] * 2 <= 1 << 26


def test_functions_of_blocks_get_parts_of_large_chunks(large):
    """Blocks have the usual size, wherever they are asked for; chunks of a user stay."""
    for made in (
        large.map_blocks(np.fft.fft2, dtype="c16"),
        da.fft.fft2(large),
        large[3].map_blocks(np.fft.fft2, dtype="c16"),
        large.map_blocks(np.fft.fft2, dtype="c16", chunks=large.chunks),
    ):
        assert np.prod(made.chunksize) * 2 <= 1 << 27
        assert made.shape in (large.shape, large.shape[1:])
    edges = {*np.cumsum(large.map_blocks(np.flip).chunks[1])}
    assert {*np.cumsum(large.chunks[1])} <= edges
    asked = large[:2].with_chunks((1, 5000, *SIG))
    assert asked.map_blocks(np.flip).chunks == asked.chunks
    shaped = large.map_blocks(lambda x: x[:, :1], chunks=(1, 1, *SIG), dtype="u2")
    assert shaped.numblocks == large.numblocks
    block = next(dask_tiled.iter_blocks(large[5, :300]))
    assert block.pixels.nbytes <= 1 << 27


MERGED = {
    "frame sums": (lambda a: a.sum(axis=(2, 3)), lambda p: p.sum(axis=(2, 3))),
    "kept axes": (
        lambda a: a.max(axis=(0, 3), keepdims=True),
        lambda p: p.max(axis=(0, 3), keepdims=True),
    ),
    "std": (lambda a: a.std(axis=(0, 1)), lambda p: p.std(axis=(0, 1))),
    "masks": (
        lambda a: da.tensordot(a, np.arange(72.0).reshape(2, 4, 9), axes=((2, 3), (1, 2))),
        lambda p: np.tensordot(p, np.arange(72.0).reshape(2, 4, 9), axes=((2, 3), (1, 2))),
    ),
    "weighted frames": (
        lambda a: da.tensordot(a, np.arange(35.0).reshape(7, 5), axes=((0, 1), (0, 1))),
        lambda p: np.tensordot(p, np.arange(35.0).reshape(7, 5), axes=((0, 1), (0, 1))),
    ),
    "histogram": (
        lambda a: da.histogram(a, bins=8, range=(0, 90))[0],
        lambda p: np.histogram(p, bins=8, range=(0, 90))[0],
    ),
    "histogram of some": (
        lambda a: da.histogram(a * 2 + 1, bins=[0, 3, 50, 80])[0] + 1,
        lambda p: np.histogram(p * 2 + 1, bins=[0, 3, 50, 80])[0] + 1,
    ),
    "map_tiles": (
        lambda a: dask_tiled.map_tiles(brightest, a, dtype="u2", sig_shape=()),
        lambda p: p.max(axis=(2, 3)),
    ),
    "map_tiles of results": (
        lambda a: dask_tiled.map_tiles(brightest, a + 1, dtype="u2", sig_shape=()) * 2,
        lambda p: (p + 1).max(axis=(2, 3)) * 2,
    ),
    "reduce_tiles": (
        lambda a: dask_tiled.reduce_tiles(a, init=np.zeros((4, 9)), step=added, combine=np.add),
        lambda p: p.sum(axis=(0, 1), dtype="f8"),
    ),
    "argmax": (lambda a: a.argmax(axis=1), lambda p: p.argmax(axis=1)),
    "argmax of frames": (lambda a: a.argmax(axis=3), lambda p: p.argmax(axis=3)),
    "slice": (lambda a: a.argmax(axis=0)[:, 0, :2], lambda p: p.argmax(axis=0)[:, 0, :2]),
    "slice of frame sums": (
        lambda a: a.sum(axis=(2, 3))[1:6:2, 3],
        lambda p: p.sum(axis=(2, 3))[1:6:2, 3],
    ),
    "reversed": (lambda a: a.min(axis=0)[::-1, 1, ::-2], lambda p: p.min(axis=0)[::-1, 1, ::-2]),
    "new axis": (lambda a: a.max(axis=0)[None, 2:, 1], lambda p: p.max(axis=0)[None, 2:, 1]),
    "slice of kept": (
        lambda a: a.sum(axis=(0, 2), keepdims=True)[0, 1:3, :, 4],
        lambda p: p.sum(axis=(0, 2), keepdims=True)[0, 1:3, :, 4],
    ),
}


OF_AXES = {"weighted frames", "map_tiles", "map_tiles of results", "reduce_tiles"}


@pytest.mark.parametrize("most", [1, 4, 10_000])
@pytest.mark.parametrize("name", MERGED)
def test_merged_chunks_give_the_results_of_numpy(tmp_path, monkeypatch, name, most):
    """Any number of chunks gives the same results, whose axes, dtypes and chunks stay."""
    monkeypatch.setattr("dask_tiled.plans.plan.MOST_REDUCED_CHUNKS", most)
    pixels = counting_frames((7, 5, 4, 9), "u2")
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "s.npy", pixels), chunks=(1, 2, 4, 9))
    ours, numpys = MERGED[name]
    orders = [(0, 1, 2, 3)] + [(1, 0, 2, 3)] * (name not in OF_AXES)
    for order in orders:
        wanted, found = numpys(pixels.transpose(order)), ours(arr.transpose(order))
        (computed,) = dask.compute(found)
        assert computed.shape == wanted.shape == found.shape
        assert computed.dtype == found.dtype
        np.testing.assert_allclose(computed, wanted, rtol=1e-12)
        first, *_, last = [*found.to_delayed().ravel()] * 2
        assert first.compute().shape == tuple(axis[0] for axis in found.chunks)
        assert last.compute().shape == tuple(axis[-1] for axis in found.chunks)
