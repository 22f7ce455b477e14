"""Pieces: boxes of an array that are stored in one file each, and tables of pieces."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import TruncatedFileError
from dask_tiled.files.file import File
from dask_tiled.model.box_tree import BoxTree, Numbers, numbers_of
from dask_tiled.model.decoders import BlockDecoder, Decoder
from dask_tiled.model.indexing import Index

FARTHEST = 1 << 56
"""A limit above all file sizes: sums of such distances along 64 axes do not overflow."""


class Piece(NamedTuple):
    """A box of the array that is stored in one file as a lattice of equally strided units.

    The axes of a piece are the frame axes of the files followed by the signal axes.

    Attributes
    ----------
    file : int
        Index of the file in the layout; for :func:`~dask_tiled.from_pieces` it may be a path.
    start, shape : tuple of int
        The box, in pixels.
    offset : int
        Position in the file, in bytes, of the unit at the first corner of the box.
    strides : tuple of int
        Bytes from one unit to the next along each axis; they may be negative. Optional only in
        :func:`~dask_tiled.from_pieces`.
    decoder : int
        Index of the decoder in the layout.
    nbytes : int
        Size of the whole piece in bytes, if it is decoded by a
        :class:`~dask_tiled.model.decoders.BlockDecoder`; its strides are ignored then.

    Examples
    --------
    >>> import dask_tiled
    >>> box = {"start": (0, 0), "shape": (4, 8)}
    >>> piece = dask_tiled.Piece(file="scan.bin", **box, offset=512, strides=(16, 2))
    >>> piece.shape
    (4, 8)
    """

    file: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] = ()
    decoder: int = 0
    nbytes: int = 0


class Columns(NamedTuple):
    """The attributes of some pieces: one number per piece, or one per piece and axis."""

    file: Index
    decoder: Index
    offset: Index
    nbytes: Index
    start: Index
    shape: Index
    strides: Index


PER_PIECE = {"file": 0, "decoder": 1, "offset": 2, "nbytes": 3}
PER_AXIS = {"start": 0, "shape": 1, "strides": 2}


class PieceTable:
    """Many pieces as columns: a number per piece, or one number if all are equal.

    Numbers have the smallest dtype that holds them. :func:`piece_table` makes a table.
    """

    def __init__(self, columns: Sequence[Index], count: int) -> None:
        self._columns = tuple(map(_compact, columns))
        self._count = count

    def __getstate__(self) -> dict[str, object]:
        return {"_columns": self._columns, "_count": self._count}  # the rest is cached

    def __len__(self) -> int:
        return self._count

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return (len(self._columns) - len(PER_PIECE)) // len(PER_AXIS)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the table uses."""
        return sum(column.nbytes for column in self._columns)

    @property
    def content(self) -> Iterator[bytes]:
        """Bytes that identify the table."""
        for column in self._columns:
            yield column.dtype.str.encode()
            yield column.tobytes()

    @property
    def bounds(self) -> tuple[list[Numbers], list[Numbers]]:
        """Start and stop along each axis: a number per piece, or one if all are equal."""
        axes = range(self.ndim)
        stop = [_narrow(self.column("start", k) + self.column("shape", k)) for k in axes]
        return [self._columns[self._place("start", k)] for k in axes], stop

    @cached_property
    def tree(self) -> BoxTree:
        """A tree of the pieces' boxes, to find overlaps."""
        return BoxTree(*self.bounds, self._count)

    @property
    def size(self) -> int:
        """Number of pixels in all pieces."""
        lengths = (self.column("shape", k) for k in range(self.ndim))
        sizes = functools.reduce(operator.mul, lengths)
        return int(sizes.sum()) * (self._count if len(sizes) == 1 else 1)

    @property
    def stored(self) -> int:
        """Bytes of all pieces that decode as a whole."""
        nbytes = self.column("nbytes")
        return int(nbytes.sum()) * (self._count if len(nbytes) == 1 else 1)

    def column(self, name: str, axis: int = 0) -> Index:
        """Return a column: a number per piece, or one if all are equal."""
        return self._columns[self._place(name, axis)].astype(np.int64)

    @cached_property
    def decoders(self) -> list[int]:
        """Indices of the decoders that pieces use."""
        return np.unique(self.column("decoder")).tolist()

    @cached_property
    def only(self) -> Columns:
        """The attributes of the piece of a table with one piece."""
        return self.rows()

    def rows(self, some: Index | slice = slice(None)) -> Columns:
        """Return the attributes of some pieces, by default all."""
        count = len(range(self._count)[some]) if isinstance(some, slice) else len(some)
        found = np.empty((len(self._columns), count), np.int64)
        for row, column in zip(found, self._columns, strict=True):
            row[:] = numbers_of(column, some)
        first, n = len(PER_PIECE), self.ndim
        axes = (found[first + k * n : first + (k + 1) * n].T for k in PER_AXIS.values())
        return Columns(*found[:first], *axes)

    def reversed(self) -> PieceTable:
        """Return the pieces in reverse order."""
        return PieceTable([column[::-1] for column in self._columns], self._count)

    def _place(self, name: str, axis: int) -> int:
        if name in PER_PIECE:
            return PER_PIECE[name]
        return len(PER_PIECE) + PER_AXIS[name] * self.ndim + axis


def _compact(column: Index) -> Numbers:
    found = _narrow(column[:1] if (column == column[:1]).all() else column)
    found.flags.writeable = False
    return found


