"""Pictures of tiling schemes, composed: chunks over the array, tiles over a chunk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.description import format_bytes

Point = tuple[float, float]

MOST_LINES = 40
"""More cuts than this along one axis are drawn as every second, third, ... one."""

PANEL, GAP, DEPTH = 168.0, 44.0, 84.0
TOP, BOTTOM = 44.0, 52.0


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
    """A line of text, centred on a place."""

    text: str
    x: float
    y: float
    bold: bool = False
    upright: bool = False


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
    frames = math.prod(sizes[:nav_ndim])
    parts: list[Shape | Text] = []
    x = GAP
    for title, axes in (("scan", range(nav_ndim)), ("frame", range(nav_ndim, len(chunks)))):
        plane = [(dims[k] if dims else "", chunks[k], block[k]) for k in axes]
        x = _plane(parts, x, title, plane) + GAP
    nbytes = [math.prod(shape) * dtype.itemsize for shape in ((frames, *sizes[nav_ndim:]), tile)]
    right = _box(parts, x, edges)
    middle = (x + right) / 2
    parts.append(Text(f"one chunk, {format_bytes(nbytes[0])}", middle, 18, bold=True))
    count = math.prod(len(axis) - 1 for axis in edges)
    text = f"{_count(count, 'tile')} of {_by(tile)}"
    below = TOP + DEPTH / 2 + PANEL
    parts.append(Text(text, middle, below + 32))
    parts.append(Text(f"{dtype}, {format_bytes(nbytes[1])}", middle, below + 46))
    return Picture(right + GAP, below + BOTTOM, tuple(parts))


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _by(shape: Iterable[int]) -> str:
    return " \N{MULTIPLICATION SIGN} ".join(map(str, shape))


def _thinned(cuts: Sequence[float]) -> Sequence[float]:
    return cuts[:: -(-len(cuts) // MOST_LINES)] if len(cuts) else cuts


def _fit(height: int, width: int, size: float) -> tuple[float, float]:
    """Give a height and a width in the ratio of the axes, as far as that can be seen."""
    ratio = min(max(height / width, 0.2), 5.0)
    return (size, size / ratio) if ratio > 1 else (size * ratio, size)


def _rectangle(x: float, y: float, width: float, height: float) -> tuple[Point, ...]:
    return (x, y), (x + width, y), (x + width, y + height), (x, y + height)


def _plane(
    parts: list[Shape | Text], x: float, title: str, axes: list[tuple[str, tuple[int, ...], int]]
) -> float:
    """Draw the last two of some axes, their chunks, and one chunk; give the right end."""
    shown = [("", (1,), 0)] * (2 - len(axes)) + axes[-2:]
    (_, rows, row), (_, columns, column) = shown
    n, m = sum(rows), sum(columns)
    height, width = _fit(n, m, PANEL)
    y = TOP + DEPTH / 2 + (PANEL - height) / 2
    ys = (np.cumsum((0, *rows)) * (height / n) + y).tolist()
    xs = (np.cumsum((0, *columns)) * (width / m) + x).tolist()
    chunk = _rectangle(xs[column], ys[row], xs[column + 1] - xs[column], ys[row + 1] - ys[row])
    parts += [Shape("cut", ((x, at), (x + width, at))) for at in _thinned(ys[1:-1])]
    parts += [Shape("cut", ((at, y), (at, y + height))) for at in _thinned(xs[1:-1])]
    parts.append(Shape("outline", _rectangle(x, y, width, height)))
    parts.append(Shape("chunk", chunk))
    middle = x + width / 2
    below = y + height
    parts.append(Text(title, middle, 18, bold=True))
    if len(axes) > 2:
        more = ", ".join(f"{name} {sum(sizes)}" for name, sizes, _ in axes[:-2])
        parts.append(Text(f"for each of {more}", middle, 32))
    for (name, sizes, _), upright in zip(reversed(axes[-2:]), (False, True), strict=False):
        text = f"{name} {sum(sizes)}".strip()
        at = (x - 8, y + height / 2) if upright else (middle, below + 16)
        parts.append(Text(text, *at, upright=upright))
    count = math.prod(len(sizes) for _, sizes, _ in axes)
    largest = _by(max(sizes) for _, sizes, _ in axes)
    if not axes:
        text = "one frame"
    elif count > 1:
        text = f"{_count(count, 'part')} of {largest}"
    else:
        text = "in one part"
    parts.append(Text(text, middle, below + 32))
    return x + width


def _box(parts: list[Shape | Text], x: float, edges: Sequence[Sequence[int]]) -> float:
    """Draw a chunk as a stack of frames, its tiles, and one tile; give the right end."""
    frames = edges[0]
    rows, columns = ([(0, 1)] * (3 - len(edges)) + [*edges[1:]])[-2:]
    height, width = _fit(rows[-1], columns[-1], PANEL)
    y = TOP + DEPTH / 2 + (PANEL - height) / 2
    back = DEPTH if frames[-1] > 1 else 6.0

    def at(frame: float, row: float, column: float) -> Point:
        """Place a corner: frames go back, up and to the right."""
        z = back * frame / frames[-1]
        across = x + width * column / columns[-1]
        return across + z * math.sqrt(3) / 2, y + height * row / rows[-1] - z / 2

    def box(style: str, depth: int, n: int, m: int) -> None:
        front = at(0, 0, 0), at(0, 0, m), at(0, n, m), at(0, n, 0)
        top = at(0, 0, 0), at(depth, 0, 0), at(depth, 0, m), at(0, 0, m)
        side = at(0, 0, m), at(depth, 0, m), at(depth, n, m), at(0, n, m)
        parts.extend(Shape(style, face) for face in (front, top))
        if m == columns[-1]:  # nothing stands before it
            parts.append(Shape(style, side))

    d, n, m = frames[-1], rows[-1], columns[-1]
    box("body", d, n, m)
    lines = [(at(0, row, 0), at(0, row, m), at(d, row, m)) for row in _thinned(rows[1:-1])]
    lines += [(at(0, n, k), at(0, 0, k), at(d, 0, k)) for k in _thinned(columns[1:-1])]
    lines += [(at(k, 0, 0), at(k, 0, m), at(k, n, m)) for k in _thinned(frames[1:-1])]
    parts += [Shape("cut", line) for line in lines]
    box("outline", d, n, m)
    box("tile", frames[1], rows[1], columns[1])
    (x0, y0), (x1, y1) = at(0, n, m), at(d, n, m)
    parts.append(Text(_count(d, "frame"), (x0 + x1) / 2 + 30, (y0 + y1) / 2 + 12))
    return max(x1, x0)
