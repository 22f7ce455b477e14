"""What is said while kernels are compiled, and afterwards how long it took.

In a notebook each cell that compiles shows it. Elsewhere, and where somebody handles messages, it
is a warning of the logger ``dask_tiled``, once in a process; Python writes that to stderr.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dask_tiled.notebooks import CellText, notebook_shell

LOGGER = logging.getLogger("dask_tiled")
SOON = 1.0
"""Seconds: kernels that follow one another so soon are compiled for the same work."""
NOTICEABLE = 0.2


class Notice:
    """Tells that something is compiled, and how long that took."""

    def __init__(self) -> None:
        self._spent, self._is_said = 0.0, False
        self._end: threading.Timer | None = None
        self._shown: _Shown | None = None

    def begin(self) -> None:
        """Say that a kernel is compiled which is not there."""
        if not self._is_said:
            self._is_said = True
            atexit.register(self._last)
            self._say("compiling for this kind of data; that is kept for the next time ...")

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure what is compiled, or only loaded, one kernel at a time."""
        if self._end is not None:
            self._end.cancel()
        start = time.perf_counter()
        try:
            yield
        finally:
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
                self._shown = _Shown(shell, self._end_cell)
            self._shown.add(text)

    def _finish(self) -> None:
        self._say(f"... compiled in {self._spent:.1f} s")
        if self._shown is None:
            self._spent = -float("inf")  # it is not said again
        else:  # but in other cells
            self._shown.close()
            self._spent, self._is_said, self._shown = 0.0, False, None

    def _end_cell(self, _result: object) -> None:
        """Say it in the cell that compiled, before the next one runs."""
        if self._end is not None:
            self._end.cancel()
        self._finish()

    def _last(self) -> None:
        """Say it now where the process ends too soon."""
        if self._end is not None and self._end.is_alive():
            self._end.cancel()
            self._finish()


class _Shown:
    """Lines below the cell that runs now, the end of which calls ``at_end``."""

    def __init__(self, shell: Any, at_end: Callable[[object], None]) -> None:
        self._events, self._at_end = shell.events, at_end
        self._lines, self._text = list[str](), CellText()
        self._events.register("post_run_cell", at_end)

    def add(self, line: str) -> None:
        """Show one more line below the others."""
        self._lines.append(line)
        self._text.show("\n".join(self._lines))

    def close(self) -> None:
        """Leave them as they are."""
        self._events.unregister("post_run_cell", self._at_end)


NOTICE = Notice()
