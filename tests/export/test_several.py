"""`to_zarr` of several arrays: a node for each, names, faults, interruption and resuming."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import xarray as xr
import yaozarrs
import zarr
from checks import damage
from click.testing import CliRunner
from ome_judges import validate
from zarr.storage import LocalStore, MemoryStore, StorePath, ZipStore

import dask_tiled
from dask_tiled import (
    Axis,
    DatasetError,
    DoubtWarning,
    TilingError,
    VerificationError,
    describe,
    open_dataset,
    open_datasets,
    to_zarr,
    verify_zarr,
)
from dask_tiled.command_line.app import app
from dask_tiled.export.zarr.group import node_names
from dask_tiled.export.zarr.targets import ZarrTarget
from dask_tiled.formats.zarr import descriptor
from dask_tiled.storing.folders import FileReader
from dask_tiled.storing.places import Place
from dask_tiled.testing import counting_frames, write_lif

pytestmark = [pytest.mark.usefixtures("synchronous"), pytest.mark.thorough]

A, B, C = (counting_frames(shape, "u2") for shape in ((3, 40, 50), (30, 20), (64,)))
QUIET = {"progress": False, "chunks": -1}


@pytest.fixture
def scan(tmp_path):
    """Write an HDF5 file of three datasets, and return its path and pixels."""
    path = tmp_path / "maps.h5"
    with h5py.File(path, "w") as file:
        file["counts"], file["maps/C"] = A, B
        file["maps/O"] = B + 1
    return path, {"counts": A, "C": B, "O": B + 1}


@pytest.fixture
def written(monkeypatch):
    """Count the boxes that are written."""
    write, boxes = ZarrTarget.write, []

    def counted(self, box, held):
        boxes.append(box)
        write(self, box, held)

    monkeypatch.setattr(ZarrTarget, "write", counted)
    return boxes


def check(store, expected, at=lambda name: name):
    """Compare the nodes of a group with arrays, by zarr and by xarray."""
    group = zarr.open_group(store, mode="r")
    found = {name for name, _ in group.groups()} - {"OME"}
    assert found == {at(name) for name in expected}
    tree = xr.open_datatree(store, engine="zarr")
    for name, pixels in expected.items():
        np.testing.assert_array_equal(group[f"{at(name)}/data"][...], pixels)
        np.testing.assert_array_equal(tree[at(name)]["data"], pixels)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_all_datasets_of_a_file(scan, tmp_path, zarr_format):
    """Each is a node with metadata of its own; the group is a series of OME-Zarr images."""
    path, expected = scan
    datasets = open_datasets(path, axes={"y": "2 nm", "x": "2 nm"})
    out = tmp_path / "out.zarr"
    group = to_zarr(datasets, out, zarr_format=zarr_format, progress=False)
    assert isinstance(group, zarr.Group)
    check(out, expected)
    assert {*os.listdir(tmp_path)} == {"maps.h5", "out.zarr"}
    attributes, listed = dict(group.attrs), dict(zarr.open_group(out, mode="r")["OME"].attrs)
    if zarr_format == 3:
        attributes, listed = attributes["ome"], listed["ome"]
        assert attributes["version"] == listed["version"] == "0.5"
        assert yaozarrs.validate_zarr_store(str(out)) is not None
        yaozarrs.validate_zarr_store(str(out))
    assert attributes["bioformats2raw.layout"] == 3
    assert {*listed["series"]} == {*expected}
    for name in expected:
        assert validate(out / name)["multiscales"][0]["name"] == name
    verify_zarr(out, datasets)
    again = open_datasets(out)
    assert [*again] == [*datasets]
    for name, pixels in expected.items():
        np.testing.assert_array_equal(again[name], pixels)
        assert again[name].axes == datasets[name].axes
    assert open_dataset(out, dataset=1).shape == [*again.values()][1].shape
    with pytest.raises(DatasetError, match="the array exists"):
        to_zarr(datasets, out)


def test_pixels_of_all_kinds(tmp_path):
    """dask, NumPy and xarray arrays and files; spectra are nodes, but not OME-Zarr images."""
    np.save(tmp_path / "a.npy", A)
    whole = {"dask": da.from_array(B, chunks=7), "numpy": C, "file": tmp_path / "a.npy"}
    group = to_zarr(whole, tmp_path / "out.zarr", progress=False)
    check(tmp_path / "out.zarr", {"dask": B, "numpy": C, "file": A})
    assert group["OME"].attrs["ome"]["series"] == ["dask", "file"]
    assert open_datasets(tmp_path / "out.zarr")["numpy"].shape == C.shape
    dataset = xr.Dataset({"a": (("y", "x"), B), "b": (("t", "y", "x"), A[:, :30, :20])})
    to_zarr(dataset, tmp_path / "set.zarr", progress=False)
    tree = xr.open_datatree(tmp_path / "set.zarr", engine="zarr")
    assert tree["b"]["data"].dims == ("t", "y", "x")
    verify_zarr(tmp_path / "set.zarr", dataset)
    assert isinstance(to_zarr(dataset[["a"]], tmp_path / "one.zarr", progress=False), zarr.Array)


def test_what_is_refused(tmp_path, scan):
    out = tmp_path / "out.zarr"
    with pytest.raises(DatasetError, match="names of arrays as text; found 1"):
        to_zarr({1: A}, out)
    with pytest.raises(DatasetError, match="found none"):
        to_zarr({}, out)
    with pytest.raises(DatasetError, match="tree of Datasets"):
        to_zarr(xr.DataTree(), out)
    for options in ({"follow": True}, {"with_results": {"m": A}}, {"dimension_names": "yx"}):
        with pytest.raises(DatasetError, match="applies to one array; found several"):
            to_zarr({"a": A, "b": B}, out, **options)
    with pytest.raises(DatasetError, match="unknown layout"):
        to_zarr({"a": A, "b": B}, out, layout="tree")
    with pytest.raises(DatasetError, match=r"one array; expected \.zarr or"):
        dask_tiled.convert(open_datasets(scan[0]), tmp_path / "all.npy")
    with pytest.raises(DatasetError, match="maps= applies to one array"):
        dask_tiled.convert(open_datasets(scan[0]), out, maps="sum")
    assert not out.exists()
    assert not (tmp_path / "out.zarr.part").exists()


NAMES = [
    "a/b", "a_b", "..", "", ".", "A_B", "µ", "zarr.json", "OME", "con.txt", "__x", "x" * 300,
    "x" * 299, "tail. ", 'q"<>|?*:', "new\nline", "\ud800", "Ω", "\u2126", ".zattrs", "c", "0",
]  # fmt: skip
"""Names of which many are no names of zarr nodes, or equal others on some systems."""


def test_names_become_valid_nodes(tmp_path):
    """Names are kept in the metadata; those of nodes are unique and valid everywhere."""
    arrays = {name: np.full((2, 3), k) for k, name in enumerate(NAMES)}
    nodes = node_names(arrays)
    assert len({node.casefold() for node in nodes.values()}) == len(NAMES)
    for node in nodes.values():
        assert node
        assert not node.startswith((".", "__"))
        assert not node.endswith((".", " "))
        assert not {*node} & {*'<>:"/\\|?*\n'}
        assert len(node.encode()) < 256
    assert (nodes["a/b"], nodes["a_b"], nodes["A_B"]) == ("a_b_3", "a_b", "A_B_2")
    assert (nodes[".."], nodes[""], nodes["OME"]) == ("data", "data_2", "OME_2")
    assert (nodes["con.txt"], nodes["µ"]) == ("con.txt_", "µ")
    out = tmp_path / "out.zarr"
    plain = {name: one for name, one in arrays.items() if name != "\ud800"}
    to_zarr(plain, out, progress=False)
    check(out, plain, at=node_names(plain).__getitem__)
    verify_zarr(out, plain)
    assert len(open_datasets(out)) == len(plain)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_damaged_dataset(scan, tmp_path, written, monkeypatch, has_links):
    """The others are stored; the error names the lost one, and the same call adds it later."""
    if not has_links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links")))
    path, expected = scan
    pixels = counting_frames((50, 60), "u2")
    with h5py.File(path, "a") as file:
        link = h5py.VirtualLayout((50, 60), "u2")
        link[:] = h5py.VirtualSource("other.h5", "d", (50, 60))
        file.create_virtual_dataset("lost", link)
    out, datasets = tmp_path / "out.zarr", open_datasets(path)
    with pytest.raises(DatasetError, match="1 of 4 arrays are not stored: 'lost'") as caught:
        to_zarr(datasets, out, **QUIET)
    assert "other.h5" in str(caught.value)
    check(out, expected)
    mark = zarr.open_group(out, mode="r").attrs["dask_tiled"]
    assert mark["complete"] is False
    assert [*mark["lacking"]] == ["lost"]
    assert str(tmp_path) not in json.dumps(mark)
    assert not (tmp_path / "out.zarr.part").exists()
    del written[:]
    before = {name: os.stat(out / name / "data/zarr.json").st_ino for name in expected}
    with pytest.raises(DatasetError, match="1 of 4 arrays are not stored"):
        to_zarr(datasets, out, **QUIET)
    assert not written
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["d"] = pixels
    to_zarr(datasets, out, **QUIET)
    assert len(written) == 1
    after = {name: os.stat(out / name / "data/zarr.json").st_ino for name in expected}
    assert (before == after) == has_links
    check(out, expected | {"lost": pixels})
    mark = zarr.open_group(out, mode="r").attrs["dask_tiled"]
    assert not {"complete", "lacking", "attempts"} & {*mark}
    with pytest.raises(DatasetError, match="the array exists"):
        to_zarr(datasets, out, **QUIET)


def run(*words, code=0):
    """Return the result of a command that ends with an exit code."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, done.output
    return done


