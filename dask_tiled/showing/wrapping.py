"""Titles in several lines, where one is too long."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

LEAST_LETTERS = 8
"""Characters of a line, also if they are wider than their room."""
BESIDE = 1.1
"""Width of a title relative to its panel: colour bars stand beside it."""


def wrap(text: Text, room: float) -> int:
    """Break a text into lines that fit into a width in pixels; return their number.

    Its own line ends stay. Formulas are not broken.
    """
    lines, width = text.get_text().split("\n"), text.get_window_extent().width
    for _ in range(3):  # letters have different widths
        if width <= room or "$" in text.get_text():
            break
        longest = max(map(len, text.get_text().splitlines()))
        letters = max(LEAST_LETTERS, int(longest * room / width))
        text.set_text("\n".join(textwrap.fill(line, letters) for line in lines))
        width = text.get_window_extent().width
    return text.get_text().count("\n") + 1


def wrap_titles(axes: Iterable[Axes]) -> int:
    """Break the titles of panels into lines; return by how many lines the longest is longer."""
    most = 1
    for one in axes:
        one.apply_aspect()
        most = max(most, wrap(one.title, BESIDE * one.get_window_extent().width))
    return most - 1
