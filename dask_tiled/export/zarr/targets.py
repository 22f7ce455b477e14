"""What tasks write the parts of an array to: its zarr chunks, and those of its levels."""

from __future__ import annotations

import uuid

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.levels import Stack
from dask_tiled.export.zarr.parts import Pixels
from dask_tiled.model.indexing import Array, Box
from dask_tiled.reading.reader import Source, Workspace
from dask_tiled.storing.places import Place, fingerprint


class Target:
    """A zarr array, and the levels of its pyramid, that tasks write to: one value for dask."""

    def __init__(self, stack: Stack, place: Place) -> None:
        self.stack = stack
        self.place = place
        self.token = uuid.uuid4().hex

    def write(self, box: Box, held: Array | Source) -> None:
        """Write a part of the array, whose edges are edges of what is stored.

        Parameters
        ----------
        held : ndarray or Source
            Its pixels, or what they are read from.
        """
        entries = {}
        with Workspace() as workspace:
            for level, key, _, parts in self.stack.parts(Pixels(held, box, workspace)):
                data = level.encoder.encode(parts)
                self.place.put(level.prefix + key, data)
                entries[level.prefix + key] = fingerprint(data)
        # Files that were read have been found to be the same as before: now it counts.
        self.place.note(entries)

    def read(self, box: Box, document: bytes) -> Array:
        """Read a part of the first level, which is stored already.

        Parameters
        ----------
        document : bytes
            What zarr calls the level's metadata: it may not be in the store yet.
        """
        import zarr
        from zarr.buffer import default_buffer_prototype

        contents = {"zarr.json": document}
        for key, _ in self.stack.base.encoder.keys(box):
            name = self.stack.base.prefix + key
            data = self.place.get(name)
            if data is None:
                raise DatasetError("what was stored is gone", where=name)
            contents[key] = data
        make = default_buffer_prototype().buffer.from_bytes
        store = zarr.storage.MemoryStore({key: make(data) for key, data in contents.items()})
        try:
            array = zarr.open_array(store, mode="r")
            return np.asarray(array[tuple(slice(*ends) for ends in box)])
        except Exception as error:  # whatever a codec says
            problem, where = "what was stored cannot be read again", self.stack.base.prefix
            raise DatasetError(problem, where=where, found=str(error)) from error
