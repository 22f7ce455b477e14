"""Results computed together read every chunk once, in one task."""

import pickle
from functools import partial
from itertools import combinations

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from checks import ran
from dask.graph_manipulation import bind, wait_on
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import chunked

import dask_tiled
from dask_tiled import TilingRequest, map_tiles, reduce_tiles, tiles
from dask_tiled.testing import counting_frames, write_mib, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

NAV, SIG = (6, 5), (16, 64)
CHUNKS = (2, 5, 16, 64)
N_CHUNKS = 3


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """Write a scan; return its path and its pixels."""
    frames = counting_frames(NAV + SIG, "u2", bits=12)
    return write_mib(tmp_path_factory.mktemp("scan") / "scan.mib", frames, kind="R64"), frames


@pytest.fixture
def counted(scan, loads):  # noqa: ARG001 - registers io="counting"
    return dask_tiled.open_dataset(scan[0], chunks=CHUNKS, io="counting")


def opened(scan):
    return dask_tiled.open_dataset(scan[0], chunks=CHUNKS)


def total(tile, _info):
    return tile.sum(axis=(1, 2), dtype="u8")


def doubled(tile, _info):
    return tile * 2


def count(state, tile, _info):
    state += np.bincount(tile.ravel() % 8, minlength=8)


def add(state, other):
    return state + other


MASKS = np.arange(3 * 16 * 64).reshape(3, 16, 64) % 5


def results(arr):
    """Return a result of every kind."""
    return {
        "sum": arr.sum(axis=(-2, -1)),
        "mean": arr.mean(axis=(0, 1)),
        "max": arr.max(),
        "std": arr.std(axis=(0, 1)),
        "tile-shaped": map_tiles(doubled, arr),
        "reduced": map_tiles(total, arr, tiling=TilingRequest("frame", depth=2)),
        "histogram": reduce_tiles(arr, init=np.zeros(8, "i8"), step=count, combine=add),
        "masks": tiles.apply_masks(arr, MASKS),
        "centre": tiles.center_of_mass(arr),
    }


def expected_results(frames):
    y, x = np.indices(frames.shape[-2:])
    mass = frames.sum(axis=(-2, -1))
    moments = [(frames * c).sum(axis=(-2, -1)) / mass for c in (y, x)]
    return {
        "sum": mass,
        "mean": frames.mean(axis=(0, 1)),
        "max": frames.max(),
        "std": frames.std(axis=(0, 1)),
        "tile-shaped": frames * 2,
        "reduced": mass,
        "histogram": np.bincount(frames.ravel() % 8, minlength=8),
        "masks": np.einsum("abyx,myx->abm", frames, MASKS),
        "centre": np.stack(moments, axis=-1),
    }


def check(found, frames):
    expected = expected_results(frames)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


