"""The thumbnails of rows, made in child processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from dask import config

from dask_tiled.apart.calls import EndedError
from dask_tiled.cataloguing.discovering import AHEAD, MOST_READERS
from dask_tiled.cataloguing.readers import HeaderReaders
from dask_tiled.cataloguing.rows import CatalogueRow
from dask_tiled.cataloguing.store import HeaderStore
from dask_tiled.cataloguing.thumbnails import read_thumbnail
from dask_tiled.cataloguing.walking import Stamp
from dask_tiled.errors import CorruptFileError, TruncatedFileError
from dask_tiled.formats.registry import add_formats, pickled_formats
from dask_tiled.tiling.machine import processors

SECONDS = 60.0
"""CPU seconds for a thumbnail, which may include the compilation of a decoder."""

Made = tuple[bytes, str]
"""A thumbnail, and why the pixels cannot be read."""


def with_thumbnails(
    rows: Iterable[CatalogueRow], store: HeaderStore | None
) -> Iterator[CatalogueRow]:
    """Yield rows with thumbnails, of which those that a store has are not made again."""
    count = min(processors(), MOST_READERS)
    waiting = deque[tuple[CatalogueRow, Future[Made] | bytes]]()

    def finished() -> CatalogueRow:
        row, made = waiting.popleft()
        png, problem = (made, "") if isinstance(made, bytes) else made.result()
        if store is not None and not isinstance(made, bytes) and not problem:
            store.keep_thumbnail(row.path, row.options, _stamp_of(row), png)
        return replace(row, thumbnail=png, problem=row.problem or problem)

    prepare = partial(_prepared, pickled_formats())
    with ThreadPoolExecutor(count) as threads, HeaderReaders(SECONDS, prepare) as readers:
        try:
            for row in rows:
                known = (
                    None
                    if store is None
                    else store.thumbnail(row.path, row.options, _stamp_of(row))
                )
                if row.problem or not row.shape:
                    known = b""
                made = threads.submit(_made, readers, row) if known is None else known
                waiting.append((row, made))
                if len(waiting) > AHEAD * count:
                    yield finished()
            while waiting:
                yield finished()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _prepared(registered: bytes) -> None:
    """Compute in the only thread of this child process, which has the formats of its parent."""
    add_formats(registered)
    config.set(scheduler="synchronous")


def _stamp_of(row: CatalogueRow) -> Stamp:
    return Stamp(row.stored_bytes, row.mtime_ns)


def _made(readers: HeaderReaders, row: CatalogueRow) -> Made:
    make = partial(read_thumbnail, row.path, row.options)
    try:
        return readers.read(make, alone=make), ""
    except (CorruptFileError, TruncatedFileError, EndedError) as error:
        told = str(error).removeprefix(f"{row.path}: ").replace("\n", ". ")
        return b"", f"its pixels cannot be read: {told}"
    except Exception:  # noqa: BLE001 - no picture can be drawn of it, whatever the reason
        return b"", ""
