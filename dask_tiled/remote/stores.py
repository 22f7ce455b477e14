"""Stores that read URLs: obstore, or fsspec for other schemes."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote, urljoin

from dask_tiled.errors import DatasetError, RemoteError, require
from dask_tiled.remote.redirects import has_secrets, redirected
from dask_tiled.system.forks import after_fork

HTTP = ("http", "https")
OBJECTS = (*HTTP, "s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
"""URL schemes that obstore reads."""
TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "300s"}
MOST_LISTING = 1 << 24
TELLING = (
    *("ETag", "etag", "e_tag", "md5", "checksum", "generation", "CRC", "date_time", "created"),
    *("mtime", "modify", "modified", "updated", "LastModified", "last_modified", "Last-Modified"),
)
"""Keys that fsspec file systems use for the version of a file."""
LINK = re.compile(rb"""<a\s[^>]*?href\s*=\s*["']([^"'?#]+)""", re.IGNORECASE)
SAFE = "/:[]~*"
STATUS = re.compile(r"status(?: code)?: (\d{3})")
FINAL = set(range(400, 500)) - {408, 425, 429}
"""HTTP statuses that a retry would not change."""
IDENTITY = re.compile(r"/latest/(api|meta-data)|/computeMetadata/|/metadata/identity")
"""Addresses where cloud machines ask for credentials; unreachable elsewhere."""
QUERY = re.compile(r"\?[^\s?]+=\S*")
Options = Mapping[str, Any] | Any
"""Keywords of obstore's store or fsspec's file system, or such an object itself."""


class Version(NamedTuple):
    """Size and tag that identify one version of a file."""

    size: int
    tag: str
    """Entity tag, or the time of the last change; empty if the server sends neither."""


class FolderListing(NamedTuple):
    """Names in a folder."""

    files: list[str]
    folders: list[str]


class Store(Protocol):
    """Reads the files of one server or bucket."""

    def read(self, url: str, start: int, stop: int) -> tuple[Any, Version]:
        """Return bytes of a file, fewer at its end, and its version.

        Raise a FileNotFoundError, PermissionError or RemoteError if the file is missing, forbidden,
        or has no byte ranges. Other errors are retried.
        """

    def names(self, url: str) -> FolderListing | None:
        """List a folder; None if the server cannot list."""


class FilePlace(NamedTuple):
    """Location of a file with all that another process needs to read it."""

    url: str
    query: str
    """Query of an HTTP URL, which may be a secret."""
    options: bytes
    """Pickled options, which may be secrets and need not be hashable."""

    def store(self) -> Store:
        """Return the store of the file, cached with its connections in this process."""
        check_process()
        scheme, _, rest = self.url.partition("://")
        return _store(f"{scheme}://{rest.partition('/')[0]}", self.query, self.options)


def place_of(url: str, options: Options) -> FilePlace:
    """Return the place of a URL that is read with some options.

    Raise a DatasetError if the URL or its options are invalid, or the options cannot be pickled.
    """
    from fsspec import AbstractFileSystem
    from fsspec.core import url_to_fs

    _check_no_password(url)
    query = ""
    given = {} if options is None else options
    if not isinstance(given, (Mapping, AbstractFileSystem)) and not _is_store(given):
        expected = "a mapping, a store of obstore, or a file system of fsspec"
        raise DatasetError(
            "invalid storage options", path=url, expected=expected, found=type(given)
        )
    if isinstance(given, AbstractFileSystem):
        url = given.unstrip_protocol(given._strip_protocol(url))  # noqa: SLF001 - no public method
    elif not _is_store(given) and ("::" in url or url.partition("://")[0].lower() not in OBJECTS):
        try:
            given, path = url_to_fs(url, **given)
        except (FileNotFoundError, PermissionError):
            raise
        except Exception as error:  # file systems raise many errors
            problem = "fsspec cannot open this URL with these options"
            raise DatasetError(problem, path=url, found=first_line(error)) from error
        url = given.unstrip_protocol(path)
    else:
        scheme, _, rest = url.partition("://")
        url = f"{scheme.lower()}://{rest}"
        if scheme.lower() in HTTP:
            path, mark, rest = url.partition("?")
            url, query = normal(path), mark + rest
    try:
        packed = pickle.dumps(given) if given else b""
    except Exception as error:
        problem = "these storage options cannot be pickled for other processes"
        raise DatasetError(problem, path=url, found=str(error)) from error
    return FilePlace(url, query, packed)


def _check_no_password(url: str) -> None:
    """Refuse URLs with a password, which errors would show; for HTTP, also with a user name."""
    for one in url.split("::"):
        scheme, _, rest = one.partition("://")
        user, _, _ = rest.partition("?")[0].partition("/")[0].rpartition("@")
        http = scheme.lower() in HTTP
        if ":" in user or (user and http):
            place = "the default_headers of client_options" if http else "storage_options"
            hint = f"Pass it in {place}, which are never displayed."
            raise DatasetError("the URL has a user name or a password", hint=hint)


def _is_store(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "obstore"


def normal(path: str) -> str:
    """Normalise the path of a URL: escape all but letters, digits and ``SAFE``."""
    return quote(unquote(path), safe=SAFE)


_forked = False


def _after_fork() -> None:
    global _forked  # noqa: PLW0603
    _forked = _store.cache_info().currsize > 0


def check_process() -> None:
    """Raise in a forked child, whose inherited connections never answer."""
    if _forked:
        raise RemoteError(
            "this process was forked after reading remote files",
            hint='Start processes by "spawn" or "forkserver".',
        )


@lru_cache(maxsize=64)
def _store(root: str, query: str, options: bytes) -> Store:
    given: Any = pickle.loads(options) if options else {}  # noqa: S301 - pickled here
    if isinstance(given, Mapping) or _is_store(given):
        return Objects(root, query, given)
    return FileSystem(given)


after_fork(_after_fork)


class Objects:
    """Files that obstore reads."""

    def __init__(self, root: str, query: str, options: Any) -> None:
        self._obstore = require("obstore", "remote", root)
        self._root = root
        self._query = query
        self._http = root.startswith(("http://", "https://"))
        given = {} if _is_store(options) else options
        client = {**TIMEOUTS, "allow_http": True} | dict(given.get("client_options", {}))
        # ``persist`` makes all retries.
        self._options = {"retry_config": {"max_retries": 0}, **given, "client_options": client}
        self._store = options if _is_store(options) else self._open(root + query)
        self._client = getattr(options, "client_options", None) or client
        self._guarded = self._http and has_secrets(query, self._client)
        self._direct: set[str] = set()

    def _open(self, url: str, **options: Any) -> Any:
        from obstore.store import from_url

        try:
            return from_url(url, **{**self._options, **options})
        except Exception as error:  # noqa: BLE001 - libraries raise many errors
            problem = "unknown store, or invalid option"
            path = url.partition("?")[0]
            raise DatasetError(problem, path=path, found=first_line(error)) from None

    def _located(self, url: str) -> tuple[Any, str]:
        """Return the store and key of a file; on another host, without the headers."""
        if self._guarded and url not in self._direct:
            target = redirected(url + self._query, self._client)
            if target is not None:  # looked up each time, as such addresses often expire
                client = {k: v for k, v in self._client.items() if k != "default_headers"}
                return self._open(target, client_options=client), ""
            self._direct.add(url)
        return self._store, self._key(url)

    def read(self, url: str, start: int, stop: int) -> tuple[Any, Version]:
        """Request a byte range."""
        found = self._ask(url, *self._located(url), {"range": (start, stop)})
        if found is None:
            return b"", self.read(url, 0, 1)[1] if start else Version(0, "")
        return self._body(url, found, stop - start), _version(found.meta)

    def _body(self, url: str, found: Any, most: int) -> bytes:
        """Read at most ``most`` bytes of a response; refuse a longer one."""
        body: bytes = next(found.stream(most + 1), b"")
        if len(body) > most:
            problem = "the server sends more bytes than requested"
            raise RemoteError(
                problem, path=url, expected=f"{most} bytes at most", found="more bytes"
            )
        return body

    def _key(self, url: str) -> str:
        key = url[len(self._root) + 1 :]
        return unquote(key) if self._http else key

    def _ask(self, url: str, store: Any, key: str, options: Any) -> Any:
        exceptions = self._obstore.exceptions
        try:
            return self._obstore.get(store, key, options=options)
        except exceptions.NotSupportedError:
            raise RemoteError(
                "the server does not support byte ranges",
                path=url,
                expected="status 206 for a byte range",
                found="the whole file",
                hint="Copy the file to this machine.",
            ) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(f"{url}: access denied: {first_line(error)}") from None
        except exceptions.GenericError as error:
            if IDENTITY.search(str(error)):
                problem = "no credentials found"
                hint = "For public files, pass skip_signature=True in storage_options."
                raise RemoteError(problem, path=url, hint=hint) from None
            status = STATUS.search(str(error))
            if status is None or int(status[1]) not in FINAL:
                raise
            if int(status[1]) == 416:  # the range begins at or beyond the end
                return None
            problem = "the server rejects the request"
            raise RemoteError(problem, path=url, found=first_line(error)) from None
        except FileNotFoundError:
            raise FileNotFoundError(f"{url}: no such file") from None
        except ValueError as error:
            raise DatasetError("invalid file name", path=url, found=first_line(error)) from None

    def names(self, url: str) -> FolderListing | None:
        """List a prefix of a bucket, or the links of a folder's HTML page."""
        try:
            if not self._http:
                found = self._obstore.list_with_delimiter(self._store, self._key(url))
                files = [one["path"].rpartition("/")[2] for one in found["objects"]]
                folders = [one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"]]
                return FolderListing(files, folders)
            folder = f"{url}/"
            store, key = self._located(folder)
            if store is self._store:
                store, key = self._open(folder + self._query), ""
            page = self._ask(folder, store, key, {})
            kind = str(page.attributes.get("Content-Type", "")) if page else ""
            if not kind.startswith("text/html") or page.meta["size"] > MOST_LISTING:
                return None
            return _linked(folder, self._body(folder, page, MOST_LISTING))
        except (OSError, RemoteError, self._obstore.exceptions.NotSupportedError):
            return None
        except self._obstore.exceptions.PermissionDeniedError:
            return None


def _linked(folder: str, page: bytes) -> FolderListing:
    """List the files and folders that the HTML page of a folder links to."""
    links = (link.decode("utf8", "replace") for link in LINK.findall(page))
    urls = (normal(urljoin(folder, link)) for link in links)
    names = dict.fromkeys(url.removeprefix(folder) for url in urls if url.startswith(folder))
    inside = [name for name in names if name and "/" not in name[:-1]]
    folders = [name[:-1] for name in inside if name.endswith("/")]
    return FolderListing([name for name in inside if not name.endswith("/")], folders)


def _version(meta: Mapping[str, Any]) -> Version:
    changed: datetime = meta["last_modified"]
    when = changed.isoformat() if changed.timestamp() else ""  # a missing date is read as 1970
    return Version(meta["size"], meta["e_tag"] or when)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without URL queries, which may be secrets."""
    return QUERY.sub("?...", str(error).partition("\n")[0])[:300] or type(error).__name__


class FileSystem:
    """Files that fsspec reads."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def read(self, url: str, start: int, stop: int) -> tuple[Any, Version]:
        """Request a byte range, and the version before and after."""
        path = self._system._strip_protocol(url)  # noqa: SLF001 - not all methods do so
        before = self._look(path)
        stop = min(stop, before.size)
        data = self._system.cat_file(path, start=start, end=stop) if start < stop else b""
        if len(data) > stop - start > 0:
            raise RemoteError("the file system does not support byte ranges", path=url)
        after = self._look(path)
        return data, after if after == before else after._replace(tag=f"{after.tag}, changing")

    def _look(self, path: str) -> Version:
        self._system.invalidate_cache(os.path.dirname(path))
        info = self._system.info(path)
        if info["type"] != "file" or info["size"] is None:
            found = f"a {info['type']}, of {info['size']} bytes"
            raise RemoteError("not a file", path=path, expected="a file", found=found)
        told = (f"{name} {info[name]}" for name in TELLING if info.get(name) is not None)
        return Version(info["size"], ", ".join(told))

    def names(self, url: str) -> FolderListing | None:
        """List a folder."""
        path = self._system._strip_protocol(url)  # noqa: SLF001 - as above
        try:
            listed = self._system.ls(path, detail=True)
        except (OSError, NotImplementedError):
            return None
        names = [(os.path.basename(one["name"].rstrip("/")), one["type"]) for one in listed]
        folders = [name for name, kind in names if kind == "directory"]
        return FolderListing([name for name, kind in names if kind != "directory"], folders)
