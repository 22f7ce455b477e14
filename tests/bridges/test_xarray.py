"""The xarray engine and `to_xarray`: pixels, coordinates and attributes of files."""

import io
import json
import os
import pickle
from importlib.metadata import entry_points

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from checks import on_tiles
from dask.array.core import getter
from dask.blockwise import Blockwise
from formats_table import ONE_OF_EACH, TABLE
from hypothesis import given
from hypothesis import strategies as st
from manifest import by_file, manifest
from ome_writer import document, image, tiff_data, write_pages

import dask_tiled
from dask_tiled import (
    Axis,
    DatasetError,
    Doubt,
    TiledArray,
    TilingRequest,
    describe,
    open_dataset,
    to_beton,
    to_xarray,
    to_zarr,
)
from dask_tiled.bridges.xarray_engine import Engine
from dask_tiled.export.zarr.group import Dimensions
from dask_tiled.formats.lif import descriptor as lif
from dask_tiled.graphs.wrapped import unwrapped
from dask_tiled.plans.tasks import pixels_of
from dask_tiled.testing import counting_frames, write_dm, write_lif, write_mib, write_npy, write_raw

FRAMES = counting_frames((5, 7, 8, 16), "uint16")
DIMS = "scan_y", "scan_x", "y", "x"
AXES = [(1.0, 0.5, "nm"), (2.0, 0.5, "nm"), (4.0, 0.25, "1/nm"), (0.0, 0.0, "1/nm")]


def in_xarray(path, **options):
    return xr.open_dataset(path, engine="dask_tiled", **options)


@pytest.fixture
def path(tmp_path):
    return write_mib(tmp_path / "scan.mib", FRAMES)


@pytest.fixture
def calibrated(tmp_path):
    path = tmp_path / "scan.dm4"
    write_dm(path, FRAMES, calibrations=AXES, tags={"Microscope Info": {"Voltage": 2e5}})
    return path


def test_xarray_knows_the_engine():
    (entry,) = entry_points(group="xarray.backends", name="dask_tiled")
    assert entry.load() is Engine
    assert "dask_tiled" in xr.backends.list_engines()


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_format(name, sample_of):
    """The engine, with and without dask, and `to_xarray` return the same pixels."""
    options = sample_of(name).options
    arr = open_dataset(**options)
    expected = arr.compute()
    path, given = options["path"], {k: x for k, x in options.items() if k != "path"}
    alone = {"field": 0} if name == "beton" else {}
    lazy, eager = (in_xarray(path, chunks=x, **alone, **given) for x in ({}, None))
    labelled = to_xarray(path, **given)
    for found in (lazy["data"], eager["data"], labelled):
        assert found.dims == arr.description.dims
        assert found.dtype == arr.dtype
        np.testing.assert_array_equal(found.to_numpy(), expected)
    assert lazy["data"].chunks == labelled.chunks == arr.chunks


class Uneven(Engine):
    """Engine whose files prefer uneven chunks."""

    CHUNKS = (1, 4), (7,), (3, 5), (16,)

    def open_dataset(self, *args, **options):
        return super().open_dataset(*args, chunks=self.CHUNKS, **options)


@pytest.mark.thorough
def test_default_chunks_are_negotiated(path):
    """chunks={} keeps negotiated and uneven chunks; xarray warns if other chunks split them."""
    with dask.config.set({"array.chunk-size": FRAMES[:2].nbytes}):
        for tiling in (None, TilingRequest("pixel")):
            found = in_xarray(path, chunks={}, tiling=tiling)["data"]
            assert found.chunks == open_dataset(path, tiling=tiling).chunks
    for chunks in ({}, "auto", -1):
        found = xr.open_dataset(path, engine=Uneven, chunks=chunks)["data"]
        assert found.chunks == Uneven.CHUNKS or chunks != {}
        np.testing.assert_array_equal(found, FRAMES)
    with pytest.warns(UserWarning, match="separate the stored chunks"):
        xr.open_dataset(path, engine=Uneven, chunks={"y": 2})


