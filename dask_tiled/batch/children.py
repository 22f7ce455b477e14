"""Child processes that convert: one picture at a time each, interrupted by a message."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any

from dask_tiled.batch.one import LOST, STOPPED, WAITING, ConversionRow, ConversionTask, convert_one
from dask_tiled.errors import DatasetError
from dask_tiled.system.names import offered
from dask_tiled.system.processes import connection_of, end, start
from dask_tiled.tiling.machine import processors

STOP = "stop"


class Converter:
    """A child process that converts one picture at a time.

    Parameters
    ----------
    threads : int
        Number of threads of a conversion.
    """

    def __init__(self, threads: int) -> None:
        environment = {**os.environ, "DASK_NUM_WORKERS": str(threads)}
        try:
            self._process, self._connection = start(__name__, environment=environment)
        except OSError as error:
            found = str(error)
            raise DatasetError("cannot start a process to convert", found=found) from error
        self.is_alive = True

    def begin(self, task: ConversionTask) -> None:
        """Begin a conversion."""
        with suppress(ConnectionError):  # `row` tells that the process has ended
            self._connection.send(task)

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
    threads : int
        Number of threads of a conversion.
    """

    def __init__(self, threads: int) -> None:
        self._threads, self._lock = threads, threading.Lock()
        self._idle: list[Converter] = []
        self._busy: dict[Converter, str] = {}
        self._stopped = set[str]()

    def convert(self, task: ConversionTask) -> ConversionRow:
        """Convert a picture, and wait for the outcome."""
        with self._lock:
            converter = self._idle.pop() if self._idle else None
        try:
            converter = converter or Converter(self._threads)
        except DatasetError as error:
            return ConversionRow.of(task.planned, LOST, str(error))
        with self._lock:
            if task.run not in self._stopped:
                self._busy[converter] = task.run
                converter.begin(task)
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
    """

    def __init__(self, run: str, jobs: int) -> None:
        self._run, self.jobs = run, jobs
        self._pool = ConverterPool(max(1, processors() // jobs))
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


def serve(number: int) -> None:
    """Convert what a connection asks for, until it is closed."""
    connection, tasks = connection_of(number), SimpleQueue[ConversionTask]()
    interrupts = _Interrupts()
    listener = threading.Thread(target=_listen, args=(connection, tasks, interrupts), daemon=True)
    listener.start()
    while True:
        task = tasks.get()
        try:
            with interrupts:
                row = convert_one(task)
        except KeyboardInterrupt:
            row = ConversionRow.of(task.planned, STOPPED)
        connection.send(row)


class _Interrupts:
    """Signals that interrupt a conversion, and are ignored between two of them."""

    def __init__(self) -> None:
        self._is_converting = self._is_asked = False
        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, self._handle)

    def __enter__(self) -> None:
        self._is_converting = not self._is_asked
        if self._is_asked:  # before the conversion began
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        self._is_converting = False

    def _handle(self, _: int, __: FrameType | None) -> None:
        if self._is_converting:
            self._is_converting = False
            raise KeyboardInterrupt

    def interrupt(self) -> None:
        """Interrupt the main thread, also while it waits."""
        self._is_asked = True
        kill: Any = offered("signal", "pthread_kill")
        if kill is None:
            signal.raise_signal(signal.SIGINT)
        else:
            kill(threading.main_thread().ident, signal.SIGINT)


def _listen(connection: Any, tasks: SimpleQueue[ConversionTask], interrupts: _Interrupts) -> None:
    """Pass messages on; end this process when its parent does."""
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            if message == STOP:
                interrupts.interrupt()
            else:
                tasks.put(message)
    os._exit(0)
