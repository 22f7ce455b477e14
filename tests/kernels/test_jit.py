"""Kernels are compiled although numba's compiler is switched off, and its absence is named."""

import sys

import numba
import numpy as np
import pytest
from checks import ran

from dask_tiled.kernels.jit import compiler_on, njit
from dask_tiled.testing import counting_frames, write_mib

SWITCHED_OFF = """
import sys, warnings
import numba, numpy as np
import dask_tiled

warnings.simplefilter("error", RuntimeWarning)
arr, expected = dask_tiled.open_dataset(sys.argv[1]), np.load(sys.argv[2])
assert (arr.compute() == expected).all()
assert (arr.sum(axis=(-2, -1)).compute() == expected.sum(axis=(-2, -1))).all()
scaled = (arr * 0.5 + 1).mean(axis=0).compute()
np.testing.assert_allclose(scaled, (expected * 0.5 + 1).mean(axis=0))
masks = np.random.default_rng(0).random((3, *arr.shape[-2:]))
weighted = dask_tiled.tiles.apply_masks(arr, masks).compute()
np.testing.assert_allclose(weighted, np.einsum("fyx,myx->fm", expected, masks))
def users(tile):
    return tile
assert numba.config.DISABLE_JIT and numba.njit(users) is users
"""
ABSENT = """
import sys
sys.modules["numba"] = None
import dask_tiled
try:
    dask_tiled.open_dataset(sys.argv[1]).compute()
except ImportError as error:
    print(error)
from dask_tiled.command_line import main
sys.argv = ["dask-tiled", "doctor", "--no-compile"]
main()
"""


@pytest.fixture
def path(tmp_path):
    frames = counting_frames((3, 8, 64), "uint16", bits=12)
    np.save(tmp_path / "frames.npy", frames)
    return write_mib(tmp_path / "scan.mib", frames, kind="R64", depth=12)


@pytest.mark.slow
def test_results_with_the_compiler_switched_off(path):
    ran(SWITCHED_OFF, path, path.parent / "frames.npy", NUMBA_DISABLE_JIT="1")


@pytest.mark.slow
def test_without_numba_errors_name_the_machine(path):
    output = ran(ABSENT, path)
    error, _, rest = output.partition("\n")
    assert error.startswith("dask-tiled needs numba, which cannot be imported")
    assert "with Python {}.{}.{}".format(*sys.version_info) in error
    assert error in rest  # the report of doctor


def test_the_switch_is_restored_when_the_last_thread_leaves(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)

    def one():
        return 1

    assert numba.njit(one) is one
    with compiler_on:
        with compiler_on:
            pass
        assert njit()(one) is not one
    assert numba.config.DISABLE_JIT == 1
