"""Limits of all readers: reading every byte once, and copying as many bytes in memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np

from comparison.cores import core_count
from comparison.scans import STREAMING, Scan

Limit = Callable[[int], None]

COPIED_BYTES = 1 << 18
"""Bytes of each read of :func:`copied`: the buffer stays in the cache of a core."""


@numba.njit(nogil=True, cache=True)
def sum_words(words: Any) -> Any:
    """Read every byte, eight at a time."""
    total = np.uint64(0)
    for word in words:
        total += word
    return total


def parts(size: int, threads: int) -> list[slice]:
    """Split a size into page-aligned parts, one per thread."""
    step = -(-size // threads // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def page_cache(scan: Scan, pool: ThreadPoolExecutor, threads: int) -> dict[str, Limit]:
    """Read the frames as 64-bit words from the page cache, with a new mapping for each part."""
    sizes = [path.stat().st_size for path in scan.files]
    # The files can hold more frames than the scan: the bytes beyond its size are skipped.
    share = scan.nbytes / sum(sizes)
    if share > 1:
        raise NotImplementedError("compressed files have fewer bytes than their pixels")
    work = [
        (path, part)
        for path, size in zip(scan.files, sizes, strict=True)
        for part in parts(int(size * share) // 8, threads)
    ]

    def read(path: Path, part: slice) -> None:
        with path.open("rb") as file:
            nbytes = 8 * (part.stop - part.start)
            view = mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_READ, offset=8 * part.start)
            sum_words(np.frombuffer(view, "u8"))

    def job(_repeat: int) -> None:
        list(pool.map(lambda item: read(*item), work))

    return dict.fromkeys(STREAMING, job)


def copied(scan: Scan, pool: ThreadPoolExecutor, threads: int) -> Limit:
    """Copy the frames of a scan in one file from the page cache, to one buffer for each thread."""
    (path,) = scan.files
    first = path.stat().st_size - scan.nbytes

    def read(part: slice) -> None:
        buffer = memoryview(bytearray(COPIED_BYTES))
        with path.open("rb", buffering=0) as file:
            for start in range(part.start, part.stop, COPIED_BYTES):
                os.preadv(file.fileno(), [buffer[: part.stop - start]], first + start)

    def job(_repeat: int) -> None:
        list(pool.map(read, parts(scan.nbytes, threads)))

    return job


def memory_copy(scan: Scan, pool: ThreadPoolExecutor, threads: int) -> dict[str, Limit]:
    """Copy as many bytes from memory to memory."""
    source = np.ones(scan.nbytes, "u1")
    target = np.ones(scan.nbytes, "u1")

    def job(_repeat: int) -> None:
        pool_parts = parts(scan.nbytes, threads)
        list(pool.map(lambda part: np.copyto(target[part], source[part]), pool_parts))

    return dict.fromkeys(STREAMING, job)


def limits() -> dict[str, Callable[[Scan], dict[str, Limit]]]:
    """Return the limits, with a thread for each available core."""
    threads = core_count()
    pool = ThreadPoolExecutor(threads)
    return {
        "page cache": lambda scan: page_cache(scan, pool, threads),
        "memory copy": lambda scan: memory_copy(scan, pool, threads),
    }
