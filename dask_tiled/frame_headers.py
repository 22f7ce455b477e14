"""What stands in the headers of all frames, as an array beside the pixels."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.base import annotate, tokenize

from dask_tiled.array.dask_graph.layers import symbolic_graph
from dask_tiled.array.tasks import Block, like_numpy
from dask_tiled.array.tiled_array import TiledArray, inherited
from dask_tiled.describing import headers_of
from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.model.decoders import Conversion
from dask_tiled.model.description import Description
from dask_tiled.model.headers import Headers, WrongHeader, missing_facts
from dask_tiled.model.indexing import Array
from dask_tiled.model.layout import Layout
from dask_tiled.opening import OPENED, opened
from dask_tiled.reading.reader import Reader, Source, Workspace
from dask_tiled.tiling.bases import Grid


def frame_facts(arr: Any) -> da.Array:
    """Return what the headers of all frames say, as a lazy array.

    Headers alone are read, as the pixels of the array would be: the same frames in the same places
    and chunks, whatever ``nav_shape``, ``sync_offset``, ``roi`` and slices have made of the scan.
    What one header says of all frames, as OME-XML does, is read by this call.

    Parameters
    ----------
    arr : TiledArray, DataArray of xarray that holds one, or path-like
        An opened array, or a slice of one; or what :func:`open_dataset` opens.

    Returns
    -------
    dask.array.Array
        Of the navigation shape and chunks of `arr`, and of a structured dtype. Its fields are those
        that the file has; :doc:`frames` lists them with their units. What missing frames say is
        NaN, NaT, 0, False and empty texts.

    Raises
    ------
    DatasetError
        The array is none that was opened, or the frames of its format or file have no headers that
        are read.
    CorruptFileError
        When it is computed: a header says something that makes no sense.
    """
    arr = opened(arr)
    desc = arr.description if isinstance(arr, TiledArray) else None
    if not isinstance(arr, TiledArray) or desc is None:
        problem = "the array has no frame headers"
        raise DatasetError(problem, expected=OPENED, found=type(arr).__name__)
    headers, chunks = headers_of(desc), arr.chunks[: desc.nav_ndim]
    if not isinstance(headers, Headers):
        with annotate(**inherited(arr)):
            return da.from_array(_shown(headers, desc), chunks=chunks)
    layout = headers.layout.shown_like(desc.layout)
    conversion = Conversion.of(layout.dtype, layout.files[0].path)
    source = Source(layout, conversion, arr.io)
    grid, task = Grid.of(chunks), _Decoding(headers)
    name = f"facts-{tokenize(source, grid, headers.dtype.descr, headers.decode)}"
    graph = symbolic_graph(name, chunks, source, grid, facts_of, (task,))
    graph.layers[name].annotations = inherited(arr) or None
    return da.Array(graph, name, chunks, meta=np.empty((0,) * len(chunks), headers.dtype))


def _shown(table: Array, desc: Description) -> Array:
    """Put what a table says of all frames into the places in which they are shown."""
    nav = desc.layout.cuts[: len(desc.layout.nav_shape)]
    numbers = desc.layout.frame_numbers(nav)
    facts = missing_facts(numbers.shape, table.dtype)
    there = ~desc.layout.selection.are_absent(numbers)
    facts[there] = table[numbers[there]]
    return facts.reshape(desc.nav_shape)


class _Decoding:
    """How headers are decoded.

    It is a plain class, so that dask passes it on as one value and does not look inside.
    """

    def __init__(self, headers: Headers) -> None:
        self.dtype = headers.dtype
        self.decode = headers.decode


def facts_of(source: Source, task: _Decoding, grid: Grid, block_id: Block) -> Array:
    """Read the headers of a chunk, and tell what they say."""
    with Workspace() as workspace:
        reader = Reader(source, grid.box(block_id), workspace)
        records = np.asarray(reader.whole()).reshape(-1)
        frames = reader.region.frames
        facts = missing_facts(records.shape, task.dtype)
        there = np.ones(len(records), bool)
        there[reader.absent] = False
        found = facts[there]
        try:
            task.decode(records[there], found)
        except WrongHeader as wrong:
            number, where, expected, what = wrong.args
            raise _error(source.layout, int(frames[there][number]), where, expected, what) from None
        facts[there] = found
    return like_numpy(facts.reshape(reader.region.nav_counts))


def _error(
    layout: Layout, frame: int, where: str, expected: object, found: object
) -> CorruptFileError:
    """Name the place of a header: its file, and the byte that it begins at."""
    rows, at = layout.columns(), np.array(np.unravel_index(frame, layout.grid))
    start, shape = (columns[:, : len(at)] for columns in (rows.start, rows.shape))
    held = ((start <= at) & (at < start + shape)).all(axis=1)
    one = int(np.flatnonzero(held)[0])
    byte = rows.offset[one] + (at - start[one]) @ rows.strides[one, : len(at)]
    return CorruptFileError(
        "wrong frame header",
        path=layout.files[int(rows.file[one])].path,
        where=f"{where} of the header of frame {frame}, at byte {byte}",
        expected=expected,
        found=found,
    )
