"""Local folders: written next to their path, flushed to disk, then renamed to it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import open_file, without_scheme
from dask_tiled.storing.claims import claimed, discard, put_back, remove_replaced, set_aside
from dask_tiled.storing.disk import at_once, flush, flush_folders, unwritable, writing_to
from dask_tiled.storing.moves import about_to_move
from dask_tiled.storing.nodes import below, check_node, files
from dask_tiled.storing.places import Place, not_cancelled
from dask_tiled.system.files import allocate, preadv, write_back


def local_path(store: Any) -> str | None:
    """Return the absolute path of a store; None for any other zarr store, and for an address."""
    from zarr.storage import LocalStore, StorePath

    if isinstance(store, StorePath):
        root = local_path(store.store)
        return root and os.path.join(root, *store.path.split("/"))
    if isinstance(store, LocalStore) and not store.read_only:
        return os.path.abspath(store.root)
    if not isinstance(store, (str, os.PathLike)):
        return None
    text = without_scheme(os.fspath(store))
    if "\0" in text:
        raise DatasetError("invalid path", expected="a path as text", found=repr(text))
    return None if "://" in text else os.path.abspath(text)


EARLY_BYTES = 1 << 20
"""Files of this size or more are written back at once, which leaves less to flush at the end."""


class FileReader:
    """Reads parts of files below a folder into one reused buffer."""

    is_local = True

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._memory = bytearray()

    def get(self, key: str, part: tuple[int, int | None] = (0, None)) -> memoryview | None:
        """Read a part of a file; None if there is no file."""
        with (
            suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError),
            open_file(below(self.folder, key), buffering=0) as file,
        ):
            first, last, _ = slice(*part).indices(os.fstat(file.fileno()).st_size)
            count = max(0, last - first)
            if len(self._memory) < count:
                self._memory = bytearray(count)
            view, done = memoryview(self._memory)[:count], 0
            while done < count:
                more = preadv(file.fileno(), [view[done:]], first + done)
                if not more:
                    break
                done += more
            return view[:done]
        return None


class Folder:
    """A folder to which files are moved when they are complete.

    Parameters
    ----------
    path : str
    writing : str
        A folder next to it for incomplete files. Once it is removed, writing fails.
    """

    def __init__(self, path: str, writing: str) -> None:
        self.path, self.writing = path, writing

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write a file."""
        path, part = below(self.path, key), os.path.join(self.writing, uuid.uuid4().hex)
        try:
            with open_file(part, "xb", buffering=0) as file:
                allocate(file.fileno(), len(data))
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                if len(data) >= EARLY_BYTES:
                    write_back(file.fileno())
            self._make_folders(os.path.dirname(path))
            os.replace(part, path)
        except FileNotFoundError as error:
            raise DatasetError(
                "the folder was removed, or is not visible on this machine",
                path=os.path.dirname(self.path),
                hint="All workers must write to the same file system.",
            ) from error
        except BaseException as error:
            with suppress(OSError):
                os.remove(part)
            if isinstance(error, OSError):
                raise unwritable(path, error) from error
            raise

    def _make_folders(self, path: str) -> None:
        """Create subfolders, but not the folder itself, which no longer exists after the end."""
        if path != self.path and not os.path.isdir(path):
            self._make_folders(os.path.dirname(path))
            with suppress(FileExistsError):
                os.mkdir(path)

    def reader(self) -> FileReader:
        """Return a reader of the files."""
        return FileReader(self.path)

    def keys(self) -> set[str]:
        """List the files."""
        with writing_to(self.path):
            return {*files(self.path)}

    def nbytes(self, key: str) -> int:
        """Return the length of a file."""
        return os.stat(below(self.path, key)).st_size

    def below(self, name: str) -> Folder:
        """Create a subfolder, and return it."""
        path = below(self.path, name)
        with writing_to(path):
            os.makedirs(path, exist_ok=True)
        return Folder(path, self.writing)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files, and folders that become empty."""
        for key in keys:
            path = below(self.path, key)
            with writing_to(path), suppress(FileNotFoundError):
                os.remove(path)
            with suppress(OSError):
                while (path := os.path.dirname(path)) != self.path:
                    os.rmdir(path)


def place_in(root: str) -> Place:
    """Create a place with its journal in subfolders of a folder."""
    store, journal, writing = (os.path.join(root, x) for x in ("store", "journal", "writing"))
    with writing_to(root):
        for folder in (store, journal, writing):
            os.makedirs(folder, exist_ok=True)
    return Place(os.path.dirname(root), Folder(store, writing), Folder(journal, writing))


def flush_all(folder: str) -> None:
    """Flush all files and folders below a folder to the disk, which is faster than one by one."""
    folders: list[str] = []
    keys = [*files(folder, folders)]
    at_once(flush, [below(folder, key) for key in keys + folders])


@contextmanager
def begin_beside(
    path: str, attempts: Sequence[str], check: Callable[[str], None], *, resume: bool
) -> Iterator[list[Place]]:
    """Create a folder for each attempt next to a path; publish the last one at the end.

    After an error, attempts with notes are kept to be resumed, unless the disk did not flush them.

    Parameters
    ----------
    check : callable
        Refuses a path whose content may not be replaced.
    resume : bool
        Continue earlier attempts. If False, nothing is kept after an error either.
    """
    check(path)
    with claimed(path, attempts if resume else ()) as part:
        check(path)  # claimed() may have put an earlier array back
        roots = [os.path.join(part, attempt) for attempt in attempts]
        store = os.path.join(roots[-1], "store")
        try:
            places = [*map(place_in, roots)]
            with not_cancelled(part):
                yield places
            with writing_to(part):
                _flush_or_discard(store, roots)
            check(path)  # the path may have been created since
            about_to_move(store, path)
            with writing_to(path):
                _replace(store, path, part)
        except BaseException as error:
            kept = [root for root in roots if resume and _is_noted(root)]
            if kept:
                error.add_note(f"{part}: what has been written is kept; call it again to resume")
            for root in roots:
                if root not in kept:
                    discard(root)
            raise
        for root in roots:
            discard(root)
        with writing_to(path):
            remove_replaced(part)


def _flush_or_discard(store: str, roots: Sequence[str]) -> None:
    """Flush a store; if that fails, discard it, as the system shows data that the disk has lost."""
    try:
        flush_all(store)
    except OSError:
        for root in roots:
            discard(root)
        raise


def _is_noted(root: str) -> bool:
    """Return whether an attempt has notes in its journal."""
    journal = os.path.join(root, "journal")
    return os.path.isdir(journal) and any(files(journal))


def check_free(path: str, *, overwrite: bool) -> None:
    """Refuse a path that holds anything but a zarr node that may be replaced."""
    if os.path.lexists(path):
        check_node(path)
        if not overwrite:
            hint = "Pass overwrite=True to replace it."
            raise DatasetError("the array exists", path=path, hint=hint)


def _replace(made: str, path: str, part: str) -> None:
    """Rename a complete folder to a path; an existing one is set aside, and put back on failure."""
    if os.path.lexists(path):
        set_aside(part, path)
    try:
        os.rename(made, path)
        flush_folders(path)
    except BaseException:
        if os.path.lexists(path) and not os.path.lexists(made):
            os.rename(path, made)
        put_back(part, path)
        raise
