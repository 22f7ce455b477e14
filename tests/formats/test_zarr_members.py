"""Arrays in zarr groups whose documents do not list them."""

import os
import shutil

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from checks import refused
from range_server import serving

from dask_tiled import Axis, DatasetError, describe, open_dataset, open_datasets, to_zarr
from dask_tiled.formats.zarr import members
from dask_tiled.testing import counting_frames

FRAMES = counting_frames((2, 3, 4), "u2")


@pytest.mark.parametrize("version", [2, 3])
def test_the_only_array(tmp_path, version):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    group.create_array("counts", data=FRAMES)
    arr = open_dataset(tmp_path / "a.zarr")
    np.testing.assert_array_equal(arr.compute(), FRAMES)
    assert not arr.description.doubts


def test_single_numbers_are_no_arrays(tmp_path):
    zarr.create_group(tmp_path).create_array("n", shape=(), dtype="u2")
    with refused(tmp_path / "zarr.json", "no array of numbers; found n"):
        open_dataset(tmp_path)


def test_nested_groups_of_dask(tmp_path):
    """dask creates the inner groups without a document in some versions of zarr."""
    da.from_array(FRAMES).to_zarr(tmp_path / "d.zarr", component="a/b")
    (tmp_path / "d.zarr" / "a" / "zarr.json").unlink(missing_ok=True)
    np.testing.assert_array_equal(open_dataset(tmp_path / "d.zarr").compute(), FRAMES)
    np.testing.assert_array_equal(open_dataset(tmp_path / "d.zarr", dataset="a/b"), FRAMES)


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("version", [2, 3])
def test_coordinates_are_not_chosen(tmp_path, version):
    """The largest array with two axes or more opens; texts are no candidates."""
    coords = {"t": ("t", [0.5, 1.0], {"units": "s"}), "run": ("t", ["first", "second"])}
    texts = ("a", "b"), np.full((9, 9), "x")
    arrays = {"x": (("t", "y", "x"), FRAMES), "long": ("n", np.arange(1000)), "texts": texts}
    data = xr.Dataset(arrays, coords)
    data.to_zarr(tmp_path / "a.zarr", consolidated=False, zarr_format=version)
    arr = open_dataset(tmp_path / "a.zarr")
    np.testing.assert_array_equal(arr.compute(), FRAMES)
    assert arr.axes[0] == Axis("t", "s", 0.5, 0.5)


def test_several_arrays_are_a_doubt(tmp_path):
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("b/first", data=FRAMES)
    group.create_array("b/second", data=FRAMES)
    group.create_array("small", data=FRAMES[:1, :1, :2])
    desc = describe(tmp_path / "a.zarr")
    (doubt,) = desc.doubts
    assert doubt.code == "default-dataset"
    assert "2 arrays may be meant; b/first is shown" in doubt.text
    assert "b/second" in doubt.text
    assert not describe(tmp_path / "a.zarr", dataset="b/first").doubts
    assert {*open_datasets(tmp_path / "a.zarr")} == {"b_first", "b_second", "small"}
    with refused(
        tmp_path / "a.zarr" / "zarr.json", "no such array; expected small, b/first, b/sec"
    ):
        open_dataset(tmp_path / "a.zarr", dataset="none")


@pytest.mark.parametrize("layout", ["array", "group"])
def test_arrays_exported_together(tmp_path, layout):
    arrays = {"a": FRAMES, "b": FRAMES[0]}
    to_zarr(
        {name: da.from_array(one) for name, one in arrays.items()},
        tmp_path / "a.zarr",
        layout=layout,
        progress=False,
    )
    listed = describe(tmp_path / "a.zarr").metadata["zarr"]["datasets"]
    assert listed == {name: {"name": name, "shape": one.shape} for name, one in arrays.items()}
    for name, expected in arrays.items():
        np.testing.assert_array_equal(open_dataset(tmp_path / "a.zarr", dataset=name), expected)


def test_errors_name_20_arrays(tmp_path):
    zarr.create_group(tmp_path).create_array("00", data=FRAMES)
    for k in range(1, 20):
        shutil.copytree(tmp_path / "00", tmp_path / f"{k:02}")
    for more in ("", ", ..."):
        with refused(tmp_path / "zarr.json", f"expected 00, .*, 18, 19{more}; found none"):
            open_dataset(tmp_path, dataset="none")
        shutil.copytree(tmp_path / "00", tmp_path / "20", dirs_exist_ok=True)


