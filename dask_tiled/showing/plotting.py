"""Drawing panels with matplotlib: side by side, a title above, notes below."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.axes import Axis
from dask_tiled.showing.panels import (
    Composite,
    ImagePanel,
    Line,
    Panel,
    VectorPanel,
    colours_of,
    contrast,
    hues,
    in_units,
    round_length,
)  # fmt: skip
from dask_tiled.tiling import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAVED_DOTS_PER_INCH = 200
WIDEST, TALLEST = 9.6, 4.0
"""Width of all panels, and height of a panel, in inches; about the width of a notebook."""
BETWEEN, AROUND = 0.6, 0.95
"""Space between rows of panels, and above and below them, in inches."""
MOST_ABREAST = 3
CIRCLE, LINES = "#3ad1f5", ("#4a90d9", "#e8833a", "#57a05a", "#c65d8f", "#8a78d0")
MOST_UNEVEN = 4.0
"""Images with a larger aspect ratio fill their panel."""
ARROWS = 20
"""Number of arrows along the longer axis."""
ON_PIXELS = "#00000090"
"""Background of text on pixels."""


def check_target(target: Any) -> None:
    """Check that matplotlib is installed, and can write the target.

    Raise an ImportError if matplotlib is not installed, and a DatasetError if the suffix is unknown
    to matplotlib.
    """
    figure = drawing.figures().new_figure(1, 1)
    if not isinstance(target, (str, os.PathLike)):
        return
    path = os.fspath(target)
    suffix, known = os.path.splitext(path)[1][1:].lower(), figure.canvas.get_supported_filetypes()
    if suffix not in known:
        expected = ", ".join(f".{name}" for name in known)
        found = suffix or "no suffix"
        raise DatasetError("unsupported file type", path=path, expected=expected, found=found)


def draw(
    drawn: list[Panel], title: str, subtitle: str, notes: list[str], *, is_shown: bool
) -> Figure:
    """Draw panels, in a figure of pyplot if it is shown, or in a separate one."""
    figures = drawing.figures()
    rows = 1 + (len(drawn) > MOST_ABREAST)
    columns = -(-len(drawn) // rows)
    widths = [max(map(_width, drawn[k::columns])) for k in range(columns)]
    each = min(TALLEST, WIDEST / sum(widths))
    height = rows * each + (rows - 1) * BETWEEN + AROUND
    make = figures.open_figure if is_shown else figures.new_figure
    figure: Figure = make(sum(widths) * each, height, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.05)
    grid = figure.subplots(rows, columns, squeeze=False, width_ratios=widths).ravel()
    for axes, panel in zip(grid, drawn, strict=False):
        _draw_panel(axes, panel, figures.INK)
    for axes in grid[len(drawn) :]:
        axes.set_axis_off()
    look: dict[str, Any] = {"color": figures.INK, "ha": "left"}
    figure.suptitle(f"{title}\n", x=0.01, size=12, weight="bold", linespacing=1.7, **look)
    figure.text(0.01, 1 - 0.42 / height, subtitle, size=9, va="center", **look)
    figure.supxlabel("; ".join(notes), x=0.01, size=8, **look)
    # Constrained layout needs two passes; drawing is the second.
    figure.get_layout_engine().execute(figure)
    figures.bring_up(figure)
    return figure


def _draw_panel(axes: Axes, panel: Panel, ink: str) -> None:
    axes.set_facecolor("none")
    axes.set_title(panel.title, size=10, color=ink)
    if isinstance(panel, Line):
        _draw_lines(axes, panel, ink)
    elif isinstance(panel, VectorPanel):
        _draw_vectors(axes, panel, ink)
    elif isinstance(panel, Composite):
        _draw_composite(axes, panel)
    else:
        _draw_image(axes, panel, ink)
    axes.tick_params(colors=ink, labelsize=8, length=3, width=0.6)
    axes.xaxis.label.set(color=ink, size=9)
    axes.yaxis.label.set(color=ink, size=9)
    for spine in axes.spines.values():
        spine.set(color=ink, linewidth=0.6)


def _extent(axis: Axis, size: int) -> float:
    return abs(axis.scale) * size


def _shown_axes(image: ImagePanel) -> tuple[Axis, Axis]:
    """Return the axes of an image in readable units; both in one unit if they have one already."""
    extents = [_extent(axis, n) for axis, n in zip(image.axes, image.values.shape, strict=False)]
    if len({axis.units for axis in image.axes}) == 1:
        extents = [max(extents)] * 2
    y, x = map(in_units, image.axes, extents)
    return y, x


def _aspect(image: ImagePanel) -> float | None:
    """Return height by width of a pixel; None if the image would be a strip."""
    y, x = image.axes
    aspect = abs(y.scale / x.scale) if x.units == y.units else 1.0
    height, width = image.values.shape[:2]
    return aspect if 1 / MOST_UNEVEN <= aspect * height / width <= MOST_UNEVEN else None


def _width(panel: Panel) -> float:
    """Return the width of a panel of height 1."""
    if isinstance(panel, Line):
        return 1.8
    image = _as_image(panel)
    aspect, (height, width) = _aspect(image), image.values.shape[:2]
    return 1.5 if aspect is None else min(max(width / height / aspect, 0.6), 2.0) + 0.25


def _as_image(panel: ImagePanel | VectorPanel | Composite) -> ImagePanel:
    if isinstance(panel, Composite):
        return panel.image
    if isinstance(panel, VectorPanel):
        return ImagePanel(
            panel.title,
            hues(panel.values[0], panel.values[1], panel.longest),
            panel.axes,
            panel.units,
        )
    return panel


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


def _draw_image(axes: Axes, image: ImagePanel, ink: str = "") -> tuple[Axis, Axis]:
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
    if image.values.ndim == 3:
        axes.imshow(colours_of(image.values), **shown)
    else:
        _draw_pixels(axes, image, shown, ink)
    for axis, one in ((axes.xaxis, x), (axes.yaxis, y)):
        axis.set_label_text(_label(one))
        axis.set_major_locator(MaxNLocator(4, integer=not one.units and abs(one.scale) >= 1))
        _show_coordinates(axis, one)
    if image.disk is not None:
        from matplotlib.patches import Ellipse

        at = _place(x, image.disk.x), _place(y, image.disk.y)
        sizes = (2 * image.disk.radius * abs(axis.scale) for axis in (x, y))
        axes.add_patch(Ellipse(at, *sizes, fill=False, edgecolor=CIRCLE, linewidth=1.4))
    if x.units and aspect is not None and (x.units == y.units):
        _draw_scale_bar(axes, abs(right - left), x.units)
    _draw_ends(axes, image.ends)
    return y, x


def _draw_pixels(axes: Axes, image: ImagePanel, shown: dict[str, Any], ink: str) -> None:
    """Draw values as colours, with a colour bar."""
    from matplotlib.colors import Normalize, PowerNorm
    from matplotlib.ticker import EngFormatter, MaxNLocator

    low, high, gamma = contrast(image.values)
    norm = Normalize(low, high) if gamma == 1 else PowerNorm(gamma, low, high)
    bar = axes.figure.colorbar(
        axes.imshow(image.values, cmap=image.colours, norm=norm, **shown),
        cax=axes.inset_axes((1.03, 0, 0.04, 1)), ticks=MaxNLocator(4),
    )  # fmt: skip
    bar.formatter = EngFormatter(sep="") if max(abs(low), abs(high)) >= 1e4 else bar.formatter
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=ink, labelsize=8, length=2, width=0.6)
    told = [image.units] * bool(image.units) + [f"gamma {gamma:.2g}"] * (gamma != 1)
    bar.set_label(", ".join(told), size=8, color=ink)


def _draw_ends(axes: Axes, ends: tuple[str, str]) -> None:
    """Label the ends of the axes with anatomical directions."""
    (down, across) = ends
    places = {(0.5, 0.97): down[:1], (0.5, 0.03): down[1:]}
    places |= {(0.03, 0.5): across[:1], (0.97, 0.5): across[1:]}
    for (x, y), letter in places.items():
        if letter:
            ha = {0.03: "left", 0.97: "right"}.get(x, "center")
            va = {0.03: "bottom", 0.97: "top"}.get(y, "center")
            box = {"facecolor": ON_PIXELS, "edgecolor": "none", "pad": 1.5}
            look: dict[str, Any] = {"color": "white", "size": 8, "weight": "bold", "bbox": box}
            axes.text(x, y, letter, ha=ha, va=va, transform=axes.transAxes, **look)


def _draw_composite(axes: Axes, panel: Composite) -> None:
    from matplotlib.patches import Patch

    _draw_image(axes, panel.image)
    pairs = zip(panel.channels, panel.colours, strict=False)
    patches = [Patch(facecolor=colour, label=channel.title) for channel, colour in pairs]
    look: dict[str, Any] = {"facecolor": ON_PIXELS, "edgecolor": "none", "labelcolor": "white"}
    axes.legend(
        handles=patches, loc="upper left", fontsize=8, handlelength=1, borderaxespad=0.2, **look
    )


def _draw_vectors(axes: Axes, panel: VectorPanel, ink: str) -> None:
    """Draw vectors as colours and some arrows, with a colour wheel."""
    y, x = _draw_image(axes, _as_image(panel))
    step = max(1, -(-max(panel.values.shape[1:]) // ARROWS))
    at = slice(step // 2, None, step)
    rows, columns = (np.arange(n)[at] for n in panel.values.shape[1:])
    down, right = panel.values[:, at, at] / (panel.longest or 1)
    arrows = axes.quiver(
        _place(x, columns), _place(y, rows), right, -down,
        color="white", alpha=0.8, pivot="mid", scale_units="width", scale=1.2 * len(columns),
    )  # fmt: skip
    arrows.set_clip_on(True)
    wheel = axes.inset_axes((1.04, 0.68, 0.32, 0.32))
    wy, wx = np.mgrid[-1:1:65j, -1:1:65j]
    colours = hues(wy, wx, 1.0)
    inside = np.uint8(255 * (np.hypot(wy, wx) <= 1))
    wheel.imshow(np.dstack([colours, inside]))
    wheel.set_axis_off()
    units = panel.units and f" {panel.units}"
    text = f"0 to {panel.longest:.3g}{units}"
    axes.text(1.2, 0.66, text, ha="center", va="top", size=8, color=ink, transform=axes.transAxes)


def _draw_scale_bar(axes: Axes, width: float, units: str) -> None:
    """Draw a scale bar of 1, 2 or 5 units, visible on light and dark pixels."""
    from matplotlib.font_manager import FontProperties
    from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar

    length = round_length(width / 3)
    font, text = FontProperties(size=8), f"{length:g} {units}"
    height = abs(axes.viewLim.height) / 70
    look: dict[str, Any] = {"color": "white", "label_top": True, "fontproperties": font}
    bar = AnchoredSizeBar(
        axes.transData, length, text, "lower left", borderpad=0.6, size_vertical=height, **look
    )
    bar.patch.set(facecolor=ON_PIXELS, edgecolor="none")
    axes.add_artist(bar)


def _draw_lines(axes: Axes, line: Line, ink: str) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    length = line.values.shape[1]
    axis = in_units(line.axis, _extent(line.axis, length))
    axes.set_prop_cycle(color=LINES)
    lines = axes.plot(axis.points(length), line.values.T, linewidth=1)
    if len(lines) > 1:
        axes.legend(lines, line.names, fontsize=8, labelcolor=ink, framealpha=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)
    axes.set_xlabel(_label(axis))
    axes.set_ylabel(line.units)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=not axis.units))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    if np.abs(axes.get_ylim()).max() >= 1e4:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
