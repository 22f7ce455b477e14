"""Cost of the task of a chunk before it runs: bytes read, memory.

Recipes are prepared as in tasks, but with placeholders for operands; nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.engine.evaluation import StageSink
from dask_tiled.engine.folding import DOT_BYTES, PIXELS_BYTES, FrameSink, are_adjacent
from dask_tiled.engine.jobs import Chunk, Sink
from dask_tiled.engine.run import parts_of, take_windows, tile_for
from dask_tiled.engine.tile_jobs import MapSink, ReduceSink
from dask_tiled.graphs.functions import is_of_numpy
from dask_tiled.model.indexing import Array, Box, Shaped
from dask_tiled.plans.recipes import Begun, Recipes
from dask_tiled.plans.tasks import Block
from dask_tiled.plans.tree import name_of
from dask_tiled.reading.amounts import memory_of
from dask_tiled.reading.planning import frame_ranges, region_of
from dask_tiled.reading.ranges import ReadRanges
from dask_tiled.reading.reader import Source

OF_FUNCTIONS = 32
"""Most temporaries of functions of NumPy and of this package, in bytes per pixel of a tile."""


Parts = tuple[Box, ...]


class Cost(NamedTuple):
    """Cost of the task of a chunk."""

    reads: tuple[tuple[Source, Parts], ...]
    """Sources that are read, and the parts of the signal axes in which they are read; none if
    whole."""
    working: int
    """Peak memory in bytes while the task runs, without its results."""
    results: tuple[RecipeResult, ...]
    whole: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Operations on all pixels of the chunk at once, reasons, and the shape of the chunk."""
    unseen: tuple[str, ...] = ()
    """Functions of users, called on tiles."""


class RecipeResult(NamedTuple):
    """Result of a recipe."""

    nbytes: int
    held: int
    """Bytes of its own memory; 0 if the result is written into a larger one."""
    shaped: Shaped | None = None
    """None if the result is no array."""


def cost_of(
    recipes: Recipes,
    block_id: Block,
    beside: Sequence[Any],
    *,
    has_pixels: bool,
    room: tuple[int, ...] | None,
) -> Cost:
    """Return the cost of a task, whose pixels may be read by another task.

    ``room`` is the shape of the chunk within a larger result, if it is written there.
    """
    rooms = list[Array]()

    def part(dtype: np.dtype) -> Array:
        rooms.append(np.empty(room or (), dtype))
        return rooms[-1]

    begun = recipes.begin(block_id, beside, None if room is None else part)
    reads, results, working = list[tuple[Source, Parts]](), dict[int, RecipeResult](), 0
    unseen = list[str]()
    for k, one in enumerate(begun):
        if one.shown is None:
            sources = [] if has_pixels or not all(one.shape) else one.recipe.read_sources
            reads += [(source, ()) for source in sources]
            nbytes, more = _in_numpy(one, sources)
            results[k] = RecipeResult(nbytes, nbytes)
            working = max(working, more)
    shown = {k: one for k, one in enumerate(begun) if one.shown is not None}
    if shown:
        source, chunk = next(iter(shown.values())).begins_with
        sinks = [one.shown for one in shown.values() if one.shown is not None]
        tile = tile_for(chunk, sinks)
        parts = tuple(parts_of(chunk.sig_shape, tile[1:]))
        beside_it = [x.sink.others() for x in sinks if isinstance(x.sink, StageSink)]
        reads += [(x, parts) for x in chain([] if has_pixels else [source], *beside_it)]
        working = max(working, _shown_tiles(source, chunk, tile, [x.sink for x in sinks]))
        users = (x.sink for x in sinks if isinstance(x.sink, MapSink | ReduceSink))
        unseen = [name_of(x.function) for x in users if not is_of_numpy(x.function)]
        made, ending = list[Array](), 0
        for k, one in shown.items():
            found, result, more = _ended(one)
            made += [found, *_arrays_in(result)]
            ending += more
            one_held = _held(_arrays_in(result), {*map(id, rooms)})
            shaped = Shaped(result.shape, result.dtype) if hasattr(result, "dtype") else None
            results[k] = RecipeResult(_nbytes(result), one_held, shaped)
        own = chain.from_iterable(x.sink.arrays for x in sinks)
        held = _held([*own, *made], {*map(id, rooms)}) + ending
        working += held - sum(results[k].held for k in shown)
    every = tuple(results[k] for k in range(len(begun)))
    whole = tuple((x.recipe.words, x.why, x.shape) for x in begun if x.why is not None)
    return Cost(tuple(reads), max(0, working), every, whole, tuple(unseen))


