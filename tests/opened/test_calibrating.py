"""Calibrated axes: where they appear, which operations keep them, and how they are saved."""

import json
import os
import pickle
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr
from click.testing import CliRunner
from formats_table import ONE_OF_EACH, TABLE

from dask_tiled import (
    Axis,
    CorruptFileError,
    DatasetError,
    OutsideFolderError,
    TiledArray,
    describe,
    file_reader,
    formats,
    open_dataset,
    open_volumes,
    show,
    tiles,
    to_hyperspy,
    to_xarray,
    to_zarr,
)
from dask_tiled.bridges.napari import read_layers
from dask_tiled.command_line.app import app
from dask_tiled.formats.registry import recognised_by
from dask_tiled.formats.saved_axes import REMEDY
from dask_tiled.opened.axes import shown_of
from dask_tiled.testing import counting_frames, write_mib, write_npy, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((5, 7, 8, 16), "uint16")
CALIBRATION = {"scan_x": "0.5 nm", "scan_y": (0.25, "nm", 3), "x": "0.02 1/nm from -0.16 1/nm"}
SCAN_Y, SCAN_X = Axis("scan_y", "nm", 0.25, 3), Axis("scan_x", "nm", 0.5)
Y, X = Axis("y"), Axis("x", "1/nm", 0.02, -0.16)
AXES = SCAN_Y, SCAN_X, Y, X


@pytest.fixture
def path(tmp_path):
    return write_mib(tmp_path / "scan.mib", FRAMES)


@pytest.fixture
def arr(path):
    return open_dataset(path).with_axes(CALIBRATION)


# Where calibrated axes appear


def xarray_axes(found):
    """Return the axes of a DataArray."""
    coords = ((name, found.coords.get(name)) for name in found.dims)
    return tuple(
        Axis(name)
        if one is None
        else Axis(name, one.attrs.get("units", ""), round(float(one[1] - one[0]), 9), float(one[0]))
        for name, one in coords
    )


def hyperspy_axes(told):
    """Return the axes of HyperSpy's dictionaries."""
    return tuple(Axis(one["name"], one["units"], one["scale"], one["offset"]) for one in told)


def ome_zarr_axes(group):
    """Return the axes of OME-Zarr's attributes."""
    (image,) = group.attrs["ome"]["multiscales"]
    scale, offset = image["datasets"][0]["coordinateTransformations"]
    units = {"nanometer": "nm", None: ""}
    return tuple(
        Axis(axis["name"], units.get(unit := axis.get("unit"), unit), *numbers)
        for axis, *numbers in zip(image["axes"], scale["scale"], offset["translation"], strict=True)
    )


def napari_axes(path, arr):
    """Return the axes of a napari layer: the file is opened with the axes saved next to it."""
    arr.save_axes()
    ((_, told, _),) = read_layers(str(path))
    units = ("" if unit == "pixel" else unit for unit in told["units"])
    columns = told["axis_labels"], units, told["scale"], told["translate"]
    return tuple(map(Axis, *columns))


def check_shown_axes(path, arr):
    """Check names, units and extents of the axes that `show` draws, and return `AXES`."""
    del path
    shown = {(axes.get_ylabel(), axes.get_xlabel()): axes for axes in show(arr).axes}
    frame, scan = shown["y", "x (1/nm)"], shown["scan_y (nm)", "scan_x (nm)"]
    np.testing.assert_allclose(scan.images[0].get_extent(), (-0.25, 3.25, 4.125, 2.875))
    np.testing.assert_allclose(frame.images[0].get_extent()[:2], (-0.17, 0.15))
    return AXES


def export_and_read(path, arr, read):
    to_zarr(arr, path.parent / "out.zarr")
    return read(path.parent / "out.zarr")


