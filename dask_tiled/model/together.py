"""Several datasets of one file, whose structure is read once for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from dask_tiled.files.file import File

T = TypeVar("T")
MOST_KEPT = 256
"""Keep at most this many results."""


class Together:
    """Datasets of a file that are described one after the other, and what was read for them.

    Parameters
    ----------
    keys : sequence
        Numbers or names of the datasets, in the usual order.
    """

    def __init__(self, keys: Sequence[Any]) -> None:
        self.keys = tuple(keys)
        self.known: dict[Any, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Together, (self.keys,)

    @contextmanager
    def described(self) -> Iterator[None]:
        """Describe datasets of the file in this context."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def keep(self, key: Any, value: T) -> T:
        """Keep a value, and return it."""
        if len(self.known) >= MOST_KEPT:
            self.known.clear()
        self.known[key] = value
        return value


_current: ContextVar[Together | None] = ContextVar("together", default=None)


def kept(read: Callable[..., T], file: File, *more: Any) -> T:
    """Return ``read(file, *more)``, which is called once for several datasets of a version."""
    current = _current.get()
    if current is None or file.grows:
        return read(file, *more)
    key = read, file, more
    found: T = current.known[key] if key in current.known else current.keep(key, read(file, *more))
    return found


def kept_each(
    read: Callable[[File, Sequence[Any]], Sequence[T]],
    file: File,
    dataset: Any,
    options: Any,
    most: int,
) -> T:
    """Return the result of a dataset; ``read`` is called for it and those that follow.

    Results that are exceptions are not kept.

    Parameters
    ----------
    read : callable
        ``read(file, datasets)`` returns a result for each dataset.
    options : hashable
        Further options, on which results depend.
    most : int
        Maximum number of datasets of a call.
    """
    current = _current.get()
    if current is None or file.grows or dataset not in current.keys:
        return read(file, [dataset])[0]
    key = file, dataset, options
    if key in current.known:
        known: T = current.known[key]
        return known
    at = current.keys.index(dataset)
    some = current.keys[at : at + most]
    first, *others = read(file, some)
    for one, result in zip(some[1:], others, strict=True):
        if not isinstance(result, Exception):  # its cause may lie in other files, and pass
            current.keep((file, one, options), result)
    return first if isinstance(first, Exception) else current.keep(key, first)
