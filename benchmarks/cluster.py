"""Speedup of two single-threaded worker processes over one, for a job that decodes pixels.

A cluster of one worker and one of two workers, started from their command lines, run the same jobs
in turns; the speedup is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from distributed import Client

import dask_tiled
from dask_tiled.testing import write_mib


@contextmanager
def started(*arguments: str) -> Iterator[None]:
    """Run a dask command in the background and terminate it at exit."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    path = {"PYTHONPATH": str(Path(dask_tiled.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments],
        env=os.environ | one_thread | path,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # the Linux scheduler shares cores among sessions first
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def cluster(folder: str, workers: int) -> Iterator[Client]:
    """Start a cluster and yield its client."""
    address = f"{folder}/{workers}.json"
    where = ["--scheduler-file", address, "--no-dashboard", "--host", "127.0.0.1"]
    with ExitStack() as stack:
        stack.enter_context(started("scheduler", *where, "--port", "0"))
        for _ in range(workers):
            stack.enter_context(started("worker", *where, "--no-nanny", "--nthreads", "1"))
        client = stack.enter_context(Client(scheduler_file=address, set_as_default=False))
        client.wait_for_workers(workers)
        yield client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=2048, help="MiB of pixels")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        frames = np.random.default_rng(0).poisson(5, (128, 256, 256)).astype("u2")
        frames = np.resize(frames, (options.mib * 8, 256, 256))
        path = write_mib(f"{folder}/scan.mib", frames, kind="R64", depth=12)
        clients = {n: stack.enter_context(cluster(folder, n)) for n in (1, 2)}
        arr = dask_tiled.open_dataset(path, chunks=(256, -1, -1))
        dark = np.random.default_rng(1).random(arr.shape[1:], np.float32)
        corrections = dask_tiled.Corrections(dark=dark, gain=1 + dark)
        corrected = dask_tiled.open_dataset(path, chunks=arr.chunks, corrections=corrections)
        jobs = {
            "sums of packed frames": arr.sum(axis=(-2, -1)),
            "their standard deviation": arr.std(axis=0),
            "sums of corrected frames": corrected.sum(axis=(-2, -1)),
        }
        print(f"{arr.nbytes / 1e9:.2f} GB of pixels in {arr.npartitions} chunks, packed 12 bit")
        for name, lazy in jobs.items():
            times: dict[int, list[float]] = {1: [], 2: []}
            for turn in range(options.rounds + 1):  # the first round imports code and fills caches
                for n, taken in times.items():
                    begun = time.perf_counter()
                    clients[n].compute(lazy).result()
                    if turn:
                        taken.append(time.perf_counter() - begun)
            one, two = map(statistics.median, times.values())
            print(f"{name}: one worker {one:.2f} s, two {two:.2f} s, ratio {one / two:.2f}")


if __name__ == "__main__":
    main()
