"""Windows of channels, in which viewers show the pixels: chosen from those that are stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dask_tiled.export.zarr.levels import LevelStack
from dask_tiled.export.zarr.stored_chunks import StoredChunks
from dask_tiled.model.indexing import Box
from dask_tiled.model.ome_axes import CHANNEL
from dask_tiled.showing.panels import contrast
from dask_tiled.storing.places import Place

SAMPLED = 1024
"""Windows are chosen from the centres of images, at most this many pixels along an axis."""
ROOT, OF_FORMAT_2, ALL = "zarr.json", ".zattrs", ".zmetadata"
"""Keys of the attributes of the group, in format 3 and 2, and of the consolidated metadata of
format 2."""


def with_windows(
    documents: Mapping[str, bytes], stack: LevelStack, place: Place
) -> dict[str, bytes]:
    """Return the documents of an export, with windows that fit the pixels of the last level.

    Each is chosen from three images of its channel. Documents without channels are unchanged.
    """
    found = dict(documents)
    if ROOT in documents:
        document = json.loads(documents[ROOT])
        if _set_windows(document.get("attributes", {}).get("ome", {}), stack, place):
            found[ROOT] = json.dumps(document).encode()
    elif OF_FORMAT_2 in documents:
        attributes = json.loads(documents[OF_FORMAT_2])
        if _set_windows(attributes, stack, place):
            every = json.loads(documents[ALL])
            every["metadata"][OF_FORMAT_2] = attributes
            found |= {OF_FORMAT_2: json.dumps(attributes).encode(), ALL: json.dumps(every).encode()}
    return found


def _set_windows(told: dict[str, Any], stack: LevelStack, place: Place) -> bool:
    """Set the windows of channels; return whether there are any."""
    channels = told.get("omero", {}).get("channels", ())
    level = stack.levels[-1]
    for k, channel in enumerate(channels):
        types = [axis["type"] for axis in told["multiscales"][0]["axes"]]
        stored = StoredChunks(place.reader(), level.prefix, level.encoder)
        boxes = _boxes(level.encoder.shape, types.index(CHANNEL), k)
        values = np.concatenate([stored.box(box).reshape(-1) for box in boxes])
        low, high, _ = contrast(values)
        window = {"start": low, "end": high}
        if level.encoder.dtype.kind == "f":
            window |= {"min": low, "max": high}
        channel["window"] |= window
    return bool(channels)


def _boxes(shape: Sequence[int], axis: int, channel: int) -> Iterator[Box]:
    """Yield the centres of three images of a channel."""
    centre = []
    for n in shape[-2:]:
        size = min(n, SAMPLED)
        centre.append(((n - size) // 2, (n + size) // 2))
    places = {tuple(n * k // 4 for n in shape[:-2]) for k in (1, 2, 3)}
    found = {(*place[:axis], channel, *place[axis + 1 :]) for place in places}
    for place in sorted(found):
        yield (*((k, k + 1) for k in place), *centre)
