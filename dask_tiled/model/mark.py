"""Attributes of exported arrays: record their source as JSON values, and restore it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import is_url
from dask_tiled.model.axes import Axis
from dask_tiled.model.decoders import Conversion
from dask_tiled.model.description import Description
from dask_tiled.model.doubts import INCOMPLETE, as_json, unfinished
from dask_tiled.model.indexing import Index
from dask_tiled.model.instrument import VOCABULARY, Fact, Instrument, value_of

MARK = "dask_tiled"
"""Attribute of arrays that this package writes or presents."""
MOST_PLACES = 1 << 24
"""Positions of missing frames are counted, not listed, in larger scans."""


def attributes_of(axes: Sequence[Axis | None], of: Sequence[Description]) -> dict[str, Any]:
    """Return attributes that record the axes and the source files of an array.

    Only file names are recorded: folders are private.
    """
    mark: dict[str, Any] = {"version": _version()}
    if any(axes):
        mark["axes"] = [axis and axis.as_json() for axis in axes]
    if of:
        mark["files"] = [name_of(file.path) for desc in of for file in desc.files]
    folders = {os.path.dirname(file.path) for desc in of for file in desc.files}
    if len(of) == 1:
        told = [one for one in of[0].metadata.values() if isinstance(one, Mapping)]
        beside = [one["xml_path"] for one in told if isinstance(one.get("xml_path"), str)]
        folders |= {os.path.dirname(path) for path in beside}
        mark |= {"format": of[0].format, "metadata": without(folders, json_value(of[0].metadata))}
        if of[0].instrument:
            known = {name: fact._asdict() for name, fact in of[0].instrument.items()}
            mark["instrument"] = without(folders, json_value(known))
    lacking = [_missing(desc) for desc in of if desc.layout.count_missing()]
    if lacking:
        mark["missing"] = lacking
    if not all(desc.complete for desc in of):
        mark["complete"] = False
    doubts = as_json(dict.fromkeys(one for desc in of for one in desc.doubts))
    if doubts:
        mark["doubts"] = without(folders, doubts)
    return {MARK: json_value(mark)}


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("dask-tiled")


def name_of(path: str) -> str:
    """Return the name of a file, without the query of a URL, which may be a secret."""
    return os.path.basename(path.partition("?")[0] if is_url(path) else path)


def _missing(desc: Description) -> dict[str, Any]:
    """Describe the missing frames: the first and last position of each run."""
    listed: dict[str, Any] = {
        "file": name_of(desc.files[0].path),
        "nav_shape": desc.nav_shape,
        "fill_value": desc.conversion.fill_value,
        "count": desc.layout.count_missing(),
    }
    if math.prod(desc.nav_shape) <= MOST_PLACES:
        places = desc.missing
        gaps = np.diff(places) > 1
        first, last = np.append(True, gaps), np.append(gaps, True)
        listed["runs"] = np.column_stack([places[first], places[last]])
    return listed


def json_value(value: Any) -> Any:
    """Return a value as JSON types; anything else is converted to text."""
    if isinstance(value, Mapping):
        return {json_value(str(key)): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, np.ndarray):
        return json_value(value.tolist())
    if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
        # File names may hold bytes that are not valid text.
        return str(value).encode(errors="backslashreplace").decode()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    item = value.item() if isinstance(value, np.generic) else str(value)
    return str(item) if isinstance(item, np.generic) else json_value(item)


def without(folders: set[str], value: Any) -> Any:
    """Remove folder names from all texts of a JSON value."""
    if isinstance(value, dict):
        return {key: without(folders, item) for key, item in value.items()}
    if isinstance(value, list):
        return [without(folders, item) for item in value]
    if isinstance(value, str):
        for folder in folders:
            value = value.replace(os.path.join(folder, ""), "") if len(folder) > 1 else value
    return value


def told_instrument(mark: Mapping[str, Any]) -> Instrument:
    """Restore the instrument from exported attributes; invalid facts are skipped."""
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
    """Restore missing frames and their fill value from exported attributes.

    For arrays computed from files, the positions of frames do not apply.
    """
    places, fill = _told_missing(desc, mark)
    if not len(places):
        return desc if mark.get("complete", True) else _unfinished(desc)
    shape = desc.nav_shape if nav_shape is None else nav_shape
    count, path = math.prod(shape), desc.files[0].path
    if count > max(MOST_PLACES, desc.layout.n_frames):
        problem = "nav_shape is too large for an export with missing frames"
        most = f"at most {MOST_PLACES} positions"
        raise DatasetError(problem, path=path, expected=most, found=count)
    numbers = np.arange(count)
    numbers[places[places < count]] = -1
    shown = desc.with_frames(shape, numbers=numbers)
    axes = desc.axes if len(shape) == desc.nav_ndim else shown.axes
    conversion = Conversion.of(desc.layout.dtype, path, fill_value=fill)
    return replace(shown, axes=axes, conversion=conversion)


def _unfinished(desc: Description) -> Description:
    """Return the description of an export whose sources lacked frames, at unknown positions."""
    desc = desc.with_facts(complete=False)
    if INCOMPLETE & {one.code for one in desc.doubts}:
        return desc
    return desc.with_doubts(unfinished("frames were lacking when it was exported"))


def _told_missing(desc: Description, mark: Mapping[str, Any]) -> tuple[Index, Any]:
    """Return the positions of missing frames and their fill value; empty if none are recorded."""
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
