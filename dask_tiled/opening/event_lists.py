"""The events of files, as an array."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_tiled.errors import DatasetError
from dask_tiled.graphs.layers import symbolic_graph
from dask_tiled.model.decoders import Conversion, EventDecoder
from dask_tiled.model.indexing import Array, Index, like_numpy
from dask_tiled.model.layout import Layout
from dask_tiled.opened.tiled_array import inherited
from dask_tiled.opening.arrays import opened_array
from dask_tiled.plans.tasks import Block
from dask_tiled.reading.events import runs_of
from dask_tiled.reading.reader import Source, Workspace
from dask_tiled.tiling.bases import Grid

CHUNK_BYTES = 1 << 26
"""Bytes of the records of a chunk; pieces are not divided."""


def events(arr: Any) -> da.Array:
    """Return all events of a file, as a lazy array of records, in the order of the file.

    They are those of the whole file, whatever part of it `arr` shows.

    Parameters
    ----------
    arr : TiledArray, DataArray of xarray that holds one, or path-like
        An opened array, or a slice of one; or files for :func:`open_dataset`.

    Returns
    -------
    dask.array.Array
        A structured array with one axis. Its fields depend on the format; :doc:`/formats` lists
        them with their units.

    Raises
    ------
    DatasetError
        The array is not an opened one, or its format does not list its events.

    Examples
    --------
    >>> import dask_tiled
    >>> from dask_tiled.testing import write_tpx3
    >>> path = write_tpx3("run.tpx3", np.ones((6, 256, 256), "u1"))
    >>> hits = dask_tiled.events(path)
    >>> hits.dtype.names
    ('time', 'y', 'x', 'tot', 'chip')
    >>> bool(hits["tot"].max().compute() > 0)
    True
    """
    arr, desc = opened_array(arr, "the array has no events")
    layout = desc.layout
    decoder = _lists(layout)
    if decoder is None:
        problem, path = "events of this format are not listed", layout.files[0].path
        raise DatasetError(problem, path=path, expected="tpx3", found=desc.format)
    source = Source(layout, Conversion.of(layout.dtype, layout.files[0].path), arr.io)
    ends = _ends(layout)
    most = CHUNK_BYTES // np.dtype(decoder.record).itemsize
    last = np.flatnonzero(np.diff(ends // most, append=-1))
    chunks = (tuple(np.diff(ends[last], prepend=0).tolist()),)
    name = f"events-{tokenize(layout.token, arr.io)}"
    graph = symbolic_graph(name, chunks, source, Grid.of(chunks), events_of)
    graph.layers[name].annotations = inherited(arr) or None
    return da.Array(graph, name, chunks, meta=np.empty(0, decoder.record))


def _lists(layout: Layout) -> EventDecoder | None:
    """Return the only decoder of a layout, if it lists events."""
    decoder = layout.decoders[0]
    known = len(layout.decoders) == 1 and isinstance(decoder, EventDecoder) and decoder.records
    return decoder if known else None  # type: ignore[return-value]


def _ends(layout: Layout) -> Index:
    """Return the number of events up to the end of each piece."""
    counts = np.broadcast_to(layout.pieces.column("strides", 1), len(layout.pieces))
    return np.cumsum(counts)


def events_of(source: Source, grid: Grid, block_id: Block) -> Array:
    """List the events of a chunk."""
    layout, ((first, stop),), none = source.layout, grid.box(block_id), np.empty(0, np.int64)
    decoder: Any = _lists(layout)
    some = np.arange(*np.searchsorted(_ends(layout), (first, stop), side="right"))
    out = np.empty(stop - first, decoder.record)
    if first == stop:
        return out
    ((_, run),) = runs_of(layout, some, none, none, none, 0)
    with Workspace() as workspace:
        found = run.list_records(workspace.backend(source), out)
    if found != len(out):
        run.refuse("other events than counted", int(run.offsets[0]), len(out), found)
    return like_numpy(out)
