"""The filters of HDF5 files that are undone without the HDF5 library.

It does one thing at a time in a process, however many threads ask; these run beside each other.

Layout facts: the HDF5 File Format Specification, version 3.0, "Filter Pipeline Message", the list
of registered filter plugins of The HDF Group, and RFC 8878 for the frames of Zstandard.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

MOST_EXPANDED = 1 << 30
"""More than this, deflated data is only inflated as far as it should go: it may be hostile."""
DEFLATE_RATIO = 1032
"""No data is deflated better."""
DEFLATE, SHUFFLE, FLETCHER32, BLOSC, LZ4, ZSTD = 1, 2, 3, 32001, 32004, 32015


def _inflate(data: Bytes, parameter: int, size: int) -> Bytes:
    if len(data) * DEFLATE_RATIO <= max(MOST_EXPANDED, size):
        return np.frombuffer(zlib.decompress(data.data, bufsize=size), np.uint8)
    return np.frombuffer(zlib.decompressobj().decompress(data.data, size), np.uint8)


def _unshuffle(data: Bytes, itemsize: int, size: int) -> Bytes:
    """Put the bytes of every element together again; they lie in as many rows."""
    if itemsize < 2:
        return data
    count = len(data) // itemsize
    if itemsize == 2 and len(data) == 2 * count:  # most counts; words are quicker than bytes
        words = data[count:].astype("<u2")
        words <<= 8
        words |= data[:count]
        return words.view(np.uint8)
    out = np.empty(len(data), np.uint8)
    elements = out[: count * itemsize].reshape(count, itemsize)
    for k, row in enumerate(data[: count * itemsize].reshape(itemsize, count)):
        elements[:, k] = row
    out[count * itemsize :] = data[count * itemsize :]
    return out


def _check_sum(data: Bytes, parameter: int, size: int) -> Bytes:
    from numcodecs.fletcher32 import Fletcher32

    return _bytes(Fletcher32().decode(data))


def _unzstd(data: Bytes, parameter: int, size: int) -> Bytes:
    from numcodecs.zstd import decompress

    if len(data) < 14 or _zstd_length(data) != size:
        raise ValueError(f"a frame that does not say that it holds {size} bytes")
    return _bytes(decompress(data, np.empty(size, np.uint8)))


def _zstd_length(data: Bytes) -> int | None:
    """Read how many bytes a frame holds, from its header."""
    flags = int(data[4])
    width = (1 if flags & 32 else 0, 2, 4, 8)[flags >> 6]
    at = 5 + (not flags & 32) + (0, 1, 2, 4)[flags & 3]
    length = int.from_bytes(data[at : at + width].tobytes(), "little")
    return (length + 256 * (width == 2)) if width else None


def _unblosc(data: Bytes, parameter: int, size: int) -> Bytes:
    from numcodecs.blosc import decompress

    _check_length(data, 4, 4, "little", size)
    return _bytes(decompress(data, np.empty(size, np.uint8)))


def _unlz4(data: Bytes, parameter: int, size: int) -> Bytes:
    """Decompress blocks: the size of all, of one, and before each block its own, big-endian."""
    from numcodecs.lz4 import decompress

    _check_length(data, 0, 8, "big", size)
    most = min(int.from_bytes(data[8:12].tobytes(), "big"), size)
    out = np.empty(size, np.uint8)
    at, done = 12, 0
    while done < size:
        length = int.from_bytes(data[at : at + 4].tobytes(), "big")
        part = data[at + 4 : at + 4 + length]
        count = min(most, size - done)
        if not 0 < length == len(part) or not count:
            raise ValueError(f"a block of {length} bytes at byte {at} of {len(data)}")
        if length == count:
            out[done : done + count] = part
        else:
            framed = count.to_bytes(4, "little") + part.tobytes()
            out[done : done + count] = _bytes(decompress(framed))
        at += 4 + length
        done += count
    return out


def _check_length(data: Bytes, at: int, width: int, order: Any, size: int) -> None:
    """Libraries write as many bytes as the data claims to have."""
    claimed = int.from_bytes(data[at : at + width].tobytes(), order)
    if len(data) < 16 or claimed != size:
        raise ValueError(f"data of {claimed} bytes, not of {size}")


def _bytes(data: Any) -> Bytes:
    return np.frombuffer(data, np.uint8)


CODEC_ERRORS = (zlib.error, ValueError, RuntimeError, TypeError, LookupError, ArithmeticError)
"""What the libraries raise."""
FILTERS: Mapping[int, Callable[[Bytes, int, int], Bytes]] = {
    DEFLATE: _inflate,
    SHUFFLE: _unshuffle,
    FLETCHER32: _check_sum,
    BLOSC: _unblosc,
    LZ4: _unlz4,
    ZSTD: _unzstd,
}
"""What undoes a filter, by its number: ``function(data, parameter, size)``, where ``size`` is the
number of bytes of the whole chunk."""


def are_known(filters: Sequence[tuple[int, int]]) -> bool:
    """Tell whether a pipeline can be undone without the HDF5 library.

    Every step has to end with the size of the whole chunk, so data is compressed once, and a
    checksum comes last.
    """
    numbers = [number for number, _ in filters]
    compressors = [number for number in numbers if number not in {SHUFFLE, FLETCHER32}]
    simple = len(compressors) <= 1 and FLETCHER32 not in numbers[:-1]
    return simple and all(number in FILTERS for number in numbers)
