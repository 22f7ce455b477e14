"""Sparse frames as LiberTEM has them: a matrix of compressed sparse rows in three raw files.

Rows are frames and columns pixels, both in C order. A TOML file names the files and their types.
Layout after LiberTEM's documentation of its ``raw_csr`` data set.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence

import numpy as np

from dask_tiled.errors import TruncatedFileError
from dask_tiled.formats.format import Format
from dask_tiled.formats.raw_csr.toml import PARTS, read_toml
from dask_tiled.formats.tools.series import named_file
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.description import Description
from dask_tiled.model.files import File, read_head
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import axis_columns, piece_table

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
    outside_folder: bool = False,
) -> Description:
    """Describe sparse frames.

    Parameters
    ----------
    paths : sequence of str
        The TOML file.
    nav_shape, sig_shape : tuple of int, optional
        Shape of the scan and of a frame, by default what the TOML file says.
    outside_folder : bool
        Whether the TOML file may name files outside of its folder.
    """
    path = File.only(paths, "raw_csr").path
    scan, frame, parts = read_toml(path)
    if sig_shape is not None and math.prod(sig_shape) == math.prod(frame):
        frame = sig_shape
    files = [
        File.at(
            named_file(name, path, f"{part}_file", outside=outside_folder)
            or os.path.join(os.path.dirname(path), name)
        )
        for part, (name, _) in zip(PARTS, parts, strict=True)
    ]
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
    start, shape = axis_columns(first, (0,) * len(frame)), axis_columns(size, frame)
    width = dtypes[0].itemsize
    table = piece_table(start, shape, first * width, 0 * start[0], nbytes=(size + 1) * width)
    options = tuple((name, dtype.str) for name, dtype in zip(PARTS, dtypes, strict=True))
    decoder = BlockDecoder("dask_tiled.formats.raw_csr.decode:decode", stored, options)
    layout = Layout(files, (n_frames,), frame, table, [decoder])
    metadata = {"raw_csr": {"nonzero": ends[1] - ends[0], **dict(options)}}
    desc = Description.of("raw_csr", layout, metadata, base_shape=(frames, *frame))
    return desc.with_scan(scan, path) if nav_shape is None else desc


def _frames_of_block(n_frames: int, nbytes: int) -> int:
    fewest = min(-(-n_frames // MAX_BLOCKS), LARGE_BLOCK // nbytes)
    return min(max(BLOCK_BYTES // nbytes, fewest, 1), n_frames)


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
