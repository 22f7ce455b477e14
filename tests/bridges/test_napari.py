"""The napari plugin: files as lazy layers with axes and contrast, and layers written to zarr."""

import io
import json
import os
import shutil
import tomllib
import warnings
from pathlib import Path

import dask.array as da
import h5py
import numpy as np
import pytest
import tifffile
import zarr
from formats_table import ONE_OF_EACH, TABLE
from manifest import by_file, manifest
from yaozarrs import validate_zarr_store

import dask_tiled
from dask_tiled import Axis, DatasetError, DoubtWarning, TiledArray, open_dataset, to_zarr
from dask_tiled.bridges import napari
from dask_tiled.bridges.napari import get_reader, read_layers, write_image
from dask_tiled.testing import (
    Tile,
    counting_frames,
    write_czi,
    write_dm,
    write_gis,
    write_ims,
    write_mib,
    write_nd2,
    write_nrrd,
)

with warnings.catch_warnings():  # pydantic warns of napari's use of it
    warnings.simplefilter("ignore")
    import npe2
    from napari.components import ViewerModel
    from napari.layers import Image, Labels, Layer

PACKAGE = Path(dask_tiled.__file__).parent
FRAMES = counting_frames((5, 7, 8, 16), "uint16")
AXES = [(2.0, 0.5, "nm"), (0.0, 0.5, "nm"), (4.0, 0.25, "1/nm"), (4.0, 0.25, "1/nm")]
LABELS = ("scan_y", "scan_x", "y", "x")


@pytest.fixture(scope="module")
def plugin():
    """Register the plugin's manifest with npe2."""
    manifest = npe2.PluginManifest.from_file(PACKAGE / "napari.yaml")
    plugins = npe2.PluginManager.instance()
    if manifest.name not in plugins:
        plugins.register(manifest)
    return manifest


@pytest.fixture
def scan(tmp_path):
    path = tmp_path / "scan.dm4"
    write_dm(path, FRAMES, calibrations=AXES)
    return path


def only(path):
    """Return pixels and attributes of a file's single layer."""
    ((pixels, told, kind),) = read_layers(str(path))
    assert kind == "image"
    return pixels, told


def test_manifest_is_valid_and_lists_all_suffixes(plugin):
    plugin.validate_imports()
    (reader,) = plugin.contributions.readers
    suffixes = {end for one in dask_tiled.formats().values() for end in one.extensions}
    assert {*reader.filename_patterns} == {f"*{end}" for end in suffixes}
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text("utf8"))["project"]
    entry = project["entry-points"]["napari.manifest"][plugin.name]
    assert entry == "dask_tiled:napari.yaml"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_format(name, sample_of):
    """Files that open without options become lazy layers with the same pixels."""
    options = {**sample_of(name).options}
    path = options.pop("path")
    path = [*map(str, path)] if isinstance(path, list) else str(path)
    reader = get_reader(path)
    if reader is None:
        assert options or "*" in path  # needs options, or is a pattern
        return
    (pixels, told, _), *others = reader(path)
    layer = Image(pixels, **told)
    expected = open_dataset(path)
    if not told["rgb"] and not others:
        if expected.dtype.kind == "c":
            expected = abs(expected)
        if len(expected.description.sig_shape) == 1 and expected.ndim > 2:
            expected = da.moveaxis(expected, -1, 0)
        assert isinstance(pixels, da.Array)
        np.testing.assert_array_equal(np.squeeze(pixels), np.squeeze(expected))
    assert layer.ndim == len(layer.scale) == len(layer.axis_labels)


