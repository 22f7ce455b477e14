"""Public functions accept xarray objects as arrays."""

import numpy as np
import pytest
import xarray

import dask_tiled
from dask_tiled import DatasetError, TiledArray, TilingError
from dask_tiled.model.axes import Axis
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.inputs import as_array
from dask_tiled.opening.arrays import opened
from dask_tiled.testing import counting_frames, write_dm

FRAMES = counting_frames((6, 8, 16, 12), "uint16")
STEPS = [(0.0, 0.5, "nm"), (0.0, 0.25, "nm"), (32.0, 0.02, "1/nm"), (32.0, 0.02, "1/nm")]


@pytest.fixture
def scan(tmp_path):
    return write_dm(tmp_path / "scan.dm4", FRAMES, calibrations=STEPS)


@pytest.fixture
def arr(scan):
    return dask_tiled.open_dataset(scan)


def equal(a, b):
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.asarray(a).dtype.kind == "f")


def engine(scan, **options):
    return xarray.open_dataset(scan, engine="dask_tiled", **options)


WAYS = {
    "to_xarray": dask_tiled.to_xarray,
    "engine": lambda scan: engine(scan)["data"],
    "in chunks": lambda scan: engine(scan, chunks={})["data"],
    "a data set": engine,
    "a variable": lambda scan: engine(scan)["data"].variable,
}


@pytest.mark.parametrize("way", WAYS)
def test_xarray_objects_unwrap_to_the_opened_array(scan, arr, way):
    held = as_array(WAYS[way](scan))
    assert isinstance(held, TiledArray)
    if way != "a variable":  # which has no coordinates
        assert held.description == arr.description
    assert held.dims == arr.dims
    assert held.chunks == arr.chunks
    assert equal(held, FRAMES)


@pytest.mark.parametrize("way", ["to_xarray", "engine"])
def test_xarray_slices_unwrap_to_slices(scan, way):
    part = WAYS[way](scan).isel(scan_y=2, scan_x=slice(1, 7, 2), x=slice(4, None))
    held = as_array(part)
    assert isinstance(held, TiledArray)
    assert [axis.offset for axis in held.axes] == pytest.approx([0.25, -0.64, -0.56])
    assert held.axes[0] == Axis("scan_x", "nm", 0.5, 0.25)
    assert equal(held, FRAMES[2, 1:7:2, :, 4:])


@pytest.mark.parametrize(
    "key",
    [
        {"scan_y": [4, 1, 2]},
        {"scan_x": slice(None, None, -1)},
        {"y": [3, 1], "x": slice(2, 5)},
        {"scan_y": 0, "scan_x": 1, "y": 2},
        {name: xarray.DataArray([0, 1], dims="p") for name in ("scan_y", "scan_x")},
    ],
)
@pytest.mark.parametrize("way", ["to_xarray", "engine", "in chunks"])
def test_xarray_selections_keep_pixels_and_dims(scan, way, key):
    part = WAYS[way](scan).isel(key)
    held = as_array(part)
    assert equal(held, part.values)
    assert [axis and axis.name for axis in shown_of(held).axes] == [*part.dims]


def test_axes_follow_the_coordinates(scan):
    data = dask_tiled.to_xarray(scan).rename(scan_y="slow")
    data = data.assign_coords(x=("x", np.arange(12) * 2.0 - 1, {"units": "mrad"}))
    data = data.assign_coords(y=("y", np.arange(16) ** 2, {"units": "mrad"}))
    held = as_array(data)
    assert isinstance(held, TiledArray)
    assert held.axes == (
        Axis("slow", "nm", 0.5),
        Axis("scan_x", "nm", 0.25),
        Axis("y", coordinates=tuple(float(k * k) for k in range(16)), coordinate_units="mrad"),
        Axis("x", "mrad", 2.0, -1.0),
    )
    assert as_array(data.drop_vars("x")).axes[3] == Axis("x")


def test_string_coordinates_become_labels(arr):
    planes = xarray.DataArray(arr[:, 0, :2], dims=("a", "channel", "c"))
    planes = planes.assign_coords(channel=["red", "green"])
    assert as_array(planes).axes == (Axis("a"), Axis("channel", labels=("red", "green")), Axis("c"))


def test_computed_arrays_keep_their_axes_and_units(scan):
    total = dask_tiled.to_xarray(scan).sum(["y", "x"])
    total.attrs["units"] = "counts"
    shown = shown_of(as_array(total))
    assert shown.axes == (Axis("scan_y", "nm", 0.5), Axis("scan_x", "nm", 0.25))
    assert shown.units == "counts"
    assert len(shown.of) == 1


def test_other_pixels_in_xarray_are_accepted(tmp_path):
    pixels = np.arange(20.0).reshape(4, 5)
    data = xarray.DataArray(pixels, {"x": np.arange(5) * 0.1}, ("y", "x"), "picture")
    assert equal(as_array(data), pixels)
    assert shown_of(as_array(data)).axes[1] == Axis("x", "", pytest.approx(0.1))
    data.to_netcdf(tmp_path / "others.nc")
    with xarray.open_dataset(tmp_path / "others.nc") as others:
        assert equal(as_array(others), pixels)
    assert equal(as_array(pixels), pixels)


def test_data_sets_need_exactly_one_variable(arr):
    several = xarray.Dataset({"a": (("y", "x"), arr[0, 0]), "b": (("y", "x"), arr[0, 1])})
    with pytest.raises(DatasetError, match=r"'a', 'b'\. Pick one: dataset\['a'\]") as caught:
        opened(several)
    assert "several data variables" in caught.value.problem
    assert equal(opened(several["b"]), FRAMES[0, 1])
    with pytest.raises(DatasetError, match="without data variables"):
        opened(xarray.Dataset())


