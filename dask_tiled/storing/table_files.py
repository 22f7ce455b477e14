"""Tables as CSV and JSON, written line by line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from dask_tiled.model.mark import json_value
from dask_tiled.storing.disk import writing_to
from dask_tiled.storing.new_files import file_path, new_file

QUOTE = "'"
FORMULAS = "=", "+", "-", "@", "\t", "\r", QUOTE
"""Beginnings of texts that spreadsheets may run as formulas; a quote before them prevents it."""

Rows = Iterable[Mapping[str, Any]]


def write_csv(target: Any, start: str, names: Iterable[str], rows: Rows) -> str:
    """Write rows as CSV; return the path.

    Parameters
    ----------
    target : path-like
    start : str
        Beginning of the first line. Files that begin differently are never replaced.
    names : iterable of str
        The columns.
    rows : iterable of mapping
        Texts and numbers by column; None is an empty cell.

    Raises
    ------
    DatasetError
        The target exists, and is another file; or it cannot be written.
    """
    path = file_path(target)
    with _replacing(path, start) as file:
        table = csv.DictWriter(file, [*names])
        table.writeheader()
        table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return path


def _cell(value: Any) -> Any:
    is_formula = isinstance(value, str) and value.startswith(FORMULAS)
    return f"{QUOTE}{value}" if is_formula else value


def unquoted(cell: str) -> str:
    """Return the text that a cell was written from."""
    return cell.removeprefix(QUOTE)


def write_json(target: Any, name: str, rows: Rows, **more: Any) -> str:
    """Write rows as JSON, one a line, in a list with a name, and more values; return the path.

    Raise a DatasetError if the target exists, and has no such list; or cannot be written.
    """
    path, start = file_path(target), f'{{"{name}": ['
    with _replacing(path, start) as file:
        file.write(start)
        for k, row in enumerate(rows):
            file.write(f"{',' * (k > 0)}\n{json.dumps(json_value(row), allow_nan=False)}")
        rest = "".join(
            f", {json.dumps(key)}: {json.dumps(json_value(value), allow_nan=False)}"
            for key, value in more.items()
        )
        file.write(f"\n]{rest}}}\n")
    return path


def starts_with(path: str, start: str) -> bool:
    """Return whether a file begins with a text."""
    head = start.encode()
    with open(path, "rb") as file:
        return file.read(len(head)) == head


@contextmanager
def _replacing(path: str, start: str) -> Iterator[IO[str]]:
    with (
        new_file(path, lambda there: starts_with(there, start), overwrite=True) as part,
        writing_to(path),
        open(part, "w", encoding="utf8", errors="backslashreplace", newline="") as file,
    ):
        yield file
