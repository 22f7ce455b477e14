"""Adjustment of tiles by formats, where base shapes do not suffice."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.errors import TilingError
from dask_tiled.formats.registry import Format
from dask_tiled.model.tile_request import TileRequest


def adjusted(
    format: Format, shape: tuple[int, ...], request: TileRequest
) -> tuple[tuple[int, ...], str]:
    """Return the tile shape that a format prefers, and its reason; empty without a change.

    Raise a TilingError if the format returns an impossible tile shape.
    """
    name, path = format.name, request.desc.files[0].path
    answer = format.call("adjust_tile", path, shape, request, kind=TilingError)
    expected = _violated(answer, request)
    if expected:
        problem = f"adjust_tile of the format {name!r} returns an invalid tile shape"
        raise TilingError(problem, path=path, expected=expected, found=repr(answer))
    tile = tuple(map(int, answer))
    if tile == shape:
        return shape, ""
    reason, _, _ = (inspect.getdoc(format.adjust_tile) or "no reason given").partition("\n")
    return tile, f"adjusted by the format {name}: {reason.rstrip('.')}"


def _violated(tile: Any, request: TileRequest) -> str:
    """Return the first requirement that a tile violates; empty if there is none."""
    chunk, blocks = request.chunk, request.blocks
    shaped = isinstance(tile, Sequence) and len(tile) == len(chunk)
    if not shaped or not all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) for n in tile
    ):
        return f"{len(chunk)} whole numbers"
    if not all(1 <= n <= most for n, most in zip(tile, chunk, strict=True)):
        return f"1 or more, and at most the chunk {chunk}"
    if request.by == "frame" and tuple(tile[1:]) != chunk[1:]:
        return f"whole frames of {chunk[1:]}, which a consumer requests"
    if request.depth is not None and tile[0] > request.depth:
        return f"at most {request.depth} frames, which a consumer requests"
    if any(n % block and n != most for n, block, most in zip(tile, blocks, chunk, strict=True)):
        return f"multiples of {blocks}, which no tile cuts, or the end of a chunk of {chunk}"
    return ""
