"""Chunks that files store with a pipeline of codecs, which zarr can be told of as they are."""

from __future__ import annotations

import json
import math
import warnings
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.byte_codecs import as_numcodecs
from dask_tiled.codecs.image_codecs import IMAGE_CODECS, PREDICTORS, ROWS
from dask_tiled.codecs.pipeline import BYTES, kind_of
from dask_tiled.export.virtual.stored_frames import Chunk, refused
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Cut, Index
from dask_tiled.model.pieces import strides_of

KINDS = "filters", "serializer", "compressors"
"""Arguments of zarr for codecs from arrays to arrays, arrays to bytes, and bytes to bytes."""
CORE = {"blosc", "crc32c", "gzip", "zstd"}
"""Readers of format 3 know several of them in a row; many readers of format 2 only one."""
OF_IMAGES = {ROWS, *IMAGE_CODECS, *PREDICTORS}
"""Codecs without a counterpart in zarr: :class:`PipelineCodec` decodes the whole pipeline."""


class StoredBlocks(NamedTuple):
    """Chunks of one shape and one pipeline.

    Attributes
    ----------
    codecs : list of dict
        Documents of zarr 3, in the order in which a chunk was written.
    shape : tuple of int
        Shape of a chunk.
    dtype : numpy.dtype
        Type of the pixels.
    fill : scalar
        Value of the pixels that no chunk holds.
    chunks : list of Chunk
        Where they lie.
    n_places : int
        How many the array has, written or not.
    edge : tuple of int
        Shape of chunks at an edge that are stored without what lies outside; empty if none are.
    """

    codecs: list[dict[str, Any]]
    shape: tuple[int, ...]
    dtype: np.dtype
    fill: Any
    chunks: list[Chunk]
    n_places: int
    edge: tuple[int, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether no chunk is missing."""
        return self.n_places == len(self.chunks)


def stored_blocks(desc: Description) -> StoredBlocks | None:
    """Find the chunks of an array; None if none of its pixels has a pipeline of codecs.

    Raises
    ------
    DatasetError
        They are no chunks of zarr: with the reason.
    """
    layout = desc.layout
    pieces = layout.columns()
    options = [dict(getattr(one, "options", ())) for one in layout.decoders]
    written = np.array(["codecs" in one for one in options])[pieces.decoder]
    used = sorted({*pieces.decoder.tolist()})
    pipelines = [options[k] for k in used if "codecs" in options[k]]
    others = [layout.decoders[k] for k in used if "codecs" not in options[k]]
    if not pipelines:
        return None
    if not desc.conversion.nothing:
        raise refused(desc, "are corrected, scaled or converted when they are read")
    if layout.overlapping or layout.partial or max(layout.repeats, default=1) > 1:
        raise refused(desc, "lie in pieces that overlap, or that leave some of them out")
    sig = layout.cuts[len(layout.nav_shape) :]
    if sig != tuple(Cut(0, 1, n) for n in layout.sig_shape):
        raise refused(desc, "are cut inside of what decodes at once")
    if len(pipelines) > 1:
        raise refused(desc, "do not lie in the same way in all chunks")
    (told,) = pipelines
    fill = _fill(desc, others)
    lead = len(layout.grid + layout.sig_shape) - len(told["chunk"])
    chunk = (1,) * lead + told["chunk"]
    start = pieces.start[written]
    if not told["chunk"] or told["stored"].kind not in "biufc" or (start % chunk).any():
        raise refused(desc, "decode in blocks that are no chunks of zarr")
    stored = [x[written].tolist() for x in (pieces.file, pieces.offset, pieces.nbytes)]
    frames, chunk = _places(desc, start, chunk)
    more = len(chunk) - len(told["chunk"])
    chunks = [
        Chunk(place, *where)
        for places, where in zip(frames, zip(*stored, strict=True), strict=True)
        for place in places
    ]
    own = len(told["chunk"])
    edge = (*chunk[:-own], *pieces.shape[written].min(axis=0)[-own:].tolist())
    edge = edge if told["called"] == "strip" and edge != chunk else ()
    documents = _whole_rows(json.loads(told["codecs"]), told["stored"], edge)
    codecs = _complete(documents, told["stored"], chunk, more)
    count = math.prod(-(-n // size) for n, size in zip(desc.shape, chunk, strict=True))
    return StoredBlocks(codecs, chunk, desc.dtype, fill, sorted(chunks), count, edge)


def codecs_of(blocks: StoredBlocks) -> dict[str, Any]:
    """Return what :func:`zarr.create_array` takes for the codecs of chunks, in format 3."""
    from zarr.codecs import BytesCodec
    from zarr.errors import ZarrUserWarning
    from zarr.registry import get_codec_class

    from dask_tiled.export.pipeline_codec import PipelineCodec

    import_module("dask_tiled.export.codecs")  # so that zarr knows ours
    kinds: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    if any(one["name"] in OF_IMAGES for one in blocks.codecs):
        told = json.dumps(blocks.codecs, sort_keys=True)
        ours = PipelineCodec(told, blocks.shape, blocks.dtype.name, blocks.edge)
        return {"serializer": BytesCodec(), "compressors": ours, "fill_value": blocks.fill}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)  # codecs of numcodecs are not in its core
        for one in blocks.codecs:
            codec = get_codec_class(one["name"]).from_dict(one)
            kinds[KINDS[kind_of(one["name"], unbounded=True)]].append(codec)
    (serializer,) = kinds.pop("serializer")
    return {**kinds, "serializer": serializer, "fill_value": blocks.fill}


def numcodecs_of(blocks: StoredBlocks, *, ours: bool) -> dict[str, Any] | None:
    """Return the same for format 2, which everything reads; None where it cannot say it.

    Codecs of this package, which numcodecs finds where it is installed, are named on request.
    """
    if not blocks.is_full:
        return None
    import_module("dask_tiled.export.filters")
    codecs, big = [], False
    for one in blocks.codecs:
        name, config = one["name"], one["configuration"]
        if name == BYTES:
            big = config.get("endian") == "big"
        else:
            codecs.append((name, config))
    names = {name for name, _ in codecs}
    if len(names) > 1 and names <= CORE:
        return None
    if any(name.startswith("dask_tiled.") for name in names) and not ours:
        return None
    dtype = blocks.dtype.newbyteorder(">" if big else "<")
    found = [_numcodec(blocks, dtype, *one) for one in codecs]
    if not found or None in found:
        return None
    *filters, compressor = found
    packs = {"filters": filters or None, "compressors": compressor}
    return {"zarr_format": 2, "dtype": dtype, **packs}


def _numcodec(blocks: StoredBlocks, dtype: np.dtype, name: str, config: dict[str, Any]) -> Any:
    """Return the codec of numcodecs that gives the same pixels; None where it has none."""
    if name in PREDICTORS:
        return as_numcodecs(name, {**config, "shape": blocks.shape, "dtype": dtype.str})
    if name == ROWS or kind_of(name) == 0 or blocks.edge:
        return None
    # Of bilevel images, white may be any number, and of JPEG the header may say other colours.
    if name in IMAGE_CODECS and (dtype.kind == "b" or "colorspace_jpeg" in config):
        return None
    return as_numcodecs(name, config)


def _fill(desc: Description, others: list[Any]) -> Any:
    """Return the value of what no chunk holds: never written, or missing."""
    values: set[Any] = {dict(getattr(one, "options", ())).get("pixel") for one in others}
    if None in values:
        raise refused(desc, "do not lie in the same way in all chunks")
    fills = {np.frombuffer(value, desc.dtype)[0] for value in values}
    if desc.layout.count_missing():
        fills.add(desc.conversion.fill_value)
    if len(fills) > 1:
        raise refused(desc, "have several values where no file holds them")
    return fills.pop() if fills else desc.conversion.fill_value


def _whole_rows(
    codecs: list[dict[str, Any]], dtype: np.dtype, edge: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Return documents with plain bytes for rows of whole bytes, if no chunk lacks some of them."""

    def is_whole(one: dict[str, Any]) -> bool:
        return one["name"] == ROWS and one["configuration"]["bits"] == 8 * dtype.itemsize

    def plain(config: dict[str, Any]) -> dict[str, Any]:
        endian = {"endian": config["endian"]} if dtype.itemsize > 1 else {}
        return {"name": BYTES, "configuration": endian}

    return [plain(one["configuration"]) if is_whole(one) and not edge else one for one in codecs]


def _complete(
    codecs: list[dict[str, Any]], dtype: np.dtype, shape: tuple[int, ...], more: int
) -> list[dict[str, Any]]:
    """Return documents that say the order of bytes, and of all axes, and the bytes of a chunk.

    Its ``shape`` has so many ``more`` axes of length 1 in front, or fewer where it is negative.
    """
    made, nbytes = [], math.prod(shape) * dtype.itemsize
    for one in codecs:
        config = dict(one.get("configuration", {}))
        if one["name"] == "bytes" and dtype.itemsize > 1:
            order = "big" if dtype.newbyteorder(">") == dtype else "little"
            config.setdefault("endian", order)
        if one["name"] == "dask_tiled.lzf":
            config["nbytes"] = nbytes
        if one["name"] == "transpose":
            axes = [k + more for k in config["order"]]
            config["order"] = [*range(more), *(k for k in axes if k >= 0)]
            long = [k for k in config["order"] if shape[k] > 1]
            if long == sorted(long):  # bytes stay where they are
                continue
        made.append({"name": one["name"], "configuration": config})
    return made


def _places(
    desc: Description, start: Index, chunk: tuple[int, ...]
) -> tuple[list[list[tuple[int, ...]]], tuple[int, ...]]:
    """Find where chunks are shown, counted in chunks: in no place, in one, or in several."""
    layout = desc.layout
    ndim = len(layout.grid)
    selection, nav = layout.selection, layout.cuts[: len(layout.nav_shape)]
    inner = (start[:, ndim:] // np.array(chunk[ndim:], np.int64)).tolist()
    whole = nav == tuple(Cut(0, 1, n) for n in layout.grid)
    in_order = selection.numbers is None and selection[:3] == (layout.grid, layout.n_frames, 0)
    if whole and in_order:
        outer = (start[:, :ndim] // np.array(chunk[:ndim], np.int64)).tolist()
        return [[(*a, *b)] for a, b in zip(outer, inner, strict=True)], chunk
    if math.prod(chunk[:ndim]) > 1:
        raise refused(desc, "decode in blocks of several frames, which are shown in another shape")
    numbers = layout.frame_numbers(nav)
    shown = dict[int, list[tuple[int, ...]]]()
    for place, number in zip(np.ndindex(*desc.nav_shape), numbers.tolist(), strict=True):
        shown.setdefault(number, []).append(place)
    frames = (start[:, :ndim] * strides_of(layout.grid, 1)).sum(axis=1)
    found = [
        [(*place, *b) for place in shown.get(frame, ())]
        for frame, b in zip(frames.tolist(), inner, strict=True)
    ]
    return found, (1,) * len(desc.nav_shape) + chunk[ndim:]
