"""TIFF files, BigTIFF if large, with axes in the conventions of ImageJ or OME.

tifffile writes everything but the pixels, which are contiguous.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.converting.flat_files import FlatArray, write_flat
from dask_tiled.errors import DatasetError, DoubtWarning, require, warn
from dask_tiled.model.axes import Axis
from dask_tiled.model.colours import signed_rgba
from dask_tiled.model.instrument import converted
from dask_tiled.model.units import Prefixed
from dask_tiled.opened.axes import shown_of
from dask_tiled.storing.disk import writing_to

Axes = tuple[Axis | None, ...]

CLASSIC = (1 << 32) - (1 << 25)
"""With this many bytes of pixels or more, a file is BigTIFF; other data get the rest of 4 GiB."""
OF_IMAGEJ = {"uint8", "uint16", "float32"}
OF_OME = {
    *("int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float32", "float64", "complex64", "complex128"),
}
LETTERS = dict.fromkeys(("t", "time", "frame"), "T")
LETTERS |= dict.fromkeys(("z", "depth", "slice"), "Z") | dict.fromkeys(("c", "channel"), "C")
"""Axis names, before the image axes, that viewers recognise."""
COLOURS = {"s", "component", "colour", "rgb"}
TIMES = {"ns", "us", "µs", "ms", "s", "min", "h"}
LENGTHS = ("m", "cm", "mm", "µm", "um", "nm", "Å")
"""Units that OME knows."""
FINEST = 1 << 32
"""Largest resolution that TIFF can store, in pixels per centimetre or other unit."""


MOST_LABELS = 256
"""Label at most this many planes each; of more, only those of the first channels."""


def in_order(arr: da.Array) -> da.Array:
    """Return an array with its axes t, z and c in the order of ImageJ, if that can read it."""
    if arr.ndim < 3 or not _fits(arr):
        return arr
    axes, nav, _ = _parts(arr)
    letters = _letters(nav)
    if letters is None:
        return arr
    order = sorted(range(len(nav)), key=lambda k: "TZC".index(letters[k]))
    sorted_already = order == [*range(len(nav))]
    return arr if sorted_already else arr.transpose(*order, *range(len(nav), len(axes)))


def write_tiff(arr: da.Array, path: str, at: str, *, show: bool | None) -> None:
    """Write an array as TIFF: in ImageJ's convention if possible, else in tifffile's."""
    axes, nav, samples = _checked(arr, path, {*OF_OME, "int64", "uint64", "float16"})
    y, x = axes[len(nav) : len(nav) + 2]
    letters = _imagej_letters(nav) if _fits(arr) else None
    if letters is not None:
        known = dict(zip((*letters, "Y", "X"), axes, strict=False))
        options: dict[str, Any] = {
            "resolution": _resolution(x, y),
            "metadata": {
                "axes": f"{letters}YX{'S' * samples}",
                **_imagej(known),
                **_info(axes),
                **_labels(known.get("C"), math.prod(arr.shape[: len(nav)])),
            },
        }
    else:
        told = [axis or Axis("") for axis in axes]
        options = {
            "resolution": _resolution(x, y, LENGTHS),
            "resolutionunit": "CENTIMETER",
            "metadata": {
                "axes": f"{_letters(nav) or 'Q' * len(nav)}YX{'S' * samples}",
                "names": [one.name for one in told],
                "units": [one.units for one in told],
                "scales": [one.scale for one in told],
                "offsets": [one.offset for one in told],
                **_info(axes),
            },
        }
    _write(arr, path, at, {"imagej": letters is not None}, options, rgb=samples, show=show)


def write_ome_tiff(arr: da.Array, path: str, at: str, *, show: bool | None) -> None:
    """Write an array as OME-TIFF; other units go to the image's description."""
    axes, nav, samples = _checked(arr, path, OF_OME)
    letters = _letters(nav)
    if letters is None:
        raise DatasetError(
            "axes not supported by OME-TIFF",
            path=path,
            expected="t, c and z, each once, before y and x",
            found=", ".join((axis and axis.name) or "unnamed" for axis in axes),
            hint="Formats .tif and .zarr accept any axes.",
        )
    known = dict(zip((*letters, "Y", "X"), axes, strict=False))
    metadata: dict[str, Any] = {"axes": f"{letters}YX{'S' * samples}"}
    others = []
    for letter, axis in known.items():
        if axis is None or not axis.spacing:
            continue
        units: Collection[str] = TIMES if letter == "T" else LENGTHS
        name = "TimeIncrement" if letter == "T" else f"PhysicalSize{letter}"
        if letter != "C" and axis.steps and axis.units in units and axis.scale > 0:
            unit = str(Prefixed.of(axis.units) or axis.units)
            metadata |= {name: axis.scale, f"{name}Unit": unit}
        elif not axis.labels and not axis.coordinates:
            others.append(axis.name)
    metadata |= _ome_channels(known.get("C")) | _ome_planes(known.get("Z"), letters, arr.shape)
    if any(axis and axis.spacing for axis in axes):
        metadata["Description"] = _told(axes)
    if others:
        warn(f"{path}: OME-TIFF has no scale for {', '.join(others)}; it is in the description")
    _write(arr, path, at, {"ome": True}, {"metadata": metadata}, rgb=samples, show=show)


