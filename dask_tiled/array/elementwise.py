"""Arrays that remember which pixels they are: what is computed of them pixel by pixel stays so."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import dask.array as da
import numpy as np
from dask import config
from dask._task_spec import DataNode, TaskRef
from dask.array.core import elemwise
from dask.base import get_annotations, tokenize
from dask.blockwise import _fuse_annotations, blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.layers import ArrayBlockIdDep

from dask_tiled.array.tasks import compute
from dask_tiled.engine.expressions import NUMBERS, Call, Cast, Node, call, call_operator
from dask_tiled.engine.programs import Program, compiled
from dask_tiled.errors import TilingError
from dask_tiled.model.indexing import Cut, basic_cuts, cut_chunks
from dask_tiled.reading.source import Source
from dask_tiled.tiling.division import read_chunks
from dask_tiled.tiling.grid import Edges, Grid

Chunks = tuple[tuple[int, ...], ...]
Annotations = dict[str, Any]


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

    def _with(
        self,
        cuts: Sequence[Cut] | None,
        chunks: Chunks,
        grid: Grid | None,
        annotations: Annotations,
    ) -> Self:
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
        return self._with(cuts, tuple(chunks), Grid(tuple(edges)), inherited(self))

    def with_chunks(self, chunks: Any) -> Self:
        """Show the same pixels in other chunks, as dask takes them: they are read so."""
        if self._node is None:
            raise TilingError("items have been assigned to the array", hint="Use rechunk().")
        return self._with(None, self._read_chunks(chunks), None, inherited(self))

    def _read_chunks(self, chunks: Any) -> Chunks:
        return read_chunks(chunks, self.shape, self.dtype)

    def copy(self) -> da.Array:
        """Copy the array, not its pixels."""
        if self._node is None:
            return _plain(self)
        return self._with(None, self.chunks, self._grid, self._annotations)

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

    def _with(
        self,
        cuts: Sequence[Cut] | None,
        chunks: Chunks,
        grid: Grid | None,
        annotations: Annotations,
    ) -> Self:
        assert isinstance(self._node, Call)  # noqa: S101 - for the type checker
        node = self._node
        if cuts is not None:
            node = compiled(node).expression(lambda source: source.cut(cuts))
        return type(self)(node, chunks, grid, annotations)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._node is None:
            return super().__reduce__()
        return _restore, (self._program(), self.chunks, self._annotations)


def _restore(program: Program, chunks: Chunks, annotations: Annotations) -> TiledExpression:
    # Expressions may be nested more deeply than pickle goes; programs are flat.
    return TiledExpression(program.expression(), chunks, None, annotations)


def inherited(*arrays: ElementwiseArray) -> Annotations:
    """Give the annotations of what is made of arrays now: theirs, and those that are in force."""
    theirs = (x._annotations for x in arrays)  # noqa: SLF001
    fused: Annotations = _fuse_annotations(*theirs, get_annotations())
    return fused


def symbolic_graph(
    chunks: Chunks,
    value: Program | Source,
    grid: Grid,
    functions: Mapping[str, Callable[..., Any]],
) -> HighLevelGraph:
    """Make one symbolic layer for each function; no array, which a plugin of dask might replace.

    Parameters
    ----------
    chunks : tuple of tuple of int
    value : Program or Source
        What the first function gets, with the grid and the position of the chunk.
    grid : Grid
    functions : dict
        The functions by the names of their layers. Each gets what the one before made of the chunk.
    """
    axes, layers = tuple(range(len(chunks))), dict[str, Layer]()
    first: Any = value
    if value.is_large:  # a cluster sends it to each worker once
        key = f"value-{next(iter(functions))}"
        layers[key], first = MaterializedLayer({key: DataNode(key, value)}), TaskRef(key)
    arguments = [first, None, grid, None, ArrayBlockIdDep(chunks), axes]
    numblocks = dict[str, Any]()
    for name, function in functions.items():
        layers[name] = blockwise(function, name, axes, *arguments, numblocks=numblocks)
        arguments, numblocks = [name, axes], {name: tuple(map(len, chunks))}
    names = list(layers)
    return HighLevelGraph(layers, {name: set(names[:k][-1:]) for k, name in enumerate(names)})


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
