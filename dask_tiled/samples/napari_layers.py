"""Samples in napari: commands of *File > Open Sample*, listed in ``napari.yaml``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import dask_tiled.samples as samples  # noqa: PLR0402 - not the whole package
from dask_tiled.bridges.napari import LayerData, read_layers


def layers_of(sample: Callable[[], Path]) -> list[LayerData]:
    """Return the layers of a sample: one per channel, or one per image."""
    return read_layers(str(sample()))


alloy = partial(layers_of, samples.alloy)
brain = partial(layers_of, samples.brain)
cells = partial(layers_of, samples.cells)
gold = partial(layers_of, samples.gold)
shapes = partial(layers_of, samples.shapes)
