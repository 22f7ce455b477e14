"""Copper particles with gold shells: a spectrum image and two images, as HyperSpy writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tiled.errors import require
from dask_tiled.model.axes import Axis

Floats = NDArray[np.float64]

FIELD = 128.0  # nm
ENERGIES = 0.01 * np.arange(1024)  # keV
LINES = {
    "C": {0.277: 0.5},
    "Cu": {0.930: 0.5, 8.046: 1.0, 8.904: 0.14},
    "Au": {2.120: 1.0, 2.203: 0.6, 9.712: 0.5},
}
"""Energies in keV of an element's emission lines, with relative intensities per atom."""
MICROSCOPE = {
    "beam_energy": 200.0,
    "beam_current": 0.4,
    "camera_length": 91.0,
    "magnification": 1_600_000.0,
    "microscope": "Simulated STEM",
    "acquisition_mode": "STEM",
}
"""In the units of HyperSpy: keV, nA, mm."""
EDS = {"Detector": {"EDS": {"azimuth_angle": 45.0, "elevation_angle": 18.0, "dwell_time": 0.05}}}


def thicknesses(side: int) -> dict[str, Floats]:
    """Return the thickness of each element at ``side`` x ``side`` positions, in nm."""
    y, x = (np.indices((side, side)) + 0.5) * FIELD / side
    copper, gold = np.zeros((2, side, side))
    rng = np.random.default_rng(4)
    for at_y, at_x, radius in rng.uniform((8, 8, 6), (120, 120, 15), (14, 3)):
        away = (y - at_y) ** 2 + (x - at_x) ** 2
        outer, inner = (2 * np.sqrt(np.clip(r**2 - away, 0, None)) for r in (radius, 0.7 * radius))
        copper += inner
        gold += outer - inner
    return {"C": np.full((side, side), 12.0), "Cu": copper, "Au": gold}


def spectrum_image() -> NDArray[np.uint8]:
    """Return the counts of characteristic lines and bremsstrahlung, (y, x, energy)."""
    there, rng = thicknesses(64), np.random.default_rng(5)
    # The tail of bremsstrahlung; the detector window absorbs the soft part.
    braking = np.exp(-ENERGIES / 3) * (1 - np.exp(-((ENERGIES / 0.5) ** 2)))
    spectra = {"C": 0.002 * braking, "Cu": 0.006 * braking, "Au": 0.015 * braking}
    for element, lines in LINES.items():
        for energy, often in lines.items():
            width = np.sqrt(0.025**2 + (0.0075**2) * energy)  # a silicon drift detector
            line = np.exp(-(((ENERGIES - energy) / width) ** 2) / 2)
            spectra[element] += 0.06 * often * line
    mean = sum(there[element][..., None] * spectrum for element, spectrum in spectra.items())
    # Rounded, so that results do not depend on the last bit.
    return rng.poisson(np.rint(2**20 * mean) / 2**20).clip(0, 255).astype(np.uint8)


def images() -> dict[str, NDArray[np.uint16]]:
    """Return the counts of annular and bright-field detectors, (y, x)."""
    there, rng = thicknesses(256), np.random.default_rng(6)
    heavy = 0.02 * there["C"] + 0.6 * there["Cu"] + 3.0 * there["Au"]
    bright = 20_000 * np.exp(-heavy / 150)
    return {
        name: rng.poisson(np.rint(mean)).astype(np.uint16)
        for name, mean in {"HAADF": 40 * heavy + 200, "BF": bright}.items()
    }


def write_alloy(folder: Path) -> None:
    """Write ``alloy.hspy``, version 3.3 of HyperSpy's specification."""
    h5py = require("h5py", "hdf5", folder)
    image = [Axis(name, "nm", FIELD / 256) for name in ("y", "x")]
    scan = [Axis(name, "nm", FIELD / 64) for name in ("y", "x")]
    energy = Axis("Energy", "keV", 0.01)
    with h5py.File(folder / "alloy.hspy", "w") as file:
        file.attrs.update(file_format="HyperSpy", file_format_version="3.3")
        experiments = file.create_group("Experiments")
        _add(experiments, "EDS", spectrum_image(), [*scan, energy], 1, "EDS_TEM", EDS)
        for name, pixels in images().items():
            _add(experiments, name, pixels, image, 2, "", {})


def _add(
    experiments: Any,
    title: str,
    pixels: NDArray[Any],
    axes: list[Axis],
    sig_ndim: int,
    signal_type: str,
    detector: Mapping[str, Any],
) -> None:
    """Add a signal with its axes and metadata."""
    group = experiments.create_group(title)
    group.attrs.update(package="hyperspy", package_version="2.4.0")
    group.create_dataset("data", data=pixels)
    for k, (axis, size) in enumerate(zip(axes, pixels.shape, strict=True)):
        group.create_group(f"axis-{k}").attrs.update(
            _type="UniformDataAxis",
            name=axis.name,
            units=axis.units,
            scale=axis.scale,
            offset=axis.offset,
            size=size,
            navigate=k < pixels.ndim - sig_ndim,
            is_binned=sig_ndim == 1 and k == pixels.ndim - 1,
        )
    group.create_group("attributes").attrs.update(_lazy=False, ragged=False)
    for name in ("original_metadata", "learning_results"):
        group.create_group(name)
    general = {"title": title, "date": "2026-01-01", "time": "12:00:00", "time_zone": "UTC"}
    instrument = {"TEM": {**MICROSCOPE, **detector}}
    metadata = {
        "General": general,
        "Signal": {"signal_type": signal_type},
        "Acquisition_instrument": instrument,
    }
    _write_tree(group.create_group("metadata"), metadata)


def _write_tree(group: Any, tree: Mapping[str, Any]) -> None:
    """Write values as attributes, and mappings as groups."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _write_tree(group.create_group(name), value)
        else:
            group.attrs[name] = value
