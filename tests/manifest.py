"""The manifest of the real files: what independent readers see in them."""

import ast
import csv

import numpy as np
import pytest
from conftest import DATA


def manifest(format=None, folder=""):
    """List the rows of a manifest, for one format or all; nothing where it is absent."""
    try:
        with open(DATA / folder / "MANIFEST.tsv", encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    except FileNotFoundError:
        return []
    return [row | {"file": folder + row["file"]} for row in rows if format in (None, row["format"])]


def by_file(rows, name):
    """Parametrise a test over rows; without any, the test asks for the data, and skips or fails."""
    if not rows:
        return pytest.mark.parametrize(name, [pytest.param(None, id="no data")])
    ids = [row["file"].removeprefix("mib/").removeprefix("npy/") for row in rows]
    return pytest.mark.parametrize(name, rows, ids=ids)


def expected_of(row):
    """Read shape, dtype and sum of a row."""
    text = row["shape_dtype"]
    number = float if text.endswith(("f4", "f8")) else int
    return _shape(text), np.dtype(text.split()[-1]), number(row["sum"])


def _shape(text):
    return ast.literal_eval(text[: text.index(")") + 1])
