"""The negotiation between what a file can do and what its consumers want.

A pure function of numbers: no file is touched, and the same question gets the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dask_tiled.description import Description, format_bytes
from dask_tiled.division import covers, even_size, fill, largest_divisor, split
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
        if self.by not in ("tile", "frame", "chunk", "pixel"):
            raise TilingError(
                "unknown kind of tiling", expected="tile, frame, chunk or pixel", found=self.by
            )
        for name in ("depth", "nbytes"):
            value = getattr(self, name)
            if value is not None:
                _check_positive(name, value)


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
    wishes = as_requests(requests)
    reasons: list[tuple[str, str]] = []
    if chunks is None:
        limit = _chunk_limit(wishes, chunk_bytes, reasons)
        sizes = _chunk_sizes(desc, wishes, limit, reasons)
        chunks = tuple(map(split, desc.shape, sizes))
    else:
        if not covers(chunks, desc.shape):
            raise TilingError("chunks do not cover the array", expected=desc.shape, found=chunks)
        sizes = tuple(max(axis) for axis in chunks)
        reasons.append(("chunks", f"{sizes} at most: as given, or as slicing left them"))
    tile_shape = _tile_shape(desc, wishes, sizes, reasons)
    return TilingScheme(chunks, tile_shape, tuple(reasons))


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise TilingError(f"{name} must be a positive whole number", found=value)


def as_requests(requests: Any) -> tuple[TilingRequest, ...]:
    """Read one request or several; none stands for the usual tiles."""
    many = isinstance(requests, Iterable) and not isinstance(requests, str)
    wishes = tuple(requests) if many else (requests,)
    for wish in wishes:
        if not isinstance(wish, TilingRequest):
            raise TilingError("not a tiling request", expected="TilingRequest", found=repr(wish))
    return wishes or (TilingRequest(),)


def _chunk_limit(
    wishes: Sequence[TilingRequest], chunk_bytes: int | None, reasons: list[tuple[str, str]]
) -> int:
    asked = [w.nbytes for w in wishes if w.by in {"chunk", "pixel"} and w.nbytes is not None]
    if chunk_bytes is not None:
        _check_positive("chunk_bytes", chunk_bytes)
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
        sig_sizes = fill(sig, max(1, pixels // math.prod(nav)), desc.layout.unit_shape())
        reasons.append(("signal", f"{sig_sizes}: frames are cut, every frame of a pixel is wanted"))
    else:
        sig_sizes = sig
        why = "frames are never cut unless pixels alone are asked for"
        reasons.append(("signal", f"{sig_sizes}: {why}"))
    frames = max(1, pixels // math.prod(sig_sizes))
    nav_sizes = _nav_sizes(desc, frames, reasons)
    return nav_sizes + sig_sizes


def _nav_sizes(desc: Description, frames: int, reasons: list[tuple[str, str]]) -> tuple[int, ...]:
    """Decide how many frames make a chunk: whole scan rows, whole files, even parts."""
    nav = desc.nav_shape
    if not nav:
        return ()
    sizes = fill(nav, frames)
    text = f"{math.prod(sizes)} of at most {frames} frames, divided evenly"
    cut = max(
        (k for k, (n, size) in enumerate(zip(nav, sizes, strict=True)) if n > size), default=0
    )
    inner = math.prod(nav[cut + 1 :])
    per_file = _frames_per_file(desc)
    rows_differ = math.prod(nav[:cut]) > 1 and per_file and nav[cut] * inner % per_file
    if rows_differ or sizes == nav:  # files begin elsewhere in every row, or nothing is cut
        per_file = 0
    in_files, where = _file_size(per_file, nav[cut], inner, frames // inner)
    if in_files and 2 * in_files > sizes[cut]:
        sizes = (*sizes[:cut], in_files, *sizes[cut + 1 :])
        text = f"{math.prod(sizes)} of at most {frames} frames, {where}"
    if inner > 1:
        text += "; scan rows stay whole"
    reasons.append(("navigation", f"{sizes}: {text}"))
    return sizes


def _file_size(per_file: int, size: int, inner: int, limit: int) -> tuple[int, str]:
    """Find a chunk size at whose multiples files begin; 0 where there is no even one."""
    if not per_file or per_file % inner:
        return 0, ""
    unit = per_file // inner
    if unit <= limit:
        chunk, where = even_size(size, limit, unit), "in whole files"
        aligned = chunk % unit == 0
    else:
        chunk, where = largest_divisor(unit, limit), "none across files"
        aligned = True
    rest = size % chunk
    return (chunk, where) if aligned and (not rest or 2 * rest >= chunk) else (0, "")


def _frames_per_file(desc: Description) -> int:
    """Count the frames of each file; 0 where files differ, or where there is only one."""
    layout = desc.layout
    nav = layout.cuts[: len(layout.nav_shape)]
    shown = all((cut.start, cut.step) == (0, 1) for cut in nav)
    shown &= all(cut.length == n for cut, n in zip(nav[1:], layout.nav_shape[1:], strict=True))
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
        tile_sig = fill(sig, budget, desc.layout.unit_shape())
        why = "whole rows" if tile_sig[-1:] == sig[-1:] else "parts of a row"
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