def failing(error):
    """Return an array whose only task raises an error."""

    @dask.delayed
    def read():
        raise error

    return da.from_delayed(read(), (4, 5), "u2")


def test_an_export_that_does_not_resume(tmp_path):
    """Only with resume=True are arrays added; what is not stored at a path is not resumed."""
    given, match = {"ok": B, "bad": failing(OSError("a bad disk"))}, "1 of 2 arrays"
    out = tmp_path / "out.zarr"
    with pytest.raises(DatasetError, match=match) as caught:
        to_zarr(given, out, resume=False, **QUIET)
    assert caught.value.hint.endswith(
        "With resume=True, the same call adds those that can be read by then."
    )
    with pytest.raises(DatasetError, match="the array exists"):
        to_zarr(given | {"bad": A}, out, resume=False, **QUIET)
    to_zarr(given | {"bad": A}, out, resume=True, **QUIET)
    check(out, {"ok": B, "bad": A})
    with pytest.raises(DatasetError, match=match) as caught:
        to_zarr(given, zarr.storage.MemoryStore(), resume=False, **QUIET)
    assert "same call" not in str(caught.value)


def test_only_the_same_export_adds_to_an_incomplete_group(tmp_path):
    """Other names, other pixels and what the user has added are never removed without a request."""
    out, given = tmp_path / "out.zarr", {"ok": B, "bad": failing(OSError("a bad disk"))}
    match = r"1 of 2 arrays are not stored: 'bad'; found a bad disk\. The group has the others\."
    with pytest.raises(DatasetError, match=match):
        to_zarr(given, out, **QUIET)
    for others in ({"zzz": A}, given | {"more": A}, {"ok": B + 1, "bad": A}, {"bad": A}):
        with pytest.raises(DatasetError, match="the array exists"):
            to_zarr(others, out, **QUIET)
        check(out, {"ok": B})
    group = zarr.open_group(out, mode="r+", use_consolidated=False)
    group.attrs["mine"] = "a note"
    added = {"mine": out / "mine", "bad": out / "bad"}
    for name, path in added.items():
        group.create_array(name, data=C)
        with pytest.raises(DatasetError, match="the array exists"):
            to_zarr(given | {"bad": A}, out, **QUIET)
        np.testing.assert_array_equal(zarr.open_array(path, mode="r"), C)
        shutil.rmtree(path)
    group["ok"].create_array("mine", data=C, dimension_names=["n"])
    to_zarr(given | {"bad": A}, out, **QUIET)
    check(out, {"ok": B, "bad": A})
    assert zarr.open_group(out, mode="r").attrs["mine"] == "a note"
    np.testing.assert_array_equal(zarr.open_array(out / "ok/mine", mode="r"), C)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_incomplete_group_is_in_doubt(tmp_path, zarr_format):
    """It opens with the doubt that arrays are lacking, which are named, until they are added."""
    out, given = tmp_path / "out.zarr", {"ok": B, "bad/one": failing(OSError("a bad disk"))}
    options = {"zarr_format": zarr_format, **QUIET}
    with pytest.raises(DatasetError, match="not stored"):
        to_zarr(given, out, **options)
    desc = describe(out)
    (doubt,) = desc.doubts
    assert (doubt.code, desc.complete) == ("unfinished", False)
    assert "arrays are lacking: 'bad/one'" in doubt.text
    with pytest.warns(DoubtWarning, match="arrays are lacking: 'bad/one'"):
        np.testing.assert_array_equal(open_dataset(out), B)
    assert not describe(out, missing="fill").doubts
    assert "'bad/one'" in run("info", out).stdout
    assert "'bad/one'" in run("convert", out, tmp_path / "a.npy", "--strict", code=3).stderr
    to_zarr(given | {"bad/one": A}, out, **options)
    desc = describe(out, dataset="ok")
    assert (desc.doubts, desc.complete) == ((), True)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_empty_name(tmp_path, zarr_format):
    """An array without a name is found under that of its node."""
    out = tmp_path / "out.zarr"
    to_zarr({"q": A, "": B}, out, zarr_format=zarr_format, **QUIET)
    datasets = open_datasets(out)
    assert [*datasets] == ["q", "data"]
    np.testing.assert_array_equal(datasets["data"], B)
    assert len(describe(out).metadata["zarr"]["datasets"]) == 2


