"""A simulated 4D-STEM scan: faceted gold crystals on a carbon film with a hole, 200 kV.

A mixture model, not a multislice calculation, but every part of it is what a microscopist expects:

- a convergent probe makes a disk of the direct beam and one for each Bragg reflection near the
  Ewald sphere, with two-beam intensities in the local thickness of the crystal;
- wedges deflect the direct disk by the gradient of the mean inner potential;
- carbon scatters into its amorphous rings, gold into a thermal diffuse tail to high angles;
- electrons are counted: their number is conserved, and the counts have Poisson noise.

Lengths are in nanometres, angles in milliradians, intensities in fractions of the incident beam.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WAVELENGTH = 2.508e-3  # of 200 kV electrons
ELECTRONS = 60_000  # per scan position: 10 pA for 1 ms
FIELD_OF_VIEW = 64.0

DETECTOR = 256  # pixels along each side
DETECTED = 64.0  # mrad along each side
SEMI_ANGLE = 3.0  # of the probe's convergence

GOLD_LATTICE = 0.4078
# Extinction distances of gold grow about linearly with |g|: 20 nm for 111, 46 nm for 400.
GOLD_EXTINCTION = 4.7  # nm^2: extinction distance / |g|
GOLD_DIFFUSE_PATH = 55.0  # mean free path for thermal diffuse scattering
CARBON_PATH = 170.0  # mean free path for all elastic scattering
# Radians of phase per nm: the interaction constant (7.29e-3 rad/V/nm) times the inner potential.
GOLD_PHASE, CARBON_PHASE = 0.22, 0.066

ZONE_AXES = ((0, 0, 1), (0, 1, 1), (1, 1, 1), (1, 1, 2))


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
        """Thickness along the beam at positions (y, x)."""
        facets = self.azimuth + np.arange(6) * np.pi / 3
        away = np.cos(facets) * (x - self.x)[..., None] + np.sin(facets) * (y - self.y)[..., None]
        return np.clip(1.6 * (self.radius - away.max(axis=-1)), 0, 1.3 * self.radius)

    def reflections(self, thickness: Floats) -> Floats:
        """Two-beam intensity of every reflection, shape ``thickness.shape + (reflections,)``."""
        effective = np.hypot(self.excitation_error, 1 / self.extinction)
        phase = np.pi * thickness[..., None] * effective
        return (np.sin(phase) / (self.extinction * effective)) ** 2


def grow_crystal(rng: np.random.Generator, y: float, x: float, radius: float) -> Crystal:
    """Make a crystal near a random zone axis, turned about the beam, tilted by up to 15 mrad."""
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
    edge = DETECTED / 2 + SEMI_ANGLE
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
    """Film of about 9 nm with a hole at the lower right, its roughness a sum of plane waves."""
    waves = rng.normal(scale=0.9, size=(60, 2))
    phases = rng.uniform(0, 2 * np.pi, size=60)
    arguments = waves[:, 0] * y[..., None] + waves[:, 1] * x[..., None] + phases
    rough = np.cos(arguments).sum(axis=-1) / np.sqrt(60)
    from_hole = np.hypot(y - 57, 0.8 * (x - 60)) - 15.5 - 0.8 * rough
    return (9 + 1.1 * rough) / (1 + np.exp(-from_hole / 0.7))


class Specimen:
    """Gold crystals on a carbon film, sampled at ``scan`` x ``scan`` positions.

    Parameters
    ----------
    scan : int
        Positions along each side.
    detector : int
        Pixels along each side of the detector, which always sees the same angles.
    seed : int
        Another number makes other crystals.

    Attributes
    ----------
    step : float
        Distance of two scan positions in nanometres.
    mrad : float
        Angle from one pixel of the detector to the next.
    carbon : ndarray, (scan, scan)
        Thickness of the film.
    gold : ndarray, (scan, scan)
        Thickness of all crystals at a position.
    """

    def __init__(self, scan: int, detector: int = DETECTOR, seed: int = 2) -> None:
        rng = np.random.default_rng(seed)
        self.step, self.mrad = FIELD_OF_VIEW / scan, DETECTED / detector
        self._detector = detector
        y, x = np.mgrid[:scan, :scan] * self.step + self.step / 2
        self.carbon = carbon_thickness(rng, y, x)
        self.crystals = self._place(rng)
        self._thickness = [crystal.thickness(y, x) for crystal in self.crystals]
        self.gold = np.sum(self._thickness, axis=0)
        phase = GOLD_PHASE * self.gold + CARBON_PHASE * self.carbon
        slope = np.stack(np.gradient(phase, self.step))
        self._deflection = 1e3 * WAVELENGTH / (2 * np.pi) * slope / self.mrad

    @property
    def calibrations(self) -> list[tuple[float, float, str]]:
        """Origin in pixels, step and unit of all four axes, as files have them."""
        scan, frame = (0.0, self.step, "nm"), ((self._detector - 1) / 2, self.mrad, "mrad")
        return [scan, scan, frame, frame]

    def scan(self) -> NDArray[np.uint16]:
        """Give the counts of all positions, (scan, scan, detector, detector)."""
        return np.stack(list(self.counts()))

    @staticmethod
    def _place(rng: np.random.Generator) -> list[Crystal]:
        placed: list[Crystal] = []
        radii = np.concatenate([rng.uniform(4.5, 8.5, 9), rng.uniform(1.4, 2.8, 22)])
        for radius in np.sort(radii)[::-1]:
            for y, x in rng.uniform(2, FIELD_OF_VIEW - 2, size=(200, 2)):
                on_film = np.hypot(y - 57, 0.8 * (x - 60)) > 17 + 0.6 * radius
                alone = all(np.hypot(y - c.y, x - c.x) > radius + c.radius for c in placed)
                if on_film and alone:
                    placed.append(grow_crystal(rng, y, x, radius))
                    break
        return placed

    def counts(self, seed: int = 3) -> Iterator[NDArray[np.uint16]]:
        """Yield the diffraction patterns of one scan row after the other.

        Yields
        ------
        ndarray, (scan, detector, detector), uint16
            Electrons counted, of ``ELECTRONS`` sent to each position.
        """
        rng = np.random.default_rng(seed)
        frame = (self._detector, self._detector)
        ky, kx = self.mrad * (np.indices(frame) - (self._detector - 1) / 2)
        direct = disks(ky, kx, np.zeros((1, 2)), self.mrad)[0]
        amorphous, diffuse = carbon_profile(ky, kx), diffuse_profile(ky, kx)
        # The direct disk, its shifts to first order (they are below a pixel), and what is smooth.
        common = np.stack([direct, *(-d for d in np.gradient(direct)), amorphous, diffuse])
        patterns = [disks(ky, kx, c.g, self.mrad) for c in self.crystals]

        for row in range(len(self.gold)):
            elastic = np.exp(-self.gold[row] / GOLD_DIFFUSE_PATH)
            thin = np.exp(-self.carbon[row] / CARBON_PATH)
            excited = [
                c.reflections(t[row]) for c, t in zip(self.crystals, self._thickness, strict=True)
            ]
            # Every reflection takes from the direct beam; together they never take all of it.
            left = elastic * thin / (1 + sum(e.sum(axis=-1) for e in excited))
            shift_y, shift_x = self._deflection[:, row]
            weights = [left, left * shift_y, left * shift_x, elastic * (1 - thin), 1 - elastic]
            mean = mix(np.stack(weights, axis=-1), common)
            for beams, pattern in zip(excited, patterns, strict=True):
                here = beams.any(axis=-1)
                if here.any():
                    mean[here] += mix(left[here, None] * beams[here], pattern)
            yield rng.poisson(ELECTRONS * mean.clip(0)).astype(np.uint16)


def mix(weights: Floats, patterns: Floats) -> NDArray[np.float32]:
    """Sum ``patterns`` (components, y, x) with ``weights`` (positions, components)."""
    flat = patterns.reshape(len(patterns), -1).astype(np.float32)
    return (weights.astype(np.float32) @ flat).reshape(len(weights), *patterns.shape[1:])


def disks(ky: Floats, kx: Floats, centres: Floats, edge: float) -> NDArray[np.float32]:
    """Unit-sum disks of the probe around ``centres`` (n, 2), with an edge of one pixel."""
    out = np.empty((len(centres), *ky.shape), np.float32)
    for disk, (y, x) in zip(out, centres, strict=True):
        disk[:] = np.clip((SEMI_ANGLE - np.hypot(ky - y, kx - x)) / edge + 0.5, 0, 1)
    return out * np.float32(edge**2 / (np.pi * SEMI_ANGLE**2))


def carbon_profile(ky: Floats, kx: Floats) -> Floats:
    """Amorphous carbon: a narrow core and rings at the spacings 0.21 nm and 0.12 nm."""
    angle = np.hypot(ky, kx)
    profile = 1 / (1 + (angle / 6) ** 2) ** 2
    for spacing, width, height in ((0.21, 1.9, 0.10), (0.12, 2.6, 0.035)):
        profile += height * np.exp(-(((angle - 1e3 * WAVELENGTH / spacing) / width) ** 2) / 2)
    return profile / profile.sum()


def diffuse_profile(ky: Floats, kx: Floats) -> Floats:
    """Thermal diffuse scattering of gold: none forward, a maximum, a tail beyond the detector."""
    angle = np.hypot(ky, kx)
    screened = 1 / (1 + (angle / 22) ** 2) ** 2
    profile = screened * (1 - np.exp(-((angle / 9) ** 2)))
    return 0.6 * profile / profile.sum()