def test_names_scales_and_units(scan, plugin):
    """Layers keep the names, scales and units of axes when napari opens a file."""
    viewer = ViewerModel()
    (layer,) = viewer.open(str(scan), plugin=plugin.name)
    assert type(layer.data) is TiledArray
    assert layer.name == "scan"
    assert layer.axis_labels == LABELS
    assert [f"{unit:~C}" for unit in layer.units] == ["nm", "nm", "1/nm", "1/nm"]
    for axis, shown in zip(layer.data.axes, viewer.dims.range, strict=True):
        size = layer.data.shape[layer.data.axes.index(axis)]
        assert tuple(shown) == (axis.offset, axis.offset + axis.scale * (size - 1), axis.scale)
    assert layer.metadata["format"] == "dm"
    viewer.dims.current_step = (3, 2, 0, 0)
    np.testing.assert_array_equal(layer._slice.image.raw, FRAMES[3, 2])


def test_few_images_are_read(scan, loads, monkeypatch):
    """Opening reads three images for the contrast; then only displayed images are read."""
    monkeypatch.setattr("dask_tiled.reading.reader.backend_for", lambda _: loads())
    pixels, told = only(scan)
    assert loads.nbytes == 3 * FRAMES[0, 0].nbytes
    low, high = told["contrast_limits"]
    sample = FRAMES[[1, 2, 3], [1, 3, 5]]
    assert sample.min() <= low < high <= sample.max()
    viewer = ViewerModel()
    loads.clear()
    viewer.add_layer(Image(pixels, **told))
    viewer.dims.current_step = (0, 6, 0, 0)
    assert loads.nbytes <= 3 * FRAMES[0, 0].nbytes


def test_contrast_of_large_images_comes_from_the_middle(tmp_path, monkeypatch):
    monkeypatch.setattr("dask_tiled.bridges.napari.SAMPLED", 4)
    pixels = np.zeros((9, 12), "f4")
    pixels[0, 0], pixels[4, 5] = 1e9, 7
    np.save(tmp_path / "large.npy", pixels)
    _, told = only(tmp_path / "large.npy")
    assert told["contrast_limits"][1] <= 7


def test_datasets_are_layers(tmp_path):
    """The default dataset is visible; lines become images of one row."""
    a, b, c = (counting_frames(shape, "u2") for shape in ((4, 6, 7), (6, 7), (4, 3, 7)))
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        for name, pixels in {"a": a, "g/b": b, "c": c}.items():
            file[name] = pixels
        file["c"].attrs["title"] = "c"
    layers = read_layers(str(tmp_path / "scan.h5"))
    found = {told["name"]: (pixels, told) for pixels, told, _ in layers}
    assert found.keys() == {"scan a", "scan b", "scan c"}
    for name, pixels in {"a": a, "b": b, "c": c}.items():
        np.testing.assert_array_equal(found[f"scan {name}"][0], pixels)
    assert [told["visible"] for _, told in found.values()] == [True, False, False]
    np.save(tmp_path / "line.npy", np.arange(9.0))
    pixels, told = only(tmp_path / "line.npy")
    np.testing.assert_array_equal(pixels, [np.arange(9.0)])
    Image(pixels, **told)


@pytest.mark.parametrize("config", ["contig", "separate", "gis", "pages"])
def test_colour_axis_comes_last(config, tmp_path):
    pixels = counting_frames((2, 9, 8, 3), "u1")
    path = tmp_path / "colours.tif"
    if config == "gis":
        path, *_ = write_gis(tmp_path / "colours.ima", pixels, kind="RGB")
    elif config == "pages":
        tifffile.imwrite(path, pixels, photometric="rgb")
    else:
        pixels = pixels[0]
        stored = np.moveaxis(pixels, -1, 0) if config == "separate" else pixels
        tifffile.imwrite(path, stored, photometric="rgb", planarconfig=config)
    found, told = only(path)
    np.testing.assert_array_equal(np.squeeze(found), pixels)
    layer = Image(found, **told)
    assert layer.rgb
    assert layer.axis_labels[-2:] == ("y", "x")


