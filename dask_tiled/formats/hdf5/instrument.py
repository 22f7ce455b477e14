"""What HDF5 files call what they say of the instrument, in each convention.

Names: the metadata structure of HyperSpy; the definitions of NeXus (NXem, NXinstrument, NXbeam,
NXdetector), which have their groups wherever a file wants them; files of Velox, Dectris, the NCEM,
py4DSTEM and Prismatic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import partial
from typing import Any

from dask_tiled.formats.tools import Entry, since_1970

Said = Mapping[str, Any]
Names = Mapping[str, tuple[tuple[str, str], ...]]
"""Paths and units, the first one that says something first, by the names of the vocabulary."""

HYPERSPY: Names = {
    "microscope": (("microscope", ""),),
    "acquisition_mode": (("acquisition_mode", ""),),
    "beam_energy": (("beam_energy", "@keV"),),
    "beam_current": (("beam_current", "@nA"),),
    "magnification": (("magnification", ""),),
    "camera_length": (("camera_length", "@mm"),),
    "convergence_angle": (("convergence_angle", "@mrad"),),
    "collection_angle": (("**/collection_angle", "@mrad"),),
    "working_distance": (("working_distance", "@mm"),),
    "tilt_alpha": (("Stage/tilt_alpha", "deg"), ("tilt_stage", "deg")),
    "tilt_beta": (("Stage/tilt_beta", "deg"),),
    "detector": (("Detector/Camera/name", ""),),
    "exposure_time": (("**/exposure", "@s"), ("**/exposure_time", "@s")),
    "dwell_time": (("**/dwell_time", "@s"),),
}
"""The units are those that HyperSpy means where none stand beside."""

VELOX: Names = {
    "microscope": (("Instrument/InstrumentClass", ""),),
    "beam_energy": (("Optics/AccelerationVoltage", "V"),),
    "magnification": (
        ("CustomProperties/StemMagnification/value", ""),
        ("Optics/NominalMagnification", ""),
    ),
    "camera_length": (("Optics/CameraLength", "m"),),
    "convergence_angle": (("Optics/BeamConvergence", "rad"),),
    "defocus": (("Optics/Defocus", "m"),),
    "stage_x": (("Stage/Position/x", "m"),),
    "stage_y": (("Stage/Position/y", "m"),),
    "stage_z": (("Stage/Position/z", "m"),),
    "tilt_alpha": (("Stage/AlphaTilt", "rad"),),
    "tilt_beta": (("Stage/BetaTilt", "rad"),),
    "detector": (("BinaryResult/Detector", ""),),
    "dwell_time": (("Scan/DwellTime", "s"),),
}
MODES = {"1": "TEM", "2": "STEM"}
"""What Velox means by its ``OperatingMode``."""
OF_DETECTORS = {
    "collection_angle": (("CollectionAngleRange", "end"), "rad"),
    "inner_collection_angle": (("CollectionAngleRange", "begin"), "rad"),
    "exposure_time": (("ExposureTime",), "s"),
    "gain_setting": (("Gain",), ""),
}
"""What Velox says of each detector."""

OTHERS: Names = {
    "microscope": (
        ("**/instrument/name", ""),
        ("**/instrument/fabrication/model", ""),
        ("**/*microscope/name", ""),
    ),
    "beam_energy": (
        ("*STEM Metadata/High Tension", "V"),
        ("**/electron_source/voltage", "@"),
        ("**/electron_gun/voltage", "@"),
        ("**/*microscope/voltage", "@"),
        ("**/*microscope/accelerating_voltage", "@"),
        ("**/*microscope/beam_energy", "@eV"),
        ("**/simulation_parameters/E", "keV"),
    ),
    "beam_current": (("**/beam_current", "@"),),
    "photon_energy": (
        ("**/incident_energy", "@"),
        ("**/photon_energy", "@"),
        ("**/monochromator/energy", "@"),
        ("*/*/energy", "@"),
    ),
    "wavelength": (("**/incident_wavelength", "@"),),
    "magnification": (("*STEM Metadata/Magnification", ""), ("**/magnification", "")),
    "camera_length": (
        ("*STEM Metadata/Camera Length", "m"),
        ("**/camera_length", "@"),
        ("**/detector_distance", "@"),
    ),
    "convergence_angle": (
        ("**/semi_convergence_angle", "@"),
        ("**/convergence_semiangle_mrad", "mrad"),
        ("**/simulation_parameters/sa", "mrad"),
    ),
    "defocus": (("**/defocus", "@"),),
    "working_distance": (("**/working_distance", "@"),),
    "detector": (("**/detector/description", ""), ("**/detector/local_name", "")),
    "y_pixel_size": (("**/y_pixel_size", "@"),),
    "x_pixel_size": (("**/x_pixel_size", "@"),),
    "exposure_time": (("**/exposure_time", "@"), ("**/count_time", "@")),
    "dwell_time": (("**/dwell_time", "@"),),
    "gain_setting": (("**/detector/gain_setting", ""),),
    "threshold": (("**/threshold_energy", "@"),),
    "date": (("*/start_time", ""), ("**/data_collection_date", "")),
}
"""Those of NeXus, and of the small ones."""


def _of_detector(said: Said, keys: tuple[str, ...]) -> Any:
    """Read what is said of the detector that made a picture of Velox."""
    name = said["BinaryResult"]["Detector"]
    all_of_them = said["Detectors"].values()
    found: Any = next((one for one in all_of_them if one["DetectorName"] == name), {})
    for key in keys:
        found = found[key]
    return found


def _moment(count: str, per_second: float = 1.0) -> datetime | None:
    """Read a time of Velox, of which 0 is none."""
    seconds = float(count) / per_second
    return since_1970(seconds) if seconds > 0 else None


def _date_of_hyperspy(said: Said) -> date | str:
    """Put a date and a time together. Names of zones are left out: many stand for several."""
    day, clock, zone = (said.get(name) or "" for name in ("date", "time", "time_zone"))
    if not day:  # before version 1.2: "datetime.date(1991, 10, 1)"
        text = f"{said['_datetime_date']} {said.get('_datetime_time', '')}"
        numbers: list[Any] = [int(number) for number in re.findall(r"\d+", text)]
        return datetime(*numbers) if numbers[3:] else date(*numbers)  # noqa: DTZ001 - none is told
    zone = "+00:00" if zone == "UTC" else zone
    known = zone if re.fullmatch(r"[+-]\d\d:\d\d", zone) else ""
    return f"{day}T{clock}{known}" if clock else str(day)


def _entries() -> dict[str, list[Entry]]:
    entries: dict[str, list[Entry]] = {}

    def add(name: str, path: str, unit: str = "", read: Callable[[Any], Any] | None = None) -> None:
        entries.setdefault(name, []).append(Entry(f"hdf5/facts/{path}", unit, read))

    add("acquisition_mode", "*Metadata/Optics/OperatingMode", read=MODES.get)
    add("date", "*Metadata/Acquisition/AcquisitionStartDatetime/DateTime", read=_moment)
    stamps = "*Metadata/CustomProperties/*.TimeStamp/value"
    add("date", stamps, read=partial(_moment, per_second=1e6))
    for name, (keys, unit) in OF_DETECTORS.items():
        add(name, "*Metadata", unit, partial(_of_detector, keys=keys))
    for group in ("*", "*/auxiliary/hyperspy_"):  # of its own files, and of those of NeXus
        add("date", f"{group}metadata/General", read=_date_of_hyperspy)
    add("date", "*mapped_parameters", read=_date_of_hyperspy)
    places = {
        "*Metadata": VELOX,
        "*metadata/Acquisition_instrument/TEM": HYPERSPY,
        "*metadata/Acquisition_instrument/SEM": HYPERSPY,
        "*mapped_parameters/*EM": HYPERSPY,
        "*/auxiliary/hyperspy_metadata/Acquisition_instrument/*EM": HYPERSPY,
    }
    for place, names in places.items():
        for name, paths in names.items():
            for path, unit in paths:
                add(name, f"{place}/{path}", unit)
    for name, paths in OTHERS.items():
        for path, unit in paths:
            add(name, path, unit)
    return entries


INSTRUMENT = _entries()
"""What tells of the instrument in the facts: Velox, HyperSpy, then the others."""