CONSUMERS = {
    "the array": lambda _, arr: arr.axes,
    "the description": lambda _, arr: arr.description.axes,
    "describe": lambda path, _: describe(path, axes=CALIBRATION).axes,
    "open_dataset": lambda path, _: open_dataset(path, axes=CALIBRATION).axes,
    "every axis": lambda path, _: open_dataset(path, axes=AXES).axes,
    "keywords": lambda path, _: open_dataset(path).with_axes({"x": X}, **SCAN_CALIBRATION).axes,
    "pickles": lambda _, arr: pickle.loads(pickle.dumps(arr)).axes,
    "expressions": lambda _, arr: shown_of(np.sqrt(arr) + 1).axes,
    "xarray": lambda _, arr: xarray_axes(to_xarray(arr)),
    "xarray of a path": lambda path, _: xarray_axes(to_xarray(path, axes=CALIBRATION)),
    "the engine of xarray": lambda path, _: xarray_axes(
        xr.open_dataset(path, engine="dask_tiled", axes=CALIBRATION)["data"]
    ),
    "zarr in xarray": lambda path, arr: xarray_axes(
        export_and_read(path, arr, partial(xr.open_zarr, consolidated=False))["data"]
    ),
    "zarr opened again": lambda path, arr: export_and_read(path, arr, open_dataset).axes,
    "OME-Zarr": lambda path, arr: ome_zarr_axes(export_and_read(path, arr, zarr.open_group)),
    "HyperSpy": lambda _, arr: hyperspy_axes(
        to_hyperspy(arr).axes_manager.as_dictionary().values()
    ),
    "HyperSpy's reader": lambda path, _: hyperspy_axes(
        file_reader(path, axes=CALIBRATION)[0]["axes"]
    ),
    "napari": napari_axes,
    "show": check_shown_axes,
}
SCAN_CALIBRATION = {name: CALIBRATION[name] for name in ("scan_x", "scan_y")}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_axes_appear_everywhere(path, arr, consumer):
    found = CONSUMERS[consumer](path, arr)
    if consumer == "HyperSpy":  # lists navigation axes in reverse order
        found = tuple(sorted(found, key=lambda one: [axis.name for axis in AXES].index(one.name)))
    assert found == AXES


RESULTS = {
    "a sum": (lambda a: a.sum(0), (SCAN_X, Y, X)),
    "a mean of frames": (lambda a: a.mean((2, 3)), (SCAN_Y, SCAN_X)),
    "masked sums": (lambda a: tiles.apply_masks(a, FRAMES[:2, 0])[..., 1], (SCAN_Y, SCAN_X)),
    "a crop": (
        lambda a: a[2, 1::2, :, 4:],
        (replace(SCAN_X, scale=1.0, offset=0.5), Y, replace(X, offset=-0.08)),
    ),
    "bins": (
        lambda a: da.coarsen(np.sum, a, {3: 4}),
        (SCAN_Y, SCAN_X, Y, replace(X, scale=0.08, offset=-0.13)),
    ),
    "backwards": (lambda a: a[::-1], (replace(SCAN_Y, scale=-0.25, offset=4.0), SCAN_X, Y, X)),
    "rows in another order": (lambda a: a[[0, 1, 4]], (Axis("scan_y"), SCAN_X, Y, X)),
    "other chunks": (lambda a: a.with_chunks((2, 7, 8, 16)), AXES),
    "a list of frames": (lambda a: a.reshape(35, 8, 16), (Axis("frame"), Y, X)),
    "chunks of dask": (lambda a: a.rechunk(3), AXES),
}


@pytest.mark.parametrize("case", RESULTS)
def test_axes_of_results(path, arr, case):
    """Results keep the axes that are known, and their pixels; their name depends on the axes."""
    make, expected = RESULTS[case]
    found, plain = make(arr), make(open_dataset(path))
    for axis, wanted in zip(shown_of(found).axes, expected, strict=True):
        assert (axis.name, axis.units) == (wanted.name, wanted.units)
        assert (axis.scale, axis.offset) == pytest.approx((wanted.scale, wanted.offset))
    np.testing.assert_array_equal(found, plain)
    if isinstance(found, TiledArray):
        assert (found.name == plain.name) == (found.axes == plain.axes)


def test_name_depends_on_pixels_and_axes(path, arr):
    plain = open_dataset(path)
    names = {plain.name, arr.name, arr.with_axes(y=2).name, arr.with_axes(y=Axis("q")).name}
    assert len(names) == 4
    same = (
        plain.with_axes(),
        plain.with_axes(scan_x=1),
        plain.with_axes(plain.axes),
        arr[2, 3, :, 0],
    )
    unlike = plain, plain, plain, plain[2, 3, :, 0]
    assert [one.name for one in same] == [one.name for one in unlike]
    assert open_dataset(path, axes=CALIBRATION).name == arr.name
    assert plain.with_axes(CALIBRATION).with_axes(scan_x=(0.5, "nm")).name == arr.name


