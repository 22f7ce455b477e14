"""Find frames that are byte ranges, and combine them into zarr chunks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from dask_tiled.codecs.pipeline import BYTES
from dask_tiled.errors import format_bytes
from dask_tiled.export.decoders import RATES, UNITS, UnitRuns
from dask_tiled.export.virtual.byte_ranges import ByteRanges, StoredChunk, refused
from dask_tiled.model.decoders import plain
from dask_tiled.model.description import Description
from dask_tiled.model.events import EventRun
from dask_tiled.model.indexing import Index
from dask_tiled.reading.planning import Ranges, frame_ranges, region_of
from dask_tiled.reading.ranges import ReadRanges, Units

CHUNK_BYTES = 16 << 20
"""Maximum bytes of a chunk of contiguous pixels."""
SPREAD = 8
"""Frames are refused if they span more than this multiple of their bytes."""


def stored_frames(desc: Description) -> ByteRanges:
    """Return the byte ranges of all frames, as chunks of several where possible."""
    frames = _frames(desc)
    dtype = _plain_dtype(desc, frames)
    if dtype is None:
        units = [UnitRuns.of(units, start)._asdict() for units, start in frames.parts]
        codecs = [
            {"name": BYTES, "configuration": {"endian": "little"}},
            {"name": UNITS, "configuration": {"units": units}},
        ]
        shape = (*(1,) * len(desc.nav_shape), *desc.sig_shape)
        stored, dtype = frames, desc.dtype
    else:
        endian = "little" if dtype.newbyteorder("<") == dtype else "big"
        codecs = [{"name": BYTES, "configuration": {"endian": endian}}]
        shape, stored = _divided(desc, frames)
    counts = (size // n for size, n in zip(desc.shape, shape, strict=True))
    places = itertools.product(*map(range, counts))
    columns = zip(places, stored.file.tolist(), stored.offset.tolist(), strict=True)
    chunks = [StoredChunk(*where, stored.nbytes) for where in columns if where[1] >= 0]
    return ByteRanges(shape, chunks, codecs, dtype, desc.conversion.fill_value)


class _Frames(NamedTuple):
    """Frames, or equal parts of frames, with the same decoder."""

    parts: list[tuple[Units, int]]
    """The units of a frame, and the offset in the frame at which they begin."""
    file: Index
    """Index of the file of each frame; -1 where it is missing."""
    offset: Index
    nbytes: int
    """Bytes that a frame spans in its file."""


def _frames(desc: Description) -> _Frames:
    layout = desc.layout
    region = region_of(layout, tuple((0, n) for n in desc.shape))
    count = len(region.frames)
    number = {file: k for k, file in enumerate(layout.files)}
    kinds: dict[Hashable, tuple[Units, Index, Index]] = {}
    for found in frame_ranges(layout, region.frames, region.sig):
        ranges = _readable(desc, found)
        units, runs = ranges.units, ranges.units.runs
        steps = runs.step, runs.length, runs.out_step
        kind = units.decoder, steps, runs.starts.tobytes(), runs.dests.tobytes()
        _, file, offset = kinds.setdefault(
            kind, (units, np.full(count, -1), np.zeros(count, np.int64))
        )
        file[ranges.frames], offset[ranges.frames] = number[ranges.file], ranges.offsets
    if not kinds:
        raise refused(desc, "are all missing")
    (_, file, offset), *others = kinds.values()
    there = file >= 0
    for _, other_file, other in others:
        if (file != other_file).any():
            raise refused(
                desc,
                "of a frame lie in several files, or are stored differently from frame to frame",
            )
        if np.ptp((other - offset)[there]):
            raise refused(desc, "are stored differently from frame to frame")
    k = int(there.argmax())
    parts = [(units, int(other[k] - offset[k])) for units, _, other in kinds.values()]
    low = min(begin + units.reach[0] for units, begin in parts)
    nbytes = max(begin + units.reach[1] for units, begin in parts) - low
    if nbytes > SPREAD * sum(_nbytes(units) for units, _ in parts):
        raise refused(desc, f"of a frame are spread over {format_bytes(nbytes)}")
    parts = [(units, begin - low) for units, begin in parts]
    return _Frames(parts, file, offset + low, nbytes)


def _nbytes(units: Units) -> int:
    """Return the bytes of a frame that are read."""
    runs, decoder = units.runs, units.decoder
    return len(runs.starts) * runs.length * decoder.nbytes * (2 if decoder.lag else 1)


def _readable(desc: Description, ranges: Ranges) -> ReadRanges:
    """Refuse pixels that no codec of this package decodes."""
    if not isinstance(ranges, ReadRanges):
        if "dataset" in dict(ranges.decoder.options):
            why = "need filters of the HDF5 library (such as N-bit or scale-offset) that zarr lacks"
            raise refused(desc, why)
        if isinstance(ranges, EventRun):
            raise refused(desc, "are stored as events")
        raise refused(desc, "are compressed in blocks without a zarr codec")
    if ranges.units.pick is not None:
        raise refused(
            desc, "are a part of units that can only be decoded whole, or have several dtypes"
        )
    if ranges.units.decoder.kernel not in RATES:
        raise refused(
            desc, f"need the decoder {ranges.units.decoder.kernel}, which has no zarr codec"
        )
    return ranges


def _plain_dtype(desc: Description, frames: _Frames) -> np.dtype | None:
    """Return the NumPy dtype of uncompressed frames; None if they are packed."""
    (units, _), *others = frames.parts
    decoder, runs = units.decoder, units.runs
    in_order = runs.length == 1 or (runs.step, runs.out_step) == (decoder.nbytes, decoder.nbytes)
    whole = len(runs.starts) == 1 and runs.length == math.prod(desc.sig_shape)
    stored = decoder.dtype, decoder.dtype.newbyteorder("S")
    known = (d for d in stored if d.kind != "b" and plain(d) == decoder)
    return None if others or not whole or not in_order else next(known, None)


def _divided(desc: Description, frames: _Frames) -> tuple[tuple[int, ...], _Frames]:
    """Choose the largest chunks of consecutive frames, or of parts of a frame."""
    nav, size = len(desc.nav_shape), desc.dtype.itemsize
    for shape in _runs_of_pixels(desc.shape, max(1, CHUNK_BYTES // size)):
        count, inside = math.prod(shape[:nav]), math.prod(shape[nav:])
        file, offset = (column.reshape(-1, count) for column in (frames.file, frames.offset))
        follow = (np.diff(offset) == frames.nbytes) | (file[:, :1] < 0)
        if inside * size < frames.nbytes or ((file == file[:, :1]).all() and follow.all()):
            break
    within = np.arange(0, frames.nbytes, inside * size)
    first = np.repeat(file[:, 0], len(within))
    places = np.add.outer(offset[:, 0], within).ravel()
    return shape, frames._replace(file=first, offset=places, nbytes=count * inside * size)


def _runs_of_pixels(shape: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of contiguous chunks that divide the axes evenly, the largest first."""
    for k, size in enumerate(shape):
        inner = shape[k + 1 :]
        for parts in range(1, size + 1):
            if size % parts == 0 and size // parts * math.prod(inner) <= most:
                yield (*(1,) * k, size // parts, *inner)
    if not shape:
        yield ()
