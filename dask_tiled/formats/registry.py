"""The formats: which there are."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

from dask_tiled.errors import DatasetError
from dask_tiled.formats.format import Format

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


def formats() -> dict[str, Format]:
    """Give the formats by name, in the order in which they are tried."""
    return {**_installed(), **_registered}


@cache
def _installed() -> Mapping[str, Format]:
    from importlib.metadata import entry_points  # takes as long to import as this package

    own = {name: _own(name) for name in _MODULES}
    others = {}
    for entry in entry_points(group="dask_tiled.formats"):
        try:
            others[entry.name] = _checked(entry.load())
        except Exception as error:  # noqa: BLE001 - another package may fail in any way
            warnings.warn(f"format {entry.name!r} cannot be used: {error!r}", stacklevel=2)
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
