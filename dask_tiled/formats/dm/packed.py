"""Fourier transforms of real images, of which DM files store one half.

The origin is at (height // 2, width // 2), and the pixels at k and -k are complex conjugates. So
the image is made of boxes, whose units are equally spaced in the stored half.

Data types 27 and 28 store half of each row, from the origin to the left. Type 5, for squares of an
even size 2 N, stores the right half, from the origin to the right. It has no column for the Nyquist
frequency, which is stored in place of the redundant lower half of the origin's column; the four
real numbers share two pixels.

Source: the reader of RosettaSciIO for type 5; for 27, a file of GMS, of the transform of a ramp.
"""

from __future__ import annotations

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.frames import FramePart

PACKED = {5: "c8", 27: "c8", 28: "c16"}  # dtypes of the pixels, by data type
AS_IT_IS, CONJUGATE, REAL = range(3)
"""Storage of a box's pixels: indices of :func:`decoders`."""


def decoders(dtype: np.dtype) -> list[tools.Decoder]:
    """Return the decoders of stored, conjugate and real pixels."""
    native, size = dtype.newbyteorder("="), dtype.itemsize
    conjugate = tools.Decoder("conjugate", native, size)
    return [tools.plain(dtype), conjugate, tools.Decoder("real", native, size // 2)]


def stored_bytes(path: str, data_type: int, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Return the bytes of the stored half."""
    square = len(shape) == 2 and shape[0] == shape[1] and not shape[0] % 2
    if len(shape) != 2 or dtype.str[0] == ">" or (data_type == 5 and not square):
        problem = "unsupported packing of complex numbers"
        found = f"{shape}, {dtype}, type {data_type}"
        known = "one little-endian image; for the old type, a square of even size"
        raise tools.DatasetError(problem, path=path, expected=known, found=found)
    return shape[0] * (shape[1] // 2 + (data_type != 5)) * dtype.itemsize


def boxes(data_type: int, shape: tuple[int, ...], size: int) -> list[FramePart]:
    """Return the boxes of an image with pixels of ``size`` bytes."""
    height, width = shape
    half = width // 2
    row_bytes = (half + (data_type != 5)) * size
    single = 1 - height % 2  # with an even number of rows, the first row is its own opposite

    def box(
        rows: range, cols: range, row: int, col: int, how: int, *, down: int = 1, right: int = 1
    ) -> FramePart:
        corner, sizes = (rows.start, cols.start), (len(rows), len(cols))
        offset, strides = row * row_bytes + col * size, (down * row_bytes, right * size)
        return FramePart(corner, sizes, offset, strides, how)

    def opposite(cols: range, col: int, right: int) -> list[FramePart]:
        first = box(range(single), cols, 0, col, CONJUGATE, right=right)
        rows = range(single, height)
        return [first, box(rows, cols, height - 1, col, CONJUGATE, down=-1, right=right)]

    if data_type != 5:
        found = [box(range(height), range(half + 1), 0, half, AS_IT_IS, right=-1)]
        found += opposite(range(half + 1, width), 1, 1)
    else:
        found = [box(range(height), range(half + 1, width), 0, 1, AS_IT_IS)]
        found += opposite(range(1, half), half - 1, -1)
        for column in (0, half):  # the first rows of these columns are stored in the same pixels
            cols = range(column, column + 1)
            top = box(range(1), cols, column, 0, REAL)
            found += [
                box(range(half + 1, height), cols, column + 1, 0, AS_IT_IS),
                box(range(1, half), cols, column + half - 1, 0, CONJUGATE, down=-1),
                box(range(half, half + 1), cols, column, 0, REAL),
                top._replace(offset=top.offset + size // 2),
            ]
    return [part for part in found if all(part.shape)]
