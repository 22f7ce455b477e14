"""Rendering of pictures: SVG for notebooks, matplotlib for everything else."""

from __future__ import annotations

import html
from types import ModuleType
from typing import TYPE_CHECKING

from dask_tiled.errors import require_extra
from dask_tiled.tiling.pictures import Drawing, Shape, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE = "#4a90d9", "#e8833a"
# Colour of lines and fillings (None is the text colour), line width, opacity of fillings.
STYLES: dict[str, tuple[str | None, float, float]] = {
    "outline": (None, 1.1, 0.0),
    "cut": (None, 0.4, 0.0),
    "body": (BLUE, 0.0, 0.16),
    "chunk": (BLUE, 1.4, 0.4),
    "tile": (ORANGE, 1.2, 0.65),
}
FONT_SIZE = 10.5


def svg(picture: Drawing) -> str:
    """Render a picture as SVG, in the colour of the surrounding text."""
    drawn = (_svg_shape(p) if isinstance(p, Shape) else _svg_text(p) for p in picture.parts)
    width, height = f"{picture.width:.0f}", f"{picture.height:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" '
        f'font-family="sans-serif" font-size="{FONT_SIZE}" fill="currentColor" '
        'style="max-width: 100%; height: auto">' + "".join(drawn) + "</svg>"
    )


def _svg_shape(shape: Shape) -> str:
    colour, width, opacity = STYLES[shape.style]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
    fill = f'fill="{colour}" fill-opacity="{opacity}"' if opacity else 'fill="none"'
    line = f'stroke="{colour or "currentColor"}" stroke-width="{width}"' if width else ""
    kind = "polyline" if shape.style == "cut" else "polygon"
    return f'<{kind} points="{points}" {fill} {line} stroke-linejoin="round"/>'


def _svg_text(text: Text) -> str:
    place = f'x="{text.x:.1f}" y="{text.y:.1f}"'
    weight = ' font-weight="bold"' if text.bold else ""
    turn = f' transform="rotate(-90 {text.x:.1f} {text.y:.1f})"' if text.upright else ""
    return (
        f'<text {place}{weight}{turn} text-anchor="{text.anchor}">{html.escape(text.text)}</text>'
    )


def figures() -> ModuleType:
    """Return the module of figures, which requires matplotlib.

    Raise an ImportError if matplotlib is not installed.
    """
    figures: ModuleType = require_extra("plot", "matplotlib", "dask_tiled.tiling.figures")
    return figures


def figure(picture: Drawing) -> Figure:
    """Render a picture with matplotlib, in colours for any background."""
    module = figures()
    from matplotlib.patches import Polygon

    ink = module.INK
    fig: Figure = module.open_figure(picture.width / 72, picture.height / 72)
    axes = fig.add_axes((0, 0, 1, 1), facecolor="none")
    axes.set(xlim=(0, picture.width), ylim=(picture.height, 0))
    axes.set_axis_off()
    for part in picture.parts:
        if isinstance(part, Text):
            axes.text(
                part.x,
                part.y,
                part.text,
                color=ink,
                ha="left" if part.anchor == "start" else "center",
                size=FONT_SIZE,
                weight="bold" if part.bold else "normal",
                rotation=90 if part.upright else 0,
                rotation_mode="anchor",
            )
            continue
        colour, width, opacity = STYLES[part.style]
        patch = Polygon(
            part.points,
            closed=part.style != "cut",
            facecolor=(colour, opacity) if colour else "none",
            edgecolor=(colour or ink) if width else "none",
            linewidth=width,
            joinstyle="round",
        )
        axes.add_patch(patch)
    module.bring_up(fig)
    return fig