def _write(
    arr: da.Array,
    path: str,
    at: str,
    kind: dict[str, bool],
    options: dict[str, Any],
    *,
    rgb: bool,
    show: bool | None,
) -> None:
    tifffile = require("tifffile", "tiff", path, does="written")
    order = {"little": "<", "big": ">"}[sys.byteorder]
    large = arr.nbytes >= CLASSIC
    with writing_to(path), tifffile.TiffWriter(at, bigtiff=large, byteorder=order, **kind) as file:
        offset, _ = file.write(
            shape=arr.shape,
            dtype=arr.dtype,
            photometric="rgb" if rgb else "minisblack",
            software="dask-tiled",
            returnoffset=True,
            **{name: value for name, value in options.items() if value is not None},
        )
    write_flat(arr, FlatArray(path, at, offset, arr.shape, arr.dtype), show=show)


def _checked(arr: da.Array, path: str, dtypes: set[str]) -> tuple[Axes, Axes, bool]:
    """Return the parts of an array that TIFF can store."""
    if arr.dtype.name not in dtypes:
        expected = ", ".join(sorted(dtypes))
        problem, hint = "pixel type not supported by TIFF", "Convert the array: arr.astype(...)."
        raise DatasetError(problem, path=path, expected=expected, found=arr.dtype, hint=hint)
    if arr.ndim < 2 or not arr.size:
        problem, expected = "not an image", "two axes or more, and pixels"
        raise DatasetError(problem, path=path, expected=expected, found=f"shape {arr.shape}")
    axes, nav, samples = _parts(arr)
    uneven = [axis.name for axis in axes if axis is not None and axis.coordinates]
    if uneven:
        lost = f"the positions of {', '.join(uneven)} are not equally spaced, which TIFF cannot say"
        told = "only the first and the last are written, in the description. Formats .zarr and "
        warn(f"{path}: {lost}; {told}.hspy keep all of them.", DoubtWarning)
    return axes, nav, samples


def _parts(arr: da.Array) -> tuple[Axes, Axes, bool]:
    """Return all axes, the axes before the image, and whether the last axis is a colour axis."""
    axes = shown_of(arr).axes
    colours = arr.ndim > 2 and arr.shape[-1] in {3, 4} and arr.dtype.kind == "u"
    samples = colours and axes[-1] is not None and axes[-1].name.lower() in COLOURS
    return axes, axes[: arr.ndim - 2 - samples], samples


def _fits(arr: da.Array) -> bool:
    """Return whether ImageJ reads the type and the size of an array."""
    return arr.dtype.name in OF_IMAGEJ and arr.nbytes < CLASSIC


