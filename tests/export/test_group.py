"""Exported groups open with calibrated axes in other software."""

import json
import os

import dask.array as da
import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr

from dask_tiled import (
    Axis,
    DatasetError,
    VerificationError,
    open_dataset,
    to_xarray,
    to_zarr,
    verify_zarr,
)
from dask_tiled.testing import counting_frames, write_nrrd

VOLUME = counting_frames((4, 6, 8), "uint16")
FIELDS = {"spacings": "0.5 2 NaN", "axis mins": "1 0 NaN", "units": '"nm" "nm" "s"'}


@pytest.fixture
def arr(tmp_path):
    """Open a volume with scales of two axes."""
    return open_dataset(write_nrrd(tmp_path / "volume.nrrd", VOLUME, fields=FIELDS)[0])


def opened(store):
    """Open a store with xarray."""
    return xr.open_zarr(store)


def test_xarray_opens_groups(arr, tmp_path):
    """xarray sees the names of dimensions, coordinates with units, and attributes."""
    to_zarr(arr, tmp_path / "out.zarr", attributes={"sample": "gold"})
    found = opened(tmp_path / "out.zarr")
    np.testing.assert_array_equal(found["data"], VOLUME)
    assert found["data"].dims == ("z", "y", "x")
    assert set(found.coords) == {"y", "x"}
    assert found["x"].attrs["units"] == "nm"
    for name, axis in (("y", arr.description.axes[1]), ("x", arr.description.axes[2])):
        positions = axis.offset + axis.scale * np.arange(found.sizes[name])
        np.testing.assert_array_equal(found[name], positions)
    assert found["data"].attrs["sample"] == "gold"
    assert found["data"].attrs["dask_tiled"]["format"] == "nrrd"


def test_results_keep_their_axes(arr, tmp_path):
    """Slices, sums and bins are calibrated as well."""
    y = arr.description.axes[1]
    to_zarr(arr[:, 1::2, 3:5], tmp_path / "crop.zarr")
    found = opened(tmp_path / "crop.zarr")
    np.testing.assert_array_equal(found["y"], [3, 7, 11])  # centres of cells of 2 nm from 0 on
    np.testing.assert_array_equal(found["data"], VOLUME[:, 1::2, 3:5])
    to_zarr(arr.sum((0, 2)), tmp_path / "sum.zarr")
    found = opened(tmp_path / "sum.zarr")
    assert found["data"].dims == ("y",)
    np.testing.assert_array_equal(found["data"], VOLUME.sum((0, 2)))
    np.testing.assert_array_equal(found["y"], y.offset + y.scale * np.arange(6))
    assert found["y"].attrs["units"] == y.units
    assert found["data"].attrs["dask_tiled"]["files"] == ["volume.nrrd"]
    binned = da.coarsen(np.sum, np.sqrt(arr), {1: 3})[:, :, ::4]
    to_zarr(binned, tmp_path / "bins.zarr")
    found = opened(tmp_path / "bins.zarr")
    assert found["data"].dims == ("z", "y", "x")
    np.testing.assert_array_equal(found["y"], y.offset + y.scale * np.array([1, 4]))
    assert "z" not in found.coords


def test_strict_json_without_folders(tmp_path):
    """Documents hold no NaN, and no folders of the user."""
    folder = tmp_path / "private"
    folder.mkdir()
    fields = FIELDS | {"content": f'"{folder}/volume.nrrd"'}
    arr = open_dataset(write_nrrd(folder / "volume.nrrd", VOLUME, fields=fields)[0])
    to_zarr(arr, tmp_path / "out.zarr", attributes={"gain": np.nan, "limits": [0, np.inf]})
    documents = [path.read_text() for path in (tmp_path / "out.zarr").rglob("zarr.json")]
    assert len(documents) == 4
    for text in documents:
        assert "private" not in text
        json.loads(text, parse_constant=pytest.fail)


def test_plain_dask_arrays(tmp_path):
    """Dimensions have the names that xarray would choose, or the user's."""
    arr = da.from_array(VOLUME, chunks=3)
    to_zarr(arr, tmp_path / "out.zarr")
    assert opened(tmp_path / "out.zarr")["data"].dims == ("dim_0", "dim_1", "dim_2")
    names = ["t", "data", "t"]
    stored = to_zarr(arr, tmp_path / "out.zarr", dimension_names=names, overwrite=True)
    assert stored.metadata.dimension_names == tuple(names)


