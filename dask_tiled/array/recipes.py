"""Recipes: what is made of a chunk of opened arrays, in vectors wherever there are primitives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.array.beside import Beside
from dask_tiled.array.dask_graph.functions import Contraction, Step, node_of
from dask_tiled.array.tasks import ChunkJob, like_numpy, pixels_in
from dask_tiled.array.views import View
from dask_tiled.engine.evaluation import Computation, contracted
from dask_tiled.engine.expressions import Call, Cast, Operand, in_order
from dask_tiled.engine.jobs import Chunk
from dask_tiled.engine.programs import Program, compiled
from dask_tiled.engine.reductions import Reduction
from dask_tiled.engine.run import Shown, begin, run
from dask_tiled.model.indexing import Box, Cut
from dask_tiled.reading.reader import LARGE_BYTES, Source
from dask_tiled.tiling.bases import Grid

Array = npt.NDArray[Any]

STEP_BYTES, SOURCE_BYTES = 100, 500
"""What a step of a recipe takes, and a source beside its arrays, about."""


class Apply:
    """A function of pixels, as dask calls it, of others, of arrays beside, and of values."""

    __slots__ = ("function", "kwargs", "operands")

    def __init__(self, function: Callable[..., Any], kwargs: Any, operands: Any) -> None:
        self.function = function
        self.kwargs: dict[str, Any] = kwargs
        self.operands: tuple[Any, ...] = operands


Tree = Apply | Source
NODES = Apply, Source


def nodes_of(tree: Tree) -> Iterator[Tree]:
    """Yield all nodes of a tree, each once, after those that it needs."""
    return in_order([tree], _inner, id)


def _inner(node: Tree) -> list[Tree]:
    return [x for x in node.operands if isinstance(x, NODES)] if isinstance(node, Apply) else []


def cut(tree: Tree, cuts: Sequence[Cut], sizes: Sequence[int]) -> Tree | None:
    """Show a part of the pixels of a tree; None where that is not known."""
    made: dict[int, Any] = {}
    for node in nodes_of(tree):
        if isinstance(node, Source):
            made[id(node)] = node.cut(cuts)
        else:
            operands = [
                made[id(x)]
                if isinstance(x, NODES)
                else x.cut(cuts, sizes)
                if isinstance(x, Beside)
                else x
                for x in node.operands
            ]
            lost = any(
                x is None and isinstance(y, Beside)
                for x, y in zip(operands, node.operands, strict=True)
            )
            if lost:
                return None
            made[id(node)] = Apply(node.function, node.kwargs, tuple(operands))
    found: Tree = made[id(tree)]
    return found


class _Made(NamedTuple):
    """The number of the step of a recipe that makes an operand."""

    number: int


class _Slot(NamedTuple):
    """The number of an array beside."""

    number: int


Room = Callable[[np.dtype], Array | None]
"""Gives the memory for pixels of a type, C-contiguous, if there is any."""


End = Callable[[Array], Any]
"""Makes of the result of a sink what dask's function returns."""


