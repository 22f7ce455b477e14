"""Volumes as they lie in files of imaging: one array, x fastest, which C order shows reversed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.formats.tools.compression import compressed_layout, is_compressed
from dask_tiled.model.decoders import Decoder, plain
from dask_tiled.model.description import Axis, Description
from dask_tiled.model.files import File, read_head
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece


def describe_volume(
    format: str,
    file: File,
    shape: tuple[int, ...],
    dtype: np.dtype,
    offset: int,
    axes: tuple[Axis, ...],
    facts: Mapping[str, Any],
    *,
    sig_dims: int = 2,
    decoder: Decoder | None = None,
    scaling: tuple[float, float] | None = None,
) -> Description:
    """Describe an array in C order, in a file that may be compressed as a whole.

    Parameters
    ----------
    format : str
    file : File
    shape : tuple of int
    dtype : numpy.dtype
        Type in the file, of either byte order.
    offset : int
        Byte of the file, decompressed, that the array begins at.
    axes : tuple of Axis
    facts : mapping
        Metadata of the format.
    sig_dims : int
        How many of the last axes are signal axes.
    decoder : Decoder, optional
        Of pixels that are not stored as numpy would; such a file must not be compressed.
    scaling : tuple of float, optional
        Gain and offset, if pixels are to be scaled.

    Raises
    ------
    DatasetError
        The array has no elements.
    TruncatedFileError
        It reaches beyond the file.
    """
    nav, sig = shape[:-sig_dims], shape[-sig_dims:]
    base: tuple[int, ...] = ()
    if is_compressed(read_head(file.path, 8)):
        check_shape(file, shape)
        grid = nav or (1,)
        base, layout = grid + sig, compressed_layout(file, grid, sig, dtype, offset).show(nav)
    else:
        layout = volume_layout(file, nav, sig, dtype, offset, decoder)
    return Description.of(format, layout, {format: facts}, axes, base_shape=base, scaling=scaling)


def volume_layout(
    file: File,
    nav: tuple[int, ...],
    sig: tuple[int, ...],
    dtype: np.dtype,
    offset: int = 0,
    decoder: Decoder | None = None,
) -> Layout:
    """Lay out an array in C order: one piece, shown in the shape ``nav + sig``.

    Parameters
    ----------
    decoder : Decoder, optional
        Of pixels that are not stored as numpy would.

    Raises
    ------
    TruncatedFileError
        It reaches beyond the file.
    """
    check_bytes(file, nav + sig, dtype, offset)
    shape = (nav or (1,)) + sig
    piece = Piece(0, (0,) * len(shape), shape, offset, strides_of(shape, dtype.itemsize))
    return Layout([file], nav or (1,), sig, [piece], [decoder or plain(dtype)]).show(nav)


def strides_of(
    shape: Sequence[int], nbytes: int, order: Literal["C", "F"] = "C"
) -> tuple[int, ...]:
    """Give the bytes from one element to the next along each axis of an array without gaps.

    Parameters
    ----------
    shape : sequence of int
    nbytes : int
        Bytes of an element.
    order : {"C", "F"}
        Whether the last axis or the first one has the smallest stride.
    """
    sizes = shape if order == "C" else shape[::-1]
    strides = tuple(nbytes * math.prod(sizes[k + 1 :]) for k in range(len(sizes)))
    return strides if order == "C" else strides[::-1]


def axis_names(ndim: int) -> tuple[str, ...]:
    """Name the axes of a volume in C order: (t, z, y, x)."""
    names = ("xyztuvw"[n : n + 1] or f"axis_{n + 1}" for n in range(ndim))
    return tuple(names)[::-1]


def check_bytes(
    file: File, shape: tuple[int, ...], dtype: np.dtype, offset: int = 0, *, exact: bool = False
) -> None:
    """Make sure that an array has elements, and lies within its file; or ends it, if `exact`.

    Raises
    ------
    DatasetError
        It has none.
    TruncatedFileError
        The file is too short.
    CorruptFileError
        It is too long: the header has lost something.
    """
    check_shape(file, shape)
    end = offset + math.prod(shape) * dtype.itemsize
    if offset < 0 or end > file.size:
        raise TruncatedFileError(
            "the volume reaches beyond the file",
            path=file.path,
            where=f"byte {offset}",
            expected=f"{end} bytes, for a {dtype} array of shape {shape}",
            found=f"{file.size} bytes",
        )
    if exact and end < file.size:
        raise CorruptFileError(
            "the file of the pixels is longer than the header says",
            path=file.path,
            expected=f"{end} bytes, for a {dtype} array of shape {shape}",
            found=f"{file.size} bytes",
        )


def check_shape(file: File, shape: tuple[int, ...]) -> None:
    """Make sure that an array has elements."""
    if min(shape, default=0) < 1:
        raise DatasetError("the volume is empty", path=file.path, found=f"shape {shape}")
