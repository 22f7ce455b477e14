"""Figures of panels: side by side, a title above, notes below; or panels on axes of the user."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.showing.panel_plots import Appearance, draw_panel, width_of
from dask_tiled.showing.panels import Panel
from dask_tiled.showing.styles import MM, NARROW, WIDE
from dask_tiled.showing.wrapping import wrap, wrap_titles
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
"""Panels of a single row; rows of several have one more at most."""
LEAST_ON_SCREEN, LEAST_OF_PUBLICATION = 50.0, 25.0
"""Widths of panels in mm below which fewer stand side by side."""
LINE, TITLE_LINE = 0.3, 0.17
"""Heights of a line of the title of a figure, and of a panel, in inches."""
NOTE_WIDTH = 45
"""Characters in a line of a note below axes of the user."""


class Sheet(NamedTuple):
    """Content of a figure: panels, and how each is drawn."""

    panels: list[Panel]
    appearances: list[Appearance]
    letters: list[str]
    title: str
    subtitle: str
    notes: list[str]


def check_target(target: Any) -> None:
    """Check that matplotlib is installed, and can write the target.

    Raise an ImportError if matplotlib is not installed, and a DatasetError if the target is neither
    path nor file, or the suffix is unknown to matplotlib.
    """
    figure = drawing.figures().new_figure(1, 1)
    if target is None or hasattr(target, "write"):
        return
    if not isinstance(target, (str, os.PathLike)):
        raise DatasetError("invalid target", expected="a path or a file", found=repr(target))
    path = os.fspath(target)
    suffix, known = os.path.splitext(path)[1][1:].lower(), figure.canvas.get_supported_filetypes()
    if suffix not in known:
        expected = ", ".join(f".{name}" for name in known)
        found = suffix or "no suffix"
        raise DatasetError("unsupported file type", path=path, expected=expected, found=found)


def axes_of(ax: Any) -> list[Axes] | None:
    """Return the axes that a user passes; None if there are none.

    Raise a DatasetError for other objects, for axes of several figures, and for axes that repeat.
    """
    if ax is None:
        return None
    from matplotlib.axes import Axes

    given = [*np.ravel(np.asarray(ax, dtype=object))]
    wrong = next((one for one in given if not isinstance(one, Axes)), None)
    if wrong is not None or not given:
        found = type(wrong).__name__ if given else "no axes"
        raise DatasetError("invalid ax", expected="axes of matplotlib", found=found)
    figures = {one.figure.canvas.figure for one in given}
    if len(figures) > 1:
        found = f"axes of {len(figures)} figures"
        raise DatasetError("invalid ax", expected="axes of one figure", found=found)
    if len({*given}) < len(given):
        raise DatasetError("invalid ax", expected="axes for each picture", found="the same twice")
    return given


def draw_on(axes: Sequence[Axes], sheet: Sheet) -> Figure:
    """Draw panels on axes of the user, with notes below the first; return their figure.

    Raise a DatasetError if there are not as many axes as panels.
    """
    if len(axes) != len(sheet.panels):
        names = ", ".join(repr(panel.title) for panel in sheet.panels if panel.title)
        expected = f"{len(sheet.panels)} axes{f', for {names}' if names else ''}"
        raise DatasetError("invalid ax", expected=expected, found=f"{len(axes)} axes")
    draw_panels(axes, sheet)
    wrap_titles(axes)
    if sheet.notes and not sheet.appearances[0].style.is_publication:
        label = axes[0].xaxis.label
        note = textwrap.fill("; ".join(sheet.notes), NOTE_WIDTH)
        label.set_text(f"{label.get_text()}\n{note}")
    figure: Figure = axes[0].figure.canvas.figure  # also of a subfigure
    return figure


def draw_panels(axes: Sequence[Axes], sheet: Sheet) -> None:
    """Draw panels on axes."""
    for ax, panel, how, letter in zip(
        axes, sheet.panels, sheet.appearances, sheet.letters, strict=False
    ):
        draw_panel(ax, panel, how, letter)


def draw(
    sheet: Sheet, *, columns: int | None = None, width: float | None = None, is_shown: bool
) -> Figure:
    """Draw panels, in a figure of pyplot if it is shown, or in a separate one.

    ``width`` is in mm.
    """
    figures, style = drawing.figures(), sheet.appearances[0].style
    if columns is None:
        columns = _columns(len(sheet.panels))
        if width is not None:
            least = LEAST_OF_PUBLICATION if style.is_publication else LEAST_ON_SCREEN
            columns = min(columns, max(1, int(width / least)))
    rows = -(-len(sheet.panels) // columns)
    needed = [*map(width_of, sheet.panels, sheet.appearances)]
    widths = [max(needed[k::columns]) for k in range(min(columns, len(needed)))]
    make = figures.open_figure if is_shown else figures.new_figure
    if style.is_publication and width is None:
        width = NARROW if len(widths) == 1 else WIDE
    each = min(TALLEST, WIDEST / sum(widths)) if width is None else width * MM / sum(widths)
    is_bare = style.is_publication or not (sheet.title or sheet.subtitle)
    height = rows * each + (rows - 1) * BETWEEN + (AROUND / 2 if is_bare else AROUND)
    figure: Figure = make(sum(widths) * each, height, layout="constrained")
    figure.set_facecolor(style.ground)
    figure.saved_with, figure.notes = style.saved_with, tuple(sheet.notes)
    grid = figure.subplots(rows, len(widths), squeeze=False, width_ratios=widths).ravel()
    draw_panels(grid, sheet)
    for axes in grid:
        axes.set_anchor("N")
    for axes in grid[len(sheet.panels) :]:
        axes.set_axis_off()
    if style.is_publication:
        _finish_publication(figure, sheet.title, grid)
    else:
        _finish_screen(figure, sheet, grid)
    figures.bring_up(figure)
    return figure


def check_columns(columns: Any) -> int | None:
    """Check a number of columns; None leaves it open."""
    return None if columns is None else check_whole("columns", columns, least=1)


def _columns(panels: int) -> int:
    """Return a number of columns that leaves few places empty."""
    rows = 1 if panels <= MOST_ABREAST else max(2, -(-panels // (MOST_ABREAST + 1)))
    return -(-panels // rows)


def _finish_screen(figure: Figure, sheet: Sheet, grid: Sequence[Axes]) -> None:
    """Write the title, the subtitle and notes around the panels."""
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.05)
    look: dict[str, Any] = {"color": sheet.appearances[0].style.ink, "ha": "left"}
    if sheet.title or sheet.subtitle:
        bold: dict[str, Any] = {"size": 12, "weight": "bold", "linespacing": 1.7}
        title = figure.suptitle(sheet.title, x=0.01, **bold, **look)
        below = figure.text(0.01, 1, sheet.subtitle, size=9, va="center", **look)
        room = 0.98 * figure.bbox.width
        lines, small = wrap(title, room), wrap(below, room)
        # The title has empty lines, on which the subtitle lies.
        title.set_text(title.get_text() + "\n" * (small if sheet.subtitle else 0))
        height = figure.get_figheight() + (lines + small - 2) * LINE
        figure.set_figheight(height)
        below.set_y(1 - (0.42 + (lines - 1 + (small - 1) / 2) * LINE) / height)
    figure.supxlabel("; ".join(sheet.notes), x=0.01, size=8, wrap=True, **look)
    # Constrained layout needs two passes; drawing is the second.
    figure.get_layout_engine().execute(figure)
    if more := wrap_titles(grid):
        figure.set_figheight(figure.get_figheight() + more * TITLE_LINE)
        for _ in range(2):
            figure.get_layout_engine().execute(figure)


def _finish_publication(figure: Figure, title: str, grid: Sequence[Axes]) -> None:
    """Write the title if there is one, and fit the height of the figure to its content."""
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.04)
    if title:
        wrap(figure.suptitle(title, size=9, weight="bold"), 0.98 * figure.bbox.width)
    figure.get_layout_engine().execute(figure)
    wrap_titles(grid)
    for _ in range(3):
        figure.get_layout_engine().execute(figure)
        content = figure.get_tightbbox()
        if not math.isfinite(content.height) or content.height <= 0:
            return
        figure.set_figheight(content.height + 0.06)
