"""Blocks of axes, even division, and the bounds of chunks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import TilingError
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Box, Index
from dask_tiled.model.layout import Layout

Chunks = tuple[tuple[int, ...], ...]


def bases(desc: Description) -> tuple[Base, ...]:
    """Return the blocks of every axis of the array."""
    layout = desc.layout
    axes, grid, nav = layout.grid + layout.sig_shape, len(layout.grid), len(layout.nav_shape)
    shape = desc.base_shape or (1,) * len(axes)
    if len(shape) != len(axes) or any(n < 1 for n in shape):
        raise TilingError(
            f"the format {desc.format} returns an invalid base_shape",
            path=desc.files[0].path,
            expected=f"block sizes for the axes {axes}",
            found=desc.base_shape,
        )
    first = layout.selection.first if nav == 1 else 0
    nav_blocks = [
        Base.of(size, cut.start + first, cut.step)
        for size, cut in zip(_nav_sizes(layout, shape[:grid]), layout.cuts[:nav], strict=True)
        if cut.kept
    ]
    sig = [(n, cut) for n, cut in zip(shape[grid:], layout.cuts[nav:], strict=True) if cut.kept]
    sig_blocks = [
        Base.of(math.lcm(size, unit), cut.start, cut.step)
        for (size, cut), unit in zip(sig, layout.unit_shape(), strict=True)
    ]
    return (*nav_blocks, *sig_blocks)


def part_bases(layout: Layout, sig_bases: Sequence[Base], budget: int) -> tuple[Base, ...]:
    """Return the blocks along which a frame above ``budget`` pixels is cut into parts.

    Without blocks of the format these are the pieces of the frame, if there are several. A piece
    that can be read in part ends none if it is larger than the budget; nor does one that is not
    stored, which has one value.
    """
    if any(base.size > 1 for base in sig_bases):
        return tuple(sig_bases)
    nav, first = len(layout.nav_shape), len(layout.grid)
    stored = [not isinstance(x, BlockDecoder) or not x.is_uniform for x in layout.decoders]
    pieces, there = layout.pieces, np.array(stored)[layout.pieces.column("decoder")]
    sizes = [
        int(np.where(there, pieces.column("shape", k), 1).max(initial=1))
        for k in range(first, first + len(layout.sig_shape))
    ]
    pairs = zip(layout.decoders, stored, strict=True)
    has_blocks = any(
        isinstance(decoder, BlockDecoder) and is_stored for decoder, is_stored in pairs
    )
    if sizes == [*layout.sig_shape] and not has_blocks:
        return tuple(sig_bases)
    for k in range(len(sizes)):
        if not has_blocks and math.prod(sizes[k:]) > budget:
            sizes[k] = 1
    kept = ((n, cut) for n, cut in zip(sizes, layout.cuts[nav:], strict=True) if cut.kept)
    return tuple(Base.of(n, cut.start, cut.step) for n, cut in kept)


def _nav_sizes(layout: Layout, blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the block sizes along the navigation axes; 1 where blocks do not match them."""
    nav, first = layout.nav_shape, layout.selection.first
    none = (1,) * len(nav)
    if layout.selection.numbers is not None or not blocks:
        return none
    if nav == layout.grid and (not first or len(nav) == 1):
        return blocks
    if len(layout.grid) > 1 or first % blocks[0]:
        return none
    sizes, rest = list(none), blocks[0]  # consecutive frames of a block
    for k in range(len(nav) - 1, -1, -1):
        sizes[k] = min(rest, nav[k])
        if max(rest, nav[k]) % sizes[k]:
            return none
        if rest <= nav[k]:
            break
        rest //= nav[k]
    return tuple(sizes)


def frames_base(sizes: Sequence[int], nav: Sequence[Base]) -> Base:
    """Return the blocks along the frames of a chunk, in C order."""
    k = next((k for k, base in enumerate(nav) if base.size > 1), None)
    if k is None:
        return Base()
    inner = math.prod(sizes[k + 1 :])
    base = nav[k]
    if math.prod(sizes[:k]) > 1 and (base.lead or sizes[k] % base.size):
        return Base(sizes[k] * inner)
    return Base(base.size * inner, base.lead * inner)


