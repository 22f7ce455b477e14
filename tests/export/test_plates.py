"""Plates of OME-Zarr: fields are named by row, column and number."""

import os
import shutil

import dask.array as da
import numpy as np
import pytest
import yaozarrs
import zarr
from click.testing import CliRunner
from ome_judges import judged, lacking, levels_of

from dask_tiled import (
    Axis,
    DatasetError,
    open_dataset,
    open_datasets,
    to_zarr,
    verify_zarr,
)
from dask_tiled.command_line.app import app
from dask_tiled.opened.axes import labelled
from dask_tiled.testing import counting_frames

NAMES = "B/2/0", "B/2/1", "A/10/0", "A/10/1", "A/2/0", "A/2/1", "AA/2/0", "AA/2/1"
PIXELS = counting_frames((len(NAMES), 3, 32, 48), "u2")
FIELDS = dict(zip(NAMES, PIXELS, strict=True))
QUIET = {"progress": False, "pyramid": 1, "pyramid_method": "nearest"}


def axes(number):
    """Return axes of a field; the second one of a well lies beside the first one."""
    channels = Axis("c", labels=("DAPI", "GFP", "Cy5"))
    return channels, Axis("y", "µm", 0.5), Axis("x", "µm", 0.5, 24.0 * number)


def lazy(fields):
    return {name: labelled(da.from_array(x), axes(int(name[-1]))) for name, x in fields.items()}


def metadata(group, version):
    """Return the metadata of OME-Zarr of a group without the version, which is checked."""
    told = {key: x for key, x in dict(group.attrs).items() if key != "dask_tiled"}
    if version == "0.5":
        ((key, told),) = told.items()
        assert (key, told.pop("version")) == ("ome", version)
    ((kind, inner),) = told.items()
    assert version == "0.5" or inner.pop("version") == version
    return {kind: inner}


@pytest.mark.thorough
@pytest.mark.parametrize(("zarr_format", "version"), [(2, "0.4"), (3, "0.5")])
def test_plates(tmp_path, zarr_format, version):
    """Rows, columns and wells are listed; wells open with pixels, names and places of fields."""
    path, fields = tmp_path / "screen.zarr", lazy(FIELDS)
    group = to_zarr(fields, path, zarr_format=zarr_format, **QUIET)
    wells = {"B/2": (1, 0), "A/10": (0, 1), "A/2": (0, 0), "AA/2": (2, 0)}
    assert metadata(group, version) == {
        "plate": {
            "name": "screen",
            "rows": [{"name": "A"}, {"name": "B"}, {"name": "AA"}],
            "columns": [{"name": "2"}, {"name": "10"}],
            "field_count": 2,
            "wells": [
                {"path": name, "rowIndex": row, "columnIndex": column}
                for name, (row, column) in wells.items()
            ],
        }
    }
    for name in wells:
        images = [{"path": "0"}, {"path": "1"}]
        assert metadata(group[name], version) == {"well": {"images": images}}
    assert yaozarrs.validate_zarr_store(str(path)) is not None
    verify_zarr(path, fields)
    assert [*open_datasets(path)] == [*NAMES]
    for number, name in enumerate(wells):
        well = open_dataset(path, dataset=name)
        expected = PIXELS[2 * number : 2 * number + 2]
        np.testing.assert_array_equal(well, expected)
        np.testing.assert_array_equal(well.levels()[1], expected[..., ::2, ::2])
        assert well.axes[1].labels == ("DAPI", "GFP", "Cy5")
        assert well.metadata["zarr"]["positions"] == ((0, 0, 0), (0, 0, 24))
    field = open_dataset(path, dataset="A/2/1")
    np.testing.assert_array_equal(field, FIELDS["A/2/1"])
    assert field.axes == axes(1)
    with pytest.raises(DatasetError, match="the array exists"):
        to_zarr(fields, path, **QUIET)
    to_zarr({"A/1/0": PIXELS[0]}, path, overwrite=True, **QUIET)
    assert sorted(one.name for one in path.iterdir()) == ["A", "zarr.json"]


