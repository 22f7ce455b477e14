"""Facts about the instrument, in one vocabulary for all formats."""

from __future__ import annotations

import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache, cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.model.tables import html_table, text_table
from dask_tiled.model.units import SHOWN, Prefixed


class Term(NamedTuple):
    """A term of the vocabulary: unit and meaning of its values."""

    unit: str
    meaning: str
    kind: str = "positive"
    """``"positive"`` (a number for which 0 means unset), ``"number"``, ``"text"`` or ``"date"``."""


VOCABULARY: Mapping[str, Term] = {
    "microscope": Term("", "name of the microscope", "text"),
    "acquisition_mode": Term("", "such as TEM, STEM or SEM", "text"),
    "beam_energy": Term("V", "voltage that accelerates the electrons"),
    "beam_current": Term("A", "current of the beam at the specimen"),
    "photon_energy": Term("eV", "of X-rays or light"),
    "wavelength": Term("m", "of the incident radiation"),
    "magnification": Term("", "as displayed by the microscope"),
    "camera_length": Term("m", "as displayed by the microscope"),
    "convergence_angle": Term("rad", "semi-angle of the convergent beam"),
    "collection_angle": Term("rad", "semi-angle of the detector"),
    "inner_collection_angle": Term("rad", "inner semi-angle of an annular detector"),
    "defocus": Term("m", "distance of the focus from the specimen", "number"),
    "working_distance": Term("m", "from the last lens to the focus", "number"),
    "stage_x": Term("m", "position of the specimen", "number"),
    "stage_y": Term("m", "position of the specimen", "number"),
    "stage_z": Term("m", "height of the specimen", "number"),
    "tilt_alpha": Term("rad", "tilt about the axis of the holder", "number"),
    "tilt_beta": Term("rad", "tilt about the second axis", "number"),
    "rotation": Term("rad", "of the stage, about its normal", "number"),
    "detector": Term("", "name of the detector or camera", "text"),
    "y_pixel_size": Term("m", "of the detector"),
    "x_pixel_size": Term("m", "of the detector"),
    "exposure_time": Term("s", "of a frame or a spectrum"),
    "live_time": Term("s", "for which the detector counted, of spectra"),
    "real_time": Term("s", "of the clock meanwhile, live time and dead time"),
    "dwell_time": Term("s", "of the beam at a position of the scan"),
    "gain": Term("", "counts per electron"),
    "gain_setting": Term("", "as named by the detector", "text"),
    "threshold": Term("eV", "lowest energy that the detector counts"),
    "date": Term("", "of the acquisition, in ISO 8601, with the time zone if known", "date"),
}
"""Names follow HyperSpy or, where it has none, NeXus (NXem, NXdetector)."""

LONGEST_TEXT = 200
"""Longer texts are not accepted as names."""
MOST_WALKED = 2000
"""Maximum number of dicts searched for a path with ``**``."""
_ALIASES = {"mR": "mrad", "Angstrom": "Å", "angstrom": "Å", "second": "s", "seconds": "s"}
_DEGREES = ("deg", "degree", "degrees", "°")
_NUMBER = re.compile(r"([+-]?(?:\d++\.?\d*+|\.\d++)(?:[eE][+-]?\d++)?)(\D*+)", re.ASCII)


