"""Opening all images of a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import dask.array as da

from dask_tiled.errors import DatasetError, warn
from dask_tiled.export.zarr.group import DATA
from dask_tiled.model.listing import Listing
from dask_tiled.opening import open_dataset

OF_ONE = {
    "chunks", "corrections", "dataset", "dtype", "field", "follow", "nav_shape", "roi", "sig_shape",
    "sync_offset", "tiling",
}  # fmt: skip
"""Options that apply to one image, and then restrict the result to it."""


def open_pictures(
    path: Any, options: Mapping[str, Any], dropped: Collection[str] = ()
) -> Iterator[tuple[str, da.Array]]:
    """Yield the images that a file lists, with names, the default one first.

    A single image is called ``data``. Images in ``dropped`` are not opened; those that cannot be
    opened are skipped with a warning. The option ``axes`` applies to the first image only.
    """
    first = open_dataset(path, **options)
    desc = getattr(first, "description", None)
    facts = {} if desc is None else desc.metadata.get(desc.format, {})
    option, meant, names = Listing.of(facts)
    if len(names) < 2 or meant not in names or OF_ONE & options.keys():
        yield DATA, first
        return
    yield names.pop(meant), first
    options = {key: value for key, value in options.items() if key != "axes"}
    for key, name in names.items():
        if name not in dropped:
            try:
                yield name, open_dataset(path, **options, **{option: key})
            except (DatasetError, ImportError) as error:
                warn(f"{name!r} is skipped: {error}")
