"""Which fold does the same as a reduction, and faster, whatever the words of that."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.accumulators import neutral, sum_dtype
from dask_tiled.engine.computations import Computation
from dask_tiled.engine.expressions import Cast
from dask_tiled.engine.folding import Fold, can_fold
from dask_tiled.engine.programs import Program, Register, Step

Array = npt.NDArray[Any]

FOLDS: dict[np.ufunc, str] = {np.add: "sum", np.minimum: "min", np.maximum: "max"}
"""Ufuncs that fold pixels."""
EXTREMES: dict[np.ufunc, np.ufunc] = {np.logical_or: np.maximum, np.logical_and: np.minimum}
"""Ufuncs of truth, and the extreme that tells of what they find."""
OPPOSITE: dict[np.ufunc, np.ufunc] = {np.logical_or: np.logical_and, np.logical_and: np.logical_or}
BELOW: dict[Any, Callable[[Any], int]] = {
    np.greater: math.floor,
    np.greater_equal: lambda number: math.ceil(number) - 1,
    np.less: lambda number: math.ceil(number) - 1,
    np.less_equal: math.floor,
}
"""The largest whole number on the lower side of what something is compared with."""
MIRRORED: dict[Any, Any] = {
    np.greater: np.less,
    np.greater_equal: np.less_equal,
    np.less: np.greater,
    np.less_equal: np.greater_equal,
}


class Threshold(NamedTuple):
    """What is true of pixels: that they are greater than a limit, or that they are not."""

    limit: int
    greater: bool


def fold_for(job: Computation, nav_ndim: int) -> Fold | None:
    """Return the fold of pixels as they are read that does what a reduction of a program does."""
    program, reduction = job.program, job.reduction
    if reduction is None or not reduction.row.is_ufunc:
        return None
    pixel = program.sources[0].dtype
    threshold = None if program.is_read else _threshold_of(program)
    ufunc = _ufunc_of(reduction.row.ufunc, pixel, threshold)
    counts = threshold is not None and ufunc is np.add
    gone = {axis for number, axis in enumerate(job.axes_of) if number in reduction.axes}
    left = {axis for number, axis in enumerate(job.axes_of) if number not in reduction.axes}
    sig = {axis for axis in job.axes_of if axis >= nav_ndim}
    by_frame = sig <= gone
    known = (program.is_read or threshold is not None) and can_fold(pixel)
    if ufunc is None or ufunc not in FOLDS or not known or gone & left:
        return None
    short = pixel.kind in "bu" and pixel.itemsize <= 4
    whole = short or ((counts or ufunc is not np.add) and pixel.kind in "iu")
    if not (whole if by_frame else not sig & gone):
        return None
    kept = tuple(axis for axis in range(nav_ndim) if axis not in gone)
    if counts and threshold is not None:
        limits, pixels = np.iinfo(pixel), math.prod(job.shape[k] for k in reduction.axes)
        if not by_frame or not limits.min <= threshold.limit <= limits.max:
            return None
        end = None if threshold.greater else partial(np.subtract, pixels)
        return Fold("count_frames", np.dtype(np.int64), (0, threshold.limit), kept, end)
    results = sum_dtype(pixel, job.dtype) if ufunc is np.add else pixel
    fold = f"{FOLDS[ufunc]}_{'frames' if by_frame else 'pixels'}"
    end = threshold and partial(_is_true, threshold)
    return Fold(fold, results, (neutral(ufunc, results),), kept, end)


def _ufunc_of(ufunc: np.ufunc, pixel: np.dtype, threshold: Threshold | None) -> np.ufunc | None:
    """Return the ufunc of pixels whose result tells that of a ufunc of what is true of them."""
    if threshold is None:  # NaN is true, and so is what is less than 0
        return EXTREMES.get(ufunc, ufunc) if pixel.kind in "bu" else ufunc
    if ufunc not in EXTREMES:
        return ufunc if ufunc is np.add else None
    return EXTREMES[ufunc if threshold.greater else OPPOSITE[ufunc]]


def _threshold_of(program: Program) -> Threshold | None:
    """Find what is asked of whole numbers, if no more is computed; truths may become numbers."""
    (stage, *more), pixel = program.stages, program.sources[0].dtype
    step, *casts = stage.steps
    numbers = all(isinstance(x.function, Cast) and x.to.dtype.kind in "biuf" for x in casts)
    whole = pixel.kind in "iu" and pixel.itemsize <= 4  # which all numbers compare with exactly
    if more or step.to.dtype.kind != "b" or not numbers or not whole:
        return None
    if isinstance(step.function, Cast):
        return Threshold(0, greater=True) if pixel.kind == "u" else None
    return _comparison(step)


def _comparison(step: Step) -> Threshold | None:
    """Find what comparing pixels with a number asks."""
    function, operands = step.function, step.operands
    if function not in BELOW or len({isinstance(x, Register) for x in operands}) == 1:
        return None
    if isinstance(operands[1], Register):
        function, operands = MIRRORED[function], operands[::-1]
    try:
        limit = BELOW[function](operands[1])
    except (TypeError, ValueError, OverflowError):  # an array beside; a complex number; NaN
        return None
    return Threshold(limit, greater=function in (np.greater, np.greater_equal))


def _is_true(threshold: Threshold, found: Array) -> Array:
    true: Array = (found > threshold.limit) == threshold.greater
    return true
