"""Tasks, bytes and seconds of the graphs of common jobs on files of up to 10 TB.

Run ``python benchmarks/terabytes.py``; ``--tb 0.1`` is faster. The files are sparse, and nothing of
them is read: each job is built, optimised and serialised as dask.distributed sends it to a
scheduler, which takes "seconds", and its tasks are counted as the scheduler would. "levels" is the
number of tasks that depend on one another, "bytes" those of the serialised graph for each task, and
"message" those that a worker gets for the median task.

The same jobs are built on ``da.from_array`` over a file that each task maps, since dask copies a
``numpy.memmap`` into memory, and on RosettaSciIO's lazy array; jobs that they do not have are built
with ``map_blocks``. With ``--rst``, the table is written to the documentation.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask._task_spec import DataNode
from dask.base import compute
from dask.core import flatten
from distributed.protocol.core import dumps
from distributed.protocol.serialize import ToPickle, serialize, to_serialize
from distributed.scheduler import _cull, _materialize_graph

import dask_tiled
from comparison.facts import facts, sentence
from comparison.table import NOTHING, make_console, print_table, write_table
from dask_tiled import tiles

SIG = (256, 256)
FRAME_BYTES = 2 * SIG[0] * SIG[1]
HEADER_BYTES = 1024
SCAN_ROWS = 1024
SAMPLED = 99
"""Number of tasks whose messages are measured."""
MASKS = np.ones((3, *SIG), np.float32)
OURS = "dask-tiled"
OTHERS = MEMMAP, ROSETTA = "numpy.memmap", "RosettaSciIO"

Job = Callable[[Any], Any]


def brightest(tile: np.ndarray, *_: object) -> np.ndarray:
    """Return the maximum of every frame of a tile or block."""
    found: np.ndarray = tile.max(axis=(-2, -1))
    return found


def spectrum(block: np.ndarray) -> np.ndarray:
    """Return the Fourier transform of every frame of a block."""
    return np.fft.fft2(block)


def masked(block: np.ndarray) -> np.ndarray:
    """Return the sums of every frame of a block weighted by masks."""
    return np.tensordot(block, MASKS, ((-2, -1), (-2, -1)))


def centres(arr: Any) -> Any:
    """Return centres of mass in plain dask."""
    y, x = (np.arange(n) for n in SIG)
    total = arr.sum(axis=(-2, -1))
    moments = [(arr * y[:, None]).sum(axis=(-2, -1)), (arr * x).sum(axis=(-2, -1))]
    return da.stack([moment / total for moment in moments], axis=-1)


JOBS: dict[str, Job] = {
    "sum": lambda arr: arr.sum(),
    "mean pattern": lambda arr: arr.mean(axis=(0, 1)),
    "std pattern": lambda arr: arr.std(axis=(0, 1)),
    "frame sums": lambda arr: arr.sum(axis=(2, 3)),
    "masks": lambda arr: tiles.apply_masks(arr, MASKS),
    "centre of mass": tiles.center_of_mass,
    "histogram": lambda arr: da.histogram(arr, bins=256, range=(0, 1 << 16))[0],
    "map_tiles": lambda arr: dask_tiled.map_tiles(brightest, arr, dtype="u2", sig_shape=()),
    "reduce_tiles": lambda arr: dask_tiled.reduce_tiles(
        arr, init=np.zeros(SIG), step=lambda total, tile, _: total + tile.sum(0), combine=np.add
    ),
    "map_blocks": lambda arr: arr.map_blocks(brightest, drop_axis=(2, 3), dtype="u2"),
    "map_blocks, sum": lambda arr: arr.map_blocks(spectrum, dtype="c16").sum(axis=(0, 1)),
    "argmax, slice": lambda arr: arr.argmax(axis=0)[:, 0, :2],
    "columns": lambda arr: arr.rechunk((-1, -1, 16, 16)).max(axis=(0, 1)),
}
"""Jobs by name; "columns" is a rechunk across the scan."""
PLAIN: dict[str, Job] = {
    "masks": lambda arr: arr.map_blocks(
        masked, drop_axis=(2, 3), new_axis=2, chunks=(*arr.chunks[:2], (3,)), dtype="f4"
    ),
    "centre of mass": centres,
    "map_tiles": JOBS["map_blocks"],
    "reduce_tiles": JOBS["mean pattern"],
}
"""The same jobs in plain dask, where they are written in another way."""


class Cost(NamedTuple):
    """Cost of the graph of a job."""

    tasks: int
    nbytes: int
    """Bytes of the serialised graph."""
    message: float
    """Median bytes of the message to a worker."""
    levels: int
    seconds: float
    """Seconds to build, optimise and serialise the graph."""


class Captured(BaseException):
    """Raised by the scheduler that takes a graph, so that nothing runs."""


def cost_of(make: Callable[[], Any]) -> Cost:
    """Return the cost of computing what ``make()`` returns, without computing it."""
    graphs: list[tuple[Any, Any]] = []

    def scheduler(graph: Any, keys: Any, **_: object) -> None:
        graphs.append((graph, keys))
        raise Captured

    start = time.perf_counter()
    with suppress(Captured):
        compute(make(), scheduler=scheduler)
    ((graph, keys),) = graphs
    header, frames = serialize(to_serialize(graph), on_error="raise")
    nbytes = len(dumps(header)) + sum(memoryview(frame).nbytes for frame in frames)
    seconds = time.perf_counter() - start
    tasks = _cull(_materialize_graph(graph, validate=False)[0], {*flatten([keys])})
    run = [task for task in tasks.values() if not isinstance(task, DataNode)]
    some = run[:: max(1, len(run) // SAMPLED)]
    sizes = [sum(map(len, dumps({"run_spec": ToPickle(task)}))) for task in some]
    return Cost(len(run), nbytes, statistics.median(sizes), levels_of(tasks), seconds)


def levels_of(tasks: Mapping[Any, Any]) -> int:
    """Return the largest number of tasks that depend on one another."""
    levels: dict[Any, int] = {}
    stack = [*tasks]
    while stack:
        below = [x for x in tasks[stack[-1]].dependencies if x in tasks]
        waiting = [x for x in below if x not in levels]
        if waiting:
            stack += waiting
            continue
        key = stack.pop()
        own = not isinstance(tasks[key], DataNode)
        levels[key] = own + max((levels[x] for x in below), default=0)
    return max(levels.values())


def sparse_mrc(path: Path, tb: float) -> tuple[int, int]:
    """Write an MRC file of zeros, which takes no space; return the shape of the scan."""
    columns = max(1, round(tb * 1e12 / FRAME_BYTES / SCAN_ROWS))
    frames = SCAN_ROWS * columns
    header = bytearray(HEADER_BYTES)
    struct.pack_into("<4i", header, 0, SIG[1], SIG[0], frames, 6)
    struct.pack_into("<3i", header, 64, 1, 2, 3)
    header[208:216] = b"MAP \x44\x44\0\0"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(HEADER_BYTES + frames * FRAME_BYTES)
    return SCAN_ROWS, columns


class Mapped:
    """Pixels of a file that is mapped for each part."""

    dtype, ndim = np.dtype(np.uint16), 4

    def __init__(self, path: Path, scan: tuple[int, int]) -> None:
        self._path = path
        self.shape = (*scan, *SIG)

    def __getitem__(self, index: Any) -> np.ndarray:
        found: np.ndarray = np.memmap(self._path, self.dtype, "r", HEADER_BYTES, self.shape)[index]
        return found


def memmap(path: Path, scan: tuple[int, int]) -> da.Array:
    """Return dask over a memory map, in dask's default chunks."""
    return da.from_array(Mapped(path, scan), name=f"{path}", chunks=("auto", "auto", *SIG))


