"""A batch beside a loop of `convert` in one process, and beside one command a file.

``python benchmarks/batch.py FOLDER --small 200 --large 20`` writes files to the folder, and prints
times, processor time, which matters on a busy machine, and the memory of all processes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import dask_tiled
from catalogue import timed, write


def looped(paths: Sequence[str], out: Path) -> int:
    """Convert in this process, one file after the other, in threads of dask."""
    out.mkdir()
    for path in paths:
        dask_tiled.convert(path, out / f"{Path(path).name}.zarr", progress=False)
    return len(paths)


def commanded(paths: Sequence[str], out: Path) -> int:
    """Convert by a command for each file."""
    out.mkdir()
    for path in paths:
        command = [
            sys.executable,
            "-m",
            "dask_tiled",
            "convert",
            path,
            f"{out / Path(path).name}.zarr",
        ]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return len(paths)


def batch(folder: Path, out: Path, jobs: int) -> int:
    name = "{folder}/{stem}{suffix}"
    rows = dask_tiled.convert_all(folder, out, name=name, jobs=jobs)
    return sum(row.is_complete for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", type=int, default=200)
    parser.add_argument("--large", type=int, default=20)
    parser.add_argument("--mib", type=int, default=50, help="size of each large file")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    draw = np.random.default_rng(0)
    cases = {"small": write(given.folder / "small", given.small), "large": []}
    (given.folder / "large").mkdir(exist_ok=True)
    for k in range(given.large):
        path = given.folder / "large" / f"{k:02}.npy"
        np.save(path, draw.poisson(5, (given.mib * 8, 256, 256)).astype("u2"))
        cases["large"].append(str(path))
    for kind, paths in cases.items():
        if not paths:
            continue
        out, folder = given.folder / "out", given.folder / kind
        print(f"{len(paths)} {kind} files, load {os.getloadavg()[0]:.1f}", flush=True)
        ways: dict[str, Callable[[], int]] = {
            "batch, 1 job": partial(batch, folder, out, 1),
            "batch, 2 jobs": partial(batch, folder, out, 2),
            "loop of convert": partial(looped, paths, out),
            "one command a file": partial(commanded, paths, out),
        }
        for what, work in ways.items():
            timed(what, len(paths), work)
            if what == "batch, 2 jobs":
                timed("batch, again", len(paths), work)
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
