"""The way in: a path becomes a description, and a description an array."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.backends import BACKENDS
from dask_tiled.description import Description
from dask_tiled.division import read_chunks
from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.formats import describe_as, expand
from dask_tiled.graph import build
from dask_tiled.tiling import TilingRequest, as_requests, negotiate

Path = str | os.PathLike[str]


def open_dataset(
    path: Path | Sequence[Path],
    format: str | None = None,
    *,
    nav_shape: tuple[int, ...] | None = None,
    sig_shape: tuple[int, ...] | None = None,
    tiling: TilingRequest | Sequence[TilingRequest] | None = None,
    chunks: Any = None,
    io: str = "auto",
    **format_options: Any,
) -> da.Array:
    """Open a file, or a series of files, as a lazy array.

    Nothing but headers is read.

    Parameters
    ----------
    path : path-like or sequence of path-like
        A file, a list of files, or a pattern with ``*``.
    format : str, optional
        Name of the format, one of :func:`formats`; by default it is found out.
    nav_shape : tuple of int, optional
        Shape of the scan, (y, x); by default what the file says. If it holds fewer frames than the
        file, the first ones are taken.
    sig_shape : tuple of int, optional
        Shape of a frame, (y, x), for formats that do not say it themselves.
    tiling : TilingRequest or sequence of them, optional
        What the consumers of the array wish; see :func:`negotiate`.
    chunks : optional
        Chunks as dask takes them, instead of negotiated ones.
    io : {"auto", "mmap"}
        How bytes are fetched.
    **format_options
        Options of the format; see :func:`formats`.

    Returns
    -------
    TiledArray
        A :class:`dask.array.Array` of shape ``nav_shape + sig_shape``, in the file's own dtype and
        native byte order: the raw counts of the detector.

    Raises
    ------
    FileNotFoundError
        Nothing has that path.
    UnknownFormatError
        No format recognises the file.
    CorruptFileError, TruncatedFileError
        The file contradicts itself, or lacks something that it promises.
    DatasetError
        The arguments do not suit the file.
    """
    desc = describe(path, format, nav_shape=nav_shape, sig_shape=sig_shape, **format_options)
    backend = _backend(io)
    if chunks is not None:
        chunks = read_chunks(chunks, desc.shape, desc.dtype)
    requests = as_requests(() if tiling is None else tiling)
    return build(desc, negotiate(desc, requests, chunks=chunks), backend, requests)


def describe(
    path: Path | Sequence[Path],
    format: str | None = None,
    *,
    nav_shape: tuple[int, ...] | None = None,
    sig_shape: tuple[int, ...] | None = None,
    **format_options: Any,
) -> Description:
    """Tell what a file, or a series of files, holds.

    Parameters and errors are those of :func:`open_dataset`.

    Returns
    -------
    Description
        It prints as text, and as a table in a notebook.
    """
    shapes = {
        "nav_shape": _shape("nav_shape", nav_shape),
        "sig_shape": _shape("sig_shape", sig_shape),
    }
    paths, listed = expand(path)
    return describe_as(format, paths, shapes, format_options, listed=listed)


def _shape(name: str, shape: Any) -> tuple[int, ...] | None:
    if shape is None:
        return None
    sizes = shape.tolist() if isinstance(shape, np.ndarray) else shape
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        sizes = (sizes,)
    return tuple(check_whole(f"every size in {name}", n, least=1) for n in sizes)


def _backend(io: str) -> str:
    if io == "auto":
        return "mmap"
    if not isinstance(io, str) or io not in BACKENDS:
        raise DatasetError("no such backend", expected=" or ".join(["auto", *BACKENDS]), found=io)
    return io