def _shown_tiles(source: Source, chunk: Chunk, tile: tuple[int, ...], sinks: Sequence[Sink]) -> int:
    """Return the bytes needed to feed a chunk to sinks, without the sinks' own memory."""
    layout, region = source.layout, region_of(source.layout, chunk.box)
    folds = [sink for sink in sinks if isinstance(sink, FrameSink)]
    by_windows = len(folds) == len(sinks) and tile[1:] == chunk.sig_shape and not layout.has_blocks
    ranges = [*frame_ranges(layout, region.frames[:1], region.sig)] if by_windows else []
    if by_windows and take_windows(source, ranges, folds):
        decoded = PIXELS_BYTES if any(x.is_by_pixel for x in folds) else DOT_BYTES
        in_order = all(are_adjacent(x.units) for x in ranges if isinstance(x, ReadRanges))
        permuted = chain.from_iterable([] if in_order else [fold.arrays for fold in folds])
        return memory_of(source, chunk.box) + decoded + _held(permuted, set())
    own = 0
    for sink in sinks:
        if isinstance(sink, MapSink | ReduceSink):
            known = is_of_numpy(sink.function)
            own += math.prod(tile) * OF_FUNCTIONS if known else sink.result_bytes(tile)
        if isinstance(sink, StageSink):
            own += math.prod(tile) * sink.pixel_bytes
            own += sum(memory_of(x, chunk.box, tile) for x in sink.others()[:1])
    return memory_of(source, chunk.box, tile) + own


def _in_numpy(one: Begun, sources: Sequence[Source]) -> tuple[int, int]:
    """Return the bytes of NumPy's result for a chunk, and of its temporaries."""
    widths, pixels = one.recipe.widths(one.operands), math.prod(one.shape)
    most = max(sum(widths[max(0, k - 2) : k + 1]) for k in range(len(widths)))
    working = pixels * (most - widths[-1]) + sum(memory_of(x, one.box) for x in sources[:1])
    result = pixels * widths[-1]
    return result, working + (2 * result if one.recipe.reduces else 0)


def _ended(one: Begun) -> tuple[Array, Any, int]:
    """Return the array of a sink, the final result, and the bytes of the temporaries."""
    assert one.shown is not None  # noqa: S101 - for the type checker
    with np.errstate(all="ignore"):
        found = one.shown.sink.result()
        if one.end is not one.whole:
            return found, one.end(found), found.nbytes
        if one.recipe.reduces:  # dask's function of all pixels: its result is at most as large
            return found, found, 2 * found.nbytes
        return found, one.end(found), 0


def _nbytes(made: Any) -> int:
    if isinstance(made, dict):
        return sum(map(_nbytes, made.values()))
    return int(getattr(made, "nbytes", 64))


def _held(arrays: Iterable[Array], seen: set[int]) -> int:
    """Sum the bytes of the memory of arrays, each once; add it to what was ``seen``."""
    total = 0
    for array in arrays:
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        if id(base) not in seen and base.flags.owndata:
            total += base.nbytes
        seen.add(id(base))
    return total


def _arrays_in(made: Any) -> list[Array]:
    """Return the arrays of a result: one, several by name, or none."""
    values = made.values() if isinstance(made, dict) else [made]
    return [x for x in values if isinstance(x, np.ndarray)]