def test_arrays_of_different_axes_in_one_graph(path, arr):
    both = da.stack([arr, open_dataset(path).with_axes(y="3 s")])
    known = SCAN_Y, SCAN_X, Axis("y", "s", 3), X  # only one array has a scale of y
    assert shown_of(both + 1).axes == (None, *known)
    assert shown_of(both[0] + 1).axes == known
    plain = open_dataset(path)
    assert shown_of(arr.sum(0) + plain.sum(0)).axes == (SCAN_X, Y, X)
    first, second = dask.optimize(arr.sum(1), plain.with_axes(scan_y="3 s").sum(1))
    found = [shown_of(one).axes[0] for one in (arr.sum(1), plain.with_axes(scan_y="3 s").sum(1))]
    assert found == [SCAN_Y, Axis("scan_y", "s", 3)]
    np.testing.assert_array_equal(*dask.compute(first, second))


def test_axes_of_other_nav_shapes_and_rois(path):
    """Axes describe the scan: frames chosen by `roi` have an uncalibrated axis of their own."""
    shaped = open_dataset(path, nav_shape=(7, 5), sync_offset=2, axes=CALIBRATION)
    assert shaped.axes == AXES
    chosen = open_dataset(path, roi=[3, 4, 9], axes=CALIBRATION)
    assert chosen.axes == (Axis("frame"), Y, X)
    assert chosen.description.calibrations == {"x": "the user"}
    assert open_dataset(path, nav_shape=(-1, 5), axes={"scan_y": 3}).axes[0] == Axis(
        "scan_y", "", 3
    )
    with pytest.raises(DatasetError, match="no such axis; expected one of frame, y, x"):
        open_dataset(path, nav_shape=35, axes=CALIBRATION)


def test_chunks_by_renamed_axes(path):
    arr = open_dataset(path, axes={"scan_y": Axis("t", "s", 2)}, chunks={"t": 2})
    assert arr.chunks[0] == (2, 2, 1)
    again = arr.with_axes(t=Axis("time")).with_chunks({"time": 4})
    assert (again.chunks[0], again.scheme.dims[0]) == ((4, 1), "time")


def test_arrays_with_assigned_items_are_refused(arr):
    arr[0] = 0
    for ask in (lambda: arr.with_axes(y=2), arr.save_axes):
        with pytest.raises(DatasetError, match="items"):
            ask()


def test_sequence_and_keywords_are_refused(arr):
    with pytest.raises(DatasetError, match="a sequence describes all axes"):
        arr.with_axes(AXES, y=2)


def test_volumes(tmp_path):
    for number in range(3):
        write_npy(tmp_path / f"v{number}.npy", FRAMES[0])
    arr = open_volumes(tmp_path / "v*.npy", axes={"volume": "2 s", "x": "0.5 nm"})
    assert arr.axes == (Axis("volume", "s", 2), Axis("frame"), Y, Axis("x", "nm", 0.5))
    with pytest.raises(DatasetError, match="expected one of volume, frame, y, x"):
        open_volumes(tmp_path / "v*.npy", axes={"scan_x": 2})


def test_refreshed_arrays_keep_axes(path):
    arr = open_dataset(path, follow=True, axes={"scan_x": "0.5 nm"})
    arr = pickle.loads(pickle.dumps(arr.with_axes(scan_y=Axis("t", "s", 2))))
    assert arr.refresh().axes == (Axis("t", "s", 2), Axis("scan_x", "nm", 0.5), Y, Axis("x"))
    assert arr.refresh().refresh().name == arr.refresh().name


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["info", "convert", "preview", "verify"])
def test_axis_option_of_the_command_line(path, tmp_path, verb):
    words = [verb, str(path), "--axis", "scan_x=0.5 nm", "--axis", 'scan_y=[0.25, "nm", 3]']
    words += ["--axis", "x=0.02 1/nm from -0.16 1/nm", "--axis", "y=1"]
    out, store = tmp_path / "scan.png", tmp_path / "scan.zarr"
    if verb == "verify":
        to_zarr(open_dataset(path), store)
    words += {"info": ["--json"], "preview": ["-o", str(out)]}.get(verb, [str(store)])
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    if verb == "info":
        told = [
            Axis(*(one[k] for k in ("name", "units", "scale", "offset")))
            for one in json.loads(done.stdout)["axes"]
        ]
        assert tuple(told) == AXES
    elif verb == "convert":
        assert open_dataset(store).axes == AXES
    done = CliRunner().invoke(app, [*words[:2], "--axis", "scan_z=1 nm", *words[10:]])
    assert done.exit_code == 2
    assert "no such axis; expected one of scan_y, scan_x, y, x; found 'scan_z'" in done.stderr


