"""Documents of zarr arrays and groups, converted to format 3.

Layout facts: the specifications of zarr 2 and 3; names of dimensions as xarray writes them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from dask_tiled.codecs.array_codecs import ARRAY_CODECS, NUMBERS
from dask_tiled.codecs.pipeline import Pipeline, of_numcodecs
from dask_tiled.codecs.shards import named
from dask_tiled.errors import CorruptFileError, DatasetError, Guard
from dask_tiled.formats.tools.text import parse_json
from dask_tiled.formats.tools.zips import FolderEntry
from dask_tiled.formats.zarr.folders import StoreFolder
from dask_tiled.model.ome_zarr import KEYS

DOCUMENT = "zarr.json"
ARRAY, GROUP, ALL, ATTRIBUTES = ".zarray", ".zgroup", ".zmetadata", ".zattrs"
"""Documents of format 2: array, group, consolidated metadata, and attributes."""
DOCUMENTS = (DOCUMENT, ARRAY, GROUP, ALL)
"""Documents that identify a folder, in search order."""
DIMENSIONS = "_ARRAY_DIMENSIONS"
"""Attribute with xarray's dimension names in format 2."""
MOST_BYTES = 1 << 28
"""Longest document."""
MOST_PIXELS = 1 << 60
"""Maximum number of pixels of a chunk or shard, so that byte offsets do not overflow."""
LONGEST_NAME = 1000
UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, SyntaxError)
"""Errors of invalid documents; NumPy evaluates dtype names."""


Node: TypeAlias = tuple[FolderEntry, dict[str, Any]]
"""A document, and its content."""


def node_in(folder: StoreFolder) -> Node | None:
    """Return the document of a folder; None if there is none.

    Raises
    ------
    DatasetError
        As for :func:`read`.
    """
    entry = next(filter(None, map(folder.entry, DOCUMENTS)), None)
    return None if entry is None else (entry, read(folder, entry))


def member_of(folder: StoreFolder, name: Any, path: str) -> StoreFolder:
    """Return the folder of a member of a group.

    Raise a DatasetError if the name is invalid; ``path`` is the file that holds it.
    """
    parts = name.split("/") if isinstance(name, str) and "\0" not in name else [".."]
    with suppress(UnicodeEncodeError):
        lengths = [len(os.fsencode(part)) for part in parts]
        short = max(lengths) < 256 and sum(lengths) <= LONGEST_NAME  # limits of file systems
        if short and ".." not in parts and not os.path.isabs(name):
            return folder.inside(*parts)
    raise DatasetError("invalid path of a member", path=path, found=repr(name)[:LONGEST_NAME])


def read(folder: StoreFolder, entry: FolderEntry) -> dict[str, Any]:
    """Read a document of a folder; for format 2, with its attributes.

    Raise a CorruptFileError if the document is invalid, and a DatasetError if the array has an
    unsupported dtype or codec.
    """
    name, document = os.path.basename(entry.path), _parsed(entry)
    if name not in DOCUMENTS[1:]:
        versions = document.get("zarr_format"), document.get("node_type")
        if versions not in ((3, "array"), (3, "group")):  # a tuple: values may be unhashable
            problem, expected = "invalid zarr 3 metadata", "an array or a group of format 3"
            raise CorruptFileError(problem, path=entry.path, expected=expected, found=versions)
        return document
    try:
        if name == ARRAY:
            return _array(document, _beside(folder, ATTRIBUTES))
        known = document if name == ALL else _beside(folder, ALL)
        attributes = _beside(folder, ATTRIBUTES) if name == GROUP else {}
        return _group(known.get("metadata", {}), attributes)
    except DatasetError:
        raise
    except UNREADABLE as error:
        problem, found = "invalid zarr 2 metadata", str(error) or repr(error)
        raise CorruptFileError(problem, path=entry.path, found=found) from error


def _parsed(entry: FolderEntry) -> dict[str, Any]:
    if entry.size > MOST_BYTES:
        problem = "the document is too long"
        raise CorruptFileError(problem, path=entry.path, expected=MOST_BYTES, found=entry.size)
    text = entry.read()
    try:
        document = parse_json(text)
        if b"\\u" in text:  # may be half of a surrogate pair
            json.dumps(document, ensure_ascii=False).encode()
        if not isinstance(document, dict):
            raise TypeError("not an object")  # noqa: TRY301
    except (ValueError, TypeError) as error:
        problem, found = "invalid zarr metadata", str(error)
        raise CorruptFileError(problem, path=entry.path, found=found) from error
    return document


def _beside(folder: StoreFolder, name: str) -> dict[str, Any]:
    """Read another document of format 2; empty if it does not exist."""
    entry = folder.entry(name)
    return _parsed(entry) if entry else {}