def file_blocks(layout: Layout, axis: int) -> Base | None:
    """Return the parts of a navigation axis that lie in one file each, as positions of the array.

    None if there is one file, or if files do not begin at equal distances along the axis.
    """
    firsts = _first_frames(layout)
    if len(firsts) < 2:
        return None
    numbers = layout.selection.numbers
    if numbers is not None:
        return _selected_blocks(numbers, firsts, layout)
    nav = layout.nav_shape
    at = [k for k, cut in enumerate(layout.cuts[: len(nav)]) if cut.kept][axis]
    outer, cut, inner = layout.cuts[:at], layout.cuts[at], layout.cuts[at + 1 : len(nav)]
    if any(c[:3] != (0, 1, n) for c, n in zip(inner, nav[at + 1 :], strict=True)):
        return None
    distances = [math.prod(nav[k + 1 :]) for k in range(at + 1)]
    row = distances[at]
    begin = layout.selection.first + sum(
        c.start * distance for c, distance in zip((*outer, cut), distances, strict=True)
    )
    lengths = np.diff(firsts)
    frames = int(lengths[0])
    regular = bool((lengths == frames).all()) and not frames % row and not begin % row
    same = all(
        c.length == 1 or not c.step * distance % frames
        for c, distance in zip(outer, distances, strict=False)
    )
    return Base.of(frames // row, begin // row, cut.step) if regular and same else None


def _selected_blocks(numbers: Index, firsts: Index, layout: Layout) -> Base | None:
    """Return the blocks of files in a selection of frames; None if they are irregular."""
    if len(layout.nav_shape) != 1:
        return None
    cut = layout.cuts[0]
    shown = numbers[cut.start :: cut.step][: cut.length]
    if (np.diff(shown) < 0).any():  # indices may be in any order
        return None
    starts = np.unique(np.searchsorted(shown, firsts))
    starts = starts[(starts > 0) & (starts < len(shown))]
    sizes = np.unique(np.diff(starts)).tolist()
    if len(sizes) != 1:
        return None
    before, after = int(starts[0]), len(shown) - int(starts[-1])
    return Base(sizes[0], sizes[0] - before) if 0 < before <= sizes[0] >= after else None


def _first_frames(layout: Layout) -> Index:
    """Return the first frame of each file; empty if frames lie on a grid."""
    if len(layout.files) < 2 or len(layout.grid) != 1:
        return np.zeros(0, dtype=np.int64)
    file = layout.pieces.column("file")
    heads = np.flatnonzero(np.diff(file, prepend=-1))  # the first piece of each run of a file
    return np.unique(layout.pieces.rows(heads).start[:, 0])


def frame_bytes(layout: Layout) -> tuple[int, int] | None:
    """Return the offset of frame 0 and the distance of frames; None if they are irregular."""
    if len(layout.pieces) > 1 or len(layout.grid) != 1 or layout.selection.numbers is not None:
        return None
    pieces = layout.pieces.rows()
    if (pieces.strides < 0).any() or pieces.start.any():
        return None
    return int(pieces.offset[0]), int(pieces.strides[0, 0])


class Base(NamedTuple):
    """Blocks of an axis, between which it may be cut.

    ``lead`` positions of the first block lie before the axis begins.
    """

    size: int = 1
    lead: int = 0

    @classmethod
    def of(cls, size: int, start: int, step: int) -> Base:
        """Return the blocks of an axis that takes every ``step``-th position from ``start`` on."""
        if step >= size:  # no two positions share a block
            return cls()
        common = math.lcm(size, step)
        first = -(-(-start % common) // step)
        return cls(common // step, -first % (common // step))

    def at(self, start: int) -> Base:
        """Return the blocks of the part of an axis that begins at ``start``."""
        return Base(self.size, (self.lead + start) % self.size)


def cut_no_block(desc: Description, chunks: Chunks, before: Chunks) -> bool:
    """Return whether new chunks end where old ones do, or between blocks of the file.

    Then no block of the file is read for more chunks than before.
    """
    blocks = bases(desc)[: desc.nav_ndim]
    stored = math.prod(desc.base_shape[: len(desc.layout.grid)])
    known = stored == 1 or any(base.size > 1 for base in blocks)
    for k, (new, old) in enumerate(zip(chunks, before, strict=True)):
        added = np.setdiff1d(np.cumsum(new)[:-1], np.cumsum(old))
        if added.size and (k >= len(blocks) or not known):
            return False
        if k < len(blocks) and ((added + blocks[k].lead) % blocks[k].size).any():
            return False
    return True


def least_sizes(shape: Sequence[int], bases: Sequence[Base]) -> list[int]:
    """Return the smallest sizes into which axes may be cut."""
    return [even_size(n, 1, *base) for n, base in zip(shape, bases, strict=True)]


def fill(shape: tuple[int, ...], budget: int, bases: Sequence[Base]) -> tuple[int, ...]:
    """Take whole axes, beginning with the last, and an even part of the first that does not fit.

    No part is smaller than a block, even if blocks exceed the budget.
    """
    sizes = least_sizes(shape, bases)
    for k in range(len(shape) - 1, -1, -1):
        limit = budget // (math.prod(sizes[:k]) * math.prod(sizes[k + 1 :]))
        sizes[k] = even_size(shape[k], limit, *bases[k])
        if sizes[k] < shape[k]:
            break
    return tuple(sizes)


def fill_square(shape: tuple[int, ...], budget: int, bases: Sequence[Base]) -> tuple[int, ...]:
    """Take parts of about one length from all axes, as whole blocks near ``budget`` pixels.

    Short axes, such as colours, are taken whole. Axes of pixels that are no blocks are taken whole,
    beginning with the last.
    """
    sizes = least_sizes(shape, bases)
    if math.prod(sizes) == 1:
        return fill(shape, budget, bases)
    order = sorted(range(len(shape)), key=lambda k: (-sizes[k], shape[k]))
    for done, k in enumerate(order):
        left = [(sizes[axis], shape[axis]) for axis in order[done:]]
        unit, lead = bases[k]
        units = max(1, _longest_side(budget, left) // unit)
        sizes[k] = min(shape[k], unit * even_size(ceil_div(shape[k] + lead, unit), units))
        budget //= sizes[k]
    return tuple(sizes)


def _longest_side(budget: int, limits: Sequence[tuple[int, int]]) -> int:
    """Return the longest side of a part of ``budget`` pixels.

    Along each axis the part has this length, within the limits of the axis; 0 if no part is as
    small.
    """
    sides = range(1, max(most for _, most in limits) + 1)
    return bisect_right(
        sides, budget, key=lambda n: math.prod(min(max(n, least), most) for least, most in limits)
    )


def ceil_div(size: int, part: int) -> int:
    """Return the number of parts of an axis, rounded up."""
    return -(-size // part)


def split(size: int, chunk: int, lead: int = 0) -> tuple[int, ...]:
    """Split an axis into chunks of one size.

    The first is ``lead`` shorter, the last takes the remainder.
    """
    if chunk >= size:
        return (size,)
    whole, rest = divmod(size + lead, chunk)
    return (chunk - lead,) + (chunk,) * (whole - 1) + (rest,) * (rest > 0)


def even_size(size: int, limit: int, unit: int = 1, lead: int = 0) -> int:
    """Return the size of even chunks, the last of which is at least half as large as the others.

    Chunks are multiples of ``unit``, even beyond the limit, except the last, and the first,
    which is ``lead`` shorter. A larger limit never results in a smaller size.
    """
    if size <= max(limit, unit - lead):
        return size
    total = size + lead
    units = -(-total // unit)
    count = -(-units // max(1, limit // unit))
    while count < units:
        most = -(-units // count)
        chunk = most * unit
        if 2 * (total - (-(-total // chunk) - 1) * chunk) >= chunk:
            return min(chunk, size)
        count = -(-units // (most - 1))  # the next count with smaller chunks
    return min(unit, size)


def largest_divisor(size: int, limit: int) -> int:
    """Return the largest divisor of ``size`` that is at most ``limit``."""
    return next(n for n in range(max(1, min(size, limit)), 0, -1) if size % n == 0)


class Edges:
    """Bounds of the chunks of one axis."""

    __slots__ = ("bounds", "size", "step")

    def __init__(self, chunks: tuple[int, ...]) -> None:
        self.size = sum(chunks)
        self.step = chunks[0] if chunks else 0
        even = chunks[:-1].count(self.step) == len(chunks) - 1 and chunks[-1] <= self.step
        self.bounds = None if even else np.cumsum((0, *chunks), dtype=np.int64)

    def __getitem__(self, i: int) -> tuple[int, int]:
        if self.bounds is None:
            i = int(i)  # dask's vindex passes NumPy integers, which ctypes rejects as offsets
            return i * self.step, min((i + 1) * self.step, self.size)
        return int(self.bounds[i]), int(self.bounds[i + 1])

    def within(self, start: int, stop: int) -> range:
        """Return the indices of the chunks that lie between two bounds."""
        if not self.size:
            return range(1)
        if self.bounds is None:
            return range(start // self.step, -(-stop // self.step))
        first, last = np.searchsorted(self.bounds, (start, stop)).tolist()
        return range(first, last)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        bounds = None if self.bounds is None else self.bounds.tobytes()
        return "dask_tiled.Edges", self.size, self.step, bounds


class Grid:
    """Chunk grid of an array.

    It is a plain class, as dask does not traverse these.
    """

    __slots__ = ("axes",)

    def __init__(self, axes: tuple[Edges, ...]) -> None:
        self.axes = axes

    @classmethod
    def of(cls, chunks: Sequence[tuple[int, ...]]) -> Grid:
        """Build the grid of dask chunks."""
        return cls(tuple(map(Edges, chunks)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(edges.size for edges in self.axes)

    def box(self, block_id: tuple[int, ...]) -> Box:
        """Return the bounds of a chunk along each axis."""
        return tuple(edges[i] for edges, i in zip(self.axes, block_id, strict=True))

    def within(self, box: Box) -> Iterator[tuple[int, ...]]:
        """Yield the indices of the chunks in a box, which consists of whole chunks."""
        ends = zip(self.axes, box, strict=True)
        return product(*(edges.within(start, stop) for edges, (start, stop) in ends))

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "dask_tiled.Grid", *(edges.__dask_tokenize__() for edges in self.axes)
