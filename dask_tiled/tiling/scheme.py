"""Result of the negotiation: chunks, the tiles inside them, and a reason for each number.

The result is a pure function of the arguments: no file is accessed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import TilingError
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description
from dask_tiled.model.tables import html_table, text_table
from dask_tiled.tiling import drawing
from dask_tiled.tiling.bases import Base, Chunks, bases, frames_base, split
from dask_tiled.tiling.negotiation import (
    Question,
    TilingRequest,
    as_requests,
    check_count,
    check_positive,
    chunk_limit,
    make_chunks,
    tile_shape,
)
from dask_tiled.tiling.pictures import Drawing, picture
from dask_tiled.tiling.sizes import least_count, read_chunks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class TilingScheme:
    """Negotiated chunks and tiles.

    Attributes
    ----------
    chunks : tuple of tuple of int
        dask chunks of the array.
    tile_shape : tuple of int
        Shape of the tiles inside a chunk: frames, then signal axes. Tiles at the borders of a chunk
        may be smaller.
    reasons : tuple of (str, str)
        Decisions and their reasons.
    dims : tuple of str
        Names of the axes.
    dtype : numpy.dtype
        Dtype of the pixels of a tile.
    bases : tuple of Base
        Blocks of the file along each axis.
    requests : tuple of TilingRequest
        Requests of the consumers.
    block_bytes : int or None
        Largest size of the blocks that functions of ``map_blocks`` get, if chunks are larger.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> scheme = dask_tiled.scheme_of(arr)
    >>> isinstance(scheme, dask_tiled.TilingScheme)
    True
    >>> print(scheme.explain())
    consumers    by tile
    ...
    """

    chunks: Chunks
    tile_shape: tuple[int, ...]
    reasons: tuple[tuple[str, str], ...]
    dims: tuple[str, ...]
    dtype: np.dtype
    bases: tuple[Base, ...]
    requests: tuple[TilingRequest, ...]
    block_bytes: int | None = None

    def explain(self) -> str:
        """Return a table of the decisions and their reasons."""
        return text_table(self.reasons)

    def tiles(self, block_id: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
        """Yield the tiles of a chunk, none of which cuts a block of the file.

        Parameters
        ----------
        block_id : tuple of int
            Index of the chunk along each axis.

        Yields
        ------
        tuple of slice
            Slices of the frames of the chunk, in C order, and of each signal axis of the
            chunk. All tiles of the same frames follow one another.
        """
        ends = map(itertools.pairwise, self._edges(block_id))
        return itertools.product(*([slice(*both) for both in axis] for axis in ends))

    def _edges(self, block_id: Sequence[int]) -> list[list[int]]:
        """Return the bounds of the tiles of a chunk, along frames and each signal axis."""
        starts = [sum(axis[:i]) for axis, i in zip(self.chunks, block_id, strict=True)]
        sizes = [axis[i] for axis, i in zip(self.chunks, block_id, strict=True)]
        nav_ndim = len(sizes) - len(self.tile_shape) + 1
        bases = [base.at(start) for base, start in zip(self.bases, starts, strict=True)]
        frames = frames_base(sizes[:nav_ndim], bases[:nav_ndim])
        lengths = (math.prod(sizes[:nav_ndim]), *sizes[nav_ndim:])
        axes = zip(lengths, self.tile_shape, (frames, *bases[nav_ndim:]), strict=True)
        parts = (split(length, size, base.lead % size) for length, size, base in axes)
        return [list(itertools.accumulate(axis, initial=0)) for axis in parts]

    def plot(self) -> Figure:
        """Draw the chunks over the array and the tiles over a chunk.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        return drawing.figure(self.picture())

    def _repr_html_(self) -> str:
        return f"<div>{drawing.svg(self.picture())}{html_table(self.reasons)}</div>"

    def picture(self, axes: Sequence[Axis] = ()) -> Drawing:
        """Compose the picture for :meth:`plot` and notebooks; the largest chunk is the example.

        With ``axes``, scales are drawn.
        """
        block = tuple(axis.index(max(axis)) for axis in self.chunks)
        edges = self._edges(block)
        named = axes or tuple(map(Axis, self.dims))
        return picture(self.chunks, named, block, self.tile_shape, self.dtype, edges)


