"""The tiles: the part of a chunk that is decoded and processed at once, in the cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from dask import config

from dask_tiled.errors import format_bytes
from dask_tiled.tiling import machine
from dask_tiled.tiling.bases import frames_base
from dask_tiled.tiling.division import Base, even_size, fill, least_sizes, split
from dask_tiled.tiling.requests import Question, check_positive, parse_size

LEAST_TILE_BYTES, MOST_TILE_BYTES = 128 << 10, 1 << 20
"""Below, calls per tile cost more than misses of the cache; above, nothing is gained."""


def usual_tile_bytes(cache_bytes: int) -> int:
    """Give the bytes of a tile that suits a cache: half of it is left to what a tile meets."""
    return min(max(cache_bytes // 2, LEAST_TILE_BYTES), MOST_TILE_BYTES)


def _tile_limit(q: Question, cache_bytes: int | None) -> int:
    """Find the largest size of a tile in bytes: the smallest that a consumer wants."""
    usual, why = _usual_size(cache_bytes)
    asked = [wish.nbytes for wish in q.wishes if wish.by in {"tile", "frame"}]
    limit = min((nbytes or usual for nbytes in asked), default=usual)
    if limit in asked:
        why = "the least that was asked for"
    q.say("tile limit", f"{format_bytes(limit)}: {why}")
    return limit


def _usual_size(cache_bytes: int | None) -> tuple[int, str]:
    """Give the bytes of a tile for consumers that do not say, and where they come from."""
    name = "dask-tiled.tile-bytes"
    configured: Any = config.get(name, None)
    if cache_bytes is None and configured is not None:
        return parse_size(name, configured), name
    cache = machine.cache_bytes() if cache_bytes is None else cache_bytes
    size = usual_tile_bytes(check_positive("cache_bytes", cache))
    return size, f"for a cache of {format_bytes(cache)} per thread"


def tile_shape(q: Question, sizes: Sequence[int], cache_bytes: int | None) -> tuple[int, ...]:
    """Decide the shape of a tile inside a chunk: frames, then signal axes.

    One block of the file is never cut. ``sizes`` are those of the largest chunk.
    """
    nav_ndim = q.desc.nav_ndim
    frames, sig = math.prod(sizes[:nav_ndim]), tuple(sizes[nav_ndim:])
    if "chunk" in q.kinds:
        return _said(q, (frames, *sig), "a consumer wants whole chunks")
    block = frames_base((0,) * nav_ndim, sizes[:nav_ndim], q.nav_bases)
    least = min(block.size, frames)
    budget = max(1, _tile_limit(q, cache_bytes) // q.dtype.itemsize)
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


def _said(q: Question, tile: tuple[int, ...], why: str) -> tuple[int, ...]:
    q.say("tile", f"{tile}: {why}, {format_bytes(math.prod(tile) * q.dtype.itemsize)}")
    return tile


def tile_edges(
    starts: Sequence[int], sizes: Sequence[int], tile: tuple[int, ...], bases: Sequence[Base]
) -> list[list[int]]:
    """Find where the tiles of a chunk begin and end: along its frames, and each signal axis.

    The chunk begins at ``starts`` in the array, whose axes may be cut as ``bases`` say.
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
