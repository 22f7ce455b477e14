"""OME-Zarr: versions, series of bioformats2raw, plates, wells, labels, and invalid metadata."""

import json
import re
import shutil

import dask.array as da
import numpy as np
import pytest
import zarr
from checks import refused
from range_server import serving

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    DoubtError,
    DoubtWarning,
    describe,
    open_dataset,
    open_datasets,
    to_zarr,
)

PIXELS = np.random.default_rng(0).integers(0, 999, (2, 3, 4, 16, 20), dtype="u2")
NAMES = "DAPI", "GFP", "RFP"
TYPES = {"t": "time", "c": "channel"}
UNITS = {"t": "second", "z": "micrometer", "y": "micrometer", "x": "micrometer"}
SCALE = 3.0, 1.0, 0.5, 0.25, 0.25


def axes_of(dims):
    units = {name: {"unit": UNITS[name]} for name in dims if name in UNITS}
    return [{"name": n, "type": TYPES.get(n, "space"), **units.get(n, {})} for n in dims]


def scales(scale, *offset):
    told = [{"type": "scale", "scale": [*scale]}]
    return told + [{"type": "translation", "translation": [*one]} for one in offset]


def multiscale(dims="tczyx", scale=SCALE, offset=(), paths=("0", "1"), **more):
    """Return an element of multiscales whose levels halve y and x."""
    datasets = []
    for k, path in enumerate(paths):
        factors = [2**k if name in "yx" else 1 for name in dims]
        moved = scales(np.multiply(scale, factors).tolist(), *offset)
        datasets.append({"path": path, "coordinateTransformations": moved})
    return {"axes": axes_of(dims), "datasets": datasets, **more}


def group(path, told, version="0.5"):
    """Write a group with metadata of OME-Zarr."""
    path.mkdir(parents=True, exist_ok=True)
    if version == "0.5":
        document = {"zarr_format": 3, "node_type": "group"}
        document["attributes"] = {"ome": {"version": version, **told}}
        (path / "zarr.json").write_text(json.dumps(document))
    else:
        (path / ".zgroup").write_text('{"zarr_format": 2}')
        (path / ".zattrs").write_text(json.dumps(told))


def image(path, pixels, version="0.5", told=None, **more):
    """Write an image of two levels."""
    told = told or multiscale(version=version)
    group(path, {"multiscales": [told], **more}, version)
    for k, one in enumerate(told.get("datasets", ())):
        level = pixels[..., :: 2**k, :: 2**k]
        chunks = tuple(min(8, n) for n in level.shape)
        options = {"zarr_format": 3}
        if version != "0.5":
            separator = {"name": "v2", "separator": "/"}
            options = {"zarr_format": 2, "chunk_key_encoding": separator}
        array = zarr.create_array(
            path / one["path"], shape=level.shape, dtype=level.dtype, chunks=chunks, **options
        )
        array[...] = level


