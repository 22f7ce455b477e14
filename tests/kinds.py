"""Real files of light microscopes and event streams, with what independent readers read."""

import ast
import zlib

import numpy as np
import pytest
from conftest import DATA
from manifest import rows_in

KINDS = DATA.parent / "kinds"


def rows_of(kind, table="MANIFEST"):
    """Return the rows of a table for the files of a kind."""
    return [row for row in rows_in(KINDS / f"{table}.tsv") if row["file"].startswith(f"{kind}/")]


def by_row(rows):
    """Parametrise a test over rows, or over None without any."""
    if not rows:
        return pytest.mark.parametrize("row", [pytest.param(None, id="no data")])
    names = [f"{row['file']} {row.get('item', '')}".strip() for row in rows]
    return pytest.mark.parametrize("row", rows, ids=names)


def path_of(row):
    """Return the file of a row; skip the test if the file is absent."""
    if row is None or not (KINDS / row["file"]).is_file():
        pytest.skip(f"the real files are absent: no {KINDS}")
    return KINDS / row["file"]


def assert_equals_row(pixels, row):
    """Compare shape, dtype, sum and checksum of pixels with a row."""
    assert pixels.shape == ast.literal_eval(row["shape"])
    assert pixels.dtype == np.dtype(row["dtype"])
    assert int(pixels.sum(dtype="u8")) == int(row["sum"])
    stored = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<"))
    assert f"{zlib.crc32(stored.data):08x}" == row["crc32"]
