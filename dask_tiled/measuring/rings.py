"""Diffraction rings: peaks of the radial profile, and the scale at which known rings fit them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import TilingError
from dask_tiled.measuring.disk_fits import Bools
from dask_tiled.model.indexing import Array

PROMINENT = 5.0
"""Height of a peak relative to the noise of the profile."""
NEAR = 0.03
"""Relative distance from a known ring within which a peak is that ring."""
USUAL_WIDTH, LEAST_WIDTH = 1.5, 0.4
"""Standard deviations of rings, in pixels: at first, and at least."""
MOST_PEAKS = 8
"""Number of peaks, the highest ones, that may be the first ring."""
WEAKEST = 0.1
"""Least height of a ring relative to the highest of the known ones."""
SECTORS = 16
REACH = 5.0
"""Range of the profile beyond the outer rings, in widths."""


class Ring(NamedTuple):
    """A peak of the radial profile, in pixels."""

    radius: float
    height: float


class Profile(NamedTuple):
    """A radial profile: mean radii and pixels of rings a pixel wide, and errors of the means."""

    radii: Array
    means: Array
    errors: Array

    @classmethod
    def of(cls, pixels: Array, away: Array) -> Profile:
        """Return the profile of pixels at distances from the centre."""
        numbers = np.rint(away).astype(int)
        counts = np.bincount(numbers)
        divided = np.maximum(counts, 1)
        radii, means, squares = (
            np.bincount(numbers, values) / divided for values in (away, pixels, pixels**2)
        )
        spread = np.sqrt(np.maximum(squares - means**2, 0) / divided)
        spread += 1e-6 * abs(means).max(initial=0) + 1e-300
        there = counts > 0
        return cls(radii[there], means[there], spread[there])

    def peaks(self, inner: float) -> list[Ring]:
        """Return the peaks outside of a radius, the highest first."""
        radii, means, errors = self
        rings = []
        for k in range(2, len(radii) - 2):
            if radii[k] < inner + 2 or means[k] != means[k - 2 : k + 3].max():
                continue
            left, right = _valley(means, k, -1), _valley(means, k, 1)
            if radii[left] < inner:
                continue
            height = means[k] - np.interp(radii[k], radii[[left, right]], means[[left, right]])
            noise = math.hypot(errors[k], errors[left] / 2, errors[right] / 2)
            if height > PROMINENT * noise:
                before, at, after = means[k - 1 : k + 2]
                bend = before - 2 * at + after
                shift = 0.5 * (before - after) / bend if bend else 0.0
                rings.append(Ring(float(radii[k] + shift), float(height)))
        return sorted(rings, key=lambda ring: -ring.height)


def _valley(means: Array, at: int, step: int) -> int:
    """Return the end of a peak: the lowest point before the profile rises again."""
    lowest, k = at, at + step
    while 0 <= k < len(means) and abs(k - at) <= max(4, 0.25 * at):
        if means[k] < means[lowest]:
            lowest = k
        elif means[k] > means[lowest] + 0.2 * (means[at] - means[lowest]):
            break
        k += step
    return lowest


class RingFit(NamedTuple):
    """Known rings fitted to a profile, on a smooth background and beside other peaks."""

    size: float
    """Radius of the ring of the frequency 1, in pixels."""
    width: float
    others: Array
    """Radii of other peaks."""
    significance: float
    """Height of the weakest known ring relative to its error; 0 if another is much higher."""
    error: float
    """Squared deviation of the profile, relative to its errors."""


def _fitted(
    profile: Profile, known: Array, others: Array, size: float, width: float
) -> RingFit | None:
    """Fit the size, the common width, the other peaks and all heights to a profile; or None."""
    shape = np.array([size, width, *others])
    low, high = (f(np.concatenate([known * size, others])) for f in (np.min, np.max))
    part = (profile.radii > low - REACH * width - 2) & (profile.radii < high + REACH * width + 2)
    r, means, errors = (values[part] for values in profile)
    if len(r) < len(shape) + len(known) + len(others) + 5:
        return None
    middle, half = (r[0] + r[-1]) / 2, (r[-1] - r[0]) / 2
    smooth = np.stack([((r - middle) / half) ** power for power in range(4)], 1)

    def columns_of(shape: Array) -> Array:
        places = np.concatenate([known * shape[0], shape[2:]])
        bells = np.exp(-(((r[:, None] - places) / shape[1]) ** 2) / 2)
        return np.concatenate([bells, smooth], 1) / errors[:, None]

    values, damping = means / errors, 1e-3
    columns = columns_of(shape)
    levels = np.linalg.lstsq(columns, values, rcond=None)[0]
    rest = values - columns @ levels
    for _ in range(40):
        steps = 1e-5 * np.maximum(abs(shape), 1)
        slopes = [
            (columns_of(shape + step * (np.arange(len(shape)) == k)) - columns) @ levels / step
            for k, step in enumerate(steps)
        ]
        moved = np.concatenate([np.stack(slopes, 1), columns], 1)
        normal = moved.T @ moved
        damped = normal + damping * np.diag(np.diag(normal) + 1e-12)
        change = np.linalg.lstsq(damped, moved.T @ rest, rcond=None)[0][: len(shape)]
        trial = shape + np.clip(change, -0.05 * abs(shape), 0.05 * abs(shape))
        trial[1] = max(trial[1], LEAST_WIDTH)
        new = columns_of(trial)
        new_levels = np.linalg.lstsq(new, values, rcond=None)[0]
        new_rest = values - new @ new_levels
        if new_rest @ new_rest > rest @ rest:
            damping *= 8
            if damping > 1e6:
                break
            continue
        is_still = bool((abs(trial - shape) < 1e-6 * abs(shape)).all())
        shape, columns, levels, rest = trial, new, new_levels, new_rest
        damping /= 5
        if is_still:
            break
    error = float(rest @ rest)
    variances = np.diag(np.linalg.pinv(columns.T @ columns)) * max(error / len(r), 1e-12)
    heights = levels[: len(known)]
    clear = heights / np.sqrt(variances[: len(known)] + 1e-300)
    clear[heights < WEAKEST * heights.max()] = 0.0
    return RingFit(float(shape[0]), float(shape[1]), shape[2:], float(clear.min()), error)


def fit_rings(profile: Profile, peaks: Sequence[Ring], known: Array) -> RingFit:
    """Fit known spatial frequencies to the peaks of a profile; the highest one for a single ring.

    Raise a TilingError if rings are not seen.
    """
    if not peaks:
        hint = "Average more frames, or pass the centre."
        raise TilingError("no diffraction ring is seen in the mean of the frames", hint=hint)
    best = None
    for peak in peaks[:1] if len(known) == 1 else peaks[:MOST_PEAKS]:
        for frequency in known:
            size = peak.radius / frequency
            places = known * size
            if places.max() > profile.radii[-1] or places.min() < 2:
                continue
            others = [ring.radius for ring in peaks if (abs(ring.radius / places - 1) > NEAR).all()]
            inside = [r for r in others if places.min() * 0.8 < r < places.max() * 1.2]
            matched = len(peaks) - len(others)
            fit = _fitted(profile, known, np.array(inside), size, USUAL_WIDTH)
            if fit is None or abs(fit.size / size - 1) > NEAR or fit.significance < PROMINENT:
                continue
            if best is None or (matched, -fit.error) > best[0]:
                best = (matched, -fit.error), fit
    if best is None:
        ratios = ", ".join(f"{frequency / known[0]:.3f}" for frequency in known)
        seen = ", ".join(f"{ring.radius:.1f}" for ring in sorted(peaks))
        raise TilingError(
            "the rings do not fit those of the mean of the frames",
            expected=f"radii in the ratios {ratios}",
            found=f"radii of {seen} px",
        )
    return best[1]


class Oval(NamedTuple):
    """The ellipse of rings."""

    size: float
    """As of a fit, without an error of the centre."""
    ellipticity: float
    """Ratio of the axes, less 1; NaN if less than half of the rings is seen."""
    direction: float
    """Direction of the major axis in degrees, from x to y."""


def fit_oval(
    mean: Array, good: Bools, center: tuple[float, float], known: Array, fit: RingFit
) -> Oval:
    """Fit rings in sectors around the centre."""
    y, x = np.indices(mean.shape)
    down, across = y - center[0], x - center[1]
    away = np.hypot(down, across)
    turn = np.arctan2(down, across) / (2 * np.pi) + 0.5
    numbers = np.minimum((turn * SECTORS).astype(int), SECTORS - 1)
    sizes, angles = [], []
    for sector in range(SECTORS):
        some = good & (numbers == sector)
        if np.count_nonzero(some) < 20:
            continue
        part = _fitted(Profile.of(mean[some], away[some]), known, fit.others, fit.size, fit.width)
        if part is not None and abs(part.size / fit.size - 1) < 0.1 and part.significance > 1:
            sizes.append(part.size)
            angles.append(((sector + 0.5) / SECTORS - 0.5) * 2 * np.pi)
    if len(sizes) < SECTORS / 2:
        return Oval(fit.size, math.nan, math.nan)
    at, found = np.array(angles), np.array(sizes)
    waves = [f(n * at) for n in (1, 2) for f in (np.cos, np.sin)]
    columns = np.stack([np.ones_like(at), *waves], 1)
    weights = np.ones_like(found)
    for _ in range(5):
        fitted = np.linalg.lstsq(columns * weights[:, None], found * weights, rcond=None)[0]
        rest = abs(found - columns @ fitted)
        weights = 1 - np.clip(rest / (6 * np.median(rest) + 1e-9), 0, 1) ** 2
    size = math.hypot(fitted[3], fitted[4]) / fitted[0]
    direction = math.degrees(math.atan2(fitted[4], fitted[3]) / 2) % 180
    noise = float(np.sqrt((rest**2).mean() / len(found))) / fitted[0]
    told = (1 + size) / (1 - size) - 1 if size > 3 * noise else 0.0
    return Oval(float(fitted[0]), told, direction)
