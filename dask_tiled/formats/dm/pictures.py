"""What the tags of one picture in a DM file say: its pixels, their order, and its axes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.dm.packed import PACKED, stored_bytes
from dask_tiled.formats.tools.dm_tags import Array, group

COLOUR = np.dtype({"names": list("RGBA"), "formats": ["u1"] * 4, "offsets": [2, 1, 0, 3]})
DTYPES: dict[int, Any] = {
    **dict(enumerate(["i2", "f4", "c8"], 1)),
    **dict(enumerate(["u1", "i4", COLOUR, "i1", "u2", "u4", "f8", "c16", "?"], 6)),
    **dict(enumerate(["i8", "u8"], 39)),
    23: COLOUR,
    **PACKED,
}
TIMES = ("s", "ms", "us", "µs", "ns", "min")
LENGTHS = ("nm", "um", "µm")


class Picture(NamedTuple):
    """Where the pixels of a picture lie; the shape is the reverse of the file's dimensions."""

    shape: tuple[int, ...]
    data_type: int
    dtype: np.dtype
    offset: int


class Order(NamedTuple):
    """How many axes belong to a frame, whether they are the slowest, and who says so."""

    sig_ndim: int
    transposed: bool
    told_by: str

    def arrange(self, axes: tuple[Any, ...]) -> tuple[Any, ...]:
        """Put something about the axes, in the order of the file, into that of the array."""
        first = self.sig_ndim if self.transposed else 0
        return axes[first:] + axes[:first]


def read_picture(path: str, tags: Any) -> Picture:
    """Read where the pixels of a picture lie."""
    fields = group(tags, "ImageData")
    shape = tuple(group(fields, "Dimensions").values())[::-1]
    kind, data = fields.get("DataType"), fields.get("Data")
    sizes = all(type(n) is int and n > 0 for n in shape)
    if not sizes or not 1 <= len(shape) <= 4 or not isinstance(data, Array):
        raise tools.CorruptFileError(
            "no picture", path=path, where="ImageData", expected="1 to 4 Dimensions", found=shape
        )
    if type(kind) is not int or kind not in DTYPES:
        raise tools.DatasetError("unknown type of pixels", path=path, where="DataType", found=kind)
    dtype = np.dtype(DTYPES[kind]).newbyteorder(data.dtype[0])
    needed = math.prod(shape) * dtype.itemsize
    if kind in PACKED:
        needed = stored_bytes(path, kind, shape, dtype)
    if needed > data.nbytes:
        raise tools.CorruptFileError(
            "fewer pixels than the Dimensions say",
            path=path,
            where=f"byte {data.offset}",
            expected=f"{needed} bytes",
            found=f"{data.nbytes} bytes",
        )
    return Picture(shape, kind, dtype, data.offset)


def find_order(path: str, tags: Any, ndim: int, *, transposed: bool | None) -> Order:
    """Find out which axes belong to a frame, and in which order they lie in the file."""
    image_tags = group(tags, "ImageTags")
    said = group(image_tags, "Meta Data")
    spectra = said.get("Format") in ("Spectrum image", "Spectrum") or "spim" in image_tags
    sig_ndim = 1 if ndim == 1 or (spectra and ndim < 4) else 2
    if transposed not in (None, True, False):
        raise tools.DatasetError(
            "no order", path=path, expected="None, True or False", found=transposed
        )
    if ndim == sig_ndim:
        return Order(sig_ndim, transposed=False, told_by="there is one frame")
    if transposed is not None:
        return Order(sig_ndim, transposed, "the option transposed")
    usual = ndim == 4 or (spectra and ndim == 3)
    swapped = str(said.get("Data Order Swapped", 0)).strip() not in ("0", "False", "")
    if usual and "Data Order Swapped" in said:
        return Order(sig_ndim, not swapped, "the tag Data Order Swapped")
    return Order(sig_ndim, usual, "what is usual for such data")


def read_axes(tags: Any, ndim: int, order: Order) -> tuple[tools.Axis, ...]:
    """Read the axes of a picture, in the order of the array."""
    fields = group(tags, "ImageData", "Calibrations", "Dimension").values()
    found = [_axis(field) for field in fields][:ndim]
    axes = order.arrange((*found, *(tools.Axis("") for _ in range(ndim - len(found))))[::-1])
    split = ndim - order.sig_ndim
    names = [axis.name for axis in tools.nav_axes(split) + tools.sig_axes(order.sig_ndim)]
    if order.sig_ndim == 1:
        units = axes[-1].units
        names[-1] = "energy" if units.endswith("eV") else names[-1]
        names[-1] = "wavelength" if units in LENGTHS else names[-1]
        names[:split] = [axis.name for axis in tools.nav_axes(2)][2 - split :]
    elif split == 1 and axes[0].units in TIMES:
        names[0] = "time"
    return tuple(replace(axis, name=name) for axis, name in zip(axes, names, strict=True))


def _axis(field: Any) -> tools.Axis:
    said = group(field)
    units = said.get("Units")
    units = units if isinstance(units, str) else ""
    scale, origin = (_number(said.get(key)) for key in ("Scale", "Origin"))
    if scale is None or origin is None:
        return tools.Axis("", units)
    return tools.Axis("", units, scale, 0.0 - origin * scale)


def _number(value: Any) -> float | None:
    return value if isinstance(value, float) and math.isfinite(value) else None
