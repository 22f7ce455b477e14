"""Sessions: cached lookups of URLs while files are described."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import quote

from dask_tiled.errors import DatasetError, RemoteError
from dask_tiled.remote.fetching import Bytes, ask_version, persist, read_blocks
from dask_tiled.remote.stores import (
    HTTP,
    SAFE,
    FilePlace,
    FolderListing,
    Options,
    Version,
    place_of,
)


class Session:
    """Files that are opened together, and files next to them; each is looked up once."""

    def __init__(self, urls: Sequence[str] = (), options: Options = None) -> None:
        self._options = options
        self._places: dict[str, FilePlace] = {}
        self._versions: dict[str, Version | OSError] = {}
        self._names: dict[str, FolderListing | None] = {}
        for place in (place_of(url, options) for url in urls):
            if self._places.setdefault(place.url, place) != place:
                problem = "URLs must not differ only in their queries"
                raise DatasetError(problem, path=place.url)
        self.urls = tuple(self._places)
        """The opened URLs, without queries."""

    def covers(self, urls: Sequence[str]) -> bool:
        """Return whether a session of several files already includes these URLs."""
        return self._places.keys() >= set(urls)

    def place(self, url: str) -> FilePlace:
        """Return the place of a URL; unopened files get the options of the opened ones."""
        if url not in self._places:
            known = next(iter(self._places.values()), None)
            place = known._replace(url=url) if known else place_of(url, self._options)
            self._places[url] = place
        return self._places[url]

    def look(self, url: str) -> tuple[FilePlace, Version]:
        """Look up the version of a file, once.

        Raise a FileNotFoundError, PermissionError or RemoteError if the server refuses the request,
        or keeps failing.
        """
        place = self.place(url)
        if url not in self._versions:
            try:
                self._versions[url] = ask_version(place)
            except (FileNotFoundError, PermissionError) as error:
                self._versions[url] = error
        found = self._versions[url]
        if isinstance(found, OSError):
            raise found
        return place, found

    def names(self, folder: str) -> list[str] | None:
        """List the files in a folder; None if the server has no listings."""
        found = self._listing(folder)
        return None if found is None else found.files

    def folders(self, folder: str) -> list[str] | None:
        """List the folders in a folder; None if the server has no listings."""
        found = self._listing(folder)
        return None if found is None else found.folders

    def _listing(self, folder: str) -> FolderListing | None:
        if folder not in self._names:
            place = self.place(folder)
            try:
                self._names[folder] = persist(place, lambda store: store.names(folder))
            except RemoteError:  # callers then try file names, and report errors
                self._names[folder] = None
        return self._names[folder]

    def read(self, place: FilePlace, version: Version, start: int, stop: int) -> Bytes:
        """Read bytes in blocks; errors are those of :func:`~.fetching.fetch`."""
        return read_blocks(place, version, start, stop)


_session: ContextVar[Session | None] = ContextVar("session", default=None)


@contextmanager
def opened_together(session: Session) -> Iterator[None]:
    """Use a session in this context."""
    token = _session.set(session)
    try:
        yield
    finally:
        _session.reset(token)


def session() -> Session:
    """Return the session of the context, or an empty one."""
    return _session.get() or Session()


def join(folder: str, name: str) -> str:
    """Return the URL of a file in a folder, given its name as another file writes it."""
    scheme, _, rest = folder.partition("://")
    server, _, path = rest.partition("/")
    found = posixpath.normpath(posixpath.join("/", path, name))
    return f"{scheme}://{server}{quote(found, safe=SAFE) if scheme in HTTP else found}"