@pytest.mark.thorough
def test_channels_have_the_names_colours_and_windows_of_the_file(tmp_path):
    """Windows of OME-Zarr; other contrast comes from the pixels of each channel."""
    pixels = np.zeros((3, 12, 16), "u2")
    pixels[0], pixels[1], pixels[2] = np.arange(16), 10 * np.arange(16), 7
    names, colours = ("DAPI", "GFP", "Cy5"), ("#0000ff", "#00a1ff", "")
    axes = [Axis("c", labels=names, colours=colours), Axis("y", "µm", 0.5), Axis("x", "µm", 0.5)]
    to_zarr(da.from_array(pixels), tmp_path / "a.zarr", dimension_names=axes, progress=False)
    write_nd2(tmp_path / "a.nd2", pixels, "cyx", channels=names, colours=[0xFF0000, 0xFFA100])
    for name in ("a.zarr", "a.nd2"):
        layers = read_layers(str(tmp_path / name))
        assert [told["name"] for _, told, _ in layers] == [f"a {one}" for one in names]
        for k, (found, told, _) in enumerate(layers):
            layer = Image(found, **told)
            np.testing.assert_array_equal(found, pixels[k])
            rgb = np.round(255 * layer.colormap.colors[-1][:3]).astype(int).tolist()
            assert rgb == [[0, 0, 255], [0, 161, 255], [0, 255, 255]][k]
            low, high = layer.contrast_limits
            assert pixels[k].min() <= low < high <= max(pixels[k].max(), pixels[k].min() + 1)
            assert [f"{unit}" for unit in layer.units] == ["micrometer", "micrometer"]
    document = json.loads((tmp_path / "a.zarr" / "zarr.json").read_text())
    channels = document["attributes"]["ome"]["omero"]["channels"]
    channels[0]["window"] |= {"start": 3, "end": 12}
    channels[1]["window"] = {"start": 9, "end": 9}
    channels[2]["window"] = "all"
    (tmp_path / "a.zarr" / "zarr.json").write_text(json.dumps(document))
    (_, first, _), (_, second, _), _ = read_layers(str(tmp_path / "a.zarr"))
    assert first["contrast_limits"] == (3, 12)
    assert second["contrast_limits"][1] > 100


