"""Worker threads that run only their newest job, and cancel outdated computations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask import config

from dask_tiled.arriving.tasks import run_tasks
from dask_tiled.errors import DatasetError, printable
from dask_tiled.graphs.schedulers import cluster, threads_of
from dask_tiled.graphs.stages import Key, ReadyTasks
from dask_tiled.model.indexing import Array
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.tiling import machine

Check = Callable[[], None]
"""Raises Outdated if the job is no longer the newest."""
Work = Callable[[Check], Iterator[None]]


class Outdated(Exception):  # noqa: N818 - not an error
    """Raised in a job once a newer one is submitted."""


class Newest:
    """Worker thread that runs the newest job submitted, and cancels the previous one.

    A job is called with a function that raises Outdated once there is a newer job, and yields
    between its steps. An exception ends only its job, and is reported.
    """

    def __init__(self, name: str, failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._next: Work | None = None
        self._changed = threading.Condition()
        self._number = 0
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def hand(self, job: Work | None) -> None:
        """Submit a job, and cancel the previous one; None only cancels."""
        with self._changed:
            if self._closed:
                return
            self._next = job
            self._number += 1
            self._changed.notify_all()
            if self._thread.ident is None:
                self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        return not self._busy and self._next is None

    def _check(self, number: int) -> None:
        if number != self._number or self._closed:
            raise Outdated

    def pause(self, seconds: float) -> None:
        """Wait some seconds, or until a newer job is submitted."""
        with self._changed:
            number = self._number
            self._changed.wait_for(lambda: number != self._number or self._closed, seconds)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all jobs are done."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_idle or self._closed, seconds)

    def close(self) -> None:
        """Cancel the job, and join the thread."""
        with self._changed:
            self._closed = True
            self._next = None
            self._changed.notify_all()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._next is not None or self._closed)
                if self._closed or self._next is None:
                    return
                job, number = self._next, self._number
                self._next, self._busy = None, True
            try:
                for _ in job(partial(self._check, number)):
                    self._check(number)
            except Outdated:
                pass
            except Exception as error:  # noqa: BLE001 - shown on the page
                self._failed(message_of(error))


def message_of(error: Exception) -> str:
    """Format an exception as one line."""
    told = isinstance(error, DatasetError | ImportError | OSError)
    return printable(str(error) if told else f"{type(error).__name__}: {error}")


class Computing:
    """Thread pool that computes arrays, with cancellation between tasks."""

    def __init__(self) -> None:
        self._closed = False
        self._pool = ThreadPoolExecutor(
            config.get("num_workers", None) or machine.processors(), "exploring"
        )

    def __call__(self, arr: da.Array, check: Check = lambda: None) -> Array:
        """Compute an array; ``check`` is called before each task, and may raise."""
        check()
        is_frame = isinstance(arr, TiledArray) and arr.npartitions == 1
        if self._closed or is_frame or cluster():  # persisted arrays are only there
            return np.asarray(arr.compute())

        def begins(*_: Any) -> None:
            check()

        callbacks = [(None, None, begins, None, None)]
        return np.asarray(arr.compute(scheduler="threads", pool=self._pool, callbacks=callbacks))

    def tasks(self, check: Check, ready: ReadyTasks, given: Mapping[Key, Any]) -> dict[Key, Any]:
        """Run tasks; parameters and result are those of :func:`run_tasks`."""
        check()
        if self._closed or cluster():
            return run_tasks(ready, given)
        with threads_of(self._pool):
            return run_tasks(ready, given)

    def close(self) -> None:
        """Shut the threads down, after the tasks that are running."""
        self._closed = True  # later arrays are computed without cancellation
        self._pool.shutdown(wait=True, cancel_futures=True)
