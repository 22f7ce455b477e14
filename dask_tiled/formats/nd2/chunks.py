"""The chunks of an ND2 file, and the chunk map at its end.

Layout according to public readers, and real files.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.nd2.values import MOST_BYTES, parse_values
from dask_tiled.formats.tools.files import read_exactly
from dask_tiled.model.indexing import Bytes, Index

MAGIC = 0x0ABECEDA
START = MAGIC.to_bytes(4, "little") + struct.pack("<IQ", 32, 64)
SIGNATURE = b"ND2 FILE SIGNATURE CHUNK NAME01!"
MAP, MAP_END = b"ND2 FILEMAP SIGNATURE NAME 0001!", b"ND2 CHUNK MAP SIGNATURE 0000001!"
JPEG_2000 = b"\0\0\0\x0cjP  "
CHUNK: tools.Fields = {"magic": (0, "u4"), "name_length": (4, "u4"), "length": (8, "u8")}
FRAME = b"ImageDataSeq|"
ATTRIBUTES, EXPERIMENT, PICTURE = "ImageAttributesLV!", "ImageMetadataLV!", "ImageMetadataSeqLV|0!"
TREES = {"attributes": ATTRIBUTES, "experiment": EXPERIMENT, "picture": PICTURE}
TREES |= {"text": "ImageTextInfoLV!"}
TIMES = "CustomData|AcqTimesCache!"


class ChunkTable(NamedTuple):
    """The chunks of a file: offsets of named ones; numbers, offsets and lengths of the frames."""

    named: Mapping[str, int]
    numbers: Index
    places: Index
    lengths: Index


def read_map(file: tools.File) -> ChunkTable:
    """Read the chunk map.

    Raise a DatasetError if the file is of another version, and a CorruptFileError or
    TruncatedFileError if the map is damaged or missing.
    """
    head = tools.read_head(file.path, 112)
    version = head[48:54].decode("latin1")
    if not head.startswith(START + SIGNATURE + b"Ver3."):
        old = head.startswith(JPEG_2000) or version.startswith("Ver")
        found = "JPEG 2000" if head.startswith(JPEG_2000) else version if old else head[:8]
        what = "unsupported ND2 version" if old else "not an ND2 file"
        kind = tools.DatasetError if old else tools.CorruptFileError
        raise kind(what, path=file.path, expected="Ver3", found=found)
    end = read_exactly(file.path, 40, max(0, file.size - 40), "the offset of the chunk map")
    if not end.startswith(MAP_END):
        what = "the file does not end with the offset of its chunk map"
        hint = "The file was truncated, or never completed."
        raise tools.TruncatedFileError(what, path=file.path, expected=MAP_END.decode(), hint=hint)
    return _parse_map(file, read_chunk(file, int.from_bytes(end[32:], "little"), MAP))


def _parse_map(file: tools.File, data: bytes) -> ChunkTable:
    """Parse the map: names that end with ``!``, each followed by a uint64 offset and length."""
    content = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero(content == ord("!"))
    following = np.searchsorted(marks, marks + 17).tolist()
    chain, k = [], 0
    while k < len(marks):
        chain.append(k)
        k = following[k]
    last = marks[chain]
    first = np.concatenate([[0], last[:-1] + 17]) if chain else last
    lengths = last + 1 - first
    ends = _equal(content, first, lengths, MAP_END)
    if not len(ends):
        raise tools.CorruptFileError("the chunk map has no end", path=file.path)
    first, last, lengths = first[: ends[0]], last[: ends[0]], lengths[: ends[0]]
    table = content[last[:, None] + np.arange(1, 17)].view("<u8")
    if (table > file.size).any():
        what, found = "the chunk map refers to bytes beyond the file", int(table.max())
        raise tools.TruncatedFileError(what, path=file.path, expected=file.size, found=found)
    named = {}
    for name in (*TREES.values(), TIMES):
        for row in _equal(content, first, lengths, name.encode())[-1:].tolist():
            named[name] = int(table[row, 0])
    numbers = np.full(len(first), -1)
    for digits in range(1, 10):
        rows = np.flatnonzero(lengths == len(FRAME) + digits + 1)
        names = content[first[rows, None] + np.arange(len(FRAME) + digits)]
        values = names[:, len(FRAME) :].astype(np.int64) - ord("0")
        right = (names[:, : len(FRAME)] == np.frombuffer(FRAME, np.uint8)).all(axis=1)
        right &= ((values >= 0) & (values <= 9)).all(axis=1)
        numbers[rows[right]] = (values @ 10 ** np.arange(digits)[::-1])[right]
    rows = np.flatnonzero(numbers >= 0)[::-1]
    numbers, some = np.unique(numbers[rows], return_index=True)  # the last of duplicates counts
    if not len(numbers):
        raise tools.TruncatedFileError("the map has no frames", path=file.path)
    places, sizes = table[rows[some]].astype(np.int64).T
    return ChunkTable(named, numbers, places, sizes)


def _equal(content: Bytes, first: Index, lengths: Index, name: bytes) -> Index:
    """Return the rows whose name equals ``name``."""
    rows = np.flatnonzero(lengths == len(name))
    names = content[first[rows, None] + np.arange(len(name))]
    return rows[(names == np.frombuffer(name, np.uint8)).all(axis=1)]


def read_header(file: tools.File, at: int, name: bytes) -> tuple[int, int]:
    """Check the header of a chunk; return the offset and the length of its data."""
    header = tools.read_fields(file.path, CHUNK, at=at)
    problem = "no chunk begins at its offset in the chunk map"
    tools.check_fields(file.path, header, CHUNK, {"magic": (MAGIC,)}, problem, at=at)
    found = tools.read_head(file.path, len(name), at + 16)
    if found != name:
        where, expected = f"byte {at + 16}", name.decode()
        raise tools.CorruptFileError(
            problem, path=file.path, where=where, expected=expected, found=found
        )
    return at + 16 + header["name_length"], header["length"]


def read_chunk(file: tools.File, at: int, name: bytes) -> bytes:
    """Read the data of a chunk."""
    start, length = read_header(file, at, name)
    return read_exactly(file.path, length, start, f"the chunk {name.decode()}")


def read_tree(file: tools.File, chunks: ChunkTable, name: str) -> dict[str, Any]:
    """Read a tree of metadata; empty if the file has no tree of that name."""
    if name not in chunks.named:
        return {}
    at = chunks.named[name]
    start, length = read_header(file, at, name.encode())
    if length > MOST_BYTES:
        what, expected = "a tree of values is too long", f"{MOST_BYTES} bytes at most"
        raise tools.CorruptFileError(
            what, path=file.path, where=name, expected=expected, found=length
        )
    data = read_exactly(file.path, length, start, f"the chunk {name}")
    try:
        return parse_values(data)
    except ValueError as error:
        what, found = "a tree of values is damaged", str(error)
        raise tools.CorruptFileError(what, path=file.path, where=name, found=found) from error
