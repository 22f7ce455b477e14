"""A catalogue as one page of HTML, without other files."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from dask_tiled.cataloguing.rows import CatalogueRow, axes_text, doubts_text, label_of, shape_text
from dask_tiled.model.instrument import Fact
from dask_tiled.model.mark import json_value
from dask_tiled.storing.new_files import file_path, new_file

GENERATOR = b'<meta name="generator" content="dask-tiled catalogue">'
"""Line of the head of a page, which tells pages from other files."""
MOST_THUMBNAILS = 64 << 20
"""Bytes of all thumbnails of a page."""
# fmt: off
NAMES = (
    "name", "path", "format", "shape", "dtype", "nbytes", "stored", "axes", "date", "modified",
    "files", "facts", "doubts", "lacking", "problem", "code", "thumbnail",
)
# fmt: on


def write_page(target: Any, rows: Sequence[CatalogueRow], told: str, folder: str) -> str:
    """Write a page of rows; return the path.

    Raise a DatasetError if the target exists, and is no such page; or cannot be written.
    """
    text = files("dask_tiled.cataloguing").joinpath("static", "catalogue.html").read_text("utf8")
    head, tail = text.split(">DATA<")
    left = MOST_THUMBNAILS - sum(len(row.thumbnail) for row in rows)
    about = {"title": folder, "told": told, "names": NAMES}
    if left < 0:
        about["told"] = f"{told}. Only the first rows have thumbnails."
    path = file_path(target)
    with (
        new_file(path, _is_page, overwrite=True) as part,
        open(part, "w", encoding="utf8", newline="\n") as file,
    ):
        file.write(f'{head}>{_embedded(about)[:-1]}, "rows": [\n')
        file.writelines(_lines(rows, folder))
        file.write(f"]}}<{tail}")
    return path


def _is_page(path: str) -> bool:
    with open(path, "rb") as file:
        return GENERATOR in file.read(1000)


def _lines(rows: Sequence[CatalogueRow], folder: str) -> Iterator[str]:
    left = MOST_THUMBNAILS
    for k, row in enumerate(rows):
        left -= len(row.thumbnail)
        values = _values(row, folder, with_thumbnail=left >= 0)
        yield f"{_embedded(values)}{',' * (k + 1 < len(rows))}\n"


def _values(row: CatalogueRow, folder: str, *, with_thumbnail: bool) -> list[Any]:
    """Return the values of a row in the order of NAMES."""
    place = os.path.relpath(os.path.dirname(row.path), folder) if folder else ""
    name = label_of(row) if place in {"", "."} else os.path.join(place, label_of(row))
    facts = [f"{key}: {Fact(*told, ())}" for key, told in row.instrument.items()]
    thumbnail = base64.b64encode(row.thumbnail).decode() if with_thumbnail else ""
    head = [name, row.path, row.format, shape_text(row), row.dtype, row.nbytes, row.stored_bytes]
    head += [axes_text(row), row.date, row.modified, len(row.files), facts]
    return [*head, doubts_text(row), row.lacking, row.problem, row.code, thumbnail]


def _embedded(value: Any) -> str:
    """Return JSON that may stand in a script element."""
    return json.dumps(json_value(value), allow_nan=False).replace("<", "\\u003c")
