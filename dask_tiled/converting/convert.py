"""Conversion to files of other formats, chosen by the suffix."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import dask.array as da
from dask import config

from dask_tiled.blocks.alignment import aligned
from dask_tiled.blocks.iteration import iter_blocks
from dask_tiled.converting.flat_files import write_npy
from dask_tiled.converting.hyperspy_files import write_hspy, write_zspy
from dask_tiled.converting.tiff_files import in_order, write_ome_tiff, write_tiff
from dask_tiled.errors import DatasetError, VerificationError, nearest
from dask_tiled.export.zarr.results import arrays_of
from dask_tiled.export.zarr.steps import check_blocks
from dask_tiled.export.zarr.verification import compare_pixels, verify_zarr
from dask_tiled.export.zarr.zarr_export import to_zarr
from dask_tiled.files.file import HDF5, read_head
from dask_tiled.graphs.schedulers import threads_of
from dask_tiled.opened.inputs import arrays_by_name, is_xarray
from dask_tiled.opened.tiled_array import TiledArray, read_once
from dask_tiled.opening.arrays import open_dataset, opened
from dask_tiled.storing.disk import unwritable
from dask_tiled.storing.folders import local_path
from dask_tiled.storing.new_files import check_place, file_path, new_file
from dask_tiled.storing.nodes import below, files
from dask_tiled.system.files import FULL
from dask_tiled.tiles.standard import maps_of
from dask_tiled.tiling import machine


def _unchanged(arr: da.Array) -> da.Array:
    return arr


class TargetKind(NamedTuple):
    """A type of target file."""

    write: Callable[..., None]
    """``write(arr, path, at, show=..., **options)`` fills the empty file ``at``; errors name
    ``path``."""
    heads: tuple[bytes, ...]
    """Magic numbers; files that begin differently are never replaced."""
    format: str
    """Format that reads the files; empty for zip files, which zarr reads."""
    options: tuple[str, ...] = ()
    in_order: Callable[[da.Array], da.Array] = _unchanged
    """Moves the axes of an array to the order in which files have them."""

    def is_kind(self, path: str) -> bool:
        """Return whether a file begins with a magic number of this type."""
        return read_head(path, 8).startswith(self.heads)


def _write_zip(arr: da.Array, path: str, at: str, *, show: bool | None, **options: Any) -> None:
    from zarr.storage import ZipStore

    try:
        # On interruption, wait for running tasks: they would create the file again.
        with (
            ZipStore(at, mode="w") as store,
            ThreadPoolExecutor(config.get("num_workers", machine.processors())) as pool,
            threads_of(pool),
        ):
            to_zarr(arr, store, progress=show, **options)
    except OSError as error:
        if error.errno in FULL:
            raise unwritable(path, error) from error
        raise


ZIP, TIFF = (b"PK",), (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
OF_ZARR = (
    "chunks", "shards", "compressors", "layout", "dimension_names", "attributes", "pyramid",
    "pyramid_method", "zarr_format", "with_results", "maps", "maps_disk",
)  # fmt: skip
STORED = ("chunks", "compressors")
ZARR = ".zarr"
OF_SEVERAL = ZARR, ".zarr.zip"
"""Suffixes of formats that hold several arrays."""
KINDS = {
    ".zarr.zip": TargetKind(_write_zip, ZIP, "", OF_ZARR),
    ".hspy": TargetKind(write_hspy, (HDF5,), "hdf5", STORED),
    ".zspy": TargetKind(write_zspy, ZIP, "", STORED),
    ".npy": TargetKind(write_npy, (b"\x93NUMPY",), "npy"),
    ".ome.tif": TargetKind(write_ome_tiff, TIFF, "ome_tiff"),
    ".ome.tiff": TargetKind(write_ome_tiff, TIFF, "ome_tiff"),
    ".tif": TargetKind(write_tiff, TIFF, "tiff", in_order=in_order),
    ".tiff": TargetKind(write_tiff, TIFF, "tiff", in_order=in_order),
}
"""Types by suffix; longer suffixes come first."""


def convert(
    data: Any,
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    verify: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> None:
    """Write an array to a file in the format of its suffix, in bounded memory.

    ===========================  =====================================================  ========
    suffix                       format                                                 extra
    ===========================  =====================================================  ========
    ``.zarr``                    zarr, by :func:`to_zarr`
    ``.zarr.zip``                zarr in one zip file
    ``.hspy``                    HDF5 of HyperSpy                                       ``hdf5``
    ``.zspy``                    zarr of HyperSpy, in one zip file
    ``.npy``                     NumPy
    ``.tif``, ``.tiff``          TIFF, with axes for ImageJ if it can read the file     ``tiff``
    ``.ome.tif``, ``.ome.tiff``  OME-TIFF                                               ``tiff``
    ===========================  =====================================================  ========

    Parameters
    ----------
    data : dask.array.Array, numpy.ndarray, xarray object, path-like or sequence of path-like
        An opened array, or one computed from it; or files for :func:`open_dataset`. Or several
        arrays for zarr: a mapping, such as :func:`open_datasets` returns, or a Dataset of xarray.
    target : path-like
        Path of the file. It is written below ``target + ".part"``, and moved to ``target`` when it
        is complete.
    overwrite : bool
        Replace a file of the same format, or a zarr array or group. Nothing else is ever
        replaced.
    verify : bool
        Read the file back, and compare it bit by bit.
    progress : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.
    **options
        For zarr, the options of :func:`to_zarr`, and ``maps``: results computed in the same pass
        and stored beside the array: the short names of :func:`tiles.standard`, such as
        ``"bf,adf,com"``. The disk is found unless given as ``maps_disk``: (y, x, radius), as for
        :func:`tiles.disk`. For HyperSpy's files, ``chunks`` and ``compressors``; other formats have
        no options.

    Raises
    ------
    DatasetError
        The suffix is unknown, the format does not have an option or cannot hold the array,
        the path exists and may not be replaced, or cannot be written. No file is left.
    VerificationError
        The file differs from the array.

    Examples
    --------
    >>> import dask_tiled
    >>> import numpy as np
    >>> from dask_tiled.testing import write_mib
    >>> path = write_mib("scan.mib", np.ones((24, 32, 64, 64), "uint16"))
    >>> dask_tiled.convert(path, "scan.npy", verify=True)
    >>> np.load("scan.npy", mmap_mode="r").shape
    (24, 32, 64, 64)
    """
    suffix = suffix_of(target)
    check_options(target, options)
    maps, maps_disk = options.pop("maps", ()), options.pop("maps_disk", None)
    if suffix != ZARR:
        kind, path = KINDS[suffix], file_path(target)
        check_place(path, kind.is_kind, overwrite=overwrite)
    several = arrays_by_name(data)
    arr: Any = opened(data) if several is None else several
    if several is not None:
        check_several(target, maps=maps, maps_disk=maps_disk)
    elif maps or maps_disk is not None:
        made = maps_of(arr, maps or (), maps_disk, "maps_disk")
        options["with_results"] = made | arrays_of(options.get("with_results"))
    if suffix == ZARR:
        to_zarr(_to_store(data, arr), target, overwrite=overwrite, progress=progress, **options)
        if options.get("follow") and isinstance(arr, TiledArray):
            arr = arr.refresh()
    else:
        arr = _native(arr) if several is None else several
        shown = _to_store(data, arr) if suffix in OF_SEVERAL else kind.in_order(arr)
        with new_file(path, kind.is_kind, overwrite=overwrite) as written:
            kind.write(shown, path, written, show=progress, **options)
    if verify:
        verify_file(target, arr, progress=progress)


def _to_store(data: Any, arr: Any) -> Any:
    """Return what zarr stores of the data: also the attributes of xarray objects."""
    return data if is_xarray(data) else arr


def _native(arr: da.Array) -> da.Array:
    """Return an array that can be written, in native byte order."""
    check_blocks(arr)
    return arr if arr.dtype.isnative else arr.astype(arr.dtype.newbyteorder("="))


def check_several(target: Any, **options: Any) -> None:
    """Refuse targets that hold one array, and options that apply to one."""
    if suffix_of(target) not in OF_SEVERAL:
        problem, expected = "the format holds one array", " or ".join(OF_SEVERAL)
        hint = "Convert the arrays one by one."
        path = os.fspath(target)
        raise DatasetError(problem, path=path, expected=expected, found="several", hint=hint)
    for name, value in options.items():
        if value:
            raise DatasetError(f"{name}= applies to one array", found="several arrays")


def suffix_of(target: Any) -> str:
    """Return the suffix of a target; refuse unknown ones."""
    if not isinstance(target, str | os.PathLike):
        raise DatasetError("invalid path", expected="the path of a file", found=repr(target))
    known, suffix = (ZARR, *KINDS), _known_suffix(target)
    if suffix is None:
        found = os.path.splitext(os.fspath(target).rstrip("/"))[1]
        raise DatasetError(
            "unknown suffix" if found else "the name has no suffix",
            path=os.fspath(target),
            expected=f"one of {', '.join(known)}",
            found=found or None,
            hint=nearest(found, known),
        )
    return suffix


def is_known(target: str | os.PathLike[str]) -> bool:
    """Return whether a target has the suffix of a format."""
    return _known_suffix(target) is not None


def _known_suffix(target: str | os.PathLike[str]) -> str | None:
    name = os.path.basename(os.fspath(target).rstrip("/")).lower()
    return next((one for one in (*KINDS, ZARR) if name.endswith(one)), None)


def check_options(target: Any, options: Iterable[str]) -> None:
    """Refuse options that the format of a target does not have."""
    suffix = suffix_of(target)
    if suffix == ZARR:
        return
    known = KINDS[suffix].options
    for name in options:
        if name not in known:
            raise DatasetError(
                f"files with the suffix {suffix} do not support {name}=",
                path=os.fspath(target),
                expected=" or ".join(f"{one}=" for one in known) or "no options",
            )


def stored_bytes(target: str) -> int:
    """Return the size in bytes of a file, or of all arrays of an export to zarr."""
    path = local_path(target)
    if path is None:
        import zarr

        node = zarr.open(target, mode="r")
        nodes = [node] if isinstance(node, zarr.Array) else [x for _, x in node.members(None)]
        return sum(int(x.nbytes_stored()) for x in nodes if isinstance(x, zarr.Array))
    listed = [path] if os.path.isfile(path) else [below(path, key) for key in files(path)]
    return sum(map(os.path.getsize, listed))


def verify_file(target: Any, arr: Any, *, progress: bool | None = None) -> None:
    """Compare a file that :func:`convert` wrote, or a zarr store, with its source or sources."""
    suffix = _known_suffix(target)
    if suffix is None or suffix == ZARR:
        verify_zarr(target, arr, progress=progress)
        return
    kind, path = KINDS[suffix], file_path(target)
    if kind.format:
        _compare(kind.in_order(arr), open_dataset(path, kind.format), path)
        return
    import zarr

    with zarr.storage.ZipStore(path, mode="r") as store:
        if suffix == ".zspy":
            ((_, signal),) = zarr.open_group(store, mode="r", path="Experiments").groups()
            _compare(arr, da.from_zarr(signal["data"]), path)
        else:
            verify_zarr(store, arr, progress=progress)


def _compare(arr: da.Array, stored: da.Array, path: str) -> None:
    if (stored.size, stored.dtype) != (arr.size, arr.dtype):
        raise VerificationError(
            "the stored array differs in shape or dtype",
            path=path,
            expected=f"{arr.dtype} of shape {arr.shape}",
            found=f"{stored.dtype} of shape {stored.shape}",
        )
    blocks = aligned(arr, (1,) * arr.ndim)
    shown = read_once(stored.reshape(arr.shape).rechunk(blocks.chunks))
    for expected, found in zip(iter_blocks(blocks), iter_blocks(shown), strict=True):
        corner = [part.start for part in found.where]
        compare_pixels(expected.pixels, found.pixels, corner, path)
