"""Convert many files, in several processes, in a run that can be repeated."""

from __future__ import annotations

import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import ExitStack, closing
from functools import partial
from time import monotonic
from typing import Any, Literal, NamedTuple, Protocol

from dask_tiled.batch.children import ConverterPool, LocalConverters
from dask_tiled.batch.clusters import cluster_elsewhere, on_cluster
from dask_tiled.batch.one import (
    FINISHED,
    LOST,
    STOPPED,
    WAITING,
    ConversionRow,
    ConversionTask,
    error_text,
)
from dask_tiled.batch.planning import ConversionKey, ConversionPlan, PlannedConversion, Source
from dask_tiled.batch.progress import BatchProgress
from dask_tiled.batch.records import check_folder
from dask_tiled.batch.reports import report_writer
from dask_tiled.batch.watching import SourceWatch
from dask_tiled.cataloguing.rows import CatalogueRow
from dask_tiled.converting.convert import check_options
from dask_tiled.errors import DatasetError, check_seconds, check_whole, warn
from dask_tiled.files.paths import absolute, is_url
from dask_tiled.formats.registry import pickled_formats
from dask_tiled.tiling.machine import processors

GRACE = 20.0
"""Seconds for conversions to stop after an interruption."""
TICK = 1.0
"""Seconds between two reports of progress."""
WORTH_BYTES, WORTH_FILES = 128 << 20, 256
"""Bytes of pixels, and number of small files, that are worth the start of a process."""
STALL_SECONDS = 3600.0
"""Default of ``stall`` for pixels: tapes and servers that start again may take many minutes."""
LONGEST_STALL = 7 * 86400.0
"""Longest ``stall``: timers of some systems take no more than a few weeks."""
NOT_IN_BATCHES = "follow", "rest", "with_results", "dimension_names", "maps_disk"
"""Options that apply to one array."""

Told = Callable[[ConversionRow | None, BatchProgress], None]


