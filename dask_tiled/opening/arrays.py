"""From a path to an array."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy.typing as npt

from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.files.paths import from_the_root
from dask_tiled.model.calibration import Calibrations
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.description import Description
from dask_tiled.model.growth import Sample
from dask_tiled.opened.building import build
from dask_tiled.opened.inputs import ARRAYS, as_array, is_array
from dask_tiled.opened.tiled_array import TiledArray, description_of
from dask_tiled.opening.describing import Path, describe, is_settled, scheme_for, warn_of
from dask_tiled.opening.refreshing import Reopening
from dask_tiled.remote.stores import Options
from dask_tiled.tiling.negotiation import TilingRequest
from dask_tiled.tiling.scheme import TilingScheme

OPENED = "an array from open_dataset, or a slice of one"


def open_dataset(
    path: Path | Sequence[Path],
    format: str | None = None,
    *,
    nav_shape: int | tuple[int, ...] | str | None = None,
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
    doubts: str = "warn",
    **format_options: Any,
) -> da.Array:
    """Open a file, or a series of files, as a lazy array.

    Only headers are read.

    Parameters
    ----------
    path : path-like or sequence of path-like
        A file, a list of files, or a pattern with ``*``: paths, or URLs such as ``https://…``,
        ``s3://…`` and others that fsspec reads.
    format : str, optional
        Name of the format, one of :func:`formats`, or another name for it, such as ".mib" or
        "Merlin"; by default it is detected. Unrecognised files are read as raw if ``dtype`` and
        ``sig_shape`` are given.
    nav_shape : tuple of int, optional
        Shape of the scan, (y, x); by default from the file. If it has fewer frames than the file,
        the first ones are used; if it has more, the rest are missing. One size may be -1: it is
        inferred from the number of frames. "auto" takes the shape that frame times, dark frames or
        the likeness of neighbouring lines suggest, with a doubt, if files have frames in a row; it
        raises if none is likely, or several, or if frames repeat or lines run to and fro.
    sig_shape : tuple of int, optional
        Shape of a frame, (y, x), for formats that do not store it.
    dtype : dtype, optional
        Type of the array; by default that of the file. For formats that do not store the dtype of
        their pixels, it is that dtype.
    sync_offset : int
        Skip this many frames at the start; if negative, begin with missing frames. The
        shape does not change.
    roi : array of bool or sequence of int, optional
        Frames to show, on one axis: a mask of the scan's shape, or positions in it counted in
        C order, in any order. Masked positions of a masked array are not selected.
    tiling : str, TilingRequest or sequence of them, optional
        Requests of the array's consumers, or simply "frame", "tile", "chunk" or "pixel"; see
        :func:`negotiate`.
    chunks : optional
        Chunks as in dask, instead of negotiated ones.
    io : {"auto", "mmap", "buffered", "direct"}
        How bytes are fetched: mapped, read in blocks, or read past the page cache. "auto" maps
        local files that are unchanged for a minute or leased, and reads all others in blocks; see
        :doc:`/developers/io`.
    corrections : Corrections or "dataset", optional
        Dark and gain reference, and bad pixels; "dataset" uses those that came with the
        files. The array is then float32, or float64 if float32 cannot hold the counts.
    fill_value : scalar, optional
        Value of the pixels of missing frames; by default 0, or the value in an export.
    missing : {"fill", "raise"}, optional
        Whether frames may be missing; :attr:`Description.missing` lists them. By default they may,
        with a warning, unless files or announced frames are lost: that raises. "fill" shows these
        as missing frames, too.
    axes : mapping of str, or sequence of Axis, optional
        Axes that the file does not describe. By name: a quantity,
        ``"0.5 nm"`` or ``"0.02 1/nm"``; a tuple of scale, unit and offset; a scale alone; or an
        :class:`Axis`. Or an :class:`Axis` for each axis. They apply to the whole scan, before
        ``roi``. See :meth:`TiledArray.with_axes`, and :doc:`/axes` on how to save them.
    storage_options : mapping, obstore store or fsspec file system, optional
        How URLs are read: keywords of obstore's store for ``http``, ``s3``, ``gs`` and ``az``,
        of fsspec's file system for all others; or such a store or file system.
    follow : bool
        Files are still being written: data that exist when they are opened can be read while they
        grow. An incomplete last frame is left out, frames that a header promises are
        missing until they are written. :meth:`TiledArray.refresh` adds new ones.
    outside_folder : bool
        Whether further files, found by their names or named in a header,
        may lie outside of the folder. By default they may not, and links are resolved;
        only the given path itself may be a link to anywhere.
    doubts : {"warn", "ignore", "raise"}
        What to do where the file leaves a choice open: warn of what was assumed and of the option
        that settles it, ignore it, or raise, also for missing frames. ``Description.doubts`` lists
        them; see :doc:`/doubts`.
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
        The path does not exist.
    UnknownFormatError
        No format recognises the file.
    CorruptFileError, TruncatedFileError
        The file contradicts itself, or is incomplete.
    OutsideFolderError
        A further file lies outside of the folder.
    StaleFileError
        A file was replaced meanwhile.
    DoubtError
        The file leaves a choice open, or lacks frames, and ``doubts`` is "raise".
    DatasetError
        The arguments do not fit the file.
    PermissionError, RemoteError
        A server refuses a file, or does not deliver its bytes.

    Warns
    -----
    MissingFramesWarning
        Frames are missing, and ``missing`` is not given.
    DoubtWarning
        The file leaves a choice open.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> arr
    dask.array<mib, shape=(60, 64, 128, 128), dtype=uint16, chunksize=(...), ...>
    >>> image = arr.sum(axis=(2, 3)).compute()
    >>> image.shape
    (60, 64)
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
    desc = describe_files(path, format=format, axes=axes, follow=follow, doubts=doubts)
    warn_of(desc, opened=path, missing=missing, doubts=doubts, follow=follow)
    grows = not desc.saved_scan  # a saved one has its size
    again = partial(describe_files, from_the_root(path), format=desc.format, follow=grows)
    sample = Sample.of(desc.layout, desc.layout.n_frames - 1) if follow else None
    opening = Reopening(again, chunks, sample, settled=is_settled(nav_shape))
    return tiled(desc, tiling, chunks, io, opening)


