"""Headers and thumbnails kept in a file: a second run reads only what has changed."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from importlib.metadata import version
from typing import Any

from dask_tiled.cataloguing.headers import FileHeader, PictureHeader, stem
from dask_tiled.cataloguing.walking import FolderFiles, Stamp
from dask_tiled.errors import DatasetError, warn
from dask_tiled.formats.registry import formats

KIND = 0x64746361
"""SQLite's application id of the file."""
BUSY_SECONDS = 60.0
"""How long to wait for another process that writes the file."""
TABLES = """
CREATE TABLE IF NOT EXISTS made_by (text TEXT);
CREATE TABLE IF NOT EXISTS headers (
    path BLOB PRIMARY KEY, nbytes INTEGER, mtime_ns INTEGER, depends TEXT, header TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS thumbnails (
    path BLOB, options TEXT, nbytes INTEGER, mtime_ns INTEGER, png BLOB,
    PRIMARY KEY (path, options)
) WITHOUT ROWID;
"""
DROP = """
DROP TABLE IF EXISTS made_by;
DROP TABLE IF EXISTS headers;
DROP TABLE IF EXISTS thumbnails;
"""
DAMAGED = sqlite3.Error, ArithmeticError, AttributeError, LookupError, TypeError, ValueError
"""Errors of reading rows that another program has changed."""
REFUSED = sqlite3.Error, OverflowError
"""Errors of writing, also of times that SQLite's numbers cannot hold."""


