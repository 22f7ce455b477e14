"""Drawing a panel on axes of matplotlib: pixels, lines, vectors, and what explains them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array
from dask_tiled.showing.looks import Look
from dask_tiled.showing.panels import (
    Composite,
    ImagePanel,
    Line,
    Panel,
    PhasePanel,
    VectorPanel,
    colours_of,
    hues,
    in_units,
    round_length,
)  # fmt: skip
from dask_tiled.showing.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CIRCLE, LINES = "#3ad1f5", ("#4a90d9", "#e8833a", "#57a05a", "#c65d8f", "#8a78d0")
ON_GRAY = "#ffb000"
"""Colour of arrows on gray pixels."""
ABSENT = "#8c8c8c"
"""Colour of the hatching of pixels without a value."""
MOST_UNEVEN = 4.0
"""Images with a larger aspect ratio fill their panel."""
ARROWS = 20
"""Number of arrows along the longer axis."""
ON_PIXELS = "#00000090"
"""Background of text on pixels."""
VECTORS = "both", "colours", "arrows"


class Appearance(NamedTuple):
    """How a panel is drawn, apart from its content."""

    style: Style
    look: Look = Look()
    scalebar: bool = True
    colorbar: bool = True
    ticks: bool | None = None
    """Whether axes have ticks; None: unless a scale bar replaces them in a publication."""
    vectors: str = "both"


def draw_panel(axes: Axes, panel: Panel, how: Appearance, letter: str = "") -> None:
    """Draw a panel with its title and letter."""
    style = how.style
    title, label, small = style.sizes
    axes.set_facecolor("none")
    axes.set_title(panel.title, size=title, color=style.ink)
    if letter:
        axes.annotate(
            letter, (0, 1), (-3, 5), xycoords="axes fraction", textcoords="offset points",
            ha="right", va="baseline", size=title, weight="bold", color=style.ink,
        )  # fmt: skip
    axes.tick_params(colors=style.ink, labelsize=small, length=3, width=style.line)
    axes.xaxis.label.set(color=style.ink, size=label)
    axes.yaxis.label.set(color=style.ink, size=label)
    for spine in axes.spines.values():
        spine.set(color=style.ink, linewidth=style.line)
    if isinstance(panel, Line):
        _draw_lines(axes, panel, how)
    elif isinstance(panel, VectorPanel):
        _draw_vectors(axes, panel, how)
    elif isinstance(panel, PhasePanel):
        _draw_phase(axes, panel, how)
    elif isinstance(panel, Composite):
        _draw_composite(axes, panel, how)
    else:
        _draw_image(axes, panel, how)


def width_of(panel: Panel, how: Appearance) -> float:
    """Return the width of a panel of height 1, with its colour bar or legend."""
    if isinstance(panel, Line):
        return 1.8
    aspect, (height, width) = _aspect(panel), _size(panel)
    is_hue = isinstance(panel, PhasePanel) or _has_wheel(panel, how)
    beside = 0.25 if is_hue or how.colorbar else 0.0
    return 1.5 if aspect is None else min(max(width / height / aspect, 0.6), 2.0) + beside


def _size(panel: ImagePanel | VectorPanel | PhasePanel | Composite) -> tuple[int, int]:
    """Return the height and width of a picture in pixels."""
    values = panel.channels[0].values if isinstance(panel, Composite) else panel.values
    height, width = values.shape[1:] if isinstance(panel, VectorPanel) else values.shape[:2]
    return height, width


def _axes_of(panel: ImagePanel | VectorPanel | PhasePanel | Composite) -> tuple[Axis, Axis]:
    return panel.channels[0].axes if isinstance(panel, Composite) else panel.axes


def _has_wheel(panel: Panel, how: Appearance) -> bool:
    return isinstance(panel, VectorPanel) and how.vectors != "arrows"


def _shown_axes(image: ImagePanel) -> tuple[Axis, Axis]:
    """Return the axes of an image in readable units; both in one unit if they have one already."""
    extents = [_extent(axis, n) for axis, n in zip(image.axes, image.values.shape, strict=False)]
    if len({axis.units for axis in image.axes}) == 1:
        extents = [max(extents)] * 2
    y, x = map(in_units, image.axes, extents)
    return y, x


def _extent(axis: Axis, size: int) -> float:
    return abs(axis.scale) * size


def _aspect(panel: ImagePanel | VectorPanel | PhasePanel | Composite) -> float | None:
    """Return height by width of a pixel; None if the image would be a strip."""
    (y, x), (height, width) = _axes_of(panel), _size(panel)
    aspect = abs(y.scale / x.scale) if x.units == y.units else 1.0
    return aspect if 1 / MOST_UNEVEN <= aspect * height / width <= MOST_UNEVEN else None


def _label(axis: Axis) -> str:
    units = axis.coordinate_units or axis.units
    return f"{axis.name} ({units})" if units else axis.name


def _show_coordinates(ticks: Any, axis: Axis) -> None:
    """Label the pixels of an image by the coordinates of its axis."""
    if axis.coordinates:
        pixels = range(len(axis.coordinates))
        ticks.set_major_formatter(
            lambda pixel, _: f"{np.interp(pixel, pixels, axis.coordinates):.4g}"
        )


def _place(axis: Axis, position: Any) -> Any:
    return axis.offset + axis.scale * position


def _draw_image(axes: Axes, image: ImagePanel, how: Appearance) -> tuple[Axis, Axis]:
    """Draw an image with scale bar and annotations; return its axes in the units that are shown."""
    from matplotlib.ticker import MaxNLocator

    height, width = image.values.shape[:2]
    y, x = _shown_axes(image)
    left, right, bottom, top = (
        _place(axis, end - 0.5) for axis, end in ((x, 0), (x, width), (y, height), (y, 0))
    )
    aspect = _aspect(image)
    # matplotlib's aspect is in units of the axes.
    equal = "auto" if aspect is None else aspect * abs(x.scale / y.scale)
    shown: dict[str, Any] = {"extent": (left, right, bottom, top), "aspect": equal}
    if how.style.is_publication:  # vector files hold the pixels as they are
        shown["interpolation"] = "none"
    if image.values.ndim == 3:
        axes.imshow(colours_of(image.values), **shown)
    else:
        _draw_pixels(axes, image, shown, how)
    has_bar = bool(how.scalebar and x.units and aspect is not None and x.units == y.units)
    has_ticks = not (has_bar and how.style.is_publication) if how.ticks is None else how.ticks
    for axis, one in ((axes.xaxis, x), (axes.yaxis, y)):
        if not has_ticks:
            axis.set_visible(False)
            continue
        axis.set_label_text(_label(one))
        axis.set_major_locator(MaxNLocator(4, integer=not one.units and abs(one.scale) >= 1))
        _show_coordinates(axis, one)
    _draw_marks(axes, image, (y, x))
    if has_bar:
        _draw_scale_bar(axes, abs(right - left), x.units, how.style)
    _draw_ends(axes, image.ends, how.style)
    return y, x


def _draw_marks(axes: Axes, image: ImagePanel, shown: tuple[Axis, Axis]) -> None:
    from matplotlib.collections import LineCollection

    y, x = shown
    for mark in image.marks:
        if len(mark.lines):
            lines = np.stack([_place(x, mark.lines[..., 1]), _place(y, mark.lines[..., 0])], -1)
            look: dict[str, Any] = {"linewidths": 1.4, "capstyle": "projecting"}
            axes.add_collection(LineCollection(lines, colors=CIRCLE, **look), autolim=False)
        if len(mark.places):
            places = _place(x, mark.places[:, 1]), _place(y, mark.places[:, 0])
            axes.plot(
                *places,
                "+",
                color=CIRCLE,
                markersize=7,
                markeredgewidth=1.2,
                scalex=False,
                scaley=False,
            )


def _draw_pixels(axes: Axes, image: ImagePanel, shown: dict[str, Any], how: Appearance) -> None:
    """Draw values as colours, with a colour bar."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    colours, gamma = how.look.colours_of(image.values, enhances=not how.style.is_publication)
    drawn = axes.imshow(image.values, cmap=how.look.cmap or image.colours, **colours, **shown)
    if not np.all(np.isfinite(image.values)) or np.ma.is_masked(image.values):
        axes.patch.set(hatch="/////", edgecolor=ABSENT, linewidth=0)  # seen through these pixels
    if not how.colorbar:
        return
    style, small = how.style, how.style.sizes[2]
    bar = axes.figure.colorbar(drawn, cax=_beside(axes, _ratio(shown)))
    if how.look.norm is None:
        bar.locator = MaxNLocator(4, integer=image.values.dtype.kind in "biu")
    low, high = drawn.get_clim()
    bar.formatter = EngFormatter(sep="") if max(abs(low), abs(high)) >= 1e4 else bar.formatter
    bar.update_ticks()
    bar.outline.set_visible(False)
    bar.solids.set_rasterized(style.is_publication)  # viewers show seams between polygons
    bar.ax.tick_params(colors=style.ink, labelsize=small, length=2, width=style.line, which="both")
    told = [image.units] * bool(image.units) + [f"gamma {gamma:.2g}"] * (gamma != 1)
    bar.set_label(", ".join(told), size=small, color=style.ink)


