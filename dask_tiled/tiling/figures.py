"""Figures that are displayed once: in a window or a notebook, or not at all without a display."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from matplotlib.backends import BackendFilter, backend_registry
from matplotlib.figure import Figure

INK = "#767676"
"""Colour of text and lines: legible on white and on black, as backgrounds are transparent."""
DOTS_PER_INCH = 192
"""Resolution of pictures in notebooks, which are shown at half their size for dense screens."""
WIDEST = 960
"""Largest width in points on a screen, that of a notebook."""
MOST_OPEN = 20
"""Maximum number of open windows; pyplot warns of more."""


class ShownFigure(Figure):  # type: ignore[misc]
    """A figure with a transparent background, registered with pyplot if that can show it."""

    notes: tuple[str, ...] = ()
    """What was sampled or left out."""
    saved_with: Mapping[str, Any] = MappingProxyType({})
    """Settings of matplotlib for saving."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.set_facecolor("none")  # pyplot would set a background

    def savefig(self, *args: Any, **options: Any) -> None:
        """Save the figure, in its style."""
        with mpl.rc_context(dict(self.saved_with)):
            super().savefig(*args, **options)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]] | None:
        if self.canvas.manager is not None and not _is_inline():
            return None  # shown by a window or a widget
        file = BytesIO()
        self.savefig(file, format="png", dpi=DOTS_PER_INCH)
        width = min(int(self.get_figwidth() * DOTS_PER_INCH / 2), WIDEST)
        return file.getvalue(), {"width": width}

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """Show the picture now, instead of at the end of the cell by pyplot."""
        if self.canvas.manager is None or not _is_inline():
            raise NotImplementedError  # IPython falls back to the picture or the text
        from matplotlib import pyplot as plt

        plt.close(self)
        png, told = self._repr_png_() or (b"", {})
        return {"image/png": png}, {"image/png": told}


def new_figure(width: float, height: float, **options: Any) -> ShownFigure:
    """Create a figure, of a size in inches, that is not registered with pyplot."""
    return ShownFigure(figsize=(width, height), **options)


def open_figure(width: float, height: float, **options: Any) -> ShownFigure:
    """Create a figure for ``pyplot.show()``, if that can show any.

    The oldest of too many open windows is closed, so that loops do not accumulate windows.
    """
    from matplotlib import pyplot as plt

    if not _can_be_shown():
        return new_figure(width, height, **options)
    figures = [plt.figure(number) for number in plt.get_fignums()]
    ours = [figure for figure in figures if isinstance(figure, ShownFigure)]
    windows = [figure for figure in ours if _is_window(figure)]
    for figure in windows[: max(0, len(windows) + 1 - MOST_OPEN)]:
        plt.close(figure)
    most = mpl.rcParams["figure.max_open_warning"]
    mpl.rcParams["figure.max_open_warning"] = 0  # figures of the user do not count
    try:  # rc_context would undo settings of a backend that loads meanwhile
        made: ShownFigure = plt.figure(figsize=(width, height), FigureClass=ShownFigure, **options)
    finally:
        mpl.rcParams["figure.max_open_warning"] = most
    return made


def bring_up(figure: Figure) -> None:
    """Open the window of a figure in an interactive session, where nothing else would open it."""
    if _is_window(figure) and hasattr(sys, "ps1"):
        figure.show()


def _is_window(figure: Figure) -> bool:
    canvas = figure.canvas
    return canvas.manager is not None and canvas.required_interactive_framework is not None


def _can_be_shown() -> bool:
    """Return whether pyplot has windows or notebooks, and may open them in this thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        name = mpl.get_backend().lower()
    except ImportError:  # a window backend is configured, but there is no display
        return False
    return name not in backend_registry.list_builtin(BackendFilter.NON_INTERACTIVE)


def _is_inline() -> bool:
    return "inline" in mpl.get_backend().lower()