def _narrow(numbers: Numbers) -> Numbers:
    """Return integers in the smallest dtype that holds them."""
    low, high = int(numbers.min()), int(numbers.max())
    # n and ~n need as many bits; the negative one makes NumPy choose a signed dtype.
    return numbers.astype(np.min_scalar_type(min(low, ~high)), copy=False)


def piece_table(
    start: npt.ArrayLike,
    shape: npt.ArrayLike,
    offset: npt.ArrayLike,
    strides: npt.ArrayLike,
    *,
    file: npt.ArrayLike = 0,
    decoder: npt.ArrayLike = 0,
    nbytes: npt.ArrayLike = 0,
) -> PieceTable:
    """Return a table of many pieces from columns of numbers.

    Parameters
    ----------
    start, shape : array-like of int, of shape (pieces, axes)
        As in :class:`~dask_tiled.Piece`; values that are equal for all pieces may have the shape
        (axes,).
    offset : array-like of int, of shape (pieces,)
        Position in the file in bytes; one number if equal for all pieces.
    strides : array-like of int, of shape (pieces, axes) or (axes,)
    file, decoder, nbytes : array-like of int, of shape (pieces,) or one number

    Returns
    -------
    PieceTable
        For a layout.

    Raises
    ------
    ValueError
        The columns have different lengths.
    """
    numbers = [np.atleast_1d(np.asarray(c, np.int64)) for c in (file, decoder, offset, nbytes)]
    axes = [np.atleast_2d(np.asarray(c, np.int64)) for c in (start, shape, strides)]
    columns = [*numbers, *(column for axis in axes for column in axis.T)]
    count = max(map(len, columns))
    if any(len(column) not in (1, count) for column in columns):
        raise ValueError("columns of different lengths")
    return PieceTable(columns, count)


def joined(tables: Sequence[PieceTable]) -> PieceTable:
    """Concatenate tables."""
    if len(tables) == 1:
        return tables[0]
    parts = [table.rows() for table in tables]
    columns = dict(zip(Columns._fields, map(np.concatenate, zip(*parts, strict=True)), strict=True))
    return piece_table(**columns)


def axis_columns(along_frames: npt.ArrayLike, along_sig: npt.ArrayLike) -> Index:
    """Combine frame and signal numbers into columns for :func:`piece_table`, one for each axis.

    Parameters
    ----------
    along_frames : array-like of int, of shape (pieces,)
        Numbers along the single frame axis.
    along_sig : array-like of int, of shape (axes,) or (pieces, axes)
        Numbers along the signal axes.
    """
    frames, sig = np.asarray(along_frames, np.int64), np.asarray(along_sig, np.int64)
    return np.column_stack([frames, np.broadcast_to(sig, (len(frames), sig.shape[-1]))])


def table_of(pieces: Sequence[Piece]) -> PieceTable:
    """Return a table of pieces."""
    return piece_table(**dict(zip(Piece._fields, zip(*pieces, strict=True), strict=True)))


def strides_of(
    shape: Sequence[int], nbytes: int, order: Literal["C", "F"] = "C"
) -> tuple[int, ...]:
    """Return the byte strides of a contiguous array.

    Parameters
    ----------
    shape : sequence of int
    nbytes : int
        Size of an element in bytes.
    order : {"C", "F"}
        "C" if the last axis has the smallest stride, "F" if the first axis has.
    """
    sizes = shape if order == "C" else shape[::-1]
    strides = tuple(nbytes * math.prod(sizes[k + 1 :]) for k in range(len(sizes)))
    return strides if order == "C" else strides[::-1]


def check_reach(
    files: Sequence[File],
    pieces: PieceTable,
    decoders: Sequence[Decoder | BlockDecoder],
    repeats: tuple[int, ...],
) -> None:
    """Check that no piece reaches beyond its file: kernels do not check."""
    first, last = spans(pieces, decoders, repeats)
    sizes = np.array([file.size for file in files], dtype=np.int64)[pieces.column("file")]
    bad = np.flatnonzero((first < 0) | (last > sizes) | (last < first))
    if len(bad):
        piece = pieces.rows(bad[:1])
        low, high, size = (int(numbers_of(c, bad[:1])[0]) for c in (first, last, sizes))
        raise TruncatedFileError(
            "the pixels reach beyond the file",
            path=files[int(piece.file[0])].path,
            where=f"byte {int(piece.offset[0])}",
            expected=f"bytes {low} to {high}",
            found=f"{size} bytes",
        )


def spans(
    pieces: PieceTable, decoders: Sequence[Decoder | BlockDecoder], repeats: tuple[int, ...]
) -> tuple[Index, Index]:
    """Return the first byte and the end of each piece; one pair if all are equal."""
    decoder, offset = pieces.column("decoder"), pieces.column("offset")
    pixels = np.array([d.pixels if isinstance(d, Decoder) else 1 for d in decoders])[decoder]
    reach = np.array([d.reach if isinstance(d, Decoder) else 0 for d in decoders])[decoder]
    whole = np.array([isinstance(d, BlockDecoder) for d in decoders])[decoder]
    first, last = offset, offset + np.where(whole, pieces.column("nbytes"), reach)
    for axis, repeat in enumerate((1,) * (pieces.ndim - len(repeats)) + repeats):
        units = pieces.column("shape", axis)
        if axis == pieces.ndim - 1:
            units = -(-units // pixels)
        count, stride = units // repeat - 1, pieces.column("strides", axis)
        end = np.where(np.abs(count * stride.astype(float)) < FARTHEST, count * stride, FARTHEST)
        end = np.where(whole, 0, end)
        first, last = first + np.minimum(end, 0), last + np.maximum(end, 0)
    return first, last
