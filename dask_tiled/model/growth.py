"""Growing files: check that frames read before are unchanged."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import StaleFileError
from dask_tiled.files.file import File, GrowingFile
from dask_tiled.model.indexing import Index
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import piece_table, spans

SAMPLE_BYTES = 1 << 18
"""Bytes of a frame to compare: counts may be sparse, and a few bytes all zeros."""


class Sample(NamedTuple):
    """A digest of some pixel bytes of a file, which do not change while it grows."""

    path: str
    start: int
    stop: int
    digest: str

    @classmethod
    def of(cls, layout: Layout, frame: int) -> Sample | None:
        """Return a sample of the last bytes of a frame; None if no file holds it."""
        held = layout.held(frame, frame + 1)
        if not len(held.file):
            return None
        first, last = spans(piece_table(**held._asdict()), layout.decoders, layout.repeats)
        # A column of equal entries has length 1.
        first, last = np.broadcast_arrays(first, last, held.file)[:2]
        end = int(np.lexsort((last, held.file))[-1])
        file, stop = layout.files[int(held.file[end])], int(last[end])
        start = max(int(first[end]), stop - SAMPLE_BYTES)
        return cls(file.path, start, stop, _digest_of(file, start, stop))

    def check(self, layout: Layout) -> None:
        """Check that the bytes are the same in a layout of the same file.

        Raise a StaleFileError if the bytes differ.
        """
        file = next(file for file in layout.files if file.path == self.path)
        if _digest_of(file, self.start, self.stop) != self.digest:
            raise StaleFileError(
                "the file has been rewritten since it was opened",
                path=self.path,
                where=f"bytes {self.start} to {self.stop}",
                expected="unchanged bytes",
                found="different bytes",
                hint="Open it again to read its present content.",
            )


def _digest_of(file: File, start: int, stop: int) -> str:
    return hashlib.blake2b(file.read(stop - start, start), digest_size=16).hexdigest()


def check_continues(old: Layout, new: Layout) -> None:
    """Check that a layout continues another one: same files, same first frames.

    Frames of events may be revised, and lost frames may come late; see :func:`revision`.

    Raise a StaleFileError if a file has been replaced or has become shorter, or frames are at other
    positions.
    """
    for file in old.files:
        GrowingFile.of(file).check()
    if new.is_by_time:
        return
    count, path = old.n_frames, old.files[-1].path
    if new.n_frames < count:
        raise StaleFileError(
            "frames have been removed since the file was opened",
            path=path,
            expected=f"{count} frames or more",
            found=f"{new.n_frames} frames",
        )
    before = old.frames_token(0, count)
    if before == new.frames_token(0, count):
        return
    late = late_frames(old, new)
    if not len(late) or before != new.frames_token(0, count, without=late):
        raise StaleFileError(
            "the frames have moved or changed since the file was opened",
            path=path,
            expected=f"the same {count} frames of shape {old.sig_shape} at the start",
            found=f"{new.n_frames} frames of shape {new.sig_shape}",
            hint="Open it again to read its present content.",
        )


def late_frames(old: Layout, new: Layout) -> Index:
    """Return the numbers of frames that were lost, and have come."""
    lost = old.selection.lost
    if lost == new.selection.lost[: len(lost)]:
        return np.empty(0, np.int64)
    numbers = np.concatenate([np.arange(*ends) for ends in lost])
    return numbers[~new.selection.are_absent(numbers)]


def revision(old: Layout, new: Layout) -> str:
    """Return how frames have changed that counted as complete or lost; empty if none has."""
    if not new.is_by_time:
        return "lost frames came late" if len(late_frames(old, new)) else ""
    count = old.n_frames
    if new.sig_shape != old.sig_shape:
        return ""
    is_same = new.n_frames >= count and old.frames_token(0, count) == new.frames_token(0, count)
    return "" if is_same else "events came late, of frames that counted as complete"
