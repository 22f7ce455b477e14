"""Compare virtual zarr (a store, and references) with ``arr.compute()``.

Run ``python benchmarks/virtual.py``. A whole Merlin scan is read from the page cache. The variants
are timed in turns; medians and their ratios are printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import zarr

import dask_tiled
from dask_tiled.testing import write_mib

KINDS = {"Merlin U16": ("U16", None), "Merlin raw 12 bit": ("R64", 12)}


def by_references(arr: Any) -> Any:
    """Open an array from references with fsspec and zarr, without this package."""
    refs = dask_tiled.to_references(arr)
    system = fsspec.filesystem("reference", fo=refs, remote_protocol="file", asynchronous=True)
    return zarr.open_array(zarr.storage.FsspecStore(system, read_only=True), path="data", mode="r")


def measure(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each variant, after a warm-up round."""
    seconds = defaultdict(list)
    for _ in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256)
    args = parser.parse_args()
    frames = np.random.default_rng(0).poisson(3, (8 * args.mib, 256, 256)).astype("u2")
    scan = frames.reshape(-1, 64, 256, 256)
    print(f"{'file':<20}{'way':<16}{'GB/s':>8}{'of compute':>12}")
    for title, (kind, depth) in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = write_mib(Path(folder) / "scan.mib", scan, kind=kind, depth=depth)
            arr = dask_tiled.open_dataset(path)
            array, refs = dask_tiled.as_zarr(arr), by_references(arr)
            ways: dict[str, Callable[[], Any]] = {
                "compute": arr.compute,
                "as_zarr": lambda array=array: array[:],  # type: ignore[misc]
                "references": lambda refs=refs: refs[:],  # type: ignore[misc]
            }
            found = measure(ways, args.repeats)
        for name, seconds in found.items():
            speed, ratio = arr.nbytes / seconds / 1e9, found["compute"] / seconds
            print(f"{title:<20}{name:<16}{speed:>8.2f}{ratio:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
