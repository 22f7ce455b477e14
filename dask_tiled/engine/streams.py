"""Fold a chunk straight from the bytes of its files: no tile is ever made."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dask_tiled.engine.file_order import are_neighbours
from dask_tiled.engine.folding import FoldRun
from dask_tiled.engine.jobs import Run
from dask_tiled.model.coded import CodedRange
from dask_tiled.reading.backends import Backend
from dask_tiled.reading.loader import RawChunk
from dask_tiled.reading.planning import frame_ranges
from dask_tiled.reading.ranges import ReadRanges

SHARED_BYTES = 4 << 20
"""So much is fetched at a time for several folds: it stays in the outer cache for all of them."""
LEAST_RUN = 64
"""Pixels of a run that are worth a call."""


def stream(raw: RawChunk, runs: Sequence[Run], backend: Backend) -> bool:
    """Fold a chunk, where all jobs are folds and pixels stay as they are.

    Returns
    -------
    bool
        Whether that was possible; otherwise nothing was done.
    """
    folds = [run for run in runs if isinstance(run, FoldRun)]
    exact = raw.conversion.nothing and not (raw.layout.partial or raw.layout.overlapping)
    if len(folds) < len(runs) or not exact:
        return False
    region = raw.region()
    ranges = []
    for piece in frame_ranges(raw.layout, region.frames, region.sig):
        if isinstance(piece, CodedRange) or not _is_streamable(piece):
            return False
        ranges.append(piece)
    units = {id(piece.units): piece.units for piece in ranges}.values()
    # Every frame is covered. If all units together hold no more than a frame, none share a pixel.
    if sum(some.count for some in units) == math.prod(region.shape[1:]):
        for run in folds:
            run.expect(units)
    limit = None if len(folds) == 1 else SHARED_BYTES
    for piece in ranges:
        for part, data, base in backend.windows(piece, limit):
            for run in folds:
                run.stream(part, data, base)
    absent = np.flatnonzero(raw.layout.selection.are_absent(region.frames))
    for run in folds:
        run.fill(absent, raw.conversion.fill_value)
    return True


def _is_streamable(piece: ReadRanges) -> bool:
    """Tell whether runs of units are long enough to go through a file as it lies."""
    units = piece.units
    long = units.runs.length * units.decoder.pixels >= LEAST_RUN
    return units.pick is None and (long or are_neighbours(units))
