"""Units of axes, and conversion between them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import NamedTuple

POWERS = {"p": -12, "n": -9, "µ": -6, "m": -3, "c": -2, "": 0, "k": 3, "M": 6, "G": 9}
"""Powers of ten of SI prefixes."""
SHOWN = {power: prefix for prefix, power in POWERS.items() if power % 3 == 0}
"""Prefixes used for display, by power of ten."""
LARGEST = {"m": 3, "s": 0, "rad": 0}
"""Powers of the largest prefixes in use: no Mm, ks or krad."""
PIXELS = {"", "px", "pixel", "pixels"}
PLANCK, CHARGE, MASS, LIGHT = 6.62607015e-34, 1.602176634e-19, 9.1093837139e-31, 299792458.0
"""CODATA 2022, in SI units: h, e, the mass of the electron, and c."""
MICRONS = {"micron", "microns", *(f"micromet{end}" for end in ("er", "ers", "re", "res"))}
_UNIT = re.compile(r"(1/)?([pnumckMGµμ]?)(m|s|eV|rad|V|A|Hz)(\^-1)?")


class Prefixed(NamedTuple):
    """A unit with an optional prefix, or its inverse."""

    prefix: str
    base: str
    inverse: bool = False

    @classmethod
    def of(cls, unit: str) -> Prefixed | None:
        """Parse a unit as files write it; None if it is not recognised."""
        found = _UNIT.fullmatch(unit)
        if found is None:
            return None
        prefix = "µ" if found[2] in ("u", "\u03bc") else found[2]
        return cls(prefix, found[3], bool(found[1] or found[4]))

    def __str__(self) -> str:
        return f"{'1/' if self.inverse else ''}{self.prefix}{self.base}"

    @property
    def power(self) -> int:
        """Power of ten relative to the unprefixed unit."""
        return -POWERS[self.prefix] if self.inverse else POWERS[self.prefix]


def spelled(unit: str) -> str:
    """Return a unit with "µ" where files write "u" or a Greek letter, or "micron" for µm."""
    if unit.strip().lower() in MICRONS:
        return "µm"
    known = Prefixed.of(unit)
    written = known is not None and known.prefix == "µ"
    return unit.replace("u", "µ").replace("\u03bc", "µ") if written else unit


def prefixes_of(base: str) -> dict[int, str]:
    """Return the prefixes with which a unit is displayed, by power of ten."""
    most = LARGEST.get(base, max(SHOWN))
    return {power: prefix for power, prefix in SHOWN.items() if power <= most}


def readable(unit: str, size: float) -> tuple[str, float]:
    """Return a unit in which a size is 0.5 to 500, and how much 1 of the given unit is in it.

    Units are unchanged if they are not recognised, or if the size is 0.01 to 10,000 already.
    """
    known = Prefixed.of(unit)
    if known is None or not math.isfinite(size) or 0.01 <= abs(size) < 1e4 or not size:
        return unit, 1.0
    power = known.power + math.floor(math.log10(abs(size)) + math.log10(2))
    prefixes = prefixes_of(known.base)
    least, most = sorted(-one if known.inverse else one for one in (min(prefixes), max(prefixes)))
    power = min(max(power // 3 * 3, least), most)
    prefix = prefixes[-power if known.inverse else power]
    return str(known._replace(prefix=prefix)), 10.0 ** (known.power - power)


def prefixed(unit: str, size: float) -> tuple[str, float]:
    """Return a unit with the prefix of a size below 1, and how much 1 is in it."""
    if not 0 < abs(size) < 1:
        return unit, 1.0
    power = max(math.floor(math.log10(abs(size))) // 3 * 3, min(SHOWN))
    return f"{SHOWN[power]}{unit}", 10.0**-power


def shifted(number: float, power: int) -> float:
    """Multiply by a power of ten, without errors of rounding."""
    return float(Decimal(repr(float(number))).scaleb(power))


def conversion(unit: str, other: str) -> float | None:
    """Return how much 1 of a unit is in another; None if incompatible or unknown.

    Units with SI prefixes are built in; pint, if installed, converts others.
    """
    if unit == other:
        return 1.0
    if PIXELS & {unit, other}:  # pint treats pixels as lengths on paper, and "" as an angle
        return None
    one, two = Prefixed.of(unit), Prefixed.of(other)
    if one is not None and two is not None:
        alike = (one.base, one.inverse) == (two.base, two.inverse)
        return 10.0 ** (one.power - two.power) if alike else None
    try:
        import pint
    except ImportError:
        return None
    registry = pint.get_application_registry()
    try:
        return float(registry.Quantity(1.0, unit).to(other).magnitude)
    except Exception:  # noqa: BLE001 - pint raises many errors for units from files
        return None


def interaction_constant(volts: float) -> float:
    """Return the phase in rad that electrons gain in a potential of 1 V over 1 nm."""
    energy = MASS * LIGHT**2 + CHARGE * volts
    mass = energy / LIGHT**2
    length = wavelength(volts) * 1e-9
    return 1e-9 * 2 * math.pi * mass * CHARGE * length / PLANCK**2


def wavelength(volts: float) -> float:
    """Return the relativistic wavelength of electrons in nm."""
    energy = CHARGE * volts
    momentum = math.sqrt(2 * MASS * energy * (1 + energy / (2 * MASS * LIGHT**2)))
    return 1e9 * PLANCK / momentum
