"""Levels of a pyramid, each computed from the one before while its pixels are in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.export.zarr.encoding import Encoder, Region
from dask_tiled.export.zarr.parts import BlockPixels, Part
from dask_tiled.model.indexing import Array, Box
from dask_tiled.model.pyramids import Halving

BLOCK_BYTES = 64 << 20
"""Size of the largest block from which several levels are computed in one pass; a shard may be
larger."""


class Level(NamedTuple):
    """A stored array of pixels."""

    prefix: str
    """Prefix of its keys."""
    encoder: Encoder

    @property
    def name(self) -> str:
        """Name of the array in its group."""
        return self.prefix.removesuffix("/") or "pixels"

    @property
    def nbytes(self) -> int:
        """Decoded bytes of a key."""
        return _nbytes(self.encoder, self.encoder.stored)

    def __str__(self) -> str:
        encoder = self.encoder
        sharded = "" if encoder.shard is None else f" in shards of {encoder.shard}"
        return f"{self.name}: {encoder.dtype} {encoder.shape}, chunks of {encoder.chunk}{sharded}"


class LevelStack(NamedTuple):
    """Levels written in one pass; all but the first are computed from the level before."""

    levels: tuple[Level, ...]
    halving: Halving = Halving()
    stored: bool = False
    """Whether the first level already exists and is only read."""

    @property
    def base(self) -> Level:
        """The first level."""
        return self.levels[0]

    @property
    def unit(self) -> tuple[int, ...]:
        """Shape of the blocks of the first level that fill whole keys of all levels."""
        unit = self.base.encoder.stored
        for k, level in enumerate(self.levels):
            unit = self._common(unit, level.encoder.stored, k)
        return unit

    def _common(self, unit: Sequence[int], stored: Sequence[int], k: int) -> tuple[int, ...]:
        """Extend blocks to whole blocks of level ``k``."""
        base = self.base.encoder
        axes = zip(unit, stored, base.stored, base.shape, strict=True)
        return tuple(
            n if whole >= size else math.lcm(n, other << k if axis in self.halving.axes else other)
            for axis, (n, other, whole, size) in enumerate(axes)
        )

    def prepare(self) -> None:
        """Import what writing needs, which takes file descriptors, before any file is open."""
        for level in self.levels:
            level.encoder.prepare()
        if len(self.levels) > 1:
            encoder = self.base.encoder
            halved(np.zeros((2,) * len(encoder.shape), encoder.dtype), self.halving)

    def passes(self, fits: Callable[[tuple[int, ...]], bool] | None = None) -> list[LevelStack]:
        """Divide the levels into passes; each begins with the last level of the previous pass.

        A pass that computes more than one level has blocks of at most ``BLOCK_BYTES``, or of a key
        if that is larger.

        Parameters
        ----------
        fits : callable, optional
            Whether blocks of a shape are allowed in the first pass; by default all are.
        """
        levels, found = self.levels, list[LevelStack]()
        while True:
            count = min(2, len(levels))
            if fits and not found and not fits(LevelStack(levels[:count], self.halving).unit):
                count = 1
            most = max(BLOCK_BYTES, _nbytes(levels[0].encoder, levels[0].encoder.stored))
            while count < len(levels):
                more = LevelStack(levels[: count + 1], self.halving)
                large = _nbytes(levels[0].encoder, more.unit) > most
                if large or (fits and not found and not fits(more.unit)):
                    break
                count += 1
            found.append(
                LevelStack(levels[:count], self.halving, stored=self.stored or bool(found))
            )
            if count == len(levels):
                return found
            levels = levels[count - 1 :]

    def keys(self, box: Box) -> Iterator[str]:
        """Yield the keys to write for a block of the first level."""
        for k, level in enumerate(self.levels):
            if k or not self.stored:
                yield from (level.prefix + key for key, _ in level.encoder.keys(box))
            box = _halved_box(box, self.halving)

    def parts(self, pixels: BlockPixels) -> Iterator[tuple[Level, str, Region, Iterator[Part]]]:
        """Yield the zarr chunks of a block of the first level, and of the levels computed from it.

        Yields
        ------
        Level
        str
            Key without prefix.
        tuple of slices
            Region of the level stored under the key.
        iterator of Part
            Its zarr chunks, to be exhausted before the next key.
        """
        box, base, above = pixels.box, self.base, self.levels[1:]
        chunk = base.encoder.chunk
        passing = not self.stored and self._is_even(chunk, box)
        means: Array | None = None
        if above and passing:
            shape = [stop - start for start, stop in _halved_box(box, self.halving)]
            means = np.empty(shape, base.encoder.dtype)
        elif above:
            means = halved(pixels.load(), self.halving)
        if not self.stored:
            for key, region in base.encoder.keys(box):
                parts = pixels.parts(region, chunk)
                if means is not None and passing:
                    corner = [some.start - low for some, (low, _) in zip(region, box, strict=True)]
                    parts = self._halving(parts, corner, means)
                yield base, key, region, parts
        for k, level in enumerate(above):
            assert means is not None  # noqa: S101 - for the type checker
            means = halved(means, self.halving) if k else means
            box = _halved_box(box, self.halving)
            block = BlockPixels(means, box, pixels.workspace)
            for key, region in level.encoder.keys(box):
                yield level, key, region, block.parts(region, level.encoder.chunk)

    def _is_even(self, chunk: Sequence[int], box: Box) -> bool:
        """Return whether each mean lies within one zarr chunk."""
        ends = ((chunk[k], *box[k]) for k in self.halving.axes)
        return all(not n % 2 or n >= stop - start for n, start, stop in ends)

    def _halving(
        self, parts: Iterator[Part], corner: Sequence[int], means: Array
    ) -> Iterator[Part]:
        """Yield zarr chunks, and average each while it is in the cache."""
        chunk, axes = self.base.encoder.chunk, self.halving.axes
        for place, given in parts:
            pixels = np.ascontiguousarray(given)
            begins = (low + k * n for low, k, n in zip(corner, place, chunk, strict=True))
            starts = [n // 2 if axis in axes else n for axis, n in enumerate(begins)]
            ends = zip(starts, self.halving.shape(pixels.shape), strict=True)
            halved(pixels, self.halving, means[tuple(slice(n, n + size) for n, size in ends)])
            yield place, pixels


def _nbytes(encoder: Encoder, block: Sequence[int]) -> int:
    return math.prod(map(min, block, encoder.shape)) * encoder.dtype.itemsize


def _halved_box(box: Box, halving: Halving) -> Box:
    return tuple(
        (start // 2, -(-stop // 2)) if k in halving.axes else (start, stop)
        for k, (start, stop) in enumerate(box)
    )


def halved(pixels: Array, halving: Halving, to: Array | None = None) -> Array:
    """Compute the pixels of the next level.

    Parameters
    ----------
    pixels : ndarray
        Of numbers or booleans.
    halving : Halving
        Of at most 3 axes.
    to : ndarray, optional
        Output array.

    Returns
    -------
    ndarray
        Of the same dtype: means of integers are rounded to nearest, ties to even; means of
        booleans are True if at least half of the pixels are; of modes that are as frequent, the
        first is chosen. At the end of an axis of odd length, a mean or mode is of the pixels that
        exist.
    """
    if halving.method == "nearest":
        steps = (2 if k in halving.axes else 1 for k in range(pixels.ndim))
        nearest = pixels[tuple(slice(None, None, step) for step in steps)]
        if to is None:
            return np.ascontiguousarray(nearest)
        to[...] = nearest
        return to
    axes, reduced = halving.axes, _modes if halving.method == "mode" else _means
    last = tuple(range(pixels.ndim - len(axes), pixels.ndim))
    if axes == last and (to is None or to.flags.c_contiguous):
        return reduced(pixels, len(axes), to)
    # Colours of a pixel, for example, follow the halved axes.
    turned = np.moveaxis(reduced(np.moveaxis(pixels, axes, last), len(axes)), last, axes)
    if to is None:
        return np.ascontiguousarray(turned)
    to[...] = turned
    return to


def _modes(pixels: Array, count: int, to: Array | None = None) -> Array:
    """Choose the most frequent of pairs of pixels along each of the last ``count`` axes."""
    bits = np.dtype(f"u{pixels.dtype.itemsize}")  # equal pixels have equal bits
    out = _room(pixels, count, to)
    _halve(np.ascontiguousarray(pixels).view(bits), count, out.view(bits), modes=True)
    return out


def _means(pixels: Array, count: int, to: Array | None = None) -> Array:
    """Average pairs of pixels along each of the last ``count`` axes."""
    dtype, out = pixels.dtype, _room(pixels, count, to)
    if dtype.kind == "c":
        out.real, out.imag = _means(pixels.real, count), _means(pixels.imag, count)
    elif dtype.kind == "b":
        # Each mean is of 1, 2, 4 or 8 pixels, and thus exact.
        out[...] = _means(pixels.astype("u1") * 8, count) >= 4
    elif dtype.char == "e" or not dtype.isnative:
        wide = np.dtype("f8") if dtype.char == "e" else dtype.newbyteorder("=")
        out[...] = _means(pixels.astype(wide), count)
    else:
        _halve(pixels, count, out)
    return out


def _room(pixels: Array, count: int, to: Array | None) -> Array:
    """Return memory for pixels of the next level: ``to`` if given."""
    if to is not None:
        return to
    axes = tuple(range(pixels.ndim - count, pixels.ndim))
    return np.empty(Halving(axes).shape(pixels.shape), pixels.dtype)


def _halve(pixels: Array, count: int, out: Array, *, modes: bool = False) -> None:
    """Set ``out``, which is contiguous, to means or modes."""
    from dask_tiled.kernels.halving import halving_kernel

    if not out.size:
        return
    ones, first = (1,) * (3 - count), pixels.ndim - count
    frames = math.prod(pixels.shape[:first])
    inner, small = ((frames, *ones, *some.shape[first:]) for some in (pixels, out))
    depth, height, _ = *ones, *(2,) * count
    given, row = np.ascontiguousarray(pixels).reshape(inner), np.empty(inner[-1], "f8")
    halving_kernel(pixels.dtype, modes=modes)(given, out.reshape(small), depth, height, row)
