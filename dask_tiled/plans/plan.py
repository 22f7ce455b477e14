"""Plans: the work of tasks on opened arrays, and the layers left to dask."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dask_tiled.engine.expressions import in_order
from dask_tiled.engine.reductions import SUM
from dask_tiled.files.paths import is_url
from dask_tiled.model.decoders import EventDecoder
from dask_tiled.model.indexing import Array
from dask_tiled.model.layout import Layout
from dask_tiled.plans.last_steps import LastStep
from dask_tiled.plans.limits import (
    CUT_PART_BYTES,
    ENOUGH_CHUNKS,
    LEAST_EVENT_BYTES,
    LEAST_RESULT_PIXELS,
    LEAST_RUN_BYTES,
    LEAST_TASK_BYTES,
    MOST_CUT_FILES,
    MOST_EVENT_FRAMES,
    MOST_REDUCED_CHUNKS,
)
from dask_tiled.plans.lowering import Known, Why
from dask_tiled.plans.recipes import Recipe, Recipes
from dask_tiled.plans.tasks import run_job
from dask_tiled.plans.tree import Node
from dask_tiled.plans.views import Span
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Grid, ceil_div, even_size, split


@dataclass(frozen=True, eq=False)
class Plan:
    """Work on one set of chunks: a task reads a chunk once, and computes all parts from it."""

    parts: tuple[Known, ...]
    pixels: str | None
    """Layer that reads the pixels, if they are needed elsewhere."""

    def __str__(self) -> str:
        """Return the plan as text, as it is expected of the largest chunk."""
        counts = {part.recipe: math.prod(map(len, part.chunks)) for part in self.parts}
        whole = [part.recipe for part in self.parts if part.obstacle is not None]
        return self.text(counts, {recipe: counts[recipe] for recipe in whole})

    def text(self, counts: Mapping[Recipe, int], whole: Mapping[Recipe, int]) -> str:
        """Return the chunks, and below them the tree of each part on tiles; empty if none is.

        ``counts`` are the numbers of chunks that recipes compute, and ``whole`` of those that they
        do not compute on tiles.
        """
        largest = tuple(max(axis, default=0) for axis in self.parts[0].chunks)
        count = max(counts.get(part.recipe, 0) for part in self.parts)
        lines = [f"{count} task{'s' * (count != 1)}, for chunks of {largest} pixels:"]
        for part in self.parts:
            first, *more = str(part.tree).splitlines()
            tiled = counts.get(part.recipe, 0) - whole.get(part.recipe, 0)
            share = f", in {tiled} of the tasks" * (tiled < count)
            lines += [f"  {line}" for line in (first + share, *more)] if tiled else []
        return "\n".join(lines) if len(lines) > 1 else ""


@dataclass(frozen=True, eq=False)
class Needed:
    """Requirements of the layers that are wanted."""

    parts: dict[str, Known]
    """Computations of the engine, by layer."""
    kept: list[str]
    """Layers that are kept."""
    dependencies: dict[str, set[str]]


def needed(
    wanted: Collection[str],
    known: Mapping[str, Known],
    ends: Mapping[str, str],
    dependencies: Mapping[str, set[str]],
) -> Needed:
    """Collect the computations and the kept layers that are needed, with their dependencies.

    ``ends`` maps the layers that end reductions to those that begin them.
    """
    waiting = list(wanted)
    need = Needed({}, [], {})
    while waiting:
        name = waiting.pop()
        if name in need.dependencies:
            continue
        if name in ends:
            need.dependencies[name] = {ends[name]}
        elif name in known and not known[name].recipe.is_read:
            need.parts[name] = known[name]
            need.dependencies[name] = {x.name for x in known[name].recipe.beside}
        else:
            need.kept.append(name)
            need.dependencies[name] = {*dependencies[name]}
        waiting += need.dependencies[name]
    return need


def obstacle(part: Known, trees: Mapping[str, Node]) -> Why | None:
    """Return why tasks compute from all pixels of a chunk at once; None if they work on tiles.

    The largest chunk counts. ``trees`` describe the operands; what dask did not annotate is no
    obstacle.
    """
    largest = tuple(axis.index(max(axis)) for axis in part.chunks)
    blocks = list[Array]()
    for beside in part.recipe.beside:
        tree = trees.get(beside.name)
        if tree is None or tree.chunks is None or tree.dtype is None:
            return None
        shape = tuple(
            axis[largest[along_of(spans, part.chunks)] if len(axis) > 1 and spans else 0]
            for axis, spans in zip(tree.chunks, beside.spans, strict=True)
        )
        blocks.append(np.broadcast_to(np.zeros((), tree.dtype), shape))
    return Recipes([part.recipe], part.grid).obstacle(largest, blocks)


def along_of(spans: Sequence[Span], chunks: Chunks) -> int:
    """Return the axis of the pixels whose chunks those of an operand's axis follow."""
    return max((span.axis for span in spans), key=lambda axis: len(chunks[axis]))


