"""Fold a chunk straight from the bytes of its files: no tile is ever made."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dask_tiled.engine.file_order import are_adjacent
from dask_tiled.engine.folding import FoldSink
from dask_tiled.engine.jobs import Sink
from dask_tiled.model.blocks import BlockRange
from dask_tiled.reading.ranges import ReadRanges
from dask_tiled.reading.reader import Reader

SHARED_BYTES = 4 << 20
"""So much is fetched at a time for several folds: it stays in the outer cache for all of them."""
LEAST_RUN = 64
"""Pixels of a run that are worth a call."""


def fold_windows(reader: Reader, sinks: Sequence[Sink]) -> bool:
    """Fold a chunk, where all jobs are folds and pixels stay as they are.

    Returns
    -------
    bool
        Whether that was possible; otherwise nothing was done.
    """
    folds = [sink for sink in sinks if isinstance(sink, FoldSink)]
    layout, conversion = reader.source.layout, reader.source.conversion
    exact = conversion.nothing and not (layout.partial or layout.overlapping)
    if len(folds) < len(sinks) or not exact or not all(map(_has_long_runs, reader.ranges)):
        return False
    pieces = [piece for piece in reader.ranges if isinstance(piece, ReadRanges)]
    units = {id(piece.units): piece.units for piece in pieces}.values()
    # Every frame is covered. If all units together hold no more than a frame, none share a pixel.
    if sum(some.count for some in units) == math.prod(reader.region.shape[1:]):
        for fold in folds:
            fold.expect(units)
    for window in reader.windows(None if len(folds) == 1 else SHARED_BYTES):
        for fold in folds:
            fold.take_window(window)
    for fold in folds:
        fold.fill(reader.absent, conversion.fill_value)
    return True


def _has_long_runs(piece: ReadRanges | BlockRange) -> bool:
    """Tell whether runs of units are long enough to go through a file as it lies."""
    if isinstance(piece, BlockRange):
        return False
    units = piece.units
    long = units.runs.length * units.decoder.pixels >= LEAST_RUN
    return units.pick is None and (long or are_adjacent(units))
