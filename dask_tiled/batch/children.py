"""Child processes that convert: one picture at a time each, interrupted by a message."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from dask_tiled.apart.growing import GrowingPool
from dask_tiled.batch.one import LOST, STOPPED, WAITING, ConversionRow, ConversionTask
from dask_tiled.batch.progress import format_seconds
from dask_tiled.errors import DatasetError
from dask_tiled.system.processes import end, start
from dask_tiled.tiling.machine import processors

STOP = "stop"
CHILD = "dask_tiled.batch.child"
"""The module that runs in a child process."""
START_SECONDS = 4.0
"""Time to start a child process, most of it for imports; on an idle machine it is half of that."""
READY_SECONDS = 120.0
"""Time to start a child process on a slow disk."""
ALIVE = "alive"
"""Message of a child process that is ready, or whose conversion has advanced."""


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
        self._until_ready = READY_SECONDS

    def begin(self, task: ConversionTask, threads: int) -> None:
        """Begin a conversion in a number of threads."""
        with suppress(ConnectionError):  # `row` tells that the process has ended
            self._connection.send((task, threads))

    def stop(self) -> None:
        """Interrupt the conversion; what it has written is kept, if it can be resumed."""
        with suppress(OSError):
            self._connection.send(STOP)

    def row(self, task: ConversionTask) -> ConversionRow:
        """Wait for the outcome of the conversion that has begun; end one that hangs."""
        row: ConversionRow | str = ALIVE
        try:
            while row == ALIVE:
                limit = None if task.stall is None else task.stall + self._until_ready
                if not self._connection.poll(limit):
                    return self._stalled(task)
                row, self._until_ready = self._connection.recv(), 0.0
        except (EOFError, OSError):
            self.is_alive = False
            code = self._process.wait()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return ConversionRow.of(task.planned, LOST, f"the process ended with {how}")
        assert isinstance(row, ConversionRow)  # noqa: S101 - for the type checker
        return row

    def _stalled(self, task: ConversionTask) -> ConversionRow:
        self.kill()
        self.is_alive = False
        problem = (
            f"nothing was read or written for {format_seconds(task.stall or 0)}, and the process "
            "was ended. If the files are only slow, pass a longer stall="
        )
        return ConversionRow.of(task.planned, LOST, problem)

    def kill(self) -> None:
        """End the process, also during a conversion."""
        end(self._process)

    def close(self) -> None:
        """End the process between two conversions."""
        self._connection.close()
        end(self._process)


class ConverterPool:
    """Child processes, at most as many as conversions at a time; threads may share it.

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
        self._pool: GrowingPool[Converter] = GrowingPool(Converter, START_SECONDS)
        if warm:
            with suppress(DatasetError):  # the first conversion tells
                self._pool.add()
        self._busy: dict[Converter, str] = {}
        self._stopped = set[str]()

    def convert(self, task: ConversionTask) -> ConversionRow:
        """Convert a picture, and wait for the outcome."""
        row = ConversionRow.of(task.planned, WAITING)
        try:
            converter = self._pool.take(lambda: task.run in self._stopped)
        except DatasetError as error:
            return ConversionRow.of(task.planned, LOST, str(error))
        if converter is None:
            return row
        with self._lock:
            if task.run not in self._stopped:
                self._busy[converter] = task.run
                converter.begin(task, self.threads)
        try:
            if converter in self._busy:
                row = converter.row(task)
        finally:
            with self._lock:
                self._busy.pop(converter, None)
                is_stopped = task.run in self._stopped
            if converter.is_alive and not is_stopped:
                self._pool.give(converter)
            else:
                self._pool.forget(converter)
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
        self._pool.wake()
        self.close()

    def close(self) -> None:
        """End idle processes."""
        self._pool.close(Converter.close)

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