def test_every_chunk_is_read_once(scan, counted, loads):
    for name, result in results(counted).items():
        del loads[:]
        result.compute()
        assert loads.nbytes == scan[1].nbytes, name
    del loads[:]
    (found,) = dask.compute(results(counted))
    assert loads.nbytes == scan[1].nbytes
    check(found, scan[1])


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Write frames whose sum exceeds 1 MiB; return their path and their pixels."""
    frames = counting_frames((4, 513, 512), "u2")
    return write_raw(tmp_path_factory.mktemp("large") / "scan.raw", frames), frames


LARGE_RESULTS = {
    "sum": lambda x: x.sum(axis=0),
    "spread": lambda x: x.std(axis=0),
    "greatest": lambda x: x.max(axis=0),
    "frame sums": lambda x: x.sum(axis=(1, 2)),
    "everything": lambda x: x.mean(),
    "itself": lambda x: x[:],
    "slice of itself": lambda x: x.blocks[1] + 1,
}


@pytest.mark.thorough
def test_large_results_share_reading(large, loads):
    path, frames = large
    options = {"dtype": "u2", "sig_shape": frames.shape[1:], "chunks": (1, 513, 512)}
    arr = dask_tiled.open_dataset(path, "raw", **options, io="counting")
    plain = da.from_array(frames, chunks=arr.chunks)
    expected = dask.compute({name: make(plain) for name, make in LARGE_RESULTS.items()})[0]
    for names in [*combinations(LARGE_RESULTS, 2), tuple(LARGE_RESULTS)]:
        del loads[:]
        (found,) = dask.compute({name: LARGE_RESULTS[name](arr) for name in names})
        assert loads.nbytes == frames.nbytes, names
        for name in names:
            np.testing.assert_allclose(found[name], expected[name], err_msg=f"{name} of {names}")


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data())
def test_results_do_not_depend_on_chunks(scan, data):
    nav = tuple(slice(data.draw(st.integers(0, n - 2)), n) for n in NAV)
    frames = scan[1][nav]
    arr = opened(scan)[nav].with_chunks((*data.draw(chunked(frames.shape[:2])), 16, 64))
    names = {"mean", *data.draw(st.lists(st.sampled_from(sorted(results(arr))), max_size=3))}
    (found,) = dask.compute({name: results(arr)[name] for name in names})
    expected = expected_results(frames)
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=name)


def tasks_of(*collections):
    """List the keys of the tasks that dask runs for collections computed together."""
    ran = []

    def schedule(graph, keys, **_options):
        graph = graph.__dask_graph__() if hasattr(graph, "__dask_graph__") else dict(graph)
        ran.extend(graph)
        return dask.get(graph, keys)

    dask.compute(*collections, scheduler=schedule)
    return ran


def blocks_of(keys, prefix):
    return sorted(key[1:] for key in keys if isinstance(key, tuple) and key[0].startswith(prefix))


def test_one_task_runs_over_each_chunk(counted):
    everything = [(k, 0, 0, 0) for k in range(N_CHUNKS)]
    frame_sums = counted.sum(axis=(-2, -1))
    alone = tasks_of(frame_sums)
    assert blocks_of(alone, frame_sums.name) == [(k, 0) for k in range(N_CHUNKS)]
    assert blocks_of(alone, "together-") == []  # computed in the task of the result
    keys = tasks_of(frame_sums, *results(counted).values())
    assert blocks_of(keys, "together-") == everything
    assert len({key[0] for key in keys if key[0].startswith("together-")}) == 1
    assert not [key for key in keys if key[0] == counted.name]


def test_equal_results_are_computed_once(counted, loads):
    first, second = (map_tiles(total, counted) for _ in range(2))
    assert first.name == second.name
    a, b = dask.compute(first, second)
    np.testing.assert_array_equal(a, b)
    assert loads.nbytes == counted.nbytes
    assert counted.sum((2, 3)).name == counted.sum(axis=(-2, -1)).name
    assert counted.sum((0, 1)).name != counted.sum((2, 3)).name


def test_results_of_different_arrays_stay_apart(scan, counted, loads):
    frames = scan[1]
    parts = [
        counted,
        counted[1:4],
        counted[..., ::2],
        counted.with_chunks(((6,), (5,), (16,), (64,))),
    ]
    found = dask.compute([[part.sum(axis=(-2, -1)), part.max()] for part in parts])[0]
    indices = [np.s_[:], np.s_[1:4], np.s_[..., ::2], np.s_[:]]
    for index, (sums, greatest) in zip(indices, found, strict=True):
        np.testing.assert_array_equal(sums, frames[index].sum(axis=(-2, -1)))
        assert greatest == frames[index].max()
    # Every second pixel: a unit holds four pixels of 12 bits, and is read whole.
    assert loads.nbytes == frames.nbytes * 3 + frames[1:4].nbytes


def test_one_chunk_of_a_result_reads_one_chunk(counted, loads):
    some = counted.sum(axis=(-2, -1)).blocks[1]
    other = map_tiles(total, counted)
    some.compute()
    assert loads.nbytes == counted.blocks[1].nbytes
    del loads[:]
    dask.compute(some, other[2:4], counted.max(axis=(2, 3))[3])
    assert loads.nbytes == counted.blocks[1].nbytes
    del loads[:]
    dask.compute(some, other.blocks[2])
    assert loads.nbytes <= 2 * counted.blocks[1].nbytes


@pytest.mark.parametrize(
    "derive",
    [
        lambda r: da.stack([r["sum"], r["reduced"]]),
        lambda r: r["masks"].sum(axis=-1) + r["sum"] - r["reduced"],
        lambda r: da.concatenate([r["centre"], r["masks"]], axis=-1).T,
        lambda r: dask.delayed(np.stack)([r["sum"], r["reduced"]]),
        lambda r: (r["sum"] / r["max"]).rechunk((6, 5)),
        lambda r: r["sum"] - r["reduced"],
    ],
    ids=["stack", "arithmetic", "concatenate", "delayed", "rechunk", "two alone"],
)
def test_derived_results_read_once(scan, counted, loads, derive):
    found = derive(results(counted)).compute()
    plain = {name: da.asarray(value) for name, value in expected_results(scan[1]).items()}
    np.testing.assert_allclose(found, derive(plain).compute(), rtol=1e-5)
    assert loads.nbytes == counted.nbytes


def test_results_of_persisted_arrays(scan, counted, loads):
    kept = counted.persist()
    del loads[:]
    np.testing.assert_array_equal(kept.sum(axis=(2, 3)).compute(), scan[1].sum(axis=(2, 3)))
    np.testing.assert_array_equal(map_tiles(doubled, kept).compute(), scan[1] * 2)
    assert not loads


@pytest.mark.parametrize(("optimize", "fuse"), [(False, None), (True, False), (True, True)])
def test_settings_of_dask(scan, optimize, fuse):
    arr = opened(scan)
    with dask.config.set({"optimization.fuse.active": fuse}):
        whole, found, again = dask.compute(
            arr, results(arr), dask.optimize(results(arr))[0], optimize_graph=optimize
        )
    np.testing.assert_array_equal(whole, scan[1])
    check(found, scan[1])
    check(again, scan[1])


def test_bind_and_wait_on(scan):
    before = da.zeros(3, chunks=1)
    for name, result in results(opened(scan)).items():
        expected = expected_results(scan[1])[name]
        np.testing.assert_allclose(bind(result, before).compute(), expected, rtol=1e-5)
        np.testing.assert_allclose(wait_on(result).compute(), expected, rtol=1e-5)


def test_annotations_are_kept(scan):
    with dask.annotate(priority=7):
        found = opened(scan).sum(axis=(-2, -1))
    name = found.name
    for arr in (found, pickle.loads(pickle.dumps(found))):
        graph = arr.dask.cull(arr.__dask_keys__())
        notes = [layer.annotations for key, layer in graph.layers.items() if key.startswith(name)]
        assert notes == [{"priority": 7}]


def test_sharing_does_not_change_tiles(counted, loads):
    """Whole chunks stay whole, and no function gets more frames at once than requested."""
    shapes = {"chunk": [], "two": [], "any": []}

    def look(tile, _info, name):
        shapes[name].append(tile.shape)
        return tile.max(axis=0, keepdims=True) + tile

    lazy = {
        name: map_tiles(partial(look, name=name), counted, dtype="u2", sig_shape=SIG, tiling=wish)
        for name, wish in [
            ("chunk", TilingRequest("chunk")),
            ("two", TilingRequest("frame", depth=2)),
            ("any", TilingRequest("frame")),
        ]
    }
    alone = {name: result.compute() for name, result in lazy.items()}
    for seen in shapes.values():
        del seen[:]
    del loads[:]
    (found,) = dask.compute(lazy)
    assert loads.nbytes == counted.nbytes
    assert shapes["chunk"] == [(10, *SIG)] * 3
    assert {shape[0] for shape in shapes["two"]} <= {1, 2}
    for name in ("chunk", "two"):
        np.testing.assert_array_equal(found[name], alone[name])


# Copies


def test_pickled_results(scan, counted, loads):
    for dumps in (pickle.dumps, cloudpickle.dumps):
        del loads[:]
        copies = pickle.loads(dumps(results(counted)))
        check(dask.compute(copies)[0], scan[1])
        assert loads.nbytes == counted.nbytes
        one_by_one = {k: pickle.loads(dumps(v)) for k, v in results(counted).items()}
        kept = dask.persist(*one_by_one.values())
        check(dict(zip(one_by_one, dask.compute(*kept), strict=True)), scan[1])
        assert loads.nbytes == 2 * counted.nbytes


# Other processes


NAMES = """
import pickle, sys
import numpy as np
from dask.base import tokenize
import dask_tiled
from dask_tiled import TilingRequest, map_tiles, reduce_tiles, tiles
arr = dask_tiled.open_dataset(sys.argv[1], chunks=(2, 5, 16, 64))
for x in (arr, arr[1:, ::2]):
    assert pickle.loads(pickle.dumps(x)).name == x.name
    print(x.name, tokenize(x), *sorted(x.dask.layers), tokenize(x.description.layout))
    for lazy in (
        x.sum(axis=(2, 3)), x.sum(axis=(0, 1)), x.mean(), x.var(ddof=1), x.std(keepdims=True),
        map_tiles(np.add, x, dtype="u2", sig_shape=(16, 64)),
        map_tiles(np.add, x, dtype="u2", sig_shape=(16, 64), tiling=TilingRequest("chunk")),
        reduce_tiles(x, init=np.zeros(3), step=np.add, combine=np.add),
        tiles.apply_masks(x, np.ones((2, 16, 64))), tiles.center_of_mass(x),
    ):
        print(lazy.name, tokenize(lazy))
