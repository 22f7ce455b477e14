"""A call before a complete file or folder is moved to its path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_told: ContextVar[Callable[[str, str], None] | None] = ContextVar("told", default=None)


@contextmanager
def before_moves(told: Callable[[str, str], None]) -> Iterator[None]:
    """Call ``told(made, path)`` in this context before each move; an error prevents the move."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


def about_to_move(made: str, path: str) -> None:
    """Report that a complete file or folder, on the disk, is about to be moved to a path."""
    told = _told.get()
    if told is not None:
        told(made, path)
