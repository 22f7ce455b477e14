"""Convert many files, in several processes, in a run that can be repeated."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from dask_tiled.batch.children import Converter
from dask_tiled.batch.one import FINISHED, WAITING, ConversionRow, ConversionTask
from dask_tiled.batch.planning import ConversionPlan, Source, part_of
from dask_tiled.batch.progress import BatchProgress
from dask_tiled.batch.records import check_folder
from dask_tiled.batch.reports import report_writer
from dask_tiled.cataloguing.rows import CatalogueRow
from dask_tiled.converting.convert import check_options
from dask_tiled.errors import DatasetError, check_seconds, check_whole, warn
from dask_tiled.files.paths import absolute, is_url
from dask_tiled.tiling.machine import processors

GRACE = 20.0
"""Seconds for conversions to stop after an interruption."""
TICK = 1.0
"""Seconds between two reports of progress."""
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
    update: bool = False,
    overwrite: bool = False,
    verify: bool = False,
    report: str | os.PathLike[str] | None = None,
    opening: Mapping[str, Any] | None = None,
    told: Told | None = None,
    **options: Any,
) -> list[ConversionRow]:
    """Convert all datasets of files and folders, each picture to a file of its own.

    A run can be repeated: what is done is skipped, what was begun is resumed if the format is zarr,
    and targets whose sources have changed are reported. A picture that cannot be converted does not
    affect the others.

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
        Number of conversions at a time, each in its own process; by default one a processor. They
        share the threads: each conversion has the number of processors divided by ``jobs``.
    part : (int, int), optional
        Convert a part of the pictures, such as (3, 16): the third of 16. A hash of the path of
        each result below ``target`` selects its part, on all machines, also while files are added.
        Of many files, the parts have about equal numbers and bytes; of few, they may not.
    deadline : float, optional
        Seconds after which conversions are stopped. To zarr, the same call resumes them.
    update : bool
        Replace results whose sources or options have changed, unless the results were changed, too.
    overwrite : bool
        Replace results also if no batch has made them, if they were changed since, or if they were
        made of another source. Nothing that is done is made again.
    verify : bool
        Compare each result with its source, bit by bit, unless it was compared before and its files
        were not touched since.
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

    Raises
    ------
    DatasetError
        There is no dataset, two sources have the same target, a target is within another dataset,
        an option is invalid, or the report cannot be written.
        Nothing was converted.
    FileNotFoundError
        A given path does not exist.

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
    begun = monotonic()
    one = (str, os.PathLike, CatalogueRow)
    given: list[Source] = [sources] if isinstance(sources, one) else [*sources]
    folder = absolute(target)
    if is_url(folder):
        raise DatasetError("batches are converted to a local folder", path=folder)
    check_folder(folder)
    wrong = next((one for one in NOT_IN_BATCHES if options.get(one)), None)
    if wrong:
        raise DatasetError(f"{wrong}= applies to one array", found="many files")
    jobs = processors() if jobs is None else check_whole("jobs", jobs, least=1)
    end = None if deadline is None else begun + check_seconds("deadline", deadline)
    opened = {**(opening or {})}
    plan = ConversionPlan(
        given,
        folder,
        suffix=suffix,
        name=name,
        pattern=pattern,
        recursive=recursive,
        together=together,
        always=bool(opened.keys() - {"doubts"}),
    )
    check_options(f"all{suffix}", options)
    write_report = report_writer(report, part)
    planned = plan.conversions if part is None else part_of(plan.conversions, folder, *part)
    how = opened, options, together, update, overwrite, verify
    run = BatchRun([ConversionTask(one, *how) for one in planned], jobs, end)
    write_report(run.rows)
    try:
        for row in run:
            if told is not None:
                told(row, run.progress)
    finally:
        for row in run.stop():
            if told is not None:
                told(row, run.progress)
        try:
            write_report(run.rows)
        except DatasetError as error:  # the outcomes are worth more than the report
            warn(f"the report is not complete: {error}")
    return run.rows


class BatchRun:
    """Conversions in child processes; iterating yields their outcomes, and None once a second.

    Parameters
    ----------
    tasks : sequence of ConversionTask
    jobs : int
        Number of processes.
    end : float or None
        Time by the monotonic clock at which iterating ends.
    """

    def __init__(self, tasks: Sequence[ConversionTask], jobs: int, end: float | None) -> None:
        self._tasks, self._begun, self._end = [*tasks], monotonic(), end
        self._jobs = max(1, min(jobs, len(tasks)))
        self._rows = dict[int, ConversionRow]()
        self._waiting = deque(range(len(tasks)))
        self._busy: dict[Any, tuple[int, Converter]] = {}
        self._idle: list[Converter] = []

    @property
    def rows(self) -> list[ConversionRow]:
        """The outcomes, of all tasks in order."""
        none = (ConversionRow.of(task.planned, WAITING) for task in self._tasks)
        return [self._rows.get(k, row) for k, row in enumerate(none)]

    @property
    def progress(self) -> BatchProgress:
        """How far the conversions are."""
        ended = [row for row in self._rows.values() if row.state != WAITING]
        nbytes = sum(row.nbytes for row in ended)
        total = sum(task.planned.nbytes for task in self._tasks)
        worked = sum(row.nbytes for row in ended if row.state == FINISHED)
        counts = len(ended), len(self._tasks), nbytes, total, worked
        return BatchProgress(*counts, monotonic() - self._begun)

    def __iter__(self) -> Iterator[ConversionRow | None]:
        """Convert."""
        from multiprocessing.connection import wait

        while self._waiting or self._busy:
            now = monotonic()
            if self._end is not None and now >= self._end:
                return
            while self._waiting and len(self._busy) < self._jobs:
                self._begin(self._waiting.popleft())
            left = TICK if self._end is None else max(0.0, min(TICK, self._end - now))
            ready = wait([*self._busy], left)
            for connection in ready:
                yield self._finished(connection)
            if not ready:
                yield None

    def _begin(self, number: int) -> None:
        one = self._idle.pop() if self._idle else Converter(max(1, processors() // self._jobs))
        self._busy[one.connection] = number, one
        one.begin(self._tasks[number])

    def _finished(self, connection: Any) -> ConversionRow:
        number, one = self._busy.pop(connection)
        row = self._rows[number] = one.row()
        if one.is_alive:
            self._idle.append(one)
        else:
            one.end()
        return row

    def stop(self) -> list[ConversionRow]:
        """Stop all conversions, end the processes, and return the outcomes of those that ran."""
        from multiprocessing.connection import wait

        found = []
        try:
            for _, one in self._busy.values():
                one.stop()
            end = monotonic() + GRACE
            while self._busy and (left := end - monotonic()) > 0:
                found += [self._finished(connection) for connection in wait([*self._busy], left)]
        finally:
            for number, one in self._busy.values():
                row = one.end()
                if row is not None:
                    self._rows[number] = row
                    found.append(row)
            for one in self._idle:
                one.end()
            self._busy.clear()
            self._idle.clear()
        return found
