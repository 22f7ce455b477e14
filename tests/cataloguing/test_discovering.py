"""The datasets below folders, and the files that belong to each."""

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from checks import unprivileged
from formats_table import TABLE
from own_format import BYTES, own_format

import dask_tiled
from dask_tiled.apart import calls
from dask_tiled.apart.child import BY_THE_CLOCK
from dask_tiled.cataloguing.discovering import Discovery
from dask_tiled.cataloguing.headers import read_header
from dask_tiled.errors import warn
from dask_tiled.testing import counting_frames, write_dm, write_mib, write_mib_series, write_mrc

h5py = pytest.importorskip("h5py", reason="h5py is not installed")
FRAMES = counting_frames((6, 4, 128), "u2", bits=12)


@pytest.fixture
def here(monkeypatch):
    """Read headers in this process."""
    from dask_tiled.cataloguing import readers

    monkeypatch.setattr(readers.HeaderReaders, "read", lambda _, read, path, **__: read(path))


def found(*paths, **options):
    """Return the names of files by the name of the path to open, and the search."""
    search = Discovery(paths, **options)
    datasets = list(search)
    assert len({file for one in datasets for file in one.files}) == sum(
        len(one.files) for one in datasets
    )
    return {
        os.path.basename(one.path): {os.path.basename(path) for path in one.files}
        for one in datasets
    }, search


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.usefixtures("here")
def test_each_sample_is_one_dataset(tmp_path, name):
    """Its files are those that the writer made; the path opens the same pixels."""
    sample = TABLE[name](tmp_path, "scan")
    if sample.options.keys() != {"path"} or not isinstance(sample.options["path"], Path):
        pytest.skip("it is opened with options, or as a list of files")
    (tmp_path / "notes.txt").write_text("a note")
    search = Discovery(tmp_path)
    (one,) = search
    assert search.others == 1
    if Path(one.path).is_dir():
        assert one.files == (one.path,)
        sizes = [path.stat().st_size for path in Path(one.path).rglob("*") if path.is_file()]
    else:
        there = {str(path) for path in tmp_path.rglob("*") if path.is_file()}
        assert {*one.files} == there - {str(tmp_path / "notes.txt")}
        assert {*map(str, sample.members)} <= {*one.files}
        sizes = [os.path.getsize(path) for path in one.files]
    assert one.stamp.nbytes == sum(sizes)
    shapes = [picture.shape for picture in one.pictures]
    assert sample.expected.shape in shapes
    picture = one.pictures[shapes.index(sample.expected.shape)]
    opened = dask_tiled.describe(one.path, **picture.options)
    assert (str(opened.dtype), opened.nbytes) == (picture.dtype, picture.nbytes)
    assert [axis["name"] for axis in picture.axes] == [*opened.dims]


def write_master(path, data):
    with h5py.File(path, "w") as file:
        file["entry/data/data_000001"] = h5py.ExternalLink(os.path.relpath(data, path.parent), "d")
    return path


def write_data(path, shape=(3, 5, 7)):
    with h5py.File(path, "w") as file:
        file["d"] = np.zeros(shape, "u2")
    return path


@pytest.mark.usefixtures("here")
def test_masters_own_their_data(tmp_path):
    """In the folder of the master and below it; of two masters of the same data, one is listed."""
    beside, below = write_data(tmp_path / "a_data_1.h5"), tmp_path / "sub" / "raw.h5"
    below.parent.mkdir()
    write_data(below)
    write_master(tmp_path / "a_master.h5", beside)
    write_master(tmp_path / "a_second.h5", beside)
    write_master(tmp_path / "z_master.h5", below)
    write_data(below.parent / "single.h5")
    assert found(tmp_path)[0] == {
        "a_master.h5": {"a_master.h5", "a_second.h5", "a_data_1.h5"},
        "z_master.h5": {"z_master.h5", "raw.h5"},
        "single.h5": {"single.h5"},
    }


