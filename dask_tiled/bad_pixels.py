"""Pixels of a detector that do not work: found by what they show in a sample of frames."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import compute

from dask_tiled.array.tile_functions import reducible
from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.errors import TilingError, check_whole
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.indexing import Array
from dask_tiled.sampling import sampled

Bools = npt.NDArray[np.bool_]

PARTS = 5
"""Parts of a sample, each judged by itself: a pixel is bad that is so in most of them. A cosmic ray
is in one, and where discs of some crystals meet in a pixel, that is so in the sum of parts only."""
LEAST_FRAMES = 4 * PARTS
SHARP = 4.0
"""A pixel stands out by so many times the differences among its neighbours; no spot does."""
PATTERN = 0.05
"""Share of their counts by which pixels that work differ."""
DEAD = 0.2
"""Share of the counts of all its neighbours that a dead pixel has at most."""
ROUNDS = 8
STRIPE = 1 << 14
"""Pixels whose neighbours are ordered at a time, in the cache."""
MEDIAN = np.pi / 2
"""The variance of medians by that of means: of parts, the median decides."""


def find_bad_pixels(
    arr: Any, *, frames: int = 2000, threshold: float = 6.0, sig_ndim: int | None = None
) -> Corrections:
    """Find pixels that are hot, dead, stuck or noisy, by a sample of the frames.

    Of each pixel the mean and the standard deviation are compared with those of its neighbours. It
    is hot or noisy if one of them is far above the second largest of its neighbours, measured by
    their differences and by its own noise; dead or stuck if one is less than a fifth of all of
    theirs. So discs, spots that are wider than a pixel, and gradients are left alone. A pixel is
    bad if it is so in most of five parts of the sample, at the edge of the frame in all of them:
    events in single frames do not count.

    Parameters
    ----------
    arr : dask.array.Array
        Real numbers: nav + sig, with whole frames.
    frames : int
        Size of the sample, at equal distances: 20 or more. It is read once, in tiles.
    threshold : float
        How many standard errors are far. A larger one finds less.
    sig_ndim : int, optional
        As in :func:`map_tiles`.

    Returns
    -------
    Corrections
        Its ``excluded_pixels`` are those that are found, and all that ``arr`` was opened with: pass
        it to :func:`open_dataset`.

    Raises
    ------
    DatasetError
        There are fewer than 20 frames, or these are cut, or hold no real numbers.

    Notes
    -----
    Pixels that should have seen less than some 200 counts in the whole sample cannot be told to be
    dead: take more frames then. Not found are pixels in the middle of bad blocks, and dead ones
    within two pixels of what is dark; lines from edge to edge are. A spot as narrow as a pixel that
    is there in most frames looks like a hot pixel, a gap as narrow like a dead one.
    """
    x = reducible(arr, sig_ndim)
    whole = x.arr.shape[x.nav_ndim :]
    if x.arr.dtype.kind not in "biuf":
        problem, expected = "bad pixels are found in real numbers", "real numbers"
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
        raise TilingError("too few frames to tell bad pixels", expected=expected, found=found)
    parts = _statistics(pixels, nav_ndim)
    in_each = threshold * math.sqrt(MEDIAN / len(parts))
    votes = np.sum([_bad(part, in_each) for part in parts], axis=0)
    # Of a disc that the edge cuts, a pixel may be all that is seen: all parts have to agree there.
    inside = np.zeros(whole, bool)
    inside[(slice(1, -1),) * len(whole)] = True
    bad = votes >= np.where(inside, len(parts) // 2 + 1, len(parts))
    if before.excluded_pixels is not None:
        bad[tuple(before.excluded_pixels.T)] = True
    return Corrections(before.dark, before.gain, bad, before.fill)


class Statistics(NamedTuple):
    """What pixels show in a part of a sample."""

    mean: Array
    spread: Array
    """Their standard deviations."""
    frames: float


def _corrections_of(arr: da.Array, frame: tuple[int, ...]) -> Corrections:
    """Return the corrections that an array was opened with, if it shows whole frames."""
    description = arr.description if isinstance(arr, TiledArray) else None
    if description is None:
        return Corrections()
    held = description.layout.sig_shape
    if held != frame:
        hint = "Find bad pixels before the frames are cut."
        raise TilingError("frames are cut", expected=f"shape {held}", found=frame, hint=hint)
    return description.conversion.corrections or Corrections()


def _statistics(pixels: da.Array, nav_ndim: int) -> list[Statistics]:
    """Compute what pixels show in each part, in one pass."""
    nav = tuple(range(nav_ndim))
    longest = int(np.argmax(pixels.shape[:nav_ndim]))
    parts = min(PARTS, pixels.shape[longest])
    ends = np.linspace(0, pixels.shape[longest], parts + 1).astype(int).tolist()
    mean, var = (da.nanmean, da.nanvar) if pixels.dtype.kind == "f" else (da.mean, da.var)
    values = pixels.astype(np.uint8) if pixels.dtype == bool else pixels
    cuts = [values[(slice(None),) * longest + (slice(*x),)] for x in itertools.pairwise(ends)]
    with warnings.catch_warnings():  # pixels that are NaN in all frames are no surprise here
        warnings.simplefilter("ignore", RuntimeWarning)
        found = compute([mean(cut, nav) for cut in cuts], [var(cut, nav) for cut in cuts])
    counts = [math.prod(cut.shape[:nav_ndim]) for cut in cuts]
    return [
        Statistics(np.asarray(mean, float), np.sqrt(np.asarray(var, float)), count)
        for mean, var, count in zip(*found, counts, strict=True)
    ]


def _bad(of: Statistics, threshold: float) -> Bools:
    """Return which pixels are bad: at first those that stand out, then those beside these."""
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
    """Return which pixels are far above or below all their neighbours."""
    near = _around(values)
    scatter = 1.4826 * np.median(abs(values - near.usual))
    error = np.sqrt(errors**2 + _around(errors).usual ** 2 + scatter**2)
    pattern = PATTERN * abs(near.most)
    allowed = threshold * np.hypot(error, pattern) + SHARP * (near.most - near.second)
    # Two that never change may be neighbours. A gap between discs is dark farther on, too.
    is_low = values < DEAD * np.where(still, near.second, near.least)
    wide = np.sort(_boxes(values, 2)[is_low].reshape(-1, 5**values.ndim), axis=1)  # itself is first
    least = np.where(still[is_low], wide[:, 2], wide[:, 1])
    is_low[is_low] = (values[is_low] < DEAD * least) & (
        least - values[is_low] > threshold * error[is_low]
    )
    found: Bools = (values - near.most > allowed) | is_low
    return found


class Around(NamedTuple):
    """The neighbours of each pixel by their order: some may be as bad as the pixel."""

    least: Array
    second: Array
    usual: Array
    most: Array
    """The second largest."""


def _around(values: Array) -> Around:
    """Order the neighbours of each pixel; beyond edges lie mirror images."""
    boxes = _boxes(values, far := 2 if values.ndim == 1 else 1)
    steps = itertools.product(range(2 * far + 1), repeat=values.ndim)
    others = [step for step in steps if any(x != far for x in step)]
    near = [boxes.T[step[::-1]].T for step in others]  # the axes of a box are the last ones
    places = [0, 1, (len(near) - 1) // 2, len(near) - 2]
    found = np.empty((len(places), *values.shape))
    rows = max(1, STRIPE * len(values) // values.size)
    for start in range(0, len(values), rows):
        stripe = slice(start, start + rows)
        sorted_ = _sorted([one[stripe] for one in near])
        found[:, stripe] = [sorted_[place] for place in places]
    return Around(*found)


def _sorted(arrays: list[Array]) -> list[Array]:
    """Sort arrays pixel by pixel: several times as fast as to sort many short rows."""
    for end in range(len(arrays) - 1, 0, -1):
        for k in range(end):
            one, other = arrays[k], arrays[k + 1]
            arrays[k], arrays[k + 1] = np.minimum(one, other), np.maximum(one, other)
    return arrays


def _boxes(values: Array, far: int) -> Array:
    """Return the box around each pixel, on further axes."""
    padded = np.pad(values, far, mode="reflect" if min(values.shape) > far else "symmetric")
    width = (2 * far + 1,) * values.ndim
    boxes: Array = np.lib.stride_tricks.sliding_window_view(padded, width)
    return boxes


def _without(values: Array, bad: Bools) -> Array:
    """Return values with those of bad pixels replaced by what is usual around them."""
    if not bad.any() or bad.all():
        return np.nan_to_num(values)
    low, high = _around(np.where(bad, -np.inf, values)), _around(np.where(bad, np.inf, values))
    usual = np.where(np.isfinite(high.usual), high.usual, low.usual)
    usual = np.where(np.isfinite(usual), usual, np.median(values[~bad]))
    return np.where(bad, usual, values)


def _lines(mean: Array) -> Bools:
    """Return pixels of lines, from edge to edge, in which nothing is seen."""
    bad = np.zeros(mean.shape, bool)
    for axis in range(mean.ndim if mean.ndim > 1 else 0):
        others = tuple(k for k in range(mean.ndim) if k != axis)
        near = _around(np.median(mean, others))
        darker = near.second - mean.max(others)  # than a slope that ends at the edge
        dead = (darker >= (1 - DEAD) * near.second) & (darker > 2 * (near.most - near.second))
        bad |= np.expand_dims(dead, others)
    return bad
