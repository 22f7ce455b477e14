"""Iterate over the pixels of zarr chunks, in memory that stays in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np

from dask_tiled.model.indexing import Array, Box
from dask_tiled.reading.reader import Reader, Source, Workspace

Place = tuple[int, ...]
"""Position of a zarr chunk in a shard, counted in chunks."""
Part = tuple[Place, Array]
"""Position and pixels of a zarr chunk, cropped at the end of an axis; valid until the next one."""


TOGETHER_BYTES = 4 << 20
"""Total size up to which chunks of the same frames are read one after the other, while the bytes
of the file stay in the cache."""
CUT_BYTES = 1 << 20
"""Size of the frames decoded at a time when all their zarr chunks are held in memory."""
MOST_CUTS = 256
"""Maximum number of zarr chunks cut from a frame during decoding; each needs a call."""


class BlockPixels:
    """A block of an array: pixels in memory, or a source to read them from.

    A source is decoded one zarr chunk at a time into the same memory, which takes a fraction of the
    time that a large block in fresh memory takes. If that would read the same frames repeatedly,
    the block is decoded once: directly into its zarr chunks, if the frames of a chunk are
    consecutive, stay in the cache, and are cut into few chunks.

    Parameters
    ----------
    held : ndarray or Source
    box : tuple of (int, int)
        Location of the block in the array.
    """

    def __init__(self, held: Array | Source, box: Box, workspace: Workspace) -> None:
        self.held = held
        self.box = box
        self.workspace = workspace
        self._chunks: dict[Place, Array] = {}

    def load(self) -> Array:
        """Read all pixels into memory."""
        if isinstance(self.held, Source):
            self.held = Reader(self.held, self.box, self.workspace).whole()
        return self.held

    def parts(self, region: Sequence[slice], chunk: tuple[int, ...]) -> Iterator[Part]:
        """Yield the zarr chunks of a region in C order; the region begins at a chunk edge."""
        box = tuple((some.start, some.stop) for some in region)
        if isinstance(self.held, Source) and not self._is_one_pass(box, chunk):
            if self._is_cut_fast(chunk):
                yield from self._cut_once(region, chunk)
                return
            self.load()
        if not isinstance(self.held, Source):
            inner = zip(region, self.box, strict=True)
            yield from _cut(self.held[tuple(_moved(some, low) for some, (low, _) in inner)], chunk)
            return
        shape = tuple(stop - start for start, stop in box)
        nav_ndim = self.held.layout.nav_ndim
        places = [list(_axis(n, k)) for n, k in zip(shape, chunk, strict=True)]
        cuts = list(product(*places[nav_ndim:]))
        reader = Reader(
            self.held, box, self.workspace, [tuple(ends for _, ends in x) for x in cuts]
        )
        size = math.prod(map(min, shape, chunk))
        make = partial(_beginning, np.empty(size, self.held.dtype))
        for nav in product(*places[:nav_ndim]):
            counts = [stop - start for _, (start, stop) in nav]
            starts = [start for _, (start, _) in nav]
            first = sum(k * math.prod(shape[i + 1 : nav_ndim]) for i, k in enumerate(starts))
            for number, sig in enumerate(cuts):
                tile = reader.tile(first, first + math.prod(counts), number, make)
                lengths = (*counts, *(stop - start for _, (start, stop) in sig))
                yield tuple(k for k, _ in (*nav, *sig)), tile.reshape(lengths)

    def _cut_once(self, region: Sequence[slice], chunk: tuple[int, ...]) -> Iterator[Part]:
        """Yield the zarr chunks of a region; the first call decodes those of the whole block."""
        if not self._chunks:
            self._chunks = dict(self._decoded_chunks(chunk))
        starts = zip(region, self.box, chunk, strict=True)
        first = [(some.start - low) // n for some, (low, _), n in starts]
        counts = (-(-(x.stop - x.start) // n) for x, n in zip(region, chunk, strict=True))
        for place in product(*map(range, counts)):
            # Every chunk is requested only once.
            yield place, self._chunks.pop(tuple(a + b for a, b in zip(first, place, strict=True)))

    def _decoded_chunks(self, chunk: tuple[int, ...]) -> Iterator[Part]:
        """Decode the block a few frames at a time, and cut them while they are in the cache."""
        assert isinstance(self.held, Source)  # noqa: S101 - for the type checker
        nav_ndim, dtype = self.held.layout.nav_ndim, self.held.dtype
        shape = tuple(stop - start for start, stop in self.box)
        places = [list(_axis(n, k)) for n, k in zip(shape, chunk, strict=True)]
        frame = math.prod(shape[nav_ndim:])
        depth = max(1, CUT_BYTES // (frame * dtype.itemsize))
        make = partial(_beginning, np.empty(depth * frame, dtype))
        reader = Reader(self.held, self.box, self.workspace)
        first, cuts = 0, list(product(*places[nav_ndim:]))
        for nav in product(*places[:nav_ndim]):
            lengths = [stop - start for _, (start, stop) in nav]
            stop = first + math.prod(lengths)
            found = [np.empty((stop - first, *(b - a for _, (a, b) in cut)), dtype) for cut in cuts]
            for start in range(first, stop, depth):
                tile = reader.tile(start, min(start + depth, stop), 0, make)
                tile = tile.reshape(len(tile), *shape[nav_ndim:])  # without dropped axes
                for cut, pixels in zip(cuts, found, strict=True):
                    inside = (slice(*ends) for _, ends in cut)
                    pixels[start - first :][: len(tile)] = tile[(slice(None), *inside)]
            for cut, pixels in zip(cuts, found, strict=True):
                place = tuple(k for k, _ in (*nav, *cut))
                yield place, pixels.reshape(*lengths, *pixels.shape[1:])
            first = stop

    def _is_one_pass(self, box: Box, chunk: tuple[int, ...]) -> bool:
        """Return whether reading chunk by chunk reads each frame once."""
        assert isinstance(self.held, Source)  # noqa: S101 - for the type checker
        nav_ndim = self.held.layout.nav_ndim
        shape = tuple(stop - start for start, stop in box)
        if box[nav_ndim:] != self.box[nav_ndim:]:
            return False
        nbytes = math.prod((*map(min, shape[:nav_ndim], chunk), *shape[nav_ndim:]))
        whole = all(n >= size for n, size in zip(chunk[nav_ndim:], shape[nav_ndim:], strict=True))
        fits = whole or nbytes * self.held.dtype.itemsize <= TOGETHER_BYTES
        return fits and _are_runs(shape[:nav_ndim], chunk[:nav_ndim])

    def _is_cut_fast(self, chunk: tuple[int, ...]) -> bool:
        """Return whether cutting a block while decoding it costs little memory and time."""
        assert isinstance(self.held, Source)  # noqa: S101 - for the type checker
        nav_ndim = self.held.layout.nav_ndim
        shape = [stop - start for start, stop in self.box]
        nbytes = math.prod(shape[nav_ndim:]) * self.held.dtype.itemsize
        sig = zip(shape[nav_ndim:], chunk[nav_ndim:], strict=True)
        cuts = math.prod(-(-n // size) for n, size in sig)
        fits = nbytes <= TOGETHER_BYTES and cuts <= MOST_CUTS
        return fits and _are_runs(shape[:nav_ndim], chunk[:nav_ndim])


def _are_runs(shape: Sequence[int], chunk: Sequence[int]) -> bool:
    """Return whether the frames of every chunk are consecutive."""
    counts = list(map(min, chunk, shape))
    first = next((k for k, n in enumerate(counts) if n > 1), len(counts))
    return counts[first + 1 :] == list(shape[first + 1 :])


def _cut(pixels: Array, chunk: tuple[int, ...]) -> Iterator[Part]:
    places = (_axis(n, k) for n, k in zip(pixels.shape, chunk, strict=True))
    for some in product(*places):
        yield tuple(k for k, _ in some), pixels[tuple(slice(*ends) for _, ends in some)]


def _axis(length: int, size: int) -> Iterator[tuple[int, tuple[int, int]]]:
    return ((k, (a, min(a + size, length))) for k, a in enumerate(range(0, length, size)))


def _moved(some: slice, low: int) -> slice:
    return slice(some.start - low, some.stop - low)


def _beginning(memory: Array, shape: tuple[int, ...]) -> Array:
    return memory[: math.prod(shape)].reshape(shape)
