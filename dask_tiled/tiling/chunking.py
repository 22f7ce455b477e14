"""The chunks: how much a task holds, and where chunks meet."""

from __future__ import annotations

import math

from dask_tiled.errors import TilingError, format_bytes
from dask_tiled.tiling.blocks import file_blocks, frame_bytes
from dask_tiled.tiling.division import even_size, fill, largest_divisor, split
from dask_tiled.tiling.requests import Question, check_positive

Chunks = tuple[tuple[int, ...], ...]

THREAD_CHUNKS = 8
"""So many chunks have to fit into the memory of a thread: results, copies, and what waits."""


def chunk_limit(q: Question, chunk_bytes: int | None, memory: int, whose: str) -> int:
    """Find the largest size of a chunk, in bytes.

    Parameters
    ----------
    q : Question
    chunk_bytes : int or None
        What the caller demands.
    memory : int
        Bytes that a thread may use; 0 where there is no limit.
    whose : str
        Where that memory is, in words.
    """
    asked = [w.nbytes for w in q.wishes if w.by in {"chunk", "pixel"} and w.nbytes is not None]
    if chunk_bytes is not None:
        limit = min(check_positive("chunk_bytes", chunk_bytes), *asked, chunk_bytes)
        why = "the least that was asked for"
    else:
        if asked:
            limit, why = min(asked), "the least that was asked for"
        else:
            limit, why = _configured(), "dask's array.chunk-size"
        if memory and memory // THREAD_CHUNKS < limit:
            limit = max(1, memory // THREAD_CHUNKS)
            why = f"{THREAD_CHUNKS} chunks have to fit into {format_bytes(memory)}, {whose}"
    q.say("chunk limit", f"{format_bytes(limit)}: {why}")
    return limit


def _configured() -> int:
    from dask import config
    from dask.utils import parse_bytes

    size = config.get("array.chunk-size")
    try:
        limit = int(parse_bytes(size))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise TilingError("dask's array.chunk-size is no size", found=size) from error
    return check_positive("dask's array.chunk-size", limit)


def make_chunks(q: Question, limit: int, align_bytes: int) -> Chunks:
    """Decide the chunks.

    Parameters
    ----------
    q : Question
    limit : int
        Bytes of a chunk, at most; but one block of the file is never cut.
    align_bytes : int
        Chunks begin at multiples of this in the file where that costs nothing.
    """
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
    cut = max(
        (k for k, (n, size) in enumerate(zip(nav, sizes, strict=True)) if n > size), default=0
    )
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
    lead = files.lead % size
    parts = split(n, size, lead)
    even = 2 * min(parts) >= max(parts)
    return (size, lead, where) if even and 2 * size > usual else None


def _aligned(q: Question, axis: int, usual: int, align_bytes: int) -> tuple[int, int, str] | None:
    """Find chunks that are well aligned in the file, if they are as even and hardly smaller."""
    place = frame_bytes(q.desc.layout)
    nav = q.desc.nav_shape
    cuts = q.desc.layout.cuts[: len(q.desc.layout.nav_shape)]
    if align_bytes < 2 or place is None or any(cut[:2] != (0, 1) for cut in cuts):
        return None
    offset, distance = place
    strides = [distance * math.prod(q.desc.layout.nav_shape[k + 1 :]) for k in range(len(cuts))]
    strides = [stride for stride, cut in zip(strides, cuts, strict=True) if cut.kept]
    outer = [stride for n, stride in zip(nav[:axis], strides, strict=False) if n > 1]
    begin = offset + q.desc.layout.selection.first * distance
    if any(at % align_bytes for at in (begin, *outer)):
        return None
    unit = align_bytes // math.gcd(strides[axis], align_bytes)
    n = nav[axis]
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