def test_names_that_exist_as_given(tmp_path):
    """A valid name keeps its node and its name, wherever another one resembles it."""
    out, given = tmp_path / "out.zarr", {"a/b": A, "a_b": A + 1, "c": C}
    to_zarr(given, out, **QUIET)
    check(out, {"a_b_2": A, "a_b": A + 1, "c": C})
    for name, pixels in given.items():
        np.testing.assert_array_equal(open_dataset(out, dataset=name), pixels)
    datasets = open_datasets(out)
    assert [*datasets] == ["a_b_2", "a_b", "c"]
    np.testing.assert_array_equal(datasets["a_b"], A + 1)
    verify_zarr(out, datasets)


def test_arrays_are_compared_by_name(tmp_path):
    """The order of the arrays, and the name of the only one, do not matter."""
    out = tmp_path / "out.zarr"
    to_zarr({"a:b": A, "a?b": A + 1}, out, **QUIET)
    verify_zarr(out, {"a?b": A + 1, "a:b": A})
    with pytest.raises(VerificationError, match="a pixel differs"):
        verify_zarr(out, {"a?b": A, "a:b": A + 1})
    match = r"out\.zarr: the store is a group of several arrays; expected an array\. Pass all"
    with pytest.raises(VerificationError, match=match):
        verify_zarr(out, A)
    to_zarr({"only": B}, tmp_path / "one.zarr", **QUIET)
    verify_zarr(tmp_path / "one.zarr", open_datasets(tmp_path / "one.zarr"))
    with pytest.raises(VerificationError, match="a pixel differs"):
        verify_zarr(tmp_path / "one.zarr", {"data": B + 1})
    with pytest.raises(VerificationError, match=r"one\.zarr/b: the store is empty"):
        verify_zarr(tmp_path / "one.zarr", {"only": B, "b": B})