def test_axes_without_coordinates(arr, tmp_path):
    """An axis with the name of the array, or of another axis, has no coordinates."""
    options = {"overwrite": True}
    for names in (["z", "y", "y"], ["z", "data", "x"]):
        stored = to_zarr(arr, tmp_path / "out.zarr", dimension_names=names, **options)
        np.testing.assert_array_equal(stored[:], VOLUME)
        group = zarr.open_group(tmp_path / "out.zarr", mode="r")
        assert set(group.array_keys()) == {"data"} | ({"x"} if "x" in names else set())


@pytest.mark.parametrize("kind", ["path", "store"])
def test_groups_are_verified_and_replaced(arr, tmp_path, kind):
    """Arrays and groups replace each other; damaged coordinates raise."""
    store = tmp_path / "out.zarr" if kind == "path" else zarr.storage.MemoryStore()
    for layout in ("group", "array", "group"):
        to_zarr(arr, store, layout=layout, overwrite=True)
        verify_zarr(store, arr)
    assert opened(store)["data"].shape == VOLUME.shape
    if kind == "path":
        assert sorted(os.listdir(tmp_path)) == ["out.zarr", "volume.nrrd"]
        chunk = tmp_path / "out.zarr" / "x" / "c" / "0"
        data = bytearray(chunk.read_bytes())
        data[5] ^= 1
        chunk.write_bytes(data)
        with pytest.raises(ValueError, match="checksum"):
            opened(store).load()


def test_invalid_groups_raise(arr, tmp_path):
    """Every dimension needs a string as name; a group without the array is no export."""
    for names in ("zyx", ["z", "y"], ["z", "y", 3]):
        with pytest.raises(DatasetError, match="invalid dimension_names"):
            to_zarr(arr, tmp_path / "out.zarr", dimension_names=names)
    for lists in ({"labels": ("a", "b")}, {"colours": ("#ff0000",)}, {"coordinates": (1.0,) * 5}):
        names = [Axis("z", **lists), "y", "x"]
        (kind,) = lists
        with pytest.raises(DatasetError, match=f"wrong {kind} of the axis 'z'; expected 4 {kind}"):
            to_zarr(arr, tmp_path / "out.zarr", dimension_names=names)
    with pytest.raises(DatasetError, match="unknown layout"):
        to_zarr(arr, tmp_path / "out.zarr", layout="pyramid")
    assert os.listdir(tmp_path) == ["volume.nrrd"]
    zarr.create_group(tmp_path / "out.zarr")
    with pytest.raises(VerificationError, match="no such array"):
        verify_zarr(tmp_path / "out.zarr", arr)


def test_channels_are_selected_by_name(tmp_path):
    """The names of channels are coordinates in xarray, its engine, and exported groups."""
    path = tmp_path / "names.ome.tif"
    pixels, names = counting_frames((3, 16, 20), "uint16"), ["DAPI", "GFP", "RFP"]
    tifffile.imwrite(path, pixels, metadata={"axes": "CYX", "Channel": {"Name": names}})
    arr = open_dataset(path)
    to_zarr(arr, tmp_path / "out.zarr")
    engine = xr.open_dataset(path, engine="dask_tiled")["data"]
    for found in (to_xarray(arr), engine, opened(tmp_path / "out.zarr")["data"]):
        assert found["c"].values.tolist() == names
        np.testing.assert_array_equal(found.sel(c="GFP"), pixels[1])
    again = open_dataset(tmp_path / "out.zarr")
    assert again.axes[0].labels == tuple(names)
    verify_zarr(tmp_path / "out.zarr", arr)
    to_zarr(arr[1:], tmp_path / "out.zarr", overwrite=True)
    assert opened(tmp_path / "out.zarr")["c"].values.tolist() == names[1:]


def test_a_result_may_have_the_name_of_a_folder_of_chunks(arr, tmp_path):
    """The group itself has no chunks: a result called c is one of its arrays."""
    to_zarr(arr, tmp_path / "out.zarr", with_results={"c": arr.sum(0)})
    np.testing.assert_array_equal(opened(tmp_path / "out.zarr")["c"], VOLUME.sum(0))
    to_zarr(arr, tmp_path / "out.zarr", overwrite=True)
