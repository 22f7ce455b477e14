"""A zarr store that makes the bytes of a chunk when they are asked for."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.buffer import default_buffer_prototype

from dask_tiled.array.tasks import Block, pixels_of
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Grid
from dask_tiled.tiling.sizes import split

READ_ONLY = "store was opened in read-only mode and does not support writing"
"""What the stores of zarr answer to those who write."""


class VirtualChunks(NamedTuple):
    """The chunks of an array of zarr, as its ``bytes`` codec stores them: little-endian, whole.

    Attributes
    ----------
    source : Source
        The pixels.
    shape : tuple of int
        Shape of every chunk.
    """

    source: Source
    shape: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        axes = zip(self.source.layout.shape, self.shape, strict=True)
        return tuple(-(-size // chunk) for size, chunk in axes)

    @property
    def nbytes(self) -> int:
        """Bytes of a chunk."""
        return math.prod(self.shape) * self.source.dtype.itemsize

    def keys(self) -> Iterator[str]:
        """Name all chunks, in C order."""
        for block in itertools.product(*map(range, self.counts)):
            yield _key(block)

    def block(self, key: str) -> Block | None:
        """Find the chunk that has a name; None where none has."""
        numbers = key.split("/")[1:]
        if not all(n.isdecimal() and n.isascii() for n in numbers):
            return None
        block = tuple(map(int, numbers))
        there = len(block) == len(self.counts) and all(map(int.__lt__, block, self.counts))
        return block if there and key == _key(block) else None

    def below(self, key: str) -> Iterable[str]:
        """Name what comes next after the beginning of a key."""
        if not key:
            return ["c"]
        first, *numbers = key.split("/")
        depth, counts = len(numbers), self.counts
        known = first == "c" and depth < len(counts)
        # The first chunk below is there, or nothing is.
        if not known or self.block("/".join([key, *["0"] * (len(counts) - depth)])) is None:
            return []
        return map(str, range(counts[depth]))

    def read(self, block: Block) -> npt.NDArray[np.uint8]:
        """Make the bytes of a chunk. What of it lies beyond the array is filled."""
        source = self.source
        grid = Grid.of([*map(split, source.layout.shape, self.shape)])
        box = grid.box(block)
        counts = tuple(stop - start for start, stop in box)
        pixels = np.empty(counts, source.dtype)
        pixels_of(source, grid, block, pixels)
        if counts != self.shape:
            part, pixels = pixels, np.full(self.shape, source.conversion.fill_value, source.dtype)
            pixels[tuple(map(slice, counts))] = part
        stored = pixels.astype(source.dtype.newbyteorder("<"), copy=False)
        return stored.reshape(-1).view(np.uint8)


def _key(block: Block) -> str:
    return "/".join(["c", *map(str, block)])


class VirtualStore(Store):
    """Documents that are there, and chunks that are read from the files when they are asked for.

    It is read-only, pickles, and holds no pixels. Chunks are read in threads; so many of them are
    in memory as zarr asks for at once, ``async.concurrency`` of its configuration for each array
    that is read.

    Parameters
    ----------
    documents : mapping of str to bytes
        What is stored under other keys than those of chunks.
    arrays : mapping of str to VirtualChunks
        The chunks of the array at each path.
    """

    def __init__(self, documents: Mapping[str, bytes], arrays: Mapping[str, VirtualChunks]) -> None:
        super().__init__(read_only=True)
        self._documents = dict(documents)
        self._arrays = dict(arrays)

    def __repr__(self) -> str:
        files = [chunks.source.layout.files[0].path for chunks in self._arrays.values()]
        return f"{type(self).__name__}({', '.join(map(repr, files))})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "dask_tiled.VirtualStore", *self._identity()

    def _identity(self) -> tuple[Any, ...]:
        arrays = tuple((path, c.source.token, c.shape) for path, c in self._arrays.items())
        return tuple(self._documents.items()), arrays

    def with_read_only(self, read_only: bool = False) -> Store:  # noqa: FBT001, FBT002
        """Return the store again; one that can be written to there is not."""
        if read_only:
            return type(self)(self._documents, self._arrays)
        return super().with_read_only(read_only)

    @property
    def supports_writes(self) -> bool:
        """No: the files stay as they are."""
        return False

    @property
    def supports_deletes(self) -> bool:
        """No: the files stay as they are."""
        return False

    @property
    def supports_listing(self) -> bool:
        """Yes."""
        return True

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return a document, or read a chunk in a thread; None where there is neither."""
        if not isinstance(self._find(key), tuple):
            return self.get_sync(key, prototype=prototype, byte_range=byte_range)
        return await asyncio.to_thread(
            self.get_sync, key, prototype=prototype, byte_range=byte_range
        )

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return a document, or read a chunk in this thread; None where there is neither."""
        found = self._find(key)
        if found is None:
            return None
        if isinstance(found, bytes):
            data = np.frombuffer(found, np.uint8)
        else:
            chunks, block = found
            data = chunks.read(block)
        kind = (prototype or default_buffer_prototype()).buffer
        return kind.from_array_like(data[_as_slice(byte_range, len(data))])

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return parts of several values, one after the other."""
        return [await self.get(key, prototype, some) for key, some in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return whether there is such a key; nothing is read."""
        return self._find(key) is not None

    async def getsize(self, key: str) -> int:
        """Return the number of bytes of a value; nothing is read."""
        found = self._find(key)
        if found is None:
            raise FileNotFoundError(key)
        return len(found) if isinstance(found, bytes) else found[0].nbytes

    async def set(self, key: str, value: Buffer) -> None:  # noqa: ARG002
        """Refuse."""
        if self.read_only:
            raise ValueError(READ_ONLY)

    async def delete(self, key: str) -> None:  # noqa: ARG002
        """Refuse."""
        if self.read_only:
            raise ValueError(READ_ONLY)

    async def list(self) -> AsyncIterator[str]:
        """Name all keys."""
        for key in self._keys():
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Name the keys that begin so."""
        for key in self._keys():
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Name what is in a folder, which may be chunks by the million."""
        folder = f"{prefix.rstrip('/')}/".removeprefix("/")
        inside = (key.removeprefix(folder) for key in self._documents if key.startswith(folder))
        found = {key.split("/")[0]: None for key in inside}
        for path, chunks in self._arrays.items():
            root = f"{path}/"
            if root.startswith(folder) and root != folder:
                found[root.removeprefix(folder).split("/")[0]] = None
            elif folder.startswith(root):
                found |= dict.fromkeys(chunks.below(folder.removeprefix(root).rstrip("/")))
        for name in found:
            yield name

    def _keys(self) -> Iterator[str]:
        yield from self._documents
        for path, chunks in self._arrays.items():
            yield from (f"{path}/{key}" for key in chunks.keys())  # noqa: SIM118 - no mapping

    def _find(self, key: str) -> bytes | tuple[VirtualChunks, Block] | None:
        """Look a document up, or a chunk."""
        if key in self._documents:
            return self._documents[key]
        for path, chunks in self._arrays.items():
            block = chunks.block(key.removeprefix(f"{path}/"))
            if block is not None and key.startswith(f"{path}/"):
                return chunks, block
        return None


def _as_slice(wanted: ByteRequest | None, size: int) -> slice:
    match wanted:
        case None:
            return slice(None)
        case RangeByteRequest(start, end):
            return slice(start, end)
        case OffsetByteRequest(offset):
            return slice(offset, None)
        case SuffixByteRequest(suffix):
            return slice(max(0, size - suffix), None)
    raise ValueError(f"Unexpected byte_range, got {wanted}.")
