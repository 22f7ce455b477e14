"""Styles of figures: for screens, and for publications."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, product
from string import ascii_lowercase
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.tiling import drawing

MM = 1 / 25.4
"""A millimetre in inches."""
LETTERS = re.compile(r"(\W*)(abc|ABC|123)(\W*)")
WIDE, NARROW = 180.0, 90.0
"""Widths of publications in mm: two columns of a page, or one for a single picture."""
LEAST_WIDTH, MOST_WIDTH = 20.0, 2000.0
"""Widths of figures in mm."""


class Style(NamedTuple):
    """Sizes and colours of a figure, except for those of pixels."""

    ink: str
    """Colour of text and lines."""
    ground: str
    """Colour of the background."""
    sizes: tuple[float, float, float]
    """Sizes of titles, of labels, and of ticks and other text, in points."""
    line: float
    """Width of lines in points."""
    is_publication: bool = False
    saved_with: Mapping[str, Any] = MappingProxyType({})
    """Settings of matplotlib for saving the figure."""


def style_of(name: Any, *, on_axes: bool = False) -> Style:
    """Return a style by its name; None is that of screens, or of the user's axes.

    Raise a DatasetError for other names.
    """
    if name is None:
        import matplotlib as mpl

        # Legible on white and on black, as backgrounds are transparent.
        ink = mpl.rcParams["text.color"] if on_axes else drawing.figures().INK
        return Style(ink, "none", (10, 9, 8), 0.6)
    if name != "publication":
        expected = "'publication', or None for screens"
        raise DatasetError("unknown style", expected=expected, found=repr(name))
    # Fonts are embedded as a whole (Type 42), so that other programs can edit text.
    fonts = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
    saved_with = MappingProxyType({**fonts, "savefig.dpi": 600})
    return Style("black", "white", (8, 7, 7), 0.5, is_publication=True, saved_with=saved_with)


def check_width(width: Any) -> float | None:
    """Check the width of a figure in mm.

    Raise a DatasetError if it is no number, or unsuitable for a figure.
    """
    is_number = isinstance(width, int | float | np.integer | np.floating) and not isinstance(
        width, bool
    )
    if width is None or (is_number and LEAST_WIDTH <= width <= MOST_WIDTH):
        return None if width is None else float(width)
    expected = f"{LEAST_WIDTH:g} to {MOST_WIDTH:g} mm"
    raise DatasetError("invalid width", expected=expected, found=repr(width))


def letters_of(labels: Any, panels: int) -> list[str]:
    """Return the letters of panels: "abc", "ABC" or "123", perhaps with brackets, or a sequence.

    Raise a DatasetError for other texts, and for sequences of another length.
    """
    labels = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not labels:
        return [""] * panels
    if not isinstance(labels, str):
        letters = [*map(str, labels)] if isinstance(labels, Sequence) else []
        if len(letters) != panels:
            expected = f"one for each of {panels} pictures"
            raise DatasetError("invalid labels", expected=expected, found=repr(labels))
        return letters
    match = LETTERS.fullmatch(labels)
    if match is None:
        expected = "'abc', 'ABC', '123', these in brackets such as '(abc)', or a sequence"
        raise DatasetError("invalid labels", expected=expected, found=repr(labels))
    before, kind, after = match.groups()
    names = map(str, count(1)) if kind == "123" else _letters()
    texts = (next(names) for _ in range(panels))
    return [f"{before}{text.upper() if kind == 'ABC' else text}{after}" for text in texts]


def _letters() -> Iterator[str]:
    """Yield a to z, aa, ab and so on."""
    for length in count(1):
        yield from map("".join, product(ascii_lowercase, repeat=length))
