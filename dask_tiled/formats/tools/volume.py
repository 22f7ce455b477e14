"""Volumes of imaging formats: one array with x fastest, described in C order."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.codecs.packed_files import is_compressed, packed_by, unpacker
from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.files.file import File, read_head
from dask_tiled.files.paths import in_folder
from dask_tiled.formats.tools.files import beside, named_file
from dask_tiled.formats.tools.text import MAX_HEADER
from dask_tiled.model.axes import Axis
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.description import Description
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece, strides_of

Parts = File | Sequence[tuple[File, int]]
ENDS = "LR", "PA", "IS"
"""Left and right, posterior and anterior, inferior and superior."""
MOST_FILES, MOST_NAME = 1 << 17, 4096
LIST = re.compile(r"LIST(\s+\d+D?)?", re.IGNORECASE)
PATTERN = re.compile(r"((?:[^%]|%%)*)%(0?\d?\d?)d((?:[^%]|%%)*?)((?:\s++-?\d{1,9}){3})(?:\s+\d+)?")
"""A ``printf`` pattern, then first number, last number and step."""


def describe_volume(
    format: str,
    parts: Parts,
    shape: tuple[int, ...],
    dtype: np.dtype,
    axes: Sequence[Axis],
    facts: Mapping[str, Any],
    *,
    sig_dims: int = 2,
    packed: bool | None = None,
    exact: bool = False,
    skip: int = 0,
    decoder: Decoder | BlockDecoder | None = None,
    scaling: tuple[float, float] | None = None,
) -> Description:
    """Describe an array in C order, in one file or in several with equal parts.

    Parameters
    ----------
    format : str
    parts : File, or sequence of (File, int)
        As for :func:`~dask_tiled.formats.tools.volume.volume_layout`.
    shape : tuple of int
    dtype : numpy.dtype
        Type in the files, of either byte order.
    axes : sequence of Axis
        Repeated names are replaced by positions.
    facts : mapping
        Metadata of the format.
    sig_dims : int
        How many of the last axes are signal axes.
    packed : bool, optional
        Whether parts are compressed; by default, whether the first file is, as a whole.
    exact, skip, decoder
        As for :func:`~dask_tiled.formats.tools.volume.volume_layout`.
    scaling : tuple of float, optional
        Gain and offset of scaled pixels.

    Raises
    ------
    DatasetError
        As for :func:`~dask_tiled.formats.tools.volume.volume_layout`.
    """
    if packed is None:
        first = parts if isinstance(parts, File) else parts[0][0]
        packed = is_compressed(first.path)
    nav, sig = shape[: max(0, len(shape) - sig_dims)], shape[-sig_dims:]
    options: dict[str, Any] = {"skip": skip, "packed": packed, "exact": exact, "decoder": decoder}
    layout = volume_layout(parts, nav, sig, dtype, **options)
    whole = isinstance(layout.decoders[0], BlockDecoder)
    base_shape = tuple(layout.pieces.rows().shape[0].tolist()) if whole else ()
    names = [axis.name for axis in axes]
    again = [name in names[:k] for k, name in enumerate(names)]
    axes = [replace(x, name=f"dim_{k}") if again[k] else x for k, x in enumerate(axes)]
    told, options = {format: facts}, {"base_shape": base_shape, "scaling": scaling}
    return Description.of(format, layout, told, tuple(axes), **options)


def volume_layout(
    parts: Parts,
    nav: tuple[int, ...],
    sig: tuple[int, ...],
    dtype: np.dtype,
    *,
    skip: int = 0,
    packed: bool = False,
    exact: bool = False,
    decoder: Decoder | BlockDecoder | None = None,
) -> Layout:
    """Lay out an array in C order, one piece per file, in the shape ``nav + sig``.

    Parameters
    ----------
    parts : File, or sequence of (File, int)
        The file, or the files in order, each with the offset of its part.
    nav, sig : tuple of int
    dtype : numpy.dtype
        Type in the files, of either byte order.
    skip : int
        Bytes before the pixels of each part, after it was decompressed; -1 if they are the last
        bytes.
    packed : bool
        Whether parts are compressed: blocks that are never cut.
    exact : bool
        Whether decompressed bytes after the pixels are an error.
    decoder : Decoder or BlockDecoder, optional
        For pixels that are not stored as a NumPy array; for compressed files, an
        :func:`~dask_tiled.codecs.packed_files.unpacker`. A BlockDecoder gets the whole file.

    Raises
    ------
    DatasetError
        The array has no elements, or cannot be split evenly among the files.
    TruncatedFileError
        A file is too short.
    """
    parts = [(parts, 0)] if isinstance(parts, File) else parts
    files, shape = [file for file, _ in parts], (nav or (1,)) + sig
    _check_shape(files[0], nav + sig)
    box, corners = _equal_boxes(files, shape)
    strides, nbytes = strides_of(box, dtype.itemsize), dtype.itemsize * math.prod(box)
    decoders: list[Decoder | BlockDecoder] = []
    pieces = []
    for k, ((file, start), corner) in enumerate(zip(parts, corners, strict=True)):
        own = decoder or plain(dtype)
        if packed:
            codec = packed_by(file, max(skip, 0) + nbytes, start)
            own = decoder or unpacker(dtype, skip, codec=codec, exact=exact)
        decoders += [own] if own not in decoders else []
        number = decoders.index(own)
        if isinstance(own, BlockDecoder):
            pieces.append(Piece(k, corner, box, start, strides, number, file.size - start))
        else:
            at = start + skip if skip >= 0 else file.size - nbytes
            check_bytes(file, box, dtype, at, exact=len(parts) > 1)  # exact, to detect wrong parts
            pieces.append(Piece(k, corner, box, at, strides))
    return Layout(files, nav or (1,), sig, pieces, decoders).show(nav)


def _equal_boxes(
    files: Sequence[File], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Split an array into equal boxes, one per file, in C order; return shape and corners."""
    box, rest, even = [], len(files), True
    for length in shape:
        cuts = min(length, rest)
        even = even and length % cuts == rest % cuts == 0
        box.append(length // cuts)
        rest //= cuts
    if not even or rest > 1:
        problem, found = "the array cannot be split among the files", f"{len(files)} files"
        expected = f"equal parts of an array of shape {shape}"
        raise CorruptFileError(problem, path=files[0].path, expected=expected, found=found)
    corners = (range(0, length, step) for length, step in zip(shape, box, strict=True))
    return tuple(box), list(itertools.product(*corners))


def axis_names(ndim: int) -> tuple[str, ...]:
    """Return default names for the axes of a volume in C order: (t, z, y, x)."""
    names = ("xyztuvw"[n : n + 1] or f"axis_{n + 1}" for n in range(ndim))
    return tuple(names)[::-1]


def axis_along(name: str, units: str, step: Sequence[float], origin: Sequence[float]) -> Axis:
    """Return an axis of space, from the step along it and the position of its first pixel.

    Positions are measured along the axis, whatever its direction in space.
    """
    scale = math.hypot(*step)
    along = sum((a / (scale or 1.0) * b for a, b in zip(step, origin, strict=False)), 0.0)
    return Axis.calibrated(name, units, scale, along)


def anatomical(names: Sequence[str], steps: npt.ArrayLike) -> dict[str, str]:
    """Return the anatomical direction of each axis: ``"LR"``, ``"PA"`` or ``"IS"``, or reversed.

    Parameters
    ----------
    names : sequence of str
        The three axes of space.
    steps : array-like of shape (3, 3)
        The step along each axis, as lengths to the right, front and top of the body. Oblique axes
        get the nearest directions, all three together.
    """
    along = np.array(steps, float)
    lengths = np.linalg.norm(along, axis=1, keepdims=True)
    if along.shape != (3, 3) or not (np.isfinite(along).all() and (lengths > 0).all()):
        return {}
    along /= lengths
    order = max(itertools.permutations(range(3)), key=lambda p: abs(along[range(3), p]).sum())
    ends = [ENDS[k] if along[axis, k] > 0 else ENDS[k][::-1] for axis, k in enumerate(order)]
    return dict(zip(names, ends, strict=True))


def check_bytes(
    file: File, shape: tuple[int, ...], dtype: np.dtype, offset: int = 0, *, exact: bool = False
) -> None:
    """Check that an array has elements and lies within its file; with `exact`, at its end.

    Raises
    ------
    DatasetError
        The array is empty.
    TruncatedFileError
        The file is too short.
    CorruptFileError
        The file is too long.
    """
    _check_shape(file, shape)
    end = offset + math.prod(shape) * dtype.itemsize
    beyond = offset < 0 or end > file.size
    longer = "the file of the pixels is longer than expected from the header"
    if beyond or (exact and end < file.size):
        raise (TruncatedFileError if beyond else CorruptFileError)(
            "the volume reaches beyond the file" if beyond else longer,
            path=file.path,
            where=f"byte {offset}",
            expected=f"{end} bytes, for a {dtype} array of shape {shape}",
            found=f"{file.size} bytes",
        )


def _check_shape(file: File, shape: tuple[int, ...]) -> None:
    """Check that an array has elements."""
    if min(shape, default=0) < 1:
        raise DatasetError("the volume is empty", path=file.path, found=f"shape {shape}")


def pixel_files(header: File, key: str, text: str, end: int) -> list[tuple[File, int]]:
    """Return the files with the pixels of a header, and the offset in each.

    Parameters
    ----------
    header : File
    key, text : str
        The key that names the files, for errors, and its value: a name; a pattern with
        numbers; ``LIST``, followed by lines with a name each; ``LOCAL`` or nothing for the header
        file itself.
    end : int
        Offset behind the value.

    Raises
    ------
    CorruptFileError
        There are no files, or too many.
    OutsideFolderError
        A file lies outside of the folder.
    TruncatedFileError
        A file is missing.
    """
    names, where, pattern = [text], f"the key {key!r}", PATTERN.fullmatch(text[:MOST_NAME])
    if text.upper() in {"", "LOCAL"}:
        return [(header, end)]
    if LIST.fullmatch(text):
        lines = read_head(header.path, MAX_HEADER, end).decode("utf8", "surrogateescape")
        names = [line.rstrip() for line in lines.split("\n") if line.strip()]
    elif pattern:
        first, last, step = map(int, pattern[4].split())
        numbers = range(first, last + (1 if step > 0 else -1), step) if step else ()
        before, after = pattern[1].replace("%%", "%"), pattern[3].replace("%%", "%")
        names = [f"{before}{n:{pattern[2]}d}{after}" for n in numbers[: MOST_FILES + 1]]
    if not 0 < len(names) <= MOST_FILES:
        problem, most = "no files, or too many", f"1 to {MOST_FILES}"
        raise CorruptFileError(problem, path=header.path, where=where, expected=most, found=text)
    files = []
    for name in names:
        path = named_file(name, header.path, where)
        if path is None:
            expected = in_folder(os.path.dirname(header.path), name)
            problem = "a file of the pixels is missing"
            raise TruncatedFileError(problem, path=header.path, where=where, expected=expected)
        files.append((File.at(path), 0))
    return files


def pixels_beside(header: str, *endings: str) -> File:
    """Return the file of the pixels, named like the header with another ending.

    Raises
    ------
    TruncatedFileError
        The file is missing.
    """
    stem = os.path.splitext(header)[0]
    path = beside(stem, *endings)
    if path is None:
        problem, expected = "the file of the pixels is missing", os.path.basename(stem) + endings[0]
        raise TruncatedFileError(problem, path=header, expected=expected, found="no such file")
    return File.at(path)
