"""Records beside the targets of a batch: what was converted, and whether it is complete.

The record of ``OUT/scan.zarr`` is ``OUT/.dask-tiled/scan.zarr.json``. It is written before the
conversion begins, with the fingerprint of the new target before the move to its place, and again
after the move: at any time, the fingerprint tells whether a target is the new or the replaced one.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from dask_tiled.batch.fingerprints import Fingerprint
from dask_tiled.cataloguing.walking import Stamp
from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.several import Earlier
from dask_tiled.model.mark import json_value
from dask_tiled.storing.claims import claimed
from dask_tiled.storing.disk import writing_to
from dask_tiled.storing.locks import LockedError
from dask_tiled.storing.moves import before_moves

FOLDER = ".dask-tiled"
NEW, DONE, CHANGED, TAKEN = "new", "done", "changed", "taken"
MOST_NAMED = 3


class FoundTarget(NamedTuple):
    """What is at the path of a target."""

    state: str
    """NEW: nothing, or what a stopped conversion was to replace. DONE: the target of these files
    with these options. CHANGED: of the same source before it changed, or with other options.
    TAKEN: of another source, or not as a conversion has left it."""
    record: ConversionRecord
    """The record of the target, else the one that is asked for."""
    now: Fingerprint | None
    """The target; None if nothing is there."""
    reason: str = ""
    """The difference."""


class ConversionRecord(NamedTuple):
    """What a target was made of."""

    sources: list[str]
    """Path of the source, and its path from the folder of the target."""
    files: dict[str, list[int] | None]
    """Size and time of the last change of each file, by its path from the folder of the source;
    None where no file was, such as no header."""
    options: dict[str, Any]
    """Options of opening and converting, as JSON values."""
    replaces: Fingerprint | None = None
    """The target that was there before; None if there was none."""
    made: Fingerprint | None = None
    """The new target; None until it is ready to be moved to its place."""
    is_complete: bool = False
    """Whether the target is at its place."""
    verified: bool = False
    lacking: str = ""
    """How many frames are there, if the source was incomplete."""
    doubts: tuple[str, ...] = ()
    """Warnings about the source."""
    problem: str = ""
    """How the target differs from its source, if a comparison has failed."""
    run: str = ""
    """Name of the run of the batch that made it."""
    is_partial: bool = False
    """Whether the new target is a group without some of its arrays, which are added next time."""

    @classmethod
    def of(
        cls,
        source: str,
        stamps: Mapping[str, Stamp],
        options: Mapping[str, Any],
        target: str,
        run: str = "",
    ) -> ConversionRecord:
        """Return the record of a conversion that begins now."""
        sources = [source, os.path.relpath(source, os.path.dirname(target))]
        record = cls(sources, {}, json_value(dict(sorted(options.items()))), run=run)
        return record.with_files(stamps)

    def with_files(self, stamps: Mapping[str, Stamp | None]) -> ConversionRecord:
        """Add files, and paths where no file is."""
        start = os.path.dirname(self.sources[0])
        added = {os.path.relpath(path, start): one and [*one] for path, one in stamps.items()}
        return self._replace(files={**added, **self.files})

    @property
    def nbytes(self) -> int | None:
        """Bytes of the complete target; None until it is complete."""
        return self.made.nbytes if self.made is not None and self.is_complete else None

    def complete(self, target: str) -> ConversionRecord:
        """Return the record of the complete target."""
        return self._replace(replaces=None, made=Fingerprint.of(target), is_complete=True)

    def finish(self, target: str) -> ConversionRecord:
        """Write and return the record of a target whose conversion was stopped after the move.

        Raise a LockedError while its process, which may be about to end, holds what is left.
        """
        try:
            with claimed(target):
                pass  # what the export has left is removed
        except LockedError:  # no later call would remove it
            raise
        except DatasetError:  # files of another program are beside it
            pass
        record = self.complete(target)
        record.write(target)
        return record

    def state_at(self, target: str) -> FoundTarget:
        """Compare this record, of a conversion that is asked for, with the target."""
        now = Fingerprint.at(target)
        if now is None:
            return FoundTarget(NEW, self, now)
        there = read_record(target)
        problem = self._taken(there, now)
        if there is None or problem:
            return FoundTarget(TAKEN, self, now, f"{problem}. Pass overwrite=True to replace it.")
        if reason := there.reason_to_replace(self):
            return FoundTarget(CHANGED, there, now, reason)
        if there.is_partial or not there.has_made(now):
            return FoundTarget(NEW, there, now)
        if there.made != now:
            there = there._replace(made=now, verified=False)  # it may have been changed
        return FoundTarget(DONE, there, now)

    def _taken(self, there: ConversionRecord | None, now: Fingerprint) -> str:
        """Return why a target may not be replaced when its source has changed."""
        if there is None:
            return "the target exists, and no batch has made it"
        if not {*self.sources} & {*there.sources}:
            return f"the target was made of another source, {there.sources[0]}"
        if not (there.has_made(now) or there.is_replacing(now)):
            if there.made is None or there.made.nbytes == now.nbytes:
                return "the target was changed since it was made, or replaced"
            found = f"it has {now.nbytes} bytes instead of {there.made.nbytes}"
            return f"the target was changed: {found}"
        # A copy, or a change that samples do not show: it counts as done, but is not replaced.
        is_touched = not there.is_replacing(now) and there.made != now
        if is_touched and (reason := there.reason_to_replace(self)):
            return f"{reason}, and the target was touched since it was made"
        return ""

    def is_replacing(self, now: Fingerprint) -> bool:
        """Return whether a target is the one that was there before the conversion began."""
        return self.replaces is not None and now.stamp == self.replaces.stamp

    def has_made(self, now: Fingerprint) -> bool:
        """Return whether a target is the new one, or a copy of it."""
        if self.made is None or now.stamp == self.made.stamp:
            return self.made is not None
        before = self.replaces.content if self.replaces is not None else ""
        return now.content == self.made.content != before and not self.is_replacing(now)

    def reason_to_replace(self, asked: ConversionRecord) -> str:
        """Return why the target of this record is not the one that is asked for."""
        # Files that are not listed together with the source, such as the header of a given file.
        start = os.path.dirname(asked.sources[0])
        rest = [name for name in self.files if name not in asked.files]
        others = {name: _stamp_of(os.path.join(start, name)) for name in rest}
        if changed := _different(self.files, {**others, **asked.files}):
            return f"changed since: {changed}"
        if changed := _different(self.options, asked.options):
            return f"it was made with other options: {changed}"
        return self.problem

    def is_done(self, target: str) -> bool:
        """Return whether a target was made of these files with these options."""
        found = self.state_at(target)
        if found.state == DONE and not found.record.is_complete:
            found.record.finish(target)
        return found.state == DONE

    @contextmanager
    def kept(self, target: str) -> Iterator[None]:
        """Keep this record of a target that is made in this context: before, and after.

        After an error, the record that was there before is back.
        """
        before, made = read_record(target), list[Fingerprint]()

        def note(new: str, path: str) -> None:
            if path == target:
                made.append(Fingerprint.of(new))
                is_partial = Earlier.at(new) is not None
                self._replace(made=made[-1], is_partial=is_partial).write(target)

        self.write(target)
        try:
            with before_moves(note):
                yield
        except BaseException as error:
            is_error, now = isinstance(error, Exception), Fingerprint.at(target)
            if now is not None and now in made:
                if is_error:
                    self._replace(made=now, is_partial=True).write(target)
            elif (there := read_record(target)) and there._replace(
                made=None, is_partial=False
            ) == self:
                if before is None:
                    _forget(target)
                elif is_error or self.replaces is None:
                    before.write(target)
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
    with suppress(OSError, ValueError, TypeError, RecursionError):
        with open(_path_of(target), encoding="utf8") as file:
            found = ConversionRecord(**json.load(file))
        replaces, made = (one and Fingerprint(*one) for one in (found.replaces, found.made))
        record = found._replace(replaces=replaces, made=made, doubts=tuple(found.doubts))
        if _is_valid(record):
            return record
    return None


def _is_valid(record: ConversionRecord) -> bool:
    """Return whether the values that were read are of the types of a record."""
    texts = record.lacking, record.problem, record.run, *record.sources, *record.doubts
    sizes = [one.nbytes for one in (record.replaces, record.made) if one is not None]
    flags = record.is_complete, record.verified, record.is_partial
    return (
        all(isinstance(one, str) for one in texts)
        and all(isinstance(one, int) for one in (*sizes, *flags))
        and isinstance(record.files, dict)
        and isinstance(record.options, dict)
        and bool(record.sources)
    )


def _forget(target: str) -> None:
    """Remove the record of a target."""
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


def _stamp_of(path: str) -> list[int] | None:
    """Return size and time of the last change of a file; None if there is none."""
    with suppress(OSError):
        found = os.stat(path)
        return [found.st_size, found.st_mtime_ns]
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
