"""Growing files: noticed by their size, and described again when it changes."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from threading import Lock
from typing import Any, Self

from dask_tiled.errors import DatasetError, StaleFileError
from dask_tiled.model.description import Description
from dask_tiled.opened.growing import check_same
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
    """

    def __init__(self, opening: Opening, part: Description) -> None:
        self._opening = opening
        self.description = opening.described(part)
        super().__init__(self.description.layout)
        self.problem, self.ended = "", False
        self.grown = self._described = time.monotonic()
        self._took = 0.0
        self._sizes = self._present()
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

    def look(self) -> bool:
        """Describe the files again if they have changed; return whether frames were added.

        Threads may share the files: one looks at a time.

        Raises
        ------
        StaleFileError
            The files were replaced, truncated or rewritten.
        """
        if not self._looking.acquire(blocking=False):
            return False
        try:
            return self._look()
        finally:
            self._looking.release()

    def _look(self) -> bool:
        now, writer = time.monotonic(), self._opening.writer
        ends = not self.ended and writer is not None and not writer.is_running
        sizes, since = self._present(), now - self._described
        is_same = self.ended or (sizes == self._sizes and since < DESCRIBE)
        if not ends and (is_same or since < SHARE * self._took):
            return False
        before = self.description
        try:
            new = self._opening.described(before)
            check_same(before, new, 0)
        except StaleFileError:
            raise
        except DatasetError as error:  # a header may be half-written
            self.problem = str(error)
            new = before
        else:
            self.problem = ""
        self._sizes, self._described = sizes, time.monotonic()
        self._took = self._described - now
        count = self.layout.n_frames
        if new.layout.n_frames != count or _bytes(new) != _bytes(before):
            self.grown = self._described
        self.description, self.layout, self.ended = new, new.layout, ends
        return self.layout.n_frames > count

    def _present(self) -> tuple[object, ...]:
        """Return what changes with the files: their sizes, and the times of their folders."""
        paths = [file.path for file in self.description.files]
        found = list[object]()
        for path in dict.fromkeys([*paths, *map(os.path.dirname, paths)]):
            with suppress(OSError):  # reported when the files are described again
                told = os.stat(path)
                found.append((told.st_size, told.st_mtime_ns))
        return tuple(found)


def _bytes(desc: Description) -> int:
    return sum(file.size for file in desc.files)
