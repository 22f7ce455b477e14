"""Generated frames for synthetic files, and iteration over frames one at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dask_tiled.model.indexing import Array

StrPath: TypeAlias = str | os.PathLike[str]
Frames: TypeAlias = Array | Iterable[npt.ArrayLike]

# Keeps the uint64 intermediates of a long array in the cache.
_BLOCK = 1 << 16


def counting_frames(
    shape: tuple[int, ...], dtype: npt.DTypeLike, *, bits: int | None = None
) -> Array:
    """Return an array whose pixels are distinguishable from each other.

    Every value is a hash of the pixel's flat index. Up to ``2**bits`` pixels the hash is a
    permutation, so no value occurs twice; beyond that values repeat, but neighbouring rows, columns
    and frames still differ.

    Parameters
    ----------
    shape
        Shape of the array, navigation axes first.
    dtype
        Any integer, bool, floating or complex type, in either byte order. Complex values carry
        the hash in the real part and its complement in the imaginary part.
    bits
        Values are below ``2**bits``, as for a detector of this counter depth. By default all bits
        that `dtype` holds exactly (24 for float32). Signed integers take negative values only if
        `bits` is their full width.

    Raises
    ------
    TypeError
        If `dtype` is not a numeric type.
    ValueError
        If `bits` is below 1 or more than `dtype` holds exactly.
    """
    dtype = np.dtype(dtype)
    bits = _bits_of(dtype, bits)
    size = math.prod(shape)
    pixels = np.empty(size, dtype)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        pixels[start:stop] = _hashed(start, stop, size, dtype, bits)
    return pixels.reshape(shape)


def iter_counting_frames(
    shape: tuple[int, ...], dtype: npt.DTypeLike, *, bits: int | None = None, sig_dims: int = 2
) -> Iterator[Array]:
    """Yield the frames of ``counting_frames(shape, dtype, bits=bits)`` one by one.

    Yields
    ------
    numpy.ndarray
        The next frame in C order of the navigation axes, of shape ``shape[-sig_dims:]``.
    """
    dtype = np.dtype(dtype)
    bits = _bits_of(dtype, bits)
    size = math.prod(shape)
    sig_shape = shape[len(shape) - sig_dims :]
    frame_size = math.prod(sig_shape)
    for start in range(0, size, frame_size):
        yield _hashed(start, start + frame_size, size, dtype, bits).reshape(sig_shape)


def iter_frames(frames: Frames, sig_dims: int = 2) -> Iterator[Array]:
    """Yield the frames of an array or an iterable one by one.

    Arrays (NumPy, memory-mapped, dask, zarr, ...) are only indexed, one frame at a time.

    Yields
    ------
    numpy.ndarray
        The frames, in C order of the navigation axes.
    """
    shape = getattr(frames, "shape", None)
    if shape is None:
        yield from map(np.asarray, frames)
        return
    if len(shape) < sig_dims:
        raise ValueError(f"expected an array of at least {sig_dims} axes, found shape {shape}")
    array: Any = frames
    for index in np.ndindex(*shape[: len(shape) - sig_dims]):
        yield np.asarray(array[index])


def alike(frames: Frames, sig_dims: int = 2) -> tuple[Array, Iterator[Array]]:
    """Return the first frame and an iterator that checks every frame against it."""
    every = same_kind(iter_frames(frames, sig_dims))
    first = next(every, None)
    if first is None:
        raise ValueError("expected at least one frame, found none")
    return first, chain([first], every)


def same_kind(frames: Iterable[Array]) -> Iterator[Array]:
    """Yield frames, checking that each has the shape and dtype of the first."""
    kind: tuple[Any, ...] | None = None
    for number, frame in enumerate(frames):
        found = (frame.shape, frame.dtype)
        kind = kind or found
        if found != kind:
            raise ValueError(f"frame {number}: expected shape and dtype {kind}, found {found}")
        yield frame


def nav_shape_of(
    frames: Frames, nav_shape: Sequence[int] | None, sig_dims: int = 2
) -> tuple[int, ...]:
    """Return `nav_shape` if given, otherwise the navigation shape of the array."""
    if nav_shape is not None:
        return tuple(nav_shape)
    shape = getattr(frames, "shape", None)
    if shape is None:
        raise ValueError("frames given as an iterable need a nav_shape")
    return tuple(shape[: len(shape) - sig_dims])


def pixels_of(frame: Array, order: Literal["<", ">"] = "<") -> bytes:
    """Return the pixels of a frame as bytes in the given byte order."""
    return frame.astype(frame.dtype.newbyteorder(order)).tobytes()


def _bits_of(dtype: np.dtype[Any], bits: int | None) -> int:
    if dtype.kind == "b":
        capacity = 1
    elif dtype.kind in "iu":
        capacity = 8 * dtype.itemsize
    elif dtype.kind in "fc":
        capacity = min(64, np.finfo(dtype).nmant + 1)
    else:
        raise TypeError(f"expected a numeric dtype, found {dtype}")
    if bits is None:
        return capacity
    if not 1 <= bits <= capacity:
        raise ValueError(f"bits: expected 1 to {capacity} for {dtype}, found {bits}")
    return bits


def _hashed(start: int, stop: int, size: int, dtype: np.dtype[Any], bits: int) -> Array:
    """Return the values of pixels `start` to `stop` of an array of `size` pixels."""
    index = np.arange(start, stop, dtype=np.uint64)
    mask = np.uint64(2**bits - 1)
    values = _permute(index, bits if size <= 2**bits else 64) & mask
    if dtype.kind == "c":
        pixels = values.astype(dtype)
        pixels.imag = mask - values
        return pixels
    return values.astype(dtype)


def _permute(index: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    """Permute the integers below ``2**bits`` by mixing steps that are all invertible."""
    mask = np.uint64(2**bits - 1)
    half = np.uint64((bits + 1) // 2)
    # Starts at one: zero would map to zero and look like a pixel that was never read.
    mixed = (index + np.uint64(1)) & mask
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed ^= mixed >> half
        mixed *= np.uint64(factor)
        mixed &= mask
    mixed ^= mixed >> half
    return mixed