"""


@pytest.mark.slow
def test_names_are_the_same_in_every_process(scan):
    """Hashes of strings differ between the processes."""
    names, again = (ran(NAMES, scan[0], PYTHONHASHSEED=seed) for seed in "12")
    assert names == again
    lines = names.splitlines()
    assert len(set(lines)) == len(lines) == 22


def test_names_tell_jobs_apart(scan):
    arr = opened(scan)
    masks = [np.ones((1, *SIG)), np.ones((1, *SIG), "f4"), 2 * np.ones((1, *SIG))]
    zero, one = np.zeros(8, "i8"), np.ones(8, "i8")
    lazy = [
        *(tiles.apply_masks(arr, mask) for mask in masks),
        *(reduce_tiles(arr, init=init, step=count, combine=add) for init in (zero, one)),
        reduce_tiles(arr, init=zero, step=count, combine=np.maximum),
        map_tiles(total, arr),
        map_tiles(total, arr, dtype="f8"),
        map_tiles(doubled, arr),
        map_tiles(doubled, arr, tiling=TilingRequest("frame")),
        map_tiles(doubled, arr, tiling=TilingRequest("frame", depth=1)),
        map_tiles(lambda tile, _: tile + 1, arr),
        map_tiles(lambda tile, _: tile + 2, arr),
        *(map_tiles(lambda tile, _, k=k: tile + k, arr) for k in range(2)),
        *(getattr(arr, name)(axis=(2, 3)) for name in ("sum", "min", "max", "any", "all", "var")),
        arr.std(axis=(2, 3)),
        arr.var(axis=(2, 3), ddof=1),
    ]
    assert len({result.name for result in lazy}) == len(lazy)


# dask's array expressions

EXPRESSIONS = """
import sys
import dask
dask.config.set({"array.query-planning": True, "scheduler": "synchronous"})
import dask.array as da
import numpy as np
import dask_tiled
import warnings
from dask_tiled import map_tiles, reduce_tiles, tiles
assert da.array_expr_enabled()
frames = np.fromfile(sys.argv[1], "u1").reshape(7, 5, 4, 6)
def opened():
    how = {"dtype": "u1", "nav_shape": (7, 5), "sig_shape": (4, 6), "chunks": (3, 2, 4, 6)}
    return dask_tiled.open_dataset(sys.argv[1], "raw", **how)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    arr = opened()
    opened()