@pytest.mark.usefixtures("here")
def test_series_beside_each_other(tmp_path):
    """The files of a series are one dataset, whichever file is read first."""
    write_mib_series(tmp_path / "a_", FRAMES, frames_per_file=2, hdr=False)
    write_mib_series(tmp_path / "b_", FRAMES, frames_per_file=3, hdr=False)
    write_mib(tmp_path / "c.mib", FRAMES)
    names, search = found(tmp_path)
    assert {name[0]: len(files) for name, files in names.items()} == {"a": 3, "b": 2, "c": 2}
    assert [os.path.basename(one.path) for one in search] == sorted(names)


@pytest.mark.usefixtures("here")
def test_each_picture_with_its_option(tmp_path):
    images = {"map": np.ones((4, 6), "float32")}
    path = write_dm(tmp_path / "two.dm4", np.ones((8, 8), "uint16"), name="survey", more=images)
    (one,) = Discovery(tmp_path)
    assert [picture.name for picture in one.pictures] == ["survey", "map"]
    for picture in one.pictures:
        arr = dask_tiled.open_dataset(path, **picture.options)
        assert (arr.shape, str(arr.dtype)) == (picture.shape, picture.dtype)


@pytest.mark.usefixtures("here")
def test_given_files_and_patterns(tmp_path):
    first, second = (write_mrc(tmp_path / f"{k}.mrc", FRAMES) for k in "ab")
    folder = tmp_path / "more"
    folder.mkdir()
    np.save(folder / "c.npy", FRAMES)
    (folder / "c.txt").write_text("text")
    assert [*found(first, second)[0]] == ["a.mrc", "b.mrc"]
    assert [*found(tmp_path)[0]] == ["a.mrc", "b.mrc", "c.npy"]
    assert [*found(tmp_path, recursive=False)[0]] == ["a.mrc", "b.mrc"]
    names, search = found(tmp_path, pattern=["*.npy", "b.*"])
    assert [*names] == ["b.mrc", "c.npy"]
    assert search.others == 2
    with pytest.raises(dask_tiled.DatasetError, match="invalid pattern"):
        Discovery(tmp_path, pattern=[])
    with pytest.raises(dask_tiled.DatasetError, match="URLs are not catalogued"):
        Discovery("https://example.org/folder")
    with pytest.raises(FileNotFoundError):
        list(Discovery(tmp_path / "absent"))


@pytest.mark.usefixtures("here")
def test_damage_is_told_and_other_files_are_counted(tmp_path):
    """A damaged file is listed by a name or content that only datasets have."""
    whole = write_mrc(tmp_path / "whole.mrc", FRAMES)
    (tmp_path / "cut.mrc").write_bytes(whole.read_bytes()[:2000])
    (tmp_path / "empty.mrc").touch()
    (tmp_path / "zeros.dm4").write_bytes(bytes(5000))
    (tmp_path / "lost.hdr").write_text("HDR,\nTime and Date Stamp:\t1\nEnd\t")
    for name in ("notes.txt", "settings.xml", "empty.txt", "log.dat"):
        (tmp_path / name).write_text("text" * ("empty" not in name))
    search = Discovery(tmp_path)
    told = {os.path.basename(one.path): one.problem for one in search}
    assert told.pop("whole.mrc") == ""
    assert told.keys() >= {"cut.mrc", "empty.mrc", "zeros.dm4"}
    assert "the file is empty" in told["empty.mrc"]
    assert "looks like nothing but zeros" in told["zeros.dm4"]
    assert all(str(tmp_path) not in problem for problem in told.values())
    assert search.others + len(told) + 1 == len(os.listdir(tmp_path))
    assert search.others >= 4


