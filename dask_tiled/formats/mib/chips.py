"""Raw counters of Medipix3 chips: their bits, and how four chips share the rows of a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dask_tiled.formats import tools

if TYPE_CHECKING:
    from dask_tiled.formats.mib.descriptor import Geometry

RAW = {
    1: (1, "u1", "bits", "bits_reversed"),
    6: (8, "u1", "swap8", "copy"),
    12: (16, "u2", "swap8", "swap2"),
    24: (16, "u4", "join24", "join24_reversed"),
}
"""Raw counters by their depth: bits that a pixel is stored in, of which 24-bit ones have two halves
in a row; type; and what decodes big-endian words of 64 bits with pixel 0 in the lowest lane, and
those of chips that are mounted upside down, whose rows and pixels run backwards."""


def raw_layout(
    files: Sequence[tools.File], counts: Sequence[int], header: Geometry
) -> tools.Layout:
    """Lay out frames of one chip, or of four as 2 by 2."""
    bits, dtype, *kernels = RAW[header.depth]
    halves, pixels = (2 if header.depth == 24 else 1), 64 // bits
    width = header.width // halves
    # One chip may be called 2x2, after the assembly that it sits in.
    known = header.chips == 1 or (header.chips == 4 and header.layout.startswith("2x2"))
    if not known or width % (pixels * header.chips) or header.width % halves:
        raise tools.DatasetError(
            "this arrangement of raw chips cannot be read",
            path=files[0].path,
            expected=f"1 chip, or 4 as 2x2, with rows of whole words of {pixels} pixels",
            found=f"{header.chips} chips ({header.layout}), {header.width} pixels wide",
        )
    lag = header.pixel_bytes // 2 if halves == 2 else 0
    decoders = [tools.Decoder(kernel, np.dtype(dtype), 8, pixels, lag) for kernel in kernels]
    if header.chips == 1:
        record = tools.Record((header.height, width), decoders[0], header.nbytes, lag)
        return tools.record_layout(files, counts, record)
    parts = _quad(header, width // 4, 8 * width // 4 // pixels)
    return tools.part_layout(files, counts, parts, header.record_bytes, decoders)


def _quad(header: Geometry, width: int, chip_row: int) -> list[tools.Part]:
    """Return the boxes of four chips, 2 by 2, of which a row takes ``chip_row`` bytes.

    A stored row holds a row of each chip: bottom right, bottom left, top right, top left. The two
    at the bottom are turned by 180 degrees.
    """
    height, top, row = header.height, header.nbytes, 4 * chip_row
    bottom = top + (height - 1) * row + chip_row - 8
    shape = height, width
    return [
        tools.Part((height, width), shape, bottom, (-row, -8), 1),
        tools.Part((height, 0), shape, bottom + chip_row, (-row, -8), 1),
        tools.Part((0, width), shape, top + 2 * chip_row, (row, 8)),
        tools.Part((0, 0), shape, top + 3 * chip_row, (row, 8)),
    ]