def indexers(n):
    """Return a strategy for xarray indexers of an axis of length n."""
    numbers = st.integers(-n, n - 1)
    ends = st.none() | st.integers(-n - 1, n + 1)
    steps = st.none() | st.sampled_from([1, 2, 3, -1, -2])
    lists = st.lists(numbers, max_size=6).map(lambda x: np.array(x, int))
    masks = st.lists(st.booleans(), min_size=n, max_size=n).map(np.array)
    # xarray itself fails on empty slices with a negative step.
    slices = st.builds(slice, ends, ends, steps).filter(lambda x: range(n)[x] or (x.step or 1) > 0)
    return numbers | slices | lists | masks


@pytest.mark.thorough
@given(data=st.data())
def test_any_part_without_dask(tmp_path_factory, data):
    """Basic, outer and pointwise indexing agree with NumPy, and results are writeable."""
    path = write_raw(tmp_path_factory.mktemp("scan") / "scan.raw", FRAMES, frame_header=3)
    told = {"format": "raw", "dtype": "u2", "sig_shape": (8, 16), "frame_header": 3}
    chunks = data.draw(st.sampled_from([None, (2, 3, 8, 16), (5, 2, 3, 16)]))
    found = Engine().open_dataset(path, nav_shape=(5, 7), chunks=chunks, **told)["data"]
    expected = xr.DataArray(FRAMES, dims=DIMS)
    for _ in range(data.draw(st.integers(1, 2))):
        axes = [one for one in expected.dims if one != "p" and expected.sizes[one]]
        chosen = data.draw(st.sets(st.sampled_from(axes))) if axes else set()
        index = {one: data.draw(indexers(expected.sizes[one])) for one in sorted(chosen)}
        pair = sorted(set(axes) - chosen)[:2]
        if len(pair) == 2 and "p" not in expected.dims and data.draw(st.booleans()):
            count = data.draw(st.integers(1, 5))
            for one in pair:
                places = st.integers(0, expected.sizes[one] - 1)
                listed = data.draw(st.lists(places, min_size=count, max_size=count))
                index[one] = xr.DataArray(listed, dims="p")
        found, expected = found.isel(index), expected.isel(index)
    xr.testing.assert_equal(found.drop_attrs(), expected)
    assert found.to_numpy().flags.writeable or not found.ndim


def test_reading_is_lazy(path, loads):
    found = in_xarray(path, io="counting")["data"]
    part = found.isel(y=2, x=3)
    assert not loads
    np.testing.assert_array_equal(part, FRAMES[..., 2, 3])
    assert loads.nbytes == 35 * 2
    lazy = in_xarray(path, chunks={}, io="counting", tiling=TilingRequest("frame", depth=5))
    loads.clear()
    np.testing.assert_array_equal(lazy["data"].compute(), FRAMES)
    assert loads.nbytes == FRAMES.nbytes


def test_loaded_pixels_are_copies(tmp_path):
    """Writing to a loaded variable never changes the file."""
    path = write_npy(tmp_path / "x.npy", FRAMES)
    found = in_xarray(path)
    found["data"][0, 0] = 7
    found["data"].to_numpy()[1] = 9
    assert (found["data"][0, 0] == 7).all()
    np.testing.assert_array_equal(np.load(path), FRAMES)


def test_names_units_and_facts(calibrated, tmp_path):
    """The engine and `to_xarray` return the same coordinates and attributes; netCDF keeps both."""
    arr = open_dataset(calibrated)
    for found in (in_xarray(calibrated, chunks={})["data"], to_xarray(calibrated), to_xarray(arr)):
        assert found.name == "data"
        assert found.dims == DIMS
        assert set(found.coords) == {"scan_y", "scan_x", "y"}  # the file's scale of x is 0
        for axis, size in zip(arr.description.axes[:3], arr.shape, strict=False):
            numbers = axis.offset + axis.scale * np.arange(size)
            np.testing.assert_array_equal(found[axis.name], numbers)
            assert found[axis.name].attrs == {"units": axis.units}
        assert found.attrs["format"] == "dm"
        assert found.attrs["source"] == "scan.dm4"
        assert found.attrs["dm.transposed_from"] == "the tag Data Order Swapped"
        assert (found.attrs["beam_energy"], found.attrs["beam_energy_units"]) == (2e5, "V")
        assert str(tmp_path) not in json.dumps(found.attrs)
    found.to_netcdf(tmp_path / "out.nc", engine="h5netcdf")
    again = xr.open_dataset(tmp_path / "out.nc", engine="h5netcdf")["data"]
    np.testing.assert_array_equal(again, FRAMES)
    xr.testing.assert_equal(again["y"], found["y"])
    assert again.attrs["dm.name"] == found.attrs["dm.name"]


