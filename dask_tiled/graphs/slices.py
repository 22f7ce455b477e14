"""Slices: tasks that each read a part of a chunk, combined to one slice of an array."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import count, product

import numpy as np

from dask_tiled.graphs.names import Alias, Task, TaskRef, chunk
from dask_tiled.model.indexing import Cut
from dask_tiled.plans.tasks import Key, Tasks
from dask_tiled.tiling.bases import Grid


def taken(task: object) -> tuple[Key, tuple[object, ...]]:
    """Match a task that indexes a chunk: return the key and the index; both empty for others."""
    if isinstance(task, Alias) and isinstance(task.target, tuple):
        return task.target, (slice(None),) * (len(task.target) - 1)
    if not isinstance(task, Task) or task.func not in (operator.getitem, chunk.getitem):
        return (), ()
    of, index = task.args[0], task.args[1]
    if not isinstance(of, TaskRef) or not isinstance(of.key, tuple) or not isinstance(index, tuple):
        return (), ()
    return of.key, index


def as_now(key: Key, task: object) -> object:
    """Convert a legacy tuple task."""
    if not isinstance(task, tuple) or not callable(task[0]):
        return Alias(key, task) if isinstance(task, tuple) else task
    function, *given = task
    known_so = function is chunk.getitem and isinstance(given[0], tuple)
    return Task(key, function, TaskRef(given[0]), *given[1:]) if known_so else None


def cuts_of(tasks: Tasks, first: Key, grid: Grid, new: Sequence[int]) -> list[Cut] | None:
    """Return the cut of each axis for dask's tasks of basic indices; None for other tasks.

    Positions ``new`` of the index are None, and create axes.
    """
    name = first[0]
    origin = (name, *(0 for _ in first[1:]))
    block, index = taken(tasks.get(origin))
    if len(index) != len(grid.axes) + len(new) or not is_product(tasks, origin, block, index):
        return None
    cuts, kept = list[Cut](), 0
    for item in index:
        axis = len(cuts)
        cut: Cut | None = None
        if item is None:
            kept += 1
            continue
        if isinstance(item, slice):
            kept += 1
            cut = _cut_along(tasks, origin, kept, axis, grid)
        elif isinstance(item, (int, np.integer)):
            low, high = grid.axes[axis][block[1 + axis]]
            if low - high <= item < high - low:  # other indices raise errors, as in NumPy
                cut = Cut(int(low + item + (high - low) * (item < 0)), 1, 1, kept=False)
        if cut is None:
            return None
        cuts.append(cut)
    return cuts if kept == len(first) - 1 else None


def is_product(tasks: Tasks, origin: Key, block: Key, index: tuple[object, ...]) -> bool:
    """Return whether the tasks of a row all read the same part of an axis."""
    shown = [k for k, x in enumerate(index) if x is None or isinstance(x, slice)]
    number = [k + 1 - sum(x is None for x in index[:k]) for k in shown]  # axis of the chunk
    rows = []
    for axis, (k, at) in enumerate(zip(shown, number, strict=True), 1):
        row = list[tuple[int | None, object]]()
        while (key := (*origin[:axis], len(row), *origin[axis + 1 :])) in tasks:
            of, entries = taken(tasks[key])
            if len(of) != len(block) or len(entries) != len(index):
                return False
            row.append((None if index[k] is None else of[at], entries[k]))
        rows.append(row)
    if math.prod(map(len, rows)) != len(tasks):
        return False
    of_one, cut_one = list(block), list(index)
    for place in product(*(range(len(row)) for row in rows)):
        for k, at, row, entry in zip(shown, number, rows, place, strict=True):
            number_of, cut_one[k] = row[entry]
            if number_of is not None:
                of_one[at] = number_of
        if taken(tasks.get((origin[0], *place))) != (tuple(of_one), tuple(cut_one)):
            return False
    return True


def _cut_along(tasks: Tasks, origin: Key, kept: int, axis: int, grid: Grid) -> Cut | None:
    """Combine the slices of the chunks along an axis to one cut."""
    positions: list[range] = []
    for number in count():
        task = tasks.get((*origin[:kept], number, *origin[kept + 1 :]))
        if task is None:
            break
        block, index = taken(task)
        index = tuple(x for x in index if x is not None)
        if len(index) != len(grid.axes):
            return None
        low, high = grid.axes[axis][block[1 + axis]]
        part = index[axis]
        if not isinstance(part, slice):
            return None
        positions.append(range(low, high)[part])
    start, length = positions[0][0] if positions[0] else -1, sum(map(len, positions))
    step = positions[0].step
    one_chunk = grid.axes[axis][0] == (0, grid.shape[axis])
    if not all(positions) or (step < 1 and not one_chunk):
        return None
    if len(positions) > 1 and len(positions[0]) == 1:
        step = positions[1][0] - start
    expected = range(start, start + step * length, step)
    done = 0
    for part_positions in positions:
        if part_positions != expected[done : done + len(part_positions)]:
            return None
        done += len(part_positions)
    return Cut(start, step if length > 1 else 1, length)
