"""Arrays that remember which pixels they are: what is computed of them pixel by pixel stays so."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

import dask.array as da
import numpy as np
from dask import config
from dask.array.core import elemwise
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.job_arrays import Reducible
from dask_tiled.array.reductions import reduce_array
from dask_tiled.array.tasks import (
    Annotations,
    Edges,
    Grid,
    compute,
    decode,
    inherited,
    load,
    pixels_of,
    symbolic_graph,
)
from dask_tiled.array.tile_layer import Pixels
from dask_tiled.engine.expressions import NUMBERS, Call, Cast, Node, call, call_operator
from dask_tiled.engine.programs import Program, compiled
from dask_tiled.errors import TilingError
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Cut, basic_cuts, cut_chunks
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, read_chunks
from dask_tiled.tiling.negotiation import negotiate
from dask_tiled.tiling.scheme import TilingScheme


class ElementwiseArray(da.Array):
    """A dask array whose graph is made when it is first asked for.

    Operators and ufuncs of arrays like it, of one shape, and of numbers give a
    :class:`TiledExpression`. Basic indices cut the sources. Everything else is plain dask.
    """

    __slots__ = ("_annotations", "_graph", "_grid", "_node")

    _node: Node | None
    """What the pixels are; None once items have been assigned to the array."""
    _grid: Grid
    _graph: HighLevelGraph | None
    _annotations: Annotations
    """Those of dask that were in force when the array was made, not when its graph is."""

    def _show(
        self,
        node: Node,
        name: str,
        chunks: Chunks,
        grid: Grid,
        annotations: Annotations | None,
    ) -> Any:
        """Become an array of that, and give what the plugins of dask make of it."""
        self._node = node
        self._grid = grid
        self._annotations = inherited() if annotations is None else annotations
        self._graph = None
        self._name = name
        self._chunks = chunks
        self._meta = np.empty((0,) * len(chunks), dtype=node.dtype)
        shown: Any = self
        for plugin in config.get("array_plugins", ()):
            replacement = plugin(shown)
            shown = shown if replacement is None else replacement
        return shown

    def _make_graph(self) -> HighLevelGraph:
        """Make the graph."""
        raise NotImplementedError

    def _with(self, cuts: Sequence[Cut] | None, chunks: Chunks, grid: Grid | None) -> Self:
        """Show a part of the pixels, or all of them, in such chunks."""
        raise NotImplementedError

    @property
    def dask(self) -> HighLevelGraph:
        """The graph."""
        if self._graph is None:
            self._graph = self._make_graph()
            for layer in self._graph.layers.values():
                layer.annotations = self._annotations or None
        return self._graph

    @dask.setter
    def dask(self, graph: HighLevelGraph) -> None:
        # dask sets a graph when items are assigned: from then on this is a plain array.
        self._graph = graph
        self._node = None

    def __getitem__(self, index: Any) -> da.Array:
        cuts = basic_cuts(index, self.shape)
        if cuts is None or self._node is None:
            plain: da.Array = super().__getitem__(index)
            return plain
        if all(cut == Cut(0, 1, n) for cut, n in zip(cuts, self.shape, strict=True)):
            return self
        chunks, edges = [], []
        for axis_chunks, axis_edges, cut in zip(self.chunks, self._grid.axes, cuts, strict=True):
            if cut == Cut(0, 1, axis_edges.size):  # the same objects: there may be a million
                chunks.append(axis_chunks)
                edges.append(axis_edges)
            elif cut.kept:
                chunks.append(cut_chunks(axis_chunks, cut))
                edges.append(Edges(chunks[-1]))
        return self._with(cuts, tuple(chunks), Grid(tuple(edges)))

    def with_chunks(self, chunks: Any) -> Self:
        """Show the same pixels in other chunks, as dask takes them: they are read so."""
        if self._node is None:
            raise TilingError("items have been assigned to the array", hint="Use rechunk().")
        return self._with(None, self._read_chunks(chunks), None)

    def _read_chunks(self, chunks: Any) -> Chunks:
        return read_chunks(chunks, self.shape, self.dtype)

    def copy(self) -> da.Array:
        """Copy the array, not its pixels."""
        if self._node is None:
            return _plain(self)
        make, values = self.__reduce__()
        copied: da.Array = make(*values)
        return copied

    def astype(self, dtype: Any, **kwargs: Any) -> da.Array:
        """Convert to another type, as :meth:`dask.array.Array.astype` does."""
        wanted = np.dtype(dtype)
        found: da.Array | None = None
        if not kwargs and wanted.kind in NUMBERS and wanted != self.dtype:
            found = _apply(call, Cast(wanted), [self])
        return super().astype(dtype, **kwargs) if found is None else found

    @property
    def _elemwise(self) -> Callable[..., da.Array]:
        """What dask's own ufuncs call."""
        return _elementwise

    def __array_ufunc__(self, numpy_ufunc: Any, method: Any, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and not kwargs:
            found = _apply(call, numpy_ufunc, inputs)
            if found is not None:
                return found
        return super().__array_ufunc__(numpy_ufunc, method, *map(_plain, inputs), **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Let dask take arrays like this one for its own."""
        types = [da.Array if issubclass(one, da.Array) else one for one in types]
        return super().__array_function__(func, types, args, kwargs)


class TiledExpression(ElementwiseArray):
    """What is computed of opened arrays pixel by pixel, as a dask array.

    Each chunk is one task. It reads all files that take part tile by tile, so memory does not grow
    with their number. More of the same, and slices, extend the expression; every other operation
    gives a plain dask array.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - dask's class is made this way
        cls,
        expression: Call,
        chunks: Chunks,
        grid: Grid | None = None,
        annotations: Annotations | None = None,
    ) -> Any:
        self = object.__new__(cls)
        grid = grid or Grid.of(chunks)
        name = f"{expression.function.__name__}-{tokenize(expression.token, grid)}"
        return self._show(expression, name, chunks, grid, annotations)

    def _make_graph(self) -> HighLevelGraph:
        return symbolic_graph(self.chunks, self._program(), self._grid, {self.name: compute})

    def _program(self) -> Program:
        assert isinstance(self._node, Call)  # noqa: S101 - for the type checker
        return compiled(self._node)

    def _with(self, cuts: Sequence[Cut] | None, chunks: Chunks, grid: Grid | None) -> Self:
        assert isinstance(self._node, Call)  # noqa: S101 - for the type checker
        node = self._node
        if cuts is not None:
            node = compiled(node).expression(lambda source: source.cut(cuts))
        return type(self)(node, chunks, grid, inherited(self))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._node is None:
            return super().__reduce__()
        return _restore, (self._program(), self.chunks, self._annotations)


def _restore(program: Program, chunks: Chunks, annotations: Annotations) -> TiledExpression:
    # Expressions may be nested more deeply than pickle goes; programs are flat.
    return TiledExpression(program.expression(), chunks, None, annotations)


def _plain(x: Any) -> Any:
    """Take away what dask does not know, where it has to do the work."""
    return da.Array.copy(x) if isinstance(x, ElementwiseArray) else x


def _apply(make: Any, function: Any, operands: Sequence[Any]) -> TiledExpression | None:
    """Make an expression; None where it is none."""
    arrays = [x for x in operands if isinstance(x, ElementwiseArray)]
    if not arrays or any(x._node is None or x.shape != arrays[0].shape for x in arrays):  # noqa: SLF001
        return None
    if any(x.dtype.kind not in NUMBERS for x in arrays):
        return None
    nodes = [x._node if isinstance(x, ElementwiseArray) else x for x in operands]  # noqa: SLF001
    found = make(function, nodes)
    first = arrays[0]
    if found is None:
        return None
    return TiledExpression(found, first.chunks, first._grid, inherited(*arrays))  # noqa: SLF001


def _elementwise(function: Any, *operands: Any, **kwargs: Any) -> da.Array:
    """Apply a ufunc, or any other function of pixels, as dask does it."""
    found = None if kwargs else _apply(call, function, operands)
    return elemwise(function, *operands, **kwargs) if found is None else found


def _operator(name: str, *, reflected: bool = False) -> Any:
    """Make the method of an operator."""
    own = f"__{'r' * reflected}{name.strip('_')}__"
    function, plain = getattr(operator, name), getattr(da.Array, own)

    @functools.wraps(plain)
    def method(self: ElementwiseArray, *others: Any) -> Any:
        operands = (*others, self) if reflected else (self, *others)
        found = _apply(call_operator, function, operands)
        if found is None:
            found = plain(self, *map(_plain, others))
        if found is NotImplemented and not others:  # Python asks nobody else then
            raise TypeError(f"{self.dtype} pixels have no {own}")
        return found

    return own, method


ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("and_", "or_", "xor", "lshift", "rshift"),
)
OTHERS = ("lt", "le", "eq", "ne", "ge", "gt", "neg", "abs", "invert")
for _name in ARITHMETIC:
    setattr(ElementwiseArray, *_operator(_name))
    setattr(ElementwiseArray, *_operator(_name, reflected=True))