def test_attributes_fit_netcdf(path):
    """Attributes are numbers, lists of numbers or text; empty values are left out."""
    desc = open_dataset(path).description.with_facts(
        yes=True, none=None, empty=(), nan=np.nan, huge=1 << 80, ends=(2, 3), mixed=("µ", (1, 2)),
        deep={"/entry/x@units": "nm", "data": np.float32(0.5)},
    ).with_doubts(Doubt("scan-shape", "the file has 20 frames", "pass nav_shape"))  # fmt: skip
    attrs = to_xarray(dask_tiled.opening.arrays.tiled(desc, None, None, "auto")).attrs
    told = {key.removeprefix("mib."): value for key, value in attrs.items()}
    expected = {
        "yes": 1, "nan": "nan", "huge": str(1 << 80), "ends": [2, 3], "mixed": '["µ", [1, 2]]',
        "deep.entry.x@units": "nm", "deep.data": 0.5,
    }  # fmt: skip
    assert {key: told[key] for key in expected} == expected
    assert not {"none", "empty"} & told.keys()
    assert attrs["doubts"] == ["the file has 20 frames: pass nav_shape"]


def test_arrays_stay_on_tiles(calibrated):
    """Indexing and reductions through xarray run on tiles."""
    found = to_xarray(calibrated)
    assert type(found.data) is TiledArray
    part = found.isel(scan_y=slice(1, 4), x=3).sel(y=slice(*found["y"][[1, 4]].values))
    assert type(part.data) is TiledArray
    np.testing.assert_array_equal(part, FRAMES[1:4, :, 1:5, 3])
    expected = xr.DataArray(FRAMES, found.coords, DIMS)
    for compute in (
        lambda x: x.sum("x"),
        lambda x: x.sum(["y", "x"]),
        lambda x: x.mean(["scan_y", "scan_x"]),
        lambda x: x.max("scan_y"),
        lambda x: x.isel(scan_x=2).std(["y", "x"]),
        lambda x: (x.astype("f4") - 3).mean(["y", "x"]),
    ):
        result = compute(found)
        assert on_tiles(result.data)
        xr.testing.assert_allclose(result.compute().drop_attrs(), compute(expected))


def test_chunked_variables_are_reduced_on_tiles(calibrated):
    """Reductions of variables that xarray wraps run on tiles; indexed variables stay correct."""
    engine = {"engine": "dask_tiled", "chunks": {}}
    for more in ({}, {"inline_array": True}, {"cache": True}):
        found = xr.open_dataset(calibrated, **engine, **more)["data"]
        total = (found.sum(["y", "x"]) + found.astype("f4").mean()).data
        functions = [
            getattr(layer.task, "func", None)
            for layer in unwrapped(total.dask).layers.values()
            if isinstance(layer, Blockwise)
        ]
        assert pixels_of in functions
        assert getter not in functions
        expected = FRAMES.sum(axis=(2, 3)) + FRAMES.mean()
        np.testing.assert_allclose(total.compute(), expected, rtol=1e-6)
        np.testing.assert_array_equal(found.compute(), FRAMES)
    eager = xr.open_dataset(calibrated, engine="dask_tiled")
    for index in ({"x": [3, 1]}, {"scan_y": slice(1, 4)}, {"y": 2}):
        part = eager["data"].isel(index).chunk(scan_x=2)
        np.testing.assert_array_equal(part.sum("scan_x"), eager["data"].isel(index).sum("scan_x"))
    eager["data"][0] = 5
    np.testing.assert_array_equal(eager["data"].chunk()[0], np.full((7, 8, 16), 5))


def test_computed_arrays_keep_their_axes(calibrated):
    arr = open_dataset(calibrated)
    found = to_xarray(np.sqrt(arr[1:]).sum(axis=(2, 3)))
    assert found.dims == ("scan_y", "scan_x")
    np.testing.assert_array_equal(found["scan_y"], to_xarray(arr)["scan_y"][1:])
    assert found.attrs["source"] == "scan.dm4"
    plain = to_xarray(da.zeros((2, 3), chunks=1))
    assert (plain.dims, plain.attrs) == (("dim_0", "dim_1"), {})
    pairs = to_xarray(da.einsum("abij,abkj->abik", arr, arr))
    assert pairs.dims == (*DIMS[:2], "y_2", "y_3")
    with pytest.raises(DatasetError, match="is already open; expected no options; found io"):
        to_xarray(arr, io="mmap")


