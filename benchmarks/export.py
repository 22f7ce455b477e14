"""Export Merlin files to zarr, compared with other tools: time, CPU time and peak memory.

Run ``python benchmarks/export.py``. The scan is in the page cache; variants are timed in turns,
each into a new folder, and medians are printed. The last columns are speedups relative to other
variants of the section: the fastest that reads the file in Python; the compressor alone, with the
pixels in memory and as many threads; zarrs, with the pixels in memory too; and the first version of
to_zarr, with one ``array[region] = block`` per task and Zstandard.

In "same chunks" all variants store the same pixels under the same keys with the same codecs; in
"defaults" each uses its own defaults; in "columns" zarr chunks hold 32 x 32 pixels of all frames.
dask-tiled syncs its files to disk, the others do not. Memory is measured in a separate process,
relative to its size after opening the file. LiberTEM is not compared: it exports to ``.npy`` only.

``python benchmarks/export.py --large 20`` exports a sparse file of 20 GB, in default chunks and in
columns, in a process that is limited to 1.5 GB of memory.
"""

from __future__ import annotations

import argparse
import ast
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import zarr
from numcodecs import Zstd
from numcodecs.blosc import Blosc
from rsciio.quantumdetector import file_reader
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

import dask_tiled
from dask_tiled.testing import write_mib

SIG = (256, 256)
ROW = 64
LZ4 = BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=2)
CODECS = {"lz4 + bits": (LZ4, Crc32cCodec()), "zstd-1": (ZstdCodec(level=1), Crc32cCodec())}
ZSTD = ZstdCodec(level=1, checksum=True)
ZARRS = "zarrs.ZarrsCodecPipeline"

Way = Callable[[Path], Any]
"""Function that exports the scan to a path."""
SECTIONS = ("same chunks", "defaults", "columns")
ALONE, BEFORE, IN_MEMORY = "memory: compressor alone", "as before", "memory: zarrs"


