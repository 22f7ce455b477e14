"""Files of consecutive frames of equal size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import TruncatedFileError
from dask_tiled.files.file import File, is_filling
from dask_tiled.model.decoders import Decoder, plain
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import FARTHEST, axis_columns, piece_table, spans, strides_of


@dataclass(frozen=True, slots=True)
class Record:
    """A frame in a file, with header and footer.

    Attributes
    ----------
    sig_shape : tuple of int
        Shape of the frame.
    decoder : Decoder
        Decoder of the pixels; every row begins with a new unit.
    header, footer : int
        Bytes before and after the pixels of each frame.
    """

    sig_shape: tuple[int, ...]
    decoder: Decoder
    header: int = 0
    footer: int = 0

    @property
    def sig_strides(self) -> tuple[int, ...]:
        """Strides of the units along the signal axes, in bytes."""
        units = [*self.sig_shape[:-1], -(-self.sig_shape[-1] // self.decoder.pixels)]
        return strides_of(units, self.decoder.nbytes)

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
    promised: int = 0,
    promised_by: str = "the header",
    settled: bool = False,
) -> list[int]:
    """Return the number of frames in each file of a series.

    Parameters
    ----------
    files : sequence of File
        In the order of their frames.
    record : Record
    file_header
        As for :func:`~dask_tiled.formats.tools.frames.part_layout`.
    promised : int
        Number of frames in the header; 0 if unknown. Other data may follow if all
        frames exist.
    promised_by : str
        Location of that number in the header, for errors.
    settled : bool
        The number of frames is given elsewhere, by nav_shape: frames may be missing, and the last
        file may end inside a frame. The same holds if it grows; it may then have no frame yet. It
        holds for promised frames, too, if the user accepts missing ones.

    Raises
    ------
    TruncatedFileError
        A file ends inside a record, or promised frames are missing.
    """
    headers, nbytes = _for_each(files, file_header), record.nbytes
    parts = [
        divmod(max(0, file.size - header), nbytes)
        for file, header in zip(files, headers, strict=True)
    ]
    counts = [whole for whole, _ in parts]
    grows = files[-1].grows
    known = 0 < promised <= sum(counts) or (promised > 0 and is_filling())
    settled = settled or grows or known
    for file, header, (whole, rest) in zip(files, headers, parts, strict=True):
        last = file is files[-1]
        readable = last and any(counts)
        absent = not whole and not (grows and readable)
        if absent or (rest and not (settled and last)):
            raise TruncatedFileError(
                "the file ends inside a frame" if rest else "the file holds no frame",
                path=file.path,
                where=f"byte {min(file.size, header + whole * nbytes)}",
                expected=f"{header} bytes and a multiple of {nbytes}",
                found=f"{file.size} bytes, which is {whole} frames and {rest} bytes",
                hint=f"Pass nav_shape=({sum(counts)},) to read the complete frames."
                if readable
                else None,
            )
    if not settled and sum(counts) < promised:
        raise TruncatedFileError(
            "frames that the header promises are missing",
            path=files[-1].path,
            expected=f"{promised} frames, as in {promised_by}",
            found=f"{sum(counts)} frames",
            hint=f"Pass nav_shape=({sum(counts)},) to read the existing frames.",
        )
    return counts


def record_layout(
    files: Sequence[File],
    counts: Sequence[int],
    record: Record,
    file_header: int | Sequence[int] = 0,
    *,
    lost: Sequence[int] = (),
) -> Layout:
    """Lay out a series of files, each a header and a number of records.

    Parameters are those of :func:`~dask_tiled.formats.tools.frames.part_layout`.
    """
    part = FramePart(
        (0,) * len(record.sig_shape), record.sig_shape, record.header, record.sig_strides
    )
    decoders = [record.decoder]
    return part_layout(files, counts, [part], record.nbytes, decoders, file_header, lost=lost)


def lay_out(
    files: Sequence[File],
    record: Record,
    file_header: int | Sequence[int] = 0,
    *,
    promised: int = 0,
    promised_by: str = "the header",
    settled: bool = False,
) -> Layout:
    """Count the frames in a series of files and lay them out.

    Parameters and errors are those of :func:`~dask_tiled.formats.tools.frames.count_frames`.
    """
    counts = count_frames(
        files, record, file_header, promised=promised, promised_by=promised_by, settled=settled
    )
    return record_layout(files, counts, record, file_header)


class FramePart(NamedTuple):
    """A box of a frame, whose units are equally spaced in the record.

    Attributes
    ----------
    start, shape : tuple of int
        The box, in pixels.
    offset : int
        Byte of the record at which the unit in the first corner of the box begins.
    strides : tuple of int
        Bytes from one unit to the next along the signal axes; they may be negative.
    decoder : int
        Index of the decoder.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
    decoder: int = 0


