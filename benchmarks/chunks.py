"""Compare whole chunks and single pixels with a dask array over a memory map: ratios.

Run ``python benchmarks/chunks.py``. Both read the same big-endian Merlin file from the page cache,
in the same chunks and in turns. The memory map stays open, and its pixels are converted to native
byte order: after slicing where the job slices, so that only selected pixels are converted. A ratio
above 1 means that this package is faster; the ratio of CPU times is more reliable on a busy
machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
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
    """Return one pixel per frame of a chunk, so that decoding dominates the time."""
    return block[:, :, :1, :1].copy()


def one_pixel_each(arr: Any) -> Any:
    """Return the array of ``corner`` applied to every chunk."""
    return arr.map_blocks(corner, chunks=(*arr.chunks[:2], 1, 1), dtype=arr.dtype)


CHUNKS: dict[str, Job] = {
    "map_blocks": one_pixel_each,
    "map_overlap": lambda arr: one_pixel_each(arr.map_overlap(np.negative, (1, 0, 0, 0), "none")),
    "rechunk": lambda arr: one_pixel_each(arr.rechunk((-1, 8, 64, 256))),
    "compute": lambda arr: arr,
    "fancy": lambda arr: arr[[1, 5, 6, 11]],
}
FEW: dict[str, Job] = {
    "frame": lambda arr: arr[7, 9],
    "two frames": lambda arr: arr[7, 9:11],
    "pixel of 4": lambda arr: arr[6:8, 9:11, 100, 100],
    "pixel of a row": lambda arr: arr[7, :, 100, 100],
    "pixel of all": lambda arr: arr[..., 100, 100],
}


def mapped(path: Path, arr: Any) -> np.ndarray:
    """Map the pixels of the frames, skipping the header of each."""
    count = arr.shape[0] * arr.shape[1]
    header = path.stat().st_size // count - np.dtype(DTYPE).itemsize * SIG[0] * SIG[1]
    record = np.dtype([("header", f"V{header}"), ("pixels", DTYPE, SIG)])
    return np.memmap(path, record, "r", shape=arr.shape[:2])["pixels"]


def converted(job: Job, plain: Any, *, few: bool) -> Any:
    """Run a job on pixels in native byte order."""
    dtype = np.dtype(DTYPE).newbyteorder("=")
    return job(plain).astype(dtype) if few else job(plain.astype(dtype))


def ratios(ours: Make, theirs: Make, repeats: int) -> tuple[float, float, float]:
    """Return the speedup by wall time and by CPU time, and the milliseconds of `ours`."""
    times: dict[Make, list[tuple[float, float]]] = {ours: [], theirs: []}
    for _ in range(repeats + 1):
        for make, seconds in times.items():
            clock, processor = time.perf_counter(), time.process_time()
            result = make().compute()
            seconds.append((time.perf_counter() - clock, time.process_time() - processor))
            del result
    (clock, processor), reference = (
        [statistics.median(column) for column in zip(*seconds[1:], strict=True)]
        for seconds in times.values()
    )
    return reference[0] / clock, reference[1] / processor, 1e3 * clock


def main() -> None:
    """Run the benchmark and print a line for each job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256, help="size of the file")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    nav = (max(12, args.mib // 4), 32)  # 4 MiB per row
    frames = np.random.default_rng(0).integers(0, 1 << 16, (*nav, *SIG), "u2")
    print(f"{'threads':<9}{'job':<16}{'clock':>8}{'processor':>11}{'ms':>9}")
    with tempfile.TemporaryDirectory(prefix="chunks-") as folder:
        path = write_mib(Path(folder) / "scan.mib", frames)
        del frames
        arr = dask_tiled.open_dataset(path, nav_shape=nav, chunks=(16, -1, -1, -1))
        plain = da.from_array(mapped(path, arr), chunks=arr.chunks)
        for threads in (1, 2):
            with dask.config.set(scheduler="threads" if threads > 1 else "sync", num_workers=2):
                for name, job in (CHUNKS | FEW).items():
                    few = name in FEW
                    makers = partial(job, arr), partial(converted, job, plain, few=few)
                    np.testing.assert_array_equal(*(make().compute() for make in makers))
                    repeats = args.repeats * (5 if few else 1)
                    clock, processor, ms = ratios(*makers, repeats)
                    print(f"{threads:<9}{name:<16}{clock:>8.2f}{processor:>11.2f}{ms:>9.1f}")


if __name__ == "__main__":
    main()
