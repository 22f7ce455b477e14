"""Units of axes: how much one is in another."""

from __future__ import annotations

import re

PREFIXES = {"p": 1e-12, "n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6}
PIXELS = {"", "px", "pixel", "pixels"}
UNIT = re.compile(r"(1/)?([pnumkMµμ]?)(m|s|eV|rad|V|A|Hz)(\^-1)?")


def conversion(unit: str, other: str) -> float | None:
    """Return how much 1 of a unit is in another one; None if that is of another kind, or unknown.

    Those that have a prefix are known, and what pint knows where it is installed.
    """
    if unit == other:
        return 1.0
    if PIXELS & {unit, other}:  # for pint these are lengths on paper, and nothing is an angle
        return None
    one, two = _parsed(unit), _parsed(other)
    if one is not None and two is not None:
        return one[1] / two[1] if one[0] == two[0] else None
    try:
        import pint
    except ImportError:
        return None
    registry = pint.get_application_registry()
    try:
        return float(registry.Quantity(1.0, unit).to(other).magnitude)
    except Exception:  # noqa: BLE001 - of many kinds, for units as files write them
        return None


def _parsed(unit: str) -> tuple[tuple[str, bool], float] | None:
    """Return the kind of a unit, and its size without the prefix."""
    found = UNIT.fullmatch(unit)
    if found is None:
        return None
    inverse, prefix = bool(found[1] or found[4]), found[2]
    size = PREFIXES["µ" if prefix in ("u", "\u03bc") else prefix]
    return (found[3], inverse), 1 / size if inverse else size