@pytest.mark.parametrize("nbytes", [0, 100, 300, 384, 500])
@pytest.mark.usefixtures("here")
def test_a_damaged_file_and_its_header_are_one_dataset(tmp_path, nbytes):
    """It is the damaged file, with one problem; others of the same stem stay datasets."""
    os.truncate(write_mib(tmp_path / "bad.mib", FRAMES), nbytes)
    np.save(tmp_path / "bad.npy", FRAMES)
    (tmp_path / "bad.mrc").touch()
    write_mib(tmp_path / "good.mib", FRAMES)
    search = Discovery(tmp_path)
    files = {os.path.basename(one.path): [*map(os.path.basename, one.files)] for one in search}
    assert files == {
        "bad.mib": ["bad.mib", "bad.hdr"],
        "bad.mrc": ["bad.mrc"],
        "bad.npy": ["bad.npy"],
        "good.mib": ["good.mib", "good.hdr"],
    }
    problems = {os.path.basename(one.path): one.problem for one in search}
    assert [name for name, problem in problems.items() if problem] == ["bad.mib", "bad.mrc"]
    assert search.others == 0


@pytest.mark.slow
def test_files_that_end_or_delay_their_reader(tmp_path, monkeypatch):
    """They are listed with a problem, and all other files are read."""
    for k in range(3):
        write_data(tmp_path / f"good{k}.h5")
    content = bytearray((tmp_path / "good0.h5").read_bytes())
    tree = content.find(b"TREE")
    content[tree + 5] = 1
    struct.pack_into("<Q", content, tree + 32, tree)  # a tree below itself
    (tmp_path / "deadly.h5").write_bytes(content)
    path = tmp_path / "waits.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("d", data=FRAMES, chunks=(1, 4, 128), maxshape=(None, 4, 128))
        file.swmr_mode = True
        file.flush()
        content = bytearray(path.read_bytes())
    content[content.find(b"OHDR") + 8] ^= 0xFF
    path.write_bytes(content)
    monkeypatch.setattr(calls, "BY_THE_CLOCK", BY_THE_CLOCK)
    told = {os.path.basename(one.path): one.problem for one in Discovery(tmp_path, seconds=1)}
    assert "the HDF5 library crashes or hangs" in told.pop("deadly.h5")
    told_of_clock = "exceeded: 10 s by the clock. If the file is only slow, pass larger seconds="
    assert told.pop("waits.h5").endswith(told_of_clock)
    assert told == {f"good{k}.h5": "" for k in range(3)}


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
@pytest.mark.usefixtures("here")
def test_links_are_followed_once(tmp_path):
    """Loops end; links to what is listed anyway are skipped, others are followed."""
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    outside.mkdir()
    path = write_mrc(folder / "sub" / "a.mrc", FRAMES)
    write_mrc(outside / "b.mrc", FRAMES)
    (folder / "again.mrc").symlink_to(path)
    (folder / "sub" / "up").symlink_to(folder)
    (folder / "linked").symlink_to(outside)
    (outside / "back").symlink_to(folder)
    (outside / "itself").symlink_to(outside / "itself")
    (folder / "broken.mrc").symlink_to(tmp_path / "absent.mrc")
    names, search = found(folder)
    assert sorted(names) == ["a.mrc", "b.mrc"]
    assert search.problems[str(folder / "broken.mrc")] == "the link leads nowhere"
    assert len(search.problems) == 2


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
@pytest.mark.usefixtures("here")
def test_links_to_what_is_not_listed_by_itself(tmp_path):
    """In hidden folders, in folders that are not searched, of names that do not match."""
    folder, hidden = tmp_path / "folder", tmp_path / "folder" / ".store" / "night"
    hidden.mkdir(parents=True)
    write_mrc(hidden / "key1", FRAMES)
    write_mrc(hidden.parent / "key2.mrc", FRAMES)
    (folder / "a.mrc").symlink_to(os.path.join(".store", "key2.mrc"))
    assert found(folder)[0] == {"a.mrc": {"a.mrc"}}
    (folder / "b.mrc").symlink_to(hidden / "key1")
    assert sorted(found(folder)[0]) == ["a.mrc", "b.mrc"]
    (folder / "z").symlink_to(hidden)
    (hidden / "up").symlink_to(folder)
    (hidden / "again").symlink_to(hidden)
    (hidden / "c.mrc").symlink_to(hidden / "key1")
    names, search = found(folder)
    assert sorted(names) == ["a.mrc", "key1"]
    assert [one.path for one in search] == [str(folder / "a.mrc"), str(folder / "z" / "key1")]
    (folder / "sub").mkdir()
    write_mrc(folder / "sub" / "d.mrc", FRAMES)
    (folder / "e.mrc").symlink_to(folder / "sub" / "d.mrc")
    assert sorted(found(folder)[0]) == ["a.mrc", "d.mrc", "key1"]
    assert sorted(found(folder, recursive=False)[0]) == ["a.mrc", "b.mrc", "e.mrc"]
    assert sorted(found(folder, pattern="[ef].mrc")[0]) == ["e.mrc"]


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
@pytest.mark.usefixtures("here")
def test_pipes_sockets_and_devices(tmp_path):
    """They are other files, and never opened; links to them are told."""
    write_mrc(tmp_path / "a.mrc", FRAMES)
    (tmp_path / "only").mkdir()
    os.mkfifo(tmp_path / "only" / "pipe.mrc")
    (tmp_path / "zero.mrc").symlink_to("/dev/zero")
    names, search = found(tmp_path)
    assert ([*names], search.others) == (["a.mrc"], 1)
    problem = "the link leads to a pipe, socket or device"
    assert search.problems == {str(tmp_path / "zero.mrc"): problem}
    names, search = found(tmp_path / "only" / "pipe.mrc")
    problem = "it is a pipe, socket or device"
    assert (names, search.problems) == ({}, {str(tmp_path / "only" / "pipe.mrc"): problem})


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.usefixtures("here")
def test_without_permission(tmp_path):
    write_mrc(tmp_path / "a.mrc", FRAMES)
    (tmp_path / "closed").mkdir(0o000)
    secret = write_mrc(tmp_path / "secret.mrc", FRAMES)
    secret.chmod(0)
    for name in ("data.mib", "header.mib"):
        write_mib(tmp_path / name, FRAMES)
    (tmp_path / "data.mib").chmod(0)
    (tmp_path / "header.hdr").chmod(0)
    with unprivileged():
        search = Discovery(tmp_path)
        told = {os.path.basename(one.path): (one.problem, len(one.files)) for one in search}
    (tmp_path / "closed").chmod(0o700)
    assert told == {
        "a.mrc": ("", 1),
        "secret.mrc": ("Permission denied", 1),
        "data.mib": ("Permission denied", 2),
        "header.hdr": ("Permission denied", 2),
    }
    assert search.problems == {str(tmp_path / "closed"): "Permission denied"}


