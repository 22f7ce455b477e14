"""Volumes with a text header: pixels behind it, or in files that it names."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dask_tiled.errors import CorruptFileError, TruncatedFileError, printable
from dask_tiled.formats.tools.compression import check_ratio, unpacker
from dask_tiled.formats.tools.series import beside, named_file
from dask_tiled.formats.tools.volumes import check_bytes, check_shape, strides_of
from dask_tiled.model.decoders import plain
from dask_tiled.model.description import Axis, Description
from dask_tiled.model.files import File, read_head
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece

MOST_HEADER = 1 << 20
MOST_FILES = 1 << 17
LIST = re.compile(r"LIST(\s+\d+D?)?", re.IGNORECASE)
MOST_NAME = 4096
PATTERN = re.compile(r"((?:[^%]|%%)*)%(0?\d?\d?)d((?:[^%]|%%)*?)((?:\s+-?\d{1,9}){3})(?:\s+\d+)?")
"""As ``printf`` has it, then the first number, the last one, and the step."""


def read_text(path: str, end: bytes) -> tuple[str, int]:
    """Read a text header up to what ends it, a regular expression, and give the byte after that."""
    head = read_head(path, MOST_HEADER)
    match = re.search(end, head)
    stop = match.end() if match else len(head)
    return head[:stop].decode("utf8", "surrogateescape"), stop


def pixel_files(
    header: File, key: str, text: str, end: int, *, outside: bool
) -> list[tuple[File, int]]:
    """Find where the pixels of a header begin: files, and a byte of each.

    Parameters
    ----------
    header : File
    key : str
        What the files are named behind, for errors.
    text : str
        What stands there: a name; a pattern with numbers; ``LIST``, with a name in each line that
        follows; ``LOCAL`` or nothing for the file of the header itself.
    end : int
        The byte of the header after that.
    outside : bool
        Whether they may lie outside of the folder of the header.

    Raises
    ------
    CorruptFileError
        They are too many, or none.
    DatasetError
        One of them lies outside of the folder.
    TruncatedFileError
        One of them is missing.
    """
    names, pattern = [text], PATTERN.fullmatch(text[:MOST_NAME])
    if text.upper() in {"", "LOCAL"}:
        return [(header, end)]
    if LIST.fullmatch(text):
        lines = read_head(header.path, MOST_HEADER, end).decode("utf8", "surrogateescape")
        names = [line.rstrip() for line in lines.split("\n") if line.strip()]
    elif pattern:
        first, last, step = map(int, pattern[4].split())
        numbers = range(first, last + (1 if step > 0 else -1), step) if step else ()
        before, after = pattern[1].replace("%%", "%"), pattern[3].replace("%%", "%")
        names = [f"{before}{n:{pattern[2]}d}{after}" for n in numbers[: MOST_FILES + 1]]
    if not 0 < len(names) <= MOST_FILES:
        raise CorruptFileError(
            "no files, or too many",
            path=header.path,
            where=f"the key {key!r}",
            expected=f"1 to {MOST_FILES}",
            found=text,
        )
    return [(_named(header.path, key, name, outside=outside), 0) for name in names]


def _named(path: str, key: str, name: str, *, outside: bool) -> File:
    where = f"the key {key!r}"
    found = named_file(name, path, where, outside=outside)
    if found is None:
        raise TruncatedFileError(
            "a file of the pixels is missing",
            path=path,
            where=where,
            expected=os.path.join(os.path.dirname(path), name),
        )
    return File.at(found)


def pixels_beside(header: str, *endings: str) -> File:
    """Look at the file of the pixels, which is called like the header but for the ending.

    Raises
    ------
    TruncatedFileError
        There is none.
    """
    stem = os.path.splitext(header)[0]
    path = beside(stem, *endings)
    if path is None:
        raise TruncatedFileError(
            "the file of the pixels is missing",
            path=header,
            expected=os.path.basename(stem) + endings[0],
            found="no such file",
        )
    return File.at(path)


def after_lines(file: File, at: int, count: int) -> int:
    """Give the byte of a file after so many lines, from byte `at` on.

    Raises
    ------
    TruncatedFileError
        There are fewer.
    """
    lines = read_head(file.path, MOST_HEADER if count else 0, at).split(b"\n", count)
    if len(lines) <= count:
        raise TruncatedFileError(
            "lines to skip are missing",
            path=file.path,
            where=f"byte {at}",
            expected=f"{count} lines, in {MOST_HEADER} bytes",
            found=len(lines) - 1,
        )
    return at + sum(len(line) + 1 for line in lines[:count])


def describe_parts(
    format: str,
    parts: Sequence[tuple[File, int]],
    shape: tuple[int, ...],
    dtype: np.dtype,
    axes: Sequence[Axis],
    header: Mapping[str, str],
    *,
    sig_dims: int = 2,
    packed: bool = False,
    skip: int = 0,
) -> Description:
    """Describe an array in C order, of which each file holds an equal part.

    Parameters
    ----------
    format : str
    parts : sequence of (File, int)
        The files in the order of the parts, and the byte of each that what it holds begins at.
    shape : tuple of int
    dtype : numpy.dtype
        Type in the files, of either byte order.
    axes : sequence of Axis
        Where a name comes again, its place in the array takes its stead.
    header : mapping
        Keys and texts, for the metadata.
    sig_dims : int
        How many of the last axes are signal axes.
    packed : bool
        Whether the parts are compressed.
    skip : int
        Bytes before the pixels of each part, after it was decompressed; -1 if its file ends with
        them.

    Raises
    ------
    DatasetError
        The array has no elements, or no such number of equal parts.
    TruncatedFileError
        A file is too short.
    """
    files = [file for file, _ in parts]
    check_shape(files[0], shape)
    if packed and skip < 0:
        raise CorruptFileError(
            "compressed pixels cannot be found from the end of a file",
            path=files[0].path,
            expected="0 bytes to skip, or more",
            found=skip,
        )
    nav, sig = shape[: max(0, len(shape) - sig_dims)], shape[-sig_dims:]
    box, corners = _equal_boxes(files, (nav or (1,)) + sig)
    strides, nbytes = strides_of(box, dtype.itemsize), dtype.itemsize * math.prod(box)
    pieces = []
    for k, ((file, start), corner) in enumerate(zip(parts, corners, strict=True)):
        if packed:
            check_ratio(file, skip + nbytes, start)
            pieces.append(Piece(k, corner, box, start, strides, nbytes=file.size - start))
        else:
            at = start + skip if skip >= 0 else file.size - nbytes
            check_bytes(file, box, dtype, at, exact=len(parts) > 1)  # or they may be other parts
            pieces.append(Piece(k, corner, box, at, strides))
    decoder = unpacker(dtype, skip) if packed else plain(dtype)
    layout = Layout(files, nav or (1,), sig, pieces, [decoder]).show(nav)
    facts = {printable(key): printable(text) for key, text in header.items()}
    base_shape = box if packed else ()
    metadata = {format: {"header": facts}}
    return Description.of(format, layout, metadata, _distinct(axes), base_shape=base_shape)


def _equal_boxes(
    files: Sequence[File], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Cut an array into a part for each file, which follow one another in C order.

    Returns
    -------
    box : tuple of int
        The shape of a part.
    corners : list of tuple of int
        Where each begins.
    """
    box, rest, even = [], len(files), True
    for length in shape:
        cuts = min(length, rest)
        even = even and length % cuts == rest % cuts == 0
        box.append(length // cuts)
        rest //= cuts
    if not even or rest > 1:
        raise CorruptFileError(
            "no such number of files",
            path=files[0].path,
            expected=f"equal parts of an array of shape {shape}",
            found=f"{len(files)} files",
        )
    corners = (range(0, length, step) for length, step in zip(shape, box, strict=True))
    return tuple(box), list(itertools.product(*corners))


def axis_along(name: str, units: str, step: Sequence[float], origin: Sequence[float]) -> Axis:
    """Give an axis of space, from one step along it and the place of its first pixel.

    Its positions count in its own direction, whichever that is in space.
    """
    scale = math.hypot(*step)
    along = sum((a / (scale or 1.0) * b for a, b in zip(step, origin, strict=False)), 0.0)
    return Axis.calibrated(name, units, scale, along)


def _distinct(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Give the axes names that tell them from each other: by place, where one comes again."""
    names = [axis.name for axis in axes]
    return tuple(
        replace(axis, name=f"dim_{k}") if axis.name in names[:k] else axis
        for k, axis in enumerate(axes)
    )
