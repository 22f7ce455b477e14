"""The way in: what a path holds becomes an array."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy.typing as npt

from dask_tiled.array.building import build
from dask_tiled.array.doors import ARRAYS, as_array, is_array
from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.describing import Path, describe, is_settled, scheme_for, warn_of_missing
from dask_tiled.errors import (
    DatasetError,
    TilingError,
)
from dask_tiled.formats.describing import from_the_root
from dask_tiled.model.calibration import Calibrations
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.description import Description
from dask_tiled.model.growth import Sample
from dask_tiled.refreshing import Opening
from dask_tiled.remote.stores import Options
from dask_tiled.tiling.negotiation import TilingRequest
from dask_tiled.tiling.scheme import TilingScheme

OPENED = "an array from open_dataset, or a slice of one"


def open_dataset(
    path: Path | Sequence[Path],
    format: str | None = None,
    *,
    nav_shape: int | tuple[int, ...] | None = None,
    sig_shape: tuple[int, ...] | None = None,
    dtype: npt.DTypeLike | None = None,
    sync_offset: int = 0,
    roi: npt.ArrayLike | None = None,
    tiling: str | TilingRequest | Sequence[TilingRequest] | None = None,
    chunks: Any = None,
    io: str = "auto",
    corrections: Corrections | str | None = None,
    fill_value: Any = None,
    missing: str | None = None,
    axes: Calibrations | None = None,
    storage_options: Options = None,
    follow: bool = False,
    outside_folder: bool = False,
    **format_options: Any,
) -> da.Array:
    """Open a file, or a series of files, as a lazy array.

    Nothing but headers is read.

    Parameters
    ----------
    path : path-like or sequence of path-like
        A file, a list of files, or a pattern with ``*``: paths, or URLs as ``https://…``,
        ``s3://…`` and those that fsspec knows.
    format : str, optional
        Name of the format, one of :func:`formats`, or what else it is called, as ".mib" or
        "Merlin"; by default it is found out. What no format recognises is raw where ``dtype`` and
        ``sig_shape`` are given.
    nav_shape : tuple of int, optional
        Shape of the scan, (y, x); by default what the file says. If it holds fewer frames than the
        file, the first ones are taken; if it holds more, the others are missing. One size may be
        -1: as many as there are frames for.
    sig_shape : tuple of int, optional
        Shape of a frame, (y, x), for formats that do not say it themselves.
    dtype : dtype, optional
        Type of the array; by default that of the file. For formats that do not say in which type
        their pixels are stored, it is that type.
    sync_offset : int
        Skip so many frames at the start, or begin with so many missing ones if it is negative. The
        shape stays as it is.
    roi : boolean array or sequence of int, optional
        Which frames are shown, on one axis: a mask of the scan's shape, or places in it counted in
        C order, in any order. What is masked in a masked array is not selected.
    tiling : str, TilingRequest or sequence of them, optional
        What the consumers of the array wish, or just "frame", "tile", "chunk" or "pixel"; see
        :func:`negotiate`.
    chunks : optional
        Chunks as dask takes them, instead of negotiated ones.
    io : {"auto", "mmap", "buffered", "direct"}
        How bytes are fetched: mapped, read in blocks, or read past the page cache. "auto" reads in
        blocks, and maps only what nobody has changed for a minute; see :doc:`io`.
    corrections : Corrections or "dataset", optional
        Dark and gain reference, and pixels that do not work; "dataset" takes what came with the
        files. The array is float32 then, or float64 where that could not hold the counts.
    fill_value : scalar, optional
        Value of all pixels of missing frames; by default 0, or that of the export that is opened.
    missing : {"fill", "raise"}, optional
        Whether frames may be missing; :attr:`Description.missing` lists them. By default they may,
        with a warning. So may files of a series: :attr:`Description.doubts` tells where.
    axes : mapping of str, or sequence of Axis, optional
        What axes are, where the file does not say so. By the names of some: a quantity,
        ``"0.5 nm"`` or ``"0.02 1/nm"``; a tuple of scale, unit and offset; a scale alone; or an
        :class:`Axis`. Or an :class:`Axis` for each. They are those of the whole scan, before
        ``roi``. See :meth:`TiledArray.with_axes`, and :doc:`calibrate` on how to keep them.
    storage_options : mapping, obstore store or fsspec file system, optional
        How URLs are read: keywords of the store of obstore for ``http``, ``s3``, ``gs`` and ``az``,
        of the file system of fsspec for all others; or such a store or file system.
    follow : bool
        Files are still being written: what was there when they were opened may be read while they
        grow. A last frame that is half written is left out, frames that a header promises are
        missing until they come. :meth:`TiledArray.refresh` sees those that came since.
    outside_folder : bool
        Whether files that belong to what is opened, as their names say or as a header names them,
        may lie outside of its folder. By default they may not, and links count as what they lead
        to; only what is opened itself may be a link to anywhere.
    **format_options
        Options of the format; see :func:`formats`.

    Returns
    -------
    TiledArray
        A :class:`dask.array.Array` of shape ``nav_shape + sig_shape``, by default in the file's own
        dtype and native byte order: the raw counts of the detector.

    Raises
    ------
    FileNotFoundError
        Nothing has that path.
    UnknownFormatError
        No format recognises the file.
    CorruptFileError, TruncatedFileError
        The file contradicts itself, or lacks something that it promises.
    OutsideFolderError
        A file that belongs to it lies outside of its folder.
    DatasetError
        The arguments do not suit the file.
    PermissionError, RemoteError
        A server refuses a file, or does not give its bytes.

    Warns
    -----
    MissingFramesWarning
        Frames are missing, or files of a series may be, and nobody has said that they may.
    """
    describe_files: Callable[..., Description] = partial(
        describe,
        nav_shape=nav_shape,
        sig_shape=sig_shape,
        dtype=dtype,
        sync_offset=sync_offset,
        roi=roi,
        corrections=corrections,
        fill_value=fill_value,
        missing=missing,
        storage_options=storage_options,
        outside_folder=outside_folder,
        **format_options,
    )
    desc = describe_files(path, format=format, axes=axes, follow=follow)
    warn_of_missing(desc, nav_shape, missing, follow=follow)
    again = partial(describe_files, from_the_root(path), format=desc.format, follow=True)
    sample = Sample.of(desc.layout, desc.layout.n_frames - 1) if follow else None
    opening = Opening(again, chunks, sample, settled=is_settled(nav_shape))
    return tiled(desc, tiling, chunks, io, opening)


def opened(data: Any, **options: Any) -> da.Array:
    """Return what a user passes as a dask array: an array, an object of xarray, or files.

    Its axes, as :func:`shown_of` returns them, are those of the object of xarray.

    Raises
    ------
    DatasetError
        It is something else; it is an array, and there are options; or as for
        :func:`open_dataset` and :func:`as_array`.
    """
    if is_array(data):
        if options:
            problem = "the array is open already"
            raise DatasetError(problem, expected="no options", found=", ".join(options))
        return as_array(data)
    is_listed = isinstance(data, Iterable) and not isinstance(data, Mapping)
    if not is_listed and not isinstance(data, str | os.PathLike):
        problem, expected = "this is neither an array nor a path", f"{ARRAYS}, or a path"
        raise DatasetError(problem, expected=expected, found=type(data).__name__)
    return open_dataset(data, **options)


def scheme_of(arr: Any) -> TilingScheme:
    """Return the tiling scheme of an opened array, or of a slice of one.

    Parameters
    ----------
    arr : TiledArray, or DataArray of xarray that holds one

    Raises
    ------
    TilingError
        The array is not one that was opened, or has been computed with.
    """
    found = as_array(arr, expected=OPENED, error=TilingError)
    if not isinstance(found, TiledArray) or found.description is None:
        raise TilingError(
            "the array has no tiling scheme",
            expected=OPENED,
            found=type(arr).__name__,
            hint="dask_tiled.explain(arr) says how it is computed.",
        )
    return found.scheme


def tiled(
    desc: Description,
    tiling: str | TilingRequest | Sequence[TilingRequest] | None,
    chunks: Any,
    io: str,
    opening: Opening | None = None,
) -> da.Array:
    """Negotiate chunks for what is described, and make the array.

    Parameters and errors are those of :func:`open_dataset`.
    """
    return build(desc, scheme_for(desc, tiling, chunks, io), io, opening)
