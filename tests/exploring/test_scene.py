"""Scenes: which axes form the scan, which the frame, and which get a slider."""

import dask.array as da
import numpy as np
import pytest

from dask_tiled import DatasetError, open_dataset, tiles
from dask_tiled.exploring.scene import Scene
from dask_tiled.opened.inputs import as_array
from dask_tiled.testing import write_mib, write_nrrd, write_ser


def names(scene, places):
    return [scene.axes[k].name for k in places]


def test_scan(tmp_path):
    arr = open_dataset(write_mib(tmp_path / "scan.mib", np.zeros((4, 5, 8, 8), "u2")))
    scene = Scene.of(arr)
    assert (scene.scan_shape, scene.frame_shape, scene.sliders) == ((4, 5), (8, 8), ())
    assert not scene.needs_sig_ndim(())


def test_remaining_axes_get_sliders():
    scene = Scene.of(da.zeros((3, 4, 5, 1, 8, 9)))
    assert (scene.scan_shape, scene.frame_shape, scene.sliders) == ((4, 5), (8, 9), (0,))
    assert scene.view((1,)).shape == (4, 5, 8, 9)
    assert scene.code((1,)).splitlines() == [
        "arr = arr[:, :, :, 0, :, :]",
        "arr = arr[1, :, :, :, :]",
    ]


def test_volume_is_a_frame_and_a_slider(tmp_path):
    header, *_ = write_nrrd(tmp_path / "ball.nrrd", np.zeros((4, 5, 6), "u1"))
    arr = open_dataset(header)
    scene = Scene.of(tiles.center_of_mass(arr))
    assert names(scene, scene.frame) == ["z"]
    scene = Scene.of(arr)
    assert (scene.scan, names(scene, scene.frame), names(scene, scene.sliders)) == (
        (), ["y", "x"], ["z"],
    )  # fmt: skip


def test_results_are_frames(tmp_path):
    arr = open_dataset(write_mib(tmp_path / "scan.mib", np.zeros((4, 5, 8, 8), "u2")))
    scene = Scene.of(arr.sum(axis=(-2, -1)))
    assert (scene.scan, names(scene, scene.frame)) == ((), ["scan_y", "scan_x"])
    scene = Scene.of(tiles.center_of_mass(arr))
    assert names(scene, scene.frame) == ["scan_y", "scan_x"]
    assert names(scene, scene.sliders) == ["component"]


def test_spectra(tmp_path):
    path = tmp_path / "scan.ser"
    write_ser(path, np.zeros((6, 40), "u2"), sig_dims=1)
    scene = Scene.of(open_dataset(path))
    assert (scene.scan_shape, scene.frame_shape) == ((6,), (40,))


@pytest.mark.parametrize("dtype", ["c8", "bool", [("R", "u1"), ("G", "u1"), ("B", "u1")]], ids=str)
def test_complex_boolean_and_colour_pixels_become_real(dtype):
    arr = da.zeros((4, 5, 8, 9), dtype=dtype)
    scene = Scene.of(arr)
    assert scene.arr.dtype.kind in "uf"
    found = {"arr": arr, "da": da}
    exec(scene.prepared, found)  # noqa: S102 - the code under test
    assert np.array_equal(found["arr"].compute(), scene.arr.compute())


def test_units_have_suitable_prefixes(tmp_path):
    axes = {"scan_y": "5e-10 m", "scan_x": "2e-9 m", "y": "1e8 1/m", "x": "1e8 1/m from -4e8 1/m"}
    path = write_mib(tmp_path / "scan.mib", np.zeros((4, 5, 8, 8), "u2"))
    found = Scene.of(open_dataset(path, axes=axes)).as_json()["axes"]
    assert [axis["units"] for axis in found] == ["nm", "nm", "1/nm", "1/nm"]
    assert np.allclose([axis["scale"] for axis in found], [0.5, 2, 0.1, 0.1])
    assert np.isclose(found[3]["offset"], -0.4)


@pytest.mark.parametrize("dims", [("ry", "rx", "ky", "kx"), ("Ry", "Rx", "Qy", "Qx")])
def test_reciprocal_axes_of_xarray_are_frames(dims):
    xr = pytest.importorskip("xarray")
    scene = Scene.of(as_array(xr.DataArray(np.zeros((4, 5, 8, 9)), dims=[*dims])))
    assert (scene.scan_shape, scene.frame_shape) == ((4, 5), (8, 9))


@pytest.mark.parametrize(
    ("dims", "shape", "colours"),
    [
        ("yxs", (8, 9, 4), 2),
        ("syx", (3, 8, 9), 0),
        ("yxs", (8, 9, 5), None),
        ("tyxs", (6, 8, 9, 3), None),
    ],
)
def test_colours(dims, shape, colours):
    xr = pytest.importorskip("xarray")
    scene = Scene.of(as_array(xr.DataArray(np.zeros(shape), dims=[*dims])))
    assert scene.colours == colours
    assert names(scene, scene.frame) == ["y", "x"]


def test_single_image_is_a_frame():
    scene = Scene.of(da.zeros((8, 9)))
    assert (scene.scan, scene.frame_shape, scene.sliders) == ((), (8, 9), ())


def test_single_pixel_is_refused():
    with pytest.raises(DatasetError, match="nothing to draw"):
        Scene.of(da.zeros((1, 1)))


@pytest.mark.filterwarnings("ignore:.*in a row", "ignore:.*missing")
def test_doubts_of_the_files_are_shown(tmp_path):
    """Also those of files that an array is computed from."""
    path = write_mib(tmp_path / "a.mib", np.zeros((6, 8, 8), "u2"), hdr=False)
    for arr in (open_dataset(path), open_dataset(path) + 1):
        (doubt,) = Scene.of(arr).as_json()["doubts"]
        assert doubt.startswith("6 frames are shown in a row")
    whole = open_dataset(path, nav_shape=(2, 3))
    assert Scene.of(whole).as_json()["doubts"] == ()
    assert Scene.of(open_dataset(path, nav_shape=(3, 3))).doubts == ("not complete: 6 of 9 frames",)
