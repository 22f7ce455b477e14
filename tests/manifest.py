"""The manifest of the real files: what independent readers read."""

import ast
import csv

import numpy as np
import pytest
from conftest import DATA


def rows_in(path):
    """Return the rows of a table, or [] if it is absent."""
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    except FileNotFoundError:
        return []


def manifest(format=None, folder=""):
    """Return the rows of a manifest for one format, or all."""
    rows = rows_in(DATA / folder / "MANIFEST.tsv")
    return [row | {"file": folder + row["file"]} for row in rows if format in (None, row["format"])]


def by_file(rows, name):
    """Parametrise a test over rows; without any, the ``data`` fixture skips or fails the test."""
    if not rows:
        return pytest.mark.parametrize(name, [pytest.param(None, id="no data")])
    ids = [row["file"].removeprefix("mib/").removeprefix("npy/") for row in rows]
    return pytest.mark.parametrize(name, rows, ids=ids)


def expected_of(row):
    """Return shape, dtype and sum of a row."""
    text = row["shape_dtype"]
    shape = ast.literal_eval(text[: text.index(")") + 1])
    number = float if text.endswith(("f4", "f8")) else int
    return shape, np.dtype(text.split()[-1]), number(row["sum"])