class Case(NamedTuple):
    """Parameters of an export."""

    path: str
    section: str
    codec: str
    threads: int
    chunk_mib: int

    def chunk(self) -> tuple[int, ...]:
        """Return the shape of zarr chunks, for scan rows of 64 frames."""
        frames = self.chunk_mib * 8
        return (*((1, frames) if frames < ROW else (frames // ROW, ROW)), *SIG)

    def ways(self) -> dict[str, Way]:
        """Return the functions that export a scan, by variant."""
        arr = dask_tiled.open_dataset(self.path)
        shape = arr.shape[1::-1]
        peer = file_reader(self.path, lazy=True, navigation_shape=shape)[0]["data"]
        codec, chunk = CODECS[self.codec], self.chunk()
        given: dict[str, Any]
        if self.section == "defaults":
            return {
                "dask_tiled": partial(ours, arr),
                "dask_tiled, 3 more levels": partial(ours, arr, pyramid=3),
                "dask_tiled + verify_zarr": partial(ours, arr, verify=True),
                BEFORE: partial(by_dask, arr, tuple(map(int, arr.chunksize)), ZSTD),
                "opened + da.to_zarr": partial(da.to_zarr, arr),
                "RosettaSciIO + da.to_zarr": partial(da.to_zarr, peer),
            }
        if self.section == "columns":
            chunk = (*arr.shape[:2], 32, 32)
            given = {"chunks": chunk, "compressors": codec}
            return {
                "dask_tiled": partial(ours, arr, **given),
                "dask_tiled + verify_zarr": partial(ours, arr, verify=True, **given),
                "RosettaSciIO + da.store": partial(by_dask, peer.rechunk(chunk), chunk, codec),
            }
        given = {"chunks": chunk, "compressors": codec, "layout": "array"}
        blocks = (max(chunk[0], 2), ROW, *SIG)  # as large as the chunks of dask-tiled
        opened, peer = arr.rechunk(blocks), peer.rechunk(blocks)
        return {
            "dask_tiled": partial(ours, arr, **given),
            "dask_tiled + verify_zarr": partial(ours, arr, verify=True, **given),
            BEFORE: partial(by_dask, arr.rechunk(chunk), chunk, ZSTD),
            "opened + da.store": partial(by_dask, opened, chunk, codec),
            "RosettaSciIO + da.store": partial(by_dask, peer, chunk, codec),
        }

    def ways_of_memory(self) -> dict[str, Way]:
        """Return the functions that compress or store pixels in memory, by variant."""
        if self.section == "columns":
            return {}
        pixels = dask_tiled.open_dataset(self.path).compute().copy()
        chunk, codec = self.chunk(), CODECS[self.codec]
        encode = Blosc("lz4", 5, 2).encode if codec[0] is LZ4 else Zstd(1, checksum=True).encode
        blocks = dask_tiled.iter_blocks(da.zeros(pixels.shape, chunks=chunk))
        parts = [np.ascontiguousarray(pixels[block.where]) for block in blocks]

        def compress(_out: Path) -> None:
            with ThreadPoolExecutor(self.threads) as pool:
                for _ in pool.map(lambda part: len(encode(part)), parts):
                    pass

        def whole(out: Path, **config: Any) -> None:
            with zarr.config.set(config):
                created(out, pixels, chunk, codec)[:] = pixels

        found: dict[str, Way] = {ALONE: compress, "memory: zarr-python": whole}
        if find_spec("zarrs"):
            limits: Any = {"codec_pipeline.path": ZARRS, "threading.max_workers": self.threads}
            found[IN_MEMORY] = partial(whole, **limits)
        return found


def created(out: Path, like: Any, chunks: tuple[int, ...], codec: Any) -> Any:
    """Create the zarr array for other writers; all chunks are stored, as dask-tiled does."""
    options: Any = {"compressors": codec, "config": {"write_empty_chunks": True}}
    return zarr.create_array(out, shape=like.shape, chunks=chunks, dtype=like.dtype, **options)


def ours(arr: da.Array, out: Path, *, verify: bool = False, **given: Any) -> None:
    """Export with dask-tiled, and verify the result if `verify`."""
    dask_tiled.to_zarr(arr, out, **given)
    if verify:
        dask_tiled.verify_zarr(out, arr)


def by_dask(source: da.Array, chunks: tuple[int, ...], codec: Any, out: Path) -> None:
    """Store with dask, in chunks aligned with the zarr chunks."""
    da.store(source, created(out, source, chunks, codec), lock=False)


def measure(ways: dict[str, Way], folder: Path, repeats: int) -> dict[str, tuple[float, float]]:
    """Return medians of wall time and CPU time, after a warm-up round."""
    found = defaultdict(list)
    for _ in range(repeats + 1):
        for name, way in ways.items():
            out = folder / "out.zarr"
            start = time.perf_counter(), time.process_time()
            way(out)
            found[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
            shutil.rmtree(out, ignore_errors=True)
    return {
        name: (statistics.median(a for a, _ in some[1:]), statistics.median(b for _, b in some[1:]))
        for name, some in found.items()
    }


def show(case: Case, folder: Path, repeats: int, *, memory: bool) -> None:
    """Run and print one section of the table."""
    nbytes = dask_tiled.open_dataset(case.path).nbytes
    ways = case.ways()
    found = measure({**ways, **case.ways_of_memory()}, folder, repeats)
    python = min(wall for name, (wall, _) in found.items() if " + da." in name)
    others = [python, *(found.get(name, (None,))[0] for name in (ALONE, IN_MEMORY, BEFORE))]
    print(f"\n{case.section}, {case.codec}")
    print(f"{'':<26}{'GB/s':>7}{'CPU s/GB':>10}", end="")
    print(*(f"{name:>10}" for name in ("x Python", "x alone", "x zarrs", "x before")), end="")
    print(f"{'peak MiB':>10}" if memory else "")
    for name, (wall, cpu) in found.items():
        ratios = "".join(f"{other / wall:>11.2f}" if other else " " * 11 for other in others)
        peak = f"{peak_of(case, name, folder) >> 20:>9}" if memory and name in ways else ""
        print(f"{name:<26}{nbytes / wall / 1e9:>7.2f}{cpu / nbytes * 1e9:>9.2f}{ratios}{peak}")
    sys.stdout.flush()


def peak_of(case: Case, name: str, folder: Path) -> int:
    """Return the peak memory of a variant, measured in a separate process."""
    out = folder / "out.zarr"
    command = [sys.executable, __file__, "--one", name, str(out), repr(tuple(case))]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shutil.rmtree(out)
    return int(found)


def one(name: str, out: str, case: str) -> None:
    """Print the memory growth of one variant."""
    some = Case(*ast.literal_eval(case))
    dask.config.set(scheduler="threads", num_workers=some.threads)
    way = some.ways()[name]
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # resets the peak
    before = _peak()
    way(Path(out))
    print(_peak() - before)


def large(gigabytes: int) -> None:
    """Export a large file in a process with a memory limit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scan.raw"
        with path.open("wb") as file:
            file.truncate(gigabytes * 10**9 // 2**17 * 2**17)
        for chunks in (None, (gigabytes * 10**9 // 2**17, 16, 16)):
            command = [sys.executable, __file__, "--limited", str(path), str(chunks)]
            subprocess.run(command, check=True)


def limited(path: str, chunks: str) -> None:
    """Export a file with a memory limit, and print the time and the peak."""
    resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))
    dask.config.set(scheduler="threads", num_workers=2)
    arr = dask_tiled.open_dataset(path, "raw", dtype="u2", sig_shape=SIG)
    start = time.perf_counter()
    given = ast.literal_eval(chunks)
    dask_tiled.to_zarr(arr, Path(path).with_suffix(".zarr"), chunks=given, overwrite=True)
    seconds = time.perf_counter() - start
    print(f"chunks {chunks}: {arr.nbytes / seconds / 1e9:.2f} GB/s, peak {_peak() >> 20} MiB")


def _peak() -> int:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status has no VmHWM")


def main() -> None:
    """Run the benchmark and print the table."""
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
        return
    if sys.argv[1:2] == ["--limited"]:
        limited(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--counts", type=float, default=3, help="mean counts per pixel")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--chunk-mib", type=int, default=1, help="size of a zarr chunk, a power of two"
    )
    parser.add_argument("--memory", action="store_true", help="also measure peak memory")
    parser.add_argument(
        "--large", type=int, metavar="GB", help="export a file of this size with limited memory"
    )
    args = parser.parse_args()
    if args.large:
        large(args.large)
        return
    dask.config.set(scheduler="threads", num_workers=args.threads)
    frames = np.random.default_rng(0).poisson(args.counts, (8 * args.mib, *SIG)).astype("u2")
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_mib(Path(folder) / "scan.mib", frames.reshape(-1, ROW, *SIG)))
        del frames
        for section in SECTIONS:
            for codec in CODECS if section != "defaults" else list(CODECS)[:1]:
                case = Case(path, section, codec, args.threads, args.chunk_mib)
                show(case, Path(folder), args.repeats, memory=args.memory)


if __name__ == "__main__":
    main()
