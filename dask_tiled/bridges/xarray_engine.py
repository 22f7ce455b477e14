"""The engine of ``xarray.open_dataset``: pictures of files as variables.

xarray finds it by an entry point, and reads pixels when they are asked for. Variables say in which
chunks they are best read; ``chunks={}`` takes these.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core.indexing import (
    ExplicitIndexer,
    IndexingSupport,
    LazilyIndexedArray,
    explicit_indexing_adapter,
)

from dask_tiled.array.axes import shown_of
from dask_tiled.array.dask_graph.wrapped import at_outer
from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.bridges.pictures import open_pictures
from dask_tiled.export.zarr.group import Dimensions, Labels, labels_of
from dask_tiled.formats.registry import formats, recognised_by
from dask_tiled.model.indexing import Array
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Edges

OF_OTHERS = {"hdf5", "ome_tiff", "tiff", "zarr"}
"""Formats that other engines of xarray read, too: files of these open where we are asked for."""


class Pixels(BackendArray):  # type: ignore[misc] # xarray need not be there
    """The pixels of an opened array, for xarray to read."""

    def __init__(self, arr: da.Array) -> None:
        self.arr = arr
        self.source: Source | None = None
        """What tasks of dask read by themselves."""
        if isinstance(arr, TiledArray) and arr.description is not None:
            self.source = arr._source  # noqa: SLF001
        self.shape = arr.shape
        self.dtype = arr.dtype

    def __getitem__(self, key: ExplicitIndexer) -> Array:
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER, self._read)

    def _read(self, index: tuple[Any, ...]) -> Array:
        """Read a part: integers, slices, and lists, each of which chooses along its axis alone."""
        part = at_outer(self.arr, index)
        # Whoever is in a thread of his own has as many tasks as there are cores.
        main = threading.current_thread() is threading.main_thread()
        pixels = part.compute(scheduler="threads" if main else "synchronous")
        return np.require(pixels, requirements="W")


class Engine(BackendEntrypoint):  # type: ignore[misc] # as above
    """Files of detectors and microscopes, in xarray."""

    description = "Open files of detectors and microscopes with dask-tiled"
    open_dataset_parameters = ("filename_or_obj", "drop_variables")

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        **options: Any,
    ) -> xr.Dataset:
        """Open the pictures of a file.

        Parameters
        ----------
        filename_or_obj : path-like or sequence of path-like
            As for :func:`dask_tiled.open_dataset`.
        drop_variables : str or iterable of str, optional
            Variables and coordinates that are left out.
        **options
            Those of :func:`dask_tiled.open_dataset`.

        Returns
        -------
        xarray.Dataset
            A picture alone is the variable ``data``; several have their names. They share the
            dimensions that they have in common; others begin with the name of the variable.

        Raises
        ------
        DatasetError
            As for :func:`dask_tiled.open_dataset`.

        Warns
        -----
        UserWarning
            One of several pictures cannot be opened, and is left out.
        """
        path = filename_or_obj
        if isinstance(path, (str, os.PathLike)):
            path = os.path.expanduser(path)
        dropped = {drop_variables} if isinstance(drop_variables, str) else {*(drop_variables or ())}
        pictures = open_pictures(path, options, dropped)
        opened = {name: arr for name, arr in pictures if name not in dropped}
        variables: dict[str, xr.Variable] = {}
        coords: dict[str, tuple[Any, ...]] = {}
        attrs: dict[str, Any] = {}
        for name, labels in _labels_of_all(opened).items():
            variables[name] = _variable(opened[name], labels)
            coords |= {one: told for one, told in labels.coords.items() if one not in dropped}
            attrs |= {key: labels.attrs[key] for key in ("format", "source") if key in labels.attrs}
        return xr.Dataset(variables, coords, attrs)

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether a file on this machine has the suffix and the beginning of a format.

        Those that other engines read, too, are left to them.
        """
        try:
            path = os.path.expanduser(os.fspath(filename_or_obj))
            suffix = os.path.splitext(path)[1].lower()
            known = formats().items()
            ours = [
                one for name, one in known if suffix in one.extensions and name not in OF_OTHERS
            ]
            return os.path.isfile(path) and recognised_by(ours, path, {}) is not None
        except Exception:  # noqa: BLE001 - xarray asks about anything, and others come after us
            return False


def _labels_of_all(opened: Mapping[str, da.Array]) -> dict[str, Labels]:
    """Label all variables of a data set: each of its dimensions has one length and one scale."""
    dimensions, labels = Dimensions(opened), {}
    for variable, arr in opened.items():
        shown = shown_of(arr)
        axes = dimensions.of(variable, shown.axes, arr.shape)
        labels[variable] = labels_of(axes, arr.shape, shown.of)
    return labels


def _variable(arr: da.Array, labels: Labels) -> xr.Variable:
    # Equal chunks as numbers, so that xarray makes larger ones of them where it is asked to.
    edges = zip(labels.dims, arr.chunks, map(Edges, arr.chunks), strict=True)
    chunks = {name: axis if each.bounds is not None else each.step for name, axis, each in edges}
    pixels = LazilyIndexedArray(Pixels(arr))
    return xr.Variable(labels.dims, pixels, labels.attrs, {"preferred_chunks": chunks})
