"""Kinds of TIFF pages: the layout that pages with equal layout tags share."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dask_tiled.codecs.chunks import unwritten
from dask_tiled.formats import tools
from dask_tiled.formats.tiff.ifd import Ifd, Values
from dask_tiled.formats.tiff.pixel_tags import TILE_WIDTH, PixelTags
from dask_tiled.formats.tiff.storage import decoder_of


class PageLayout(NamedTuple):
    """The common layout of pages, which differ only in the offsets of their segments.

    There are five axes: planar samples, z, y, x, interleaved samples.
    """

    axes: str  # axes of a page: "yx", "yxs", "syx", "zyx", ...
    kept: tuple[int, ...]  # their positions among the five axes
    full: tuple[int, ...]  # shape of a page
    segment: tuple[int, ...]  # stored shape of a strip or tile
    n_segments: int
    tiled: bool  # tiles are padded at the edges, strips are not
    dtype: np.dtype
    decoder: tools.Decoder | tools.BlockDecoder
    blank: tools.BlockDecoder  # for segments that were never written
    problem: str  # why segments cannot be decoded; empty if they can

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a page, with these axes only."""
        return tuple(self.full[k] for k in self.kept)

    @property
    def image(self) -> tuple[tuple[int, ...], str, np.dtype]:
        """Shape, axes and dtype: pages with equal values may be frames of one array."""
        return self.shape, self.axes, self.dtype

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the decoded bytes of a page or segment of this shape."""
        return math.prod(shape) * self.dtype.itemsize


def read_kind(ifd: Ifd, values: Values) -> PageLayout:
    """Return the kind of a page, from the values of its layout tags."""
    tags = PixelTags(ifd, values)
    full, segment, axes = tags.full, tags.segment, tags.axes
    if min(full) < 1 or min(segment) < 1 or math.prod(full) >> 60 or math.prod(segment) >> 60:
        sizes = f"a page of {full} pixels in segments of {segment}"
        raise ifd.corrupt("a page without pixels", found=sizes)
    dtype = tags.dtype or np.dtype("u1")
    samples = 4 if tags.interleaved else 0
    kept = tuple({"z": 1, "y": 2, "x": 3}.get(letter, samples) for letter in axes)
    decoder, problem = decoder_of(ifd, tags, dtype, tuple(segment[k] for k in kept))
    return PageLayout(
        axes=axes,
        kept=kept,
        full=full,
        segment=segment,
        n_segments=math.prod(counts_of(full, segment)),
        tiled=TILE_WIDTH in tags,
        dtype=dtype,
        decoder=decoder,
        blank=unwritten(dtype, tags.fill(dtype)),
        problem=problem,
    )


def counts_of(full: tuple[int, ...], segment: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of segments along each axis of a page."""
    return tuple(-(-n // step) for n, step in zip(full, segment, strict=True))
