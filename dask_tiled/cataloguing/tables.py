"""A catalogue as CSV and JSON, written line by line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any

from dask_tiled.cataloguing.rows import CatalogueRow, axes_text, doubts_text, shape_text
from dask_tiled.errors import DatasetError
from dask_tiled.model.mark import json_value
from dask_tiled.storing.new_files import file_path, new_file

START = '{"catalogue": ['
"""First line of a catalogue in JSON."""
QUOTE = "'"
FORMULAS = "=", "+", "-", "@", "\t", "\r", QUOTE
"""Beginnings of texts that spreadsheets may run as formulas; a quote before them prevents it."""


def write_csv(target: Any, rows: Sequence[CatalogueRow]) -> str:
    """Write rows as CSV, a column for each fact about the instrument; return the path.

    Raise a DatasetError if the target exists, and is no catalogue; or cannot be written.
    """
    names = dict.fromkeys(name for row in rows for name in row.as_dict())
    names = names or dict.fromkeys(CatalogueRow("").as_dict())
    path = file_path(target)
    with (
        new_file(path, _is_csv, overwrite=True) as part,
        open(part, "w", encoding="utf8", errors="backslashreplace", newline="") as file,
    ):
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(map(_flat, rows))
    return path


def _flat(row: CatalogueRow) -> dict[str, Any]:
    found = row.as_dict() | {
        "options": json.dumps(row.options),
        "shape": shape_text(row),
        "axes": axes_text(row),
        "doubts": doubts_text(row),
    }
    return {name: "" if value is None else _quoted(value) for name, value in found.items()}


def _quoted(value: Any) -> Any:
    is_formula = isinstance(value, str) and value.startswith(FORMULAS)
    return f"{QUOTE}{value}" if is_formula else value


def read_csv(path: str) -> list[tuple[str, dict[str, Any]]] | None:
    """Return the paths and options of a catalogue in CSV; None for any other file.

    Raise a DatasetError if a row has no valid options.
    """
    if not _is_csv(path):
        return None
    with open(path, encoding="utf8", newline="") as file:
        try:
            return [
                (row["path"].removeprefix(QUOTE), json.loads(row["options"]))
                for row in csv.DictReader(file)
            ]
        except (ValueError, TypeError) as error:
            problem, expected = "the catalogue cannot be read", "paths and options as JSON"
            raise DatasetError(problem, path=path, expected=expected, found=str(error)) from error


def _is_csv(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(20) == b"path,picture,options"


def write_json(target: Any, rows: Sequence[CatalogueRow], summary: dict[str, Any]) -> str:
    """Write rows as JSON, one a line, and a summary; return the path.

    Raise a DatasetError if the target exists, and is no catalogue; or cannot be written.
    """
    path = file_path(target)
    with (
        new_file(path, _is_json, overwrite=True) as part,
        open(part, "w", encoding="utf8", newline="\n") as file,
    ):
        file.write(f"{START}\n")
        file.writelines(_lines(rows))
        file.write(f"], {json.dumps(json_value(summary), allow_nan=False)[1:]}\n")
    return path


def _lines(rows: Sequence[CatalogueRow]) -> Iterator[str]:
    for k, row in enumerate(rows):
        value = json_value(row.as_dict() | {"files": row.files})
        yield f"{json.dumps(value, allow_nan=False)}{',' * (k + 1 < len(rows))}\n"


def _is_json(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(START)) == START.encode()
