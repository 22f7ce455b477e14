"""Folders that are watched: complete datasets are converted, others wait."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from checks import wait_for

import dask_tiled
from dask_tiled import DatasetError
from dask_tiled.batch import watching
from dask_tiled.batch.planning import ConversionPlan
from dask_tiled.batch.records import read_record
from dask_tiled.testing import counting_frames, write_mib

FRAMES = counting_frames((6, 4, 16), "u2", bits=12)
SCAN = counting_frames((4, 6, 16, 16), "u2")


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Return a watch of a folder whose clock is ``watch.now``; changes are seen at once."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    folder, out = str(tmp_path / "in"), str(tmp_path / "out")
    names = {"suffix": ".zarr", "name": "{stem}", "pattern": None, "recursive": True}
    plan = partial(ConversionPlan, [folder], out, **names, together=False, always=False)
    clock = [0.0]
    monkeypatch.setattr(watching, "monotonic", lambda: clock[0])
    with watching.SourceWatch([folder], out, plan, 10.0, {}) as watch:

        def at(seconds):
            clock[0] = seconds
            watch._has_changed.set()
            return [os.path.basename(one.source) for one in watch.new()]

        watch.at = at
        yield watch


def test_a_dataset_is_new_when_it_is_quiet(watch):
    np.save("in/a.npy", FRAMES)
    assert watch.at(1) == []
    np.save("in/b.npy", FRAMES)
    assert watch.at(8) == []
    assert watch.at(12) == ["a.npy"]
    np.save("in/b.npy", SCAN)  # has changed
    assert watch.at(19) == []
    assert [os.path.basename(one.source) for one in watch.incomplete] == ["b.npy"]
    assert watch.at(30) == ["b.npy"]
    assert watch.incomplete == []
    assert watch.at(60) == []
    np.save("in/a.npy", SCAN)
    assert watch.at(61) == []
    assert watch.at(72) == ["a.npy"]


@pytest.mark.thorough
def test_a_dataset_is_new_when_no_frames_are_lacking(watch):
    """A file that is still being copied, however long it rests."""
    data = Path(write_mib("s.mib", SCAN)).read_bytes()
    Path("in/s.mib").write_bytes(data[: len(data) // 2])
    os.rename("s.hdr", "in/s.hdr")
    assert watch.at(1) == watch.at(100) == []
    (one,) = watch.incomplete
    assert one.lacking == "12 of 24 frames"
    with open("in/s.mib", "ab") as file:
        file.write(data[len(data) // 2 :])
    assert watch.at(101) == []
    assert watch.at(112) == ["s.mib"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux reports who has a file open")
def test_a_file_that_is_open_for_writing_is_not_quiet(watch):
    with open("in/a.npy", "wb") as file:
        np.save(file, FRAMES)
        file.flush()
        assert watch.at(1) == watch.at(50) == []
    assert watch.at(51) == []
    assert watch.at(61) == ["a.npy"]


def test_targets_that_conflict_later_are_failures(watch):
    np.save("in/a.npy", FRAMES)
    watch.at(1)
    assert watch.at(12) == ["a.npy"]
    Path("in/x").mkdir()
    np.save("in/x/a.npy", FRAMES)
    watch.at(13)
    assert watch.at(24) == ["a.npy"]
    assert "two sources have the same target" in next(reversed(watch._begun))[1]


def test_a_folder_that_vanishes_comes_back(watch):
    os.rename("in", "away")
    assert watch.at(1) == []
    os.rename("away", "in")
    np.save("in/a.npy", FRAMES)
    watch.at(2)
    assert watch.at(13) == ["a.npy"]


@pytest.mark.parametrize("force_polling", ["", "1"])
def test_changes_are_noticed(tmp_path, monkeypatch, force_polling):
    """By the system, or by polling; not those of the targets."""
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(watching, "is_network", lambda _: bool(force_polling))
    (tmp_path / "out").mkdir()
    with watching.SourceWatch([tmp_path], str(tmp_path / "out"), None, 1.0, {}) as watch:
        watch._has_changed.clear()
        for k in range(1000):  # until the first one is noticed
            (tmp_path / f"{k}").touch()
            if watch._has_changed.wait(0.1):
                break
        assert watch._has_changed.is_set()
    assert not watch._is_of_source(None, str(tmp_path / "out" / "a.zarr"))


def test_invalid_arguments(tmp_path, monkeypatch):
    path = tmp_path / "a.npy"
    np.save(path, FRAMES)
    with pytest.raises(DatasetError, match="only folders are watched"):
        dask_tiled.convert_all(path, tmp_path / "out", watch=1)
    with pytest.raises(DatasetError, match="watch= must be a duration"):
        dask_tiled.convert_all(tmp_path, tmp_path / "out", watch=0)
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(ImportError, match=r'pip install "dask-tiled\[watch\]"'):
        dask_tiled.convert_all(tmp_path, tmp_path / "out", watch=1)


@pytest.mark.slow
def test_files_are_converted_until_an_interruption(tmp_path):
    """In an empty folder at first; the next run goes on, and ends by its deadline."""
    out = tmp_path / "out"
    (tmp_path / "in").mkdir()

    def is_made(name):
        record = read_record(str(out / f"{name}.zarr"))
        return record is not None and record.is_complete

    words = [sys.executable, "-m", "dask_tiled", "convert", "--watch", str(tmp_path / "in")]
    words += [f"{out}/", "--quiet", "0.2s", "--jobs", "1", "--report", str(tmp_path / "r.json")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as batch:
        np.save(tmp_path / "in" / "a.npy", FRAMES)
        wait_for(lambda: is_made("a") or batch.poll() is not None)
        np.save(tmp_path / "in" / "b.npy", FRAMES)
        wait_for(lambda: is_made("b") or batch.poll() is not None)
        batch.send_signal(signal.SIGTERM)
        _, stderr = batch.communicate()
    assert batch.returncode == 143, stderr
    np.save(tmp_path / "in" / "c.npy", FRAMES)
    rows = []

    def told(row, _):
        rows.append(row)
        if sum(one is not None for one in rows) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dask_tiled.convert_all(tmp_path / "in", out, watch=0.2, told=told)
    assert sorted(row.state for row in rows if row) == ["done", "done already", "done already"]
    late = dask_tiled.convert_all(tmp_path / "in", out, watch=1000, deadline=2)
    assert [row.state for row in late] == ["not begun"] * 3
