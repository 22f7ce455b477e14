"""A read-only zarr store that reads chunks on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice, product
from typing import Any

import numpy as np
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.buffer import cpu
from zarr.storage import MemoryStore

from dask_tiled.export.zarr.group import DATA
from dask_tiled.plans.tasks import Block, pixels_of
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Grid, ceil_div, split


class GroupContents(Mapping[str, Buffer]):
    """The values of a group: its metadata, and the chunks of its array, read on request.

    Parameters
    ----------
    documents : dict of str to bytes
    source : Source
        The pixels. Chunks are encoded as by zarr's ``bytes`` codec: little-endian, padded.
    shape : tuple of int
        Shape of every chunk.
    """

    def __init__(self, documents: dict[str, bytes], source: Source, shape: tuple[int, ...]) -> None:
        self.documents = documents
        self.source = source
        self.shape = shape
        self.counts = tuple(map(ceil_div, source.layout.shape, shape))

    def __getitem__(self, key: str) -> Buffer:
        block = self.block(key)
        if block is None:
            return cpu.Buffer.from_bytes(self.documents[key])
        source = self.source
        grid = Grid.of([*map(split, source.layout.shape, self.shape)])
        inside = tuple(stop - start for start, stop in grid.box(block))
        pixels = np.empty(inside, source.dtype)
        pixels_of(source, grid, block, pixels)
        if inside != self.shape:
            part, pixels = pixels, np.full(self.shape, source.conversion.fill_value, source.dtype)
            pixels[tuple(map(slice, inside))] = part
        stored = pixels.astype(source.dtype.newbyteorder("<"), copy=False)
        return cpu.Buffer.from_array_like(stored.reshape(-1).view(np.uint8))

    def __iter__(self) -> Iterator[str]:
        yield from self.documents
        yield from map(_key, product(*map(range, self.counts)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return key in self.documents or self.block(str(key)) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupContents) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Identity, equal in every process."""
        return tuple(self.documents.items()), self.source.token, self.shape

    def block(self, key: str) -> Block | None:
        """Return the position of the chunk with a key; None if there is none."""
        numbers = key.removeprefix(f"{DATA}/c").split("/")[1:]
        if not all(map(str.isdecimal, numbers)):
            return None
        block = tuple(map(int, numbers))
        inside = len(block) == len(self.counts) and all(map(int.__lt__, block, self.counts))
        return block if inside and key == _key(block) else None

    def below(self, folder: str) -> Iterable[str]:
        """Return the names in a folder, without listing the chunks of other folders."""
        numbers = folder.removeprefix(f"{DATA}/c").count("/")
        if f"{folder}/".startswith(f"{DATA}/c/") and numbers < len(self.counts):
            names = map(str, range(self.counts[numbers]))
            rest = ["0"] * (len(self.counts) - numbers - 1)
            return (name for name in names if "/".join([folder, name, *rest]) in self)
        inside = f"{folder}/".removeprefix("/")
        keys = islice(self, len(self.documents) + 1)  # one chunk shows that there is more
        return {key.removeprefix(inside).split("/")[0] for key in keys if key.startswith(inside)}

    def nbytes(self, key: str) -> int:
        """Return the length of a value without reading it."""
        if key in self.documents:
            return len(self.documents[key])
        return int(np.prod(self.shape, dtype=int)) * self.source.dtype.itemsize


def _key(block: Block) -> str:
    return "/".join([DATA, "c", *map(str, block)])


class VirtualStore(MemoryStore):
    """A read-only store that holds no pixels, and can be pickled.

    Chunks are read in threads; memory holds ``async.concurrency`` of zarr's configuration at once
    for each array that is read.
    """

    supports_writes = supports_deletes = False

    def __init__(self, contents: GroupContents) -> None:
        super().__init__(contents, read_only=True)  # type: ignore[arg-type] # read-only
        self.contents = contents

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.contents.source.layout.files[0].path!r})"

    def __hash__(self) -> int:
        return hash(self.contents)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "dask_tiled.VirtualStore", *self.contents.identity

    def with_read_only(self, read_only: bool = False) -> Store:  # type: ignore[override] # noqa: FBT001, FBT002
        """Return the store itself: it is always read-only."""
        return self if read_only else Store.with_read_only(self, read_only)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return a value, reading chunks in a thread; None for a missing key."""
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
        """Return a value; None for a missing key."""
        if key not in self.contents:
            return None
        value = MemoryStore({key: self.contents[key]})  # FileNotFoundError must propagate
        return value.get_sync(key, prototype=prototype, byte_range=byte_range)

    async def getsize(self, key: str) -> int:
        """Return the length of a value without reading it."""
        if key not in self.contents:
            raise FileNotFoundError(key)
        return self.contents.nbytes(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names in a folder."""
        for name in self.contents.below(prefix.strip("/")):
            yield name
