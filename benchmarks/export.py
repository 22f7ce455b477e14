"""Merlin files to zarr, beside others on the same files: time, processor time and peak memory.

Run ``python benchmarks/export.py``. The scan is in the page cache, and the ways take turns; what is
printed are medians. Ours stores chunks in shards, as it does by default; the others store as many
bytes in each file, without shards. "as before" is what to_zarr did until it encoded whole chunks
itself: one ``array[region] = block`` a task, and Zstandard. "columns" are zarr chunks of all
frames, 32 x 32 pixels of each. The last rows have the pixels in memory: what the compressor alone
takes on as many threads, and two pipelines of zarr. Memory is that of a process of its own, over
what it has after opening the file. LiberTEM is not there: it exports to ``.npy`` alone.

``python benchmarks/export.py --large 20`` exports a file of 20 GB without pixels but zeros, in
default chunks and in columns, in a process that may not have more than 1.5 GB of memory.
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
from pathlib import Path
from typing import Any

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
LZ4 = BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=2)
CODECS = {"lz4 + bits": (LZ4, Crc32cCodec()), "zstd-1": (ZstdCodec(level=1), Crc32cCodec())}
ZARRS = "zarrs.ZarrsCodecPipeline"

Way = Callable[[], Any]


def created(path: Path, like: Any, chunks: tuple[int, ...], **given: Any) -> Any:
    """Make the zarr array for what others write: all chunks are stored, as ours are."""
    options: Any = {"overwrite": True, "config": {"write_empty_chunks": True}, **given}
    return zarr.create_array(path, shape=like.shape, chunks=chunks, dtype=like.dtype, **options)


def ways_of(path: Path, out: Path, codec: str) -> dict[str, Way]:
    """Make what exports a scan, each into a folder of its own."""
    arr = dask_tiled.open_dataset(path)
    peer = file_reader(str(path), lazy=True, navigation_shape=arr.shape[1::-1])[0]["data"]
    options: dict[str, Any] = {"compressors": CODECS[codec]}
    first = dask_tiled.to_zarr(arr, out / "first", overwrite=True)
    chunk = first.shards or first.chunks
    columns = (*arr.shape[:2], 32, 32)
    peer = peer.rechunk(arr.chunks)

    def by_dask(source: da.Array, name: str, chunks: Any = chunk, **given: Any) -> None:
        target = created(out / name, source, chunks, **given)
        da.store(source, target, lock=False)

    def ours(name: str, *, verify: bool = False, **given: Any) -> None:
        dask_tiled.to_zarr(arr, out / name, overwrite=True, **options, **given)
        if verify:
            dask_tiled.verify_zarr(out / name, arr)

    return {
        "dask_tiled": partial(ours, "a"),
        "dask_tiled, no shards": partial(ours, "b", chunks=chunk),
        "dask_tiled + verify_zarr": partial(ours, "f", verify=True),
        "as before": partial(by_dask, arr, "c", compressors=ZstdCodec(level=1, checksum=True)),
        "opened + da.store": partial(by_dask, arr, "d", **options),
        "RosettaSciIO + da.store": partial(by_dask, peer, "e", **options),
        "columns: dask_tiled": partial(ours, "g", chunks=columns),
        "columns: dask": partial(by_dask, peer.rechunk(columns), "h", columns, **options),
    }


def ways_of_memory(path: Path, out: Path, codec: str, threads: int) -> dict[str, Way]:
    """Make what compresses or stores pixels that are in memory."""
    arr = dask_tiled.open_dataset(path)
    pixels = arr.compute().copy()
    first = dask_tiled.to_zarr(arr, out / "first", overwrite=True)
    chunk = first.shards or first.chunks
    parts = [
        pixels[block.where] for block in dask_tiled.iter_blocks(da.zeros(arr.shape, chunks=chunk))
    ]
    encode = Blosc("lz4", 5, 2).encode if codec.startswith("lz4") else Zstd(1).encode

    def compress() -> None:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda part: len(encode(np.ascontiguousarray(part))), parts):
                pass

    def whole(name: str, **config: Any) -> None:
        with zarr.config.set(config):
            target = created(out / name, pixels, chunk, compressors=CODECS[codec])
            target[:] = pixels

    pipelines = {"memory: zarr-python": partial(whole, "m")}
    try:
        import zarrs  # noqa: F401
    except ImportError:
        pass
    else:
        limits = {"codec_pipeline.path": ZARRS, "threading.max_workers": threads}
        pipelines["memory: zarrs"] = partial(whole, "n", **limits)
    return {"memory: compressor alone": compress, **pipelines}


def measure(ways: dict[str, Way], repeats: int) -> dict[str, tuple[float, float]]:
    """Give medians of the seconds, and of the processor's, after a round that does not count."""
    found = defaultdict(list)
    for _ in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter(), time.process_time()
            way()
            found[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return {
        name: (statistics.median(a for a, _ in some[1:]), statistics.median(b for _, b in some[1:]))
        for name, some in found.items()
    }


def peak_of(path: Path, out: Path, codec: str, threads: int, name: str) -> int:
    """Measure the memory that a way takes, in a process of its own."""
    command = [sys.executable, __file__, "--one", name, str(path), str(out), codec, str(threads)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def one(name: str, path: str, out: str, codec: str, threads: str) -> None:
    """Print how much memory grows by a way."""
    dask.config.set(scheduler="threads", num_workers=int(threads))
    way = ways_of(Path(path), Path(out), codec)[name]
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak is counted from here
    before = _peak()
    way()
    print(_peak() - before)


def large(gigabytes: int) -> None:
    """Export a large file in a process of little memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scan.raw"
        with path.open("wb") as file:
            file.truncate(gigabytes * 10**9 // 2**17 * 2**17)
        for chunks in (None, (gigabytes * 10**9 // 2**17, 16, 16)):
            command = [sys.executable, __file__, "--limited", str(path), str(chunks)]
            subprocess.run(command, check=True)


def limited(path: str, chunks: str) -> None:
    """Export a file with a limit of memory, and print the time and the peak."""
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
    """Print the table."""
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
        return
    if sys.argv[1:2] == ["--limited"]:
        limited(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--counts", type=float, default=3, help="mean of the counts of a pixel")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--memory", action="store_true", help="measure peak memory, too")
    parser.add_argument("--large", type=int, metavar="GB", help="export so much in little memory")
    args = parser.parse_args()
    if args.large:
        large(args.large)
        return
    dask.config.set(scheduler="threads", num_workers=args.threads)
    frames = np.random.default_rng(0).poisson(args.counts, (8 * args.mib, *SIG)).astype("u2")
    with tempfile.TemporaryDirectory() as folder:
        path = write_mib(Path(folder) / "scan.mib", frames.reshape(-1, 64, *SIG))
        nbytes = frames.nbytes
        del frames
        print(f"{'codec':<12}{'way':<26}{'GB/s':>7}{'CPU s/GB':>10}{'peak MiB':>10}")
        for codec in CODECS:
            out = Path(folder) / "out"
            given = path, out, codec, args.threads
            ways = ways_of(*given[:3])
            for name, (wall, cpu) in measure(
                {**ways, **ways_of_memory(*given)}, args.repeats
            ).items():
                peak = f"{peak_of(*given, name) >> 20}" if args.memory and name in ways else ""
                row = f"{nbytes / wall / 1e9:>7.2f}{cpu / nbytes * 1e9:>10.2f}{peak:>10}"
                print(f"{codec:<12}{name:<26}{row}", flush=True)
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