class Recipe:
    """What is computed of the pixels of a chunk, and how it is reduced.

    The types of arrays beside are known when they are there: the program is made then.
    """

    def __init__(self, tree: Tree, view: View, nav_ndim: int, last: Step | None) -> None:
        self._view = view
        self._nav_ndim = nav_ndim
        self._last = last
        beside: dict[Beside, int] = {}
        numbers: dict[int, int] = {}
        self._steps: list[tuple[Any, dict[str, Any], list[Any]]] = []
        for node in nodes_of(tree):
            if isinstance(node, Apply):
                operands = [
                    _Made(numbers[id(x)])
                    if isinstance(x, NODES)
                    else _Slot(beside.setdefault(x, len(beside)))
                    if isinstance(x, Beside)
                    else x
                    for x in node.operands
                ]
                self._steps.append((node.function, node.kwargs, operands))
            else:
                self._steps.append((None, {}, [node]))
            numbers[id(node)] = len(numbers)
        self.beside = tuple(beside)
        if last is not None and isinstance(last.done, Contraction):
            self.beside += (last.done.weights,)
        self._slots = len(beside)
        self._programs: dict[tuple[np.dtype, ...], Program | None] = {}

    @property
    def _sources(self) -> list[Source]:
        return [operands[0] for function, _, operands in self._steps if function is None]

    @property
    def sources(self) -> set[str]:
        """The tokens of all that is read."""
        return {source.token for source in self._sources}

    @property
    def is_large(self) -> bool:
        """Whether it is too large to be a part of every task."""
        nbytes = sum(SOURCE_BYTES + source.nbytes for source in self._sources)
        return STEP_BYTES * len(self._steps) + nbytes > LARGE_BYTES

    def program(self, operands: Sequence[Array]) -> Program | None:
        """Return the program for arrays beside of some types; None if the engine has none."""
        dtypes = tuple(block.dtype for block in operands)
        if dtypes not in self._programs:
            self._programs[dtypes] = self._program(dtypes)
        return self._programs[dtypes]

    def _program(self, dtypes: tuple[np.dtype, ...]) -> Program | None:
        nodes: list[Any] = []
        for function, kwargs, operands in self._steps:
            given = [
                Operand(x.number, dtypes[x.number]) if isinstance(x, _Slot) else x for x in operands
            ]
            given = [nodes[x.number] if isinstance(x, _Made) else x for x in given]
            nodes.append(given[0] if function is None else node_of(function, kwargs, given))
            if nodes[-1] is None:
                return None
        root, last = nodes[-1], self._last and self._last.done
        if not isinstance(root, Source | Call):
            return None
        if isinstance(last, Reduction):
            last = last.of(root.dtype)
            if last.dtype and last.row.is_ufunc and last.casts_first(root.dtype):
                root = Call(Cast(last.dtype), (root,), last.dtype)
        return compiled(root)

    def make(self, block_id: tuple[int, ...], blocks: Sequence[Array], found: Array) -> Any:
        """Make of all pixels of a chunk what dask's function returns."""
        found = self._view.show(found)
        if self._last is None:
            return like_numpy(found)
        if isinstance(self._last.done, Contraction):
            return self._last.plain(found, blocks[-1])
        given = {"block_id": block_id} if isinstance(self._last.done, ChunkJob) else {}
        return self._last.plain(found, **given)

    def operands(
        self, box: Box, blocks: Sequence[Array]
    ) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        """Return what is needed of arrays beside, weights last, and the shape of the pixels."""
        sizes = self._view.sizes([b - a for a, b in box])
        found = (one.block(block, sizes) for one, block in zip(self.beside, blocks, strict=True))
        return tuple(found), tuple(sizes.values())

    def pixels(
        self, box: Box, shape: tuple[int, ...], operands: Sequence[Array], pixels: Array | None
    ) -> Any:
        """Compute a chunk as dask would, of all its pixels at once."""
        values: dict[int, Any] = {}
        last = {x: k for k, (*_, inner) in enumerate(self._steps) for x in _numbers(inner)}
        for k, (function, kwargs, inner) in enumerate(self._steps):
            given = [values[x.number] if isinstance(x, _Made) else x for x in inner]
            given = [operands[x.number] if isinstance(x, _Slot) else x for x in given]
            if function is not None:
                values[k] = function(*given, **kwargs)
            else:
                read = pixels_in(given[0], box) if pixels is None else pixels
                values[k] = read.reshape(shape)
            for number in _numbers(inner):
                if last[number] == k:
                    del values[number]
        return values[len(self._steps) - 1]

    def begin(
        self,
        program: Program,
        chunk: Chunk,
        operands: Sequence[Array],
        shape: tuple[int, ...],
        whole: End,
        room: Room | None,
    ) -> tuple[Shown, End] | None:
        """Begin to work on a chunk; None if only NumPy can do that, on all pixels at once.

        ``whole`` makes of all pixels what dask's function returns, ``room`` gives the memory for
        what is made, if that is to be somewhere.
        """
        last = None if self._last is None else self._last.done
        if isinstance(last, ChunkJob) and program.is_read and last.nav_ndim == self._nav_ndim:
            return _asked(last, chunk, room), like_numpy
        axes_of = tuple(part.axis for part in self._view.parts)
        nav_ndim = sum(axis < self._nav_ndim for axis in axes_of)
        values = Computation(program, operands[: self._slots], shape, axes_of, nav_ndim)
        reduced = self._reduced(values, chunk, operands[-1:], room)
        if room is not None and last is None:
            out = room(program.dtype)
            values = replace(values, out=out if out is None else out.reshape(shape))
        for job, end in filter(None, (reduced, (values, whole))):
            shown = begin(job, chunk)
            if shown is not None:
                return shown, end
        return None

    def _reduced(
        self, values: Computation, chunk: Chunk, weights: Sequence[Array], room: Room | None
    ) -> tuple[Computation, End] | None:
        """Return what reduces a chunk, and what makes of that what dask's function returns."""
        last = None if self._last is None else self._last.done
        if isinstance(last, Contraction):
            products = contracted(values, weights[-1], chunk)
            further = weights[-1].shape[: -len(values.shape)]
            if products is None:
                return None
            return products, partial(self._finish_products, products, further)
        if not isinstance(last, Reduction):
            return None
        numbers = self._view.numbers
        axes = tuple(number for axis in last.axes for number in numbers[axis])
        reduction = last._replace(axes=axes).of(values.dtype)
        if reduction.casts_first(values.dtype):
            return None
        reduced = replace(values, end=reduction)
        return reduced, partial(self._finish, last, reduced, chunk.box, room)

    def _finish_products(self, job: Computation, further: tuple[int, ...], found: Array) -> Any:
        nav, frame = job.shape[: job.nav_ndim], job.shape[job.nav_ndim :]
        shape = nav + (1,) * len(frame) + further
        found = self._view.show(found.astype(job.dtype, copy=False).reshape(shape))
        finish = self._last and self._last.finish
        return finish(found, shape, found.dtype) if finish else found

    def _finish(
        self,
        asked: Reduction,
        job: Computation,
        box: Box,
        room: Room | None,
        found: Array,
    ) -> Any:
        row, dtype = asked.row, job.dtype
        shape = self._view.shape([b - a for a, b in box])
        finish = self._last and self._last.finish
        if row.combine is not None:
            axes = job.reduction.axes if job.reduction else ()
            left = [1 if k in axes else n for k, n in enumerate(job.shape)]
            tail = found.shape[-1:] if found.size > math.prod(left) else ()
            found = self._view.show(found.reshape((*left, *tail)))
            if row.counts and not tail:  # all of them are numbers
                number = math.prod(job.shape) // math.prod(left)
                found = np.stack([found, np.full_like(found, number)], axis=-1)
        if row.has_own_type:
            dtype = found.dtype
        if finish and room is not None:
            finish = partial(finish, out=room(dtype))
        return finish(found, shape, dtype) if finish else found.astype(dtype, copy=False)