def test_levels_of_czi_and_imaris(tmp_path):
    """Levels are chosen by number, with the scene; Imaris names them."""
    tiles = []
    for scene in (0, 1):
        for ratio in (1, 2, 4):
            frame = np.full((16 // ratio, 32 // ratio), 10 * scene + ratio, "u1")
            tiles.append(Tile({"S": scene, "C": 0, "Y": 0, "X": 40 * scene}, frame, ratio))
    write_czi(tmp_path / "a.czi", tiles, scenes={0: "one", 1: "two"})
    layers = read_layers(str(tmp_path / "a.czi"))
    for scene, (levels, told, _) in enumerate(layers):
        assert [level.shape for level in levels] == [(16, 32), (8, 16), (4, 8)]
        assert [int(level.max()) for level in levels] == [10 * scene + k for k in (1, 2, 4)]
        assert Image(levels, **told).multiscale
    write_ims(tmp_path / "a.ims", counting_frames((1, 1, 8, 32, 32), "u2"), levels=2)
    levels, _ = only(tmp_path / "a.ims")
    assert [level.shape for level in levels] == [(1, 8, 32, 32), (1, 4, 16, 16)]


@pytest.mark.parametrize(("apart", "place"), [(40, 10), (9000, 0)])
def test_images_far_apart_are_shown_at_one_place(tmp_path, apart, place):
    """As a view of all of them would show each as a dot; their offsets are kept."""
    tiles = [
        Tile({"S": scene, "C": 0, "Y": 0, "X": apart * scene}, np.full((16, 32), 9, "u1"))
        for scene in (0, 1)
    ]
    write_czi(tmp_path / "a.czi", tiles, scenes={0: "one", 1: "two"}, scaling={"X": 2.5e-7})
    first, second = (told for _, told, _ in read_layers(str(tmp_path / "a.czi")))
    assert first["translate"][-1] == 0
    assert second["translate"][-1] == pytest.approx(place)
    moved = {"x": pytest.approx(apart * 0.25)} if apart > 1000 else {}
    assert second["metadata"].get("offsets", {}) == moved


@pytest.mark.thorough
def test_levels_that_disagree_are_left_out(tmp_path):
    """Of another dtype, another number of axes, larger, or absent: a warning says which."""
    axes = [Axis("y", "nm"), Axis("x", "nm")]
    pixels = counting_frames((64, 48), "u2")
    damaged = {
        "another dtype": lambda path: zarr.create_array(path, data=np.zeros((32, 24), "f4")),
        "three axes": lambda path: zarr.create_array(path, data=np.zeros((1, 32, 24), "u2")),
        "larger": lambda path: zarr.create_array(path, data=np.zeros((99, 24), "u2")),
        "absent": lambda _: None,
    }
    for name, write in damaged.items():
        path = tmp_path / name
        to_zarr(da.from_array(pixels), path, dimension_names=axes, pyramid=2, progress=False)
        shutil.rmtree(path / "level_2" / "data")
        write(path / "level_2" / "data")
        with pytest.warns(UserWarning, match="a level of the pyramid is left out"):
            levels, _ = only(path)
        assert [level.shape for level in levels] == [(64, 48), (32, 24)]


def test_images_of_a_series_stay_apart(tmp_path):
    """The second image of a store in the layout of bioformats2raw is no level of the first."""
    zarr.create_group(tmp_path / "a.zarr", attributes={"ome": {"bioformats2raw.layout": 3}})
    for k in (0, 1):
        arr = da.full((64, 48), k + 1, dtype="u2")
        to_zarr(arr, tmp_path / "a.zarr" / f"{k}", dimension_names=["y", "x"], pyramid=1)
    layers = read_layers(str(tmp_path / "a.zarr"))  # all are shown: no doubt about the default one
    for k, (levels, told, _) in enumerate(layers):
        assert [level.shape for level in levels] == [(64, 48), (32, 24)]
        assert {*np.unique(levels[0].compute()), *np.unique(levels[1].compute())} == {k + 1}
        assert told["visible"] == (k == 0)


def test_other_doubts_are_told(tmp_path):
    """Of frames that may be a scan, for example."""
    path = write_mib(tmp_path / "a.mib", FRAMES.reshape(35, 8, 16), hdr=False)
    with pytest.warns(DoubtWarning, match="scan"):
        read_layers(str(path))


@pytest.mark.thorough
def test_label_images_are_layers_of_labels(tmp_path, plugin):
    """Saving keeps them so; levels have no new labels."""
    pixels, path = counting_frames((64, 48), "u4"), tmp_path / "a.zarr"
    to_zarr(da.from_array(pixels), path, dimension_names=["y", "x"], pyramid=1)
    group = zarr.open_group(path, mode="r+")
    group.attrs["ome"] = {**group.attrs["ome"], "image-label": {}}
    ((levels, told, kind),) = read_layers(str(path))
    assert kind == "labels"
    layer = Labels(levels, **told)
    assert layer.multiscale
    np.testing.assert_array_equal(layer.data[0], pixels)
    for k, data in enumerate((levels, [pixels, pixels[::2, ::2]])):
        saved = str(tmp_path / f"saved-{k}.zarr")
        npe2.write(saved, [Labels(data, multiscale=True)], plugin_name=plugin.name)
        found = zarr.open_group(saved, mode="r")["level_1/data"]
        np.testing.assert_array_equal(found[...], pixels[::2, ::2])
    assert read_layers(str(tmp_path / "saved-0.zarr"))[0][2] == "labels"


def test_an_image_of_ome_zarr_is_shown_with_its_label_images(tmp_path):
    path = tmp_path / "a.zarr"
    for folder, told in (("", {}), ("labels/cells", {"image-label": {}})):
        group = zarr.open_group(path / folder, mode="a", zarr_format=3)
        axes = [{"name": name, "type": "space"} for name in "yx"]
        group.attrs["ome"] = {"multiscales": [{"axes": axes, "datasets": [{"path": "0"}]}], **told}
        group.create_array("0", data=counting_frames((64, 48), "u4"))
    zarr.open_group(path / "labels", mode="a").attrs["ome"] = {"labels": ["cells"]}
    layers = read_layers(str(path))
    assert [kind for *_, kind in layers] == ["image", "labels"]


def test_plates_show_some_wells(tmp_path, monkeypatch):
    monkeypatch.setattr(napari, "MOST_IMAGES", 2)
    wells = ["A/1", "A/2", "B/1"]
    plate = {"plate": {"wells": [{"path": one} for one in wells]}}
    zarr.create_group(tmp_path / "a.zarr", attributes={"ome": plate})
    for name in wells:
        fields = {"well": {"images": [{"path": "0"}]}}
        zarr.create_group(tmp_path / "a.zarr" / name, attributes={"ome": fields})
        arr = da.ones((16, 8), dtype="u1")
        to_zarr(arr, tmp_path / "a.zarr" / name / "0", dimension_names=["y", "x"], progress=False)
    with pytest.warns(UserWarning, match="the first 2 images are shown"):
        layers = read_layers(str(tmp_path / "a.zarr"))
    assert [told["name"] for _, told, _ in layers] == ["a A_1", "a A_2"]


def test_wells_have_levels(tmp_path):
    """Fields of a well are along a slider, at every level of their pyramids."""
    pixels = counting_frames((3, 64, 96), "u2")
    wells = {"plate": {"wells": [{"path": "A/1"}]}}
    zarr.create_group(tmp_path / "a.zarr", attributes={"ome": wells})
    fields = {"well": {"images": [{"path": f"{k}"} for k in range(3)]}}
    zarr.create_group(tmp_path / "a.zarr/A/1", attributes={"ome": fields})
    for k, field in enumerate(pixels):
        options = {"dimension_names": ["y", "x"], "pyramid": 2, "pyramid_method": "nearest"}
        place = tmp_path / f"a.zarr/A/1/{k}"
        to_zarr(da.from_array(field), place, progress=False, **options)
    ((levels, told, kind),) = read_layers(str(tmp_path / "a.zarr"))
    assert (kind, told["multiscale"], told["axis_labels"]) == ("image", True, ["field", "y", "x"])
    assert [level.shape for level in levels] == [(3, 64, 96), (3, 32, 48), (3, 16, 24)]
    for k, level in enumerate(levels):
        np.testing.assert_array_equal(level, pixels[:, :: 1 << k, :: 1 << k])


def test_contrast_of_spectra_is_that_of_their_peak(tmp_path, monkeypatch):
    """Most maps are nearly black; a few rows of spectra are read, not all of each map."""
    pixels = np.zeros((16, 10, 40), "u2")
    pixels[..., 7] = 100 + 10 * np.arange(16)[:, None] + np.arange(10)
    axes = [Axis("scan_y", "nm"), Axis("scan_x", "nm"), Axis("energy", "eV", 10.0)]
    np.save(tmp_path / "si.npy", pixels)
    arr = open_dataset(tmp_path / "si.npy", sig_dims=1)
    to_zarr(arr, tmp_path / "si.zarr", dimension_names=axes, progress=False)
    shapes = []
    read = napari.read_once
    monkeypatch.setattr(napari, "read_once", lambda one: shapes.append(one.shape) or read(one))
    _, told = only(tmp_path / "si.zarr")
    low, high = told["contrast_limits"]
    assert shapes == [(10, 40)] * 3
    assert 100 <= low < high < 230


def test_spectra_are_along_a_slider(tmp_path):
    """A spectrum image is shown as maps."""
    pixels = counting_frames((5, 6, 20), "u2")
    np.save(tmp_path / "si.npy", pixels)
    axes = [Axis("scan_y", "nm"), Axis("scan_x", "nm"), Axis("energy", "eV", 10.0)]
    to_zarr(
        open_dataset(tmp_path / "si.npy", sig_dims=1),
        tmp_path / "si.zarr",
        dimension_names=axes,
        progress=False,
    )
    found, told = only(tmp_path / "si.zarr")
    np.testing.assert_array_equal(found, pixels.transpose(2, 0, 1))
    assert told["axis_labels"] == ["energy", "scan_y", "scan_x"]
    assert told["scale"][0] == 10


def test_samples_stored_as_blue_green_red(tmp_path):
    colours = counting_frames((12, 16, 3), "u1")
    write_czi(tmp_path / "a.czi", [Tile({"C": 0, "Y": 0, "X": 0}, colours)])
    found, told = only(tmp_path / "a.czi")
    assert told["rgb"]
    np.testing.assert_array_equal(np.squeeze(found), colours[..., ::-1])


@pytest.mark.thorough
def test_pyramids_of_zarr_and_tiff(tmp_path):
    pixels = counting_frames((3, 300, 400), "u2")
    arr = da.from_array(pixels, chunks=(1, 300, 400))
    axes = [Axis("z", "nm", 4.0), Axis("y", "nm", 0.5, 2.0), Axis("x", "nm", 0.5)]
    to_zarr(arr, tmp_path / "p.zarr", dimension_names=axes, pyramid=2, progress=False)
    with tifffile.TiffWriter(tmp_path / "p.tif") as file:
        file.write(pixels[0], subifds=1, tile=(64, 64))
        file.write(pixels[0, ::2, ::2], subfiletype=1, tile=(64, 64))
    for name, expected, count in (("p.zarr", pixels, 3), ("p.tif", pixels[0], 2)):
        levels, told = only(tmp_path / name)
        assert len(levels) == count
        np.testing.assert_array_equal(levels[0], expected)
        layer = Image(levels, **told)
        assert layer.multiscale
    assert only(tmp_path / "p.zarr")[1]["scale"] == [4.0, 0.5, 0.5]


def test_complex_pixels_are_shown_as_magnitudes(tmp_path):
    pixels = counting_frames((3, 5, 4), "f4") * (3 + 4j)
    np.save(tmp_path / "wave.npy", pixels.astype("c8"))
    found, told = only(tmp_path / "wave.npy")
    np.testing.assert_allclose(found, abs(pixels), rtol=1e-5)
    Image(found, **told)


@pytest.mark.parametrize("unit", ["", "e-", "(", "2", "x,y", "Intensity"])
def test_units_unknown_to_napari(unit, tmp_path):
    write_dm(tmp_path / "x.dm4", FRAMES, calibrations=[*AXES[:3], (0.0, 0.5, unit)])
    pixels, told = only(tmp_path / "x.dm4")
    layer = Image(pixels, **told)
    assert f"{layer.units[-1]}" == "pixel"
    assert layer.scale[-1] == 0.5


@pytest.mark.thorough
def test_several_files_are_one_layer(tmp_path, plugin):
    """The files of a series open as one array; other files are stacked along a new axis."""
    members = TABLE["k2is"](tmp_path, "sample").members
    series = sorted(str(path) for path in members if path.suffix == ".bin")
    ((pixels, *_),) = read_layers(series)
    np.testing.assert_array_equal(pixels, open_dataset(series))
    paths = [str(tmp_path / f"{k}.nrrd") for k in range(2)]
    for k, path in enumerate(paths):
        write_nrrd(path, FRAMES + k, fields={"spacings": "5 4 3 2"})
    ((pixels, told, _),) = npe2.read(paths, stack=True, plugin_name=plugin.name)
    np.testing.assert_array_equal(pixels, [FRAMES, FRAMES + 1])
    assert told["scale"] == [1.0, 2.0, 3.0, 4.0, 5.0]
    (layer,) = ViewerModel().open(paths, stack=True, plugin=plugin.name)
    np.testing.assert_array_equal(layer.data, [FRAMES, FRAMES + 1])


def test_get_reader_declines_other_paths(scan, tmp_path, monkeypatch):
    """The plugin returns None without an error and without blocking, as on a named pipe."""
    assert get_reader(str(scan)) is get_reader([str(scan)]) is read_layers
    assert get_reader("https://host/scan.mib") is read_layers
    (tmp_path / "fake.mib").write_bytes(b"nothing like it")
    (tmp_path / "empty.dm4").touch()
    os.mkfifo(tmp_path / "pipe.mib")
    (tmp_path / "folder.zarr").mkdir()
    for other in (
        "fake.mib", "empty.dm4", "pipe.mib", "folder.zarr", "none.mib", "", None, 3, b"scan.mib",
        [], [3], io.BytesIO(), "\0.mib",
    ):  # fmt: skip
        one = str(tmp_path / other) if isinstance(other, str) and other else other
        assert get_reader(one) is None
    monkeypatch.setattr("dask_tiled.bridges.napari.recognised_by", lambda *_: 1 / 0)
    assert get_reader(str(scan)) is None


def test_errors_name_the_broken_file(tmp_path):
    path = write_mib(tmp_path / "scan.mib", FRAMES)
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(DatasetError, match=r"scan\.mib"):
        get_reader(str(path))(str(path))


def test_writing(scan, tmp_path, plugin):
    """A written layer keeps its pixels, axes, metadata and name."""
    pixels, told = only(scan)
    layer = Image(pixels, **told | {"name": "my scan"})
    (path,) = npe2.write(str(tmp_path / "out.zarr"), [layer], plugin_name=plugin.name)
    found, again = only(path)
    np.testing.assert_array_equal(found, FRAMES)
    assert found.axes == pixels.axes
    assert found.metadata["dm"].keys() == pixels.metadata["dm"].keys()
    assert again["name"] == "my scan"


def test_writing_layers_calibrated_in_napari(tmp_path):
    """NumPy layers keep their scales and units; only a store written before is replaced."""
    pixels = counting_frames((4, 6, 7), "f4")
    layer = Image(pixels, scale=(3, 0.5, 0.5), translate=(0, 1, 2), units=("s", "Å", "Å"))
    for _ in range(2):
        write_image(str(tmp_path / "out.zarr"), *layer.as_layer_data_tuple()[:2])
    assert validate_zarr_store(str(tmp_path / "out.zarr"))
    found = open_dataset(tmp_path / "out.zarr")
    np.testing.assert_array_equal(found, pixels)
    assert found.axes == (
        Axis("frame", "s", 3.0),
        Axis("y", "Å", 0.5, 1.0),
        Axis("x", "Å", 0.5, 2.0),
    )
    write_image(str(tmp_path / "plain.zarr"), pixels[0], {})
    assert open_dataset(tmp_path / "plain.zarr").axes == (Axis("y"), Axis("x"))
    (tmp_path / "taken.zarr").mkdir()
    (tmp_path / "taken.zarr" / "mine").touch()
    with pytest.raises(DatasetError):
        write_image(str(tmp_path / "taken.zarr"), pixels, {})


@pytest.mark.thorough
def test_layers_of_labelled_arrays_keep_their_axes(tmp_path):
    """Of an opened array and an xarray object, also calibrated anew in napari."""
    axes = (Axis("c", labels=("a", "b"), colours=("#ff0000", "#00ff00")), Axis("y", "µm", 0.5, 3))
    axes += (Axis("x", "µm", 0.25),)
    pixels = da.from_array(counting_frames((2, 9, 8), "u1"))
    to_zarr(pixels, tmp_path / "a.zarr", dimension_names=axes)
    arr, out = open_dataset(tmp_path / "a.zarr"), tmp_path / "out.zarr"
    for data in (arr, dask_tiled.to_xarray(arr)):
        write_image(str(out), *Image(data).as_layer_data_tuple()[:2])
        found = open_dataset(out)
        assert (found.axes, found.axes[0].colours) == (axes, axes[0].colours)
        told = {"axis_labels": ("c", "y", "x"), "scale": (1, 2, 4), "translate": (0, 0, 0)}
        told["units"] = ("pixel", "nm", "nm")
        write_image(str(out), *Image(data, **told).as_layer_data_tuple()[:2])
        found = open_dataset(out)
        assert found.axes == (axes[0], Axis("y", "nm", 2), Axis("x", "nm", 4))


@pytest.mark.parametrize("shape", [(9, 8, 3), (2, 9, 8, 4)])
def test_colours_and_pyramids_round_trip(shape, tmp_path):
    pixels = counting_frames(shape, "u1")
    write_image(str(tmp_path / "rgb.zarr"), *Image(pixels, rgb=True).as_layer_data_tuple()[:2])
    found, told = only(tmp_path / "rgb.zarr")
    np.testing.assert_array_equal(found, pixels)
    assert told["rgb"]
    levels = [counting_frames((64, 48), "u2"), counting_frames((32, 24), "u2")]
    layer = Image(levels, multiscale=True, scale=(2, 2), units=("nm", "nm"))
    write_image(str(tmp_path / "levels.zarr"), *layer.as_layer_data_tuple()[:2])
    found, told = only(tmp_path / "levels.zarr")
    assert [level.shape for level in found] == [(64, 48), (32, 24)]
    np.testing.assert_array_equal(found[0], levels[0])
    assert (told["scale"], told["units"]) == ([2.0, 2.0], ["nm", "nm"])


def test_samples_are_in_the_menu(plugin):
    listed = [one.key for one in plugin.contributions.sample_data]
    assert sorted(listed) == dask_tiled.samples.__all__


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("alloy", [f"alloy {name}" for name in ("EDS", "BF", "HAADF")]),
        ("brain", ["brain"]),
        ("cells", [f"cells_nuclei_0 {name}" for name in ("nuclei", "membranes", "spots")]),
        ("gold", ["gold"]),
        ("shapes", [f"shapes {name}" for name in ("image", "label", "centre")]),
    ],
)
def test_samples(name, layers, plugin):
    """Samples open as layers through napari's menu."""
    opened = ViewerModel().open_sample(plugin.name, name)
    assert [layer.name for layer in opened] == layers


