"""The datasets of a file, listed and described without arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dask_tiled.errors import DatasetError, UnknownFormatError, UnknownOptionError, printable
from dask_tiled.files.paths import from_the_root
from dask_tiled.model.description import Description, facts_of
from dask_tiled.model.doubts import OF_THE_LIST
from dask_tiled.model.listing import DATA, Listing, listing_all
from dask_tiled.model.together import Together
from dask_tiled.opening.describing import Path, describe, raise_of, warn_of

OF_CHUNKS = "tiling", "chunks", "io"
OF_ONE = "axes", "corrections", "fill_value", "roi", "sync_offset"
"""Options that do not change which datasets there are."""
MOST_ROWS = 20
"""Describe at most this many datasets in a table."""
MOST_TRIED = 10
"""If the default dataset is damaged, look for the list of all in at most this many others."""
FAULTS = DatasetError, ImportError, OSError


class Contents:
    """The datasets of a file.

    Parameters
    ----------
    path : path-like or list of path-like
    options : mapping
        Options of ``open_dataset``, with the format.
    desc : Description, optional
        One of the datasets, with the list of all; without it, there is one dataset.

    Attributes
    ----------
    option : str
        Name of the option that selects a dataset.
    keys : dict
        Its values by name; None if it is not needed.
    meant : str
        Name of the described dataset.
    default : Description, optional
        Its description.
    """

    def __init__(self, path: Any, options: Mapping[str, Any], desc: Description | None) -> None:
        self.path, self._options, self.meant, self.default = path, options, DATA, desc
        self.option, meant, names = Listing.of(facts_of(desc))
        self.keys: dict[str, Any] = {DATA: None}
        if len(names) > 1 and meant in names:
            self.meant, self.keys = names[meant], {name: key for key, name in names.items()}
        self._rows: dict[str, tuple[str, ...]] = {}
        self.together = Together([*self.keys.values()])

    @property
    def label(self) -> str:
        """The name of the file, or of the first one."""
        first = self.path if isinstance(self.path, str | os.PathLike) else self.path[0]
        return printable(os.path.basename(os.fspath(first).rstrip("/")))

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the options of ``open_dataset`` for a dataset."""
        key = self.keys[name]
        return {**self._options} | ({} if key is None else {self.option: key})

    def described(self, name: str) -> Description:
        """Describe a dataset; errors are those of :func:`describe`."""
        if self.default is not None and len(self.keys) == 1:
            return self.default
        told = {k: x for k, x in self.arguments(name).items() if k not in OF_CHUNKS}
        with self.together.described():
            return describe(self.path, **{**told, "doubts": "ignore"})

    def rows(self, most: int = MOST_ROWS) -> list[tuple[str, ...]]:
        """Describe the first datasets: a header, then name, shape, dtype and axes of each."""
        rows = [("name", "shape", "dtype", "axes"), *map(self._row, [*self.keys][:most])]
        left = len(self.keys) - most
        return [*rows, ("...", f"{left} more", "", "")] if left > 0 else rows

    def _row(self, name: str) -> tuple[str, ...]:
        if name not in self._rows:
            try:
                desc = self.described(name)
            except FAULTS as error:
                problem = error.problem if isinstance(error, DatasetError) else str(error)
                return name, "", "", f"cannot be opened: {problem}"
            self._rows[name] = name, str(desc.shape), str(desc.dtype), ", ".join(desc.dims)
        return self._rows[name]


def list_contents(
    path: Path | Sequence[Path], format: str | None, options: Mapping[str, Any]
) -> Contents:
    """List the datasets of a file, all of which have the same options.

    Raise a DatasetError if ``options`` select one, or no dataset can be described. If a file may
    have more datasets than it lists, warn, or raise a DoubtError, as the option ``doubts`` says.
    """
    for key in {"dataset", "field"} & options.keys():
        problem, hint = "an option selects one dataset", "Pass it to open_dataset."
        raise DatasetError(problem, expected="all datasets", found=f"{key}=", hint=hint)
    path = from_the_root(path)
    told = {k: x for k, x in options.items() if k not in (*OF_CHUNKS, *OF_ONE)}
    if told.get("missing") == "raise":
        del told["missing"]
    told["doubts"] = "ignore"
    with listing_all():
        desc = _first_described(path, {**told, "format": format})
    listed = replace(desc, doubts=tuple(x for x in desc.doubts if x.code in OF_THE_LIST))
    doubts = options.get("doubts", "warn")
    if doubts == "raise":
        raise_of(listed, "fill", opened=path, follow=False)
    warn_of(listed, opened=path, missing="fill", doubts=doubts)
    return Contents(path, {**options, "format": desc.format}, desc)


def _first_described(path: Any, options: Mapping[str, Any]) -> Description:
    """Return the description of the default dataset, or else of the first undamaged one."""
    try:
        return describe(path, **options)
    except UnknownFormatError:
        raise
    except DatasetError:
        for number in range(MOST_TRIED):
            try:
                return describe(path, **options, dataset=number)
            except UnknownOptionError:  # the format has one dataset
                break
            except FAULTS:
                continue
        raise
