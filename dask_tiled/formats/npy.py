"""numpy's own file format, versions 1 to 3, in C and Fortran order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.model.indexing import Cut
from dask_tiled.model.layout import Selection

MAGIC = b"\x93NUMPY"
MAX_HEADER = 1 << 16
PYTHON_2 = re.compile(rb"(\d)L(?=[,)])")
"""A length in a shape, as Python 2 wrote it on Windows: numpy warns of those that it reads."""


class Header(NamedTuple):
    """What the header says, and where the array begins."""

    dtype: np.dtype
    fortran_order: bool
    shape: tuple[int, ...]
    offset: int


def sniff(path: str, head: bytes) -> str | None:
    """Look for the magic bytes."""
    return None if head.startswith(MAGIC) else f"does not begin with {MAGIC!r}"


def read_header(path: str) -> Header:
    """Read the header of a file."""
    head = tools.read_head(path, MAX_HEADER)
    start = 10 if head[6:7] == b"\1" else 12
    head = head[: start + int.from_bytes(head[8:start], "little")]
    try:
        header = _parse(BytesIO(PYTHON_2.sub(rb"\1 ", head)))
    except Exception as error:  # anything can come of evaluating a text, if only as a literal
        raise tools.CorruptFileError(
            "the header cannot be read",
            path=path,
            where="byte 0",
            expected=f"version 1, 2 or 3, and at most {MAX_HEADER} bytes",
            found=repr(error)[:200],
        ) from error
    dtype, _, shape, _ = header
    whole = all(type(n) is int and 0 <= n < 1 << 63 for n in shape)
    if not whole or dtype.shape or not dtype.itemsize:
        found = f"{dtype} of shape {shape}"[:200]
        raise tools.CorruptFileError("the header is not well formed", path=path, found=found)
    return header


def _parse(stream: BytesIO) -> Header:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        parts = np.lib.format.read_array_header_1_0(stream, MAX_HEADER)
    elif version == (2, 0):
        parts = np.lib.format.read_array_header_2_0(stream, MAX_HEADER)
    elif version == (3, 0):  # version 2 in UTF-8, for which numpy has no public function
        length = int.from_bytes(stream.read(4), "little")
        text = stream.read(length).decode().encode("ascii", "backslashreplace")
        escaped = BytesIO(len(text).to_bytes(4, "little") + text)
        parts = np.lib.format.read_array_header_2_0(escaped, MAX_HEADER)
    else:
        raise ValueError(f"version {version}")
    shape, fortran_order, dtype = parts
    return Header(dtype, fortran_order, shape, stream.tell())


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    sig_shape: tuple[int, ...] | None = None,
    sig_dims: int = 2,
) -> tools.Description:
    """Describe one npy file.

    Parameters
    ----------
    nav_shape, sig_shape : tuple of int, optional
        Other shapes for the same elements, read in C order; what is left over at the end is not
        shown.
    sig_dims : int
        How many of the last axes are signal axes.
    """
    file = tools.File.only(paths, "npy")
    header = read_header(file.path)
    if header.dtype.hasobject:
        raise tools.DatasetError(
            "arrays of Python objects are stored as pickles, which are never opened",
            path=file.path,
            where="the field descr",
            expected="a type of numbers",
            found=header.dtype,
        )
    tools.check_bytes(file, header.shape or (1,), header.dtype, header.offset)
    metadata = {"npy": {"shape": header.shape, "fortran_order": header.fortran_order}}
    last = tools.check_whole("sig_dims", sig_dims, least=0, path=file.path)
    split = max(0, len(header.shape) - last)
    nav, sig = header.shape[:split], header.shape[split:]
    fortran = header.fortran_order and len(header.shape) > 1
    if sig_shape is not None and sig_shape != sig and not fortran:
        frames = math.prod(header.shape) // math.prod(sig_shape)
        nav, sig = (frames,), sig_shape
        if not frames:
            raise tools.TruncatedFileError(
                "the array is smaller than a frame",
                path=file.path,
                expected=f"{math.prod(sig_shape)} elements",
                found=f"{math.prod(header.shape)} elements",
            )
    decoder = tools.plain(header.dtype)
    grid, frame = nav or (1,), sig or (1,)
    strides = tools.strides_of(grid + frame, header.dtype.itemsize, "F" if fortran else "C")
    piece = tools.Piece(0, (0,) * len(strides), grid + frame, header.offset, strides)
    cuts = tuple(Cut(0, 1, n) for n in nav + sig) + (() if sig else (Cut(0, 1, 1, kept=False),))
    shown = Selection(nav, math.prod(grid))
    layout = tools.Layout([file], grid, frame, [piece], [decoder], shown, None if sig else cuts)
    axes = tools.nav_axes(len(nav)) + tools.sig_axes(len(sig))
    return tools.Description("npy", layout, axes, len(nav), metadata)


FORMAT = tools.Format(
    name="npy",
    extensions=(".npy",),
    summary="versions 1 to 3, C and Fortran order, any dtype but object",
    nav_shape_from="the header",
    sniff=sniff,
    describe=describe,
    peers=("numpy", "LiberTEM"),
)
