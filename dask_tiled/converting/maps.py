"""Maps by name, which an export computes and stores with the array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.errors import DatasetError, nearest
from dask_tiled.opened.job_arrays import Reducible
from dask_tiled.opened.tile_functions import reducible
from dask_tiled.tiles.lengths import PIXELS, Length, SignalAxes, found_disk
from dask_tiled.tiles.masks import center_of_mass
from dask_tiled.tiles.shapes import Mask, disk

OF_FRAMES: Mapping[str, tuple[str, Callable[[Reducible], da.Array]]] = {
    "mean": ("mean", lambda x: x.arr.mean(tuple(range(x.nav_ndim)))),
    "max": ("max", lambda x: x.arr.max(tuple(range(x.nav_ndim)))),
    "sum": ("sum", lambda x: x.arr.sum(tuple(range(x.nav_ndim, x.arr.ndim)))),
}
"""Maps of any frames: names of the arrays, and how to compute them."""
OF_SCANS = {"bf": "bright_field", "adf": "dark_field", "com": "center_of_mass"}
"""Maps of scans of diffraction patterns: names of the arrays."""
SAMPLE = 1024
"""Maximum number of frames averaged to find the bright disk."""


class Maps(NamedTuple):
    """Requested maps."""

    results: dict[str, da.Array]
    """Lazy maps by array name."""
    disk: str = ""
    """The bright disk that was found, as text; empty if it was not searched."""


def maps_of(arr: Any, maps: str | Iterable[str], maps_disk: Sequence[Length] | None = None) -> Maps:
    """Return lazy maps of an array, which an export computes.

    Parameters
    ----------
    arr : dask.array.Array
        nav + sig.
    maps : str or iterable of str
        Names, or a text of names separated by commas.
    maps_disk : sequence of float or str, optional
        Centre of the bright disk, (y, x), and its radius, as in :func:`tiles.disk`; by default it
        is found in the mean of a sample of the frames.

    Raises
    ------
    DatasetError
        A map is unknown, or not defined for the array; or no bright disk is found.
    """
    names = [x.strip() for x in maps.split(",")] if isinstance(maps, str) else [*maps]
    known = (*OF_SCANS, *OF_FRAMES)
    for name in names:
        if name not in known:
            hint = nearest(str(name), known)
            expected = ", ".join(known)
            raise DatasetError("no such map", expected=expected, found=repr(name), hint=hint)
    x = reducible(arr, None)
    scan = [name for name in names if name in OF_SCANS]
    if not x.nav_ndim:
        raise DatasetError("maps need navigation axes", found=f"shape {x.arr.shape}")
    if scan and (x.nav_ndim < 2 or x.arr.ndim - x.nav_ndim != 2):
        raise DatasetError(
            f"{scan[0]} needs a scan of images",
            expected=f"two navigation and two signal axes, or one of {', '.join(OF_FRAMES)}",
            found=f"{x.nav_ndim} navigation and {x.arr.ndim - x.nav_ndim} signal axes",
            hint="Pass the shape of the scan, nav_shape=." * (x.nav_ndim == 1),
        )
    needed = bool({"bf", "adf"} & {*scan})
    if maps_disk is not None and not needed:
        raise DatasetError("a disk only applies to bf and adf", found=f"maps_disk={maps_disk!r}")
    inside, told = _disk(x, maps_disk) if needed else (np.empty(0, bool), "")
    masks = {"bf": inside, "adf": ~inside}
    found = {}
    for name in names:
        if name in OF_FRAMES:
            called, make = OF_FRAMES[name]
            found[called] = make(x)
        elif name == "com":
            found[OF_SCANS[name]] = center_of_mass(x.arr)
        else:
            found[OF_SCANS[name]] = (x.arr * masks[name]).sum((-2, -1))
    return Maps(found, told)


def _disk(x: Reducible, given: Sequence[Length] | None) -> tuple[Mask, str]:
    """Return the pixels in the bright disk, and the disk as text."""
    frame = SignalAxes.of(x)
    if given is not None:
        if isinstance(given, str) or len(given) != 3:
            expected = "its centre, (y, x), and its radius"
            raise DatasetError("invalid disk", expected=expected, found=repr(given))
        y, x_, radius = given
        inside = disk(x.arr, radius, (y, x_))
        if not inside.any():
            size = " x ".join(map(str, inside.shape))
            expected = f"at least one of the {size} pixels"
            raise DatasetError("no pixel is in the disk", expected=expected, found=repr(given))
        return inside, ""
    hint = "Pass maps_disk=(y, x, radius)."
    bright = found_disk(x, frame, hint, limit=SAMPLE)
    places = [
        f"{axis.name} = {axis.offset + axis.scale * at:.4g} {axis.units or PIXELS}"
        for axis, at in zip(frame.axes, (bright.y, bright.x), strict=True)
    ]
    last = frame.axes[-1]
    radius = f"{abs(last.scale) * bright.radius:.4g} {last.units or PIXELS}"
    return bright.mask(frame.shape), f"bright disk at {', '.join(places)}, radius {radius}"
