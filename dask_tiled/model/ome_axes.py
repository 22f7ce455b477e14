"""Axes in the words of OME-Zarr: units, types, and the order of types.

Follows the OME-NGFF specification, versions 0.4 and 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_tiled.model.axes import WAVELENGTHS, Axis

PREFIXES = {
    "y": "yocto", "z": "zepto", "a": "atto", "f": "femto", "p": "pico", "n": "nano", "µ": "micro",
    "m": "milli", "c": "centi", "d": "deci", "": "", "h": "hecto", "k": "kilo", "M": "mega",
    "G": "giga", "T": "tera", "P": "peta", "E": "exa", "Z": "zetta", "Y": "yotta",
}  # fmt: skip
LENGTHS = {f"{short}m": f"{long}meter" for short, long in PREFIXES.items()}
LENGTHS |= {"Å": "angstrom", "in": "inch", "ft": "foot", "yd": "yard", "mi": "mile"}
TIMES = {f"{short}s": f"{long}second" for short, long in PREFIXES.items()}
TIMES |= {"min": "minute", "h": "hour", "d": "day"}
ALIASES = {"A": "Å", "\N{GREEK SMALL LETTER MU}m": "µm", "\N{GREEK SMALL LETTER MU}s": "µs"}
ALIASES |= {"um": "µm", "us": "µs"}
TIME, CHANNEL, SPACE, INDEX = "time", "channel", "space", "index"
"""Types of axes. The last one is for axes that are neither of the others: the official schema takes
axes without a type for space."""
NAMES = {
    CHANNEL: {"c", "channel", "s", "rgb", "colour", "component", *WAVELENGTHS},
    TIME: {"t", "time"},
    SPACE: {"x", "y", "z", "depth"},
}
"""Names of axes of each type."""
SERIES, DEPTHS = "frame", ("z", "depth")
"""Names of axes: images of a series, and planes of a volume."""
ORDERS: dict[int, tuple[tuple[str, ...], ...]] = {
    2: ((SPACE, SPACE),),
    3: ((INDEX, SPACE, SPACE), (CHANNEL, SPACE, SPACE), (TIME, SPACE, SPACE), (SPACE,) * 3),
    4: ((INDEX, *(SPACE,) * 3), (CHANNEL, *(SPACE,) * 3), (TIME, *(SPACE,) * 3),
        (TIME, CHANNEL, SPACE, SPACE), (TIME, INDEX, SPACE, SPACE)),
    5: ((TIME, CHANNEL, *(SPACE,) * 3), (TIME, INDEX, *(SPACE,) * 3)),
}  # fmt: skip
"""Types that the specification allows, by number of axes: at most one of time, then at most one of
channels or another type, then two or three of space."""
NEAR = 2.0
"""The step along z is near those along y and x if it is less than this many times as long or as
short."""


def word_of(unit: str) -> str:
    """Return the specification's word for a unit; other units are unchanged."""
    unit = ALIASES.get(unit, unit)
    return LENGTHS.get(unit) or TIMES.get(unit, unit)


def unit_of(word: str) -> str:
    """Return the unit for a word of the specification; other words are unchanged."""
    return _UNITS.get(word, word)


_UNITS = {word: unit for unit, word in (LENGTHS | TIMES).items()}


def types_of(axes: Sequence[Axis]) -> tuple[str, ...] | None:
    """Return the types of axes; None if the specification does not allow them in this order.

    The type follows from the name or the unit; others from the order of axes.
    """
    known = [_type(axis) for axis in axes]
    best: tuple[str, ...] | None = None
    most = -1
    for order in ORDERS.get(len(axes), ()):
        fits = zip(axes, known, order, strict=True)
        alike = sum((one or INDEX) == kind for one, kind in zip(known, order, strict=True))
        if alike > most and all(_may_be(kind, axis.name, one) for axis, one, kind in fits):
            best, most = order, alike
    return best


def _type(axis: Axis) -> str:
    """Return the type that the name or unit of an axis implies; empty if neither does."""
    name, word = axis.name.casefold(), word_of(axis.units)
    if name in NAMES[CHANNEL]:
        return CHANNEL
    if word in TIMES.values() or word in LENGTHS.values():
        return TIME if word in TIMES.values() else SPACE
    return next((kind for kind, names in NAMES.items() if name in names), "")


def _may_be(kind: str, name: str, known: str) -> bool:
    """Return whether an axis may have a type, given the type that its name or unit implies."""
    if kind == INDEX:
        return known in ("", SPACE)
    free = not known and (kind == SPACE or (kind == TIME and name == SERIES))
    return known == kind or free


def halved_axes(axes: Sequence[Axis], sig_ndim: int) -> tuple[int, ...]:
    """Choose the axes that a pyramid halves: y and x, and z if its step is near theirs.

    Without axes of these names, the last ``sig_ndim``, or all three of a volume; never channels.
    """
    names = [axis.name.casefold() for axis in axes]
    if {"y", "x"} <= {*names}:
        plane = [names.index("y"), names.index("x")]
        depth = [k for k, name in enumerate(names) if name in DEPTHS][:1]
        return tuple(sorted(plane + [k for k in depth if _is_near(axes[k], axes, plane)]))
    kinds = [_type(axis) for axis in axes]
    count = 3 if kinds == [SPACE] * 3 else min(3, sig_ndim)
    last = range(max(0, len(axes) - count), len(axes))
    return tuple(k for k in last if kinds[k] != CHANNEL or len(last) == 1)


def _is_near(depth: Axis, axes: Sequence[Axis], places: Sequence[int]) -> bool:
    """Return whether the step of an axis is near those of others, in the same unit."""
    steps = [abs(axes[k].scale) for k in places]
    alike = all(axes[k].units == depth.units for k in places) and not depth.coordinates
    return alike and max(steps) / NEAR < abs(depth.scale) < min(steps) * NEAR