@pytest.mark.thorough
@pytest.mark.parametrize(("zarr_format", "version"), [(2, "0.4"), (3, "0.5")])
def test_copies(tmp_path, zarr_format, version):
    """A copy of a plate is a plate, in place, too, and if fields of a well differ."""
    path, copy, options = tmp_path / "a.zarr", tmp_path / "b.zarr", QUIET | {"overwrite": True}
    options["zarr_format"] = zarr_format
    fields = {name: FIELDS[name] for name in ("B/2/1", "A/10/0", "A/2/0")}
    fields = lazy(fields) | {"A/2/1": da.ones((5, 7), dtype="f4")}
    told = metadata(to_zarr(fields, path, **options), version)
    datasets = open_datasets(path)
    assert [*datasets] == [*fields]
    copied = metadata(to_zarr(datasets, copy, **options), version)
    assert copied["plate"] | {"name": "a"} == told["plate"]
    verify_zarr(copy, fields)
    assert metadata(to_zarr(datasets, path, **options), version) == told
    for name, arr in datasets.items():
        np.testing.assert_array_equal(arr, fields[name])
    every = ["--all", "--overwrite", "--zarr-format", str(zarr_format), "--no-progress"]
    done = CliRunner().invoke(app, ["convert", str(path), str(path), *every])
    assert done.exit_code == 0, done.output
    assert metadata(zarr.open_group(path, mode="r"), version) == told
    verify_zarr(path, fields)
    assert yaozarrs.validate_zarr_store(str(path)) is not None


@pytest.mark.thorough
def test_plates_in_memory():
    store = zarr.storage.MemoryStore()
    to_zarr(FIELDS, store, **QUIET)
    plate = zarr.open_group(store, mode="r")
    assert plate.attrs["ome"]["plate"]["name"] == "plate"
    for name, pixels in FIELDS.items():
        np.testing.assert_array_equal(plate[f"{name}/data"][...], pixels)
    verify_zarr(store, FIELDS)


@pytest.mark.thorough
@pytest.mark.parametrize(("zarr_format", "version"), [(2, "0.4"), (3, "0.5")])
def test_lost_fields(tmp_path, zarr_format, version):
    """Wells and the plate list the fields that are there, and the same call adds the others."""
    path, options = tmp_path / "a.zarr", QUIET | {"zarr_format": zarr_format}

    def ome(group):
        return dict(group.attrs) if version == "0.4" else group.attrs["ome"]

    lost = {"A/2/1": tmp_path / "lost.npy", "C/1/0": tmp_path / "lost.npy"}
    fields = lazy(FIELDS) | lost
    with pytest.raises(DatasetError, match="2 of 9 arrays are not stored: 'A/2/1', 'C/1/0'"):
        to_zarr(fields, path, **options)
    group = zarr.open_group(path)
    assert ome(group["A/2"])["well"]["images"] == [{"path": "0"}]
    assert [one["name"] for one in ome(group)["plate"]["rows"]] == ["A", "B", "AA"]
    assert "C" not in group
    group.update_attributes({"of user": 1})
    assert yaozarrs.validate_zarr_store(str(path)) is not None
    np.save(tmp_path / "lost.npy", PIXELS[0])
    first = path / "B/2/0/data" / ("zarr.json" if zarr_format == 3 else ".zarray")
    kept = os.stat(first).st_ino
    to_zarr(fields, path, **options)
    assert os.stat(first).st_ino == kept
    group = zarr.open_group(path, mode="r")
    assert ome(group["A/2"])["well"]["images"] == [{"path": "0"}, {"path": "1"}]
    told = ome(group)["plate"]
    wells = {"B/2": (1, 1), "A/10": (0, 2), "A/2": (0, 1), "AA/2": (3, 1), "C/1": (2, 0)}
    for name, one in zip(wells, told["wells"], strict=True):
        assert (one["path"], (one["rowIndex"], one["columnIndex"])) == (name, wells[name])
    assert [one["name"] for one in told["rows"]] == ["A", "B", "C", "AA"]
    assert [one["name"] for one in told["columns"]] == ["1", "2", "10"]
    assert group.attrs["of user"] == 1
    assert yaozarrs.validate_zarr_store(str(path)) is not None
    assert "complete" not in group.attrs["dask_tiled"]
    np.testing.assert_array_equal(group["C/1/0/data"][...], PIXELS[0])
    verify_zarr(path, fields)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("field", "options", "found"),
    [
        (da.ones(5), {}, "layout='group', axes dim_0"),
        (labelled(da.ones((2,) * 4), map(Axis, "zcyx")), {}, "layout='group', axes z, c, y, x"),
        (da.ones((4, 4)), {"layout": "array"}, "layout='array', axes dim_0, dim_1"),
    ],
)
def test_fields_that_are_no_images(tmp_path, zarr_format, field, options, found):
    """They are named before anything is written: a plate would not list them."""
    path, options = tmp_path / "a.zarr", options | {"progress": False, "zarr_format": zarr_format}
    fields = {"A/1/0": PIXELS[0]} if "layout" not in options else {}
    fields |= {"A/2/0": tmp_path / "lost.npy", "A/3/0": field}
    problem = "the field 'A/3/0' of the plate is not an image of OME-Zarr; expected layout='group'"
    with pytest.raises(DatasetError, match=problem) as caught:
        to_zarr(fields, path, **options)
    assert caught.value.found == found
    assert [*tmp_path.iterdir()] == []
    to_zarr({"B/1/0": PIXELS[1]}, path, progress=False)
    with pytest.raises(DatasetError, match=problem):
        to_zarr(fields, path, overwrite=True, **options)
    np.testing.assert_array_equal(open_dataset(path, dataset="B/1/0"), PIXELS[1])


