"""The exceptions of the package: errors of files and of requests."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

_PACKAGE = os.path.dirname(__file__) + os.sep
_unwarned = ContextVar("unwarned", default=False)
MOST_TOLD, MOST_PROBLEM = 400, 2000
"""Truncate values in messages, and problems, to this many characters.

A problem may name the remedies of several doubts, or hold the traceback of another process."""


class DatasetError(ValueError):
    """A file or request that cannot be served.

    Parameters
    ----------
    problem : str
        What is wrong, in a few words.
    path : path-like, optional
        The file with the problem.
    where : str, optional
        The place in the file: a header field or a byte offset.
    expected, found : object, optional
        Expected and actual value.
    hint : str, optional
        What the caller can do about it.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> try:
    ...     dask_tiled.open_dataset("frames.npy", io="fast")
    ... except dask_tiled.DatasetError as error:
    ...     print(isinstance(error, ValueError))
    True
    """

    _before_hint: ClassVar[str] = ". "

    def __init__(
        self,
        problem: str,
        *,
        path: str | os.PathLike[str] | None = None,
        where: str | None = None,
        expected: Any = None,
        found: Any = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.path = None if path is None else os.fspath(path)
        self.where = where
        self.expected = expected
        self.found = found
        self.hint = hint
        told = {"": problem, ", at ": where, "; expected ": expected, "; found ": found}
        text = "" if self.path is None else f"{self.path}: "
        text += "".join(
            name + _bounded(one, MOST_TOLD if name else MOST_PROBLEM)
            for name, one in told.items()
            if one is not None
        )
        text = printable(text)
        if hint is not None:
            text += self._before_hint + printable(hint)
        super().__init__(text)

    def of(self, path: str | os.PathLike[str]) -> DatasetError:
        """Return the error of a file."""
        make, values, _ = self.__reduce__()
        error: DatasetError = partial(make, path=path)(*values)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle positional arguments only; workers need the others too.
        names = ("path", "where", "expected", "found", "hint")
        make = partial(_make, type(self), **{name: getattr(self, name) for name in names})
        state: dict[str, Any] = {"__notes__": [*getattr(self, "__notes__", ())]}
        cause = self.__cause__
        if cause is not None and type(cause).__module__ in {"builtins", __name__}:
            state["__cause__"] = cause  # others may not pickle
        return make, (self.problem,), state


def _make(kind: type[DatasetError], problem: str, **place: Any) -> DatasetError:
    """Make an error; a plain one for a plug-in's class with parameters of its own."""
    try:
        return kind(problem, **place)
    except TypeError:
        return DatasetError(problem, **place)


def _bounded(told: Any, most: int) -> str:
    """Return a value as text; of a long one the beginning, and the end.

    PyTorch passes the traceback of another process, which ends with the error.
    """
    text, head = str(told), most // 4
    if len(text) <= most:
        return text
    return f"{text[:head]} ... {text[head - most :]} ({len(text)} characters)"


def printable(text: str) -> str:
    """Return text with unprintable characters, including line ends, as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@contextmanager
def unwarned() -> Iterator[None]:
    """Drop the warnings of this package in this context.

    Filters of Python's warnings belong to all threads, and get lost where threads change them.
    """
    token = _unwarned.set(True)
    try:
        yield
    finally:
        _unwarned.reset(token)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called the package."""
    if _unwarned.get():
        return
    frame, level, called = sys._getframe(1), 2, 3  # noqa: SLF001 - no public access
    while frame.f_back is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):  # frames of contextlib may be in between
            called = level + 1
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(message), category, stacklevel=called)


