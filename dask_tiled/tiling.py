"""The negotiation between what a file can do and what its consumers want.

A pure function of numbers: no file is touched, and the same question gets the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dask_tiled.description import Description, format_bytes
from dask_tiled.errors import TilingError

TILE_BYTES = 1 << 20
"""Bytes of a decoded tile: what stays in a core's share of the cache."""

By = Literal["tile", "frame", "chunk", "pixel"]


@dataclass(frozen=True, slots=True)
class TilingRequest:
    """What a consumer wishes.

    Parameters
    ----------
    by : {"tile", "frame", "chunk", "pixel"}
        What it works on: parts of frames over several frames ("tile", the least demanding), whole
        frames ("frame"), everything a chunk holds at once ("chunk"), or all frames of a few
        detector pixels ("pixel", the only wish for which frames are cut into several chunks).
    depth : int, optional
        Frames in a tile.
    nbytes : int, optional
        Bytes of a decoded tile; of a chunk for "chunk" and "pixel".

    Raises
    ------
    TilingError
        A number is not positive, or ``by`` is none of the four.
    """

    by: By = "tile"
    depth: int | None = None
    nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.by not in {"tile", "frame", "chunk", "pixel"}:
            raise TilingError(
                "unknown kind of tiling", expected="tile, frame, chunk or pixel", found=self.by
            )
        for name in ("depth", "nbytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TilingError(f"{name} must be positive", found=value)


@dataclass(frozen=True, slots=True)
class TilingScheme:
    """The negotiated answer.

    Attributes
    ----------
    chunks : tuple of tuple of int
        dask chunks of the array.
    tile_shape : tuple of int
        Shape of the tiles inside a chunk: frames, then signal axes. Tiles at the borders of a chunk
        may be smaller.
    reasons : tuple of (str, str)
        What was decided, and why.
    """

    chunks: tuple[tuple[int, ...], ...]
    tile_shape: tuple[int, ...]
    reasons: tuple[tuple[str, str], ...]

    def explain(self) -> str:
        """Tell in words how the numbers came about."""
        width = max(len(name) for name, _ in self.reasons)
        return "\n".join(f"{name:<{width}}  {reason}" for name, reason in self.reasons)


def negotiate(
    desc: Description,
    requests: TilingRequest | Sequence[TilingRequest] = (),
    *,
    chunk_bytes: int | None = None,
    chunks: tuple[tuple[int, ...], ...] | None = None,
) -> TilingScheme:
    """Find chunks and tiles that suit a file and all its consumers.

    Parameters
    ----------
    desc : Description
        The array.
    requests : TilingRequest or sequence of them, optional
        What the consumers wish; without any, tiles of the usual size.
    chunk_bytes : int, optional
        Largest size of a decoded chunk; by default dask's ``array.chunk-size``. A chunk holds at
        least one frame even if that is larger.
    chunks : tuple of tuple of int, optional
        Chunks that are settled already; only the tiles are negotiated then.

    Returns
    -------
    TilingScheme
    """
    wishes = [requests] if isinstance(requests, TilingRequest) else list(requests)
    wishes = wishes or [TilingRequest()]
    reasons: list[tuple[str, str]] = []
    if chunks is None:
        limit = _chunk_limit(wishes, chunk_bytes, reasons)
        sizes = _chunk_sizes(desc, wishes, limit, reasons)
        chunks = tuple(map(split, desc.shape, sizes))
    else:
        sizes = tuple(max(axis) for axis in chunks)
        reasons.append(("chunks", f"{sizes} at most: as given, or as slicing left them"))
    tile_shape = _tile_shape(desc, wishes, sizes, reasons)
    return TilingScheme(chunks, tile_shape, tuple(reasons))


def split(size: int, chunk: int) -> tuple[int, ...]:
    """Cut an axis into chunks of one size; the last one takes what is left."""
    whole, rest = divmod(size, chunk)
    return (chunk,) * whole + (rest,) * (rest > 0)


def even_size(size: int, limit: int, unit: int = 1) -> int:
    """Find the size of equal chunks, the last of which is at least half as large as the others.

    Parameters
    ----------
    size : int
        Length of the axis.
    limit : int
        Largest size of a chunk; taken as ``unit`` where it is smaller.
    unit : int
        Chunks are multiples of this, but for the last one.

    Returns
    -------
    int
        Never smaller for a larger limit.
    """
    size_units = -(-size // unit)
    limit_units = max(1, limit // unit)
    if limit_units >= size_units:
        return size
    for count in range(-(-size_units // limit_units), size_units):
        chunk = -(-size_units // count) * unit
        if 2 * (size - (-(-size // chunk) - 1) * chunk) >= chunk:
            return chunk
    return unit


def _chunk_limit(
    wishes: Sequence[TilingRequest], chunk_bytes: int | None, reasons: list[tuple[str, str]]
) -> int:
    asked = [w.nbytes for w in wishes if w.by in {"chunk", "pixel"} and w.nbytes is not None]
    if chunk_bytes is not None:
        asked.append(chunk_bytes)
    if asked:
        limit = min(asked)
        reasons.append(("chunk limit", f"{format_bytes(limit)}: the least that was asked for"))
        return limit
    from dask import config
    from dask.utils import parse_bytes

    limit = int(parse_bytes(config.get("array.chunk-size")))
    reasons.append(("chunk limit", f"{format_bytes(limit)}: dask's array.chunk-size"))
    return limit


def _chunk_sizes(
    desc: Description,
    wishes: Sequence[TilingRequest],
    limit: int,
    reasons: list[tuple[str, str]],
) -> tuple[int, ...]:
    """Decide the size of the chunks along every axis."""
    kinds = {wish.by for wish in wishes}
    nav, sig = desc.nav_shape, desc.sig_shape
    pixels = max(1, limit // desc.dtype.itemsize)
    if kinds == {"pixel"} and math.prod(nav) > 1:
        sig_sizes = _fill(sig, max(1, pixels // math.prod(nav)), desc.layout.unit_shape())
        reasons.append(("signal", f"{sig_sizes}: frames are cut, every frame of a pixel is wanted"))
    else:
        sig_sizes = sig
        why = "frames are never cut unless pixels alone are asked for"
        reasons.append(("signal", f"{sig_sizes}: {why}"))
    frames = max(1, pixels // math.prod(sig_sizes))
    nav_sizes = _nav_sizes(desc, frames, reasons)
    return nav_sizes + sig_sizes


def _fill(
    shape: tuple[int, ...], budget: int, units: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Take whole axes from the last one on, and an even part of the first that does not fit."""
    sizes = []
    for n, unit in zip(reversed(shape), reversed(units or (1,) * len(shape)), strict=True):
        size = even_size(n, budget, min(unit, n))
        sizes.append(size)
        budget = max(1, budget // size) if size == n else 1
    return tuple(reversed(sizes))


def _nav_sizes(desc: Description, frames: int, reasons: list[tuple[str, str]]) -> tuple[int, ...]:
    """Decide how many frames make a chunk: whole scan rows, whole files, even parts."""
    nav = desc.nav_shape
    if not nav:
        return ()
    sizes = _fill(nav, frames)
    cut = next((k for k, (n, size) in enumerate(zip(nav, sizes, strict=True)) if n > size), None)
    text = f"{sizes}: {math.prod(sizes)} of at most {frames} frames, divided evenly"
    if cut is not None:
        inner = math.prod(nav[cut + 1 :])
        per_file = _frames_per_file(desc)
        unit = per_file // inner if per_file and per_file % inner == 0 else 0
        if 1 < unit < nav[cut] and unit * inner <= frames:
            size = even_size(nav[cut], frames // inner, unit)
            sizes = (*sizes[:cut], size, *sizes[cut + 1 :])
            text = f"{sizes}: {math.prod(sizes)} of at most {frames} frames, in whole files"
        elif unit > 1 and unit * inner > frames:
            size = _divisor(unit, frames // inner)
            if 2 * size > sizes[cut]:
                sizes = (*sizes[:cut], size, *sizes[cut + 1 :])
                text = f"{sizes}: {math.prod(sizes)} of at most {frames} frames, none across files"
        if inner > 1:
            text += "; scan rows stay whole"
    reasons.append(("navigation", text))
    return sizes


def _divisor(size: int, limit: int) -> int:
    """Find the largest divisor of ``size`` that is at most ``limit``."""
    return next(n for n in range(max(1, min(size, limit)), 0, -1) if size % n == 0)


def _frames_per_file(desc: Description) -> int:
    """Count the frames of each file; 0 where files differ, or where there is only one."""
    layout = desc.layout
    shown = all(cut.start == 0 and cut.step == 1 for cut in layout.cuts[: len(layout.nav_shape)])
    if len(layout.files) < 2 or len(layout.grid) > 1 or not shown:
        return 0
    file, _, _, start, _, _ = layout.columns()
    firsts = np.unique(start[np.flatnonzero(np.diff(file, prepend=-1)), 0])
    lengths = np.diff(firsts)
    return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else 0


def _tile_shape(
    desc: Description,
    wishes: Sequence[TilingRequest],
    sizes: tuple[int, ...],
    reasons: list[tuple[str, str]],
) -> tuple[int, ...]:
    """Decide the shape of a tile inside a chunk: frames, then signal axes."""
    frames = math.prod(sizes[: desc.nav_ndim])
    sig = sizes[desc.nav_ndim :]
    kinds = {wish.by for wish in wishes}
    if "chunk" in kinds:
        reasons.append(("tile", f"{(frames, *sig)}: a consumer wants whole chunks"))
        return (frames, *sig)
    nbytes = min((w.nbytes for w in wishes if w.nbytes and w.by != "pixel"), default=TILE_BYTES)
    budget = max(1, nbytes // desc.dtype.itemsize)
    frame = math.prod(sig)
    if "frame" in kinds or frame <= budget:
        tile_sig = sig
        why = "whole frames"
    else:
        tile_sig = _fill(sig, budget, desc.layout.unit_shape())
        why = "whole rows"
    depth = max(1, budget // math.prod(tile_sig))
    asked = [w.depth for w in wishes if w.depth is not None]
    if asked:
        depth = min(depth, *asked)
        why += f", depth {min(asked)} asked for"
    depth = even_size(frames, min(depth, frames))
    tile = (depth, *tile_sig)
    size = format_bytes(math.prod(tile) * desc.dtype.itemsize)
    reasons.append(("tile", f"{tile}: {why}, {size} of at most {format_bytes(nbytes)}"))
    return tile
