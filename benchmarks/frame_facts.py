"""Time of ``frame_facts`` for 100,000 frames: reading and decoding their headers.

Run ``python benchmarks/frame_facts.py``. Times are CPU seconds, the minimum of several rounds,
after a first round that compiles kernels:

- open: ``open_dataset``; it reads all pages of a TIFF file, and parses OME-XML;
- facts: ``frame_facts`` and ``compute``, on one thread; the target is less than one second;
- limit: one ``pread`` for each header, without decoding; for formats whose headers are read at
  opening, the time of opening;
- ratio: facts divided by limit.
"""

from __future__ import annotations

import argparse
import os
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import nibabel
import numpy as np
import tifffile
from rich.console import Console
from rich.table import Table

import dask_tiled
from dask_tiled import testing

SIDE = 8


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """Return the minimum CPU time of a function; other processes do not add to it."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def preads(path: Path, count: int, nbytes: int) -> Callable[[], Any]:
    """Return a function that reads the first bytes of each of `count` equal parts of a file."""
    step = path.stat().st_size // count

    def read() -> None:
        fd = os.open(path, os.O_RDONLY)
        for k in range(count):
            os.pread(fd, nbytes, k * step)
        os.close(fd)

    return read


def mrc(path: Path, frames: Any) -> Path:
    """Write an MRC file with FEI headers, whose first field is their length."""
    sections = struct.pack("<i", 768).ljust(768, b"\0") * len(frames)
    return testing.write_mrc(path, frames, extended=sections, extended_type=b"FEI1")


def frms6(path: Path, frames: Any) -> Path:
    """Write an FRMS6 set of frames as wide as a chip row."""
    wide = np.broadcast_to(np.zeros((2, 64), "u2"), (len(frames), 2, 64))
    return testing.write_frms6(path, wide, dark=wide[:1], scan_shape=(1, len(frames)))[1]


def empad(path: Path, frames: Any) -> Path:
    """Write an EMPAD scan with sparse pixels of some GB."""
    path = path.with_name(f"scan_x{len(frames)}_y1.raw")
    with path.open("wb") as file:
        file.truncate(len(frames) * 130 * 128 * 4)
    return path


def nifti(path: Path, frames: Any) -> Path:
    """Write a NIfTI file of volumes of ten slices."""
    nib: Any = nibabel
    image = nib.Nifti1Image(frames.reshape(-1, 10, SIDE, SIDE).T, None)
    image.header.set_xyzt_units("mm", "sec")
    nib.save(image, path.with_suffix(".nii"))
    return path.with_suffix(".nii")


def ome_tiff(path: Path, frames: Any) -> Path:
    """Write an OME-TIFF file with two facts per plane."""
    planes = {"DeltaT": [0.5] * len(frames), "ExposureTime": [0.1] * len(frames)}
    path = path.with_suffix(".ome.tif")
    tifffile.imwrite(path, frames, ome=True, metadata={"axes": "TYX", "Plane": planes})
    return path


def tiff(path: Path, frames: Any) -> Path:
    """Write a TIFF file with a date on each page."""
    with tifffile.TiffWriter(path) as writer:
        for frame in frames:
            writer.write(frame, datetime="2020:01:02 03:04:05", metadata=None, contiguous=False)
    return path


WRITERS: dict[str, tuple[Callable[[Path, Any], Path], int]] = {
    "mib": (lambda path, frames: testing.write_mib(path, frames, kind="U08", hdr=False), 384),
    "tvips": (lambda path, frames: testing.write_tvips(path, frames)[0], 108),
    "ser": (partial(testing.write_ser, positions=True), 24),
    "seq": (testing.write_seq, 8),
    "frms6": (frms6, 64),
    "blo": (
        lambda path, frames: testing.write_blo(path, frames, nav_shape=(2, len(frames) // 2)),
        6,
    ),
    "mrc": (mrc, 768),
    "empad": (empad, 2 * 128 * 4),
    "nifti": (nifti, 0),
    "tiff": (tiff, 0),
    "ome_tiff": (ome_tiff, 0),
}
"""Writer of each format, and bytes per header, or 0 if opening reads all headers."""


def measure(name: str, folder: Path, count: int, repeats: int) -> list[float]:
    """Run the benchmark for one format."""
    write, nbytes = WRITERS[name]
    path = write(folder / f"scan.{name}", np.zeros((count, SIDE, SIDE), "u1"))

    def opened() -> Any:
        return dask_tiled.open_dataset(path, nav_shape=(count,))

    arr = opened()

    def facts() -> Any:
        return dask_tiled.frame_facts(arr).compute()

    facts()
    found = [seconds(function, repeats) for function in (opened, facts)]
    limit = seconds(preads(path, count, nbytes), repeats) if nbytes else found[0]
    return [*found, limit, found[1] / limit]


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", nargs="+", default=[*WRITERS], choices=WRITERS)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    table = Table(title=f"headers of {args.count:,} frames")
    for title in ("", "open", "facts", "limit", "ratio"):
        table.add_column(title, justify="right" if title else "left")
    with dask.config.set(scheduler="synchronous"):
        for name in args.formats:
            with tempfile.TemporaryDirectory(prefix="facts-") as folder:
                found = measure(name, Path(folder), args.count, args.repeats)
            table.add_row(name, *(f"{value:.2f}" for value in found))
    Console(width=80).print(table)


if __name__ == "__main__":
    main()
