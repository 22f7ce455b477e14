"""Codecs that only HDF5 has: bitshuffle in blocks, LZ4 in blocks, LZF and SZIP.

Layout facts: the HDF5 File Format Specification, version 3.0, "Filter Pipeline Message"; the list
of registered filter plugins of The HDF Group; for bitshuffle the source of its filter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from dask_tiled.codecs.image_codecs import library
from dask_tiled.model.decoders import function_at
from dask_tiled.model.indexing import Bytes

Config = Mapping[str, Any]
SZIP_OPTIONS = "options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline"
"""Parameters of SZIP, in the order of HDF5 and imagecodecs."""
Decode = Callable[[Config, Bytes, Bytes], Any]


def claimed_bytes(name: str, config: Config, data: Bytes) -> int:
    """Return the decoded size that a chunk claims.

    Raise a ValueError if the chunk is shorter than its header.
    """
    if name == "dask_tiled.lzf":
        return int(config["nbytes"])
    if name == "dask_tiled.bitshuffle" and not config["cname"]:
        return len(data)
    order: Literal["little", "big"]
    length, order = (4, "little") if name == "dask_tiled.szip" else (8, "big")
    if len(data) < length:
        raise ValueError(f"{len(data)} bytes")
    return int.from_bytes(data[:length].tobytes(), order)


def unlzf(config: Config, data: Bytes, out: Bytes) -> Any:
    """Decode LZF without a header."""
    return library().lzf_decode(data, out=out)


def unlz4(config: Config, data: Bytes, out: Bytes) -> Any:
    """Decode LZ4 in blocks, each of which follows its length."""
    return library().lz4h5_decode(data, out=out)


def unszip(config: Config, data: Bytes, out: Bytes) -> Any:
    """Decode SZIP, which follows the decoded size."""
    options = (config[name] for name in SZIP_OPTIONS)
    return library().szip_decode(data, *options, header=True, out=out)


def unbitshuffle(unzstd: Decode, config: Config, data: Bytes, out: Bytes) -> Bytes:
    """Undo a bitshuffle, which stores the bits of every 8 elements in rows, block by block.

    ``config`` has the ``elementsize`` in bytes, the ``blocksize`` in elements (0 for the default),
    and the compressor of the blocks, ``cname``, which may be empty.
    """
    itemsize, block, size = config["elementsize"], config["blocksize"], len(out)
    packed, content = config["cname"], data
    if packed:
        block = int.from_bytes(data[8:12].tobytes(), "big") // itemsize
    elif len(data) != size:
        raise ValueError(f"{len(data)} bytes")
    else:
        block = block or max(128, 8192 // itemsize // 8 * 8)
    if packed == "zstd":
        content, rest = np.empty(size, np.uint8), size // itemsize % 8 * itemsize
        parts = [*_blocks(data, block, size, itemsize)]
        content[size - rest :] = parts.pop() if rest else ()
        if parts:
            content[: size - rest] = unzstd({}, np.concatenate(parts), content[: size - rest])
    zero, rows = np.zeros(1, np.int64), 0 if packed == "lz4" else block
    decode, sizes = kernel_of("bitshuffle"), zero + len(content)
    if not decode(content, zero, sizes, itemsize, rows, out, zero, size):
        if packed:  # raises if the lengths of blocks are invalid
            deque(_blocks(data, block, size, itemsize), 0)
        raise ValueError("a block is damaged")
    return out


def kernel_of(name: str) -> Any:
    """Return the compiled kernel of a module that decodes or encodes chunks."""
    return function_at(f"dask_tiled.kernels.{name}:compiled_kernel")()


def _blocks(data: Bytes, block: int, size: int, itemsize: int) -> Iterator[Bytes]:
    """Yield the stored bytes of each block, without the length before them.

    The data begin with the total size and the block size, and end with fewer than 8 uncompressed
    elements.
    """
    head, at, rest = data[:12].tobytes(), 12, size // itemsize % 8 * itemsize
    if int.from_bytes(head[:8], "big") != size or not block:
        raise ValueError(f"invalid header {head.hex()} of blocks of {size} bytes")
    for _ in range(0, size - rest, block * itemsize):
        stop = at + 4 + int.from_bytes(data[at : at + 4].tobytes(), "big")
        if stop + rest > len(data):
            raise ValueError(f"a block at bytes {at} to {stop} of {len(data)}")
        yield data[at + 4 : stop]
        at = stop
    if rest:
        yield data[at : at + rest]
