"""Layouts of the samples of a field, by field type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.beton import structure
from dask_tiled.formats.beton.sample_file import SampleFile
from dask_tiled.formats.tools.header import read_table
from dask_tiled.model.axes import sig_axes
from dask_tiled.model.indexing import Index
from dask_tiled.model.pieces import PieceTable, axis_columns, joined, piece_table
from dask_tiled.model.runs import run_table

SAMPLES = f"{__package__}.samples"
TOGETHER = 64
"""Number of records decoded together."""
PIXEL, OBJECT = np.dtype("u1"), np.dtype(object)
OBJECT_BYTES = 64
"""Overhead of a Python object."""


class Samples:
    """A field of all samples of a set of files."""

    def __init__(self, files: Sequence[SampleFile], number: int) -> None:
        self.files = files
        self.field = files[0].fields[number]
        self.counts = [file.count for file in files]
        self.file = np.repeat(np.arange(len(files)), self.counts)
        self.step = files[0].record.itemsize
        at = files[0].record.fields[f"f{number}"][1]  # type: ignore[index]
        self.first = [file.start + at for file in files]

    def name_of(self, i: int) -> str:
        """Return the name of a sample: its number in its own file."""
        return f"sample {i - sum(self.counts[: self.file[i]])}"

    @property
    def at(self) -> Index:
        """Byte at which the field begins in each record."""
        parts = [
            first + self.step * np.arange(count)
            for first, count in zip(self.first, self.counts, strict=True)
        ]
        return np.concatenate(parts)

    def columns(self, dtype: np.dtype) -> tuple[Index, ...]:
        """Read the columns of the field's records."""
        names = dtype.names or ("ptr",)
        fields = dtype.fields or {"ptr": (dtype, 0)}
        places: tools.Fields = {name: (fields[name][1], fields[name][0].str) for name in names}
        parts: list[list[Index]] = [[np.empty(0, np.int64)] for _ in names]
        for file, first, count in zip(self.files, self.first, self.counts, strict=True):
            if count:
                found = read_table(file.file.path, places, first, self.step, count)
                for part, name in zip(parts, names, strict=True):
                    # Clip offsets beyond the file, so that they fit an int64.
                    column = found[name].astype(np.uint64)
                    part.append(np.minimum(column, file.file.size + 1).astype(np.int64))
        return tuple(map(np.concatenate, parts))

    def check(self, ptr: Index, size: Index) -> None:
        """Check that samples lie in the pages; empty samples may lie anywhere."""
        starts = np.array([file.start + self.step * file.count for file in self.files])[self.file]
        ends = np.array([file.header["alloc_table_ptr"] for file in self.files])[self.file]
        bad = np.flatnonzero((size > 0) & ((ptr < starts) | (size > ends) | (ptr > ends - size)))
        if len(bad):
            i = int(bad[0])
            raise tools.CorruptFileError(
                f"a sample of the field {self.field.name!r} lies outside of the pages",
                path=self.files[self.file[i]].file.path,
                where=self.name_of(i),
                expected=f"bytes {starts[i]} to {ends[i]}",
                found=f"{size[i]} bytes from {ptr[i]} on",
            )


class LaidOut(NamedTuple):
    """The layout of a field."""

    pieces: PieceTable
    decoders: Sequence[tools.Decoder | tools.BlockDecoder]
    sig_shape: tuple[int, ...] = ()
    axes: tuple[tools.Axis, ...] = ()


def _nothing(samples: Samples) -> LaidOut:
    """Lay out a field without samples."""
    dtype = structure.STORED[samples.field.type_id]
    shape: tuple[int, ...] = ()
    if samples.field.type_id in (structure.ARRAY, structure.TENSOR):
        dtype, shape = _array_of(samples)
    elif dtype.names:
        dtype = np.dtype(object)
    sig = shape or (1,)
    return LaidOut(
        piece_table((0,) * (len(sig) + 1), (0, *sig), 0, (0,) * (len(sig) + 1)),
        [tools.plain(dtype)],
        shape,
    )


def _numbers(samples: Samples) -> LaidOut:
    """Lay out numbers, which are stored in the records."""
    dtype = structure.STORED[samples.field.type_id]
    table = run_table(samples.at, (1,), (dtype.itemsize,), file=samples.file)
    return LaidOut(table, [tools.plain(dtype)])


def _array_of(samples: Samples) -> tuple[np.dtype, tuple[int, ...]]:
    """Return dtype and shape of the arrays of a field."""
    try:
        return structure.parse_array(samples.field.arguments)
    except (ValueError, TypeError) as error:
        raise tools.CorruptFileError(
            f"the arrays of the field {samples.field.name!r} have an invalid type",
            path=samples.files[0].file.path,
            where="arguments",
            found=str(error),
        ) from error


def _arrays(samples: Samples) -> LaidOut:
    """Lay out arrays of one shape."""
    dtype, shape = _array_of(samples)
    record = tools.Record(shape or (1,), tools.plain(dtype))
    page = samples.files[0].header["page_size"]
    if record.frame_bytes > page:
        raise tools.CorruptFileError(
            f"an array of the field {samples.field.name!r} is larger than a page",
            path=samples.files[0].file.path,
            where="arguments",
            expected=f"at most {page} bytes",
            found=f"{record.frame_bytes} bytes",
        )
    (ptr,) = samples.columns(structure.STORED[samples.field.type_id])
    samples.check(ptr, np.full_like(ptr, record.frame_bytes))
    if not record.frame_bytes:
        ptr = np.zeros_like(ptr)
    table = run_table(ptr, record.sig_shape, record.sig_strides, file=samples.file)
    return LaidOut(table, [record.decoder], shape)


