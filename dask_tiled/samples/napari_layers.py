"""Samples in napari: commands of *File > Open Sample*, listed in ``napari.yaml``."""

from __future__ import annotations

import dask_tiled.samples
from dask_tiled.bridges.napari import LayerData, read_layers


def gold() -> list[LayerData]:
    """Return the layers of :func:`dask_tiled.samples.gold`."""
    return read_layers(str(dask_tiled.samples.gold()))


def cells() -> list[LayerData]:
    """Return the layers of :func:`dask_tiled.samples.cells`, one per channel."""
    return read_layers(str(dask_tiled.samples.cells()))


def alloy() -> list[LayerData]:
    """Return the layers of :func:`dask_tiled.samples.alloy`, one per image."""
    return read_layers(str(dask_tiled.samples.alloy()))


def brain() -> list[LayerData]:
    """Return the layers of :func:`dask_tiled.samples.brain`."""
    return read_layers(str(dask_tiled.samples.brain()))


def shapes() -> list[LayerData]:
    """Return the layers of :func:`dask_tiled.samples.shapes`."""
    return read_layers(str(dask_tiled.samples.shapes()))
