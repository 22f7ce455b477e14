"""Benchmark sample files (.beton) against plain files of the same bytes: write, read, shuffle.

Run ``python benchmarks/beton.py``. The variants are timed in turns; medians and ratios are printed.
Both writers sync their files to disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_tiled
from virtual import measure

Ways = dict[str, Callable[[], Any]]


def plainly(path: Path, samples: Any) -> None:
    """Write bytes to a plain file and sync it."""
    path.unlink(missing_ok=True)
    with path.open("wb") as stream:
        stream.write(memoryview(samples).cast("B"))
        stream.flush()
        os.fsync(stream.fileno())


def batches(path: Path, shuffle: Any, **options: Any) -> None:
    """Iterate over all batches of an epoch."""
    for _ in dask_tiled.iter_batches(path, 32, shuffle=shuffle, **options):
        pass


def show(title: str, nbytes: int, seconds: dict[str, float]) -> None:
    """Print the times and their ratios to the first variant."""
    first = next(iter(seconds.values()))
    for name, found in seconds.items():
        print(f"{title:<10}{name:<26}{nbytes / found / 1e9:>8.2f}{first / found:>8.0%}")


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    args = parser.parse_args()
    samples = np.random.default_rng(0).integers(0, 999, (2 * args.mib, 512, 512), dtype="u2")
    lazy = da.from_array(samples, (64, 512, 512), name=False)
    print(f"{'':<10}{'way':<26}{'GB/s':>8}{'':>8}")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        path = folder / "a.beton"
        save = partial(dask_tiled.to_beton, path, overwrite=True, progress=False)
        writing: Ways = {
            "plainly": partial(plainly, folder / "a.raw", samples),
            "to_beton, in memory": partial(save, {"x": samples}),
            "to_beton, dask array": partial(save, {"x": lazy}),
        }
        show("write", samples.nbytes, measure(writing, args.repeats))
        arr = dask_tiled.open_dataset(path)
        some = np.random.default_rng(0).permutation(len(samples))
        for threads in (1, 2):
            scheduler = {"scheduler": "synchronous"} if threads == 1 else {"num_workers": threads}
            with dask.config.set(scheduler):
                reading: Ways = {
                    "plainly, into an array": partial(np.fromfile, path, "u2"),
                    "compute": arr.compute,
                    "compute, any order": arr[some].compute,
                    "batches": partial(batches, path, shuffle=False, prefetch=threads),
                    "batches, pages": partial(batches, path, "pages", prefetch=threads),
                    "batches, any order": partial(batches, path, "all", prefetch=threads),
                }
                show(f"read, {threads}", samples.nbytes, measure(reading, args.repeats))


if __name__ == "__main__":
    main()