@pytest.mark.skipif(os.name == "nt", reason="names are text")
@pytest.mark.usefixtures("here")
def test_names_that_are_no_text(tmp_path):
    name = os.fsdecode(b"\xff\xfe.mrc")
    shutil.copy(write_mrc(tmp_path / "a.mrc", FRAMES), tmp_path / name)
    paths = [one.path for one in Discovery(tmp_path)]
    assert str(tmp_path / name) in paths
    assert len(paths) == 2


def test_files_that_vanish(tmp_path, monkeypatch):
    """They are neither listed nor counted as damaged."""
    from dask_tiled.cataloguing import discovering

    paths = [write_mrc(tmp_path / f"{k}.mrc", FRAMES) for k in range(3)]

    def removed_before(_, path):
        if path == str(paths[1]):
            paths[1].unlink()
        return read_header(path)

    monkeypatch.setattr(discovering, "_header_of", removed_before)
    assert [one.path for one in Discovery(tmp_path)] == [str(paths[0]), str(paths[2])]


def test_formats_of_this_process(tmp_path):
    """Child processes get them; their warnings are in the headers."""
    (tmp_path / "a.mine").write_bytes(BYTES)
    assert list(Discovery(tmp_path)) == []
    with own_format(lambda _: warn("a warning of the format")):
        (one,) = Discovery(tmp_path)
    assert not one.problem
    assert (one.format, one.pictures[0].shape) == ("mine", (3, 2, 2))


