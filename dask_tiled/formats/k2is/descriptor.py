"""Gatan K2 in-situ sets: eight ``.bin`` files, one per sector of the camera, and a ``.gtg`` file.

A sector writes frames of 32 blocks, each of 930 rows of 16 pixels, with a header that counts blocks
and frames and holds the shutter state. Sectors begin and end at any block.

Layout as read by LiberTEM and py4DSTEM, which agree; not checked with a real set.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.files.file import is_filling
from dask_tiled.formats import tools
from dask_tiled.formats.dm.tags import group, read_tags
from dask_tiled.formats.k2is.sectors import (
    BLOCK,
    COLUMNS,
    FIELDS,
    HEADER_BYTES,
    PER_FRAME,
    ROWS,
    WIDTH,
    Sector,
    find_block,
    first_open,
    synchronise,
)
from dask_tiled.formats.tools.files import absolute, common_stem
from dask_tiled.model.doubts import Doubt, left_over, unknown_scan

SECTORS = 8
UNPACK = tools.Decoder("unpack12", np.dtype(np.uint16), COLUMNS * 3 // 2, COLUMNS)
TAG_FILES = (b"\0\0\0\3", b"\0\0\0\4")


def sniff(path: str, head: bytes) -> str | None:
    """Check for a block header, or for the sectors of a ``.gtg`` file."""
    if find_block(head) == 0:
        return None
    stem, suffix = _parts(path)
    bins = tools.beside(stem, "1.bin", "1.BIN")
    if suffix == ".gtg":
        if head.startswith(TAG_FILES) and bins is not None:
            return None
        return "no tag file with .bin files beside it"
    # A recording may begin inside a block.
    if suffix == ".bin" and bins and find_block(tools.read_head(path, 2 * BLOCK)) is not None:
        return None
    return "no block header, and no .gtg file"


def describe(
    paths: Sequence[str], *, nav_shape: tuple[int, ...] | None = None
) -> tools.Description:
    """Describe a set of K2 files, given any of them.

    Frames that are incomplete in a sector are dropped. Frames before the shutter opened are
    skipped, but ``sync_offset=-1`` adds the last of them; in scans, the flag in the headers comes
    one frame late, which is corrected. The scan shape in the ``.gtg`` file includes the flyback;
    without that file, a set is a series of frames.
    """
    stem = common_stem(paths, lambda path: _parts(path)[0])
    sectors = [Sector.at(path) for path in _sector_paths(stem)]
    starts, counts = synchronise(sectors)
    n_frames = min(counts)
    opened = first_open(sectors[0], starts[0], n_frames)
    gtg = tools.beside(stem, ".gtg", ".GTG")
    tags = {} if gtg is None else read_tags(gtg)
    scan = _scan_shape(tags, str(gtg))
    # In scans the flag comes one frame late; a series shows the frames that have it.
    first = max(0, (opened or 0) - bool(scan))
    facts: dict[str, Any] = {
        "first_bytes": tuple(map(Sector.byte, sectors, starts)),
        "complete_frames": n_frames,
        "first_frame_with_open_shutter": "none" if opened is None else opened,
        "first_frame_shown": first,
        "gtg": tags,
    }
    # Sectors end at slightly different frames.
    promised = first + math.prod(scan) if scan else max(counts) - 1
    grows = all(sector.file.grows for sector in sectors)
    if nav_shape is None and n_frames < promised and not grows and not is_filling():
        raise tools.TruncatedFileError(
            "frames are missing at the end",
            path=sectors[counts.index(n_frames)].file.path,
            expected=f"{promised} frames, as in {gtg if scan else 'other sectors'}",
            found=f"{n_frames} frames",
            hint=f"Pass missing='fill', or nav_shape={scan or (n_frames - first,)}.",
        )
    doubts: tuple[Doubt, ...] = ()
    if nav_shape is None:
        if scan:
            doubts = left_over(scan, n_frames - first, str(gtg))
        elif gtg is None:  # a .gtg file without a scan is that of a series
            doubts = unknown_scan(n_frames - first)
        shown = promised if is_filling() else n_frames
        nav_shape = scan or (max(shown, n_frames) - first,)
        facts["nav_shape_from"] = gtg if scan else "the number of frames"
    layout = _layout(sectors, starts, n_frames)
    desc = tools.Description.of("k2is", layout, {"k2is": facts}, base_shape=(1, ROWS, COLUMNS))
    return desc.with_frames(nav_shape, first).with_doubts(*doubts)


def _layout(sectors: Sequence[Sector], starts: Sequence[int], n_frames: int) -> tools.Layout:
    """Lay out the two rows of blocks of each sector, which run from right to left."""
    per_row = WIDTH // COLUMNS
    strides = (PER_FRAME * BLOCK, UNPACK.nbytes, -BLOCK)
    pieces = []
    for k, (sector, start) in enumerate(zip(sectors, starts, strict=True)):
        for row in range(PER_FRAME // per_row):
            leftmost = sector.byte(start + (row + 1) * per_row - 1) + HEADER_BYTES
            corner, shape = (0, ROWS * row, WIDTH * k), (n_frames, ROWS, WIDTH)
            pieces.append(tools.Piece(k, corner, shape, leftmost, strides))
    sig_shape = ROWS * PER_FRAME // per_row, WIDTH * len(sectors)
    return tools.Layout([s.file for s in sectors], (n_frames,), sig_shape, pieces, [UNPACK])


def _scan_shape(tags: dict[str, Any], path: str) -> tuple[int, ...] | None:
    """Return the scan shape, including the flyback."""
    sizes = group(tags, "SI Dimensions")
    told = [sizes.get(f"Size {axis}") for axis in "YX"]
    if None in told:
        return None
    shape = tuple(int(n) for n in told if isinstance(n, (int, float)) and 1 <= n < 1 << 31)
    if len(shape) < len(told):
        raise tools.CorruptFileError(
            "invalid scan size",
            path=path,
            where="SI Dimensions",
            expected="Size Y and Size X of 1 or more",
            found=told,
        )
    return shape


def _parts(path: str) -> tuple[str, str]:
    """Split a path into the common stem of the set, and the suffix."""
    stem, suffix = os.path.splitext(absolute(path))
    suffix = suffix.lower()
    return (stem if suffix == ".gtg" else re.sub(r"[1-8]$", "", stem)), suffix


def _sector_paths(stem: str) -> list[str]:
    paths = [tools.beside(stem, f"{k}.bin", f"{k}.BIN") for k in range(1, SECTORS + 1)]
    missing = [f"{stem}{k}.bin" for k, path in enumerate(paths, 1) if path is None]
    if missing:
        raise tools.TruncatedFileError(
            "a sector is missing",
            path=missing[0],
            expected=f"{SECTORS} files, {stem}1.bin to {stem}{SECTORS}.bin",
            found=f"{SECTORS - len(missing)} of them",
        )
    return [path for path in paths if path is not None]


def adjust_tile(shape: tuple[int, ...], request: tools.TileRequest) -> tuple[int, ...]:
    """Blocks of a row lie side by side in a sector, and are read together."""
    if request.blocks[1:] != (ROWS, COLUMNS) or shape[2] >= WIDTH:
        return shape
    width = min(WIDTH, request.chunk[2])
    depth = max(1, request.pixels // (shape[1] * width))
    return min(shape[0], depth), shape[1], width


def read_headers(desc: tools.Description) -> tools.Headers:
    """Return the header of each frame's first block, in the first sector."""
    kind = tools.record_dtype(FIELDS, ">")
    layout = tools.beside_frames(desc.layout, kind, -HEADER_BYTES)
    names = {"number": "frame_id", "block_count": "block_count", "flags": "flags"}
    return tools.stored_headers(layout, names)


FORMAT = tools.Format(
    name="k2is",
    extensions=(".gtg", ".bin"),
    summary="Gatan K2 in-situ: 12-bit blocks of eight sectors, from the opening of the shutter",
    nav_shape_from="the .gtg file, or one axis of all frames from there on",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    adjust_tile=adjust_tile,
    peers=("LiberTEM",),
    aliases=("gatan_k2", "k2"),
)
