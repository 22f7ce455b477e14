"""A catalogue as CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from typing import Any

from dask_tiled.cataloguing.rows import CatalogueRow, axes_text, doubts_text, shape_text
from dask_tiled.errors import DatasetError
from dask_tiled.storing import table_files

START = "path,picture,options"
"""How a catalogue in CSV begins."""


def write_csv(target: Any, rows: Sequence[CatalogueRow]) -> str:
    """Write rows as CSV, a column for each fact about the instrument; return the path.

    Raise a DatasetError if the target exists, and is no catalogue; or cannot be written.
    """
    names = dict.fromkeys(name for row in rows for name in row.as_dict())
    names = names or dict.fromkeys(CatalogueRow("").as_dict())
    return table_files.write_csv(target, START, names, map(_flat, rows))


def _flat(row: CatalogueRow) -> dict[str, Any]:
    return row.as_dict() | {
        "options": json.dumps(row.options),
        "shape": shape_text(row),
        "axes": axes_text(row),
        "doubts": doubts_text(row),
    }


def read_csv(path: str) -> list[tuple[str, dict[str, Any]]] | None:
    """Return the paths and options of a catalogue in CSV; None for any other file.

    Raise a DatasetError if a row has no valid options.
    """
    if not table_files.starts_with(path, START):
        return None
    with open(path, encoding="utf8", newline="") as file:
        try:
            return [
                (table_files.unquoted(row["path"]), json.loads(row["options"]))
                for row in csv.DictReader(file)
            ]
        except (ValueError, TypeError) as error:
            problem, expected = "the catalogue cannot be read", "paths and options as JSON"
            raise DatasetError(problem, path=path, expected=expected, found=str(error)) from error


def write_json(target: Any, rows: Sequence[CatalogueRow], summary: dict[str, Any]) -> str:
    """Write rows as JSON, one a line, and a summary; return the path.

    Raise a DatasetError if the target exists, and is no catalogue; or cannot be written.
    """
    listed = (row.as_dict() | {"files": row.files} for row in rows)
    return table_files.write_json(target, "catalogue", listed, **summary)
