"""A computation on growing files, of which what has arrived is computed step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
from dask.base import DaskMethodsMixin, compute
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.arriving.following import Following
from dask_tiled.arriving.tasks import ArrivingTasks, Run, run_tasks
from dask_tiled.graphs.growing import with_growing_sources
from dask_tiled.graphs.rewriting import optimize
from dask_tiled.graphs.stages import Stages
from dask_tiled.graphs.wrapped import unwrapped
from dask_tiled.model.description import Description
from dask_tiled.opened.tiled_array import Opening
from dask_tiled.reading.growing import GrowingSource
from dask_tiled.reading.reader import Source


class Arrived(NamedTuple):
    """How much of a computation is done."""

    share: float
    missing: int
    exact: bool
    problem: str


class Arriving:
    """A computation of some arrays on growing files.

    Parameters
    ----------
    arrays : sequence of dask.array.Array
    run : callable, optional
        Runs tasks; by default on dask's scheduler.
    files : Following, optional
        The files of all arrays; by default each array is followed on its own.
    """

    def __init__(
        self, arrays: Sequence[da.Array], run: Run = run_tasks, files: Following | None = None
    ) -> None:
        self._arrays, self._common = arrays, files
        self._files = dict[int, Following]()
        self._sources = dict[str, Source]()
        largest = max(int(arr.nbytes) // max(1, arr.npartitions) for arr in arrays)
        stages = list[Stages]()

        def take(graph: Any, keys: Any, **_: Any) -> Any:
            stages.append(Stages(graph, keys, largest))
            return keys

        given = [_Growing(arr, self._with_growing_sources(arr.dask)) for arr in arrays]
        compute(*given, scheduler=take, traverse=False)
        self._stages, self._run = stages[0], run
        self._revisions = self._count_revisions()
        self._tasks = ArrivingTasks(stages[0], run)
        self.lacking: str = ""
        """Files that have ended before all frames were there; empty if they have not."""
        self._ended = False

    def _with_growing_sources(self, graph: Any) -> Any:
        if not isinstance(graph, HighLevelGraph):  # users may have set another mapping
            return graph
        return with_growing_sources(unwrapped(graph), self._growing)

    def _growing(self, source: Source, description: Description, opening: Opening) -> Source:
        files = self._files.get(id(opening))
        if files is None:
            files = self._common or Following(opening, description)
            self._files[id(opening)] = files
        return self._sources.setdefault(source.token, GrowingSource(source, files))

    @property
    def state(self) -> Arrived:
        """How much is done."""
        files = self._files.values()
        problem = next((x.problem for x in files if x.problem), "")
        missing = sum(x.missing for x in files)
        return Arrived(self._tasks.share, missing, self._are_exact, problem)

    @property
    def _are_exact(self) -> bool:
        """Whether all tasks are done, and no late events may change their frames."""
        are_final = self._ended or not any(x.may_be_revised for x in self._files.values())
        return self._tasks.are_done and are_final

    def step(self, rest: float) -> bool:
        """Look at the files, and run some tasks; return whether there was anything to do.

        After ``rest`` seconds without growth, or when what writes the files has ended, missing
        frames are taken as such.
        """
        files = self._files.values()
        grew = [x.look() for x in files]
        self._begin_again()
        ran = self._tasks.step(complete=self._ended)
        if ran or any(grew) or self._ended:
            return ran or any(grew)
        if not self._rest(rest):
            return False
        # The last description may be older than what was appended since.
        grew = [x.look(at_once=True) for x in files]
        if any(grew) or not self._rest(rest):
            return True
        for x in files:
            x.finish()
        self._begin_again()
        self._ended = True
        absent = (f"{x.layout.files[-1].path}: {x.missing}" for x in files if x.missing)
        self.lacking = ", ".join(absent)
        return False

    def _rest(self, seconds: float) -> bool:
        """Return whether no file has grown for some seconds, or will."""
        now = time.monotonic()
        return all(x.ended or now - x.grown > seconds for x in self._files.values())

    def _begin_again(self) -> None:
        """Begin the tasks again if frames have changed that counted as complete."""
        revisions = self._count_revisions()
        if revisions != self._revisions:
            self._revisions = revisions
            self._tasks = ArrivingTasks(self._stages, self._run)

    def _count_revisions(self) -> int:
        return sum(x.revisions for x in self._files.values())

    def values(self) -> list[Any]:
        """Return the results so far; masked arrays until all are exact."""
        if self._are_exact:
            return self._tasks.values()
        return self._tasks.unfinished(self._arrays)


class _Growing(DaskMethodsMixin):
    """An array over growing files, as a collection of dask."""

    __dask_scheduler__ = staticmethod(da.Array.__dask_scheduler__)
    __dask_optimize__ = staticmethod(partial(optimize, arriving=True))

    def __init__(self, arr: da.Array, graph: Any) -> None:
        self._arr, self._graph = arr, graph

    def __dask_graph__(self) -> Any:
        return self._graph

    def __dask_keys__(self) -> Any:
        return self._arr.__dask_keys__()

    def __dask_layers__(self) -> Any:
        return self._arr.__dask_layers__()

    def __dask_postcompute__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        finish: tuple[Callable[..., Any], tuple[Any, ...]] = self._arr.__dask_postcompute__()
        return finish