def rosetta(path: Path, scan: tuple[int, int]) -> Any:
    """Return RosettaSciIO's lazy array of an MRC file."""
    from rsciio.mrc import file_reader

    (found,) = file_reader(str(path), lazy=True, navigation_shape=scan[::-1])
    return found["data"]


def rows(path: Path, tb: float, only: list[str], *, others: bool) -> list[list[str]]:
    """Return a row for each job on a file of a size."""
    scan = sparse_mrc(path, tb)
    made = {OURS: dask_tiled.open_dataset(path, "mrc", nav_shape=scan)}
    if others:
        made |= {MEMMAP: memmap(path, scan), ROSETTA: rosetta(path, scan)}
    counts = ", ".join(f"{name} {arr.npartitions:,}" for name, arr in made.items())
    found = [[f"{tb:g} TB", "chunks", f"{made[OURS].npartitions}", *[""] * 4]]
    found[0] += [text for name in [*made][1:] for text in (f"{made[name].npartitions}", "")]
    print(f"{tb:g} TB, chunks: {counts}")
    for job, make in JOBS.items():
        if only and job not in only:
            continue
        row = [f"{tb:g} TB", job]
        for name, arr in made.items():
            job_of = make if name == OURS else PLAIN.get(job, make)
            cost = cost_of(partial(job_of, arr))
            row.append(f"{cost.tasks}")
            if name == OURS:
                row += [f"{cost.levels}", f"{cost.nbytes / cost.tasks:.0f}", f"{cost.message:.0f}"]
            row.append(f"{cost.seconds:.2f}")
        print(*row)
        found.append(row)
    return found


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tb", type=float, nargs="+", default=(0.1, 1, 10))
    parser.add_argument("--only", nargs="+", metavar="JOB", default=[], help="names in JOBS")
    parser.add_argument(
        "--others-tb", type=float, default=1, help="largest file for the other libraries"
    )
    parser.add_argument("--dir", type=Path, help="folder for the temporary files")
    parser.add_argument("--rst", type=Path, help="write the table for the documentation")
    args = parser.parse_args()
    body = list[list[str]]()
    with tempfile.TemporaryDirectory(prefix="terabytes-", dir=args.dir) as folder:
        for tb in args.tb:
            path = Path(folder) / f"{tb:g}.mrc"
            body += rows(path, tb, args.only, others=tb <= args.others_tb)
            path.unlink()
    head = ["file", "job", "tasks", "levels", "bytes", "message", "seconds"]
    head += [text for name in OTHERS for text in (f"{name}: tasks", "seconds")]
    body = [[*row, *[NOTHING] * (len(head) - len(row))] for row in body]
    about = facts(0, 1) | {"files": ", ".join(f"{tb:g} TB" for tb in args.tb)}
    console = make_console()
    console.print(sentence(about), highlight=False)
    print_table(console, "Graphs of jobs on large files", head, body)
    if args.rst:
        write_table(args.rst, "terabytes.py --rst", head, body, about)


if __name__ == "__main__":
    main()
