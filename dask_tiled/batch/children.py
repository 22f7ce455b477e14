"""Child processes that convert: one at a time each, interrupted by a message."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any

from dask import config

from dask_tiled.batch.one import LOST, STOPPED, ConversionRow, ConversionTask, convert_one
from dask_tiled.errors import DatasetError
from dask_tiled.system.names import offered
from dask_tiled.system.processes import connection_of, end, start

STOP = "stop"


class Converter:
    """A child process that converts one picture at a time.

    Parameters
    ----------
    threads : int
        Number of threads of a conversion.
    """

    def __init__(self, threads: int) -> None:
        try:
            self._process, self.connection = start(__name__, threads, environment=os.environ)
        except OSError as error:
            found = str(error)
            raise DatasetError("cannot start a process to convert", found=found) from error
        self.task: ConversionTask | None = None
        self.is_alive = True

    def begin(self, task: ConversionTask) -> None:
        """Begin a conversion."""
        self.task = task
        with suppress(ConnectionError):  # `row` tells that the process has ended
            self.connection.send(task)

    def stop(self) -> None:
        """Interrupt the conversion; what it has written is kept, if it can be resumed."""
        with suppress(ConnectionError):
            self.connection.send(STOP)

    def row(self) -> ConversionRow:
        """Return the outcome of the conversion, which `connection` is ready to send."""
        if self.task is None:
            raise ValueError("no conversion has begun")
        planned, self.task = self.task.planned, None
        try:
            row: ConversionRow = self.connection.recv()
        except (EOFError, ConnectionError):
            self.is_alive = False
            code = self._process.wait()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return ConversionRow.of(planned, LOST, f"the process ended with {how}")
        return row

    def end(self) -> ConversionRow | None:
        """End the process; return the outcome of a conversion that has not finished."""
        task, self.task = self.task, None
        self.connection.close()
        end(self._process)
        return task and ConversionRow.of(task.planned, STOPPED)


def serve(number: int, threads: int) -> None:
    """Convert what a connection asks for, until it is closed."""
    connection, tasks = connection_of(number), SimpleQueue[ConversionTask]()
    interrupts = _Interrupts()
    listener = threading.Thread(target=_listen, args=(connection, tasks, interrupts), daemon=True)
    listener.start()
    with config.set(num_workers=threads):
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
        self._is_converting = False
        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, self._handle)

    def __enter__(self) -> None:
        self._is_converting = True

    def __exit__(self, *_: object) -> None:
        self._is_converting = False

    def _handle(self, _: int, __: FrameType | None) -> None:
        if self._is_converting:
            self._is_converting = False
            raise KeyboardInterrupt

    @staticmethod
    def interrupt() -> None:
        """Interrupt the main thread, also while it waits."""
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
