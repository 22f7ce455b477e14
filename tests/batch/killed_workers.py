"""A batch on a cluster whose workers are killed at random; run as a program.

A scheduler and two workers run as processes. After every few conversions, a worker process is
killed, and started again by its nanny. The batch is called until all is done. Prints what was found
wrong, and counts, as JSON.
"""

import csv
import json
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import psutil
import zarr

sys.path.insert(0, str(Path(__file__).parents[1]))

from clusters import cluster, started

import dask_tiled
from dask_tiled.batch import clusters

FOLDER, COUNT, MIB, SEED = Path(sys.argv[1]), *map(int, sys.argv[2:5])
EVERY = int(sys.argv[5])
"""Conversions between kills."""
SHARED = 2
"""Number of files that all workers share, of a quarter of the bytes each."""
MOST_CALLS = 10
SIG = 128, 128
DRAW = np.random.default_rng(SEED)


def write_files():
    """Write the files: some large ones, and many small ones."""
    frames = MIB * (1 << 20) // (2 * SIG[0] * SIG[1])
    sizes = [frames // 4] * SHARED + [frames // 2 // (COUNT - SHARED)] * (COUNT - SHARED)
    (FOLDER / "in").mkdir()
    for k, size in enumerate(sizes):
        pixels = DRAW.poisson(20, (max(1, size), *SIG)).astype("u2")
        np.save(FOLDER / "in" / f"{k:02}.npy", pixels)
    return 2 * frames // 4 * SIG[0] * SIG[1]


def killer(nannies, counts):
    """Return a function of an outcome that kills a worker now and then."""

    def told(row, _):
        is_new = row is not None and row.state != "done already"
        counts["outcomes"] += is_new
        if not is_new or counts["outcomes"] % EVERY:
            return
        with suppress(psutil.Error):
            nanny = nannies[DRAW.integers(len(nannies))]
            for child in psutil.Process(nanny.pid).children():
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()
                    counts["kills"] += 1

    return told


def differences(rows, first_seen):
    """Return what is wrong with targets and report after a call."""
    told = {Path(row.target).name: row for row in rows}
    there = {path.name for path in (FOLDER / "out").glob("*.zarr")}
    complete = {name for name, row in told.items() if row.is_complete}
    wrong = [f"not there: {name}" for name in complete - there]
    with open(FOLDER / "report.csv", encoding="utf8", newline="") as file:
        if [row["state"] for row in csv.DictReader(file)] != [row.state for row in rows]:
            wrong.append("the report differs from the outcomes")
    for name in sorted(complete):
        stamp = (FOLDER / "out" / name / "zarr.json").stat()
        if first_seen.setdefault(name, stamp.st_mtime_ns) != stamp.st_mtime_ns:
            wrong.append(f"made twice: {name}")
    for name in sorted(there):  # whole, also if its row could not tell
        stored = zarr.open_group(FOLDER / "out" / name, mode="r")["data"]
        frames = np.load(FOLDER / "in" / f"{name[:2]}.npy", mmap_mode="r")
        if stored.shape != frames.shape or not np.array_equal(stored[:], frames):
            wrong.append(f"differs: {name}")
    return wrong


def main():
    """Convert, and print counts."""
    counts, states, wrong, seen = Counter(), [], [], {}
    clusters.LEAST_SHARED = min(clusters.LEAST_SHARED, write_files() // 2)
    begun = time.monotonic()
    with ExitStack() as stack:
        client = stack.enter_context(cluster(FOLDER))
        worker = ["worker", "--scheduler-file", str(FOLDER / "scheduler.json"), "--nthreads", "1"]
        worker += ["--memory-limit", "1GB", "--host", "127.0.0.1", "--no-dashboard"]
        nannies = [stack.enter_context(started(FOLDER / name, *worker)) for name in "ab"]
        client.wait_for_workers(2, timeout=300)
        told = killer(nannies, counts)
        while len(states) < MOST_CALLS and DONE not in states:
            rows = dask_tiled.convert_all(
                FOLDER / "in", FOLDER / "out", verify=True, report=FOLDER / "report.csv", told=told
            )
            states.append(dict(Counter(row.state for row in rows)))
            wrong += differences(rows, seen)
            problems = {row.problem for row in rows if row.problem}
            sys.stderr.write(f"{states[-1]} {dict(counts)} {problems or ''}\n")
    left = [str(path) for path in (FOLDER / "out").glob("*.part")]
    seconds = round(time.monotonic() - begun)
    told = {"calls": states, "wrong": wrong, "left": left, "seconds": seconds, **counts}
    sys.stdout.write(json.dumps({"killed_workers": told}) + "\n")


DONE = {"done already": COUNT}

if __name__ == "__main__":
    main()
