"""Files that grow: what is the same of them before and after, and whether it still is."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dask_tiled.errors import StaleFileError
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.files import File, GrowingFile
from dask_tiled.model.indexing import Index
from dask_tiled.model.pieces import Columns, piece_table, spans, strides_of

if TYPE_CHECKING:
    from dask_tiled.model.layout import Layout

SAMPLE_BYTES = 1 << 18
"""So many bytes of a frame are known again: counts may be sparse, and a few bytes all zeros."""


class Sample(NamedTuple):
    """Some bytes of the pixels of a file, which stay as they are while it grows."""

    path: str
    start: int
    stop: int
    digest: str

    @classmethod
    def of(cls, layout: Layout, frame: int) -> Sample | None:
        """Take the last bytes of a frame; None where files hold none of it."""
        held = _held(layout, frame, frame + 1)
        if not len(held.file):
            return None
        first, last = spans(piece_table(**held._asdict()), layout.decoders, layout.repeats)
        # Of pieces that are all alike there is one number.
        first, last = np.broadcast_arrays(first, last, held.file)[:2]
        end = int(np.lexsort((last, held.file))[-1])
        file, stop = layout.files[int(held.file[end])], int(last[end])
        start = max(int(first[end]), stop - SAMPLE_BYTES)
        return cls(file.path, start, stop, _digest_of(file, start, stop))

    def check(self, layout: Layout) -> None:
        """Make sure that a layout of the same file has these bytes.

        Raises
        ------
        StaleFileError
            They are others.
        """
        file = next(file for file in layout.files if file.path == self.path)
        if _digest_of(file, self.start, self.stop) != self.digest:
            raise StaleFileError(
                "the file has been written anew since it was opened",
                path=self.path,
                where=f"bytes {self.start} to {self.stop}",
                expected="the bytes that were there",
                found="others",
                hint="Open it again to read its present content.",
            )


def _digest_of(file: File, start: int, stop: int) -> str:
    return hashlib.blake2b(file.read(stop - start, start), digest_size=16).hexdigest()


def check_continues(old: Layout, new: Layout) -> None:
    """Make sure that a layout has all frames of another one, where that has them.

    Raises
    ------
    StaleFileError
        A file has been replaced, or has become shorter; or frames lie elsewhere.
    """
    for file in old.files:
        GrowingFile.of(file).check()
    count, path = old.n_frames, old.files[-1].path
    if new.n_frames < count:
        raise StaleFileError(
            "frames have gone since the file was opened",
            path=path,
            expected=f"{count} frames or more",
            found=f"{new.n_frames} frames",
        )
    if _frames_token(old, 0, count) != _frames_token(new, 0, count):
        raise StaleFileError(
            "the frames lie elsewhere, or are others, than when the file was opened",
            path=path,
            expected=f"the same {count} frames of shape {old.sig_shape} at the start",
            found=f"{new.n_frames} frames of shape {new.sig_shape}",
            hint="Open it again to read its present content.",
        )


def shown_token(layout: Layout) -> tuple[str, ...]:
    """Give what tells the pixels that are shown from others, but not the length of the files.

    What files hold beyond the frames that are shown does not change it.
    """
    nav, selection, count = len(layout.nav_shape), layout.selection, layout.n_frames
    cuts = layout.cuts[:nav]
    if selection.numbers is None:
        strides = strides_of(layout.nav_shape, 1)
        ends = [(cut.start, cut.start + cut.step * (cut.length - 1)) for cut in cuts]
        low, high = (
            selection.first + sum(end[k] * n for end, n in zip(ends, strides, strict=True))
            for k in (0, 1)
        )
        shown = repr((selection.first, layout.nav_shape[1:]))
        if low < 0 or high >= count:
            shown += f" of {count}"
    else:
        numbers = layout.frame_numbers(cuts)
        there = numbers[~selection.are_absent(numbers)]
        low, high = (int(there.min()), int(there.max())) if len(there) else (0, -1)
        known = np.where(selection.are_absent(numbers), -1, numbers).tobytes()
        shown = hashlib.blake2b(known, digest_size=16).hexdigest()
    frames = _frames_token(layout, max(low, 0), min(high + 1, count))
    return frames, shown, repr(tuple(map(tuple, layout.cuts)))


def _frames_token(layout: Layout, first: int, stop: int) -> str:
    """Give what tells some frames from others: where which files hold what."""
    held = _held(layout, first, stop)
    touched, file = np.unique(held.file, return_inverse=True)
    found = [layout.files[k] for k in touched]
    files = [(file.path, file.inode, file.mtime_ns, file.ctime_ns) for file in found]
    kinds = layout.sig_shape, layout.repeats, layout.overlapping, layout.partial
    text = repr((files, layout.decoders, *kinds))
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for column in held._replace(file=file):
        digest.update(column.tobytes())
    return digest.hexdigest()


def _held(layout: Layout, first: int, stop: int) -> Columns:
    """Give the pieces of some frames, cut to these where frames follow one another."""
    pieces = layout.pieces
    if len(layout.grid) > 1:  # such files do not grow
        return pieces.rows()
    start, length = pieces.column("start"), pieces.column("shape")
    meet = np.broadcast_to((start < stop) & (start + length > first), len(pieces))
    rows = pieces.rows(np.flatnonzero(meet))
    whole = np.array([isinstance(decoder, BlockDecoder) for decoder in layout.decoders])
    cut: Index = ~whole[rows.decoder]
    low = np.where(cut, np.maximum(rows.start[:, 0], first), rows.start[:, 0])
    end = rows.start[:, 0] + rows.shape[:, 0]
    high = np.where(cut, np.minimum(end, stop), end)
    offset = rows.offset + (low - rows.start[:, 0]) * rows.strides[:, 0]
    starts, shapes = rows.start.copy(), rows.shape.copy()
    starts[:, 0], shapes[:, 0] = low, high - low
    return rows._replace(offset=offset, start=starts, shape=shapes)
