"""Memory of cluster workers during exports of any kind: 4 GiB through workers of 400 MB.

Each worker first exports a small part, as modules and kernels take memory once. Then its memory is
sampled: it may not grow with what has been written.
Prints a line for each kind, and exits with 1 if a worker exceeds a bound:

    python tests/export/worker_memory.py [--gib 4] [--only plain pyramid]
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import dask
import numpy as np
import psutil
import zarr
from distributed import Client, LocalCluster

import dask_tiled

SIG, MIB = (256, 256), 1 << 20
LIMIT = 400_000_000
MOST = 96 * MIB
"""Bound of the peak above the start: buffers of a task."""
FLAT = 24 * MIB
"""Bound of the growth after a fifth of the time."""


def computed(arr):
    """Return an array that dask computes."""
    return arr.map_blocks(np.positive, dtype=arr.dtype, meta=np.empty((0, 0, 0), arr.dtype))


KINDS = {
    "plain": dask_tiled.to_zarr,
    "pyramid": lambda arr, out: dask_tiled.to_zarr(arr, out, pyramid=2),
    "results": lambda arr, out: dask_tiled.to_zarr(
        arr, out, with_results={"mean": arr.mean(0), "sums": arr.sum((1, 2))}
    ),
    "columns": lambda arr, out: dask_tiled.to_zarr(arr, out, chunks=(len(arr), 8, 8)),
    "shards": lambda arr, out: dask_tiled.to_zarr(arr, out, chunks=(16, *SIG), shards=(256, *SIG)),
    "store": lambda arr, out: dask_tiled.to_zarr(
        arr, zarr.storage.WrapperStore(zarr.storage.LocalStore(out))
    ),
    "computed": lambda arr, out: dask_tiled.to_zarr(computed(arr[:, :, :]), out),
    "follow": lambda arr, out: dask_tiled.to_zarr(
        dask_tiled.open_dataset(arr.description.files[0].path, **RAW, follow=True),
        out,
        follow=True,
        rest=0.1,
    ),
    "verify": lambda arr, out: (
        dask_tiled.to_zarr(arr, out),
        dask_tiled.verify_zarr(out, arr),
    ),
    "convert": lambda arr, out: dask_tiled.convert(arr, out.with_suffix(".npy"), verify=True),
    "beton": lambda arr, out: dask_tiled.to_beton(out.with_suffix(".beton"), {"x": arr}),
}
RAW = {"format": "raw", "dtype": "u2", "sig_shape": SIG}


class Sampling:
    """Samples the resident memory of processes until it is closed."""

    def __init__(self, pids):
        self.processes = [psutil.Process(pid) for pid in pids]
        self.seen = {pid: [] for pid in pids}
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def sample(self):
        """Sample every tenth of a second."""
        while not self.ended.wait(0.1):
            for process in self.processes:
                with suppress(psutil.NoSuchProcess):
                    self.seen[process.pid].append(process.memory_info().rss)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def resident(pids):
    """Return the resident memory of processes in bytes."""
    return {pid: psutil.Process(pid).memory_info().rss for pid in pids}


def measure(name, client, path, folder):
    """Export once, and return whether memory stayed within the bounds."""
    arr = dask_tiled.open_dataset(path, **RAW)
    out = Path(folder, "out.zarr")
    workers = client.run(os.getpid)
    pids = [*workers.values()]
    empty = resident(pids)
    for address, pid in workers.items():  # each imports modules and compiles kernels before
        with dask.annotate(workers=[address]):
            KINDS[name](arr[:256], Path(folder, f"{pid}.zarr"))
    start = resident(pids)
    begun = time.monotonic()
    with Sampling(pids) as sampling:
        KINDS[name](arr, out)
    seconds = time.monotonic() - begun
    is_alive = pids == [*client.run(os.getpid).values()]
    above = {pid: np.subtract(seen, start[pid]) for pid, seen in sampling.seen.items()}
    peak = max(map(max, above.values()))
    growth = max(max(x[len(x) // 5 :]) - max(x[: len(x) // 5 + 1]) for x in above.values())
    tenths = [
        ", ".join(f"{max(part) / MIB:.0f}" for part in np.array_split(x, 10) if len(part))
        for x in above.values()
    ]
    before = max((start[pid] - empty[pid]) / MIB for pid in pids)
    sys.stdout.write(
        f"{name:9} peak {peak / MIB:6.1f} MiB above the start, {growth / MIB:6.1f} MiB more after "
        f"a fifth of {seconds:.0f} s; tenths {'; '.join(tenths)}; start at "
        f"{max(start.values()) / MIB:.0f} MiB, {before:.0f} of them by a first export\n"
    )
    sys.stdout.flush()
    if not is_alive:
        sys.stdout.write(f"{name:9} exceeded the memory of workers, which were started again\n")
    return is_alive and peak <= MOST and growth <= FLAT


def main():
    """Measure all kinds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--only", nargs="*", default=list(KINDS), choices=list(KINDS))
    given = parser.parse_args()
    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": LIMIT}
    good, frames = True, np.random.default_rng(0).poisson(20, (256, *SIG)).astype("u2").tobytes()
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "scan.raw")
            with path.open("wb") as file:
                file.writelines([frames] * round(given.gib * 1024 * MIB / len(frames)))
            with LocalCluster(**options, dashboard_address=":0") as cluster, Client(cluster) as c:
                good &= measure(name, c, path, folder)
    sys.exit(not good)


if __name__ == "__main__":
    main()
