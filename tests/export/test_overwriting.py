"""What is at the place of an export: replaced where it is ours and that was asked for, or kept."""

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
from dask_tiled.model.description import Axis
from dask_tiled.testing import counting_frames, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

PIXELS = counting_frames((4, 4, 8), "uint16")
ARR = da.from_array(PIXELS, chunks=(2, 4, 8))
export = partial(to_zarr, progress=False)


def tree(folder):
    """List all that is below a folder: what it is, what it holds, and when that was changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        held = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        link = path.readlink() if path.is_symlink() else None
        changed = None if path.is_dir() else stat.st_mtime_ns
        found[str(path.relative_to(folder))] = (stat.st_mode, held, link, changed)
    return found


def ours(folder, name="out.zarr", **options):
    """Write what an export may replace."""
    export(ARR + 1, folder / name, **options)
    return folder / name


def plain(folder):
    return ours(folder)


def slash(folder):
    return f"{ours(folder)}/"


def relative(folder):
    ours(folder)
    return "out.zarr"


def address(folder):
    return f"file://{ours(folder)}"


def local_store(folder):
    return zarr.storage.LocalStore(ours(folder))


def in_a_store(folder):
    zarr.create_group(folder / "group.zarr")
    ours(folder, "group.zarr/out")
    return zarr.storage.StorePath(zarr.storage.LocalStore(folder / "group.zarr"), "out")


def below_a_link(folder):
    (folder / "real").mkdir()
    ours(folder, "real/out.zarr")
    (folder / "link").symlink_to("real")
    return folder / "link" / "out.zarr"


def renamed(folder):
    return ours(folder, "a.zarr").rename(folder / "out.zarr")


def moved(folder):
    (folder / "other").mkdir()
    return ours(folder).rename(folder / "other" / "out.zarr")


def changed_pixels(folder):
    zarr.open_array(ours(folder), path="data", mode="r+")[0, 0, 0] = 77
    return folder / "out.zarr"


def with_levels(folder):
    return ours(folder, pyramid=2, dimension_names=["a", "b", "c"])


def bare(folder):
    return ours(folder, layout="array")


def hard_links(folder):
    """Somebody keeps the chunks under other names."""
    (folder / "kept").mkdir()
    for number, path in enumerate((ours(folder) / "data" / "c").rglob("0")):
        if path.is_file():
            os.link(path, folder / "kept" / str(number))
    return folder / "out.zarr"


def old_beside(folder):
    """A copy that somebody has made by renaming; its name is nobody's."""
    ours(folder).rename(folder / "out.zarr.old")
    return ours(folder)


def memory(_):
    store = zarr.storage.MemoryStore()
    export(ARR + 1, store)
    return store


def bucket(_):
    export(ARR + 1, "memory://overwriting/out.zarr", overwrite=True)
    return "memory://overwriting/out.zarr"


REPLACED = [
    plain, slash, relative, address, local_store, in_a_store, below_a_link, renamed, moved,
    changed_pixels, with_levels, bare, hard_links, old_beside, memory, bucket,
]  # fmt: skip


@pytest.mark.parametrize("case", REPLACED, ids=lambda case: case.__name__)
def test_what_is_ours_is_replaced_if_asked(tmp_path, monkeypatch, case):
    """And nothing beside it is touched."""
    monkeypatch.chdir(tmp_path)
    place = case(tmp_path)
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


def link_to_ours(folder):
    ours(folder, "real.zarr")
    (folder / "out.zarr").symlink_to("real.zarr")


def dangling_link(folder):
    (folder / "out.zarr").symlink_to("nowhere")


def link_inside(folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "0").write_text("mine")
    (ours(folder) / "data" / "c" / "0" / "1").symlink_to(folder / "mine")


def link_for_a_chunk(folder):
    (folder / "mine").write_text("mine")
    chunk = ours(folder) / "data" / "c" / "0" / "0" / "0"
    chunk.unlink()
    chunk.symlink_to(folder / "mine")


def foreign_array(folder):
    zarr.create_array(folder / "out.zarr", data=PIXELS)


def foreign_version_2(folder):
    zarr.create_array(folder / "out.zarr", data=PIXELS, zarr_format=2)


def foreign_group(folder):
    zarr.create_group(folder / "out.zarr").create_array("data", data=PIXELS)


def copied_attributes(folder):
    like = zarr.open_group(ours(folder, "a.zarr"), mode="r")
    group = zarr.create_group(folder / "out.zarr", attributes=dict(like.attrs))
    group.create_array("data", data=PIXELS, attributes=dict(like["data"].attrs))


