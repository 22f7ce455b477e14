"""Exports are flushed to disk before they become visible: files, folders and parents."""

import os
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

from dask_tiled import DatasetError, open_dataset, to_beton, to_references, to_zarr
from dask_tiled.testing import counting_frames, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((6, 8, 16), "uint16")


@pytest.fixture
def calls(monkeypatch):
    """List flushed inodes and renamed paths, in order."""
    seen = []
    fsync, rename, replace = os.fsync, os.rename, os.replace

    def flushed(file):
        stat = os.fstat(file)
        seen.append(("fsync", stat.st_ino, stat.st_size, stat.st_mtime_ns))
        fsync(file)

    def renamed(true, source, target):
        true(source, target)
        seen.append(("rename", str(source), str(target)))

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", partial(renamed, rename))
    monkeypatch.setattr(os, "replace", partial(renamed, replace))
    return seen


def export(kind, folder, out):
    raw = {"format": "raw", "dtype": "u2", "sig_shape": (8, 16), "follow": kind == "follow"}
    arr = open_dataset(write_raw(folder / "scan.raw", FRAMES), **raw)
    if kind == "beton":
        to_beton(out, {"x": arr}, progress=False, overwrite=True)
    elif kind == "references":
        out.parent.mkdir(parents=True, exist_ok=True)
        to_references(arr, out, overwrite=True)
    elif kind == "follow":
        to_zarr(arr, out, follow=True, rest=0.001, overwrite=True)
    else:
        options = {"pyramid": 2} if kind == "pyramid" else {}
        to_zarr(arr, out, chunks=(2, 8, 16), shards=(4, 8, 16), overwrite=True, **options)


@pytest.mark.parametrize("kind", ["plain", "pyramid", "follow", "beton", "references"])
def test_visible_files_were_flushed(tmp_path, calls, kind):
    """Files and folders are flushed after their last change."""
    out = tmp_path / "new" / "folder" / "out"
    for _ in range(2):  # the second time, there is something to replace
        calls.clear()
        export(kind, tmp_path, out)
        shown = max(k for k, call in enumerate(calls) if call[::2] == ("rename", str(out)))
        before = {call[1:] for call in calls[:shown] if call[0] == "fsync"}
        after = {call[1] for call in calls[shown:] if call[0] == "fsync"}
        for path in (out, *out.rglob("*")):
            stat = path.stat()
            assert (stat.st_ino, stat.st_size, stat.st_mtime_ns) in before, path
        for path in out.parents:
            assert path.stat().st_ino in after, path


@pytest.mark.parametrize("kind", ["plain", "beton"])
def test_failed_flushes_show_nothing(tmp_path, monkeypatch, kind):
    """If the disk fails to flush, the old export stays."""
    out = tmp_path / "out"
    if kind == "plain":
        to_zarr(da.zeros(3), out)

    def fail(_):
        raise OSError(5, "Input/output error")

    names = sorted(os.listdir(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(DatasetError, match="Input/output error"):
            export(kind, tmp_path, out)
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "scan.raw"])
    if kind == "plain":
        old = da.from_zarr(str(Path(out, "data")))
        np.testing.assert_array_equal(old, np.zeros(3))


def test_failed_flushes_of_parents_restore_the_old_array(tmp_path, monkeypatch):
    """The replaced array comes back if the last step fails, and the next export succeeds."""
    out = tmp_path / "out"
    to_zarr(da.zeros(3), out)

    def fail(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("dask_tiled.storing.folders.flush_folders", fail)
        with pytest.raises(DatasetError, match="Input/output error") as caught:
            export("plain", tmp_path, out)
    assert "call it again to resume" in caught.value.__notes__[-1]
    np.testing.assert_array_equal(da.from_zarr(str(out / "data")), np.zeros(3))
    assert sorted(os.listdir(tmp_path)) == ["out", "out.part", "scan.raw"]
    with pytest.warns(UserWarning, match="another source"):  # the scan is written again
        export("plain", tmp_path, out)
    assert sorted(os.listdir(tmp_path)) == ["out", "scan.raw"]


def test_folders_that_cannot_be_flushed(tmp_path, monkeypatch):
    """Some file systems cannot flush folders; exports succeed nevertheless."""

    def fail(file):
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fail)
    export("plain", tmp_path, tmp_path / "out")
