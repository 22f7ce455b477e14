"""The package works without the names and modules that other systems lack."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "dask_tiled"
FOREIGN = {
    "macos": {
        "os": "O_DIRECT posix_fallocate posix_fadvise sched_getaffinity memfd_create",
        "mmap": "MAP_POPULATE MADV_HUGEPAGE",
    },
    "windows": {
        "os": """O_CLOEXEC O_DIRECT O_NOFOLLOW O_NONBLOCK O_DIRECTORY fork getuid posix_fallocate
        posix_fadvise pread preadv pwrite sched_getaffinity sysconf statvfs mkfifo fchmod""",
        "mmap": "MADV_RANDOM MADV_DONTNEED MADV_SEQUENTIAL MAP_SHARED PROT_READ",
        "": "fcntl resource pwd grp termios",
    },
}
"""Names in modules, and modules, that each system lacks."""
LACKING = """
import importlib, json, sys
import dask.array, numba, zarr  # these may use what is removed below
for module, names in json.loads(sys.argv[1]).items():
    for name in names.split():
        if module:
            vars(importlib.import_module(module)).pop(name, None)
        else:
            sys.modules[name] = None
os = importlib.import_module("os")
os.process_cpu_count = os.cpu_count  # from Python 3.13 on; other systems have no sched_getaffinity
for name in sys.argv[2:]:
    importlib.import_module(name)
import dask_tiled
"""


def run(system, script, folder):
    """Import every module on a system, then run a script."""
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
        if path.name != "__main__.py"
    ]
    return subprocess.run(
        [sys.executable, "-c", LACKING + script, json.dumps(FOREIGN[system]), *names],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        check=False,
        capture_output=True,
        text=True,
    )


WORK = """
import numpy as np
import dask_tiled.testing
pixels = np.arange(6 * 5 * 4, dtype="u2").reshape(6, 5, 4)
dask_tiled.testing.write_mib("scan.mib", pixels)
for io in ("auto", "mmap", "buffered"):
    arr = dask_tiled.open_dataset("scan.mib", io=io)
    assert (arr.compute() == pixels).all() and arr.sum().compute() == pixels.sum()
try:
    dask_tiled.open_dataset("scan.mib", io="direct")
except dask_tiled.DatasetError as error:
    assert "io='buffered'" in str(error)
dask_tiled.to_zarr(arr, "scan.zarr")
assert (dask_tiled.open_dataset("scan.zarr").compute() == pixels).all()
dask_tiled.to_beton("scan.beton", {"image": arr})
assert (dask_tiled.open_dataset("scan.beton", field="image").compute() == pixels).all()
"""


@pytest.mark.slow
def test_macos_supports_everything(tmp_path):
    done = run("macos", WORK, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_windows_imports_everything_but_reads_no_files(tmp_path):
    (tmp_path / "f.bin").write_bytes(bytes(64))
    done = run("windows", "dask_tiled.open_dataset('f.bin')", tmp_path)
    assert "Use the Windows Subsystem for Linux." in done.stderr