def test_an_existing_group_stays_until_all_arrays_are_stored(tmp_path, written):
    out, bad = tmp_path / "out.zarr", failing(OSError("a bad disk"))
    to_zarr({"a": A, "b": B}, out, **QUIET)
    for resume in (False, True):
        with pytest.raises(DatasetError, match=r"'b'; found a bad disk\. The existing group is"):
            to_zarr({"a": A + 1, "b": bad}, out, overwrite=True, resume=resume, **QUIET)
        check(out, {"a": A, "b": B})
        assert (tmp_path / "out.zarr.part").exists() == resume
    del written[:]
    to_zarr({"a": A + 1, "b": B + 1}, out, overwrite=True, **QUIET)
    assert len(written) == 1
    check(out, {"a": A + 1, "b": B + 1})
    (chunk,) = (one for one in (out / "b/data/c").rglob("*") if one.is_file())
    damage(chunk, np.random.default_rng(1), range(20, 200))
    left = chunk.read_bytes()
    with pytest.raises(DatasetError, match="1 of 2 arrays are not stored: 'b'"):
        to_zarr(open_datasets(out), out, overwrite=True, **QUIET)
    assert chunk.read_bytes() == left
    np.testing.assert_array_equal(open_dataset(out, dataset="a"), A + 1)


