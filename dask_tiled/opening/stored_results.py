"""Results that an export stored next to its array."""

from __future__ import annotations

import os

import dask.array as da

from dask_tiled.files.paths import is_url
from dask_tiled.model.listing import Listing
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.opening.arrays import open_dataset


def stored_results(arr: da.Array) -> dict[str, da.Array]:
    """Open the results stored next to a local zarr array, by name.

    Empty for parts of the array, for reordered frames, and for corrected pixels.
    """
    if not isinstance(arr, TiledArray) or not arr.can_refresh or arr.description is None:
        return {}
    desc = arr.description
    if desc.format != "zarr" or is_url(desc.files[0].path):
        return {}
    facts = desc.metadata["zarr"]
    _, meant, names = Listing.of(facts)
    selection = desc.layout.selection
    in_order = selection.first == 0 and selection.numbers is None
    as_stored = meant == "data" and desc.shape == facts["datasets"][meant]["shape"]
    if not as_stored or not in_order or desc.conversion.corrections is not None:
        return {}
    group = os.path.dirname(os.path.dirname(desc.files[0].path))
    return {name: open_dataset(group, "zarr", dataset=name) for name in names if name != meant}
