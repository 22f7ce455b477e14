"""Pieces that decode only as a whole: which of their pixels go where."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError
from dask_tiled.model.decoders import BlockDecoder, function_at
from dask_tiled.model.files import File
from dask_tiled.model.indexing import Array, Index


class Fetch(Protocol):
    """Where a block gets its bytes from, for the work on one chunk."""

    def __call__(self, file: File, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return bytes of a file; they are valid until the next call."""

    def keep(self, key: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Enter what is made for a key, once, and leave it when the work on the chunk is done.

        For libraries that have to open a file themselves. What was kept may be left earlier, where
        many files are open; it is made again then.
        """


class Block(NamedTuple):
    """A piece, as its decoder sees it.

    Attributes
    ----------
    files : tuple of File
        All files of the layout.
    file : File
        The one that the piece lies in.
    offset, nbytes : int
        Where it begins there, and how long it is.
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
    """What a piece that decodes as a whole gives to a box."""

    block: Block
    decoder: BlockDecoder
    numbers: Index  # numbers of the frames in the block
    frames: Index  # position of each frame in the output, in ascending order
    inside: tuple[slice, ...]
    """What is taken of the signal axes of the block, and where in a frame of the output it goes."""
    place: tuple[slice, ...]

    @property
    def key(self) -> Hashable:
        """What tells the block from others; of pieces that overlap, several may begin together."""
        return *self.block[1:], self.decoder

    def between(self, first: int, stop: int) -> BlockRange:
        """Take the frames at some positions of the output, which become the first ones."""
        low, high = np.searchsorted(self.frames, (first, stop))
        return self._replace(numbers=self.numbers[low:high], frames=self.frames[low:high] - first)

    def decode(self, fetch: Fetch) -> Array:
        """Decode the block: its frames on one axis, then the signal axes."""
        pixels = function_at(self.decoder.function)(self.block, fetch, **dict(self.decoder.options))
        shape = self.block.shape
        if pixels.shape != shape or pixels.dtype != self.decoder.dtype:
            raise CorruptFileError(
                "a block decodes to something else",
                path=self.block.file.path,
                where=f"byte {self.block.offset}",
                expected=f"{shape} {self.decoder.dtype}",
                found=f"{pixels.shape} {pixels.dtype}",
            )
        return pixels.reshape(-1, *shape[len(shape) - len(self.inside) :])

    def copy(self, pixels: Array, out: Array) -> None:
        """Put what is wanted of a decoded block into the output."""
        numbers, frames = _as_slice(self.numbers), _as_slice(self.frames)
        out[(frames, *self.place)] = pixels[(numbers, *self.inside)]


def _as_slice(numbers: Index) -> Index | slice:
    """Write numbers that follow one another as a slice, which is quicker to copy."""
    first, count = int(numbers[0]), len(numbers)
    in_order = int(numbers[-1]) - first == count - 1
    if in_order and (count < 3 or (np.diff(numbers) == 1).all()):
        return slice(first, first + count)
    return numbers
