"""The TOML file of sparse frames: the names and types of the files that hold them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from dask_tiled.errors import CorruptFileError
from dask_tiled.model.files import read_head

MAX_TOML = 1 << 20
MAX_PIXELS = 1 << 31
PARTS = {"indptr": "iu", "indices": "iu", "data": "iufc"}
"""The files, and the kinds of numbers that each may hold."""


def read_toml(
    path: str,
) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[str, np.dtype]]]:
    """Read the scan shape, the shape of a frame, and the names and types of the three files.

    Raises
    ------
    CorruptFileError
        Something of this is not there, or makes no sense.
    """
    text = read_head(path, MAX_TOML + 1)
    try:
        if len(text) > MAX_TOML:
            refuse(path, "the file", f"at most {MAX_TOML} bytes", "more")
        content = tomllib.loads(text.decode("utf8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError("not a TOML file", path=path, found=str(error)[:200]) from error
    params = _table(path, content, "params")
    kind = params.get("filetype")
    if not isinstance(kind, str) or kind.lower() != "raw_csr":
        refuse(path, "params.filetype", "raw_csr", kind)
    files = _table(path, content, kind if kind in content else "raw_csr")
    parts = []
    for part, kinds in PARTS.items():
        name = files.get(f"{part}_file")
        if not isinstance(name, str) or not name or "\0" in name:
            refuse(path, f"{part}_file", "the name of a file", name)
        parts.append((name, _dtype(path, f"{part}_dtype", files.get(f"{part}_dtype"), kinds)))
    return _shape(path, params, "nav_shape"), _shape(path, params, "sig_shape"), parts


def _table(path: str, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = content.get(name)
    if not isinstance(table, dict):
        refuse(path, f"[{name}]", "a table", table)
    return table


def _shape(path: str, params: Mapping[str, Any], name: str) -> tuple[int, ...]:
    shape = params.get(name)
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= 8
        or any(type(n) is not int or n < 1 for n in shape)
        or math.prod(shape) > MAX_PIXELS
    ):
        refuse(path, f"params.{name}", "1 to 8 sizes, not too large", shape)
    return tuple(shape)


def _dtype(path: str, name: str, given: Any, kinds: str) -> np.dtype:
    try:
        dtype = np.dtype(given if isinstance(given, str) else "V")
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype("V")
    if dtype.kind not in kinds or dtype.shape:
        refuse(path, name, f"a numpy type of kind {kinds}", given)
    return dtype


def refuse(path: str, where: str, expected: str, found: Any) -> NoReturn:
    """Raise an error that says what was found instead."""
    raise CorruptFileError(
        "this makes no sense", path=path, where=where, expected=expected, found=str(found)[:100]
    )