@cache
def warn_once(message: str, category: type[Warning]) -> None:
    """Warn once in a process."""
    warn(message, category)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return a hint at the closest known word, or None."""
    from difflib import get_close_matches  # only in errors

    names = sorted(set(known))
    # "foo" and "follow" have a similarity of 0.67, "shape" and "sig_shape" of 0.71.
    close = get_close_matches(word, names, n=1, cutoff=0.7)
    close = close or [name for name in names if sorted(name) == sorted(word)]  # letters exchanged
    return f"Do you mean {close[0]!r}?" if close else None


def format_bytes(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def format_shape(shape: Iterable[int]) -> str:
    """Format a shape."""
    return " \N{MULTIPLICATION SIGN} ".join(map(str, shape))


class UnknownOptionError(DatasetError):
    """The format of the file lacks an option."""


class UnknownFormatError(DatasetError):
    """No format recognises the file, or no format has the given name.

    Parameters
    ----------
    problem : str
        What is wrong, in a few words.
    reasons : mapping, optional
        Why each format does not recognise the file, by name.
    **place
        As for :class:`DatasetError`.

    Examples
    --------
    >>> import dask_tiled
    >>> with open("notes.txt", "w") as file:
    ...     size = file.write("no pixels here")
    >>> try:
    ...     dask_tiled.open_dataset("notes.txt")
    ... except dask_tiled.errors.UnknownFormatError as error:
    ...     print(error.problem)
    no format recognises the file, which looks like text
    """

    _before_hint = "\n"

    def __init__(
        self, problem: str, *, reasons: Mapping[str, str] | None = None, **place: Any
    ) -> None:
        self.reasons = dict(reasons or {})
        super().__init__(problem, **place)
        if reasons:
            self.add_note(
                "The attribute .reasons of this error says why each format refuses the file."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        make, *values = super().__reduce__()
        return partial(make, reasons=self.reasons), *values


class CorruptFileError(DatasetError):
    """A header has invalid values, or contradicts the rest of the file.

    Examples
    --------
    >>> import dask_tiled
    >>> with open("broken.mib", "wb") as file:
    ...     size = file.write(b"MQ1,000001,00384,01,xxxx,0256,U16,   1x1,")
    >>> dask_tiled.open_dataset("broken.mib")
    Traceback (most recent call last):
    dask_tiled.errors.CorruptFileError: ...broken.mib: ...
    """


class TruncatedFileError(DatasetError):
    """Bytes or frames that the headers announce are missing.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> with open("frames.npy", "r+b") as file:
    ...     size = file.truncate(200)
    >>> dask_tiled.open_dataset("frames.npy")
    Traceback (most recent call last):
    dask_tiled.errors.TruncatedFileError: ...frames.npy: ...
    """


class MissingFileError(TruncatedFileError):
    """A file that another one names or links to does not exist, or an object in it does not.

    Examples
    --------
    >>> import dask_tiled
    >>> import h5py
    >>> with h5py.File("lone_master.h5", "w") as file:
    ...     file["entry/data/data_000001"] = h5py.ExternalLink("lone_data.h5", "/entry/data/data")
    >>> dask_tiled.open_dataset("lone_master.h5")
    Traceback (most recent call last):
    dask_tiled.errors.MissingFileError: ...lone_master.h5: ...; found lone_data.h5 does not exist...
    """


class StaleFileError(DatasetError):
    """A file has changed since it was opened.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> arr = dask_tiled.open_dataset("frames.npy")
    >>> np.save("frames.npy", frames + 1)
    >>> arr.compute()
    Traceback (most recent call last):
    dask_tiled.errors.StaleFileError: ...frames.npy: ...
    """


class OutsideFolderError(DatasetError):
    """A file that another one names or links to lies outside of the opened folder.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset("scan.nhdr", outside_folder=True)  # doctest: +SKIP
    """


class RemoteError(DatasetError):
    """A server does not deliver the bytes of a file: not at all, not in time, or not in ranges.

    Examples
    --------
    >>> import dask_tiled
    >>> dask_tiled.open_dataset("https://example.org/scan.mib")  # doctest: +SKIP
    Traceback (most recent call last):
    dask_tiled.errors.RemoteError: https://example.org/scan.mib: ...
    """


class StreamError(DatasetError):
    """The stream of a detector ends early, contradicts itself, or cannot be recorded.

    What has come before is in the file; see :func:`record`.

    Examples
    --------
    >>> import dask_tiled
    >>> dask_tiled.record("merlin://127.0.0.1:1", "never.mib")
    Traceback (most recent call last):
    dask_tiled.errors.StreamError: merlin://127.0.0.1:1: no detector answers...
    """


class TilingError(DatasetError):
    """The requested chunks or tiles are impossible.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> dask_tiled.open_dataset("frames.npy", chunks=(1, 2))
    Traceback (most recent call last):
    dask_tiled.errors.TilingError: ...
    """


class DoubtError(DatasetError):
    """A file leaves a choice open, or lacks frames, and ``doubts="raise"`` was passed.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> dask_tiled.open_dataset("frames.npy", nav_shape=(4,), doubts="raise")
    Traceback (most recent call last):
    dask_tiled.errors.DoubtError: ...frames.npy: 1 of 4 frames are missing, ...
    """


class DoubtWarning(UserWarning):
    """A file leaves a choice open: the message names what was assumed, and what settles it.

    Examples
    --------
    >>> import warnings
    >>> import dask_tiled
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", dask_tiled.DoubtWarning)
    ...     arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    """


class MissingFramesWarning(UserWarning):
    """Frames are in no file, and are read as the fill value.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", dask_tiled.MissingFramesWarning)
    ...     arr = dask_tiled.open_dataset("frames.npy", nav_shape=(4,))
    >>> arr.description.missing
    array([3])
    """


class VerificationError(DatasetError):
    """Stored data differ from their source.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> stored = dask_tiled.to_zarr(frames, "frames.zarr")
    >>> dask_tiled.verify_zarr("frames.zarr", frames + 1)
    Traceback (most recent call last):
    dask_tiled.errors.VerificationError: ...frames.zarr: ...
    """


Place: TypeAlias = Mapping[str, Any]
OF_VALUES = {None, errno.EINVAL, errno.EOVERFLOW, errno.EBADF, errno.ESPIPE}
"""Errors of the system that values from a file cause, such as an offset; libraries set none."""
UNSUPPORTED = ImportError, NotImplementedError
"""Errors that say nothing about the file."""


class Guard:
    """A context in which code of a format works on a file.

    Errors of this package, and those of disks and servers, pass; they get the path if they name no
    file. Warnings that a user turns into errors pass, and exceptions that are no `Exception`, such
    as KeyboardInterrupt. All others are converted, and stay the cause, by which a cluster sees that
    another worker may have more memory.

    Parameters
    ----------
    path : path-like
    problem : str
        What is wrong, in a few words.
    place : mapping or callable, optional
        Further arguments of the error, or a function that returns them.
    kind : type, optional
        Type of the error; by default CorruptFileError, or DatasetError if a library or a feature is
        missing.

    Raises
    ------
    CorruptFileError, or `kind`
        An exception was raised.
    """

    __slots__ = "_kind", "_path", "_place", "_problem"

    def __init__(
        self,
        path: str | os.PathLike[str],
        problem: str,
        place: Place | Callable[[], Place] = MappingProxyType({}),
        kind: type[DatasetError] = CorruptFileError,
    ) -> None:
        self._path, self._problem, self._place, self._kind = path, problem, place, kind

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, Warning):
            return
        if isinstance(error, DatasetError):
            if error.path is None:
                raise error.of(self._path) from error
        elif isinstance(error, OSError) and error.errno not in OF_VALUES:
            if error.filename is None:
                error.filename = os.fspath(self._path)
        else:
            kind = DatasetError if isinstance(error, UNSUPPORTED) else self._kind
            place = self._place() if callable(self._place) else self._place
            raise kind(
                self._problem, path=self._path, found=exception_text(error), **place
            ) from error


def exception_text(error: BaseException) -> str:
    """Return an exception as text: the message of a ValueError, which says what was found."""
    try:
        return (type(error) is ValueError and str(error)) or repr(error)
    except Exception:  # noqa: BLE001 - classes of others may raise any
        return type(error).__name__


def check_whole(
    name: str,
    value: Any,
    *,
    least: int | None = None,
    most: int | None = None,
    path: str | os.PathLike[str] | None = None,
    error: type[DatasetError] = DatasetError,
) -> int:
    """Return an integer argument after checking it; booleans are refused.

    Raises
    ------
    DatasetError
        The value is not an integer, or out of range; ``error`` sets the type.
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    low, high = (value if end is None else end for end in (least, most))
    if not whole or not low <= value <= high:
        limits = f"{least} or more" if most is None else f"{least} to {most}"
        raise error(
            f"{name} must be a whole number",
            path=path,
            expected=None if least is None else limits,
            found=repr(value),
        )
    return int(value)


