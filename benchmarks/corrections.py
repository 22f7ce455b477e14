"""Throughput of corrections: GB/s of corrected output from a cached tile, compared with numpy.

Run ``python benchmarks/corrections.py``. It uses one core; compare only numbers of the same table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled import Corrections
from dask_tiled.reading.correction_plans import CorrectionPlan

SIG = (256, 256)
FRAMES = 8
REPEATS = 200
DTYPES = ("u1", "u2", "f4", "u4")
CASES = {
    "dark, gain": (True, 0),
    "dark, gain, 100 excluded": (True, 100),
    "100 excluded": (False, 100),
}

Tile = npt.NDArray[Any]


def numpy_formula(corrections: Corrections, tile: Tile, dtype: np.dtype) -> Tile:
    """Correct whole frames, and replace excluded pixels one by one."""
    out = tile.astype(dtype)
    if corrections.dark is not None and corrections.gain is not None:
        out -= corrections.dark
        out *= corrections.gain
    if corrections.excluded_pixels is not None:
        good = np.ones(SIG, bool)
        good[tuple(corrections.excluded_pixels.T)] = False
        for y, x in corrections.excluded_pixels.tolist():
            box = (slice(max(y - 1, 0), y + 2), slice(max(x - 1, 0), x + 2))
            out[:, y, x] = out[:, *box][:, good[box]].mean(axis=1, dtype=np.float64)
    return out


def median_seconds(job: Callable[[], object], repeats: int) -> float:
    """Return the median time of a job."""
    job()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def case(native: str, n_excluded: int, *, planes: bool) -> tuple[float, float]:
    """Return the GB/s of a correction plan and of numpy."""
    rng = np.random.default_rng(0)
    tile = rng.integers(0, 200, (FRAMES, *SIG)).astype(native)
    dark, gain = rng.random(SIG).astype("f4"), rng.random(SIG).astype("f4")
    pixels = np.unravel_index(rng.choice(SIG[0] * SIG[1], n_excluded, replace=False), SIG)
    excluded = np.stack(pixels, axis=1)
    corrections = Corrections(dark, gain, excluded) if planes else Corrections(None, None, excluded)
    dtype = corrections.dtype(tile.dtype)
    plan = CorrectionPlan(corrections, [(0, 1, n) for n in SIG], SIG)
    out = np.empty(tile.shape, dtype)
    seconds = median_seconds(lambda: plan.apply(tile, out), REPEATS)
    numpy_seconds = median_seconds(lambda: numpy_formula(corrections, tile, dtype), REPEATS // 10)
    np.testing.assert_allclose(out, numpy_formula(corrections, tile, dtype), rtol=1e-6)
    return out.nbytes / seconds / 1e9, out.nbytes / numpy_seconds / 1e9


def main() -> None:
    """Run the benchmark and print the table."""
    print(f"{'corrections':<26}{'pixels':>8}{'GB/s':>8}{'numpy':>8}{'ratio':>8}")
    for name, (planes, n_excluded) in CASES.items():
        for native in DTYPES:
            speed, plain = case(native, n_excluded, planes=planes)
            print(f"{name:<26}{native:>8}{speed:>8.1f}{plain:>8.2f}{speed / plain:>8.1f}")


if __name__ == "__main__":
    main()
