"""The report of a batch, as CSV or JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from dask_tiled.batch.one import ConversionRow
from dask_tiled.errors import DatasetError
from dask_tiled.storing import table_files
from dask_tiled.storing.new_files import file_path

Rows = Sequence[ConversionRow]


def _write_csv(path: str, rows: Rows) -> None:
    start, names = "source,picture,target,state", ConversionRow._fields
    listed = (row._asdict() | {"doubts": "; ".join(row.doubts)} for row in rows)
    table_files.write_csv(path, start, names, listed)


def _write_json(path: str, rows: Rows) -> None:
    table_files.write_json(path, "conversions", (row._asdict() for row in rows))


KINDS = {".csv": _write_csv, ".json": _write_json}


def report_writer(
    target: str | os.PathLike[str] | None, part: tuple[int, int] | None
) -> Callable[[Rows], None]:
    """Return a function that writes a report to a path; None: to none.

    The report of a part has the part in its name, such as ``report-3-of-16.csv``.

    Raise a DatasetError if the suffix is unknown.
    """
    if target is None:
        return lambda _: None
    path = file_path(target)
    stem, end = os.path.splitext(path)
    suffix = end.lower()
    if suffix not in KINDS:
        problem, expected = "unknown suffix of a report", " or ".join(KINDS)
        raise DatasetError(problem, path=path, expected=expected, found=suffix or None)
    if part is not None:
        path = f"{stem}-{part[0]}-of-{part[1]}{end}"
    return partial(KINDS[suffix], path)
