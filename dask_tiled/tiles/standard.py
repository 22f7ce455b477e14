"""The usual maps of a scan of diffraction patterns, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.errors import TilingError, nearest
from dask_tiled.measuring.disks import Disk, disk_of
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.opened.job_arrays import Reducible
from dask_tiled.opened.tile_functions import reducible
from dask_tiled.tiles.lengths import Length, SignalAxes
from dask_tiled.tiles.masks import centres_of, dense_sums, moment_planes
from dask_tiled.tiles.shapes import Mask
from dask_tiled.tiles.shapes import disk as disk_mask

HIGH = 3
"""Inner radius of the high-angle detector, relative to that of the disk."""
DETECTORS: Mapping[str, str] = {
    "bf": "bright_field",
    "abf": "annular_bright_field",
    "adf": "dark_field",
    "haadf": "high_angle_dark_field",
}
"""Maps of detectors around the bright disk: short and long names."""
NAMES: Mapping[str, str] = {
    **DETECTORS,
    "sum": "sum",
    "com": "center_of_mass",
    "mean": "mean",
    "max": "max",
}
"""All maps: short and long names."""
OF_FRAMES = "sum", "mean", "max"
"""Maps of any frames."""


class Maps(dict[str, da.Array]):
    """Lazy maps by name; ``disk`` is the bright disk that was found, or None."""

    disk: Disk | None = None


class _Detectors(NamedTuple):
    masks: dict[str, Mask]
    disk: Disk | None


def standard(
    arr: Any,
    maps: str | Iterable[str] | None = None,
    *,
    disk: Disk | Sequence[Length] | None = None,
    sig_ndim: int | None = None,
) -> Maps:
    """Return the usual maps of a scan of diffraction patterns, which are computed in one pass.

    ========  =========================  =========================================================
    short     name                       content
    ========  =========================  =========================================================
    bf        ``bright_field``           sum of each frame inside the bright disk
    abf       ``annular_bright_field``   sum from half of its radius to its radius
    adf       ``dark_field``             sum outside of it
    haadf     ``high_angle_dark_field``  sum from three times its radius on
    sum       ``sum``                    sum of each frame
    com       ``center_of_mass``         centre of mass of each frame, in units of the axes
    mean      ``mean``                   mean of all frames, pixel by pixel
    max       ``max``                    maximum of all frames, pixel by pixel
    ========  =========================  =========================================================

    Parameters
    ----------
    arr : dask.array.Array, or DataArray of xarray that holds one
        Real numbers: nav + sig, with two signal axes.
    maps : str or iterable of str, optional
        Short names, or a text of them separated by commas; by default all. ``haadf`` is left out by
        default if the frames do not reach it.
    disk : Disk or sequence of float or str, optional
        The bright disk: as of :func:`find_disk`, which finds it by default, or its centre, (y, x),
        and its radius, as in :func:`disk`.
    sig_ndim : int, optional
        As in :func:`dask_tiled.map_tiles`.

    Returns
    -------
    dict of dask.array.Array
        Lazy maps by name, with axes and units, in the order of the table; sums under detectors are
        float32, or wider if the pixels require it. Its ``disk`` is the one that was found.

    Raises
    ------
    TilingError
        A map is unknown, or not defined for the array; a detector holds no pixel; or no bright disk
        is found.

    Examples
    --------
    >>> import dask, dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> maps = dask_tiled.tiles.standard(arr)
    >>> list(maps)[:4], maps["dark_field"].shape
    (['bright_field', 'annular_bright_field', 'dark_field', 'high_angle_dark_field'], (60, 64))
    >>> computed = dask.compute(dict(maps))[0]
    """
    return maps_of(arr, maps, disk, "disk", sig_ndim)


def maps_of(
    arr: Any,
    maps: str | Iterable[str] | None,
    disk: Disk | Sequence[Length] | None,
    option: str,
    sig_ndim: int | None = None,
) -> Maps:
    """Return the maps of :func:`standard`; errors name the option that gives the disk."""
    x = reducible(arr, sig_ndim)
    names = _named(maps)
    _check(x, names)
    wanted = [name for name in names if name in DETECTORS]
    if disk is not None and not wanted:
        problem = f"a disk only applies to {', '.join(DETECTORS)}"
        raise TilingError(problem, found=f"{option}={disk!r}")
    detectors = _detectors(x, disk, option) if wanted else _Detectors({}, None)
    for name in wanted:
        if not detectors.masks[name].any():
            if maps is not None:
                size = " x ".join(map(str, x.arr.shape[x.nav_ndim :]))
                problem = f"no pixel is in the detector {name}"
                expected = f"frames larger than {size} pixels"
                raise TilingError(problem, expected=expected, hint="Leave it out.")
            names.remove(name)
    kept = [name for name in wanted if name in names]
    planes = [detectors.masks[name] for name in kept]
    under = dict[str, da.Array]()
    if planes or "com" in names:  # one product for all
        planes += [*moment_planes(x)] if "com" in names else []
        sums = dense_sums(x, np.stack(planes))
        nav = shown_of(x.arr).axes[: x.nav_ndim]
        units = shown_of(x.arr).units
        under = {name: labelled(sums[..., k], nav, units) for k, name in enumerate(kept)}
        if "com" in names:
            under["com"] = centres_of(x, sums[..., len(kept) :])
    outer, inner = tuple(range(x.nav_ndim)), tuple(range(x.nav_ndim, x.arr.ndim))
    made: dict[str, Callable[[], da.Array]] = {
        "sum": lambda: x.arr.sum(inner),
        "mean": lambda: x.arr.mean(outer),
        "max": lambda: x.arr.max(outer),
    }
    result = Maps({NAMES[name]: under[name] if name in under else made[name]() for name in names})
    result.disk = detectors.disk
    return result


def _named(maps: str | Iterable[str] | None) -> list[str]:
    """Return the short names of maps after checking them."""
    if maps is None:
        return [*NAMES]
    names = [name.strip() for name in maps.split(",")] if isinstance(maps, str) else [*maps]
    for name in names:
        if name not in NAMES:
            hint, expected = nearest(str(name), NAMES), ", ".join(NAMES)
            raise TilingError("no such map", expected=expected, found=repr(name), hint=hint)
    return names


def _check(x: Reducible, names: Sequence[str]) -> None:
    """Raise a TilingError if maps are not defined for an array."""
    of_scans = [name for name in names if name not in OF_FRAMES]
    if not x.nav_ndim:
        expected, found = "a scan or a series of frames", f"one image of shape {x.arr.shape}"
        raise TilingError("maps need navigation axes", expected=expected, found=found)
    if of_scans and (x.nav_ndim < 2 or x.arr.ndim - x.nav_ndim != 2):
        raise TilingError(
            f"{of_scans[0]} needs a scan of images",
            expected=f"two navigation and two signal axes, or one of {', '.join(OF_FRAMES)}",
            found=f"{x.nav_ndim} navigation and {x.arr.ndim - x.nav_ndim} signal axes",
            hint="Pass the shape of the scan, nav_shape=." * (x.nav_ndim == 1),
        )


def _detectors(x: Reducible, given: Disk | Sequence[Length] | None, option: str) -> _Detectors:
    """Return the masks of all detectors, and the disk if it was found."""
    if given is None or isinstance(given, Disk):
        bright = disk_of(x, f"Pass {option}=(y, x, radius).") if given is None else given
        center: Sequence[Length] = [f"{at} px" for at in bright.center]
        radius: Length = f"{bright.radius} px"
    else:
        bright = None
        if isinstance(given, str) or len(given) != 3:
            expected = "its centre, (y, x), and its radius"
            raise TilingError("invalid disk", expected=expected, found=repr(given))
        *center, radius = given
    number, unit = SignalAxes.of(x).length("radius", radius)
    radii = [f"{number * factor!r} {unit}" for factor in (0.5, 1, HIGH)]
    half, whole, high = (disk_mask(x.arr, r, center, sig_ndim=2) for r in radii)
    masks = {"bf": whole, "abf": whole & ~half, "adf": ~whole, "haadf": ~high}
    if not whole.any():
        size = " x ".join(map(str, whole.shape))
        expected = f"at least one of the {size} pixels"
        raise TilingError("no pixel is in the disk", expected=expected, found=repr(given))
    return _Detectors(masks, bright)
