"""Facts in frame headers, as an array."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.base import annotate, tokenize

from dask_tiled.errors import CorruptFileError, Guard
from dask_tiled.graphs.layers import symbolic_graph
from dask_tiled.model.decoders import Conversion
from dask_tiled.model.description import Description
from dask_tiled.model.headers import Headers, WrongHeader, missing_facts
from dask_tiled.model.indexing import Array, like_numpy
from dask_tiled.model.layout import Layout
from dask_tiled.opened.tiled_array import inherited
from dask_tiled.opening.arrays import opened_array
from dask_tiled.opening.describing import headers_of
from dask_tiled.plans.tasks import Block
from dask_tiled.reading.reader import Reader, Source, Workspace
from dask_tiled.tiling.bases import Grid


def frame_facts(arr: Any) -> da.Array:
    """Return the facts in all frame headers, as a lazy array.

    Only headers are read, for the same frames, positions and chunks as those of ``arr``:
    ``nav_shape``, ``sync_offset``, ``roi`` and slices apply. Facts about all frames in one header,
    as in OME-XML, are read by this call.

    Parameters
    ----------
    arr : TiledArray, DataArray of xarray that holds one, or path-like
        An opened array, or a slice of one; or files for :func:`open_dataset`.

    Returns
    -------
    dask.array.Array
        A structured array with the navigation shape and chunks of `arr`. Its fields depend on
        the file; :doc:`/axes` lists them with their units. Missing frames have
        NaN, NaT, 0, False and empty texts.

    Raises
    ------
    DatasetError
        The array is not an opened one, or its format or file has no frame headers
        that are supported.
    CorruptFileError
        When it is computed: a header has invalid values.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> facts = dask_tiled.frame_facts(arr)
    >>> facts.shape, "exposure_time" in facts.dtype.names
    ((60, 64), True)
    """
    arr, desc = opened_array(arr, "the array has no frame headers")
    headers, chunks = headers_of(desc), arr.chunks[: desc.nav_ndim]
    if not isinstance(headers, Headers):
        with annotate(**inherited(arr)):
            return da.from_array(_shown(headers, desc), chunks=chunks)
    layout = headers.layout.shown_like(desc.layout)
    conversion = Conversion.of(layout.dtype, layout.files[0].path)
    source = Source(layout, conversion, arr.io)
    grid, task = Grid.of(chunks), _Decoding(headers)
    name = f"facts-{tokenize(source, grid, headers.dtype.descr, headers.decode)}"
    graph = symbolic_graph(name, chunks, source, grid, chunk_facts, (task,))
    graph.layers[name].annotations = inherited(arr) or None
    return da.Array(graph, name, chunks, meta=np.empty((0,) * len(chunks), headers.dtype))


def _shown(table: Array, desc: Description) -> Array:
    """Return a table of facts with a row for every position of the array."""
    nav = desc.layout.cuts[: len(desc.layout.nav_shape)]
    numbers = desc.layout.frame_numbers(nav)
    facts = missing_facts(numbers.shape, table.dtype)
    there = ~desc.layout.selection.are_absent(numbers)
    facts[there] = table[numbers[there]]
    return facts.reshape(desc.nav_shape)


class _Decoding:
    """A decoder of headers.

    It is a plain class, as dask does not traverse these.
    """

    def __init__(self, headers: Headers) -> None:
        self.dtype = headers.dtype
        self.decode = headers.decode


def chunk_facts(source: Source, task: _Decoding, grid: Grid, block_id: Block) -> Array:
    """Read and decode the headers of a chunk."""
    with Workspace() as workspace:
        reader = Reader(source, grid.box(block_id), workspace)
        records = np.asarray(reader.whole()).reshape(-1)
        frames = reader.region.frames
        facts = missing_facts(records.shape, task.dtype)
        there = np.ones(len(records), bool)
        there[reader.absent] = False
        found = facts[there]
        with Guard(source.layout.files[0].path, "the frame headers cannot be decoded"):
            try:
                task.decode(records[there], found)
            except WrongHeader as wrong:
                number, *told = wrong.args
                raise _error(source.layout, int(frames[there][number]), *told) from None
        facts[there] = found
    return like_numpy(facts.reshape(reader.region.nav_counts))


def _error(
    layout: Layout, frame: int, where: str, expected: object, found: object
) -> CorruptFileError:
    """Return the error with the file and offset of a header."""
    rows, at = layout.pieces.rows(), np.array(np.unravel_index(frame, layout.grid))
    start, shape = (columns[:, : len(at)] for columns in (rows.start, rows.shape))
    held = ((start <= at) & (at < start + shape)).all(axis=1)
    one = int(np.flatnonzero(held)[0])
    byte = rows.offset[one] + (at - start[one]) @ rows.strides[one, : len(at)]
    return CorruptFileError(
        "invalid frame header",
        path=layout.files[int(rows.file[one])].path,
        where=f"{where} of the header of frame {frame}, at byte {byte}",
        expected=expected,
        found=found,
    )
