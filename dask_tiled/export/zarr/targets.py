"""Tasks that write the zarr chunks of an array, and of the levels of its pyramid."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Container, Sequence
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.array.tasks import Block
from dask_tiled.blocks.running import run_on_blocks
from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.levels import Stack
from dask_tiled.export.zarr.parts import Pixels
from dask_tiled.model.indexing import Array, Box
from dask_tiled.reading.reader import Source, Workspace
from dask_tiled.storing.places import Place, fingerprint
from dask_tiled.tiling.bases import Grid


class Target:
    """A zarr array, and the levels of its pyramid, that tasks write to: one value for dask."""

    def __init__(self, stack: Stack, place: Place) -> None:
        self.stack = stack
        self.place = place
        self.token = uuid.uuid4().hex
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return Target, (self.stack, self.place)

    def write(self, box: Box, held: Array | Source) -> None:
        """Write a part of the array, whose edges are edges of what is stored.

        Parameters
        ----------
        held : ndarray or Source
            Its pixels, or what they are read from.
        """
        shape = tuple(stop - start for start, stop in box)
        if isinstance(held, np.ndarray) and held.shape != shape:
            problem = "a chunk has another shape than dask says"
            raise DatasetError(problem, expected=shape, found=held.shape)
        entries = self.put(box, held)
        # Files that were read have been found to be the same as before: now it counts.
        self.place.note(entries)

    def put(self, box: Box, held: Array | Source) -> dict[str, list[int]]:
        """Write a part of the array, and return what is to be noted of it."""
        entries = {}
        # The next task of the thread has the same memory: fresh one comes page by page.
        with vars(self._of_thread).setdefault("workspace", Workspace()) as workspace:
            for level, key, _, parts in self.stack.parts(Pixels(held, box, workspace)):
                memory = workspace.scratch((level.encoder.room,), np.dtype("u1"), "stored")
                data = level.encoder.encode(parts, memory)
                self.place.put(level.prefix + key, data)
                entries[level.prefix + key] = fingerprint(data)
        return entries


def write_blocks(
    arr: da.Array,
    target: Target,
    done: Container[str],
    *,
    show: bool | None,
    rows: Container[int] | None = None,
    results: Sequence[da.Array] = (),
) -> list[Array]:
    """Write dask chunks, or some along the first axis, but those of which all is done.

    Their edges are edges of what is stored, so no two tasks share a key. Return results that are
    computed in the same go.
    """
    grid = Grid.of(arr.chunks)

    def wanted(block: Block) -> bool:
        if rows is not None and block[0] not in rows:
            return False
        return any(key not in done for key in target.stack.keys(grid.box(block)))

    return run_on_blocks(
        target.write,
        arr,
        beside=results,
        name=f"to-zarr-{target.token}",  # never the same twice: no cache can know the result
        wanted=wanted,
        show=show,
        title="to_zarr",
    )
