"""Images that fill while the frames of a scan arrive."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.arriving.computation import Arriving
from dask_tiled.arriving.following import Following
from dask_tiled.exploring.estimates import Estimate
from dask_tiled.model.indexing import Array
from dask_tiled.opened.tiled_array import description_of

EVERY = 0.05
"""Least time between two images, in seconds."""
LOOK = 0.02
"""Seconds between looks at the sizes of the files."""


def awaited_frame(view: da.Array) -> int | None:
    """Return the number of the last frame of a part of an opened array, if it is not there yet."""
    desc = description_of(view)
    if desc is None:
        return None
    layout = desc.layout
    numbers = layout.frame_numbers(layout.cuts[: len(layout.nav_shape)])
    last = int(numbers.max(initial=-1))
    return last if last >= layout.n_frames else None


def told_of(files: Following) -> dict[str, Any]:
    """Return what the page says about growing files."""
    count = math.prod(files.description.nav_shape)
    frames, problem = count - files.missing, files.failure or files.problem
    return {"frames": frames, "count": count, "state": files.state, "problem": problem}


def rows_there(view: da.Array) -> int:
    """Return the number of leading rows of a scan, or of a part of one, that are complete."""
    desc = description_of(view)
    if desc is None or not desc.nav_ndim:
        return 0
    missing = desc.layout.missing()
    return int(missing[0]) // math.prod(desc.nav_shape[1:]) if len(missing) else view.shape[0]


def filling_images(
    arriving: Arriving, coarse: Estimate | None, wait: Callable[[float], None]
) -> Iterator[Estimate]:
    """Yield the results so far of one array, the last of which is exact.

    Pixels that depend on frames which are not there are NaN.

    Parameters
    ----------
    arriving : Arriving
        The computation of the array.
    coarse : Estimate, optional
        An estimate of the first rows, which is shown where nothing is computed yet.
    wait : callable
        Waits some seconds, or raises an exception to end the job.
    """
    last, is_new = -math.inf, True
    if coarse is not None:
        yield Estimate(_filled(arriving.values()[0], coarse.values), coarse.share)
    while True:
        state = arriving.state
        if state.exact:
            yield Estimate(arriving.values()[0], 1.0, exact=True)
            return
        if is_new and time.monotonic() >= last + EVERY:
            values = _filled(arriving.values()[0], None if coarse is None else coarse.values)
            yield Estimate(values, state.share)
            last, is_new = time.monotonic(), False
        if arriving.step(math.inf):
            is_new = True
        else:
            wait(LOOK)


def _filled(found: np.ma.MaskedArray[tuple[int, ...], np.dtype], coarse: Array | None) -> Array:
    """Return results with NaN, or an estimate, in place of masked pixels."""
    kind = np.result_type(found.dtype, np.float32)
    values: Array = np.ma.filled(found.astype(kind), np.nan)
    if coarse is not None:
        mask = np.ma.getmaskarray(found)[: len(coarse)]
        values[: len(coarse)][mask] = coarse[mask]
    return values