def convert_all(
    sources: Source | Sequence[Source],
    target: str | os.PathLike[str],
    *,
    suffix: str = ".zarr",
    name: str = "{stem}",
    pattern: str | Sequence[str] | None = None,
    recursive: bool = True,
    together: bool = False,
    jobs: int | None = None,
    part: tuple[int, int] | None = None,
    deadline: float | None = None,
    stall: float | Literal["auto"] | None = "auto",
    update: bool = False,
    overwrite: bool = False,
    verify: bool = False,
    watch: float | None = None,
    report: str | os.PathLike[str] | None = None,
    opening: Mapping[str, Any] | None = None,
    told: Told | None = None,
    **options: Any,
) -> list[ConversionRow]:
    """Convert all datasets of files and folders, each picture to a file of its own.

    A run can be repeated: what is done is skipped, what was begun is resumed if the format is zarr,
    and targets whose sources have changed are reported. A picture that cannot be converted does not
    affect the others. If there is a client of dask.distributed, its workers convert: whole files,
    and the chunks of zarr files that are larger than others.

    Parameters
    ----------
    sources : path-like, Catalogue or sequence of path-like and CatalogueRow
        Files, and folders in which datasets are searched; or a :func:`catalogue`, some of its rows,
        or its CSV, of which the listed pictures are converted. Files of a dataset count as one.
    target : path-like
        The folder of the results. Records of what they were made of are kept in ``.dask-tiled``
        beside them.
    suffix : str
        Format of the results, a suffix of :func:`convert`.
    name : str
        Path of each result below ``target``, without suffix. ``{stem}`` is the name of the source
        without its suffix, ``{suffix}`` that suffix, such as ``.mib``, ``{folder}`` its folder
        below the given one, ``{picture}`` and ``{number}`` the name and position of a picture if a
        file has several; without these, ``-{picture}`` is appended for such files.
    pattern : str or sequence of str, optional
        Patterns of file names in folders; by default all files are tried.
    recursive : bool
        Whether to search the folders in folders.
    together : bool
        Write all pictures of a dataset to one zarr group.
    jobs : int, optional
        Maximum number of conversions at a time, each in its own process; by default one a
        processor, or fewer for little work. Another process is started when conversions have waited
        for longer than its start takes, some seconds. They share the threads: each conversion has
        the number of processors divided by ``jobs``. On a cluster, by default as many as keep the
        threads of all workers busy.
    part : (int, int), optional
        Convert a part of the pictures, such as (3, 16): the third of 16. A hash of the path of
        each result below ``target`` selects its part, on all machines, also while files are added.
        Of many files, the parts have about equal numbers and bytes; of few, they may not.
    deadline : float, optional
        Seconds after which conversions are stopped. To zarr, the same call resumes them.
    stall : float, "auto" or None
        Seconds after which a conversion has failed if its headers are not read, or no chunk of it
        was read or written meanwhile, as when a file or a server hangs: its process is ended, and
        the others go on. Slow conversions are not affected. By default, 100 s for headers, which
        are read before the first conversion, and an hour for chunks. None waits for a week.
    update : bool
        Replace results whose sources or options have changed, unless the results were changed, too.
    overwrite : bool
        Replace results also if no batch has made them, if they were changed since, or if they were
        made of another source. Nothing that is done is made again.
    verify : bool
        Compare each result with its source, bit by bit, unless it was compared before and its files
        were not touched since.
    watch : float, optional
        Go on, and convert new datasets below the given folders. Each is converted when no frames
        are lacking, and it has not changed for this number of seconds; so is one that changes
        again. Ends by the deadline, or an interruption. Needs ``watchfiles``.
    report : path-like, optional
        Write the outcomes to a ``.csv`` or ``.json`` file, before the first conversion, at the end
        and after interruptions. With ``part``, the name of the file has it, too:
        ``report-3-of-16.csv``. If the report cannot be written at the end, that is a warning.
    opening : mapping, optional
        Options of :func:`open_dataset` for all sources.
    told : callable, optional
        Function ``told(row, progress)`` that is called with each outcome, and once a second with
        None.
    **options
        Options of :func:`convert` for all results.

    Returns
    -------
    list of ConversionRow
        The outcomes in the order of the sources: named tuples of ``source``, ``picture``,
        ``target``, ``state``, ``nbytes``, ``stored``, ``seconds``, ``verified``, ``lacking``,
        ``doubts`` and ``problem``. ``state`` is "done", "done already", "changed", "failed",
        "doubtful" (``opening={"doubts": "raise"}``), "stopped" or "not begun".
        With ``watch``, datasets that are not complete are "not begun".

    Raises
    ------
    DatasetError
        There is no dataset, two sources have the same target, a target is within another dataset,
        an option is invalid, the report cannot be written, a folder cannot be watched, or no
        worker of a cluster sees the files. Nothing was converted.
    FileNotFoundError
        A given path does not exist.
    ImportError
        ``watchfiles`` is not installed.

    Examples
    --------
    >>> import dask_tiled
    >>> import numpy as np
    >>> from dask_tiled.testing import write_mib
    >>> for k in range(2):
    ...     path = write_mib(f"scan_{k}.mib", np.ones((4, 4, 16, 16), "uint16"))
    >>> rows = dask_tiled.convert_all(["scan_0.mib", "scan_1.mib"], "converted")
    >>> [row.state for row in rows]
    ['done', 'done']
    >>> rows = dask_tiled.convert_all(["scan_0.mib", "scan_1.mib"], "converted")
    >>> [row.state for row in rows]
    ['done already', 'done already']
    """
    wrong = next((one for one in NOT_IN_BATCHES if options.get(one)), None)
    if wrong:
        raise DatasetError(f"{wrong}= applies to one array", found="many files")
    check_options(f"all{suffix}", options)
    opened = {**(opening or {})}
    selected = suffix, name, pattern, recursive, together, jobs, part
    given = BatchOptions(*selected, deadline, stall, watch, report, opened)
    how = opened, options, together, update, overwrite, verify
    return run_batch(sources, target, given, lambda one: ConversionTask(one, *how), told)


class BatchOptions(NamedTuple):
    """Options of :func:`convert_all` that say what belongs to a batch, and how it runs."""

    suffix: str
    name: str
    pattern: str | Sequence[str] | None
    recursive: bool
    together: bool
    jobs: int | None
    part: tuple[int, int] | None
    deadline: float | None
    stall: float | Literal["auto"] | None
    watch: float | None
    report: str | os.PathLike[str] | None
    opening: Mapping[str, Any]

    def plan(self, sources: Sequence[Source], folder: str, **more: Any) -> ConversionPlan:
        """Plan the conversions to a folder."""
        return ConversionPlan(
            sources,
            folder,
            suffix=self.suffix,
            name=self.name,
            pattern=self.pattern,
            recursive=self.recursive,
            together=self.together,
            always=bool(self.opening.keys() - {"doubts"}),
            part=self.part,
            **more,
        )


