"""Operands besides the pixels: other arrays, which dask passes to tasks chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from dask_tiled.model.indexing import Array, Cut
from dask_tiled.plans.views import AxisPart, Span


class Beside(NamedTuple):
    """An operand of pixels that is another layer of the graph."""

    name: str
    spans: tuple[tuple[Span, ...], ...]
    """For each axis of the operand, the parts of the expression's axes that it has. Further axes
    have none, and one chunk."""
    numblocks: tuple[int, ...]
    cuts: tuple[Cut | None, ...]
    """Cut of each axis that is longer than 1."""

    @property
    def has_further(self) -> bool:
        """Whether the operand has axes that the expression lacks."""
        return not all(self.spans)

    def cut(self, cuts: Sequence[Cut], sizes: Sequence[int]) -> Beside | None:
        """Cut the operand like the expression; None if it has several chunks along a cut axis."""
        new_cuts = []
        for spans, blocks, before in zip(self.spans, self.numblocks, self.cuts, strict=True):
            cut = cuts[spans[0].axis]
            if all(cuts[span.axis] == Cut(0, 1, sizes[span.axis]) for span in spans):
                new_cuts.append(before)
            elif blocks > 1 or not cut.kept or len(spans) > 1 or spans[0].flipped:
                return None
            else:
                new_cuts.append(cut if before is None else before.of(cut))
        kept = [axis for axis, cut in enumerate(cuts) if cut.kept]
        renamed = (
            tuple(span._replace(axis=kept.index(span.axis)) for span in spans)
            for spans in self.spans
        )
        return self._replace(spans=tuple(renamed), cuts=tuple(new_cuts))

    def block(self, block: Array, sizes: Mapping[AxisPart, int]) -> Array:
        """Return the required part of a chunk: further axes, then one axis per part."""
        pixels = np.asarray(block)
        place = [
            slice(None) if cut is None or n == 1 else cut.slice
            for n, cut in zip(pixels.shape, self.cuts, strict=True)
        ]
        pixels = pixels[tuple(place)]
        further = [k for k, spans in enumerate(self.spans) if not spans]
        n = len(further)
        pixels = np.moveaxis(pixels, further, range(n))
        mine = [[x for span in spans for x in sizes if span.holds(x)] for spans in self.spans]
        mine = [parts for parts in mine if parts]
        order = list(chain(*mine))
        lengths = zip(pixels.shape[n:], mine, strict=True)
        split = [1 if m == 1 else sizes[x] for m, parts in lengths for x in parts]
        pixels = pixels.reshape((*pixels.shape[:n], *split))
        flipped = {span.axis for spans in self.spans for span in spans if span.flipped}
        pixels = np.flip(
            pixels, tuple(n + k for k, part in enumerate(order) if part.axis in flipped)
        )
        places = {part: k for k, part in enumerate(sizes)}
        inner = sorted(range(len(order)), key=lambda k: places[order[k]])
        pixels = pixels.transpose(*range(n), *(n + k for k in inner))
        return pixels[(..., *(slice(None) if part in order else None for part in sizes))]


def is_other_array(value: object) -> bool:
    """Return whether a value may yield arrays other than NumPy's, such as masked file variables."""
    is_array = hasattr(value, "__getitem__") and hasattr(value, "dtype")
    return is_array and not (type(value) is np.ndarray or isinstance(value, np.generic))
