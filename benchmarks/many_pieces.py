"""Time ``from_pieces`` with a million pieces, and chunks and slices of the result.

Run ``python benchmarks/many_pieces.py``. Pieces are given as NumPy columns, over sparse files.
Every case runs in its own process:

- first: seconds of the first call after the import;
- seconds: median of further calls; the target is less than 2;
- peak, kept: memory that they allocate, and memory that remains, beyond the columns, as counted by
  tracemalloc;
- pickled: size of the array; task: size of the largest task of one chunk, without the parts shared
  by all tasks;
- tree: ms to sort the pieces, once, for the first chunk;
- 1, 100, 10,000: ms to plan the reads of a chunk that overlaps this number of pieces;
- slice: ms to define a slice.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import dask_tiled
from dask_tiled.reading.planning import frame_ranges, region_of

SIDE = 8
BYTES = 2 * SIDE * SIDE
LIMIT = 2
"""Target in seconds for a million pieces."""
MIB = 1 << 20
CASES = ("one axis", "one axis, shuffled", "bricks", "bricks, shuffled")
COLUMNS = ("first", "seconds", "peak MiB", "kept MiB", "pickled MiB", "task B", "tree")


def seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """Return the median time of a function."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return median(times)


def columns_of(case: str, edge: int, files: int) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the columns of ``edge ** 3`` pieces, and the shape of the array."""
    count = edge**3
    place = np.arange(count)
    if case.endswith("shuffled"):
        place = np.random.default_rng(0).permutation(count)
    bricks = case.startswith("bricks")
    grid = (edge,) * 3 if bricks else (count, 1, 1)
    start = np.stack(np.unravel_index(place, grid), axis=1) * (1, SIDE, SIDE)
    number = np.arange(count)
    columns = {"start": start, "shape": (1, SIDE, SIDE), "offset": BYTES * (number // files)}
    if files > 1:
        columns["file"] = number % files
    return columns, (grid[0], grid[1] * SIDE, grid[2] * SIDE)


def meeting(case: str, edge: int) -> tuple[tuple[slice, ...], ...]:
    """Return slices that overlap 1, 100 and 10,000 pieces, or all pieces if there are fewer."""
    if case.startswith("bricks"):
        sides = (1, min(10, edge), min(100, edge))
        return tuple((slice(edge // 2, edge // 2 + 1), *(slice(n * SIDE),) * 2) for n in sides)
    middle = edge**3 // 2
    return tuple((slice(middle, middle + n),) for n in (1, 100, 10_000))


def plan(arr: Any) -> object:
    """Plan the reads of an array as a single chunk."""
    layout = arr.description.layout
    region = region_of(layout, tuple((0, n) for n in arr.shape))
    return list(frame_ranges(layout, region.frames, region.sig))


def measure(folder: str, case: str, edge: int, files: int) -> list[float]:
    """Run the benchmark for one case."""
    columns, shape = columns_of(case, edge, files)
    paths = [f"{folder}/{files}-{k}.raw" for k in range(files)]

    def make() -> Any:
        return dask_tiled.from_pieces(columns, shape=shape, dtype="<u2", files=paths)

    found = [seconds(make, 1), seconds(make)]
    tracemalloc.start()
    arr = make()
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    found += [peak / MIB, kept / MIB, len(pickle.dumps(arr)) / MIB]
    some = arr[tuple(slice(n) for n in arr.chunksize)]
    tasks = {key: task for key, task in dict(some.dask).items() if isinstance(key, tuple)}
    found.append(max(len(pickle.dumps(task)) for task in tasks.values()))
    found.append(1000 * seconds(lambda: arr.description.layout.pieces.tree, 1))
    indices = meeting(case, edge)
    found += [1000 * seconds(partial(plan, arr[index])) for index in indices]
    found.append(1000 * seconds(lambda: arr[indices[1]]))
    return found


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--edge", type=int, default=100, help="edge ** 3 is the number of pieces")
    parser.add_argument("--files", type=int, nargs="+", default=[1, 1000])
    args = parser.parse_args()
    count = args.edge**3
    table = Table(title=f"{count:,} pieces of {BYTES} bytes")
    for name in ("", "files", *COLUMNS, "1", "100", "10,000", "slice"):
        table.add_column(name, justify="right" if name else "left")
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="pieces-") as folder:
        for files in args.files:
            for k in range(files):
                with (Path(folder) / f"{files}-{k}.raw").open("wb") as file:
                    file.truncate(BYTES * -(-count // files))
            for case in CASES:
                spawn = get_context("spawn")
                with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                    found = pool.submit(measure, folder, case, args.edge, files).result()
                slowest = max(slowest, *found[:2])
                table.add_row(case, str(files), *(f"{value:.3g}" for value in found))
    Console(width=130).print(table)
    print(f"from_pieces takes {slowest:.2f} s at most; the limit is {LIMIT} s for a million")


if __name__ == "__main__":
    main()
