"""Pictures of tiling schemes, composed: chunks over the array, tiles over a chunk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import format_bytes

Point = tuple[float, float]

MOST_LINES, MOST_DEEP_LINES = 32, 16
"""More cuts along an axis, or along the frames of a chunk, are not all drawn."""
PANEL, GAP, DEPTH = 168.0, 46.0, 84.0
TOP, BOTTOM = 40.0, 66.0
TITLE, SLANT = 18.0, math.sqrt(3) / 2
LEAST_DEPTH = 3.0  # of a tile, so that it can be seen


class Shape(NamedTuple):
    """A polygon; for the style "cut", a line.

    Attributes
    ----------
    style : {"outline", "cut", "body", "chunk", "tile"}
    points : tuple of (float, float)
    """

    style: str
    points: tuple[Point, ...]


class Text(NamedTuple):
    """A line of text at a place, which is its middle or its start."""

    text: str
    x: float
    y: float
    bold: bool = False
    upright: bool = False
    anchor: str = "middle"


class Picture(NamedTuple):
    """What is drawn, in points, from the upper left corner on."""

    width: float
    height: float
    parts: tuple[Shape | Text, ...]


def picture(
    chunks: Sequence[tuple[int, ...]],
    dims: Sequence[str],
    block: tuple[int, ...],
    tile: tuple[int, ...],
    dtype: np.dtype,
    edges: Sequence[Sequence[int]],
) -> Picture:
    """Compose the picture of a scheme.

    Parameters
    ----------
    chunks : sequence of tuple of int
        dask chunks of the array.
    dims : sequence of str
        Names of the axes.
    block : tuple of int
        Number, along each axis, of the chunk that is shown.
    tile : tuple of int
        Shape of a tile: frames, then signal axes.
    dtype : numpy.dtype
        Type of the pixels.
    edges : sequence of sequence of int
        Where the tiles of that chunk begin and end: among its frames, and along its signal axes.
    """
    nav_ndim = len(chunks) - len(tile) + 1
    sizes = [axis[i] for axis, i in zip(chunks, block, strict=True)]
    planes = [
        _Plane(title, [_Axis(dims[k], chunks[k], block[k]) for k in axes])
        for title, axes in (("navigation", range(nav_ndim)), ("signal", range(nav_ndim, len(dims))))
    ]
    rows, columns = ([(0, 1)] * (3 - len(edges)) + [*edges[1:]])[-2:]
    box = _Box(edges[0], rows, columns)
    floor = TOP + max(box.height + box.back / 2, *(plane.height for plane in planes))
    parts: list[Shape | Text] = []
    x = GAP
    for plane in planes:
        parts += plane.parts(x, floor)
        x += plane.width + GAP
    parts += box.parts(x, floor)
    nbytes = [math.prod(shape) * dtype.itemsize for shape in (sizes, tile)]
    count = math.prod(len(axis) - 1 for axis in edges)
    middle = x + box.width / 2
    parts += [
        Text(f"one chunk, {format_bytes(nbytes[0])}", middle, TITLE, bold=True),
        Text(f"{_count(count, 'tile')} of {_by(tile)}", middle, floor + 32),
        Text(f"{dtype}, {format_bytes(nbytes[1])}", middle, floor + 47),
    ]
    notes = [plane.note for plane in planes if plane.note] + [box.note] * bool(box.note)
    if notes:
        text = f"not every cut is drawn: {', '.join(notes)}"
        parts.append(Text(text, GAP, floor + BOTTOM, anchor="start"))
    width = x + box.width + box.back * SLANT + GAP
    return Picture(max(width, x + box.width + 90), floor + BOTTOM + 6, tuple(parts))


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _by(shape: Iterable[int]) -> str:
    return " \N{MULTIPLICATION SIGN} ".join(map(str, shape))


def _every(count: int, most: int = MOST_LINES) -> int:
    """Tell which of some cuts are drawn: every one, every second, ..."""
    return max(1, -(-count // most))


def _fit(height: int, width: int, size: float) -> tuple[float, float]:
    """Give a height and a width in the ratio of the axes, as far as that can be seen."""
    ratio = min(max(height / width, 0.2), 5.0)
    return (size, size / ratio) if ratio > 1 else (size * ratio, size)


def _rectangle(x: float, y: float, width: float, height: float) -> tuple[Point, ...]:
    return (x, y), (x + width, y), (x + width, y + height), (x, y + height)


class _Axis(NamedTuple):
    """An axis, its chunks, and the number of the one that is shown."""

    name: str
    chunks: tuple[int, ...]
    shown: int

    def places(self, length: float) -> tuple[list[float], float, float]:
        """Give the cuts that are drawn on so long an axis, and both ends of the chunk."""
        edges = np.cumsum(self.chunks) * (length / sum(self.chunks))
        begin = float(edges[self.shown - 1]) if self.shown else 0.0
        every = _every(len(edges) - 1)
        return edges[every - 1 : -1 : every].tolist(), begin, float(edges[self.shown])


class _Plane:
    """The last two of some axes, their chunks, and one chunk."""

    def __init__(self, title: str, axes: Sequence[_Axis]) -> None:
        self.title, self.axes = title, axes
        self.y, self.x = ([_Axis("", (1,), 0)] * (2 - len(axes)) + [*axes[-2:]])[-2:]
        self.height, self.width = _fit(sum(self.y.chunks), sum(self.x.chunks), PANEL)
        every = max(_every(len(axis.chunks) - 1) for axis in (self.y, self.x))
        self.note = title if every > 1 else ""

    def parts(self, x: float, floor: float) -> Iterator[Shape | Text]:
        y = floor - self.height
        right, middle = x + self.width, x + self.width / 2
        rows, top, bottom = self.y.places(self.height)
        columns, first, last = self.x.places(self.width)
        for row in rows:
            yield Shape("cut", ((x, y + row), (right, y + row)))
        for column in columns:
            yield Shape("cut", ((x + column, y), (x + column, floor)))
        yield Shape("outline", _rectangle(x, y, self.width, self.height))
        yield Shape("chunk", _rectangle(x + first, y + top, last - first, bottom - top))
        yield Text(self.title, middle, TITLE, bold=True)
        yield Text(self._caption(), middle, floor + 32)
        if self.axes:
            yield Text(f"{self.x.name} {sum(self.x.chunks)}", middle, floor + 16)
        if len(self.axes) > 1:
            name = f"{self.y.name} {sum(self.y.chunks)}"
            yield Text(name, x - 8, floor - self.height / 2, upright=True)
        if len(self.axes) > 2:
            more = ", ".join(f"{axis.name} {sum(axis.chunks)}" for axis in self.axes[:-2])
            yield Text(f"for each of {more}", middle, floor + 47)

    def _caption(self) -> str:
        count = math.prod(len(axis.chunks) for axis in self.axes)
        if count > 1:
            largest = _by(max(axis.chunks) for axis in self.axes)
            return f"{_count(count, 'chunk')} of {largest}"
        return "not cut" if self.axes else "one frame"


class _Box:
    """A chunk as a stack of frames that go back to the right, its tiles, and one tile."""

    def __init__(self, frames: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> None:
        self.frames, self.rows, self.columns = frames, rows, columns
        self.height, self.width = _fit(rows[-1], columns[-1], PANEL)
        self.back = DEPTH if frames[-1] > 1 else 6.0
        self.every = [
            _every(len(edges) - 2, most)
            for edges, most in (
                (frames, MOST_DEEP_LINES),
                (rows, MOST_LINES),
                (columns, MOST_LINES),
            )
        ]
        self.note = "chunk" if max(self.every) > 1 else ""

    def parts(self, x: float, floor: float) -> Iterator[Shape | Text]:
        d, n, m = self.frames[-1], self.rows[-1], self.columns[-1]

        def at(frame: float, row: float, column: float) -> Point:
            z = self.back * frame / d
            across, down = self.width * column / m, self.height * (1 - row / n)
            return x + across + z * SLANT, floor - down - z / 2

        def faces(style: str, deep: float, low: float, wide: float) -> Iterator[Shape]:
            corners = at(0, 0, 0), at(0, 0, wide), at(0, low, wide), at(0, low, 0)
            yield Shape(style, corners)
            yield Shape(style, (corners[0], at(deep, 0, 0), at(deep, 0, wide), corners[1]))
            if wide == m:  # nothing stands before it
                right = corners[1], at(deep, 0, m), at(deep, low, m), corners[2]
                yield Shape(style, right)

        deep, low, wide = (
            edges[every:-1:every]
            for edges, every in zip((self.frames, self.rows, self.columns), self.every, strict=True)
        )
        yield from faces("body", d, n, m)
        for k in low:
            yield Shape("cut", (at(0, k, 0), at(0, k, m), at(d, k, m)))
        for k in wide:
            yield Shape("cut", (at(0, n, k), at(0, 0, k), at(d, 0, k)))
        for k in deep:
            yield Shape("cut", (at(k, 0, 0), at(k, 0, m), at(k, n, m)))
        yield from faces("outline", d, n, m)
        thick = min(d, max(self.frames[1], d * LEAST_DEPTH / self.back))
        yield from faces("tile", thick, self.rows[1], self.columns[1])
        (x0, y0), (x1, y1) = at(0, n, m), at(d, n, m)
        yield Text(_count(d, "frame"), (x0 + x1) / 2 + 6, (y0 + y1) / 2 + 14, anchor="start")