def _letters(axes: Axes) -> str | None:
    """Return the letters of axes in OME and ImageJ, by name; None if an axis has none."""
    found = [LETTERS.get(axis.name.lower(), "") if axis else "" for axis in axes]
    return "".join(found) if all(found) and len({*found}) == len(found) else None


def _imagej_letters(axes: Axes) -> str | None:
    """Return the letters of axes in ImageJ's order; None if the axes have another order.

    Axes of other names, such as those of scans, get the letters of the first sliders.
    """
    letters = _letters(axes)
    if letters is None:
        return {1: "T", 2: "TZ", 3: "TZC"}.get(len(axes))
    return letters if [*letters] == sorted(letters, key="TZC".index) else None


def _resolution(
    x: Axis | None, y: Axis | None, lengths: Collection[str] = ()
) -> tuple[float, float] | None:
    """Return pixels per unit, or per centimetre if lengths are given; None if out of range."""
    found = []
    for axis in (x, y):
        step = axis.scale if axis is not None and axis.steps else 0.0
        if lengths:
            metres = converted(1.0, axis.units, "m") if axis and axis.units in lengths else None
            step *= 100 * (metres or 0.0)
        if not 1 / FINEST < step < FINEST:
            return None
        found.append(1 / step)
    return found[0], found[1]


def _imagej(known: dict[str, Axis | None]) -> dict[str, Any]:
    """Return scales as ImageJ metadata: the unit of x also applies to other axes by default."""
    told: dict[str, Any] = {}
    x = known["X"]
    if x is not None and x.units:
        told["unit"] = x.units.replace("µ", "\\u00B5")
    for letter, axis in known.items():
        if axis is None or not axis.steps or axis.scale <= 0:
            continue
        if letter == "Z":
            told["spacing"] = axis.scale
        elif letter == "T" and axis.units in TIMES:
            told["finterval"] = axis.scale
            told["tunit"] = axis.units.replace("µ", "\\u00B5")
        if letter in "YZ" and axis.units and axis.units != told.get("unit"):
            told[f"{letter.lower()}unit"] = axis.units.replace("µ", "\\u00B5")
        if letter in "XYZ" and axis.offset:
            told[f"{letter.lower()}origin"] = -axis.offset / axis.scale
    return told


def _ome_channels(axis: Axis | None) -> dict[str, dict[str, list[str] | list[int]]]:
    """Return the names and colours of channels, as far as all are known."""
    told: dict[str, list[str] | list[int]] = {}
    if axis is not None and axis.labels:
        told["Name"] = [*axis.labels]
    if axis is not None and axis.colours and all(axis.colours):
        told["Color"] = [signed_rgba(colour) for colour in axis.colours]
    return {"Channel": told} if told else {}


def _ome_planes(axis: Axis | None, letters: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the positions of planes along z, if the first one is not at 0."""
    if axis is None or axis.units not in LENGTHS or not axis.offset or axis.scale <= 0:
        return {}
    sizes = shape[: len(letters)]
    heights = np.indices(sizes)[letters.index("Z")].ravel() * axis.scale + axis.offset
    unit = str(Prefixed.of(axis.units) or axis.units)
    return {"Plane": {"PositionZ": heights.tolist(), "PositionZUnit": [unit] * heights.size}}


def _labels(channels: Axis | None, planes: int) -> dict[str, list[str]]:
    """Return the names of channels as labels of planes, whose fastest axis is c."""
    names = [] if channels is None else [*channels.labels]
    repeats = planes // len(names) if names and planes <= MOST_LABELS else 1
    return {"Labels": names * repeats} if names else {}


def _info(axes: Axes) -> dict[str, str]:
    return {"Info": _told(axes)} if any(axis and axis.spacing for axis in axes) else {}


def _told(axes: Axes) -> str:
    """Return a description of axes for display."""
    return "\n".join(str(axis or "an unnamed axis") for axis in axes)
