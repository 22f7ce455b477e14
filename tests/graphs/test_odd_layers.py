"""Layers that resemble dask's but compute something else give plain dask's results."""

import operator
from contextlib import suppress
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import List, Task, TaskRef
from dask.blockwise import Blockwise, blockwise_token
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

import dask_tiled
from dask_tiled.graphs import rewriting
from dask_tiled.graphs.reading import trees_of
from dask_tiled.labels import layer_axes
from dask_tiled.opened.axes import shown_of
from dask_tiled.plans.tree import Combine, Opaque
from dask_tiled.testing import write_npy

pytestmark = pytest.mark.usefixtures("synchronous")

PIXELS = np.random.default_rng(0).permutation(1152).reshape(6, 4, 6, 8).astype("u2")
EXPRESSIONS = {
    "aggregated": lambda a: a.sum((0, 1)),
    "mean": lambda a: a.mean((0, 1)),
    "var": lambda a: a.var(axis=0),
    "max": lambda a: a.max((2, 3)),
    "kept": lambda a: a.min((0, 1), keepdims=True),
    "places": lambda a: a.argmax(axis=0),
    "flat places": lambda a: a.argmin(),
    "slice": lambda a: (a + 1)[1:5, ::2] * 2,
    "row": lambda a: (a + 1)[2].sum(axis=0),
    "new axis": lambda a: (a + 1)[:, None] * 2,
    "reshape": lambda a: (a * 2).reshape(24, 48).sum(axis=1),
    "binned": lambda a: da.coarsen(np.sum, a, {0: 2, 2: 3}),
    "histogram": lambda a: da.histogram(a, bins=9, range=(0, 1152))[0],
    "joined": lambda a: da.concatenate([a + 1, a[:2] * 2]).sum(axis=(2, 3)),
    "stacked": lambda a: da.stack([a + 1, a]).max(axis=(3, 4)),
}


@pytest.fixture(scope="module")
def arr(tmp_path_factory):
    path = write_npy(tmp_path_factory.mktemp("pixels") / "pixels.npy", PIXELS)
    return dask_tiled.open_dataset(path, chunks=(1, 2, 6, 8))


def swapped(tasks, one, other):
    return {one: _renamed(tasks[other], one), other: _renamed(tasks[one], other)}


def negated(tasks, one, _):
    task = tasks[one]
    return {one: (_minus, task) if isinstance(task, tuple) else Task(one, _minus, task)}


def repeated(tasks, one, other):
    return {one: _renamed(tasks[other], one)}


def _minus(x):
    return {k: -v for k, v in x.items()} if isinstance(x, dict) else operator.neg(x)


def _renamed(task, key):
    if isinstance(task, tuple):
        return task
    task = task.copy()
    task.key = key
    return task


def changed(result):
    """Yield variants of a result in which some tasks of one layer differ from the rest."""
    graph = result.__dask_graph__()
    for name, layer in graph.layers.items():
        if not isinstance(layer, MaterializedLayer) or len(layer.mapping) < 2:
            continue
        first, *_, last = layer.mapping
        for how in (swapped, negated, repeated):
            for pair in ((first, last), (last, first)):
                layers = {**graph.layers}
                layers[name] = MaterializedLayer({**layer.mapping, **how(layer.mapping, *pair)})
                other = HighLevelGraph(layers, graph.dependencies)
                yield da.Array(other, result.name, result.chunks, meta=result._meta)


@pytest.mark.thorough
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_one_odd_task(arr, expression):
    result, count = EXPRESSIONS[expression](arr), 0
    for odd in changed(result):
        with dask.config.set(array_optimize=da.optimize):
            expected = None
            with suppress(Exception):  # shapes that do not match
                expected = odd.compute()
        if expected is not None:
            np.testing.assert_allclose(odd.compute(), expected, rtol=1e-6)
            count += 1
    assert count


TOTAL = partial(np.sum, dtype="i8")
STEPS = {
    "combined with an initial value": (TOTAL, partial(np.sum, initial=1000), TOTAL),
    "combined with where=False": (TOTAL, partial(np.sum, where=False), TOTAL),
    "combined in a narrow type": (TOTAL, partial(np.sum, dtype="u1"), TOTAL),
}


@pytest.mark.parametrize("steps", STEPS)
def test_reductions_of_users_keep_their_keywords(arr, steps):
    """The functions are those of dask's sums; the keywords differ."""
    found, expected = (
        da.reduction(x, *STEPS[steps][::2], combine=STEPS[steps][1], dtype="i8", split_every=2)
        for x in (arr, da.from_array(PIXELS, chunks=arr.chunks))
    )
    assert found.compute() == expected.compute()


