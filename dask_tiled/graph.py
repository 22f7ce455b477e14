"""From a description and a scheme to a dask array that slices its source."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.description import Description
from dask_tiled.division import read_chunks
from dask_tiled.errors import TilingError
from dask_tiled.loader import Edges, Source, decode, load
from dask_tiled.reductions import Reducible, reduce_array
from dask_tiled.tiling import TilingRequest, TilingScheme, negotiate

Chunks = tuple[tuple[int, ...], ...]
CutIndex = tuple[int, int, int, bool]


class TiledArray(da.Array):
    """A dask array that remembers what it was opened from.

    Integers, slices with a positive step and an ellipsis cut the source, so a crop reads only the
    bytes of the crop. Every other operation gives a plain dask array. The graph is made when it is
    first asked for.

    Attributes
    ----------
    description : Description or None
        What the array shows; None once items have been assigned to it.
    requests : tuple of TilingRequest
        What its consumers wish.
    """

    __slots__ = ("_graph", "_source", "description", "requests")

    description: Description | None
    requests: tuple[TilingRequest, ...]
    _source: Source
    _graph: HighLevelGraph | None

    def __new__(  # noqa: D102, PYI034 - dask's class is made this way
        cls,
        description: Description,
        chunks: Chunks,
        io: str,
        requests: tuple[TilingRequest, ...] = (),
        edges: tuple[Edges, ...] | None = None,
    ) -> TiledArray:
        self = object.__new__(cls)
        self.description = description
        self.requests = requests
        self._graph = None
        self._source = Source(
            description.layout, description.conversion, edges or tuple(map(Edges, chunks)), io
        )
        self._name = _name(description, self._source)
        self._chunks = chunks
        self._meta = np.empty((0,) * len(chunks), dtype=description.dtype)
        return self

    @property
    def dask(self) -> HighLevelGraph:
        """The graph: load, then decode, once per chunk."""
        if self._graph is None:
            self._graph = _symbolic(self._source, self.chunks, self.name).dask
        return self._graph

    @dask.setter
    def dask(self, graph: HighLevelGraph) -> None:
        # dask sets a graph when items are assigned: from then on this is a plain array.
        self._graph = graph
        self.description = None

    def __getitem__(self, index: Any) -> da.Array:
        cuts = basic_cuts(index, self.shape)
        if cuts is None or self.description is None:
            return super().__getitem__(index)
        if all(cut == (0, 1, n, True) for cut, n in zip(cuts, self.shape, strict=True)):
            return self
        chunks, edges = [], []
        for axis_chunks, axis_edges, cut in zip(self.chunks, self._source.edges, cuts, strict=True):
            if cut == (0, 1, axis_edges.size, True):  # the same objects: there may be a million
                chunks.append(axis_chunks)
                edges.append(axis_edges)
            elif cut[3]:
                chunks.append(cut_chunks(axis_chunks, cut))
                edges.append(Edges(chunks[-1]))
        description = self.description.cut(cuts)
        return TiledArray(description, tuple(chunks), self._source.io, self.requests, tuple(edges))

    def reducible(self) -> Reducible:
        """Give what reductions on tiles need; items must not have been assigned to the array."""
        assert self.description is not None  # noqa: S101 - for the type checker
        if self.size and any(0 in axis for axis in self.chunks):  # no pixels have no mean
            return self.with_chunks(
                tuple(tuple(n for n in axis if n) for axis in self.chunks)
            ).reducible()
        return Reducible(self, self.description.nav_ndim, (self.description, self._source))

    def with_chunks(self, chunks: Any) -> TiledArray:
        """Show the same pixels in other chunks, as dask takes them: they are read so."""
        if self.description is None:
            raise TilingError("items have been assigned to the array", hint="Use rechunk().")
        chunks = read_chunks(chunks, self.shape, self.dtype, self.description.dims)
        return TiledArray(self.description, chunks, self._source.io, self.requests)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Let numpy's reductions of this array be its methods."""
        name = func.__name__
        if name in REDUCTIONS and func is getattr(np, name, None) and args and args[0] is self:
            return getattr(self, name)(*args[1:], **kwargs)
        return super().__array_function__(func, types, args, kwargs)

    def copy(self) -> da.Array:
        """Copy the array, not its pixels."""
        if self.description is None:
            return super().copy()
        return TiledArray(self.description, self.chunks, self._source.io, self.requests)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.description is None:
            return super().__reduce__()
        return TiledArray, (self.description, self.chunks, self._source.io, self.requests)


