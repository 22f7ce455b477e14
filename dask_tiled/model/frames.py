"""Which frames of the files an array shows, and where: what users ask for, as numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError, TruncatedFileError, check_whole
from dask_tiled.model.description import Description
from dask_tiled.model.selection import Index

LARGEST = (1 << 63) - 1
"""Bytes that can be counted."""
MOST_NAMED = 5
"""So many missing files are named in an error."""


def select_frames(
    desc: Description,
    nav_shape: tuple[int, ...] | None,
    sync_offset: Any,
    roi: Any,
    missing: Any,
) -> Description:
    """Show the frames that a user asks for.

    Parameters
    ----------
    desc : Description
        All frames of the files, in the shape that they say.
    nav_shape : tuple of int or None
        Another shape.
    sync_offset : int
        So many frames are skipped at the start, or missing there if it is negative.
    roi : boolean array or integers or None
        Which places of the navigation shape are shown, on one axis: a mask of that shape, or
        places counted in C order, in any order.
    missing : {"fill", "raise"}
        Whether places may be left without a frame.

    Raises
    ------
    DatasetError
        An argument has no meaning for these files.
    TruncatedFileError
        Frames are missing, and must not.
    """
    path = desc.files[0].path
    first = check_whole("sync_offset", sync_offset, path=path)
    shape = desc.nav_shape if nav_shape is None else nav_shape
    if math.prod(shape + desc.sig_shape) * desc.dtype.itemsize > LARGEST:
        raise DatasetError(
            "no array can be so large", path=path, expected=f"{LARGEST} bytes", found=shape
        )
    # Beyond these all frames are missing, and frame numbers would no longer be numbers of 8 bytes.
    first = max(-math.prod(shape), min(first, desc.layout.n_frames))
    if shape != desc.nav_shape:
        desc = desc.with_frames(shape, first)
    elif first:
        desc = desc.shifted(first)
    if roi is not None:
        places = _places(roi, shape, path)
        desc = desc.with_frames((len(places),), 0, desc.layout.selection.at(places))
    if missing not in ("fill", "raise"):
        raise DatasetError(
            "no such rule for missing frames", path=path, expected="fill or raise", found=missing
        )
    absent = desc.layout.count_missing()
    if missing == "raise" and absent:
        count = math.prod(desc.nav_shape)
        files = desc.metadata[desc.format].get("missing_files", ())
        named = ", ".join(files[:MOST_NAMED]) + ", ..." * (len(files) > MOST_NAMED)
        raise TruncatedFileError(
            "frames are missing",
            path=desc.files[-1].path,
            expected=f"{count} frames",
            found=f"{count - absent} frames",
            hint=f"There is no {named}." if files else None,
        )
    return desc


def _places(roi: Any, nav_shape: tuple[int, ...], path: str) -> Index:
    """Turn a mask, or indices, into places of the navigation shape."""
    count = math.prod(nav_shape)
    try:
        found = np.asarray(roi)
    except ValueError as error:
        raise DatasetError("roi is no array", path=path, found=str(error)) from error
    if found.dtype == bool and found.shape == nav_shape:
        places = np.flatnonzero(found)
    elif found.dtype.kind in "iu" and found.ndim == 1:
        wrong = (found < -count) | (found >= count)
        if wrong.any():
            raise DatasetError(
                "roi lies outside of the scan",
                path=path,
                expected=f"places below {count}",
                found=int(found[wrong][0]),
            )
        places = found.astype(np.int64) % count
    else:
        raise DatasetError(
            "roi is neither a mask of the scan nor a list of places in it",
            path=path,
            expected=f"bool of shape {nav_shape}, or whole numbers",
            found=f"{found.dtype} of shape {found.shape}",
        )
    if not len(places):
        raise DatasetError("roi selects no frame", path=path)
    return places
