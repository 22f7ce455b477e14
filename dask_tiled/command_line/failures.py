"""Errors as one line and an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dask_tiled.model.description import Description

INTERRUPTED = 128 + 2
"""Exit code that shells report for a process ended by SIGINT."""
DOUBTFUL = 3
"""Exit code if ``--strict`` refuses a file that leaves a choice open."""
FAILED = 4
"""Exit code if some conversions of a batch have failed."""
UNFINISHED = 75
"""Exit code of a batch that was stopped by its deadline: try again, as in ``sysexits.h``."""
BUG = 70
"""Exit code of errors of the package itself, as in ``sysexits.h``."""


class Failure(click.ClickException):
    """An error of the package or of Python, as one line."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


def check_complete(name: str, desc: Description | None, doubts: str) -> None:
    """Fail if frames are lacking, as ``--strict`` asks."""
    lacking = "" if desc is None else desc.lacking()
    if lacking and doubts == "raise":
        raise Failure(f"{name}: not complete: {lacking}", DOUBTFUL)


def failure_of(error: Exception) -> Failure:
    """Convert an exception to a line and an exit code."""
    from dask_tiled.errors import DatasetError, DoubtError, VerificationError, printable

    if isinstance(error, DatasetError):
        codes = {VerificationError: 1, DoubtError: DOUBTFUL}
        return Failure(str(error), codes.get(type(error), 2))
    if isinstance(error, OSError):
        named = error.filename is not None and error.strerror
        return Failure(printable(f"{error.filename}: {error.strerror}" if named else str(error)))
    if isinstance(error, ImportError):
        return Failure(printable(str(error)))
    text = f"unexpected {type(error).__name__}: {error}"
    return Failure(printable(f"{text}. For the traceback: dask-tiled --traceback ..."), BUG)
