"""Arrays as those of xarray, with what the files say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_tiled.array.axes import shown_of
from dask_tiled.array.doors import variable_of
from dask_tiled.export.zarr.group import DATA, labels_of
from dask_tiled.opening import opened

if TYPE_CHECKING:
    import xarray as xr


def to_xarray(data: Any, **options: Any) -> xr.DataArray:
    """Return an array with named dimensions, coordinates with units, and what the file says.

    Parameters
    ----------
    data : path-like, sequence of path-like, dask.array.Array, or object of xarray
        What :func:`open_dataset` opens, or an array: one that was opened, or what was computed of
        one, as long as it is known which axes are left. What is of xarray keeps its coordinates,
        attributes and name, and holds the lazy array.
    **options
        Those of :func:`open_dataset`, for what is not open yet.

    Returns
    -------
    xarray.DataArray
        It is called ``data`` and holds the lazy array itself, so that what xarray computes of it
        runs on tiles. There is a coordinate for every axis with a scale, an offset or units, in
        these units, and one of texts for an axis with labels. The attributes are ``units`` of the
        values, ``format``, ``source``, the name of the file, what is known of the instrument, such
        as ``beam_energy`` and ``beam_energy_units``, and metadata: ``dm.tags.Meta Data.Format`` is
        ``metadata["dm"]["tags"]["Meta Data"]["Format"]``.

    Raises
    ------
    DatasetError
        There are options for an array that is open already; or as for :func:`open_dataset`.
    ImportError
        There is no xarray.
    """
    try:
        import xarray as xr
    except ImportError as error:
        hint = 'xarray is missing. Run: pip install "dask-tiled[xarray]"'
        raise ImportError(hint) from error

    arr = opened(data, **options)
    if isinstance(data, xr.Dataset | xr.DataArray):
        return variable_of(data).copy(data=arr)
    shown = shown_of(arr)
    labels = labels_of(shown.axes, arr.shape, shown.of)
    units = {"units": shown.units} if shown.units else {}
    return xr.DataArray(arr, labels.coords, labels.dims, DATA, labels.attrs | units)
