"""Recipes: computations of a chunk of opened arrays, in vectors if primitives exist."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, starmap
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dask_tiled.engine.evaluation import Computation, contracted
from dask_tiled.engine.expressions import (
    Apply,
    Cast,
    Draft,
    Expression,
    Operand,
    Pixels,
    Register,
    nodes_of,
)
from dask_tiled.engine.jobs import Chunk
from dask_tiled.engine.programs import Program, compiled
from dask_tiled.engine.reductions import Aggregation, Reduction
from dask_tiled.engine.run import FedSink, Why, begin, obstacle, run
from dask_tiled.model.indexing import Array, Box, Cut, like_numpy
from dask_tiled.plans.last_steps import Contraction, LastStep
from dask_tiled.plans.limits import SOURCE_BYTES, STEP_BYTES
from dask_tiled.plans.operands import Beside
from dask_tiled.plans.tasks import Block, ChunkJob, Function, Kwargs, Nested, Room
from dask_tiled.plans.tree import name_of
from dask_tiled.plans.views import View
from dask_tiled.reading.limits import LARGE_BYTES
from dask_tiled.reading.reader import Source, pixels_in
from dask_tiled.tiling.bases import Grid


def cut(expression: Expression, cuts: Sequence[Cut], sizes: Sequence[int]) -> Expression | None:
    """Push a cut down to the sources and operands of an expression; None if not possible."""
    made: dict[int, Expression] = {}
    for node in nodes_of(expression):
        if isinstance(node, Source):
            made[id(node)] = node.cut(cuts)
            continue
        operands = [made.get(id(x), x) for x in node.operands]
        for k, x in enumerate(operands):
            if isinstance(x, Beside):
                operands[k] = x.cut(cuts, sizes)
                if operands[k] is None:
                    return None
        made[id(node)] = Apply(node.function, node.kwargs, tuple(operands))
    return made[id(expression)]


Result = object
"""Result of a dask function: an array, a scalar, or several arrays by name."""
End = Callable[[Array], Result]
"""Converts the result of a sink to that of dask's function."""
Dtypes = tuple[np.dtype, ...]
"""Dtypes of operands."""
Made = TypeVar("Made")


