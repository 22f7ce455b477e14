"""Reductions of the results of chunks: in double precision, without concatenation.

dask sums float32 in float32, and concatenates partial results. If all steps of a reduction of
opened arrays are known, the tasks of this module replace them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.engine.accumulators import placed
from dask_tiled.engine.reductions import Reduction
from dask_tiled.graphs.layers import results_in
from dask_tiled.graphs.limits import FEW_PARTS, LEVELS
from dask_tiled.graphs.names import (
    Alias,
    ArrayBlockIdDep,
    Layer,
    Task,
    TaskRef,
    blockwise,
)
from dask_tiled.model.indexing import Array, like_numpy
from dask_tiled.plans.last_steps import LaterSteps
from dask_tiled.plans.recipes import Recipes, make
from dask_tiled.plans.tasks import Block, Key, Nested, Room
from dask_tiled.tiling.bases import Chunks, Grid


def reduced(
    name: str, recipes: Recipes | TaskRef, chunks: Chunks, *operands: Array | TaskRef
) -> dict[Key, Task]:
    """Return the tasks that reduce chunks by a recipe, whose operands have one chunk each."""
    blocks = product([name], *(range(len(axis)) for axis in chunks))
    return {key: Task(key, make, recipes, key[1:], None, *operands) for key in blocks}


@dataclass(frozen=True)
class Ending:
    """Last step of a reduction: the final value from the results of all chunks.

    Graphs contain it, and some schedulers turn named tuples in graphs into plain ones.
    """

    reduction: Reduction
    keepdims: bool
    dtype: np.dtype | None
    ddof: float
    dropped: tuple[int, ...] = ()
    """Other axes of length 1 that the final value lacks."""

    @property
    def gone(self) -> tuple[int, ...]:
        """Axes that the final value lacks."""
        axes = () if self.keepdims else self.reduction.axes
        return tuple({*axes, *self.dropped})

    def chunks(self, chunks: Chunks) -> Chunks:
        """Return the chunks of the final value."""
        axes, gone = self.reduction.axes, self.gone
        ones = ((1,) if k in axes else axis for k, axis in enumerate(chunks))
        return tuple(one for k, one in enumerate(ones) if k not in gone)

    def tasks(self, name: str, of: str, chunks: Chunks, made: dict[Key, Task]) -> Iterator[Task]:
        """Yield the tasks that combine the results of chunks, which keep all axes.

        Single results are computed in place: their tasks are removed from ``made``.
        """
        gone, grid = self.reduction.axes, Grid.of(chunks)
        numbers = [
            [k for k, n in enumerate(sizes) if n or axis not in gone]
            for axis, sizes in enumerate(chunks)
        ]
        kept = [[0] if axis in gone else along for axis, along in enumerate(numbers)]
        pixels = math.prod(grid.shape[axis] for axis in gone)
        for block in product(*kept):
            places = [numbers[axis] if axis in gone else [k] for axis, k in enumerate(block)]
            chunk_keys = [(of, *place) for place in product(*places)]
            parts: list[Any] = [TaskRef(key) for key in chunk_keys]
            if len(chunk_keys) == 1:
                parts = [made.pop(chunk_keys[0], parts[0])]
            if self.reduction.row.finds_place:
                parts = [self._moved(*pair, grid) for pair in zip(chunk_keys, parts, strict=True)]
            shown = [k for a, k in enumerate(block) if a not in self.gone]
            width = next(n for n in count(FEW_PARTS) if n**LEVELS >= len(parts))
            for level in range(LEVELS):
                if len(parts) <= width:
                    break
                groups = [parts[k : k + width] for k in range(0, len(parts), width)]
                keys: list[Key] = [(f"{of}-part-{level}", *block, k) for k in range(len(groups))]
                for key, group in zip(keys, groups, strict=True):
                    yield Task(key, combined, self.reduction, pixels, *group)
                parts = [TaskRef(key) for key in keys]
            yield Task((name, *shown), finished, self, pixels, *parts)

    def is_of_one(self, chunks: Chunks) -> bool:
        """Return whether each result is that of a single chunk, none of which is empty."""
        return all(len(chunks[axis]) == 1 and all(chunks[axis]) for axis in self.reduction.axes)

    def of_chunks(self, name: str, reduced: Task, chunks: Chunks) -> Layer:
        """Return the symbolic layer of results of single chunks; ``reduced`` is a task for one."""
        labels = [axis for axis in range(len(chunks)) if axis not in self.gone]
        grid = Grid.of(chunks)
        pixels = math.prod(grid.shape[axis] for axis in self.reduction.axes)
        recipes, _, _, *operands = reduced.args
        arguments: list[object] = [recipes, None, self, None, pixels, None]
        arguments += [ArrayBlockIdDep(tuple(chunks[axis] for axis in labels)), labels]
        numblocks = dict[str, tuple[int, ...]]()
        for operand in operands:
            key, *places = operand.key
            arguments += [key, [-1 - k for k, _ in enumerate(places)]]
            numblocks[key] = (1,) * len(places)
        return blockwise(finished_chunk, name, labels, *arguments, numblocks=numblocks)

    def block_of(self, block_id: Block) -> Block:
        """Return the index of the only chunk that a chunk of the final value depends on."""
        places, gone = iter(block_id), self.gone
        ndim = len(block_id) + len(gone)
        return tuple(0 if axis in gone else next(places) for axis in range(ndim))

    def _moved(self, key: Key, part: Task | TaskRef, grid: Grid) -> Task:
        """Convert the positions in the result of a chunk to those in the whole array."""
        axes = self.reduction.axes
        bounds = [grid.axes[axis][key[1 + axis]] for axis in axes]
        return Task(None, moved, part, bounds, [grid.shape[axis] for axis in axes])


class Concatenation(NamedTuple):
    """Concatenation of the results of all chunks."""

    def tasks(self, name: str, of: str, chunks: Chunks, _: object) -> Iterator[Alias]:
        """Yield the tasks that alias the results."""
        for number, place in enumerate(product(*(range(len(axis)) for axis in chunks))):
            yield Alias((name, number, 0), (of, *place))


def squeezed(block: Nested, gone: tuple[int, ...]) -> Array:
    """Remove axes of length 1 from the results of a chunk."""
    while isinstance(block, list):  # one chunk for each removed axis
        (block,) = block
    return like_numpy(block.squeeze(gone))


def merged(
    results: Nested,
    axis: tuple[int, ...],
    keepdims: bool,  # noqa: FBT001 - the signature of dask
    combine: Callable[..., Array],
) -> Array:
    """Combine the states of chunks, with the signature that dask expects."""
    reduced = combine(results_in(results), axis)
    return np.expand_dims(reduced, axis) if keepdims else like_numpy(reduced)


def ending_of(reduction: Reduction, steps: LaterSteps, last: partial[object]) -> Ending | None:
    """Match the last function of a reduction; None for another function."""
    given = dict(last.keywords)
    axes, keepdims = given.pop("axis", None), given.pop("keepdims", None)
    dtype, ddof = given.pop("dtype", None), given.pop("ddof", 0)
    given.pop("implicit_complex_dtype", None)
    if given.pop("sum", np.sum) is not np.sum:
        return None
    if given or last.func is not steps.last or axes != reduction.axes or keepdims is None:
        return None
    return Ending(reduction, keepdims, dtype and np.dtype(dtype), ddof)


def combined(reduction: Reduction, pixels: int, *results: Array) -> Array:
    """Combine the results of several chunks."""
    assert reduction.row.combine is not None  # noqa: S101 - for the type checker
    return reduction.row.combine(reduction, pixels, results)


def moved(found: Array, bounds: Sequence[tuple[int, int]], whole: Sequence[int]) -> Array:
    """Convert positions within a part to positions in the whole array."""
    rest = found["place"].astype(np.int64)
    places = np.zeros_like(rest)
    for axis, (start, stop) in reversed([*enumerate(bounds)]):
        rest, inner = divmod(rest, stop - start) if axis else (rest, rest)
        places += (start + inner) * math.prod(whole[axis + 1 :])
    return placed(found["value"], places)


def finished(ending: Ending, pixels: int, *results: Array, room: Room | None = None) -> Array:
    """Combine the last results, and compute the final value; ``room`` is memory for it."""
    reduction = ending.reduction
    with np.errstate(all="ignore"):
        total = combined(reduction, pixels, *results)
        total = reduction.row.finish(total, pixels, ending.ddof, None)
    total = total.squeeze(ending.gone)
    out = None if room is None or ending.dtype is None else room(ending.dtype)
    if out is not None:
        np.copyto(out, total, casting="unsafe")
        return out
    if ending.dtype is not None:
        total = total.astype(ending.dtype, copy=False)
    return like_numpy(total)


def finished_chunk(
    recipes: Recipes, ending: Ending, pixels: int, block_id: Block, *blocks: Nested
) -> Array:
    """Compute the final value from the only chunk that it depends on."""
    found: Any = make(recipes, ending.block_of(block_id), None, *blocks)
    return finished(ending, pixels, found)


def finished_later(ending: Ending, pixels: int, *results: Array) -> Callable[[Room], Array]:
    """Return a function that computes the final value into memory supplied later."""
    return lambda room: finished(ending, pixels, *results, room=room)