@pytest.mark.slow
def test_one_of_many_files_ends_its_reader(tmp_path):
    """Headers are read in groups: those of the others of its group are read all the same."""
    for k in range(200):
        (tmp_path / f"{k}_.mine").write_bytes(BYTES)
        (tmp_path / f"{k}_.txt").write_bytes(b"")
    (tmp_path / "77_.mine").rename(tmp_path / "deadly.mine")
    with own_format(lambda path: "deadly" in path and os._exit(3)):
        search = Discovery(tmp_path)
        problems = {os.path.basename(one.path): one.problem for one in search}
    assert "exit code 3" in problems.pop("deadly.mine")
    assert {*problems.values()} == {""}
    assert (len(problems), search.others, search.read) == (199, 200, 400)


@pytest.mark.parametrize("content", [b"", b"some text, no header"])
def test_files_that_are_no_datasets_are_hardly_tried(tmp_path, monkeypatch, content):
    """Raw files have one dataset, so that a second attempt ends: no others are looked for."""
    from dask_tiled.formats import describing

    (tmp_path / "a.dat").write_bytes(content)
    asked, found = [], describing.describe_as
    monkeypatch.setattr(
        describing, "describe_as", lambda *args, **more: asked.append(args) or found(*args, **more)
    )
    assert not read_header(str(tmp_path / "a.dat")).is_dataset
    assert len(asked) <= 2


def test_a_folder_of_many_files_is_read_ahead_in_part(tmp_path, monkeypatch):
    """Datasets come one after the other: stopping early leaves most headers unread."""
    from dask_tiled.cataloguing import discovering

    for k in range(40):
        (tmp_path / f"{k:02}").mkdir()
        np.save(tmp_path / f"{k:02}" / "a.npy", FRAMES)
    read = []

    def header(_, path):
        read.append(path)
        return read_header(path)

    monkeypatch.setattr(discovering, "_header_of", header)
    search = iter(Discovery(tmp_path))
    assert next(search).path == str(tmp_path / "00" / "a.npy")
    search.close()
    assert len(read) <= 2 * discovering.AHEAD + 1


@pytest.mark.thorough
def test_only_headers_are_read(tmp_path, monkeypatch):
    """Of 50 files of 4 MiB, a few kilobytes each; a series is described once."""
    from dask_tiled.cataloguing import headers, readers
    from dask_tiled.files import file

    frames = np.zeros((64, 256, 128), "u2")
    for k in range(10):
        write_mrc(tmp_path / f"{k}.mrc", frames)
        write_mib(tmp_path / f"single{k}.mib", frames, hdr=False)
        np.save(tmp_path / f"{k}.npy", frames)
    members = write_mib_series(tmp_path / "series_", frames[:32], frames_per_file=2, hdr=False)
    assert len(members) == 16
    read, asked, pread = [], [], file.pread

    def counted(fd, nbytes, offset):
        found = pread(fd, nbytes, offset)
        read.append(len(found))
        return found

    def header(path, **options):
        asked.append(path)
        return read_header(path, **options)

    monkeypatch.setattr(file, "pread", counted)
    monkeypatch.setattr(headers, "read_header", header)
    monkeypatch.setattr(readers.HeaderReaders, "read", lambda _, read, paths, **__: read(paths))
    assert len(list(Discovery(tmp_path))) == 31
    assert 30 < len(asked) <= 33
    assert sum(read) < 31 * 100_000