def in_fewer_chunks(
    parts: Mapping[str, Known], unseen: Collection[str], *, arriving: bool = False
) -> dict[str, Known]:
    """Merge the chunks of parts whose later steps are known, along axes that all of them reduce.

    ``unseen`` results, which are concatenated at once, allow it along any axis. If all are unseen,
    and profit, their chunks are cut across. If frames are still ``arriving``, no chunk is cut
    across, and only those are merged whose results depend on it.
    """
    axes = {*range(min((len(x.chunks) for x in parts.values()), default=0))}
    for name, part in parts.items():
        beside = any(n > 1 for x in part.recipe.beside for n in x.numblocks)
        if beside or _takes_whole_chunks(part):
            return {**parts}
        if name not in unseen:
            left = {*range(len(part.labels))} - {*part.recipe.gone}
            axes -= {x.axis for place in left for x in part.recipe.view.shown[place]}
    most = max(map(_most_chunks, parts.values()), default=1)
    merged = {name: _merged(part, axes, most) for name, part in parts.items()}
    whole = merged
    across = {_across(part) for part in merged.values()} if parts.keys() <= {*unseen} else set()
    chunks = across.pop() if len(across) == 1 else None
    if chunks is not None:
        merged = {name: _in_chunks(part, chunks) for name, part in merged.items()}
    if not all(map(_fits, merged.values())):
        return {**parts}
    if arriving:
        return {name: _if_needed(parts[name], part) for name, part in whole.items()}
    return merged


def _if_needed(part: Known, merged: Known) -> Known:
    """Return the merged chunks of a part if they change a bit of its result, otherwise its own."""
    recipe = part.recipe
    axes = () if recipe.reduction is None else recipe.reduction.axes
    gone = {x.axis for place in axes for x in recipe.view.shown[place]}
    same = all(part.chunks[axis] == merged.chunks[axis] for axis in gone)
    return part if same or _is_exact(part) else merged


def _fits(part: Known) -> bool:
    """Return whether tasks work on tiles, or take the memory of small chunks only."""
    nbytes = math.prod(map(max, part.chunks)) * part.recipe.source.dtype.itemsize
    return part.obstacle is None or nbytes <= CUT_PART_BYTES


def _takes_whole_chunks(part: Known) -> bool:
    """Return whether a user's function asks for the chunks as they are."""
    job = part.recipe.job
    return job is not None and job.job.request.by == "chunk"


def _across(part: Known) -> Chunks | None:
    """Return chunks that have all positions along the reduced axes, and fewer along another.

    The other one is a navigation axis or, for a series of frames, their first. None where results
    are much smaller than chunks, or where the file or the operands cannot be cut so. Where the
    order of combining changes bits, chunks are only cut.
    """
    recipe, chunks = part.recipe, list(part.chunks)
    source, view = recipe.source, recipe.view
    axes = () if recipe.reduction is None else recipe.reduction.axes
    gone = {x.axis for place in axes for x in view.shown[place]}
    left = {x.axis for k, parts in enumerate(view.shown) if k not in axes for x in parts}
    beside = {span.axis for x in recipe.beside for spans in x.spans for span in spans}
    nav_ndim, free = source.layout.nav_ndim, left - gone - beside - view.flipped
    along = {k for k in free if k < nav_ndim} or free & {nav_ndim} - {len(chunks) - 1}
    count = math.prod(len(chunks[axis]) for axis in gone)
    many = math.prod(max(chunks[axis], default=0) for axis in gone) >= LEAST_RESULT_PIXELS
    slow = (
        takes_time(source) or source.layout.is_sparse or len(source.layout.files) > MOST_CUT_FILES
    )
    if many or slow or count < 2 or gone & left or not along:
        return None
    if _is_exact(part):
        for axis in gone:
            chunks[axis] = (sum(chunks[axis]),)
    else:
        count = math.prod(map(max, chunks)) * source.dtype.itemsize // CUT_PART_BYTES
    if count < 2:
        return None
    axis = max(along, key=lambda k: sum(chunks[k]))
    least = ceil_div(
        LEAST_RUN_BYTES, math.prod(part.grid.shape[axis + 1 :]) * source.dtype.itemsize
    )
    length, size = sum(chunks[axis]), max(least, ceil_div(max(chunks[axis]), count))
    chunks[axis] = split(length, even_size(length, size))
    few = len(chunks[axis]) < min(count, ENOUGH_CHUNKS)
    return None if few or view.chunks(tuple(chunks)) is None else tuple(chunks)


