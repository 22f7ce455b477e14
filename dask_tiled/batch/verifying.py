"""Compare many results with their sources, in several processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dask_tiled.batch.one import ConversionRow, ConversionTask
from dask_tiled.batch.planning import PlannedConversion, Source
from dask_tiled.batch.running import BatchOptions, Told, run_batch


def verify_all(
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
    report: str | os.PathLike[str] | None = None,
    opening: Mapping[str, Any] | None = None,
    told: Told | None = None,
) -> list[ConversionRow]:
    """Compare the results of :func:`convert_all` with their sources, bit by bit.

    Nothing is written but the report. Each dataset below the sources needs a result; results of
    other sources are ignored.

    Parameters
    ----------
    sources, target, suffix, name, pattern, recursive, together : optional
        As they were passed to :func:`convert_all`.
    jobs, part, deadline, stall, report, opening, told : optional
        As for :func:`convert_all`.

    Returns
    -------
    list of ConversionRow
        The outcomes in the order of the sources, as of :func:`convert_all`. ``state`` is "equal";
        "different", with the first difference; "missing": there is no result; "failed": a file
        cannot be read; "doubtful", "stopped" or "not begun".

    Raises
    ------
    DatasetError
        As for :func:`convert_all`.
    FileNotFoundError
        A given path does not exist.

    Examples
    --------
    >>> import dask_tiled
    >>> import numpy as np
    >>> from dask_tiled.testing import write_mib
    >>> path = write_mib("scan.mib", np.ones((4, 4, 16, 16), "uint16"))
    >>> rows = dask_tiled.convert_all(path, "converted")
    >>> [row.state for row in dask_tiled.verify_all(path, "converted")]
    ['equal']
    """
    opened = {**(opening or {})}
    selected = suffix, name, pattern, recursive, together, jobs, part
    given = BatchOptions(*selected, deadline, stall, None, report, opened)

    def task_of(planned: PlannedConversion) -> ConversionTask:
        return ConversionTask(planned, opened, {}, together, only_compares=True)

    return run_batch(sources, target, given, task_of, told)