class Fact(NamedTuple):
    """A fact about the instrument.

    Attributes
    ----------
    value : float or str
    unit : str
        Unit of the value; empty if it has none.
    where : tuple of str
        Keys of the value in the metadata of the description.

    Examples
    --------
    >>> import dask_tiled
    >>> fact = dask_tiled.describe(dask_tiled.samples.gold()).instrument["exposure_time"]
    >>> isinstance(fact, dask_tiled.Fact), fact.unit
    (True, 's')
    """

    value: float | str
    unit: str
    where: tuple[str, ...]

    def __str__(self) -> str:
        value = f"{self.value:.10g}" if isinstance(self.value, float) else self.value
        return f"{value} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Entry:
    """Location of a fact about the instrument in the metadata of a format.

    Attributes
    ----------
    path : str
        Keys of the value, separated by slashes; ``*`` matches any characters of a key, and ``**``
        any number of keys.
    unit : str
        Unit of the number, for example ``"kV"``. ``"@kV"`` reads the unit from the key
        ``name@units`` or ``name_units``, with kV as the default. A unit at the end of a text takes
        precedence. Empty for values without a unit.
    read : callable, optional
        Function that converts the value, which may be a dict, to a number, a text, a date or a
        datetime. It may return None, or raise errors for values of a wrong type.
    when : callable, optional
        Predicate of the dict that holds the value; if it is false, the entry is ignored.
    """

    path: str
    unit: str = ""
    read: Callable[[Any], Any] | None = None
    when: Callable[[Mapping[str, Any]], bool] | None = None


def entries(tables: Mapping[str, Iterable[tuple[Any, ...]]]) -> dict[str, list[Entry]]:
    """Return entries by vocabulary name, for the ``instrument`` of a format.

    Parameters
    ----------
    tables : mapping
        Tables by the path of their part of the metadata. Each row is a name of the vocabulary and
        the fields of an :class:`Entry`, whose path is relative to that part; an empty path is the
        part itself.
    """
    found: dict[str, list[Entry]] = {}
    for place, rows in tables.items():
        for name, path, *fields in rows:
            found.setdefault(name, []).append(Entry(f"{place}/{path}".rstrip("/"), *fields))
    return found


@dataclass(frozen=True, repr=False, eq=False)
class Instrument(Mapping[str, Fact]):
    """Facts about the instrument, by vocabulary name.

    An immutable mapping that prints as a table.

    Parameters
    ----------
    told : mapping
        Facts of a file that stores them by these names.
    metadata, entries : mapping
        Otherwise facts are read from metadata on first access: for each name the first entry with a
        valid value. Missing, unset and invalid values are left out.

    Examples
    --------
    >>> import dask_tiled
    >>> instrument = dask_tiled.describe(dask_tiled.samples.gold()).instrument
    >>> isinstance(instrument, dask_tiled.Instrument), instrument["detector"].value
    (True, 'Merlin ...')
    """

    told: Mapping[str, Fact] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, Sequence[Entry]] = field(default_factory=dict)

    @cached_property
    def facts(self) -> Mapping[str, Fact]:
        """All facts by name."""
        if self.told:
            return self.told
        facts = {}
        for name, term in VOCABULARY.items():
            for entry in self.entries.get(name, ()):
                fact = _read(self.metadata, entry, term)
                if fact is not None:
                    facts[name] = fact
                    break
        return facts

    def __reduce__(self) -> tuple[Any, ...]:
        return Instrument, (self.facts,)  # entries may hold functions that do not pickle

    def __getitem__(self, name: str) -> Fact:
        return self.facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)

    def rows(self) -> list[tuple[str, str, str]]:
        """List names, values with units, and metadata keys."""
        return [(name, str(fact), " / ".join(fact.where)) for name, fact in self.items()]

    def line(self) -> str:
        """Return the facts on one line: texts unchanged, numbers with name and prefixed unit."""
        return ", ".join(
            fact.value
            if isinstance(fact.value, str)
            else f"{name.replace('_', ' ')} {_prefixed(fact.value, fact.unit)}"
            for name, fact in self.items()
        )

    def __repr__(self) -> str:
        return text_table(self.rows()) or "no facts about the instrument"

    def _repr_html_(self) -> str:
        return html_table(self.rows()) if self else "no facts about the instrument"


def _prefixed(value: float, unit: str) -> str:
    """Format a number with a prefix for its unit."""
    if not unit or not value:
        return f"{value:.4g} {unit}".rstrip()
    power = min(max(math.floor(math.log10(abs(value)) / 3) * 3, min(SHOWN)), max(SHOWN))
    return f"{value / 10**power:.4g} {SHOWN[power]}{unit}"


