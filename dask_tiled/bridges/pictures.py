"""Opening all images of a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import dask.array as da

from dask_tiled.describing import warn_of
from dask_tiled.errors import DatasetError, warn
from dask_tiled.export.zarr.group import DATA
from dask_tiled.model.description import facts_of
from dask_tiled.model.doubts import unsettled
from dask_tiled.model.listing import Listing
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.opening import open_dataset

OF_ONE = {
    "chunks", "corrections", "dataset", "dtype", "field", "follow", "nav_shape", "roi", "sig_shape",
    "sync_offset", "tiling",
}  # fmt: skip
"""Options that apply to one image, and then restrict the result to it."""


def listing_of(arr: da.Array, options: Mapping[str, Any]) -> Listing | None:
    """Return the images of the file of an array; None if it has one, or an option restricts it."""
    found = Listing.of(facts_of(description_of(arr)))
    several = len(found.names) > 1 and found.meant in found.names
    return found if several and not OF_ONE & options.keys() else None


def open_pictures(
    path: Any, options: Mapping[str, Any], dropped: Collection[str] = ()
) -> Iterator[tuple[str, da.Array]]:
    """Yield the images that a file lists, with names, the default one first.

    A single image is called ``data``. Images in ``dropped`` are not opened; those that cannot be
    opened are skipped with a warning. The option ``axes`` applies to the first image only. Which
    image is the default one is no doubt, as all are opened.
    """
    quiet = {"doubts": "ignore"} if options.get("doubts", "warn") == "warn" else {}
    first = open_dataset(path, **{**options, **quiet})
    listing = listing_of(first, options)
    desc = description_of(first)
    if quiet and desc is not None:
        settled = () if listing is None else ("dataset",)
        left = replace(desc, doubts=unsettled(desc.doubts, settled))
        warn_of(left, opened=path, missing="fill")
    if listing is None:
        yield DATA, first
        return
    option, meant, names = listing
    yield names.pop(meant), first
    options = {key: value for key, value in options.items() if key != "axes"}
    for key, name in names.items():
        if name not in dropped:
            try:
                yield name, open_dataset(path, **options, **{option: key})
            except (DatasetError, ImportError) as error:
                warn(f"{name!r} is skipped: {error}")
