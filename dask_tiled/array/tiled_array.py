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
from dask_tiled.engine.expressions import Leaf
from dask_tiled.errors import TilingError
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import CutIndex
from dask_tiled.reading.loader import Edges, Source, decode, load, pixels_of
from dask_tiled.tiling.division import read_chunks
from dask_tiled.tiling.negotiation import TilingRequest, TilingScheme, negotiate


class TiledArray(ElementwiseArray):
    """A dask array that remembers what it was opened from.

    Integers, slices with a positive step and an ellipsis cut the source, so a crop reads only the
    bytes of the crop. Operators and ufuncs of such arrays of one shape, and of numbers, give a
    :class:`TiledExpression`. Every other operation gives a plain dask array. The graph is made when
    it is first asked for.

    Attributes
    ----------
    requests : tuple of TilingRequest
        What its consumers wish.
    """

    __slots__ = ("_description", "_source", "requests")

    requests: tuple[TilingRequest, ...]
    _description: Description
    _source: Source

    def __new__(  # noqa: D102 - dask's class is made this way
        cls,
        description: Description,
        chunks: Chunks,
        io: str,
        requests: tuple[TilingRequest, ...] = (),
        edges: tuple[Edges, ...] | None = None,
        annotations: Annotations | None = None,
    ) -> Any:
        self = object.__new__(cls)
        self._description = description
        self.requests = requests
        layout, conversion = description.layout, description.conversion
        edges = edges or tuple(map(Edges, chunks))
        self._source = Source(layout, conversion, edges, io)
        name = _name(description, self._source)
        return self._show(Leaf(layout, conversion, io), name, chunks, edges, annotations)

    @property
    def description(self) -> Description | None:
        """What the array shows; None once items have been assigned to it."""
        return None if self._node is None else self._description

    def _make_graph(self) -> HighLevelGraph:
        """Load, then decode, once per chunk."""
        functions: dict[str, Any] = {f"load-{self.name}": load, self.name: decode}
        return symbolic_graph(self.chunks, self._source, functions)

    def _with(
        self,
        cuts: Sequence[CutIndex] | None,
        chunks: Chunks,
        edges: tuple[Edges, ...] | None,
        annotations: Annotations,
    ) -> Self:
        description = self._description if cuts is None else self._description.cut(cuts)
        return type(self)(description, chunks, self._source.io, self.requests, edges, annotations)

    def _read_chunks(self, chunks: Any) -> Chunks:
        return read_chunks(chunks, self.shape, self.dtype, self._description.dims)

    def reducible(self) -> Reducible:
        """Give what reductions on tiles need; items must not have been assigned to the array."""
        assert self.description is not None  # noqa: S101 - for the type checker
        if self.size and any(0 in axis for axis in self.chunks):  # no pixels have no mean
            return self.with_chunks(
                tuple(tuple(n for n in axis if n) for axis in self.chunks)
            ).reducible()
        return Reducible(self, self.description.nav_ndim, (self.description, self._source))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Let numpy's reductions of this array be its methods."""
        name = func.__name__
        if name in REDUCTIONS and func is getattr(np, name, None) and args and args[0] is self:
            return getattr(self, name)(*args[1:], **kwargs)
        return super().__array_function__(func, types, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._node is None:
            return super().__reduce__()
        shown = self._description, self.chunks, self._source.io, self.requests
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
        name, meta = _name(description, source), np.empty((0,) * len(edges), description.dtype)
        return da.map_blocks(
            pixels_of, source, chunks=scheme.chunks, dtype=meta.dtype, meta=meta, name=name
        )
    return TiledArray(description, scheme.chunks, io, requests)


def _name(description: Description, source: Source) -> str:
    # A name of our own: dask would hash every number of the chunks to make one.
    return f"{description.format}-{tokenize(source)}"


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
