"""Announce that kernels are compiled, and report the time it took.

In a notebook the text appears below the cell that compiles. Elsewhere, or with handlers of
logging, it is a warning of the logger ``dask_tiled``, once per process; by default on stderr.
"""

from __future__ import annotations

import atexit
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dask_tiled.notebooks import CellText, notebook_shell

LOGGER = logging.getLogger("dask_tiled")
SOON = 1.0
"""Seconds: kernels that follow one another sooner are reported together."""
NOTICEABLE = 0.2


class Notice:
    """Announcement of a compilation, and of its duration."""

    def __init__(self) -> None:
        self._spent, self._is_said = 0.0, False
        self._end: threading.Timer | None = None
        self._shown: _CompilingLines | None = None

    def begin(self) -> None:
        """Announce the first kernel to be compiled."""
        if not self._is_said:
            self._is_said = True
            atexit.register(self._last)
            self._say("compiling for this pixel type, once; the code is cached ...")

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the compiling or loading of one kernel."""
        if self._end is not None:
            self._end.cancel()
        start, collects = time.perf_counter(), gc.isenabled()
        gc.disable()  # compiling makes so many objects that collections take a tenth of the time
        try:
            yield
        finally:
            if collects:
                gc.enable()
            self._spent += time.perf_counter() - start
            if self._is_said and self._spent > NOTICEABLE:
                self._end = threading.Timer(SOON, self._finish)
                self._end.daemon = True
                self._end.start()

    def _say(self, text: str) -> None:
        shell = notebook_shell()
        if shell is None or LOGGER.hasHandlers():
            LOGGER.warning(text)
        elif LOGGER.isEnabledFor(logging.WARNING):
            if self._shown is None:
                self._shown = _CompilingLines(shell, self._end_cell)
            self._shown.add(text)

    def _finish(self) -> None:
        self._say(f"... compiled in {self._spent:.1f} s")
        if self._shown is None:
            self._spent = -float("inf")  # report once per process
        else:  # once per notebook cell
            self._shown.close()
            self._spent, self._is_said, self._shown = 0.0, False, None

    def _end_cell(self, _result: object) -> None:
        """Report the duration in the cell that compiled, before the next one runs."""
        if self._end is not None:
            self._end.cancel()
        self._finish()

    def _last(self) -> None:
        """Report the duration at exit, if the timer is still pending."""
        if self._end is not None and self._end.is_alive():
            self._end.cancel()
            self._finish()


class _CompilingLines:
    """Lines below the running cell; ``at_end`` is called after it."""

    def __init__(self, shell: Any, at_end: Callable[[object], None]) -> None:
        self._events, self._at_end = shell.events, at_end
        self._lines, self._text = list[str](), CellText()
        self._events.register("post_run_cell", at_end)

    def add(self, line: str) -> None:
        """Append a line."""
        self._lines.append(line)
        self._text.show("\n".join(self._lines))

    def close(self) -> None:
        """Leave the lines in place, and unregister ``at_end``."""
        self._events.unregister("post_run_cell", self._at_end)


NOTICE = Notice()
