"""EMD of Velox: images and spectra, their titles and axes, and JSON metadata.

Layout facts: files of Velox 2.9 to 3.16. An image is stored as (y, x, frame), a spectrum as
(channel, frame). ``Metadata`` has a column for every frame, JSON padded with zeros. An EELS
spectrum image is stored as (x, channel, y), a line as (x, channel); its ``AcquisitionMetadata``
calibrates the channels, and the ``SpectrumImage`` of the file the pixels (RosettaSciIO).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from dask_tiled.errors import DatasetError
from dask_tiled.formats.hdf5.convention import Calibration, Convention, Meant
from dask_tiled.formats.hdf5.conventions.velox_axes import (
    detector_in,
    energies_in,
    lengths_in,
    metadata_of,
)
from dask_tiled.formats.hdf5.conventions.velox_events import Streams
from dask_tiled.formats.hdf5.conventions.velox_json import (
    Json,
    number_in,
    part_of,
    text_in,
    titles_of,
)
from dask_tiled.formats.hdf5.conventions.velox_spectra import (
    STREAMS,
    axes_of,
    facts_of,
    spectrum_images,
)
from dask_tiled.formats.hdf5.datasets import Found, Picture
from dask_tiled.formats.hdf5.library import names_in
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.formats.tools.text import since_1970
from dask_tiled.model.axes import Axis

PICTURE = re.compile(r"/Data/(Image|Spectrum|EelsSpectrumImage)/[^/]+/Data")
RENDERED = re.compile(r"/Data/SpectrumImage(/.*)?")
ORDERS: Mapping[tuple[str, int], tuple[int, ...]] = {
    ("Image", 3): (2, 0, 1),
    ("EelsSpectrumImage", 3): (2, 0, 1),
    ("EelsSpectrumImage", 2): (0, 1),
    ("Spectrum", 2): (1, 0),
}
"""Order of the displayed axes, by kind and number of axes: frames first, or channels last."""
EELS = {"EelsSpectrumImage": "EELS"}
"""The kind whose first axis is not a frame, and its title."""
KINDS = [kind for kind, _ in ORDERS]
"""Listing order."""

ROWS = (
    ("microscope", "Instrument/InstrumentClass"),
    ("beam_energy", "Optics/AccelerationVoltage", "V"),
    ("magnification", "CustomProperties/StemMagnification/value"),
    ("magnification", "Optics/NominalMagnification"),
    ("camera_length", "Optics/CameraLength", "m"),
    ("convergence_angle", "Optics/BeamConvergence", "rad"),
    ("defocus", "Optics/Defocus", "m"),
    ("stage_x", "Stage/Position/x", "m"),
    ("stage_y", "Stage/Position/y", "m"),
    ("stage_z", "Stage/Position/z", "m"),
    ("tilt_alpha", "Stage/AlphaTilt", "rad"),
    ("tilt_beta", "Stage/BetaTilt", "rad"),
    ("detector", "BinaryResult/Detector"),
    ("dwell_time", "Scan/DwellTime", "s"),
)
MODES = {"1": "TEM", "2": "STEM"}
"""Meanings of ``OperatingMode``."""
OF_DETECTORS = {
    "collection_angle": (("CollectionAngleRange", "end"), "rad"),
    "inner_collection_angle": (("CollectionAngleRange", "begin"), "rad"),
    "exposure_time": (("ExposureTime",), "s"),
    "gain_setting": (("Gain",), ""),
}
"""Facts about each detector."""
STAMPS = "*Metadata/CustomProperties/*.TimeStamp/value"


def _of_detector(said: Json, keys: tuple[str, ...]) -> Any:
    """Return metadata of the detector that recorded an image."""
    found: Any = detector_in(said)
    for key in keys:
        found = found[key]
    return found


def _moment(count: str, per_second: float = 1.0) -> datetime | None:
    """Parse a time; 0 means unset."""
    seconds = float(count) / per_second
    return since_1970(seconds) if seconds > 0 else None


class Velox(Convention):
    """EMD of Velox."""

    name = "Velox"
    instrument = (
        *((name, f"*Metadata/{path}", *rest) for name, path, *rest in ROWS),
        *(
            (name, "*Metadata", unit, partial(_of_detector, keys=keys))
            for name, (keys, unit) in OF_DETECTORS.items()
        ),
        ("live_time", "*Times/LiveTime", "s"),
        ("real_time", "*Times/RealTime", "s"),
        ("acquisition_mode", "*Metadata/Optics/OperatingMode", "", MODES.get),
        ("date", "*Metadata/Acquisition/AcquisitionStartDatetime/DateTime", "", _moment),
        ("date", STAMPS, "", partial(_moment, per_second=1e6)),
    )

    def meant(self, tree: Tree, found: Found) -> Meant:
        """List spectrum images, images and spectra, with titles, in the order of axes shown.

        Images of detectors come before element maps computed from spectra; HAADF comes first.
        """
        stored = [one for one in found.pictures.values() if _is_picture(one)]
        spectra = spectrum_images(tree, found)
        if not stored and not spectra and not any(map(RENDERED.fullmatch, found.pictures)):
            return Meant()
        titles = titles_of(tree)
        listed = []
        for one in stored:
            kind, said = _kind(one), metadata_of(tree, one)
            order = ORDERS[kind, len(one.shape)]
            shape = tuple(one.shape[axis] for axis in order)
            shape = shape[1:] if shape[0] == 1 and kind not in EELS else shape
            result = part_of(said, "BinaryResult")
            title = titles.get(one.folder) or text_in(result.get("Detector")) or EELS.get(kind, "")
            rank = KINDS.index(kind), "DetectorIndex" not in result, title != "HAADF", one.path
            listed.append((rank, one._replace(shape=shape, order=order, title=title)))
        pictures = [one for _, one in sorted(listed, key=lambda item: item[0])]
        return Meant("Data of Velox", [*spectra, *pictures], alone=True)

    def refuse(self, tree: Tree, path: str) -> None:
        """Raise for spectrum images that are stored as rendered, and for unknown streams."""
        what = "the stream of X-ray events is not in a form that is known"
        if RENDERED.fullmatch(path):
            what = "X-ray events as Velox renders them are not supported"
        elif not STREAMS.fullmatch(path):
            return
        hint = "Open the element maps and spectra of the file instead."
        raise DatasetError(what, path=tree.file.path, where=path, hint=hint)

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:
        """Read the axes from the first frame's metadata; for EELS also from the spectrum image."""
        if isinstance(picture.events, Streams):
            return Calibration(axes_of(tree, picture, picture.events), 1)
        if not picture.order or not PICTURE.fullmatch(picture.path):
            return None
        said, ndim = metadata_of(tree, picture), len(picture.shape)
        if _kind(picture) in EELS:
            inner = (*_pixels_of_eels(tree, picture)[3 - ndim :], _energy_loss(tree, picture))
            return Calibration(inner, 1)
        inner = lengths_in(said) if _kind(picture) == "Image" else (energies_in(said),)
        return Calibration((Axis("frame"),) * (ndim - len(inner)) + inner, len(inner))

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:
        """Return the JSON metadata of an image; of a spectrum image also the detectors' times."""
        if isinstance(picture.events, Streams):
            return facts_of(tree, picture)
        if not picture.order or not PICTURE.fullmatch(picture.path):
            return {}
        names = "Metadata", "AcquisitionMetadata"
        return {f"{picture.folder}/{name}": metadata_of(tree, picture, name) for name in names}


def _is_picture(picture: Picture) -> bool:
    return (
        PICTURE.fullmatch(picture.path) is not None
        and (_kind(picture), len(picture.shape)) in ORDERS
        and "Metadata" in picture.members[0].parent
    )


def _kind(picture: Picture) -> str:
    return picture.path.split("/")[2]


def _energy_loss(tree: Tree, picture: Picture) -> Axis:
    channels = part_of(metadata_of(tree, picture, "AcquisitionMetadata"), "Data")
    step, start = (number_in(channels.get(key)) for key in ("dispersion", "offset"))
    return Axis.calibrated("Energy loss", "eV", step, start)


def _pixels_of_eels(tree: Tree, picture: Picture) -> tuple[Axis, ...]:
    from h5py import Group

    maps = tree.look(picture.members[0].file, "Data/SpectrumImage")
    names = names_in(maps, 1) if isinstance(maps, Group) else []
    paths = (f"/Data/SpectrumImage/{name}/Metadata" for name in names)
    return lengths_in(next((metadata_of(tree, picture, path) for path in paths), {}))