class Recipe:
    """A computation of chunks: an expression of sources, a view of it, and perhaps a last step.

    The program is compiled when a graph is planned, for the dtypes that dask announced; a task
    whose operands have other dtypes compiles its own. Chunks of one shape share what does not
    depend on their places.
    """

    def __init__(self, expression: Expression, view: View, step: LastStep | None = None) -> None:
        self.expression = expression
        self.view = view
        self.step = step
        self._programs: dict[Dtypes, Program | Why] = {}
        self._outlines: dict[tuple[tuple[int, ...], Dtypes], Computation | Why] = {}

    def but(self, **changes: Any) -> Recipe:
        """Return a recipe with another expression, view or step."""
        own = {"expression": self.expression, "view": self.view, "step": self.step}
        return Recipe(**(own | changes))

    @property
    def source(self) -> Source:
        """One of the sources; all have the same axes."""
        node = self.expression
        while isinstance(node, Apply):
            node = node.inner[0]
        return node

    @property
    def reduction(self) -> Reduction | None:
        """The reduction that begins with the last step, or None."""
        done = self.step and self.step.done
        return done if isinstance(done, Reduction) else None

    @property
    def job(self) -> ChunkJob | None:
        """The job of a user's function that is the last step, or None."""
        done = self.step and self.step.done
        return done if isinstance(done, ChunkJob) else None

    @property
    def gone(self) -> tuple[int, ...]:
        """Axes of the view that the last step reduces to length 1."""
        return () if self.step is None else self.step.done.axes

    @property
    def reduces(self) -> bool:
        """Whether the recipe has a last step."""
        return self.step is not None

    @property
    def needs_ending(self) -> bool:
        """Whether only the engine can combine the results."""
        return self.reduction is not None and self.reduction.row.finds_place

    @property
    def is_read(self) -> bool:
        """Whether the recipe only reads pixels."""
        return self.step is None and isinstance(self.expression, Source)

    @cached_property
    def _nodes(self) -> list[Expression]:
        return nodes_of(self.expression)

    @cached_property
    def _numbers(self) -> dict[Beside, int]:
        """Numbers of the operands of the expression."""
        operands = chain(*(node.operands for node in self._nodes if isinstance(node, Apply)))
        beside = dict.fromkeys(x for x in operands if isinstance(x, Beside))
        return {x: number for number, x in enumerate(beside)}

    @cached_property
    def beside(self) -> tuple[Beside, ...]:
        """All operands besides the pixels, weights last."""
        done = self.step and self.step.done
        return (*self._numbers, *([done.weights] if isinstance(done, Contraction) else []))

    @property
    def read_sources(self) -> list[Source]:
        """Sources that NumPy reads completely, repeated as they occur."""
        return [node for node in self._nodes if isinstance(node, Source)]

    def widths(self, operands: Sequence[Array]) -> list[int]:
        """Return the bytes per pixel of each node, in the order that NumPy computes them."""
        itemsizes = list[int]()
        beside = [np.ones((1,) * x.ndim, x.dtype) for x in operands]
        ndim = len(self.view.parts)

        def noted(made: Any) -> Any:
            itemsizes.append(made.dtype.itemsize)
            return made

        with np.errstate(all="ignore"):
            self._value(
                lambda source: noted(np.ones((1,) * ndim, source.dtype)),
                lambda function, kwargs, x: noted(function(*x, **kwargs)),
                beside,
            )
        return itemsizes

    @property
    def functions(self) -> list[tuple[Function, str]]:
        """Functions that NumPy calls on whole chunks, and their names; that of the step is last."""
        nodes = (node.function for node in self._nodes if isinstance(node, Apply))
        called = [(function, name_of(function)) for function in nodes]
        if self.step is None:
            return called
        reduction = self.reduction
        by_ufunc = reduction is not None and reduction.is_ufunc
        last = reduction.row.ufunc if reduction and by_ufunc else self.step.plain
        return [*called, (last, self.words)]

    @property
    def sources(self) -> set[str]:
        """Tokens of all sources."""
        return {source.token for source in self.read_sources}

    @property
    def is_large(self) -> bool:
        """Whether the recipe is too large to be a part of every task."""
        nbytes = sum(SOURCE_BYTES + source.nbytes for source in self.read_sources)
        if self.job is not None:
            nbytes += self.job.nbytes
        return STEP_BYTES * len(self._nodes) + nbytes > LARGE_BYTES

    def _value(
        self,
        read: Callable[[Source], Made],
        call: Callable[[Function, Kwargs, list[object]], Made | None],
        beside: Sequence[Any],
    ) -> Made | None:
        """Evaluate the nodes in order; return None if one of them is None."""
        made: dict[int, Made] = {}
        last = {id(x): node for node in self._nodes if isinstance(node, Apply) for x in node.inner}
        for node in self._nodes:
            if isinstance(node, Source):
                value: Made | None = read(node)
            else:
                given = [
                    beside[self._numbers[x]] if isinstance(x, Beside) else made.get(id(x), x)
                    for x in node.operands
                ]
                value = call(node.function, node.kwargs, given)
                for x in {id(x) for x in node.inner if last[id(x)] is node}:
                    del made[x]
            if value is None:
                return None
            made[id(node)] = value
        return value

    @property
    def words(self) -> str:
        """Short text of the last operation."""
        done, node = self.step and self.step.done, self._nodes[-1]
        if isinstance(done, Reduction):
            return done.row.name
        if done is not None:
            return "products" if isinstance(done, Contraction) else "function of tiles"
        return name_of(node.function) if isinstance(node, Apply) else "read"

    def outline(self, shape: tuple[int, ...], operands: Sequence[Array]) -> Computation | Why:
        """Return the computation of chunks of a shape, still without operands.

        The reason if the engine has no program. A reduction that casts pixels first is left out.
        """
        key = shape, tuple(block.dtype for block in operands)
        if key not in self._outlines:
            self._outlines[key] = self._outline(*key)
        return self._outlines[key]

    def _outline(self, shape: tuple[int, ...], dtypes: Dtypes) -> Computation | Why:
        if dtypes not in self._programs:
            self._programs[dtypes] = self._program(dtypes)
        program, reduction = self._programs[dtypes], self.step and self.step.done
        if not isinstance(program, Program):
            return program
        axes_of = tuple(part.axis for part in self.view.parts)
        nav_ndim = self.source.layout.nav_ndim
        shown_nav_ndim = sum(axis < nav_ndim for axis in axes_of)
        computation = Computation(program, (), shape, axes_of, shown_nav_ndim)
        if isinstance(reduction, Reduction):
            numbers = self.view.numbers
            axes = tuple(number for axis in reduction.axes for number in numbers[axis])
            reduction = replace(reduction, axes=axes).of(program.dtype)
            if not reduction.casts_first(program.dtype):
                computation = replace(computation, end=reduction)
        return computation

    def _program(self, dtypes: Dtypes) -> Program | Why:
        draft, missing = Draft(), list[Why]()

        def steps(function: Function, kwargs: Kwargs, operands: Sequence[object]) -> Pixels | None:
            pixels = draft.apply(function, kwargs, operands)
            if pixels is None:
                missing.append(_no_kernel(function, operands))
            return pixels

        root = self._value(draft.read, steps, [*starmap(Operand, enumerate(dtypes))])
        last = self.step and self.step.done
        if not isinstance(root, Register):
            return missing[0] if missing else "the result is a number"
        reduction = last.of(root.dtype) if isinstance(last, Reduction) else None
        if reduction and reduction.dtype and reduction.row.is_ufunc:
            if reduction.casts_first(root.dtype):
                root = draft.add(Cast(reduction.dtype), (root,), reduction.dtype)
            elif reduction.row.ufunc is np.add and reduction.dtype_of is None:
                root = draft.summand(root)
        return compiled(draft, root)

    def make(self, block_id: Block, blocks: Sequence[Array], found: Array) -> Result:
        """Return the result of dask's function, computed from all pixels of a chunk."""
        found = self.view.show(found)
        if self.step is None:
            return like_numpy(found)
        if isinstance(self.step.done, Contraction):
            return self.step.plain(found, blocks[-1])
        given = {"block_id": block_id} if isinstance(self.step.done, ChunkJob) else {}
        return self.step.plain(found, **given)

    def operands(
        self, box: Box, blocks: Sequence[Array]
    ) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        """Return the chunks of operands, weights last, and the shape of the pixels."""
        sizes = self.view.sizes([b - a for a, b in box])
        found = (one.block(block, sizes) for one, block in zip(self.beside, blocks, strict=True))
        return tuple(found), tuple(sizes.values())

    def pixels(
        self, box: Box, shape: tuple[int, ...], operands: Sequence[Array], pixels: Array | None
    ) -> Array:
        """Compute all pixels of a chunk at once, as dask would."""

        def read(source: Source) -> Array:
            return (pixels_in(source, box) if pixels is None else pixels).reshape(shape)

        result = self._value(read, lambda function, kwargs, x: function(*x, **kwargs), operands)
        assert result is not None  # noqa: S101 - chunk functions return arrays
        return result

    def begin(self, begun: Begun, room: Room | None) -> Begun:
        """Begin to compute a chunk that has pixels.

        ``room`` returns memory for the result, if it has a destination.
        """
        last, candidate = self.step and self.step.done, self._in_one_pass(begun, room)
        if isinstance(candidate, ChunkJob):
            _, chunk = begun.begins_with
            return begun._replace(shown=candidate.begin(chunk, room), end=like_numpy)
        if isinstance(candidate, tuple):
            job, end = candidate
            _, chunk = begun.begins_with
            shown = begin(job, chunk)
            if isinstance(shown, FedSink):
                return begun._replace(shown=shown, end=end)
            candidate = shown
        begun = begun._replace(why=candidate)
        if last is None or not isinstance(begun.outline, Computation):
            return begun
        _, chunk = begun.begins_with
        shown = begin(self._job(begun).values, chunk)
        return begun._replace(shown=shown) if isinstance(shown, FedSink) else begun

    def obstacle(self, one: Begun) -> Why | None:
        """Return why NumPy has to compute from all pixels of a chunk at once; None if not.

        Nothing is compiled. Of the operands, only shapes and dtypes matter.
        """
        found = self._in_one_pass(one, None)
        if isinstance(found, tuple):
            _, chunk = one.begins_with
            return obstacle(found[0], chunk)
        return None if isinstance(found, ChunkJob) else found

    def _job(self, one: Begun) -> Computation:
        """Return the computation of a chunk."""
        assert isinstance(one.outline, Computation)  # noqa: S101 - only called with a program
        return replace(one.outline, operands=one.operands[: len(self._numbers)])

    def _in_one_pass(
        self, one: Begun, room: Room | None
    ) -> tuple[Computation, End] | ChunkJob | Why:
        """Return what makes the result from tiles, or why all pixels are needed at once.

        The end converts the result of the sink to that of dask's function.
        """
        if not isinstance(one.outline, Computation):
            return one.outline
        job, last = self._job(one), self.step and self.step.done
        match last:
            case ChunkJob():
                reads = job.program.is_read and last.nav_ndim == self.source.layout.nav_ndim
                computed = "functions of tiles get the tiles of files, not computed ones"
                return last if reads else computed
            case Reduction():
                if job.reduction is None:
                    return f"no kernel for {last.row.name} of {job.dtype} as {last.dtype}"
                return job, partial(self._finish, last.row, job, room)
            case Contraction():
                return self._products(one, job)
        out = room and room(job.dtype)
        return replace(job, out=out if out is None else out.reshape(job.shape)), one.whole

    def _products(self, one: Begun, job: Computation) -> tuple[Computation, End] | Why:
        weights, (_, chunk) = one.operands[-1], one.begins_with
        products = contracted(job, weights, chunk)
        if products is None:
            return f"no kernel for products of {job.dtype} with these weights"
        further = weights.shape[: -len(job.shape)]
        return products, partial(self._finish_products, products, further)

    def _finish_products(self, job: Computation, further: tuple[int, ...], found: Array) -> Result:
        nav, frame = job.shape[: job.nav_ndim], job.shape[job.nav_ndim :]
        shape = nav + (1,) * len(frame) + further
        found = self.view.show(found.astype(job.dtype, copy=False).reshape(shape))
        as_dask = self.step and self.step.as_dask
        return as_dask(found, shape, found.dtype) if as_dask else found

    def _finish(
        self, row: Aggregation, job: Computation, room: Room | None, result: Array
    ) -> Result:
        dtype, as_dask = job.dtype, self.step and self.step.as_dask
        if row.combine is not None:
            axes = job.reduction.axes if job.reduction else ()
            left = [1 if k in axes else n for k, n in enumerate(job.shape)]
            tail = result.shape[-1:] if result.size > math.prod(left) else ()
            result = self.view.show(result.reshape((*left, *tail)))
            if row.counts and not tail:  # no NaN
                number = math.prod(job.shape) // math.prod(left)
                result = np.stack([result, np.full_like(result, number)], axis=-1)
        if row.has_own_type:
            dtype = result.dtype
        if self.step and self.step.keeps_integers and dtype.kind != "b":
            dtype = result.dtype if result.dtype.kind in "iu" else dtype
        if not as_dask:
            return result.astype(dtype, copy=False)
        if room is not None:
            as_dask = partial(as_dask, out=room(dtype))
        shape = tuple(math.prod(job.shape[k] for k in numbers) for numbers in self.view.numbers)
        return as_dask(result, shape, dtype)


