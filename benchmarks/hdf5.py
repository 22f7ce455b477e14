"""HDF5 files beside raw files and h5py: times divided by theirs, on the same pixels.

Run ``python benchmarks/hdf5.py``. Below 1, this package is faster. The jobs, on a detector's counts
on two threads, from the page cache:

- opening: for the first time, which starts the process that looks at the file, and again; and h5py,
  which opens it and lists the datasets and one index of chunks;
- contiguous: the dataset, and a raw file of the same bytes;
- deflated, in chunks of a frame and in chunks on all axes, and bitshuffled with LZ4 as detectors
  write it: the dataset, and dask over h5py, in the same chunks of dask, with dask's lock or
  without, whichever is faster.

All take turns, so that slow moments of a busy machine hit all alike.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import h5py
import hdf5plugin
import numpy as np

import dask_tiled

SUMS = {"frame sums": (2, 3), "sum over the scan": (0, 1)}
DEFLATED = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
FRAME = (1, 1, 256, 256)
CHUNKED = {
    "frame": {"chunks": FRAME} | DEFLATED,
    "all axes": {"chunks": (32, 32, 32, 32)} | DEFLATED,
    "bitshuffle": {"chunks": FRAME} | dict(hdf5plugin.Bitshuffle()),
}

Run = Callable[[], Any]


def write(folder: Path, mib: int) -> tuple[int, ...]:
    """Write the same counts in every way."""
    rows = max(32, mib // 4)
    shape = (rows, 32, 256, 256)
    rng = np.random.default_rng(0)
    block = rng.poisson(2, (32, 32, 256, 256)).astype("u2")
    with (
        h5py.File(folder / "counts.h5", "w") as file,
        open(folder / "counts.raw", "wb") as raw,
    ):
        plain = file.create_dataset("contiguous", shape, "u2")
        sets = [file.create_dataset(name, shape, "u2", **how) for name, how in CHUNKED.items()]
        for first in range(0, rows, 32):
            part = np.roll(block, first, axis=-1)[: rows - first]
            raw.write(part.tobytes())
            for dataset in (plain, *sets):
                dataset[first : first + len(part)] = part
    return shape


def turns(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    """Time runs in turns, and give the median of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if k:  # the first is for the cache
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def compare(folder: Path, shape: tuple[int, ...], repeats: int) -> None:
    """Print a line for each job."""
    path = folder / "counts.h5"
    raw = dask_tiled.open_dataset(
        folder / "counts.raw", "raw", dtype="u2", nav_shape=shape[:2], sig_shape=shape[2:]
    )
    with h5py.File(path, "r", locking=False) as file:
        for name in ("contiguous", *CHUNKED):
            arr = dask_tiled.open_dataset(path, dataset=name)
            others = {"raw": raw}
            if name != "contiguous":
                others = {
                    f"h5py, lock={lock}": da.from_array(file[name], chunks=arr.chunks, lock=lock)
                    for lock in (False, True)
                }
            for job, axes in SUMS.items():
                runs = {k: a.sum(axis=axes).compute for k, a in ({"own": arr} | others).items()}
                found = turns(runs, repeats)
                own = found.pop("own")
                other = min(found, key=found.__getitem__)
                ratio = own / found[other]
                print(f"{name:<12}{job:<20}{ratio:>6.2f} of {other:<18}{1e3 * own:>8.0f} ms")


def compare_opening(folder: Path, shape: tuple[int, ...], repeats: int) -> None:
    """Print a line for the first time, and one for the next ones."""
    path = folder / "counts.h5"

    def listed() -> None:
        with h5py.File(path, "r", locking=False) as file:
            file.visititems(lambda _, item: (dict(item.attrs), item.shape, item.dtype))
            chunks: list[Any] = []
            file["frame"].id.chunk_iter(chunks.append)

    # Imports all that has to be.
    dask_tiled.describe(folder / "counts.raw", "raw", dtype="u2", sig_shape=shape[2:])
    start = time.perf_counter()
    dask_tiled.describe(path, dataset="frame")
    print(
        f"{'opening':<12}{'for the first time':<38}{1e3 * (time.perf_counter() - start):>8.0f} ms"
    )
    runs = {"own": lambda: dask_tiled.describe(path, dataset="frame"), "h5py, listing": listed}
    found = turns(runs, 20 * repeats)
    ratio, own = found["own"] / found["h5py, listing"], 1e3 * found["own"]
    print(f"{'opening':<12}{'again':<20}{ratio:>6.2f} of {'h5py, listing':<18}{own:>8.1f} ms")


def main() -> None:
    """Write, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256, help="size of the pixels")
    parser.add_argument("--dir", type=Path, help="where the files are written, for a while")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hdf5-", dir=args.dir) as folder:
        shape = write(Path(folder), args.mib)
        compare_opening(Path(folder), shape, args.repeats)
        with dask.config.set(scheduler="threads", num_workers=2):
            compare(Path(folder), shape, args.repeats)


if __name__ == "__main__":
    main()
