"""Scalars, annotations and plugins work as for dask's own arrays."""

import pickle

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten

import dask_tiled
from dask_tiled import TiledArray, map_tiles, reduce_tiles
from dask_tiled.graphs.rewriting import rewritten
from dask_tiled.testing import write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = np.arange(1, 121, dtype="u2").reshape(2, 3, 4, 5)
CHUNKS = (1, 3, 4, 5)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_raw(tmp_path_factory.mktemp("scan") / "scan.raw", FRAMES)


def opened(path, chunks=CHUNKS):
    options = {"dtype": "u2", "nav_shape": FRAMES.shape[:2], "sig_shape": FRAMES.shape[2:]}
    return dask_tiled.open_dataset(path, "raw", chunks=chunks, **options)


def same(tile, _info):
    return tile


# Scalars

NUMBERS = {
    "pixel": lambda x: x[1, 2, 3, 4],
    "pixel of a slice": lambda x: x[1, 2][3, 4],
    "copy": lambda x: x[1, 2, 3, 4].copy(),
    "pixel of an expression": lambda x: (x * 2.5)[1, 2, 3, 4],
    "expression of pixels": lambda x: np.sqrt(x[1, 2, 3, 4]) + x[0, 0, 0, 0],
    "plain dask": lambda x: x.reshape(-1)[7],
    **{
        f"{name} of {part}": lambda x, name=name, index=index: getattr(x[index], name)()
        for name in ("sum", "max", "any", "mean", "std")
        for part, index in {"all": (), "a frame": (1, 2), "a pixel": (1, 2, 3, 4)}.items()
    },
    "sum of one axis": lambda x: x[1, 2, 3].sum(axis=0),
    "sum of an expression": lambda x: (x + 1).sum(),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("chunks", [(2, 3, 4, 5), (1, 2, 3, 2)], ids=str)
def test_numbers_are_scalars(path, name, chunks):
    found = NUMBERS[name](opened(path, chunks)).compute()
    expected = NUMBERS[name](da.from_array(FRAMES, chunks=chunks)).compute()
    assert type(found) is type(expected)
    np.testing.assert_allclose(found, expected)
    assert {found: 1}[found] == 1


def test_results_of_functions_are_scalars(path):
    def total(state, tile, _info):
        return state + tile.sum()

    for arr in (opened(path), opened(path, (2, 3, 4, 5)), da.from_array(FRAMES, chunks=CHUNKS)):
        found = reduce_tiles(arr, init=0, step=total, combine=np.add).compute()
        assert type(found) is np.int64
        assert found == FRAMES.sum()
        sums = map_tiles(lambda tile, _: tile.sum((1, 2)), arr[1, 2], sig_ndim=2).compute()
        assert type(sums) is np.uint64
        assert sums == FRAMES[1, 2].sum()


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "u8"])
def test_means_in_integers_wrap_around(path, dtype):
    for axes in ((0, 1), (2, 3), 3):
        found = (opened(path) * 50).mean(axes, dtype=dtype).compute()
        expected = (da.from_array(FRAMES, chunks=CHUNKS) * 50).mean(axes, dtype=dtype).compute()
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


# Annotations


def annotations_of(arr):
    """Return the different annotations of the layers that have tasks."""
    graph = rewritten(arr.__dask_graph__(), list(flatten(arr.__dask_keys__())))
    notes = [layer.annotations for layer in graph.layers.values() if len(layer)]
    return [note for k, note in enumerate(notes) if note not in notes[:k]]


MADE = {
    "opened": lambda arr: arr.with_chunks(arr.chunks),
    "slice": lambda arr: arr[1:, 2],
    "expression": lambda arr: arr * 2 + 1,
    "slice of an expression": lambda arr: (arr * 2)[0],
    "ufunc": np.sqrt,
    "converted": lambda arr: arr.astype("f4"),
    "sum": lambda arr: arr.sum(axis=(2, 3)),
    "mean": lambda arr: arr.mean(),
    "std": lambda arr: arr.std(axis=(0, 1)),
    "mapped": lambda arr: map_tiles(same, arr),
}


@pytest.mark.parametrize("name", MADE)
def test_annotations_are_those_at_creation(path, name):
    arr = opened(path)
    outside = MADE[name](arr)
    with dask.annotate(priority=7, retries=2):
        inside = MADE[name](arr)
        assert annotations_of(outside) == [None]
        assert annotations_of(arr) == annotations_of(arr.copy()) == [None]
    with dask.annotate(priority=1):
        for x in (inside, inside.copy(), pickle.loads(pickle.dumps(inside))):
            assert annotations_of(x) == [{"priority": 7, "retries": 2}]


@pytest.mark.parametrize("name", MADE)
def test_annotations_are_passed_on(path, name):
    """Annotations merge as in dask's fusion: the most retries, the highest priority."""
    with dask.annotate(priority=7, retries=2):
        arr = opened(path)
    assert {"priority": 7, "retries": 2} in annotations_of(MADE[name](arr))
    with dask.annotate(priority=5, retries=3):
        made = MADE[name](arr)
    assert {"priority": 7, "retries": 3} in annotations_of(made)


def test_annotations_of_several_arrays(path):
    with dask.annotate(retries=3):
        first = opened(path)
    with dask.annotate(priority=4):
        second = opened(path)
    assert annotations_of(first[0] + second[1]) == [{"retries": 3, "priority": 4}]


# Plugins


def test_plugins_see_arrays(path):
    seen = []
    with dask.config.set(array_plugins=[seen.append]):
        arr = opened(path)
        whole, part, expression = arr, arr[0], arr + 1
        assert [id(x) for x in seen] == [id(whole), id(part), id(expression)]
        assert all(x.dask.layers for x in (whole, part, expression))
        assert len(seen) == 3  # plugins see no intermediate arrays
        arr.sum(axis=(2, 3))
        assert len(seen) > 3


def test_plugins_replace_arrays(path):
    with dask.config.set(array_plugins=[lambda x: x.compute()]):
        pixels = opened(path)
    assert type(pixels) is np.ndarray
    np.testing.assert_array_equal(pixels, FRAMES)
    arr = opened(path)
    made = {"slice": lambda: arr[1], "expression": lambda: arr + 1}
    expected = {"slice": FRAMES[1], "expression": FRAMES + 1}
    for name, make in made.items():
        with dask.config.set(array_plugins=[lambda x: x.compute()]):
            found = make()
        assert type(found) is np.ndarray, name
        np.testing.assert_array_equal(found, expected[name])


def test_plugins_that_return_none_change_nothing(path):
    with dask.config.set(array_plugins=[lambda _: None]):
        arr = opened(path)
        assert type(arr) is TiledArray
        assert type(arr + 1) is da.Array
        np.testing.assert_array_equal((arr + 1).compute(), FRAMES + 1)
