"""Compute in child processes while, or after, their parent computes; run by test_forks.py.

``python tests/forked_work.py FOLDER --count 200`` prints the cases, and fails if one does.
Children that are not forked import everything anew, which takes most of the time.
"""

import argparse
import faulthandler
import multiprocessing
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import dask_tiled

METHODS = [
    x for x in ("fork", "forkserver", "spawn") if x in multiprocessing.get_all_start_methods()
]
SECONDS = 100
"""Time for the children of a case, which may compile. A case of twice that ends the program."""


class Work:
    """Computations of files in a folder, with their expected results."""

    def __init__(self, folder):
        rng = np.random.default_rng(0)
        pixels = [rng.integers(0, 999, (n, 16, 32), dtype="u2") for n in (40, 25, 60)]
        self.paths = [folder / f"{k}.npy" for k in range(len(pixels))]
        for path, values in zip(self.paths, pixels, strict=True):
            np.save(path, values)
        self.arrays = [dask_tiled.open_dataset(path, chunks=(8, 16, 32)) for path in self.paths]
        self.joined, self.pixels = da.concatenate(self.arrays), np.concatenate(pixels)

    def check(self, kind, k):
        """Compare one computation with NumPy's."""
        k %= len(self.arrays[0])
        if kind == "plain":
            assert (da.ones((50, 50), chunks=10) * k).sum().compute() == 2500 * k
        elif kind == "frame":
            assert (self.arrays[0][k].compute() == self.pixels[k]).all()
        elif kind == "frames":
            some = [k, 90, 3]
            assert (self.joined[some].compute() == self.pixels[some]).all()
        elif kind == "sum":
            assert (self.joined.sum(axis=(1, 2)).compute() == self.pixels.sum(axis=(1, 2))).all()
        elif kind == "function":
            found = self.joined.map_blocks(lambda block: block[:, ::-1] + 1).compute()
            assert (found == self.pixels[:, ::-1] + 1).all()
        elif kind == "open":
            arr = dask_tiled.open_dataset(self.paths[0], chunks=(5, 16, 32))
            assert (arr.max(axis=0).compute() == self.pixels[:40].max(axis=0)).all()
        else:
            batches = dask_tiled.iter_batches(self.arrays, 16, shuffle="all", seed=k)
            total = sum(batch["frame"].sum() for batch in batches)
            assert total == self.pixels.sum()


KINDS = ("plain", "frame", "frames", "sum", "function", "open", "batches")


def work_in_child(work, kinds, seed):
    """Compute in the main thread of a child, and in another one."""
    for kind in kinds:
        work.check(kind, seed)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work.check, kinds[0], seed).result()


def work_until(stop, work, seed):
    """Compute until the event is set."""
    rng = np.random.default_rng(seed)
    while not stop.is_set():
        work.check(rng.choice(KINDS), int(rng.integers(1000)))


def run_case(work, seed):
    """Start two children with random work before and meanwhile; return how, and what went wrong."""
    rng = np.random.default_rng(seed)
    method = rng.choice(METHODS)
    for k in range(rng.integers(3)):
        work.check(rng.choice(KINDS), k)
    stop = threading.Event()
    threads = [
        threading.Thread(target=work_until, args=(stop, work, seed + k))
        for k in range(rng.integers(3))
    ]
    for thread in threads:
        thread.start()
    time.sleep(rng.random() / 20)
    context = multiprocessing.get_context(method)
    with ThreadPoolExecutor(2) as pool, dask.config.set(pool=pool if rng.integers(2) else None):
        children = [
            context.Process(target=work_in_child, args=(work, rng.choice(KINDS, 3), seed + k))
            for k in range(2)
        ]
        for child in children:
            child.start()
        stop.set()
        for thread in threads:
            thread.join()
    end = time.monotonic() + SECONDS
    codes = []
    for child in children:
        child.join(max(0, end - time.monotonic()))
        codes.append("hangs" if child.exitcode is None else child.exitcode)
        child.kill()
        child.join()
    return f"{method}, {len(threads)} threads", codes if any(codes) else None


def main():
    """Run some cases; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    work = Work(asked.folder)
    failed = 0
    for number, seed in enumerate(range(asked.seed, asked.seed + asked.count), 1):
        begun = time.monotonic()
        faulthandler.dump_traceback_later(2 * SECONDS, exit=True)
        how, problem = run_case(work, seed)
        faulthandler.cancel_dump_traceback_later()
        failed += problem is not None
        told = f"FAILED: {problem}" if problem else f"{time.monotonic() - begun:.1f} s"
        print(f"{number}/{asked.count}: seed {seed}, {how}: {told}", flush=True)  # noqa: T201 - a script
    print(f"{asked.count} cases done, {failed} failed")  # noqa: T201 - as above
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