def _reduction(name: str) -> Any:
    """Make a method that reduces on tiles where that is possible, and as dask does elsewhere."""
    plain = getattr(da.Array, name)
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def method(self: TiledArray, *args: Any, **kwargs: Any) -> da.Array:
        given = signature.bind(self, *args, **kwargs).arguments
        options = {k: v for k, v in given.items() if k != "self" and v is not None}
        if self.description is not None and not options.keys() - TILED_OPTIONS:
            found = reduce_array(
                self.reducible(),
                name,
                options.get("axis"),
                keepdims=bool(options.get("keepdims")),
                split_every=options.get("split_every"),
                **({"ddof": options["ddof"]} if "ddof" in options else {}),
            )
            if found is not None:
                return found
        result: da.Array = plain(self, *args, **kwargs)
        return result

    return method


REDUCTIONS = ("sum", "mean", "min", "max", "any", "all", "var", "std")
"""Methods that work tile by tile, over all navigation axes, all signal axes, or everything."""
TILED_OPTIONS = {"axis", "keepdims", "split_every", "ddof"}
for _method in REDUCTIONS:
    setattr(TiledArray, _method, _reduction(_method))


def build(
    description: Description,
    scheme: TilingScheme,
    io: str,
    requests: tuple[TilingRequest, ...] = (),
) -> da.Array:
    """Make the array of a description.

    With dask's array expressions switched on it is a plain dask array.
    """
    if da.array_expr_enabled():
        edges = tuple(map(Edges, scheme.chunks))
        source = Source(description.layout, description.conversion, edges, io)
        return _symbolic(source, scheme.chunks, _name(description, source))
    return TiledArray(description, scheme.chunks, io, requests)


def _name(description: Description, source: Source) -> str:
    # A name of our own: dask would hash every number of the chunks to make one.
    return f"{description.format}-{tokenize(source)}"


def _symbolic(source: Source, chunks: Chunks, name: str) -> da.Array:
    """Make the plain dask array: a symbolic load and a symbolic decode, fused when computed."""
    meta = np.empty((0,) * len(chunks), dtype=source.conversion.dtype)
    # What is large is data of its own, which a cluster sends to each worker once.
    value = delayed(source, name=f"source-{name}", traverse=False) if source.is_large else source
    raw = da.map_blocks(
        load, value, chunks=chunks, dtype=meta.dtype, meta=meta, name=f"load-{name}"
    )
    return raw.map_blocks(decode, dtype=meta.dtype, meta=meta, name=name)


def scheme_of(arr: da.Array) -> TilingScheme:
    """Give the tiling scheme of an opened array, or of a slice of one.

    Raises
    ------
    TilingError
        The array is not one that was opened, or has been computed with.
    """
    if not isinstance(arr, TiledArray) or arr.description is None:
        raise TilingError(
            "the array has no tiling scheme",
            expected="an array from open_dataset, or a slice of one",
            found=type(arr).__name__,
        )
    scheme = negotiate(arr.description, arr.requests)
    if scheme.chunks == arr.chunks:
        return scheme
    return negotiate(arr.description, arr.requests, chunks=arr.chunks)


def basic_cuts(index: Any, shape: tuple[int, ...]) -> list[CutIndex] | None:
    """Read an index of integers, slices with a positive step and an ellipsis.

    Returns
    -------
    list of (start, step, count, kept) or None
        One for each axis; None for any other index, an empty or a wrong one.
    """
    items: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    ellipses = [k for k, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1 or len(items) - len(ellipses) > len(shape):
        return None
    at = ellipses[0] if ellipses else len(items)
    missing = len(shape) - (len(items) - len(ellipses))
    items = [*items[:at], *[slice(None)] * missing, *items[at + 1 :]]
    cuts = [_basic_cut(item, size) for item, size in zip(items, shape, strict=True)]
    return None if None in cuts else cuts  # type: ignore[return-value]


def _basic_cut(item: Any, size: int) -> CutIndex | None:
    if isinstance(item, slice):
        try:
            start, stop, step = item.indices(size)
        except TypeError:
            return None
        count = len(range(start, stop, step))
        if step < 0 or not count:
            return None
        return (start, step if count > 1 else 1, count, True)
    if isinstance(item, (bool, np.bool_)) or not isinstance(item, (int, np.integer)):
        return None
    at = operator.index(item)
    at += size * (at < 0)
    return (at, 1, 1, False) if 0 <= at < size else None


def cut_chunks(chunks: tuple[int, ...], cut: CutIndex) -> tuple[int, ...]:
    """Keep the edges of the chunks where they fall in a cut."""
    start, step, count, _ = cut
    if count == 1:
        return (1,)
    edges = np.cumsum((0, *chunks))
    before = np.clip(-(-(edges - start) // step), 0, count)
    sizes = np.diff(before)
    return tuple(sizes[sizes > 0].tolist())
