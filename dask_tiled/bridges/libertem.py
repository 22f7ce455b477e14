"""Open data sets with the parameters of LiberTEM."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import dask.array as da

from dask_tiled.errors import DatasetError, nearest
from dask_tiled.model.description import Description
from dask_tiled.opening.arrays import open_dataset
from dask_tiled.opening.describing import Path, describe

COMMON = {"nav_shape", "sig_shape", "sync_offset", "io_backend"}
RENAMED = {
    "scan_size": "nav_shape", "detector_size": "sig_shape", "ds_path": "dataset",
    "gain_map_path": "gain_map",
}  # fmt: skip
"""Names of LiberTEM, some of them deprecated, and the names of this package."""
OWN: Mapping[str, set[str]] = {
    "blo": {"endianess"},
    "dm": {"force_c_order", "scan_size"},
    "empad": {"scan_size"},
    "frms6": {"enable_offset_correction", "gain_map_path"},
    "hdf5": {"ds_path", "sig_dims"},
    "k2is": set(),
    "mib": {"disable_glob", "scan_size"},
    "mrc": set(),
    "npy": {"sig_dims"},
    "raw": {"detector_size", "dtype", "enable_direct", "scan_size"},
    "raw_csr": set(),
    "seq": {"scan_size"},
    "ser": set(),
    "tvips": set(),
}
"""File data sets of LiberTEM, with their specific parameters."""
CHUNKS = "Leave it out, or pass chunks= to open_dataset."
INSTEAD = {
    "num_partitions": CHUNKS,
    "min_num_partitions": CHUNKS,
    "target_size": CHUNKS,
    "tileshape": "Leave it out: tiles are chosen for each computation.",
    "same_offset": "Leave it out: the header of each file is read.",
    "dataset_index": "Pass dataset= to open_dataset, where thumbnails are not counted.",
    "emipath": "Leave it out: the .emi file next to the .ser file is used.",
    "dest_dtype": "Leave it out, and use astype.",
    "crop_detector_to": "Leave it out, and slice the array.",
    "detector_size_raw": "Pass it as sig_shape, and slice the array.",
}
"""Parameters without an equivalent, with advice."""
BACKENDS = {"MMapBackend": "mmap", "BufferedBackend": "buffered", "DirectBackend": "direct"}
OF_NO_SHAPE = {"raw", "raw_csr"}
"""Formats that store no frame shape, or accept no other one."""
EMPTY = {"memory", "dask"}


def from_libertem(
    filetype: str, path: Path | Sequence[Path] | None = None, **params: Any
) -> da.Array:
    """Open a data set with the parameters of LiberTEM's ``Context.load``.

    LiberTEM need not be installed.

    Parameters
    ----------
    filetype : str
        As in ``Context.load``: ``"mib"``, ``"raw"``, ``"auto"`` and so on.
    path : path-like or sequence of path-like
        The file; for ``"dm"``, also the ``files``.
    **params
        Parameters of the data set. ``scan_size`` and ``detector_size`` are older names of
        ``nav_shape`` and ``sig_shape``. If ``sig_shape`` differs from the file's, frames
        are reshaped. ``io_backend`` is a backend of LiberTEM. None is
        ignored. Dark frames of FRMS6 files are subtracted, as in LiberTEM,
        unless ``enable_offset_correction`` is False.

    Returns
    -------
    dask.array.Array
        Lazy, of shape ``nav_shape + sig_shape``, as from :func:`open_dataset`.

    Raises
    ------
    DatasetError
        A parameter is unknown or has no equivalent (the error names an alternative); or as for
        :func:`open_dataset`.

    Examples
    --------
    >>> from dask_tiled.testing import counting_frames, write_raw
    >>> path = write_raw("scan.raw", counting_frames((4, 6, 8, 8), "uint16"))
    >>> arr = from_libertem("raw", path="scan.raw", dtype="u2", scan_size=(4, 6), sig_shape=(8, 8))
    >>> arr.shape
    (4, 6, 8, 8)
    """
    if path is None:
        path = params.pop("files", None)
    if path is None:
        raise DatasetError("the path is missing", expected="path=", found="none")
    if filetype == "auto":
        filetype = describe(path).format
    elif filetype not in OWN:
        hint = nearest(str(filetype), OWN)
        if filetype in EMPTY:
            hint = "This data set does not read files: use the array itself."
        expected = ", ".join(["auto", *OWN])
        raise DatasetError(
            "unknown LiberTEM data set", expected=expected, found=filetype, hint=hint
        )
    given = {name: value for name, value in params.items() if value is not None}
    _check_names(filetype, given)
    options: dict[str, Any] = {"path": path}
    for name, value in given.items():
        ours = RENAMED.get(name, name)
        if ours != name and ours in given:
            raise DatasetError(f"{name} and {ours} are the same parameter", found=value)
        options[ours] = value
    _choose_backend(options)
    _translate(filetype, options)
    sig_shape = None if filetype in OF_NO_SHAPE else options.pop("sig_shape", None)
    arr = open_dataset(**options, format=filetype)
    if sig_shape is None:
        return arr
    return _with_frames(arr, describe(**options, format=filetype), tuple(sig_shape))


def _check_names(filetype: str, given: Mapping[str, Any]) -> None:
    known = COMMON | OWN.get(filetype, set())
    for name in given:
        if name in INSTEAD:
            problem = f"LiberTEM's {name} has no equivalent"
            raise DatasetError(problem, found=given[name], hint=INSTEAD[name])
        if name not in known:
            problem = f"LiberTEM's {filetype} has no parameter {name!r}"
            expected = ", ".join(sorted(known))
            raise DatasetError(problem, expected=expected, hint=nearest(name, known))


def _choose_backend(options: dict[str, Any]) -> None:
    backend = options.pop("io_backend", None)
    name = type(backend).__name__
    if backend is not None and name not in BACKENDS:
        expected, hint = ", ".join(BACKENDS), "Leave it out: the backend is chosen automatically."
        raise DatasetError("invalid io_backend", expected=expected, found=name, hint=hint)
    if backend is not None:
        options["io"] = BACKENDS[name]
    if options.pop("enable_direct", False):
        options["io"] = "direct"


def _translate(filetype: str, options: dict[str, Any]) -> None:
    """Translate other parameters of LiberTEM's formats."""
    if options.pop("disable_glob", False):
        options["series"] = False
    if options.pop("force_c_order", False):
        options["transposed"] = False
    if filetype == "hdf5":
        options.setdefault("sig_dims", 2)
    order = options.pop("endianess", "<")
    if order != "<":
        raise DatasetError("endianess of BLO files", expected="'<'", found=repr(order))
    if filetype == "k2is" and "sync_offset" in options:
        raise DatasetError(
            "LiberTEM counts sync_offset from the first frame of K2IS files",
            found=options["sync_offset"],
            hint="Pass it to open_dataset, counted from the first frame of the scan.",
        )
    if filetype == "tvips" and "sync_offset" in options:
        # Here, frames count from the start of the scan.
        facts = describe(options["path"], "tvips").metadata["tvips"]
        options["sync_offset"] -= facts.get("scan_start", 0)
    if filetype == "frms6":
        if options.pop("enable_offset_correction", True):
            options["corrections"] = "dataset"
        elif "gain_map" in options:
            raise DatasetError(
                "gain_map_path can only be applied with the dark frames",
                found="enable_offset_correction=False",
                hint="Pass corrections=Corrections(gain=...) to open_dataset.",
            )


def _with_frames(arr: da.Array, desc: Description, wanted: tuple[int, ...]) -> da.Array:
    """Reshape frames, as LiberTEM allows."""
    if math.prod(desc.sig_shape) != math.prod(wanted):
        raise DatasetError(
            "frames have a different number of pixels",
            path=desc.files[0].path,
            where="sig_shape",
            expected=desc.sig_shape,
            found=wanted,
        )
    return arr if desc.sig_shape == wanted else arr.reshape(desc.nav_shape + wanted)
