"""Hide names from the package one by one, and then all, and print what fails without them.

Each line is JSON. The work runs in forks of one process, which has done it with all names, and so
imported the other libraries.
"""

import gc
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import dask
import h5py
import numpy as np
import zarr
from sitecustomize import VARIABLE, hide

PIXELS = np.arange(6 * 40 * 50, dtype="u2").reshape(6, 40, 50)
CHILD = {"fork", "killpg", "setitimer", "getrlimit", "setrlimit", "fcntl", "sysconf"}
"""Names for which a child process reads an HDF5 file, which takes a second."""


def work(names):
    """Read, compute, export and overwrite; return nothing if all pixels are right."""
    # The package's own names would import all modules.
    from dask_tiled import testing
    from dask_tiled.errors import DatasetError
    from dask_tiled.export.zarr.zarr_export import to_zarr
    from dask_tiled.opening.arrays import open_dataset
    from dask_tiled.training.beton import to_beton

    raw = {"format": "raw", "dtype": "u2", "sig_shape": PIXELS.shape[1:]}
    testing.write_raw("scan.raw", PIXELS)
    testing.write_mib("scan.mib", PIXELS)
    for io, seconds in (("auto", 0), ("auto", 1000), ("buffered", 0)):
        with dask.config.set({"dask-tiled.rest-seconds": seconds}):
            arr = open_dataset("scan.raw", io=io, **raw)
            np.testing.assert_array_equal(arr, PIXELS)
            assert arr.sum().compute() == PIXELS.sum()
            np.testing.assert_array_equal(arr[:, 7, 9], PIXELS[:, 7, 9])
            np.testing.assert_array_equal(arr.map_blocks(np.copy), PIXELS)
    np.testing.assert_array_equal(open_dataset("scan.mib"), PIXELS)
    to_zarr(arr, "scan.zarr", layout="array")
    to_beton("scan.beton", {"image": arr})
    np.testing.assert_array_equal(zarr.open("scan.zarr")[:], PIXELS)
    np.testing.assert_array_equal(open_dataset("scan.beton", field="image"), PIXELS)
    if CHILD & names:
        with h5py.File("scan.h5", "w") as file:
            file["data"] = PIXELS
        np.testing.assert_array_equal(open_dataset("scan.h5"), PIXELS)
        Path("broken.h5").write_bytes(Path("scan.h5").read_bytes()[:-8000])
        try:
            open_dataset("broken.h5").compute()
        except DatasetError:
            pass
        else:
            raise AssertionError("a truncated file opens")


def failure(listed):
    """Return the traceback of the work without some names; None if it succeeds."""
    os.environ[VARIABLE] = " ".join(listed)  # for child processes
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            hide(listed)
            work({one.partition(".")[2] for one in listed})
            os.chdir("/")
    except BaseException:  # noqa: BLE001 - every failure is reported
        return traceback.format_exc()
    return None


def forked(listed):
    """Print the result of a fork of this process."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        sys.stdout.write(json.dumps({"names": listed, "failure": failure(listed)}) + "\n")
        sys.stdout.flush()
    finally:
        os._exit(0)


if __name__ == "__main__":
    dask.config.set(scheduler="synchronous")
    listed = sys.argv[1:]
    failure([])
    for module in [x for x in sys.modules if x.startswith("dask_tiled")]:
        del sys.modules[module]
    dask.config.set(array_optimize=None)
    gc.collect()
    gc.freeze()  # keeps memory pages shared with forks
    for some in [*([one] for one in listed), listed]:
        forked(some)