class Recipes:
    """Recipes on the same pixels; dask does not look inside."""

    def __init__(self, recipes: Sequence[Recipe], grid: Grid) -> None:
        self.recipes = recipes
        self.grid = grid
        self.beside = list(dict.fromkeys(x for one in recipes for x in one.beside))
        """Operands of all recipes."""
        self._given = [[self.beside.index(x) for x in one.beside] for one in recipes]

    @property
    def is_large(self) -> bool:
        """Whether a recipe is too large to be a part of every task."""
        return any(recipe.is_large for recipe in self.recipes)

    def make(
        self,
        block_id: Block,
        pixels: Array | None,
        *blocks: Nested,
        room: Room | None = None,
    ) -> list[Result]:
        """Compute the chunks of all recipes."""
        begun = self.begin(block_id, blocks, room)
        made: dict[int, Result] = {
            k: item.whole(np.empty(item.shape, item.outline.program.dtype))
            if isinstance(item.outline, Computation) and not all(item.shape)
            else item.whole(item.recipe.pixels(item.box, item.shape, item.operands, pixels))
            for k, item in enumerate(begun)
            if item.shown is None
        }
        shown = {k: item for k, item in enumerate(begun) if item.shown is not None}
        if shown:
            source, chunk = next(iter(shown.values())).begins_with
            nav_shape = self.grid.shape[: chunk.nav_ndim]
            sinks = [item.shown for item in shown.values() if item.shown is not None]
            results = run(source if pixels is None else pixels, chunk, nav_shape, sinks)
            for (k, item), result in zip(shown.items(), results, strict=True):
                made[k] = item.end(result)
        return [made[k] for k in range(len(self.recipes))]

    def begin(
        self, block_id: Block, blocks: Sequence[Nested], room: Room | None = None
    ) -> list[Begun]:
        """Begin the chunks of all recipes; nothing is read yet."""
        prepared = self._prepared(block_id, blocks)
        return [one.recipe.begin(one, room) if all(one.shape) else one for one in prepared]

    def _prepared(self, block_id: Block, blocks: Sequence[Nested]) -> list[Begun]:
        box = self.grid.box(block_id[: len(self.grid.axes)])  # results may have further axes
        prepared = list[Begun]()
        for recipe, given in zip(self.recipes, self._given, strict=True):
            some = [_only(blocks[number]) for number in given]
            operands, shape = recipe.operands(box, some)
            outline, whole = recipe.outline(shape, operands), partial(recipe.make, block_id, some)
            one = Begun(recipe, box, shape, operands, outline, whole, None, whole, None)
            prepared.append(one)
        return prepared

    def obstacle(self, block_id: Block, blocks: Sequence[Nested]) -> Why | None:
        """Return why NumPy has to compute from all pixels of a chunk at once; None if not."""
        prepared = self._prepared(block_id, blocks)
        found = (one.recipe.obstacle(one) for one in prepared if all(one.shape))
        return next(filter(None, found), None)


