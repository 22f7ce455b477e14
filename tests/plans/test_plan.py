"""Layers of graphs become trees, and plans can be printed."""

import threading
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph

import dask_tiled
from dask_tiled.graphs.layers import arrays_of_numpy
from dask_tiled.graphs.reading import trees_of
from dask_tiled.graphs.rewriting import planned
from dask_tiled.plans import recipes, tree
from dask_tiled.plans.lowering import known_trees
from dask_tiled.plans.plan import needed, plans_of
from dask_tiled.testing import counting_frames, write_npy

READ = {
    "read": (lambda a: a[1:], tree.Read),
    "call": (lambda a: a * 2, tree.Call),
    "transpose": (lambda a: (a + 1).T, tree.Transpose),
    "slice": (lambda a: (a + 1)[1:, None], tree.Slice),
    "reshape": (lambda a: (a + 1).reshape(24, 48), tree.Reshape),
    "bin": (lambda a: da.coarsen(np.sum, a, {2: 2}), tree.Bin),
    "product": (lambda a: da.tensordot(a, np.ones((6, 8)), 2), tree.Combine),
    "places": (lambda a: a.argmax(axis=0), tree.Combine),
    "tiles": (lambda a: dask_tiled.map_tiles(lambda tile, _: -tile, a), tree.TileFunction),
    "joined": (lambda a: da.concatenate([a, a + 1]), tree.Join),
    "stacked": (lambda a: da.stack([a, a + 1]), tree.Join),
    "function": (lambda a: a.map_blocks(np.flip), tree.MappedChunks),
}


@pytest.fixture
def arr(tmp_path, monkeypatch):
    write_npy(tmp_path / "pixels.npy", counting_frames((6, 4, 6, 8), "u2"))
    monkeypatch.chdir(tmp_path)
    return dask_tiled.open_dataset("pixels.npy", chunks=(2, 4, 6, 8))


@pytest.mark.parametrize("name", READ)
def test_layers_become_trees(arr, name):
    make, kind = READ[name]
    made = make(arr)
    found = trees_of(made.dask)[made.name]
    assert type(found) is kind
    assert found.shape == made.shape


def test_a_plan_can_be_printed(arr):
    """Two reductions read each chunk once; their final steps are not in the plan."""
    results = arr.mean((0, 1)), np.sqrt(arr - 3.0).sum((2, 3))
    graph = HighLevelGraph.merge(*(one.dask for one in results))
    trees = trees_of(graph)
    first = sorted(one.name for one in trees.values() if isinstance(one, tree.Reduce))
    known = known_trees(trees, partial(arrays_of_numpy, graph))
    found = needed(first, known, {}, graph.dependencies)
    (plan,) = plans_of(found.parts, {}, found.dependencies)
    assert str(plan).splitlines() == [
        "3 tasks, for chunks of (2, 4, 6, 8) pixels:",
        "  reduce sum",
        "    call sqrt (6, 4, 6, 8)",
        "      call sub 3.0 (6, 4, 6, 8)",
        "        read pixels.npy (6, 4, 6, 8)",
        "  reduce mean",
        "    read pixels.npy (6, 4, 6, 8)",
    ]
    assert not found.kept
    assert dask.compute(*results)[0].shape == (6, 8)


class Weighted:
    """A function with an array as attribute."""

    def __init__(self, weights):
        self.weights = weights

    def __call__(self, tile):
        return tile * self.weights


def weighted_by(weights):
    return lambda tile: tile if weights is None else tile * weights


WEIGHTS = np.arange(100_000.0)
HOLDERS = {
    "argument": (partial(np.multiply, WEIGHTS), WEIGHTS.nbytes),
    "closure": (weighted_by(WEIGHTS), WEIGHTS.nbytes),
    "default": (lambda tile, weights=WEIGHTS: tile * weights, WEIGHTS.nbytes),
    "attribute": (Weighted(WEIGHTS), WEIGHTS.nbytes),
    "nothing": (np.negative, 0),
    "not to be pickled": (weighted_by(threading.Lock()), 0),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_jobs_count_the_arrays_of_their_functions(arr, name):
    """A job of many bytes is sent to a cluster once, not with each task."""
    function, nbytes = HOLDERS[name]
    made = dask_tiled.map_tiles(function, arr, dtype="f8", sig_shape=(6, 8))
    (part,) = planned(made.dask, made.__dask_keys__()).plans[0].parts
    assert nbytes <= part.recipe.job.nbytes < nbytes + 2000
    assert part.recipe.is_large is (nbytes > 0)


def test_programs_are_compiled_when_planned(tmp_path, monkeypatch):
    """Tasks compile programs only for operands of other dtypes than dask announced."""
    pixels = counting_frames((5, 4, 6, 32), "u2")
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "uneven.npy", pixels), chunks=(2, 4, 6, 32))
    frame = np.random.default_rng(0).random((6, 32), "f4")
    third = da.from_array(frame).map_blocks(np.divide, np.float64(3), dtype="f4")
    made, compiled = [], recipes.compiled
    monkeypatch.setattr(recipes, "compiled", lambda *args: made.append(args) or compiled(*args))
    for operand, values, in_tasks in ((frame, frame, 0), (third, frame / np.float64(3), 1)):
        made.clear()
        (result,) = dask.optimize((arr * operand).sum((2, 3)))
        assert len(made) == 1
        found = result.compute(scheduler="synchronous")
        assert len(made) == 1 + in_tasks
        np.testing.assert_allclose(found, (pixels * values).sum((2, 3), "f8"), rtol=1e-6)
