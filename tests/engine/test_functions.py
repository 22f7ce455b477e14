"""Reductions and elementwise functions on tiles have NumPy's values and dask's types."""

import warnings
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array import reductions

import dask_tiled
from dask_tiled.engine import reductions as table
from dask_tiled.engine.expressions import MADE_OF, MadeOf, Select
from dask_tiled.graphs.functions import REDUCTIONS as REDUCTIONS_OF_DASK
from dask_tiled.graphs.functions import _count_and_total
from dask_tiled.graphs.rewriting import planned, rewritten
from dask_tiled.plans.last_steps import LaterSteps
from dask_tiled.plans.lowering import LATER
from dask_tiled.testing import write_npy

pytestmark = pytest.mark.usefixtures("synchronous")

REDUCTIONS = {
    "sum": (da.sum, np.sum),
    "prod": (da.prod, np.prod),
    "min": (da.min, np.min),
    "max": (da.max, np.max),
    "any": (da.any, np.any),
    "all": (da.all, np.all),
    "mean": (da.mean, np.mean),
    "var": (da.var, np.var),
    "std": (da.std, np.std),
    "ptp": (da.ptp, np.ptp),
    "count_nonzero": (da.count_nonzero, np.count_nonzero),
    "nansum": (da.nansum, np.nansum),
    "nanmin": (da.nanmin, np.nanmin),
    "nanmax": (da.nanmax, np.nanmax),
    "nanmean": (da.nanmean, np.nanmean),
    "nanstd": (da.nanstd, np.nanstd),
}
"""Functions of an array and axes: dask's, and NumPy's."""
ELEMENTWISE = {
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "square": np.square,
    "absolute": np.absolute,
    "add": lambda x: x + x,
    "divide": lambda x: x / 3,
    "floor_divide": lambda x: x // 7,
    "power": lambda x: x**3,
    "where": lambda x: (da if isinstance(x, da.Array) else np).where(x > 20, x, 1),
    "clip": lambda x: x.clip(3, 40),
    "round": lambda x: x.round(1),
    "nan_to_num": lambda x: (da if isinstance(x, da.Array) else np).nan_to_num(x),
    "astype": lambda x: x.astype("f4"),
}
"""Functions of an array of dask or NumPy."""


DTYPES = ["u2", ">i4", "f4", "NaN"]
AXES = [(0, 1), (2, 3), None]


@pytest.fixture(scope="module", params=DTYPES)
def opened(request, tmp_path_factory):
    frames = np.random.default_rng(0).uniform(-90, 90, (4, 3, 8, 32))
    dtype = "f4" if request.param == "NaN" else request.param
    frames = abs(frames).astype(dtype) if dtype == "u2" else frames.astype(dtype)
    if request.param == "NaN":
        frames[1, 1, 3:5, 3] = frames[0, 2, 7] = np.nan
    path = write_npy(tmp_path_factory.mktemp("scan") / "scan.npy", frames)
    return dask_tiled.open_dataset(path, chunks=(2, 3, 8, 32)), frames.astype(dtype[-2:])


def why_dask(result):
    """Return why dask computes something of pixels, or a task all pixels of a chunk at once.

    Computation on results does not count.
    """
    left = planned(result.dask, result.__dask_keys__()).left()
    return {why for _, why in left} - {LATER}


# Each function meets all types and all axes, and each type all axes.
TURNS = [
    (name, x, AXES[(k + j) % 3]) for k, name in enumerate(REDUCTIONS) for j, x in enumerate(DTYPES)
]


@pytest.mark.parametrize(("name", "opened", "axis"), TURNS, indirect=["opened"], ids=str)
def test_reductions(opened, name, axis):
    (arr, frames), (of_dask, of_numpy) = opened, REDUCTIONS[name]
    found, precise = of_dask(arr, axis), frames
    if frames.dtype == "f4" and name != "prod":
        precise = frames.astype("f8")
    plain = of_dask(da.from_array(frames, chunks=arr.chunks), axis)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = of_numpy(precise, axis)
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-5)
    assert found.dtype == plain.dtype
    assert not why_dask(found)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(opened, name):
    (arr, frames), function = opened, ELEMENTWISE[name]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = function(arr), function(frames)
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-6)
    assert found.dtype == expected.dtype
    assert not why_dask(found)


