"""Data items of Nion Swift, .ndata in its projects and .ndata1 if exported: an array and JSON.

Layout facts: the modules NDataHandler and ImportExportManager of nionswift, which writes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from dask_tiled.errors import Guard
from dask_tiled.files.file import File
from dask_tiled.formats import tools
from dask_tiled.formats.npz import StoredArray, first_name
from dask_tiled.formats.tools.text import parse_json
from dask_tiled.formats.tools.zips import FolderEntry, ZipIndex
from dask_tiled.model.axes import nav_axes, sig_axes
from dask_tiled.model.instrument import entries

DATA, METADATA = "data.npy", "metadata.json"
CALIBRATIONS = "dimensional_calibrations", "spatial_calibrations"
"""Keys of the scales of all axes, in projects and in exported files."""
MOST_BYTES = 1 << 25
"""Longest metadata."""
INSTRUMENT = entries(
    {
        "ndata/properties/metadata": [
            ("beam_energy", "instrument/high_tension", "V"),
            ("beam_energy", "hardware_source/autostem/high_tension_v", "V"),
            ("exposure_time", "hardware_source/exposure", "s"),
            ("detector", "hardware_source/hardware_source_name"),
        ]
    }
)


def sniff(path: str, head: bytes) -> str | None:
    """Check for a zip file that begins with one of the two members, and has both."""
    if first_name(head) not in {DATA, METADATA}:
        return f"no zip file that begins with {DATA} or {METADATA}"
    there = ZipIndex(File.at(path)).members.keys() >= {DATA, METADATA}
    return None if there else f"no {METADATA} in the zip file"


def describe(paths: Sequence[str], *, sig_dims: int | None = None) -> tools.Description:
    """Describe a data item.

    Parameters
    ----------
    sig_dims : int, optional
        How many of the last axes are signal axes; by default from the metadata, or 2.
    """
    file = tools.File.only(paths, "ndata")
    index = ZipIndex(file)
    for name in (DATA, METADATA):
        if name not in index.members:
            problem = "a member of the zip file is missing"
            raise tools.CorruptFileError(problem, path=file.path, expected=name)
    entry, metadata = index.entries([DATA, METADATA])
    array, properties = StoredArray.of(entry), _read_properties(metadata)
    shape = array.header.shape
    split = len(shape) - (_sig_ndim(properties, len(shape)) if sig_dims is None else sig_dims)
    nav, sig = shape[: max(0, split)], shape[max(0, split) :]
    intensity = _group(properties.get("intensity_calibration"))
    facts = {
        "title": str(properties.get("title", "")),
        "units": _units(intensity),
        "is_sequence": bool(properties.get("is_sequence", False)),
        "properties": _as_tuples(properties),
    }
    axes = nav_axes(len(nav)) + sig_axes(len(sig))
    return array.described("ndata", nav, sig, facts, _calibrated(axes, properties))


def _read_properties(entry: FolderEntry) -> dict[str, Any]:
    if entry.size > MOST_BYTES:
        problem, expected = "the metadata are too long", f"at most {MOST_BYTES} bytes"
        raise tools.CorruptFileError(problem, path=entry.path, expected=expected, found=entry.size)
    with Guard(entry.path, "the metadata cannot be read"):
        found = parse_json(entry.read())
        if not isinstance(found, dict):
            raise TypeError(type(found).__name__)
    older = found.get("data_sources")
    inner = _group(older[0]) if isinstance(older, list) and older else {}
    return {**inner, **found}


def _sig_ndim(properties: Mapping[str, Any], ndim: int) -> int:
    """Return the number of axes of a datum: a spectrum or an image."""
    told = properties.get("datum_dimension_count")
    if isinstance(told, int) and not isinstance(told, bool) and 0 < told <= ndim:
        return told
    return min(2, ndim)


def _calibrated(
    axes: tuple[tools.Axis, ...], properties: Mapping[str, Any]
) -> tuple[tools.Axis, ...]:
    """Return axes with the calibrations of the file, if there is one for each."""
    found = next((properties[key] for key in CALIBRATIONS if key in properties), ())
    if not isinstance(found, list) or len(found) != len(axes):
        return axes
    calibrated = []
    for axis, one in zip(axes, map(_group, found), strict=True):
        units = one.get("units")
        units = units if isinstance(units, str) else ""
        name = "energy" if axis.name == "channel" and units.endswith("eV") else axis.name
        scale, offset = one.get("scale", 1.0), one.get("offset", 0.0)
        with suppress(TypeError, ValueError, OverflowError):
            axis = tools.Axis.calibrated(name, units, float(scale), float(offset), signed=True)  # noqa: PLW2901
        calibrated.append(axis)
    return tuple(calibrated)


def _units(intensity: Mapping[str, Any]) -> str:
    """Return the unit of unscaled pixels; empty if they need scaling."""
    stored = intensity.get("scale") == 1 and intensity.get("offset") == 0
    units = intensity.get("units")
    return units if stored and isinstance(units, str) else ""


def _as_tuples(value: Any) -> Any:
    """Convert lists to tuples."""
    if isinstance(value, dict):
        return {key: _as_tuples(item) for key, item in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _group(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


FORMAT = tools.Format(
    name="ndata",
    extensions=(".ndata", ".ndata1"),
    summary="data items of Nion Swift: images, spectra, spectrum images, 4D-STEM",
    nav_shape_from="the metadata",
    sniff=sniff,
    describe=describe,
    instrument=INSTRUMENT,
    peers=("nionswift", "numpy"),
    aliases=("nion", "nion_swift"),
)
