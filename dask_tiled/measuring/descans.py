"""Planes through the positions of the beam, which moves over the detector during a scan."""

from __future__ import annotations

import itertools
import math

import numpy as np

from dask_tiled.model.indexing import Array

OUTLYING = 4.0
"""Distance of positions from the plane, relative to the usual one, from which they are ignored."""
ROUNDS = 20


def powers_of(order: int, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the powers of the scan axes in each term of a polynomial, the constant first.

    Axes that are no longer than the order have lower powers.
    """
    ordered = itertools.product(*(range(min(order, size - 1) + 1) for size in shape))
    return sorted((powers for powers in ordered if sum(powers) <= order), key=sum)


def terms(places: Array, shape: tuple[int, ...], powers: list[tuple[int, ...]]) -> Array:
    """Return the terms at places (n, axes) of a scan of a shape, whose corners are at -1 and 1."""
    ends = np.maximum(np.array(shape) - 1, 1) / 2
    scaled = np.asarray(places, float) / ends - 1
    return np.stack([(scaled**power).prod(axis=1) for power in powers], axis=1)


def fit_positions(columns: Array, positions: Array) -> tuple[Array, float, float]:
    """Fit polynomials to positions (n, 2), without outliers and positions that are not finite.

    Returns
    -------
    coefficients : ndarray, (terms, 2)
    error : float
        Usual distance of a position from the fit.
    outliers : float
        Share of the positions that are left out.
    """
    there = np.isfinite(positions).all(axis=1)
    columns, positions = columns[there], positions[there]
    if not len(positions):
        return np.full((columns.shape[1], 2), np.nan), math.nan, 0.0
    weights = np.ones(len(positions))
    found: Array = np.zeros((columns.shape[1], 2))
    error = 0.0
    for _ in range(ROUNDS):
        moved = columns * weights[:, None]
        before = found
        found = np.linalg.lstsq(moved, positions * weights[:, None], rcond=None)[0]
        away = np.hypot(*(positions - columns @ found).T)
        error = float(np.median(away))
        weights = 1 - np.clip(away / (OUTLYING * error + 1e-9), 0, 1) ** 2
        if abs(found - before).max() < 1e-6 * (1 + abs(found).max()):
            break
    left_out = float((weights == 0).mean())
    return found, error, left_out
