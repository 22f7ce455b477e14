"""Raw counters of Medipix3 chips: their bits, and the arrangement of four chips."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.frames import FramePart, part_layout

RAW = {
    1: (1, "u1", "bits", "bits_reversed"),
    6: (8, "u1", "swap8", "copy"),
    12: (16, "u2", "swap8", "swap2"),
    24: (16, "u4", "join24", "join24_reversed"),
}
"""Raw counters by depth: stored bits of a pixel (24-bit counters have two halves per row),
dtype, and decoders of big-endian 64-bit words with pixel 0 in the lowest lane, for upright chips
and for chips that are mounted upside down, whose rows and pixels run backwards."""


def raw_layout(
    files: Sequence[tools.File],
    counts: Sequence[int],
    header: int,
    shape: tuple[int, int],
    depth: int,
    chips: int,
    arrangement: str,
    starts: Sequence[int],
    *,
    lost: Sequence[int],
) -> tools.Layout:
    """Lay out frames of one chip, or of four as 2x2.

    Parameters
    ----------
    files, counts : sequence
        Files, and the number of frames in each.
    header : int
        Bytes before each frame.
    shape : tuple of int
        Number of rows, and of stored pixels of all chips side by side.
    depth, chips : int
        Bits per counter, and number of chips.
    arrangement : str
        Name of the arrangement in the file.
    starts : sequence of int
        Byte at which the frames of each file begin.
    lost : sequence of int
        Number of lost frames before each file.
    """
    height, stored = shape
    bits, dtype, *kernels = RAW[depth]
    halves, pixels = (2 if depth == 24 else 1), 64 // bits
    width, nbytes = stored // halves, height * stored * bits // 8
    # A single chip may be called 2x2, after its assembly.
    known = chips == 1 or (chips == 4 and arrangement.startswith("2x2"))
    if not known or width % (pixels * chips) or stored % halves:
        raise tools.DatasetError(
            "unsupported arrangement of raw chips",
            path=files[0].path,
            expected=f"1 chip, or 4 as 2x2, with rows of whole words of {pixels} pixels",
            found=f"{chips} chips ({arrangement}), {stored} pixels wide",
        )
    lag = nbytes // 2 if halves == 2 else 0
    decoders = [tools.Decoder(kernel, np.dtype(dtype), 8, pixels, lag) for kernel in kernels]
    if chips == 1:
        record = tools.Record((height, width), decoders[0], header, lag)
        return tools.record_layout(files, counts, record, starts, lost=lost)
    parts = _quad(header, (height, width // 4), 8 * width // 4 // pixels)
    return part_layout(files, counts, parts, header + nbytes, decoders, starts, lost=lost)


def _quad(top: int, shape: tuple[int, int], chip_row: int) -> list[FramePart]:
    """Return the boxes of four chips, 2x2; a chip row has ``chip_row`` bytes.

    A stored row holds a row of each chip: bottom right, bottom left, top right, top left. The
    bottom chips are rotated by 180 degrees.
    """
    height, width = shape
    row = 4 * chip_row
    bottom = top + (height - 1) * row + chip_row - 8
    return [
        FramePart((height, width), shape, bottom, (-row, -8), 1),
        FramePart((height, 0), shape, bottom + chip_row, (-row, -8), 1),
        FramePart((0, width), shape, top + 2 * chip_row, (row, 8)),
        FramePart((0, 0), shape, top + 3 * chip_row, (row, 8)),
    ]
