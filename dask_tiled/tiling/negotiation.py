"""Negotiation of chunks and tiles between a file and its consumers, number by number.

Resources of the machine are the defaults of arguments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain
from typing import Any, Literal, NamedTuple

import numpy as np
from dask import config
from dask.utils import parse_bytes

from dask_tiled.errors import TilingError, check_whole, format_bytes
from dask_tiled.formats.registry import formats
from dask_tiled.model.description import Description
from dask_tiled.model.tile_request import TileRequest
from dask_tiled.tiling import machine
from dask_tiled.tiling.adjusting import adjusted
from dask_tiled.tiling.bases import (
    Base,
    Chunks,
    bases,
    ceil_div,
    even_size,
    file_blocks,
    fill,
    fill_square,
    frame_bytes,
    frames_base,
    largest_divisor,
    least_sizes,
    part_bases,
    split,
)
from dask_tiled.tiling.limits import (
    DECODED_CHUNKS,
    GROWN_CHUNKS,
    LEAST_PART_BYTES,
    LEAST_SHARE,
    LEAST_TILE_BYTES,
    MOST_ARRIVING_ROWS,
    MOST_CHUNK_FRAMES,
    MOST_CHUNKS,
    MOST_TILE_BYTES,
    PROCESSOR_CHUNKS,
    THREAD_CHUNKS,
    USUAL_COUNT,
)

By = Literal["tile", "frame", "chunk", "pixel"]

check_positive = partial(check_whole, least=1, error=TilingError)


@dataclass(frozen=True, slots=True)
class TilingRequest:
    """Tiles preferred by a consumer.

    Parameters
    ----------
    by : {"tile", "frame", "chunk", "pixel"}
        Unit of work: parts of frames over several frames ("tile", the least demanding), whole
        frames ("frame"), a whole chunk at once ("chunk"), or all frames of a few
        detector pixels ("pixel"). Only "pixel" splits frames that a chunk can hold, and "frame"
        keeps larger ones whole.
    depth : int, optional
        Most frames of a tile; fewer if they do not fit.
    nbytes : int, optional
        Bytes of a decoded tile; of a chunk for "chunk" and "pixel".

    Raises
    ------
    TilingError
        A number is not positive, or ``by`` is invalid.

    Examples
    --------
    >>> import dask_tiled
    >>> request = dask_tiled.TilingRequest(by="pixel", nbytes=2**23)
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold(), tiling=request)
    >>> arr.shape[:2] == arr.chunksize[:2]
    True
    """

    by: By = "tile"
    depth: int | None = None
    nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.by not in ("tile", "frame", "chunk", "pixel"):
            raise TilingError(
                "invalid tiling request", expected="tile, frame, chunk or pixel", found=self.by
            )
        for name in ("depth", "nbytes"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))

    def __str__(self) -> str:
        wishes = [f"depth {self.depth}"] * (self.depth is not None)
        wishes += [f"{self.nbytes} bytes"] * (self.nbytes is not None)
        return f"by {self.by}" + (f" ({', '.join(wishes)})" if wishes else "")


def tile_for(
    desc: Description, requests: Sequence[TilingRequest], chunks: Chunks
) -> tuple[int, ...]:
    """Return the tile shape that suits several consumers of existing chunks."""
    question = Question(desc, tuple(requests), desc.dtype, bases(desc))
    return tile_shape(question, tuple(map(max, chunks)), None)


def parse_size(name: str, value: Any) -> int:
    """Parse a number of bytes as in dask's configuration."""
    try:
        size = int(parse_bytes(value))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise TilingError(f"{name} is not a size in bytes", found=value) from error
    return check_positive(name, size)


def as_requests(requests: Any) -> tuple[TilingRequest, ...]:
    """Normalize requests: one or several, or values of ``by``; none means tiles of usual size."""
    many = isinstance(requests, Iterable) and not isinstance(requests, str)
    given: Iterable[Any] = requests if many else (requests,)
    wishes = tuple(TilingRequest(by=one) if isinstance(one, str) else one for one in given)  # type: ignore[arg-type]
    for wish in wishes:
        if not isinstance(wish, TilingRequest):
            raise TilingError("not a tiling request", expected="TilingRequest", found=repr(wish))
    return wishes or (TilingRequest(),)


