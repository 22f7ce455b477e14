"""The negotiation between what a file can do and what its consumers want.

A pure function of its arguments: no file is touched, and the same question gets the same answer.
What the machine has stands in for arguments that are not given.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import TilingError
from dask_tiled.model.description import Description
from dask_tiled.tiling import drawing, machine
from dask_tiled.tiling.bases import Base, bases, read_chunks
from dask_tiled.tiling.pictures import Picture, picture
from dask_tiled.tiling.requests import Question, TilingRequest, as_requests, check_positive
from dask_tiled.tiling.shapes import Chunks, chunk_limit, make_chunks, tile_edges, tile_shape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TilingRequest", "TilingScheme", "as_requests", "negotiate"]


@dataclass(frozen=True, slots=True)
class TilingScheme:
    """The negotiated answer.

    Attributes
    ----------
    chunks : tuple of tuple of int
        dask chunks of the array.
    tile_shape : tuple of int
        Shape of the tiles inside a chunk: frames, then signal axes. Tiles at the borders of a chunk
        may be smaller.
    reasons : tuple of (str, str)
        What was decided, and why.
    dims : tuple of str
        Names of the axes.
    dtype : numpy.dtype
        Type of the pixels of a tile.
    bases : tuple of Base
        Where each axis may be cut without cutting a block of the file.
    requests : tuple of TilingRequest
        What the consumers wish.
    """

    chunks: Chunks
    tile_shape: tuple[int, ...]
    reasons: tuple[tuple[str, str], ...]
    dims: tuple[str, ...]
    dtype: np.dtype
    bases: tuple[Base, ...]
    requests: tuple[TilingRequest, ...]

    def explain(self) -> str:
        """Tell in words how the numbers came about."""
        width = max(len(name) for name, _ in self.reasons)
        return "\n".join(f"{name:<{width}}  {reason}" for name, reason in self.reasons)

    def tiles(self, block_id: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
        """Cut a chunk into its tiles, none of which cuts a block of the file.

        Parameters
        ----------
        block_id : tuple of int
            Number of the chunk along each axis.

        Yields
        ------
        tuple of slice
            Of the frames of the chunk, put one after the other, and of each signal axis of the
            chunk. All tiles of the same frames follow one another.
        """
        edges = self._edges(block_id)
        axes = [[slice(*ends) for ends in itertools.pairwise(axis)] for axis in edges]
        return itertools.product(*axes)

    def _edges(self, block_id: tuple[int, ...]) -> list[list[int]]:
        axes = list(zip(self.chunks, block_id, strict=True))
        starts = [sum(sizes[:i]) for sizes, i in axes]
        sizes = [sizes[i] for sizes, i in axes]
        return tile_edges(starts, sizes, self.tile_shape, self.bases)

    def plot(self) -> Figure:
        """Draw the chunks over the array and the tiles over a chunk.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ImportError
            There is no matplotlib.
        """
        return drawing.figure(self.picture())

    def _repr_html_(self) -> str:
        return drawing.page(self.picture(), self.reasons)

    def picture(self) -> Picture:
        """Compose what :meth:`plot` and notebooks show, with the largest chunk as an example."""
        largest = tuple(max(axis) for axis in self.chunks)
        block = tuple(axis.index(n) for axis, n in zip(self.chunks, largest, strict=True))
        edges = self._edges(block)
        return picture(self.chunks, self.dims, block, self.tile_shape, self.dtype, edges)


def negotiate(
    desc: Description,
    requests: TilingRequest | Sequence[TilingRequest] = (),
    *,
    chunk_bytes: int | None = None,
    chunks: Any = None,
    cache_bytes: int | None = None,
    memory_bytes: int | None = None,
    align_bytes: int = 1,
    dtype: npt.DTypeLike | None = None,
) -> TilingScheme:
    """Find chunks and tiles that suit a file and all its consumers.

    Parameters
    ----------
    desc : Description
        The array.
    requests : TilingRequest or sequence of them, optional
        What the consumers wish; without any, tiles of the usual size.
    chunk_bytes : int, optional
        Largest size of a decoded chunk; by default dask's ``array.chunk-size``, or what the memory
        allows if that is less. A chunk holds at least one frame even if that is larger.
    chunks : optional
        Chunks that are settled already, as dask takes them; only the tiles are negotiated then.
    cache_bytes : int, optional
        Cache of one thread: the usual tile is half of it, between 128 KiB and 1 MiB. By default
        the size of tiles is ``dask-tiled.tile-bytes`` of dask's configuration, or if that is not
        set, what suits the cache of this machine.
    memory_bytes : int, optional
        Memory that one thread may use; by default that of the workers if there is a client of
        dask.distributed, and that of the machine otherwise. ``chunk_bytes`` overrules it.
    align_bytes : int
        Chunks begin at multiples of this in the file where that costs nothing: 4096 for direct
        input and output.
    dtype : dtype_like, optional
        Type that consumers get; by default that of the description.

    Returns
    -------
    TilingScheme

    Raises
    ------
    TilingError
        An argument is none of these.
    """
    if not isinstance(desc, Description):
        raise TilingError(
            "not a description", expected="what describe() returns", found=type(desc).__name__
        )
    wishes = as_requests(requests)
    q = Question(desc, wishes, desc.dtype if dtype is None else np.dtype(dtype), bases(desc))
    _say_what_is_known(q)
    check_positive("align_bytes", align_bytes)
    if chunks is None:
        chunks = _chunks(q, chunk_bytes, memory_bytes, align_bytes)
    else:
        chunks = read_chunks(chunks, desc.shape, desc.dtype, desc.dims)
        q.say("chunks", f"{_largest(chunks)} at most: as given, or as slicing left them")
    tile = tile_shape(q, _largest(chunks), cache_bytes)
    return TilingScheme(chunks, tile, tuple(q.reasons), desc.dims, q.dtype, q.bases, wishes)


def tile_for(
    desc: Description, requests: Sequence[TilingRequest], chunks: Chunks
) -> tuple[int, ...]:
    """Give the shape of tiles that suits several consumers of chunks that are there already."""
    question = Question(desc, tuple(requests), desc.dtype, bases(desc))
    return tile_shape(question, _largest(chunks), None)


def _largest(chunks: Chunks) -> tuple[int, ...]:
    return tuple(max(axis) for axis in chunks)


def _say_what_is_known(q: Question) -> None:
    counts = Counter(sorted(map(str, q.wishes)))
    wishes = [text + f", {n} times" * (n > 1) for text, n in counts.items()]
    q.say("consumers", "; ".join(wishes))
    if any(base.size > 1 for base in q.bases):
        sizes = tuple(base.size for base in q.bases)
        q.say("base shape", f"{sizes}: what the file is read in; no smaller part is cut out")
    native = q.desc.layout.dtype
    if q.dtype != native:
        q.say("dtype", f"{q.dtype}: what {native} is converted to; sizes count its bytes")


def _chunks(
    q: Question, chunk_bytes: int | None, memory_bytes: int | None, align_bytes: int
) -> Chunks:
    memory, whose = 0, ""
    if memory_bytes is not None:
        memory, whose = check_positive("memory_bytes", memory_bytes), "as given"
    elif chunk_bytes is None:
        memory, whose = machine.thread_memory()
    return make_chunks(q, chunk_limit(q, chunk_bytes, memory, whose), align_bytes)
