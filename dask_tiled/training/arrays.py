"""Arrays of samples; samples are along the first axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from dask.local import get_sync

from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.model.indexing import Array, Index
from dask_tiled.opened.inputs import as_array, is_xarray
from dask_tiled.opened.tiled_array import TiledArray, description_of
from dask_tiled.reading.reader import Source, pixels_in

Make = Callable[[tuple[int, ...], np.dtype], Array]
"""Returns memory for samples: uninitialised, writeable and C-contiguous."""


def arrays_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays of dask and NumPy by name, all of one length.

    Raise a DatasetError or TilingError if a value is not an array, has no axis, another length or
    chunks of unknown size.
    """
    arrays = {name: array_of(name, arr) for name, arr in fields.items()}
    lengths = {name: len(arr) for name, arr in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DatasetError("the arrays have different lengths", found=lengths)
    return arrays


def array_of(name: str, value: Any) -> Any:
    """Return an array of a field, of dask or NumPy."""
    arr = as_array(value) if is_xarray(value) else value
    where = f"field {name!r}"
    if not isinstance(arr, (np.ndarray, da.Array)) or not arr.ndim:
        raise DatasetError("not an array of samples", where=where, found=type(arr).__name__)
    if np.isnan(arr.shape).any():
        hint = "Call compute_chunk_sizes() first."
        raise TilingError("chunks of unknown size", where=where, hint=hint)
    return arr


def read_samples(arrays: Sequence[Any], numbers: Index, make: Make) -> list[Array]:
    """Read samples by number, in this order, in memory of their own.

    Opened arrays are read into memory of ``make(shape, dtype)``, without a graph of dask. If an
    array is a result, all are computed together, which may share what they read.
    """
    lazy = [arr for arr in arrays if isinstance(arr, da.Array)]
    if all(map(_is_read, lazy)):
        return [_read(arr, numbers, make) for arr in arrays]
    made = take(arrays, numbers, get_sync)
    return [np.require(values, requirements=["C", "O", "W"]) for values in made]


def _is_read(arr: Any) -> bool:
    desc = description_of(arr)
    return desc is not None and desc.nav_ndim > 0


def _read(arr: Any, numbers: Index, make: Make) -> Array:
    if not isinstance(arr, TiledArray) or arr.description is None:
        found: Array = arr[numbers]
        return found
    desc = arr.description
    source = Source(desc.layout.at(numbers), desc.conversion, arr.io)
    pixels = make(source.layout.shape, source.dtype)
    return pixels_in(source, tuple((0, n) for n in pixels.shape), pixels)


def take(
    arrays: Sequence[Any], numbers: Index, scheduler: Any, *, views: bool = False
) -> list[Array]:
    """Compute samples by number: each sample once, in file order.

    Parameters
    ----------
    scheduler : callable, optional
        By default the configured one. Given a name, dask would import distributed.
    views : bool
        Whether the result may share memory with the arrays; dask copies otherwise.
    """
    wanted, places = np.unique(numbers, return_inverse=True)
    first, stop = int(wanted[0]), int(wanted[-1]) + 1
    some: Any = slice(first, stop) if len(wanted) == stop - first else wanted
    parts = [arr[some if views or isinstance(arr, da.Array) else wanted] for arr in arrays]
    if views:
        parts = [_only_chunk(part) for part in parts]
    (found,) = compute(parts, scheduler=scheduler)
    return found if (np.diff(places) == 1).all() else [values[places] for values in found]


def _only_chunk(arr: Any) -> Any:
    one = isinstance(arr, da.Array) and arr.npartitions == 1
    return arr.to_delayed().item() if one else arr
