"""Batches of conversions: what is done, resumed, changed, failed and stopped."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import checks
import numpy as np
import psutil
import pytest
import tifffile
import zarr
from checks import unprivileged
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from own_format import BYTES, own_format

import dask_tiled
from dask_tiled import DatasetError
from dask_tiled.apart.growing import GrowingPool
from dask_tiled.batch import children, one, running
from dask_tiled.batch.planning import PlannedConversion, part_of
from dask_tiled.batch.progress import BatchProgress
from dask_tiled.batch.records import read_record
from dask_tiled.cataloguing import readers
from dask_tiled.command_line import values
from dask_tiled.command_line.app import app
from dask_tiled.system.locks import open_locked
from dask_tiled.testing import counting_frames, write_dm, write_mib, write_mib_series

FRAMES = counting_frames((6, 4, 16), "u2", bits=12)


class Here:
    """Conversions in this process, one at a time."""

    jobs = 1

    def __init__(self, *_):
        pass

    def submit(self, task, _):
        future = Future()
        try:
            future.set_result(one.convert_one(task))
        except BaseException as error:  # noqa: BLE001 - raised where the result is wanted
            future.set_exception(error)
        return future

    def stop(self):
        pass

    def end(self):
        pass


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Convert and read headers in this process, one at a time, in a new folder."""
    one_at_a_time = threading.Lock()  # contexts of warnings are those of all threads

    def read_here(_, read, path, **__):
        with one_at_a_time:
            return read(path)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "LocalConverters", Here)
    monkeypatch.setattr(running, "ConverterPool", lambda **_: SimpleNamespace(close=list))
    monkeypatch.setattr(readers.HeaderReaders, "read", read_here)


def states(*args, **options):
    """Convert, and return the states by the names of the targets."""
    rows = dask_tiled.convert_all(*args, **options)
    return {os.path.relpath(row.target, "out"): row.state for row in rows}


def save(name, pixels=FRAMES):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    np.save(name, pixels)
    return name


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_each_picture_has_its_target():
    Path("night/sub").mkdir(parents=True)
    write_mib_series("night/a_", FRAMES, frames_per_file=2, hdr=False)
    pictures = {"map": np.ones((4, 6), "float32")}
    write_dm("night/sub/two.dm4", np.ones((8, 8), "uint16"), name="survey", more=pictures)
    Path("night/notes.txt").write_text("a note")
    found = states("night", "out")
    first = next(iter(found))
    assert dict.fromkeys((first, "two-survey.zarr", "two-map.zarr"), "done") == found
    assert (zarr.open_array(f"out/{first}/data", mode="r")[:].reshape(FRAMES.shape) == FRAMES).all()
    assert (zarr.open_array("out/two-map.zarr/data", mode="r")[:] == 1).all()
    again = states("night", "elsewhere", name="{folder}/{stem}/{number}", suffix=".npy")
    assert {"../elsewhere/sub/two/0.npy", "../elsewhere/sub/two/1.npy"} < {*again}
    assert states("night/sub", "one", together=True) == {"../one/two.zarr": "done"}
    assert {*dask_tiled.open_datasets("one/two.zarr")} == {"survey", "map"}


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("suffix", [".zarr", ".npy", ".zarr.zip"])
def test_repeating_does_nothing(suffix):
    """The second run skips what is done; a third one verifies it, once."""
    for name in "abc":
        save(f"in/{name}.npy")
    assert set(states("in", "out", suffix=suffix).values()) == {"done"}
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*") if path.is_file()}
    rows = dask_tiled.convert_all("in", "out", suffix=suffix)
    assert {(row.state, row.verified) for row in rows} == {("done already", False)}
    after = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*") if path.is_file()}
    assert before == after
    rows = dask_tiled.convert_all("in", "out", suffix=suffix, verify=True)
    assert {(row.state, row.verified) for row in rows} == {("done already", True)}
    for folder in ("in", "out"):
        shutil.copytree(folder, f"copy/{folder}")
    assert set(states("copy/in", "copy/out", suffix=suffix).values()) == {"done already"}


@pytest.mark.usefixtures("here")
def test_sources_of_the_same_name_are_told_apart():
    """Also if sizes and times are equal; an update does not replace the result of the first."""
    save("in/scan.npy")
    save("other/scan.npy", FRAMES + 1)
    for folder in ("in", "other"):
        os.utime(f"{folder}/scan.npy", ns=(1, 1))
    states("in", "out")
    for update in (False, True):
        (row,) = dask_tiled.convert_all("other", "out", update=update)
        says = f"the target was made of another source, {os.path.abspath('in/scan.npy')}"
        assert (row.state, row.problem) == ("failed", f"{says}. Pass overwrite=True to replace it.")
    assert states("in", "out") == {"scan.zarr": "done already"}
    assert states("other", "out", overwrite=True) == {"scan.zarr": "done"}
    assert (zarr.open_array("out/scan.zarr/data", mode="r")[:] == FRAMES + 1).all()


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_updates_keep_results_that_somebody_changed():
    """Of sources that have changed, and of others."""
    for name in "ab":
        save(f"in/{name}.npy")
    states("in", "out")
    for name in "ab":
        zarr.open_group(f"out/{name}.zarr", mode="a").create_array("analysis", data=FRAMES)
    save("in/b.npy", FRAMES + 1)
    os.utime("in/b.npy", ns=(1, 1))
    assert states("in", "out", update=True) == {"a.zarr": "failed", "b.zarr": "failed"}
    assert Path("out/a.zarr/analysis").exists()
    assert Path("out/b.zarr/analysis").exists()
    assert states("in", "out", overwrite=True) == {"a.zarr": "done", "b.zarr": "done"}


@pytest.mark.usefixtures("here")
def test_touched_results_are_done_but_are_not_replaced():
    """The samples of a fingerprint do not show each change of pixels."""
    save("in/a.npy")
    states("in", "out", suffix=".npy")
    os.utime("out/a.npy", ns=(1, 1))
    assert states("in", "out", suffix=".npy") == {"a.npy": "done already"}
    save("in/a.npy", FRAMES + 1)
    os.utime("in/a.npy", ns=(1, 1))
    (row,) = dask_tiled.convert_all("in", "out", suffix=".npy", update=True)
    assert row.state == "failed"
    assert row.problem.startswith("changed since: a.npy, and the target was touched since")


