"""The report of a batch, as CSV or JSON."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, NamedTuple

from dask_tiled.batch.one import ConversionRow
from dask_tiled.errors import DatasetError
from dask_tiled.model.mark import json_value
from dask_tiled.storing.disk import writing_to
from dask_tiled.storing.new_files import file_path, new_file

Rows = Sequence[ConversionRow]


def _write_csv(rows: Rows, file: IO[str]) -> None:
    table = csv.writer(file)
    table.writerow(ConversionRow._fields)
    table.writerows(row._replace(doubts="; ".join(row.doubts)) for row in rows)  # type: ignore[arg-type]


def _write_json(rows: Rows, file: IO[str]) -> None:
    lines = ",\n".join(json.dumps(json_value(row._asdict())) for row in rows)
    file.write(f'{{"conversions": [\n{lines}\n]}}\n')


class _ReportKind(NamedTuple):
    write: Callable[[Rows, IO[str]], None]
    head: bytes
    """How files of this kind begin; other files are never replaced."""

    def is_kind(self, path: str) -> bool:
        with open(path, "rb") as file:
            return file.read(len(self.head)) == self.head


KINDS = {
    ".csv": _ReportKind(_write_csv, b"source,picture,target,state"),
    ".json": _ReportKind(_write_json, b'{"conversions": ['),
}


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
    return partial(_write, path, KINDS[suffix])


def _write(path: str, kind: _ReportKind, rows: Rows) -> None:
    with (
        new_file(path, kind.is_kind, overwrite=True) as part,
        writing_to(path),
        open(part, "w", encoding="utf8", errors="backslashreplace", newline="") as file,
    ):
        kind.write(rows, file)