class Together:
    """Recipes whose chunks are made of the same pixels. It is no value that dask looks into."""

    def __init__(self, recipes: Sequence[Recipe], grid: Grid) -> None:
        self.recipes = recipes
        self._grid = grid
        self._slots = slots = list(dict.fromkeys(x for one in recipes for x in one.beside))
        self._given = [[slots.index(x) for x in one.beside] for one in recipes]

    @property
    def beside(self) -> Sequence[Beside]:
        """The arrays beside of all recipes."""
        return self._slots

    @property
    def is_large(self) -> bool:
        """Whether it is too large to be a part of every task."""
        return any(recipe.is_large for recipe in self.recipes)

    def make(
        self,
        block_id: tuple[int, ...],
        pixels: Array | None,
        *blocks: Array,
        room: Room | None = None,
    ) -> list[Any]:
        """Make the chunks of all recipes."""
        box = self._grid.box(block_id)
        made: dict[int, Any] = {}
        begun: dict[int, tuple[Shown, End]] = {}
        for k, (recipe, given) in enumerate(zip(self.recipes, self._given, strict=True)):
            some = [_only(blocks[number]) for number in given]
            operands, shape = recipe.operands(box, some)
            program, whole = recipe.program(operands), partial(recipe.make, block_id, some)
            if program is not None and not all(shape):
                made[k] = whole(np.empty(shape, program.dtype))
                continue
            if program is not None:
                source = program.sources[0]  # the same for all, if there are several recipes
                chunk = Chunk(box, source.layout.nav_ndim, source.dtype)
                one = recipe.begin(program, chunk, operands, shape, whole, room)
                if one is not None:
                    begun[k] = one
                    continue
            made[k] = whole(recipe.pixels(box, shape, operands, pixels))
        if begun:
            nav_shape = self._grid.shape[: chunk.nav_ndim]
            shown = [one for one, _ in begun.values()]
            results = run(source if pixels is None else pixels, chunk, nav_shape, shown)
            for (k, (_, end)), found in zip(begun.items(), results, strict=True):
                made[k] = end(found)
        return [made[k] for k in range(len(self.recipes))]


def _numbers(operands: Sequence[Any]) -> set[int]:
    """Return the numbers of the steps among operands."""
    return {x.number for x in operands if isinstance(x, _Made)}


def _asked(asked: ChunkJob, chunk: Chunk, room: Room | None) -> Shown:
    """Begin a job on a chunk."""
    job: Any = asked.job
    if room is not None:
        job = replace(job, out=room(job.dtype))
    tile = asked.tile_shape
    if job.request.by == "chunk":
        tile = (math.prod(chunk.nav_shape), *chunk.sig_shape)
    return Shown(job.begin(chunk), tile, job.request.depth)


def _only(block: Any) -> Any:
    """Take the chunk of an array with further axes out of the lists that dask makes of these."""
    while isinstance(block, list):
        (block,) = block
    return block


def make_all(recipes: Together, block_id: tuple[int, ...], pixels: Any, *blocks: Any) -> list[Any]:
    """Make a chunk of each of some recipes."""
    return recipes.make(block_id, pixels, *blocks)


def make(recipes: Together, block_id: tuple[int, ...], pixels: Any, *blocks: Any) -> Any:
    """Make a chunk of the only recipe."""
    (found,) = recipes.make(block_id, pixels, *blocks)
    return found


def make_later(recipes: Together, block_id: tuple[int, ...], pixels: Any, *blocks: Any) -> Any:
    """Return what makes a chunk of the only recipe where there is room for it."""

    def made(room: Room) -> Any:
        (found,) = recipes.make(block_id, pixels, *blocks, room=room)
        return found

    return made