def copied_record(folder):
    """A foreign array with our record beside it."""
    foreign_group(folder)
    record = ours(folder, "a.zarr") / "data" / ".dask_tiled"
    shutil.copytree(record, folder / "out.zarr" / "data" / ".dask_tiled")


def a_copy(folder):
    shutil.copytree(ours(folder, "a.zarr"), folder / "out.zarr")


def a_copy_of_links(folder):
    shutil.copytree(ours(folder, "a.zarr"), folder / "out.zarr", copy_function=os.link)


def files(folder):
    (folder / "out.zarr").mkdir()
    (folder / "out.zarr" / "thesis.txt").write_text("mine")


def named_like_chunks(folder):
    (folder / "out.zarr" / "c" / "0").mkdir(parents=True)
    (folder / "out.zarr" / "c" / "0" / "0").write_text("mine")


def a_file(folder):
    (folder / "out.zarr").write_text("mine")


def empty_folder(folder):
    (folder / "out.zarr").mkdir()


def empty_folders(folder):
    (folder / "out.zarr" / "c" / "0").mkdir(parents=True)


def a_pipe(folder):
    os.mkfifo(folder / "out.zarr")


def a_pipe_inside(folder):
    record = ours(folder) / "data" / ".dask_tiled" / "export.json"
    record.unlink()
    os.mkfifo(record)


def a_socket_inside(folder):
    ours(folder)
    place = os.getcwd()
    os.chdir(folder / "out.zarr" / "data" / "c")  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("7")
    os.chdir(place)


def added_file(folder):
    (ours(folder) / "data" / "c" / "notes.txt").write_text("mine")


def added_array(folder):
    zarr.open_group(ours(folder)).create_array("labels", data=PIXELS)


def added_chunk(folder):
    (ours(folder) / "data" / "c" / "7").write_text("mine")


def added_attributes(folder):
    zarr.open_group(ours(folder)).attrs["remark"] = "mine"


def appended(folder):
    zarr.open_array(ours(folder), path="data", mode="r+").append(PIXELS)


def changed_coordinates(folder):
    path = write_raw(folder / "scan.raw", PIXELS)
    raw = {"format": "raw", "dtype": "u2", "sig_shape": (4, 8)}
    axes = [Axis("t"), Axis("y"), Axis("x", scale=0.5, units="nm")]
    export(open_dataset(path, **raw), folder / "out.zarr", dimension_names=axes)
    zarr.open_array(folder / "out.zarr", path="x", mode="r+")[0] = 7


def no_record(folder):
    (ours(folder) / "data" / ".dask_tiled" / "export.json").unlink()


def two_records(folder):
    shutil.copytree(ours(folder) / "data" / ".dask_tiled", folder / "out.zarr" / ".dask_tiled")


def two_exports(folder):
    """One of ours inside another one."""
    ours(folder)
    ours(folder, "out.zarr/second")


def sample_file(folder):
    to_beton(folder / "out.zarr", {"x": np.arange(9)}, progress=False)


def foreign_part(folder):
    (folder / "out.zarr.part").mkdir()
    (folder / "out.zarr.part" / "thesis.txt").write_text("mine")


def part_file(folder):
    (folder / "out.zarr.part").write_text("mine")


def part_link(folder):
    (folder / "mine").mkdir()
    (folder / "out.zarr.part").symlink_to("mine")


def part_with_an_array(folder):
    """An array that somebody has moved to where exports are made."""
    (folder / "out.zarr.part").mkdir()
    ours(folder, "a.zarr").rename(folder / "out.zarr.part" / "a.zarr")


def part_with_an_array_like_a_replaced_one(folder):
    (folder / "out.zarr.part").mkdir()
    zarr.create_array(folder / "out.zarr.part" / "replaced", data=PIXELS)


def parent_of_the_source(folder):
    """Files that are exported lie in the folder."""
    (folder / "out.zarr").mkdir()
    write_raw(folder / "out.zarr" / "scan.raw", PIXELS)


KEPT = [
    link_to_ours, dangling_link, link_inside, link_for_a_chunk, foreign_array, foreign_version_2,
    foreign_group, copied_attributes, copied_record, a_copy, a_copy_of_links, files,
    named_like_chunks, a_file, empty_folder, empty_folders, a_pipe, a_pipe_inside, a_socket_inside,
    added_file, added_array, added_chunk, added_attributes, appended, changed_coordinates,
    no_record, two_records, two_exports, sample_file, foreign_part, part_file, part_link,
    part_with_an_array, part_with_an_array_like_a_replaced_one, parent_of_the_source,
]  # fmt: skip


