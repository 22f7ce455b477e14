"""The child process that converts: it is started for a batch, and imports what that takes."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any

from dask_tiled.system.names import offered
from dask_tiled.system.processes import connection_of, without

# dask.array imports libraries of other arrays if they are installed, which takes a third of the
# time to start. No chunk of a file is such an array.
with without("sparse", "xarray"):
    from dask import config

    from dask_tiled.batch.children import ALIVE, STOP
    from dask_tiled.batch.one import STOPPED, ConversionRow, ConversionTask, convert_one
    from dask_tiled.blocks.bars import on_block


def serve(number: int) -> None:
    """Convert what a connection asks for, until it is closed."""
    connection, tasks = connection_of(number), SimpleQueue[tuple[ConversionTask, int]]()
    interrupts = _Interrupts()
    listener = threading.Thread(target=_listen, args=(connection, tasks, interrupts), daemon=True)
    listener.start()
    connection.send(ALIVE)
    on_block.set(lambda: connection.send(ALIVE))
    while True:
        task, threads = tasks.get()
        config.set(num_workers=threads)  # this process has no other work
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


def _listen(
    connection: Any, tasks: SimpleQueue[tuple[ConversionTask, int]], interrupts: _Interrupts
) -> None:
    """Pass messages on; end this process when its parent does."""
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            if message == STOP:
                interrupts.interrupt()
            else:
                tasks.put(message)
    os._exit(0)
