"""Time of the first result in a new process: open a file and sum every frame.

Run ``python benchmarks/first_result.py``. numba compiles kernels that are not in its cache: a
process with an empty cache is compared with one with a full cache. Import time is shown separately.
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

CHILD = """
import json, sys, time
start = time.perf_counter()
import dask.array
dask = time.perf_counter()
import dask_tiled
imported = time.perf_counter()
arr = dask_tiled.open_dataset(sys.argv[1])
opened = time.perf_counter()
arr.sum(axis=(-2, -1)).compute()
done = time.perf_counter()
print(json.dumps([dask - start, imported - dask, opened - imported, done - opened]))
"""
STEPS = ("dask.array", "dask_tiled", "open", "result")


def run(path: Path, cache: Path) -> list[float]:
    """Return the seconds of each step in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    """Run the benchmark and print the table."""
    from dask_tiled.testing import write_mib

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    frames = np.zeros((8, 8, 256, 256), "u2")
    print(f"seconds, medians of {args.repeats}; beyond imports: open and result")
    heads = "".join(f"{step:>12}" for step in STEPS) + f"{'beyond imports':>16}"
    print(f"{'file':<20}{'cache':<8}{heads}")
    for name, (kind, depth) in KINDS.items():
        times: dict[str, list[list[float]]] = {"empty": [], "warm": []}
        with tempfile.TemporaryDirectory() as folder:
            path = write_mib(Path(folder) / "scan.mib", frames, kind=kind, depth=depth)
            for k in range(args.repeats):
                cache = Path(folder) / f"cache{k}"
                times["empty"].append(run(path, cache))
                times["warm"].append(run(path, cache))
        for state, rows in times.items():
            medians = [statistics.median(column) for column in zip(*rows, strict=True)]
            beyond = statistics.median(row[2] + row[3] for row in rows)
            cells = "".join(f"{value:12.3f}" for value in medians)
            print(f"{name:<20}{state:<8}{cells}{beyond:>16.3f}")


if __name__ == "__main__":
    main()
