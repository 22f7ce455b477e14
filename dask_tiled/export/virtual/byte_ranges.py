"""Chunks of zarr that are a range of bytes each, in files that stay as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.description import Description


class Chunk(NamedTuple):
    """A chunk that is a range of bytes of a file.

    Attributes
    ----------
    place : tuple of int
        Where it is, counted in chunks.
    file, offset, nbytes : int
        Number of the file, and the range in it.
    """

    place: tuple[int, ...]
    file: int
    offset: int
    nbytes: int


class ByteRanges(NamedTuple):
    """Chunks of one shape that were all written with the same codecs.

    Attributes
    ----------
    shape : tuple of int
        Shape of a chunk.
    chunks : list of Chunk
        Where they lie, in C order; those that are missing are not among them.
    codecs : list of dict
        Documents of zarr 3, in the order in which a chunk was written.
    dtype : numpy.dtype
        Type of the pixels, in the byte order in which they are stored.
    fill : scalar
        Value of the pixels that no chunk holds.
    edge : tuple of int
        Shape of chunks at an edge that are stored without what lies outside; empty if none are.
    """

    shape: tuple[int, ...]
    chunks: list[Chunk]
    codecs: list[dict[str, Any]]
    dtype: np.dtype
    fill: Any
    edge: tuple[int, ...] = ()


def refused(desc: Description, why: str) -> DatasetError:
    """Return the error that says why there are no references."""
    return DatasetError(
        f"no references can be made: the pixels {why}",
        path=desc.files[0].path,
        hint="as_zarr shows them without a copy, to_zarr copies them.",
    )
