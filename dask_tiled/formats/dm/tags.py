"""The tag tree of Gatan's files: DM3, DM4, and the .gtg files of K2 cameras.

A file is a header and a group. A group is a list of entries, each with a label and either a group
or a value. Sizes and types are big-endian, values mostly little-endian. Version 4 has 8-byte sizes
where version 3 has 4-byte ones, and stores the size of each entry.

Source: C. Boothroyd, "Digital Micrograph file format", and files written by GMS.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.files.file import opened
from dask_tiled.files.paths import file_size
from dask_tiled.formats.tools.header import Fields, parse_fields, size_of

HEADERS: dict[int, Fields] = {
    3: {"version": (0, "u4"), "length": (4, "u4"), "little_endian": (8, "u4")},
    4: {"version": (0, "u4"), "length": (4, "u8"), "little_endian": (12, "u4")},
}
GROUP, DATA, MARK = 20, 21, b"%%%%"
STRUCT, STRING, ARRAY = 15, 18, 20
SIMPLE = dict(zip(range(2, 13), "hiHIfd?bBqQ", strict=True))
"""Type codes of numbers, with their characters in struct and NumPy."""
MAX_BYTES = 1024
"""Larger arrays are not read."""
MAX_DEPTH, MAX_TAGS, MAX_INFO = 64, 1_000_000, 1024


class TagArray(NamedTuple):
    """Location of an array that is not read; the dtype of records is ``"<f,<f"``."""

    offset: int
    dtype: str
    length: int
    nbytes: int


class _TagBytes:
    """Sequential bytes of a file, which raises at the end of the file."""

    def __init__(self, path: str, stream: BinaryIO) -> None:
        self.path = path
        self.size = file_size(path)
        self.at = 0
        self._stream = stream

    def take(self, count: int) -> bytes:
        content = self._stream.read(count)
        if len(content) < count:
            raise self.short(count)
        self.at += count
        return content

    def skip(self, count: int) -> None:
        if self.at + count > self.size:
            raise self.short(count)
        self.at += count
        self._stream.seek(self.at)

    def short(self, count: int) -> DatasetError:
        more, left = f"{count} more bytes", f"{self.size - self.at} bytes"
        return self.error("the file ends inside a tag", more, left, TruncatedFileError)

    def error(
        self, problem: str, expected: Any, found: Any, kind: type[DatasetError] = CorruptFileError
    ) -> DatasetError:
        where = f"byte {self.at}"
        return kind(problem, path=self.path, where=where, expected=expected, found=found)


def read_tags(path: str | os.PathLike[str], until: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read the tags of a file up to the end of a group, as dicts by label or number.

    Arrays of 16-bit numbers are text; arrays over 1 KiB, or labelled "Data", become an
    :class:`TagArray`.
    """
    name = os.fspath(path)
    with opened(name) as stream:
        header = parse_header(name, stream.read(16))
        content = _TagBytes(name, stream)
        content.skip(size_of(HEADERS[header["version"]]))
        return _read_tree(content, header, until)


def group(tags: Any, *labels: str) -> dict[str, Any]:
    """Return the group at the end of labels; empty if there is none."""
    for label in labels:
        tags = tags.get(label) if isinstance(tags, dict) else None
    return tags if isinstance(tags, dict) else {}


def parse_header(path: str, head: bytes) -> dict[str, int]:
    """Parse the header."""
    fields = HEADERS.get(int.from_bytes(head[:4], "big"))
    header = parse_fields(head, fields, ">") if fields and len(head) >= size_of(fields) else {}
    if header.get("little_endian") not in (0, 1):
        expected = "version 3 or 4, the length, and byte order 0 or 1"
        raise CorruptFileError(
            "not a file of tags", path=path, where="byte 0", expected=expected, found=head[:16]
        )
    return header


