"""Colours of channels, as text: ``"#rrggbb"``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle
from typing import Any

PALETTE = "#00ffff", "#ff00ff", "#ffff00", "#00ff00", "#ff0000", "#0000ff"
"""Colours of channels without colours: cyan, magenta, yellow, green, red, blue."""
WHITE, BLACK = "#ffffff", "#000000"
_COLOUR = re.compile("#[0-9a-f]{6}")
_STORED = re.compile("#?(?:[0-9a-fA-F]{2})?([0-9a-fA-F]{6})")


def rgb(number: int) -> str:
    """Format the number 0xRRGGBB; higher bytes are ignored."""
    return f"#{number & 0xFFFFFF:06x}"


def signed_rgba(colour: str) -> int:
    """Return an opaque colour as a signed 32-bit integer, 0xRRGGBBAA."""
    number = int(colour[1:], 16) << 8 | 0xFF
    return number - (number >> 31 << 32)


def rgb_in(text: str | None) -> str:
    """Parse ``RRGGBB`` or ``AARRGGBB``, perhaps after ``#``; empty if invalid."""
    known = _STORED.fullmatch((text or "").strip())
    return f"#{known[1].lower()}" if known else ""


def drawn(colours: Sequence[str], count: int) -> list[str]:
    """Return the colours in which channels are drawn.

    Those of the file, unless two channels or more have the same one, as in files whose writer
    stored a default; unknown ones are the next of the palette.
    """
    known = [*colours] if len(colours) == count else [""] * count
    if count == 1:
        return [known[0] if known[0] not in ("", BLACK) else WHITE]
    if len({*known} - {"", BLACK}) < 2:
        known = [""] * count
    free = cycle([one for one in PALETTE if one not in known] or PALETTE)
    return [one if one not in ("", BLACK) else next(free) for one in known]


def of_channels(colours: Sequence[str]) -> tuple[str, ...]:
    """Return the colours of all channels; empty if none is known."""
    return tuple(colours) if any(colours) else ()


def is_sound_list(colours: Any) -> bool:
    """Return whether a value is a tuple of colours, or of empty texts where they are unknown."""
    if not isinstance(colours, tuple):
        return False
    return all(isinstance(one, str) and (not one or _COLOUR.fullmatch(one)) for one in colours)
