"""References: where the bytes of every zarr chunk lie, in files that stay as they are."""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import uuid
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.errors import DatasetError, format_bytes
from dask_tiled.export.documents import ARRAY, documents_of, opened
from dask_tiled.model.blocks import BlockRange
from dask_tiled.model.decoders import plain
from dask_tiled.model.description import Description
from dask_tiled.model.files import File
from dask_tiled.model.indexing import Index
from dask_tiled.reading.planning import Ranges, frame_ranges, region_of
from dask_tiled.reading.ranges import ReadRanges, Units

CHUNK_BYTES = 16 << 20
"""Bytes of a chunk, where pixels that follow one another can be cut as one likes."""
SPREAD = 8
"""A frame whose bytes reach over so many times as many is not worth a range of its own."""


def to_references(
    arr: da.Array,
    target: str | os.PathLike[str] | None = None,
    *,
    zarr_format: Literal[2, 3] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write down where the chunks of an opened array lie, as references that kerchunk defines.

    Nothing is copied: who reads them fetches ranges of bytes from the files.

    Parameters
    ----------
    arr : TiledArray
        An opened array, or a part of one, whose frames are a range of bytes in one file each.
    target : path-like, optional
        The JSON file to write.
    zarr_format : {2, 3}, optional
        By default 2, which everything reads, where no frame is missing and zarr knows the pixels by
        itself: those that are stored as numpy has them, in either byte order. Others, packed,
        turned or with gaps, are decoded by the codec ``dask_tiled.units``, which only zarr format 3
        can name, and this package brings.
    overwrite : bool
        Replace a file of references. Nothing else is ever replaced.

    Returns
    -------
    dict
        The references, version 1, of a group with the array ``data``, and coordinates of the axes
        that the file gives a scale. Missing frames have none: zarr shows the fill value.

    Raises
    ------
    DatasetError
        The array was computed; its pixels are compressed, corrected, scaled or converted, or a
        frame of them is no range of bytes in one file; zarr has no type for them, or would need a
        codec; or something else is at ``target``.
    StaleFileError
        A file is not the one that was opened any more.
    """
    desc, _ = opened(arr)
    if zarr_format not in (None, 2, 3):
        raise DatasetError("no format of zarr", expected="2 or 3", found=zarr_format)
    path = None if target is None else _place(target, overwrite=overwrite)
    frames = _stored_frames(desc)
    dtype = frames.plain_dtype()
    missing = bool((frames.file < 0).any())
    if zarr_format == 2 and (dtype is None or missing):
        need = "a codec" if dtype is None else "a fill value that is no mask"
        raise _refused(desc, f"need {need}, which only zarr format 3 has")
    shape, chunks = _chunks(desc, frames, whole=dtype is None)
    if dtype is not None and zarr_format != 3 and not missing:
        documents = documents_of(desc, shape, zarr_format=2, dtype=dtype)
        names = (".".join(map(str, k)) or "0" for k in _places(desc, shape))
    else:
        documents = documents_of(desc, shape, serializer=frames.codec(dtype))
        names = ("/".join(["c", *map(str, k)]) for k in _places(desc, shape))
    refs: dict[str, Any] = {key: _inline(key, value) for key, value in documents.items()}
    urls = [_url(file) for file in desc.files]
    for name, (file, offset, nbytes) in zip(names, chunks, strict=True):
        if file >= 0:
            refs[f"{ARRAY}/{name}"] = [urls[file], offset, nbytes]
    for one in desc.files:
        one.check()
    references = {"version": 1, "refs": refs}
    if path is not None:
        _write(path, references)
    return references


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
        """Give the type in which frames are stored as numpy stores them; None if they are not."""
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

    def codec(self, dtype: np.dtype | None) -> Any:
        """Give the codec of zarr that decodes a frame, or frames of such a type."""
        from zarr.codecs import BytesCodec

        from dask_tiled.export.codecs import UnitRuns, UnitsCodec

        if dtype is not None:
            return BytesCodec(endian="little" if dtype.newbyteorder("<") == dtype else "big")
        return UnitsCodec(tuple(UnitRuns.of(units, start) for units, start in self.parts))

    def follow(self, count: int) -> bool:
        """Tell whether frames, so many at a time, follow one another, or are all missing."""
        file, offset = self.file.reshape(-1, count), self.offset.reshape(-1, count)
        return bool(
            (file == file[:, :1]).all()
            and ((np.diff(offset) == self.nbytes) | (file[:, :1] < 0)).all()
        )


def _stored_frames(desc: Description) -> StoredFrames:
    """Find the bytes of every frame."""
    layout = desc.layout
    if not desc.conversion.nothing:
        raise _refused(desc, "are corrected, scaled or converted when they are read")
    if layout.overlapping or layout.partial:
        raise _refused(desc, "lie in pieces that overlap, or that leave some of them out")
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
        raise _refused(desc, "are missing in all frames")
    (_, file, offset), *others = kinds.values()
    there = file >= 0
    for _, other_file, other in others:
        if (file != other_file).any():
            raise _refused(desc, "lie in several files, or not in the same way in all frames")
        if np.ptp((other - offset)[there]):
            raise _refused(desc, "do not lie in the same way in all frames")
    k = int(there.argmax())
    begins = [int(other[k] - offset[k]) for _, _, other in kinds.values()]
    reaches = [units.reach for units, *_ in kinds.values()]
    low = min(begin + first for begin, (first, _) in zip(begins, reaches, strict=True))
    high = max(begin + last for begin, (_, last) in zip(begins, reaches, strict=True))
    if high - low > SPREAD * sum(_nbytes(units) for units, *_ in kinds.values()):
        raise _refused(desc, f"of a frame lie spread over {format_bytes(high - low)}")
    parts = [
        (units, begin - low) for (units, *_), begin in zip(kinds.values(), begins, strict=True)
    ]
    return StoredFrames(parts, file, offset + low, high - low, math.prod(desc.sig_shape))


def _nbytes(units: Units) -> int:
    """Give the bytes of a frame that are read."""
    runs, decoder = units.runs, units.decoder
    return len(runs.starts) * runs.length * decoder.nbytes * (2 if decoder.lag else 1)


def _kind(units: Units) -> Hashable:
    """Give what tells ways of storing a frame apart."""
    runs = units.runs
    steps = runs.step, runs.length, runs.out_step
    return units.decoder, steps, runs.starts.tobytes(), runs.dests.tobytes()


def _readable(desc: Description, ranges: Ranges) -> ReadRanges:
    """Refuse what no codec of ours decodes."""
    if isinstance(ranges, BlockRange):
        raise _refused(desc, "decode in blocks only, as compressed ones do")
    if ranges.units.pick is not None:
        raise _refused(desc, "are cut inside of what decodes at once, or of several types")
    if ":" in ranges.units.decoder.kernel:
        raise _refused(desc, f"are decoded by {ranges.units.decoder.kernel}, which no codec knows")
    return ranges


def _chunks(
    desc: Description, frames: StoredFrames, *, whole: bool
) -> tuple[tuple[int, ...], Iterator[tuple[int, int, int]]]:
    """Choose the shape of chunks, and list the file, the offset and the length of each."""
    nav = len(desc.nav_shape)
    ones = (1,) * nav
    if whole:
        found = zip(frames.file.tolist(), frames.offset.tolist(), strict=True)
        return ones + desc.sig_shape, ((file, at, frames.nbytes) for file, at in found)
    for shape in _runs_of_pixels(desc.shape, max(1, CHUNK_BYTES // desc.dtype.itemsize)):
        count, inside = math.prod(shape[:nav]), math.prod(shape[nav:])
        if inside == frames.pixels and not frames.follow(count):
            continue
        nbytes = count * inside * desc.dtype.itemsize
        within = np.arange(0, frames.nbytes, inside * desc.dtype.itemsize)
        offsets = np.add.outer(frames.offset[::count], within).ravel()
        files = np.repeat(frames.file[::count], len(within))
        found = zip(files.tolist(), offsets.tolist(), strict=True)
        return shape, ((file, at, nbytes) for file, at in found)
    raise AssertionError("single pixels follow one another")  # pragma: no cover


def _runs_of_pixels(shape: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """List chunks of pixels that follow one another, and divide an axis, from the largest on."""
    for k, size in enumerate(shape):
        inner = shape[k + 1 :]
        for parts in range(1, size + 1):
            if size % parts == 0 and size // parts * math.prod(inner) <= most:
                yield (*(1,) * k, size // parts, *inner)
    if not shape:
        yield ()


def _places(desc: Description, chunk: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """List the places of chunks, in C order."""
    counts = (size // n for size, n in zip(desc.shape, chunk, strict=True))
    return itertools.product(*map(range, counts))


def _inline(key: str, value: bytes) -> str:
    if key.rpartition("/")[2] in {"zarr.json", ".zarray", ".zattrs", ".zgroup"}:
        return value.decode()
    return "base64:" + base64.b64encode(value).decode()


def _url(file: File) -> str:
    return file.path if "://" in file.path else f"file://{file.path}"


def _refused(desc: Description, why: str) -> DatasetError:
    return DatasetError(
        f"no references can be made: the pixels {why}",
        path=desc.files[0].path,
        hint="as_zarr shows them without a copy, to_zarr copies them.",
    )


def _place(target: Any, *, overwrite: bool) -> str:
    """Make sure that there is nothing at a path, or only references that may go."""
    if not isinstance(target, str | os.PathLike):
        raise DatasetError("no path", expected="where a JSON file goes", found=repr(target))
    path = os.path.abspath(os.fspath(target))
    if os.path.lexists(path):
        found = None
        if os.path.isfile(path) and not os.path.islink(path):
            with suppress(ValueError), open(path, encoding="utf8") as file:
                found = json.load(file)
        if not (isinstance(found, dict) and "refs" in found):
            raise DatasetError("something else is there, and stays", path=path)
        if not overwrite:
            hint = "Pass overwrite=True to replace them."
            raise DatasetError("there are references already", path=path, hint=hint)
    return path


def _write(path: str, references: dict[str, Any]) -> None:
    """Write a JSON file beside its place, and move it there."""
    part = f"{path}.{uuid.uuid4().hex}.part"
    try:
        with open(part, "x", encoding="utf8") as file:
            json.dump(references, file)
        os.replace(part, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise
