"""Cost of a task of the engine: bytes read, memory, and what runs on whole chunks.

Sinks are prepared as in the task, with placeholders for operands; nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.engine.evaluation import StageSink
from dask_tiled.engine.folding import FrameSink, are_adjacent
from dask_tiled.engine.jobs import Chunk, Sink
from dask_tiled.engine.reductions import HISTOGRAM
from dask_tiled.engine.run import parts_of, take_windows, tile_for
from dask_tiled.engine.tile_jobs import MapSink, ReduceSink
from dask_tiled.graphs.functions import is_known
from dask_tiled.graphs.limits import OF_HISTOGRAM, OWN_FUNCTIONS
from dask_tiled.model.indexing import Array, Box, Shaped
from dask_tiled.plans.recipes import Begun, Recipes
from dask_tiled.plans.tasks import Block, Function
from dask_tiled.plans.tree import name_of
from dask_tiled.reading.amounts import memory_of
from dask_tiled.reading.planning import frame_ranges, region_of
from dask_tiled.reading.ranges import ReadRanges
from dask_tiled.reading.reader import Source


class Cost(NamedTuple):
    """Cost of a task."""

    reads: tuple[tuple[Source, tuple[Box, ...]], ...]
    """Sources that are read, and the parts of the signal axes in which they are read; none if
    whole."""
    working: int
    """Most bytes of memory while the task runs, without its results."""
    results: tuple[tuple[int, Shaped | None], ...]
    """Bytes and shape of the result of each recipe; no shape if it is not one array."""
    refusals: tuple[tuple[str, str] | None, ...]
    """For each recipe that needs all pixels of the chunk at once, its last operation and why."""
    unseen: tuple[str, ...]
    """Functions that may take more memory than their results."""


def cost_of(
    recipes: Recipes,
    block_id: Block,
    operands: Sequence[Any],
    *,
    has_pixels: bool,
) -> Cost:
    """Return the cost of a task, whose pixels may be read by another task."""
    begun = recipes.begin(block_id, operands)
    reads = list[tuple[Source, tuple[Box, ...]]]()
    results = dict[int, tuple[int, Shaped | None]]()
    working, tiled, unseen = 0, dict[int, Begun](), list[str]()
    for k, one in enumerate(begun):
        if one.why is not None:
            called = one.recipe.functions[0 if one.shown is None else -1 :]
            unseen += [name for x, name in called if not is_known(x)]
        if one.shown is not None:
            tiled[k] = one
            continue
        sources = [] if has_pixels or not all(one.shape) else one.recipe.read_sources
        reads += [(source, ()) for source in sources]
        nbytes, more = _in_numpy(one, sources)
        results[k] = nbytes, None
        working = max(working, more)
    sinks = [one.shown for one in tiled.values() if one.shown is not None]
    if sinks:
        source, chunk = next(iter(tiled.values())).begins_with
        tile = tile_for(chunk, sinks)
        parts = tuple(parts_of(chunk.sig_shape, tile[1:]))
        others = chain(*(x.sink.others() for x in sinks if isinstance(x.sink, StageSink)))
        reads += [(x, parts) for x in chain([] if has_pixels else [source], others)]
        held, ending = [*chain(*(x.sink.arrays for x in sinks))], 0
        for k, one in tiled.items():
            array, result, more = _ended(one)
            parts_of_result = result.values() if isinstance(result, dict) else [result]
            nbytes = sum(int(getattr(x, "nbytes", 64)) for x in parts_of_result)
            held += [array, *(x for x in parts_of_result if isinstance(x, np.ndarray))]
            ending += more - nbytes
            shaped = Shaped(result.shape, result.dtype) if hasattr(result, "dtype") else None
            results[k] = nbytes, shaped
        working = max(working, _feeding(source, chunk, tile, [x.sink for x in sinks]))
        working += _bytes_of(held) + ending
        functions = _functions_of(x.sink for x in sinks)
        unseen += [name_of(x) for x in functions if not (is_known(x) or _is_own(x))]
    return Cost(
        tuple(reads),
        max(0, working),
        tuple(results[k] for k in range(len(begun))),
        tuple(None if one.why is None else (one.recipe.words, one.why) for one in begun),
        tuple(unseen),
    )


def _feeding(source: Source, chunk: Chunk, tile: tuple[int, ...], sinks: Sequence[Sink]) -> int:
    """Return the bytes needed to feed a chunk to sinks, without the sinks' own arrays."""
    own = sum(sink.working_bytes(tile) for sink in sinks)
    layout, region = source.layout, region_of(source.layout, chunk.box)
    folds = [sink for sink in sinks if isinstance(sink, FrameSink)]
    if len(folds) == len(sinks) and tile[1:] == chunk.sig_shape and not layout.has_blocks:
        ranges = [*frame_ranges(layout, region.frames[:1], region.sig)]
        if take_windows(source, ranges, folds):
            in_order = all(are_adjacent(x.units) for x in ranges if isinstance(x, ReadRanges))
            permuted = chain.from_iterable([] if in_order else [fold.arrays for fold in folds])
            return memory_of(source, chunk.box) + own + _bytes_of(permuted)
    own += sum(map(_is_own, _functions_of(sinks))) * math.prod(tile) * OWN_FUNCTIONS
    return memory_of(source, chunk.box, tile) + own


def _functions_of(sinks: Iterable[Sink]) -> list[Function]:
    """Return the functions that are called on tiles."""
    return [sink.function for sink in sinks if isinstance(sink, MapSink | ReduceSink)]


def _is_own(function: Function) -> bool:
    """Return whether a function is part of this package."""
    inner = function.func if isinstance(function, partial) else function
    return getattr(inner, "__module__", "").startswith("dask_tiled.")


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
        reduction = one.recipe.reduction
        if reduction is not None and reduction.row is HISTOGRAM:
            counts = _bytes_of(one.shown.sink.arrays)
            return found, one.end(found), found.nbytes + int(OF_HISTOGRAM * counts)
        if one.end is not one.whole:
            return found, one.end(found), found.nbytes
        if one.recipe.reduces:  # dask's function of all pixels: its result is at most as large
            return found, found, 2 * found.nbytes
        return found, one.end(found), 0


def _bytes_of(arrays: Iterable[Array]) -> int:
    """Sum the bytes of the memory of arrays, each once."""
    bases = dict[int, Array]()
    for base in arrays:
        while isinstance(base.base, np.ndarray):
            base = base.base  # noqa: PLW2901 - follows the views
        bases[id(base)] = base
    return sum(x.nbytes for x in bases.values() if x.flags.owndata)
