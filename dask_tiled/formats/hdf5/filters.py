"""Chunks of HDF5 files become pixels: their filters are undone, without the HDF5 library if known.

It does one thing at a time in a process, however many threads ask; these run beside each other. No
length that a chunk claims is believed: all get the room that they should need, and no more. Chunks
with any other filter go through the library, in another process.

Layout facts: the HDF5 File Format Specification, version 3.0, "Filter Pipeline Message"; the list
of registered filter plugins of The HDF Group; for bitshuffle the source of its filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError
from dask_tiled.formats.tools.compression import check_room
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.indexing import Array

Bytes = npt.NDArray[np.uint8]
Filter = tuple[int, tuple[int, ...]]
"""Its number, and its parameters."""

DEFLATE, SHUFFLE, FLETCHER32, SZIP, BZIP2 = 1, 2, 3, 4, 307
LZF, BLOSC, LZ4, BITSHUFFLE, ZSTD = 32000, 32001, 32004, 32008, 32015
ZSTD_BLOCKS = 3
"""What bitshuffle calls Zstandard; 2 is LZ4, and 0 nothing."""


def _codecs() -> Any:
    import imagecodecs

    return imagecodecs


def _decompress(codec: str, data: Bytes, values: tuple[int, ...], size: int) -> Bytes:
    return getattr(_codecs(), codec)(data, out=np.empty(size, np.uint8))


def _unszip(data: Bytes, values: tuple[int, ...], size: int) -> Bytes:
    return _codecs().szip_decode(data, *values[:4], header=True, out=np.empty(size, np.uint8))


def _unblosc(data: Bytes, values: tuple[int, ...], size: int) -> Bytes:
    length, block, claimed = np.frombuffer(data, "<u4", 3, 4).tolist()
    if length != size or block > size or not 16 <= claimed <= len(data):
        # the codec is not told where they end
        raise ValueError(f"{claimed} compressed bytes in {len(data)}, which hold {length}")
    return _decompress("blosc_decode", data, values, size)


def _unshuffle(data: Bytes, values: tuple[int, ...], size: int) -> Bytes:
    """Put the bytes of every element together again; they lie in as many rows."""
    itemsize = values[0]
    if not 1 < itemsize <= len(data):
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


def _check_sum(data: Bytes, values: tuple[int, ...], size: int) -> Bytes:
    content, stored = data[:-4], data[-4:].tobytes()
    found = _codecs().h5checksum_fletcher32(content).to_bytes(4, "little")
    if stored not in {found, found[1::-1] + found[:1:-1]}:  # the latter in some old files
        raise ValueError(f"the checksum {stored.hex()} of bytes with {found.hex()}")
    return content


def _unbitshuffle(data: Bytes, values: tuple[int, ...], size: int) -> Bytes:
    """Put the bits of every 8 elements together again; they lie in rows, block by block."""
    itemsize, count, method = (*values[2:], 0, 0)[:3]
    if method:
        count = int.from_bytes(data[8:12].tobytes(), "big") // itemsize
        data = _join_blocks(data, count * itemsize, size, size // itemsize % 8 * itemsize, method)
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes")
    out = np.empty(size, np.uint8)
    _codecs().bitshuffle_decode(data.data, itemsize=itemsize, blocksize=count, out=out)
    return out


def _join_blocks(data: Bytes, block: int, size: int, rest: int, method: int) -> Bytes:
    """Decompress what was bitshuffled: blocks after their lengths, and a rest that is not packed.

    It begins as LZ4 does, with the size of all and of a block; all sizes are in bytes.
    """
    codecs, view, at = _codecs(), data.data, 12
    parts: list[memoryview] = []
    if int.from_bytes(view[:8], "big") != size or not block:
        raise ValueError(f"{bytes(view[:12]).hex()} before the blocks of {size} bytes")
    starts = range(0, size - rest, block)
    for _ in starts:
        stop = at + 4 + int.from_bytes(view[at : at + 4], "big")
        if stop + rest > len(data):
            raise ValueError(f"a block from byte {at} to {stop} of {len(data)}")
        parts.append(view[at + 4 : stop])
        at = stop
    out = np.empty(size, np.uint8)
    packed = out[: size - rest]
    if method == ZSTD_BLOCKS:
        done = len(codecs.zstd_decode(b"".join(parts), out=packed)) if parts else 0
    elif any(len(p) == min(block, size - k) for k, p in zip(starts, parts, strict=True)):
        # The LZ4 filter leaves blocks of this length as they are, bitshuffle does not.
        done = sum(
            len(codecs.lz4_decode(part, out=packed[k : k + block]))
            for k, part in zip(starts, parts, strict=True)
        )
    else:
        done = len(codecs.lz4h5_decode(view[:at], out=out))
    if done != len(packed):
        raise ValueError(f"blocks of {done} bytes, not of {len(packed)}")
    out[done:] = data[at : at + rest]
    return out


CODEC_ERRORS = (ValueError, RuntimeError, TypeError, LookupError, ArithmeticError)
"""What is raised for data that is damaged."""
FILTERS: dict[int, Callable[[Bytes, tuple[int, ...], int], Bytes]] = {
    DEFLATE: partial(_decompress, "deflate_decode"),
    SHUFFLE: _unshuffle,
    FLETCHER32: _check_sum,
    SZIP: _unszip,
    # With room for one byte more the codec goes on to the checksum.
    BZIP2: lambda data, values, size: _decompress("bz2_decode", data, values, size + 1),
    LZF: partial(_decompress, "lzf_decode"),
    BLOSC: _unblosc,
    LZ4: partial(_decompress, "lz4h5_decode"),
    BITSHUFFLE: _unbitshuffle,
    ZSTD: partial(_decompress, "zstd_decode"),
}
"""What undoes a filter, by its number: ``function(data, parameters, size)``, where ``size`` is the
number of bytes of the whole chunk."""


CODECS: dict[int, Sequence[str | None]] = {
    DEFLATE: ["deflate"],
    SZIP: ["szip"],
    BZIP2: ["bzip2"],
    LZF: ["lzf"],
    BLOSC: ["blosc"],
    LZ4: ["lz4"],
    BITSHUFFLE: [None, None, "lz4", "zstd"],
    ZSTD: ["zstd"],
}
"""What compresses: of some filters the fifth parameter tells."""


def codec_of(filters: Sequence[Filter]) -> str | None:
    """Return what compresses in a pipeline that is known; None where nothing does."""
    for number, values in filters:
        names = CODECS.get(number, [None])
        which = (*values, *(0,) * 5)[4] if len(names) > 1 else 0
        if which < len(names) and names[which] is not None:
            return names[which]
    return None


def are_known(filters: Sequence[Filter]) -> bool:
    """Return whether a pipeline can be undone without the HDF5 library.

    Every step has to end with the size of the whole chunk, so data is compressed once, and a
    checksum comes last.
    """
    numbers = [number for number, _ in filters]
    compressors = [number for number in numbers if number not in {SHUFFLE, FLETCHER32}]
    simple = len(compressors) <= 1 and FLETCHER32 not in numbers[:-1]
    return simple and all(number in FILTERS for number in numbers)


def decode(
    block: Block,
    fetch: Fetch,
    *,
    stored: np.dtype,
    dtype: np.dtype,
    chunk: tuple[int, ...],
    filters: tuple[Filter, ...],
    order: tuple[int, ...] = (),
) -> Array:
    """Decode a chunk, of the shape that it has in the file: at the edges larger than the block.

    ``order`` are its axes in the order in which the block has them, where that is another one.
    """
    fetched = fetch(block.file, block.offset, block.offset + block.nbytes)
    data = fetched
    size = stored.itemsize * math.prod(chunk)
    codec = codec_of(filters)
    try:
        if codec is not None:
            check_room(codec, len(data), size)
        for number, values in reversed(filters):
            data = FILTERS[number](data, values, size)
    except CODEC_ERRORS as error:
        raise corrupt_chunk(block, "data of its filters", error) from error
    if len(data) != size:
        raise corrupt_chunk(block, f"{size} bytes", f"{len(data)} bytes")
    inside = tuple(slice(n) for n in as_stored(block.shape, order))
    pixels: Array = data.view(stored).reshape(chunk)[inside]
    pixels = pixels.transpose(order) if order else pixels
    # Some filters leave the bytes where they are, which is not theirs for long.
    return pixels.astype(dtype, copy=np.may_share_memory(data, fetched))


def as_stored(values: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Put numbers, one for each axis of a block, in the order of the axes in the file."""
    return tuple(values[order.index(axis)] for axis in range(len(order))) if order else values


def complex_type(dtype: np.dtype) -> np.dtype | None:
    """Return the complex type of pairs of numbers that are called real and imaginary part."""
    if dtype.names is None or [name[:4].lower() for name in dtype.names] != ["real", "imag"]:
        return None
    real, imaginary = (dtype[name] for name in dtype.names)
    size = real.itemsize
    if real != imaginary or real.kind != "f" or size not in {4, 8}:
        return None
    made = np.dtype({"names": dtype.names, "formats": [real, real]})
    return np.dtype(f"{real.byteorder}c{2 * size}") if made == dtype else None


def corrupt_chunk(block: Block, expected: str, found: object) -> CorruptFileError:
    """Say that a chunk cannot be decoded."""
    path, problem, where = block.file.path, "a chunk cannot be decoded", f"byte {block.offset}"
    return CorruptFileError(problem, path=path, where=where, expected=expected, found=found)