def _objects(samples: Samples) -> LaidOut:
    """Lay out bytes and texts: a piece is the records of some samples, which hold pointers."""
    ptr, size = samples.columns(structure.REGION)
    samples.check(ptr, size)
    at, parts = samples.at, []
    first = 0
    for count in samples.counts:
        parts.append(np.arange(first, first + count, TOGETHER))
        first += count
    starts = np.concatenate(parts)
    counts = np.diff(starts, append=first)
    table = piece_table(
        axis_columns(starts, (0,)),
        axis_columns(counts, (1,)),
        at[starts],
        (0, 0),
        file=samples.file[starts],
        nbytes=(counts - 1) * samples.step + structure.REGION.itemsize,
    )
    options = ("step", samples.step), ("text", samples.field.type_id == structure.JSON)
    mean = int(size.mean()) + OBJECT_BYTES
    return LaidOut(table, [tools.BlockDecoder(f"{SAMPLES}:regions", OBJECT, options, mean)])


def _images(samples: Samples) -> LaidOut:
    """Lay out images: as pixels if all have one shape, otherwise as objects."""
    mode, width, height, ptr = samples.columns(structure.PIXELS)
    wrong = np.flatnonzero((mode != structure.JPEG) & (mode != structure.RAW))
    if len(wrong):
        i = int(wrong[0])
        raise tools.CorruptFileError(
            "an image of an unknown kind",
            path=samples.files[samples.file[i]].file.path,
            where=samples.name_of(i),
            expected="0 for JPEG, or 1 for pixels",
            found=int(mode[i]),
        )
    size = 3 * width * height
    size[mode == structure.JPEG] = _jpeg_bytes(samples, mode, ptr)
    samples.check(ptr, size)
    shape = int(height[0]), int(width[0]), 3
    raw, packed = np.flatnonzero(mode == structure.RAW), np.flatnonzero(mode == structure.JPEG)
    of_one_shape = (width == width[0]).all() and (height == height[0]).all() and size.all()
    tables = []
    if len(packed):
        tables.append(_blocks(samples, packed, ptr, size, shape if of_one_shape else (1,)))
    if of_one_shape:
        axes = (*sig_axes(2), tools.Axis("channel"))
        decoder = tools.BlockDecoder(f"{SAMPLES}:jpeg", PIXEL)
        record = tools.Record(shape, tools.plain(PIXEL))
        if len(raw):
            strides, file = record.sig_strides, samples.file[raw]
            runs = run_table(ptr[raw], shape, strides, numbers=raw, file=file, decoder=1)
            tables.append(runs)
        return LaidOut(joined(tables), [decoder, record.decoder], shape, axes)
    mean = int((3 * width * height).mean()) + OBJECT_BYTES
    kinds = ("any_jpeg", "image")
    decoders = [tools.BlockDecoder(f"{SAMPLES}:{kind}", OBJECT, (), mean) for kind in kinds]
    if len(raw):
        at = samples.at
        nbytes = np.full_like(at, structure.PIXELS.itemsize)
        tables.append(_blocks(samples, raw, at, nbytes, (1,), decoder=1))
    return LaidOut(joined(tables), decoders)


def _blocks(
    samples: Samples,
    some: Index,
    offset: Index,
    nbytes: Index,
    shape: tuple[int, ...],
    decoder: int = 0,
) -> PieceTable:
    """Return a piece for each sample."""
    return piece_table(
        axis_columns(some, (0,) * len(shape)),
        (1, *shape),
        offset[some],
        (0,) * (len(shape) + 1),
        file=samples.file[some],
        decoder=decoder,
        nbytes=nbytes[some],
    )


def _jpeg_bytes(samples: Samples, mode: Index, ptr: Index) -> Index:
    """Return the sizes of JPEG images, which are only in the allocation tables."""
    found = np.zeros_like(ptr)
    packed = mode == structure.JPEG
    for k, file in enumerate(samples.files):
        some = np.flatnonzero(packed & (samples.file == k))
        if not len(some):
            continue
        rows = file.allocations()
        place = np.searchsorted(rows["ptr"], ptr[some].astype(np.uint64))
        place = np.minimum(place, max(0, len(rows) - 1))
        there = rows["ptr"][place] == ptr[some] if len(rows) else np.zeros(len(some), bool)
        if not there.all():
            i = int(some[~there][0])
            raise tools.CorruptFileError(
                "an image is not in the allocation table",
                path=file.file.path,
                where=samples.name_of(i),
                expected=f"a row for byte {int(ptr[i])}",
            )
        found[some] = np.minimum(rows["size"][place], file.file.size + 1)
    return found[packed]


LAY_OUT: Mapping[int, Callable[[Samples], LaidOut]] = {
    structure.FLOAT: _numbers,
    structure.INT: _numbers,
    structure.IMAGE: _images,
    structure.BYTES: _objects,
    structure.ARRAY: _arrays,
    structure.JSON: _objects,
    structure.TENSOR: _arrays,
}


def lay_out(samples: Samples) -> LaidOut:
    """Return the layout of a field."""
    kind = LAY_OUT[samples.field.type_id]
    return kind(samples) if sum(samples.counts) else _nothing(samples)
