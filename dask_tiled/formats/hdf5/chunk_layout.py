"""How a dataset indexes and filters its chunks, which h5py does not report.

Layout facts: the HDF5 File Format Specification, version 3.0, "Data Object Headers" and "The Data
Layout Message".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dask_tiled.model.files import File

EXTENSIBLE_ARRAY = 4
"""The index type of datasets with one unlimited axis."""
CHUNKED, UNFILTERED_EDGES = 2, 1
"""The layout class, and the flag of its chunks."""
LAYOUT, CONTINUATION = 8, 16
"""Types of header messages."""
MOST_BYTES, MOST_BLOCKS = 1 << 20, 100
"""Limits of an object header: the length of its blocks, and their number."""


class ChunkLayout(NamedTuple):
    """What the data layout message says of the chunks of a dataset."""

    index_type: int
    """Type of the index; 0 is the B-tree of messages before version 4."""
    unfiltered_edges: bool
    """Whether the chunks that cross an edge of the dataset are stored without filters."""


def chunk_layout(dataset: Any, file: File) -> ChunkLayout | None:
    """Read the data layout message of a chunked dataset; None if it is not found in the file."""
    data = next((data for kind, data in _messages(dataset, file) if kind == LAYOUT), b"")
    if data[:1] in {b"\x01", b"\x02", b"\x03"}:
        return ChunkLayout(0, unfiltered_edges=False)
    if data[:1] not in {b"\x04", b"\x05"} or len(data) < 5:
        return None
    _, layout, flags, ndim, width = data[:5]
    index = data[5 + ndim * width :]
    if layout != CHUNKED or not index:
        return None
    return ChunkLayout(index[0], unfiltered_edges=bool(flags & UNFILTERED_EDGES))


def _messages(dataset: Any, file: File) -> Iterator[tuple[int, bytes]]:
    """List the types and bytes of the messages in the header of an object."""
    from h5py import h5o

    properties, info = dataset.file.id.get_create_plist(), h5o.get_info(dataset.id)
    base, (width, length) = properties.get_userblock(), properties.get_sizes()
    token = info.addr.to_bytes(8, "little") if hasattr(info, "addr") else bytes(info.token)
    at = base + _int(token[:width])
    head = file.read(64, at)
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
    for start, size in blocks:  # grows while it is gone through
        data, here = file.read(min(size, MOST_BYTES), start), 0
        while here + prefix <= len(data):
            kind = _int(data[here : here + type_size])
            stop = here + prefix + _int(data[here + type_size : here + type_size + 2])
            message, here = data[here + prefix : stop], stop
            if kind == CONTINUATION and len(blocks) < MOST_BLOCKS:
                to, nbytes = _int(message[:width]), _int(message[width : width + length])
                blocks.append((base + to + around, max(0, nbytes - 2 * around)))
            yield kind, message


def _int(data: bytes) -> int:
    return int.from_bytes(data, "little")
