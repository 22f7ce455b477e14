"""Order and calibration of the axes of images by Digital Micrograph, from their tags.

Source: the readers of RosettaSciIO and LiberTEM for the order of scans; files of Nion Swift, whose
4D scans have no tag for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from dask_tiled.errors import DatasetError
from dask_tiled.formats.dm.tags import group
from dask_tiled.model.axes import Axis, nav_axes, sig_axes
from dask_tiled.model.doubts import Doubt
from dask_tiled.model.units import Prefixed

TIMES = ("s", "ms", "us", "µs", "ns", "min")
LENGTHS = ("nm", "um", "µm")
ANGLES = ("deg", "°")


class Order(NamedTuple):
    """The number of signal axes, whether they are the slowest in the file, and the source."""

    sig_ndim: int
    transposed: bool
    told_by: str
    doubts: tuple[Doubt, ...] = ()

    def arrange(self, axes: tuple[Any, ...]) -> tuple[Any, ...]:
        """Reorder values of the axes from file order to array order."""
        first = self.sig_ndim if self.transposed else 0
        return axes[first:] + axes[:first]


def find_order(path: str, tags: Any, ndim: int, *, transposed: bool | None) -> Order:
    """Return the axes of a frame, and their order in the file."""
    image_tags = group(tags, "ImageTags")
    said = group(image_tags, "Meta Data")
    spectra = said.get("Format") in ("Spectrum image", "Spectrum") or "spim" in image_tags
    sig_ndim = 1 if ndim == 1 or (spectra and ndim < 4) else 2
    if transposed not in (None, True, False):
        known = "None, True or False"
        raise DatasetError("invalid transposed", path=path, expected=known, found=transposed)
    if ndim == sig_ndim:
        return Order(sig_ndim, transposed=False, told_by="there is one frame")
    if transposed is not None:
        return Order(sig_ndim, transposed, "the option transposed")
    usual = ndim == 4 or (spectra and ndim == 3)
    swapped = str(said.get("Data Order Swapped", 0)).strip() not in ("0", "False", "")
    if usual and "Data Order Swapped" in said:
        return Order(sig_ndim, not swapped, "the tag Data Order Swapped")
    told = [_kind_of(axis) for axis in _calibrations(tags, ndim)]
    fast, slow = ({*told[:sig_ndim]}, {*told[-sig_ndim:]})
    for name in ("detector", "scan") if usual else ():
        if (fast == {name}) != (slow == {name}):
            on_top = (slow == {name}) == (name == "detector")
            return Order(sig_ndim, on_top, "the units of the axes")
    doubts = _guessed(tags, ndim) if ndim == 4 else ()
    return Order(sig_ndim, usual, "the usual order of such data", doubts)


def _guessed(tags: Any, ndim: int) -> tuple[Doubt, ...]:
    """Return the doubt that scan and detector may be exchanged."""
    sizes = tuple(group(tags, "ImageData", "Dimensions").values())[:ndim][::-1]
    units = [axis.units for axis in _calibrations(tags, ndim)][::-1]
    listed = ", ".join(unit or "none" for unit in units)
    text = (
        f"the first two axes of the file's {sizes} are taken for the detector, as in most files:"
        " no tag tells the order, "
    ) + (f"nor do the units ({listed})" if any(units) else "and the axes have no units")
    settle = "pass transposed=True, or transposed=False if the scan comes first in the file"
    return (Doubt("axes-order", text, settle),)


def _kind_of(axis: Axis) -> str:
    """Return whether an axis with these units is of the scan or of the detector; "" if unknown."""
    units = axis.units.replace("Å", "nm").replace("\u212b", "nm")
    known = Prefixed.of(units)
    if (
        units.endswith("eV")
        or units in ANGLES
        or (known and (known.inverse or known.base == "rad"))
    ):
        return "detector"
    return "scan" if known and known.base == "m" else ""


def _calibrations(tags: Any, ndim: int) -> list[Axis]:
    """Return the axes of an image in file order, the fastest first."""
    fields = group(tags, "ImageData", "Calibrations", "Dimension").values()
    told = [_axis(field) for field in fields][:ndim]
    return [*told, *[Axis("")] * (ndim - len(told))]


def read_axes(tags: Any, ndim: int, order: Order) -> tuple[Axis, ...]:
    """Read the axes of an image, in array order."""
    axes = order.arrange(tuple(_calibrations(tags, ndim)[::-1]))
    split = ndim - order.sig_ndim
    names = [axis.name for axis in nav_axes(split) + sig_axes(order.sig_ndim)]
    if order.sig_ndim == 1:
        units = axes[-1].units
        names[-1] = "energy" if units.endswith("eV") else names[-1]
        names[-1] = "wavelength" if units in LENGTHS else names[-1]
        names[:split] = [axis.name for axis in nav_axes(2)][2 - split :]
    elif split == 1 and axes[0].units in TIMES:
        names[0] = "time"
    return tuple(replace(axis, name=name) for axis, name in zip(axes, names, strict=True))


def _axis(field: Any) -> Axis:
    units = group(field).get("Units")
    units = units if isinstance(units, str) else ""
    scale, origin = (group(field).get(key) for key in ("Scale", "Origin"))
    if not isinstance(scale, float) or not isinstance(origin, float):
        return Axis("", units)
    return Axis.calibrated("", units, scale, 0.0 - origin * scale, signed=True)
