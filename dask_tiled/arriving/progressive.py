"""Results of files that are being written, computed as their frames arrive."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dask.base import unpack_collections

from dask_tiled.arriving.computation import Arriving
from dask_tiled.errors import DatasetError, MissingFramesWarning, check_seconds, warn
from dask_tiled.opened.inputs import as_array

LOOK = 0.02
"""Seconds between looks at the sizes of the files."""


@dataclass(frozen=True)
class ProgressiveState:
    """The state of a :func:`progressive` computation.

    Attributes
    ----------
    values : object
        The results so far, in the mapping or sequence of the arrays: masked arrays, of which the
        pixels are masked that depend on frames which are not there. Reductions over the scan, such
        as a mean of frames, are those of the frames that have been computed. Of the last state,
        the results as ``dask.compute`` returns them.
    share : float
        Fraction of the pixels that have been computed.
    missing : int
        Number of frames of the scan that are not there.
    exact : bool
        Whether the results are final.
    problem : str
        Why the files could not be read at the last attempt, as when a header is half-written;
        empty if they could.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> *_, last = dask_tiled.progressive(arr.sum((2, 3)))
    >>> isinstance(last, dask_tiled.ProgressiveState), last.exact, last.share, last.missing
    (True, True, 1.0, 0)
    """

    values: Any
    share: float
    missing: int
    exact: bool
    problem: str = ""


def progressive(x: Any, *, every: float = 0.1, rest: float = 10.0) -> Iterator[ProgressiveState]:
    """Compute results of files that are being written: each frame once, as soon as it is there.

    Every task of the computation runs when the frames of its chunk have arrived: pictures fill row
    by row, and sums over the scan grow. The last results are bit for bit those of the finished
    files in the same chunks. A task that needs all frames at once, such as a filter across the
    scan, runs when they are there; until then its pixels are masked. Complete files have
    intermediate results, too.

    Parameters
    ----------
    x : dask array, or mapping or sequence of them
        Results of arrays that were opened with ``follow=True``, and with a ``nav_shape`` unless
        the files have one. xarray objects are taken as arrays.
    every : float
        Least time between two states, in seconds. 0 yields after every step.
    rest : float
        Seconds without growth after which the files count as finished; arrays of a
        :class:`Recording` end with it. Missing frames are then taken as in finished files, with a
        warning.

    Returns
    -------
    iterator of ProgressiveState
        The first state comes before anything is computed; the last is exact. Nothing is computed
        while the caller uses a state.

    Raises
    ------
    DatasetError
        There is nothing to compute, or the shape of the scan has changed.
    StaleFileError
        Files were replaced, truncated or rewritten.

    Warns
    -----
    MissingFramesWarning
        The files have stopped growing, and frames are missing.

    See Also
    --------
    run : Computations that can be resumed.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold(), follow=True)
    >>> results = {"image": arr.sum((2, 3)), "mean": arr.mean((0, 1))}
    >>> for state in dask_tiled.progressive(results, every=0.2):
    ...     image = state.values["image"]
    >>> image.shape, state.exact
    ((60, 64), True)
    """
    every = check_seconds("every", every, zero=True)
    rest = check_seconds("rest", rest)
    collections, repack = unpack_collections(x)
    if not collections:
        raise DatasetError("nothing to compute", expected="dask arrays", found=type(x).__name__)
    arriving = Arriving([*map(as_array, collections)])

    def shown() -> Any:
        (values,) = repack(arriving.values())
        return values

    return _states(arriving, shown, every, rest)


def _states(
    arriving: Arriving, values: Callable[[], Any], every: float, rest: float
) -> Iterator[ProgressiveState]:
    last, shown = -math.inf, None
    while True:
        state = arriving.state
        if state.exact and arriving.lacking:
            warn(
                f"files have stopped growing; frames are missing in {arriving.lacking}",
                MissingFramesWarning,
            )
        if state.exact or (state != shown and time.monotonic() >= last + every):
            yield ProgressiveState(values(), *state)
            if state.exact:
                return
            last, shown = time.monotonic(), state
        if not arriving.step(rest):
            time.sleep(LOOK)
