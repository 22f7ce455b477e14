"""A simulated 4D-STEM scan: faceted gold crystals on a carbon film with a hole, 200 kV.

This is a mixture model, not a multislice calculation, but all its parts look as microscopists
expect:

- a nearly parallel probe makes a small disk of the direct beam and one for each Bragg reflection
  near the Ewald sphere, with two-beam intensities in the local thickness of the crystal;
- the gradient of the phase, which is the mean inner potential along the beam, deflects the direct
  disk;
- carbon scatters into its amorphous rings, gold into a thermal diffuse tail to high angles;
- electrons are counted: their number is conserved, and the counts have Poisson noise.

Lengths are in nanometres, angles in milliradians, intensities in fractions of the incident beam.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dask_tiled.model.axes import Axis

Floats = NDArray[np.float64]
Counts = NDArray[np.uint16]

WAVELENGTH = 2.508e-3  # of 200 kV electrons
ELECTRONS = 40_000  # per scan position: 6.4 pA for 1 ms; none of the 12-bit counters overflows
SCAN = (60, 64)
STEP = 1.0  # of the scan

DETECTOR = 128  # pixels on each side
MRAD = 0.4  # from pixel to pixel
SEMI_ANGLE = 0.8  # of the probe's convergence: the rings of 111 and 200 stay apart

GOLD_LATTICE = 0.4078
# Extinction distances of gold grow about linearly with |g|: 20 nm for 111, 46 nm for 400.
GOLD_EXTINCTION = 4.7  # nm^2: extinction distance / |g|
GOLD_DIFFUSE_PATH = 55.0  # mean free path for thermal diffuse scattering
CARBON_PATH = 170.0  # mean free path for all elastic scattering
# Radians of phase per nm: the interaction constant (7.29e-3 rad/V/nm) times the inner potential.
GOLD_PHASE, CARBON_PHASE = 0.22, 0.066

ZONE_AXES = ((0, 0, 1), (0, 1, 1), (1, 1, 1), (1, 1, 2))

AXES = (
    *(Axis(name, "nm", STEP) for name in ("scan_y", "scan_x")),
    *(Axis(name, "mrad", MRAD, round(-MRAD * (DETECTOR - 1) / 2, 6)) for name in ("y", "x")),
)

HOT = ((20, 97), (71, 12), (103, 64))
DEAD = ((9, 30), (45, 110), (88, 41), (120, 120))
"""Pixels (y, x) of the detector defects."""
HOT_COUNT = 3000

UNIT = 2.0**22
"""Weights and patterns are multiples of 1 / UNIT, so that products and sums are exact in any
order: every machine makes the same file."""


@dataclass(frozen=True)
class Crystal:
    """One gold crystal: a truncated hexagonal pyramid, and the reflections it excites."""

    y: float
    x: float
    radius: float
    azimuth: float  # of its facets, radians
    g: Floats = field(repr=False)  # (reflections, 2): positions (y, x) on the detector, mrad
    excitation_error: Floats = field(repr=False)  # (reflections,), 1/nm
    extinction: Floats = field(repr=False)  # (reflections,), nm

    def thickness(self, y: Floats, x: Floats) -> Floats:
        """Return the thickness along the beam at positions (y, x)."""
        facets = self.azimuth + np.arange(6) * np.pi / 3
        away = np.cos(facets) * (x - self.x)[..., None] + np.sin(facets) * (y - self.y)[..., None]
        return np.clip(1.6 * (self.radius - away.max(axis=-1)), 0, 1.3 * self.radius)

    def reflections(self, thickness: Floats) -> Floats:
        """Return two-beam intensities of shape ``thickness.shape + (reflections,)``."""
        effective = np.hypot(self.excitation_error, 1 / self.extinction)
        phase = np.pi * thickness[..., None] * effective
        return (np.sin(phase) / (self.extinction * effective)) ** 2


def grow_crystal(rng: np.random.Generator, y: float, x: float, radius: float) -> Crystal:
    """Return a crystal near a random zone axis, rotated about the beam, tilted by up to 15 mrad."""
    zone = np.array(rng.permutation(ZONE_AXES[rng.integers(len(ZONE_AXES))]), float)
    zone /= np.linalg.norm(zone)
    first = np.cross(zone, np.eye(3)[np.argmin(np.abs(zone))])
    first /= np.linalg.norm(first)
    second = np.cross(zone, first)
    azimuth = rng.uniform(0, 2 * np.pi)
    tilt = rng.uniform(-0.015, 0.015, size=2)

    hkl = np.array(
        [
            indices
            for indices in itertools.product(range(-6, 7), repeat=3)
            if any(indices) and len({i % 2 for i in indices}) == 1  # allowed in fcc
        ]
    )
    g = hkl / GOLD_LATTICE @ np.stack([first, second, zone], axis=1)
    turn = np.array([[np.cos(azimuth), -np.sin(azimuth)], [np.sin(azimuth), np.cos(azimuth)]])
    plane = g[:, :2] @ turn
    excitation = plane @ tilt - g[:, 2] - WAVELENGTH / 2 * (plane**2).sum(axis=1)
    angles = 1e3 * WAVELENGTH * plane
    edge = DETECTOR / 2 * MRAD + SEMI_ANGLE
    seen = (np.abs(excitation) < 0.35) & (np.abs(angles).max(axis=1) < edge)
    return Crystal(
        y=y,
        x=x,
        radius=radius,
        azimuth=azimuth,
        g=angles[seen],
        excitation_error=excitation[seen],
        extinction=GOLD_EXTINCTION * np.linalg.norm(g[seen], axis=1),
    )


def carbon_thickness(rng: np.random.Generator, y: Floats, x: Floats) -> Floats:
    """Return the film thickness: about 9 nm, with a hole at the lower right, and rough."""
    waves = rng.normal(scale=0.9, size=(60, 2))
    phases = rng.uniform(0, 2 * np.pi, size=60)
    arguments = waves[:, 0] * y[..., None] + waves[:, 1] * x[..., None] + phases
    rough = np.cos(arguments).sum(axis=-1) / np.sqrt(60)
    return (9 + 1.1 * rough) / (1 + np.exp(-(from_hole(y, x) - 15.5 - 0.8 * rough) / 0.7))


def from_hole(y: Floats | float, x: Floats | float) -> Floats:
    """Return the distance of positions from the middle of the hole, which is wider than high."""
    return np.hypot(y - 55.0, 0.8 * (x - 60.0))


class Specimen:
    """Gold crystals on a carbon film; each scan position covers 1 nm.

    Attributes
    ----------
    carbon, gold : ndarray, ``SCAN``
        Thickness of the film, and of all crystals at a position, in nm.
    phase : ndarray, ``SCAN``
        Phase of the exit wave of the specimen, in radians; its gradient shifts the beam.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        y, x = STEP * (np.indices(SCAN) + 0.5)
        self.carbon = carbon_thickness(rng, y, x)
        self.crystals = self._place(rng)
        self._thickness = [crystal.thickness(y, x) for crystal in self.crystals]
        self.gold = np.sum(self._thickness, axis=0)
        self.phase = GOLD_PHASE * self.gold + CARBON_PHASE * self.carbon
        slope = np.stack(np.gradient(self.phase, STEP), axis=-1)
        self._deflection = 1e3 * WAVELENGTH / (2 * np.pi) * slope

    @staticmethod
    def _place(rng: np.random.Generator) -> list[Crystal]:
        placed: list[Crystal] = []
        radii = np.concatenate([rng.uniform(4.5, 8.5, 9), rng.uniform(1.4, 2.8, 26)])
        for radius in np.sort(radii)[::-1]:
            for y, x in rng.uniform(2, np.array(SCAN) * STEP - 2, size=(200, 2)):
                on_film = from_hole(y, x) > 17 + 0.6 * radius
                alone = all(np.hypot(y - c.y, x - c.x) > radius + c.radius for c in placed)
                if on_film and alone:
                    placed.append(grow_crystal(rng, y, x, radius))
                    break
        return placed

    def counts(self, rows: int = SCAN[0]) -> Iterator[Counts]:
        """Yield the diffraction patterns of one scan row at a time.

        Yields
        ------
        ndarray, (scan x, y, x), uint16
            Counted electrons, of ``ELECTRONS`` per position.
        """
        rng = np.random.default_rng(3)
        angle = MRAD * np.hypot(*(np.indices((DETECTOR, DETECTOR)) - (DETECTOR - 1) / 2))
        smooth = whole([carbon_profile(angle), diffuse_profile(angle)])
        patterns = [whole(disks(c.g)) for c in self.crystals]

        for row in range(rows):
            elastic = np.exp(-self.gold[row] / GOLD_DIFFUSE_PATH)
            thin = np.exp(-self.carbon[row] / CARBON_PATH)
            excited = [
                c.reflections(t[row]) for c, t in zip(self.crystals, self._thickness, strict=True)
            ]
            # Reflections take their intensity from the direct beam, but never all of it.
            left = elastic * thin / (1 + sum(e.sum(axis=-1) for e in excited))
            mean = mix(np.stack([elastic * (1 - thin), 1 - elastic], axis=-1), smooth)
            mean += np.rint(left * UNIT)[:, None, None] * whole(disks(self._deflection[row]))
            for beams, pattern in zip(excited, patterns, strict=True):
                here = beams.any(axis=-1)
                if here.any():
                    mean[here] += mix(left[here, None] * beams[here], pattern)
            yield rng.poisson(ELECTRONS / UNIT**2 * mean).astype(np.uint16)


