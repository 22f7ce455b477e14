"""Small pictures of arrays, from few of their bytes."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.measuring.sampling import blocks_of, reading_at_most
from dask_tiled.model.indexing import Array
from dask_tiled.opening.arrays import open_dataset
from dask_tiled.showing.computing import panels_of
from dask_tiled.showing.panels import (
    Composite,
    Line,
    PhasePanel,
    VectorPanel,
    colours_of,
    contrast,
)
from dask_tiled.showing.subject import Subject
from dask_tiled.storing.new_files import file_path, new_file

LONGEST = 96
"""Pixels along the longer side."""
BUDGET = 4 << 20
"""Bytes to read of an array; of compressed blocks, up to eight times as many are decoded."""
MOST_FRAMES = 16
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def thumbnail(arr: da.Array, longest: int = LONGEST) -> npt.NDArray[np.uint8] | None:
    """Return a small picture of an array: a mean frame, the middle of a volume, or an image.

    Parameters
    ----------
    arr : dask.array.Array
    longest : int
        Maximum number of pixels along an axis.

    Returns
    -------
    array of uint8, (y, x) or (y, x, 3)
        None if the array is no image.

    Raises
    ------
    DatasetError
        The array cannot be drawn, or read.
    """
    nav = Subject.of(arr).nav_ndim
    sig = [n for n in arr.shape if n > 1][nav:]
    frame = math.prod(sig) * arr.dtype.itemsize
    blocks = math.prod(blocks_of(arr, arr.ndim - len(sig))) if nav else 1
    frames = max(BUDGET // max(1, frame * blocks), 1)
    if len(sig) > 1:
        frames = min(frames, MOST_FRAMES)
    with reading_at_most(BUDGET):
        panels = panels_of(arr, frames).panels
    images = [one for one in panels if not isinstance(one, Line)]
    if not images:
        return None
    panel = next((one for one in images if isinstance(one, Composite)), images[0])
    if isinstance(panel, VectorPanel):
        values = np.hypot(*panel.values)
    elif isinstance(panel, PhasePanel):
        values = np.abs(panel.values)
    else:
        values = panel.image.values if isinstance(panel, Composite) else panel.values
    bright = _bright(values)
    if len(sig) == 1:  # a sampled map may have other steps along y than along x
        bright = _in_proportion(bright, [n for n in arr.shape if n > 1][:-1][-2:])
    return _shrunk(bright, longest)


def _in_proportion(bright: Array, shape: Sequence[int]) -> Array:
    """Repeat pixels of a sample along an axis, as in a map of the shape."""
    steps = [max(1, round(n / size)) for n, size in zip(shape, bright.shape, strict=False)]
    for axis, step in enumerate(steps):
        bright = np.repeat(bright, max(1, step // min(steps)), axis)
    return bright


def _bright(values: Array) -> Array:
    """Return brightness from 0 to 1, or colours."""
    if values.ndim == 3:
        colours = colours_of(values)[..., :3]
        return colours / 255 if colours.dtype == np.uint8 else colours
    low, high, gamma = contrast(values)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.clip((values.astype(float) - low) / (high - low), 0, 1)
    return np.nan_to_num(scaled) ** gamma


def _shrunk(bright: Array, longest: int) -> npt.NDArray[np.uint8]:
    """Return the means of blocks of pixels, as bytes."""
    for axis in (0, 1):
        block = -(-bright.shape[axis] // longest)
        starts = np.arange(0, bright.shape[axis], block)
        counts = np.diff(starts, append=bright.shape[axis])
        shape = [1] * bright.ndim
        shape[axis] = -1
        bright = np.add.reduceat(bright, starts, axis) / counts.reshape(shape)
    return np.round(255 * bright).astype(np.uint8)


def png_of(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode gray or colour pixels as PNG (RFC 2083)."""
    height, width = pixels.shape[:2]
    lines = np.zeros((height, pixels[0].size + 1), np.uint8)  # filter type 0 before each line
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if pixels.ndim == 2 else 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")
    return SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


def write_png(target: Any, pixels: npt.NDArray[np.uint8]) -> str:
    """Write pixels to a PNG file, or replace one; return its path.

    Raise a DatasetError if the target is another file, or cannot be written.
    """
    path = file_path(target)
    with new_file(path, _is_png, overwrite=True) as part, open(part, "wb") as file:
        file.write(png_of(pixels))
    return path


def _is_png(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


def read_thumbnail(path: str, options: dict[str, Any]) -> bytes:
    """Return the thumbnail of a picture as PNG; empty if it is no image.

    Errors are those of :func:`thumbnail`, and of :func:`open_dataset`.
    """
    arr = open_dataset(path, **{"doubts": "ignore", "missing": "fill", **options})
    pixels = thumbnail(arr)
    return b"" if pixels is None else png_of(pixels)
