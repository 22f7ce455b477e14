"""Pieces that lie side by side in a file, though not in the array: they are read in one go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dask_tiled.model.blocks import BlockRange
from dask_tiled.model.files import File
from dask_tiled.reading.ranges import ReadRanges

MOST_BYTES = 1 << 20
"""So much is read in one go."""


class Adjacent(NamedTuple):
    """Read ranges of one file, and the bytes that they are."""

    file: File
    start: int
    stop: int
    ranges: list[ReadRanges]


def together(
    ranges: Iterable[ReadRanges | BlockRange],
) -> Iterator[ReadRanges | BlockRange | Adjacent]:
    """Put neighbours together. The order stays: of pieces that overlap, later ones are shown."""
    group: list[ReadRanges] = []
    low, high = 0, 0
    for piece in ranges:
        # Nothing is read that no piece wants: backends know best how to go over gaps.
        if isinstance(piece, BlockRange) or piece.span[1] - piece.span[0] > piece.nbytes:
            yield from _grouped(group, low, high)
            group = []
            yield piece
            continue
        start, stop = piece.span
        first, last = min(low, start), max(high, stop)
        near = start <= high and stop >= low and last - first <= MOST_BYTES
        if group and near and piece.file == group[0].file:
            low, high = first, last
        else:
            yield from _grouped(group, low, high)
            group, low, high = [], start, stop
        group.append(piece)
    yield from _grouped(group, low, high)


def _grouped(group: list[ReadRanges], low: int, high: int) -> Iterator[ReadRanges | Adjacent]:
    if len(group) > 1:
        yield Adjacent(group[0].file, low, high, group)
    else:
        yield from group
