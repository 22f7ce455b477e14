"""Sparse frames of LiberTEM: a compressed-sparse-row matrix in three raw files.

Rows are frames and columns pixels, both in C order. A TOML file names the files and their dtypes.
Layout after LiberTEM's documentation of its ``raw_csr`` data set.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import numpy as np

from dask_tiled.files.paths import in_folder
from dask_tiled.formats import tools
from dask_tiled.formats.tools.byte_order import in_order
from dask_tiled.formats.tools.events import event_layout
from dask_tiled.formats.tools.files import named_file
from dask_tiled.formats.tools.header import Order
from dask_tiled.model.blocks import Fetch
from dask_tiled.model.doubts import Doubt
from dask_tiled.model.events import EventRun, EventTarget
from dask_tiled.model.indexing import Array, Index

MAX_TOML = 1 << 16
MOST_DOTS = 1000
"""Parsing a dotted key takes quadratic time."""
MAX_PIXELS = 1 << 31
PARTS = {"indptr": "iu", "indices": "iu", "data": "iufc"}
"""The files, and the allowed kinds of their dtypes."""


class CsrFile(NamedTuple):
    """A file that a TOML file names."""

    file: str
    dtype: np.dtype
    order: Order | None
    """Byte order that the dtype tells."""


def read_toml(path: str) -> tuple[tuple[int, ...], tuple[int, ...], list[CsrFile]]:
    """Read the scan shape, the frame shape, and the three files."""
    text = tools.read_head(path, MAX_TOML + 1)
    if len(text) > MAX_TOML:
        refuse(path, "the file", f"at most {MAX_TOML} bytes", "more")
    if text.count(b".") > MOST_DOTS:
        refuse(path, "the file", f"at most {MOST_DOTS} dots", text.count(b"."))
    try:
        content = tomllib.loads(text.decode("utf8"))
        repr(content)  # raises if an integer is too long to print
    except (ValueError, RecursionError) as error:
        raise tools.CorruptFileError("not a TOML file", path=path, found=str(error)) from error
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
        key = f"{part}_dtype"
        dtype = _dtype(path, key, files.get(key), kinds)
        order = next((one for one in get_args(Order) if files[key].startswith(one)), None)
        parts.append(CsrFile(name, dtype, order))
    return _shape(path, params, "nav_shape"), _shape(path, params, "sig_shape"), parts


def _table(path: str, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = content.get(name)
    if not isinstance(table, dict):
        refuse(path, f"[{name}]", "a table", table)
    return table


def _shape(path: str, params: Mapping[str, Any], name: str) -> tuple[int, ...]:
    shape = params.get(name)
    sizes = shape if isinstance(shape, list) and 1 <= len(shape) <= 8 else [0]
    if any(type(n) is not int or n < 1 for n in sizes) or math.prod(sizes) > MAX_PIXELS:
        refuse(path, f"params.{name}", "1 to 8 sizes, not too large", shape)
    return tuple(sizes)


def _dtype(path: str, name: str, given: Any, kinds: str) -> np.dtype:
    try:
        dtype = np.dtype(given if isinstance(given, str) else "V")
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype("V")
    if dtype.kind not in kinds or dtype.shape:
        refuse(path, name, f"a NumPy dtype of kind {kinds}", given)
    return dtype


def refuse(path: str, where: str, expected: str, found: Any) -> NoReturn:
    """Raise a CorruptFileError."""
    problem, found = "invalid value", str(found)
    raise tools.CorruptFileError(problem, path=path, where=where, expected=expected, found=found)


def add(
    run: EventRun, fetch: Fetch, target: EventTarget, *, indptr: str, indices: str, data: str
) -> None:
    """Add the values of frames, runs of row pointers, to their pixels."""
    _, columns_file, values_file = run.files
    columns_type, values_type = np.dtype(indices), np.dtype(data)
    least = min(
        columns_file.size // columns_type.itemsize, values_file.size // values_type.itemsize
    )
    for k, offset in enumerate(run.offsets.tolist()):
        pointers = fetch(run.file, offset, offset + int(run.sizes[k]))
        ends = np.frombuffer(pointers, indptr).astype(np.int64)
        first, last, counts = int(ends[0]), int(ends[-1]), np.diff(ends)
        if first < 0 or last > least or (counts < 0).any():
            run.refuse("invalid row pointers", offset, f"increasing to {least}", [first, last])
        if first == last:
            continue
        columns = _read(fetch, columns_file, columns_type, first, last).astype(np.int64)
        if (columns < 0).any() or (columns >= len(target.columns)).any():
            expected = f"0 to {len(target.columns) - 1}"
            where = f"byte {first * columns_type.itemsize}"
            refuse(columns_file.path, where, expected, columns.max())
        rows = np.repeat(target.rows(int(run.starts[k]), int(run.stops[k])), counts)
        columns = target.columns[columns]
        wanted = (rows >= 0) & (columns >= 0)
        values = _read(fetch, values_file, values_type, first, last)[wanted]
        places = rows[wanted] + columns[wanted]
        if not _fit(places, values, target.out.dtype):
            what, found = "more in a pixel than its type can hold", target.out.dtype
            hint = "Pass dtype=, a wider one."
            raise tools.DatasetError(what, path=run.file.path, found=found, hint=hint)
        with np.errstate(all="ignore"):  # values may be NaN
            np.add.at(target.out, places, values)


def _fit(places: Index, values: Array, dtype: np.dtype) -> bool:
    """Return whether values of one pixel add up to an integer that the dtype can hold.

    All values of a pixel are in one piece; those of 8 bytes are not checked.
    """
    if dtype.kind not in "iu" or dtype.itemsize == 8:
        return True
    ordered = np.sort(places)
    if (ordered[1:] != ordered[:-1]).all():
        return True
    found, pixels = np.unique(places, return_inverse=True)
    totals = np.zeros(len(found), np.int64)
    np.add.at(totals, pixels, values)
    limits = np.iinfo(dtype)
    return bool((totals >= limits.min).all() and (totals <= limits.max).all())


def _read(fetch: Fetch, file: tools.File, dtype: np.dtype, first: int, last: int) -> Array:
    return np.frombuffer(fetch(file, first * dtype.itemsize, last * dtype.itemsize), dtype)


MARK = re.compile(rb"""^[ \t]*filetype[ \t]*=[ \t]*["']raw_csr["']""", re.IGNORECASE | re.MULTILINE)
PIECE_BYTES = 1 << 19
"""Mean size of the values of a piece; larger if there would be too many pieces."""
MAX_PIECES = 1 << 16


def sniff(path: str, head: bytes) -> str | None:
    """Check for the file type in a TOML file."""
    return None if MARK.search(head) else "no line filetype = 'raw_csr'"


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    sig_shape: tuple[int, ...] | None = None,
    byte_order: Literal["little", "big"] | None = None,
) -> tools.Description:
    """Describe sparse frames, given their TOML file.

    Parameters
    ----------
    nav_shape, sig_shape : tuple of int, optional
        Shape of the scan and of a frame, by default from the TOML file.
    byte_order : {"little", "big"}, optional
        Byte order of the three files, by default that of their dtypes; little where these do not
        tell.
    """
    path = tools.File.only(paths, "raw_csr").path
    scan, frame, parts = read_toml(path)
    if sig_shape is not None and math.prod(sig_shape) == math.prod(frame):
        frame = sig_shape
    files, folder = [], os.path.dirname(path)
    for part, (name, _, _) in zip(PARTS, parts, strict=True):
        full = named_file(name, path, f"{part}_file")
        if full is None:
            problem, expected = "a file named in it is missing", in_folder(folder, name)
            raise tools.TruncatedFileError(
                problem, path=path, where=f"{part}_file", expected=expected, found="no such file"
            )
        files.append(tools.File.at(full))
    dtypes, doubts = _dtypes(path, parts, byte_order)
    pointers, *counts = (f.size // dtype.itemsize for f, dtype in zip(files, dtypes, strict=True))
    n_frames = pointers - 1
    ends = [_pointer(files[0], dtypes[0], k) for k in (0, max(0, n_frames))]
    if n_frames < 1 or not 0 <= ends[0] <= ends[1] <= counts[0] == counts[1]:
        raise tools.TruncatedFileError(
            "the files do not match, or end early",
            path=files[0].path,
            expected="2 row pointers or more, and a column number for each value",
            found=f"{pointers}, from {ends[0]} to {ends[1]}, for {counts[0]} column numbers "
            f"and {counts[1]} values",
        )
    stored = dtypes[2].newbyteorder("=")
    values = max(1, stored.itemsize * (ends[1] - ends[0]))
    frames = min(max(PIECE_BYTES * n_frames // values, -(-n_frames // MAX_PIECES), 1), n_frames)
    first = np.arange(0, n_frames, frames)
    size = np.minimum(frames, n_frames - first)
    width = dtypes[0].itemsize
    options = tuple((name, dtype.str) for name, dtype in zip(PARTS, dtypes, strict=True))
    decoder = tools.EventDecoder("dask_tiled.formats.raw_csr:add", stored, options)
    layout = event_layout(
        files,
        n_frames,
        frame,
        decoder,
        offset=first * width,
        nbytes=(size + 1) * width,
        start=first,
        stop=first + size,
    )
    metadata = {"raw_csr": {"nonzero": ends[1] - ends[0], **dict(options)}}
    desc = tools.Description.of("raw_csr", layout, metadata)
    desc = desc.with_doubts(*doubts)
    return desc.with_scan(scan, path) if nav_shape is None else desc


def _dtypes(
    path: str, parts: Sequence[CsrFile], byte_order: Any
) -> tuple[list[np.dtype], tuple[Doubt, ...]]:
    """Return the dtypes of the three files, and doubts about their byte order."""
    silent = "a dtype in the TOML file does not tell"
    found = [in_order(part.dtype, part.order, byte_order, path, silent) for part in parts]
    doubts = dict.fromkeys(doubt for _, doubts in found for doubt in doubts)
    return [dtype for dtype, _ in found], tuple(doubts)


def _pointer(file: tools.File, dtype: np.dtype, k: int) -> int:
    raw = tools.read_head(file.path, dtype.itemsize, k * dtype.itemsize)
    return int.from_bytes(raw, "big" if dtype.str[0] == ">" else "little", signed=dtype.kind == "i")


FORMAT = tools.Format(
    name="raw_csr",
    extensions=(".toml",),
    summary="sparse frames: compressed sparse rows in three raw files, named by a TOML file",
    nav_shape_from="the TOML file",
    sniff=sniff,
    describe=describe,
    peers=("LiberTEM",),
    aliases=("sparse",),
)