@pytest.mark.thorough
def test_datasets_are_variables(tmp_path):
    """Equal axes are one dimension; others have the name of their first variable."""
    a, b = counting_frames((4, 6, 7), "u2"), counting_frames((4, 6, 7), "f4")
    c, x = counting_frames((4, 3, 7), "u1"), counting_frames((2, 5), "i4")
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        for name, pixels in {"a": a, "g/b": b, "g/c": c, "h/x": x, "h/c": c + 1}.items():
            file[name] = pixels
        file["row"] = file["h/row"] = file["line"] = np.arange(9.0)
    for chunks in ({}, None):
        found = in_xarray(tmp_path / "scan.h5", chunks=chunks)
        assert {name: one.dims for name, one in found.items()} == {
            "a": ("frame", "y", "a_x"),
            "b": ("frame", "y", "a_x"),
            "g_c": ("frame", "g_c_y", "a_x"),
            "h_c": ("frame", "g_c_y", "a_x"),
            "x": ("x_y", "x_x"),
        }
        for name, pixels in {"a": a, "b": b, "g_c": c, "h_c": c + 1, "x": x}.items():
            np.testing.assert_array_equal(found[name], pixels)
    some = in_xarray(tmp_path / "scan.h5", drop_variables=["a", "x", "h_c"])
    assert set(some) == {"b", "g_c"}
    assert not in_xarray(tmp_path / "scan.h5", drop_variables=set(found))
    (one,) = in_xarray(tmp_path / "scan.h5", dataset="h/x").values()
    assert one.name == "data"
    np.testing.assert_array_equal(one, x)


def test_variables_of_fields_and_images(tmp_path):
    frames = counting_frames((3, 5, 7), "u2")
    beton = tmp_path / "samples.beton"
    to_beton(beton, {"x": frames, "n": np.arange(3)}, page_size=1 << 21, progress=False)
    found = in_xarray(beton, chunks={})
    np.testing.assert_array_equal(found["n"], np.arange(3))
    assert found["x"].dims == ("sample", "y", "x_x")
    np.testing.assert_array_equal(found["x"], frames)
    path = tmp_path / "two.ome.tif"
    sizes = {"T": 1, "C": 1, "Z": 1, "Y": 5, "X": 7}
    images = [image(sizes, tiff_data(k, 1), number=k, PhysicalSizeX=k + 1) for k in range(2)]
    write_pages(path, frames[:2], document("".join(images)))
    found = in_xarray(path)
    assert {name: one.dims for name, one in found.items()} == {
        "img_0": ("y", "x"),
        "img_1": ("y", "img_1_x"),
    }
    for k, one in enumerate(found.values()):
        np.testing.assert_array_equal(one, frames[k])
        np.testing.assert_array_equal(one[one.dims[1]], (k + 1) * np.arange(7))


def test_unreadable_datasets_are_skipped(tmp_path):
    """A warning names the skipped dataset."""
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["good"] = FRAMES
        link = h5py.VirtualLayout((2, 3), "u2")
        link[:] = h5py.VirtualSource("other.h5", "d", (2, 3))
        file.create_virtual_dataset("bad", link)
    with pytest.warns(UserWarning, match="'bad' is skipped: .*is missing"):
        found = in_xarray(tmp_path / "scan.h5")
    np.testing.assert_array_equal(found["good"], FRAMES)
    assert list(found) == ["good"]


def test_options_reach_the_file(path):
    """Options of open_dataset and of formats apply; unknown ones are refused."""
    found = in_xarray(path, nav_shape=(2, 3), sync_offset=1, dtype="f4", missing="raise")["data"]
    np.testing.assert_array_equal(found, FRAMES.reshape(35, 8, 16)[1:7].reshape(2, 3, 8, 16))
    assert found.dtype == "f4"
    assert in_xarray(path, drop_variables="data").sizes == {}
    with pytest.raises(DatasetError, match="no option 'nav_shap'"):
        in_xarray(path, nav_shap=(2, 3))
    with pytest.raises(FileNotFoundError):
        in_xarray(path.with_name("none.mib"))