def test_results_that_change_between_steps(arr):
    total = arr.sum(split_every=2)
    name, graph = total.name, total.dask
    ((key, (function, blocks)),) = graph.layers[name].mapping.items()
    refs = (TaskRef(x) for x in flatten(blocks))
    changed = List(*(List(List(List(Task(None, np.negative, ref)))) for ref in refs))
    layer = MaterializedLayer({key: Task(key, function, changed)})
    other = HighLevelGraph({**graph.layers, name: layer}, graph.dependencies)
    found = da.Array(other, name, total.chunks, total.dtype)
    assert found.compute() == 2**64 - int(PIXELS.sum())


def test_inconsistent_steps_are_opaque():
    keys = [("x", 0), ("x", 1)]
    total, greatest = (partial(f, axis=(0,), keepdims=True) for f in (np.sum, np.max))

    def step(*tasks):
        calls = {("y", k): (func, [*some]) for k, (func, some) in enumerate(tasks)}
        layers = {"x": MaterializedLayer(dict.fromkeys(keys, 1)), "y": MaterializedLayer(calls)}
        return type(trees_of(HighLevelGraph(layers, {"x": set(), "y": {"x"}}))["y"])

    assert step((total, keys)) is Combine
    assert step((total, keys[:1]), (total, keys[1:])) is Combine
    assert step((total, [*keys, keys[0]])) is Opaque  # would count twice
    assert step((total, keys[:1]), (greatest, keys[1:])) is Opaque


@pytest.mark.parametrize(
    ("function", "kwargs"),
    [(np.transpose, {"axes": (3, 1, 2, 0)}), (np.swapaxes, {"axis1": 0, "axis2": 3})],
)
def test_chunks_that_change_before_a_transpose(arr, function, kwargs):
    negated = Task(None, operator.neg, TaskRef(blockwise_token(0)))
    task, output, axes = Task("moved", function, negated, **kwargs), (3, 1, 2, 0), tuple(range(4))
    layer = Blockwise("moved", output, task, [(arr.name, axes)], {arr.name: arr.numblocks})
    graph = HighLevelGraph.from_collections("moved", layer, [arr])
    moved = da.Array(graph, "moved", [arr.chunks[k] for k in output], arr.dtype)
    expected = (function(-PIXELS, **kwargs) + 1).sum(axis=0)
    np.testing.assert_array_equal((moved + 1).sum(axis=0).compute(), expected)


def test_kept_axes_that_the_output_lacks(arr):
    lines = arr[:, 0, 0]
    summed = partial(np.sum, axis=(1,), keepdims=True, dtype="u8")
    found = da.blockwise(summed, "i", lines, "ij", concatenate=True, dtype="u8")
    np.testing.assert_array_equal(found.compute(), PIXELS[:, 0, 0].sum(axis=1))


def test_an_index_outside_its_chunk_raises(arr):
    row = (arr + 1)[2]
    graph = row.__dask_graph__()
    tasks = graph.layers[row.name].mapping.values()
    beyond = {x.key: Task(x.key, x.func, x.args[0], (1, *x.args[1][1:])) for x in tasks}
    layers = {**graph.layers, row.name: MaterializedLayer(beyond)}
    other = HighLevelGraph(layers, graph.dependencies)
    with pytest.raises((IndexError, ValueError)):
        da.Array(other, row.name, row.chunks, row.dtype).compute()


def test_unexpected_errors_fall_back_to_dask(arr, monkeypatch):
    def failing(*_):
        raise AttributeError("no such thing")

    monkeypatch.setattr(rewriting, "known_trees", failing)
    with pytest.warns(RuntimeWarning, match="chunk by chunk.*no such thing"):
        found = (arr + 1).sum((0, 1)).compute()
    np.testing.assert_array_equal(found, (PIXELS + 1).sum((0, 1)))
    assert arr.max().compute() == PIXELS.max()  # without another warning


def test_unexpected_errors_make_axes_unknown(arr, monkeypatch):
    def failing(*_):
        raise AttributeError("no such thing")

    monkeypatch.setattr(layer_axes, "trees_of", failing)
    with pytest.warns(RuntimeWarning, match="axes .* are unknown.*no such thing"):
        assert shown_of(arr + 1).axes == (None,) * 4