def whole(patterns: Floats | list[Floats]) -> NDArray[np.float32]:
    """Return patterns in multiples of 1 / UNIT, which the 24 bits of float32 hold exactly."""
    return np.rint(np.asarray(patterns) * UNIT).astype(np.float32)


def mix(weights: Floats, patterns: NDArray[np.float32]) -> Floats:
    """Return the sum of ``patterns`` (components, y, x), weighted (positions, components)."""
    flat = patterns.reshape(len(patterns), -1).astype(np.float64)
    return (np.rint(weights * UNIT) @ flat).reshape(len(weights), *patterns.shape[1:])


def disks(centres: Floats) -> Floats:
    """Return disks of the probe around ``centres`` (n, 2) in mrad; a whole disk sums to 1."""
    radius = SEMI_ANGLE / MRAD
    reach = np.arange(-math.ceil(radius) - 1, math.ceil(radius) + 2)
    out = np.zeros((len(centres), DETECTOR, DETECTOR))
    for frame, (y, x) in zip(out, centres / MRAD + (DETECTOR - 1) / 2, strict=True):
        rows, columns = round(y) + reach, round(x) + reach
        disk = np.clip(radius - np.hypot(rows[:, None] - y, columns - x) + 0.5, 0, 1)
        disk /= disk.sum()
        for places in (rows, columns):
            places[(places < 0) | (places >= DETECTOR)] = DETECTOR  # outside the detector
        padded = np.zeros((DETECTOR + 1, DETECTOR + 1))
        padded[np.ix_(rows, columns)] = disk
        frame[:] = padded[:-1, :-1]
    return out


