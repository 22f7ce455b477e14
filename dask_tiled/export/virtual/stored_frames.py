"""Where the bytes of frames lie, and chunks of zarr that are a range of bytes each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError, format_bytes
from dask_tiled.model.decoders import plain
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Index
from dask_tiled.reading.planning import Ranges, frame_ranges, region_of
from dask_tiled.reading.ranges import ReadRanges, Units

CHUNK_BYTES = 16 << 20
"""Bytes of a chunk, where pixels that follow one another can be cut as one likes."""
SPREAD = 8
"""A frame is refused if its bytes are spread over this many times their number."""


class StoredFrames(NamedTuple):
    """Frames, each of which is a range of bytes, decoded in the same way.

    Attributes
    ----------
    parts : list of (Units, int)
        What is read of a frame, and at which of its bytes each part begins.
    file : int64 array
        Number of the file of each frame; -1 where the frame is missing.
    offset : int64 array
        First byte of each frame there.
    nbytes : int
        Bytes from the first of a frame to its last.
    pixels : int
        Pixels of a frame.
    """

    parts: list[tuple[Units, int]]
    file: Index
    offset: Index
    nbytes: int
    pixels: int

    def plain_dtype(self) -> np.dtype | None:
        """Return the type in which frames are stored as numpy stores them; None if they are not."""
        if len(self.parts) != 1:
            return None
        ((units, _),) = self.parts
        decoder, runs = units.decoder, units.runs
        nbytes = decoder.nbytes
        in_order = runs.length == 1 or (runs.step, runs.out_step) == (nbytes, nbytes)
        if len(runs.starts) != 1 or runs.length != self.pixels or not in_order:
            return None
        stored = decoder.dtype, decoder.dtype.newbyteorder("S")
        known = (d for d in stored if d.kind != "b" and plain(d) == decoder)
        return next(known, None)

    def codecs(self, dtype: np.dtype | None) -> dict[str, Any]:
        """Return what :func:`zarr.create_array` takes for frames, or frames of such a type."""
        from zarr.codecs import BytesCodec

        from dask_tiled.export.codecs import UNITS, UnitsCodec

        if dtype is not None:
            little = dtype.newbyteorder("<") == dtype
            return {"serializer": BytesCodec(endian="little" if little else "big")}
        units = UnitsCodec.from_dict({"name": UNITS, "configuration": self._units()})
        return {"serializer": BytesCodec(), "compressors": units}

    def numcodecs(self, dtype: np.dtype | None) -> dict[str, Any]:
        """Return the same for format 2, and the type that zarr is told."""
        from dask_tiled.export.filters import Units

        if dtype is not None:
            return {"zarr_format": 2, "dtype": dtype}
        return {"zarr_format": 2, "compressors": Units(**self._units())}

    def _units(self) -> dict[str, Any]:
        """Return the configuration of the codec that decodes a frame."""
        from dask_tiled.export.codecs import UnitRuns

        return {"units": [UnitRuns.of(units, start)._asdict() for units, start in self.parts]}

    def follow(self, count: int) -> bool:
        """Return whether each ``count`` frames follow one another, or are all missing."""
        file, offset = self.file.reshape(-1, count), self.offset.reshape(-1, count)
        return bool(
            (file == file[:, :1]).all()
            and ((np.diff(offset) == self.nbytes) | (file[:, :1] < 0)).all()
        )


def stored_frames(desc: Description) -> StoredFrames:
    """Find the bytes of every frame."""
    layout = desc.layout
    if not desc.conversion.nothing:
        raise refused(desc, "are corrected, scaled or converted when they are read")
    if layout.overlapping or layout.partial:
        raise refused(desc, "lie in pieces that overlap, or that leave some of them out")
    region = region_of(layout, tuple((0, n) for n in desc.shape))
    count = len(region.frames)
    number = {file: k for k, file in enumerate(layout.files)}
    kinds: dict[Hashable, tuple[Units, Index, Index]] = {}
    for found in frame_ranges(layout, region.frames, region.sig):
        ranges = _readable(desc, found)
        units = ranges.units
        _, file, offset = kinds.setdefault(
            _kind(units), (units, np.full(count, -1), np.zeros(count, np.int64))
        )
        file[ranges.frames], offset[ranges.frames] = number[ranges.file], ranges.offsets
    if not kinds:
        raise refused(desc, "are missing in all frames")
    (_, file, offset), *others = kinds.values()
    there = file >= 0
    for _, other_file, other in others:
        if (file != other_file).any():
            raise refused(desc, "lie in several files, or not in the same way in all frames")
        if np.ptp((other - offset)[there]):
            raise refused(desc, "do not lie in the same way in all frames")
    k = int(there.argmax())
    begins = [int(other[k] - offset[k]) for _, _, other in kinds.values()]
    reaches = [units.reach for units, *_ in kinds.values()]
    low = min(begin + first for begin, (first, _) in zip(begins, reaches, strict=True))
    high = max(begin + last for begin, (_, last) in zip(begins, reaches, strict=True))
    if high - low > SPREAD * sum(_nbytes(units) for units, *_ in kinds.values()):
        raise refused(desc, f"of a frame lie spread over {format_bytes(high - low)}")
    parts = [
        (units, begin - low) for (units, *_), begin in zip(kinds.values(), begins, strict=True)
    ]
    return StoredFrames(parts, file, offset + low, high - low, math.prod(desc.sig_shape))


def _nbytes(units: Units) -> int:
    """Return the bytes of a frame that are read."""
    runs, decoder = units.runs, units.decoder
    return len(runs.starts) * runs.length * decoder.nbytes * (2 if decoder.lag else 1)


def _kind(units: Units) -> Hashable:
    """Return a key: frames with equal keys are stored in the same way."""
    runs = units.runs
    steps = runs.step, runs.length, runs.out_step
    return units.decoder, steps, runs.starts.tobytes(), runs.dests.tobytes()


def _readable(desc: Description, ranges: Ranges) -> ReadRanges:
    """Refuse what no codec of ours decodes."""
    from dask_tiled.export.codecs import RATES

    if not isinstance(ranges, ReadRanges):
        if "dataset" in dict(ranges.decoder.options):
            why = "are read by the HDF5 library: N-bit, scale-offset and others are no codecs"
            raise refused(desc, why)
        raise refused(desc, "decode in blocks only, as compressed ones do")
    if ranges.units.pick is not None:
        raise refused(desc, "are cut inside of what decodes at once, or of several types")
    if ranges.units.decoder.kernel not in RATES:
        raise refused(desc, f"are decoded by {ranges.units.decoder.kernel}, which no codec knows")
    return ranges


class Chunk(NamedTuple):
    """A chunk that is a range of bytes of a file.

    Attributes
    ----------
    place : tuple of int
        Where it is, counted in chunks.
    file, offset, nbytes : int
        Number of the file, and the range in it.
    """

    place: tuple[int, ...]
    file: int
    offset: int
    nbytes: int


def chunks_of(
    desc: Description, frames: StoredFrames, *, whole: bool
) -> tuple[tuple[int, ...], Iterator[Chunk]]:
    """Choose the shape of chunks, and list those that are not missing, in C order.

    Parameters
    ----------
    desc : Description
    frames : StoredFrames
    whole : bool
        Whether a chunk has to be a frame.
    """
    nav, size = len(desc.nav_shape), desc.dtype.itemsize
    if whole:
        shape = (*(1,) * nav, *desc.sig_shape)
        return shape, _listed(desc, shape, frames.file, frames.offset, frames.nbytes)
    for shape in _runs_of_pixels(desc.shape, max(1, CHUNK_BYTES // size)):
        count, inside = math.prod(shape[:nav]), math.prod(shape[nav:])
        if inside < frames.pixels or frames.follow(count):
            break
    within = np.arange(0, frames.nbytes, inside * size)
    offset = np.add.outer(frames.offset[::count], within).ravel()
    file = np.repeat(frames.file[::count], len(within))
    return shape, _listed(desc, shape, file, offset, count * inside * size)


def _listed(
    desc: Description, shape: tuple[int, ...], file: Index, offset: Index, nbytes: int
) -> Iterator[Chunk]:
    counts = (size // n for size, n in zip(desc.shape, shape, strict=True))
    places = itertools.product(*map(range, counts))
    for place, number, at in zip(places, file.tolist(), offset.tolist(), strict=True):
        if number >= 0:
            yield Chunk(place, number, at, nbytes)


def _runs_of_pixels(shape: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """List chunks of pixels that follow one another, and divide an axis, from the largest on."""
    for k, size in enumerate(shape):
        inner = shape[k + 1 :]
        for parts in range(1, size + 1):
            if size % parts == 0 and size // parts * math.prod(inner) <= most:
                yield (*(1,) * k, size // parts, *inner)
    if not shape:
        yield ()


def refused(desc: Description, why: str) -> DatasetError:
    """Return the error that says why there are no references."""
    return DatasetError(
        f"no references can be made: the pixels {why}",
        path=desc.files[0].path,
        hint="as_zarr shows them without a copy, to_zarr copies them.",
    )
