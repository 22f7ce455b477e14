"""Sector files: block headers, and the frames that all sectors have.

Searches read single headers; their number grows with the logarithm of the length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from dask_tiled.formats import tools

WIDTH, HEIGHT = 256, 1860  # of a sector
COLUMNS, ROWS = 16, 930  # of a block
PER_FRAME = 32
BLOCK = 0x5758
HEADER_BYTES = 40
FIELDS: tools.Fields = {
    "sync": (0, "u4"), "flags": (9, "u1"), "block_count": (16, "u4"), "width": (20, "u2"),
    "height": (22, "u2"), "frame_id": (24, "u4"), "corner": (28, "2u2"), "nbytes": (36, "u4"),
}  # fmt: skip
SYNC = 0xFFFF0055
ALLOWED = {"sync": (SYNC,), "width": (WIDTH,), "height": (HEIGHT,), "nbytes": (BLOCK,)}
SHUTTER_OPEN = 1
PROBES = 64


def find_block(data: bytes) -> int | None:
    """Return the offset of the first block header."""
    at = -1
    while (at := data.find(SYNC.to_bytes(4, "big"), at + 1)) >= 0:
        header = data[at : at + HEADER_BYTES]
        if len(header) < HEADER_BYTES:
            return None
        if tools.wrong_field(tools.parse_fields(header, FIELDS, ">"), ALLOWED) is None:
            return at
    return None


class Sector(NamedTuple):
    """A file of blocks; the first block begins at ``start``."""

    file: tools.File
    start: int

    @classmethod
    def at(cls, path: str) -> Sector:
        """Find the first block of a file."""
        file = tools.File.at(path)
        start = find_block(tools.read_head(path, 2 * BLOCK))
        if start is None:
            raise tools.CorruptFileError(
                "no block header",
                path=path,
                where=f"byte 0 to {min(file.size, 2 * BLOCK)}",
                expected=f"a sync word of {SYNC:#x}, and blocks of {BLOCK} bytes",
            )
        sector = cls(file, start)
        if sector.n_blocks < PER_FRAME:
            raise tools.TruncatedFileError(
                "the file ends inside the first frame",
                path=path,
                expected=f"{PER_FRAME} blocks of {BLOCK} bytes",
                found=f"{sector.n_blocks} blocks",
            )
        return sector

    @property
    def n_blocks(self) -> int:
        """Number of whole blocks."""
        return (self.file.size - self.start) // BLOCK

    def byte(self, i: int) -> int:
        """Return the offset of a block."""
        return self.start + i * BLOCK

    def block(self, i: int) -> dict[str, Any]:
        """Read the header of a block."""
        path, at = self.file.path, self.byte(i)
        fields = tools.read_fields(path, FIELDS, ">", at)
        tools.check_fields(path, fields, FIELDS, ALLOWED, "no header of a block", at=at)
        return fields


def synchronise(sectors: Sequence[Sector]) -> tuple[list[int], list[int]]:
    """Find the first frame that is complete in all sectors.

    Return for each sector the index of its first block, and the number of complete frames from
    there on.
    """
    latest = max(sector.block(0)["block_count"] for sector in sectors)
    starts = [_find_count(sector, latest) for sector in sectors]
    left = list(map(_frame_left, sectors, starts))
    if min(left) < PER_FRAME:
        starts = [start + count for start, count in zip(starts, left, strict=True)]
    counts = [(s.n_blocks - i) // PER_FRAME for s, i in zip(sectors, starts, strict=True)]
    least = min(counts)
    if least < 1:
        short = counts.index(least)
        raise tools.TruncatedFileError(
            "no frame is complete in all sectors",
            path=sectors[short].file.path,
            expected=f"{PER_FRAME} blocks after block {starts[short]}",
            found=f"{sectors[short].n_blocks} blocks in all",
        )
    for number in (0, least - 1):
        _check_frame(sectors, [start + number * PER_FRAME for start in starts])
    return starts, counts


def _find_count(sector: Sector, count: int) -> int:
    """Return the block with a count. It is near the start: counts may restart later."""

    def at(i: int) -> int:
        return int(sector.block(i)["block_count"])

    end = 1
    while end < sector.n_blocks and at(end) < count:
        end *= 2
    i = bisect_left(range(min(end, sector.n_blocks - 1)), count, key=at)
    if at(i) != count:
        raise tools.CorruptFileError(
            "the sectors cannot be synchronised",
            path=sector.file.path,
            where=f"byte {sector.byte(i)}",
            expected=f"a block with the count {count}, where another sector begins",
            found=f"a block with the count {at(i)}",
        )
    return i


def _frame_left(sector: Sector, start: int) -> int:
    """Return the number of blocks from ``start`` on that belong to the same frame."""
    frame_id = sector.block(start)["frame_id"]
    blocks = range(start, min(start + PER_FRAME, sector.n_blocks))
    return bisect_left(blocks, 1, key=lambda i: sector.block(i)["frame_id"] != frame_id)


def _check_frame(sectors: Sequence[Sector], starts: Sequence[int]) -> None:
    """Check that the same whole frame begins in all sectors."""
    frame_id = sectors[0].block(starts[0])["frame_id"]
    for i, corner in ((0, (WIDTH - COLUMNS, 0)), (PER_FRAME - 1, (0, HEIGHT - ROWS))):
        count = sectors[0].block(starts[0] + i)["block_count"]
        expected = {"frame_id": frame_id, "block_count": count, "corner": corner}
        for sector, start in zip(sectors, starts, strict=True):
            fields = sector.block(start + i)
            found = {name: fields[name] for name in expected}
            if found != expected:
                raise tools.CorruptFileError(
                    "the blocks of a frame do not match",
                    path=sector.file.path,
                    where=f"byte {sector.byte(start + i)}",
                    expected=expected,
                    found=found,
                    hint="Blocks are missing in one of the sectors.",
                )


def first_open(sector: Sector, start: int, n_frames: int) -> int | None:
    """Return the first frame with an open shutter, if at least 1/64 of the frames have one."""

    def is_open(frame: int) -> bool:
        return bool(sector.block(start + frame * PER_FRAME)["flags"] & SHUTTER_OPEN)

    # In time order, as the shutter may close again before the end.
    probes = [*range(0, n_frames, -(-n_frames // PROBES)), n_frames - 1]
    i = next((i for i, frame in enumerate(probes) if is_open(frame)), None)
    if i is None:
        return None
    before = probes[max(0, i - 1)]
    return before + bisect_left(range(before, probes[i]), 1, key=is_open)
