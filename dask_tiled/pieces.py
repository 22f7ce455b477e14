"""Pieces: the boxes of an array that lie in one file each, and tables of many of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.decoders import BlockDecoder, Decoder
from dask_tiled.errors import TruncatedFileError
from dask_tiled.files import File
from dask_tiled.selection import Index


class Piece(NamedTuple):
    """A box of the array that lies in one file as a lattice of equally strided units.

    The axes of a piece are the frame axes of the files followed by the signal axes.

    Attributes
    ----------
    file : int
        Index of the file in the layout.
    start, shape : tuple of int
        The box, in pixels.
    offset : int
        Byte at which the unit in the first corner of the box begins.
    strides : tuple of int
        Bytes from one unit to the next along each axis; they may be negative.
    decoder : int
        Index of the decoder in the layout.
    nbytes : int
        Bytes of the whole piece, where it decodes as a whole by a
        :class:`~dask_tiled.decoders.BlockDecoder`; its strides mean nothing then.
    """

    file: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
    decoder: int = 0
    nbytes: int = 0


class Columns(NamedTuple):
    """The attributes of many pieces: one number for each, or one for each axis of each."""

    file: Index
    decoder: Index
    offset: Index
    nbytes: Index
    start: Index
    shape: Index
    strides: Index

    @classmethod
    def of(cls, table: Index) -> Columns:
        """Look at the columns of a table of pieces."""
        n = (table.shape[1] - 4) // 3
        axes = (table[:, 4 + k * n : 4 + (k + 1) * n] for k in range(3))
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3], *axes)


def piece_table(
    start: npt.ArrayLike,
    shape: npt.ArrayLike,
    offset: npt.ArrayLike,
    strides: npt.ArrayLike,
    *,
    file: npt.ArrayLike = 0,
    decoder: npt.ArrayLike = 0,
    nbytes: npt.ArrayLike = 0,
) -> Index:
    """Put many pieces into a table, from columns of numbers.

    Parameters
    ----------
    start, shape, strides : array-like of int, of shape (pieces, axes)
        As in :class:`Piece`; what is the same for all pieces may have shape (axes,).
    offset, file, decoder, nbytes : array-like of int, of shape (pieces,)
        As in :class:`Piece`; what is the same for all pieces may be one number.

    Returns
    -------
    int64 array
        A row for each piece, for a layout; read-only.
    """
    numbers = [np.asarray(c, np.int64)[..., None] for c in (file, decoder, offset, nbytes)]
    axes = [np.atleast_2d(np.asarray(c, np.int64)) for c in (start, shape, strides)]
    columns = [*(np.atleast_2d(c) for c in numbers), *axes]
    rows = max(len(c) for c in columns)
    table = np.concatenate([np.broadcast_to(c, (rows, c.shape[1])) for c in columns], axis=1)
    table.flags.writeable = False
    return table


def axis_columns(along_frames: npt.ArrayLike, along_sig: npt.ArrayLike) -> Index:
    """Put numbers of pieces into columns for :func:`piece_table`, one for each axis.

    Parameters
    ----------
    along_frames : array-like of int, of shape (pieces,)
        Those along the one axis of frames.
    along_sig : array-like of int, of shape (axes,) or (pieces, axes)
        Those along the signal axes.
    """
    frames, sig = np.asarray(along_frames, np.int64), np.asarray(along_sig, np.int64)
    return np.column_stack([frames, np.broadcast_to(sig, (len(frames), sig.shape[-1]))])


def table_of(pieces: Sequence[Piece]) -> Index:
    """Put pieces into the rows of one table."""
    rows = [(p.file, p.decoder, p.offset, p.nbytes, *p.start, *p.shape, *p.strides) for p in pieces]
    table = np.array(rows, dtype=np.int64)
    table.flags.writeable = False
    return table


def check_reach(
    files: Sequence[File],
    pieces: Columns,
    decoders: Sequence[Decoder | BlockDecoder],
    repeats: tuple[int, ...],
) -> None:
    """Make sure that no piece reaches beyond its file: kernels do not look.

    Raises
    ------
    TruncatedFileError
        One does.
    """
    pixels = np.array([d.pixels if isinstance(d, Decoder) else 1 for d in decoders])
    reach = np.array([d.reach if isinstance(d, Decoder) else 0 for d in decoders])
    whole = np.array([isinstance(d, BlockDecoder) for d in decoders])[pieces.decoder]
    units = pieces.shape.copy()
    units[:, -1:] = -(-units[:, -1:] // pixels[pieces.decoder][:, None])
    units[:, len(units[0]) - len(repeats) :] //= np.array(repeats, np.int64)
    ends = (units - 1) * pieces.strides
    first = pieces.offset + np.where(whole, 0, np.minimum(ends, 0).sum(axis=1))
    last = pieces.offset + np.where(
        whole, pieces.nbytes, np.maximum(ends, 0).sum(axis=1) + reach[pieces.decoder]
    )
    sizes = np.array([file.size for file in files], dtype=np.int64)[pieces.file]
    bad = np.flatnonzero((first < 0) | (last > sizes) | (last < first))
    if len(bad):
        i = int(bad[0])
        raise TruncatedFileError(
            "the pixels reach beyond the file",
            path=files[int(pieces.file[i])].path,
            where=f"byte {int(pieces.offset[i])}",
            expected=f"bytes {int(first[i])} to {int(last[i])}",
            found=f"{int(sizes[i])} bytes",
        )
