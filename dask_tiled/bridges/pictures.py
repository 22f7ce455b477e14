"""Opening all images of a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import dask.array as da

from dask_tiled.errors import DatasetError, warn
from dask_tiled.model.description import Description
from dask_tiled.model.doubts import unsettled
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.opening.arrays import open_dataset
from dask_tiled.opening.datasets import Datasets
from dask_tiled.opening.describing import warn_of
from dask_tiled.opening.listing import Contents

OF_ONE = {
    "chunks", "corrections", "dataset", "dtype", "field", "follow", "nav_shape", "roi", "sig_shape",
    "sync_offset", "tiling",
}  # fmt: skip
"""Options that apply to one image, and then restrict the result to it."""


def pictures_of(path: Any, options: Mapping[str, Any], desc: Description | None) -> Contents:
    """Return the images that a description lists, unless an option restricts it to one.

    The option ``axes`` applies to the first image only.
    """
    others = {key: x for key, x in options.items() if key != "axes"}
    return Contents(path, others, None if OF_ONE & options.keys() else desc)


def open_pictures(
    path: Any, options: Mapping[str, Any], dropped: Collection[str] = ()
) -> Iterator[tuple[str, da.Array]]:
    """Yield the images that a file lists, with names, the default one first.

    A single image is called ``data``. Images in ``dropped`` are not opened; those that cannot be
    opened are skipped with a warning. Which image is the default one is no doubt, as all are
    opened.
    """
    quiet = {"doubts": "ignore"} if options.get("doubts", "warn") == "warn" else {}
    first = open_dataset(path, **{**options, **quiet})
    desc = description_of(first)
    pictures = pictures_of(path, options, desc)
    if quiet and desc is not None:
        settled = ("dataset",) if len(pictures.keys) > 1 else ()
        left = replace(desc, doubts=unsettled(desc.doubts, settled))
        warn_of(left, opened=path, missing="fill")
    yield pictures.meant, first
    others = Datasets(pictures)
    for name in others:
        if name != pictures.meant and name not in dropped:
            try:
                yield name, others[name]
            except (DatasetError, ImportError) as error:
                warn(f"{name!r} is skipped: {error}")