# Saved axes


def saved(path):
    return Path(f"{path}.axes.json")


def test_saved_axes_are_read(path, arr):
    plain = open_dataset(path).name
    assert arr.save_axes() == str(saved(path))
    found = open_dataset(path)
    assert (found.axes, found.name) == (AXES, arr.name)
    assert found.description.metadata["mib"]["calibrated"] == dict.fromkeys(
        CALIBRATION, "scan.mib.axes.json"
    )
    assert open_dataset(path.with_suffix(".hdr")).axes == AXES
    assert {one.name for one in path.parent.iterdir()} == {"scan.hdr", "scan.mib", saved(path).name}
    saved(path).unlink()
    assert open_dataset(path).name == plain


def test_description_shows_the_origin_of_axes(path, arr):
    assert "calibrated" not in repr(describe(path))
    arr.with_axes(scan_x=Axis("<b>", "nm", 0.5)).save_axes()
    desc = describe(path, axes={"x": "2 mrad"})
    told = "scan_y, <b> by scan.mib.axes.json; x by the user"
    assert f"calibrated  {told}" in repr(desc)
    assert told.replace("<b>", "&lt;b&gt;") in desc._repr_html_()
    assert (
        told.replace("<b>", "&lt;b&gt;") in open_dataset(path, axes={"x": "2 mrad"})._repr_html_()
    )
    part = open_dataset(path)[0, 1]
    assert "calibrated  x by scan.mib.axes.json" in repr(part.description)


def test_precedence_of_axes(path, arr):
    """The axes of a call override saved axes, which override the file's; saved names count."""
    arr.with_axes(scan_x=Axis("q", "nm", 2)).save_axes()
    kept = open_dataset(path, axes={"q": "3 nm", "y": 2})
    assert kept.axes == (SCAN_Y, Axis("q", "nm", 3), Axis("y", "", 2), X)
    kept.with_axes(q=Axis("r", "nm", 4)).save_axes()
    assert open_dataset(path).axes == (SCAN_Y, Axis("r", "nm", 4), Axis("y", "", 2), X)
    assert open_dataset(path, nav_shape=35).axes == (Axis("frame"), Axis("y", "", 2), X)
    open_dataset(path, nav_shape=35, axes={"frame": "1 s"}).save_axes()
    assert open_dataset(path).axes[0] == SCAN_Y, "axes saved earlier are kept"


def test_handwritten_axes_file(path):
    kept = {"scan_x": "0.5 nm", "scan_y": [0.25, "nm", 3], "x": {"units": "1/nm", "scale": 2}}
    saved(path).write_text(
        json.dumps({"dask_tiled_axes": 1, "pictures": {"": kept, "1": {"y": 3}}})
    )
    assert open_dataset(path).axes == (SCAN_Y, SCAN_X, Y, Axis("x", "1/nm", 2))


