"""Reductions and elementwise functions on tiles, one line each: values and types are NumPy's."""

import warnings

import dask.array as da
import numpy as np
import pytest
from checks import on_tiles

import dask_tiled
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
"""By names: of a dask array and axes, and of an array of NumPy."""
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
"""Functions of both kinds of arrays."""


@pytest.fixture(scope="module", params=["u2", "f4", ">i4"])
def opened(request, tmp_path_factory):
    frames = np.random.default_rng(0).integers(1, 90, (4, 3, 8, 32)).astype(request.param)
    path = write_npy(tmp_path_factory.mktemp("scan") / "scan.npy", frames)
    return dask_tiled.open_dataset(path, chunks=(2, 3, 8, 32)), frames.astype(frames.dtype.type)


@pytest.mark.parametrize("axis", [(0, 1), (2, 3), None], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(opened, name, axis):
    (arr, frames), (of_dask, of_numpy) = opened, REDUCTIONS[name]
    found, precise = of_dask(arr, axis), frames
    if frames.dtype == "f4" and name != "prod":
        precise = frames.astype("f8")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind, expected = of_numpy(frames, axis).dtype, of_numpy(precise, axis)
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-5)
    assert found.dtype == kind
    assert on_tiles(found)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(opened, name):
    (arr, frames), function = opened, ELEMENTWISE[name]
    found, expected = function(arr), function(frames)
    np.testing.assert_allclose(found.compute(), expected, rtol=1e-6)
    assert found.dtype == expected.dtype
    assert on_tiles(found.sum(axis=(0, 1)))