def carbon_profile(angle: Floats) -> Floats:
    """Return the profile of amorphous carbon: a narrow core, and rings at 0.21 nm and 0.12 nm."""
    profile = 1 / (1 + (angle / 6) ** 2) ** 2
    for spacing, width, height in ((0.21, 1.9, 0.10), (0.12, 2.6, 0.035)):
        profile += height * np.exp(-(((angle - 1e3 * WAVELENGTH / spacing) / width) ** 2) / 2)
    return profile / profile.sum()


def diffuse_profile(angle: Floats) -> Floats:
    """Return the thermal diffuse scattering of gold: none forward, a maximum, and a long tail."""
    screened = 1 / (1 + (angle / 22) ** 2) ** 2
    profile = screened * (1 - np.exp(-((angle / 9) ** 2)))
    return 0.6 * profile / profile.sum()


def write_gold(folder: Path, *, rows: int = SCAN[0], bad_pixels: bool = False) -> None:
    """Write ``gold.mib``, its ``gold.hdr``, and the axes, which these cannot hold.

    One scan row is in memory at a time.
    """
    from dask_tiled.formats.saved_axes import save_axes
    from dask_tiled.opening.describing import describe
    from dask_tiled.testing.mib import write_mib

    (hot_y, hot_x), (dead_y, dead_x) = np.transpose(HOT), np.transpose(DEAD)

    def frames() -> Iterator[Counts]:
        for row in Specimen().counts(rows):
            if bad_pixels:
                row[:, hot_y, hot_x] = HOT_COUNT
                row[:, dead_y, dead_x] = 0
            yield from row

    path = write_mib(folder / "gold.mib", frames(), kind="U16", nav_shape=(rows, SCAN[1]))
    save_axes(describe(path, axes=AXES))
