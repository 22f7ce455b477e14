"""Blocks: pieces that decode only as a whole, one at a time or many at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, Guard
from dask_tiled.files.file import File
from dask_tiled.model.decoders import BlockDecoder, function_at
from dask_tiled.model.indexing import Array, Index

MOST_BYTES, MOST_BETWEEN = 1 << 20, 1 << 14
"""Blocks are read together up to this many bytes, with gaps of at most this many."""


class Fetch(Protocol):
    """Read the bytes of blocks for the work on one chunk."""

    def __call__(self, file: File, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return bytes of a file; they are valid until the next call."""

    def keep(self, key: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Enter the context that ``make`` returns, once for each key, and leave it after the chunk.

        For libraries that have to open a file themselves. If too many files are open, a context may
        be left earlier; it is entered again when needed.
        """


class Block(NamedTuple):
    """A piece of an array, as passed to its decoder.

    Attributes
    ----------
    files : tuple of File
        All files of the layout.
    file : File
      The file of the piece.
    offset, nbytes : int
        First byte and length in the file.
    start, shape : tuple of int
        The box of pixels: frame axes, then signal axes.
    """

    files: tuple[File, ...]
    file: File
    offset: int
    nbytes: int
    start: tuple[int, ...]
    shape: tuple[int, ...]


class BlockRange(NamedTuple):
    """The part of a block that lies in a box."""

    block: Block
    decoder: BlockDecoder
    numbers: Index  # frame numbers in the block
    frames: Index  # frame positions in the output, ascending
    inside: tuple[slice, ...]
    """The part of the block's signal axes that is read, and its position in a frame of the output.
    """
    place: tuple[slice, ...]

    @property
    def key(self) -> Hashable:
        """Identity of the block. Overlapping pieces may begin at the same byte."""
        return *self.block[1:], self.decoder

    @property
    def decoded(self) -> int:
        """Number of pixels that are decoded: those of the whole block, unless it is not stored."""
        if not self.decoder.is_uniform:
            return math.prod(self.block.shape)
        sig = self.block.shape[len(self.block.shape) - len(self.inside) :]
        parts = (len(range(n)[part]) for n, part in zip(sig, self.inside, strict=True))
        return len(self.frames) * math.prod(parts)

    def between(self, first: int, stop: int) -> BlockRange:
        """Return the range for output frames ``first`` to ``stop``, counted from ``first``."""
        low, high = np.searchsorted(self.frames, (first, stop))
        return self._replace(numbers=self.numbers[low:high], frames=self.frames[low:high] - first)

    def decode(self, fetch: Fetch) -> Array:
        """Decode the block into its frames along one axis, then the signal axes."""
        shape, decoder = self.block.shape, self.decoder
        with Guard(self.block.file.path, "a block cannot be decoded", self._place):
            pixels = function_at(decoder.function)(self.block, fetch, **dict(decoder.options))
            found = f"{pixels.shape} {pixels.dtype}"
        if pixels.shape != shape or pixels.dtype != decoder.dtype:
            problem = "a block decodes to an unexpected shape or dtype"
            raise CorruptFileError(problem, path=self.block.file.path, found=found, **self._place())
        return pixels.reshape(-1, *shape[len(shape) - len(self.inside) :])

    def _place(self) -> dict[str, str]:
        """Return the arguments of errors."""
        where = f"byte {self.block.offset}"
        return {"where": where, "expected": f"{self.block.shape} {self.decoder.dtype}"}

    def copy(self, pixels: Array, out: Array) -> None:
        """Copy the selected pixels of a decoded block into the output."""
        numbers, frames = _as_slice(self.numbers), _as_slice(self.frames)
        out[(frames, *self.place)] = pixels[(numbers, *self.inside)]


class BlockRun(NamedTuple):
    """Whole frames of a file, each of which is a block, decoded together into the output."""

    files: tuple[File, ...]
    file: File
    decoder: BlockDecoder
    offsets: Index
    sizes: Index
    starts: Index
    """The first corner of each block; all blocks have the same ``shape``."""
    shape: tuple[int, ...]
    frames: Index  # frame positions in the output, ascending

    def between(self, first: int, stop: int) -> BlockRun:
        """Return the run for output frames ``first`` to ``stop``, counted from ``first``."""
        low, high = np.searchsorted(self.frames, (first, stop))
        numbers = self.offsets, self.sizes, self.starts, self.frames - first
        offsets, sizes, starts, frames = (column[low:high] for column in numbers)
        return self._replace(offsets=offsets, sizes=sizes, starts=starts, frames=frames)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks in the file."""
        return int(self.sizes.sum())

    @property
    def place(self) -> tuple[slice, ...]:
        """Position of a block in a frame of the output: the whole frame."""
        return ()

    def numbered(self, k: int) -> Block:
        """Return the ``k``-th block."""
        start = tuple(self.starts[k].tolist())
        return Block(
            self.files, self.file, int(self.offsets[k]), int(self.sizes[k]), start, self.shape
        )

    def spans(self) -> Iterator[tuple[slice, int, int]]:
        """Group blocks that are fetched by one read: their numbers, first byte and end."""
        return spans_of(self.offsets, self.sizes)

    def decode(self, fetch: Fetch, out: Array) -> None:
        """Decode all blocks into frames of the output, which is C-contiguous."""
        with Guard(self.file.path, "blocks cannot be decoded"):
            function_at(self.decoder.many)(self, fetch, out, **dict(self.decoder.options))


def spans_of(offsets: Index, sizes: Index) -> Iterator[tuple[slice, int, int]]:
    """Group pieces of a file that one read fetches: their numbers, first byte and end."""
    first, start, end = 0, int(offsets[0]), 0
    ends = (offsets + sizes).tolist()
    for k, (offset, stop) in enumerate(zip(offsets.tolist(), ends, strict=True)):
        near = end <= offset <= end + MOST_BETWEEN and stop - start <= MOST_BYTES
        if k > first and not near:
            yield slice(first, k), start, end
            first, start = k, offset
        end = stop
    yield slice(first, len(ends)), start, end


def _as_slice(numbers: Index) -> Index | slice:
    """Return consecutive numbers as a slice, which copies faster."""
    first, count = int(numbers[0]), len(numbers)
    in_order = int(numbers[-1]) - first == count - 1
    if in_order and (count < 3 or (np.diff(numbers) == 1).all()):
        return slice(first, first + count)
    return numbers
