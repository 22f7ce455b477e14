"""Peak memory of reductions over a file larger than the memory they may use.

Run ``python benchmarks/memory.py``. Each case runs in its own process over a sparse raw file.
Memory is measured relative to the process after its imports, in MiB:

- peak: the largest resident set size reported by the kernel; it includes mapped pages of the file,
  which the kernel reclaims when needed;
- own: the largest sampled part of it that is not shared with the page cache.
"""

# No large module is imported here: the peak of a child process starts at that of its parent.
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SIG = (256, 256)
MIB = 1 << 20
INTERVAL = 0.002  # seconds between samples
JOBS = ("frame sums", "sum over the scan", "reduce_tiles")


def child(path: str, job: str, chunk_mib: int, io: str) -> None:
    """Run one case and print its memory."""
    import resource
    import threading
    import time

    import dask
    import numpy as np
    import psutil

    import dask_tiled.kernels.decoding

    unit = 1 if sys.platform == "darwin" else 1024

    def own() -> int:
        memory = process.memory_info()
        return memory.rss - getattr(memory, "shared", 0)

    def watch() -> None:
        while not done.wait(INTERVAL):
            samples.append(own())

    process, done = psutil.Process(), threading.Event()
    before, before_own = process.memory_info().rss, own()
    samples = [before_own]
    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    with dask.config.set({"array.chunk-size": f"{chunk_mib}MiB"}):
        arr = dask_tiled.open_dataset(path, "raw", dtype="uint16", sig_shape=SIG, io=io)
    if job == "reduce_tiles":
        found = dask_tiled.reduce_tiles(
            arr, init=np.zeros(SIG), step=lambda state, tile, _: state + tile.sum(0), combine=np.add
        )
    else:
        found = arr.sum(axis=(-2, -1) if job == "frame sums" else 0)
    found.compute()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps([(peak - before) / MIB, (max(samples) - before_own) / MIB, seconds]))


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=4, help="size of the file")
    parser.add_argument("--chunks", type=int, nargs="+", default=[4, 64, 1024], help="in MiB")
    parser.add_argument("--io", nargs="+", default=["auto", "buffered"], help="backends")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        path, job, chunk_mib, io = args.child
        child(path, job, int(chunk_mib), io)
        return
    frames = int(args.gib * 1024 * MIB) // (2 * SIG[0] * SIG[1])
    print(f"{args.gib:g} GiB of 16-bit frames, {os.cpu_count()} cores; MiB above the imports")
    print(f"{'job':<20}{'io':<10}{'chunk':>8}{'peak':>8}{'own':>8}{'seconds':>9}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sparse.raw"
        with path.open("wb") as file:
            file.truncate(frames * 2 * SIG[0] * SIG[1])
        for job in JOBS:
            for io in args.io:
                for chunk in args.chunks:
                    case = [str(path), job, str(chunk), io]
                    command = [sys.executable, __file__, "--child", *case]
                    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                    peak, own, seconds = json.loads(done.stdout)
                    print(f"{job:<20}{io:<10}{chunk:>8}{peak:>8.0f}{own:>8.0f}{seconds:>9.2f}")


if __name__ == "__main__":
    main()
