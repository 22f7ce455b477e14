"""xarray objects of arrays, with coordinates and metadata of the files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_tiled.errors import require_extra
from dask_tiled.export.zarr.group import DATA, labels_of
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.inputs import variable_of
from dask_tiled.opening.arrays import opened

if TYPE_CHECKING:
    import xarray as xr


def to_xarray(data: Any, **options: Any) -> xr.DataArray:
    """Return a DataArray with named dimensions, coordinates with units, and metadata.

    Parameters
    ----------
    data : path-like, sequence of path-like, dask.array.Array, or object of xarray
        Files for :func:`open_dataset`, or an array: an opened one, or one computed
        from it, as long as its remaining axes are known. An xarray object keeps its coordinates,
        attributes and name, and holds the lazy array.
    **options
        Options of :func:`open_dataset`, for files.

    Returns
    -------
    xarray.DataArray
        It is named ``data`` and wraps the lazy array itself, so that computations of xarray run on
        tiles. There is a coordinate for every axis with a scale, an offset or units, in these
        units, and one of texts for an axis with labels. The attributes are ``units`` of the values,
        ``format``, ``source``, the name of the file, facts about the instrument, such as
        ``beam_energy`` and ``beam_energy_units``, and metadata: ``dm.tags.Meta Data.Format`` is
        ``metadata["dm"]["tags"]["Meta Data"]["Format"]``.

    Raises
    ------
    DatasetError
        Options are given with an opened array; or as for :func:`open_dataset`.
    ImportError
        xarray is not installed.

    Examples
    --------
    >>> import dask_tiled
    >>> scan = dask_tiled.to_xarray(dask_tiled.samples.gold())
    >>> scan.dims, scan["scan_x"].attrs["units"]
    (('scan_y', 'scan_x', 'y', 'x'), 'nm')
    """
    require_extra("xarray", "xarray")
    import xarray as xr

    arr = opened(data, **options)
    if isinstance(data, xr.Dataset | xr.DataArray):
        return variable_of(data).copy(data=arr)
    shown = shown_of(arr)
    labels = labels_of(shown.axes, arr.shape, shown.of)
    units = {"units": shown.units} if shown.units else {}
    return xr.DataArray(arr, labels.coords, labels.dims, DATA, labels.attrs | units)