@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.__name__)
def test_what_is_not_ours_is_kept(tmp_path, case):
    """Whatever is asked for."""
    case(tmp_path)
    before = tree(tmp_path)
    for options in ({}, {"overwrite": True}, {"overwrite": True, "resume": False}):
        with pytest.raises(DatasetError) as caught:
            export(ARR, tmp_path / "out.zarr", **options)
        assert caught.value.path.startswith(str(tmp_path / "out.zarr"))
        assert tree(tmp_path) == before


def test_folders_around_the_place_are_kept(tmp_path, monkeypatch):
    """The folder of the source, that above it, and the one somebody is in."""
    (tmp_path / "scans").mkdir()
    path = write_raw(tmp_path / "scans" / "scan.raw", PIXELS)
    arr = open_dataset(path, "raw", dtype="u2", sig_shape=(4, 8))
    monkeypatch.chdir(tmp_path / "scans")
    before = tree(tmp_path)
    for place in (tmp_path, tmp_path / "scans", path, ".", "..", f"{path}/", ""):
        with pytest.raises(DatasetError):
            export(arr, place, overwrite=True)
        assert tree(tmp_path) == before


def test_what_is_mounted_inside_is_kept(tmp_path):
    """A folder that lies elsewhere, under a name that a folder of chunks has."""
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


def test_stores_that_hold_something_else(tmp_path):
    """Of others, nothing is removed."""
    contents = {}
    zarr.create_array(contents, data=PIXELS)
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as archive:
        zarr.create_array(archive, data=PIXELS)
    fsspec.filesystem("memory").pipe("/overwriting/mine/thesis.txt", b"mine")
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="a") as archive:
        before = {key: value.to_bytes() for key, value in contents.items()}
        for store in (contents, "memory://overwriting/mine", archive):
            for overwrite in (False, True):
                with pytest.raises(DatasetError):
                    export(ARR, store, overwrite=overwrite)
    assert {key: value.to_bytes() for key, value in contents.items()} == before
    assert fsspec.filesystem("memory").cat("/overwriting/mine/thesis.txt") == b"mine"
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="r") as archive:
        np.testing.assert_array_equal(zarr.open_array(archive)[...], PIXELS)


def test_a_folder_that_cannot_be_read_is_kept(tmp_path, monkeypatch):
    """The error says which."""
    place, scandir = ours(tmp_path), os.scandir

    def refused(path):
        if str(path).endswith("data/c/"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(DatasetError, match="Permission denied") as caught:
        export(ARR, place, overwrite=True)
    monkeypatch.undo()
    assert Path(caught.value.where) == place / "data" / "c"
    np.testing.assert_array_equal(zarr.open_array(place, path="data")[...], PIXELS + 1)


SAMPLES = {"x": np.arange(9)}


def samples(folder):
    to_beton(folder / "out.beton", SAMPLES, progress=False)


def sample_link(folder):
    to_beton(folder / "a.beton", SAMPLES, progress=False)
    (folder / "out.beton").symlink_to("a.beton")


def text(folder):
    (folder / "out.beton").write_text("mine")


def sample_folder(folder):
    (folder / "out.beton").mkdir()


def zarr_array(folder):
    ours(folder, "out.beton")


def part_of_zeros(folder):
    (folder / "out.beton.part").write_bytes(bytes(5000))


def part_of_samples(folder):
    to_beton(folder / "out.beton.part", SAMPLES, progress=False)


@pytest.mark.parametrize(
    "case",
    [samples, sample_link, text, sample_folder, zarr_array, part_of_zeros, part_of_samples],
    ids=lambda case: case.__name__,
)
def test_sample_files(tmp_path, case):
    """One is replaced if that is asked for, and nothing else."""
    case(tmp_path)
    before = tree(tmp_path)
    for overwrite in (False, True):
        if overwrite and case is samples:
            to_beton(tmp_path / "out.beton", {"x": np.ones(3)}, overwrite=True, progress=False)
            np.testing.assert_array_equal(open_dataset(tmp_path / "out.beton"), np.ones(3))
            assert os.listdir(tmp_path) == ["out.beton"]
        else:
            with pytest.raises(DatasetError):
                to_beton(tmp_path / "out.beton", SAMPLES, overwrite=overwrite, progress=False)
            assert tree(tmp_path) == before
