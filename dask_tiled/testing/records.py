"""Files of records: a header, and what is written of each frame."""

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
    """Write a header and, of each frame and its number, a record; give the number of frames.

    The number of the ``first`` is that, and ``count`` is how many there have to be. A header that
    depends on the frames is a function of how many they are. It is called before the first one
    too, and its bytes are always as many.
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
    """Repeat a text for so many bytes; a reader that takes it for pixels is noticed."""
    if size < 0:
        raise ValueError(f"expected a size of 0 bytes or more, found {size}")
    return (text * (size // len(text) + 1))[:size]


def in_files(frames: Iterator[Array], frames_per_file: int | None) -> Iterator[Iterator[Array]]:
    """Yield the frames of each file; they have to be taken before those of the next one."""
    for frame in frames:
        yield chain([frame], islice(frames, frames_per_file and frames_per_file - 1))