@by_file([*manifest("EMD"), *manifest("TIFF"), *manifest("BLO")], "row")
def test_real_files(data, row):
    """Napari accepts each layer of a real file."""
    path = str(data / row["file"])
    layers = get_reader(path)(path)
    for pixels, told, kind in layers:
        assert Layer.create(pixels, told, kind).axis_labels == tuple(told["axis_labels"])


@pytest.mark.thorough
def test_results_stored_with_an_export(scan, tmp_path):
    """Stored results become further layers, hidden at first."""
    arr = open_dataset(scan)
    beside = {"mean": arr.mean((0, 1)), "navigator": arr.sum((2, 3)), "top": arr.max()}
    to_zarr(arr, tmp_path / "out.zarr", with_results=beside, pyramid=1)
    (levels, told, _), *others = read_layers(str(tmp_path / "out.zarr"))
    assert [level.shape for level in levels] == [(5, 7, 8, 16), (5, 7, 4, 8)]
    assert told["visible"]
    for name, (pixels, told, _) in zip(["mean", "navigator"], others, strict=True):
        assert (told["name"], told["visible"]) == (f"out {name}", False)
        np.testing.assert_array_equal(pixels, beside[name].compute())
        assert told["scale"] == ([0.25, 0.25] if name == "mean" else [0.5, 0.5])
