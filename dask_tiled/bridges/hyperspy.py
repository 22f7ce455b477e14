"""HyperSpy signals: calibrated axes and metadata under HyperSpy's names."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from dask_tiled.bridges.pictures import open_pictures
from dask_tiled.errors import require_extra
from dask_tiled.export.zarr.group import DATA, labels_of
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description, facts_of
from dask_tiled.model.mark import json_value, name_of
from dask_tiled.model.units import shifted
from dask_tiled.opened.axes import ArrayAxes, shown_of
from dask_tiled.opening.arrays import opened
from dask_tiled.opening.describing import Path
from dask_tiled.opening.stored_results import stored_results

if TYPE_CHECKING:
    from hyperspy.signal import BaseSignal

DEGREES = "degrees"
NAVIGATOR = "_sig_navigator"
"""Item of HyperSpy's metadata with the navigator of a signal."""
NAVIGATORS = "navigator", "sum"
"""Names of stored results that are preferred as navigator."""
PLACES: Mapping[str, tuple[str, int | str]] = {
    "microscope": ("microscope", 0),
    "acquisition_mode": ("acquisition_mode", 0),
    "magnification": ("magnification", 0),
    "beam_energy": ("beam_energy", -3),
    "beam_current": ("beam_current", 9),
    "camera_length": ("camera_length", 3),
    "convergence_angle": ("convergence_angle", 3),
    "working_distance": ("working_distance", 3),
    "dwell_time": ("dwell_time", 0),
    "stage_x": ("Stage.x", 3),
    "stage_y": ("Stage.y", 3),
    "stage_z": ("Stage.z", 3),
    "rotation": ("Stage.rotation", DEGREES),
    "tilt_alpha": ("Stage.tilt_alpha", DEGREES),
    "tilt_beta": ("Stage.tilt_beta", DEGREES),
    "detector": ("Detector.Camera.name", 0),
    "exposure_time": ("Detector.Camera.exposure", 0),
}
"""Paths in HyperSpy's metadata by instrument field, with the power of ten of the unit: keV, nA,
mm, mrad, degrees."""


def file_reader(filename: Path, lazy: bool = True, **options: Any) -> list[dict[str, Any]]:  # noqa: FBT001, FBT002 - following RosettaSciIO
    """Read a file like a reader of RosettaSciIO.

    Called by HyperSpy: ``hs.load(path, lazy=True, file_format=dask_tiled)``.

    Parameters
    ----------
    filename : path-like
        The file.
    lazy : bool
        Whether the data are lazy arrays, or in memory.
    **options
        Options of :func:`open_dataset`.

    Returns
    -------
    list of dict
        A dict for each image of the file, first the image that :func:`open_dataset` opens. ``data``
        is the array, of the shape (navigation, signal) and the dtype of the file. ``axes`` is a
        list of dicts, in the order of the array: ``name``, ``units``, ``scale``, ``offset``,
        ``size``, ``navigate`` and ``index_in_array``. ``metadata`` has facts about the instrument
        at HyperSpy's paths, in its units; files of HyperSpy keep their own. ``original_metadata``
        has the headers by the name of the format.

    Raises
    ------
    DatasetError
        As for :func:`open_dataset`.

    Warns
    -----
    UserWarning
        One of several images cannot be opened, and is skipped.

    Examples
    --------
    >>> import dask_tiled
    >>> (signal,) = dask_tiled.file_reader(dask_tiled.samples.gold())
    >>> [axis["name"] for axis in signal["axes"]]
    ['scan_y', 'scan_x', 'y', 'x']
    """
    opened = open_pictures(filename, options)
    signals = [signal_of(arr, "" if name == DATA else name) for name, arr in opened]
    told = (signal["metadata"].get("_HyperSpy", {}) for signal in signals)
    navigators = [one[NAVIGATOR] for one in told if NAVIGATOR in one]
    for signal in () if lazy else (*signals, *navigators):
        signal["data"] = signal["data"].compute()
    return signals


def to_hyperspy(data: Any, **options: Any) -> BaseSignal:
    """Return a lazy signal of HyperSpy, with calibrated axes and metadata.

    Parameters
    ----------
    data : path-like, sequence of path-like, dask.array.Array, or DataArray of xarray
        Files for :func:`open_dataset`, or an array: an opened one, or one computed
        from it, as long as its remaining axes are known.
    **options
        Options of :func:`open_dataset`, for files.

    Returns
    -------
    hyperspy.signal.BaseSignal
        With one signal axis a ``LazySignal1D``, with two a ``LazySignal2D``, and so on; complex
        ones for complex pixels. Signal axes are those of frames; if none of them remains, as
        in a map of sums of frames, the last two axes.

    Raises
    ------
    DatasetError
        Options are given with an opened array; or as for :func:`open_dataset`.
    ImportError
        HyperSpy is not installed.

    Examples
    --------
    >>> import dask_tiled
    >>> dask_tiled.to_hyperspy(dask_tiled.samples.gold())
    <LazySignal2D, title: ..., dimensions: (64, 60|128, 128)>
    """
    io = require_extra("hyperspy", "hyperspy.io")
    return io.dict2signal(signal_of(opened(data, **options)), lazy=True)


