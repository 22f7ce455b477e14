"""Facts about the instrument in tags of Digital Micrograph.

Units follow the tag names and RosettaSciIO, which has them from Gatan's scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from dask_tiled.formats.tools.text import local_time, since_1601, since_1970
from dask_tiled.model.instrument import entries

TAGS = ("dm/tags", "dm/tags/source/Tags at creation")
"""Metadata of an image; for a stack, of the images that it was built from."""
SCOPE = "Microscope Info"
STAGE = f"{SCOPE}/Stage Position/Stage"
MAGNIFICATION = f"{SCOPE}/Indicated Magnification"
EELS = "EELS/Experimental Conditions"
EPOCH = "Acquisition/Frame/Sequence/Acquisition Start Time (epoch)"


def mode_of(text: str) -> str | None:
    """Return the mode named in a text such as "STEM NANOPROBE"."""
    return next((mode for mode in ("STEM", "SEM", "TEM") if mode in text), None)


def is_stem(scope: Mapping[str, Any]) -> bool:
    """Return whether the mode is STEM."""
    return mode_of(scope["Illumination Mode"]) == "STEM"


def is_diffraction(scope: Mapping[str, Any]) -> bool:
    """Return whether the mode is TEM diffraction, where the "magnification" is a camera length."""
    is_broad = mode_of(scope["Illumination Mode"]) == "TEM"
    return is_broad and "DIFFRACTION" in scope["Imaging Mode"]


def integration_time(acquisition: Mapping[str, Any]) -> float:
    """Return the exposure time of a spectrum, summed over its frames."""
    if "Integration time (s)" in acquisition:
        return float(acquisition["Integration time (s)"])
    return float(acquisition["Exposure (s)"] * acquisition.get("Number of frames", 1))


def time_of(tags: Mapping[str, Any], date: str, time: str) -> datetime | None:
    """Parse date and time; add the time zone if the time is also recorded in UTC."""
    count = tags.get("Acquisition Time (OS)")
    utc = None if count is None else since_1601(count)
    return local_time(f"{tags[date]} {tags[time]}", utc)


ROWS: Sequence[tuple[Any, ...]] = (
    ("microscope", "Session Info/Microscope"),
    ("microscope", f"{SCOPE}/Name"),
    ("microscope", f"{SCOPE}/Microscope"),
    ("acquisition_mode", f"{SCOPE}/Illumination Mode", "", mode_of),
    ("beam_energy", f"{SCOPE}/Voltage", "V"),
    ("beam_current", f"{SCOPE}/Probe Current (nA)", "nA"),
    ("magnification", MAGNIFICATION, "", None, lambda scope: not is_diffraction(scope)),
    ("camera_length", MAGNIFICATION, "mm", None, is_diffraction),
    ("camera_length", f"{SCOPE}/STEM Camera Length", "mm", None, is_stem),
    ("convergence_angle", f"{EELS}/Convergence semi-angle (mrad)", "mrad"),
    ("collection_angle", f"{EELS}/Collection semi-angle (mrad)", "mrad"),
    *((f"stage_{k}", f"{STAGE} {k.upper()}", "um") for k in "xyz"),
    ("tilt_alpha", f"{STAGE} Alpha", "deg"),
    ("tilt_beta", f"{STAGE} Beta", "deg"),
    ("detector", "Acquisition/Device/Name"),
    ("detector", "DataBar/Device Name"),
    ("exposure_time", "EELS/Acquisition", "s", integration_time),
    ("exposure_time", "CL/Acquisition", "s", integration_time),
    ("exposure_time", "Acquisition/Parameters/High Level/Exposure (s)", "s"),
    ("exposure_time", "DataBar/Exposure Time (s)", "s"),
    ("dwell_time", "SI/Acquisition/Pixel time (s)", "s"),
    ("dwell_time", "DigiScan/Sample Time", "us"),
    ("date", "DataBar", "", partial(time_of, date="Acquisition Date", time="Acquisition Time")),
    ("date", "*/Acquisition", "", partial(time_of, date="Date", time="Start time")),
    ("date", "*/Acquisition/Acquisition begin", "", local_time),
    ("date", EPOCH, "", lambda ms: since_1970(ms / 1000)),
)
INSTRUMENT = entries(dict.fromkeys(TAGS, ROWS))
