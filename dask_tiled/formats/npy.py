"""numpy's own file format, versions 1 to 3, in C and Fortran order."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, check_whole
from dask_tiled.formats.format import Format
from dask_tiled.formats.tools.volumes import strides_of
from dask_tiled.model.decoders import plain
from dask_tiled.model.description import Description, nav_axes, sig_axes
from dask_tiled.model.files import File, read_head
from dask_tiled.model.indexing import Cut
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece
from dask_tiled.model.selection import Selection

MAGIC = b"\x93NUMPY"
MAX_HEADER = 1 << 16


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
    """Read the header of a file.

    Raises
    ------
    CorruptFileError
        It is not one.
    """
    start = read_head(path, 12)
    if not start.startswith(MAGIC) or len(start) < 12:
        raise CorruptFileError("not an npy file", path=path, where="byte 0", expected=MAGIC)
    version = start[6]
    sizes = {1: (8, 2), 2: (8, 4), 3: (8, 4)}
    if version not in sizes:
        raise CorruptFileError(
            "unknown version", path=path, where="byte 6", expected="1, 2 or 3", found=version
        )
    at, width = sizes[version]
    length = int.from_bytes(start[at : at + width], "little")
    if length > MAX_HEADER:
        raise CorruptFileError(
            "the header is too long",
            path=path,
            where=f"byte {at}",
            expected=f"at most {MAX_HEADER} bytes",
            found=length,
        )
    raw = read_head(path, length, at + width)
    try:
        text = raw.decode("utf8" if version == 3 else "latin1").strip()
        fields = ast.literal_eval(re.sub(r"(\d)L\b", r"\1", text))  # Python 2 wrote 2L on Windows
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
        shape, fortran = fields["shape"], fields["fortran_order"]
        well_formed = isinstance(shape, tuple) and all(
            type(n) is int and 0 <= n < 1 << 63 for n in shape
        )
        well_formed &= not dtype.shape
    except (ValueError, SyntaxError, TypeError, LookupError, RecursionError, MemoryError) as error:
        raise CorruptFileError(
            "the header cannot be read",
            path=path,
            where=f"byte {at + width}",
            found=str(error)[:200],
        ) from error
    if not well_formed or not isinstance(fortran, bool) or len(raw) < length:
        raise CorruptFileError(
            "the header is not well formed", path=path, where=f"byte {at + width}", found=text[:200]
        )
    return Header(dtype, fortran, shape, at + width + length)


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    sig_shape: tuple[int, ...] | None = None,
    sig_dims: int = 2,
) -> Description:
    """Describe an npy file.

    Parameters
    ----------
    paths : sequence of str
        One file.
    nav_shape, sig_shape : tuple of int, optional
        Other shapes for the same elements, read in C order; what is left over at the end is not
        shown.
    sig_dims : int
        How many of the last axes are signal axes.
    """
    file = File.only(paths, "npy")
    header = read_header(file.path)
    _check(file, header)
    metadata = {"npy": {"shape": header.shape, "fortran_order": header.fortran_order}}
    sig_dims = min(check_whole("sig_dims", sig_dims, least=0, path=file.path), len(header.shape))
    split = len(header.shape) - sig_dims
    nav, sig = header.shape[:split], header.shape[split:]
    fortran = header.fortran_order and len(header.shape) > 1
    if sig_shape is not None and sig_shape != sig and not fortran:
        frames = math.prod(header.shape) // math.prod(sig_shape)
        nav, sig = (frames,), sig_shape
        if not frames:
            raise TruncatedFileError(
                "the array is smaller than a frame",
                path=file.path,
                expected=f"{math.prod(sig_shape)} elements",
                found=f"{math.prod(header.shape)} elements",
            )
    decoder = plain(header.dtype)
    grid, frame = nav or (1,), sig or (1,)
    strides = strides_of(grid + frame, header.dtype.itemsize, "F" if fortran else "C")
    piece = Piece(0, (0,) * len(strides), grid + frame, header.offset, strides)
    cuts = tuple(Cut(0, 1, n) for n in nav + sig) + (() if sig else (Cut(0, 1, 1, kept=False),))
    shown = Selection(nav, math.prod(grid))
    layout = Layout([file], grid, frame, [piece], [decoder], shown, None if sig else cuts)
    axes = nav_axes(len(nav)) + sig_axes(len(sig))
    return Description("npy", layout, axes, len(nav), metadata)


def _check(file: File, header: Header) -> None:
    if header.dtype.hasobject:
        raise DatasetError(
            "arrays of Python objects are stored as pickles, which are never opened",
            path=file.path,
            where="the field descr",
            expected="a type of numbers",
            found=header.dtype,
        )
    needed = math.prod(header.shape) * header.dtype.itemsize
    if not needed:
        raise DatasetError("the array is empty", path=file.path, found=f"shape {header.shape}")
    if header.offset + needed > file.size:
        raise TruncatedFileError(
            "the array reaches beyond the file",
            path=file.path,
            where=f"byte {header.offset}",
            expected=f"{header.offset + needed} bytes",
            found=f"{file.size} bytes",
        )


FORMAT = Format(
    name="npy",
    extensions=(".npy",),
    summary="versions 1 to 3, C and Fortran order, any dtype but object",
    nav_shape_from="the header",
    sniff=sniff,
    describe=describe,
    peers=("numpy", "LiberTEM"),
)
