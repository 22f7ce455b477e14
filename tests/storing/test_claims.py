"""Stopped exports: their remains are resumed or removed, and other files are never touched."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from checks import stop_export

from dask_tiled import DatasetError, to_zarr
from dask_tiled.storing import claims, folders, nodes
from dask_tiled.storing.folders import place_in
from dask_tiled.storing.places import Place
from dask_tiled.testing import counting_frames

to_zarr = partial(to_zarr, layout="array")  # its keys are all chunks
pytestmark = pytest.mark.usefixtures("synchronous")

PIXELS = counting_frames((6, 4, 8), "uint16")
ARR = da.from_array(PIXELS, chunks=(2, 4, 8))


def files_in(folder):
    """Return all files with their content."""
    return {path.as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stop(monkeypatch, path, arr=ARR, after=1, **options):
    """Stop an export after `after` chunks, and return the folder that it left."""
    stop_export(monkeypatch, Place, arr, path, after, **{"layout": "array"} | options)
    (left,) = (path.parent / f"{path.name}.part").iterdir()
    return left


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("store/c/thesis.txt", {}),
        ("store/photo.png", {"resume": False}),
        ("journal/notes", {"compressors": None}),
        ("writing/a/b", {}),
        ("notes", {"resume": False}),
    ],
)
def test_foreign_files_in_an_export_are_kept(tmp_path, monkeypatch, where, options):
    """A file of the user stops the export, whether it resumes or starts again."""
    place = tmp_path / "out.zarr"
    file = stop(monkeypatch, place) / where
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    before = files_in(tmp_path)
    with pytest.raises(DatasetError, match="other data") as caught:
        to_zarr(ARR, place, **options)
    assert file.name in caught.value.where
    assert files_in(tmp_path) == before
    file.unlink()
    shutil.rmtree(tmp_path / "out.zarr.part" / "writing" / "a", ignore_errors=True)
    if "compressors" in options:
        with pytest.warns(UserWarning, match="other settings"):
            to_zarr(ARR, place, **options)
    else:
        to_zarr(ARR, place, **options)


class Stop(BaseException):
    """Simulated end of a process."""


def stop_at(monkeypatch, step, action):
    """Stop an action after `step` changes of file names; return whether it completed."""
    with monkeypatch.context() as patch:
        steps = 0

        def counted(true):
            def call(*args, **kwargs):
                nonlocal steps
                steps += 1
                if steps > step:  # an ended process changes nothing
                    raise Stop
                return true(*args, **kwargs)

            return call

        for name in ("mkdir", "rename", "replace", "remove", "rmdir"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            action()
        except Stop:
            return False
    return True


@pytest.mark.slow
def test_stops_at_any_step_keep_the_place_usable(tmp_path, monkeypatch):
    """After any stop, an intact array is there or comes back, and a new export succeeds."""
    place, export = tmp_path / "out.zarr", partial(to_zarr, layout="group")
    export(ARR + 1, place)
    old, step, ended, back = PIXELS + 1, 0, False, 0
    while not ended:
        ended = stop_at(monkeypatch, step, lambda: export(ARR, place, overwrite=True))
        if not place.exists():
            back += 1
            with pytest.raises(DatasetError, match="the array exists"):
                export(ARR, place)
        if place.exists():
            found = zarr.open_array(place, path="data", mode="r")[:]
            assert np.array_equal(found, old) or np.array_equal(found, PIXELS)
        export(ARR, place, overwrite=True)
        np.testing.assert_array_equal(zarr.open_array(place, path="data", mode="r")[:], PIXELS)
        assert os.listdir(tmp_path) == ["out.zarr"]
        step, old = step + 1, PIXELS
    assert step > 20
    assert back


@pytest.mark.parametrize("made", ["out.zarr.part", "out.zarr.part/{}", "out.zarr.part/{}/store/c"])
def test_empty_folders_are_no_obstacle(tmp_path, made):
    """Empty folders of exports that stopped at once do not block a new export."""
    (tmp_path / made.format("-".join(["0f" * 16] * 2))).mkdir(parents=True)
    if made.endswith("part"):
        to_zarr(ARR, tmp_path / "out.zarr")
    else:
        with pytest.warns(UserWarning, match="another source"):
            to_zarr(ARR, tmp_path / "out.zarr")
    assert os.listdir(tmp_path) == ["out.zarr"]


def test_remains_after_the_move_give_no_warning(tmp_path):
    """Remains without a store are removed by the next export without a warning."""
    for name in ("journal", "writing"):
        (tmp_path / "out.zarr.part" / "-".join(["0f" * 16] * 2) / name).mkdir(parents=True)
    to_zarr(ARR, tmp_path / "out.zarr")
    assert os.listdir(tmp_path) == ["out.zarr"]


def test_files_added_during_removal_are_kept(tmp_path, monkeypatch):
    """An old array is removed file by file, by name."""
    place, removed = tmp_path / "out.zarr", os.remove
    part = tmp_path / "out.zarr.part"
    to_zarr(ARR + 1, place)

    def adding(path, **kwargs):
        removed(path, **kwargs)
        if "old-" in str(path) and path.endswith("zarr.json"):
            Path(path).with_name("c").joinpath("thesis.txt").write_text("mine")

    monkeypatch.setattr(os, "remove", adding)
    to_zarr(ARR, place, overwrite=True)
    assert list(files_in(part).values()) == [b"mine"]


def test_partly_removed_arrays_do_not_come_back(tmp_path, monkeypatch):
    place, removed = tmp_path / "out.zarr", []
    to_zarr(ARR + 1, place)

    def stopping(path):
        if removed:
            raise Stop
        os.unlink(path)
        removed.extend([path] if path.endswith("zarr.json") else [])

    with monkeypatch.context() as patch:
        patch.setattr(os, "remove", stopping)
        with pytest.raises(Stop):
            to_zarr(ARR, place, overwrite=True)
    assert removed
    shutil.rmtree(place)
    to_zarr(ARR, place)
    assert os.listdir(tmp_path) == ["out.zarr"]


@pytest.mark.parametrize("late", ["made", "moved"])
def test_errors_leave_no_files_of_running_tasks(tmp_path, monkeypatch, late):
    """Files that a task writes or moves after the files to remove were listed are removed, too."""
    done, files = [], nodes.files

    def listing(folder, *folders):
        half, found = Path(folder, "writing", "0f" * 16), [*files(folder, *folders)]
        if "gone-" in folder and not done:
            half.write_bytes(b"half")
            done.append(half)
            if late == "moved":
                found = [*files(folder, *folders)]
                half.rename(half.parents[1] / "store" / "c" / "0" / "0" / "1")
        return found

    def fail(block, block_id):
        if block_id[0]:
            raise ZeroDivisionError
        return block

    arr = ARR.rechunk((2, 4, 4)).map_blocks(fail, dtype=ARR.dtype, meta=ARR._meta)
    with monkeypatch.context() as patch:
        patch.setattr(nodes, "files", listing)
        with pytest.raises(ZeroDivisionError):
            to_zarr(arr, tmp_path / "out.zarr", chunks=(2, 4, 4))
    assert done
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("late", ["put", "note"])
def test_late_tasks_do_not_recreate_a_removed_export(tmp_path, monkeypatch, late):
    place = place_in(str(tmp_path / "attempt"))

    def opening(path, *args, **options):
        file = open(path, *args, **options)  # noqa: SIM115 - closed by the caller
        claims.discard(str(tmp_path / "attempt"))
        return file

    monkeypatch.setattr(folders, "open_file", opening)
    with pytest.raises(DatasetError, match="folder was removed"):
        place.put("c/0/0/0", b"chunk") if late == "put" else place.note({"c/0/0/0": [5, 1]})
    assert not os.listdir(tmp_path)


def test_exports_are_reproducible(tmp_path):
    """Two exports of one array have the same files, which are metadata and chunks alone."""
    to_zarr(ARR, tmp_path / "a.zarr")
    to_zarr(ARR, tmp_path / "b.zarr")
    one, other = (
        {key.removeprefix((tmp_path / name).as_posix()): data for key, data in found.items()}
        for name in ("a.zarr", "b.zarr")
        for found in [files_in(tmp_path / name)]
    )
    assert one == other
    assert {*one} == {"/zarr.json", *(f"/c/{k}/0/0" for k in range(3))}


def test_records_of_earlier_versions_are_removed(tmp_path, monkeypatch, written):
    """Earlier versions kept a record among the chunks."""
    place = tmp_path / "out.zarr"
    record = stop(monkeypatch, place) / "store" / ".dask_tiled" / "export.json"
    record.parent.mkdir()
    record.write_text(json.dumps({"id": "0f" * 16, "attempt": record.parts[-4], "prefix": ""}))
    written.clear()
    to_zarr(ARR, place)
    assert len(written) == 2
    assert not (place / ".dask_tiled").exists()
    np.testing.assert_array_equal(zarr.open_array(place)[:], PIXELS)


def test_replaced_arrays_come_back(tmp_path):
    """An array that a stopped export was replacing is restored."""
    place = tmp_path / "out.zarr"
    (tmp_path / "out.zarr.part").mkdir()
    zarr.create_array(tmp_path / "out.zarr.part" / "replaced", data=PIXELS + 1)
    with pytest.raises(DatasetError, match="the array exists"):
        to_zarr(ARR, place)
    np.testing.assert_array_equal(zarr.open_array(place)[:], PIXELS + 1)
    assert os.listdir(tmp_path) == ["out.zarr"]


def test_replaced_arrays_are_removed(tmp_path):
    """An export was killed after it had moved its array to the path."""
    place = tmp_path / "out.zarr"
    to_zarr(ARR, place)
    zarr.create_array(tmp_path / "out.zarr.part" / "replaced", data=PIXELS + 1)
    to_zarr(ARR + 2, place, overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(place)[:], PIXELS + 2)
    assert os.listdir(tmp_path) == ["out.zarr"]


def test_store_paths_of_folders_are_folders(tmp_path):
    """A StorePath of a local store exports as atomically as a path."""
    group = zarr.create_group(tmp_path / "group.zarr")
    to_zarr(ARR, zarr.storage.StorePath(group.store, "scan"))
    np.testing.assert_array_equal(group["scan"][:], PIXELS)
    with dask.config.set(scheduler="synchronous"), pytest.raises(DatasetError, match="exists"):
        to_zarr(ARR, group.store_path / "scan")
    assert sorted(os.listdir(tmp_path / "group.zarr")) == ["scan", "zarr.json"]
