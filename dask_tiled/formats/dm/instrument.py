"""What the tags of Digital Micrograph say of the instrument.

Units after the names of the tags and RosettaSciIO, which has its from the scripts of Gatan.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from dask_tiled.formats import tools

TAGS = ("dm/tags", "dm/tags/source/Tags at creation")
"""Those of a picture, and in a stack those of the pictures that it was built of."""
SCOPE = "Microscope Info"
FILE_TIME = 11_644_473_600
"""Seconds from 1601, which Windows counts from, to 1970."""


def entries(
    path: str, unit: str = "", read: Any = None, when: Any = None
) -> tuple[tools.Entry, ...]:
    """Return an entry of a picture."""
    return tuple(tools.Entry(f"{tags}/{path}", unit, read, when) for tags in TAGS)


def mode_of(text: str) -> str | None:
    """Tell the mode by a text such as "STEM NANOPROBE"."""
    return next((mode for mode in ("STEM", "SEM", "TEM") if mode in text), None)


def is_stem(scope: Mapping[str, Any]) -> bool:
    """Return whether the beam is scanned, and transmitted."""
    return mode_of(scope["Illumination Mode"]) == "STEM"


def is_diffraction(scope: Mapping[str, Any]) -> bool:
    """Return whether a broad beam makes a pattern; its "magnification" is a camera length then."""
    is_broad = mode_of(scope["Illumination Mode"]) == "TEM"
    return is_broad and "DIFFRACTION" in scope["Imaging Mode"]


def integration_time(acquisition: Mapping[str, Any]) -> float:
    """Return the time of a spectrum, which is added up of frames."""
    if "Integration time (s)" in acquisition:
        return float(acquisition["Integration time (s)"])
    return float(acquisition["Exposure (s)"] * acquisition.get("Number of frames", 1))


def time_of(tags: Mapping[str, Any], date: str, time: str) -> datetime | None:
    """Read date and time, with the time zone where the time stands there in UTC, too."""
    count = tags.get("Acquisition Time (OS)")
    utc = None if count is None else tools.since_1970(count / 1e7 - FILE_TIME)
    return tools.local_time(f"{tags[date]} {tags[time]}", utc)


INSTRUMENT = {
    "microscope": (
        *entries("Session Info/Microscope"),
        *entries(f"{SCOPE}/Name"),
        *entries(f"{SCOPE}/Microscope"),
    ),
    "acquisition_mode": entries(f"{SCOPE}/Illumination Mode", read=mode_of),
    "beam_energy": entries(f"{SCOPE}/Voltage", "V"),
    "beam_current": entries(f"{SCOPE}/Probe Current (nA)", "nA"),
    "magnification": entries(
        f"{SCOPE}/Indicated Magnification", when=lambda scope: not is_diffraction(scope)
    ),
    "camera_length": (
        *entries(f"{SCOPE}/Indicated Magnification", "mm", when=is_diffraction),
        *entries(f"{SCOPE}/STEM Camera Length", "mm", when=is_stem),
    ),
    "convergence_angle": entries(
        "EELS/Experimental Conditions/Convergence semi-angle (mrad)", "mrad"
    ),
    "collection_angle": entries(
        "EELS/Experimental Conditions/Collection semi-angle (mrad)", "mrad"
    ),
    **{f"stage_{k}": entries(f"{SCOPE}/Stage Position/Stage {k.upper()}", "um") for k in "xyz"},
    "tilt_alpha": entries(f"{SCOPE}/Stage Position/Stage Alpha", "deg"),
    "tilt_beta": entries(f"{SCOPE}/Stage Position/Stage Beta", "deg"),
    "detector": (*entries("Acquisition/Device/Name"), *entries("DataBar/Device Name")),
    "exposure_time": (
        *entries("EELS/Acquisition", "s", integration_time),
        *entries("CL/Acquisition", "s", integration_time),
        *entries("Acquisition/Parameters/High Level/Exposure (s)", "s"),
        *entries("DataBar/Exposure Time (s)", "s"),
    ),
    "dwell_time": (
        *entries("SI/Acquisition/Pixel time (s)", "s"),
        *entries("DigiScan/Sample Time", "us"),
    ),
    "date": (
        *entries("DataBar", "", partial(time_of, date="Acquisition Date", time="Acquisition Time")),
        *entries("*/Acquisition", "", partial(time_of, date="Date", time="Start time")),
        *entries("*/Acquisition/Acquisition begin", "", tools.local_time),
        *entries(
            "Acquisition/Frame/Sequence/Acquisition Start Time (epoch)",
            "",
            lambda ms: tools.since_1970(ms / 1000),
        ),
    ),
}