def negotiate(
    desc: Description,
    requests: TilingRequest | Sequence[TilingRequest] = (),
    *,
    chunk_bytes: int | None = None,
    chunks: Any = None,
    cache_bytes: int | None = None,
    memory_bytes: int | None = None,
    processors: int | None = None,
    align_bytes: int = 1,
    dtype: npt.DTypeLike | None = None,
) -> TilingScheme:
    """Negotiate chunks and tiles that suit a file and all its consumers.

    Parameters
    ----------
    desc : Description
        The array.
    requests : TilingRequest or sequence of them, optional
        Requests of the consumers; by default, tiles of the usual size.
    chunk_bytes : int, optional
        Largest size of a decoded chunk; by default dask's ``array.chunk-size``, or less if memory
        or the number of processors require it, or more if there were more than 10,000 chunks.
        Frames that are larger are cut, in whole blocks of the file, unless a consumer requests
        whole frames.
    chunks : optional
        Fixed chunks, in dask's notation; then only the tiles are negotiated.
    cache_bytes : int, optional
        Cache of one thread: the usual tile is half of it, between 128 KiB and 1 MiB. By default
        the size of tiles is ``dask-tiled.tile-bytes`` of dask's configuration; if that is not
        set, it follows from the cache of this machine.
    memory_bytes : int, optional
        Memory per thread; by default that of the workers if there is a client of
        dask.distributed, and that of the machine otherwise. ``chunk_bytes`` overrides it.
    processors : int, optional
        Number of processors: there are two chunks for each, as long as chunks have 16 MiB. By
        default those that this process may use, even if workers run elsewhere.
        ``chunk_bytes`` overrides it.
    align_bytes : int
        Chunks begin at multiples of this in the file if that costs nothing: 4096 for direct
        input and output.
    dtype : dtype_like, optional
        Dtype that consumers get; by default that of the description.

    Returns
    -------
    TilingScheme
        Chunks and tiles, each with its reason.

    Raises
    ------
    TilingError
        An argument is invalid.

    Examples
    --------
    >>> import dask_tiled
    >>> desc = dask_tiled.describe(dask_tiled.samples.gold())
    >>> scheme = dask_tiled.negotiate(desc, chunk_bytes=2**24, cache_bytes=2**20)
    >>> scheme.chunks[0]
    (8, 8, 8, 8, 8, 8, 8, 4)
    """
    if not isinstance(desc, Description):
        raise TilingError(
            "not a description", expected="what describe() returns", found=type(desc).__name__
        )
    wishes = as_requests(requests)
    q = Question(desc, wishes, desc.dtype if dtype is None else np.dtype(dtype), bases(desc))
    q.say_known()
    check_positive("align_bytes", align_bytes)
    block_bytes = None
    if chunks is None:
        limit = chunk_limit(q, chunk_bytes, memory_bytes, processors, align_bytes)
        asked = chunk_bytes is not None or any(wish.nbytes is not None for wish in wishes)
        chunks, block_bytes = make_chunks(q, limit.nbytes, align_bytes, asked=asked), limit[1]
    else:
        check_count(desc, least_count(chunks, desc.shape, desc.dtype, desc.dims))
        chunks = read_chunks(chunks, desc.shape, desc.dtype, desc.dims)
        sizes = tuple(map(max, chunks))
        q.say("chunks", f"{sizes} at most: as given, or left by slicing")
    tile = tile_shape(q, tuple(map(max, chunks)), cache_bytes)
    given = tuple(q.reasons), desc.dims, q.dtype, q.bases, wishes, block_bytes
    return TilingScheme(chunks, tile, *given)
