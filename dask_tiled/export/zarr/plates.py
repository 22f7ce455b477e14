"""Plates of OME-Zarr: fields named by row, column and number, and the groups that list them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

FIELD = re.compile(r"([A-Z]{1,2})/(\d{1,3})/(\d{1,6})")
"""Name of a field, such as "A/1/0". Other names would clash, or be invalid, on some systems."""


def is_plate(names: Iterable[str]) -> bool:
    """Return whether all names are those of fields."""
    return all(map(FIELD.fullmatch, names))


def groups_of_plate(fields: Sequence[str], name: str) -> dict[str, dict[str, Any]]:
    """Return attributes of OME-Zarr of the groups above the fields of a plate, by path.

    Rows and columns are in the usual order, and wells in that of their fields.
    """
    wells: dict[tuple[str, str], list[str]] = {}
    for field in fields:
        row, column, number = field.split("/")
        wells.setdefault((row, column), []).append(number)
    rows = sorted({row for row, _ in wells}, key=lambda name: (len(name), name))
    columns = sorted({column for _, column in wells}, key=lambda name: (int(name), name))
    told: dict[str, Any] = {
        "name": name,
        "rows": [{"name": name} for name in rows],
        "columns": [{"name": name} for name in columns],
        "field_count": max(map(len, wells.values())),
        "wells": [
            {"path": f"{r}/{c}", "rowIndex": rows.index(r), "columnIndex": columns.index(c)}
            for r, c in wells
        ],
    }
    found: dict[str, dict[str, Any]] = {"": {"plate": told}} | {row: {} for row in rows}
    for (row, column), numbers in wells.items():
        found[f"{row}/{column}"] = {"well": {"images": [{"path": number} for number in numbers]}}
    return found
