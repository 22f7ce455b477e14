"""Sample files as they are written: pages of whole samples, their records, and what lies where.

The layout is that of FFCV's writer with one worker, however many threads make the samples: it
depends on them and on their order alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.formats.beton import structure
from dask_tiled.model.indexing import Array, Index
from dask_tiled.storing.disk import telling_of
from dask_tiled.training.fields import Column, Field


class PageWriter:
    """Writes samples into a file that is open.

    Parameters
    ----------
    path : str
        Where the file will be.
    file : int
        File descriptor of an empty file.
    fields : sequence of Field
    numbers : int64 array
        What the samples are called, in the order of their records.
    page_size : int
        Bytes of a page.
    """

    def __init__(
        self, path: str, file: int, fields: Sequence[Field], numbers: Index, page_size: int
    ) -> None:
        self.path, self.file = path, file
        self.numbers = numbers
        self.fields = fields
        self.page_size = page_size
        record = structure.record_of([field.type_id for field in fields])
        self.records = np.zeros(len(numbers), record)
        self.start = structure.HEADER_BYTES + structure.FIELD_BYTES * len(fields)
        end = self.start + self.records.nbytes
        self.data = -(-end // page_size) * page_size
        self.page, self.used = -1, page_size
        self.written = 0
        self.table: list[Array] = []

    def mean(self) -> int:
        """Return the mean bytes of the samples that are written; 0 before the first."""
        pages = self.page * self.page_size + self.used
        return max(1, pages // self.written) if self.written else 0

    def append(self, places: Index, columns: Sequence[Column]) -> None:
        """Write some samples.

        Parameters
        ----------
        places : int64 array
            Where their records go.
        columns : sequence of Column
            Their fields.

        Raises
        ------
        DatasetError
            A sample is larger than a page.
        """
        stored = [column for column in columns if column.payload is not None]
        sizes = np.column_stack([column.sizes for column in stored]) if stored else None
        pointers = self._allocate(places, sizes, stored) if sizes is not None else None
        known = 0
        for k, column in enumerate(columns):
            records = column.records
            if pointers is not None and column.payload is not None:
                here = records["ptr"] if records.dtype.names else records
                here[...] = pointers[:, known]
                known += 1
            self.records[f"f{k}"][places] = records
        self.written += len(places)

    def _allocate(self, places: Index, sizes: Index, stored: Sequence[Column]) -> Index:
        """Find room for samples, and write them: each of them into one page."""
        totals = sizes.sum(axis=1)
        ends = np.cumsum(totals)
        pointers = np.empty_like(sizes)
        first, count = 0, len(sizes)
        while first < count:
            before = int(ends[first - 1]) if first else 0
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
            self._write(_interleaved(stored, slice(first, stop)), at)
            self.used += int(ends[stop - 1]) - before
            first = stop
        rows = np.empty(sizes.size, structure.ALLOCATION)
        rows["sample"] = np.repeat(places, sizes.shape[1])
        rows["ptr"], rows["size"] = pointers.ravel(), sizes.ravel()
        self.table.append(rows)
        return pointers

    def finish(self) -> None:
        """Write the header, the records, and the allocation table at the end."""
        pages = self.page + 1
        end = self.data + pages * self.page_size if pages else self.start + self.records.nbytes
        header = np.zeros((), [(name, f"<{kind}") for name, (_, kind) in structure.HEADER.items()])
        header[()] = (
            structure.VERSION,
            len(self.fields),
            self.page_size,
            len(self.records),
            end,
        )
        descriptors = b"".join(field.descriptor for field in self.fields)
        self._write(header.tobytes() + descriptors, 0)
        self._write(self.records.view(np.uint8), self.start)
        with telling_of(self.path):
            os.ftruncate(self.file, end)  # what fills up a page reads as zeros
        at = end
        for rows in self.table:
            self._write(rows.view(np.uint8), at)
            at += rows.nbytes

    def _write(self, data: Any, at: int) -> None:
        """Write all bytes of what is contiguous at a place of the file."""
        flat: Any = data.reshape(-1) if isinstance(data, np.ndarray) else data
        view = memoryview(flat).cast("B")
        with telling_of(self.path):
            while len(view):
                done = os.pwrite(self.file, view, at)
                view, at = view[done:], at + done


def _interleaved(stored: Sequence[Column], some: slice) -> Any:
    """Return the bytes of samples, sample by sample, field by field."""
    payloads: list[Any] = [column.payload[some] for column in stored]  # type: ignore[index]
    if len(payloads) == 1 and isinstance(payloads[0], np.ndarray):
        return payloads[0]
    if all(isinstance(payload, np.ndarray) for payload in payloads):
        return np.concatenate(payloads, axis=1)
    return b"".join(memoryview(part) for sample in zip(*payloads, strict=True) for part in sample)
