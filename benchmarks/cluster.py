"""How much faster two worker processes are than one: packed pixels, decoded and added up.

Scheduler and workers are started by their command lines. Jobs take turns on one and on two workers;
the ratio is that of the medians.
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
    """Start a command of dask with one thread for pixels, and end it."""
    path = {**os.environ, "PYTHONPATH": str(Path(dask_tiled.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments], env=path, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=2048, help="MiB of pixels")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        frames = np.random.default_rng(0).poisson(5, (128, 256, 256)).astype("u2")
        frames = np.resize(frames, (options.mib * 8, 256, 256))
        path = write_mib(f"{folder}/scan.mib", frames, kind="R64", depth=12)
        address = f"{folder}/scheduler.json"
        scheduler = ["--scheduler-file", address, "--no-dashboard"]
        stack.enter_context(started("scheduler", *scheduler, "--host", "127.0.0.1", "--port", "0"))
        for _ in range(2):
            stack.enter_context(started("worker", *scheduler, "--no-nanny", "--nthreads", "1"))
        client = stack.enter_context(Client(scheduler_file=address))
        client.wait_for_workers(2)
        workers = list(client.scheduler_info()["workers"])
        arr = dask_tiled.open_dataset(path)
        jobs = {
            "sums of frames": arr.sum(axis=(-2, -1)),
            "standard deviation": arr.std(axis=0),
        }
        print(f"{arr.nbytes / 1e9:.2f} GB of pixels in {arr.npartitions} chunks, packed 12 bit")
        for name, lazy in jobs.items():
            times: dict[int, list[float]] = {1: [], 2: []}
            for turn in range(options.rounds + 1):  # the first one loads code and fills caches
                for n, taken in times.items():
                    begun = time.perf_counter()
                    client.compute(lazy, workers=workers[:n], allow_other_workers=False).result()
                    if turn:
                        taken.append(time.perf_counter() - begun)
            one, two = map(statistics.median, times.values())
            print(f"{name}: one worker {one:.2f} s, two {two:.2f} s, ratio {one / two:.2f}")


if __name__ == "__main__":
    main()
