"""Pieces that lie side by side in a file, though not in the array: they are read in one go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dask_tiled.coded import CodedRange
from dask_tiled.files import File
from dask_tiled.ranges import ReadRanges

MOST_BYTES = 1 << 20
"""So much is read in one go."""
GAP_BYTES = 1 << 12
"""So many bytes between two pieces are read as well: a page costs less than another call."""
SPARSE = 2
"""Where so many times more would be read than is wanted, each piece is read by itself."""


class Neighbours(NamedTuple):
    """Read ranges of one file, and the bytes that hold all of them."""

    file: File
    start: int
    stop: int
    ranges: list[ReadRanges]


def together(
    ranges: Iterable[ReadRanges | CodedRange],
) -> Iterator[ReadRanges | CodedRange | Neighbours]:
    """Put neighbours together. The order stays: of pieces that overlap, later ones are shown."""
    group: list[ReadRanges] = []
    file, low, high = None, 0, 0
    for piece in ranges:
        if isinstance(piece, CodedRange):
            yield from _grouped(group, low, high)
            group = []
            yield piece
            continue
        start, stop = piece.span
        near = start <= high + GAP_BYTES and stop >= low - GAP_BYTES
        if (
            group
            and near
            and piece.file == file
            and max(high, stop) - min(low, start) <= MOST_BYTES
        ):
            low, high = min(low, start), max(high, stop)
        else:
            yield from _grouped(group, low, high)
            group, file, low, high = [], piece.file, start, stop
        group.append(piece)
    yield from _grouped(group, low, high)


def _grouped(group: list[ReadRanges], low: int, high: int) -> Iterator[ReadRanges | Neighbours]:
    reaches = (piece.units.reach for piece in group)
    wanted = sum(len(p.offsets) * (b - a) for p, (a, b) in zip(group, reaches, strict=True))
    if len(group) > 1 and high - low <= SPARSE * (wanted + GAP_BYTES * len(group)):
        yield Neighbours(group[0].file, low, high, group)
    else:
        yield from group