def check_seconds(name: str, value: Any, *, zero: bool = False) -> float:
    """Return a duration in seconds after checking it; ``zero``: whether it may be 0.

    Raise a DatasetError if the value is not a positive number.
    """
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not (value > 0 or (zero and value == 0)):
        expected = "seconds, 0 or more" if zero else "a positive number of seconds"
        raise DatasetError(f"{name}= must be a duration", expected=expected, found=repr(value))
    return float(value)


def check_flag(name: str, value: Any, *, path: str | os.PathLike[str] | None = None) -> None:
    """Raise an error unless an argument is True or False.

    Raise a DatasetError if the value is not a boolean.
    """
    if value not in (True, False):
        raise DatasetError(f"invalid {name}", path=path, expected="True or False", found=value)


def require(
    library: str, extra: str, path: str | os.PathLike[str], *, does: str = "read"
) -> ModuleType:
    """Import a library that a file needs, which is an extra of this package.

    Parameters
    ----------
    library, extra : str
    path : path-like
        The file.
    does : {"read", "written"}
        Whether the file is read or written.

    Returns
    -------
    module

    Raises
    ------
    DatasetError
        The library is not installed.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise DatasetError(
            f"the file is {does} with {library}, which is not installed",
            path=path,
            hint=f'Run: pip install "dask-tiled[{extra}]"',  # quoted for all shells
        ) from error


def require_extra(extra: str, *libraries: str) -> Any:
    """Import the libraries of an extra of this package; return the last one.

    Raise an ImportError if a library is not installed.
    """
    try:
        return [*map(importlib.import_module, libraries)][-1]
    except ImportError as error:
        hint = f'{error.name or extra} is missing. Run: pip install "dask-tiled[{extra}]"'
        raise ImportError(hint, name=error.name) from error


def choose_dataset(
    path: str | os.PathLike[str], names: Sequence[str], dataset: int | str | None
) -> int:
    """Return the index of the dataset that a caller selects in a file.

    Parameters
    ----------
    path : path
    names : sequence of str
    dataset : int or str, optional
        Number or name; by default the first.

    Raises
    ------
    DatasetError
        There is no such dataset.
    """
    wanted = 0 if dataset is None else dataset
    if isinstance(wanted, str) and names.count(wanted) == 1:
        return names.index(wanted)
    whole = isinstance(wanted, (int, np.integer)) and not isinstance(wanted, bool)
    if not whole or not 0 <= int(wanted) < len(names):
        numbers = [str(k) for k, name in enumerate(names) if name == wanted]
        listed = [repr(name) for name in names if name][:20]
        expected = f"a number below {len(names)}"
        expected += f", or one of {', '.join(listed)}" if listed else ""
        raise DatasetError(
            "several datasets have this name" if numbers else "no such dataset",
            path=path,
            expected=f"one of the numbers {', '.join(numbers)}" if numbers else expected,
            found=repr(dataset),
            hint=nearest(wanted, names) if isinstance(wanted, str) and not numbers else None,
        )
    return int(wanted)
