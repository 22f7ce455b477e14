"""Figures that show themselves in a notebook, where nobody has set up matplotlib for that."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure

INK = "#767676"
"""Of text and lines: as easy to read on white as on black, for backgrounds are left out."""
DOTS_PER_INCH = 192
"""Of pictures in notebooks, which show them at half their size: screens are fine nowadays."""
WIDEST = 960
"""Points of a screen: as wide as a notebook."""


class ShownFigure(Figure):  # type: ignore[misc]
    """A figure that pyplot does not know of, on no background."""

    def __init__(self, width: float, height: float, **options: object) -> None:
        super().__init__(figsize=(width, height), facecolor="none", **options)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        file = BytesIO()
        self.savefig(file, format="png", dpi=DOTS_PER_INCH)
        width = min(int(self.get_figwidth() * DOTS_PER_INCH / 2), WIDEST)
        return file.getvalue(), {"width": width}