def _read_tree(
    content: _TagBytes, header: dict[str, int], until: tuple[str, ...]
) -> dict[str, Any]:
    wide = header["version"] == 4
    order = "<" if header["little_endian"] else ">"
    entry = struct.Struct(">BH")
    # Group headers: sorted, open, number of entries. Data headers: mark, number of info words. In
    # version 4 a size comes first, except in the outermost group.
    outermost = struct.Struct(">2sQ" if wide else ">2sI")
    forms = (">8x2sQ", ">8x4sQ") if wide else (">2sI", ">4sI")
    heads = dict(zip((GROUP, DATA), map(struct.Struct, forms), strict=True))
    word, code = (8, "Q") if wide else (4, "I")
    root: dict[str, Any] = {}
    _, count = outermost.unpack(content.take(outermost.size))
    # For each open group: its dict, its remaining entries, and the labels that lead to it.
    stack: list[tuple[dict[str, Any], Iterator[int], tuple[str, ...]]]
    stack = [(root, iter(range(count)), ())]
    tags = 0
    while stack:
        holder, entries, labels = stack[-1]
        for number in entries:
            kind, length = entry.unpack(content.take(3))
            tags += 1
            if kind not in heads or tags > MAX_TAGS:
                expected = f"{GROUP} or {DATA}, at most {MAX_TAGS} times"
                raise content.error("not a tag", expected, (kind, tags))
            raw = content.take(length + heads[kind].size)
            label = _text(raw[:length]) if length else str(number)
            mark, count = heads[kind].unpack_from(raw, length)
            if kind == GROUP:
                if len(stack) >= MAX_DEPTH:
                    raise content.error(
                        "groups are nested too deeply", f"at most {MAX_DEPTH}", "more"
                    )
                inner: dict[str, Any] = {}
                holder[label] = inner
                stack.append((inner, iter(range(count)), (*labels, label)))
                break
            if mark != MARK or not 1 <= count <= MAX_INFO:
                raise content.error("not a value", (MARK, f"1 to {MAX_INFO}"), (mark, count))
            info = struct.unpack(f">{count}{code}", content.take(count * word))
            holder[label] = _read_value(content, info, order, stays=label == "Data")
        else:
            stack.pop()
            if until and labels == until:
                break
    return root


def _read_value(content: _TagBytes, info: tuple[int, ...], order: str, *, stays: bool) -> Any:
    """Read a value of the type that its info words describe."""
    kind = info[0]
    codes, count = _type_of(info)
    form = _form(codes, order)
    if form is None:
        raise content.error("unknown value type", "numbers, records, arrays", info[:8])
    if kind == STRUCT:
        return form.unpack(content.take(form.size))
    if kind in SIMPLE:
        return form.unpack(content.take(form.size))[0]
    nbytes = count * form.size
    if stays or nbytes > MAX_BYTES:
        at = content.at
        content.skip(nbytes)
        return TagArray(at, ",".join(order + SIMPLE[c] for c in codes), count, nbytes)
    data = content.take(nbytes)
    if kind == STRING:
        return _text(data)
    if codes == (4,):
        return data.decode("utf-16-le" if order == "<" else "utf-16-be", "replace").rstrip("\0")
    values = tuple(form.iter_unpack(data))
    return tuple(value for (value,) in values) if len(codes) == 1 else values


def _type_of(info: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the type codes of an element, empty if unknown, and the number of elements."""
    kind, n = info[0], len(info)
    if n == 1:
        return info, 1
    if kind == STRUCT and n > 2 and n == 3 + 2 * info[2]:
        return info[4::2], 1
    if kind == STRING and n == 2:
        return (10,), info[1]
    if kind == ARRAY and n == 3:
        return info[1:2], info[2]
    if kind == ARRAY and n > 4 and info[1] == STRUCT and n == 5 + 2 * info[3]:
        return info[5:-1:2], info[-1]
    return (), 0


@lru_cache(maxsize=256)
def _form(codes: tuple[int, ...], order: str) -> struct.Struct | None:
    known = bool(codes) and all(code in SIMPLE for code in codes)
    return struct.Struct(order + "".join(SIMPLE[code] for code in codes)) if known else None


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf8")
    except UnicodeDecodeError:
        return raw.decode("latin1")
