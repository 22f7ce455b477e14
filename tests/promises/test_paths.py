"""The number of modules between a call and its result is limited."""

import gc
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
from numba.core.registry import CPUDispatcher

import dask_tiled
from dask_tiled import open_dataset
from dask_tiled.testing import write_mib

PACKAGE = Path(dask_tiled.__file__).parent


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    frames = np.random.default_rng(0).integers(0, 100, (20, 16, 32), "u2")
    return write_mib(tmp_path_factory.mktemp("mib") / "tiny.mib", frames, nav_shape=(4, 5))


def entered(call):
    """List the modules whose functions are called; compiled functions do not count."""
    codes = set()
    call()  # so that modules are loaded, and kernels compiled
    sys.setprofile(lambda frame, event, _: codes.add(frame.f_code) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    gc.unfreeze()  # objects that are exempt from garbage collection are not listed
    kernels = [one for one in gc.get_objects() if issubclass(type(one), CPUDispatcher)]
    codes -= {kernel.py_func.__code__ for kernel in kernels}
    files = {Path(code.co_filename) for code in codes}
    return sorted(f"{file.relative_to(PACKAGE)}" for file in files if file.is_relative_to(PACKAGE))


DARK, GAIN = np.full((16, 32), 3, "f4"), np.full((16, 32), 0.5, "f4")
COMPUTED = {
    "sum": (33, lambda arr: arr.sum((0, 1))),
    "expression": (43, lambda arr: np.sqrt((arr - DARK) * GAIN).sum((2, 3))),
    "slice": (24, lambda arr: arr[3]),
}
"""The maximum number of modules, and the computation."""


@pytest.mark.thorough
def test_opening(path):
    found = entered(lambda: open_dataset(path))
    assert len(found) <= 25, found


@pytest.mark.thorough
@pytest.mark.usefixtures("at_rest")  # a file just written is read in another way
@pytest.mark.parametrize("name", COMPUTED)
def test_computing(path, name):
    arr = open_dataset(path)
    most, made = COMPUTED[name]
    with dask.config.set(scheduler="synchronous"):
        found = entered(lambda: made(arr).compute())
    assert len(found) <= most, found
