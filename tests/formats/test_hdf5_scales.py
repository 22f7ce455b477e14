"""Axes of HDF5 files that no instrument wrote: dimension scales, axis tags, properties."""

import json

import h5py
import numpy as np
import pytest
import xarray as xr
from checks import axes_text, write_hdf5

from dask_tiled import Axis, describe, open_dataset
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((10, 16, 20), "u2")
DIMS = (("time", 0.5, "s"), ("height", 0.25, "um"), ("width", 0.25, "um"))


def write_scales(path, *, labels=True, scales=True, length=None):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("movie", data=FRAMES)
        for k, (name, step, unit) in enumerate(DIMS):
            if labels:
                data.dims[k].label = name
            if scales:
                size = FRAMES.shape[k] if length is None else length
                scale = file.create_dataset(f"scales/{name}", data=step * np.arange(size))
                scale.make_scale(name)
                scale.attrs["units"] = unit
                data.dims[k].attach_scale(scale)
    return path


def test_scales_of_h5py(tmp_path):
    told = Axis("time", "s", 0.5), Axis("height", "µm", 0.25), Axis("width", "µm", 0.25)
    for labels in (True, False):
        assert describe(write_scales(tmp_path / "a.h5", labels=labels)).axes == told
    names = describe(write_scales(tmp_path / "b.h5", scales=False)).axes
    assert names == tuple(Axis(name) for name, *_ in DIMS)


def test_datasets_of_xarray(tmp_path):
    """netCDF-4 has dimensions without coordinates, whose scales hold no positions."""
    coords = {"t": ("t", [0.0, 0.5, 2.0], {"units": "s"}), "x": ("x", np.arange(4) * 0.1)}
    data = xr.Dataset({"stack": (("t", "y", "x"), FRAMES[:3, :5, :4])}, coords)
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    desc = describe(tmp_path / "a.nc")
    uneven = Axis("t", coordinates=(0.0, 0.5, 2.0), coordinate_units="s")
    assert desc.axes[:2] == (uneven, Axis("y"))
    assert desc.axes[2].name == "x"
    assert desc.axes[2].scale == pytest.approx(0.1)
    np.testing.assert_array_equal(open_dataset(tmp_path / "a.nc"), FRAMES[:3, :5, :4])


@pytest.mark.parametrize("length", [1, 7, 1000])
def test_scales_of_other_lengths_are_a_doubt(tmp_path, length):
    desc = describe(write_scales(tmp_path / "a.h5", length=length))
    assert desc.axes == tuple(Axis(name) for name, *_ in DIMS)
    assert {doubt.code for doubt in desc.doubts} == {"uneven-axis"}


def test_damaged_scales_leave_names(tmp_path):
    """Scales that were removed, and lists that are no references."""
    path = write_scales(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        del file["scales/time"]
        del file["scales/height"]
    desc = describe(path)
    assert desc.axes == (Axis("time"), Axis("height"), Axis("width", "µm", 0.25))
    lost = "is shown in pixels: its positions in the file are lost with its dimension scale"
    assert [doubt.text for doubt in desc.doubts] == [f"the axis {n} {lost}" for n in desc.dims[:2]]
    axes = {"time": "1 s", "height": "1 um"}
    assert open_dataset(path, doubts="raise", axes=axes).axes[0] == Axis("time", "s", 1.0)
    with h5py.File(path, "r+") as file:
        del file["movie"].attrs["DIMENSION_LIST"]
        file["movie"].attrs["DIMENSION_LIST"] = np.arange(3)
    assert describe(path, doubts="raise").dims == ("time", "height", "width")


def test_datasets_in_place_of_removed_scales_are_no_scales(tmp_path):
    """The library may store another object where the reference to a removed one leads."""
    path = write_scales(tmp_path / "a.h5", labels=False)
    with h5py.File(path, "r+") as file:
        del file["scales/width"]
        for k in range(50):
            file[f"other {k}"] = 3.0 * np.arange(20)
    desc = describe(path, dataset="movie")
    assert desc.axes[2] == Axis("x")
    (doubt,) = desc.doubts
    assert doubt.settle.startswith("pass axes={'x': ")


def test_nexus_data_without_axes_has_those_of_scales(tmp_path):
    path = write_scales(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file.attrs.update({"NX_class": "NXdata", "signal": "movie"})
    assert describe(path).dims == ("time", "height", "width")


@pytest.mark.parametrize("primary", [1, 2])
def test_marked_axes_of_old_nexus_files(tmp_path, primary):
    """Of two axes of a number, the primary one counts."""
    contents = {"entry": {"NX_class": "NXentry"}, "entry/data": {"NX_class": "NXdata"}}
    contents |= {"entry/data/counts": FRAMES, "entry/data/counts@signal": 1}
    for name, number, first, size in (
        ("energy", 1, 1, 10), ("wavelength", 1, 2, 10), ("x", 3, 1, 20), ("y", 2, 1, 16),
    ):  # fmt: skip
        place = f"entry/data/{name}"
        contents[place] = np.arange(size) * 0.5, "eV"
        contents |= {f"{place}@axis": number, f"{place}@primary": int(first == primary)}
    first = "energy" if primary == 1 else "wavelength"
    desc = describe(write_hdf5(tmp_path / "a.nxs", contents))
    assert axes_text(desc) == f"{first} 0.5 eV, y 0.5 eV, x 0.5 eV"


def tagged(path, keys, text=None, resolutions=()):
    tags = [{"key": key, "typeFlags": 2, "resolution": 0, "description": ""} for key in keys]
    for tag, resolution in zip(tags, resolutions, strict=False):
        tag["resolution"] = resolution
    contents = {"volume/data": np.zeros((3, 4, 5, 6)[: len(keys)], "u1")}
    return write_hdf5(
        path, {**contents, "volume/data@axistags": text or json.dumps({"axes": tags})}
    )


def test_axis_tags_of_ilastik(tmp_path):
    desc = describe(tagged(tmp_path / "a.h5", "tzyx", resolutions=(0, 2.5)))
    assert desc.axes == (Axis("t"), Axis("z", "", 2.5), Axis("y"), Axis("x"))
    desc = describe(tagged(tmp_path / "b.h5", "zyxc"))
    assert (desc.dims, desc.nav_ndim) == (("z", "y", "x", "c"), 1)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{", '{"axes": 3}', '{"axes": [1, 2, 3, 4]}', '{"axes": []}', "null"]
)
def test_hostile_axis_tags_leave_the_usual_names(tmp_path, text):
    desc = describe(tagged(tmp_path / "a.h5", "tzyx", text))
    assert desc.dims == ("scan_y", "scan_x", "y", "x")


@pytest.mark.parametrize("inner", [False, True])
def test_properties_of_nion_swift(tmp_path, inner):
    told = [{"offset": 1.0, "scale": 2.0, "units": "nm"}] * 2
    told += [{"offset": -10.0, "scale": 0.5, "units": "eV"}]
    facts = {"dimensional_calibrations": told, "datum_dimension_count": 1}
    told = json.dumps({"data_sources": [facts]} if inner else facts)
    desc = describe(write_hdf5(tmp_path / "a.h5", {"data": FRAMES, "data@properties": told}))
    assert desc.nav_ndim == 2
    assert axes_text(desc) == "scan_y 2+1 nm, scan_x 2+1 nm, channel 0.5-10 eV"