@pytest.mark.usefixtures("here")
def test_changed_headers_of_a_given_file_are_noticed():
    """The header is no source by itself, but is a part of the record."""
    Path("in").mkdir()
    write_mib("in/a.mib", counting_frames((4, 4, 16, 16), "uint16"))
    assert states("in/a.mib", "out") == {"a.zarr": "done"}
    assert states("in", "out") == {"a.zarr": "done already"}
    assert states("in/a.mib", "out") == {"a.zarr": "done already"}
    os.utime("in/a.hdr", ns=(1, 1))
    for source in ("in", "in/a.mib"):
        (row,) = dask_tiled.convert_all(source, "out")
        assert (row.state, row.problem) == ("changed", "changed since: a.hdr")
    os.rename("in/a.hdr", "a.hdr")
    (row,) = dask_tiled.convert_all("in/a.mib", "out")
    assert (row.state, row.problem) == ("changed", "changed since: a.hdr")
    assert states("in/a.mib", "out", update=True) == {"a.zarr": "done"}
    os.rename("a.hdr", "in/a.hdr")
    for source in ("in", "in/a.mib"):
        (row,) = dask_tiled.convert_all(source, "out")
        assert (row.state, row.problem) == ("changed", "changed since: a.hdr")


@pytest.mark.usefixtures("here")
def test_verified_results_are_compared_again_if_touched():
    """The damaged byte is none of the samples of the fingerprint."""
    frames = np.arange(1 << 19, dtype="u4").reshape(8, 256, 256)
    save("in/a.npy", frames)
    assert states("in", "out", suffix=".npy", verify=True) == {"a.npy": "done"}
    with open("out/a.npy", "r+b") as file:
        file.seek(8192)
        file.write(b"\xff")
    os.utime("out/a.npy", ns=(1, 1))
    (row,) = dask_tiled.convert_all("in", "out", suffix=".npy")
    assert (row.state, row.verified) == ("done already", False)
    assert states("in", "out", suffix=".npy", verify=True) == {"a.npy": "failed"}
    assert states("in", "out", suffix=".npy") == {"a.npy": "changed"}
    assert states("in", "out", suffix=".npy", update=True, verify=True) == {"a.npy": "done"}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "record",
    [
        '{"sources": [], "files": [], "options": {}}',
        '{"sources": ["a"], "files": [], "options": {}}',
        '{"sources": ["a"], "files": {}, "options": 1}',
        '{"sources": ["a"], "files": {}, "options": {}, "made": ["1", "", ""]}',
        '{"sources": ["a"], "files": {}, "options": {}, "made": 3}',
        '{"sources": ["a"], "files": {}, "options": {}, "doubts": [1]}',
        '{"sources": 1, "files": {}, "options": {}}',
        "[1]",
        "[" * 100000,
    ],
)
def test_damaged_records(record):
    save("in/a.npy")
    states("in", "out")
    Path("out/.dask-tiled/a.zarr.json").write_text(record)
    (row,) = dask_tiled.convert_all("in", "out")
    assert row.state == "failed"
    assert row.problem.startswith("the target exists, and no batch has made it")
    assert states("in", "out", overwrite=True) == {"a.zarr": "done"}


@pytest.mark.usefixtures("here")
def test_changed_sources_are_reported_and_updated():
    for name in "ab":
        save(f"in/{name}.npy")
    states("in", "out")
    save("in/b.npy", FRAMES + 1)
    os.utime("in/b.npy", ns=(1, 1))
    first, second = dask_tiled.convert_all("in", "out")
    assert (first.state, second.state) == ("done already", "changed")
    assert second.problem == "changed since: b.npy"
    assert (zarr.open_array("out/b.zarr/data", mode="r")[:] == FRAMES).all()
    assert states("in", "out", update=True) == {"a.zarr": "done already", "b.zarr": "done"}
    assert (zarr.open_array("out/b.zarr/data", mode="r")[:] == FRAMES + 1).all()
    (row, _) = dask_tiled.convert_all("in", "out", chunks=(1, 4, 16))
    assert (row.state, row.problem) == ("changed", "it was made with other options: chunks")


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_targets_that_were_changed_or_are_not_ours():
    for name in "abc":
        save(f"in/{name}.npy")
    dask_tiled.to_zarr(FRAMES, "out/a.zarr")
    assert states("in", "out") == {"a.zarr": "failed", "b.zarr": "done", "c.zarr": "done"}
    shutil.rmtree("out/b.zarr/data/c")
    shutil.rmtree("out/c.zarr")
    a, b, c = dask_tiled.convert_all("in", "out")
    says = "the target exists, and no batch has made it"
    assert a.problem == f"{says}. Pass overwrite=True to replace it."
    assert (b.state, c.state) == ("failed", "done")
    assert b.problem.startswith("the target was changed: it has ")
    assert {*states("in", "out", overwrite=True).values()} == {"done", "done already"}
    assert {*states("in", "out").values()} == {"done already"}


@pytest.mark.usefixtures("here")
def test_equal_targets_are_refused_before_anything_is_written():
    save("in/x/scan.npy")
    save("in/y/scan.npy")
    with pytest.raises(DatasetError, match=r"same target.*in/x/scan\.npy and .*in/y/scan\.npy"):
        dask_tiled.convert_all("in", "out", report="report.csv")
    assert sorted(os.listdir()) == ["in"]
    assert len(states("in", "out", name="{folder}/{stem}")) == 2
    save("in/x/y/scan.npy")
    with pytest.raises(DatasetError, match="the target is a file of a source"):
        dask_tiled.convert_all("in/x", "in/x", suffix=".npy")


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_results_beside_their_sources_are_no_sources():
    save("in/scan.npy")
    assert states("in", "in") == {"../in/scan.zarr": "done"}
    assert states("in", "in") == {"../in/scan.zarr": "done already"}
    dask_tiled.to_zarr(FRAMES, "in/of_others.zarr")
    assert states("in", "in") == {"../in/scan.zarr": "done already"}
    Path("a.part").mkdir()
    save("a.part/x.npy")
    assert states("a.part", "a.part") == {"../a.part/x.zarr": "done"}
    Path("a.part/y.zarr.part").mkdir()
    save("a.part/y.zarr.part/c.npy")
    save("a.part/b.part/d.npy")
    found = states("a.part", "a.part")
    assert found == {"../a.part/x.zarr": "done already", "../a.part/d.zarr": "done"}
    save("in/of_others.npy")
    with pytest.raises(DatasetError, match=r"of_others\.zarr: .* a file of a source"):
        states("in", "in")


