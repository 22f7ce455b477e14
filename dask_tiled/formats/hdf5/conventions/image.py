"""Colour pictures by the HDF5 Image and Palette Specification 1.2."""

from __future__ import annotations

from dask_tiled.formats.hdf5.colours import SIG_DIMS, colours_of
from dask_tiled.formats.hdf5.convention import Calibration, Convention
from dask_tiled.formats.hdf5.datasets import Picture
from dask_tiled.formats.hdf5.library import shape_of
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.model.axes import Axis


class ColourImages(Convention):
    """True colour images of any file; they are not designated, as many are thumbnails."""

    name = "HDF5 Image"

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:  # noqa: ARG002
        """Return (y, x, colour)."""
        first = picture.members[0]
        colours = colours_of(first, shape_of(first))
        if colours is None or len(picture.shape) < SIG_DIMS:
            return None
        lead = [Axis("")] * (len(picture.shape) - SIG_DIMS)
        return Calibration((*lead, Axis("y"), Axis("x"), Axis("s", labels=colours.labels)), 3)