for _name in OTHERS:
    setattr(ElementwiseArray, *_operator(_name))


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
        name = _array_name(description, self._source, grid)
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

    def _with(self, cuts: Sequence[Cut] | None, chunks: Chunks, grid: Grid | None) -> Self:
        description = self._description if cuts is None else self._description.cut(cuts)
        shown = description, self._scheme, self._source.io, chunks
        return type(self)(*shown, grid, inherited(self))

    def _read_chunks(self, chunks: Any) -> Chunks:
        return read_chunks(chunks, self.shape, self.dtype, self._description.dims)

    def reducible(self) -> Reducible:
        """Give what reductions on tiles need; items must not have been assigned to the array."""
        assert self.description is not None  # noqa: S101 - for the type checker
        if self.size and any(0 in axis for axis in self.chunks):  # no pixels have no mean
            return self.with_chunks(
                tuple(tuple(n for n in axis if n) for axis in self.chunks)
            ).reducible()
        pixels = Pixels(self.name, self.description, self._source, self.chunks, self._grid)
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
    name = _array_name(description, source, grid)
    return da.map_blocks(
        pixels_of, source, grid, chunks=scheme.chunks, dtype=meta.dtype, meta=meta, name=name
    )


def _array_name(description: Description, source: Source, grid: Grid) -> str:
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
