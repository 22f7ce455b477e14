"""Requests for bytes of remote files: retried, several at a time, and cached in blocks."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError, RemoteError, StaleFileError
from dask_tiled.remote.stores import FilePlace, Store, Version, check_process, first_line
from dask_tiled.system.forks import after_fork

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]
Result = TypeVar("Result")

ATTEMPTS = 6
"""Attempts before a request fails."""
PAUSE = 0.1
"""Seconds before the second attempt; doubled before each further attempt."""
REQUESTS = 16
"""Concurrent requests of a process."""
REQUEST_BYTES = 4 << 20
"""Largest request."""
GAP_BYTES = 1 << 18
"""Ranges with smaller gaps are requested together: fetching a gap costs less than a round trip."""
BLOCK_BYTES = 1 << 16
"""Size of the cached blocks in which headers are read."""
KEPT_BLOCKS = 512
"""Maximum number of blocks in the cache of a process."""

_blocks: OrderedDict[tuple[FilePlace, Version, int], Bytes] = OrderedDict()
_pool: ThreadPoolExecutor | None = None


def _forget() -> None:
    global _pool  # noqa: PLW0603
    _pool = None  # a fork does not copy threads


after_fork(_forget)


def persist(place: FilePlace, request: Callable[[Store], Result], **details: Any) -> Result:
    """Make a request, with retries.

    Raise a FileNotFoundError, PermissionError or DatasetError if the server refuses the request,
    and a RemoteError if all attempts have failed; the error has the given details.
    """
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))  # noqa: S311
        try:
            return request(place.store())
        except (DatasetError, FileNotFoundError, PermissionError):
            raise
        except Exception as error:  # noqa: BLE001 - libraries raise many errors for transient failures
            problem = error
    raise RemoteError(
        f"the server failed {ATTEMPTS} times",
        path=place.url,
        found=first_line(problem),
        hint=_proxy_of(place.url),
        **details,
    ) from None


def _proxy_of(url: str) -> str | None:
    """Name the proxy of requests for a URL, without its password."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    scheme = "http" if parts.scheme == "http" else "https"  # object stores are reached by HTTPS
    proxy = getproxies().get(scheme)
    if proxy is None or proxy_bypass(parts.hostname or ""):
        return None
    return f"{scheme}_proxy sets the proxy {proxy.rpartition('@')[2]}; no_proxy lists exceptions."


def ask(place: FilePlace, start: int, stop: int) -> tuple[Bytes, Version]:
    """Request a byte range and the version of the file; errors are those of :func:`persist`."""

    def request(store: Store) -> tuple[Bytes, Version]:
        data, version = store.read(place.url, start, stop)
        if len(data) != max(0, min(stop, version.size) - start):
            raise EOFError(f"{len(data)} bytes of a file of {version.size}")
        return np.frombuffer(data, np.uint8), version

    expected = f"{stop - start} bytes, or fewer at the end"
    return persist(place, request, where=f"byte {start}", expected=expected)


def ask_version(place: FilePlace) -> Version:
    """Request size and version of a file; cache its first block.

    Raises
    ------
    FileNotFoundError, PermissionError, RemoteError
        As for :func:`persist`.
    """
    block, version = ask(place, 0, BLOCK_BYTES)
    _keep((place, version, 0), block)
    return version


def fetch(place: FilePlace, version: Version, start: int, stop: int) -> Bytes:
    """Fetch bytes of one version of a file.

    Raises
    ------
    StaleFileError
        The file has changed or has been removed.
    PermissionError, RemoteError
        As for :func:`persist`.
    """
    try:
        data, found = ask(place, start, stop)
    except FileNotFoundError as error:
        problem, expected = "the file has been removed since it was opened", f"{version.size} bytes"
        raise StaleFileError(problem, path=place.url, expected=expected, found="no file") from error
    check(place, version, found)
    return data


