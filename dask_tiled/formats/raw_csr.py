"""Sparse frames as LiberTEM has them: a matrix of compressed sparse rows in three raw files.

Rows are frames and columns pixels, both in C order. A TOML file names the files and their types.
Layout after LiberTEM's documentation of its ``raw_csr`` data set.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.coded import Block, Fetch
from dask_tiled.decoders import BlockDecoder
from dask_tiled.description import Description
from dask_tiled.errors import DatasetError, TruncatedFileError
from dask_tiled.files import File, read_head
from dask_tiled.formats import Format
from dask_tiled.formats.raw_csr_toml import PARTS, read_toml, refuse
from dask_tiled.layout import Layout
from dask_tiled.pieces import piece_table

MARK = re.compile(rb"""^[ \t]*filetype[ \t]*=[ \t]*["']raw_csr["']""", re.IGNORECASE | re.MULTILINE)
BLOCK_BYTES = 1 << 22
"""So many bytes of pixels are made at a time: more, if there would be too many blocks."""
LARGE_BLOCK = 1 << 26
MAX_BLOCKS = 1 << 14


def sniff(path: str, head: bytes) -> str | None:
    """Look for the line of the TOML file that says so."""
    return None if MARK.search(head) else "no line says filetype = 'raw_csr'"


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    sig_shape: tuple[int, ...] | None = None,
) -> Description:
    """Describe sparse frames.

    Parameters
    ----------
    paths : sequence of str
        The TOML file.
    nav_shape, sig_shape : tuple of int, optional
        Shape of the scan and of a frame, by default what the TOML file says.
    """
    if len(paths) != 1:
        raise DatasetError("raw_csr opens one file at a time", path=paths[0], found=len(paths))
    path = os.path.abspath(paths[0])
    scan, frame, parts = read_toml(path)
    if sig_shape is not None and math.prod(sig_shape) == math.prod(frame):
        frame = sig_shape
    names = [os.path.join(os.path.dirname(path), name) for name, _ in parts]
    files = [File.at(name) for name in names]
    dtypes = [dtype for _, dtype in parts]
    pointers, *counts = (
        file.size // dtype.itemsize for file, dtype in zip(files, dtypes, strict=True)
    )
    n_frames = pointers - 1
    ends = [_pointer(files[0], dtypes[0], k) for k in (0, max(0, n_frames))]
    if n_frames < 1 or not 0 <= ends[0] <= ends[1] <= counts[0] == counts[1]:
        raise TruncatedFileError(
            "the files do not belong together, or end early",
            path=files[0].path,
            expected="2 row pointers or more, and a column number for each value",
            found=f"{pointers}, from {ends[0]} to {ends[1]}, for {counts[0]} column numbers "
            f"and {counts[1]} values",
        )
    stored = dtypes[2].newbyteorder("=")
    frames = _frames_of_block(n_frames, stored.itemsize * math.prod(frame))
    first = np.arange(0, n_frames, frames)
    size = np.minimum(frames, n_frames - first)
    start, shape = (np.zeros((len(first), 1 + len(frame)), np.int64) for _ in range(2))
    start[:, 0] = first
    shape[:] = (0, *frame)
    shape[:, 0] = size
    width = dtypes[0].itemsize
    table = piece_table(start, shape, first * width, 0 * start[0], nbytes=(size + 1) * width)
    options = tuple((name, dtype.str) for name, dtype in zip(PARTS, dtypes, strict=True))
    decoder = BlockDecoder(f"{__name__}:decode", stored, options)
    layout = Layout(files, (n_frames,), frame, table, [decoder])
    metadata = {"raw_csr": {"nonzero": ends[1] - ends[0], **dict(options)}}
    desc = Description.of("raw_csr", layout, metadata, base_shape=(frames, *frame))
    return desc.with_scan(scan, path) if nav_shape is None else desc


def _frames_of_block(n_frames: int, nbytes: int) -> int:
    fewest = min(-(-n_frames // MAX_BLOCKS), LARGE_BLOCK // nbytes)
    return min(max(BLOCK_BYTES // nbytes, fewest, 1), n_frames)


def decode(block: Block, fetch: Fetch, *, indptr: str, indices: str, data: str) -> npt.NDArray[Any]:
    """Make the frames of a block, which is a run of row pointers. Values of one pixel add up.

    Raises
    ------
    CorruptFileError
        Pointers or column numbers point to nothing.
    """
    _, columns_file, values_file = block.files
    rows = _read(fetch, block.file, indptr, block.offset, block.nbytes).astype(np.int64)
    pixels = math.prod(block.shape[1:])
    first, last = int(rows[0]), int(rows[-1])
    column_type, value_type = np.dtype(indices), np.dtype(data)
    stop = min(columns_file.size // column_type.itemsize, values_file.size // value_type.itemsize)
    counts = np.diff(rows)
    if first < 0 or last > stop or (counts < 0).any():
        refuse(block.file.path, f"byte {block.offset}", f"pointers rising to {stop}", [first, last])
    out = np.zeros(block.shape, value_type.newbyteorder("="))
    if first == last:
        return out
    width = column_type.itemsize
    columns = _read(fetch, columns_file, indices, first * width, (last - first) * width)
    if (columns < 0).any() or (columns >= pixels).any():
        refuse(columns_file.path, f"byte {first * width}", f"0 to {pixels - 1}", columns.max())
    places = np.repeat(np.arange(len(counts)) * pixels, counts) + columns.astype(np.int64)
    width = value_type.itemsize
    values = _read(fetch, values_file, data, first * width, (last - first) * width)
    flat = out.reshape(-1)
    if (np.diff(places) > 0).all():  # in order, so no pixel has two
        flat[places] = values
    else:
        np.add.at(flat, places, values)
    return out


def _read(fetch: Fetch, file: File, dtype: str, start: int, nbytes: int) -> npt.NDArray[Any]:
    return np.frombuffer(fetch(file, start, start + nbytes), np.dtype(dtype))


def _pointer(file: File, dtype: np.dtype, k: int) -> int:
    raw = read_head(file.path, dtype.itemsize, k * dtype.itemsize)
    return int.from_bytes(raw, "big" if dtype.str[0] == ">" else "little", signed=dtype.kind == "i")


FORMAT = Format(
    name="raw_csr",
    extensions=(".toml",),
    summary="sparse frames: compressed sparse rows in three raw files, named by a TOML file",
    nav_shape_from="the TOML file",
    sniff=sniff,
    describe=describe,
    peers=("LiberTEM",),
)
