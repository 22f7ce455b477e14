"""Create the zarr metadata of an opened array and its group."""

from __future__ import annotations

import warnings
from typing import Any, Literal

from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.group import DATA, coordinates_of
from dask_tiled.model.description import Description
from dask_tiled.model.mark import attributes_of
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.opening.arrays import opened_array


def opened_for_zarr(data: Any) -> tuple[TiledArray, Description]:
    """Return an opened array and its description; errors are those of :func:`opened_array`."""
    problem = "only opened arrays can be read as zarr without a copy"
    return opened_array(data, problem, "Write computed arrays with to_zarr.")


def documents_of(desc: Description, chunks: tuple[int, ...], **options: Any) -> dict[str, bytes]:
    """Return the documents that :func:`create_group` writes, by key."""
    made: dict[str, Any] = {}
    create_group(made, desc, chunks, **options)
    return {key: buffer.to_bytes() for key, buffer in made.items()}


def create_group(
    store: Any,
    desc: Description,
    chunks: tuple[int, ...],
    *,
    zarr_format: Literal[2, 3] = 3,
    **options: Any,
) -> None:
    """Write the metadata and the coordinates of a group to an empty zarr store.

    ``options`` are passed to :func:`zarr.create_array`.

    Raise a DatasetError if zarr does not support the dtype.
    """
    import zarr
    from zarr.errors import ZarrUserWarning

    def create(name: str, dims: tuple[str, ...], attributes: dict[str, Any], **values: Any) -> None:
        if zarr_format == 2:
            # xarray masks pixels that equal the fill value.
            values["fill_value"] = None
            attributes["_ARRAY_DIMENSIONS"] = dims
        else:
            values["dimension_names"] = dims
        values = {"compressors": None, "filters": None, "attributes": attributes, **values}
        zarr.create_array(store, name=name, zarr_format=zarr_format, **values)

    zarr.create_group(store=store, zarr_format=zarr_format)
    told = {"dtype": desc.dtype, "fill_value": desc.conversion.fill_value, **options}
    attributes = attributes_of(desc.axes, [desc])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ZarrUserWarning)  # codecs outside zarr's core
            create(DATA, desc.dims, attributes, shape=desc.shape, chunks=chunks, **told)
            same = zarr.open_array(store, path=DATA, mode="r").dtype == told["dtype"]
        if not same:
            raise TypeError("zarr reads it as another dtype")  # noqa: TRY301 - handled as errors of zarr
    except (TypeError, ValueError) as error:
        problem, path = f"zarr does not support the dtype {desc.dtype}", desc.files[0].path
        raise DatasetError(problem, path=path, found=str(error)) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # labels: zarr 3 does not yet specify text
        for name, numbers, units in coordinates_of(desc.dims, desc.axes, desc.shape):
            create(name, (name,), units, data=numbers, chunks=numbers.shape)
