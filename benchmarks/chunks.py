"""Compare whole chunks with the same pixels of a memory map, with and without dask.

Run ``python benchmarks/chunks.py``. All variants read one Merlin file of big-endian pixels from the
page cache, in its negotiated chunks, in turns. The map stays open; for jobs that hardly use a
chunk, its pixels are converted to native byte order. Ratios above 1: this package is faster.
Compare processor times if other programs use the machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_tiled
from dask_tiled.testing import write_mib

SIG = (256, 256)
DTYPE = ">u2"

Job = Callable[[Any], Any]
Make = Callable[[], Any]


def corner(block: np.ndarray) -> np.ndarray:
    """Return one pixel of a chunk, so that decoding dominates the time."""
    return block[:, :, :1, :1].copy()


def one_pixel_each(arr: Any) -> Any:
    """Apply ``corner`` to every chunk."""
    return arr.map_blocks(corner, chunks=(*arr.chunks[:2], 1, 1), dtype=arr.dtype)


def frame_sums(block: np.ndarray) -> np.ndarray:
    """Sum the frames of a block, as a user of map_blocks would."""
    return block.sum(axis=(2, 3), dtype="f4")


WHOLE: dict[str, Job] = {
    "frame sums": lambda arr: da.map_blocks(frame_sums, arr, drop_axis=(2, 3), dtype="f4"),
    "astype": lambda arr: arr.astype("f4"),
    "compute": lambda arr: arr,
}
NUMPY: dict[str, Job] = {
    "frame sums": frame_sums,
    "astype": lambda pixels: pixels.astype("f4"),
    "compute": np.array,
}
DECODED: dict[str, Job] = {
    "map_blocks": one_pixel_each,
    "map_overlap": lambda arr: one_pixel_each(arr.map_overlap(np.negative, (1, 0, 0, 0), "none")),
    "rechunk": lambda arr: one_pixel_each(arr.rechunk((-1, 8, 64, 256))),
    "fancy": lambda arr: arr[[1, 5, 6, 11]],
}


def mapped(path: Path, arr: Any) -> np.ndarray:
    """Map the frames of the file, without their headers."""
    count = arr.shape[0] * arr.shape[1]
    header = path.stat().st_size // count - np.dtype(DTYPE).itemsize * SIG[0] * SIG[1]
    record = np.dtype([("header", f"V{header}"), ("pixels", DTYPE, SIG)])
    return np.memmap(path, record, "r", shape=arr.shape[:2])["pixels"]


def computed(job: Job, arr: Any) -> Any:
    """Compute the result of a job on an array."""
    return job(arr).compute()


def times(makers: Sequence[Make], repeats: int) -> list[tuple[float, float]]:
    """Time variants in turns; return medians of wall time and CPU time in seconds."""
    taken: list[list[tuple[float, float]]] = [[] for _ in makers]
    for _ in range(repeats + 1):
        for make, seconds in zip(makers, taken, strict=True):
            clock, processor = time.perf_counter(), time.process_time()
            result = make()
            seconds.append((time.perf_counter() - clock, time.process_time() - processor))
            del result
    columns = (zip(*seconds[1:], strict=True) for seconds in taken)
    return [(statistics.median(clock), statistics.median(spent)) for clock, spent in columns]


def main() -> None:
    """Run the benchmark and print a line for each job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=512, help="size of the file")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    nav = (max(12, args.mib // 4), 32)  # 4 MiB a row
    frames = np.random.default_rng(0).integers(0, 1 << 12, (*nav, *SIG), "u2")
    print(f"{'threads':<9}{'job':<13}{'ms':>8}{'/ dask':>9}{'processor':>11}{'/ NumPy':>9}")
    with (
        tempfile.TemporaryDirectory(prefix="chunks-") as folder,
        dask.config.set({"dask-tiled.rest-seconds": 0, "num_workers": 2}),
    ):
        path = write_mib(Path(folder) / "scan.mib", frames)
        del frames
        arr = dask_tiled.open_dataset(path, nav_shape=nav)
        pixels = mapped(path, arr)
        plain = da.from_array(pixels, chunks=arr.chunks)
        for threads, (name, job) in product((1, 2), (WHOLE | DECODED).items()):
            given = plain if name in WHOLE else plain.astype(arr.dtype)
            makers: list[Make] = [partial(computed, job, x) for x in (arr, given)]
            if name in NUMPY:
                makers.append(partial(NUMPY[name], pixels))
            with dask.config.set(scheduler="threads" if threads > 1 else "sync"):
                np.testing.assert_allclose(makers[0](), makers[1](), 1e-6)
                (clock, spent), (other, theirs), *alone = times(makers, args.repeats)
            print(f"{threads:<9}{name:<13}{1e3 * clock:>8.1f}{other / clock:>9.2f}", end="")
            print(f"{theirs / spent:>11.2f}", *(f"{x / clock:>8.2f}" for x, _ in alone))


if __name__ == "__main__":
    main()
