"""Coordinates of zarr arrays: one-dimensional arrays beside them."""

from __future__ import annotations

import os
from typing import NamedTuple

from dask_tiled.errors import OutsideFolderError, StaleFileError
from dask_tiled.files.paths import Border, border, in_folder, real, within
from dask_tiled.formats.zarr.chunks import FolderChunks
from dask_tiled.formats.zarr.documents import DOCUMENT, node_in, opened
from dask_tiled.formats.zarr.folders import Directory, StoreFolder
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array

MOST_POINTS = 1 << 20
"""Coordinates with more positions, or larger chunks, are not read."""

MOST_REQUESTS = 100
"""Coordinates behind URLs in more chunks are not read."""


class Positions(NamedTuple):
    """The values of an array of coordinates."""

    points: Array | None
    """None if they are too many to read while opening."""
    units: str = ""

    @property
    def lost(self) -> str:
        """Why an axis cannot have these positions."""
        return "are too many to read" if self.points is None else "are not numbers"

    def axis(self, name: str) -> Axis | None:
        """Return the axis at these positions; None if it cannot have them."""
        return None if self.points is None else Axis.at(name, self.units, self.points)


def positions_beside(folder: StoreFolder, name: str, size: int) -> Positions | None:
    """Read the coordinates of a dimension, beside an array.

    None if there are none of this size, or they are damaged.
    """
    group = folder.above
    if group is None or "/" in name or ".." in name:
        return None
    known = border()
    above = {in_folder(os.path.dirname(one), DOCUMENT) for one in (folder.path, real(folder.path))}
    beside = Border(above, outside=bool(known and known.outside))
    with within(beside if isinstance(folder, Directory) else known):
        return positions_in(group.inside(name), size)


def positions_in(folder: StoreFolder, size: int) -> Positions | None:
    """Read an array of ``size`` numbers; None if it does not exist, or is another or damaged."""
    try:
        node = node_in(folder)
        if node is None:
            return None
        array = opened(*node)
        if array.shape != (size,) or array.dtype.kind not in "fiu":
            return None
        requests = -(-size // max(1, array.chunks[0])) if folder.is_remote else 0
        if max(size, array.chunks[0]) > MOST_POINTS or requests > MOST_REQUESTS:
            return Positions(None)
        chunks = FolderChunks(array, node[1], folder, node[0], 0, complete=False)
        points = chunks.pixels()
        if size > 1 and (points == chunks.fill).all():  # none is stored
            return None
        return Positions(points, str(array.attrs.get("units", "")))
    except (OutsideFolderError, StaleFileError):
        raise
    except Exception:  # noqa: BLE001 - files of other programs may be invalid in any way
        return None
