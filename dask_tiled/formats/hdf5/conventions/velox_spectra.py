"""Spectrum images of Velox, which streams of X-ray events make: their list, axes and facts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dask_tiled.formats.hdf5.conventions.velox_axes import (
    column_of,
    detector_in,
    energies_in,
    lengths_in,
    metadata_of,
)
from dask_tiled.formats.hdf5.conventions.velox_events import COUNTS, END, TABLE, Streams
from dask_tiled.formats.hdf5.conventions.velox_json import (
    Json,
    number_in,
    part_of,
    read_document,
    text_in,
)
from dask_tiled.formats.hdf5.datasets import Found, Picture
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.model.axes import Axis

STREAM = "/Data/SpectrumStream"
STREAMS = re.compile(rf"{STREAM}(/[^/]+/Data)?")
EDS = "EDS"
OF_STREAMS = {
    "Dispersion": "eV",
    "OffsetEnergy": "eV",
    "RealTime": "s",
    "LiveTime": "s",
    "DeadTime": "s",
    "ElevationAngle": "rad",
    "AzimuthAngle": "rad",
    "CollectionAngle": "sr",
}
"""Facts of detectors of X-rays, and their units."""
TIMES = "RealTime", "LiveTime", "DeadTime"
MOST_PIXELS = 1 << 20
"""Most pixels along an axis of a scan."""


def spectrum_images(tree: Tree, found: Found) -> list[Picture]:
    """List the sum of all streams of X-ray events, if they are alike, then each of them."""
    pictures, streams = list[Picture](), list[Streams]()
    for path, one in found.pictures.items():
        if path != STREAM and STREAMS.fullmatch(path) and len(one.shape) < 3:
            said = metadata_of(tree, one)
            events = _streams(tree, one, said)
            if events is not None:
                title = f"{EDS} {text_in(part_of(said, 'BinaryResult').get('Detector'))}".strip()
                picture = one._replace(title=title, events=events)
                pictures.append(picture._replace(shape=events.shape, dtype=COUNTS))
                streams.append(events)
    if len({one._replace(members=()) for one in streams}) == 1:
        members = tuple(data for one in streams for data in one.members)
        events = streams[0]._replace(members=members)
        whole = pictures[0]._replace(path=STREAM, title=EDS, members=members, events=events)
        pictures.insert(0, whole)
    return pictures


def _streams(tree: Tree, picture: Picture, said: Json) -> Streams | None:
    """Return a stream of X-ray events; None if the size of the scan or its channels are unknown."""
    group = picture.members[0].parent
    settings = read_document(tree, group, "AcquisitionSettings")
    channels = number_in(settings.get("bincount"))
    frames = getattr(tree.look(group, TABLE), "size", 0)
    scan = part_of(said, "Scan")
    size, area = part_of(scan, "ScanSize"), part_of(scan, "ScanArea")
    raster = part_of(settings, "RasterScanDefinition")
    sides = []
    for name, first, last in (("height", "top", "bottom"), ("width", "left", "right")):
        share = number_in(area.get(last)) - number_in(area.get(first)) if area else 1.0
        length = number_in(size.get(name)) if size else number_in(raster.get(name.title()))
        sides.append(length * share)
    if not all(0.5 < number < MOST_PIXELS for number in (*sides, frames)):
        return None
    if not 0.5 < channels <= END:
        return None
    height, width = map(round, sides)
    return Streams(picture.members, (height, width), round(channels), frames)


def axes_of(tree: Tree, picture: Picture, events: Streams) -> tuple[Axis, ...]:
    """Return the axes of a spectrum image: frames, scan, energy."""
    said = metadata_of(tree, picture)
    frames: tuple[Axis, ...] = ()
    shown = events.frames
    if shown is not None:
        seconds = number_in(part_of(said, "Scan").get("FrameTime"))
        frames = (Axis.calibrated("frame", "s", seconds).cut(shown.start, shown.step),)
    scan = (replace(axis, name=f"scan_{axis.name}") for axis in lengths_in(said))
    return *frames, *scan, energies_in(said).binned(events.bins)


def facts_of(tree: Tree, picture: Picture) -> Mapping[str, Any]:
    """Return the JSON of the first stream, and times and calibration of each detector in the end.

    Times of the streams together are the means over the detectors.
    """
    detectors, times = {}, []
    for data in picture.members:
        found = tree.look(data.parent, "Metadata")
        said = detector_in(column_of(tree, found, -1))
        facts = {name: number_in(said.get(name)) for name in OF_STREAMS}
        facts["DeadTime"] = facts["RealTime"] - facts["LiveTime"]
        facts = {name: value for name, value in facts.items() if math.isfinite(value)}
        times.append({name: facts[name] for name in TIMES if name in facts})
        units = {f"{name}@units": unit for name, unit in OF_STREAMS.items() if name in facts}
        detectors[text_in(said.get("DetectorName"))] = facts | units
    shared = set.intersection(*map(set, times))
    mean = {name: sum(one[name] for one in times) / len(times) for name in TIMES if name in shared}
    return {
        f"{picture.members[0].parent.name}/Metadata": metadata_of(tree, picture),
        f"{STREAM}/Detectors": detectors,
        f"{STREAM}/Times": mean,
    }
