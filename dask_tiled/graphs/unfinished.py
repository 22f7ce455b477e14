"""Results of unfinished computations, from the results of those tasks that are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.graphs.aggregation import combined, finished
from dask_tiled.graphs.names import (
    Alias,
    DataNode,
    List,
    Task,
    TaskRef,
    _execute_subgraph,
    finalize,
)
from dask_tiled.graphs.results import OutputBuffer
from dask_tiled.graphs.stages import Key, Stages, combines
from dask_tiled.model.indexing import Array


class ValuePart(NamedTuple):
    """The value of a task, computed from a part of the pixels."""

    value: Any
    read: int
    """Bytes of pixels that were read for it."""


Values = Mapping[Key, ValuePart | None]
"""Values that a task of a subgraph is given, by name; None for a missing one."""


class Unfinished:
    """Values of tasks, of which some are done.

    Parameters
    ----------
    stages : Stages
    is_done : callable
        Whether the result of a key is there.
    result : callable
        Return the result of a key.
    """

    def __init__(
        self, stages: Stages, is_done: Callable[[Key], bool], result: Callable[[Key], Any]
    ) -> None:
        self._stages = stages
        self._is_done, self._result = is_done, result

    def array(self, number: int, shape: tuple[int, ...], chunks: Sequence[Sequence[int]]) -> Any:
        """Return a result, as a masked array: pixels that are not computed yet are masked.

        A reduction that combines chunks is that of the chunks which have been read.

        Parameters
        ----------
        number : int
            Number of the result.
        shape : tuple of int
            Its shape.
        chunks : sequence
            Its chunks, before the graph was optimised.
        """
        key = self._stages.actual(self._stages.wanted[number])
        task = self._stages.tasks[key]
        blocks = None if self._is_done(self._stages.wanted[number]) else _blocks(task)
        if blocks is None or len(blocks) == 1:
            part = self._of(self._stages.wanted[number])
            values = {} if part is None else {(0,) * len(shape): np.asarray(part.value)}
            return _masked(values, shape, [(n,) for n in shape])
        parts = {place: self._of(x) for place, x in blocks.items()}
        values = {x: np.asarray(part.value) for x, part in parts.items() if part is not None}
        weights = {x: self._stages.below[self._stages.actual(key)] for x, key in blocks.items()}
        return _masked(values, shape, _sizes(weights, shape, chunks))

    def _of(self, key: Key) -> ValuePart | None:
        """Return the value of a key, without reading; None if it is missing."""
        if self._is_done(key):
            return ValuePart(self._result(key), self._stages.below[key])
        task = self._stages.tasks[key]
        makes = isinstance(task, Task) and not task.dependencies  # it may take any time
        return None if makes or self._stages.read[key] else self._run(task, key, {})

    def _run(self, task: Any, key: Key, given: Values) -> ValuePart | None:
        """Return the value of a task, or of another argument."""
        if isinstance(task, TaskRef | Alias):
            name = task.key if isinstance(task, TaskRef) else task.target
            return given[name] if name in given else self._of(name)
        if not isinstance(task, Task):
            return ValuePart(task.value if isinstance(task, DataNode) else task, 0)
        run = self._call
        if task.func is _execute_subgraph:
            run = self._subgraph
        elif task.func in (combined, finished):
            run = self._combined
        elif isinstance(task, List) or task.kwargs == {"typ": list}:  # a list in a subgraph
            run = self._list
        return run(task, key, given)

    def _call(self, task: Any, key: Key, given: Values) -> ValuePart | None:
        """Call a function if all its arguments are there."""
        args = [self._run(x, key, given) for x in task.args]
        kwargs = {name: self._run(x, key, given) for name, x in task.kwargs.items()}
        parts = [x for x in (*args, *kwargs.values()) if x is not None]
        if len(parts) < len(args) + len(kwargs):
            return None
        with np.errstate(all="ignore"):
            value = task.func(
                *(x.value for x in args if x is not None),
                **{name: x.value for name, x in kwargs.items() if x is not None},
            )
        return ValuePart(value, sum(x.read for x in parts))

    def _subgraph(self, task: Any, key: Key, given: Values) -> ValuePart | None:
        inner, wanted, names, *args = task.args
        found = {n: self._run(x, key, given) for n, x in zip(names, args, strict=True)}
        inside = _Inside(found)
        inside.run = lambda name: self._run(inner[name], key, inside)
        inside.names = inner.keys()
        return inside[wanted]

    def _combined(self, task: Any, key: Key, given: Values) -> ValuePart | None:
        """Combine the parts that are there; counts of pixels are reduced in proportion."""
        what, pixels, *args = task.args
        parts = [x for x in (self._run(argument, key, given) for argument in args) if x is not None]
        if not parts:
            return None
        read = sum(x.read for x in parts)
        whole = sum(self._below(x) for x in args)
        with np.errstate(all="ignore"):
            value = task.func(what, pixels * read // max(1, whole), *(x.value for x in parts))
        return ValuePart(value, read)

    def _below(self, one: Any) -> int:
        """Return the bytes that an argument of a task is computed from."""
        keys = [one.key] if isinstance(one, TaskRef) else getattr(one, "dependencies", ())
        return sum(self._stages.below.get(x, 0) for x in keys)

    def _list(self, task: Any, key: Key, given: Values) -> ValuePart | None:
        """Return a list; if its chunks are combined, without those that are missing."""
        parts = [self._run(x, key, given) for x in task.args]
        found = [x for x in parts if x is not None]
        if len(found) < len(parts) and not combines(key):
            return None
        lengths = [len(x.value) for x in found if isinstance(x.value, list)]
        found = [x for x in found if not lengths or len(x.value) == max(lengths)]
        return ValuePart([x.value for x in found], sum(x.read for x in found)) if found else None


class _Inside(dict[Key, "ValuePart | None"]):
    """Values of the tasks of a subgraph, computed when they are needed."""

    names: Any = ()
    run: Callable[[Key], ValuePart | None]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.names

    def __missing__(self, name: Key) -> ValuePart | None:
        self[name] = found = self.run(name)
        return found


def _blocks(task: Any) -> dict[tuple[int, ...], Key] | None:
    """Return the keys of the chunks that a last step concatenates, by their places."""
    if not isinstance(task, Task) or task.func not in (finalize, OutputBuffer.whole):
        return None

    def refs(one: Any, place: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Key]]:
        if isinstance(one, TaskRef):
            yield place, one.key
        for k, item in enumerate(one.args if isinstance(one, List) else ()):
            yield from refs(item, (*place, k))

    return dict(refs(task.args[-1], ()))


def _sizes(
    weights: Mapping[tuple[int, ...], int], shape: Sequence[int], chunks: Sequence[Sequence[int]]
) -> list[tuple[int, ...]] | None:
    """Return the sizes of chunks, which may have been merged; None if they are not known.

    The bytes that are read for merged chunks are in proportion to their sizes.
    """
    places, total, new_sizes = [*weights], sum(weights.values()), list[tuple[int, ...]]()
    for axis, length in enumerate(shape):
        count = 1 + max(place[axis] for place in places)
        if count == len(chunks[axis]):
            new_sizes.append(tuple(chunks[axis]))
            continue
        sizes = [0] * count
        for place, weight in weights.items():
            sizes[place[axis]] += weight
        if not total or any(length * n % total for n in sizes):
            return None
        new_sizes.append(tuple(length * n // total for n in sizes))
    return new_sizes


def _masked(
    found: Mapping[tuple[int, ...], Array],
    shape: tuple[int, ...],
    sizes: Sequence[Sequence[int]] | None,
) -> np.ma.MaskedArray[Any, Any]:
    """Put chunks into a masked array; all is masked if they do not fit."""
    dtypes = [x.dtype for x in found.values()]
    masked: Any = np.ma.masked_all
    whole = masked(shape, np.result_type(*dtypes) if dtypes else np.float64)
    for place, chunk in found.items():
        if sizes is None:
            return whole
        stops = [sum(lengths[: k + 1]) for lengths, k in zip(sizes, place, strict=True)]
        starts = [sum(lengths[:k]) for lengths, k in zip(sizes, place, strict=True)]
        box = tuple(slice(a, b) for a, b in zip(starts, stops, strict=True))
        if chunk.shape != tuple(b - a for a, b in zip(starts, stops, strict=True)):
            return masked(shape, whole.dtype)
        whole[box] = chunk
    return whole