def test_data_beside_others_is_in_doubt_unless_an_export_has_it(tmp_path):
    group = zarr.create_group(tmp_path / "a.zarr")
    for name in ("data", "raw"):
        group.create_array(name, data=FRAMES)
    group.create_array("small", data=FRAMES[:1, :1, :2])
    (doubt,) = describe(tmp_path / "a.zarr").doubts
    assert doubt.text == "2 arrays may be meant; data is shown, by its name; the others: raw"
    assert not describe(tmp_path / "a.zarr", dataset="data").doubts
    arr = open_dataset(tmp_path / "a.zarr", dataset="raw")
    to_zarr(arr, tmp_path / "b.zarr", with_results={"more": arr + 1})
    desc = describe(tmp_path / "b.zarr")
    assert not desc.doubts
    assert [*desc.metadata["zarr"]["datasets"]] == ["data", "more"]
    to_zarr(arr, tmp_path / "a.zarr/data", layout="array", overwrite=True)
    assert not describe(tmp_path / "a.zarr").doubts


@pytest.mark.parametrize("version", [2, 3])
def test_servers_list_members(tmp_path, version):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=version)
    group.create_array("in/counts", data=FRAMES)
    group.create_array("mean", data=FRAMES[0])
    with serving(tmp_path) as server:
        url = server.url(tmp_path / "a.zarr")
        np.testing.assert_array_equal(open_dataset(url).compute(), FRAMES)
        with pytest.raises(DatasetError, match="no such array; expected mean, in/counts"):
            open_dataset(url, dataset="none")
        server.lists = False
        with pytest.raises(DatasetError, match="the server does not list the group"):
            open_dataset(url)


@pytest.mark.thorough
def test_groups_in_circles_and_of_many_folders(tmp_path):
    """The search ends."""
    zarr.create_group(tmp_path / "a.zarr").create_array("x/y", data=FRAMES)
    (tmp_path / "a.zarr" / "again").symlink_to(tmp_path / "a.zarr")
    assert open_dataset(tmp_path / "a.zarr", doubts="ignore").shape == FRAMES.shape
    zarr.create_group(tmp_path / "b.zarr")
    for k in range(6000):
        os.mkdir(tmp_path / "b.zarr" / f"{k:04d}")
    with refused(tmp_path / "b.zarr" / "zarr.json", "no array of numbers"):
        open_dataset(tmp_path / "b.zarr")


def test_members_are_listed_once_without_their_status(tmp_path, monkeypatch):
    """A listing tells which members are folders; it takes no request for each of them."""
    zarr.create_group(tmp_path / "a.zarr")
    for k in range(30):
        (tmp_path / "a.zarr" / f"m{k}").mkdir()
    monkeypatch.setattr(members, "MOST_FOLDERS", 10)
    asked, listed, is_dir, scandir = [], [], os.path.isdir, os.scandir
    monkeypatch.setattr(os.path, "isdir", lambda path: asked.append(path) or is_dir(path))
    monkeypatch.setattr(os, "scandir", lambda path=".": listed.append(path) or scandir(path))
    with refused(tmp_path / "a.zarr" / "zarr.json", "no array of numbers"):
        open_dataset(tmp_path / "a.zarr")
    assert not [path for path in asked if os.path.basename(path).startswith("m")]
    names = [os.path.basename(path) for path in listed]
    assert names.count("a.zarr") == 1
    assert len(names) <= 11


def test_members_outside_are_skipped(tmp_path):
    zarr.create_group(tmp_path / "a.zarr")
    zarr.create_array(tmp_path / "other" / "b.zarr", data=FRAMES)
    (tmp_path / "a.zarr" / "b").symlink_to(tmp_path / "other" / "b.zarr")
    with pytest.raises(DatasetError, match="no array of numbers"):
        open_dataset(tmp_path / "a.zarr")
    np.testing.assert_array_equal(open_dataset(tmp_path / "a.zarr", outside_folder=True), FRAMES)


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("version", [2, 3])
def test_coordinates_behind_urls(tmp_path, version):
    """Straight ones are a scale, others coordinates; those in too many chunks are not read."""
    coords = {"t": ("t", [0.5, 1.0], {"units": "s"}), "y": ("y", [0.0, 1.0, 4.0], {"units": "nm"})}
    data = xr.Dataset({"x": (("t", "y", "E"), FRAMES)}, coords)
    data.to_zarr(tmp_path / "a.zarr", zarr_format=version, consolidated=version == 2)
    long = xr.Dataset({"x": (("t",), np.zeros(101))}, {"t": np.arange(101.0) / 2})
    options = {"zarr_format": 3, "consolidated": False}
    long.to_zarr(tmp_path / "b.zarr", **options, encoding={"t": {"chunks": (1,)}})
    with serving(tmp_path) as server:
        desc = describe(server.url(tmp_path / "a.zarr"), dataset="x")
        assert desc.axes[0] == Axis("t", "s", 0.5, 0.5)
        assert desc.axes[1] == Axis("y", coordinates=(0.0, 1.0, 4.0), coordinate_units="nm")
        assert desc.axes == describe(tmp_path / "a.zarr", dataset="x").axes
        refused = describe(server.url(tmp_path / "b.zarr"), dataset="x")
        assert refused.metadata["zarr"]["unread_coordinates"] == ("t",)
        assert describe(tmp_path / "b.zarr", dataset="x").axes[0].scale == 0.5
