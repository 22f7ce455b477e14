"""Threads that run the newest of their jobs, and computations that end when they are outdated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask import config
from dask.base import get_scheduler

from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.errors import DatasetError, printable
from dask_tiled.model.indexing import Array
from dask_tiled.tiling import machine

Check = Callable[[], None]
"""Raises Outdated in a job that is not the newest any more."""
Work = Callable[[Check], Iterator[None]]


class Outdated(Exception):  # noqa: N818 - nothing is wrong
    """Somebody has asked for something else since."""


class Newest:
    """A thread that runs the newest job it was handed; the one before is ended.

    A job is called with what raises Outdated once there is a newer one, and yields between its
    steps. Errors of jobs are handed on, and end none but the job.
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
        """Run a job now, and end the one before; with None nothing runs."""
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
        """Whether nothing runs or waits."""
        return not self._busy and self._next is None

    def _check(self, number: int) -> None:
        if number != self._number or self._closed:
            raise Outdated

    def pause(self, seconds: float) -> None:
        """Wait some seconds, or until there is a newer job."""
        with self._changed:
            number = self._number
            self._changed.wait_for(lambda: number != self._number or self._closed, seconds)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is left to do."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_idle or self._closed, seconds)

    def close(self) -> None:
        """End what runs, and the thread."""
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
            except Exception as error:  # noqa: BLE001 - the page shows it
                self._failed(message_of(error))


def message_of(error: Exception) -> str:
    """Write an error for people, in a line."""
    told = isinstance(error, DatasetError | ImportError | OSError)
    return printable(str(error) if told else f"{type(error).__name__}: {error}")


class Computing:
    """Threads of its own that compute arrays, until somebody else is wanted."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(
            config.get("num_workers", None) or machine.processors(), "exploring"
        )

    def __call__(self, arr: da.Array, check: Check = lambda: None) -> Array:
        """Compute an array; ``check`` is called before each task, and may raise."""
        check()
        if _is_on_cluster():
            return np.asarray(arr.compute())
        if isinstance(arr, TiledArray) and arr.npartitions == 1:  # a frame
            return np.asarray(arr.compute())

        def begins(*_: Any) -> None:
            check()

        callbacks = [(None, None, begins, None, None)]
        return np.asarray(arr.compute(scheduler="threads", pool=self._pool, callbacks=callbacks))

    def close(self) -> None:
        """End the threads, once the tasks that have begun are done."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _is_on_cluster() -> bool:
    """Return whether arrays are computed by a cluster, which alone has what it persists."""
    return hasattr(getattr(get_scheduler(), "__self__", None), "scheduler_info")