@pytest.mark.parametrize("data", [None, 3, object()], ids=lambda x: type(x).__name__)
def test_other_objects_raise(data):
    with pytest.raises(DatasetError, match="neither an array nor a path; expected") as caught:
        dask_tiled.to_zarr(data, "out.zarr")
    assert caught.value.found == type(data).__name__
    with pytest.raises(TilingError, match="not an array"):
        dask_tiled.tiles.center_of_mass(data)


def test_mappings_are_no_arrays():
    """They are exported if their values are arrays; trees of xarray are not."""
    with pytest.raises(DatasetError, match=r"the array 'a' cannot be stored; .*found int"):
        dask_tiled.to_zarr({"a": 1}, "out.zarr")
    with pytest.raises(DatasetError, match="a tree of Datasets cannot be exported"):
        dask_tiled.to_zarr(xarray.DataTree(), "out.zarr")
    for data in ({"a": 1}, xarray.DataTree()):
        with pytest.raises(TilingError, match="not an array"):
            dask_tiled.tiles.center_of_mass(data)


def test_paths_in_place_of_arrays_raise_with_a_hint():
    with pytest.raises(TilingError, match=r"found str\. Open it with open_dataset"):
        dask_tiled.tiles.center_of_mass("scan.mib")


@pytest.mark.thorough
def test_every_function_accepts_xarray_objects(scan, arr, tmp_path):
    data = dask_tiled.to_xarray(scan)
    masks, tiles = np.ones((16, 12)), dask_tiled.tiles
    for one in (data, FRAMES):
        assert equal(tiles.apply_masks(one, masks), tiles.apply_masks(arr, masks))
    assert equal(tiles.center_of_mass(data), tiles.center_of_mass(arr))
    doubled = dask_tiled.map_tiles(lambda tile, _: tile * 2, data)
    assert equal(doubled, FRAMES * 2)
    total = dask_tiled.reduce_tiles(
        data, init=np.int64(0), step=lambda state, tile, _: state + tile.sum(), combine=np.add
    )
    assert total.compute() == FRAMES.sum()
    assert dask_tiled.scheme_of(data) == arr.scheme
    assert dask_tiled.scheme_of(engine(scan)) == arr.scheme
    assert [block.where for block in dask_tiled.iter_blocks(data)] == [
        block.where for block in dask_tiled.iter_blocks(arr)
    ]
    (batch, *_) = dask_tiled.iter_batches(data.to_dataset(), 2)
    assert equal(batch["data"], FRAMES[0, :2])
    dask_tiled.to_beton(tmp_path / "a.beton", data[0].to_dataset())
    assert equal(dask_tiled.open_dataset(tmp_path / "a.beton"), FRAMES[0])
    assert equal(dask_tiled.as_zarr(engine(scan))[:], FRAMES)
    assert dask_tiled.to_references(data) == dask_tiled.to_references(arr)
    dask_tiled.to_zarr(data, tmp_path / "a.zarr")
    dask_tiled.verify_zarr(tmp_path / "a.zarr", engine(scan, chunks={}))
    dask_tiled.verify_zarr(tmp_path / "a.zarr", scan)


@pytest.mark.thorough
def test_calibration_in_xarray_is_exported(scan, tmp_path):
    data = dask_tiled.to_xarray(scan).rename(scan_y="slow")
    data = data.assign_coords(scan_x=("scan_x", np.arange(8) * 3.0, {"units": "mm"}))
    stored = dask_tiled.to_zarr(data, tmp_path / "a.zarr")
    assert stored.metadata.dimension_names == ("slow", "scan_x", "y", "x")
    opened = xarray.open_zarr(tmp_path / "a.zarr")["data"]
    assert opened["scan_x"].values.tolist() == (np.arange(8) * 3.0).tolist()
    assert "sample" not in opened.attrs
    marked = data.assign_attrs(sample="Au")
    dask_tiled.to_zarr(marked, tmp_path / "b.zarr", attributes={"run": 3})
    attributes = xarray.open_zarr(tmp_path / "b.zarr")["data"].attrs
    assert (attributes["sample"], attributes["run"]) == ("Au", 3)
    assert "source" not in attributes  # the package's own attribute holds it
    axis = dask_tiled.to_hyperspy(data).axes_manager["scan_x"]
    assert (axis.scale, axis.units) == (3.0, "mm")
    figure = dask_tiled.show(data.sum(["y", "x"]))
    assert "mm" in figure.axes[0].get_xlabel()
    again = dask_tiled.to_xarray(data)
    assert again.identical(data)
    assert isinstance(again.data, TiledArray)
    lazy = dask_tiled.to_xarray(engine(scan)["data"].assign_attrs(sample="Au"))
    assert isinstance(lazy.data, TiledArray)
    assert lazy.attrs["sample"] == "Au"


def test_frame_facts_of_xarray_objects(tmp_path):
    from dask_tiled.testing import write_mib

    path = write_mib(tmp_path / "scan.mib", FRAMES[..., :8, :8])
    facts = dask_tiled.frame_facts(dask_tiled.open_dataset(path))
    for data in (path, engine(path), engine(path, chunks={}), dask_tiled.to_xarray(path)):
        assert equal(dask_tiled.frame_facts(data), facts)
