"""Measure the peak memory of exports, each in its own process; run as a program.

The program forks, so nothing here may start a thread outside of a child. It prints MiB as JSON.
"""

import json
import os
import sys

import dask
import dask.array as da
import numpy as np
import tqdm.auto  # noqa: F401 - once, not in every fork

import dask_tiled

FOLDER, MIB = sys.argv[1], 1 << 20
OUT, SCAN = f"{FOLDER}/out", f"{FOLDER}/scan.raw"
DRAW = np.random.default_rng(0)


def status(name):
    """Return a memory figure of this process, in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith(name))
    return int(line.split()[1]) * 1024


def opened(**options):
    """Open the scan, which no codec compresses."""
    raw = {"format": "raw", "dtype": ">u2", "sig_shape": (256, 256), "io": "buffered"}
    tiling = dask_tiled.TilingRequest("chunk", nbytes=8 * MIB)
    return dask_tiled.open_dataset(SCAN, tiling=tiling, **raw, **options)


def computed():
    """Return an array of dask chunks of 8 MiB."""
    return da.map_blocks(
        lambda: DRAW.integers(0, 1 << 16, (64, 256, 256), "u2"),
        chunks=((64,) * 12, (256,), (256,)),
        dtype="u2",
        meta=np.empty((0, 0, 0), "u2"),
    )


def to_zarr(arr, name="out", **options):
    dask_tiled.to_zarr(arr, f"{OUT}.{name}", progress=False, overwrite=True, **options)


def to_beton(arr, name="beton"):
    options = {"page_size": 1 << 21, "workers": 2, "progress": False, "overwrite": True}
    dask_tiled.to_beton(f"{OUT}.{name}", {"x": arr}, **options)


def measured(action):
    """Return the growth of the peak memory in MiB, after a first small export of each kind."""
    to_zarr(opened()[:8], "warm", pyramid=1)
    to_beton(opened()[:8], "warm.beton")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # resets the peak
    before = status("VmRSS")
    action()
    return (status("VmHWM") - before) / MIB


CASES = {
    "plain": lambda: to_zarr(opened()),
    "cut frames": lambda: to_zarr(opened(), chunks=(768, 32, 32)),
    "pyramid": lambda: to_zarr(opened(), pyramid=3),
    "computed": lambda: to_zarr(computed(), chunks=(8, 256, 256)),
    "follow": lambda: to_zarr(opened(follow=True, nav_shape=(768,)), follow=True, rest=0.1),
    "beton": lambda: to_beton(opened()),
}

dask.config.set(scheduler="threads", num_workers=2)
dask_tiled.formats()
with open(SCAN, "wb") as file:
    file.writelines(DRAW.bytes(8 * MIB) for _ in range(12))
for name, action in CASES.items():
    if (pid := os.fork()) == 0:
        try:
            sys.stdout.write(json.dumps({name: measured(action)}) + "\n")
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
