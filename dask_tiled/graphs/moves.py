"""Layers of listed tasks that move pixels or keep their positions, whatever they compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from dask_tiled.graphs.names import DataNode, List, Task, reductions, shuffling
from dask_tiled.graphs.slices import as_now, is_product, taken
from dask_tiled.model.indexing import Array
from dask_tiled.plans.tasks import Key, Tasks
from dask_tiled.tiling.bases import Grid

UNMOVED = "rechunk-", "setitem-", "arg-reduce-"
"""Name prefixes of layers that keep all axes in place."""
EXTRA = "extra"
"""Part of the keys of block sums in dask's prefix scans."""


def leaves_places(name: str, tasks: Tasks) -> bool:
    """Return whether each pixel of a layer stems from the same position."""
    if name.startswith(UNMOVED):
        return True
    scans = reductions._prefixscan_first, reductions._prefixscan_combine  # noqa: SLF001
    return any(
        EXTRA in key[1:2] or (isinstance(task, tuple) and task[0] in scans)
        for key, task in tasks.items()
        if isinstance(key, tuple)
    )


def is_broadcast(tasks: Tasks) -> bool:
    """Return whether all tasks broadcast a chunk along axes of length 1 or new leading axes."""
    return all(
        isinstance(task, tuple) and len(task) == 3 and task[0] is np.broadcast_to
        for task in tasks.values()
    )


def places_taken(tasks: Tasks, first: Key, grid: Grid) -> list[tuple[int, Array]] | None:
    """Match tasks that select positions along each axis; None for other tasks.

    Return, for each axis of the result, the axis of the pixels and the positions.
    """
    origin = (first[0], *(0 for _ in first[1:]))
    if isinstance(tasks.get(origin), tuple):  # legacy tuple tasks
        tasks = {key: as_now(key, task) for key, task in tasks.items()}
    parts = _parts(tasks, tasks.get(origin))
    if not parts:
        return None
    block, index = parts[0]
    if len(index) != len(grid.axes) or any(item is None for item in index):
        return None
    whole = [k for k, item in enumerate(index) if isinstance(item, slice | np.ndarray)]
    listed = any(isinstance(item, np.ndarray) for item in index)
    if len(whole) != len(origin) - 1 or not (listed or is_product(tasks, origin, block, index)):
        return None
    axis_places, rows = list[tuple[int, Array]](), list[int]()
    for number, axis in enumerate(whole, 1):
        row = [*_row(tasks, origin, number, axis, grid)]
        if not row:
            return None
        axis_places.append((axis, np.concatenate(row)))
        rows.append(len(row))
    blocks = sum(isinstance(key, tuple) and key[0] == origin[0] for key in tasks)
    return axis_places if math.prod(rows) == blocks else None


def _row(tasks: Tasks, origin: Key, number: int, axis: int, grid: Grid) -> Iterator[Array]:
    """Yield the selected positions along an axis, for each chunk of a row."""
    for k in count():
        task = tasks.get((*origin[:number], k, *origin[number + 1 :]))
        if task is None:
            return
        places = []
        for block, index in _parts(tasks, task):
            low, high = grid.axes[axis][block[1 + axis]]
            places.append(np.arange(low, high)[index[axis]])
        order = _order(tasks, task, axis)
        if not places:
            return
        yield np.concatenate(places)[order] if order is not None else places[0]


def _parts(tasks: Tasks, task: object) -> list[tuple[Key, tuple[Any, ...]]]:
    """List the chunks a task takes parts of, and the indices."""
    if isinstance(task, Task) and task.func is shuffling.concatenate_arrays:
        refs = task.args[0].args if isinstance(task.args[0], List) else ()
        return [one for ref in refs for one in _parts(tasks, tasks.get(ref.key))]
    if isinstance(task, Task) and task.func is shuffling._getitem:  # noqa: SLF001 - called by dask
        held = tasks.get(task.args[1].key)
        return [(task.args[0].key, held.value[1])] if isinstance(held, DataNode) else []
    block, index = taken(task)
    return [(block, index)] if block else []


def _order(tasks: Tasks, task: object, axis: int) -> Array | None:
    """Return the permutation that a task applies to its parts along an axis."""
    if not isinstance(task, Task) or task.func is not shuffling.concatenate_arrays:
        return None
    _, sorter, along = task.args
    held = tasks.get(sorter.key)
    return np.argsort(held.value[1]) if along == axis and isinstance(held, DataNode) else None