@dataclass(slots=True)
class Question:
    """Inputs of a negotiation, and the reasons collected on the way.

    There is at least one request; ``dtype`` is that of the pixels that consumers get, and
    ``bases`` are the blocks of each axis.
    """

    desc: Description
    wishes: tuple[TilingRequest, ...]
    dtype: np.dtype
    bases: tuple[Base, ...]
    reasons: list[tuple[str, str]] = field(default_factory=list)

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel in memory; the mean for Python objects."""
        return max(self.dtype.itemsize, self.desc.layout.object_bytes)

    @property
    def kinds(self) -> set[By]:
        """Units of work of the consumers."""
        return {wish.by for wish in self.wishes}

    @property
    def nav_bases(self) -> tuple[Base, ...]:
        """Blocks of the navigation axes."""
        return self.bases[: self.desc.nav_ndim]

    @property
    def sig_bases(self) -> tuple[Base, ...]:
        """Blocks of the signal axes."""
        return self.bases[self.desc.nav_ndim :]

    def say(self, name: str, reason: str) -> None:
        """Record a decision and its reason."""
        self.reasons.append((name, reason))

    def say_known(self) -> None:
        """Record the inputs, before anything is decided."""
        counts = Counter(sorted(map(str, self.wishes)))
        wishes = [text + f", {n} times" * (n > 1) for text, n in counts.items()]
        self.say("consumers", "; ".join(wishes))
        if any(base.size > 1 for base in self.bases):
            sizes = tuple(base.size for base in self.bases)
            self.say("base shape", f"{sizes}: blocks of the file, which are never cut")
        native = self.desc.layout.dtype
        if self.dtype != native:
            self.say(
                "dtype",
                f"{self.dtype}: converted from {native}; sizes are bytes of the converted pixels",
            )


class Limit(NamedTuple):
    """Largest size of chunks in bytes."""

    nbytes: int
    block_bytes: int | None = None
    """Largest size of blocks for functions of whole chunks, if chunks are larger."""


def chunk_limit(
    q: Question,
    chunk_bytes: int | None,
    memory_bytes: int | None,
    processors: int | None,
    align_bytes: int,
) -> Limit:
    """Return the largest size of a chunk in bytes."""
    memory, whose = 0, ""
    if memory_bytes is not None:
        memory, whose = check_positive("memory_bytes", memory_bytes), "as given"
    elif chunk_bytes is None:
        memory, whose = machine.thread_memory()
    asked = [w.nbytes for w in q.wishes if w.by in {"chunk", "pixel"} and w.nbytes is not None]
    if chunk_bytes is not None:
        asked.append(check_positive("chunk_bytes", chunk_bytes))
    if asked:
        limit, why = min(asked), "the smallest that was requested"
    else:
        why = "dask's array.chunk-size"
        limit = parse_size(why, config.get("array.chunk-size"))
    # Growing files get more chunks later; blocks cut into pixels would be read repeatedly.
    again = q.desc.layout.has_blocks and "pixel" in q.kinds
    if not asked and not again and not q.desc.files[-1].grows:
        limit, why = _share(q, limit, processors) or (limit, why)
    if not asked and "pixel" not in q.kinds:
        limit, why = _rows(q, limit) or (limit, why)
    if chunk_bytes is None and memory and memory // THREAD_CHUNKS < limit:
        limit = max(1, memory // THREAD_CHUNKS)
        why = f"{THREAD_CHUNKS} chunks have to fit into {format_bytes(memory)}, {whose}"
    grown = limit if asked or q.desc.files[-1].grows else _grown(q, limit, memory, align_bytes)
    if grown > limit:
        told = format_bytes(limit)
        why = f"more than {told}, so that there are some {USUAL_COUNT} chunks"
        q.say("chunk limit", f"{format_bytes(grown)}: {why}")
        q.say("blocks", f"{told}: parts of chunks, for functions of map_blocks and iter_blocks")
        return Limit(grown, limit)
    q.say("chunk limit", f"{format_bytes(limit)}: {why}")
    return Limit(limit)


def _grown(q: Question, limit: int, memory: int, align_bytes: int) -> int:
    """Return a limit with which there are few chunks, for consumers of tiles and frames.

    Jobs go through chunks tile by tile, and functions of whole chunks get parts of them.
    """
    nav, sig = q.desc.nav_shape, q.desc.sig_shape
    frame = math.prod(sig) * q.pixel_bytes
    most = memory // GROWN_CHUNKS if memory else MOST_CHUNK_FRAMES * frame
    if not q.kinds <= {"tile", "frame"} or not frame:
        return limit
    while limit < most:
        frames = min(max(1, limit // frame), MOST_CHUNK_FRAMES)
        sizes = fill(nav, frames, q.nav_bases)
        count = math.prod(ceil_div(n, max(1, size)) for n, size in zip(nav, sizes, strict=True))
        if count <= USUAL_COUNT:  # files and alignment may require smaller chunks
            chunks = make_chunks(replace(q, reasons=[]), limit, align_bytes, asked=False)
            count = math.prod(map(len, chunks))
        if count <= USUAL_COUNT or frames == MOST_CHUNK_FRAMES:
            break
        limit = min(most, ceil_div(frames * count, USUAL_COUNT) * frame)  # of more frames
    return limit


def block_chunks(desc: Description, chunks: Chunks, nbytes: int) -> Chunks:
    """Split chunks along the navigation axes into blocks of at most ``nbytes``, of whole frames.

    Blocks of the file are never cut.
    """
    ndim, blocks = desc.nav_ndim, list(chunks)
    frame = math.prod(max(axis, default=0) for axis in chunks[ndim:]) * desc.dtype.itemsize
    largest = tuple(max(axis, default=0) for axis in chunks[:ndim])
    sizes = fill(largest, max(1, nbytes // max(1, frame)), bases(desc)[:ndim])
    for axis, (size, base) in enumerate(zip(sizes, bases(desc)[:ndim], strict=True)):
        starts = accumulate(chunks[axis], initial=0)
        parts = (
            split(n, size, base.at(start).lead % size)
            for n, start in zip(chunks[axis], starts, strict=False)
        )
        blocks[axis] = tuple(chain.from_iterable(parts))
    return tuple(blocks)


def _share(q: Question, limit: int, processors: int | None) -> tuple[int, str] | None:
    """Return a smaller limit that occupies all processors, and its reason; None if not needed."""
    count = machine.processors() if processors is None else check_positive("processors", processors)
    whose = "of this machine" if processors is None else "as given"
    shares = PROCESSOR_CHUNKS * count
    why = f"{PROCESSOR_CHUNKS} chunks for each of {count} processors, {whose}"
    if q.desc.layout.has_blocks and shares < DECODED_CHUNKS:
        shares, why = DECODED_CHUNKS, "several chunks, so that cores decode in parallel"
    nbytes = math.prod(q.desc.shape) * q.pixel_bytes
    share = max(LEAST_SHARE, nbytes // shares)
    if math.prod(q.desc.nav_shape) >= shares:  # whole frames occupy the processors
        share = max(share, math.prod(q.desc.sig_shape) * q.pixel_bytes)
    return (share, why) if share < min(limit, nbytes) else None


def _rows(q: Question, limit: int) -> tuple[int, str] | None:
    """Return a smaller limit for rows of a scan whose frames are arriving, and its reason.

    Results of a row are then complete as soon as its frames are there.
    """
    nav = q.desc.nav_shape
    if not q.desc.files[-1].grows or len(nav) < 2 or not q.desc.layout.count_missing():
        return None
    rows = ceil_div(math.prod(nav[:-1]), MOST_ARRIVING_ROWS)
    nbytes = rows * nav[-1] * math.prod(q.desc.sig_shape) * q.pixel_bytes
    why = f"{rows} row{'s' * (rows > 1)} of a scan whose frames are arriving"
    return (nbytes, why) if 0 < nbytes < limit else None


def check_count(desc: Description, count: int) -> None:
    """Check the number of chunks before any are created.

    Raise a TilingError if there are more than ``MOST_CHUNKS``.
    """
    if count > MOST_CHUNKS:
        size = f"{desc.shape} {desc.dtype}, {format_bytes(desc.nbytes)}"
        raise TilingError(
            "the array has too many chunks",
            path=desc.files[0].path,
            expected=f"at most {MOST_CHUNKS}",
            found=f"{count}, for {size}",
            hint="Pass larger chunks=, or set dask's array.chunk-size; if the size is wrong, pass"
            " nav_shape=.",
        )


def make_chunks(q: Question, limit: int, align_bytes: int, *, asked: bool) -> Chunks:
    """Choose the chunks, of at most ``limit`` bytes; blocks of the file are not cut.

    If the user asked for the limit, there may be more chunks than of the usual size, as long as
    their sizes along each axis fit.
    """
    nav, sig, sig_bases = q.desc.nav_shape, q.desc.sig_shape, q.sig_bases
    pixels = max(1, limit // q.pixel_bytes)
    if q.kinds == {"pixel"} and math.prod(nav) > 1:
        sig_sizes = fill(sig, max(1, pixels // math.prod(nav)), q.sig_bases)
        q.say("signal", f"{sig_sizes}: frames are cut, because all frames of a pixel are requested")
    else:
        sig_sizes, sig_bases = _sig_sizes(q, pixels, asked=asked)
        pixels = pixels if sig_sizes == sig else 1  # parts of one frame
    frames = min(max(1, pixels // math.prod(sig_sizes)), MOST_CHUNK_FRAMES)
    nav_sizes = fill(nav, frames, q.nav_bases)
    counts = [ceil_div(n, max(1, k)) for n, k in zip(nav + sig, nav_sizes + sig_sizes, strict=True)]
    check_count(q.desc, sum(counts) if asked else math.prod(counts))
    sig_chunks = tuple(
        split(n, size, base.lead) for n, size, base in zip(sig, sig_sizes, sig_bases, strict=True)
    )
    return (_nav_chunks(q, frames, nav_sizes, align_bytes) if nav else ()) + sig_chunks


def _sig_sizes(
    q: Question, pixels: int, *, asked: bool
) -> tuple[tuple[int, ...], tuple[Base, ...]]:
    """Choose the signal axes of a chunk: a frame is cut only if no chunk can hold it.

    Return the sizes, and the blocks between which frames are cut.
    """
    sizes, layout, bases = q.desc.sig_shape, q.desc.layout, q.sig_bases
    frame = math.prod(sizes)
    why = "whole frames"
    if frame > pixels:
        told = f"of {format_bytes(frame * q.pixel_bytes)}"
        if "frame" in q.kinds:
            why += f" {told}, which a consumer requests"
        elif layout.is_sparse:
            why += f" {told}, anywhere in which events may lie"
        else:
            usual = LEAST_PART_BYTES if q.desc.files[-1].grows else part_bytes(q.desc)
            budget = pixels if asked else min(pixels, max(1, usual // q.pixel_bytes))
            bases = part_bases(layout, q.sig_bases, budget)
            sizes = fill_square(sizes, budget, bases)
            cut = sizes != q.desc.sig_shape
            why = f"parts of frames {told}" if cut else f"{why} {told}, which are single blocks"
            if cut and any(base.size > 1 for base in bases):
                why += f", in whole blocks of {tuple(base.size for base in bases)}"
    q.say("signal", f"{sizes}: {why}")
    return sizes, bases


def part_bytes(desc: Description) -> int:
    """Return the usual size of the parts into which large frames are cut, in bytes."""
    return max(LEAST_PART_BYTES, 2 * desc.nbytes // USUAL_COUNT)


def _nav_chunks(q: Question, frames: int, usual: tuple[int, ...], align_bytes: int) -> Chunks:
    """Choose the frames of a chunk: whole scan rows, whole files, even parts."""
    nav, bases = q.desc.nav_shape, q.nav_bases
    sizes, leads = [*usual], [base.lead for base in bases]
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
    """Match chunks to files: return their size, the lead of the first, and the reason."""
    files = file_blocks(q.desc.layout, axis)
    if files is None:
        return None
    n = q.desc.nav_shape[axis]
    if files.size <= limit:
        size, where = even_size(n, limit, *files), "in whole files"
        if size % files.size:
            return None
    else:
        size, where = largest_divisor(files.size, limit), "within files"
    parts = split(n, size, files.lead % size)
    even = 2 * min(parts) >= max(parts)
    return (size, files.lead % size, where) if even and 2 * size > usual else None


def _aligned(q: Question, axis: int, usual: int, align_bytes: int) -> tuple[int, int, str] | None:
    """Match chunks to aligned offsets, if they are as even and hardly smaller."""
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
            return size, 0, f"divided evenly, beginning at multiples of {align_bytes} bytes"
    return None


def usual_tile_bytes(cache_bytes: int) -> int:
    """Return the bytes of a tile for a cache, half of which is left to other data."""
    return min(max(cache_bytes // 2, LEAST_TILE_BYTES), MOST_TILE_BYTES)


def _tile_limit(q: Question, cache_bytes: int | None) -> int:
    """Return the largest size of a tile in bytes: the smallest that a consumer asks for."""
    usual, why = _usual_size(cache_bytes)
    asked = [wish.nbytes for wish in q.wishes if wish.by in {"tile", "frame"}]
    limit = min((nbytes or usual for nbytes in asked), default=usual)
    if limit in asked:
        why = "the smallest that was requested"
    q.say("tile limit", f"{format_bytes(limit)}: {why}")
    return limit


def _usual_size(cache_bytes: int | None) -> tuple[int, str]:
    """Return the default bytes of a tile, and their source."""
    name = "dask-tiled.tile-bytes"
    configured: Any = config.get(name, None)
    if cache_bytes is None and configured is not None:
        return parse_size(name, configured), name
    cache = machine.cache_bytes() if cache_bytes is None else cache_bytes
    size = usual_tile_bytes(check_positive("cache_bytes", cache))
    return size, f"for a cache of {format_bytes(cache)} per thread"


def tile_shape(q: Question, sizes: Sequence[int], cache_bytes: int | None) -> tuple[int, ...]:
    """Choose the shape of a tile inside a chunk: frames, then signal axes.

    Blocks of the file are never cut. ``sizes`` are those of the largest chunk. The format may
    adjust the tile, unless a consumer asks for whole chunks.
    """
    nav_ndim = q.desc.nav_ndim
    frames, sig = math.prod(sizes[:nav_ndim]), tuple(sizes[nav_ndim:])
    if "chunk" in q.kinds:
        return _said(q, (frames, *sig), "a consumer requests whole chunks")
    block = frames_base(sizes[:nav_ndim], q.nav_bases)
    least = min(block.size, frames)
    budget = max(1, _tile_limit(q, cache_bytes) // q.pixel_bytes)
    deep = min((w.depth for w in q.wishes if w.depth is not None), default=None)
    if "frame" in q.kinds or math.prod(sig) * least <= budget:
        tile_sig, why = sig, "whole frames" if sig == q.desc.sig_shape else "whole parts of frames"
    else:
        tile_sig = _part_of_frame(q, sig, budget, max(least, min(deep or 1, frames)))
        why = "whole rows" if tile_sig[-1:] == q.desc.sig_shape[-1:] else "parts of a row"
    one_run = tile_sig[-1:] < sig[-1:] and math.prod(tile_sig[:-1]) == 1
    depth = 1 if one_run else budget // math.prod(tile_sig)
    if deep is not None:
        depth = min(depth, deep)
        why += f", requested depth {deep}"
    depth = even_size(frames, depth, *block)
    if depth * math.prod(tile_sig) > budget:
        why += ", beyond the limit because the file and its consumers allow nothing smaller"
    tile = _said(q, (depth, *tile_sig), why)
    format = formats().get(q.desc.format)
    if format is None or format.adjust_tile is None:  # a worker may lack the format
        return tile
    blocks = (least, *(base.size for base in q.sig_bases))
    by = next(kind for kind in ("frame", "tile", "pixel") if kind in q.kinds)
    request = TileRequest(q.desc, (frames, *sig), blocks, by, deep, budget)
    tile, why = adjusted(format, tile, request)
    return _said(q, tile, why, "adjusted tile") if why else tile


def _part_of_frame(q: Question, sig: tuple[int, ...], budget: int, depth: int) -> tuple[int, ...]:
    """Split frames for tiles of a depth; rows are split only if a single one does not fit."""
    blocks = least_sizes(sig, q.sig_bases)
    row = math.prod(blocks[:-1]) * sig[-1]
    # A single row of pixels is best read as a whole; a row of blocks is scattered anyway.
    block = math.prod(blocks) if math.prod(blocks[:-1]) > 1 else budget
    least = row if row <= budget else block
    return fill(sig, max(least, budget // depth), q.sig_bases)


def _said(q: Question, tile: tuple[int, ...], why: str, name: str = "tile") -> tuple[int, ...]:
    q.say(name, f"{tile}: {why}, {format_bytes(math.prod(tile) * q.pixel_bytes)}")
    return tile
