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
from dask_tiled.formats.tools.text import local_time
from dask_tiled.model.instrument import entries

MODES = {"eosTEM": "TEM", "eosASID": "STEM"}
"""Meanings of JEOL's ``EosMode``."""


def _zeiss(told: tuple[Any, ...]) -> str:
    """Join value and unit of a Zeiss entry: a name, a value, and perhaps a unit."""
    return " ".join(map(str, told[1:]))


def _times(told: tuple[Any, ...]) -> str:
    """Return a magnification of Zeiss, such as ``50.00 K X``, as a number."""
    return "".join(_zeiss(told).removesuffix("X").replace("K", "e3").split())


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


def _hamamatsu(section: str, name: str) -> Callable[[str], str]:
    """Return a reader of a value in a section, which is a line; texts are in quotes."""

    def read(text: str) -> str:
        known = text if text.startswith("[Application]") else ""
        line = known.partition(f"[{section}]")[2].partition("\n")[0]
        return line.partition(f",{name}=")[2].partition(",")[0].strip('"')

    return read


OF_FEI = (
    ("microscope", "System/SystemType"),
    ("beam_energy", "Beam/HV", "V"),
    ("beam_current", "", "A", lambda tags: tags[tags["Beam"]["Beam"]]["BeamCurrent"]),
    ("working_distance", "Stage/WorkingDistance", "m"),
    *((f"stage_{k}", f"Stage/Stage{k.upper()}", "m") for k in "xyz"),
    ("tilt_alpha", "Stage/StageT", "rad"),
    ("rotation", "Stage/StageR", "rad"),
    ("detector", "Detectors/Name"),
    ("dwell_time", "Scan/Dwelltime", "s"),
    ("date", "PrivateFei/TimeOfCreation", "", _date_of_fei),
)
OF_ZEISS = (
    ("microscope", "sv_serial_number", "", _zeiss),
    ("beam_energy", "ap_actualkv", "", _zeiss),
    ("beam_current", "ap_iprobe", "", _zeiss),
    ("magnification", "ap_mag", "", _times),
    ("working_distance", "ap_wd", "", _zeiss),
    *((f"stage_{k}", f"ap_stage_at_{k}", "", _zeiss) for k in "xyz"),
    ("tilt_alpha", "ap_stage_at_t", "", _zeiss),
    ("rotation", "ap_stage_at_r", "", _zeiss),
    ("detector", "dp_detector_type", "", _zeiss),
    ("detector", "dp_detector_channel", "", _zeiss),
    ("dwell_time", "dp_dwell_time", "", _zeiss),
    ("date", "", "", _date_of_zeiss),
)
OF_JEOL = (
    ("microscope", "Instruments"),
    ("acquisition_mode", "Eos/EosMode", "", MODES.get),
    ("beam_energy", "ElectronGun/AccelerationVoltage", "V"),
    ("beam_current", "ElectronGun/BeamCurrent", "pA"),
    ("magnification", "ImageFormingSystem", "", _selected("X")),
    ("camera_length", "ImageFormingSystem", "", _selected()),
    ("stage_z", "GonioStage/StagePosition/MZ", "nm"),
    ("tilt_alpha", "GonioStage/StagePosition/TX", "deg"),
    ("tilt_beta", "GonioStage/StagePosition/TY", "deg"),
    ("detector", "ImageSourceDetector"),
    ("exposure_time", "*Camera/Parameter/ExposureTimeValue", "us"),
    ("date", "DateTime"),
)
OF_EER = (
    ("detector", "commercialName"),
    ("exposure_time", "", "s", seconds_per_frame),
    ("date", "timestamp"),
)
OF_HAMAMATSU = (
    ("microscope", "", "", _hamamatsu("Streak camera", "DeviceName")),
    ("detector", "", "", _hamamatsu("Camera", "CameraName")),
    ("exposure_time", "", "", _hamamatsu("Acquisition", "ExposureTime")),
    ("gain_setting", "", "", _hamamatsu("Streak camera", "MCP Gain")),
)
INSTRUMENT = entries(
    {
        "tiff/tags/FEI_*": OF_FEI,  # FEI_HELIOS or FEI_SFEG
        "tiff/tags/CZ_SEM": OF_ZEISS,
        "tiff/jeol": OF_JEOL,
        "tiff/tags/EER": OF_EER,
        "tiff/tags/ImageDescription": OF_HAMAMATSU,
        "tiff/tags": [("date", "DateTime", "", parse_date)],
    }
)
"""Entries in the tags and in the report of JEOL SightX."""
