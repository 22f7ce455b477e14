"""The pictures of a file, which may list several."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import dask.array as da

from dask_tiled.errors import DatasetError, warn
from dask_tiled.export.group import DATA
from dask_tiled.opening import open_dataset

OF_ONE = {
    "chunks", "corrections", "dataset", "dtype", "field", "follow", "nav_shape", "roi", "sig_shape",
    "sync_offset", "tiling",
}  # fmt: skip
"""Options that speak of one picture: with one of them, it is the only one."""


def open_pictures(
    path: Any, options: Mapping[str, Any], dropped: Collection[str] = ()
) -> Iterator[tuple[str, da.Array]]:
    """Open all pictures that a file lists, the one that it means first, with their names.

    One alone is called ``data``. Of several, those in ``dropped`` are not opened, and those that
    cannot be are left out with a warning. ``axes`` are those of the first: others have other ones.
    """
    first = open_dataset(path, **options)
    desc = getattr(first, "description", None)
    facts = {} if desc is None else desc.metadata.get(desc.format, {})
    option = "field" if "fields" in facts else "dataset"
    meant = facts.get(option)
    names = _names(facts.get(f"{option}s", ()), meant)
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
                warn(f"{name!r} is left out: {error}")


def _names(listed: Any, meant: Any) -> dict[Any, str]:
    """Name the pictures that metadata list, by what chooses them."""
    items = listed.items() if isinstance(listed, Mapping) else enumerate(listed)
    found = {key: _name(key, facts) for key, facts in items}
    counts = Counter(found.values())
    for key, name in found.items():
        if name and counts[name] > 1:
            found[key] = key if isinstance(key, str) else f"{name}_{key}"
    named = {key: name.strip("/").replace("/", "_") for key, name in found.items()}
    return {key: name for key, name in named.items() if name or key == meant}


def _name(key: int | str, facts: Any) -> str:
    """Name a picture that is listed by its path, with facts; by its name; or by its number.

    Of what has a path, numbers on one axis without a title are no picture, and have no name.
    """
    if not isinstance(facts, Mapping):
        return str(key if isinstance(key, str) else facts) or "dataset"
    given = facts.get("title") or facts.get("name")
    if given or not isinstance(key, str):
        return given or "dataset"
    return os.path.basename(key) if len(facts["shape"]) > 1 else ""