class HeaderStore:
    """An SQLite file of headers by path, valid for one size and time of the last change.

    If the file cannot be written later, as it is read-only or locked, its headers are only read;
    if a row is damaged, the file is not used any more. Either way, there is one warning.

    Parameters
    ----------
    path : path-like
        The file; it is created if it does not exist.

    Raises
    ------
    DatasetError
        The file is something else, or cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._is_read = self._is_written = True
        with suppress(OSError):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
        try:
            self._file = sqlite3.connect(self.path, BUSY_SECONDS)
            try:
                self._check()
            except BaseException:
                self._file.close()
                raise
        except sqlite3.Error as error:
            problem = "headers cannot be kept in this file"
            hint = "Keep them in another file, or remove it."
            raise DatasetError(problem, path=self.path, found=str(error), hint=hint) from error

    def _check(self) -> None:
        """Check that the file is a store, or new; empty it if another version wrote it."""
        kind = self._one("PRAGMA application_id")
        if kind != KIND:
            if self._one("SELECT count(*) FROM sqlite_master"):
                problem, expected = "not a store of headers", "a file that catalogue() made"
                raise DatasetError(problem, path=self.path, expected=expected)
            self._file.execute(f"PRAGMA application_id = {KIND}")
        self._file.executescript(TABLES)
        mine = f"dask-tiled {version('dask-tiled')}: {', '.join(sorted(formats()))}"
        if self._one("SELECT max(text) FROM made_by") != mine:
            self._file.executescript(DROP + TABLES)
            with self._file:
                self._file.execute("INSERT INTO made_by VALUES (?)", (mine,))

    def _one(self, query: str, *values: Any) -> Any:
        with closing(self._file.execute(query, values)) as cursor:
            row = cursor.fetchone()
        return None if row is None else row[0]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _stop(self, reason: object, *, reading: bool) -> None:
        if self._is_written:
            warn(f"{self.path}: headers are no longer kept in this file: {reason}")
        self._is_written, self._is_read = False, self._is_read and not reading

    def known(self, folder: FolderFiles) -> dict[str, FileHeader]:
        """Return the headers of the files of a folder that did not change.

        They depend on all files that were looked at, and on files with the same stem, such as a
        header that was added.
        """
        try:
            return self._known(folder) if self._is_read else {}
        except DAMAGED as error:
            told = error if isinstance(error, sqlite3.Error) else "a row is damaged"
            self._stop(told, reading=True)
            return {}

    def _known(self, folder: FolderFiles) -> dict[str, FileHeader]:
        stamp_of = _looked_up(folder.stamps)
        found = {}
        for path, stamp in folder.stamps.items():
            query = "SELECT depends, header FROM headers WHERE path=? AND nbytes=? AND mtime_ns=?"
            with closing(self._file.execute(query, (os.fsencode(path), *stamp))) as cursor:
                row = cursor.fetchone()
            if row is not None and all(
                stamp_of(other) == (None if nbytes is None else Stamp(nbytes, mtime_ns))
                for other, nbytes, mtime_ns in json.loads(row[0])
            ):
                found[path] = _header_from(path, json.loads(row[1]))
        seen = set(found).union(*(one.files | one.looked for one in found.values()))
        new = {stem(path) for path in folder.stamps.keys() - seen}
        return {path: one for path, one in found.items() if stem(path) not in new}

    def keep(self, folder: FolderFiles, headers: Iterable[FileHeader]) -> None:
        """Store headers of the files of a folder."""
        stamp_of = _looked_up(folder.stamps)
        rows = []
        for one in headers:
            stamp = folder.stamps[one.path]
            others = (
                () if os.path.isdir(one.path) else sorted((one.files | one.looked) - {one.path})
            )
            depends = [(path, *(stamp_of(path) or (None, None))) for path in others]
            texts = json.dumps(depends), json.dumps(_as_json(one))
            rows.append((os.fsencode(one.path), *stamp, *texts))
        self._write("INSERT OR REPLACE INTO headers VALUES (?,?,?,?,?)", rows)

    def thumbnail(self, path: str, options: Mapping[str, Any], stamp: Stamp) -> bytes | None:
        """Return a kept thumbnail; empty if the picture has none, None if it is not known."""
        where = "path=? AND options=? AND nbytes=? AND mtime_ns=?"
        query = f"SELECT png FROM thumbnails WHERE {where}"  # noqa: S608 - no value in the text
        if not self._is_read:
            return None
        try:
            found = self._one(query, os.fsencode(path), json.dumps(options), *stamp)
        except REFUSED as error:
            self._stop(error, reading=True)
            return None
        return found if isinstance(found, bytes) else None

    def keep_thumbnail(
        self, path: str, options: Mapping[str, Any], stamp: Stamp, png: bytes
    ) -> None:
        """Store a thumbnail."""
        row = os.fsencode(path), json.dumps(options), *stamp, png
        self._write("INSERT OR REPLACE INTO thumbnails VALUES (?,?,?,?,?)", [row])

    def _write(self, query: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if not (rows and self._is_written):
            return
        try:
            with self._file:
                self._file.executemany(query, rows)
        except REFUSED as error:
            self._stop(error, reading=False)


def _looked_up(stamps: Mapping[str, Stamp]) -> Callable[[str], Stamp | None]:
    """Return a function that returns the stamp of a file, None if there is no such file."""

    def stamp_of(path: str) -> Stamp | None:
        if path in stamps:
            return stamps[path]
        try:
            found = os.stat(path)
        except OSError:
            return None
        return Stamp(found.st_size, found.st_mtime_ns)

    return stamp_of


def _as_json(header: FileHeader) -> dict[str, Any]:
    found = header._asdict()
    found["pictures"] = [one._asdict() for one in header.pictures]
    for name in ("files", "pixels", "looked"):
        found[name] = sorted(found[name])
    return found


def _header_from(path: str, told: dict[str, Any]) -> FileHeader:
    pictures = []
    for one in told["pictures"]:
        for name in ("shape", "axes", "doubts"):
            one[name] = tuple(one[name])
        one["instrument"] = {name: tuple(fact) for name, fact in one["instrument"].items()}
        pictures.append(PictureHeader(**one))
    sets = {name: frozenset(told[name]) for name in ("files", "pixels", "looked")}
    return FileHeader(**{**told, **sets, "path": path, "pictures": tuple(pictures)})
