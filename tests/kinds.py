"""The real files of light microscopes and event streams: what independent readers see in them."""

import ast
import csv
import zlib

import numpy as np
import pytest
from conftest import DATA

KINDS = DATA.parent / "kinds"


def rows_of(kind, table="MANIFEST"):
    """List the rows of a table for the files of a kind; none where it is absent."""
    try:
        with open(KINDS / f"{table}.tsv", encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    except FileNotFoundError:
        return []
    return [row for row in rows if row["file"].startswith(f"{kind}/")]


def by_row(rows):
    """Parametrise a test over rows, which are None where there are no files."""
    if not rows:
        return pytest.mark.parametrize("row", [pytest.param(None, id="no data")])
    names = [f"{row['file']} {row.get('item', '')}".strip() for row in rows]
    return pytest.mark.parametrize("row", rows, ids=names)


def path_of(row):
    """Return the file of a row; skip the test where there is none."""
    if row is None or not (KINDS / row["file"]).is_file():
        pytest.skip(f"the real files are absent: no {KINDS}")
    return KINDS / row["file"]


def assert_as_told(pixels, row):
    """Compare pixels with the shape, the type, the sum and the checksum of a row."""
    assert pixels.shape == ast.literal_eval(row["shape"])
    assert pixels.dtype == np.dtype(row["dtype"])
    assert int(pixels.sum(dtype="u8")) == int(row["sum"])
    stored = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<"))
    assert f"{zlib.crc32(stored.data):08x}" == row["crc32"]
