"""What a picture of an array is made of: images and lines on axes with units, by matplotlib."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_tiled.discs import Disc
from dask_tiled.errors import DatasetError
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array
from dask_tiled.model.units import PREFIXES, UNIT
from dask_tiled.tiling import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PERCENTILES, DARK = (0.5, 99.5), 0.1
"""Of the pixels, what is darkest and brightest; if half of them is darker than that, it is lit."""
SAVED_DOTS_PER_INCH = 200
WIDEST, TALLEST = 9.6, 4.0
"""Inches: of all panels side by side, and of one. A notebook is about as wide."""
CIRCLE, LINE = "#3ad1f5", "#4a90d9"
MOST_UNEVEN = 4.0
"""Images that are longer in one direction fill their panel."""


class Image(NamedTuple):
    """Pixels, perhaps with colours, on two axes."""

    title: str
    values: Array
    axes: tuple[Axis, Axis]
    disc: Disc | None = None
    is_frame: bool = False
    """Frames are shown in colours, scans and other images in grey."""


class Line(NamedTuple):
    """Values along an axis."""

    title: str
    values: Array
    axis: Axis


Panel = Image | Line


def in_units(axis: Axis, extent: float) -> Axis:
    """Choose the prefix of the unit of an axis so that a length reads well."""
    found = UNIT.fullmatch(axis.units)
    if found is None:
        return axis
    inverse, base, prefix = found[1] or found[4], found[3], found[2]
    prefix = "µ" if prefix in ("u", "\u03bc") else prefix
    sign = -1 if inverse else 1
    sizes = {name: extent * (PREFIXES[prefix] / x) ** sign for name, x in PREFIXES.items()}
    if not prefix or not 0.1 <= sizes[prefix] < 1000:
        before, sizes = prefix, {k: x for k, x in sizes.items() if k != "k" or base != "m"}
        prefix = min(sizes, key=lambda k: (not 1 <= sizes[k] < 1000, abs(math.log10(sizes[k]))))
        factor = (PREFIXES[before] / PREFIXES[prefix]) ** sign
        axis = replace(axis, scale=axis.scale * factor, offset=axis.offset * factor)
    return replace(axis, units=f"1/{prefix}{base}" if inverse else f"{prefix}{base}")


def round_length(most: float) -> float:
    """Return the largest of 1, 2 and 5 times a power of ten that is not longer."""
    power = 10.0 ** math.floor(math.log10(most))
    return max(digit * power for digit in (1, 2, 5) if digit * power <= most * (1 + 1e-9))


def check_target(target: Any) -> None:
    """Make sure that matplotlib is there, and can write such a file.

    Raises
    ------
    ImportError
        There is no matplotlib.
    DatasetError
        It knows no such suffix.
    """
    figure = drawing.new_figure(1, 1)
    if not isinstance(target, (str, os.PathLike)):
        return
    path = os.fspath(target)
    suffix, known = os.path.splitext(path)[1][1:].lower(), figure.canvas.get_supported_filetypes()
    if suffix not in known:
        expected = ", ".join(f".{name}" for name in known)
        found = suffix or "no suffix"
        raise DatasetError("no such kind of picture", path=path, expected=expected, found=found)


def draw(drawn: list[Panel], title: str, subtitle: str, notes: list[str]) -> Figure:
    """Draw panels side by side, with a title above and notes below."""
    from dask_tiled.tiling.figures import INK

    widths = [_width(panel) for panel in drawn]
    height = min(TALLEST, WIDEST / sum(widths))
    figure = drawing.new_figure(sum(widths) * height, height + 0.95, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.05)
    grid = figure.subplots(1, len(drawn), squeeze=False, width_ratios=widths)
    for axes, panel in zip(grid[0], drawn, strict=True):
        axes.set_facecolor("none")
        axes.set_title(panel.title, size=10, color=INK)
        _draw_line(axes, panel) if isinstance(panel, Line) else _draw_image(axes, panel)
        axes.tick_params(colors=INK, labelsize=8, length=3, width=0.6)
        axes.xaxis.label.set(color=INK, size=9)
        axes.yaxis.label.set(color=INK, size=9)
        for spine in axes.spines.values():
            spine.set(color=INK, linewidth=0.6)
    figure.suptitle(
        f"{title}\n", x=0.01, ha="left", size=12, weight="bold", color=INK, linespacing=1.7
    )
    figure.text(0.01, 1 - 0.42 / (height + 0.95), subtitle, size=9, color=INK, va="center")
    figure.supxlabel("; ".join(notes), x=0.01, ha="left", size=8, color=INK)
    figure.get_layout_engine().execute(figure)  # drawing is its second pass
    return figure


def _extent(axis: Axis, size: int) -> float:
    return abs(axis.scale) * size


def _shown_axes(image: Image) -> tuple[Axis, Axis]:
    """Return the axes of an image in units that read well, the same where they are of a kind."""
    extents = [_extent(axis, n) for axis, n in zip(image.axes, image.values.shape, strict=False)]
    if len({axis.units for axis in image.axes}) == 1:
        extents = [max(extents)] * 2
    y, x = map(in_units, image.axes, extents)
    return y, x


def _aspect(image: Image) -> float | None:
    """Return height by width of a pixel; None where they would make a strip of the image."""
    y, x = image.axes
    aspect = abs(y.scale / x.scale) if x.units == y.units else 1.0
    height, width = image.values.shape[:2]
    return aspect if 1 / MOST_UNEVEN <= aspect * height / width <= MOST_UNEVEN else None


def _width(panel: Panel) -> float:
    """Return the width of a panel of height 1."""
    if isinstance(panel, Line):
        return 1.8
    aspect, (height, width) = _aspect(panel), panel.values.shape[:2]
    return 1.5 if aspect is None else min(max(width / height / aspect, 0.6), 2.0) + 0.25


def _label(axis: Axis) -> str:
    return f"{axis.name} ({axis.units})" if axis.units else axis.name


def _place(axis: Axis, position: Any) -> Any:
    return axis.offset + axis.scale * position


def _draw_image(axes: Axes, image: Image) -> None:
    from matplotlib.ticker import MaxNLocator

    height, width = image.values.shape[:2]
    y, x = _shown_axes(image)
    left, right, bottom, top = (
        _place(axis, end - 0.5) for axis, end in ((x, 0), (x, width), (y, height), (y, 0))
    )
    aspect = _aspect(image)
    # matplotlib wants it for a unit of the axes.
    equal = "auto" if aspect is None else aspect * abs(x.scale / y.scale)
    shown: dict[str, Any] = {"extent": (left, right, bottom, top), "aspect": equal}
    if image.values.ndim == 3:
        axes.imshow(_colours(image.values), **shown)
    else:
        _draw_pixels(axes, image, shown)
    for axis, one in ((axes.xaxis, x), (axes.yaxis, y)):
        axis.set_label_text(_label(one))
        axis.set_major_locator(MaxNLocator(4, integer=not one.units and one.scale >= 1))
    if image.disc is not None:
        from matplotlib.patches import Ellipse

        at = _place(x, image.disc.x), _place(y, image.disc.y)
        sizes = (2 * image.disc.radius * abs(axis.scale) for axis in (x, y))
        axes.add_patch(Ellipse(at, *sizes, fill=False, edgecolor=CIRCLE, linewidth=1.4))
    if x.units and aspect is not None and (x.units == y.units):
        _draw_scale_bar(axes, abs(right - left), x.units)


def _draw_pixels(axes: Axes, image: Image, shown: dict[str, Any]) -> None:
    """Draw numbers as colours, with a bar that tells which."""
    from matplotlib.colors import Normalize, PowerNorm
    from matplotlib.ticker import EngFormatter, MaxNLocator

    from dask_tiled.tiling.figures import INK

    low, high, gamma = contrast(image.values)
    norm = Normalize(low, high) if gamma == 1 else PowerNorm(gamma, low, high)
    cmap = "inferno" if image.is_frame else "gray"
    bar = axes.figure.colorbar(
        axes.imshow(image.values, cmap=cmap, norm=norm, **shown),
        cax=axes.inset_axes((1.03, 0, 0.04, 1)), ticks=MaxNLocator(4),
    )  # fmt: skip
    bar.formatter = EngFormatter(sep="") if max(abs(low), abs(high)) >= 1e4 else bar.formatter
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8, length=2, width=0.6)
    if gamma != 1:
        bar.set_label(f"gamma {gamma:.2g}", size=7, color=INK)


def contrast(values: Array) -> tuple[float, float, float]:
    """Choose the darkest and the brightest value, and a power that brings out the dark ones."""
    finite = np.ma.compressed(values[np.isfinite(values)])  # what is masked does not count either
    if not finite.size:
        return 0.0, 1.0, 1.0
    low, middle, high = np.percentile(finite, (PERCENTILES[0], 50, PERCENTILES[1])).tolist()
    if low == high:
        low, high = float(finite.min()), float(finite.max())
    if low == high:
        return low, low + 1, 1.0
    share = max((middle - low) / (high - low), 1e-9)
    dark = low >= 0 and share < DARK
    return low, high, max(0.25, round(math.log(2 * DARK) / math.log(share), 2)) if dark else 1.0


def _colours(values: Array) -> Array:
    """Return colours from 0 to 1, whatever they are counted in."""
    if values.dtype == np.uint8:
        return values
    low, high, _ = contrast(values[..., :3])
    with np.errstate(invalid="ignore"):
        return np.clip(np.nan_to_num((values - low) / (high - low)), 0, 1)


def _draw_scale_bar(axes: Axes, width: float, units: str) -> None:
    """Draw a length of 1, 2 or 5, which can be seen on light and on dark pixels."""
    from matplotlib.font_manager import FontProperties
    from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar

    length = round_length(width / 3)
    font, text = FontProperties(size=8), f"{length:g} {units}"
    height = abs(axes.viewLim.height) / 70
    look: dict[str, Any] = {"color": "white", "label_top": True, "fontproperties": font}
    bar = AnchoredSizeBar(
        axes.transData, length, text, "lower left", borderpad=0.6, size_vertical=height, **look
    )
    bar.patch.set(facecolor="#00000090", edgecolor="none")
    axes.add_artist(bar)


def _draw_line(axes: Axes, line: Line) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis = in_units(line.axis, _extent(line.axis, len(line.values)))
    axes.plot(_place(axis, np.arange(len(line.values))), line.values, color=LINE, linewidth=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)
    axes.set_xlabel(_label(axis))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=not axis.units))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    if np.abs(axes.get_ylim()).max() >= 1e4:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
