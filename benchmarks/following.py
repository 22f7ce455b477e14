"""Delay of an export that follows a growing file: seconds from the last byte to the array.

Run ``python benchmarks/following.py [--rate 200] [--seconds 10]``: a process appends frames of 256
x 256 pixels, at a rate in MB/s, to a raw file whose scan shape is known, and to a Merlin file with
a ``.hdr`` file. The result is compared with the file bit by bit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import dask_tiled
from dask_tiled.testing import write_mib

SIDE = 256
WRITER = """
import sys, time
source, path, rate, step = sys.argv[1], sys.argv[2], float(sys.argv[3]), 1 << 20
with open(source, "rb") as read, open(path, "ab", buffering=0) as file:
    begun, done = time.perf_counter(), 0
    while data := read.read(step):
        file.write(data)
        done += len(data)
        time.sleep(max(0.0, begun + done / rate - time.perf_counter()))
print(time.time(), done / (time.perf_counter() - begun))
"""


def follow(source: Path, path: Path, rate: float, options: dict[str, Any]) -> None:
    """Export a file while another process writes it, and print the delay at the end."""
    path.write_bytes(b"")
    command = [sys.executable, "-c", WRITER, str(source), str(path), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        while path.stat().st_size < 1 << 20:
            time.sleep(0.01)
        arr = dask_tiled.open_dataset(path, follow=True, **options)
        out = path.with_suffix(f"{path.suffix}.zarr")
        dask_tiled.to_zarr(arr, out, follow=True, progress=False)
        seen = time.time()
        assert writer.stdout is not None
        ended, found = map(float, writer.stdout.read().split())
    dask_tiled.verify_zarr(out, dask_tiled.open_dataset(path, **options), progress=False)
    size = path.stat().st_size
    print(
        f"{path.suffix[1:]:4} {size / 1e6:7.0f} MB at {found / 1e6:5.0f} MB/s:"
        f" complete {seen - ended:5.2f} s after the last byte; equal"
    )


def main() -> None:
    """Run the benchmark for both kinds of files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="MB/s")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    rows = max(1, round(args.rate * 1e6 * args.seconds / (2 * SIDE**2) / 64))
    rng = np.random.default_rng(0)
    scan = np.broadcast_to(rng.poisson(3, (1, 64, SIDE, SIDE)).astype("u2"), (rows, 64, SIDE, SIDE))
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        whole = folder / "whole.raw"
        with whole.open("wb") as file:
            for row in scan:
                file.write(row.tobytes())
        raw = {"format": "raw", "dtype": "u2", "sig_shape": (SIDE, SIDE)}
        follow(whole, folder / "scan.raw", args.rate * 1e6, {**raw, "nav_shape": (rows, 64)})
        mib = write_mib(folder / "whole.mib", scan)
        mib.with_suffix(".hdr").rename(folder / "scan.hdr")
        follow(mib, folder / "scan.mib", args.rate * 1e6, {})


if __name__ == "__main__":
    main()