def signal_of(arr: da.Array, title: str = "") -> dict[str, Any]:
    """Return an array as a signal dict of RosettaSciIO."""
    shown = shown_of(arr)
    metadata, headers = {}, {}
    if len(shown.of) == 1:
        metadata, headers = _metadata(shown.of[0]), json_value(shown.of[0].metadata)
    metadata.setdefault("General", {}).setdefault("title", title)
    axes = _axes(shown, arr.shape)
    navigator = _navigator(arr, [one["name"] for one in axes if one["navigate"]])
    if navigator is not None:
        metadata["_HyperSpy"] = {NAVIGATOR: signal_of(navigator)}
    return {"data": arr, "axes": axes, "metadata": metadata, "original_metadata": headers}


def _navigator(arr: da.Array, nav: Sequence[str]) -> da.Array | None:
    """Return a stored image of the scan, or None."""
    images = {
        name: one
        for name, one in stored_results(arr).items()
        if [axis and axis.name for axis in shown_of(one).axes] == nav and one.dtype.kind in "biuf"
    }
    preferred = (name for name in (*NAVIGATORS, *images) if name in images)
    return images.get(next(preferred, ""))


def _axes(shown: ArrayAxes, shape: Sequence[int]) -> list[dict[str, Any]]:
    names = {axis.name for desc in shown.of for axis in desc.axes[desc.nav_ndim :]}
    signal = {k for k, axis in enumerate(shown.axes) if axis is not None and axis.name in names}
    signal = signal or {*range(len(shape))[-2:]}
    axes = labels_of(shown.axes, shape, ()).axes
    return [
        {"name": axis.name, **_places(axis, size), "navigate": k not in signal, "index_in_array": k}
        for k, (axis, size) in enumerate(zip(axes, shape, strict=True))
    ]


def _places(axis: Axis, size: int) -> dict[str, Any]:
    """Return the positions of an axis: uneven ones if HyperSpy supports them, in one direction."""
    points = axis.points(size)
    ordered = len({*np.sign(np.diff(points)).tolist()}) == 1
    if len(axis.coordinates) == size and ordered:
        return {"_type": "DataAxis", "units": axis.coordinate_units, "axis": points}
    scale, offset = axis.scale or 1.0, axis.offset
    return {"units": axis.units, "scale": scale, "offset": offset, "size": size}


def _metadata(desc: Description) -> dict[str, Any]:
    """Return HyperSpy metadata for a file; files of HyperSpy have their own."""
    facts = facts_of(desc)
    beside = os.path.dirname(str(facts.get("dataset", ""))) + "/metadata"
    metadata = json_value(facts.get("facts", {}).get(beside, {}))
    if {"General", "Signal"} <= metadata.keys():
        metadata.pop("_HyperSpy", None)
        return metadata
    told = {name: fact.value for name, fact in desc.instrument.items()}
    general: dict[str, Any] = {"original_filename": name_of(desc.files[0].path)}
    title = facts.get("title") or facts.get("name")
    if isinstance(title, str):
        general["title"] = title
    if "date" in told:
        general |= _moment(str(told["date"]))
    scanning = str(told.get("acquisition_mode", "")).upper() == "SEM" or "working_distance" in told
    instrument: dict[str, Any] = {}
    for name, (place, unit) in PLACES.items():
        if name in told:
            *path, key = place.split(".")
            inner = reduce(lambda one, step: one.setdefault(step, {}), path, instrument)
            inner[key] = _in_unit(told[name], unit)
    metadata = {"General": general, "Signal": {"signal_type": ""}}
    if instrument:
        metadata["Acquisition_instrument"] = {"SEM" if scanning else "TEM": instrument}
    return metadata


def _moment(iso: str) -> dict[str, str]:
    """Split an ISO 8601 date into HyperSpy's date, time and time zone."""
    date, _, time = iso.partition("T")
    if not time:
        return {"date": date}
    moment = datetime.fromisoformat(iso)
    zone = moment.tzinfo and {"time_zone": str(moment.tzinfo).removeprefix("UTC") or "UTC"}
    return {"date": date, "time": moment.time().isoformat(), **(zone or {})}


def _in_unit(value: float | str, unit: int | str) -> float | str:
    if isinstance(value, str):
        return value
    if isinstance(unit, str):
        return math.degrees(value)
    return shifted(value, unit)