def _ratio(shown: dict[str, Any]) -> float:
    """Return height by width of an image as it is drawn; 1 if it fills its panel."""
    left, right, bottom, top = shown["extent"]
    is_filling = shown["aspect"] == "auto"
    return 1.0 if is_filling else shown["aspect"] * abs((bottom - top) / (right - left))


def _beside(axes: Axes, ratio: float) -> Axes:
    """Return axes for a colour bar beside an image; inside the space of the axes without layout."""
    if axes.figure.get_layout_engine() is not None:
        width = 0.04 * max(1.0, ratio)
        return axes.inset_axes((1 + 0.75 * width, 0, width, 1))
    from mpl_toolkits.axes_grid1 import make_axes_locatable

    return make_axes_locatable(axes).append_axes("right", "5%", pad=0.06)


def _draw_ends(axes: Axes, ends: tuple[str, str], style: Style) -> None:
    """Label the ends of the axes with anatomical directions."""
    (down, across) = ends
    places = {(0.5, 0.97): down[:1], (0.5, 0.03): down[1:]}
    places |= {(0.03, 0.5): across[:1], (0.97, 0.5): across[1:]}
    for (x, y), letter in places.items():
        if letter:
            ha = {0.03: "left", 0.97: "right"}.get(x, "center")
            va = {0.03: "bottom", 0.97: "top"}.get(y, "center")
            box = {"facecolor": ON_PIXELS, "edgecolor": "none", "pad": 1.5}
            look: dict[str, Any] = {"color": "white", "size": style.sizes[2], "weight": "bold"}
            axes.text(x, y, letter, ha=ha, va=va, transform=axes.transAxes, bbox=box, **look)