def _is_exact(part: Known) -> bool:
    """Return whether the order in which pixels are combined cannot change a bit of the result."""
    reduction, pixel = part.recipe.reduction, part.recipe.source.dtype
    if reduction is None or reduction.row.ufunc not in {np.add, np.multiply}:
        return reduction is not None
    if not reduction.row.is_ufunc or reduction.dtype is None:
        return False
    counts = (
        isinstance(part.recipe.expression, Source) and pixel.kind in "biu" and pixel.itemsize <= 4
    )
    adds = counts and reduction.dtype == np.float64 and reduction.row.ufunc is np.add
    return adds or reduction.dtype.kind in "iu"


def _merged(part: Known, axes: set[int], most: int) -> Known:
    """Merge consecutive chunks of a part along some axes, to at most ``most`` chunks."""
    chunks = list(part.chunks)
    for axis in sorted(axes, reverse=True):
        by = -(-math.prod(map(len, chunks)) // most)
        some = chunks[axis]
        chunks[axis] = tuple(sum(some[k : k + by]) for k in range(0, len(some), by))
    return _in_chunks(part, tuple(chunks))


def _in_chunks(part: Known, chunks: Chunks) -> Known:
    grid, job = Grid.of(chunks), part.recipe.job
    if job is not None and chunks != part.chunks:
        job = job.on(grid)
        step = LastStep(job, partial(run_job, job=job))
        part = part.with_recipe(step=step)
    return part.but(chunks=chunks, grid=grid)


def _most_chunks(known: Known) -> int:
    """Return the number of tasks up to which reductions of a source gain from more tasks."""
    source, reduction = known.recipe.source, known.recipe.reduction
    if source.layout.is_sparse and reduction is not None and reduction.row is SUM:
        frames = math.prod(known.grid.shape[: source.layout.nav_ndim])
        return max(1, _event_tasks(source.layout), frames // MOST_EVENT_FRAMES)
    if takes_time(source) or known.recipe.job:  # functions of users may take long
        return MOST_REDUCED_CHUNKS
    nbytes = math.prod(known.grid.shape) * source.dtype.itemsize
    return min(MOST_REDUCED_CHUNKS, max(1, nbytes // LEAST_TASK_BYTES))


def _event_tasks(layout: Layout) -> int:
    """Return the number of tasks that sum events, each of which decodes all pieces it meets.

    Pieces that have events of all frames are decoded once.
    """
    tasks = layout.pieces.stored // LEAST_EVENT_BYTES
    if any(isinstance(decoder, EventDecoder) and decoder.index for decoder in layout.decoders):
        return tasks  # the frames of the pieces are not known yet
    length = max(1.0, layout.pieces.column("shape").mean())
    return min(tasks, int(layout.n_frames / length))


def takes_time(source: Source) -> bool:
    """Return whether reading costs more than copying bytes: compressed or remote pixels."""
    return source.layout.has_blocks or is_url(source.layout.files[0].path)


def layers_in_order(dependencies: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield the names of all layers in topological order."""
    return in_order(dependencies, lambda name: dependencies.get(name, ()), str)


def plans_of(
    parts: Mapping[str, Known], reads: Mapping[str, Known], dependencies: Mapping[str, set[str]]
) -> Iterator[Plan]:
    """Group the parts that read the same chunks, and do not depend on each other.

    ``reads`` are kept layers that read pixels.
    """
    stages: dict[str, int] = {}
    groups: dict[tuple[object, ...], list[str]] = {}
    for name in layers_in_order(dependencies):
        below = max((stages[x] for x in dependencies[name]), default=0)
        stages[name] = below + (name in parts or name in reads)
        if name not in reads and name not in parts:
            continue
        part = reads.get(name) or parts[name]
        sources = part.recipe.sources
        company = tuple(sorted(sources)) if len(sources) == 1 else name
        groups.setdefault((company, part.chunks, stages[name]), []).append(name)
    for names in groups.values():
        group = tuple(parts[name] for name in names if name in parts)
        if group:
            yield Plan(group, next((name for name in names if name in reads), None))
