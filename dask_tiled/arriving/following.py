"""Growing files: noticed by their size, and described again when it changes."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from threading import Lock
from typing import Any, Self

from dask_tiled.errors import DatasetError, StaleFileError
from dask_tiled.model.description import Description
from dask_tiled.opened.growing import check_same, warn_if_revised
from dask_tiled.opened.tiled_array import Opening, TiledArray
from dask_tiled.reading.growing import Growth

DESCRIBE = 0.5
"""Seconds after which files are described again even if no size changed: headers are rewritten."""
SHARE = 4
"""Descriptions take at most this fraction of the time."""


class Following(Growth):
    """The files of one opened array, followed while they grow.

    Attributes
    ----------
    description : Description
        Description of the frames that are there.
    problem : str
        Why the files could not be described last time; empty if they could.
    grown : float
        Time of the last growth, by ``time.monotonic``.
    ended : bool
        Whether what writes the files has ended, and they have been described since.
    revisions : int
        How often frames that counted as complete or lost have changed.
    """

    def __init__(self, opening: Opening, part: Description) -> None:
        self._opening = opening
        self._sizes = _present(part)  # before the description, during which files may grow
        self.description = opening.described(part)
        super().__init__(self.description.layout)
        self.problem, self.ended, self.revisions = "", False, 0
        self.grown = self._described = time.monotonic()
        self._took = 0.0
        self._looking = Lock()

    @classmethod
    def of(cls, arr: Any) -> Self | None:
        """Return the files of an opened array that can be followed; None for any other."""
        if not isinstance(arr, TiledArray) or arr.opening is None or arr.description is None:
            return None
        return cls(arr.opening, arr.description) if arr.description.files[-1].grows else None

    @property
    def state(self) -> str:
        """State of what writes the files; empty if nothing is known of it."""
        return "" if self._opening.writer is None else self._opening.writer.state

    @property
    def failure(self) -> str:
        """Why what writes the files has failed; empty if nothing is known of it."""
        writer = self._opening.writer
        return "" if writer is None or writer.error is None else str(writer.error)

    @property
    def missing(self) -> int:
        """Number of frames of the scan that are not there."""
        return self.description.layout.count_missing()

    @property
    def may_be_revised(self) -> bool:
        """Whether frames may still change, as events may come late."""
        return self.layout.is_by_time and not self.ended

    @property
    def may_change(self) -> bool:
        """Whether frames may still come or change."""
        return bool(self.missing) or self.may_be_revised

    def look(self, *, at_once: bool = False) -> bool:
        """Describe the files again if they have changed; return whether frames were added.

        Threads may share the files: one looks at a time.

        Parameters
        ----------
        at_once : bool
            Describe them also soon after a description that has taken long.

        Raises
        ------
        StaleFileError
            The files were replaced, truncated or rewritten.
        """
        if not self._looking.acquire(blocking=False):
            return False
        try:
            return self._look(at_once=at_once)
        finally:
            self._looking.release()

    def finish(self) -> None:
        """Take the files as complete, as nothing will be appended.

        Raises
        ------
        DatasetError
            The file of a stream of events is damaged, or ends within a part of it.
        """
        with self._looking:
            if self.layout.is_by_time and not self.ended:
                self._describe(ends=True)

    def _look(self, *, at_once: bool) -> bool:
        now, writer = time.monotonic(), self._opening.writer
        ends = not self.ended and writer is not None and not writer.is_running
        sizes, since = _present(self.description), now - self._described
        is_same = self.ended or (sizes == self._sizes and since < DESCRIBE)
        is_soon = since < SHARE * self._took and not at_once
        if not ends and (is_same or is_soon):
            return False
        self._sizes = sizes
        return self._describe(ends=ends)

    def _describe(self, *, ends: bool) -> bool:
        """Describe the files again; return whether frames were added."""
        before, now = self.description, time.monotonic()
        try:
            new = self._opening.described(before, complete=ends)
            check_same(before, new, 0)
        except StaleFileError:
            raise
        except DatasetError as error:  # a header may be half-written
            if ends and self.layout.is_by_time:
                raise
            self.problem = str(error)
            new = before
        else:
            self.problem = ""
        is_late = warn_if_revised(before, new)
        self._described = time.monotonic()
        self._took = self._described - now
        count = self.layout.n_frames
        if new.layout.n_frames != count or _bytes(new) != _bytes(before):
            self.grown = self._described
        self.description, self.layout = new, new.layout
        # Other threads read the layout before they look for revisions, and these before the end.
        self.revisions += is_late
        self.ended = ends
        return self.layout.n_frames > count


def _bytes(desc: Description) -> int:
    return sum(file.size for file in desc.files)


def _present(desc: Description) -> tuple[object, ...]:
    """Return what changes with the files: their sizes, and the times of their folders."""
    paths = [file.path for file in desc.files]
    found = list[object]()
    for path in dict.fromkeys([*paths, *map(os.path.dirname, paths)]):
        with suppress(OSError):  # reported when the files are described again
            told = os.stat(path)
            found.append((told.st_size, told.st_mtime_ns))
    return tuple(found)