def test_a_lost_source_of_a_stored_array(tmp_path):
    """A group does not lose an array that was stored when its source could be read."""
    np.save(tmp_path / "a.npy", A)
    out, bad = tmp_path / "out.zarr", failing(OSError("a bad disk"))
    given = {"a": tmp_path / "a.npy", "b": B, "bad": bad}
    for _ in range(2):
        with pytest.raises(DatasetError, match="are not stored"):
            to_zarr(given, out, **QUIET)
        check(out, {"a": A, "b": B})
        (tmp_path / "a.npy").unlink(missing_ok=True)


UNSUITABLE = {
    "nothing": (None, {}, DatasetError, "neither an array nor a path"),
    "objects": (np.array([[None, 1]]), {}, DatasetError, "object"),
    "dask": (da.from_array(np.array([[None]]), chunks=1), {}, DatasetError, "zarr rejects"),
    "size": (da.zeros(9)[da.zeros(9) > 0], {}, TilingError, "unknown size"),
    "chunks": (C, {"chunks": (2, 2)}, TilingError, "Chunks do not add up"),
}


@pytest.mark.parametrize("kind", UNSUITABLE)
def test_arrays_that_cannot_be_stored(tmp_path, kind):
    """They are refused by name before anything is written."""
    arr, options, error, match = UNSUITABLE[kind]
    with pytest.raises(error, match=f"the array 'x/y' cannot be stored; found .*{match}") as caught:
        to_zarr({"a": B, "x/y": arr}, tmp_path / "out.zarr", progress=False, **options)
    assert "same call" not in str(caught.value)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("error", [ValueError("odd pixels."), ZeroDivisionError()])
def test_errors_of_tasks(tmp_path, error):
    """An error of any type in a task affects its own array only."""
    text = "odd pixels" if error.args else "ZeroDivisionError"
    with pytest.raises(DatasetError, match=rf"'b'; found {text}\. The group has") as caught:
        to_zarr({"a": A, "b": failing(error), "c": C}, tmp_path / "out.zarr", **QUIET)
    assert type(caught.value.__cause__) is type(error)
    check(tmp_path / "out.zarr", {"a": A, "c": C})


def test_nothing_is_left_if_all_are_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        to_zarr({"a": tmp_path / "no.npy", "b": tmp_path / "none.npy"}, tmp_path / "o.zarr")
    assert not os.listdir(tmp_path)