def test_deleted_wells(tmp_path):
    """Errors name the arrays that are there, not those that the metadata of the plate list."""
    path = tmp_path / "a.zarr"
    to_zarr(FIELDS, path, progress=False)
    for well in ("A/2", "A/10", "AA/2"):
        shutil.rmtree(path / well)
    with pytest.raises(DatasetError, match="the group has no such array") as caught:
        open_dataset(path, dataset="A/2")
    assert caught.value.expected == "B/2/0/data, B/2/1/data"


@pytest.mark.parametrize(
    "names", [("A/1/0", "map"), ("a/1/0",), ("A/1",), ("A/x/0",), ("A/1/0/2",), ("CON/1/0",)]
)
def test_other_names_are_nodes(tmp_path, names):
    """Only if all names are those of fields, the group is a plate."""
    arrays = dict.fromkeys(names, PIXELS[0, 0])
    group = to_zarr(arrays, tmp_path / "a.zarr", **QUIET)
    assert "plate" not in group.attrs["ome"]
    assert {name for name, _ in group.groups()} == {x.replace("/", "_") for x in names} | {"OME"}


@pytest.mark.slow
def test_judges_accept_plates(tmp_path):
    """Those that read plates: schemas and models of others, and the pixels that readers find."""
    if missing := lacking():
        reason = f"judges of OME-Zarr are not installed: {missing}"
        if os.environ.get("DASK_TILED_REQUIRE_READERS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    names = [f"{row}/{column}/{field}" for row in "AB" for column in (1, 2) for field in (0, 1)]
    fields = dict(zip(names, PIXELS, strict=True))
    for version, zarr_format in (("0.4", 2), ("0.5", 3)):
        path = tmp_path / f"plate {version}"
        lost = {name: tmp_path / "lost.npy" for name in names if name.startswith("B/2")}
        with pytest.raises(DatasetError, match="2 of 8 arrays are not stored"):
            to_zarr(lazy(fields) | lost, path, zarr_format=zarr_format, **QUIET)
        to_zarr(lazy(fields), path, zarr_format=zarr_format, **QUIET)
        (tmp_path / f"well {version}").symlink_to(path / "A/1")
    first = PIXELS[::2]  # readers that show all wells at once show the first field of each
    whole = np.concatenate([np.concatenate([*first[k : k + 2]], -1) for k in (0, 2)], -2)
    steps = [(slice(None),) * 2, (slice(None, None, 2),) * 2]
    pictures = levels_of(whole[(..., *step)] for step in steps)
    found = judged(tmp_path)
    for version in ("0.4", "0.5"):
        plate = {judge: told[f"plate {version}"] for judge, told in found.items()}
        well = {judge: told[f"well {version}"] for judge, told in found.items()}
        assert plate["schemas"] == plate["yaozarrs"] == {}
        assert well["schemas"] == {}
        kinds = plate["ome-zarr-models"], well["ome-zarr-models"]
        assert kinds == ({"kind": "HCS"}, {"kind": "Well"})
        for judge in ("ome-zarr", "napari-ome-zarr"):
            assert plate[judge]["levels"] == pictures
        levels = [field[(..., *step)] for field in PIXELS for step in steps]
        assert plate["ngff-zarr"]["levels"] == levels_of(levels)
