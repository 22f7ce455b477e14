"""Tasks that write the zarr chunks of an array, and of the levels of its pyramid."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Container, Sequence

import dask.array as da
import numpy as np

from dask_tiled.blocks.running import run_on_blocks
from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.levels import LevelStack
from dask_tiled.export.zarr.parts import BlockPixels
from dask_tiled.model.indexing import Array, Box
from dask_tiled.plans.tasks import Block
from dask_tiled.reading.lending import lent_workspace
from dask_tiled.reading.reader import Source
from dask_tiled.storing.places import Place, fingerprint
from dask_tiled.tiling.bases import Chunks, Grid


class ZarrTarget:
    """A zarr array with its pyramid, written by tasks; dask does not traverse it."""

    def __init__(self, stack: LevelStack, place: Place) -> None:
        self.stack = stack
        self.place = place
        self.token = uuid.uuid4().hex

    def write(self, box: Box, held: Array | Source) -> None:
        """Write a box of the array that consists of whole shards.

        Parameters
        ----------
        held : ndarray or Source
            The pixels of the box, or the source to read them from.
        """
        shape = tuple(stop - start for start, stop in box)
        if isinstance(held, np.ndarray) and held.shape != shape:
            problem = "a computed chunk has another shape than its dask array states"
            raise DatasetError(problem, expected=shape, found=held.shape)
        entries = self.put(box, held)
        # The source files are unchanged, so a later attempt may resume from these entries.
        self.place.note(entries)

    def put(self, box: Box, held: Array | Source) -> dict[str, list[int]]:
        """Write a box of the array, and return the journal entries."""
        entries = {}
        self.stack.prepare()
        with lent_workspace() as workspace:
            for level, key, _, parts in self.stack.parts(BlockPixels(held, box, workspace)):
                memory = workspace.scratch((level.encoder.room,), np.dtype("u1"), "stored")
                data = level.encoder.encode(parts, memory)
                self.place.put(level.prefix + key, data)
                entries[level.prefix + key] = fingerprint(data)
        return entries


def write_blocks(
    arr: da.Array,
    chunks: Chunks,
    target: ZarrTarget,
    done: Collection[str],
    *,
    show: bool | None,
    rows: Container[int] | None = None,
    results: Sequence[da.Array] = (),
) -> list[Array]:
    """Write an array in ``chunks``, except those already stored, and compute results as well.

    Parameters
    ----------
    rows : container of int, optional
        Positions along the first axis of the chunks to write; by default all.
    """
    grid = Grid.of(chunks)

    def wanted(block: Block) -> bool:
        if rows is not None and block[0] not in rows:
            return False
        return any(key not in done for key in target.stack.keys(grid.box(block)))

    return run_on_blocks(
        target.write,
        arr,
        chunks,
        beside=results,
        name=f"to-zarr-{target.token}",  # unique, so that no cache reuses the result
        wanted=wanted if done or rows is not None else None,
        show=show,
        title="to_zarr",
    )
