"""Zarr chunks that are byte ranges of files."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.description import Description


class StoredChunk(NamedTuple):
    """A chunk that is a byte range of a file.

    Attributes
    ----------
    place : tuple of int
        Position, counted in chunks.
    file, offset, nbytes : int
        Index of the file, and the range in it.
    """

    place: tuple[int, ...]
    file: int
    offset: int
    nbytes: int


class ByteRanges(NamedTuple):
    """Chunks of one shape with the same codecs.

    Attributes
    ----------
    shape : tuple of int
        Shape of a chunk.
    chunks : list of Chunk
        In C order, without missing ones.
    codecs : list of dict
        Zarr 3 codec documents, in the order of encoding.
    dtype : numpy.dtype
        Type of the pixels, in the byte order in which they are stored.
    fill : scalar
        Value of missing chunks.
    edge : tuple of int
        Shape of chunks at an edge that are stored without padding; empty if all are padded.
    """

    shape: tuple[int, ...]
    chunks: list[StoredChunk]
    codecs: list[dict[str, Any]]
    dtype: np.dtype
    fill: Any
    edge: tuple[int, ...] = ()


def refused(desc: Description, why: str) -> DatasetError:
    """Return the error for an array that references cannot express."""
    return DatasetError(
        f"references to this file are not possible: its pixels {why}",
        path=desc.files[0].path,
        hint="Use as_zarr, which reads them on request, or copy them with to_zarr.",
    )
