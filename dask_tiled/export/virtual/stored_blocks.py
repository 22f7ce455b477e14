"""Find stored chunks whose codecs zarr supports."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from dask_tiled.codecs.image_codecs import ROWS
from dask_tiled.codecs.pipeline import BYTES
from dask_tiled.export.virtual.byte_ranges import ByteRanges, StoredChunk, refused
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Cut, Index
from dask_tiled.model.pieces import strides_of

Shape = tuple[int, ...]


def stored_blocks(desc: Description) -> ByteRanges | None:
    """Return the chunks of an array; None if no decoder is a pipeline of codecs."""
    layout = desc.layout
    pieces = layout.pieces.rows()
    options = [dict(getattr(one, "options", ())) for one in layout.decoders]
    used = [options[k] for k in sorted({*pieces.decoder.tolist()})]
    pipelines = [one for one in used if "codecs" in one]
    if not pipelines:
        return None
    if layout.cuts[len(layout.nav_shape) :] != _whole(layout.sig_shape):
        raise refused(desc, "are a part of blocks that can only be decoded whole")
    if len(pipelines) > 1:
        raise refused(desc, "are stored differently from chunk to chunk")
    (told,) = pipelines
    fill = _fill(desc, [one.get("pixel") for one in used if "codecs" not in one])
    own = told["chunk"]
    chunk = (1,) * (len(layout.grid + layout.sig_shape) - len(own)) + own
    written = np.array(["codecs" in one for one in options])[pieces.decoder]
    start = pieces.start[written]
    if not own or told["stored"].kind not in "biufc" or (start % chunk).any():
        raise refused(desc, "are stored in blocks that do not form a chunk grid")
    places, chunk = _places(desc, start, chunk)
    columns = (pieces.file, pieces.offset, pieces.nbytes)
    ranges = zip(*(column[written].tolist() for column in columns), strict=True)
    chunks = [
        StoredChunk(place, *where)
        for shown, where in zip(places, ranges, strict=True)
        for place in shown
    ]
    edge = (*chunk[: -len(own)], *pieces.shape[written].min(axis=0)[-len(own) :].tolist())
    edge = edge if told["called"] == "strip" and edge != chunk else ()
    codecs = _complete(told, chunk, edge)
    is_big = {"name": BYTES, "configuration": {"endian": "big"}} in codecs
    dtype = desc.dtype.newbyteorder(">" if is_big else "<")
    return ByteRanges(chunk, sorted(chunks), codecs, dtype, fill, edge)


def _whole(shape: Shape) -> tuple[Cut, ...]:
    return tuple(Cut(0, 1, n) for n in shape)


def _fill(desc: Description, values: list[bytes | None]) -> Any:
    """Return the value of chunks that were never written or are missing."""
    if None in values:
        raise refused(desc, "are stored differently from chunk to chunk")
    fills = {np.frombuffer(value, desc.dtype)[0] for value in values if value is not None}
    if desc.layout.count_missing():
        fills.add(desc.conversion.fill_value)
    if len(fills) > 1:
        raise refused(desc, "have several fill values, and zarr has one")
    return fills.pop() if fills else desc.conversion.fill_value


def _complete(told: dict[str, Any], shape: Shape, edge: Shape) -> list[dict[str, Any]]:
    """Fill in byte order, axes and chunk size of codec documents.

    ``shape`` may have more leading axes of length 1 than the chunks of the file, or fewer.
    """
    made, dtype, more = [], told["stored"], len(shape) - len(told["chunk"])
    for one in json.loads(told["codecs"]):
        name, config = one["name"], dict(one.get("configuration", {}))
        if name == ROWS and config["bits"] == 8 * dtype.itemsize and not edge:
            name, config = BYTES, {"endian": config.get("endian", "little")}
        if name == BYTES and dtype.itemsize == 1:
            config = {}
        elif name == BYTES:
            config.setdefault("endian", "big" if dtype.newbyteorder(">") == dtype else "little")
        elif name == "dask_tiled.lzf":
            config["nbytes"] = math.prod(shape) * dtype.itemsize
        elif name == "transpose":
            axes = [k + more for k in config["order"]]
            config["order"] = [*range(more), *(k for k in axes if k >= 0)]
            long = [k for k in config["order"] if shape[k] > 1]
            if long == sorted(long):  # the transpose moves no bytes
                continue
        made.append({"configuration": config, "name": name})
    return made


def _places(desc: Description, start: Index, chunk: Shape) -> tuple[list[list[Shape]], Shape]:
    """Return the positions of every chunk, counted in chunks (none, one or several); its shape."""
    layout = desc.layout
    ndim = len(layout.grid)
    selection, nav = layout.selection, layout.cuts[: len(layout.nav_shape)]
    counted = start // np.array(chunk, np.int64)
    in_order = selection.numbers is None and selection[:3] == (layout.grid, layout.n_frames, 0)
    if in_order and nav == _whole(layout.grid):
        return [[tuple(place)] for place in counted.tolist()], chunk
    if math.prod(chunk[:ndim]) > 1:
        raise refused(desc, "are stored in blocks of several frames, and the scan was reshaped")
    numbers = layout.frame_numbers(nav)
    shown = dict[int, list[Shape]]()
    for place, number in zip(np.ndindex(*desc.nav_shape), numbers.tolist(), strict=True):
        shown.setdefault(number, []).append(place)
    frames = (start[:, :ndim] * strides_of(layout.grid, 1)).sum(axis=1)
    found = [
        [(*place, *inner) for place in shown.get(frame, ())]
        for frame, inner in zip(frames.tolist(), counted[:, ndim:].tolist(), strict=True)
    ]
    return found, (1,) * len(desc.nav_shape) + chunk[ndim:]
