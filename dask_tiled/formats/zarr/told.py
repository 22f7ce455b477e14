"""What an export of this package says of an array beside its axes and metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.decoders import Conversion
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Index
from dask_tiled.model.instrument import VOCABULARY, Fact, Instrument, value_of

MOST_PLACES = 1 << 24
"""Of larger scans, missing frames are counted, and not listed."""


def told_instrument(mark: Mapping[str, Any]) -> Instrument:
    """Read what an export says of the instrument; what is no fact is left out."""
    told = mark.get("instrument")
    told = told if isinstance(told, dict) else {}
    facts = {}
    for name, term in VOCABULARY.items():
        with suppress(TypeError, LookupError, ValueError, AttributeError, ArithmeticError):
            fact = told[name]
            value = value_of(fact["value"], term.unit, term)
            if value is not None and fact["unit"] == term.unit:
                facts[name] = Fact(value, term.unit, tuple(map(str, fact["where"])))
    return Instrument(facts)


def with_missing(
    desc: Description, mark: Mapping[str, Any], nav_shape: tuple[int, ...] | None
) -> Description:
    """Take frames as missing that were so in the export, and what they were filled with.

    Of what was computed of files, frames have other places.
    """
    places, fill = _told_missing(desc, mark)
    if not len(places):
        return desc
    shape = desc.nav_shape if nav_shape is None else nav_shape
    count, path = math.prod(shape), desc.files[0].path
    if count > max(MOST_PLACES, desc.layout.n_frames):
        problem = "nav_shape is too large for an export with missing frames"
        most = f"at most {MOST_PLACES} places"
        raise DatasetError(problem, path=path, expected=most, found=count)
    numbers = np.arange(count)
    numbers[places[places < count]] = -1
    shown = desc.with_frames(shape, numbers=numbers)
    axes = desc.axes if len(shape) == desc.nav_ndim else shown.axes
    conversion = Conversion.of(desc.layout.dtype, path, fill_value=fill)
    return replace(shown, axes=axes, conversion=conversion)


def _told_missing(desc: Description, mark: Mapping[str, Any]) -> tuple[Index, Any]:
    """Return the places of missing frames, and their value; no places where the export has none."""
    none = np.empty(0, np.int64), 0
    if "sig_dims" not in mark:
        return none
    try:
        (told,) = mark["missing"]
        runs = np.array(told["runs"], np.int64).reshape(-1, 2)
        fits = tuple(told["nav_shape"]) == desc.nav_shape
        fill = np.array([told["fill_value"]]).astype(desc.dtype)[0]
    except (KeyError, TypeError, ValueError, OverflowError):
        return none
    first, last = runs.T
    if not fits or (first < 0).any() or (last < first).any() or (first[1:] <= last[:-1]).any():
        return none
    there = np.zeros(desc.layout.n_frames + 1, np.int8)
    if not (last < desc.layout.n_frames).all():
        return none
    there[first] += 1
    there[last + 1] -= 1
    return np.flatnonzero(there[:-1].cumsum(dtype=np.int8)), fill
