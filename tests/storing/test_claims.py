"""What exports leave when they are stopped: gone on with or removed, and nothing beside it is."""

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

to_zarr = partial(to_zarr, layout="array")  # its keys are those of chunks alone
pytestmark = pytest.mark.usefixtures("synchronous")

PIXELS = counting_frames((6, 4, 8), "uint16")
ARR = da.from_array(PIXELS, chunks=(2, 4, 8))


def everything(folder):
    """List all files with what they hold."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stop(monkeypatch, path, arr=ARR, after=1, **options):
    """Stop an export when it has noted so many of its chunks, and give the folder that it left."""
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
def test_what_was_put_into_the_folder_of_an_export_stays(tmp_path, monkeypatch, where, options):
    """Also where it goes on, or starts afresh."""
    place = tmp_path / "out.zarr"
    file = stop(monkeypatch, place) / where
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(DatasetError, match="other data") as caught:
        to_zarr(ARR, place, **options)
    assert file.name in caught.value.where
    assert everything(tmp_path) == before
    file.unlink()
    shutil.rmtree(tmp_path / "out.zarr.part" / "writing" / "a", ignore_errors=True)
    if "compressors" in options:
        with pytest.warns(UserWarning, match="other settings"):
            to_zarr(ARR, place, **options)
    else:
        to_zarr(ARR, place, **options)


class Stop(BaseException):
    """Stands for the end of a process."""


def stop_at(monkeypatch, step, action):
    """Do something until it has touched the names of files so many times; tell whether it ended."""
    with monkeypatch.context() as patch:
        steps = 0

        def counted(true):
            def call(*args, **kwargs):
                nonlocal steps
                steps += 1
                if steps > step:  # nothing happens after the end of a process
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
def test_no_stop_blocks_the_place(tmp_path, monkeypatch):
    """Not even one between the removal of two files. What was in its place comes back, whole."""
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
    """Such as one that was stopped at once has left."""
    (tmp_path / made.format("-".join(["0f" * 16] * 2))).mkdir(parents=True)
    if made.endswith("part"):
        to_zarr(ARR, tmp_path / "out.zarr")
    else:
        with pytest.warns(UserWarning, match="another source"):
            to_zarr(ARR, tmp_path / "out.zarr")
    assert os.listdir(tmp_path) == ["out.zarr"]


def test_who_was_stopped_after_the_move_starts_nothing_afresh(tmp_path):
    """What is left has no store any more; another export goes on without a word."""
    for name in ("journal", "writing"):
        (tmp_path / "out.zarr.part" / "-".join(["0f" * 16] * 2) / name).mkdir(parents=True)
    to_zarr(ARR, tmp_path / "out.zarr")
    assert os.listdir(tmp_path) == ["out.zarr"]


def test_what_comes_while_an_old_array_is_removed_stays(tmp_path, monkeypatch):
    """Files are removed by name."""
    place, removed = tmp_path / "out.zarr", os.remove
    part = tmp_path / "out.zarr.part"
    to_zarr(ARR + 1, place)

    def adding(path, **kwargs):
        removed(path, **kwargs)
        if "old-" in str(path) and path.endswith("zarr.json"):
            Path(path).with_name("c").joinpath("thesis.txt").write_text("mine")

    monkeypatch.setattr(os, "remove", adding)
    to_zarr(ARR, place, overwrite=True)
    assert list(everything(part).values()) == [b"mine"]


def test_what_is_being_removed_does_not_come_back(tmp_path, monkeypatch):
    """Half of an old array is nothing to put back, whatever happens to the new one."""
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
def test_an_error_leaves_nothing_of_tasks_that_are_on_their_way(tmp_path, monkeypatch, late):
    """They make a file, or put it in its place, just when what is to be removed has been listed."""
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
def test_tasks_do_not_make_an_export_again_that_is_over(tmp_path, monkeypatch, late):
    """What they are writing when it is removed goes nowhere."""
    place = place_in(str(tmp_path / "attempt"))

    def opening(path, *args, **options):
        file = open(path, *args, **options)  # noqa: SIM115 - closed by who opens it
        claims.discard(str(tmp_path / "attempt"))
        return file

    monkeypatch.setattr(folders, "open_file", opening)
    with pytest.raises(DatasetError, match="stopped"):
        place.put("c/0/0/0", b"chunk") if late == "put" else place.note({"c/0/0/0": [5, 1]})
    assert not os.listdir(tmp_path)


def test_nothing_is_left_beside_what_is_stored(tmp_path):
    """Two exports of one array are the same, to the last file."""
    to_zarr(ARR, tmp_path / "a.zarr")
    to_zarr(ARR, tmp_path / "b.zarr")
    one, other = (
        {key.removeprefix(str(tmp_path / name)): data for key, data in found.items()}
        for name in ("a.zarr", "b.zarr")
        for found in [everything(tmp_path / name)]
    )
    assert one == other
    assert {*one} == {"/zarr.json", *(f"/c/{k}/0/0" for k in range(3))}


def test_what_a_version_before_has_left(tmp_path, monkeypatch, written):
    """It kept a record beside the chunks, which is no part of the array now."""
    place = tmp_path / "out.zarr"
    record = stop(monkeypatch, place) / "store" / ".dask_tiled" / "export.json"
    record.parent.mkdir()
    record.write_text(json.dumps({"id": "0f" * 16, "attempt": record.parts[-4], "prefix": ""}))
    written.clear()
    to_zarr(ARR, place)
    assert len(written) == 2
    assert not (place / ".dask_tiled").exists()
    np.testing.assert_array_equal(zarr.open_array(place)[:], PIXELS)


def test_what_was_replaced_when_an_export_was_stopped_comes_back(tmp_path):
    """Whoever wrote it."""
    place = tmp_path / "out.zarr"
    (tmp_path / "out.zarr.part").mkdir()
    zarr.create_array(tmp_path / "out.zarr.part" / "replaced", data=PIXELS + 1)
    with pytest.raises(DatasetError, match="the array exists"):
        to_zarr(ARR, place)
    np.testing.assert_array_equal(zarr.open_array(place)[:], PIXELS + 1)
    assert os.listdir(tmp_path) == ["out.zarr"]


def test_a_folder_given_as_a_path_in_a_store_is_a_path(tmp_path):
    """So that nothing incomplete is seen there, either."""
    group = zarr.create_group(tmp_path / "group.zarr")
    to_zarr(ARR, zarr.storage.StorePath(group.store, "scan"))
    np.testing.assert_array_equal(group["scan"][:], PIXELS)
    with dask.config.set(scheduler="synchronous"), pytest.raises(DatasetError, match="exists"):
        to_zarr(ARR, group.store_path / "scan")
    assert sorted(os.listdir(tmp_path / "group.zarr")) == ["scan", "zarr.json"]
