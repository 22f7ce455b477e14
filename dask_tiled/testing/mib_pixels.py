"""Encoding of frames as Merlin (Medipix3) cameras store them in MIB files."""

from __future__ import annotations

import numpy as np

from dask_tiled.model.indexing import Array

# Counter depths of each pixel type, the default first.
DEPTHS = {"U08": (6, 1), "U16": (12,), "U32": (24,), "R64": (12, 1, 6, 24)}

# Pixels per 64-bit word of counter values; 24-bit pixels are stored as two 12-bit halves.
WORD_PIXELS = {1: 64, 6: 8, 12: 4, 24: 4}


def stored_shape(shape: tuple[int, ...], *, kind: str, depth: int, quad: bool) -> tuple[int, int]:
    """Return the (height, width) in pixels that a frame header holds for frames of `shape`.

    A stored row of raw four-chip data holds a quarter of a row of each chip; the two images of
    24-bit raw data count as twice the width. Rows of raw chips have to be whole 64-bit words.
    """
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"expected frames of shape (height, width), found {shape}")
    height, width = shape
    if kind != "R64":
        return height, width
    word = WORD_PIXELS[depth] * (2 if quad else 1)
    if width % word or (quad and height % 2):
        rows = "an even height and " if quad else ""
        raise ValueError(
            f"raw {depth}-bit frames: expected {rows}a width in {word}s, found {shape}"
        )
    if quad:
        height, width = height // 2, width * 2
    return height, width * 2 if depth == 24 else width


def encode_frame(frame: Array, *, kind: str, depth: int, quad: bool) -> bytes:
    """Return the bytes of one frame without its header; pixels have to fit in `depth` bits.

    Processed data is row-major and big-endian. Raw data ("R64") is a stream of big-endian 64-bit
    words, with the first pixel of a word in its lowest bits: 64 pixels of 1 bit, 8 of 6 bits or 4
    of 12 bits. 24-bit raw data is two 12-bit images, the upper bits first.

    For four-chip 24-bit data this layout is inferred: no recording of that kind was available.
    """
    if frame.dtype.kind not in "biu":
        raise TypeError(f"expected integer frames, found {frame.dtype}")
    bits = depth if kind == "R64" else int(kind[1:])
    if frame.size and (frame.min() < 0 or int(frame.max()) >= 2**bits):
        raise ValueError(
            f"{kind} pixels of {bits} bits: expected values from 0 to {2**bits - 1}, "
            f"found {frame.min()} to {frame.max()}"
        )
    if kind != "R64":
        return frame.astype(f">u{bits // 8}").tobytes()
    rows = _readout_order(frame) if quad else frame
    if depth == 24:
        upper, lower = np.divmod(rows.astype(np.uint32), 1 << 12)
        return _pack_words(upper, 12) + _pack_words(lower, 12)
    return _pack_words(rows, depth)


def _readout_order(frame: Array) -> Array:
    """Return the rows in readout order: chips 4, 3, 2, 1 side by side.

    In the image, chips 1 and 2 are above chips 3 and 4. The lower two are rotated by 180 degrees:
    they are read from the last row to the first and from right to left.
    """
    upper, lower = np.split(frame, 2)
    chip1, chip2 = np.split(upper, 2, axis=1)
    chip3, chip4 = np.split(lower, 2, axis=1)
    return np.hstack([chip4[::-1, ::-1], chip3[::-1, ::-1], chip2, chip1])


def _pack_words(rows: Array, depth: int) -> bytes:
    lanes: Array = np.ascontiguousarray(rows, "<u2" if depth == 12 else "<u1")
    if depth == 1:
        lanes = np.packbits(lanes, axis=1, bitorder="little")
    # Lanes in ascending order form a little-endian word; the file has big-endian words.
    return lanes.view("<u8").astype(">u8").tobytes()