# Functions that are added as in docs/developers/adding-a-reduction.rst


def test_added_functions(opened, monkeypatch):
    arr, frames = opened
    frames = frames / 3
    fixed = lambda draft, pixels: draft.call(np.trunc, [pixels])  # noqa: E731
    monkeypatch.setitem(MADE_OF, np.fix, MadeOf(fixed, 1))
    found = da.fix(arr / 3)
    np.testing.assert_array_equal(found.compute(), np.fix(frames))
    assert not why_dask(found)

    def without_nan(draft, pixels, nan=0.0):
        return draft.call(Select(), [draft.call(np.isnan, [pixels]), nan, pixels])

    found = (arr / 3).map_blocks(np.nan_to_num, nan=5.0)
    assert why_dask(found) == {"no kernel for nan_to_num"}
    monkeypatch.setitem(MADE_OF, np.nan_to_num, MadeOf(without_nan, 1, ("nan",)))
    np.testing.assert_allclose(found.compute(), np.nan_to_num(frames, nan=5.0), rtol=1e-6)
    assert not why_dask(found)


# A reduction that is added as in docs/developers/adding-a-reduction.rst


def geometric_mean_chunk(pixels, *, computing_meta=False, **kwargs):
    logarithms = np.log(pixels, dtype=np.result_type(pixels, np.float64))
    return reductions.mean_chunk(logarithms, computing_meta=computing_meta, **kwargs)


def geometric_mean_agg(pairs, **kwargs):
    return np.exp(reductions.mean_agg(pairs, **kwargs))


def geometric_mean(arr, axis):
    steps = geometric_mean_chunk, geometric_mean_agg, axis
    options = {"combine": reductions.mean_combine, "concatenate": False}
    return da.reduction(arr, *steps, dtype="f8", **options)


@pytest.fixture
def added(monkeypatch):
    """Add a row to the table, and the functions that dask calls for it."""
    finish = lambda found, pixels, *_: np.exp(found / pixels)  # noqa: E731
    row = replace(table.SUM, name="geometric_mean", before=np.log, finish=finish)
    monkeypatch.setattr(table, "GEOMETRIC_MEAN", row, raising=False)
    steps = LaterSteps(row, geometric_mean_agg, reductions.mean_combine, as_dask=_count_and_total)
    monkeypatch.setitem(REDUCTIONS_OF_DASK, geometric_mean_chunk, steps)


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_an_added_reduction(opened, axis):
    arr, frames = (abs(x) + 1 for x in opened)
    found = geometric_mean(arr, axis)
    plain = geometric_mean(da.from_array(frames, chunks=arr.chunks), axis)
    np.testing.assert_allclose(found.compute(), plain.compute(), rtol=1e-9)
    assert not why_dask(found)
    # Intermediate results of single chunks
    some, other = (x.dask.layers for x in (found, plain))
    (first, *_) = (x for x in some if x.startswith("geometric_mean_chunk"))
    (second, *_) = (x for x in other if x.startswith("geometric_mean_chunk"))
    key = (0,) * 4
    chunks = [
        dask.get(rewritten(x.dask, [(name, *key)]), [(name, *key)])[0]
        for x, name in ((found, first), (plain, second))
    ]
    for part in ("n", "total"):
        np.testing.assert_allclose(chunks[0][part], chunks[1][part], rtol=1e-9)


@pytest.mark.usefixtures("added")
@pytest.mark.filterwarnings("ignore:Casting complex values")  # by the steps of dask's mean
def test_complex_pixels_are_left_to_dask(opened):
    assert why_dask(geometric_mean(opened[0] * 1j, (0, 1)))
