"""How large chunks and tiles are: what a task holds, and what is decoded at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from dask import config

from dask_tiled.errors import format_bytes
from dask_tiled.tiling import machine
from dask_tiled.tiling.bases import (
    Base,
    even_size,
    file_blocks,
    fill,
    frame_bytes,
    frames_base,
    largest_divisor,
    least_sizes,
    split,
)
from dask_tiled.tiling.requests import Question, check_positive, parse_size

Chunks = tuple[tuple[int, ...], ...]

THREAD_CHUNKS = 8
"""So many chunks have to fit into the memory of a thread: results, copies, and what waits."""


def chunk_limit(q: Question, chunk_bytes: int | None, memory: int, whose: str) -> int:
    """Find the largest size of a chunk; ``memory`` is that of a thread, 0 where it has no limit."""
    asked = [w.nbytes for w in q.wishes if w.by in {"chunk", "pixel"} and w.nbytes is not None]
    if chunk_bytes is not None:
        asked.append(check_positive("chunk_bytes", chunk_bytes))
    if asked:
        limit, why = min(asked), "the least that was asked for"
    else:
        why = "dask's array.chunk-size"
        limit = parse_size(why, config.get("array.chunk-size"))
    if chunk_bytes is None and memory and memory // THREAD_CHUNKS < limit:
        limit = max(1, memory // THREAD_CHUNKS)
        why = f"{THREAD_CHUNKS} chunks have to fit into {format_bytes(memory)}, {whose}"
    q.say("chunk limit", f"{format_bytes(limit)}: {why}")
    return limit


def make_chunks(q: Question, limit: int, align_bytes: int) -> Chunks:
    """Decide the chunks, of at most ``limit`` bytes; but one block of the file is never cut."""
    nav, sig = q.desc.nav_shape, q.desc.sig_shape
    pixels = max(1, limit // q.dtype.itemsize)
    if q.kinds == {"pixel"} and math.prod(nav) > 1:
        sig_sizes = fill(sig, max(1, pixels // math.prod(nav)), q.sig_bases)
        q.say("signal", f"{sig_sizes}: frames are cut, every frame of a pixel is wanted")
    else:
        sig_sizes = sig
        q.say("signal", f"{sig_sizes}: frames are never cut unless pixels alone are asked for")
    sig_chunks = tuple(
        split(n, size, base.lead) for n, size, base in zip(sig, sig_sizes, q.sig_bases, strict=True)
    )
    frames = max(1, pixels // math.prod(sig_sizes))
    return (_nav_chunks(q, frames, align_bytes) if nav else ()) + sig_chunks


def _nav_chunks(q: Question, frames: int, align_bytes: int) -> Chunks:
    """Decide how many frames make a chunk: whole scan rows, whole files, even parts."""
    nav, bases = q.desc.nav_shape, q.nav_bases
    sizes, leads = [*fill(nav, frames, bases)], [base.lead for base in bases]
    where = "divided evenly"
    cut = max((k for k, n in enumerate(nav) if n > sizes[k]), default=0)
    inner = math.prod(nav[cut + 1 :])
    if any(base.size > 1 for base in bases):
        where = f"in whole blocks of {tuple(base.size for base in bases)}"
        if math.prod(sizes) > frames:
            where += ", which are larger than the limit"
    elif tuple(sizes) != nav:
        better = _by_file(q, cut, sizes[cut], frames // inner) or _aligned(
            q, cut, sizes[cut], align_bytes
        )
        if better:
            sizes[cut], leads[cut], where = better
    text = f"{tuple(sizes)}: {math.prod(sizes)} of at most {frames} frames, {where}"
    q.say("navigation", text + "; scan rows stay whole" * (inner > 1))
    return tuple(map(split, nav, sizes, leads))


def _by_file(q: Question, axis: int, usual: int, limit: int) -> tuple[int, int, str] | None:
    """Find chunks between which files begin: their size, how much shorter the first is, and why."""
    files = file_blocks(q.desc.layout, axis)
    if files is None:
        return None
    n = q.desc.nav_shape[axis]
    if files.size <= limit:
        size, where = even_size(n, limit, *files), "in whole files"
        if size % files.size:
            return None
    else:
        size, where = largest_divisor(files.size, limit), "none across files"
    parts = split(n, size, files.lead % size)
    even = 2 * min(parts) >= max(parts)
    return (size, files.lead % size, where) if even and 2 * size > usual else None


def _aligned(q: Question, axis: int, usual: int, align_bytes: int) -> tuple[int, int, str] | None:
    """Find chunks that are well aligned in the file, if they are as even and hardly smaller."""
    layout, nav = q.desc.layout, q.desc.nav_shape
    place, cuts = frame_bytes(layout), layout.cuts[: len(layout.nav_shape)]
    if align_bytes < 2 or place is None or any(cut[:2] != (0, 1) for cut in cuts):
        return None
    offset, distance = place
    inner = [math.prod(layout.nav_shape[k + 1 :]) for k, cut in enumerate(cuts) if cut.kept]
    strides = [distance * frames for frames in inner]
    outer = [stride for n, stride in zip(nav[:axis], strides, strict=False) if n > 1]
    begin = offset + layout.selection.first * distance
    if any(at % align_bytes for at in (begin, *outer)):
        return None
    unit, n = align_bytes // math.gcd(strides[axis], align_bytes), nav[axis]
    for size in range(usual // unit * unit, max(1, 9 * usual // 10) - 1, -unit):
        if (n % size or size) * usual >= (n % usual or usual) * size:
            return size, 0, f"divided evenly, each beginning at a multiple of {align_bytes} bytes"
    return None


def group_sizes(numblocks: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Group up to ``count`` neighbouring chunks, along the last axes first."""
    sizes = []
    for n in reversed(numblocks):
        sizes.append(max(1, min(count, n)))
        count = count // n if count >= n else 1
    return tuple(reversed(sizes))


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
