"""A file behind a URL as Python's files are."""

from __future__ import annotations

import io
from typing import Any

from dask_tiled.remote.session import session
from dask_tiled.remote.stores import Place, Version


class Stream(io.BufferedReader):
    """A file behind a URL, read by blocks, for libraries that read files."""

    def __init__(self, place: Place, version: Version) -> None:
        super().__init__(_Bytes(place, version), 1 << 14)

    def __repr__(self) -> str:  # what h5py takes for its name
        return repr(self.raw)


class _Bytes(io.RawIOBase):
    """The bytes of a file behind a URL."""

    def __init__(self, place: Place, version: Version) -> None:
        self._place, self._version = place, version
        self._at = 0

    def __repr__(self) -> str:
        return self._place.url

    def readable(self) -> bool:
        """Say so to those who ask."""
        return True

    def seekable(self) -> bool:
        """Say so to those who ask."""
        return True

    def tell(self) -> int:
        """Return the byte that is read next."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere else."""
        self._at = offset + (0, self._at, self._version.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as much as there is room for, or less at the end."""
        stop = self._at + len(buffer)
        data = session().read(self._place, self._version, self._at, stop)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
