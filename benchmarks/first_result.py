"""Time of each first result in a new process, with an empty and with a full cache.

Run ``python benchmarks/first_result.py [--jobs sum export]``. numba compiles kernels that are not
in its cache. Import time is shown separately. ``shared`` are two processes that start at the same
time with one empty cache. With ``--rst``, the seconds beyond imports are written to the
documentation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

KINDS = {"Merlin U16": ("U16", None), "Merlin raw 12 bit": ("R64", 12)}
JOBS = {
    "sum": "arr.sum(axis=(-2, -1)).compute()",
    "mask": "dask_tiled.tiles.apply_masks(arr, mask).compute()",
    "frame": "arr[3, 4].compute()",
    "export": "dask_tiled.to_zarr(arr, sys.argv[2])",
    "center of mass": "dask_tiled.tiles.center_of_mass(arr).compute()",
}
CHILD = """
import json, sys, time
import numpy as np
mask = np.hypot(*np.indices((256, 256)) - 127.5) < 60
start = time.perf_counter()
import dask.array
dask = time.perf_counter()
import dask_tiled
dask_tiled.open_dataset  # imports the package
imported = time.perf_counter()
arr = dask_tiled.open_dataset(sys.argv[1])
opened = time.perf_counter()
{job}
done = time.perf_counter()
cpu = time.process_time()
print(json.dumps([dask - start, imported - dask, opened - imported, done - opened, cpu]))
"""
STATES = ("empty", "full", "shared")
"""States of the cache, in the order of :func:`measured`."""
STEPS = ("dask.array", "dask_tiled", "open", "result", "all, CPU")


def start(job: str, path: Path, cache: Path, target: Path) -> subprocess.Popen[bytes]:
    """Start a new process that runs a job."""
    command = [sys.executable, "-c", CHILD.format(job=JOBS[job]), str(path), str(target)]
    settings = {"NUMBA_CACHE_DIR": str(cache), "DASK_DASK_TILED__REST_SECONDS": "0"}
    return subprocess.Popen(
        command, env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def seconds(process: subprocess.Popen[bytes]) -> list[float]:
    """Return the seconds of each step of a job."""
    output, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return json.loads(output)


def measured(job: str, path: Path, repeats: int) -> dict[str, list[list[float]]]:
    """Run a job several times; return the seconds of each run, by state of the cache."""
    times: dict[str, list[list[float]]] = {state: [] for state in STATES}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for state in ("empty", "full"):
                times[state].append(seconds(start(job, path, folder / "one", folder / state)))
            both = [start(job, path, folder / "other", folder / str(k)) for k in range(2)]
            times["shared"] += [seconds(process) for process in both]
    return times


def main() -> None:
    """Run the benchmark and print the table."""
    from comparison.facts import facts
    from comparison.table import write_table
    from dask_tiled.testing import write_mib

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rst", type=Path, help="write the table for the documentation")
    args = parser.parse_args()
    body = []
    frames = np.zeros((8, 8, 256, 256), "u2")
    print(f"seconds, medians of {args.repeats}; beyond imports: open and result")
    heads = "".join(f"{step:>12}" for step in STEPS) + f"{'beyond imports':>16}"
    print(f"{'file':<20}{'job':<16}{'cache':<10}{heads}")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.kinds:
            kind, depth = KINDS[name]
            path = write_mib(Path(folder) / "scan.mib", frames, kind=kind, depth=depth)
            for job in args.jobs:
                body.append([f"{name}, {job}"])
                for state, rows in measured(job, path, args.repeats).items():
                    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
                    beyond = statistics.median(row[2] + row[3] for row in rows)
                    cells = "".join(f"{value:12.3f}" for value in medians)
                    print(f"{name:<20}{job:<16}{state:<10}{cells}{beyond:>16.3f}", flush=True)
                    body[-1].append(f"{beyond:.2f}")
    if args.rst:
        head, about = ["first result", *STATES], facts(frames.nbytes / 2**20, args.repeats)
        write_table(args.rst, "first_result.py --rst", head, body, about)


if __name__ == "__main__":
    main()