def opened(data: Any, **options: Any) -> da.Array:
    """Return a user's data as a dask array: an array, an xarray object, or files.

    The result's axes, from :func:`shown_of`, are those of the xarray object.

    Raises
    ------
    DatasetError
        The data are neither files nor an array; options are given with an array; or as for
        :func:`open_dataset` and :func:`as_array`.
    """
    if is_array(data):
        if options:
            problem = "the array is already open"
            raise DatasetError(problem, expected="no options", found=", ".join(options))
        return as_array(data)
    is_listed = isinstance(data, Iterable) and not isinstance(data, Mapping)
    if not is_listed and not isinstance(data, str | os.PathLike):
        problem, expected = "neither an array nor a path", f"{ARRAYS}, or a path"
        raise DatasetError(problem, expected=expected, found=type(data).__name__)
    return open_dataset(data, **options)


def opened_array(
    data: Any, problem: str, hint: str | None = None
) -> tuple[TiledArray, Description]:
    """Return an opened array, or a slice of one, and its description.

    Raise a DatasetError if the array was computed: no files hold its pixels; or as for
    :func:`opened`.
    """
    arr = opened(data)
    desc = description_of(arr)
    if not isinstance(arr, TiledArray) or desc is None:
        raise DatasetError(problem, expected=OPENED, found=type(arr).__name__, hint=hint)
    return arr, desc


def scheme_of(arr: Any) -> TilingScheme:
    """Return the tiling scheme of an opened array, or of a slice of one.

    Parameters
    ----------
    arr : TiledArray, or DataArray of xarray that holds one
        The opened array, or a slice of it.

    Returns
    -------
    TilingScheme
        The scheme: chunks, tiles, and a reason for each number.

    Raises
    ------
    TilingError
        The array is not an opened one, or is a result.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> scheme = dask_tiled.scheme_of(arr)
    >>> scheme.chunks == arr.chunks
    True
    """
    found = as_array(arr, expected=OPENED, error=TilingError)
    if not isinstance(found, TiledArray) or found.description is None:
        raise TilingError(
            "the array has no tiling scheme",
            expected=OPENED,
            found=type(arr).__name__,
            hint="Call dask_tiled.explain(arr) to see how it is computed.",
        )
    return found.scheme


def tiled(
    desc: Description,
    tiling: str | TilingRequest | Sequence[TilingRequest] | None,
    chunks: Any,
    io: str,
    opening: Reopening | None = None,
) -> da.Array:
    """Negotiate chunks for a description, and return the array.

    Parameters and errors are those of :func:`open_dataset`.
    """
    return build(desc, scheme_for(desc, tiling, chunks, io), io, opening)
