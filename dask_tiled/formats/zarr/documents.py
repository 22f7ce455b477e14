"""Documents of zarr: those of format 3, and those of format 2 written as if they were of format 3.

Layout facts: the specifications of zarr 2 and 3; names of dimensions as xarray writes them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from dask_tiled.codecs.array_codecs import ARRAY_CODECS
from dask_tiled.codecs.pipeline import Pipeline, of_numcodecs
from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.tools.text import parse_json
from dask_tiled.model.files import File
from dask_tiled.model.paths import is_file, is_url

DOCUMENT = "zarr.json"
ARRAY, GROUP, ALL, ATTRIBUTES = ".zarray", ".zgroup", ".zmetadata", ".zattrs"
"""What documents of format 2 are called: of an array, a group, of all below a group, and what
users have added."""
DOCUMENTS = (DOCUMENT, ARRAY, GROUP, ALL)
"""Those that a folder may be opened by, in the order in which they are looked for."""
DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute in which xarray names the dimensions of arrays of format 2."""
MOST_BYTES = 1 << 28
"""No document is longer."""
LONGEST_NAME = 1000


def node_in(folder: str) -> tuple[File, dict[str, Any]] | None:
    """Find and read the document of a folder; None where it has none.

    Raises
    ------
    CorruptFileError
        As for :func:`read`.
    """
    files = (_file_at(os.path.join(folder, name)) for name in DOCUMENTS)
    file = next(filter(None, files), None)
    return None if file is None else (file, read(file))


def member_of(folder: str, name: Any, path: str) -> str:
    """Return the folder of a member of a group.

    Raises
    ------
    DatasetError
        The name is none; ``path`` says where it stands.
    """
    text = name if isinstance(name, str) else ""
    parts = text.split("/")
    with suppress(UnicodeEncodeError):
        lengths = [len(os.fsencode(part)) for part in parts]
        short = max(lengths) < 256 and sum(lengths) <= LONGEST_NAME  # as systems have them
        if (
            short
            and "\0" not in text
            and text == name
            and ".." not in parts
            and not os.path.isabs(text)
        ):
            return os.path.join(folder, *parts)
    raise DatasetError("invalid path of a member", path=path, found=repr(name)[:LONGEST_NAME])


def read(file: File) -> dict[str, Any]:
    """Read a document, of format 2 with what lies beside it.

    Raises
    ------
    CorruptFileError
        It is none.
    DatasetError
        It is an array of something that is not read.
    """
    name = os.path.basename(file.path)
    if name not in DOCUMENTS[1:]:
        return _checked(file, _parsed(file))
    document, folder = _parsed(file), os.path.dirname(file.path)
    try:
        if name == ARRAY:
            return _array(document, _beside(folder, ATTRIBUTES))
        known = document if name == ALL else _beside(folder, ALL)
        attributes = _beside(folder, ATTRIBUTES) if name == GROUP else {}
        return _group(known.get("metadata", {}), attributes)
    except DatasetError as error:
        told = {"expected": error.expected, "found": error.found}
        raise type(error)(error.problem, path=file.path, where=error.where, **told) from error
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        problem, found = "invalid zarr 2 metadata", str(error) or repr(error)
        raise CorruptFileError(problem, path=file.path, found=found) from error


def _parsed(file: File) -> dict[str, Any]:
    if file.size > MOST_BYTES:
        problem = "the document is too long"
        raise CorruptFileError(problem, path=file.path, expected=MOST_BYTES, found=file.size)
    text = file.read(file.size)
    try:
        document = parse_json(text)
        if b"\\u" in text:  # it may be half a character
            json.dumps(document, ensure_ascii=False).encode()
        if not isinstance(document, dict):
            raise TypeError("no object")  # noqa: TRY301
    except (ValueError, TypeError) as error:
        raise CorruptFileError("invalid zarr metadata", path=file.path, found=str(error)) from error
    return document


