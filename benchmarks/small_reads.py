"""Compare small reads of an opened scan, as by a viewer, with dask over a memory map.

Run ``python benchmarks/small_reads.py``. Both read one Merlin file of big-endian pixels from the
page cache, in the same chunks, in turns; times in milliseconds are from the opened array to the
result. The map stays open, and its pixels are converted to native byte order. The last line
compares one pixel of all frames of a sparse raw file with the sum of all pixels. With ``--rst``,
the table is written to the documentation.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_tiled
from chunks import SIG, mapped
from comparison.expressions import source
from comparison.facts import facts
from comparison.table import write_table
from dask_tiled.testing import write_mib

READS: dict[str, Callable[[Any], Any]] = {
    "frame": lambda a: a[7, 9],
    "two frames": lambda a: a[7, 9:11],
    "row": lambda a: a[7],
    "crop": lambda a: a[7, 9, 40:80, 60:120],
    "pixel": lambda a: a[7, 9, 100, 100],
    "pixel of 4": lambda a: a[6:8, 9:11, 100, 100],
    "pixel of a row": lambda a: a[7, :, 100, 100],
    "pixel of all": lambda a: a[..., 100, 100],
    "sums of a row": lambda a: a[7].sum((-2, -1)),
    "sum of a frame": lambda a: a[7, 9].sum(),
}
SCHEDULERS = "synchronous", "threads"


def native(read: Callable[[Any], Any], plain: Any) -> Any:
    """Wrap a read so that its result has native byte order."""
    found = read(plain)
    return found.astype(found.dtype.newbyteorder("="))


def medians(makers: Mapping[str, Callable[[], Any]], repeats: int) -> list[float]:
    """Time reads in turns; return median milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(repeats + 1):
        for name, make in makers.items():
            begin = time.perf_counter()
            make().compute()
            times[name].append(time.perf_counter() - begin)
    return [1e3 * statistics.median(some[1:]) for some in times.values()]


def main() -> None:
    """Run the benchmark and print a line for each read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=128, help="size of the Merlin file")
    parser.add_argument("--gib", type=float, default=4, help="size of the raw file")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--rst", type=Path, help="write the table for the documentation")
    args = parser.parse_args()
    nav = (max(12, args.mib // 8), 64)  # 8 MiB a row
    frames = np.random.default_rng(0).integers(0, 1 << 12, (*nav, *SIG), "u2")
    rows = {name: [f"``{source(read)}``"] for name, read in READS.items()}
    print(f"{'scheduler':<13}{'read':<16}{'ms':>8}{'memmap':>9}{'ratio':>8}")
    with (
        tempfile.TemporaryDirectory(prefix="small-reads-") as folder,
        dask.config.set({"dask-tiled.rest-seconds": 0, "num_workers": 2}),
    ):
        path = write_mib(Path(folder) / "scan.mib", frames)
        del frames
        arr = dask_tiled.open_dataset(path, nav_shape=nav)
        plain = da.from_array(mapped(path, arr), chunks=arr.chunks, name="map")
        for scheduler in SCHEDULERS:
            with dask.config.set(scheduler=scheduler):
                for name, read in READS.items():
                    makers = {"ours": partial(read, arr), "theirs": partial(native, read, plain)}
                    np.testing.assert_array_equal(*(make().compute() for make in makers.values()))
                    ours, other = medians(makers, args.repeats)
                    print(f"{scheduler:<13}{name:<16}{ours:>8.2f}{other:>9.2f}{other / ours:>8.2f}")
                    rows[name].append(f"**{ours:.2f}** {other / ours:.1f}x")
        raw = Path(folder) / "zeros.raw"
        side = int((args.gib * 2**30 / 2 / SIG[0] / SIG[1]) ** 0.5)
        with raw.open("wb") as file:
            file.truncate(side * side * 2 * SIG[0] * SIG[1])
        arr = dask_tiled.open_dataset(raw, "raw", dtype="u2", nav_shape=(side, side), sig_shape=SIG)
        with dask.config.set(scheduler="threads"):
            reads = {"pixel": lambda: arr[..., 100, 100], "pass": arr.sum}
            pixel, whole = medians(reads, 5)
        said = f"A pixel of all frames of {args.gib:g} GiB: {pixel:.1f} ms; the sum of all pixels: "
        said += f"{whole:.0f} ms; {pixel / whole:.1%}."
        print(said)
    if args.rst:
        head, about = ["read", *SCHEDULERS], facts(args.mib, args.repeats)
        write_table(args.rst, "small_reads.py --rst", head, rows.values(), about, said)


if __name__ == "__main__":
    main()
