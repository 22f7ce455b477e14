"""Composition of pictures of tiling schemes: chunks over the array, tiles over a chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import format_bytes, format_shape
from dask_tiled.model.axes import Axis

Point = tuple[float, float]

MOST_LINES, MOST_DEEP_LINES = 32, 16
"""Maximum number of cuts drawn along an axis, and along the frames of a chunk."""
PANEL, GAP, DEPTH = 168.0, 46.0, 84.0
TITLE, TOP, BOTTOM = 18.0, 40.0, 66.0
SLANT = math.sqrt(3) / 2
LEAST_DEPTH = 3.0  # smallest depth of a tile, to keep it visible


class Shape(NamedTuple):
    """A polygon; with the style "cut", a line."""

    style: str
    points: tuple[Point, ...]


class Text(NamedTuple):
    """A line of text, anchored at its middle or its start."""

    text: str
    x: float
    y: float
    bold: bool = False
    upright: bool = False
    anchor: str = "middle"


class Drawing(NamedTuple):
    """Shapes and texts, in points from the upper left corner."""

    width: float
    height: float
    parts: tuple[Shape | Text, ...]


def picture(
    chunks: Sequence[tuple[int, ...]],
    known: Sequence[Axis],
    block: tuple[int, ...],
    tile: tuple[int, ...],
    dtype: np.dtype,
    edges: Sequence[Sequence[int]],
) -> Drawing:
    """Compose the picture of a scheme; ``edges`` bound the tiles of the chunk ``block``."""
    axes, nav_ndim = list(map(_Line, known, chunks, block)), len(chunks) - len(tile) + 1
    planes = [_Plane("navigation", axes[:nav_ndim]), _Plane("signal", axes[nav_ndim:])]
    box = _Box("chunk", edges[0], *[(0, 1), (0, 1), *edges[1:]][-2:])
    floor = TOP + max(box.height + box.back / 2, *(plane.height for plane in planes))
    parts: list[Shape | Text] = []
    x = GAP
    for plane in planes:
        parts += plane.parts(x, floor)
        x += plane.width + GAP
    sizes = [axis.chunks[axis.shown] for axis in axes]
    chunk_bytes, tile_bytes = (math.prod(shape) * dtype.itemsize for shape in (sizes, tile))
    count = math.prod(len(axis) - 1 for axis in edges)
    middle = x + box.width / 2
    parts += [
        *box.parts(x, floor),
        Text(f"one chunk, {format_bytes(chunk_bytes)}", middle, TITLE, bold=True),
        Text(f"{_count(count, 'tile')} of {format_shape(tile)}", middle, floor + 32),
        Text(f"{dtype}, {format_bytes(tile_bytes)}", middle, floor + 47),
    ]
    panels: list[_Plane | _Box] = [*planes, box]
    crowded = [panel.title for panel in panels if panel.crowded]
    if crowded:
        text = f"not all cuts are drawn: {', '.join(crowded)}"
        parts.append(Text(text, GAP, floor + BOTTOM, anchor="start"))
    width = x + box.width + max(box.back * SLANT + GAP, 90)
    return Drawing(width, floor + BOTTOM + 6, tuple(parts))


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _some(cuts: Sequence[float], most: int = MOST_LINES) -> Sequence[float]:
    """Return the cuts to draw: all of them, every second, and so on."""
    every = max(1, -(-len(cuts) // most))
    return cuts[every - 1 :: every]


def _fit(height: int, width: int) -> tuple[float, float]:
    """Return a height and a width in the ratio of the axes, clipped to stay legible."""
    ratio = min(max(height / width, 0.2), 5.0)
    return (PANEL, PANEL / ratio) if ratio > 1 else (PANEL * ratio, PANEL)


class _Line(NamedTuple):
    """An axis, its chunks, and the index of the highlighted chunk."""

    axis: Axis = Axis("")
    chunks: tuple[int, ...] = (1,)
    shown: int = 0

    def __str__(self) -> str:
        text = f"{self.axis.name} {sum(self.chunks)}"
        scaled = self.axis.units and f"{abs(self.axis.scale):.4g} {self.axis.units}"
        return f"{text} \N{MULTIPLICATION SIGN} {scaled}" if scaled else text

    def places(self, length: float) -> tuple[Sequence[float], float, float]:
        """Return the cuts to draw on an axis, and both ends of the highlighted chunk."""
        edges = [0.0, *(np.cumsum(self.chunks) * (length / sum(self.chunks))).tolist()]
        return _some(edges[1:-1]), edges[self.shown], edges[self.shown + 1]


class _Plane:
    """Panel of the last two axes: their chunks, one of them highlighted."""

    def __init__(self, title: str, axes: Sequence[_Line]) -> None:
        self.title, self.axes = title, axes
        self.y, self.x = [_Line(), _Line(), *axes][-2:]
        self.height, self.width = _fit(sum(self.y.chunks), sum(self.x.chunks))
        self.crowded = max(len(self.y.chunks), len(self.x.chunks)) - 1 > MOST_LINES

    def parts(self, left: float, floor: float) -> Iterator[Shape | Text]:
        rows, top, bottom = self.y.places(self.height)
        columns, first, last = self.x.places(self.width)

        def at(x: float, y: float) -> Point:
            return left + x, floor - self.height + y

        def rectangle(style: str, x0: float, y0: float, x1: float, y1: float) -> Shape:
            return Shape(style, (at(x0, y0), at(x1, y0), at(x1, y1), at(x0, y1)))

        for row in rows:
            yield Shape("cut", (at(0, row), at(self.width, row)))
        for column in columns:
            yield Shape("cut", (at(column, 0), at(column, self.height)))
        yield rectangle("outline", 0, 0, self.width, self.height)
        yield rectangle("chunk", first, top, last, bottom)
        yield from self._texts(left, floor)

    def _texts(self, left: float, floor: float) -> Iterator[Text]:
        middle = left + self.width / 2
        yield Text(self.title, middle, TITLE, bold=True)
        yield Text(self._caption(), middle, floor + 32)
        if self.axes:
            yield Text(str(self.x), middle, floor + 16)
        if len(self.axes) > 1:
            yield Text(str(self.y), left - 8, floor - self.height / 2, upright=True)
        if len(self.axes) > 2:
            more = ", ".join(map(str, self.axes[:-2]))
            yield Text(f"for each of {more}", middle, floor + 47)

    def _caption(self) -> str:
        count = math.prod(len(axis.chunks) for axis in self.axes)
        if count > 1:
            largest = format_shape(max(axis.chunks) for axis in self.axes)
            return f"{_count(count, 'chunk')} of {largest}"
        return "not cut" if self.axes else "one frame"


class _Box:
    """Panel of a chunk as a stack of frames in perspective, with its tiles, one highlighted."""

    def __init__(self, title: str, *edges: Sequence[int]) -> None:
        self.title = title
        self.sizes = [axis[-1] for axis in edges]  # frames, rows, columns
        self.tile = [axis[1] for axis in edges]
        self.height, self.width = _fit(*self.sizes[1:])
        self.back = DEPTH if self.sizes[0] > 1 else 6.0
        cuts, most = [axis[1:-1] for axis in edges], (MOST_DEEP_LINES, MOST_LINES, MOST_LINES)
        self.cuts = list(map(_some, cuts, most))
        self.crowded = any(map(int.__gt__, map(len, cuts), most))

    def parts(self, x: float, floor: float) -> Iterator[Shape | Text]:
        d, n, m = self.sizes

        def at(frame: float, row: float, column: float) -> Point:
            z = self.back * frame / d
            across, down = self.width * column / m, self.height * (1 - row / n)
            return x + across + z * SLANT, floor - down - z / 2

        def faces(style: str, deep: float, low: float, wide: float) -> Iterator[Shape]:
            corners = at(0, 0, 0), at(0, 0, wide), at(0, low, wide), at(0, low, 0)
            yield Shape(style, corners)
            yield Shape(style, (corners[0], at(deep, 0, 0), at(deep, 0, wide), corners[1]))
            if wide == m:  # the nearest side is visible
                right = corners[1], at(deep, 0, m), at(deep, low, m), corners[2]
                yield Shape(style, right)

        yield from faces("body", d, n, m)
        deep, low, wide = self.cuts
        for k in low:
            yield Shape("cut", (at(0, k, 0), at(0, k, m), at(d, k, m)))
        for k in wide:
            yield Shape("cut", (at(0, n, k), at(0, 0, k), at(d, 0, k)))
        for k in deep:
            yield Shape("cut", (at(k, 0, 0), at(k, 0, m), at(k, n, m)))
        yield from faces("outline", d, n, m)
        thick = min(d, max(self.tile[0], d * LEAST_DEPTH / self.back))
        yield from faces("tile", thick, *self.tile[1:])
        (x0, y0), (x1, y1) = at(0, n, m), at(d, n, m)
        yield Text(_count(d, "frame"), (x0 + x1) / 2 + 6, (y0 + y1) / 2 + 14, anchor="start")