@pytest.mark.usefixtures("here")
def test_nothing_to_convert_is_refused():
    """Also if all datasets are results already."""
    save("in/a.npy")
    states("in", "out")
    with pytest.raises(DatasetError, match=r"no dataset.*1 results .*another folder"):
        states("out", "out", suffix=".npy")
    says = r"in: no dataset.*expected names that match the pattern; found 1 other files"
    with pytest.raises(DatasetError, match=says):
        states("in", "out", pattern="*.mib")
    Path("empty").mkdir()
    command("empty", "out/", code=2)
    assert dask_tiled.convert_all([], "out") == []


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_names_keep_sources_apart():
    """The error about equal targets names fields that differ."""
    save("in/a.npy")
    tifffile.imwrite("in/a.tif", FRAMES[0])
    with pytest.raises(DatasetError, match=r"same target.*'\{stem\}\{suffix\}'"):
        states("in", "out")
    found = states("in", "out", name="{stem}{suffix}")
    assert found == {"a.npy.zarr": "done", "a.tif.zarr": "done"}
    save("in/x/a.npy")
    with pytest.raises(DatasetError, match=r"same target.*'\{folder\}/\{stem\}'"):
        states("in", "out", pattern="*.npy")
    with pytest.raises(DatasetError, match=r"same target.*'\{folder\}/\{stem\}\{suffix\}'"):
        states("in", "out", name="{folder}/{stem}")
    assert len(states("in", "out", name="{folder}/{stem}{suffix}")) == 3
    with pytest.raises(DatasetError, match=r"same target.*Convert them to different folders"):
        states(["in/a.npy", "in/x/a.npy"], "out")
    alike = {"sum": np.ones((4, 6), "float32")}
    write_dm("in/two.dm4", np.ones((8, 8), "uint16"), name="survey", more=alike)
    with pytest.raises(DatasetError, match=r"same target.*\{number\}"):
        states("in", "out", pattern="two.dm4", name="{picture:.1}")
    save("in/two-sum.npy")
    with pytest.raises(DatasetError, match=r"same target.*'\{stem\}\{suffix\}'"):
        states("in", "out", pattern="two*", recursive=False)


@pytest.mark.usefixtures("here")
def test_a_file_that_is_given_twice_is_one_source():
    Path("in").mkdir()
    write_mib("in/a.mib", counting_frames((6, 8, 16, 16), "uint16"))
    for again in ("in/a.mib", "in/a.hdr", "in", "in/."):
        assert len(states(["in", again], "out")) == 1


@pytest.mark.usefixtures("here")
def test_targets_in_other_datasets_are_refused():
    dask_tiled.to_zarr(FRAMES, "src.zarr")
    save("in/a.npy")
    save("in/a.zarr/c.npy")
    for source, out in (("src.zarr", "src.zarr/sub"), ("in", "src.zarr"), ("in", "out")):
        with pytest.raises(DatasetError, match="within another dataset"):
            states(source, out, name="{folder}/{stem}")
    assert not os.path.exists("out")


@pytest.mark.usefixtures("here")
def test_names_that_leave_the_folder_fail():
    """A row for each, as of any other failure: the other files are converted."""
    save("in/a.npy")
    os.rename(save("in/b.npy"), "in/...npy")
    rows = dask_tiled.convert_all(["in", "in/...npy"], "out", name="{stem}/x")
    assert sorted((row.state, row.target[-12:]) for row in rows) == [
        ("done", "out/a/x.zarr"),
        ("failed", ""),
    ]
    assert "invalid name of the result" in rows[0].problem + rows[1].problem
    assert sorted(os.listdir()) == ["in", "out"]
    (row,) = dask_tiled.convert_all("in/a.npy", "out", name="{folder}")
    assert "invalid name of the result" in row.problem


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "{stem}/../{picture}"}, "invalid name"),
        ({"name": "{stm}"}, "invalid name"),
        ({"name": "{stem"}, "invalid name"),
        ({"name": "/{stem}"}, "invalid name"),
        ({"name": ".dask-tiled/{stem}"}, "invalid name"),
        ({"name": "{stem:{foo}}"}, "invalid name"),
        ({"name": "{stem:{number}}"}, "invalid name"),
        ({"name": "{stem:d}"}, "invalid name"),
        ({"name": "{stem!z}"}, "invalid name"),
        ({"name": "{stem.x}"}, "invalid name"),
        ({"name": "{number:c}"}, "invalid name"),
        ({"name": "{}"}, "invalid name"),
        ({"suffix": ".h5"}, "unknown suffix"),
        ({"suffix": ".npy", "together": True}, "holds one array"),
        ({"suffix": ".npy", "chunks": 4}, "do not support chunks="),
        ({"jobs": 0}, "jobs must be"),
        ({"part": (3, 2)}, "part must be"),
        ({"deadline": 0}, "deadline= must be a duration"),
        ({"stall": 0}, "stall= must be a duration"),
        ({"stall": "10m"}, "stall= must be a duration"),
        ({"report": "report.txt"}, "unknown suffix of a report"),
        ({"report": "nowhere/in.npy/report.csv"}, "cannot be written|not"),
        ({"follow": True}, "applies to one array"),
    ],
)
def test_invalid_arguments(options, says):
    save("nowhere/in.npy")
    with pytest.raises(DatasetError, match=says):
        dask_tiled.convert_all("nowhere", "out", **options)
    assert not os.path.exists("out")


@pytest.mark.usefixtures("here")
def test_failures_do_not_affect_others(monkeypatch):
    """Damaged files, unrecognised ones, and files that vanish: a row each, and no target."""
    for name in "abc":
        save(f"in/{name}.npy")
    Path("in/bad.npy").write_bytes(b"\x93NUMPY junk")
    Path("text.csv").write_text("1, 2, 3\n")
    Path("in/locked").mkdir()

    opened = one.open_dataset

    def vanished(path, **options):
        if path.endswith("b.npy"):
            os.remove(path)
        return opened(path, **options)

    monkeypatch.setattr(one, "open_dataset", vanished)
    os.chmod("in/locked", 0)
    with unprivileged():
        rows = dask_tiled.convert_all(["in", "text.csv"], "out", report="report.json")
    os.chmod("in/locked", 0o700)
    found = {os.path.basename(row.source): row for row in rows}
    failed = {name for name, row in found.items() if row.state == "failed"}
    assert failed == {"b.npy", "bad.npy", "text.csv", "locked"}
    assert all(found[name].problem for name in failed)
    assert "No such file" in found["b.npy"].problem
    assert "Permission denied" in found["locked"].problem
    assert sorted(os.listdir("out")) == [".dask-tiled", "a.zarr", "c.zarr"]
    assert sorted(os.listdir("out/.dask-tiled")) == ["a.zarr.json", "c.zarr.json"]
    told = json.loads(Path("report.json").read_text())["conversions"]
    assert [(x["source"], x["state"]) for x in told] == [(row.source, row.state) for row in rows]


@pytest.mark.usefixtures("here")
def test_differences_from_the_source_are_kept(monkeypatch):
    """A target that differs is never done, until it is made again."""
    save("in/a.npy")

    def damaged(target, *_, **__):
        raise dask_tiled.VerificationError("a pixel differs", path=target)

    with monkeypatch.context() as patch:
        patch.setattr(one, "verify_file", damaged)
        assert states("in", "out", verify=True) == {"a.zarr": "failed"}
    (row,) = dask_tiled.convert_all("in", "out")
    assert row.state == "changed"
    assert "a pixel differs" in row.problem
    assert states("in", "out", update=True, verify=True) == {"a.zarr": "done"}