STORES = {"path": lambda folder: folder / "out.zarr", "memory": lambda _: MemoryStore({})}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_an_interrupted_export_is_resumed(tmp_path, monkeypatch, written, kind, after):
    """An interrupted export shows nothing; the same call reads and writes incomplete arrays."""
    arrays, store = {"a": A, "b/c": B, "d": C, "e": A + 1}, STORES[kind](tmp_path)
    whole, read, intact = ZarrTarget.write, [], Place.whole
    monkeypatch.setattr(Place, "whole", lambda self: (read.append(self.path), intact(self))[1])

    def stopped(self, box, held):
        if len(written) == after:
            raise KeyboardInterrupt
        whole(self, box, held)

    with monkeypatch.context() as patch:
        patch.setattr(ZarrTarget, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            to_zarr(arrays, store, **QUIET)
    with pytest.raises(FileNotFoundError):
        zarr.open_group(store, mode="r")
    del written[:], read[:]
    to_zarr(arrays, store, **QUIET)
    assert len(read) == len(written) == len(arrays) - after
    check(store, arrays, at=node_names(arrays).__getitem__)
    verify_zarr(store, arrays)
    assert kind != "path" or os.listdir(tmp_path) == ["out.zarr"]
    keys = [*store._store_dict] if kind == "memory" else [*map(str, store.rglob("*"))]
    assert not [key for key in keys if ".dask_tiled" in key]


def test_pixels_are_not_read_again(tmp_path, monkeypatch):
    """The group lists the documents of its nodes, which are read when all are stored."""
    read, get = [], FileReader.get
    monkeypatch.setattr(FileReader, "get", lambda self, key: (read.append(key), get(self, key))[1])
    to_zarr({"a": A, "b": B}, tmp_path / "out.zarr", **QUIET)
    assert {"a/data/zarr.json", "b/data/zarr.json"} <= {*read}
    assert not [key for key in read if "/c/" in key]


def test_changed_arrays_are_written_again(tmp_path, monkeypatch, written):
    """After an interruption, nodes of arrays that changed meanwhile are replaced."""
    out, whole = tmp_path / "out.zarr", ZarrTarget.write
    arrays = {"a": A, "b": B, "c": C}

    def stopped(self, box, held):
        if len(written) == 2:
            raise KeyboardInterrupt
        whole(self, box, held)

    with monkeypatch.context() as patch:
        patch.setattr(ZarrTarget, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            to_zarr(arrays, out, **QUIET)
    del written[:]
    to_zarr(arrays | {"a": A + 1}, out, **QUIET)
    assert len(written) == 2
    check(out, arrays | {"a": A + 1})
    del written[:]


KILLED = """
import os, sys
import numpy as np
import dask_tiled
from dask_tiled.export.zarr.targets import ZarrTarget
from dask_tiled.formats.zarr import descriptor
write, calls = ZarrTarget.write, []
def killed(self, box, held):
    calls.append(box)
    if len(calls) == 2:
        os._exit(9)
    write(self, box, held)
ZarrTarget.write = killed
a = np.arange(6000, dtype="u2").reshape(3, 40, 50)
arrays = {"a": a, "b": a + 1, "c": a + 2}
dask_tiled.to_zarr(arrays, sys.argv[1], chunks=(1, 40, 50), progress=False)
"""


@pytest.mark.slow
def test_a_killed_export_is_resumed(tmp_path):
    """A process that dies in the second array leaves what the same call takes over."""
    out, a = tmp_path / "out.zarr", np.arange(6000, dtype="u2").reshape(3, 40, 50)
    environment = {**os.environ, "PYTHONPATH": str(Path(dask_tiled.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", KILLED, out], env=environment, check=False)
    assert done.returncode == 9
    assert not out.exists()
    arrays = {"a": a, "b": a + 1, "c": a + 2}
    to_zarr(arrays, out, chunks=(1, 40, 50), progress=False)
    check(out, arrays)
    assert os.listdir(tmp_path) == ["out.zarr"]


def test_targets_that_exist(tmp_path):
    """Only zarr nodes are replaced, on request, and stay until the new group is complete."""
    arrays, out = {"a": A, "b": B}, tmp_path / "out.zarr"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(DatasetError, match="holds other data"):
            to_zarr(arrays, out, overwrite=overwrite)
    shutil.rmtree(out)
    to_zarr(C, out, progress=False)
    with pytest.raises(DatasetError, match="the array exists"):
        to_zarr(arrays, out)
    np.testing.assert_array_equal(open_dataset(out), C)
    to_zarr(arrays, out, overwrite=True, progress=False)
    check(out, arrays)
    inside = open_datasets(out)  # the group may be made of itself
    to_zarr({name: arr + 1 for name, arr in inside.items()}, out, overwrite=True, progress=False)
    check(out, {"a": A + 1, "b": B + 1})


@pytest.mark.parametrize("kind", ["memory", "part", "zip", "group"])
def test_other_stores(tmp_path, kind):
    arrays = {"a/b": A, "b": B}
    store = {
        "memory": lambda: MemoryStore({}),
        "part": lambda: StorePath(MemoryStore({}), "inner/part"),
        "zip": lambda: ZipStore(tmp_path / "a.zip", mode="w"),
        "group": lambda: LocalStore(tmp_path / "a.zarr"),
    }[kind]()
    to_zarr(arrays, store, progress=False)
    if kind == "zip":
        store.close()
        store = ZipStore(tmp_path / "a.zip", mode="r")
    group = zarr.open_group(store, mode="r")
    np.testing.assert_array_equal(group["a_b/data"][...], A)
    for place in (store, group):
        verify_zarr(place, arrays)
    with pytest.raises(VerificationError):
        verify_zarr(place, {"a/b": A, "b": B + 1})
    with pytest.raises(VerificationError, match=r"opened|no such|not exist"):
        verify_zarr(place, {"a/b": A, "b": B, "more": B})


def test_damage_is_found(tmp_path):
    """Each dataset is compared, and the error names the file of the damaged one."""
    arrays, out = {"a": A, "b": B}, tmp_path / "out.zarr"
    to_zarr(arrays, out, **QUIET)
    (chunk,) = (one for one in (out / "b/data/c").rglob("*") if one.is_file())
    damage(chunk, np.random.default_rng(1), range(20, 200))
    with pytest.raises(VerificationError, match=r"out\.zarr.b"):
        verify_zarr(out, arrays)


def test_axes_and_channels_survive(tmp_path):
    path = write_lif(
        tmp_path / "a.lif",
        {"one": A, "two": A + 1},
        "cyx",
        channels=("red", "green", "blue"),
        lengths={"x": 4.9e-6, "y": 3.9e-6},
    )
    datasets = open_datasets(path)
    dask_tiled.convert(datasets, tmp_path / "out.zarr", verify=True, progress=False)
    again = open_datasets(tmp_path / "out.zarr")
    for name, arr in datasets.items():
        assert again[name].axes == arr.axes
        assert again[name].axes[0].colours == ("#ff0000", "#00ff00", "#0000ff")
    dask_tiled.convert(datasets, tmp_path / "out.zarr.zip", verify=True, progress=False)
    assert [*open_datasets(tmp_path / "out.zarr.zip")] == ["one", "two"]
    assert Axis("c").name in again["one"].dims


@pytest.mark.slow
def test_many_arrays(tmp_path, monkeypatch):
    """The document of the group is read once; metadata of an array list a hundred others."""
    arrays, out = {f"a{k}": np.full((2, 3), k) for k in range(120)}, tmp_path / "out.zarr"
    to_zarr(arrays, out, progress=False)
    datasets = open_datasets(out)
    assert [*datasets] == [*arrays]
    read, documents = descriptor.read, []
    monkeypatch.setattr(descriptor, "read", lambda *told: documents.append(told) or read(*told))
    for name, pixels in arrays.items():
        np.testing.assert_array_equal(datasets[name], pixels)
    assert len(documents) == 1
    listed = datasets["a119"].description.metadata["zarr"]["datasets"]
    assert len(listed) == 101
    assert listed["a119"]["shape"] == (2, 3)
