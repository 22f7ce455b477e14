"""Inner loops of ufuncs are called directly if the layout of ufuncs in memory is known."""

import ctypes

import numpy as np
import pytest
from checks import on_tiles

import dask_tiled
from dask_tiled.engine import evaluation, loops, vectors
from dask_tiled.testing import write_npy

pytestmark = pytest.mark.usefixtures("synchronous")


@pytest.mark.parametrize("lacking", ["ob_refcnt", "nin", "data"])
def test_ufuncs_with_another_layout_are_called_on_chunks(tmp_path, monkeypatch, lacking):
    fields = [field for field in loops._UFunc._fields_ if field[0] != lacking]
    fields.append((lacking, ctypes.c_void_p))
    other = type("_UFunc", (ctypes.Structure,), {"_fields_": fields})
    monkeypatch.setattr(loops, "_UFunc", other)
    monkeypatch.setattr(vectors, "loop_of", loops.loop_of.__wrapped__)
    monkeypatch.setattr(evaluation, "SHARED", {})
    pixels = np.random.default_rng(0).random((4, 5, 32))
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "floats.npy", pixels))
    total = np.log1p(np.hypot(arr, 2)).sum((1, 2))
    with pytest.warns(RuntimeWarning, match="PyUFuncObject of numpy .* called on whole chunks"):
        assert on_tiles(total)
    found = total.compute()
    np.testing.assert_allclose(found, np.log1p(np.hypot(pixels, 2)).sum((1, 2)))