@pytest.mark.usefixtures("here")
def test_killed_between_the_move_and_the_note(monkeypatch):
    """The target is whole then, also if it replaces another one."""
    save("in/a.npy")
    for frames in (FRAMES, FRAMES + 1):
        save("in/a.npy", frames)
        os.utime("in/a.npy", ns=(int(frames[0, 0, 0]) + 1, 1 + int(frames.sum())))
        with monkeypatch.context() as patch:
            patch.setattr(running, "GRACE", 0)
            patch.setattr(one.ConversionRecord, "complete", lambda *_, **__: sys.exit())
            with pytest.raises(SystemExit):
                dask_tiled.convert_all("in", "out", update=True)
        assert read_record(os.path.abspath("out/a.zarr")).nbytes is None
        assert states("in", "out") == {"a.zarr": "done already"}
        assert (zarr.open_array("out/a.zarr/data", mode="r")[:] == frames).all()


@pytest.mark.usefixtures("here")
def test_a_process_that_dies_after_the_move_may_still_lock_the_target(monkeypatch):
    """What it leaves is removed before the target counts as done: no later call would do that."""
    save("in/a.npy")
    with monkeypatch.context() as patch:
        patch.setattr(running, "GRACE", 0)
        patch.setattr(one.ConversionRecord, "complete", lambda *_, **__: sys.exit())
        with pytest.raises(SystemExit):
            dask_tiled.convert_all("in", "out")
    part = Path("out/a.zarr.part")
    (part / f"gone-{'0' * 32}" / "journal").mkdir(parents=True)
    locks = [open_locked(str(part))]
    clock = {"monotonic": time.monotonic, "perf_counter": time.perf_counter}
    dies = SimpleNamespace(sleep=lambda _: os.close(locks.pop()), **clock)
    monkeypatch.setattr(one, "time", dies)
    assert states("in", "out") == {"a.zarr": "done already"}
    assert not locks
    assert not part.exists()


@pytest.mark.usefixtures("here")
def test_an_update_that_was_stopped_goes_on(monkeypatch):
    save("in/a.npy")
    states("in", "out")
    save("in/a.npy", FRAMES + 1)
    os.utime("in/a.npy", ns=(1, 1))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(one, "convert", interrupted)
        assert states("in", "out", update=True) == {"a.zarr": "stopped"}
    assert states("in", "out") == {"a.zarr": "done"}
    assert (zarr.open_array("out/a.zarr/data", mode="r")[:] == FRAMES + 1).all()


def killed(monkeypatch, *args, **options):
    """Convert, and end where pixels would be written, with the record as it is then."""

    def end(*_, **__):
        shutil.copytree("out/.dask-tiled", "kept")
        sys.exit()

    with monkeypatch.context() as patch:
        patch.setattr(running, "GRACE", 0)
        patch.setattr(one, "convert", end)
        with pytest.raises(SystemExit):
            dask_tiled.convert_all(*args, **options)
    shutil.rmtree("out/.dask-tiled", ignore_errors=True)
    Path("out").mkdir(exist_ok=True)
    os.rename("kept", "out/.dask-tiled")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("how", ["touched", "copied", "replaced"])
def test_targets_of_a_killed_update_are_never_done(monkeypatch, how):
    """They have the old pixels, whatever has happened to them since."""
    save("in/a.npy")
    states("in", "out")
    save("in/a.npy", FRAMES + 1)
    os.utime("in/a.npy", ns=(1, 1))
    killed(monkeypatch, "in", "out", update=True)
    if how == "touched":
        Path("out/a.zarr/.DS_Store").touch()
    else:
        shutil.move("out/a.zarr", "old.zarr")
        if how == "copied":
            shutil.copytree("old.zarr", "out/a.zarr", copy_function=shutil.copyfile)
        else:
            dask_tiled.to_zarr(FRAMES * 3, "out/a.zarr")
    (row,) = dask_tiled.convert_all("in", "out", update=True)
    assert row.state == "failed"
    assert row.problem.startswith("the target was changed since it was made, or replaced")
    Path("out/a.zarr/.DS_Store").unlink(missing_ok=True)
    assert states("in", "out", overwrite=True) == {"a.zarr": "done"}
    assert (zarr.open_array("out/a.zarr/data", mode="r")[:] == FRAMES + 1).all()


@pytest.mark.usefixtures("here")
def test_another_target_after_a_killed_conversion_is_kept(monkeypatch):
    save("in/a.npy")
    killed(monkeypatch, "in", "out")
    dask_tiled.to_zarr(FRAMES * 3, "out/a.zarr")
    assert states("in", "out", update=True) == {"a.zarr": "failed"}
    assert (zarr.open_array("out/a.zarr/data", mode="r")[:] == FRAMES * 3).all()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("when", ["_opened", "convert"])
def test_another_batch_finishes_the_same_target_meanwhile(monkeypatch, when):
    """Its target and its record are kept."""
    save("in/a.npy")
    save("other/a.npy", FRAMES + 1)
    before = getattr(one, when)

    def late(*args, **options):
        monkeypatch.setattr(one, when, before)
        assert states("in", "out") == {"a.zarr": "done"}
        return before(*args, **options)

    monkeypatch.setattr(one, when, late)
    assert states("other", "out") == {"a.zarr": "failed"}
    assert states("other", "out") == {"a.zarr": "failed"}
    assert states("in", "out") == {"a.zarr": "done already"}
    assert (zarr.open_array("out/a.zarr/data", mode="r")[:] == FRAMES).all()


@pytest.mark.usefixtures("here")
def test_groups_that_lack_an_array_are_not_done(monkeypatch):
    """The group appears without arrays that cannot be read, with an error."""
    save("in/a.npy")
    with monkeypatch.context() as patch:

        def lacking(*args, **options):
            dask_tiled.convert(*args, **options)
            raise DatasetError("1 of 2 arrays are not stored")

        patch.setattr(one, "convert", lacking)
        assert states("in", "out") == {"a.zarr": "failed"}
    assert states("in", "out") == {"a.zarr": "done"}


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_killed_after_the_move_of_a_group_that_lacks_an_array(monkeypatch):
    """The next run adds the array, although the error could not be noted."""
    Path("in").mkdir()
    pictures = {"map": np.ones((4, 6), "float32")}
    write_dm("in/two.dm4", np.ones((8, 8), "uint16"), name="survey", more=pictures)
    opened = one.open_datasets

    def convert(*args, **options):
        with pytest.raises(DatasetError):
            dask_tiled.convert(*args, **options)
        shutil.copytree("out/.dask-tiled", "kept")
        sys.exit()

    with monkeypatch.context() as patch:
        lacking = {"map": Path("nowhere.npy")}
        patch.setattr(one, "open_datasets", lambda path: {**opened(path), **lacking})
        patch.setattr(one, "description_of", lambda _: None)
        patch.setattr(one, "convert", convert)
        with pytest.raises(SystemExit):
            dask_tiled.convert_all("in", "out", together=True)
    shutil.rmtree("out/.dask-tiled", ignore_errors=True)
    os.rename("kept", "out/.dask-tiled")
    assert "lack" in dask_tiled.describe("out/two.zarr").doubts[0].text
    assert states("in", "out", together=True) == {"two.zarr": "done"}
    assert {*dask_tiled.open_datasets("out/two.zarr")} == {"survey", "map"}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("target", ["out/a.zarr", "out/a.npy"])
