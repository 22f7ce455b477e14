"""FFCV sample files, ``.beton``, of version 2: a field of them is an array of samples.

Layout as the writer of FFCV 1.0 has it, and real files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.beton import structure
from dask_tiled.formats.beton.structure import FIELD_BYTES, HEADER, HEADER_BYTES
from dask_tiled.model.indexing import Cut, Index
from dask_tiled.model.pieces import PieceTable, joined

KINDS = "float", "int", "image", "bytes", "array", "JSON", "tensor"
SAMPLES = f"{__package__}.samples"
TOGETHER = 64
"""Records of samples that are followed in one go."""
PIXEL, OBJECT = np.dtype("u1"), np.dtype(object)
OBJECT_BYTES = 64
"""What an object takes beside its content."""


def sniff(path: str, head: bytes) -> str | None:
    """Look for a header that makes sense, and the name of a field: there is no magic number."""
    if len(head) < HEADER_BYTES + FIELD_BYTES:
        return "shorter than the header of a sample file"
    header = tools.parse_fields(head, HEADER)
    least = HEADER_BYTES + FIELD_BYTES * header["num_fields"]
    if header["version"] != structure.VERSION or not header["num_fields"]:
        return "does not begin with version 2 and a number of fields"
    if not structure.is_page_size(header["page_size"]) or header["alloc_table_ptr"] < least:
        return "begins with no size of pages and place of a table"
    return None


class Field(NamedTuple):
    """A field of the samples."""

    type_id: int
    name: str
    arguments: bytes


@dataclass(frozen=True)
class SampleFile:
    """A sample file, as its header and the descriptors of its fields tell."""

    file: tools.File
    header: dict[str, Any]
    fields: list[Field]
    record: np.dtype

    @property
    def start(self) -> int:
        """Where the records of the samples begin."""
        return HEADER_BYTES + FIELD_BYTES * len(self.fields)

    @property
    def count(self) -> int:
        """Number of samples."""
        return int(self.header["num_samples"])

    def allocations(self) -> Any:
        """Read the allocation table, in the order of the file, without regions of no bytes."""
        at = self.header["alloc_table_ptr"]
        table = tools.read_exactly(self.file.path, self.file.size - at, at, "the allocation table")
        rows = np.frombuffer(table, structure.ALLOCATION)
        rows = rows[rows["size"] > 0]
        return rows[np.argsort(rows["ptr"], kind="stable")]


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
        """Name a sample by its number in its own file."""
        return f"sample {i - sum(self.counts[: self.file[i]])}"

    @property
    def at(self) -> Index:
        """Where what the records say of the field begins."""
        parts = [
            first + self.step * np.arange(count)
            for first, count in zip(self.first, self.counts, strict=True)
        ]
        return np.concatenate(parts)

    def columns(self, dtype: np.dtype) -> tuple[Index, ...]:
        """Read what the records say of the field."""
        names = dtype.names or ("ptr",)
        fields = dtype.fields or {"ptr": (dtype, 0)}
        places: tools.Fields = {name: (fields[name][1], fields[name][0].str) for name in names}
        parts: list[list[Index]] = [[np.empty(0, np.int64)] for _ in names]
        for file, first, count in zip(self.files, self.first, self.counts, strict=True):
            if count:
                found = tools.read_table(file.file.path, places, first, self.step, count)
                for part, name in zip(parts, names, strict=True):
                    # Beyond is beyond, and fits an int64.
                    column = found[name].astype(np.uint64)
                    part.append(np.minimum(column, file.file.size + 1).astype(np.int64))
        return tuple(map(np.concatenate, parts))

    def check(self, ptr: Index, size: Index) -> None:
        """Make sure that samples lie in the pages; where they have no bytes, nothing is read."""
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
    """Where the samples of a field lie."""

    pieces: PieceTable
    decoders: Sequence[tools.Decoder | tools.BlockDecoder]
    sig_shape: tuple[int, ...] = ()
    axes: tuple[tools.Axis, ...] = ()


def describe(paths: Sequence[str], *, field: int | str | None = None) -> tools.Description:
    """Describe one field of a sample file, or of a set of them, one after the other.

    Parameters
    ----------
    paths : sequence of str
    field : int or str, optional
        Number or name of the field; by default the first.
    """
    files = [_read(tools.File.at(path)) for path in paths]
    first = files[0]
    number = tools.choose_dataset(first.file.path, [one.name for one in first.fields], field)
    for other in files[1:]:
        if other.fields != first.fields:
            raise tools.DatasetError(
                "the files of a set have other fields",
                path=other.file.path,
                expected=_listed(first),
                found=_listed(other),
            )
    samples = Samples(files, number)
    count = sum(samples.counts)
    found = LAY_OUT[samples.field.type_id](samples) if count else _nothing(samples)
    shape = found.sig_shape or (1,)
    layout = tools.Layout([f.file for f in files], (count,), shape, found.pieces, found.decoders)
    header = {key: first.header[key] for key in ("version", "page_size")}
    facts = {"header": header, "field": samples.field.name, "fields": _listed(first)}
    axes = (tools.Axis("sample"), *(found.axes or tools.sig_axes(len(shape))))
    desc = tools.Description.of("beton", layout, {"beton": facts}, axes)
    # Numbers and objects have no axes; in their files they are pixels of frames of one.
    return desc if found.sig_shape else desc.cut([Cut(0, 1, count), Cut(0, 1, 1, kept=False)])


def _read(file: tools.File) -> SampleFile:
    """Read the header and the descriptors, and check where everything lies."""
    header = tools.read_fields(file.path, HEADER)
    allowed = {"version": (structure.VERSION,), "num_fields": tools.POSITIVE}
    tools.check_fields(file.path, header, HEADER, allowed, "not a sample file that is read")
    if not structure.is_page_size(header["page_size"]):
        raise tools.CorruptFileError(
            "no size of pages",
            path=file.path,
            where="page_size",
            expected=f"a power of two from {structure.LEAST_PAGE} on",
            found=header["page_size"],
        )
    size = header["num_fields"] * FIELD_BYTES
    raw = tools.read_exactly(file.path, size, HEADER_BYTES, "the descriptors of the fields")
    fields = []
    for at in range(0, size, FIELD_BYTES):
        name = raw[at + 1 : at + 17].rstrip(b"\0").decode("ascii", "backslashreplace")
        fields.append(Field(raw[at], name, raw[at + 17 : at + FIELD_BYTES]))
        if raw[at] not in structure.STORED:
            raise tools.DatasetError(
                f"the field {name!r} has a type of its own, which only its writer knows",
                path=file.path,
                expected=f"types 0 to {len(KINDS) - 1}",
                found=raw[at],
            )
    record = structure.record_of([field.type_id for field in fields])
    end = HEADER_BYTES + size + record.itemsize * header["num_samples"]
    table = header["alloc_table_ptr"]
    if not end <= table <= file.size:
        raise tools.TruncatedFileError(
            "the records of the samples, or the pages, reach beyond the file",
            path=file.path,
            where="alloc_table_ptr",
            expected=f"{end} to {file.size}",
            found=table,
        )
    if (file.size - table) % structure.ALLOCATION.itemsize:
        raise tools.TruncatedFileError(
            "the allocation table ends inside a row",
            path=file.path,
            where=f"byte {table}",
            expected=f"rows of {structure.ALLOCATION.itemsize} bytes",
            found=f"{file.size - table} bytes",
        )
    return SampleFile(file, header, fields, record)


def _listed(file: SampleFile) -> dict[str, str]:
    """Say what the fields of a file hold."""
    return {field.name: _told(field) for field in file.fields}


def _told(field: Field) -> str:
    kind = KINDS[field.type_id]
    if field.type_id not in (structure.ARRAY, structure.TENSOR):
        return kind
    try:
        dtype, shape = structure.parse_array(field.arguments)
    except (ValueError, TypeError) as error:
        return f"{kind} of what cannot be read: {error}"
    return f"{kind} of {dtype}, shape {shape}"


def _nothing(samples: Samples) -> LaidOut:
    """Lay out a field of no samples."""
    dtype = structure.STORED[samples.field.type_id]
    shape: tuple[int, ...] = ()
    if samples.field.type_id in (structure.ARRAY, structure.TENSOR):
        dtype, shape = _array_of(samples)
    elif dtype.names:
        dtype = np.dtype(object)
    sig = shape or (1,)
    return LaidOut(
        tools.piece_table((0,) * (len(sig) + 1), (0, *sig), 0, (0,) * (len(sig) + 1)),
        [tools.plain(dtype)],
        shape,
    )


def _numbers(samples: Samples) -> LaidOut:
    """Lay out numbers, which stand in the records themselves."""
    dtype = structure.STORED[samples.field.type_id]
    table = tools.run_table(samples.at, (1,), (dtype.itemsize,), file=samples.file)
    return LaidOut(table, [tools.plain(dtype)])


def _array_of(samples: Samples) -> tuple[np.dtype, tuple[int, ...]]:
    """Return type and shape of the arrays of a field."""
    try:
        return structure.parse_array(samples.field.arguments)
    except (ValueError, TypeError) as error:
        raise tools.CorruptFileError(
            f"the arrays of the field {samples.field.name!r} are of no type",
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
    table = tools.run_table(ptr, record.sig_shape, record.sig_strides, file=samples.file)
    return LaidOut(table, [record.decoder], shape)


def _objects(samples: Samples) -> LaidOut:
    """Lay out bytes and texts: pieces are records of some samples, which their decoder follows."""
    ptr, size = samples.columns(structure.REGION)
    samples.check(ptr, size)
    at, parts = samples.at, []
    first = 0
    for count in samples.counts:
        parts.append(np.arange(first, first + count, TOGETHER))
        first += count
    starts = np.concatenate(parts)
    counts = np.diff(starts, append=first)
    table = tools.piece_table(
        tools.axis_columns(starts, (0,)),
        tools.axis_columns(counts, (1,)),
        at[starts],
        (0, 0),
        file=samples.file[starts],
        nbytes=(counts - 1) * samples.step + structure.REGION.itemsize,
    )
    options = ("step", samples.step), ("text", samples.field.type_id == structure.JSON)
    mean = int(size.mean()) + OBJECT_BYTES
    return LaidOut(table, [tools.BlockDecoder(f"{SAMPLES}:regions", OBJECT, options, mean)])


def _images(samples: Samples) -> LaidOut:
    """Lay out images: as pixels if all are of one shape, as objects otherwise."""
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
        axes = (*tools.sig_axes(2), tools.Axis("channel"))
        decoder = tools.BlockDecoder(f"{SAMPLES}:jpeg", PIXEL)
        record = tools.Record(shape, tools.plain(PIXEL))
        if len(raw):
            strides, file = record.sig_strides, samples.file[raw]
            runs = tools.run_table(ptr[raw], shape, strides, numbers=raw, file=file, decoder=1)
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
    """Make a piece of each sample."""
    return tools.piece_table(
        tools.axis_columns(some, (0,) * len(shape)),
        (1, *shape),
        offset[some],
        (0,) * (len(shape) + 1),
        file=samples.file[some],
        decoder=decoder,
        nbytes=nbytes[some],
    )


def _jpeg_bytes(samples: Samples, mode: Index, ptr: Index) -> Index:
    """Find how long JPEG images are: only the allocation tables tell."""
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

FORMAT = tools.Format(
    name="beton",
    extensions=(".beton",),
    summary="FFCV sample files, version 2: one field of all samples, or of a set of files",
    nav_shape_from="the header, which gives one axis of samples",
    sniff=sniff,
    describe=describe,
    peers=("FFCV",),
    aliases=("ffcv",),
)