def _read(metadata: Mapping[str, Any], entry: Entry, term: Term) -> Fact | None:
    for where, beside in _places(metadata, _keys(entry.path)):
        with suppress(Exception):  # functions of formats may raise any for invalid values
            told = _told(beside, where[-1], entry, term)
            if told is not None:
                return Fact(told, term.unit, where)
    return None


def _told(beside: Mapping[str, Any], key: str, entry: Entry, term: Term) -> float | str | None:
    """Return the value of a key if the entry applies; raise errors for invalid values."""
    if entry.when is not None and not entry.when(beside):
        return None
    found = beside[key] if entry.read is None else entry.read(beside[key])
    unit = entry.unit
    if unit.startswith("@"):
        units = (beside.get(f"{key}{mark}units") for mark in "@_")
        unit = next(filter(None, units), unit[1:])
    return value_of(found, unit, term)


@cache
def _keys(path: str) -> tuple[str, ...]:
    return tuple(map(sys.intern, path.split("/")))  # interned: a pickle then holds equal keys once


def _places(
    tree: Mapping[str, Any], keys: tuple[str, ...], where: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Find the places that keys match: each with the dict that holds the last key."""
    key, rest = keys[0], keys[1:]
    if key == "**":
        for place, inner in _below(tree, where):
            yield from _places(inner, rest, place)
        return
    names: Iterable[str] = (key,) if key in tree else ()
    if "*" in key:
        names = (one for one in tree if isinstance(one, str) and fnmatchcase(one, key))
    for one in names:
        if not rest:
            yield (*where, one), tree
        elif isinstance(tree[one], dict):
            yield from _places(tree[one], rest, (*where, one))


def _below(
    tree: Mapping[str, Any], where: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Walk nested dicts breadth-first, beginning with the root; at most ``MOST_WALKED``."""
    waiting = deque([(where, tree)])
    for _ in range(MOST_WALKED):
        if not waiting:
            return
        where, tree = waiting.popleft()
        yield where, tree
        inner = (((*where, key), one) for key, one in tree.items() if isinstance(one, dict))
        waiting.extend(islice(inner, MOST_WALKED - len(waiting)))


def value_of(found: Any, unit: str, term: Term) -> float | str | None:
    """Return a valid value of a vocabulary term, else None."""
    if term.kind == "text":
        text = found.strip()
        return text if 0 < len(text) <= LONGEST_TEXT and text.isprintable() else None
    if term.kind == "date":
        if isinstance(found, str):
            kind = datetime if ":" in found else date  # do not add midnight to a plain date
            found = kind.fromisoformat(found.strip())
        return found.isoformat() if isinstance(found, date) and found.year > 1 else None
    number = _number(found, unit, term.unit)
    return None if number is not None and number <= 0 and term.kind == "positive" else number


def _number(found: Any, unit: str, to: str) -> float | None:
    if isinstance(found, str):
        match = _NUMBER.fullmatch(found.strip())
        if match is None:
            return None
        found, unit = float(match[1]), match[2].strip() or unit
    if isinstance(found, bool) or not isinstance(found, (int, float, np.number)):
        return None
    number = converted(float(found), unit, to)
    # Adding 0 turns -0.0 into 0.0.
    return number + 0.0 if number is not None and math.isfinite(number) else None


def converted(number: float, unit: str, to: str) -> float | None:
    """Convert a number to a unit of the vocabulary; None if the units are not compatible.

    Powers of ten are exact: 0.07 ms is 7e-05 s. An electron energy in eV converts to volts.
    """
    unit = _ALIASES.get(unit, unit)
    if unit == to:
        return number
    if to == "rad" and unit in _DEGREES:
        return math.radians(number)
    if to == "m" and unit in {"Å", "A"}:
        return float(Decimal(repr(number)).scaleb(-10))
    own = Prefixed.of(unit)
    if own is None or own.inverse or (own.base != to and (own.base, to) != ("eV", "V")):
        return None
    return float(Decimal(repr(number)).scaleb(own.power))
