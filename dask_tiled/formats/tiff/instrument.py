"""Facts about the instrument in TIFF files: private tags and texts of vendors.

Names: files of FEI, Zeiss SEM, JEOL SightX and Hamamatsu HPD-TA; TIFF, revision 6.0, for DateTime,
which has no time zone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from dask_tiled.formats.tiff.dates import parse_date
from dask_tiled.formats.tiff.eer import seconds_per_frame
from dask_tiled.formats.tools import Entry
from dask_tiled.formats.tools.text import local_time

FEI = "tiff/tags/FEI_*"  # FEI_HELIOS or FEI_SFEG
ZEISS = "tiff/tags/CZ_SEM"
JEOL = "tiff/jeol"
EER = "tiff/tags/EER"
TEXT = "tiff/tags/ImageDescription"
MODES = {"eosTEM": "TEM", "eosASID": "STEM"}
"""Meanings of JEOL's ``EosMode``."""


def _zeiss(told: tuple[Any, ...]) -> str:
    """Join value and unit of a Zeiss entry: a name, a value, and perhaps a unit."""
    return " ".join(map(str, told[1:]))


def _times(told: tuple[Any, ...]) -> str:
    """Return a magnification of Zeiss, such as ``50.00 K X``, as a number."""
    return "".join(_zeiss(told).removesuffix("X").replace("K", "e3").split())


def _of_zeiss(name: str) -> Entry:
    return Entry(f"{ZEISS}/{name}", read=_zeiss)


def _date_of_zeiss(tags: Mapping[str, Any]) -> datetime | None:
    return local_time(f"{_zeiss(tags['ap_date'])} {_zeiss(tags['ap_time'])}")


def _date_of_fei(text: str) -> datetime:
    return datetime.strptime(text, "%d.%m.%Y %H:%M:%S")  # noqa: DTZ007 - no time zone is stored


def _selected(unit: str | None = None) -> Callable[[Mapping[str, str]], str | None]:
    """Return a reader of JEOL's selector; with ``unit``, only values in that unit."""

    def read(system: Mapping[str, str]) -> str | None:
        value, told = system["SelectorValue"], system["SelectorUnitString"]
        return (value if told == unit else None) if unit else f"{value} {told}"

    return read


def _hamamatsu(section: str, name: str) -> Entry:
    """Return an entry for a value in a section, which is a line; texts are in quotes."""

    def read(text: str) -> str:
        known = text if text.startswith("[Application]") else ""
        line = known.partition(f"[{section}]")[2].partition("\n")[0]
        return line.partition(f",{name}=")[2].partition(",")[0].strip('"')

    return Entry(TEXT, read=read)


INSTRUMENT = {
    "microscope": [
        Entry(f"{FEI}/System/SystemType"),
        _of_zeiss("sv_serial_number"),
        Entry(f"{JEOL}/Instruments"),
        _hamamatsu("Streak camera", "DeviceName"),
    ],
    "acquisition_mode": [Entry(f"{JEOL}/Eos/EosMode", read=MODES.get)],
    "beam_energy": [
        Entry(f"{FEI}/Beam/HV", "V"),
        _of_zeiss("ap_actualkv"),
        Entry(f"{JEOL}/ElectronGun/AccelerationVoltage", "V"),
    ],
    "beam_current": [
        Entry(FEI, "A", lambda tags: tags[tags["Beam"]["Beam"]]["BeamCurrent"]),
        _of_zeiss("ap_iprobe"),
        Entry(f"{JEOL}/ElectronGun/BeamCurrent", "pA"),
    ],
    "magnification": [
        Entry(f"{ZEISS}/ap_mag", read=_times),
        Entry(f"{JEOL}/ImageFormingSystem", read=_selected("X")),
    ],
    "camera_length": [Entry(f"{JEOL}/ImageFormingSystem", read=_selected())],
    "working_distance": [Entry(f"{FEI}/Stage/WorkingDistance", "m"), _of_zeiss("ap_wd")],
    "stage_x": [Entry(f"{FEI}/Stage/StageX", "m"), _of_zeiss("ap_stage_at_x")],
    "stage_y": [Entry(f"{FEI}/Stage/StageY", "m"), _of_zeiss("ap_stage_at_y")],
    "stage_z": [
        Entry(f"{FEI}/Stage/StageZ", "m"),
        _of_zeiss("ap_stage_at_z"),
        Entry(f"{JEOL}/GonioStage/StagePosition/MZ", "nm"),
    ],
    "tilt_alpha": [
        Entry(f"{FEI}/Stage/StageT", "rad"),
        _of_zeiss("ap_stage_at_t"),
        Entry(f"{JEOL}/GonioStage/StagePosition/TX", "deg"),
    ],
    "tilt_beta": [Entry(f"{JEOL}/GonioStage/StagePosition/TY", "deg")],
    "rotation": [Entry(f"{FEI}/Stage/StageR", "rad"), _of_zeiss("ap_stage_at_r")],
    "detector": [
        Entry(f"{FEI}/Detectors/Name"),
        _of_zeiss("dp_detector_type"),
        _of_zeiss("dp_detector_channel"),
        Entry(f"{JEOL}/ImageSourceDetector"),
        Entry(f"{EER}/commercialName"),
        _hamamatsu("Camera", "CameraName"),
    ],
    "exposure_time": [
        Entry(f"{JEOL}/*Camera/Parameter/ExposureTimeValue", "us"),
        Entry(EER, "s", seconds_per_frame),
        _hamamatsu("Acquisition", "ExposureTime"),
    ],
    "dwell_time": [Entry(f"{FEI}/Scan/Dwelltime", "s"), _of_zeiss("dp_dwell_time")],
    "gain_setting": [_hamamatsu("Streak camera", "MCP Gain")],
    "date": [
        Entry(f"{FEI}/PrivateFei/TimeOfCreation", read=_date_of_fei),
        Entry(ZEISS, read=_date_of_zeiss),
        Entry(f"{JEOL}/DateTime"),
        Entry(f"{EER}/timestamp"),
        Entry("tiff/tags/DateTime", read=parse_date),
    ],
}
"""Entries in the tags and in the report of JEOL SightX."""
