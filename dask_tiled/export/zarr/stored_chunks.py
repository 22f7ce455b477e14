"""Read the chunks of a zarr array one by one, out of shards that are never read whole."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tiled.codecs.shards import parse_index
from dask_tiled.export.zarr.encoding import Encoder
from dask_tiled.export.zarr.parts import Place
from dask_tiled.model.indexing import Array
from dask_tiled.model.paths import open_file
from dask_tiled.storing.object_stores import StorePlace

if TYPE_CHECKING:
    import zarr

WINDOW_BYTES = 4 << 20
"""So much of a shard is fetched at a time, unless one chunk is larger, or it lies in a file."""


class StoredChunks:
    """Reads chunks in any order; in the order in which they are stored, each byte once.

    Like an encoder, it calls the codecs that nearly everyone uses directly.

    Parameters
    ----------
    array : zarr.Array
    encoder : Encoder
        Of that array.
    """

    def __init__(self, array: zarr.Array[Any], encoder: Encoder) -> None:
        self.array = array
        self.encoder = encoder
        self.prefix = f"{array.path}/" if array.path else ""
        self.place = _place_of(array.store, self.prefix)
        self.pipeline = encoder.pipeline if _is_usual(array) else None
        self._key: str | None = None
        self._index: Any = None
        self._window: tuple[int, memoryview] = 0, memoryview(b"")
        self._memory: Array = np.empty(0, np.uint8)

    def read(self, key: str, place: Place, corner: Sequence[int], shape: Place) -> Array | None:
        """Read a chunk; None where there is none.

        Parameters
        ----------
        key : str
            Of the shard, or of the chunk that is stored by itself.
        place : tuple of int
            Position of the chunk in the shard.
        corner, shape : sequence of int
            Where in the array the chunk begins, and how much of it is there.

        Returns
        -------
        ndarray
            Valid until the next call.
        """
        if self.pipeline is None:
            if not self.place.has(key):
                return None
            ends = zip(corner, shape, strict=True)
            return np.asarray(self.array[tuple(slice(k, k + n) for k, n in ends)])
        data = self._stored(key, place)
        if data is None:
            return None
        if not self._memory.size:
            self._memory = np.empty(self.pipeline.rooms[0], np.uint8)
        pixels = self.pipeline.decode(np.frombuffer(data, np.uint8), out=self._memory)
        return pixels[tuple(map(slice, shape))].astype(self.encoder.dtype, copy=False)

    def _stored(self, key: str, place: Place) -> memoryview | None:
        """Fetch a chunk as it is stored; it is valid until the next one is fetched."""
        if self.encoder.shard is None:
            whole = self.place.get(key)
            return None if whole is None else memoryview(whole)
        if key != self._key:
            self._index = self._read_index(key)
            self._key, self._window = key, (0, memoryview(b""))
        if self._index is None or self._index[place][0] < 0:
            return None
        start, nbytes = self._index[place].tolist()
        origin, window = self._window
        if start < origin or start + nbytes > origin + len(window):
            window_bytes = 0 if isinstance(self.place, _Folder) else WINDOW_BYTES
            end = min(start + max(nbytes, window_bytes), int(self._index.sum(axis=-1).max()))
            found = self.place.get(key, (start, end))
            origin, window = self._window = start, memoryview(found or b"")
        return window[start - origin : start - origin + nbytes]

    def _read_index(self, key: str) -> Any:
        counts = self.encoder.counts
        nbytes = 16 * math.prod(counts) + 4
        found = self.place.get(key, (-nbytes, None))
        if found is None:
            return None
        return parse_index(found, nbytes).reshape(*counts, 2)


class _Folder:
    """Reads files as :class:`StorePlace` does, each part of one into the memory of the last."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._memory = bytearray()

    def get(self, key: str, part: tuple[int, int | None] = (0, None)) -> memoryview | None:
        try:
            with open_file(self._path(key), buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                first, last, _ = slice(*part).indices(size)
                count = max(0, last - first)
                if len(self._memory) < count:
                    self._memory = bytearray(count)
                view, done = memoryview(self._memory)[:count], 0
                while done < count:
                    more = os.preadv(file.fileno(), [view[done:]], first + done)
                    if not more:
                        break
                    done += more
                return view[:done]
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def has(self, key: str) -> bool:
        return os.path.isfile(self._path(key))

    def _path(self, key: str) -> str:
        return os.path.join(self.path, *key.split("/"))


def _place_of(store: Any, prefix: str) -> _Folder | StorePlace:
    from zarr.storage import LocalStore

    if type(store) is LocalStore:
        return _Folder(os.path.join(store.root, *prefix.split("/")))
    return StorePlace(store, prefix)


def _is_usual(array: zarr.Array[Any]) -> bool:
    """Return whether keys are as usual, and the index of a shard is at its end, with a checksum."""
    metadata: Any = array.metadata
    if metadata.zarr_format != 3:
        return False
    keys = metadata.chunk_key_encoding
    if (keys.name, keys.separator) != ("default", "/"):
        return False
    if array.shards is None:
        return True
    (sharding,) = metadata.codecs
    given = sharding.to_dict()["configuration"]
    names = [codec["name"] for codec in given["index_codecs"]]
    endian = given["index_codecs"][0].get("configuration", {}).get("endian")
    return (given["index_location"], names, endian) == ("end", ["bytes", "crc32c"], "little")
