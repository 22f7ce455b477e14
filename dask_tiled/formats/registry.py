"""The formats: which there are."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from dask_tiled.errors import DatasetError, warn
from dask_tiled.formats.format import Format
from dask_tiled.model.tables import html_table, text_table

# fmt: off
_MODULES = (
    "npy", "mib", "frms6", "k2is", "hdf5", "dm", "ser", "blo", "seq", "mrc", "tvips", "nifti",
    "edf", "fits", "mgh", "gis", "empad", "nrrd", "metaimage", "ripple", "ome_tiff", "tiff",
    "zarr", "raw_csr", "beton", "raw",
)
# fmt: on
"""Modules and packages of this one that are formats, in the order in which they are tried."""
_registered: dict[str, Format] = {}


def register_format(format: Format) -> None:
    """Add a format, or replace one of the same name, in this process.

    A package can announce a format for every process by an entry point in the group
    ``dask_tiled.formats`` that names its :class:`Format`.
    """
    _registered[_checked(format).name] = format


class Formats(dict[str, Format]):
    """Formats by their names; a table as text and in notebooks."""

    def rows(self) -> list[tuple[str, ...]]:
        """List names, suffixes, what is read and options, after a line of heads."""
        rows: list[tuple[str, ...]] = [("format", "files", "what is read", "options")]
        for name, one in self.items():
            rows.append((name, ", ".join(one.extensions), one.summary, ", ".join(one.options())))
        return rows

    def __repr__(self) -> str:
        return text_table([row[:3] for row in self.rows()])

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def formats() -> Formats:
    """Give the formats by name, in the order in which they are tried; a table shows them."""
    return Formats({**_installed(), **_registered})


@cache
def _installed() -> Mapping[str, Format]:
    from importlib.metadata import entry_points  # takes as long to import as this package

    own = {name: _own(name) for name in _MODULES}
    others = {}
    for entry in entry_points(group="dask_tiled.formats"):
        try:
            others[entry.name] = _checked(entry.load())
        except Exception as error:  # noqa: BLE001 - another package may fail in any way
            warn(f"format {entry.name!r} cannot be used: {error!r}")
    return {**others, **own}


def _checked(format: Any) -> Format:
    if isinstance(format, Format):
        return format
    found = type(format).__name__
    raise DatasetError("not a format", expected="a dask_tiled.Format", found=found)


def _own(name: str) -> Format:
    module = importlib.import_module(f"dask_tiled.formats.{name}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{module.__name__}.descriptor")
    return module.FORMAT