DAMAGED = {
    "empty": b"",
    "cut off": b'{"dask_tiled_axes": 1, "pic',
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "no text": b"\xff\0\xfe",
    "of others": b'{"axes": {}}',
    "another version": b'{"dask_tiled_axes": 2, "pictures": {}}',
    "no pictures": b'{"dask_tiled_axes": 1, "pictures": 3}',
    "no axes": b'{"dask_tiled_axes": 1, "pictures": {"": []}}',
    "too long": b'{"dask_tiled_axes": 1, "pictures": {}}' + b" " * (1 << 20),
} | {
    name: b'{"dask_tiled_axes": 1, "pictures": {"": {"x": %s}}}' % value
    for name, value in {
        "no scale": b'{"scale": NaN}',
        "a wrong number": b'"0,5 nm"',
        "further words": b'{"scale": 2, "colour": "red"}',
        "wrong labels": b'{"labels": 3}',
        "too few labels": b'{"labels": ["a"]}',
        "the name of another axis": b'{"name": "y"}',
    }.items()
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_axes_file(path, kind):
    """The error names the file and the remedy; the file is never overwritten."""
    saved(path).write_bytes(DAMAGED[kind])
    with pytest.raises(CorruptFileError, match="Correct the file, or remove it") as caught:
        open_dataset(path)
    assert caught.value.path == str(saved(path))
    assert len(str(caught.value)) < 1000
    saved(path).unlink()
    arr = open_dataset(path, axes=CALIBRATION)
    saved(path).write_bytes(DAMAGED[kind])
    if "labels" not in kind and "another axis" not in kind:
        with pytest.raises(CorruptFileError):
            arr.save_axes()
        assert saved(path).read_bytes() == DAMAGED[kind]


def test_axes_of_slices_are_saved_for_the_whole(path):
    """Also of a slice of a slice with a step, after pickling."""
    part = open_dataset(path)[:, :6, 2:][1:, ::2]
    part = part.with_axes(scan_y="0.5 nm from 3 nm", scan_x="4 nm", y="1 mrad")
    pickle.loads(pickle.dumps(part)).save_axes()
    found = open_dataset(path)
    assert found.axes == (
        Axis("scan_y", "nm", 0.5, 2.5), Axis("scan_x", "nm", 2), Axis("y", "mrad", 1, -2), Axis("x")
    )  # fmt: skip
    assert found[1:, :6:2, 2:].axes == part.axes


def test_saved_scans_are_opened_and_said(tmp_path):
    """A crop of a crop, and new axes of what was saved, open as they were."""
    path = write_mib(tmp_path / "fly.mib", FRAMES.reshape(35, 8, 16), hdr=False)
    arr = open_dataset(path, nav_shape=(5, 7))[:, :-1].with_axes(scan_x="2 nm")
    arr.save_axes(scan=True)
    with pytest.warns(
        UserWarning, match=r"5 x 7 positions, of which scan_x 0 to 5, by fly.mib"
    ) as w:
        found = open_dataset(path)
    assert len(w) == 1
    assert "scan        5 x 7 positions" in repr(describe(path))
    assert (found.shape, found.axes) == (arr.shape, arr.axes)
    assert np.array_equal(found.compute(), FRAMES[:, :6])
    assert np.array_equal(open_dataset(path, nav_shape=(5, 7)).compute(), FRAMES)
    assert open_dataset(path, nav_shape=35).shape == (35, 8, 16)
    smaller = found[1:, 1:, :, 3:].with_axes(scan_y="1 nm from 9 nm", x="3 mrad")
    smaller.save_axes(scan=True)
    again = open_dataset(path, doubts="ignore")
    assert again.axes == smaller.axes
    assert np.array_equal(again.compute(), FRAMES[1:, 1:6, :, 3:])
    again.with_axes(x="4 mrad from 1 mrad").save_axes()
    assert open_dataset(path, doubts="ignore").axes[3] == Axis("x", "mrad", 4, 1)
    assert again.refresh().shape == again.shape
    write_mib(path, FRAMES.reshape(35, 8, 16)[:, :, :2], hdr=False)
    with pytest.raises(CorruptFileError, match="the saved crop exceeds the scan"):
        open_dataset(path)


@pytest.mark.parametrize(
    "scan",
    [3, {}, {"nav_shape": [0], "ends": []}, {"nav_shape": [5], "ends": [[3, 2]]}, {"ends": 2}],
)
def test_damaged_scans_are_refused(path, scan):
    document = {"dask_tiled_axes": 1, "pictures": {}, "scans": {"": scan}}
    saved(path).write_text(json.dumps(document))
    with pytest.raises(CorruptFileError, match=f"axes.json.*{REMEDY}"):
        open_dataset(path)


def test_links_out_of_the_folder_are_refused(path, arr, tmp_path_factory):
    arr.save_axes()
    outside = tmp_path_factory.mktemp("outside") / "axes.json"
    shutil.move(saved(path), outside)
    saved(path).symlink_to(outside)
    with pytest.raises(OutsideFolderError):
        open_dataset(path)
    assert open_dataset(path, outside_folder=True).axes == AXES


def test_axes_that_cannot_be_saved(path, arr, monkeypatch):
    with pytest.raises(DatasetError, match="Call save_axes on the opened array, or on a slice"):
        arr.reshape(35, 8, 16).save_axes()
    for part, problem in ((arr[::2], "a step"), (arr[1], "a single position")):
        with pytest.raises(DatasetError, match=f"this part cannot be saved.*{problem}"):
            part.save_axes(scan=True)
    with pytest.raises(DatasetError, match="skipped frames"):
        open_dataset(path, sync_offset=2).save_axes(scan=True)
    with pytest.raises(DatasetError, match="no changed axes to save"):
        open_dataset(path).save_axes()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(DatasetError, match=r"found Permission denied\. Pass axes=") as caught:
        arr.save_axes()
    assert caught.value.path == str(saved(path))
    assert {one.name for one in path.parent.iterdir()} == {"scan.hdr", "scan.mib"}


def test_axes_file_is_not_a_dataset(path, tmp_path):
    """No pattern matches the axes file, no format recognises it, and no series includes it."""
    path.unlink(), path.with_suffix(".hdr").unlink()
    for number in (1, 2):
        write_npy(tmp_path / f"s{number}.npy", FRAMES[0])
    arr = open_volumes(tmp_path / "s*")
    open_dataset(tmp_path / "s1.npy", axes={"x": 2}).save_axes()
    for pattern in ("s*", "s1*", "*", "*.*"):
        assert {one.path for one in open_volumes(tmp_path / pattern).description.files} <= {
            one.path for one in arr.description.files
        }
    kept = str(saved(arr.description.files[0].path))
    assert recognised_by(formats().values(), kept, {}) is None
    with pytest.raises(DatasetError, match="saved axes of a scan: open the scan"):
        open_dataset(kept)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_format_reads_saved_axes(tmp_path, name):
    """Saved axes change neither the other axes nor the files that a format finds."""
    sample = TABLE[name](tmp_path, "scan")
    arr = open_dataset(**sample.options)
    *others, last = arr.axes
    new = replace(last, units="nm", scale=0.5, offset=2.0)
    arr = arr.with_axes([*others, new])
    arr.save_axes()
    again = open_dataset(**sample.options)
    assert again.axes == (*others, new)
    assert again.name == arr.name


def test_datasets_of_a_file_have_separate_axes(tmp_path):
    with h5py.File(tmp_path / "two.h5", "w") as file:
        file["a"], file["b"] = FRAMES, FRAMES[0]
    path = tmp_path / "two.h5"
    open_dataset(path, dataset="a", axes={"x": 2}).save_axes()
    open_dataset(path, dataset="b", axes={"x": 3}).save_axes()
    assert [open_dataset(path, dataset=one).axes[-1].scale for one in "ab"] == [2, 3]
    found = xr.open_dataset(path, engine="dask_tiled", axes={"x": "5 nm"})
    first, second = (found[name].coords[found[name].dims[-1]] for name in "ab")
    assert (float(first[1]), float(second[1])) == (5, 3), "axes= applies to the first dataset"


def test_axes_of_levels_and_folders(arr, tmp_path):
    store = tmp_path / "out.zarr"
    to_zarr(arr, store, pyramid=2)
    there = open_dataset(store).with_axes(x="5 nm")
    assert there.save_axes() == f"{store}.axes.json", "next to the folder"
    assert open_dataset(store).axes[-1] == Axis("x", "nm", 5)
    assert open_dataset(store / "data").axes[-1] == Axis("x", "nm", 5)
    assert open_dataset(store, dataset="level_1/data").axes[-1].scale == pytest.approx(0.04)
    with tifffile.TiffWriter(tmp_path / "p.ome.tif") as file:
        file.write(FRAMES[0, 0], subifds=1)
        file.write(FRAMES[0, 0, ::2, ::2], subfiletype=1)
    open_dataset(tmp_path / "p.ome.tif", axes={"x": 2}).save_axes()
    scales = [open_dataset(tmp_path / "p.ome.tif", level=k).axes[-1].scale for k in (0, 1)]
    assert scales[0] == 2
    assert scales[1] != 2


def test_axes_of_remote_files_cannot_be_saved(path, monkeypatch):
    arr = open_dataset(path, axes=CALIBRATION)
    first = replace(arr.description.files[0], path="https://example.org/scan.mib")
    monkeypatch.setattr(arr.description.layout, "files", (first,))
    with pytest.raises(DatasetError, match=r"next to a remote file\. Pass axes="):
        arr.save_axes()


def test_opening_looks_once_for_saved_axes(path, monkeypatch):
    raw = write_raw(path.with_name("scan.raw"), FRAMES[0])
    asked = []
    isfile = os.path.isfile
    monkeypatch.setattr(os.path, "isfile", lambda one: asked.append(str(one)) or isfile(one))
    open_dataset(raw, dtype="u2", sig_shape=(8, 16))
    assert asked.count(str(saved(raw))) == 1
