"""Reductions of opened arrays run without a graph and equal dask's results."""

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from threading import get_ident

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback
from distributed import Client, LocalCluster

import dask_tiled
from dask_tiled.opened.at_once import LateArray
from dask_tiled.reading.reader import pixels_in
from dask_tiled.testing import write_npy

SHAPE = (3, 4, 10, 12)
PIXELS = np.random.default_rng(0).normal(100, 40, SHAPE)
AXES = [None, 0, -1, (-2, -1), (3, 2), (0, 1), (0, 3), [1, 2], (0, 1, 2, 3)]


class TaskCounter(Callback):
    """Make dask compute with a graph, and count the tasks."""

    def __init__(self):
        super().__init__(pretask=self.count)
        self.tasks = 0

    def count(self, *_):
        self.tasks += 1


DTYPES = ["u1", ">u2", "i4", "f4", ">f8", "c8"]
ONE_DTYPE = pytest.mark.parametrize("arr", ["f4"], indirect=True)
"""For tests of arguments, graphs and threads, which no pixels change."""


@pytest.fixture(params=DTYPES)
def arr(tmp_path, request):
    pixels = PIXELS.astype(request.param)
    if pixels.dtype.kind == "f":
        pixels[0, 1, 2, 3] = np.nan
    return dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", pixels))


def with_a_graph(result):
    with TaskCounter() as counter:
        found = result.compute()
    assert counter.tasks
    return found


NAMES = ["sum", "mean", "min", "max"]
CHUNKS = [SHAPE, (2, 3, 10, 12), (2, 4, 10, 5)]
# Each function meets all types and all chunks, and each type all chunks.
TURNS = [(x, y, CHUNKS[(k + j) % 3]) for k, x in enumerate(NAMES) for j, y in enumerate(DTYPES)]


@pytest.mark.parametrize(("name", "arr", "chunks"), TURNS, indirect=["arr"], ids=str)
def test_values_equal_those_of_a_graph(arr, name, chunks, monkeypatch):
    """Also where chunks are neither merged nor few."""
    arr = arr.with_chunks(chunks)
    if arr.npartitions > 1:
        monkeypatch.setattr("dask_tiled.plans.plan.LEAST_TASK_BYTES", 1)
        monkeypatch.setattr("dask_tiled.graphs.results.LEAST_RESULT_PIXELS", 100)
    if np.iscomplexobj(arr) and name in ("min", "max"):
        pytest.skip("dask orders no complex numbers")
    turn = NAMES.index(name) + CHUNKS.index(chunks)  # each function keeps and drops each axis
    for k, axis in enumerate(AXES):
        options = {"keepdims": True} if (turn + k) % 2 else {}
        result = getattr(arr, name)(axis, **options)
        made = getattr(da.Array, name)(arr, axis, **options)
        assert type(result) is LateArray
        found, wanted = result.compute(), with_a_graph(made)
        assert type(found) is type(wanted)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found, wanted, err_msg=f"{axis} {options}")
        assert (result.name, result.chunks, result.dtype) == (made.name, made.chunks, made.dtype)
        assert type(result._meta) is type(made._meta)


@pytest.mark.usefixtures("synchronous")  # NumPy's error state applies to one thread
@pytest.mark.parametrize("dtype", ["u8", "f4", "f8", "c16"])
def test_requested_dtypes(arr, dtype):
    if np.iscomplexobj(arr) and dtype != "c16":
        pytest.skip("NumPy warns of it")
    for name in ("sum", "mean"):
        with np.errstate(all="ignore"):
            found = getattr(arr, name)((2, 3), dtype=dtype).compute()
            wanted = with_a_graph(getattr(da.Array, name)(arr, (2, 3), dtype=dtype))
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["u1", "i1", "u4", "i8", "?"])
@pytest.mark.parametrize("chunks", [(4, 6, 10), (2, 3, 5)])
def test_means_in_integers_overflow_as_in_numpy(tmp_path, dtype, chunks):
    """NumPy adds up in the requested dtype, which overflows, and divides then."""
    pixels = np.random.default_rng(0).integers(-100, 100, (4, 6, 10)).astype("i2")
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", pixels), chunks=chunks)
    for axis in (0, 2, (0, 1), (0, 2)):
        expected = pixels.mean(axis=axis, dtype=dtype)
        for found in (arr.mean(axis=axis, dtype=dtype), np.mean(arr, axis=axis, dtype=dtype)):
            np.testing.assert_array_equal(found.compute(), expected)


@pytest.mark.parametrize("name", ["max", "mean", "min", "sum"])
def test_functions_of_numpy(arr, name):
    if arr.dtype.kind == "c" and name in {"max", "min"}:
        pytest.skip("dask orders no complex numbers")
    function = getattr(np, name)
    result = function(arr, axis=(2, 3))
    assert type(result) is LateArray
    assert result.name == function(arr, axis=(2, 3)).name == getattr(arr, name)((2, 3)).name
    np.testing.assert_array_equal(result.compute(), with_a_graph(function(arr, (2, 3))))
    out = da.zeros(arr.shape[:2], dtype=result.dtype)
    np.testing.assert_array_equal(function(arr, axis=(2, 3), out=out), result)
    with pytest.raises(TypeError):
        function(arr, axis=(2, 3), where=True)


