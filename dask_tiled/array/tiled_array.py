"""From a description and a scheme to a dask array that slices its source."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, Self

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.elementwise import Annotations, Chunks, ElementwiseArray, symbolic_graph
from dask_tiled.array.job_arrays import Reducible
from dask_tiled.array.reductions import reduce_array
from dask_tiled.array.tasks import decode, load, pixels_of
from dask_tiled.array.tile_layer import Pixels
from dask_tiled.errors import TilingError
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Cut
from dask_tiled.reading.source import Source
from dask_tiled.tiling.division import read_chunks
from dask_tiled.tiling.grid import Grid
from dask_tiled.tiling.negotiation import TilingScheme, negotiate


class TiledArray(ElementwiseArray):
    """A dask array that remembers what it was opened from.

    Integers, slices with a positive step and an ellipsis cut the source, so a crop reads only the
    bytes of the crop. Operators and ufuncs of such arrays of one shape, and of numbers, give a
    :class:`TiledExpression`. Every other operation gives a plain dask array. The graph is made when
    it is first asked for.
    """

    __slots__ = ("_description", "_scheme", "_source")

    _description: Description
    _source: Source
    _scheme: TilingScheme
    """Of a slice, that of what it is a slice of."""

    def __new__(  # noqa: D102 - dask's class is made this way
        cls,
        description: Description,
        scheme: TilingScheme,
        io: str,
        chunks: Chunks | None = None,
        grid: Grid | None = None,
        annotations: Annotations | None = None,
    ) -> Any:
        self = object.__new__(cls)
        self._description = description
        self._scheme = scheme
        self._source = Source(description.layout, description.conversion, io)
        chunks = scheme.chunks if chunks is None else chunks
        grid = grid or Grid.of(chunks)
        name = _name(description, self._source, grid)
        return self._show(self._source, name, chunks, grid, annotations)

    @property
    def description(self) -> Description | None:
        """What the array shows; None once items have been assigned to it."""
        return None if self._node is None else self._description

    @property
    def scheme(self) -> TilingScheme:
        """The chunks and tiles, with reasons."""
        if self._scheme.chunks != self.chunks:
            self._scheme = negotiate(self._description, self._scheme.requests, chunks=self.chunks)
        return self._scheme

    def _make_graph(self) -> HighLevelGraph:
        """Load, then decode, once per chunk."""
        functions: dict[str, Any] = {f"load-{self.name}": load, self.name: decode}
        return symbolic_graph(self.chunks, self._source, self._grid, functions)

    def _with(
        self,
        cuts: Sequence[Cut] | None,
        chunks: Chunks,
        grid: Grid | None,
        annotations: Annotations,
    ) -> Self:
        description = self._description if cuts is None else self._description.cut(cuts)
        io = self._source.io
        return type(self)(description, self._scheme, io, chunks, grid, annotations)

    def _read_chunks(self, chunks: Any) -> Chunks:
        return read_chunks(chunks, self.shape, self.dtype, self._description.dims)

    def reducible(self) -> Reducible:
        """Give what reductions on tiles need; items must not have been assigned to the array."""
        assert self.description is not None  # noqa: S101 - for the type checker
        if self.size and any(0 in axis for axis in self.chunks):  # no pixels have no mean
            return self.with_chunks(
                tuple(tuple(n for n in axis if n) for axis in self.chunks)
            ).reducible()
        pixels = Pixels(self.name, self.description, self._source, self.chunks)
        return Reducible(self, self.description.nav_ndim, pixels)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Let numpy's reductions of this array be its methods."""
        name = func.__name__
        if name in REDUCTIONS and func is getattr(np, name, None) and args and args[0] is self:
            return getattr(self, name)(*args[1:], **kwargs)
        return super().__array_function__(func, types, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._node is None:
            return super().__reduce__()
        shown = self._description, self._scheme, self._source.io, self.chunks
        return TiledArray, (*shown, None, self._annotations)


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


def build(description: Description, scheme: TilingScheme, io: str) -> da.Array:
    """Make the array of a description.

    With dask's array expressions switched on it is a plain dask array.
    """
    if not da.array_expr_enabled():
        return TiledArray(description, scheme, io)
    source = Source(description.layout, description.conversion, io)
    grid, meta = Grid.of(scheme.chunks), np.empty((0,) * len(scheme.chunks), description.dtype)
    name = _name(description, source, grid)
    return da.map_blocks(
        pixels_of, source, grid, chunks=scheme.chunks, dtype=meta.dtype, meta=meta, name=name
    )


def _name(description: Description, source: Source, grid: Grid) -> str:
    # A name of our own: dask would hash every number of the chunks to make one.
    return f"{description.format}-{tokenize(source, grid)}"


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
    return arr.scheme