def test_exports_keep_chunks(calibrated, tmp_path):
    """xarray writes the negotiated chunks, and its stores open with the same axes."""
    with dask.config.set({"array.chunk-size": FRAMES[:2].nbytes}):
        found = in_xarray(calibrated, chunks={})
    chunks = found["data"].encoding["preferred_chunks"]
    assert len(found["data"].chunks[0]) > 1
    found.to_zarr(tmp_path / "out.zarr", consolidated=False)
    stored = zarr.open_array(tmp_path / "out.zarr", path="data", mode="r")
    assert stored.chunks == tuple(chunks.values())
    np.testing.assert_array_equal(stored[:], FRAMES)
    again = in_xarray(tmp_path / "out.zarr", dataset="data")["data"]
    for name in DIMS[:3]:
        xr.testing.assert_allclose(again[name], found[name])
        assert again[name].attrs == found[name].attrs


def test_the_list_of_images_is_read_once(tmp_path, monkeypatch):
    """And once more for the first image, however many there are."""
    read, calls = lif.read_file, []
    monkeypatch.setattr(lif, "read_file", lambda file: calls.append(file) or read(file))
    images = {f"image {k}": FRAMES[0, 0] + np.uint16(k) for k in range(7)}
    write_lif(tmp_path / "a.lif", images, "yx")
    found = in_xarray(tmp_path / "a.lif")
    assert len(calls) == 2
    for name, pixels in images.items():
        np.testing.assert_array_equal(found[name], pixels)


@pytest.mark.thorough
@pytest.mark.parametrize("chunks", [None, {}])
def test_trees_of_pyramids(tmp_path, chunks):
    """Images are nodes; their levels, whose dimensions are shorter, are nodes beside them."""
    images = {"a": counting_frames((64, 48), "u2"), "b/c": counting_frames((32, 64), "u2")}
    options = {"pyramid": 2, "pyramid_method": "nearest", "progress": False}
    to_zarr(images, tmp_path / "out.zarr", **options)
    tree = xr.open_datatree(tmp_path / "out.zarr", engine="dask_tiled", chunks=chunks)
    levels = {
        f"{node}_level_{k}" if k else node: images[name][:: 1 << k, :: 1 << k]
        for node, name in {"a": "a", "b_c": "b/c"}.items()
        for k in range(3)
    }
    assert {*tree.children} == {*levels}
    for node, pixels in levels.items():
        found = tree[node]["data"]
        np.testing.assert_array_equal(found, pixels)
        assert (found.chunks is None) == (chunks is None)
    groups = xr.open_groups(tmp_path / "out.zarr", engine="dask_tiled")
    assert {name.strip("/") for name, one in groups.items() if one} == {*levels}
    alone = xr.open_datatree(tmp_path / "out.zarr", engine="dask_tiled", dataset="a/level_1")
    np.testing.assert_array_equal(alone["data"]["data"], levels["a_level_1"])


@pytest.mark.thorough
def test_levels_and_images_of_equal_names(tmp_path):
    """An image keeps its name; a level that would have it, too, gets a number."""
    names = ["a", "A_LEVEL_2", "a_level_1", "a_level_1_2"]
    images = {name: counting_frames((32, 24), "u2") + k for k, name in enumerate(names)}
    options = {"pyramid": 2, "pyramid_method": "nearest", "progress": False}
    to_zarr(images, tmp_path / "out.zarr", **options)
    groups = xr.open_groups(tmp_path / "out.zarr", engine="dask_tiled")
    found = {name.strip("/"): one["data"].values for name, one in groups.items() if one}
    for name in names:
        np.testing.assert_array_equal(found[name], images[name])
    half = images["a"][::2, ::2]
    np.testing.assert_array_equal(found["a_level_1_3"], half)
    assert len({name.lower() for name in found}) == 12
    expected = [one[:: 1 << k, :: 1 << k] for one in images.values() for k in range(3)]
    as_bytes = sorted(one.tobytes() for one in expected)
    assert sorted(one.tobytes() for one in found.values()) == as_bytes


def test_trees_of_other_files(tmp_path, calibrated):
    """A node for each image; a single one is called data, as in a data set."""
    with h5py.File(tmp_path / "maps.h5", "w") as file:
        file["sum"], file["mean"] = FRAMES[0, 0], FRAMES[0, :, 0]
    tree = xr.open_datatree(tmp_path / "maps.h5", engine="dask_tiled", drop_variables="mean")
    assert [*tree.children] == ["sum"]
    np.testing.assert_array_equal(tree["sum"]["data"], FRAMES[0, 0])
    single = xr.open_datatree(calibrated, engine="dask_tiled")
    xr.testing.assert_identical(single["data"].to_dataset(), in_xarray(calibrated))


