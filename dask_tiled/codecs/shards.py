"""The index of a shard of zarr: where its chunks begin, and how long they are.

Layout facts: the specification of the codec ``sharding_indexed`` of zarr 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.codecs.byte_codecs import without_crc32c
from dask_tiled.model.indexing import Index

Bytes = npt.NDArray[np.uint8]

PLAIN, SEALED = ("bytes",), ("bytes", "crc32c")
"""What zarr takes for the codecs of chunks and of the index where a shard does not say them."""
ABSENT = 2**64 - 1
"""What the index has for a chunk that is not there."""


def named(codecs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return codecs as mappings: documents may have the name alone."""
    return [{"name": one} if isinstance(one, str) else dict(one) for one in codecs]


def index_size(shards: Mapping[str, Any], count: int) -> int:
    """Return how many bytes the index of a shard with ``count`` chunks has.

    Raises
    ------
    ValueError
        It is packed.
    """
    names = tuple(codec["name"] for codec in named(shards.get("index_codecs", SEALED)))
    if names not in (PLAIN, SEALED):
        raise ValueError(f"an index of shards that is packed by {names}")
    return 16 * count + 4 * (len(names) - 1)


def read_index(data: Bytes, size: int) -> Index:
    """Read an index: offsets and lengths; -1 and 0 for chunks that the shard lacks.

    Raises
    ------
    ValueError
        It is damaged.
    """
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes for an index of {size}")
    sealed = without_crc32c(data) if size % 16 else data
    found = np.frombuffer(sealed, "<u8").reshape(-1, 2)
    absent = (found == np.uint64(ABSENT)).all(axis=1)
    if (found[~absent] >> np.uint64(62)).any():
        raise ValueError("a chunk beyond the end of any file")
    places: Index = np.where(absent[:, None], [[-1, 0]], found.astype(np.int64))
    return places