def check(place: FilePlace, version: Version, found: Version) -> None:
    """Check that a version is the one that was opened.

    Raise a StaleFileError if the version has changed.
    """
    if found != version:
        then, now = (f"{one.size} bytes, tag {one.tag or 'unknown'}" for one in (version, found))
        raise StaleFileError(
            "the file has changed since it was opened",
            path=place.url,
            expected=then,
            found=now,
            hint="Open it again to read its present content.",
        )


def submit(place: FilePlace, version: Version, start: int, stop: int) -> Future[Bytes]:
    """Fetch bytes in another thread."""
    global _pool  # noqa: PLW0603
    check_process()
    if _pool is None:
        _pool = ThreadPoolExecutor(REQUESTS, "remote-bytes")
    return _pool.submit(fetch, place, version, start, stop)


def merge(starts: Index, stops: Index) -> tuple[Index, Index]:
    """Merge ranges that overlap or have small gaps; return them in file order."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    apart = np.flatnonzero(starts[1:] - stops[:-1] > GAP_BYTES)
    return starts[np.r_[0, apart + 1]], stops[np.r_[apart, len(stops) - 1]]


def requests(starts: Index, stops: Index) -> list[tuple[int, int]]:
    """Split ranges evenly into requests of at most ``REQUEST_BYTES``."""
    cuts: list[tuple[int, int]] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        parts = max(1, -(-(stop - start) // REQUEST_BYTES))
        ends = [start + (stop - start) * k // parts for k in range(parts + 1)]
        cuts += pairwise(ends)
    return cuts


def fetch_all(place: FilePlace, version: Version, spans: Sequence[tuple[int, int]]) -> list[Bytes]:
    """Fetch several ranges of a file concurrently; errors are those of :func:`fetch`."""
    if not spans:
        return []
    starts, stops = np.array(spans, np.int64).T
    wanted = requests(*merge(starts, stops))
    if len(wanted) == 1:
        parts = [fetch(place, version, *wanted[0])]
    else:
        futures = [submit(place, version, *span) for span in wanted]
        try:
            parts = [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
    firsts = np.array([start for start, _ in wanted])
    return [cut_out(parts, firsts, start, stop) for start, stop in spans]


def cut_out(parts: Sequence[Bytes], firsts: Index, start: int, stop: int) -> Bytes:
    """Return a range from contiguous ``parts``, whose first bytes are at ``firsts``."""
    first = int(np.searchsorted(firsts, start, "right")) - 1
    last = max(first + 1, int(np.searchsorted(firsts, stop)))
    whole = parts[first] if last == first + 1 else np.concatenate(parts[first:last])
    origin = int(firsts[first])
    return whole[start - origin : stop - origin]


def read_blocks(place: FilePlace, version: Version, start: int, stop: int) -> Bytes:
    """Read bytes of a file in blocks, using cached blocks.

    Errors are those of :func:`fetch`.
    """
    stop = min(stop, version.size)
    if start >= stop:
        return np.empty(0, np.uint8)
    numbers = range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
    kept = {n: _blocks.get((place, version, n)) for n in numbers}
    found = {n: block for n, block in kept.items() if block is not None}
    missing = [n for n in numbers if n not in found]
    spans = [(n * BLOCK_BYTES, min((n + 1) * BLOCK_BYTES, version.size)) for n in missing]
    for n, data in zip(missing, fetch_all(place, version, spans), strict=True):
        found[n] = data.copy()  # a view would keep the whole response in memory
    for n in numbers:
        _keep((place, version, n), found[n])
    firsts = np.arange(numbers.start, numbers.stop) * BLOCK_BYTES
    return cut_out([found[n] for n in numbers], firsts, start, stop)


def _keep(key: tuple[FilePlace, Version, int], block: Bytes) -> None:
    # Each step is atomic: there is no lock that a fork could leave locked.
    _blocks.pop(key, None)
    _blocks[key] = block
    while len(_blocks) > KEPT_BLOCKS:
        try:
            _blocks.popitem(last=False)
        except KeyError:  # another thread removed it
            break
