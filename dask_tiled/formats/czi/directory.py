"""The segments of a CZI file, and the directory of its tiles.

Layout according to public readers, and real files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.model.indexing import Bytes, Index

FILE, DIRECTORY, METADATA, TILE = (
    f"ZISRAW{name}" for name in ("FILE", "DIRECTORY", "METADATA", "SUBBLOCK")
)
"""Names of segments."""
SEGMENT: tools.Fields = {"id": (0, "S16"), "allocated": (16, "i8"), "used": (24, "i8")}
SEGMENT_BYTES = tools.size_of(SEGMENT)
COUNT: tools.Fields = {**SEGMENT, "count": (32, "i4")}
ENTRIES = 160
"""Offset of the entries in the directory segment."""
ENTRY: tools.Fields = {
    "pixel_type": (2, "i4"), "position": (6, "i8"), "part": (14, "i4"), "compression": (18, "i4"),
    "ndim": (28, "i4"),
}  # fmt: skip
ENTRY_BYTES, NDIM, SCHEMA = tools.size_of(ENTRY), ENTRY["ndim"][0], b"DV"
DIMENSION = np.dtype(
    [("name", "<u4"), ("start", "<i4"), ("size", "<i4"), ("coordinate", "<f4"), ("stored", "<i4")]
)
"""A dimension; an entry ends with ``ndim`` of them. Names have up to four letters."""
MOST_DIMENSIONS = 40
SIZED = "YX"
"""Dimensions along which a tile may have several pixels."""


class Tiles(NamedTuple):
    """Tiles, column by column: their starts along all dimensions, and their sizes.

    Dimensions that no tile has are left out; a tile that lacks a dimension starts at 0.
    """

    pixel_type: Index
    position: Index
    part: Index
    compression: Index
    ndim: Index
    start: Mapping[str, Index]
    size: Mapping[str, Index]
    stored: Mapping[str, Index]

    def some(self, which: Any) -> Tiles:
        """Select tiles by number or by mask."""
        if which.dtype == np.bool_ and which.all():
            return self
        numbers = (column[which] for column in self[:5])
        return Tiles(*numbers, *({k: c[which] for k, c in one.items()} for one in self[5:]))

    @property
    def ratio(self) -> Index:
        """Pixels of full resolution per stored pixel, along an axis; at least 1."""
        longest = np.maximum(self.size["X"], self.size["Y"])
        stored = np.where(longest == self.size["X"], self.stored["X"], self.stored["Y"])
        return np.maximum(1, np.rint(longest / np.maximum(stored, 1))).astype(np.int64)


def read_segment(file: tools.File, at: int, name: str, fields: tools.Fields) -> dict[str, Any]:
    """Read the header of a segment, and check its name."""
    if at < 0 or (at == 0 and name != FILE):
        what, hint = f"the file has no segment {name}", "The file was never completed."
        raise tools.CorruptFileError(what, path=file.path, found=f"byte {at}", hint=hint)
    values = tools.read_fields(file.path, fields, at=at)
    if values["id"] != name:
        what, where, found = "unexpected segment", f"byte {at}", values["id"]
        raise tools.CorruptFileError(what, path=file.path, where=where, expected=name, found=found)
    return values


def read_directory(file: tools.File, at: int) -> Tiles:
    """Read the directory entries of all tiles.

    Raise a DatasetError, CorruptFileError or TruncatedFileError if an entry is of an unsupported
    schema, invalid, or missing.
    """
    head = read_segment(file, at, DIRECTORY, COUNT)
    count, used = head["count"], head["used"] or head["allocated"]
    room = max(0, min(file.size - at - ENTRIES, used - (ENTRIES - SEGMENT_BYTES)))
    if not 0 < count <= room // ENTRY_BYTES:
        what, expected = "invalid number of tiles", f"1 to {room // ENTRY_BYTES}"
        where = f"byte {at + 32}"
        raise tools.CorruptFileError(
            what, path=file.path, where=where, expected=expected, found=count
        )
    data = np.frombuffer(file.read(room, at + ENTRIES), np.uint8)
    groups = _in_one_table(data, count) or _one_by_one(file, data, count, at + ENTRIES)
    parts = [_columns(file, at, table) for table in groups]
    letters = dict.fromkeys(letter for part in parts for letter in part.start)
    if not {*SIZED} <= {*letters}:
        what, found = "the tiles have no position", ", ".join(letters)
        raise tools.CorruptFileError(what, path=file.path, expected="X and Y", found=found)

    if len(parts) == 1:
        return parts[0]

    def joined(key: str, letter: str) -> Index:
        none = (np.full(len(part.position), int(key != "start")) for part in parts)
        found = zip(parts, none, strict=True)
        return np.concatenate([getattr(part, key).get(letter, one) for part, one in found])

    numbers = {key: np.concatenate([getattr(part, key) for part in parts]) for key in ENTRY}
    start = {letter: joined("start", letter) for letter in letters}
    size, stored = ({n: joined(key, n) for n in SIZED} for key in ("size", "stored"))
    return Tiles(**numbers, start=start, size=size, stored=stored)


def _in_one_table(data: Bytes, count: int) -> list[Bytes]:
    """Return all entries as one table if their number of dimensions is equal, else no table."""
    ndim = int(data[NDIM : NDIM + 4].view("<u4")[0])
    step = ENTRY_BYTES + ndim * DIMENSION.itemsize
    if ndim > MOST_DIMENSIONS or step * count > len(data):
        return []
    table = data[: step * count].reshape(count, step)
    same = (table[:, NDIM : NDIM + 4] == table[0, NDIM : NDIM + 4]).all()
    return [table] if same else []


def _one_by_one(file: tools.File, data: Bytes, count: int, at: int) -> list[Bytes]:
    """Parse entry by entry; return a table for each number of dimensions."""
    raw, places, place = data.tobytes(), dict[int, list[int]](), 0
    for _ in range(count):
        ndim = int.from_bytes(raw[place + NDIM : place + NDIM + 4], "little")
        places.setdefault(ndim, []).append(place)
        after = place + ENTRY_BYTES + DIMENSION.itemsize * ndim
        if ndim > MOST_DIMENSIONS or after > len(raw):
            what, where = "invalid directory entry", f"byte {at + place}"
            expected = f"at most {MOST_DIMENSIONS} dimensions, before the end of the file"
            raise tools.CorruptFileError(
                what, path=file.path, where=where, expected=expected, found=ndim
            )
        place = after
    sizes = {ndim: np.arange(ENTRY_BYTES + DIMENSION.itemsize * ndim) for ndim in places}
    return [data[np.array(some)[:, None] + sizes[ndim]] for ndim, some in places.items()]


def _columns(file: tools.File, at: int, table: Bytes) -> Tiles:
    """Split a table of entries into columns."""
    if (table[:, :2] != np.frombuffer(SCHEMA, np.uint8)).any():
        what, where = "unsupported directory entry", f"the directory at byte {at}"
        schemas = {bytes(one).decode("latin1") for one in np.unique(table[:, :2], axis=0)}
        told = repr(", ".join(sorted(schemas)[:5]))
        raise tools.DatasetError(
            what, path=file.path, where=where, expected=SCHEMA.decode(), found=told
        )
    head = np.ascontiguousarray(table[:, :ENTRY_BYTES]).view(tools.record_dtype(ENTRY))[:, 0]
    inner = np.ascontiguousarray(table[:, ENTRY_BYTES:]).view(DIMENSION)
    found: tuple[dict[str, Index], ...] = ({}, {}, {})
    for column in inner.T:
        names = column["name"]
        codes = names[:1] if (names == names[0]).all() else np.unique(names)
        for code in codes.tolist():
            letter = code.to_bytes(4, "little").rstrip(b"\0").decode("latin1")
            rows = names == code if len(codes) > 1 else slice(None)
            if letter not in SIZED and (column["size"][rows] > 1).any():
                what, where = "tiles of several frames are not supported", f"dimension {letter}"
                raise tools.DatasetError(what, path=file.path, where=where)
            start, size, stored = (column[name][rows] for name in ("start", "size", "stored"))
            numbers = start, size, np.where(stored == 0, size, stored)
            for one, values in zip(found[: 1 + 2 * (letter in SIZED)], numbers, strict=False):
                if letter not in one:
                    one[letter] = np.full(len(table), int(one is not found[0]))
                one[letter][rows] = values
    fields = {name: head[name].astype(np.int64) for name in ENTRY}
    return Tiles(**fields, start=found[0], size=found[1], stored=found[2])