def part_layout(
    files: Sequence[File],
    counts: Sequence[int],
    parts: Sequence[FramePart],
    nbytes: int,
    decoders: Sequence[Decoder],
    file_header: int | Sequence[int] = 0,
    repeats: tuple[int, ...] | None = None,
    *,
    lost: Sequence[int] = (),
) -> Layout:
    """Lay out a series of files whose records hold frames in parts.

    Parameters
    ----------
    files : sequence of File
        In the order of their frames. A file with lost frames inside occurs once for each run of
        consecutive frames.
    counts : sequence of int
        Frames in each file.
    parts : sequence of Part
        The parts of a frame.
    nbytes : int
        Distance in bytes from one record to the next.
    decoders : sequence of Decoder
    file_header : int or sequence of int
        Bytes before the first record: in all files, or in each file.
    repeats : tuple of int, optional
        As in :class:`~dask_tiled.model.layout.Layout`.
    lost : sequence of int, optional
        Number of lost frames before each file; by default none.
    """
    starts = _for_each(files, file_header)
    if not counts[-1]:  # the last file has no frame yet
        files, counts, starts = files[:-1], counts[:-1], starts[:-1]
    distinct, index = _distinct(files)
    frames = np.repeat(np.array(counts, np.int64), len(parts))
    gaps = list(lost)[: len(files)] or [0] * len(files)
    numbers = np.cumsum([0, *counts[:-1]]) + np.cumsum(gaps)
    first = np.repeat(numbers, len(parts))
    start, shape, offset, strides, decoder = (list(column) for column in zip(*parts, strict=True))
    headers = np.repeat(np.array(starts, np.int64), len(parts))
    pieces = piece_table(
        axis_columns(first, np.tile(start, (len(files), 1))),
        axis_columns(frames, np.tile(shape, (len(files), 1))),
        headers + np.tile(offset, len(files)),
        axis_columns(np.full(len(first), nbytes), np.tile(strides, (len(files), 1))),
        file=np.repeat(index, len(parts)),
        decoder=np.tile(decoder, len(files)),
    )
    sig_shape = tuple(np.add(start, shape).max(axis=0).tolist())
    absent = [(n - gap, n) for n, gap in zip(numbers.tolist(), gaps, strict=True) if gap]
    grid = (sum(counts) + sum(gaps),)
    return Layout(distinct, grid, sig_shape, pieces, decoders, repeats=repeats, lost=absent)


def _distinct(files: Sequence[File]) -> tuple[list[File], list[int]]:
    """Return files without repetitions of the previous one, and the index of each."""
    runs = [(file, sum(1 for _ in run)) for file, run in groupby(files)]
    index = [k for k, (_, length) in enumerate(runs) for _ in range(length)]
    return [file for file, _ in runs], index


def beside_frames(layout: Layout, dtype: np.dtype, at: int) -> Layout:
    """Lay out data beside the pixels in every record, such as headers.

    Parameters
    ----------
    layout : Layout
        Layout of the pixels, from :func:`~dask_tiled.formats.tools.frames.part_layout`.
    dtype : dtype
        Dtype of the data.
    at : int
        Offset of the data from the first byte of the pixels: negative in a header.

    Returns
    -------
    Layout
        Layout with one pixel of `dtype` for each frame.
    """
    rows = layout.pieces.rows()
    first, _ = np.broadcast_arrays(
        spans(layout.pieces, layout.decoders, layout.repeats)[0], rows.file
    )
    frames, one, part = np.unique(rows.start[:, 0], return_index=True, return_inverse=True)
    pixels = np.full(len(frames), FARTHEST)
    # Parts begin anywhere in a record; if frames span files, the first file is used.
    first = np.where(rows.file == rows.file[one][part], first, FARTHEST)
    np.minimum.at(pixels, part, first)
    pieces = piece_table(
        axis_columns(frames, (0,)),
        axis_columns(rows.shape[one, 0], (1,)),
        pixels + at,
        axis_columns(rows.strides[one, 0], (dtype.itemsize,)),
        file=rows.file[one],
    )
    lost = layout.selection.lost
    return Layout(layout.files, layout.grid, (1,), pieces, [plain(dtype)], lost=lost)


def _for_each(files: Sequence[File], file_header: int | Sequence[int]) -> Sequence[int]:
    return [file_header] * len(files) if isinstance(file_header, int) else file_header
