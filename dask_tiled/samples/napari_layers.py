"""Sample files in napari: the commands behind *File > Open Sample*, which ``napari.yaml`` lists."""

from __future__ import annotations

import dask_tiled.samples
from dask_tiled.bridges.napari import LayerData, read_layers


def gold() -> list[LayerData]:
    """Return the layers of :func:`dask_tiled.samples.gold`."""
    return read_layers(str(dask_tiled.samples.gold()))


def cells() -> list[LayerData]:
    """Return the layers of :func:`dask_tiled.samples.cells`: one for each channel."""
    return read_layers(str(dask_tiled.samples.cells()))


def alloy() -> list[LayerData]:
    """Return the layers of :func:`dask_tiled.samples.alloy`: one for each picture."""
    return read_layers(str(dask_tiled.samples.alloy()))


def brain() -> list[LayerData]:
    """Return the layers of :func:`dask_tiled.samples.brain`."""
    return read_layers(str(dask_tiled.samples.brain()))


def shapes() -> list[LayerData]:
    """Return the layers of :func:`dask_tiled.samples.shapes`."""
    return read_layers(str(dask_tiled.samples.shapes()))
