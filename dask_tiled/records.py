"""Files that hold one frame after the other, each of the same number of bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dask_tiled.decoders import Decoder
from dask_tiled.errors import TruncatedFileError
from dask_tiled.files import File
from dask_tiled.layout import Layout
from dask_tiled.pieces import piece_table


@dataclass(frozen=True, slots=True)
class Record:
    """A frame in a file, with the bytes around it.

    Attributes
    ----------
    sig_shape : tuple of int
        Shape of the frame.
    decoder : Decoder
        Every row begins with a new unit.
    header, footer : int
        Bytes before and after the pixels of each frame.
    """

    sig_shape: tuple[int, ...]
    decoder: Decoder
    header: int = 0
    footer: int = 0

    @property
    def sig_strides(self) -> tuple[int, ...]:
        """Bytes between neighbouring units along the signal axes."""
        units = [*self.sig_shape[:-1], -(-self.sig_shape[-1] // self.decoder.pixels)]
        return tuple(self.decoder.nbytes * math.prod(units[k + 1 :]) for k in range(len(units)))

    @property
    def frame_bytes(self) -> int:
        """Bytes of the pixels of a frame."""
        return self.sig_strides[0] * self.sig_shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes from one frame to the next."""
        return self.header + self.frame_bytes + self.footer


def count_frames(
    files: Sequence[File],
    record: Record,
    file_header: int | Sequence[int] = 0,
    *,
    settled: bool = False,
) -> list[int]:
    """Count the frames in each file of a series.

    Parameters
    ----------
    files : sequence of File
        In the order of their frames.
    record : Record
    file_header : int or sequence of int
        Bytes before the first record: of every file, or of each one.
    settled : bool
        The number of frames is settled elsewhere, so the last file may end inside a frame.

    Raises
    ------
    TruncatedFileError
        A file ends inside a record.
    """
    headers, nbytes = _for_each(files, file_header), record.nbytes
    parts = [
        divmod(max(0, file.size - header), nbytes)
        for file, header in zip(files, headers, strict=True)
    ]
    counts = [whole for whole, _ in parts]
    for file, header, (whole, rest) in zip(files, headers, parts, strict=True):
        last = file is files[-1]
        if not whole or (rest and not (settled and last)):
            readable = last and any(counts)
            raise TruncatedFileError(
                "the file ends inside a frame",
                path=file.path,
                where=f"byte {min(file.size, header + whole * nbytes)}",
                expected=f"{header} bytes and a multiple of {nbytes}",
                found=f"{file.size} bytes, which is {whole} frames and {rest} bytes",
                hint="Pass a nav_shape of whole frames to read those." if readable else None,
            )
    return counts


def record_layout(
    files: Sequence[File],
    counts: Sequence[int],
    record: Record,
    file_header: int | Sequence[int] = 0,
) -> Layout:
    """Lay out a series of files, each of them a header and a number of records.

    Parameters
    ----------
    files : sequence of File
        In the order of their frames.
    counts : sequence of int
        Frames in each file.
    record : Record
    file_header : int or sequence of int
        Bytes before the first record: of every file, or of each one.
    """
    frames = np.array(counts, np.int64)
    start = np.zeros((len(counts), 1 + len(record.sig_shape)), np.int64)
    start[1:, 0] = np.cumsum(frames[:-1])
    shape = np.broadcast_to((0, *record.sig_shape), start.shape).copy()
    shape[:, 0] = frames
    offset = np.array(_for_each(files, file_header), np.int64) + record.header
    strides = record.nbytes, *record.sig_strides
    pieces = piece_table(start, shape, offset, strides, file=np.arange(len(counts)))
    return Layout(files, (sum(counts),), record.sig_shape, pieces, [record.decoder])


def _for_each(files: Sequence[File], file_header: int | Sequence[int]) -> Sequence[int]:
    return [file_header] * len(files) if isinstance(file_header, int) else file_header