def _checked(file: File, document: dict[str, Any]) -> dict[str, Any]:
    versions = document.get("zarr_format"), document.get("node_type")
    if versions not in ((3, "array"), (3, "group")):  # in a tuple: JSON may hold what has no hash
        problem, expected = "invalid zarr 3 metadata", "an array or a group of format 3"
        raise CorruptFileError(problem, path=file.path, expected=expected, found=versions)
    return document


def _beside(folder: str, name: str) -> dict[str, Any]:
    """Read what belongs to a document of format 2; nothing where it is not there."""
    file = _file_at(os.path.join(folder, name))
    return _parsed(file) if file else {}


def _file_at(path: str) -> File | None:
    """Look at a file that need not be there, or that a server need not show."""
    if is_url(path) and not is_file(path):
        return None
    try:
        return File.at(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _group(known: Mapping[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    """Write a group of format 2, and the arrays that it lists, as one of format 3."""
    attributes = attributes or dict(known.get(ATTRIBUTES, {}))
    if "multiscales" in attributes:  # where OME-Zarr has it before version 0.5
        attributes = {**attributes, "ome": {"multiscales": attributes["multiscales"]}}
    sizes = {
        key.removesuffix("/" + ARRAY): {"node_type": "array", "shape": one["shape"]}
        for key, one in known.items()
        if key.endswith("/" + ARRAY)
    }
    listed = {"consolidated_metadata": {"metadata": sizes}} if sizes else {}
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes, **listed}


def _array(document: Mapping[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    """Write an array of format 2 as one of format 3."""
    if document["zarr_format"] != 2:
        raise ValueError(f"zarr_format {document['zarr_format']}")
    told, shape, chunk = document["dtype"], document["shape"], document["chunks"]
    dtype = np.dtype(told) if isinstance(told, str) else np.dtype("V")
    if dtype.kind not in "biufc" or dtype.itemsize > 16:
        raise DatasetError("unsupported data type", found=str(told))
    codecs = _filters(document, len(chunk))
    filters = [codec for codec in codecs if codec["name"] in ARRAY_CODECS]
    stored = Pipeline([*filters, {"name": "bytes"}], (1,) * len(chunk), dtype).arrays[-1].dtype
    endian = "little" if stored == stored.newbyteorder("<") else "big"
    codecs.insert(len(filters), {"name": "bytes", "configuration": {"endian": endian}})
    names = attributes.pop(DIMENSIONS, None)
    fits = isinstance(names, list) and len(names) == len(shape)
    fits = fits and all(isinstance(name, str) for name in names)
    separator = document.get("dimension_separator", ".")
    keys = {"name": "v2", "configuration": {"separator": separator}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": keys,
        "fill_value": _fill(document["fill_value"], dtype),
        "codecs": codecs,
        "attributes": attributes,
        "dimension_names": names if fits else None,
    }


def _filters(document: Mapping[str, Any], ndim: int) -> list[dict[str, Any]]:
    """List the codecs of an array of format 2, but for the one that makes bytes of pixels."""
    if document["order"] not in ("C", "F"):
        raise ValueError(f"order {document['order']!r}")
    last = [document["compressor"]] if document["compressor"] is not None else []
    codecs = []
    if document["order"] == "F" and ndim > 1:
        order = [*range(ndim)][::-1]
        codecs = [{"name": "transpose", "configuration": {"order": order}}]
    return [*codecs, *map(of_numcodecs, (*(document.get("filters") or ()), *last))]


def _fill(value: Any, dtype: np.dtype) -> Any:
    """Write the value of pixels that were never written as format 3 does: 0 where there is none."""
    if dtype.kind == "c":
        parts = [value, 0] if not isinstance(value, list) else value
        return [_fill(part, np.dtype("f8")) for part in parts]
    if value is None:
        return False if dtype.kind == "b" else 0
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind in "iu" and isinstance(value, float) and math.isfinite(value):
        return int(value)
    return value