VERSIONS = {
    "0.1": {"datasets": [{"path": "0"}]},
    "0.2": {"datasets": [{"path": "0"}]},
    "0.3": {"datasets": [{"path": "0"}], "axes": [*"tczyx"]},
    "0.4": multiscale(paths=("0",)),
    "0.5": multiscale(paths=("0",)),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_versions(tmp_path, version):
    image(tmp_path / "a.zarr", PIXELS, version, {**VERSIONS[version], "version": version})
    arr = open_dataset(tmp_path / "a.zarr")
    np.testing.assert_array_equal(arr.compute(), PIXELS)
    assert arr.dims == (*"tczyx",)
    scale = [axis.scale for axis in arr.axes]
    assert scale == ([*SCALE] if version in ("0.4", "0.5") else [1] * 5)
    assert not arr.description.doubts
    alone = open_dataset(tmp_path / "a.zarr/0")  # the group is not in the folder that is opened
    assert alone.dims == ("nav_0", "nav_1", "nav_2", "y", "x")


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_channels(tmp_path, version):
    channels = [{"label": name, "color": "00A1FF"} for name in NAMES[:2]]
    channels.append({"label": NAMES[2], "color": "ff8000", "window": {"start": 5, "end": 99}})
    image(tmp_path / "a.zarr", PIXELS, version, omero={"channels": channels})
    arr = open_dataset(tmp_path / "a.zarr")
    assert arr.axes[1].labels == NAMES
    assert arr.axes[1].colours == ("#00a1ff", "#00a1ff", "#ff8000")
    told = arr.metadata["zarr"]["omero"]["channels"]
    assert told[2]["window"] == {"start": 5, "end": 99}
    level = open_dataset(tmp_path / "a.zarr", dataset="1")
    assert level.axes[1].labels == NAMES
    np.testing.assert_array_equal(level.compute(), PIXELS[..., ::2, ::2])


@pytest.mark.parametrize(
    "channels",
    [
        [{"label": "DAPI"}],
        [{"label": name} for name in "abcd"],
        [{"label": ""}, {"label": "b"}, {"label": "c"}],
        [{"color": "red"}, {"color": "12345"}, {"color": None}],
        [3, None, "x"],
        {"label": "DAPI"},
        "DAPI",
        7,
    ],
)
def test_invalid_channels_are_left_out(tmp_path, channels):
    """More or fewer names than channels, empty names, other values."""
    image(tmp_path / "a.zarr", PIXELS, omero={"channels": channels})
    axis = open_dataset(tmp_path / "a.zarr").axes[1]
    assert (axis.name, axis.labels, axis.colours) == ("c", (), ())


INVALID_SCALES = {
    "none": None,
    "short": scales([1, 1]),
    "long": scales([1] * 6),
    "text": scales(["a"] * 5),
    "nested": scales([[1] * 5]),
    "negative": scales([-1] * 5),
    "zero": scales([0] * 5),
    "infinite": scales([1e999] * 5),
    "no list": 3,
    "a path": [{"type": "scale", "path": "scales"}],
    "no type": [{"scale": [1] * 5}],
}


@pytest.mark.parametrize("name", INVALID_SCALES)
def test_names_without_valid_scales(tmp_path, name):
    told = multiscale(paths=("0",))
    moved = INVALID_SCALES[name]
    told["datasets"] = [{"path": "0", **({"coordinateTransformations": moved} if moved else {})}]
    image(tmp_path / "a.zarr", PIXELS, told=told)
    arr = open_dataset(tmp_path / "a.zarr")
    assert arr.dims == (*"tczyx",)
    assert {(axis.scale, axis.offset, axis.units) for axis in arr.axes} == {(1.0, 0.0, "")}


@pytest.mark.parametrize("axes", [None, [], [*"yx"], "tczyx", [3] * 5, [{}] * 5, {"name": "t"}])
def test_invalid_axes(tmp_path, axes):
    """Names are the usual ones."""
    image(tmp_path / "a.zarr", PIXELS, told={**multiscale(paths=("0",)), "axes": axes})
    arr = open_dataset(tmp_path / "a.zarr")
    assert arr.dims == ("nav_0", "nav_1", "nav_2", "y", "x")
    np.testing.assert_array_equal(arr.compute(), PIXELS)


def series(path, pixels, version, *, listed=True, names=("", "")):
    """Write images in the layout of bioformats2raw."""
    group(path, {"bioformats2raw.layout": 3}, version)
    told = {"series": [f"{k}" for k in range(len(pixels))]} if listed else {}
    group(path / "OME", told, version)
    for k, (one, name) in enumerate(zip(pixels, names, strict=True)):
        told = multiscale(version=version, **({"name": name} if name else {}))
        image(path / f"{k}", one, version, told)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("listed", [True, False])
def test_series(tmp_path, version, listed):
    """All images are listed, and chosen by number, path or name."""
    path = tmp_path / "a.zarr"
    series(path, [PIXELS, PIXELS + 1], version, listed=listed, names=("cells", "overview"))
    desc = describe(path)
    (doubt,) = desc.doubts
    assert "2 arrays may be meant; 0 is shown, the first image of the group" in doubt.text
    facts = desc.metadata["zarr"]
    assert facts["dataset"] == "0"
    assert facts["datasets"] == {
        "0": {"name": "cells", "shape": PIXELS.shape},
        "1": {"name": "overview", "shape": PIXELS.shape},
    }
    assert facts["levels"] == ("0/0", "0/1")
    np.testing.assert_array_equal(open_dataset(path, doubts="ignore").compute(), PIXELS)
    for dataset in (1, "1", "overview", "1/0"):
        arr = open_dataset(path, dataset=dataset)
        np.testing.assert_array_equal(arr.compute(), PIXELS + 1)
        assert arr.dims == (*"tczyx",)
        assert arr.metadata["zarr"]["levels"] == ("1/0", "1/1")
    half = open_dataset(path, dataset="1/1")
    np.testing.assert_array_equal(half.compute(), PIXELS[..., ::2, ::2] + 1)
    assert half.axes[3].scale == 0.5
    for dataset in (2, -1, True):
        with pytest.raises(DatasetError, match="a number below 2, or one of 'cells', 'overview'"):
            open_dataset(path, dataset=dataset)
    with pytest.raises(DatasetError, match="the group has no such array; expected 0/0, 0/1, 1/0"):
        open_dataset(path, dataset="2")


def test_small_images_of_a_series_are_no_doubt(tmp_path):
    series(tmp_path / "a.zarr", [PIXELS, PIXELS[:1, :1, :1]], "0.5")
    assert not describe(tmp_path / "a.zarr").doubts


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_remote_series(tmp_path, version):
    series(tmp_path / "a.zarr", [PIXELS, PIXELS + 1], version)
    with serving(tmp_path) as server:
        arr = open_dataset(server.url(tmp_path / "a.zarr"), dataset=1)
        np.testing.assert_array_equal(arr.compute(), PIXELS + 1)
    assert arr.metadata["zarr"]["datasets"] == {name: {"name": name} for name in "01"}


WELLS = {"A/1": 0, "A/2": 10, "B/1": 20}


def plate(path, version="0.5", wells=WELLS, fields=2):
    """Write a plate; the pixels of a field are the number of its well and its own."""
    listed = [{"path": name, "rowIndex": 0, "columnIndex": 0} for name in wells]
    told = {"wells": listed, "rows": [{"name": "A"}, {"name": "B"}], "columns": [{"name": "1"}]}
    group(path, {"plate": {"version": version, **told}}, version)
    for name, first in wells.items():
        images = [{"path": f"{k}"} for k in range(fields)]
        group(path / name, {"well": {"version": version, "images": images}}, version)
        for k in range(fields):
            offset = [0, 0, 0, 7.0, 3.0 + 5.0 * k]
            inner = multiscale(offset=[offset], version=version)
            image(path / name / f"{k}", PIXELS + first + k, version, inner)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_plates(tmp_path, version):
    """Wells are listed; the fields of a well are an axis; a field is chosen by its path."""
    path = tmp_path / "a.zarr"
    plate(path, version)
    desc = describe(path)
    (doubt,) = desc.doubts
    assert "3 arrays may be meant; A/1 is shown, the first well of the group" in doubt.text
    assert [*desc.metadata["zarr"]["datasets"]] == [*WELLS]
    with pytest.warns(DoubtWarning, match=re.escape(f"{path}: 3 arrays may be meant")):
        open_dataset(path)
    with pytest.raises(DoubtError, match=re.escape(f"{path}: 3 arrays may be meant")):
        open_dataset(path, doubts="raise")
    for row in ("A", "A/"):
        with pytest.raises(DatasetError, match=f"not a well; expected A/1, A/2; found {row}"):
            open_dataset(path, dataset=row)
    for dataset, first in (*WELLS.items(), (1, 10)):
        arr = open_dataset(path, dataset=dataset)
        assert arr.dims == ("field", *"tczyx")
        assert arr.shape == (2, *PIXELS.shape)
        assert arr.description.base_shape == (1, 2, 3, 4, 8, 8)
        np.testing.assert_array_equal(arr.compute(), [PIXELS + first, PIXELS + first + 1])
        np.testing.assert_array_equal(arr[1, :, 1, 2, 3:5], (PIXELS + first + 1)[:, 1, 2, 3:5])
        assert [(axis.units, axis.scale, axis.offset) for axis in arr.axes[3:]] == [
            ("µm", 0.5, 0), ("µm", 0.25, 7), ("µm", 0.25, 0)
        ]  # fmt: skip
        assert arr.metadata["zarr"]["positions"] == ((0, 0, 0, 7, 3), (0, 0, 0, 7, 8))
        name = dataset if isinstance(dataset, str) else "A/2"
        assert arr.axes[0].labels == (f"{name}/0", f"{name}/1")
    fields = open_datasets(path)
    assert [*fields] == [f"{well}/{number}" for well in WELLS for number in (0, 1)]
    np.testing.assert_array_equal(fields["A/2/1"].compute(), PIXELS + 11)
    field = open_dataset(path, dataset="B/1/1")
    np.testing.assert_array_equal(field.compute(), PIXELS + 21)
    assert [axis.offset for axis in field.axes] == [0, 0, 0, 7, 8]
    assert field.metadata["zarr"]["levels"] == ("B/1/1/0", "B/1/1/1")
    level = open_dataset(path, dataset="B/1/1/1")
    np.testing.assert_array_equal(level.compute(), (PIXELS + 21)[..., ::2, ::2])
    well = open_dataset(path / "A/2")
    np.testing.assert_array_equal(well.compute(), [PIXELS + 10, PIXELS + 11])
    np.testing.assert_array_equal(open_dataset(path / "A/2", dataset=1).compute(), PIXELS + 11)


def test_levels_of_wells(tmp_path):
    """A well has the levels that all of its fields have; `level=` opens one, of an image, too."""
    path = tmp_path / "a.zarr"
    plate(path)
    well = open_dataset(path, dataset="A/2")
    whole, half = well.levels()
    assert whole is well
    expected = np.stack([PIXELS + 10, PIXELS + 11])[..., ::2, ::2]
    np.testing.assert_array_equal(half.compute(), expected)
    assert half.axes[0].labels == ("A/2/0", "A/2/1")
    assert [axis.scale for axis in half.axes[-2:]] == [0.5, 0.5]
    assert half.metadata["zarr"]["level"] == 1
    for store, options in ((path, {"dataset": "A/2"}), (path / "A/2", {})):
        arr = open_dataset(store, level=1, **options)
        np.testing.assert_array_equal(arr.compute(), expected)
        assert len(arr.levels()) == 1
    field = open_dataset(path, dataset="A/2/1", level=1)
    np.testing.assert_array_equal(field.compute(), expected[1])
    assert len(field.levels()) == 1
    for dataset, level, known in (("A/2", 2, "0 to 1"), ("A/2/1/0", 1, "0 to 0")):
        with pytest.raises(DatasetError, match=f"no such level; expected {known}; found {level}"):
            open_dataset(path, dataset=dataset, level=level)
    document = path / "A/2/1/zarr.json"
    told = json.loads(document.read_text())
    told["attributes"]["ome"]["multiscales"][0]["datasets"].pop()
    document.write_text(json.dumps(told))
    assert len(open_dataset(path, dataset="A/2").levels()) == 1


def test_wells_of_one_field(tmp_path):
    plate(tmp_path / "a.zarr", fields=1)
    arr = open_dataset(tmp_path / "a.zarr", dataset="A/2")
    np.testing.assert_array_equal(arr.compute(), PIXELS + 10)


def test_a_well_with_an_empty_path(tmp_path):
    """The path is that of no well: the others are listed and opened."""
    path = tmp_path / "a.zarr"
    plate(path, fields=1)
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["ome"]["plate"]["wells"].insert(0, {"path": ""})
    (path / "zarr.json").write_text(json.dumps(document))
    assert [*open_datasets(path)] == ["A/1/0", "A/2/0", "B/1/0"]
    assert open_dataset(path, doubts="ignore").metadata["zarr"]["dataset"] == "A/1"


def test_missing_wells(tmp_path):
    """The first existing well opens; a missing one is named."""
    path = tmp_path / "a.zarr"
    plate(path)
    (path / "A/1").rename(tmp_path / "lost")
    assert open_dataset(path, doubts="ignore").metadata["zarr"]["dataset"] == "A/2"
    found = open_datasets(path)
    assert [*found] == ["A_1", "A/2/0", "A/2/1", "B/1/0", "B/1/1"]
    with refused(path / "zarr.json", "the group has no such array"):
        found["A_1"]
    with refused(path / "zarr.json", "the group has no such array"):
        open_dataset(path, dataset="A/1")
    for name in ("A/2", "B/1"):
        (path / name).rename(tmp_path / name.replace("/", ""))
    with refused(path / "zarr.json", "no well of the group exists; found A/1, A/2, B/1"):
        open_dataset(path)


def test_missing_levels(tmp_path):
    """A listed level that is missing is named, in exports with consolidated metadata, too."""
    to_zarr(da.ones((64, 48), dtype="u2"), tmp_path / "a.zarr", pyramid=1)
    (tmp_path / "a.zarr/level_1").rename(tmp_path / "level")
    path = tmp_path / "a.zarr" / "zarr.json"
    assert open_dataset(tmp_path / "a.zarr").shape == (64, 48)
    for name in ("level_1/data", "data"):
        with refused(path, f"an array that the group lists is missing; found {name}"):
            open_dataset(tmp_path / "a.zarr", dataset=name if name != "data" else None)
        shutil.rmtree(tmp_path / "a.zarr" / "data", ignore_errors=True)
    image(tmp_path / "b.zarr", PIXELS)
    zarr.create_array(tmp_path / "b.zarr/t", data=np.arange(2))
    with refused(tmp_path / "b.zarr/zarr.json", "no such array; expected 0, 1; found 2"):
        open_dataset(tmp_path / "b.zarr", dataset="2")


def test_missing_and_different_fields(tmp_path):
    path = tmp_path / "a.zarr"
    plate(path)
    (path / "A/1/1").rename(tmp_path / "lost")
    with refused(path / "A/1/zarr.json", "the group has no such array; expected 0/0, 0/1; found 1"):
        open_dataset(path, dataset="A/1")
    np.testing.assert_array_equal(open_dataset(path, dataset="A/1/0").compute(), PIXELS)
    group(path / "A/2/1", {"multiscales": []})
    with pytest.raises(CorruptFileError, match="a field of the well is no image; found 1"):
        open_dataset(path, dataset="A/2")
    image(path / "B/1/1", PIXELS[:1].astype("u1"), told=multiscale(paths=("a",)))
    with pytest.raises(DatasetError, match="the fields of the well differ; expected") as caught:
        open_dataset(path, dataset="B/1")
    assert "u1" not in caught.value.expected
    assert "uint8" in caught.value.found


def test_long_lists_are_bounded(tmp_path):
    wells = [{"path": f"A/{k}"} for k in range(20_000)]
    group(tmp_path / "a.zarr", {"plate": {"wells": wells}})
    with refused(tmp_path / "a.zarr" / "zarr.json", "no well of the group exists"):
        open_dataset(tmp_path / "a.zarr")
    series_of = {"series": [f"{k}" for k in range(20_000)]}
    group(tmp_path / "b.zarr", {"bioformats2raw.layout": 3})
    group(tmp_path / "b.zarr" / "OME", series_of)
    image(tmp_path / "b.zarr" / "0", PIXELS)
    assert len(describe(tmp_path / "b.zarr").metadata["zarr"]["datasets"]) == 10_000


def test_labels(tmp_path):
    """Label images are found by their group, or by their path in the image."""
    path = tmp_path / "a.zarr"
    image(path, PIXELS)
    group(path / "labels", {"labels": ["cells"]})
    labels = np.arange(16 * 20, dtype="i4").reshape(16, 20) // 7
    told = multiscale("yx", (0.25, 0.25), paths=("0",))
    image(path / "labels/cells", labels, told=told, **{"image-label": {"version": "0.5"}})
    np.testing.assert_array_equal(open_dataset(path / "labels").compute(), labels)
    arr = open_dataset(path, dataset="labels/cells")
    arr.to_zarr(tmp_path / "again.zarr", pyramid=1, progress=False)
    half = open_dataset(tmp_path / "again.zarr", dataset="level_1/data")
    np.testing.assert_array_equal(half.compute(), labels[::2, ::2])
    np.testing.assert_array_equal(arr.compute(), labels)
    assert (arr.dims, arr.axes[1].scale) == (("y", "x"), 0.25)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("name", [None, "brain"])
def test_labels_are_listed_with_their_image(tmp_path, version, name):
    """The image is the default, without a doubt; label images are further datasets."""
    path = tmp_path / "a.zarr"
    image(path, PIXELS, version, multiscale(**({"name": name} if name else {})))
    group(path / "labels", {"labels": ["cells", "nuclei"]}, version)
    for k, one in enumerate(("cells", "nuclei")):
        told = multiscale("yx", (0.25, 0.25), name="any")
        image(path / "labels" / one, PIXELS[0, 0, k], version, told, **{"image-label": {}})
    desc = describe(path, doubts="raise")
    assert desc.shape == PIXELS.shape
    listed = desc.metadata["zarr"]["datasets"]
    assert {key: one["shape"] for key, one in listed.items()} == {
        "0": PIXELS.shape, "labels/cells": (16, 20), "labels/nuclei": (16, 20)
    }  # fmt: skip
    datasets = open_datasets(path, missing="raise", doubts="raise")
    assert [*datasets] == [name or "data", "labels_cells", "labels_nuclei"]
    np.testing.assert_array_equal(datasets["labels_nuclei"], PIXELS[0, 0, 1])
    np.testing.assert_array_equal(datasets[name or "data"], PIXELS)
    for dataset, expected in ((0, PIXELS), (2, PIXELS[0, 0, 1]), ("labels/cells", PIXELS[0, 0, 0])):
        np.testing.assert_array_equal(open_dataset(path, dataset=dataset), expected)
    np.testing.assert_array_equal(open_dataset(path, dataset="1"), PIXELS[..., ::2, ::2])


def test_numbers_of_arrays(tmp_path):
    """The second array of a group without images; a pyramid is one image."""
    root = zarr.create_group(tmp_path / "a.zarr")
    root.create_array("b/first", data=PIXELS[0, 0])
    root.create_array("b/second", data=PIXELS[1, 0])
    np.testing.assert_array_equal(open_dataset(tmp_path / "a.zarr", dataset=1), PIXELS[1, 0])
    image(tmp_path / "b.zarr", PIXELS)
    np.testing.assert_array_equal(open_dataset(tmp_path / "b.zarr", dataset=0), PIXELS)
    with pytest.raises(DatasetError, match="no such dataset; expected a number below 1"):
        open_dataset(tmp_path / "b.zarr", dataset=1)
