"""Axes whose positions are not equally spaced keep them as coordinates, wherever they go."""

import json

import dask.array as da
import h5py
import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
import zarr
from rsciio.hspy import file_reader

import dask_tiled
from dask_tiled import Axis, describe, open_dataset
from dask_tiled.exploring.scene import Scene
from dask_tiled.model.axes import MOST_COORDINATES
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.inputs import as_array
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")
mpl.use("Agg")

FRAMES = counting_frames((5, 4, 6), "f4")
ENERGIES = np.arange(5.0) ** 2 + 1


def write_nexus(path, positions, *, units="eV", frames=FRAMES):
    """Write NXdata with positions along the first axis."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update({"NX_class": "NXdata", "signal": "frames", "axes": ["energy", "y", "x"]})
        data["frames"], data["energy"] = frames, positions
        data["energy"].attrs["units"] = units
    return path


@pytest.fixture
def uneven(tmp_path):
    return write_nexus(tmp_path / "uneven.nxs", ENERGIES)


LINES = {
    "float32 energies": np.linspace(8000, 8010, 2048).astype("f4"),
    "float16": np.linspace(0, 100, 200).astype("f2"),
    "three decimals": np.round(np.linspace(0, 1, 1000), 3),
    "two decimals": np.round(np.linspace(0, 7, 333), 2),
    "integers": np.round(np.arange(40) * 3.3).astype("i4"),
    "unsigned, descending": np.arange(200, 100, -10, dtype="u1"),
    "descending": np.linspace(5, 1, 9),
    "seconds since 1970": 1.7e9 + np.arange(40) * 0.5,
    "milliseconds": np.round(np.arange(50) * 0.0333, 3),
}
UNEVEN = {
    "squares": ENERGIES,
    "logarithmic": np.logspace(-3, 0, 50),
    "float32, logarithmic": np.logspace(-3, 0, 50).astype("f4"),
    "descending": np.logspace(0, -3, 9),
    "three": np.array([1.0, 2.0, 4.0]),
    "readings": np.arange(30) + 0.1 * np.sin(np.arange(30)),
    "constant": np.full(4, 2.0),
    "integers": np.array([400, 410, 420, 431]),
    "back and forth": np.array([0.0, 3.0, 1.0, 2.0]),
}


@pytest.mark.parametrize("name", LINES)
def test_rounded_lines_are_scales(name):
    """The line differs by half a step at most, and by no more than the positions are rounded."""
    points = LINES[name]
    axis = Axis.at("x", "eV", points)
    assert (axis.units, axis.coordinates) == ("eV", ())
    line = axis.offset + axis.scale * np.arange(len(points))
    off = abs(line - points.astype(float)).max()
    assert off <= 0.501 * abs(axis.scale)


@pytest.mark.parametrize("name", UNEVEN)
def test_other_positions_are_coordinates(name):
    """Without coordinates, an axis is in pixels, and has no unit."""
    points = UNEVEN[name]
    axis = Axis.at("x", "eV", points)
    assert axis.coordinates == tuple(points.astype(float).tolist())
    assert (axis.units, axis.scale, axis.offset, axis.coordinate_units) == ("", 1.0, 0.0, "eV")
    np.testing.assert_array_equal(axis.points(len(points)), points)


def test_parts_of_uneven_axes():
    axis = Axis.at("x", "eV", ENERGIES)
    assert axis.cut(1, 2).coordinates == (2.0, 10.0)
    assert axis.cut(3, -1, 2).coordinates == (10.0, 5.0)
    assert axis.cut(-1, 1) == Axis("x")
    assert axis.binned(2).coordinates == (1.5, 7.5)
    assert str(axis) == "x (uneven steps from 1 to 17 eV)"


@pytest.mark.parametrize(
    ("positions", "why"),
    [
        (np.array([1, np.nan, 3, 4, 5]), "are not numbers"),
        (np.array([1, 2, np.inf, 4, 5]), "are not numbers"),
        (np.array([1.0, 2, 4]), "there are 3 for 5 pixels"),
        (np.zeros((1 << 20) + 1, "u1"), "are too many to read"),
    ],
)
def test_positions_that_cannot_be_kept_are_a_doubt(tmp_path, positions, why):
    desc = describe(write_nexus(tmp_path / "a.nxs", positions))
    (doubt,) = desc.doubts
    assert doubt.code == "uneven-axis"
    assert why in doubt.text
    assert desc.axes[0] == Axis("energy")


def test_more_coordinates_than_descriptions_hold_are_a_doubt(tmp_path):
    frames = np.zeros((MOST_COORDINATES + 1, 1, 1), "u1")
    path = write_nexus(tmp_path / "a.nxs", np.sqrt(np.arange(len(frames))), frames=frames)
    assert [doubt.code for doubt in describe(path).doubts] == ["uneven-axis"]


def test_edges_of_uneven_pixels(tmp_path):
    """Positions of edges are one more than pixels: the middles are shown."""
    edges = np.array([0.0, 1, 3, 7, 15, 31])
    axis = describe(write_nexus(tmp_path / "a.nxs", edges)).axes[0]
    assert axis.coordinates == (0.5, 2.0, 5.0, 11.0, 23.0)


def test_xarray_and_back(uneven):
    data = dask_tiled.to_xarray(uneven)
    assert data.energy.values.tolist() == ENERGIES.tolist()
    assert data.energy.attrs["units"] == "eV"
    assert shown_of(as_array(data)).axes[0] == open_dataset(uneven).axes[0]
    moved = data.assign_coords(energy=("energy", ENERGIES * 2, {"units": "keV"}))
    axis = shown_of(as_array(moved)).axes[0]
    assert (axis.coordinates, axis.coordinate_units) == (tuple(ENERGIES * 2), "keV")


@pytest.mark.parametrize("layout", ["group", "array"])
def test_zarr_and_back(uneven, tmp_path, layout):
    arr = open_dataset(uneven)
    dask_tiled.to_zarr(arr, tmp_path / "a.zarr", layout=layout, progress=False)
    assert open_dataset(tmp_path / "a.zarr").axes == arr.axes
    if layout == "group":
        group = zarr.open_group(tmp_path / "a.zarr", mode="r")
        assert group["energy"][:].tolist() == ENERGIES.tolist()
        assert group["energy"].attrs["units"] == "eV"
        with xr.open_zarr(tmp_path / "a.zarr") as data:
            assert data.energy.values.tolist() == ENERGIES.tolist()


@pytest.mark.parametrize("suffix", [".hspy", ".zspy"])
def test_files_of_hyperspy_and_back(uneven, tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    dask_tiled.convert(open_dataset(uneven), path, progress=False)
    axis = open_dataset(path).axes[0]
    assert (axis.name, axis.coordinates) == ("energy", tuple(ENERGIES))
    assert axis.coordinate_units == "eV"
    if suffix == ".hspy":
        (found,) = file_reader(path)
        assert np.asarray(found["axes"][0]["axis"]).tolist() == ENERGIES.tolist()


def test_tiff_files_have_no_scale_for_uneven_axes(tmp_path):
    """They have no place for coordinates: the description has their range."""
    path = write_nexus(tmp_path / "a.nxs", ENERGIES, frames=FRAMES.astype("u2"))
    arr = open_dataset(path, axes={"y": "2 nm", "x": "2 nm"}).with_axes(energy=Axis("t"))
    uneven = arr.with_axes(t=Axis("t", coordinates=tuple(ENERGIES), coordinate_units="s"))
    dask_tiled.convert(uneven, tmp_path / "a.tif", progress=False)
    assert describe(tmp_path / "a.tif").axes[0] == Axis("t")
    with pytest.warns(UserWarning, match="the positions of t are not equally spaced"):
        dask_tiled.convert(uneven, tmp_path / "a.ome.tif", progress=False)
    assert describe(tmp_path / "a.ome.tif").axes[0] == Axis("t")
    assert b"t (uneven steps from 1 to 17 s)" in (tmp_path / "a.ome.tif").read_bytes()


def test_signals_of_hyperspy(uneven):
    axis = dask_tiled.to_hyperspy(uneven).axes_manager[0]
    assert axis.axis.tolist() == ENERGIES.tolist()
    assert axis.units == "eV"


def test_coordinates_that_hyperspy_cannot_order_are_pixels(tmp_path):
    path = write_nexus(tmp_path / "a.nxs", np.array([0.0, 3, 1, 2, 7]))
    axis = dask_tiled.to_hyperspy(path).axes_manager[0]
    assert axis.axis.tolist() == [0, 1, 2, 3, 4]


def test_pictures_show_coordinates(uneven):
    spectrum = open_dataset(uneven)[:, 1, 2]
    (line,) = dask_tiled.show(spectrum).axes[0].lines
    assert line.get_xdata().tolist() == ENERGIES.tolist()
    figure = dask_tiled.show(open_dataset(uneven)[:, :, 2])
    axes = figure.axes[0]
    assert axes.get_ylabel() == "energy (eV)"
    assert axes.yaxis.get_major_formatter()(4) == "17"


def test_pages_show_coordinates(uneven):
    told = Scene.of(open_dataset(uneven)).as_json()
    axis = told["axes"][0]
    assert (axis["coordinates"], axis["coordinate_units"]) == (ENERGIES.tolist(), "eV")
    assert (axis["scale"], axis["units"]) == (1.0, "")
    json.dumps(told)


def test_computed_arrays_keep_coordinates(uneven):
    arr = open_dataset(uneven)
    assert arr[1:4:2].axes[0].coordinates == (2.0, 10.0)
    for computed in (arr.sum(axis=(1, 2)), arr * 2 + 1):
        assert shown_of(computed).axes[0] == arr.axes[0]
    assert shown_of(da.concatenate([arr[:2], arr[2:]])).axes[0] == arr.axes[0]
    assert arr[::-1].axes[0].coordinates == tuple(ENERGIES[::-1])


def test_calibration_replaces_coordinates(uneven):
    arr = open_dataset(uneven)
    assert arr.with_axes(energy="0.5 eV").axes[0] == Axis("energy", "eV", 0.5)
    own = Axis("energy", coordinates=(1.0, 2.0, 4.0, 8.0, 9.0), coordinate_units="keV")
    changed = arr.with_axes(energy=own)
    assert changed.axes[0] == own
    changed.save_axes()
    assert open_dataset(uneven).axes[0] == own
    with pytest.raises(dask_tiled.DatasetError, match="wrong coordinates"):
        arr.with_axes(energy=Axis("energy", coordinates=(1.0, 2.0)))
    for wrong in ((1.0, np.nan, 3, 4, 5), [1.0] * 5, ("a",) * 5):
        with pytest.raises(dask_tiled.DatasetError, match="invalid calibration"):
            arr.with_axes(energy=Axis("energy", coordinates=wrong))


def test_expressions_of_hyperspy_are_a_doubt(tmp_path):
    with h5py.File(tmp_path / "a.hspy", "w") as file:
        file.attrs.update({"file_format": "HyperSpy", "file_format_version": "3.3"})
        group = file.create_group("Experiments/s")
        group["data"] = np.zeros((4, 5))
        told = {"_type": "FunctionalDataAxis", "name": "w", "units": "nm", "navigate": True}
        group.create_group("axis-0").attrs.update({**told, "expression": "a/x+b", "a": 1240.0})
        part = group.create_group("axis-1")
        part.attrs.update({"_type": "DataAxis", "name": "E", "units": "eV", "navigate": False})
        part["axis"] = ENERGIES
    desc = describe(tmp_path / "a.hspy")
    assert [doubt.code for doubt in desc.doubts] == ["uneven-axis"]
    assert desc.axes[0] == Axis("w")
    assert desc.axes[1] == Axis("E", coordinates=tuple(ENERGIES), coordinate_units="eV")


def test_lengths_are_shown_with_a_prefix_that_fits():
    assert str(Axis("x", "m", 6.5e-8, -1.3e-6)) == "x (steps of 65 nm from -1300 nm)"
    assert str(Axis("x", "1/m", 2e7)) == "x (steps of 20 1/µm)"
    assert str(Axis("x", "m", 6.5e-8, 0.5)) == "x (steps of 6.5e-08 m from 0.5 m)"
    assert str(Axis("E", "eV", 0.004, 8000)) == "E (steps of 0.004 eV from 8000 eV)"
    assert str(Axis("x", "mrad", 0.4)) == "x (steps of 0.4 mrad)"


def external(group, name):
    group[name] = h5py.ExternalLink("gone.h5", "energies")


def soft(group, name):
    group[name] = h5py.SoftLink("/entry/energies")


@pytest.mark.parametrize(("link", "missing"), [(external, "gone.h5"), (soft, "'entry' in /")])
def test_links_to_positions_that_lead_nowhere_are_a_doubt(tmp_path, link, missing):
    """The frames are read; a name without an object, as in many files, has nothing to lose."""
    with h5py.File(tmp_path / "a.nxs", "w") as file:
        group = file.create_group("data")
        group.attrs.update({"NX_class": "NXdata", "signal": "counts", "axes": ["E", "y", "x"]})
        group["counts"] = FRAMES
        link(group, "E")
    desc = describe(tmp_path / "a.nxs")
    (doubt,) = desc.doubts
    assert (desc.dims, doubt.code) == (("E", "y", "x"), "uneven-axis")
    assert missing in doubt.text
    assert describe(tmp_path / "a.nxs", axes={"E": "2 eV"}).doubts == ()
    with h5py.File(tmp_path / "b.emd", "w") as file:
        group = file.create_group("data")
        group.attrs["emd_group_type"] = 1
        group["data"] = FRAMES
        group["dim2"] = np.arange(FRAMES.shape[1]) / 2
        link(group, "dim1")
    desc = describe(tmp_path / "b.emd")
    (doubt,) = desc.doubts
    assert missing in doubt.text
    assert desc.axes[1].scale == 0.5
    assert describe(tmp_path / "b.emd", axes={"dim1": "2 eV"}).doubts == ()
    np.testing.assert_array_equal(open_dataset(tmp_path / "b.emd", doubts="ignore"), FRAMES)
