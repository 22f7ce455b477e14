"""Progress bars."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TextIO

from dask_tiled.notebooks import CellText, notebook_shell

LOG_SECONDS = 10.0
"""Least time between two lines of a log."""
on_block: ContextVar[Callable[[], object]] = ContextVar("on_block", default=bool)
"""Called whenever some more chunks are done, also if no bar is shown."""


def progress_bar(*, show: bool | None, **options: Any) -> Any:
    """Return a tqdm bar: widgets in a notebook that supports them, otherwise text.

    In a log, which is no terminal, it is a line now and then. It counts bytes unless ``options``,
    passed to tqdm, name another unit. With ``show=None`` it is hidden unless stderr is a terminal
    or a notebook.
    """
    options = {"unit": "B", "unit_scale": True, **options}
    options["disable"] = None if show is None else not show
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # tqdm warns of missing widgets
        from tqdm.auto import tqdm
    if notebook_shell() is not None:
        options["disable"] = bool(options.get("disable"))
        if "tqdm.notebook" not in {base.__module__ for base in tqdm.__mro__}:
            options["file"] = _Cell()
    elif sys.stderr is None:  # a program without a console
        options["disable"] = True
    elif show and not sys.stderr.isatty():
        options["file"] = _Log(sys.stderr)
    return tqdm(**options)


class _Log:
    """A text stream that turns updates in place into lines: the first, some, and the last."""

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self.encoding = to.encoding
        self._waiting, self._next = "", 0.0

    def write(self, text: str) -> None:
        """Write an update if none was written lately; the end of a line writes the last one."""
        self._waiting = text.strip() or self._waiting
        if self._waiting and ("\n" in text or time.monotonic() >= self._next):
            self._to.write(f"{self._waiting}\n")
            self._waiting, self._next = "", time.monotonic() + LOG_SECONDS

    def flush(self) -> None:
        """Flush the log."""
        self._to.flush()


class _Cell:
    """A text stream that shows its last write below the cell; stderr would be shown in red."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._text = CellText()

    def write(self, text: str) -> None:
        """Replace the previous bar."""
        if text.strip():
            self._text.show(text.strip())

    def flush(self) -> None:
        """Do nothing, as nothing is buffered."""
