"""The electron beam: its energy as users and files give it, and units that it relates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from dask_tiled.errors import TilingError
from dask_tiled.model.calibration import quantity
from dask_tiled.model.description import Description
from dask_tiled.model.units import conversion, wavelength

LEAST_VOLTS, MOST_VOLTS = 1e3, 3e6
"""Range of the acceleration voltages of electron microscopes."""


def read_quantity(name: str, value: Any, example: str) -> tuple[float, str]:
    """Parse a number other than 0 with an optional unit; raise a TilingError if it is invalid."""
    number, unit = value, ""
    if isinstance(value, str):
        number, unit, offset = quantity(value) or (0.0, "", 0.0)
        number = 0.0 if offset else number
    sound = isinstance(number, (Real, np.number)) and not isinstance(number, (bool, np.bool_))
    if not sound or not math.isfinite(number) or not number:
        expected = f'a text with a unit such as "{example}"'
        raise TilingError(f"invalid {name}", expected=expected, found=repr(value))
    return float(number), unit


def acceleration_voltage(beam_energy: float | str | None, files: Sequence[Description]) -> float:
    """Return the acceleration voltage in V, as given or else as the files tell it.

    Parameters
    ----------
    beam_energy : float or str, optional
        A number in V, or a text such as ``"200 kV"`` or ``"200 keV"``.
    files : sequence of Description

    Raises
    ------
    TilingError
        No energy is known, it is not 1 to 3000 kV, or its unit is another one.
    """
    given: float | str | None = beam_energy
    if beam_energy is None:
        told = [x.instrument["beam_energy"] for x in files if "beam_energy" in x.instrument]
        if not told:
            problem, hint = "angles need the energy of the beam", 'Pass beam_energy="200 kV".'
            raise TilingError(problem, found="none in the files", hint=hint)
        given = f"{float(told[0].value)} V"
    number, unit = read_quantity("beam_energy", given, "200 kV")
    factor = conversion(unit, "eV") if unit.endswith("eV") else conversion(unit or "V", "V")
    volts = math.nan if factor is None else number * factor
    if not LEAST_VOLTS <= volts <= MOST_VOLTS:
        expected = '1 to 3000 kV, as "200 kV" or "200 keV"; numbers are volts'
        in_files = beam_energy is None
        source, hint = " in the files" * in_files, 'Pass beam_energy="200 kV".' * in_files
        raise TilingError(
            "invalid beam_energy", expected=expected, found=f"{given!r}{source}", hint=hint
        )
    return volts


def is_angle(unit: str) -> bool:
    """Return whether a unit is one of angles."""
    return conversion(unit, "rad") is not None


def is_frequency(unit: str) -> bool:
    """Return whether a unit is one of spatial frequencies."""
    return conversion(unit, "1/nm") is not None


def on_detector(
    unit: str, wanted: str, beam_energy: float | str | None, files: Sequence[Description]
) -> float | None:
    """Return how much 1 of a unit is in another, by the wavelength from 1/nm to mrad; or None.

    Angles are small: the angle is the wavelength times the spatial frequency.
    """
    direct = conversion(unit, wanted)
    if direct is not None:
        return direct
    if is_frequency(unit) and is_angle(wanted):
        length = wavelength(acceleration_voltage(beam_energy, files))
        return (conversion(unit, "1/nm") or 0) * length * (conversion("rad", wanted) or 0)
    if is_angle(unit) and is_frequency(wanted):
        length = wavelength(acceleration_voltage(beam_energy, files))
        return (conversion(unit, "rad") or 0) / length * (conversion("1/nm", wanted) or 0)
    return None
