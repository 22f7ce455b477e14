"""Child processes that convert: one picture at a time each, interrupted by a message."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from dask_tiled.batch.one import LOST, STOPPED, WAITING, ConversionRow, ConversionTask
from dask_tiled.errors import DatasetError
from dask_tiled.system.processes import end, start
from dask_tiled.tiling.machine import processors

STOP = "stop"
CHILD = "dask_tiled.batch.child"
"""The module that runs in a child process."""


class Converter:
    """A child process that converts one picture at a time.

    It starts while this process goes on.
    """

    def __init__(self) -> None:
        try:
            self._process, self._connection = start(CHILD, environment=os.environ)
        except OSError as error:
            found = str(error)
            raise DatasetError("cannot start a process to convert", found=found) from error
        self.is_alive = True

    def begin(self, task: ConversionTask, threads: int) -> None:
        """Begin a conversion in a number of threads."""
        with suppress(ConnectionError):  # `row` tells that the process has ended
            self._connection.send((task, threads))

    def stop(self) -> None:
        """Interrupt the conversion; what it has written is kept, if it can be resumed."""
        with suppress(OSError):
            self._connection.send(STOP)

    def row(self, task: ConversionTask) -> ConversionRow:
        """Wait for the outcome of the conversion that has begun."""
        try:
            row: ConversionRow = self._connection.recv()
        except (EOFError, OSError):
            self.is_alive = False
            code = self._process.wait()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return ConversionRow.of(task.planned, LOST, f"the process ended with {how}")
        return row

    def kill(self) -> None:
        """End the process, also during a conversion."""
        end(self._process)

    def close(self) -> None:
        """End the process between two conversions."""
        self._connection.close()
        end(self._process)


class ConverterPool:
    """Child processes, as many as conversions at a time; threads may share it.

    Parameters
    ----------
    warm : bool
        Start a process before there is a conversion.

    Attributes
    ----------
    threads : int
        Number of threads of a conversion.
    """

    def __init__(self, *, warm: bool = False) -> None:
        self.threads, self._lock = 1, threading.Lock()
        self._idle: list[Converter] = []
        if warm:
            with suppress(DatasetError):  # the first conversion tells
                self._idle.append(Converter())
        self._busy: dict[Converter, str] = {}
        self._stopped = set[str]()

    def convert(self, task: ConversionTask) -> ConversionRow:
        """Convert a picture, and wait for the outcome."""
        with self._lock:
            converter = self._idle.pop() if self._idle else None
        try:
            converter = converter or Converter()
        except DatasetError as error:
            return ConversionRow.of(task.planned, LOST, str(error))
        with self._lock:
            if task.run not in self._stopped:
                self._busy[converter] = task.run
                converter.begin(task, self.threads)
        row = ConversionRow.of(task.planned, WAITING)
        try:
            if converter in self._busy:
                row = converter.row(task)
        finally:
            with self._lock:
                self._busy.pop(converter, None)
                is_stopped = task.run in self._stopped
                if converter.is_alive and not is_stopped:
                    self._idle.append(converter)
                else:
                    converter.close()
        killed = is_stopped and not converter.is_alive
        return ConversionRow.of(task.planned, STOPPED) if killed else row

    def stop(self, run: str) -> None:
        """Interrupt the conversions of a batch, begin no other ones of it, end idle processes."""
        with self._lock:
            self._stopped.add(run)
            for converter, one in self._busy.items():
                if one == run:
                    converter.stop()
        self.close()

    def close(self) -> None:
        """End idle processes."""
        with self._lock:
            for converter in self._idle:
                converter.close()
            self._idle.clear()

    def end(self) -> None:
        """End the processes of conversions that `stop` has not ended."""
        with self._lock:
            for converter in self._busy:
                converter.kill()


class LocalConverters:
    """Conversions in child processes of this machine, which share its processors.

    Parameters
    ----------
    run : str
        Name of the batch.
    jobs : int
        Number of conversions at a time.
    pool : ConverterPool
        The processes.
    """

    def __init__(self, run: str, jobs: int, pool: ConverterPool) -> None:
        self._run, self.jobs, self._pool = run, jobs, pool
        pool.threads = max(1, processors() // jobs)
        self._threads = ThreadPoolExecutor(jobs)

    def submit(self, task: ConversionTask, _: int) -> Future[ConversionRow]:
        """Begin a conversion."""
        return self._threads.submit(self._pool.convert, task)

    def stop(self) -> None:
        """Interrupt all conversions; what they have written is kept, if it can be resumed."""
        self._pool.stop(self._run)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def end(self) -> None:
        """End all processes."""
        self._pool.end()
        self._threads.shutdown()
