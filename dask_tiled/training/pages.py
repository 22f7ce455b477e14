"""Writing sample files: pages of whole samples, records, and the allocation table.

The layout is that of FFCV's writer with one worker; it depends only on the samples and their order,
not on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.formats.beton import structure
from dask_tiled.formats.tools.header import record_dtype
from dask_tiled.model.indexing import Array, Index
from dask_tiled.storing.disk import write_at
from dask_tiled.training.fields import Column


class PageWriter:
    """Writes samples into an open, empty file; ``numbers`` are in the order of the records."""

    def __init__(
        self, file: int, fields: Sequence[structure.Field], numbers: Index, page_size: int
    ) -> None:
        self.file, self.fields, self.numbers, self.page_size = file, fields, numbers, page_size
        record = structure.record_of([field.type_id for field in fields])
        self.records = np.zeros(len(numbers), record)
        self.start = structure.HEADER_BYTES + structure.FIELD_BYTES * len(fields)
        self.end = self.start + self.records.nbytes
        self.data = -(-self.end // page_size) * page_size
        self.page, self.used = -1, page_size
        self.written = 0
        self.table: list[Array] = []

    def mean(self) -> int:
        """Return the mean bytes of the written samples; 0 before the first."""
        pages = self.page * self.page_size + self.used
        return max(1, pages // self.written) if self.written else 0

    def append(self, places: Index, columns: Sequence[Column]) -> None:
        """Write the fields of some samples, with their records at these positions.

        Raise a DatasetError if a sample is larger than a page.
        """
        stored = [column for column in columns if column.payload is not None]
        if stored:
            for column, pointers in zip(stored, self._write(places, stored).T, strict=True):
                records = column.records
                (records["ptr"] if records.dtype.names else records)[...] = pointers
        for k, column in enumerate(columns):
            self.records[f"f{k}"][places] = column.records
        self.written += len(places)

    def _write(self, places: Index, stored: Sequence[Column]) -> Index:
        """Write each sample into one page; return the pointers of its values."""
        sizes = np.column_stack([column.sizes for column in stored])
        totals = sizes.sum(axis=1)
        ends = np.cumsum(totals)
        pointers = np.empty_like(sizes)
        first, before = 0, 0
        while first < len(sizes):
            room = self.page_size - self.used
            stop = int(np.searchsorted(ends, before + room, side="right"))
            if stop == first:
                if totals[first] > self.page_size:
                    raise DatasetError(
                        "a sample is larger than a page",
                        where=f"sample {self.numbers[places[first]]}",
                        expected=f"at most {self.page_size} bytes",
                        found=f"{int(totals[first])} bytes",
                        hint="Pass a larger page_size.",
                    )
                self.page, self.used = self.page + 1, 0
                continue
            at = self.data + self.page * self.page_size + self.used
            some = sizes[first:stop]
            pointers[first:stop] = at + np.cumsum(some).reshape(some.shape) - some
            write_at(self.file, _interleaved(stored, slice(first, stop)), at)
            self.used += int(ends[stop - 1]) - before
            first, before = stop, int(ends[stop - 1])
        rows = np.empty(sizes.size, structure.ALLOCATION)
        rows["sample"] = np.repeat(places, sizes.shape[1])
        rows["ptr"], rows["size"] = pointers.ravel(), sizes.ravel()
        self.table.append(rows)
        return pointers

    def finish(self) -> None:
        """Write the header, the records, and the allocation table at the end."""
        pages = self.page + 1
        end = self.data + pages * self.page_size if pages else self.end
        values = structure.VERSION, len(self.fields), self.page_size, len(self.records), end
        header = np.array(values, record_dtype(structure.HEADER))
        descriptors = b"".join(field.pack() for field in self.fields)
        write_at(self.file, header.tobytes() + descriptors, 0)
        write_at(self.file, self.records, self.start)
        os.ftruncate(self.file, end)  # the rest of a page reads as zeros
        for rows in self.table:
            write_at(self.file, rows, end)
            end += rows.nbytes


def _interleaved(stored: Sequence[Column], some: slice) -> Any:
    """Return the bytes of samples, sample by sample and field by field."""
    payloads: list[Any] = [column.payload[some] for column in stored]  # type: ignore[index]
    if all(isinstance(payload, np.ndarray) for payload in payloads):
        return payloads[0] if len(payloads) == 1 else np.concatenate(payloads, axis=1)
    return b"".join(memoryview(part) for sample in zip(*payloads, strict=True) for part in sample)
