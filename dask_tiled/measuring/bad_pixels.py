"""Detection of bad pixels from a sample of frames."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import compute

from dask_tiled.errors import TilingError, check_whole
from dask_tiled.measuring.sampling import sampled
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.indexing import Array
from dask_tiled.opened.tile_functions import reducible
from dask_tiled.opened.tiled_array import description_of

Bools = npt.NDArray[np.bool_]

PARTS = 5
"""Parts of the sample, each judged separately: a pixel is bad if it is bad in most parts. A
cosmic ray is in one part only, and overlapping diffraction disks stand out in few."""
LEAST_FRAMES = 4 * PARTS
SHARP = 4.0
"""A pixel stands out if it exceeds its neighbours by this multiple of their differences. No spot
of a diffraction pattern is as sharp."""
PATTERN = 0.05
"""Relative differences between the counts of working pixels."""
DEAD = 0.2
"""Maximum counts of a dead pixel, relative to each of its neighbours."""
ROUNDS = 8
STRIPE = 1 << 14
"""Number of pixels whose neighbours are sorted at a time, in cache."""
MEDIAN = np.pi / 2
"""Variance of a median relative to that of a mean: the median of the parts decides."""


def find_bad_pixels(
    arr: Any, *, frames: int = 2000, threshold: float = 6.0, sig_ndim: int | None = None
) -> Corrections:
    """Find hot, dead, stuck and noisy pixels in a sample of the frames.

    Mean and standard deviation of each pixel are compared with those of its neighbours. A pixel is
    hot or noisy if one of them is far above the second largest of its neighbours, relative to their
    differences and to its own noise; it is dead or stuck if one is less than a fifth of each of
    theirs. Disks, spots wider than a pixel, and gradients are not affected. A pixel is bad if it
    meets these criteria in most of five parts of the sample, at the edge of the frame in all of
    them: events in single frames are ignored.

    Parameters
    ----------
    arr : dask.array.Array
        Real numbers: nav + sig, with whole frames.
    frames : int
        Size of the sample, at equal intervals: 20 or more. It is read once, in tiles.
    threshold : float
        Threshold of a difference in standard errors; larger values find fewer pixels.
    sig_ndim : int, optional
        As in :func:`map_tiles`.

    Returns
    -------
    Corrections
        Its ``excluded_pixels`` are the bad pixels, and those that ``arr`` was opened with: pass it
        to :func:`open_dataset`.

    Raises
    ------
    DatasetError
        There are fewer than 20 frames, or they are cropped, or not real numbers.

    Notes
    -----
    Dead pixels cannot be found where fewer than about 200 counts are expected in the whole sample:
    use more frames. Pixels in the middle of bad blocks, and dead pixels within two pixels of dark
    areas, are not found; lines from edge to edge are found. A one-pixel spot that is in most frames
    looks like a hot pixel, a one-pixel gap like a dead one.

    Examples
    --------
    >>> import dask_tiled
    >>> path = dask_tiled.samples.gold(bad_pixels=True)
    >>> found = dask_tiled.find_bad_pixels(dask_tiled.open_dataset(path))
    >>> found.excluded_pixels.tolist()
    [[20, 97], [45, 110], [71, 12], [88, 41], [103, 64]]
    >>> repaired = dask_tiled.open_dataset(path, corrections=found)
    """
    x = reducible(arr, sig_ndim)
    whole = x.arr.shape[x.nav_ndim :]
    if x.arr.dtype.kind not in "biuf":
        problem, expected = "bad pixels can be found in real numbers only", "real numbers"
        raise TilingError(problem, expected=expected, found=x.arr.dtype)
    check_whole("frames, the size of the sample,", frames, least=LEAST_FRAMES, error=TilingError)
    if not threshold > 0:
        raise TilingError("threshold is not positive", expected="more than 0", found=threshold)
    before = _corrections_of(x.arr, whole)
    pixels = sampled(x.arr, x.nav_ndim, frames)
    nav_ndim = pixels.ndim - len(whole)
    counted = math.prod(pixels.shape[:nav_ndim])
    if counted < LEAST_FRAMES:
        expected, found = f"{LEAST_FRAMES} frames or more", f"{counted} frames"
        raise TilingError("too few frames to find bad pixels", expected=expected, found=found)
    parts = _statistics(pixels, nav_ndim)
    in_each = threshold * math.sqrt(MEDIAN / len(parts))
    votes = np.sum([_bad(part, in_each) for part in parts], axis=0)
    # At the edge, a single pixel may be the rest of a cut-off disk: all parts must agree there.
    inside = np.zeros(whole, bool)
    inside[(slice(1, -1),) * len(whole)] = True
    bad = votes >= np.where(inside, len(parts) // 2 + 1, len(parts))
    if before.excluded_pixels is not None:
        bad[tuple(before.excluded_pixels.T)] = True
    return Corrections(before.dark, before.gain, bad, before.fill)


class Statistics(NamedTuple):
    """Statistics of the pixels in a part of the sample."""

    mean: Array
    spread: Array
    """Standard deviations."""
    frames: float


def _corrections_of(arr: da.Array, frame: tuple[int, ...]) -> Corrections:
    """Return the corrections of an opened array; refuse cropped frames."""
    description = description_of(arr)
    if description is None:
        return Corrections()
    held = description.layout.sig_shape
    if held != frame:
        hint = "Find bad pixels before cropping the frames."
        raise TilingError("frames are cropped", expected=f"shape {held}", found=frame, hint=hint)
    return description.conversion.corrections or Corrections()


def _statistics(pixels: da.Array, nav_ndim: int) -> list[Statistics]:
    """Compute the statistics of all parts in one pass."""
    nav = tuple(range(nav_ndim))
    longest = int(np.argmax(pixels.shape[:nav_ndim]))
    parts = min(PARTS, pixels.shape[longest])
    ends = np.linspace(0, pixels.shape[longest], parts + 1).astype(int).tolist()
    mean, var = (da.nanmean, da.nanvar) if pixels.dtype.kind == "f" else (da.mean, da.var)
    values = pixels.astype(np.uint8) if pixels.dtype == bool else pixels
    cuts = [values[(slice(None),) * longest + (slice(*x),)] for x in itertools.pairwise(ends)]
    with warnings.catch_warnings():  # pixels may be NaN in all frames
        warnings.simplefilter("ignore", RuntimeWarning)
        found = compute([mean(cut, nav) for cut in cuts], [var(cut, nav) for cut in cuts])
    counts = [math.prod(cut.shape[:nav_ndim]) for cut in cuts]
    return [
        Statistics(np.asarray(mean, float), np.sqrt(np.asarray(var, float)), count)
        for mean, var, count in zip(*found, counts, strict=True)
    ]


def _bad(of: Statistics, threshold: float) -> Bools:
    """Return a mask of bad pixels: first those that stand out, then bad ones next to them."""
    bad = ~np.isfinite(of.mean)
    bad |= _lines(of.mean)
    for _ in range(ROUNDS):
        mean, spread = (_without(values, bad) for values in (of.mean, of.spread))
        lit = mean > 0
        gain = np.median(spread[lit] ** 2 / mean[lit]) if lit.any() else 0.0
        noise = np.sqrt(np.maximum(spread**2, gain * np.maximum(mean, 0)))
        errors = noise / np.sqrt(of.frames), np.sqrt((spread**2 / 2 + gain**2 / 4) / of.frames)
        still = spread == 0
        new = _stands_out(mean, errors[0], still, threshold)
        new |= _stands_out(spread, errors[1], still, threshold)
        new &= ~bad
        if not new.any():
            break
        bad |= new
    return bad


def _stands_out(values: Array, errors: Array, still: Bools, threshold: float) -> Bools:
    """Return a mask of the pixels far above or below all their neighbours."""
    near = _around(values)
    scatter = 1.4826 * np.median(abs(values - near.usual))
    error = np.sqrt(errors**2 + _around(errors).usual ** 2 + scatter**2)
    pattern = PATTERN * abs(near.most)
    allowed = threshold * np.hypot(error, pattern) + SHARP * (near.most - near.second)
    # Two constant pixels may be neighbours. A gap between disks is compared with more distant
    # pixels.
    is_low = values < DEAD * np.where(still, near.second, near.least)
    # The pixel itself comes first.
    wide = np.sort(_boxes(values, 2)[is_low].reshape(-1, 5**values.ndim), axis=1)
    least = np.where(still[is_low], wide[:, 2], wide[:, 1])
    is_low[is_low] = (values[is_low] < DEAD * least) & (
        least - values[is_low] > threshold * error[is_low]
    )
    found: Bools = (values - near.most > allowed) | is_low
    return found


class Around(NamedTuple):
    """The neighbours of each pixel, ranked: some may be as bad as the pixel."""

    least: Array
    second: Array
    usual: Array
    most: Array
    """The second largest neighbour."""


def _around(values: Array) -> Around:
    """Rank the neighbours of each pixel, with mirror images beyond the edges."""
    boxes = _boxes(values, far := 2 if values.ndim == 1 else 1)
    steps = itertools.product(range(2 * far + 1), repeat=values.ndim)
    others = [step for step in steps if any(x != far for x in step)]
    near = [boxes.T[step[::-1]].T for step in others]  # the axes of a box come last
    places = [0, 1, (len(near) - 1) // 2, len(near) - 2]
    found = np.empty((len(places), *values.shape))
    rows = max(1, STRIPE * len(values) // values.size)
    for start in range(0, len(values), rows):
        stripe = slice(start, start + rows)
        sorted_ = _sorted([one[stripe] for one in near])
        found[:, stripe] = [sorted_[place] for place in places]
    return Around(*found)


def _sorted(arrays: list[Array]) -> list[Array]:
    """Sort arrays pixel by pixel; several times as fast as sorting many short rows."""
    for end in range(len(arrays) - 1, 0, -1):
        for k in range(end):
            one, other = arrays[k], arrays[k + 1]
            arrays[k], arrays[k + 1] = np.minimum(one, other), np.maximum(one, other)
    return arrays


def _boxes(values: Array, far: int) -> Array:
    """Return the box around each pixel, on extra axes."""
    padded = np.pad(values, far, mode="reflect" if min(values.shape) > far else "symmetric")
    width = (2 * far + 1,) * values.ndim
    boxes: Array = np.lib.stride_tricks.sliding_window_view(padded, width)
    return boxes


def _without(values: Array, bad: Bools) -> Array:
    """Return values in which those of bad pixels are the median of their neighbours."""
    if not bad.any() or bad.all():
        return np.nan_to_num(values)
    low, high = _around(np.where(bad, -np.inf, values)), _around(np.where(bad, np.inf, values))
    usual = np.where(np.isfinite(high.usual), high.usual, low.usual)
    usual = np.where(np.isfinite(usual), usual, np.median(values[~bad]))
    return np.where(bad, usual, values)


def _lines(mean: Array) -> Bools:
    """Return a mask of dark lines from edge to edge."""
    bad = np.zeros(mean.shape, bool)
    for axis in range(mean.ndim if mean.ndim > 1 else 0):
        others = tuple(k for k in range(mean.ndim) if k != axis)
        near = _around(np.median(mean, others))
        darker = near.second - mean.max(others)  # darker than a gradient that ends at the edge
        dead = (darker >= (1 - DEAD) * near.second) & (darker > 2 * (near.most - near.second))
        bad |= np.expand_dims(dead, others)
    return bad
