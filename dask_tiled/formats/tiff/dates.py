"""Dates of pages, from the several spellings of DateTime."""

from __future__ import annotations

import re
from datetime import datetime

import numpy as np
import numpy.typing as npt

from dask_tiled.formats import tools
from dask_tiled.formats.tiff.pages import Page, Pages
from dask_tiled.model.indexing import Index

DATE = re.compile(r"(\d{4})([:/-])(\d\d)\2(\d\d)[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)", re.ASCII)


def dates_of(pages: Pages, rows: Index) -> npt.NDArray[np.datetime64]:
    """Return the dates of all frames; frames without a page of their own have none.

    Raise a CorruptFileError if a DateTime is invalid.
    """
    counts = pages.columns(rows)[Page._fields.index("frames")]
    dates = np.full(counts.sum(), np.datetime64("NaT", "us"))
    dates[counts.cumsum() - counts] = [_date_of(pages, row) for row in rows.tolist()]
    return dates


def _date_of(pages: Pages, row: int) -> np.datetime64:
    text = (pages.dates or {}).get(row, b"").decode("latin1")
    try:
        return np.datetime64(parse_date(text), "us")
    except ValueError as error:
        raise tools.CorruptFileError(
            "invalid DateTime",
            path=pages.file_of(row).path,
            where=f"the page at byte {pages[row].ifd}",
            expected="YYYY:MM:DD HH:MM:SS",
            found=tools.printable(text.partition("\0")[0].strip()),
        ) from error


def parse_date(text: str) -> datetime | None:
    """Parse a DateTime; blanks or zeros mean an unknown one.

    Raise a ValueError if it is invalid.
    """
    text = text.partition("\0")[0].strip()
    if not text.strip("0:/- "):
        return None
    found = DATE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return datetime.fromisoformat(f"{found[1]}-{found[3]}-{found[4]}T{found[5]}")
