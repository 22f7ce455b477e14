"""The tiles: the part of a chunk that is decoded and processed at once, in the cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from dask_tiled.errors import format_bytes
from dask_tiled.tiling.blocks import frames_base
from dask_tiled.tiling.division import Base, even_size, fill, least_sizes, split
from dask_tiled.tiling.requests import Question

LEAST_TILE_BYTES, MOST_TILE_BYTES = 128 << 10, 1 << 20
"""Below, calls per tile cost more than misses of the cache; above, nothing is gained."""


def usual_tile_bytes(cache_bytes: int) -> int:
    """Give the bytes of a tile that suits a cache: half of it is left to what a tile meets."""
    return min(max(cache_bytes // 2, LEAST_TILE_BYTES), MOST_TILE_BYTES)


def tile_limit(q: Question, usual: int, why: str) -> int:
    """Find the largest size of a tile, in bytes: the smallest that a consumer wants.

    Parameters
    ----------
    q : Question
    usual : int
        Bytes of a tile for consumers that do not say.
    why : str
        Where that number comes from, in words.
    """
    sizes = [wish.nbytes or usual for wish in q.wishes if wish.by in {"tile", "frame"}]
    limit = min(sizes, default=usual)
    asked = any(w.nbytes == limit for w in q.wishes if w.by in {"tile", "frame"})
    why = "the least that was asked for" if asked else why
    q.say("tile limit", f"{format_bytes(limit)}: {why}")
    return limit


def tile_shape(q: Question, sizes: Sequence[int], limit: int) -> tuple[int, ...]:
    """Decide the shape of a tile inside a chunk: frames, then signal axes.

    Parameters
    ----------
    q : Question
    sizes : sequence of int
        The largest chunk along each axis.
    limit : int
        Bytes of a tile, at most; but one block of the file is never cut.
    """
    nav_ndim = q.desc.nav_ndim
    nav, sig = sizes[:nav_ndim], tuple(sizes[nav_ndim:])
    frames = math.prod(nav)
    block = frames_base((0,) * nav_ndim, nav, q.nav_bases)
    least = min(block.size, frames)
    budget = max(1, limit // q.dtype.itemsize)
    deep = min((w.depth for w in q.wishes if w.depth is not None), default=None)
    if "frame" in q.kinds or math.prod(sig) * least <= budget:
        tile_sig, why = sig, "whole frames"
    else:
        tile_sig = _part_of_frame(q, sig, budget, max(least, min(deep or 1, frames)))
        why = "whole rows" if tile_sig[-1:] == sig[-1:] else "parts of a row"
    one_run = tile_sig[-1:] < sig[-1:] and math.prod(tile_sig[:-1]) == 1
    depth = 1 if one_run else budget // math.prod(tile_sig)
    if deep is not None:
        depth = min(depth, deep)
        why += f", depth {deep} asked for"
    depth = even_size(frames, depth, *block)
    if depth * math.prod(tile_sig) > budget:
        why += ", more than the limit because nothing smaller suits the file and its consumers"
    return _said(q, (depth, *tile_sig), why)


def _part_of_frame(q: Question, sig: tuple[int, ...], budget: int, depth: int) -> tuple[int, ...]:
    """Cut frames for tiles so deep; but rows are cut only where a single one does not fit."""
    blocks = least_sizes(sig, q.sig_bases)
    row = math.prod(blocks[:-1]) * sig[-1]
    # A single row of pixels is read best in one go; one of blocks is scattered anyway.
    block = math.prod(blocks) if math.prod(blocks[:-1]) > 1 else budget
    least = row if row <= budget else block
    return fill(sig, max(least, budget // depth), q.sig_bases)


def whole_chunk(q: Question, sizes: Sequence[int]) -> tuple[int, ...]:
    """Give a tile of all that a chunk holds."""
    nav_ndim = q.desc.nav_ndim
    tile = (math.prod(sizes[:nav_ndim]), *sizes[nav_ndim:])
    return _said(q, tile, "a consumer wants whole chunks")


def _said(q: Question, tile: tuple[int, ...], why: str) -> tuple[int, ...]:
    q.say("tile", f"{tile}: {why}, {format_bytes(math.prod(tile) * q.dtype.itemsize)}")
    return tile


def tile_edges(
    starts: Sequence[int], sizes: Sequence[int], tile: tuple[int, ...], bases: Sequence[Base]
) -> list[list[int]]:
    """Find where the tiles of a chunk begin and end.

    Parameters
    ----------
    starts, sizes : sequence of int
        Where the chunk begins in the array, and how large it is, along each axis.
    tile : tuple of int
        Shape of a tile: frames, then signal axes.
    bases : sequence of Base
        Where each axis of the array may be cut.

    Returns
    -------
    list of list of int
        For the frames of the chunk, one after the other, and for each of its signal axes.
    """
    nav_ndim = len(sizes) - len(tile) + 1
    frames = frames_base(starts[:nav_ndim], sizes[:nav_ndim], bases[:nav_ndim])
    leads = [frames.lead]
    leads += [b.at(s).lead for b, s in zip(bases[nav_ndim:], starts[nav_ndim:], strict=True)]
    lengths = (math.prod(sizes[:nav_ndim]), *sizes[nav_ndim:])
    return [
        list(itertools.accumulate(split(length, size, lead % size), initial=0))
        for length, size, lead in zip(lengths, tile, leads, strict=True)
    ]
