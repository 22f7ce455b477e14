"""Colour pictures, by the HDF5 Image and Palette Specification 1.2 and by NeXus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dask_tiled.formats.hdf5.attributes import attribute, label

MODELS: Mapping[str, tuple[str, ...]] = {
    "RGB": (),  # colours without labels are red, green and blue
    "RGBA": (),
    "HSL": ("H", "S", "L"),
    "HSLA": ("H", "S", "L", "A"),
    "CMYK": ("C", "M", "Y", "K"),
    "CMY": ("C", "M", "Y"),
    "HSV": ("H", "S", "V"),
    "YUV": ("Y", "U", "V"),
    "YCbCr": ("Y", "Cb", "Cr"),
}
"""Labels of the colours, by colour model."""
SAMPLES = 3, 4
"""Number of colours of a pixel."""
PLANES, LINES = (0, 2, 3, 1), (0, 1, 3, 2)
"""Axes of colour planes and of lines of one colour as (y, x, colour), after an axis of one."""
ORDERS = {"INTERLACE_PLANE": (0, PLANES), "INTERLACE_LINE": (1, LINES)}
"""Axis of the colours, and order of the axes, by ``INTERLACE_MODE``."""
SIG_DIMS = 3
"""Number of signal axes of a colour picture."""


class Colours(NamedTuple):
    """The colours of a dataset."""

    labels: tuple[str, ...]
    order: tuple[int, ...] = ()
    """Axes in the order (y, x, colour), after one more axis; empty if they have it."""


def colours_of(dataset: Any, shape: tuple[int, ...]) -> Colours | None:
    """Return the colours of a true colour image of the Image Specification, or None."""
    if len(shape) < SIG_DIMS or label(attribute(dataset, "IMAGE_SUBCLASS")) != "IMAGE_TRUECOLOR":
        return None
    labels = MODELS.get(label(attribute(dataset, "IMAGE_COLORMODEL")), ())
    mode = label(attribute(dataset, "INTERLACE_MODE"))
    axis, order = ORDERS.get(mode, (-1, ()))
    known = shape[axis] in SAMPLES and len(labels) in {0, shape[axis]}
    return Colours(labels, order) if known and (not order or len(shape) == SIG_DIMS) else None


def interpreted(kind: str, shape: tuple[int, ...]) -> Colours | None:
    """Return the colours by an interpretation of NeXus such as "rgb-image", or None."""
    model = kind.removesuffix("-image").upper()
    count = len(model)
    fits = model in MODELS and kind.endswith("-image") and len(shape) >= SIG_DIMS
    return Colours(MODELS[model]) if fits and shape[-1] == count else None
