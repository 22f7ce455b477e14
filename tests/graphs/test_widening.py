"""Reductions that dask computes combine many results at a time; values are those of NumPy."""

import dask
import dask.array as da
import numpy as np
import pytest
from checks import depth_of
from dask.core import flatten

import dask_tiled
from dask_tiled.graphs import widening
from dask_tiled.graphs.rewriting import optimize, rewritten
from dask_tiled.testing import write_npy

pytestmark = pytest.mark.thorough

SHAPE = (36, 30, 4, 8)
PIXELS = np.random.default_rng(0).integers(1, 5, SHAPE).astype("f4")


def squared(block):
    return block * block


@pytest.fixture
def mapped(tmp_path):
    """Return what a function of users makes of 1,080 chunks."""
    path = write_npy(tmp_path / "scan.npy", PIXELS)
    return dask_tiled.open_dataset(path, chunks=(1, 1, 4, 8)).map_blocks(squared, dtype="f4")


def shape_of(result):
    """Return the number of tasks, and how many of them depend on one another."""
    graph = optimize(result.dask, [*flatten(result.__dask_keys__())])
    tasks = graph.to_dict() if hasattr(graph, "to_dict") else dict(graph)
    return len(tasks), depth_of(tasks)


REDUCTIONS = {
    "sum of scan": (lambda x: x.sum((0, 1)), lambda x: x.sum((0, 1))),
    "sum": (lambda x: x.sum(), lambda x: x.sum()),
    "mean": (lambda x: x.mean((0, 1)), lambda x: x.mean((0, 1))),
    "nanmean": (da.nanmean, np.nanmean),
    "std": (lambda x: x.std((1, 0)), lambda x: x.std((0, 1))),
    "var": (lambda x: x.var(ddof=1), lambda x: x.var(ddof=1)),
    "largest": (lambda x: x.max((0, 1), keepdims=True), lambda x: x.max((0, 1), keepdims=True)),
    "any": (lambda x: (x > 20).any(), lambda x: (x > 20).any()),
    "least": (lambda x: x.min((0, 1)), lambda x: x.min((0, 1))),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_in_three_levels(mapped, name):
    reduce, in_numpy = REDUCTIONS[name]
    found, expected = reduce(mapped), in_numpy(PIXELS.astype("f8") ** 2)
    tasks, levels = shape_of(found)
    assert levels <= 1 + 3 + (name == "std")  # the root is a task
    assert tasks < 1080 * 1.2
    with dask.config.set(array_optimize=da.optimize):
        plain = reduce(mapped)
        assert plain.dtype == found.dtype
    result = found.compute()
    assert np.shape(result) == np.shape(expected)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_positions_and_further_axes_keep_the_layers_of_dask(mapped):
    """Of argmax, the order in which chunks are compared decides between equal pixels."""
    expected = (PIXELS**2).argmax()
    assert mapped.argmax().compute() == expected
    np.testing.assert_array_equal(mapped.sum(0).compute(), (PIXELS**2).sum(0))


def test_what_a_user_has_chosen_is_kept(mapped):
    """``split_every`` of a call, or of the configuration."""
    wide, binary = mapped.sum((0, 1)), mapped.sum((0, 1), split_every={0: 3, 1: 3})
    assert shape_of(wide)[1] < shape_of(binary)[1]
    levels = shape_of(wide)[1]
    with dask.config.set(split_every=4):
        assert shape_of(mapped.sum((0, 1)))[1] > levels
    np.testing.assert_allclose(binary.compute(), (PIXELS**2).sum((0, 1)))


def test_large_results_are_combined_by_few(mapped, monkeypatch):
    """A task holds no more than some bytes of results."""
    levels = shape_of(mapped.sum((0, 1)))[1]
    monkeypatch.setattr(widening, "MOST_COMBINED_BYTES", 4 * 8 * 4 * 5)
    assert shape_of(mapped.sum((0, 1)))[1] > levels
    np.testing.assert_allclose(mapped.sum((0, 1)).compute(), (PIXELS**2).sum((0, 1)))


def test_few_results_are_combined_as_in_dask(mapped):
    few = mapped[:10, :10].sum((0, 1))
    with_dask = [*flatten(few.__dask_keys__())]
    plain = da.optimize(few.dask, with_dask)
    assert shape_of(few)[0] == len(plain.to_dict() if hasattr(plain, "to_dict") else dict(plain))


def test_annotations_stay(mapped):
    with dask.annotate(retries=3):
        found = mapped.sum((0, 1))
    graph = rewritten(found.dask, [*flatten(found.__dask_keys__())])
    noted = [layer.annotations for layer in graph.layers.values() if layer.annotations]
    assert noted
    assert all(one["retries"] == 3 for one in noted)