def test_pickling(path):
    eager, lazy = in_xarray(path), in_xarray(path, chunks={})
    for found in (eager, lazy, to_xarray(path)):
        copy = pickle.loads(pickle.dumps(found))
        xr.testing.assert_identical(copy.compute(), found.compute())


def test_guessing(path, tmp_path, monkeypatch):
    """guess_can_open accepts no file of xarray's other engines, and never raises."""
    guess = Engine().guess_can_open
    assert guess(path)
    assert guess(str(path))
    np.testing.assert_array_equal(xr.open_dataset(path)["data"], FRAMES)
    (tmp_path / "fake.mib").write_bytes(b"nothing like it")
    (tmp_path / "scan.nc").write_bytes(path.read_bytes())
    os.mkfifo(tmp_path / "pipe.mib")
    for other in (
        "fake.mib", "scan.nc", "pipe.mib", "none.mib", "", tmp_path, "https://host/scan.mib",
        None, 3, b"scan.mib", [path], io.BytesIO(FRAMES.tobytes()), "\0.mib",
    ):  # fmt: skip
        one = tmp_path / other if isinstance(other, str) and "/" not in other else other
        assert guess(one) is False
    monkeypatch.setattr("dask_tiled.bridges.xarray_engine.recognised_by", lambda *_: 1 / 0)
    assert guess(path) is False


@pytest.mark.parametrize("name", ["hdf5", "zarr", "tiff", "ome tiff"])
def test_other_engines_keep_their_formats(name, tmp_path):
    known = [one for one in TABLE if one.startswith(name.replace(" ", "_"))]
    assert known
    for one in known:
        sample = TABLE[one](tmp_path, f"s{known.index(one)}")
        assert not Engine().guess_can_open(sample.options["path"])


EMD = [row for row in manifest("HDF5", "more/") if row["file"].endswith(".emd")]


@by_file(EMD[::2], "row")
def test_real_files(data, row):
    """The first variable of an EMD file equals the array that `open_dataset` returns."""
    path = data / row["file"]
    found = in_xarray(path, chunks={})
    first = found[next(iter(found))]
    arr = open_dataset(path)
    assert first.dims == to_xarray(arr).dims
    np.testing.assert_array_equal(first, arr.compute())


@pytest.mark.thorough
def test_element_maps_share_dimensions(data):
    """Maps of elements of Velox divide pixel by pixel, as the arrays of h5py do."""
    path = data / "more/hdf5/Test_SI_16x16_215_kx.emd"
    found = in_xarray(path, chunks={})
    assert {found[name].dims for name in ("C", "Ca", "O", "Cu")} == {("C_y", "C_x")}
    assert found["HAADF"].dims == ("frame", "y", "x")
    sizes = {"scan_y": 16, "scan_x": 16, "Energy": 4096, "frame": 2, "y": 16, "x": 16}
    assert dict(found.sizes) == sizes | {"C_y": 16, "C_x": 16}
    places = [describe(path, dataset=name).metadata["hdf5"]["dataset"] for name in "CO"]
    with h5py.File(path) as file:
        carbon, oxygen = (file[place][..., 0] for place in places)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found["C"] / (found["O"] + 1), carbon / (oxygen + 1))


def test_names_of_dimensions_stay_unique():
    """No dimension has the name of another axis, of a variable, or twice in one array."""
    near, far = Axis("y", "nm", 1.0), Axis("y", "nm", 2.0)
    dimensions = Dimensions({"map", "a_y"})
    assert [x.name for x in dimensions.of("map", (near, near), (4, 4))] == ["y", "map_y"]
    assert [x.name for x in dimensions.of("b", (near, near), (4, 4))] == ["y", "map_y"]
    assert [x.name for x in dimensions.of("a", (far, Axis("map")), (4, 4))] == ["a_y_2", "a_map"]
    assert [x.name for x in dimensions.of("c", (far, near), (4, 3))] == ["a_y_2", "c_y"]
    assert [x.name for x in dimensions.of("d", (None, Axis("c_y")), (4, 4))] == ["dim_0", "d_c_y"]
