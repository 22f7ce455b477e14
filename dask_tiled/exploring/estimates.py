"""Progressive images: first from few frames all over the scan, then row by row, finally exact."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.measuring.sampling import blocks_of
from dask_tiled.model.indexing import Array, Index
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.tiling import machine

Compute = Callable[[da.Array], Array]
"""Computes an array, or raises an exception to end the job."""

FIRST, NEXT = 0.02, 0.1
"""Approximate seconds for the first estimate and for each later step."""
RATE, REMOTE_RATE = 2e9, 2e7
"""Initial reading rates in bytes per second, before any measurement."""
LEAST_FRAMES = 64
"""Minimum number of frames of an estimate."""


class Estimate(NamedTuple):
    """An image that may be estimated in part."""

    values: Array
    """One number per position, or several on the last axis; the first estimate of a large scan
    has fewer, evenly spaced positions."""
    share: float
    """Fraction of the frames that were read."""
    exact: bool = False


class Pace:
    """Reading rate in bytes per second, measured on past computations."""

    def __init__(self, rate: float = RATE) -> None:
        self.rate = rate
        self._least = rate / 8  # with a lower rate, estimates would be uselessly small

    def measured(
        self, compute: Compute, arr: da.Array, nbytes: int, least: float = NEXT / 4
    ) -> Array:
        """Compute an array from ``nbytes`` bytes of pixels, and update the rate.

        Computations shorter than ``least`` seconds are ignored: their overhead dominates.
        """
        start = time.perf_counter()
        found = compute(arr)
        seconds = max(time.perf_counter() - start, 1e-4)
        if seconds > least:
            self.rate = max(self._least, 0.5 * self.rate + 0.5 * nbytes / seconds)
        return found


def estimates(
    view: da.Array,
    expression: Callable[[da.Array], da.Array],
    scan_ndim: int,
    compute: Compute,
    pace: Pace,
    *,
    by_rows: bool,
) -> Iterator[Estimate]:
    """Yield images of a scan, the last of which is exact: ``expression(view)``, bit for bit.

    Parameters
    ----------
    view : dask.array.Array
        Scan axes, then those of a frame.
    expression : callable
        Function of a scan, or of any part of one: scan axes, then others.
    by_rows : bool
        Whether rows computed separately equal those of the whole scan, bit for bit.
    """
    shape = view.shape[:scan_ndim]
    count, frame = math.prod(shape), math.prod(view.shape[scan_ndim:]) * view.dtype.itemsize
    whole = count * frame
    blocks = blocks_of(view, scan_ndim)
    steps = _first_steps(view, scan_ndim, pace)
    if max(steps, default=1) == 1:  # computed exactly in one step
        yield Estimate(pace.measured(compute, expression(view), whole), 1.0, exact=True)
        return
    found, share = _from_few(view, expression, steps, compute, pace)
    yield Estimate(found, share)
    coarse = _spread(found, steps, shape)
    values, known = np.empty_like(coarse), np.zeros(shape[0], bool)
    for rows in _batches(shape, blocks[0], frame, pace):
        part = _in_parts(view[rows], pace)
        values[rows] = pace.measured(compute, expression(part), int(part.nbytes))
        known[rows] = True
        done = int(np.count_nonzero(known))
        if done == shape[0]:
            yield Estimate(values, 1.0, exact=by_rows)
            break
        shown = values[_nearest(known)]
        if done < len(found):
            shown = np.where(known.reshape(-1, *[1] * (values.ndim - 1)), values, coarse)
        yield Estimate(shown, max(share, done / shape[0]))
        if not by_rows and done >= shape[0] // 8:
            break  # the remaining frames would be read twice
    if not by_rows:
        yield Estimate(pace.measured(compute, expression(view), whole), 1.0, exact=True)


def coarse_estimate(
    view: da.Array,
    expression: Callable[[da.Array], da.Array],
    scan_ndim: int,
    compute: Compute,
    pace: Pace,
) -> Estimate | None:
    """Return an image of a scan from few frames; None if all are computed as fast.

    Parameters are those of :func:`estimates`.
    """
    steps = _first_steps(view, scan_ndim, pace)
    if max(steps, default=1) == 1:
        return None
    found, share = _from_few(view, expression, steps, compute, pace)
    return Estimate(_spread(found, steps, view.shape[:scan_ndim]), share)


def _first_steps(view: da.Array, scan_ndim: int, pace: Pace) -> list[int]:
    """Return the steps along the axes of a scan for its first estimate."""
    frame = math.prod(view.shape[scan_ndim:]) * view.dtype.itemsize
    most = max(LEAST_FRAMES, int(pace.rate * FIRST / frame))
    return _steps(view.shape[:scan_ndim], blocks_of(view, scan_ndim), most)


def _from_few(
    view: da.Array,
    expression: Callable[[da.Array], da.Array],
    steps: Sequence[int],
    compute: Compute,
    pace: Pace,
) -> tuple[Array, float]:
    """Compute an image from evenly spaced frames; return it, and their fraction of all frames."""
    some = _in_parts(view[tuple(slice(step // 2, None, step) for step in steps)], pace)
    found = pace.measured(compute, expression(some), int(some.nbytes), 3 * FIRST)
    few, count = (math.prod(arr.shape[: len(steps)]) for arr in (some, view))
    return found, few / count


def mean_estimates(
    view: da.Array, scan_ndim: int, compute: Compute, pace: Pace
) -> Iterator[Estimate]:
    """Yield means of all frames, the last of which is exact: equal to the one of dask."""
    nav = tuple(range(scan_ndim))
    shape = view.shape[:scan_ndim]
    frame = math.prod(view.shape[scan_ndim:]) * view.dtype.itemsize
    count = math.prod(shape)
    if count * frame > pace.rate * FIRST:
        steps = _steps(shape, blocks_of(view, scan_ndim), max(1, int(pace.rate * FIRST / frame)))
        part = view[tuple(slice(step // 2, None, step) for step in steps)]
        share = math.prod(part.shape[:scan_ndim]) / count
        yield Estimate(compute(part.mean(axis=nav)), share)
    yield Estimate(pace.measured(compute, view.mean(axis=nav), count * frame), 1.0, exact=True)


def _in_parts(view: da.Array, pace: Pace) -> da.Array:
    """Rechunk rows of an opened array, so that all cores read them in short tasks."""
    if not isinstance(view, TiledArray):
        return view
    most = max(1 << 20, int(pace.rate * FIRST / machine.processors()))
    rows = max(1, most // max(1, view[:1].nbytes))
    return view.rechunk({0: min(rows, -(-view.shape[0] // machine.processors()))})


def spread_out(count: int) -> Index:
    """Return the integers below ``count`` in bit-reversed order: every prefix is spread evenly."""
    bits = max(count - 1, 0).bit_length()
    numbers = np.arange(1 << bits)
    turned = np.zeros_like(numbers)
    for k in range(bits):
        turned |= (numbers >> k & 1) << (bits - 1 - k)
    return turned[turned < count]


def _steps(shape: Sequence[int], blocks: Sequence[int], most: int) -> list[int]:
    """Return the steps along the axes of a scan for the first estimate.

    If positions are read in blocks, the estimate uses few positions of few blocks.
    """
    steps = [1] * len(shape)
    most = max(1, most // math.prod(blocks))

    def counts() -> list[int]:
        return [-(-n // step) for n, step in zip(shape, steps, strict=True)]

    while math.prod(counts()) > most and max(counts()) > 1:
        longest = max(range(len(shape)), key=lambda k: counts()[k])
        steps[longest] *= 2
    return [min(step, n) for step, n in zip(steps, shape, strict=True)]


def _spread(found: Array, steps: Sequence[int], shape: Sequence[int]) -> Array:
    """Return an image of all positions, from the nearest known ones."""
    for axis, (step, length) in enumerate(zip(steps, shape, strict=True)):
        places = np.minimum(np.arange(length) // step, found.shape[axis] - 1)
        found = np.take(found, places, axis)
    return found


def _nearest(known: Array) -> Index:
    """Return the nearest known row for each row."""
    rows, places = np.flatnonzero(known), np.arange(len(known))
    after = np.minimum(np.searchsorted(rows, places), len(rows) - 1)
    before = np.maximum(after - 1, 0)
    nearer = np.where(places - rows[before] <= rows[after] - places, before, after)
    return rows[nearer]


def _batches(shape: Sequence[int], block: int, frame: int, pace: Pace) -> Iterator[Index]:
    """Yield batches of rows, spread over the scan, in whole blocks; batches grow up to twofold."""
    row = math.prod(shape[1:]) * frame
    order = spread_out(-(-shape[0] // block))
    count = max(1, int(pace.rate * NEXT / max(1, row * block)))
    start = 0
    while start < len(order):
        starts = order[start : start + count, np.newaxis] * block
        rows = np.sort((starts + np.arange(block)).ravel())
        yield rows[rows < shape[0]]
        start += count
        count = min(2 * count, max(count, len(order) // 8))
