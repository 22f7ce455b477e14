"""Exports replace zarr data on request, and keep all other data."""

import os
import shutil
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import dask.array as da
import fsspec
import numpy as np
import pytest
import zarr

from dask_tiled import DatasetError, open_dataset, to_beton, to_zarr
from dask_tiled.model.axes import Axis
from dask_tiled.testing import counting_frames, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

PIXELS = counting_frames((4, 4, 8), "uint16")
ARR = da.from_array(PIXELS, chunks=(2, 4, 8))
export = partial(to_zarr, progress=False)


def tree(folder):
    """Return the mode, content, link and modification time of every path below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        held = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        link = path.readlink() if path.is_symlink() else None
        changed = None if path.is_dir() else stat.st_mtime_ns
        found[path.relative_to(folder).as_posix()] = (stat.st_mode, held, link, changed)
    return found


def ours(folder, name="out.zarr", **options):
    """Write an export, which may be replaced."""
    export(ARR + 1, folder / name, **options)
    return folder / name


def in_a_store(folder):
    zarr.create_group(folder / "group.zarr")
    ours(folder, "group.zarr/out")
    return zarr.storage.StorePath(zarr.storage.LocalStore(folder / "group.zarr"), "out")


def below_a_link(folder):
    (folder / "real").mkdir()
    ours(folder, "real/out.zarr")
    (folder / "link").symlink_to("real")
    return folder / "link" / "out.zarr"


def moved(folder):
    (folder / "other").mkdir()
    return ours(folder).rename(folder / "other" / "out.zarr")


def changed_pixels(folder):
    zarr.open_array(ours(folder), path="data", mode="r+")[0, 0, 0] = 77
    return folder / "out.zarr"


def hard_links(folder):
    """Keep the chunks under other names, too."""
    (folder / "kept").mkdir()
    for number, path in enumerate((ours(folder) / "data" / "c").rglob("0")):
        if path.is_file():
            os.link(path, folder / "kept" / str(number))
    return folder / "out.zarr"


def old_beside(folder):
    """Rename an export, and write another one."""
    ours(folder).rename(folder / "out.zarr.old")
    return ours(folder)


def bucket(_):
    export(ARR + 1, "memory://overwriting/out.zarr", overwrite=True)
    return "memory://overwriting/out.zarr"


def link_for_a_chunk(folder):
    (folder / "mine").write_text("mine")
    chunk = ours(folder) / "data" / "c" / "0" / "0" / "0"
    chunk.unlink()
    chunk.symlink_to(folder / "mine")


def copied_attributes(folder):
    like = zarr.open_group(ours(folder, "a.zarr"), mode="r")
    group = zarr.create_group(folder / "out.zarr", attributes=dict(like.attrs))
    group.create_array("data", data=PIXELS, attributes=dict(like["data"].attrs))


def a_pipe_inside(folder):
    document = ours(folder) / "data" / "zarr.json"
    document.unlink()
    os.mkfifo(document)


def a_socket_inside(folder):
    ours(folder)
    place = os.getcwd()
    os.chdir(folder / "out.zarr" / "data" / "c")  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("7")
    os.chdir(place)


def changed_coordinates(folder):
    path = write_raw(folder / "scan.raw", PIXELS)
    raw = {"format": "raw", "dtype": "u2", "sig_shape": (4, 8)}
    axes = [Axis("t"), Axis("y"), Axis("x", scale=0.5, units="nm")]
    export(open_dataset(path, **raw), folder / "out.zarr", dimension_names=axes)
    zarr.open_array(folder / "out.zarr", path="x", mode="r+")[0] = 7


def two_exports(folder):
    """Write an export inside another one."""
    ours(folder)
    ours(folder, "out.zarr/second")


def old_record(folder):
    """Add the record that older versions kept beside the chunks."""
    text_at("data/.dask_tiled/export.json")(ours(folder))


def part_with_an_array(folder):
    """Move an array to the folder of unfinished exports."""
    (folder / "out.zarr.part").mkdir()
    ours(folder, "a.zarr").rename(folder / "out.zarr.part" / "a.zarr")


def text_at(place):
    """Return a function that writes a text of the user below a folder."""

    def write(folder):
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")

    return write


def added_to(change):
    """Return a function that writes an export, and changes its group."""
    return lambda folder: change(zarr.open_group(ours(folder)))


def foreign_group(folder):
    zarr.create_group(folder / "out.zarr").create_array("data", data=PIXELS)


def foreign_array(place, zarr_format=3):
    return lambda folder: zarr.create_array(folder / place, data=PIXELS, zarr_format=zarr_format)


def a_copy(folder, **options):
    shutil.copytree(ours(folder, "a.zarr"), folder / "out.zarr", **options)


def link(place, target):
    return lambda folder: (folder / place).symlink_to(target)


def samples(place):
    return lambda folder: to_beton(folder / place, {"x": np.arange(9)}, progress=False)


def at_place(make):
    """Return a function that calls `make`, and returns the path of the export."""
    return lambda folder: (make(folder), folder / "out.zarr")[1]


REPLACED = {
    "a path": ours,
    "a slash at its end": lambda folder: f"{ours(folder)}/",
    "a relative path": lambda folder: ours(folder).name,
    "an address": lambda folder: f"file://{ours(folder)}",
    "a store": lambda folder: zarr.storage.LocalStore(ours(folder)),
    "in a store": in_a_store,
    "below a link": below_a_link,
    "renamed": lambda folder: ours(folder, "a.zarr").rename(folder / "out.zarr"),
    "moved": moved,
    "levels": partial(ours, pyramid=2, dimension_names=["a", "b", "c"]),
    "an array": partial(ours, layout="array"),
    "changed pixels": changed_pixels,
    "hard links": hard_links,
    "an old one beside": old_beside,
    "a bucket": bucket,
    "an array of others": at_place(foreign_array("out.zarr")),
    "an array of version 2": at_place(foreign_array("out.zarr", zarr_format=2)),
    "a group of others": at_place(foreign_group),
    "copied attributes": at_place(copied_attributes),
    "a copy": at_place(a_copy),
    "a copy of links": at_place(partial(a_copy, copy_function=os.link)),
    "added array": at_place(added_to(lambda x: x.create_array("labels", data=PIXELS))),
    "added attributes": at_place(added_to(lambda x: x.attrs.update(remark="mine"))),
    "appended": at_place(added_to(lambda x: x["data"].append(PIXELS))),
    "changed coordinates": at_place(changed_coordinates),
    "a record of versions before": at_place(old_record),
    "two exports": at_place(two_exports),
}


@pytest.mark.parametrize("case", REPLACED)
def test_zarr_data_is_replaced_on_request(tmp_path, monkeypatch, case):
    """Nothing beside the export is touched."""
    monkeypatch.chdir(tmp_path)
    place = REPLACED[case](tmp_path)
    before = tree(tmp_path)
    with pytest.raises(DatasetError, match="overwrite=True"):
        export(ARR, place)
    assert tree(tmp_path) == before
    stored = export(ARR, place, overwrite=True)
    np.testing.assert_array_equal(stored[...], PIXELS)
    names = {"out.zarr", "other/out.zarr", "real/out.zarr", "group.zarr/out"}
    roots = tuple(f"{name}/" for name in names)
    kept = {name for name in before if name not in names and not name.startswith(roots)}
    now = tree(tmp_path)
    assert {name: now.get(name) for name in kept} == {name: before[name] for name in kept}
    assert {name for name in now if name not in names and not name.startswith(roots)} == kept


KEPT = {
    "link to ours": lambda folder: link("out.zarr", ours(folder, "real.zarr"))(folder),
    "dangling link": link("out.zarr", "nowhere"),
    "link inside": lambda folder: link("out.zarr/data/c/0/1", ours(folder).parent)(folder),
    "link for a chunk": link_for_a_chunk,
    "files": text_at("out.zarr/thesis.txt"),
    "files named like chunks": text_at("out.zarr/c/0/0"),
    "a file named like metadata": text_at("out.zarr/zarr.json"),
    "a file": text_at("out.zarr"),
    "an empty folder": lambda folder: (folder / "out.zarr").mkdir(),
    "empty folders": lambda folder: (folder / "out.zarr" / "c" / "0").mkdir(parents=True),
    "a pipe": lambda folder: os.mkfifo(folder / "out.zarr"),
    "a pipe inside": a_pipe_inside,
    "a socket inside": a_socket_inside,
    "added file": lambda folder: text_at("data/c/notes.txt")(ours(folder)),
    "added file like a chunk": lambda folder: text_at("notes/7")(ours(folder)),
    "a sample file": samples("out.zarr"),
    "a part": text_at("out.zarr.part/thesis.txt"),
    "a part that is a file": text_at("out.zarr.part"),
    "a part that is a link": link("out.zarr.part", "."),
    "a part with a folder": lambda folder: (folder / "out.zarr.part" / "my").mkdir(parents=True),
    "a part with an array": part_with_an_array,
}


@pytest.mark.parametrize("case", KEPT)
def test_other_data_is_kept(tmp_path, case):
    KEPT[case](tmp_path)
    before = tree(tmp_path)
    for options in ({}, {"overwrite": True}, {"overwrite": True, "resume": False}):
        with pytest.raises(DatasetError) as caught:
            export(ARR, tmp_path / "out.zarr", **options)
        assert caught.value.path.startswith(str(tmp_path / "out.zarr"))
        assert tree(tmp_path) == before


def test_folders_around_the_place_are_kept(tmp_path, monkeypatch):
    """The source, its folder, the folder above and the working directory are kept."""
    (tmp_path / "scans").mkdir()
    path = write_raw(tmp_path / "scans" / "scan.raw", PIXELS)
    arr = open_dataset(path, "raw", dtype="u2", sig_shape=(4, 8))
    monkeypatch.chdir(tmp_path / "scans")
    before = tree(tmp_path)
    for place in (tmp_path, tmp_path / "scans", path, ".", "..", f"{path}/", ""):
        with pytest.raises(DatasetError):
            export(arr, place, overwrite=True)
        assert tree(tmp_path) == before


@pytest.mark.slow
def test_mounts_inside_are_kept(tmp_path):
    """The mount has the name of a folder of chunks."""
    place = ours(tmp_path)
    inside = place / "data" / "c" / "0"
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "0").write_text("mine")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, dask.array as da, dask_tiled\n"
        "try:\n"
        f"    dask_tiled.to_zarr(da.ones(3), {str(place)!r}, overwrite=True)\n"
        "except dask_tiled.DatasetError as error:\n"
        "    print(error.where)\n"
    )
    bind = f"mount --bind '{tmp_path / 'a b'}' '{inside}' && exec '{sys.executable}' '{script}'"
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", bind]
    try:
        subprocess.run([*command[:3], "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here")
    before = tree(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "data/c/0, a mount", done.stderr
    assert tree(tmp_path) == before


@pytest.mark.parametrize("layout", ["array", "group"])
def test_arrays_of_other_software_in_stores(layout):
    """The array is replaced on request, down to the last key."""
    contents = {}
    zarr.create_array(contents, data=PIXELS + 1, chunks=(1, 1, 1))
    with pytest.raises(DatasetError, match="overwrite=True"):
        export(ARR, contents, layout=layout)
    np.testing.assert_array_equal(zarr.open_array(contents, mode="r")[...], PIXELS + 1)
    stored = export(ARR, contents, layout=layout, overwrite=True)
    np.testing.assert_array_equal(stored[...], PIXELS)
    alone = {}
    export(ARR, alone, layout=layout)
    assert {*contents} == {*alone}


@pytest.mark.parametrize("name", ["mine/thesis.txt", "mine/zarr.json", "mine/c/0", "a/b.txt"])
def test_stores_with_other_data(name):
    """No other data is removed, also not beside an array."""
    system = fsspec.filesystem("memory")
    if name == "a/b.txt":
        export(ARR, "memory://overwriting/a")
    system.pipe(f"/overwriting/{name}", b"mine")
    folder = f"memory://overwriting/{name.partition('/')[0]}"
    before = {path: system.cat(path) for path in system.find("/overwriting")}
    for overwrite in (False, True):
        with pytest.raises(DatasetError, match="the store is not empty"):
            export(ARR, folder, overwrite=overwrite)
    assert {path: system.cat(path) for path in system.find("/overwriting")} == before
    system.rm("/overwriting", recursive=True)


def test_a_folder_that_cannot_be_read_is_kept(tmp_path, monkeypatch):
    """The error names the folder."""
    place, scandir = ours(tmp_path), os.scandir

    def refused(path):
        if str(path).replace(os.sep, "/").endswith("data/c/"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(DatasetError, match="Permission denied") as caught:
        export(ARR, place, overwrite=True)
    monkeypatch.undo()
    assert Path(caught.value.where) == place / "data" / "c"
    np.testing.assert_array_equal(zarr.open_array(place, path="data")[...], PIXELS + 1)


BETON = {
    "samples": samples("out.beton"),
    "a link": lambda folder: [samples("a.beton")(folder), link("out.beton", "a.beton")(folder)],
    "a text": text_at("out.beton"),
    "a folder": lambda folder: (folder / "out.beton").mkdir(),
    "an array": partial(ours, name="out.beton"),
    "a part of zeros": lambda folder: (folder / "out.beton.part").write_bytes(bytes(5000)),
    "a part of samples": samples("out.beton.part"),
}


@pytest.mark.parametrize("case", BETON)
def test_sample_files(tmp_path, case):
    """A sample file is replaced on request; other data is kept."""
    BETON[case](tmp_path)
    before = tree(tmp_path)
    for overwrite in (False, True):
        export_samples = partial(
            to_beton, tmp_path / "out.beton", {"x": np.ones(3)}, overwrite=overwrite, progress=False
        )
        if overwrite and case == "samples":
            export_samples()
            np.testing.assert_array_equal(open_dataset(tmp_path / "out.beton"), np.ones(3))
            assert os.listdir(tmp_path) == ["out.beton"]
        else:
            with pytest.raises(DatasetError):
                export_samples()
            assert tree(tmp_path) == before
