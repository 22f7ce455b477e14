"""HDF5 filters as codecs, which decode without the HDF5 library.

The HDF5 library runs one call at a time in a process; codecs run concurrently. Chunks with other
filters are decoded by the library, in another process.

Layout facts: the HDF5 File Format Specification, version 3.0, "Filter Pipeline Message"; the list
of registered filter plugins of The HDF Group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask_tiled.codecs.byte_codecs import SHUFFLES
from dask_tiled.codecs.hdf5_filters import SZIP_OPTIONS

Filter = tuple[int, tuple[int, ...]]
"""The code of a filter, and its parameters."""
Codec = dict[str, Any]

DEFLATE, SHUFFLE, FLETCHER32, SZIP, BZIP2 = 1, 2, 3, 4, 307
LZF, BLOSC, LZ4, BITSHUFFLE, ZSTD = 32000, 32001, 32004, 32008, 32015
COMPRESSORS = "blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"
"""Compressors of Blosc, by number."""
BLOCKS = {0: "", 2: "lz4", 3: "zstd"}
"""Compressors of bitshuffle blocks, by number."""


def _level(values: Sequence[int]) -> int:
    """Return the compression level, clipped to the range that readers accept."""
    return min(max((*values, 1)[0], 1), 9)


def _szip(values: Sequence[int]) -> Codec:
    options = dict(zip(SZIP_OPTIONS, values, strict=False))
    return {"name": "dask_tiled.szip", "configuration": options}


def _blosc(values: Sequence[int]) -> Codec:
    _, _, typesize, _, level, shuffle, compressor = (*values, *(0,) * 7)[:7]
    return {
        "name": "blosc",
        "configuration": {
            "typesize": typesize,
            "clevel": level,
            "shuffle": SHUFFLES[shuffle % 3],
            "cname": COMPRESSORS[compressor % 6],
            "blocksize": 0,
        },
    }


def _bitshuffle(values: Sequence[int]) -> Codec:
    itemsize, blocksize, method = (*values[2:], 0, 0, 0)[:3]
    sizes = {"elementsize": itemsize, "blocksize": blocksize}
    return {"name": "dask_tiled.bitshuffle", "configuration": {**sizes, "cname": BLOCKS[method]}}


CODECS: Mapping[int, Callable[[Sequence[int]], Codec]] = {
    DEFLATE: lambda v: {"name": "numcodecs.zlib", "configuration": {"level": _level(v)}},
    SHUFFLE: lambda v: {"name": "numcodecs.shuffle", "configuration": {"elementsize": v[0]}},
    FLETCHER32: lambda _: {"name": "numcodecs.fletcher32"},
    SZIP: _szip,
    BZIP2: lambda v: {"name": "numcodecs.bz2", "configuration": {"level": _level(v)}},
    LZF: lambda _: {"name": "dask_tiled.lzf"},
    BLOSC: _blosc,
    LZ4: lambda _: {"name": "dask_tiled.lz4h5"},
    BITSHUFFLE: _bitshuffle,
    ZSTD: lambda v: {"name": "zstd", "configuration": {"level": (*v, 3)[0], "checksum": False}},
}
"""Codec by filter number, from the filter's parameters."""


def codecs_of(filters: Sequence[Filter]) -> list[Codec] | None:
    """Return the codecs of a filter pipeline; None if only the HDF5 library can decode it.

    At most one compressor, and one checksum, which comes last: then the size after every step is
    known.
    """
    numbers = [number for number, _ in filters]
    compressors = [number for number in numbers if number not in {SHUFFLE, FLETCHER32}]
    if len(compressors) > 1 or FLETCHER32 in numbers[:-1]:
        return None
    try:
        return [CODECS[number](values) for number, values in filters]
    except LookupError:
        return None
