"""Views: axes of pixels after transposing, merging, splitting, and inserting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, pairwise
from typing import NamedTuple, Self

import numpy as np

from dask_tiled.model.indexing import Array, Cut
from dask_tiled.tiling.bases import Chunks


class AxisPart(NamedTuple):
    """A part of an axis of the pixels: position ``p`` on the axis has the digit ``p // step``."""

    axis: int
    step: int


class Span(NamedTuple):
    """Neighbouring parts of an axis: strides in [``step``, ``end``); 0 is unbounded."""

    axis: int
    step: int
    end: int
    flipped: bool

    def holds(self, part: AxisPart) -> bool:
        """Return whether the span contains a part."""
        return part.axis == self.axis and self.step <= part.step and not 0 < self.end <= part.step


class View(NamedTuple):
    """Mapping from the axes of pixels to those of an array."""

    shown: tuple[tuple[AxisPart, ...], ...]
    """Parts of each axis of the array, the outermost first; a new axis has none."""
    flipped: frozenset[int] = frozenset()
    """Axes of the pixels that are reversed, with all their parts."""

    @classmethod
    @cache
    def of(cls, ndim: int) -> Self:
        """Return the view that keeps all axes."""
        return cls(tuple((AxisPart(axis, 1),) for axis in range(ndim)))

    @property
    def parts(self) -> tuple[AxisPart, ...]:
        """All parts, in the order of the pixels."""
        return _parts(self.shown)

    @property
    def is_in_order(self) -> bool:
        """Whether the pixels keep their C order, whatever the axes."""
        return not self.flipped and tuple(chain(*self.shown)) == self.parts

    @property
    def numbers(self) -> list[list[int]]:
        """Indices of the parts of each axis of the array, in the order of the pixels."""
        number = {part: k for k, part in enumerate(self.parts)}
        return [[number[part] for part in parts] for parts in self.shown]

    def spans(self, place: int) -> tuple[Span, ...]:
        """Return the parts of an axis, in a form that stays valid after further splits."""
        above = {part: higher for higher, part in pairwise(self.parts)}
        ends = ((part, above.get(part, AxisPart(-1, 0))) for part in self.shown[place])
        return tuple(
            Span(*part, end.step * (end.axis == part.axis), part.axis in self.flipped)
            for part, end in ends
        )

    def sizes(self, shape: Sequence[int]) -> dict[AxisPart, int]:
        """Return the lengths of all parts, in the order of the pixels."""
        found, above = dict[AxisPart, int](), AxisPart(-1, 0)
        for part in self.parts:
            within = above.step if above.axis == part.axis else shape[part.axis]
            found[part] = within // part.step
            above = part
        return found

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the array."""
        sizes = self.sizes(shape)
        return tuple(math.prod(map(sizes.__getitem__, parts)) for parts in self.shown)

    def show(self, pixels: Array) -> Array:
        """Apply the view to pixels with an axis per part, and perhaps trailing axes."""
        if self == View.of(len(self.shown)):
            return pixels
        numbers = self.numbers
        order = list(chain(*numbers))
        if self.flipped:
            ends = (k for k, part in enumerate(self.parts) if part.axis in self.flipped)
            pixels = np.flip(pixels, tuple(ends))
        shape = [math.prod(pixels.shape[number] for number in group) for group in numbers]
        shape += pixels.shape[len(order) :]
        return pixels.transpose(*order, *range(len(order), pixels.ndim)).reshape(shape)

    @property
    def places(self) -> tuple[int, ...]:
        """Axis of the array with the outermost part of each axis of the pixels."""
        return _places(self.shown)

    def chunks(self, chunks: Chunks) -> Chunks | None:
        """Return the chunks of the array; None if those of the pixels are not boxes of it."""
        if self == View.of(len(chunks)):
            return chunks
        shape = [sum(axis) for axis in chunks]
        sizes, new_chunks = self.sizes(shape), list[tuple[int, ...]]()
        for place, parts in enumerate(self.shown):
            length = math.prod(map(sizes.__getitem__, parts))
            axes = [part.axis for part in parts]
            cut = [x for x in {*axes} if len(chunks[x]) > 1 and self.places[x] == place]
            if not cut:
                new_chunks.append((length,))
                continue
            first = axes.index(cut[0])
            outer = math.prod(sizes[part] for part in parts[:first])
            if len(cut) > 1 or outer > 1 or any(n % parts[first].step for n in chunks[cut[0]]):
                return None
            new_chunks.append(tuple(n * length // shape[cut[0]] for n in chunks[cut[0]]))
        return tuple(new_chunks)

    def reshaped(self, sizes: Mapping[AxisPart, int], shape: Sequence[int]) -> View | None:
        """Reshape the view in C order; None if a length does not divide evenly."""
        if math.prod(sizes.values()) != math.prod(shape) or not all(sizes.values()):
            return None
        waiting = [(part, sizes[part]) for parts in self.shown for part in parts][::-1]
        shown = list[list[AxisPart]]()
        for rest in shape:
            shown.append([])
            while rest > 1:
                part, size = waiting.pop()
                if rest % size and size % rest:
                    return None
                if size > rest:
                    inner = size // rest
                    waiting.append((part, inner))
                    part, size = AxisPart(part.axis, part.step * inner), rest
                shown[-1].append(part)
                rest //= size  # noqa: PLW2901 - the rest
        ones = [part for part, _ in waiting]  # parts of length 1 may belong to any axis
        if ones and not shown:
            return None
        if ones:
            shown[-1] += ones
        return View(tuple(map(tuple, shown)), self.flipped)

    def cut(self, cuts: Sequence[Cut], shape: Sequence[int]) -> tuple[list[Cut], View] | None:
        """Apply cuts to the array: return the cuts of the pixels, and the new view.

        Steps may be negative.
        """
        new_cuts = [Cut(0, 1, n) for n in shape]
        shown, flipped = [], {*self.flipped}
        for parts, cut, length in zip(self.shown, cuts, self.shape(shape), strict=True):
            if cut != Cut(0, 1, length) and parts:
                axis = parts[0].axis
                if len([part for part in self.parts if part.axis == axis]) + len(parts) > 2:
                    return None
                new_cuts[axis] = _forward(cut, length if axis in flipped else 0)
                if cut.step < 0:
                    flipped ^= {axis}
            if cut.kept:
                shown.append(parts)
        kept = [axis for axis, cut in enumerate(new_cuts) if cut.kept]
        renamed = (tuple(AxisPart(kept.index(axis), k) for axis, k in parts) for parts in shown)
        ends = frozenset(kept.index(axis) for axis in flipped if new_cuts[axis].kept)
        return new_cuts, View(tuple(renamed), ends)


@lru_cache
def _parts(shown: tuple[tuple[AxisPart, ...], ...]) -> tuple[AxisPart, ...]:
    return tuple(sorted(chain(*shown), key=lambda part: (part.axis, -part.step)))


@lru_cache
def _places(shown: tuple[tuple[AxisPart, ...], ...]) -> tuple[int, ...]:
    found = dict[int, int]()
    for part in _parts(shown):
        if part.axis not in found:
            found[part.axis] = next(k for k, parts in enumerate(shown) if part in parts)
    return tuple(found.values())


def _forward(cut: Cut, flipped: int) -> Cut:
    """Return the cut in the order of the pixels; ``flipped`` is the axis length, or 0."""
    start, step, length, kept = cut
    if flipped:
        start, step = flipped - 1 - start, -step
    return Cut(start + min(0, step * (length - 1)), abs(step), length, kept)