def test_refused_conversions_leave_no_record(target):
    """Else a batch would take the target for one that it may replace."""
    save("in/a.npy")
    dask_tiled.convert(save("other.npy", FRAMES + 1), target)
    command("in/a.npy", target, code=2)
    assert not os.path.exists("out/.dask-tiled")
    assert set(states("in", "out", suffix=os.path.splitext(target)[1]).values()) == {"failed"}


@pytest.mark.usefixtures("here")
def test_a_deadline_ends_the_batch(monkeypatch):
    """By an injected clock: the time of each look at it is a second later."""
    for name in "abcdef":
        save(f"in/{name}.npy")
    monkeypatch.setattr(running, "monotonic", count().__next__)
    rows = dask_tiled.convert_all("in", "out", deadline=6, jobs=1, report="report.csv")
    told = [row.state for row in rows]
    assert 0 < told.count("done") < 6
    assert {*told} == {"done", "not begun"}
    with open("report.csv", encoding="utf8", newline="") as file:
        assert [row["state"] for row in csv.DictReader(file)] == told


@given(st.sets(st.integers(0, 9999), max_size=40), st.integers(0, 9999), st.integers(1, 9))
def test_parts_are_a_partition(numbers, later, parts):
    """A file that is added changes no other file's part."""

    def dealt(some, folder="/out"):
        planned = [PlannedConversion(f"{k}", f"{folder}/x/{k}.zarr") for k in sorted(some)]
        parts_ = [part_of(planned, folder, k + 1, parts) for k in range(parts)]
        return [{int(one.source) for one in part} for part in parts_]

    before, after = dealt(numbers), dealt(numbers | {later}, "/elsewhere/out")
    assert sum(map(len, before)) == len(numbers)
    assert set().union(*before) == numbers
    assert [part - {later} for part in after] == [part - {later} for part in before]


@pytest.mark.thorough
def test_parts_of_many_files_are_about_equal():
    planned = [PlannedConversion(f"{k}", f"/out/scan_{k:05}.zarr") for k in range(4096)]
    counts = [len(part_of(planned, "/out", k + 1, 16)) for k in range(16)]
    assert max(abs(n - 256) for n in counts) < 5 * 256**0.5
    lost = PlannedConversion("/night/locked", "", problem="Permission denied")
    assert [part_of([lost], "/out", k + 1, 2) for k in range(2)] == [[lost], [lost]]


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_parts_have_reports_of_their_own():
    for name in "abcdefgh":
        save(f"in/{name}.npy")
    made = []
    for k in (1, 2):
        states("in", "out", part=(k, 2), report="report.csv")
        with open(f"report-{k}-of-2.csv", encoding="utf8", newline="") as file:
            made += [(Path(row["source"]).stem, row["state"]) for row in csv.DictReader(file)]
    assert sorted(made) == [(name, "done") for name in "abcdefgh"]
    assert not os.path.exists("report.csv")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_reports_replace_reports_only(suffix):
    """Also none of another kind, such as a catalogue."""
    save("in/a.npy")
    path = f"found{suffix}"
    found = dask_tiled.catalogue("in")
    (found.to_csv if suffix == ".csv" else found.to_json)(path)
    before = Path(path).read_bytes()
    with pytest.raises(DatasetError, match="other data"):
        states("in", "out", report=path)
    assert Path(path).read_bytes() == before
    for _ in range(2):
        states("in", "out", report=f"report{suffix}")
    with pytest.raises(DatasetError, match="other data"):
        (found.to_csv if suffix == ".csv" else found.to_json)(f"report{suffix}")


