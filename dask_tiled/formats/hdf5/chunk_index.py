"""The chunks of a dataset, their index and filters, which h5py does not report.

Layout facts: the HDF5 File Format Specification, version 3.0, "Data Object Headers" and "The Data
Layout Message"; the reference manual of the HDF5 library (H5Dchunk_iter).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.files.file import File
from dask_tiled.formats.hdf5.library import chunks_of, shape_of
from dask_tiled.model.indexing import Index

USER_BLOCKS = (1, 14, 4)
"""From this version on, the library counts chunk offsets from the start of the file."""
EXTENSIBLE_ARRAY = 4
"""Index type of datasets with one unlimited axis."""
CHUNKED, UNFILTERED_EDGES = 2, 1
"""The layout class, and the flag for unfiltered edge chunks."""
LAYOUT, CONTINUATION = 8, 16
"""Types of header messages."""
MOST_BYTES, MOST_BLOCKS = 1 << 20, 100
"""Limits of an object header: block length, and number of blocks."""


class ChunkIndex(NamedTuple):
    """The written chunks of a dataset, in C order."""

    where: Index
    """First pixel of each chunk; shape (chunks, axes)."""
    masks: Index
    """Filters that were skipped for each chunk, as bits."""
    offsets: Index
    sizes: Index
    placed: bool = True
    """Whether ``where`` is known."""


def list_chunks(dataset: Any, file: File, n_filters: int) -> ChunkIndex:
    """List the chunks of a dataset.

    Raise a DatasetError or CorruptFileError if the index is unknown or invalid.
    """
    index_type, unfiltered_edges = _layout(dataset, file, filtered=n_filters > 0)
    columns = _listed(dataset)
    if len(columns) and index_type == EXTENSIBLE_ARRAY and _unlimited_axis(dataset) > 0:
        # The library reports wrong positions for such an index.
        return ChunkIndex(columns[:, :-3], *columns[:, -3:].T)._replace(placed=False)
    shape, chunk = shape_of(dataset), chunks_of(dataset)
    grid = tuple(-(-n // size) for n, size in zip(shape, chunk, strict=True))
    if dataset.maxshape[0] is None:  # a writer adds chunks, and then makes the dataset longer
        columns = columns[columns[:, 0] < shape[0]]
    where = columns[:, :-3]
    places = np.ravel_multi_index(tuple((where // chunk).T), grid, mode="clip")
    order = np.argsort(places, kind="stable")
    astray = (where % chunk).any() or ((where < 0) | (where >= shape)).any()
    if astray or (np.diff(places[order]) == 0).any():
        raise CorruptFileError(
            "the chunk index is invalid",
            path=dataset.file.filename,
            where=dataset.name,
            expected=f"chunks of {dataset.chunks}" if astray else "each chunk once",
            found="other chunks" if astray else "a chunk twice",
        )
    found = ChunkIndex(where[order], *columns[order, -3:].T)
    if unfiltered_edges:
        found.masks[(found.where + chunk > shape).any(axis=1)] = (1 << n_filters) - 1
    return found


def _listed(dataset: Any) -> Index:
    """List positions, filter masks, offsets and sizes, as the library reports them."""
    from h5py import version

    if version.hdf5_version_tuple < USER_BLOCKS and dataset.file.userblock_size:
        raise DatasetError(
            "this HDF5 library reports wrong offsets after a user block",
            path=dataset.file.filename,
            expected="version 1.14.4 or later",
            found=version.hdf5_version,
            hint='Run: pip install "h5py>=3.12"',
        )
    count = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
    inner = (0,) * len(dataset.dtype.shape)
    numbers, width = array("q"), dataset.ndim + len(inner) + 3

    def note(chunk: Any) -> bool | None:
        where = *chunk.chunk_offset, *inner
        numbers.extend((*where, chunk.filter_mask, chunk.byte_offset, chunk.size))
        return len(numbers) > width * count or None  # stops a cyclic index

    dataset.id.chunk_iter(note)
    return np.array(numbers).reshape(-1, width)


def _unlimited_axis(dataset: Any) -> int:
    """Return the only unlimited axis of a dataset; -1 if there is none, or several."""
    axes = [axis for axis, most in enumerate(dataset.maxshape) if most is None]
    return axes[0] if len(axes) == 1 else -1


def _layout(dataset: Any, file: File, *, filtered: bool) -> tuple[int, bool]:
    """Return the index type, and whether edge chunks are unfiltered.

    Both are 0 if they do not matter.
    """
    edges = filtered and any(n % c for n, c in zip(dataset.shape, dataset.chunks, strict=True))
    if not edges and _unlimited_axis(dataset) < 1:
        return 0, False
    messages = header_messages(dataset, file.read)
    data = next((data for kind, _, data in messages if kind == LAYOUT), b"")
    if data[:1] in {b"\x01", b"\x02", b"\x03"}:  # B-tree
        return 0, False
    if data[:1] in {b"\x04", b"\x05"} and len(data) > 4:
        _, layout, flags, ndim, width = data[:5]
        index = data[5 + ndim * width :]
        if layout == CHUNKED and index:
            return index[0], bool(flags & UNFILTERED_EDGES)
    raise DatasetError(
        "the chunk layout is unknown",
        path=dataset.file.filename,
        where=dataset.name,
        expected="a data layout message of version 5 or earlier",
        hint="If the file is being written, flush it first.",
    )


def header_messages(
    dataset: Any, read: Callable[[int, int], bytes]
) -> Iterator[tuple[int, int, bytes]]:
    """Yield type, address and bytes of the messages in an object header.

    ``read`` returns a number of bytes of the file at an address.
    """
    from h5py import h5o

    properties, info = dataset.file.id.get_create_plist(), h5o.get_info(dataset.id)
    base, (width, length) = properties.get_userblock(), properties.get_sizes()
    token = info.addr.to_bytes(8, "little") if hasattr(info, "addr") else bytes(info.token)
    at = base + _int(token[:width])
    head = read(64, at)
    if head[:5] == b"OHDR\x02":
        flags = head[5]
        start = 6 + 16 * (flags >> 5 & 1) + 4 * (flags >> 4 & 1)
        first = start + (1 << (flags & 3))
        blocks = [(at + first, _int(head[start:first]))]
        around, prefix, type_size = 4, 4 + 2 * (flags >> 2 & 1), 1
    elif head[:1] == b"\x01":
        blocks = [(at + 16, _int(head[8:12]))]
        around, prefix, type_size = 0, 8, 2
    else:
        return
    for start, size in blocks:  # the list grows during iteration
        data, here = read(min(size, MOST_BYTES), start), 0
        while here + prefix <= len(data):
            kind = _int(data[here : here + type_size])
            stop = here + prefix + _int(data[here + type_size : here + type_size + 2])
            place, message, here = start + here + prefix, data[here + prefix : stop], stop
            if kind == CONTINUATION and len(blocks) < MOST_BLOCKS:
                to, nbytes = _int(message[:width]), _int(message[width : width + length])
                blocks.append((base + to + around, max(0, nbytes - 2 * around)))
            yield kind, place, message


def _int(data: bytes) -> int:
    return int.from_bytes(data, "little")
