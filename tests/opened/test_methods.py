"""Methods of arrays are the public functions of the same names."""

import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest
import xarray
import zarr

import dask_tiled
from dask_tiled import TiledArray, open_dataset
from dask_tiled.testing import counting_frames, write_dm

FRAMES = counting_frames((6, 8, 16, 12), "uint16")
STEPS = [(0.0, 0.5, "nm"), (0.0, 0.25, "nm"), (32.0, 0.02, "1/nm"), (32.0, 0.02, "1/nm")]


@pytest.fixture
def arr(tmp_path):
    return open_dataset(write_dm(tmp_path / "scan.dm4", FRAMES, calibrations=STEPS))


@pytest.mark.parametrize("name", ["explain", "show", "to_hyperspy", "to_xarray", "to_zarr"])
def test_methods_are_the_functions(arr, name):
    method, function = getattr(arr, name), getattr(dask_tiled, name)
    assert method.__func__ is function
    assert [*inspect.signature(method).parameters] == [*inspect.signature(function).parameters][1:]
    assert inspect.getdoc(getattr(TiledArray, name)) == inspect.getdoc(function)
    assert name in dir(arr)


@pytest.mark.thorough
def test_methods_do_what_the_functions_do(arr, tmp_path):
    arr[1:, :, :8].to_zarr(tmp_path / "a.zarr", chunks=(1, 4, 8, 12))
    stored = xarray.open_zarr(tmp_path / "a.zarr")["data"]
    assert np.array_equal(stored, FRAMES[1:, :, :8])
    assert stored["scan_y"].attrs["units"] == "nm"
    assert zarr.open_array(tmp_path / "a.zarr/data").chunks == (1, 4, 8, 12)
    assert arr.to_xarray().identical(dask_tiled.to_xarray(arr))
    assert arr.to_hyperspy().axes_manager["x"].scale == pytest.approx(0.02)
    figure = arr[0, 0].show(tmp_path / "frame.png")
    assert (tmp_path / "frame.png").exists()
    assert "1/nm" in figure.axes[0].get_xlabel()


ELSEWHERE = """
import pickle, sys
arr = pickle.loads(sys.stdin.buffer.read())
assert "dask_tiled.public" not in sys.modules
arr.to_zarr(sys.argv[1])
"""


@pytest.mark.slow
def test_methods_of_an_array_in_another_process(arr, tmp_path):
    """Unpickling imports only what the array itself needs."""
    command = [sys.executable, "-c", ELSEWHERE, tmp_path / "a.zarr"]
    subprocess.run(command, input=pickle.dumps(arr), check=True)
    assert np.array_equal(xarray.open_zarr(tmp_path / "a.zarr")["data"], FRAMES)