def run_batch(
    sources: Source | Sequence[Source],
    target: str | os.PathLike[str],
    given: BatchOptions,
    task_of: Callable[[PlannedConversion], ConversionTask],
    told: Told | None,
) -> list[ConversionRow]:
    """Run a task for each planned conversion, in child processes or on a cluster.

    Errors are those of :func:`convert_all`.
    """
    begun = monotonic()
    listed = [sources] if isinstance(sources, (str, os.PathLike, CatalogueRow)) else [*sources]
    folder = absolute(target)
    if is_url(folder):
        raise DatasetError("batches have a local folder", path=folder)
    check_folder(folder)
    jobs = None if given.jobs is None else check_whole("jobs", given.jobs, least=1)
    deadline, quiet = _seconds("deadline", given.deadline), _seconds("watch", given.watch)
    (stall, of_headers), run = stall_limits(given.stall), uuid.uuid4().hex
    end = None if deadline is None else begun + deadline
    plan, formats = partial(given.plan, listed, folder, stall=of_headers), pickled_formats()
    write_report = report_writer(given.report, given.part)
    batch = BatchRun(
        end,
        lambda planned: task_of(planned)._replace(run=run, formats=formats, stall=stall),
    )
    with ExitStack() as stack:
        client = cluster_elsewhere()
        pool = stack.enter_context(closing(ConverterPool(warm=client is None)))
        if quiet is not None:
            watch = SourceWatch(listed, folder, plan, quiet, given.opening)
            batch.source = stack.enter_context(watch)
        planned = list[PlannedConversion]()
        try:
            first = plan(noted=planned.extend) if batch.source is None else batch.source.plan()
        except KeyboardInterrupt:
            batch.add(planned)
            _write_last(write_report, batch.rows)
            raise
        first.check(may_be_empty=quiet is not None)
        batch.add(first.conversions if quiet is None else ())
        write_report(batch.rows)
        paths = [one.files[0] for one in first.conversions if one.files]
        if client is None:
            most = processors() if quiet is not None else worthwhile_jobs(first.conversions)
            converters: Converters = LocalConverters(run, jobs or most, pool)
        else:
            on_workers = on_cluster(run, client, jobs, paths, folder, end)
            converters = stack.enter_context(on_workers)
        try:
            for row in batch.run(converters):
                if told is not None:
                    told(row, batch.progress)
                if row is None and batch.is_idle:
                    write_report(batch.rows)
        finally:
            for row in batch.stop(converters):
                if told is not None:
                    told(row, batch.progress)
            _write_last(write_report, batch.rows)
    return batch.rows


def _write_last(
    write_report: Callable[[list[ConversionRow]], None], rows: list[ConversionRow]
) -> None:
    try:
        write_report(rows)
    except DatasetError as error:  # the outcomes are worth more than the report
        warn(f"the report is not complete: {error}")


def stall_limits(stall: float | Literal["auto"] | None) -> tuple[float, float | None]:
    """Return the seconds for a chunk and for a header; None for those of a catalogue.

    Raise a DatasetError if the value is not a positive number, "auto" or None.
    """
    if isinstance(stall, str) and stall == "auto":
        return STALL_SECONDS, None
    limit = LONGEST_STALL if stall is None else min(check_seconds("stall", stall), LONGEST_STALL)
    return limit, limit


def _seconds(name: str, value: float | None) -> float | None:
    return None if value is None else check_seconds(name, value)


