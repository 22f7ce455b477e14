"""Sample files: header, field descriptors, and allocation table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.beton import structure
from dask_tiled.formats.beton.structure import FIELD_BYTES, HEADER, HEADER_BYTES, Field
from dask_tiled.formats.tools.files import read_exactly

KINDS = "float", "int", "image", "bytes", "array", "JSON", "tensor"


@dataclass(frozen=True)
class SampleFile:
    """The header and field descriptors of a sample file."""

    file: tools.File
    header: dict[str, Any]
    fields: list[Field]
    record: np.dtype

    @property
    def start(self) -> int:
        """First byte of the records."""
        return HEADER_BYTES + FIELD_BYTES * len(self.fields)

    @property
    def count(self) -> int:
        """Number of samples."""
        return int(self.header["num_samples"])

    def allocations(self) -> Any:
        """Read the allocation table, sorted by position, without empty regions."""
        at = self.header["alloc_table_ptr"]
        table = read_exactly(self.file.path, self.file.size - at, at, "the allocation table")
        rows = np.frombuffer(table, structure.ALLOCATION)
        rows = rows[rows["size"] > 0]
        return rows[np.argsort(rows["ptr"], kind="stable")]


def read_file(file: tools.File) -> SampleFile:
    """Read header and descriptors, and check all positions."""
    header = tools.read_fields(file.path, HEADER)
    allowed = {"version": (structure.VERSION,), "num_fields": tools.POSITIVE}
    tools.check_fields(file.path, header, HEADER, allowed, "not a supported sample file")
    if not structure.is_page_size(header["page_size"]):
        raise tools.CorruptFileError(
            "invalid page size",
            path=file.path,
            where="page_size",
            expected=f"a power of two from {structure.LEAST_PAGE} on",
            found=header["page_size"],
        )
    size = header["num_fields"] * FIELD_BYTES
    raw = read_exactly(file.path, size, HEADER_BYTES, "the descriptors of the fields")
    fields = []
    for at in range(0, size, FIELD_BYTES):
        field = Field.unpack(raw[at : at + FIELD_BYTES])
        fields.append(field)
        if field.type_id not in structure.STORED:
            raise tools.DatasetError(
                f"the field {field.name!r} has a custom type, which cannot be decoded",
                path=file.path,
                expected=f"types 0 to {len(KINDS) - 1}",
                found=field.type_id,
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


def listed(file: SampleFile) -> dict[str, str]:
    """Describe the fields of a file as text."""
    return {field.name: _told(field) for field in file.fields}


def _told(field: Field) -> str:
    kind = KINDS[field.type_id]
    if field.type_id not in (structure.ARRAY, structure.TENSOR):
        return kind
    try:
        dtype, shape = structure.parse_array(field.arguments)
    except (ValueError, TypeError) as error:
        return f"{kind} of an unreadable type: {error}"
    return f"{kind} of {dtype}, shape {shape}"
