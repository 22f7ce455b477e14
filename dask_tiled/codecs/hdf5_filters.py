"""Codecs that HDF5 alone has: bitshuffle with its blocks, LZ4 in blocks, LZF and SZIP.

Layout facts: the HDF5 File Format Specification, version 3.0, "Filter Pipeline Message"; the list
of registered filter plugins of The HDF Group; for bitshuffle the source of its filter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Config = Mapping[str, Any]


def _library() -> Any:
    import imagecodecs

    return imagecodecs


def unlzf(config: Config, data: Bytes, out: Bytes) -> Any:
    """Decode LZF without a header."""
    return _library().lzf_decode(data, out=out)


def unlz4(config: Config, data: Bytes, out: Bytes) -> Any:
    """Decode LZ4 in blocks behind their lengths."""
    return _library().lz4h5_decode(data, out=out)


def unszip(config: Config, data: Bytes, out: Bytes) -> Any:
    """Decode SZIP behind the number of bytes that it makes."""
    names = "options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline"
    options = (config[name] for name in names)
    return _library().szip_decode(data, *options, header=True, out=out)


def unbitshuffle(config: Config, data: Bytes, out: Bytes) -> Bytes:
    """Put the bits of every 8 elements together again; they lie in rows, block by block.

    ``config`` has the ``elementsize`` in bytes, the ``blocksize`` in elements, 0 for the usual one,
    and the compressor of blocks: ``cname``, which may be empty.
    """
    itemsize, count, size = config["elementsize"], config["blocksize"], len(out)
    if config["cname"]:
        count = int.from_bytes(data[8:12].tobytes(), "big") // itemsize
        rest = size // itemsize % 8 * itemsize
        data = _joined(data, count * itemsize, size, rest, config["cname"])
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes")
    _library().bitshuffle_decode(data.data, itemsize=itemsize, blocksize=count, out=out)
    return out


def _joined(data: Bytes, block: int, size: int, rest: int, cname: str) -> Bytes:
    """Decompress what was bitshuffled: blocks after their lengths, and a rest that is not packed.

    It begins as LZ4 does, with the size of all and of a block; all sizes are in bytes.
    """
    codecs, view, at = _library(), data.data, 12
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
    if cname == "zstd":
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
