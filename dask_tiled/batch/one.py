"""One conversion of a batch, whose outcome is a value: errors are texts."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from dask_tiled.batch.connections import SchedulerPlace, connected
from dask_tiled.batch.fingerprints import Fingerprint
from dask_tiled.batch.planning import PlannedConversion
from dask_tiled.batch.records import CHANGED, DONE, TAKEN, ConversionRecord, stamps_of
from dask_tiled.cataloguing.walking import Stamp
from dask_tiled.converting.convert import convert, stored_bytes, verify_file
from dask_tiled.errors import DatasetError, DoubtError, VerificationError, printable
from dask_tiled.files.paths import noting_looked
from dask_tiled.formats.registry import add_formats
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.opening.arrays import open_dataset
from dask_tiled.opening.datasets import open_datasets
from dask_tiled.storing.locks import LockedError

FINISHED, ALREADY, DIFFERS = "done", "done already", "changed"
EQUAL, DIFFERENT, ABSENT = "equal", "different", "missing"
LOST, IN_DOUBT, STOPPED, WAITING = "failed", "doubtful", "stopped", "not begun"


OF_A_RUN = "doubts", "resume"
"""Options that do not affect the results."""
LOCKED_SECONDS = 10.0
"""How long to wait for another process that has locked the target."""


class ConversionTask(NamedTuple):
    """A conversion with the options of its batch."""

    planned: PlannedConversion
    opening: Mapping[str, Any]
    options: Mapping[str, Any]
    together: bool = False
    update: bool = False
    overwrite: bool = False
    verify: bool = False
    only_compares: bool = False
    """Whether nothing is converted, and an existing target is compared with its source."""
    run: str = ""
    """Name of the run of the batch."""
    formats: bytes = b""
    """Formats that were registered in the process of the batch, pickled."""
    stall: float | None = None
    """Seconds without progress after which the process is ended; None for no limit."""
    scheduler: SchedulerPlace | None = None
    """The cluster whose workers share the chunks; None for threads of the converting process."""


class ConversionRow(NamedTuple):
    """The outcome of a conversion.

    Attributes
    ----------
    source, picture : str
        The path that was opened, and the name of the picture if it has several.
    target : str
        Path of the result.
    state : str
        "done"; "done already"; "changed": the source has changed since, or the target was made
        with other options or differs from its source; "failed"; "doubtful": doubts are errors,
        and there is one; "stopped" and "not begun": the batch ended before. Of comparisons:
        "equal", "different" and "missing".
    nbytes : int
        Bytes of pixels.
    stored : int
        Bytes of the target; 0 unless it is complete.
    seconds : float
        Duration.
    verified : bool
        Whether the target was compared with its source.
    lacking : str
        How many frames are there, if the source is incomplete.
    doubts : tuple of str
        Warnings about the source.
    problem : str
        Why there is no result, or why it is not that of the source.
    """

    source: str
    picture: str
    target: str
    state: str
    nbytes: int = 0
    stored: int = 0
    seconds: float = 0.0
    verified: bool = False
    lacking: str = ""
    doubts: tuple[str, ...] = ()
    problem: str = ""

    @classmethod
    def of(cls, planned: PlannedConversion, state: str, problem: str = "") -> ConversionRow:
        """Return the outcome of a conversion without a result."""
        head = planned.source, planned.picture, planned.target, state
        return cls(*head, planned.nbytes, problem=problem)

    @property
    def is_complete(self) -> bool:
        """Whether the target is complete."""
        return self.state in {FINISHED, ALREADY, EQUAL}


def convert_one(task: ConversionTask) -> ConversionRow:
    """Convert a picture unless it is done; every error becomes a row."""
    planned, begun = task.planned, time.perf_counter()
    row = partial(ConversionRow.of, planned)
    try:
        if planned.problem:
            return row(LOST, planned.problem)
        add_formats(task.formats)
        with connected(task.scheduler):
            found = _compared(task) if task.only_compares else _unlocked(task)
    except KeyboardInterrupt:
        found = row(STOPPED) if task.only_compares else _stopped(task)
    except DoubtError as error:
        found = row(IN_DOUBT, str(error))
    except Exception as error:  # noqa: BLE001 - the other conversions of the batch go on
        found = row(LOST, error_text(error))
    return found._replace(seconds=time.perf_counter() - begun)


def _unlocked(task: ConversionTask) -> ConversionRow:
    """Convert; wait for a process that was killed, and has not let go of the target yet."""
    end = time.monotonic() + LOCKED_SECONDS
    while True:
        try:
            return _converted(task)
        except LockedError:
            if time.monotonic() > end:
                raise
            time.sleep(LOCKED_SECONDS / 20)


def _compared(task: ConversionTask) -> ConversionRow:
    """Compare a target with its source; nothing is written."""
    planned = task.planned
    if not os.path.lexists(planned.target):
        return ConversionRow.of(planned, ABSENT, "there is no result")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        data = _opened(task)
        try:
            verify_file(planned.target, data, progress=False)
        except VerificationError as error:
            problem = str(error).removeprefix(f"{planned.target}: ")
            return ConversionRow.of(planned, DIFFERENT, problem)
    row = ConversionRow.of(planned, EQUAL)
    facts = stored_bytes(planned.target), _lacking(data), _texts(heard)
    return row._replace(verified=True, stored=facts[0], lacking=facts[1], doubts=facts[2])


def _asked(task: ConversionTask) -> ConversionRecord:
    """Return the record of a conversion that begins now."""
    planned = task.planned
    told = {**task.opening, **planned.options, **task.options, "together": task.together}
    told = {name: value for name, value in told.items() if name not in OF_A_RUN}
    stamps = stamps_of(planned.files, planned.stamp)
    return ConversionRecord.of(planned.source, stamps, told, planned.target, task.run)


def _stamps_beside(files: Iterable[str], looked: Iterable[str]) -> dict[str, Stamp | None]:
    """Return the stamps of other files that were looked at, such as a header; None for no file."""
    folders = tuple(os.path.join(path, "") for path in files)
    others = [path for path in {*looked}.difference(files) if not path.startswith(folders)]
    there = filter(os.path.isfile, others)
    absent = (path for path in others if not os.path.lexists(path))
    return {**dict.fromkeys(absent), **stamps_of(there, Stamp(0, 0))}


def _converted(task: ConversionTask) -> ConversionRow:
    planned, asked = task.planned, _asked(task)
    target = planned.target
    found = asked.state_at(target)
    if found.state == CHANGED and not (task.update or task.overwrite):
        return ConversionRow.of(planned, DIFFERS, found.reason)
    if found.state == TAKEN and not task.overwrite:
        return ConversionRow.of(planned, LOST, found.reason)
    if found.state == DONE:
        return _done_already(task, found.record)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with noting_looked() as looked:
            data = _opened(task)
        asked = asked.with_files(_stamps_beside(planned.files, looked))
        # Known also after a crash between the move and the last note.
        asked = asked._replace(lacking=_lacking(data), doubts=_texts(heard), replaces=found.now)
        if Fingerprint.at(target) != found.now:
            raise DatasetError("the target was changed meanwhile", path=target)
        with asked.kept(target):
            overwrite = found.now is not None
            convert(data, target, overwrite=overwrite, progress=False, **task.options)
    record = _verified(task, data, asked.complete(target))
    return _row(task, FINISHED, record)._replace(doubts=_texts(heard))


def _stopped(task: ConversionTask) -> ConversionRow:
    """Return the outcome of an interrupted conversion, which may just have become complete."""
    target = task.planned.target
    with suppress(OSError, DatasetError):
        found = _asked(task).state_at(target)
        if found.state == DONE:
            record = found.record
            return _row(task, FINISHED, record if record.is_complete else record.finish(target))
    return ConversionRow.of(task.planned, STOPPED)


def _done_already(task: ConversionTask, record: ConversionRecord) -> ConversionRow:
    """Return the outcome for a target that is complete; compare it, if it was not compared yet."""
    target = task.planned.target
    if not record.is_complete:  # the batch ended between the move and the note
        record = record.finish(target)
    if task.verify and not record.verified:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the conversion has told of them
            record = _verified(task, _opened(task), record)
    is_of_run = task.run and record.run == task.run  # its worker was lost before it told
    return _row(task, FINISHED if is_of_run else ALREADY, record)


def _verified(task: ConversionTask, data: Any, record: ConversionRecord) -> ConversionRecord:
    if not task.verify:
        return record
    target = task.planned.target
    try:
        verify_file(target, data, progress=False)
    except VerificationError as error:
        record._replace(problem=f"it differs from its source: {error}").write(target)
        raise
    record = record._replace(verified=True)
    record.write(target)
    return record


def _row(task: ConversionTask, state: str, record: ConversionRecord) -> ConversionRow:
    planned = task.planned
    stored = record.nbytes if record.nbytes is not None else stored_bytes(planned.target)
    facts = planned.nbytes, stored, 0.0, record.verified, record.lacking, record.doubts
    return ConversionRow(planned.source, planned.picture, planned.target, state, *facts)


def _opened(task: ConversionTask) -> Any:
    planned = task.planned
    if task.together:
        return open_datasets(planned.source, **task.opening)
    return open_dataset(planned.source, **{**task.opening, **planned.options})


def _texts(heard: Iterable[warnings.WarningMessage]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(printable(str(one.message)) for one in heard))


def _lacking(data: Any) -> str:
    """Return how many frames are there, if a source is incomplete."""
    arrays = data.values() if isinstance(data, Mapping) else [data]
    descs = [description_of(arr) for arr in arrays]
    return "; ".join(filter(None, (desc.lacking() for desc in descs if desc is not None)))


def error_text(error: Exception) -> str:
    """Return an error as one line."""
    if isinstance(error, DatasetError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return printable(f"{error.filename}: {error.strerror}")
    if isinstance(error, (OSError, ImportError)):
        return printable(str(error))
    return printable(f"unexpected {type(error).__name__}: {error}")
