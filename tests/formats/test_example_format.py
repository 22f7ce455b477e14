"""The worked example of docs/adding-a-format.rst, which includes a part of this file."""

import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checks import refuses

import dask_tiled
from dask_tiled.formats.registry import _registered
from dask_tiled.testing import check_format

EXAMPLE = Path(__file__).parents[2] / "examples" / "dask-tiled-spe"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("dask_tiled_spe", EXAMPLE / "dask_tiled_spe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def registered(example):
    dask_tiled.register_format(example.FORMAT)
    yield
    del _registered["spe"]


def write_spe(path, frames, kind):
    header = bytearray(4100)
    struct.pack_into("<H", header, 42, frames.shape[2])
    struct.pack_into("<h", header, 108, kind)
    struct.pack_into("<H", header, 656, frames.shape[1])
    struct.pack_into("<i", header, 1446, frames.shape[0])
    struct.pack_into("<f", header, 1992, 2.5)
    path.write_bytes(bytes(header) + frames.tobytes())


@pytest.mark.parametrize(("kind", "dtype"), [(0, "<f4"), (1, "<i4"), (2, "<i2"), (3, "<u2")])
def test_every_pixel(tmp_path, kind, dtype):
    frames = np.random.default_rng(0).integers(0, 30_000, (6, 7, 9)).astype(dtype)
    write_spe(tmp_path / "run7.spe", frames, kind)

    assert dask_tiled.describe(tmp_path / "run7.spe").format == "spe"
    check_format(tmp_path / "run7.spe", frames)
    check_format(tmp_path / "run7.spe", frames.reshape(2, 3, 7, 9), nav_shape=(2, 3))


def test_truncated_file_raises(tmp_path):
    path = tmp_path / "run7.spe"
    write_spe(path, np.ones((6, 7, 9), "<u2"), 3)
    path.write_bytes(path.read_bytes()[:-1])

    refuses(path, "run7", dask_tiled.TruncatedFileError)


def test_invalid_header_raises(tmp_path):
    path = tmp_path / "run7.spe"
    write_spe(path, np.ones((6, 7, 9), "<u2"), 17)

    refuses(path, r"byte 108 \(datatype\).*found 17", dask_tiled.CorruptFileError, format="spe")


@pytest.mark.slow
def test_installed_package_registers_its_format(tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", tmp_path / "site", EXAMPLE], check=True)
    write_spe(tmp_path / "run7.spe", np.ones((6, 7, 9), "<u2"), 3)
    opened = "import dask_tiled; arr = dask_tiled.open_dataset('run7.spe'); "
    printing = "print(arr.description.format, arr.shape, int(arr.sum()))"
    paths = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    printed = subprocess.run(
        [sys.executable, "-c", opened + printing],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert printed.stdout == "spe (6, 7, 9) 378\n"
