"""Volumes as they lie in files of imaging: one array, x fastest, which C order shows reversed."""

from __future__ import annotations

import math

import numpy as np

from dask_tiled.errors import DatasetError, TruncatedFileError
from dask_tiled.model.decoders import plain
from dask_tiled.model.files import File
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece


def volume_layout(
    file: File, nav: tuple[int, ...], sig: tuple[int, ...], dtype: np.dtype, offset: int = 0
) -> Layout:
    """Lay out an array in C order: one piece, shown in the shape ``nav + sig``.

    Raises
    ------
    TruncatedFileError
        It reaches beyond the file.
    """
    check_bytes(file, nav + sig, dtype, offset)
    shape = (nav or (1,)) + sig
    strides = tuple(dtype.itemsize * math.prod(shape[k + 1 :]) for k in range(len(shape)))
    piece = Piece(0, (0,) * len(shape), shape, offset, strides)
    return Layout([file], nav or (1,), sig, [piece], [plain(dtype)]).show(nav)


def check_bytes(file: File, shape: tuple[int, ...], dtype: np.dtype, offset: int = 0) -> None:
    """Make sure that an array has elements, and lies within its file.

    Raises
    ------
    DatasetError
        It has none.
    TruncatedFileError
        It does not.
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


def check_shape(file: File, shape: tuple[int, ...]) -> None:
    """Make sure that an array has elements."""
    if min(shape, default=0) < 1:
        raise DatasetError("the volume is empty", path=file.path, found=f"shape {shape}")
