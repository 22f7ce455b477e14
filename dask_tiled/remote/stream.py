"""A remote file as a Python file object."""

from __future__ import annotations

import errno
import io
import os
from typing import Any

from dask_tiled.remote.session import session
from dask_tiled.remote.stores import FilePlace, Version


class Stream(io.BufferedReader):
    """A buffered file object that reads a remote file in blocks, for other libraries."""

    def __init__(self, place: FilePlace, version: Version) -> None:
        super().__init__(_Bytes(place, version), 1 << 14)

    def __repr__(self) -> str:  # h5py uses it as the file name
        return repr(self.raw)


class _Bytes(io.RawIOBase):
    """The raw file object below :class:`Stream`."""

    def __init__(self, place: FilePlace, version: Version) -> None:
        self._place, self._version = place, version
        self._at = 0

    def __repr__(self) -> str:
        return self._place.url

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; raise an OSError for one before the start, as local files do."""
        at = offset + (0, self._at, self._version.size)[whence]
        if at < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._place.url)
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; fewer bytes at the end of the file."""
        stop = self._at + len(buffer)
        data = session().read(self._place, self._version, self._at, stop)
        memoryview(buffer)[: len(data)] = data.data
        self._at += len(data)
        return len(data)
