"""Find the sparse pieces that hold a box of an array, with the help of their index."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from dask_tiled.model.blocks import Fetch
from dask_tiled.model.decoders import EventDecoder
from dask_tiled.model.events import EventRun
from dask_tiled.model.indexing import Cut, Index
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import PieceTable, piece_table
from dask_tiled.reading.limits import KEPT_TABLES
from dask_tiled.system.forks import held_at_fork

_exact: dict[str, PieceTable] = {}
_finding = threading.Lock()
held_at_fork(_finding)


def exact(layout: Layout, fetch: Fetch) -> Layout:
    """Return a layout whose pieces have exact boxes, found in one pass if its events tell them."""
    decoders = [d for d in layout.decoders if isinstance(d, EventDecoder) and d.index]
    if not decoders:
        return layout
    key = layout.token
    with _finding:
        table = _exact.pop(key, None)
        if table is None:
            table = _indexed(layout, fetch)
        _exact[key] = table  # as the most recently used
        while len(_exact) > KEPT_TABLES:
            del _exact[next(iter(_exact))]
    return layout.with_pieces(table)


def _indexed(layout: Layout, fetch: Fetch) -> PieceTable:
    columns = layout.pieces.rows()
    starts, shapes, states = (x.copy() for x in (columns.start, columns.shape, columns.strides))
    none, every = np.empty(0, np.int64), np.arange(len(layout.pieces))
    for some, run in runs_of(layout, every, none, none, none, 0):
        if run.decoder.index:
            first, stop, state = run.index_pieces(fetch)
            starts[some, 0], shapes[some, 0], states[some, 0] = first, stop - first, state
    return piece_table(**columns._replace(start=starts, shape=shapes, strides=states)._asdict())


def event_runs(
    layout: Layout, numbers: Index, frames: Index, sig: Sequence[Cut]
) -> Iterator[EventRun]:
    """Yield the pieces that may hold events of a part of some frames.

    Parameters
    ----------
    layout : Layout
    numbers, frames : int64 arrays
        Numbers of the frames in the files, and their positions in the output, ascending.
    sig : sequence of Cut
        The part along each signal axis.
    """
    start = layout.pieces.column("start")
    stop = start + layout.pieces.column("shape")
    meet = (start <= numbers.max()) & (stop > numbers.min())
    met = np.flatnonzero(np.broadcast_to(meet, len(layout.pieces)))
    lengths = [cut.length for cut in sig]
    columns = np.full(layout.sig_shape, -1, np.int64)
    columns[tuple(cut.slice for cut in sig)] = np.arange(math.prod(lengths)).reshape(lengths)
    for _, run in runs_of(layout, met, numbers, frames, columns.reshape(-1), math.prod(lengths)):
        yield run.some(np.argsort(run.offsets, kind="stable"))


def runs_of(
    layout: Layout, some: Index, numbers: Index, frames: Index, columns: Index, width: int
) -> Iterator[tuple[Index, EventRun]]:
    """Yield the runs of some pieces, one for each file and decoder, and their numbers."""
    pieces = layout.pieces.rows(some)
    kinds = pieces.file * len(layout.decoders) + pieces.decoder
    for kind in np.unique(kinds):
        among = np.flatnonzero(kinds == kind)
        file, number = divmod(int(kind), len(layout.decoders))
        decoder, start = layout.decoders[number], pieces.start[among, 0]
        assert isinstance(decoder, EventDecoder)  # noqa: S101 - sparse pieces have no others
        location = layout.files, layout.files[file], decoder, pieces.offset[among]
        ends = start, start + pieces.shape[among, 0], pieces.strides[among, 0]
        run = EventRun(*location, pieces.nbytes[among], *ends, numbers, frames, columns, width)
        yield some[among], run
