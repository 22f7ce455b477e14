"""Which fold does the same as a reduction, and faster, whatever the words of that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.evaluation import Programmed
from dask_tiled.engine.expressions import Cast
from dask_tiled.engine.folding import Fold, can_fold
from dask_tiled.engine.programs import Program, Register, Step
from dask_tiled.engine.vectors import neutral, of_numbers, sum_dtype

Array = npt.NDArray[Any]

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


def fold_for(job: Programmed, axes_of: Sequence[int], nav_ndim: int) -> Fold | None:
    """Find the fold of pixels as they are read that does what a reduction of a program does.

    ``axes_of`` tells which of the source's axes each axis of the job is, or is a part of.
    """
    program, reduction = job.program, job.reduction
    assert reduction is not None  # noqa: S101 - for the type checker
    pixel, dtype, threshold = program.sources[0].dtype, reduction.dtype, None
    name = of_numbers(reduction.name, program.dtype)
    if not program.is_read:
        threshold = _threshold_of(program)
        if threshold is None:
            return None
        name = _name_of(name, threshold)
    elif pixel.kind in "bu":  # NaN is true, and so is what is less than 0
        name = {"any": "max", "all": "min"}.get(name, name)
    gone = {axis for number, axis in enumerate(axes_of) if number in reduction.axes}
    left = {axis for number, axis in enumerate(axes_of) if number not in reduction.axes}
    sig = {axis for axis in axes_of if axis >= nav_ndim}
    by_frame = sig <= gone
    if name not in {"sum", "min", "max", "count"} or not can_fold(pixel) or gone & left:
        return None
    short = pixel.kind in "bu" and pixel.itemsize <= 4
    if not (short or (name != "sum" and pixel.kind in "iu") if by_frame else not sig & gone):
        return None
    kept = tuple(axis for axis in range(nav_ndim) if axis not in gone)
    if name == "count" and threshold is not None:
        limits, pixels = np.iinfo(pixel), math.prod(job.shape[k] for k in reduction.axes)
        if not by_frame or not limits.min <= threshold.limit <= limits.max:
            return None
        end = None if threshold.greater else partial(np.subtract, pixels)
        return Fold("count_frames", np.dtype(np.int64), (0, threshold.limit), kept, end)
    results = sum_dtype(pixel, dtype or pixel) if name == "sum" else pixel
    fold = f"{name}_{'frames' if by_frame else 'pixels'}"
    end = threshold and partial(_is_true, threshold)
    return Fold(fold, results, (neutral(name, results),), kept, end)


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


def _name_of(name: str, threshold: Threshold) -> str:
    """Name what has to be known of pixels: how many are on one side, or whether the extreme is."""
    if name in ("any", "all"):
        return "max" if threshold.greater == (name == "any") else "min"
    return "count" if name == "sum" else ""


def _is_true(threshold: Threshold, found: Array) -> Array:
    true: Array = (found > threshold.limit) == threshold.greater
    return true
