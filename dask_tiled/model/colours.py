"""Colours of channels, as text: ``"#rrggbb"``."""

from __future__ import annotations

import re
from typing import Any

_COLOUR = re.compile("#[0-9a-f]{6}")
_STORED = re.compile("#?(?:[0-9a-fA-F]{2})?([0-9a-fA-F]{6})")


def rgb(number: int) -> str:
    """Format the number 0xRRGGBB; higher bytes are ignored."""
    return f"#{number & 0xFFFFFF:06x}"


def rgb_in(text: str | None) -> str:
    """Parse ``RRGGBB`` or ``AARRGGBB``, perhaps after ``#``; empty if invalid."""
    known = _STORED.fullmatch((text or "").strip())
    return f"#{known[1].lower()}" if known else ""


def of_channels(colours: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return the colours of all channels; empty if none is known."""
    return tuple(colours) if any(colours) else ()


def is_sound_list(colours: Any) -> bool:
    """Return whether a value is a tuple of colours, or of empty texts where they are unknown."""
    if not isinstance(colours, tuple):
        return False
    return all(isinstance(one, str) and (not one or _COLOUR.fullmatch(one)) for one in colours)
