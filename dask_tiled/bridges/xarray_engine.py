"""The engine of ``xarray.open_dataset``, which opens the images of a file as variables.

xarray finds it by an entry point, and reads pixels on demand. Variables have preferred chunks,
which ``chunks={}`` selects.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Iterable, Mapping
from itertools import chain, count
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

from dask_tiled.bridges.pictures import open_pictures
from dask_tiled.export.zarr.group import DATA, Dimensions, Labels, labels_of, node_names
from dask_tiled.formats.registry import formats, recognised_by
from dask_tiled.graphs.wrapped import at_outer
from dask_tiled.model.indexing import Array
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.tiled_array import TiledArray, levels_of
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Edges

OF_OTHERS = {"hdf5", "ome_tiff", "tiff", "zarr"}
"""Formats that other engines read too: they are opened only if this engine is requested."""


class BackendPixels(BackendArray):  # type: ignore[misc] # xarray is optional
    """The pixels of an opened array, as an xarray backend array."""

    def __init__(self, arr: da.Array) -> None:
        self.arr = arr
        self.source: Source | None = None
        """The source that dask tasks read directly."""
        if isinstance(arr, TiledArray) and arr.description is not None:
            self.source = arr._source  # noqa: SLF001
        self.shape = arr.shape
        self.dtype = arr.dtype

    def __getitem__(self, key: ExplicitIndexer) -> Array:
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER, self._read)

    def _read(self, index: tuple[Any, ...]) -> Array:
        """Read a part by integers, slices and lists, each along its own axis."""
        part = at_outer(self.arr, index)
        # Other threads already run one task per core.
        main = threading.current_thread() is threading.main_thread()
        pixels = part.compute(scheduler="threads" if main else "synchronous")
        return np.require(pixels, requirements="W")


class Engine(BackendEntrypoint):  # type: ignore[misc] # as above
    """The xarray engine for files of detectors and microscopes."""

    description = "Open files of detectors and microscopes with dask-tiled"
    open_dataset_parameters = ("filename_or_obj", "drop_variables")
    supports_groups = True

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        **options: Any,
    ) -> xr.Dataset:
        """Open the images of a file.

        Parameters
        ----------
        filename_or_obj : path-like or sequence of path-like
            As for :func:`dask_tiled.open_dataset`.
        drop_variables : str or iterable of str, optional
            Variables and coordinates to leave out.
        **options
            Options of :func:`dask_tiled.open_dataset`.

        Returns
        -------
        xarray.Dataset
            A single image is the variable ``data``; several have their names. Axes of one name that
            are equal, with their length, scale, units and labels, are one dimension. Of axes that
            differ, the first keeps the name, and others have the name of their first variable as a
            prefix, such as "C_y".

        Raises
        ------
        DatasetError
            As for :func:`dask_tiled.open_dataset`.

        Warns
        -----
        UserWarning
            One of several images cannot be opened, and is skipped.
        """
        opened, dropped = _opened(filename_or_obj, drop_variables, options)
        return _dataset(opened, dropped)

    def open_datatree(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        **options: Any,
    ) -> xr.DataTree:
        """Open each image of a file as a node of a tree; see :meth:`open_groups_as_dict`."""
        groups = self.open_groups_as_dict(filename_or_obj, drop_variables=drop_variables, **options)
        return xr.DataTree.from_dict(groups)

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        **options: Any,
    ) -> dict[str, xr.Dataset]:
        """Open each image of a file, and each level of its pyramid, as a data set.

        Parameters
        ----------
        filename_or_obj, drop_variables, **options : optional
            As for :meth:`open_dataset`.

        Returns
        -------
        dict of str to xarray.Dataset
            Data sets with a variable ``data`` by name of the image: ``data`` for a single one.
            Lower levels of an image called ``a`` are ``a_level_1`` and so on, or ``a_level_1_2`` if
            another image has that name.
        """
        opened, dropped = _opened(filename_or_obj, drop_variables, options)
        levels: dict[str, da.Array] = {}
        for name, arr in opened.items():
            levels[name], *lower = levels_of(arr)
            for k, level in enumerate(lower, start=1):
                plain = f"{name}_level_{k}"
                every = chain([plain], (f"{plain}_{n}" for n in count(2)))
                levels[next(x for x in every if x not in opened and x not in levels)] = level
        nodes = node_names({**opened, **levels})
        return {nodes[name]: _dataset({DATA: arr}, dropped) for name, arr in levels.items()}

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether a local file has the suffix and the content of a format.

        Formats that other engines read are refused.
        """
        try:
            path = os.path.expanduser(os.fspath(filename_or_obj))
            suffix = os.path.splitext(path)[1].lower()
            known = formats().items()
            ours = [
                one for name, one in known if suffix in one.extensions and name not in OF_OTHERS
            ]
            return os.path.isfile(path) and recognised_by(ours, path, {}) is not None
        except Exception:  # noqa: BLE001 - xarray passes any path, and tries other engines next
            return False


def _opened(
    path: Any, drop_variables: str | Iterable[str] | None, options: Mapping[str, Any]
) -> tuple[dict[str, da.Array], set[str]]:
    """Open the images of a file except some; return them, and the names of those."""
    if isinstance(path, (str, os.PathLike)):
        path = os.path.expanduser(path)
    dropped = {drop_variables} if isinstance(drop_variables, str) else {*(drop_variables or ())}
    pictures = open_pictures(path, options, dropped)
    return {name: arr for name, arr in pictures if name not in dropped}, dropped


def _dataset(opened: Mapping[str, da.Array], dropped: Container[str]) -> xr.Dataset:
    """Return images as the variables of a data set."""
    variables: dict[str, xr.Variable] = {}
    coords: dict[str, tuple[Any, ...]] = {}
    attrs: dict[str, Any] = {}
    for name, labels in _labels_of_all(opened).items():
        variables[name] = _variable(opened[name], labels)
        coords |= {one: told for one, told in labels.coords.items() if one not in dropped}
        attrs |= {key: labels.attrs[key] for key in ("format", "source") if key in labels.attrs}
    return xr.Dataset(variables, coords, attrs)


def _labels_of_all(opened: Mapping[str, da.Array]) -> dict[str, Labels]:
    """Label all variables of a data set: equal axes are one dimension."""
    dimensions, labels = Dimensions(opened), {}
    for variable, arr in opened.items():
        shown = shown_of(arr)
        axes = dimensions.of(variable, shown.axes, arr.shape)
        labels[variable] = labels_of(axes, arr.shape, shown.of)
    return labels


def _variable(arr: da.Array, labels: Labels) -> xr.Variable:
    # Equal chunks as numbers, which xarray can merge to larger ones.
    edges = zip(labels.dims, arr.chunks, map(Edges, arr.chunks), strict=True)
    chunks = {name: axis if each.bounds is not None else each.step for name, axis, each in edges}
    pixels = LazilyIndexedArray(BackendPixels(arr))
    return xr.Variable(labels.dims, pixels, labels.attrs, {"preferred_chunks": chunks})
