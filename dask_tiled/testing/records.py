"""Writer of files made of a header and one record per frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from dask_tiled.model.indexing import Array
from dask_tiled.testing.frames import StrPath


def write_records(
    path: StrPath,
    frames: Iterable[Array],
    record: Callable[[int, Array], bytes],
    *,
    header: bytes | Callable[[int], bytes] = b"",
    first: int = 0,
    count: int | None = None,
) -> int:
    """Write a header and a record for each frame, and return the number of frames.

    Records are numbered from `first`; `count` is the expected number of frames. A header that
    depends on the number of frames is a function of that number, and always returns the same number
    of bytes: it is called once before the first frame.
    """
    head = header if callable(header) else lambda _: header
    number = first
    with Path(path).open("wb") as file:
        file.write(head(0))
        for number, frame in enumerate(frames, first + 1):
            file.write(record(number - 1, frame))
        if count not in (None, number - first):
            raise ValueError(f"expected {count} frames, found {number - first}")
        file.seek(0)
        file.write(head(number - first))
    return number - first


def filler(text: bytes, size: int) -> bytes:
    """Repeat a text up to `size` bytes, which a reader would not mistake for pixels."""
    if size < 0:
        raise ValueError(f"expected a size of 0 bytes or more, found {size}")
    return (text * (size // len(text) + 1))[:size]


def in_files(frames: Iterator[Array], frames_per_file: int | None) -> Iterator[Iterator[Array]]:
    """Yield an iterator over the frames of each file, to be consumed before the next."""
    for frame in frames:
        yield chain([frame], islice(frames, frames_per_file and frames_per_file - 1))