def _group(known: Mapping[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    """Convert a group of format 2, with the arrays that it lists, to format 3."""
    attributes = attributes or dict(known.get(ATTRIBUTES, {}))
    ome = {key: attributes[key] for key in KEYS if key in attributes}
    if ome:  # location in OME-Zarr before version 0.5
        attributes = {**attributes, "ome": ome}
    sizes = {
        key.removesuffix("/" + ARRAY): {**one, "node_type": "array"}
        for key, one in known.items()
        if key.endswith("/" + ARRAY)
    }
    listed = {"consolidated_metadata": {"metadata": sizes}} if sizes else {}
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes, **listed}


def _array(document: Mapping[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    """Add dimension names and codecs of format 3 to an array of format 2."""
    if document["zarr_format"] != 2:
        raise ValueError(f"zarr_format {document['zarr_format']}")
    if document["order"] not in ("C", "F"):
        raise ValueError(f"order {document['order']!r}")
    names, shape, fill = attributes.pop(DIMENSIONS, None), document["shape"], document["fill_value"]
    fits = isinstance(names, list) and [*map(type, names)] == [str] * len(shape)
    told, ndim = document["dtype"], len(document["chunks"])
    dtype = np.dtype(told) if isinstance(told, str) else np.dtype("V")
    last = [document["compressor"]] if document["compressor"] is not None else []
    codecs = [*map(of_numcodecs, (*(document.get("filters") or ()), *last))]
    if document["order"] == "F" and ndim > 1:
        order = [*range(ndim)][::-1]
        codecs.insert(0, {"name": "transpose", "configuration": {"order": order}})
    filters = [codec for codec in codecs if codec["name"] in ARRAY_CODECS]
    serializer: dict[str, Any] = {"name": "bytes"}
    if dtype.name in NUMBERS:
        stored = Pipeline([*filters, serializer], (1,) * ndim, dtype).arrays[-1].dtype
        little = stored == stored.newbyteorder("<")
        serializer["configuration"] = {"endian": "little" if little else "big"}
    codecs.insert(len(filters), serializer)
    parts = dtype.kind == "c" and isinstance(fill, (int, float))  # zarr writes both forms
    return {
        **document,
        "node_type": "array",
        "data_type": dtype.name if dtype.name in NUMBERS else str(told),
        "fill_value": [fill, 0] if parts else fill,
        "codecs": codecs,
        "dimension_names": names if fits else None,
        "attributes": attributes,
    }


def opened(entry: FolderEntry, document: Mapping[str, Any]) -> Any:
    """Open an array from its document with zarr, without codecs.

    Returns
    -------
    zarr.Array
        An array without pixels.

    Raises
    ------
    DatasetError
        The data type is not supported.
    CorruptFileError
        zarr cannot read the document, or sizes are too large.
    """
    import zarr
    from zarr.buffer import default_buffer_prototype

    kind = document.get("data_type", "uint8")
    if not isinstance(kind, str) or kind not in NUMBERS:
        raise DatasetError("unsupported data type", path=entry.path, found=str(kind))
    with Guard(entry.path, "zarr cannot read the document of an array"):
        if document["zarr_format"] == 2:
            plain = {ARRAY: {**document, "filters": None, "compressor": None}}
            plain[ATTRIBUTES] = document["attributes"]
        else:
            plain = {DOCUMENT: _with_usual_codecs(document)}
        buffer = default_buffer_prototype().buffer
        contents = {n: buffer.from_bytes(json.dumps(d).encode()) for n, d in plain.items()}
        store = zarr.storage.MemoryStore(contents)
        array = zarr.open_array(store, mode="r", zarr_format=document["zarr_format"])
        array.chunks, array.shards, dict(array.attrs)
    for name in ("shape", "chunks", "shards"):
        sizes = getattr(array, name) or (1,)
        if not (name != "shape") <= math.prod(sizes) < MOST_PIXELS:
            expected = f"sizes above 0, and fewer than {MOST_PIXELS} pixels"
            problem = f"invalid {name}" if name != "shape" else "the array is too large"
            raise CorruptFileError(problem, path=entry.path, expected=expected, found=sizes)
    return array


def _with_usual_codecs(document: Mapping[str, Any]) -> dict[str, Any]:
    grid = document["chunk_grid"]["configuration"]
    if any(type(n) is not int or n < 1 for n in grid.get("chunk_shape", ())):
        raise ValueError(f"chunks of shape {grid['chunk_shape']}")  # some zarr versions accept it
    codecs = named(document["codecs"])
    usual = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if [codec["name"] for codec in codecs] == ["sharding_indexed"]:
        shards = {"chunk_shape": codecs[0]["configuration"]["chunk_shape"], "codecs": usual}
        usual = [{"name": "sharding_indexed", "configuration": shards}]
    return {**document, "codecs": usual}