def test_slices_and_further_computation(arr):
    row = arr[1]
    np.testing.assert_array_equal(row.sum((-2, -1)), with_a_graph(row.sum((-2, -1))))
    further = row.sum((-2, -1)) * 2 - arr.sum((-2, -1))[1]
    np.testing.assert_array_equal(further, with_a_graph(further))
    for both in (
        arr / arr.mean(axis=(0, 1)),
        arr.max(0) - arr,
        row.sum() + arr.min(),
        arr.sum() ** 2,
    ):
        np.testing.assert_array_equal(both, with_a_graph(both))
    found = dask.compute(row.sum(), arr.mean((0, 1)), scheduler="synchronous")
    np.testing.assert_array_equal(found[1], arr.mean((0, 1)).compute(scheduler="sync"))
    again = pickle.loads(pickle.dumps(row.sum(0)))
    np.testing.assert_array_equal(again, row.sum(0))


@ONE_DTYPE
def test_graphs_are_built_on_demand(arr):
    result = arr.sum((2, 3))
    assert result._graph is None
    expected = result.compute()
    arr[1, 2].compute(scheduler="threads")
    with ThreadPoolExecutor(2) as pool:
        for options in ({"num_workers": 2}, {"pool": pool}):
            for scheduler in (None, "threads", "synchronous"):
                np.testing.assert_array_equal(
                    result.compute(scheduler=scheduler, **options), expected
                )
                arr[1, 2].compute(scheduler=scheduler, **options)
    assert result._graph is None
    assert arr._graph is None
    with_a_graph(result)
    assert result.dask.layers


@ONE_DTYPE
def test_other_calls_are_left_to_dask(arr):
    assert type(arr.sum(split_every=2)) is da.Array
    assert type(arr.sum(axis=())) is da.Array
    with dask.annotate(priority=3):
        assert type(arr.sum()) is da.Array
    with dask.config.set(array_plugins=(*dask.config.get("array_plugins"), lambda _: None)):
        assert type(arr.sum()) is da.Array
    for axis in (4, "y", (0, 7)):
        with pytest.raises((TypeError, ValueError)) as caught:
            arr.sum(axis)
        with pytest.raises(caught.type, match=None):
            da.Array.sum(arr, axis)


@ONE_DTYPE
def test_unknown_chunks_are_left_to_dask(arr):
    """Some libraries delete the lengths of chunks, as dask's own tests do."""
    wanted = arr.sum((2, 3)).compute()
    arr._chunks = tuple((math.nan,) * len(lengths) for lengths in arr.chunks)
    result = arr.sum((2, 3))
    assert type(result) is da.Array
    np.testing.assert_allclose(result.compute(), wanted, rtol=1e-6)


@ONE_DTYPE
def test_assigned_items(arr):
    result = arr.sum((2, 3))
    wanted = result.compute().copy()
    result[1, 1] = 7
    wanted[1, 1] = 7
    np.testing.assert_array_equal(result.compute(), wanted)
    before = arr.sum(0), arr.sum(0)
    wanted = before[0].compute()
    arr[1] = 0
    np.testing.assert_array_equal(before[0].compute(), wanted)
    np.testing.assert_array_equal(with_a_graph(before[1]), wanted)
    assert (arr.sum(0).compute() != wanted).any()


def test_signatures_are_those_of_dask():
    for name in ("sum", "mean", "min", "max"):
        assert signature(getattr(dask_tiled.TiledArray, name)) == signature(getattr(da.Array, name))


@ONE_DTYPE
@pytest.mark.parametrize(
    "options",
    [
        {"axis": range(2)}, {"axis": np.array([0, 1])}, {"axis": np.array(1)}, {"axis": True},
        {"keepdims": None}, {"keepdims": "yes"}, {"dtype": ">f4"}, {"dtype": "M8[ns]"},
    ],
    ids=str,
)  # fmt: skip
def test_unusual_arguments_are_left_to_dask(arr, options):
    try:
        found = arr.sum(**options)
    except (TypeError, IndexError):
        return
    assert type(found) is not LateArray


@pytest.mark.parametrize("name", ["max", "mean", "prod", "std", "sum"])
def test_repeated_axes_raise(tmp_path, name):
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", PIXELS))
    for options in ({}, {"keepdims": True}):
        with pytest.raises(ValueError, match="axis"):
            getattr(arr, name)((0, 0), **options).compute()


def test_object_sums_do_not_overflow(tmp_path):
    pixels = np.full((5, 4, 4), 2**63 - 1, "i8")
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "a.npy", pixels))
    assert arr.sum(axis=0, dtype=object).compute()[0, 0] == 5 * (2**63 - 1)


def test_current_clients_that_are_no_default(tmp_path):
    """The scheduler of a cluster optimises the graph, in a thread without a client."""
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", PIXELS))
    wanted = arr.sum((0, 1)).compute()
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(**options, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
    ):
        np.testing.assert_array_equal(arr.sum((0, 1)).compute(), wanted)


@ONE_DTYPE
def test_frames_are_read_in_several_threads(arr, monkeypatch):
    wanted = arr[..., 4:7, 5].compute()
    threads = set()

    def noted(*args):
        threads.add(get_ident())
        return pixels_in(*args)

    monkeypatch.setattr("dask_tiled.graphs.results.LEAST_FRAMES", 1)
    monkeypatch.setattr("dask_tiled.graphs.results.processors", lambda: 3)
    monkeypatch.setattr("dask_tiled.graphs.results.pixels_in", noted)
    for scheduler, here in (("synchronous", True), ("threads", False)):
        found = arr[..., 4:7, 5].compute(scheduler=scheduler)
        np.testing.assert_array_equal(found, wanted)
        assert (threads == {get_ident()}) == here
    assert arr[1, 2, 3, 4].compute(scheduler="threads") == arr[1, 2, 3, 4].compute()
