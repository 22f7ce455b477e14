"""Bytes of remote files: asked for again where that may help, several at once, and kept."""

from __future__ import annotations

import os
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError, RemoteError, StaleFileError
from dask_tiled.remote.stores import Place, Store, Version, check_process, said

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]
Result = TypeVar("Result")

ATTEMPTS = 6
"""So often a request is made before it counts as failed."""
PAUSE = 0.1
"""Seconds before the second one; twice as many before each that follows."""
REQUESTS = 16
"""So many requests of a process are under way at once."""
REQUEST_BYTES = 4 << 20
"""So much is asked for at once."""
GAP_BYTES = 1 << 18
"""What lies nearer to each other is asked for together: so much comes in the time of an answer."""
BLOCK_BYTES = 1 << 16
"""Headers are read in blocks of this size, which are kept."""
KEPT_BLOCKS = 512
"""So many blocks, of all files of a process."""

_blocks: OrderedDict[tuple[Place, Version, int], Bytes] = OrderedDict()
_pool: ThreadPoolExecutor | None = None


def _forget() -> None:
    global _pool  # noqa: PLW0603
    _pool = None  # its threads are the parent's


os.register_at_fork(after_in_child=_forget)


def persist(place: Place, request: Callable[[Store], Result], **details: Any) -> Result:
    """Make a request, again and again for a while.

    Raises
    ------
    FileNotFoundError, PermissionError, DatasetError
        As the server says.
    RemoteError
        It says nothing of use; with these details.
    """
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))  # noqa: S311
        try:
            return request(place.store())
        except (DatasetError, FileNotFoundError, PermissionError):
            raise
        except Exception as error:  # noqa: BLE001 - libraries raise anything for what may heal
            problem = error
    raise RemoteError(
        f"the server does not answer as it should, asked {ATTEMPTS} times",
        path=place.url,
        found=said(problem),
        **details,
    ) from None


def ask(place: Place, start: int, stop: int) -> tuple[Bytes, Version]:
    """Ask for some bytes, and the version of the file; errors are those of :func:`persist`."""

    def request(store: Store) -> tuple[Bytes, Version]:
        data, version = store.read(place.url, start, stop)
        if len(data) != max(0, min(stop, version.size) - start):
            raise EOFError(f"{len(data)} bytes, of a file of {version.size}")
        return np.frombuffer(data, np.uint8), version

    expected = f"{stop - start} bytes, or up to the end"
    return persist(place, request, where=f"byte {start}", expected=expected)


def ask_version(place: Place) -> Version:
    """Find out size and version of a file; its first block is kept.

    Raises
    ------
    FileNotFoundError, PermissionError, RemoteError
        As for :func:`persist`.
    """
    block, version = ask(place, 0, BLOCK_BYTES)
    _keep((place, version, 0), block)
    return version


def fetch(place: Place, version: Version, start: int, stop: int) -> Bytes:
    """Fetch some bytes of a version of a file.

    Raises
    ------
    StaleFileError
        There is another one by now, or none.
    PermissionError, RemoteError
        As for :func:`persist`.
    """
    try:
        data, found = ask(place, start, stop)
    except FileNotFoundError as error:
        problem, expected = "the file has gone since it was opened", f"{version.size} bytes"
        raise StaleFileError(problem, path=place.url, expected=expected, found="no file") from error
    check(place, version, found)
    return data


def check(place: Place, version: Version, found: Version) -> None:
    """Make sure that a version is the one that was opened.

    Raises
    ------
    StaleFileError
        It is another one.
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


def submit(place: Place, version: Version, start: int, stop: int) -> Future[Bytes]:
    """Fetch some bytes in another thread."""
    global _pool  # noqa: PLW0603
    check_process()
    if _pool is None:
        _pool = ThreadPoolExecutor(REQUESTS, "remote-bytes")
    return _pool.submit(fetch, place, version, start, stop)


def merge(starts: Index, stops: Index) -> tuple[Index, Index]:
    """Put spans together that overlap, or that lie near to each other; in order of their bytes."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    apart = np.flatnonzero(starts[1:] - stops[:-1] > GAP_BYTES)
    return starts[np.r_[0, apart + 1]], stops[np.r_[apart, len(stops) - 1]]


def requests(starts: Index, stops: Index) -> list[tuple[int, int]]:
    """Cut spans into even parts that can be asked for at once."""
    cuts: list[tuple[int, int]] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        parts = max(1, -(-(stop - start) // REQUEST_BYTES))
        ends = [start + (stop - start) * k // parts for k in range(parts + 1)]
        cuts += pairwise(ends)
    return cuts


def fetch_all(place: Place, version: Version, spans: Sequence[tuple[int, int]]) -> list[Bytes]:
    """Fetch several spans of a file at once; errors are those of :func:`fetch`."""
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
    """Cut a span out of parts that begin at these bytes, and follow each other inside of it."""
    first = int(np.searchsorted(firsts, start, "right")) - 1
    last = max(first + 1, int(np.searchsorted(firsts, stop)))
    whole = parts[first] if last == first + 1 else np.concatenate(parts[first:last])
    origin = int(firsts[first])
    return whole[start - origin : stop - origin]


def read_blocks(place: Place, version: Version, start: int, stop: int) -> Bytes:
    """Read some bytes of a file by blocks, of which some may be here already.

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
        found[n] = data.copy()  # not the rest of the answer with it
    for n in numbers:
        _keep((place, version, n), found[n])
    firsts = np.arange(numbers.start, numbers.stop) * BLOCK_BYTES
    return cut_out([found[n] for n in numbers], firsts, start, stop)


def _keep(key: tuple[Place, Version, int], block: Bytes) -> None:
    # Each step is one of the interpreter: no lock is needed that a fork could leave locked.
    _blocks.pop(key, None)
    _blocks[key] = block
    while len(_blocks) > KEPT_BLOCKS:
        try:
            _blocks.popitem(last=False)
        except KeyError:  # another thread was quicker
            break