class Begun(NamedTuple):
    """A recipe prepared for a chunk."""

    recipe: Recipe
    box: Box
    shape: tuple[int, ...]
    """Shape of the pixels, whose axes may be split."""
    operands: Sequence[Array]
    outline: Computation | Why
    """The reason if the engine has no program."""
    whole: End
    """Converts all pixels to the result of dask's function."""
    shown: FedSink | None
    """The sink; None if only NumPy can work, on all pixels at once."""
    end: End
    """Converts the result of the sink to that of dask's function."""
    why: Why | None
    """Why NumPy computes from all pixels of the chunk; None if the chunk is computed on tiles."""

    @property
    def begins_with(self) -> tuple[Source, Chunk]:
        """Source of the tiles, common to all recipes of a task, and its chunk."""
        assert isinstance(self.outline, Computation)  # noqa: S101 - only called with a program
        source = self.outline.program.sources[0]
        return source, Chunk(self.box, source.layout.nav_ndim, source.dtype)


def _no_kernel(function: Function, operands: Sequence[object]) -> Why:
    dtypes = (str(x.dtype) for x in operands if isinstance(x, Pixels))
    return f"no kernel for {name_of(function)} of {' and '.join(dtypes)}"


def _only(block: Nested) -> Array:
    """Unpack the chunk of an array with further axes from dask's nested lists."""
    while isinstance(block, list):
        (block,) = block
    return block


def make_all(
    recipes: Recipes, block_id: Block, pixels: Array | None, *blocks: Nested
) -> list[Result]:
    """Compute a chunk of each recipe."""
    return recipes.make(block_id, pixels, *blocks)


def make(recipes: Recipes, block_id: Block, pixels: Array | None, *blocks: Nested) -> Result:
    """Compute a chunk of a single recipe."""
    (found,) = recipes.make(block_id, pixels, *blocks)
    return found


def make_later(recipes: Recipes, block_id: Block, pixels: Array | None, *blocks: Nested) -> Result:
    """Return a function that computes a chunk of a single recipe into memory supplied later."""

    def made(room: Room) -> Result:
        (found,) = recipes.make(block_id, pixels, *blocks, room=room)
        return found

    return made
