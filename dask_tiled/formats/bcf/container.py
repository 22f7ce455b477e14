"""The container of Bruker's composite files: entries in chunks, which may be packed by zlib.

Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.files import read_exactly
from dask_tiled.model.indexing import Bytes, Index

MAGIC = b"AAMVHFSS"
FIRST, HEADER = 0x118, 32
"""Offset of the first chunk, and bytes before the content of each."""
CONTAINER: tools.Fields = {
    "magic": (0, "S8"), "version": (0x124, "f4"), "chunk": (0x128, "u4"), "tree": (0x140, "u4"),
    "entries": (0x144, "u4"), "chunks": (0x148, "u4"),
}  # fmt: skip
ENTRY: tools.Fields = {"table": (0, "i4"), "length": (4, "u8"), "name": (0xE0, "S256")}
ENTRY_BYTES, MOST_ENTRIES, MOST_CHUNK = 512, 1 << 16, 1 << 24
PACKED = b"AACS"
PACKED_HEADER, BLOCK_HEADER, MOST_BLOCK = 0x80, 16, 1 << 26


class Entry(NamedTuple):
    """The content of an entry, in consecutive chunks.

    Attributes
    ----------
    file : File
    chunk : int
        Bytes of a chunk, with its header.
    start : int
        Offset in the file of the first chunk.
    length : int
        Bytes of the content.
    """

    file: tools.File
    chunk: int
    start: int
    length: int

    def place(self, at: int) -> int:
        """Return the offset in the file of a byte of the content."""
        number, inside = divmod(at, self.chunk - HEADER)
        return self.start + number * self.chunk + HEADER + inside

    def read(self, start: int, stop: int, within: str) -> Bytes:
        """Read a part of the content."""
        if start >= min(stop, self.length):
            return np.empty(0, np.uint8)
        first, last = self.place(start), self.place(min(stop, self.length) - 1) + 1
        data = read_exactly(self.file.path, last - first, first, within)
        return unframed(np.frombuffer(data, np.uint8), first, self.chunk)


def unframed(data: Bytes, offset: int, chunk: int) -> Bytes:
    """Return the content in bytes of a file that begin in the content of a chunk."""
    first = chunk - (offset - FIRST) % chunk
    if len(data) <= first:
        return data
    rest = data[first:]
    whole = len(rest) // chunk * chunk
    inner = rest[:whole].reshape(-1, chunk)[:, HEADER:].reshape(-1)
    return np.concatenate([data[:first], inner, rest[whole:][HEADER:]])


def read_entry(file: tools.File, name: str) -> Entry:
    """Find an entry by its name.

    Raises
    ------
    DatasetError
        There is no such entry, or its chunks are scattered.
    CorruptFileError, TruncatedFileError
        The container is damaged, or ends early.
    """
    header = tools.read_fields(file.path, CONTAINER)
    allowed = {"chunk": range(ENTRY_BYTES, MOST_CHUNK), "entries": range(1, MOST_ENTRIES)}
    tools.check_fields(file.path, header, CONTAINER, allowed, "invalid container")
    chunk = header["chunk"]
    tree = b"".join(
        _chain(file, chunk, header["tree"], header["entries"] * ENTRY_BYTES, "the tree")
    )
    for at in range(0, header["entries"] * ENTRY_BYTES, ENTRY_BYTES):
        entry = tools.parse_fields(tree[at : at + ENTRY_BYTES], ENTRY)
        if entry["name"] == name:
            break
    else:
        what, expected = "the file has no such entry", name
        raise tools.DatasetError(what, path=file.path, expected=expected, found="other entries")
    count = -(-entry["length"] // (chunk - HEADER))
    if not 0 < count <= file.size // chunk:
        what = "the entry is longer than the file"
        raise tools.TruncatedFileError(what, path=file.path, where=name, found=entry["length"])
    table = b"".join(_chain(file, chunk, entry["table"], 4 * count, f"the chunks of {name}"))
    numbers = np.frombuffer(table, "<u4", count).astype(np.int64)
    if (np.diff(numbers) != 1).any():
        what, found = "scattered chunks are not supported", f"after {numbers[0]}"
        raise tools.DatasetError(what, path=file.path, where=name, found=found)
    return Entry(file, chunk, FIRST + int(numbers[0]) * chunk, entry["length"])


def _chain(file: tools.File, chunk: int, number: int, nbytes: int, within: str) -> Iterator[bytes]:
    """Read chunks that each name the next one."""
    for _ in range(-(-nbytes // (chunk - HEADER))):
        at = FIRST + number * chunk
        if number < 0:
            problem = "a chunk leads nowhere"
            raise tools.CorruptFileError(problem, path=file.path, where=within, found=number)
        data = read_exactly(file.path, chunk, at, within)
        (number,) = struct.unpack_from("<i", data)
        yield data[HEADER:]


def packed_blocks(entry: Entry) -> tuple[int, Index] | None:
    """Return the unpacked bytes of a block, and the positions of blocks; None if not packed.

    The end of the last block is the last of the positions.
    """
    header = entry.read(0, PACKED_HEADER, "an entry").tobytes()
    if not header.startswith(PACKED) or len(header) < PACKED_HEADER:
        return None
    size, _, count = struct.unpack_from("<III", header, 4)
    places = [PACKED_HEADER]
    for _ in range(min(count, entry.length // BLOCK_HEADER)):
        told = entry.read(places[-1], places[-1] + 4, "a packed block").tobytes()
        places.append(places[-1] + BLOCK_HEADER + int.from_bytes(told, "little"))
    if not 0 < size <= MOST_BLOCK or places[-1] > entry.length or len(places) != count + 1:
        what, found = "the packed blocks do not fit", f"{count} of {size} bytes"
        raise tools.TruncatedFileError(what, path=entry.file.path, found=found)
    return size, np.array(places)


def unpacked(data: Bytes, size: int, refuse: Callable[[str], None]) -> Bytes:
    """Unpack blocks that follow one another; all but the last have ``size`` bytes."""
    parts, at = [], 0
    while at + BLOCK_HEADER <= len(data):
        end = at + BLOCK_HEADER + int.from_bytes(data[at : at + 4].tobytes(), "little")
        try:
            part = zlib.decompressobj().decompress(data[at + BLOCK_HEADER : end].data, size)
        except zlib.error as error:
            refuse(str(error))
        if end < len(data) and len(part) != size:
            refuse(f"a block of {len(part)} bytes")
        parts.append(np.frombuffer(part, np.uint8))
        at = end
    return np.concatenate(parts) if parts else data