assert ["array.query-planning is on" in str(x.message) for x in warned] == [True], warned
assert not isinstance(arr, dask_tiled.TiledArray)
np.testing.assert_array_equal(arr.compute(), frames)
np.testing.assert_array_equal(arr[1:, 2, ::2].compute(), frames[1:, 2, ::2])
np.testing.assert_allclose(arr.mean(axis=(0, 1)).compute(), frames.mean(axis=(0, 1)))
def total(tile, info):
    return tile.sum(axis=(1, 2))
def step(state, tile, info):
    return state + tile.sum()
def add(state, other):
    return state + other
np.testing.assert_array_equal(map_tiles(total, arr).compute(), frames.sum(axis=(2, 3)))
assert reduce_tiles(arr, init=0, step=step, combine=add).compute() == frames.sum()
found = tiles.apply_masks(arr, np.ones((2, 4, 6)))
np.testing.assert_allclose(found[..., 1].compute(), frames.sum(axis=(2, 3)))
centre = tiles.center_of_mass(arr).compute()
y = (frames * np.arange(4)[:, None]).sum(axis=(2, 3)) / frames.sum(axis=(2, 3))
np.testing.assert_allclose(centre[..., 0], y, rtol=1e-6)
"""


@pytest.mark.slow
def test_array_expressions_are_plain_dask_arrays(tmp_path):
    path = write_raw(tmp_path / "scan.raw", counting_frames((7, 5, 4, 6), "u1"))
    ran(EXPRESSIONS, path)


CALIBRATED = {
    "sums": lambda a, b: (a.sum(0), b.sum((2, 3))),
    "pixels": lambda a, b: (a, b),
    "pixels and sums": lambda a, b: (b, a.mean(1)),
    "expressions of both": lambda a, b: (a - b, (a * 2 + b).sum(0)),
    "functions of chunks": lambda a, b: (a.map_blocks(np.negative), b.map_blocks(np.square)),
}


@pytest.mark.parametrize("case", CALIBRATED)
@pytest.mark.parametrize("chunks", [CHUNKS, -1], ids=["several chunks", "one chunk"])
def test_arrays_with_other_axes_are_read_once(scan, loads, case, chunks):
    a = dask_tiled.open_dataset(scan[0], chunks=chunks, io="counting")
    b = a.with_axes(scan_x="0.5 nm")
    assert a.name != b.name
    found = dask.compute(*CALIBRATED[case](a, b))
    assert len(loads) == np.prod(a.numblocks)
    expected = CALIBRATED[case](*[da.from_array(scan[1], chunks=a.chunks)] * 2)
    for one, other in zip(found, dask.compute(*expected), strict=True):
        np.testing.assert_allclose(one, other)
    assert not np.shares_memory(*found)
