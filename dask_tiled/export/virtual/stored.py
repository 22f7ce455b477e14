"""The chunks and codecs of references to an opened array."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from dask_tiled.export.virtual.stored_blocks import codecs_of, numcodecs_of, stored_blocks
from dask_tiled.export.virtual.stored_frames import Chunk, chunks_of, refused, stored_frames
from dask_tiled.model.description import Description


class Stored(NamedTuple):
    """Chunks that are a range of bytes each.

    Attributes
    ----------
    shape : tuple of int
        Shape of a chunk.
    chunks : list of Chunk
        Where they lie; those that are missing are not among them.
    options : dict
        What :func:`zarr.create_array` takes for their codecs.
    """

    shape: tuple[int, ...]
    chunks: list[Chunk]
    options: dict[str, Any]

    @property
    def zarr_format(self) -> int:
        """Format of zarr."""
        return int(self.options.get("zarr_format", 3))


def stored(desc: Description, zarr_format: Literal[2, 3] | None) -> Stored:
    """Choose chunks and their codecs; without a format, that which most readers know.

    Raises
    ------
    DatasetError
        There are no such chunks, or the format cannot say what they are.
    """
    blocks = stored_blocks(desc)
    if blocks is not None:
        usual = None if zarr_format == 3 else numcodecs_of(blocks, ours=zarr_format == 2)
        if zarr_format == 2 and usual is None:
            raise refused(desc, "need a fill value or codecs, for which there is zarr format 3")
        return Stored(blocks.shape, blocks.chunks, usual or codecs_of(blocks))
    frames = stored_frames(desc)
    dtype = frames.plain_dtype()
    missing = bool((frames.file < 0).any())
    if zarr_format == 2 and missing:
        raise refused(desc, "need a plain fill value, for which there is zarr format 3")
    shape, listed = chunks_of(desc, frames, whole=dtype is None)
    if zarr_format == 2 or (zarr_format is None and dtype is not None and not missing):
        return Stored(shape, [*listed], frames.numcodecs(dtype))
    return Stored(shape, [*listed], frames.codecs(dtype))
