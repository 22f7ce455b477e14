"""Records beside the targets of a batch: what was converted, and whether it is complete.

The record of ``OUT/scan.zarr`` is ``OUT/.dask-tiled/scan.zarr.json``. It is written before the
conversion begins, and again when the target is complete: after a crash in between, a target that is
there was moved to its place whole.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from dask_tiled.cataloguing.walking import Stamp
from dask_tiled.converting.convert import stored_bytes
from dask_tiled.errors import DatasetError
from dask_tiled.model.mark import json_value
from dask_tiled.storing.claims import claimed
from dask_tiled.storing.disk import writing_to

FOLDER = ".dask-tiled"
NEW, DONE, CHANGED, UNKNOWN = "new", "done", "changed", "unknown"
MOST_NAMED = 3


class ConversionRecord(NamedTuple):
    """What a target was made of."""

    files: dict[str, list[int]]
    """Size and time of the last change of each file, by its path from the folder of the first."""
    options: dict[str, Any]
    """Options of opening and converting, as JSON values."""
    replaces: list[int] | None = None
    """Inode and time of the target that was there before; None if there was none."""
    nbytes: int | None = None
    """Bytes of the complete target; None until it is complete."""
    verified: bool = False
    lacking: str = ""
    """How many frames are there, if the source was incomplete."""
    doubts: tuple[str, ...] = ()
    """Warnings about the source."""
    problem: str = ""
    """How the target differs from its source, if a comparison has failed."""

    @classmethod
    def of(
        cls, source: str, stamps: Mapping[str, Stamp], options: Mapping[str, Any], target: str
    ) -> ConversionRecord:
        """Return the record of a conversion that begins now."""
        start = os.path.dirname(source)
        files = {json_value(os.path.relpath(path, start)): [*one] for path, one in stamps.items()}
        return cls(files, json_value(dict(sorted(options.items()))), _identity(target))

    def complete(self, target: str) -> ConversionRecord:
        """Return the record of the complete target."""
        return self._replace(nbytes=stored_bytes(target))

    def finish(self, target: str) -> ConversionRecord:
        """Write and return the record of a target whose conversion was stopped after the move."""
        with suppress(DatasetError), claimed(target):
            pass  # what the export has left is removed
        record = self.complete(target)
        record.write(target)
        return record

    def is_moved(self, target: str) -> bool:
        """Return whether a target was moved to its place since the conversion began."""
        return self.nbytes is None and _identity(target) not in (None, self.replaces)

    def state_at(self, target: str) -> tuple[str, str, ConversionRecord]:
        """Compare this record, of a conversion that is asked for, with the one of the target.

        Returns
        -------
        state : str
            NEW: there is no target, or an unfinished replacement. DONE: it was made of these files
            with these options. CHANGED: of others. UNKNOWN: no batch has made it.
        reason : str
            The difference.
        record : ConversionRecord
            The record of the target, else this one.
        """
        if not os.path.lexists(target):
            return NEW, "", self
        there = read_record(target)
        if there is None:
            return UNKNOWN, "the target exists, and no batch has made it", self
        if reason := there.reason_to_replace(self):
            return CHANGED, reason, there
        if there.nbytes is None and not there.is_moved(target):
            return NEW, "", there
        nbytes = stored_bytes(target)
        if there.nbytes not in {None, nbytes}:
            found = f"it has {nbytes} bytes instead of {there.nbytes}"
            return CHANGED, f"the target was changed: {found}", there
        return DONE, "", there

    def reason_to_replace(self, asked: ConversionRecord) -> str:
        """Return why the target of this record is not the one that is asked for."""
        if changed := _different(self.files, asked.files):
            return f"changed since: {changed}"
        if changed := _different(self.options, asked.options):
            return f"it was made with other options: {changed}"
        return self.problem

    def is_done(self, target: str) -> bool:
        """Return whether a target was made of these files with these options."""
        state, _, there = self.state_at(target)
        if state == DONE and there.nbytes is None:
            there.finish(target)
        return state == DONE

    @contextmanager
    def kept(self, target: str) -> Iterator[None]:
        """Keep this record of a target that is made in this context: before and after."""
        self.write(target)
        try:
            yield
        except BaseException:
            if not os.path.lexists(target):
                _forget(target)
            raise
        self.complete(target).write(target)

    def write(self, target: str) -> None:
        """Write the record of a target, at once or not at all."""
        path = _path_of(target)
        part = f"{path}.{uuid.uuid4().hex}"
        with writing_to(target):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                with open(part, "w", encoding="utf8") as file:
                    json.dump(self._asdict(), file)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, path)
            except BaseException:
                with suppress(OSError):
                    os.remove(part)
                raise


def read_record(target: str) -> ConversionRecord | None:
    """Return the record of a target; None if no batch has made it."""
    with suppress(OSError, ValueError, TypeError):
        with open(_path_of(target), encoding="utf8") as file:
            found = ConversionRecord(**json.load(file))
        return found._replace(doubts=tuple(found.doubts))
    return None


def _forget(target: str) -> None:
    """Remove the record of a target that does not exist."""
    path = _path_of(target)
    with suppress(OSError):
        os.remove(path)
        os.rmdir(os.path.dirname(path))


def stamps_of(paths: Iterable[str], whole: Stamp) -> dict[str, Stamp]:
    """Return the stamps of files as they are now; ``whole`` is the one of a folder.

    Raise an OSError if a file was removed.
    """
    stamps = {}
    for path in paths:
        found = os.stat(path)
        is_folder = os.path.isdir(path)
        stamps[path] = whole if is_folder else Stamp(found.st_size, found.st_mtime_ns)
    return stamps


def _path_of(target: str) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, FOLDER, f"{name}.json")


def _identity(target: str) -> list[int] | None:
    with suppress(OSError):
        found = os.stat(target)
        return [found.st_ino, found.st_mtime_ns]
    return None


def _different(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return the names of the values that differ, as text; empty if all are equal."""
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def check_folder(path: str) -> None:
    """Raise a DatasetError if a path is not a folder, or cannot become one."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise DatasetError("not a folder", path=path, hint="Pass a folder for the targets.")
