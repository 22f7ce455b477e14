"""The catalogue of a folder: rows that open, tables, and headers kept for later runs."""

import csv
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from checks import refused, unprivileged
from click.testing import CliRunner

import dask_tiled
from dask_tiled.cataloguing import readers
from dask_tiled.cataloguing.rows import CatalogueRow
from dask_tiled.cataloguing.store import HeaderStore
from dask_tiled.cataloguing.tables import read_csv
from dask_tiled.cataloguing.walking import Stamp
from dask_tiled.command_line.app import app
from dask_tiled.testing import counting_frames, write_dm, write_mib, write_mib_series, write_mrc

FRAMES = counting_frames((6, 4, 128), "u2", bits=12)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Read headers in this process."""
    monkeypatch.setattr(readers.HeaderReaders, "read", lambda _, read, *args, **__: read(*args))


@pytest.fixture
def night(tmp_path):
    """Write a folder with a scan, two pictures, a truncated stack, and other files."""
    folder = tmp_path / "night"
    (folder / "more").mkdir(parents=True)
    write_mib(folder / "scan.mib", FRAMES.reshape(2, 3, 4, 128))
    images = {"map": np.ones((4, 6), "float32")}
    write_dm(folder / "two.dm4", np.ones((8, 8), "uint16"), name="survey", more=images)
    path = write_mrc(folder / "more" / "cut.mrc", FRAMES)
    os.truncate(path, path.stat().st_size - 4 * 128 * 2)
    (folder / "more" / "zeros.dm3").write_bytes(bytes(300))
    (folder / "notes.txt").write_text("a note")
    return folder


def catalogued(*paths, **options):
    return dask_tiled.catalogue(*paths, thumbnails=False, **options)


def named(catalogue):
    return {(os.path.basename(row.path), row.picture): row for row in catalogue}


def test_rows_are_what_describe_tells(night):
    found = catalogued(night)
    rows = named(found)
    assert [*rows] == [
        ("scan.mib", ""),
        ("two.dm4", "survey"),
        ("two.dm4", "map"),
        ("cut.mrc", ""),
        ("zeros.dm3", ""),
    ]
    assert found.others == 1
    desc = dask_tiled.describe(night / "scan.mib")
    scan = rows["scan.mib", ""]
    assert (scan.format, scan.shape, scan.nav_ndim) == ("mib", desc.shape, 2)
    assert (scan.dtype, scan.nbytes) == (str(desc.dtype), desc.nbytes)
    assert [(axis["name"], axis["size"]) for axis in scan.axes] == list(
        zip(desc.dims, desc.shape, strict=True)
    )
    facts = {name: (fact.value, fact.unit) for name, fact in desc.instrument.items()}
    assert dict(scan.instrument) == facts
    assert scan.date == desc.instrument["date"].value
    assert scan.stored_bytes == sum(map(os.path.getsize, night.glob("scan.*")))
    modified = max(path.stat().st_mtime for path in night.glob("scan.*"))
    assert np.datetime64(scan.modified[:19]) == np.datetime64(int(modified), "s")
    cut = rows["cut.mrc", ""]
    assert (cut.missing, cut.lacking, cut.problem) == (1, "5 of 6 frames", "")
    assert "zeros" in rows["zeros.dm3", ""].problem


def test_rows_open(night):
    """The code that a row shows opens the same pixels."""
    rows = named(catalogued(night))
    for name in (("scan.mib", ""), ("two.dm4", "map"), ("cut.mrc", "")):
        row = rows[name]
        arr = row.open(chunks=-1)
        assert (arr.shape, str(arr.dtype)) == (row.shape, row.dtype)
        again = eval(row.code, {"dask_tiled": dask_tiled})  # noqa: S307 - the code is ours
        np.testing.assert_array_equal(arr, again)
    np.testing.assert_array_equal(rows["cut.mrc", ""].open()[:5], FRAMES[:5])
    with pytest.raises(dask_tiled.DatasetError):
        rows["zeros.dm3", ""].open()


def test_doubts_that_missing_frames_would_settle(tmp_path):
    """A series with a gap is in doubt, and remains so in the catalogue."""
    paths = write_mib_series(tmp_path / "a_", FRAMES, frames_per_file=2, hdr=False)
    paths[1].unlink()
    rows = catalogued(tmp_path)
    told = {one["code"] for row in rows for one in row.doubts}
    assert told >= {one.code for one in dask_tiled.describe(paths[0]).doubts} >= {"lost-files"}


def test_tables_hold_all_rows(night, tmp_path):
    """CSV, JSON and pandas have the values of the rows; the others are not replaced."""
    found = catalogued(night)
    target = found.to_csv(tmp_path / "a.csv")
    with open(target, encoding="utf8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [one["path"] for one in table] == [row.path for row in found]
    assert [json.loads(one["options"]) for one in table] == [row.options for row in found]
    assert table[0]["shape"] == "2x3x4x128"
    assert table[0]["detector"] == found[0].instrument["detector"][0]
    told = json.loads(Path(found.to_json(tmp_path / "a.json")).read_text("utf8"))
    assert [one["path"] for one in told["catalogue"]] == [row.path for row in found]
    assert told["catalogue"][0]["files"] == [*found[0].files]
    assert (told["pictures"], told["cannot_be_opened"], told["other_files"]) == (4, 1, 1)
    pandas = pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert [*frame["nbytes"]] == [row.nbytes for row in found]
    assert found.to_csv(target) == target
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    with refused(tmp_path / "mine.csv"):
        found.to_csv(tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "a,b\n1,2\n"


def test_an_empty_folder(tmp_path):
    (tmp_path / "notes.txt").write_text("a note")
    found = catalogued(tmp_path)
    assert (len(found), found.others) == (0, 1)
    assert repr(found) == "0 datasets, 0 pictures, 0 B, 1 other file"
    assert len(Path(found.to_csv(tmp_path / "a.csv")).read_text("utf8").splitlines()) == 1
    told = json.loads(Path(found.to_json(tmp_path / "a.json")).read_text("utf8"))
    assert told["catalogue"] == []


@pytest.mark.skipif(os.name == "nt", reason="names are text")
def test_names_that_are_no_text_are_written(tmp_path):
    name = os.fsdecode(b"\xff.mrc")
    os.rename(write_mrc(tmp_path / "a.mrc", FRAMES), tmp_path / name)
    keep = tmp_path / "keep.sqlite"
    for _ in range(2):
        found = catalogued(tmp_path, keep=keep, pattern="*.mrc")
        assert [row.path for row in found] == [str(tmp_path / name)]
    assert "\\udcff.mrc" in Path(found.to_csv(tmp_path / "a.csv")).read_text("utf8")
    json.loads(Path(found.to_json(tmp_path / "a.json")).read_text("utf8"))
    assert "\\udcff.mrc" in repr(found)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "'"])
def test_no_cell_is_a_formula(tmp_path, start):
    """Texts are quoted, numbers are not; paths and options are read again."""
    told = {"note": (f"{start}cmd|' /C calc'!A0", ""), "tilt": (-1.5, "deg")}
    rows = [
        CatalogueRow(f"{start}a.mrc", f"{start}2", {"key": start}, instrument=told),
        CatalogueRow("/b.mrc", "map", {"key": start}, problem=f"{start}1"),
    ]
    path = dask_tiled.Catalogue(rows, 0, {}, 0).to_csv(tmp_path / "a.csv")
    with open(path, encoding="utf8", newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["path"], first["picture"]) == (f"'{start}a.mrc", f"'{start}2")
    assert first["note"] == f"'{start}cmd|' /C calc'!A0"
    assert first["tilt (deg)"] == "-1.5"
    assert (second["path"], second["picture"]) == ("/b.mrc", "map")
    assert second["problem"] == f"'{start}1"
    assert read_csv(path) == [(row.path, row.options) for row in rows]


def test_seconds_are_checked(night):
    for seconds in (0, -1, "10"):
        with pytest.raises(dask_tiled.DatasetError, match="seconds= must be a duration"):
            catalogued(night, seconds=seconds)


# Kept headers


def kept(folder):
    """Return a catalogue that equals one without a store, and the number of headers read."""
    found = catalogued(folder, keep=folder / ".headers")
    assert list(found) == list(catalogued(folder))
    return found


@pytest.mark.thorough
def test_only_changes_are_read_again(night):
    """Of new, changed and removed files, of files that depend on others, and of nothing else."""
    series = write_mib_series(night / "more" / "s_", FRAMES, frames_per_file=2, hdr=False)
    assert kept(night).read >= 5
    assert kept(night).read == 0
    np.save(night / "new.npy", FRAMES)
    assert kept(night).read == 1
    np.save(night / "new.npy", FRAMES[:2])
    assert kept(night).read == 1
    (night / "new.npy").unlink()
    assert kept(night).read == 0
    series[2].unlink()
    assert 0 < kept(night).read <= 3
    assert kept(night).read == 0
    (night / "scan.hdr").unlink()
    found = kept(night)
    assert 0 < found.read <= 2
    assert len(named(found)["scan.mib", ""].files) == 1
    write_mib(night / "scan.mib", FRAMES.reshape(3, 2, 4, 128))
    found = kept(night)
    assert 0 < found.read <= 2
    assert named(found)["scan.mib", ""].shape == (3, 2, 4, 128)


def test_a_header_that_is_added_is_noticed(tmp_path):
    """A file with the same stem may tell more about another one."""
    write_mib(tmp_path / "scan.mib", FRAMES.reshape(2, 3, 4, 128))
    header = tmp_path / "scan.hdr"
    content = header.read_bytes()
    header.unlink()
    assert kept(tmp_path)[0].shape == (6, 4, 128)
    header.write_bytes(content)
    assert kept(tmp_path)[0].shape == (2, 3, 4, 128)


def test_problems_that_may_pass_are_not_kept(night, monkeypatch):
    from dask_tiled.apart.calls import EndedError

    def ends(*_, **__):
        raise EndedError("the deadline was exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(readers.HeaderReaders, "read", ends)
        found = catalogued(night / "scan.mib", keep=night / ".headers")
        assert "the deadline was exceeded" in found[0].problem
    assert catalogued(night / "scan.mib", keep=night / ".headers")[0].problem == ""


@pytest.mark.thorough
def test_other_files_keep_no_headers(night, tmp_path):
    """They are refused and unchanged; a store of another version is emptied."""
    path = tmp_path / "mine.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE mine (x)")
    file.close()
    for target in (path, night / "scan.mib"):
        before = target.read_bytes()
        with refused(target):
            catalogued(night, keep=target)
        assert target.read_bytes() == before
    keep = tmp_path / "keep.sqlite"
    catalogued(night, keep=keep)
    with sqlite3.connect(keep) as file:
        file.execute("UPDATE made_by SET text='an earlier version'")
        file.execute("DROP TABLE headers")
        file.execute("CREATE TABLE headers (path)")
    file.close()
    assert catalogued(night, keep=keep).read > 0
    assert catalogued(night, keep=keep).read == 0


@pytest.fixture
def without(monkeypatch):
    """Return a function that makes a catalogue without its store, and checks the one warning.

    Threads that read headers set the filters of warnings meanwhile; `warn` itself is replaced.
    """
    from dask_tiled.cataloguing import store

    warned = []
    monkeypatch.setattr(store, "warn", warned.append)

    def catalogue(night, keep, reason, **options):
        found = catalogued(night, keep=keep, **options)
        (text,) = warned
        assert text.startswith(f"{keep}: headers are no longer kept in this file: {reason}")
        assert list(found) == list(catalogued(night))
        return found

    return catalogue


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE headers SET header='{'", "a row is damaged"),
        ("UPDATE headers SET header='[]'", "a row is damaged"),
        ("UPDATE headers SET header='{\"pictures\": [{}]}'", "a row is damaged"),
        ("UPDATE headers SET depends='7'", "a row is damaged"),
        ("ALTER TABLE headers RENAME COLUMN header TO content", "no such column"),
        ("DROP TABLE headers; CREATE TABLE headers (path)", "no such column"),
    ],
)
def test_a_store_that_was_changed(night, tmp_path, without, change, reason):
    keep = tmp_path / "keep.sqlite"
    count = catalogued(night, keep=keep).read
    with sqlite3.connect(keep) as file:
        file.executescript(change)
    file.close()
    assert without(night, keep, reason).read == count


def test_a_store_that_is_locked_meanwhile(night, tmp_path, without, monkeypatch):
    from dask_tiled.cataloguing import store

    monkeypatch.setattr(store, "BUSY_SECONDS", 0.01)
    keep = tmp_path / "keep.sqlite"
    other = sqlite3.connect(keep, isolation_level=None)

    def lock(_):
        if not other.in_transaction:
            other.execute("BEGIN EXCLUSIVE")

    without(night, keep, "database is locked", progress=lock)
    with refused(keep, "headers cannot be kept in this file"):
        catalogued(night, keep=keep)
    other.close()


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_a_store_that_is_read_only(night, tmp_path, without):
    """It is read; of what is new, nothing is kept."""
    folder = tmp_path / "closed"
    folder.mkdir()
    keep = folder / "keep.sqlite"
    catalogued(night, keep=keep)
    keep.chmod(0o400)
    folder.chmod(0o500)
    with unprivileged():
        assert catalogued(night, keep=keep).read == 0
        for k in range(2):
            (night / f"new{k}").mkdir()
            np.save(night / f"new{k}" / "a.npy", FRAMES)
        assert without(night, keep, "attempt to write a readonly database").read == 2
        with refused(folder / "new.sqlite", "headers cannot be kept in this file"):
            catalogued(night, keep=folder / "new.sqlite")
    folder.chmod(0o700)


def test_thumbnails_of_a_store_that_was_changed(night, tmp_path):
    keep = tmp_path / "keep.sqlite"
    picture = (os.fspath(night / "two.dm4"), {}, Stamp(1, 2))
    for change in ("DROP TABLE thumbnails", "UPDATE thumbnails SET png=7"):
        with closing(HeaderStore(keep)) as kept_here:
            kept_here.keep_thumbnail(*picture, b"png")
            assert kept_here.thumbnail(*picture) == b"png"
        with closing(HeaderStore(keep)) as kept_here:
            with closing(sqlite3.connect(keep)) as file, file:
                file.execute(change)
            if "DROP" in change:
                with pytest.warns(UserWarning, match="no such table"):
                    assert kept_here.thumbnail(*picture) is None
            assert kept_here.thumbnail(*picture) is None
            kept_here.keep_thumbnail(*picture, b"png")


def test_the_cache_folder(night, tmp_path, monkeypatch):
    from dask_tiled.cataloguing import catalogue

    monkeypatch.setattr(catalogue, "user_caches", lambda: str(tmp_path / "caches"))
    assert catalogued(night, keep=True).read > 0
    assert catalogued(night, keep=True).read == 0
    assert (tmp_path / "caches" / "dask-tiled" / "headers.sqlite").is_file()
    HeaderStore(tmp_path / "caches" / "dask-tiled" / "headers.sqlite").close()


# The command


def run(*words):
    return CliRunner().invoke(app, ["catalogue", *map(str, words)])


def test_command(night, tmp_path):
    done = run(night, "--csv", tmp_path / "a.csv", "--json", tmp_path / "a.json")
    assert done.exit_code == 0, done.output
    assert "two.dm4 [map]" in done.stdout
    told = catalogued(night).told()
    assert told in done.stdout
    assert len((tmp_path / "a.csv").read_text("utf8").splitlines()) == 6
    assert str(tmp_path / "a.json") in done.stdout
    done = run(night, "--pattern", "*.dm?", "--pattern", "*.mrc", "--no-recursive")
    assert "1 dataset, 2 pictures" in done.stdout
    for k in range(20):
        np.save(night / f"{k}.npy", FRAMES)
    assert "5 more" in run(night).stdout
    assert "more" not in run(night, "--all", "--pattern", "*.npy").stdout
    assert run(night / "absent").exit_code == 2
    assert run(night, "--keep", night / "scan.mib").exit_code == 2


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
def test_command_tells_what_is_not_followed(night):
    (night / "broken").symlink_to(night / "absent")
    done = run(night)
    assert done.exit_code == 0
    assert f"warning: {night / 'broken'}: the link leads nowhere" in done.stderr
    done = run(night, "--html", night / "a.html", "--no-thumbnails", "--pattern", "*.mib")
    assert done.exit_code == 0
    assert (night / "a.html").is_file()


def asked(*words):
    return CliRunner().invoke(app, [*map(str, words)])


def test_info_of_many(night, tmp_path):
    """A folder, and files that are not one scan, are a table; other files stay one scan."""
    told = catalogued(night)
    done = asked("info", night)
    assert done.exit_code == 0
    assert told.told() in done.stdout
    lines = asked("info", night, "--json").stdout.splitlines()
    assert [json.loads(line)["path"] for line in lines] == [row.path for row in told]
    done = asked("info", night / "scan.mib", night / "two.dm4")
    assert done.exit_code == 0
    assert "not one scan" in done.stderr
    assert "2 datasets, 3 pictures" in done.stdout
    done = asked("info", night / "two.dm4", night / "more" / "zeros.dm3")
    assert done.exit_code == 2
    assert "zeros.dm3: cannot be opened" in done.stderr
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.mib")
        done = asked("info", night / "two.dm4", tmp_path / "pipe.mib")
        assert done.exit_code == 2
        assert "pipe.mib: cannot be opened" in done.stderr
    assert asked("info", night, "--strict").exit_code == 3
    done = asked("info", night, "--dtype", "u2")
    assert done.exit_code == 2
    assert "--dtype applies to one dataset" in done.stderr
    series = write_mib_series(tmp_path / "s_", FRAMES, frames_per_file=3, hdr=False)
    assert "File" in asked("info", *series).stdout.splitlines()[0]


def test_thumbnail_command(night):
    from matplotlib.image import imread

    target = night / "a.png"
    done = asked("thumbnail", night / "scan.mib", target, "--size", 32)
    assert done.exit_code == 0, done.output
    assert imread(target).shape[:2] == (4, 32)
    assert asked("thumbnail", night / "two.dm4", target, "-d", "1").exit_code == 0
    assert imread(target).shape[:2] == (4, 6)
    (night / "mine.png").write_text("text")
    assert asked("thumbnail", night / "scan.mib", night / "mine.png").exit_code == 2
    np.save(night / "line.npy", np.arange(9.0))
    done = asked("thumbnail", night / "line.npy", night / "b.png")
    assert (done.exit_code, "not an image" in done.stderr) == (2, True)