def worthwhile_jobs(planned: Sequence[PlannedConversion]) -> int:
    """Return the number of processes that convert for longer than they take to start."""
    nbytes = sum(one.nbytes for one in planned)
    worth = -(-nbytes // WORTH_BYTES) + len(planned) // WORTH_FILES
    return max(1, min(worth, processors(), len(planned)))


class Converters(Protocol):
    """What converts the pictures of a batch, several at a time."""

    @property
    def jobs(self) -> int:
        """Number of conversions at a time; 0 if there can be no other ones."""

    def submit(self, task: ConversionTask, left: int) -> Future[ConversionRow]:
        """Begin a conversion; ``left`` is the number of bytes of those that have not ended."""

    def stop(self) -> None:
        """Interrupt all conversions; what they have written is kept, if it can be resumed."""

    def end(self) -> None:
        """End all processes, also of conversions that have not stopped."""


class BatchRun:
    """The conversions of a batch, and their outcomes.

    Parameters
    ----------
    end : float or None
        Time by the monotonic clock at which no other conversion begins, and all are stopped.
    task_of : callable
        Returns a planned conversion with the options of the batch.

    Attributes
    ----------
    source : SourceWatch or None
        Where conversions are added from, without end.
    """

    def __init__(
        self, end: float | None, task_of: Callable[[PlannedConversion], ConversionTask]
    ) -> None:
        self._begun, self._end, self._task_of = monotonic(), end, task_of
        self.source: SourceWatch | None = None
        self._planned = dict[ConversionKey, PlannedConversion]()
        self._rows = dict[ConversionKey, ConversionRow]()
        self._waiting = deque[ConversionKey]()
        self._busy = dict[Future[ConversionRow], ConversionKey]()
        self._total = self._ended = self._worked = 0

    def add(self, planned: Iterable[PlannedConversion]) -> None:
        """Add conversions, also of pictures that were converted before and have changed."""
        for one in planned:
            key = one.key
            before = self._planned.pop(key, None)
            if before is not None:
                self._total -= before.nbytes
                if key in self._rows:
                    self._ended -= self._rows.pop(key).nbytes
            self._planned[key] = one
            self._total += one.nbytes
            if key not in self._waiting:
                self._waiting.append(key)

    @property
    def rows(self) -> list[ConversionRow]:
        """The outcomes of all conversions, in the order in which they were added."""
        rows = [
            self._rows.get(key) or ConversionRow.of(one, WAITING)
            for key, one in self._planned.items()
        ]
        later = () if self.source is None else self.source.incomplete
        return rows + [
            ConversionRow.of(one, WAITING)._replace(lacking=one.lacking) for one in later
        ]

    @property
    def progress(self) -> BatchProgress:
        """How far the conversions are."""
        counts = len(self._rows), len(self._planned), self._ended, self._total, self._worked
        return BatchProgress(*counts, monotonic() - self._begun)

    @property
    def is_idle(self) -> bool:
        """Whether all conversions have ended."""
        return not (self._waiting or self._busy)

    def run(self, converters: Converters) -> Iterator[ConversionRow | None]:
        """Convert; yield the outcomes, and None once a second."""
        while self.source is not None or not self.is_idle:
            now, jobs = monotonic(), converters.jobs
            if not jobs or (self._end is not None and now >= self._end):
                return
            if self.source is not None:
                self.add(self.source.new())
            while self._waiting and len(self._busy) < jobs:
                key = self._waiting.popleft()
                if key in self._busy.values():  # changed while it is converted
                    self._waiting.append(key)
                    break
                task = self._task_of(self._planned[key])
                self._busy[converters.submit(task, self._total - self._ended)] = key
            left = TICK if self._end is None else max(0.0, min(TICK, self._end - now))
            if not self._busy:
                time.sleep(left)
            ended = wait(self._busy, left, FIRST_COMPLETED).done
            yield from map(self._outcome, ended)
            if not ended:
                yield None

    def _outcome(self, future: Future[ConversionRow]) -> ConversionRow:
        key = self._busy.pop(future)
        try:
            row = future.result()
        except CancelledError:
            row = ConversionRow.of(self._planned[key], STOPPED)
        except Exception as error:  # noqa: BLE001 - of dask: its workers were lost, or cannot run it
            row = ConversionRow.of(self._planned[key], LOST, error_text(error))
        self._rows[key] = row
        self._ended += row.nbytes
        self._worked += row.nbytes if row.state == FINISHED else 0
        return row

    def stop(self, converters: Converters) -> Iterator[ConversionRow]:
        """Stop all conversions, end the processes, and yield the outcomes of those that ran."""
        try:
            converters.stop()
            ended = wait(self._busy, GRACE).done
        finally:
            converters.end()
        yield from map(self._outcome, ended)
        for future in self._busy:
            future.cancel()
        yield from map(self._outcome, [*self._busy])