def _draw_composite(axes: Axes, panel: Composite, how: Appearance) -> None:
    from matplotlib.patches import Patch

    _draw_image(axes, panel.image, how)
    pairs = zip(panel.channels, panel.colours, strict=False)
    patches = [Patch(facecolor=colour, label=channel.title) for channel, colour in pairs]
    look: dict[str, Any] = {"facecolor": ON_PIXELS, "edgecolor": "none", "labelcolor": "white"}
    small = how.style.sizes[2]
    axes.legend(
        handles=patches, loc="upper left", fontsize=small, handlelength=1, borderaxespad=0.2, **look
    )


def _draw_vectors(axes: Axes, panel: VectorPanel, how: Appearance) -> None:
    """Draw vectors as colours with a wheel, as arrows, or both."""
    image = ImagePanel(panel.title, np.hypot(*panel.values), panel.axes, panel.units)
    longest = how.look.limits(image.values)[1]
    if how.vectors != "arrows":
        cmap = _cyclic(how.look)
        image = image._replace(values=hues(panel.values[0], panel.values[1], longest, cmap))
        _draw_wheel(axes, panel.units, longest, how, cmap)
    y, x = _draw_image(axes, image, how)
    if how.vectors == "colours":
        return
    step = max(1, -(-max(panel.values.shape[1:]) // ARROWS))
    at = slice(step // 2, None, step)
    rows, columns = (np.arange(n)[at] for n in panel.values.shape[1:])
    down, right = panel.values[:, at, at] / (longest or 1)
    on_gray = how.vectors == "arrows"
    arrows = axes.quiver(
        _place(x, columns), _place(y, rows), right, -down, color=ON_GRAY if on_gray else "white",
        edgecolor="black", linewidth=0.3, width=0.009 if on_gray else 0.006, pivot="mid",
        scale_units="width", scale=1.1 * len(columns),
    )  # fmt: skip
    arrows.set_clip_on(True)


def _cyclic(look: Look) -> Any:
    """Return the colour map of directions; None is the circle of hues."""
    import matplotlib as mpl

    return mpl.colormaps[look.cmap] if isinstance(look.cmap, str) else look.cmap


def _draw_phase(axes: Axes, panel: PhasePanel, how: Appearance) -> None:
    """Draw complex numbers: hue is the phase, brightness the modulus."""
    cmap, values = _cyclic(how.look), panel.values
    longest = how.look.limits(np.abs(values))[1]
    image = hues(-values.imag, values.real, longest, cmap)
    _draw_image(axes, ImagePanel(panel.title, image, panel.axes, panel.units), how)
    wheel = _draw_wheel(axes, panel.units, longest, how, cmap)
    for text, place, ha in (("0", (1.05, 0.5), "left"), ("π", (-0.05, 0.5), "right")):
        look: dict[str, Any] = {"size": how.style.sizes[2], "color": how.style.ink}
        wheel.text(*place, text, ha=ha, va="center", transform=wheel.transAxes, **look)


def _draw_wheel(axes: Axes, units: str, longest: float, how: Appearance, cmap: Any) -> Axes:
    """Draw the legend of directions and lengths beside an image."""
    is_beside = axes.figure.get_layout_engine() is not None
    wheel = axes.inset_axes((1.1 if is_beside else 0.7, 0.72, 0.28, 0.28))
    wy, wx = np.mgrid[-1:1:129j, -1:1:129j]
    inside = np.uint8(255 * (np.hypot(wy, wx) <= 1))
    wheel.imshow(np.dstack([hues(wy, wx, 1.0, cmap), inside]))
    wheel.set_axis_off()
    text = f"0 to {longest:.3g}\n{units}".rstrip()
    style = how.style
    wheel.text(
        0.5, -0.08, text, ha="center", va="top", size=style.sizes[2], transform=wheel.transAxes,
        color=style.ink if is_beside else "white",
        bbox=None if is_beside else {"facecolor": ON_PIXELS, "edgecolor": "none", "pad": 1.5},
    )  # fmt: skip
    return wheel


def _draw_scale_bar(axes: Axes, width: float, units: str, style: Style) -> None:
    """Draw a scale bar of 1, 2 or 5 units, visible on light and dark pixels."""
    from matplotlib.font_manager import FontProperties
    from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar

    length = round_length(width / 3)
    font, text = FontProperties(size=style.sizes[2]), f"{length:g} {units}"
    height = abs(axes.viewLim.height) / 70
    look: dict[str, Any] = {"color": "white", "label_top": True, "fontproperties": font}
    bar = AnchoredSizeBar(
        axes.transData, length, text, "lower left", borderpad=0.6, size_vertical=height, **look
    )
    bar.patch.set(facecolor=ON_PIXELS, edgecolor="none")
    axes.add_artist(bar)


def _draw_lines(axes: Axes, line: Line, how: Appearance) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    length, style = line.values.shape[1], how.style
    axis = in_units(line.axis, _extent(line.axis, length))
    axes.set_prop_cycle(color=LINES)
    lines = axes.plot(axis.points(length), line.values.T, linewidth=1)
    if len(lines) > 1:
        small = style.sizes[2]
        axes.legend(lines, line.names, fontsize=small, labelcolor=style.ink, framealpha=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)
    for name, limit in (("bottom", how.look.vmin), ("top", how.look.vmax)):
        if limit is not None:
            axes.set_ylim(**{name: limit})
    low, high = axes.get_ylim()
    if low >= high:  # one limit is given, beyond all values
        axes.set_ylim(*(how.look.limits(line.values)[:2]))
    axes.set_xlabel(_label(axis))
    axes.set_ylabel(line.units)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=not axis.units))
    if isinstance(how.look.norm, str):
        axes.set_yscale(how.look.norm)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
        if np.abs(axes.get_ylim()).max() >= 1e4:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def check_range(panels: Sequence[Panel]) -> None:
    """Raise a DatasetError if values are too far apart to be drawn."""
    for panel in panels:
        for values in map(np.ma.masked_invalid, _values_of(panel)):
            if values.dtype.kind != "f" or not values.count():
                continue
            low, high = float(values.min()), float(values.max())
            if not np.isfinite(high - low):
                found = f"{low:.3g} to {high:.3g}"
                raise DatasetError(
                    "values cannot be drawn", expected="a smaller range", found=found
                )


def notes_of(panel: Panel, how: Appearance) -> list[str]:
    """Return notes about values that have no colour or place of their own."""
    told = f"{panel.title}: " if panel.title else ""
    every = [np.ma.masked_invalid(one) for one in _values_of(panel)]
    if not any(one.count() for one in every):
        return [f"{told}no finite values"]
    if not isinstance(panel, ImagePanel | Line) or every[0].ndim > 2:
        return []
    (values,), notes = every, []
    is_line = isinstance(panel, Line)
    absent, low = values.size - values.count(), np.count_nonzero(values.compressed() <= 0)
    if absent and not is_line:
        notes.append(f"{told}{absent:,} of {values.size:,} pixels have no value: hatched")
    if isinstance(panel, ImagePanel) and (strip := _strip_text(panel)):
        notes.append(f"{told}{strip}")
    if low and how.look.is_log:
        drawn = (
            "values are not positive: left out"
            if is_line
            else "pixels are not positive: lowest colour"
        )
        notes.append(f"{told}{low:,} of {values.size:,} {drawn}")
    return notes


def _strip_text(image: ImagePanel) -> str:
    """Return that a long image fills its panel, which then has no scale bar; empty if it does not.

    Without a unit, nobody expects a scale bar.
    """
    y, x = _shown_axes(image)
    if _aspect(image) is not None or not x.units or x.units != y.units:
        return ""
    height, width = (_extent(axis, n) for axis, n in zip((y, x), image.values.shape, strict=False))
    return f"{height:.3g} by {width:.3g} {x.units}, drawn at another ratio, without a scale bar"


def _values_of(panel: Panel) -> list[Array]:
    parts = panel.channels if isinstance(panel, Composite) else [panel]
    return [part.values for part in parts]
