"""Peak memory of computing with 100 volumes that together do not fit into memory.

Run ``python benchmarks/volumes.py``. Every case runs in its own processes over the same npy files,
one per volume, after a warm-up with tiny volumes. Peaks are in multiples of a volume:

- traced: counted by tracemalloc: all memory that numpy and the buffer pools of dask-tiled allocate;
- resident: the largest part of the resident set, relative to the start, that is not shared with the
  page cache, sampled in a second process. The seconds are those of that process.

``compute`` returns the result in memory, which takes one volume, and dask assembles it from chunks,
which takes another. ``store`` writes it to an array on disk.
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
from typing import Any

SHAPE = (64, 256, 256)
DTYPE = "float32"
VOLUME = 4 * 64 * 256 * 256
INTERVAL = 0.002  # seconds between samples
TINY = (16, 4, 4)
CASES = (
    ("sum(volumes)", "dask-tiled"),
    ("open_volumes().sum(0)", "dask-tiled"),
    ("stack.sum(0)", "dask"),
    ("sum(volumes) / n", "dask-tiled"),
    ("open_volumes().mean(0)", "dask-tiled"),
    ("stack.mean(0)", "dask"),
    ("a + b - c * d + e / f", "dask-tiled"),
    ("a + b - c * d + e / f", "dask"),
)
LIMITS = {"compute": 2.1, "store": 1.7}


def result_of(job: str, library: str, paths: list[str], shape: tuple[int, ...]) -> Any:
    """Return the lazy result of a case."""
    import dask.array as da
    import numpy as np
    from dask.delayed import delayed

    import dask_tiled

    part = (shape[0] // 16, -1, -1)
    if job.startswith("open_volumes"):
        stack = dask_tiled.open_volumes(paths, chunks=(-1, *part))
    elif library == "dask-tiled":
        volumes = [dask_tiled.open_dataset(path, chunks=part) for path in paths]
    else:
        load = delayed(np.load)
        volumes = [da.from_delayed(load(path, mmap_mode="r"), shape, DTYPE) for path in paths]
    if job.startswith("a + "):
        return six_terms(*volumes[:6])
    if job.startswith("sum"):
        return sum(volumes) / len(volumes) if job.endswith("/ n") else sum(volumes)
    if job.startswith("stack"):
        stack = da.stack(volumes)
    return stack.mean(0) if job.endswith("mean(0)") else stack.sum(0)


def six_terms(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
    """Combine six volumes."""
    return a + b - c * d + e / f


def child(folder: str, job: str, library: str, how: str, workers: int, measure: str) -> None:
    """Run one case and print its memory."""
    import threading
    import time
    import tracemalloc

    import dask
    import dask.array as da
    import numpy as np
    import psutil

    def own() -> int:
        memory = process.memory_info()
        return memory.rss - getattr(memory, "shared", 0)

    def watch() -> None:
        while not done.wait(INTERVAL):
            samples.append(own())

    def run(kind: str, shape: tuple[int, ...]) -> None:
        found = result_of(job, library, sorted(map(str, Path(folder, kind).glob("*.npy"))), shape)
        if how == "compute":
            found.compute()
            return
        target = np.lib.format.open_memmap(f"{folder}/out.npy", "w+", DTYPE, shape)
        da.store(found, target, lock=False)

    dask.config.set(scheduler="threads", num_workers=workers)
    run("tiny", TINY)
    if measure == "traced":
        tracemalloc.start()
        run("large", SHAPE)
        print(json.dumps([tracemalloc.get_traced_memory()[1] / VOLUME]))
        return
    process, done = psutil.Process(), threading.Event()
    before = own()
    samples = [before]
    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    run("large", SHAPE)
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    print(json.dumps([(max(samples) - before) / VOLUME, seconds]))


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--volumes", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        folder, job, library, how, workers, measure = args.child
        child(folder, job, library, how, int(workers), measure)
        return
    print(f"{args.volumes} volumes of {VOLUME >> 20} MiB, {os.cpu_count()} cores; peaks in volumes")
    head = f"{'job':<24}{'library':<12}{'':<9}{'workers':>7}"
    print(head + f"{'traced':>9}{'resident':>10}{'asked':>8}{'seconds':>9}")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "tiny"), args.volumes, TINY)
        write(Path(folder, "large"), args.volumes, SHAPE)
        for how, limit in LIMITS.items():
            for job, library in CASES:
                for workers in args.workers:
                    case = [folder, job, library, how, str(workers)]
                    (traced,) = measured(*case, "traced")
                    resident, seconds = measured(*case, "resident")
                    asked = f"{limit:g}" if library == "dask-tiled" else ""
                    text = f"{job:<24}{library:<12}{how:<9}{workers:>7}{traced:>9.2f}"
                    print(f"{text}{resident:>10.2f}{asked:>8}{seconds:>9.2f}", flush=True)


def measured(*case: str) -> list[float]:
    """Run a case in a child process and return its measurements."""
    command = [sys.executable, __file__, "--child", *case]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return [float(number) for number in json.loads(done.stdout)]


def write(folder: Path, volumes: int, shape: tuple[int, ...]) -> None:
    """Write the files."""
    import numpy as np

    folder.mkdir()
    pixels = np.random.default_rng(0).random(shape).astype(DTYPE)
    for number in range(volumes):
        np.save(folder / f"volume{number:03}.npy", pixels + number)


if __name__ == "__main__":
    main()
