"""The index of a zarr shard: offsets and lengths of its chunks.

Layout facts: the specification of the codec ``sharding_indexed`` of zarr 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dask_tiled.codecs.checksums import without_crc32c
from dask_tiled.errors import CorruptFileError, TruncatedFileError
from dask_tiled.model.indexing import Index

PLAIN, SEALED = ("bytes",), ("bytes", "crc32c")
"""Default codecs of the chunks, and of the index, of a shard."""
BIG = {"endian": "big"}
ABSENT = 2**64 - 1
"""Offset and length of a missing chunk in the index."""


def named(codecs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return codecs as mappings; a codec may be given by its name only."""
    return [{"name": one} if isinstance(one, str) else dict(one) for one in codecs]


def _index_codecs(shards: Mapping[str, Any]) -> list[dict[str, Any]]:
    return named(shards.get("index_codecs", SEALED))


def index_size(shards: Mapping[str, Any], count: int) -> int:
    """Return the size in bytes of the index of a shard with ``count`` chunks.

    Raise a ValueError if the index is compressed.
    """
    codecs = _index_codecs(shards)
    names = tuple(codec["name"] for codec in codecs)
    if names not in (PLAIN, SEALED):
        raise ValueError(f"a shard index compressed by {codecs}")
    return 16 * count + 4 * (len(names) - 1)


def read_index(
    fetch: Callable[[int, int], Any],
    size: int,
    shards: Mapping[str, Any],
    count: int,
    path: str | None = None,
) -> Index:
    """Read the offsets and lengths of the chunks of a shard.

    Parameters
    ----------
    fetch : callable
        ``fetch(start, stop)`` returns bytes of the shard.
    size : int
        Size of the shard in bytes.
    shards : mapping
        Configuration of the sharding codec.
    count : int
        Number of chunks in the shard.
    path : str, optional
        Path of the shard, for errors.

    Returns
    -------
    int64 array, of shape (count, 2)
        Offsets and lengths; -1 and 0 for chunks that the shard lacks.

    Raises
    ------
    TruncatedFileError
        The index, or a chunk, reaches beyond the shard.
    CorruptFileError
        The index is damaged.
    """
    nbytes = index_size(shards, count)
    at = size - nbytes if shards.get("index_location", "end") == "end" else 0
    if nbytes > size:
        raise TruncatedFileError("a shard is too short", path=path, expected=nbytes)
    try:
        places = parse_index(fetch(at, at + nbytes), nbytes, shards)
    except ValueError as error:
        problem, where = "the index of a shard is damaged", f"byte {at}"
        raise CorruptFileError(problem, path=path, where=where, found=str(error)) from error
    beyond = places[places.sum(axis=1) > size]
    if len(beyond):
        problem, found = "a chunk reaches beyond its shard", beyond[0].tolist()
        raise TruncatedFileError(problem, path=path, expected=f"{size} bytes", found=found)
    return places


def parse_index(data: Any, size: int, shards: Mapping[str, Any]) -> Index:
    """Parse an index of ``size`` bytes into offsets and lengths; -1 and 0 for missing chunks.

    Raise a ValueError if the index is damaged.
    """
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes instead of an index of {size}")
    sealed = without_crc32c(data) if size % 16 else data
    numbers = ">u8" if _index_codecs(shards)[0].get("configuration") == BIG else "<u8"
    found = np.frombuffer(sealed, numbers).reshape(-1, 2)
    absent = (found == np.uint64(ABSENT)).all(axis=1)
    if (found[~absent] >> np.uint64(62)).any():
        raise ValueError("a chunk beyond the end of any file")
    places: Index = np.where(absent[:, None], [[-1, 0]], found.astype(np.int64))
    return places