@pytest.mark.usefixtures("here")
def test_cells_of_reports_are_no_formulas():
    Path("in").mkdir()
    pictures = {"=1+1": np.ones((4, 6), "float32")}
    write_dm("in/two.dm4", np.ones((8, 8), "uint16"), name="survey", more=pictures)
    states("in", "out", report="report.csv")
    with open("report.csv", encoding="utf8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert "'=1+1" in cells
    assert not [cell for cell in cells if cell.startswith("=")]


@pytest.mark.usefixtures("here")
def test_a_report_that_cannot_be_written_at_the_end_is_a_warning(monkeypatch):
    """The outcomes are returned, and the exit code is that of the batch."""
    save("in/a.npy")
    Path("in/bad.npy").write_bytes(b"\x93NUMPY junk")
    Path("reports").mkdir()

    def told(*_):
        shutil.rmtree("reports", ignore_errors=True)
        Path("reports").touch()

    heard = []  # headers are read in threads here, which would share pytest.warns
    monkeypatch.setattr(running, "warn", heard.append)
    found = states("in", "out", report="reports/report.csv", told=told)
    assert found == {"a.zarr": "done", "bad.zarr": "failed"}
    (text,) = heard
    assert text.startswith("the report is not complete: ")
    assert "report.csv" in text


def test_progress_as_text():
    some = BatchProgress(12, 40, 1 << 30, 4 << 30, 1 << 30, 4.0)
    assert str(some) == "12 of 40, 1 GiB of 4 GiB, 256 MiB/s, 12 s left"
    assert str(some._replace(worked=0)) == "12 of 40, 1 GiB of 4 GiB"
    assert str(some._replace(seconds=4000.0)).endswith("3 h 20 min left")


@pytest.mark.parametrize(
    ("text", "seconds"), [("3h55m", 14100), ("90s", 90), ("90", 90), ("1.5h", 5400), ("2min", 120)]
)
def test_durations_as_typed(text, seconds):
    assert values.read_duration(text) == seconds


def command(*words, code=0):
    done = CliRunner().invoke(app, ["convert", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_exit_codes_of_the_command():
    """0: all done, also if repeated; 2: usage; 3: doubts; 4: some failed; 75: stopped."""
    save("in/a.npy")
    save("in/b.npy")
    assert "out/: 2 done\n" in command("in", "out/").stdout
    done = command("in/*.npy", "out")
    assert "[1/2] " in done.stdout
    assert done.stdout.endswith("out: 2 done already\n")
    save("in/b.npy", FRAMES + 1)
    os.utime("in/b.npy", ns=(1, 1))
    done = command("in", "out", code=4)
    assert done.stderr.splitlines()[-1].endswith("Pass --update to replace those that changed")
    assert "b.zarr: changed: " in done.stderr
    command("in", "out", "--update", "--report", "report.csv")
    command("in", "out", "--part", "3/2", code=2)
    command("in", "out", "--dataset", "1", code=2)
    done = command("in/a.npy", "a.zarr", "--jobs", "2", code=2)
    assert "--jobs needs a folder as OUT" in done.stderr
    command("in/a.npy", "one.zarr/")
    assert dask_tiled.open_dataset("one.zarr").shape == FRAMES.shape
    assert "--jobs needs a folder as OUT" in command("in", "x.zarr/", "-j", "2", code=2).stderr
    write_mib("scan.mib", counting_frames((6, 8, 16, 16), "uint16"))
    stopped = ["scan.mib", "short/", "--nav-shape", "7,8", "--missing", "fill"]
    assert "not complete: 48 of 56 frames" in command(*stopped).stdout
    command(*stopped, "--strict", code=3)
    assert "deadline" in command("in", "late/", "--deadline", "soon", code=2).stderr
    assert "--stall must be a duration" in command("in", "late/", "--stall", "0", code=2).stderr
    assert "'--stall'" in command("in", "late/", "--stall", "never", code=2).stderr
    assert "out/: 2 done already\n" in command("in", "out/", "--stall", "9999h").stdout
    late = command("in", "late/", "--deadline", "0.000001s", code=75)
    assert late.stderr.endswith("2 of 2 are left. Run the same command to resume.\n")


@pytest.mark.usefixtures("here")
@pytest.mark.skipif(os.name == "nt", reason="the system has no such names")
def test_a_line_for_each_name():
    """Names cannot end a line, or control a terminal."""
    save("in/a\n[9] b.npy")
    Path("in/b\x1b[31m.npy").write_bytes(b"\x93NUMPY")
    done = command("in", "out/", code=4)
    lines = (line for line in done.stdout.splitlines() if line.startswith("["))
    first, second = sorted(lines, key=lambda line: line.partition("out/")[2])
    assert "a\\n[9] b.zarr: done" in first
    assert "b\\x1b[31m.zarr: failed: " in second
    assert second.count("b\\x1b[31m.npy") == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_a_line_a_minute_in_a_log(monkeypatch):
    from dask_tiled.command_line import batch

    for k in range(4):
        save(f"in/{k}.npy")
    monkeypatch.setattr(batch, "monotonic", count(step=30).__next__)
    done = command("in", "out/")
    lines = [line for line in done.stderr.splitlines() if " of 4, " in line]
    assert 0 < len(lines) < 4
    assert "\r" not in done.stderr
    assert command("in", "quiet/", "--no-progress").stderr == ""


def wait_for(condition, process):
    """Wait until a condition holds, at most as long as a process runs."""
    while not condition():
        assert process.poll() is None, "the batch ended early"
        time.sleep(0.01)


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_catalogues_are_sources():
    """As a value, as some of its rows, and as CSV, of which only the listed pictures are made."""
    Path("in").mkdir()
    pictures = {"map": np.ones((4, 6), "float32")}
    write_dm("in/two.dm4", np.ones((8, 8), "uint16"), name="survey", more=pictures)
    save("in/a.npy")
    found = dask_tiled.catalogue("in")
    assert {*states(found, "out")} == {"a.zarr", "two-survey.zarr", "two-map.zarr"}
    chosen = [row for row in found if row.picture == "map"]
    assert states(chosen, "some") == {"../some/two-map.zarr": "done"}
    found.to_csv("found.csv")
    assert states("found.csv", "out").keys() == {"a.zarr", "two-survey.zarr", "two-map.zarr"}
    lines = Path("found.csv").read_text("utf8").splitlines(keepends=True)
    Path("less.csv").write_text("".join(x for x in lines if "survey" not in x), "utf8")
    again = states("less.csv", "out")
    assert again == {"a.zarr": "done already", "two-map.zarr": "done already"}
    write_dm("in/two.dm4", np.ones((8, 8), "uint16"), name="survey")
    first, second = dask_tiled.convert_all(chosen, "less"), dask_tiled.convert_all(found, "less")
    assert [row.state for row in first] == ["failed"]
    assert sorted(row.state for row in second) == ["done", "failed", "failed"]
    assert all("lacks a picture of the catalogue" in row.problem for row in first)
    Path("damaged.csv").write_text("path,picture,options\nin/a.npy,,{\n", "utf8")
    with pytest.raises(DatasetError, match="the catalogue cannot be read"):
        states("damaged.csv", "out")


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("target", ["a.zarr", "a.npy", "a.ome.tif"])
def test_a_repeated_conversion_of_one_file_is_done_already(target):
    """With status 0; one with other options, or of a changed file, is refused as before."""
    save("in/a.npy")
    save("in/b.npy", FRAMES + 1)
    command("in/a.npy", target, "--no-progress")
    assert command("in/a.npy", target, "--no-progress").stdout == f"{target}: done already\n"
    verified = command("in/a.npy", target, "--verify", "--no-progress").stdout
    assert "equal to the file, bit for bit" in verified
    assert "exists" in command("in/b.npy", target, code=2).stderr
    assert "exists" in command("in/a.npy", target, "--axis", "y=1 nm", code=2).stderr
    command("in/a.npy", target, "--overwrite", "--no-progress")
    save("in/a.npy", FRAMES + 1)
    os.utime("in/a.npy", ns=(1, 1))
    assert "exists" in command("in/a.npy", target, code=2).stderr
    command("in/a.npy", target, "--overwrite", "--no-progress")
    assert dask_tiled.open_dataset(target).sum().compute() == (FRAMES + 1).sum()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("suffix", [".zarr", ".npy"])
def test_results_are_compared_with_their_sources(suffix):
    """Each dataset needs an equal result; nothing is written."""
    for k in range(3):
        save(f"night/{k}.npy", FRAMES + k)
    states("night", "out", suffix=suffix)
    words = ["verify", "night", "out/", "--to", suffix]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "out/: 3 equal")
    save("night/1.npy", FRAMES + 9)
    save("night/3.npy")
    Path("night/4.npy").write_bytes(b"\x93NUMPY")
    before = sorted(Path("out").rglob("*"))
    rows = dask_tiled.verify_all("night", "out", suffix=suffix, report="r.json")
    assert [row.state for row in rows] == ["equal", "different", "equal", "missing", "failed"]
    assert "a pixel differs, at [0, 0, 0]" in rows[1].problem
    assert [row.verified for row in rows] == [True, False, True, False, False]
    assert json.loads(Path("r.json").read_text())["conversions"][1]["state"] == "different"
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (
        4, "out/: 2 equal, 1 different, 1 missing, 1 failed",
    )  # fmt: skip
    turned = CliRunner().invoke(app, ["verify", "out/", "night", "--to", suffix])
    assert turned.stdout == done.stdout
    assert sorted(Path("out").rglob("*")) == before
    refused = CliRunner().invoke(app, ["verify", "night", "out/", "--dataset", "1"])
    assert refused.exit_code == 2
    assert "--dataset applies to one dataset" in refused.output


@pytest.mark.parametrize(
    ("sizes", "jobs"), [([], 1), ([1000] * 60, 1), ([1000] * 1000, 4), ([1 << 30] * 3, 3)]
)
def test_little_work_starts_few_processes(monkeypatch, sizes, jobs):
    monkeypatch.setattr(running, "processors", lambda: 8)
    planned = [PlannedConversion("a", "b", nbytes=size) for size in sizes]
    assert running.worthwhile_jobs(planned) == jobs


KILLED = """
import os, signal, sys
import psutil
from dask_tiled.command_line import batch
from dask_tiled.command_line.app import app

kind, told = int(sys.argv.pop()), batch._Printer.told

def killed(self, row, progress):
    told(self, row, progress)
    if row is not None and row.state == "done":
        batch._Printer.told = told
        print(*(one.pid for one in psutil.Process().children()), flush=True)
        os.kill(os.getpid(), kind)

if __name__ == "__main__":
    # Shells make background processes, such as these tests, ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    batch._Printer.told = killed
    app()
"""
"""A program that a signal hits when its first conversion is done; it prints its children."""


def has_ended(pid):
    """Return whether a process has ended; nobody may ask for the exit code of an orphan."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_killed_batches_go_on(tmp_path, kind):
    """No target is half-done; the next run makes what is lacking, and only that."""
    frames = np.arange(12 << 18, dtype="u4").reshape(12, 512, 512)
    for k in range(4):  # the first conversion ends during the second one
        np.save(tmp_path / f"{k}.npy", (frames + k)[: 1 if k == 0 else None])
    out, script = tmp_path / "out", tmp_path / "program.py"
    script.write_text(KILLED)
    words = ["convert", str(tmp_path), f"{out}/", "--jobs=2", f"--report={tmp_path}/r.csv"]
    words += ["--chunks=1,64,64", "--compressor=zstd:9"]
    batch = subprocess.run(
        [sys.executable, script, *words, str(int(signal.Signals[kind]))],
        capture_output=True,
        text=True,
        check=False,
    )
    codes = {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130}
    assert batch.returncode == codes[kind], batch.stderr
    pids = next(line for line in batch.stdout.splitlines() if line.replace(" ", "").isdigit())
    checks.wait_for(lambda: all(has_ended(int(pid)) for pid in pids.split()))
    if kind != "SIGKILL":
        assert batch.stderr.endswith("interrupted. Run the same command to resume.\n")
        with open(tmp_path / "r.csv", encoding="utf8", newline="") as file:
            told = {row["target"]: row["state"] for row in csv.DictReader(file)}
        assert {Path(t).name for t, s in told.items() if s == "done"} == {
            path.name for path in out.glob("*.zarr")
        }
    there = {path.name for path in out.glob("*.zarr")}
    assert 0 < len(there) < 4
    rows = dask_tiled.convert_all(
        tmp_path, out, pattern="*.npy", chunks=(1, 64, 64), verify=True, jobs=1,
        compressors={"name": "zstd", "configuration": {"level": 9}},
    )  # fmt: skip
    assert {Path(row.target).name for row in rows if row.state == "done already"} == there
    assert {row.state for row in rows} == {"done", "done already"}
    assert all(row.verified for row in rows)
    assert not list(out.glob("*.part"))


HANGING = """
import signal, sys, time
from pathlib import Path
from dask_tiled.batch import running
from dask_tiled.command_line.app import app
from own_format import own_format

plan = running.BatchOptions.plan

def hang(path):
    if path.endswith("z.mine"):
        Path(path).with_name("hangs").touch()
        time.sleep(1e6)

def telling(*args, noted, **more):
    def told(found):
        noted(found)
        Path(__file__).with_name("noted").touch()

    return plan(*args, noted=told, **more)

running.BatchOptions.plan = telling

if __name__ == "__main__":
    # Shells make background processes, such as these tests, ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with own_format(hang):
        app()
"""
"""A program with a format, of which a header hangs; it tells when another one is planned."""


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "kind"), [("convert", "SIGTERM"), ("catalogue", "SIGINT")])
def test_a_header_that_hangs_is_interrupted(tmp_path, verb, kind):
    """The process does not wait for the limit of the header; the report has what was found."""
    script, report = tmp_path / "program.py", tmp_path / "r.json"
    script.write_text(HANGING)
    for name in ("1/a.mine", "2/z.mine"):
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_bytes(BYTES)
    more = [f"{tmp_path}/out/", f"--report={report}", "--stall=1h"] if verb == "convert" else []
    search = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    with subprocess.Popen(
        [sys.executable, script, verb, tmp_path / "in", *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": search},
    ) as batch:
        wait_for((tmp_path / "in/2/hangs").exists, batch)
        if verb == "convert":
            wait_for((tmp_path / "noted").exists, batch)
        batch.send_signal(signal.Signals[kind])
        _, stderr = batch.communicate(timeout=90)  # of the 100 s, or the hour, of the header
    assert batch.returncode == {"SIGTERM": 143, "SIGINT": 130}[kind]
    assert "interrupted" in stderr
    if verb == "convert":
        (row,) = json.loads(report.read_text())["conversions"]
        assert (Path(row["target"]).name, row["state"]) == ("a.zarr", "not begun")


@pytest.mark.slow
def test_a_header_that_hangs_is_one_failure(tmp_path, monkeypatch):
    """The limit and the option are named; the other files are converted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "LocalConverters", Here)
    save("in/a.npy")
    Path("in/z.mine").write_bytes(BYTES)
    hang = partial(lambda sleep, path: path.endswith("z.mine") and sleep(1e6), time.sleep)
    with own_format(hang):
        done = command("in", "out/", "--stall=5s", code=4)
    assert "out/: 1 done, 1 failed\n" in done.stdout
    says = "exceeded: 5 s by the clock. If the file is only slow, pass a longer --stall\n"
    assert says in done.stderr


@pytest.mark.slow
def test_the_script_for_slurm(tmp_path):
    """The jobs of an array convert all files, each once; the script is that of the guide."""
    page = Path(__file__).parents[2] / "docs" / "command-line.rst"
    script = page.read_text("utf8").partition("code-block:: bash\n\n")[2].partition("\n\nThe")[0]
    assert script.lstrip().startswith("#!/bin/bash")
    (tmp_path / "night.sh").write_text(textwrap.dedent(script))
    (tmp_path / "dask-tiled").write_text(f'#!/bin/sh\nexec {sys.executable} -m dask_tiled "$@"\n')
    (tmp_path / "dask-tiled").chmod(0o755)
    for k in range(4):
        save(tmp_path / "night" / f"{k}.npy")
    of_job = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_COUNT": "2"}
    made = []
    for job in "12":
        environment = {**os.environ, **of_job, "SLURM_ARRAY_TASK_ID": job}
        subprocess.run(
            [shutil.which("bash"), "night.sh"], cwd=tmp_path, env=environment, check=True
        )
        with open(tmp_path / f"report-{job}-of-2.csv", encoding="utf8", newline="") as file:
            made += [(Path(row["target"]).name, row["state"]) for row in csv.DictReader(file)]
    assert sorted(made) == [(f"{k}.zarr", "done") for k in range(4)]


@pytest.mark.slow
def test_a_process_that_ends_is_one_failure(tmp_path, monkeypatch):
    """The others are converted by another process."""
    for k in range(3):
        np.save(tmp_path / f"{k}.npy", FRAMES)
    begun = children.Converter.begin

    def killed(self, task, threads):
        if task.planned.source.endswith("1.npy"):
            self.task = task
            self._process.kill()
        else:
            begun(self, task, threads)

    monkeypatch.setattr(children.Converter, "begin", killed)
    rows = dask_tiled.convert_all(tmp_path, tmp_path / "out", jobs=1)
    assert [row.state for row in rows] == ["done", "failed", "done"]
    assert rows[1].problem == "the process ended with signal 9"


@pytest.mark.slow
def test_a_conversion_that_hangs_is_one_failure(tmp_path, monkeypatch):
    """The others are converted by another process; messages of progress prolong the limit."""
    for k in range(3):
        np.save(tmp_path / f"{k}.npy", FRAMES)
    begin, wait_for_row, advanced = children.Converter.begin, children.Converter.row, []

    def hung(self, task, threads):
        if not task.planned.source.endswith("1.npy"):
            begin(self, task, threads)

    def soon(self, task):
        if task.planned.source.endswith("1.npy"):
            return wait_for_row(self, task._replace(stall=0.2))
        receive = self._connection.recv
        self._connection = SimpleNamespace(
            recv=lambda: advanced.append(receive()) or advanced[-1],
            poll=self._connection.poll, send=self._connection.send, close=self._connection.close,
        )  # fmt: skip
        return wait_for_row(self, task)

    monkeypatch.setattr(children.Converter, "begin", hung)
    monkeypatch.setattr(children.Converter, "row", soon)
    rows = dask_tiled.convert_all(tmp_path, tmp_path / "out", jobs=1)
    assert [row.state for row in rows] == ["done", "failed", "done"]
    assert rows[1].problem.startswith("nothing was read or written for 0.2 s")
    assert rows[1].problem.endswith("pass a longer stall=")
    assert advanced.count(children.ALIVE) >= 4  # two processes, and a chunk of each


def test_processes_start_when_waiting_costs_more():
    """One is enough if it is free soon; a new one starts at once if waiting costs too much."""
    started = count()
    for seconds, expected in ((3600.0, 1), (0.0, 8)):
        pool, running_jobs = GrowingPool(lambda: [next(started)], seconds), threading.Barrier(8)

        def job(pool=pool, barrier=running_jobs, together=not seconds):
            process = pool.take()
            if together:
                barrier.wait(300)
            pool.give(process)
            return process[0]

        with ThreadPoolExecutor(8) as threads:
            assert (
                len({one.result() for one in [threads.submit(job) for _ in range(8)]}) == expected
            )
        ended = []
        pool.close(ended.append)
        assert len(ended) == expected


def test_a_cancelled_job_waits_for_no_process():
    pool, cancelled = GrowingPool(list, 3600.0), threading.Event()
    process = pool.take()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.take, cancelled.is_set)
        cancelled.set()
        pool.wake()
        assert waiting.result() is None
    pool.forget(process)
    assert pool.take() == []  # another one, as no process is left


@pytest.mark.slow
def test_formats_of_this_process(tmp_path):
    """The processes that list and convert get them."""
    (tmp_path / "a.mine").write_bytes(BYTES)
    with own_format() as mine:
        (row,) = dask_tiled.convert_all(tmp_path, tmp_path / "out", jobs=1)
        assert (row.state, row.problem) == ("done", "")
        lock = threading.Lock()
        dask_tiled.register_format(replace(mine, sniff=lambda *_: lock and "no"))
        with pytest.raises(DatasetError, match="registered formats cannot be sent"):
            dask_tiled.convert_all(tmp_path, tmp_path / "out", jobs=1)


FULL = """
import resource, sys
import dask_tiled
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    for suffix in sys.argv[1:]:
        dask_tiled.convert_all(
            "in", f"out{suffix}", jobs=1, suffix=suffix, report=f"{suffix[1:]}.json"
        )
"""


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
def test_a_disk_that_refuses_bytes():
    """A row for each target without room, which is made by the next run; the others are done."""
    suffixes = ".zarr", ".npy", ".hspy", ".zarr.zip"
    noise = np.random.default_rng(0).integers(0, 1 << 16, (64, 128, 128), "u2")
    for name, frames in (("a", FRAMES), ("b", noise), ("c", FRAMES)):
        save(f"in/{name}.npy", frames)
    Path("full.py").write_text(FULL)
    search = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(dask_tiled.__file__))}
    subprocess.run([sys.executable, "full.py", *suffixes], env=search, check=True)
    for suffix in suffixes:
        out = Path(f"out{suffix}")
        told = json.loads(Path(f"{suffix[1:]}.json").read_text())["conversions"]
        assert [row["state"] for row in told] == ["done", "failed", "done"]
        assert "cannot be written; found File too large" in told[1]["problem"]
        assert sorted(path.name for path in out.glob("[!.]*")) == [f"a{suffix}", f"c{suffix}"]
        again = dask_tiled.convert_all("in", out, suffix=suffix)
        assert [row.state for row in again] == ["done already", "done", "done already"]
        if suffix == ".zarr.zip":
            with zarr.storage.ZipStore(out / "b.zarr.zip", mode="r") as store:
                found = zarr.open_array(store, path="data", mode="r")[:]
        else:
            found = dask_tiled.open_dataset(out / f"b{suffix}").compute()
        np.testing.assert_array_equal(found, noise)
