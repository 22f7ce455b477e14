"""What only Windows has: drives, names of devices, paths without case, other consoles."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from dask_tiled import DatasetError, StaleFileError, open_dataset, to_beton, to_references, to_zarr
from dask_tiled.files.file import File
from dask_tiled.reading import buffered
from dask_tiled.reading.descriptors import status_again
from dask_tiled.system import changes
from dask_tiled.system.files import open_file, preadv
from dask_tiled.testing import counting_frames, write_mib

pytestmark = pytest.mark.skipif(os.name != "nt", reason="for Windows")

FRAMES = counting_frames((2, 3, 16, 16), "u2")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_mib(tmp_path / "Scan.mib", FRAMES)


SPELLINGS = {
    "with slashes": lambda path: path.replace("\\", "/"),
    "in lower case": str.lower,
    "in upper case": str.upper,
    "on the present drive": lambda path: path[2:],
    "in the present folder of a drive": lambda path: f"{path[:2]}Scan.mib",
    "with the prefix of absolute paths": lambda path: f"\\\\?\\{path}",
    "of a device": lambda path: f"\\\\.\\{path}",
    "of a URL": lambda path: "file:///" + path.replace("\\", "/"),
    "as a pattern": lambda path: path.replace("Scan", "sc*"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_a_path(path, spelling):
    arr = open_dataset(SPELLINGS[spelling](str(path)), nav_shape=(2, 3))
    np.testing.assert_array_equal(arr, FRAMES)


DEVICES = ["NUL", "nul", r"\\.\NUL", r"folder\NUL"]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.usefixtures("path")
def test_devices_are_not_opened(name):
    os.mkdir("folder")
    with pytest.raises(DatasetError, match="not a file"):
        open_dataset(name)


EXPORTS = {
    "zarr": to_zarr,
    "references": to_references,
    "beton": lambda arr, path: to_beton(path, {"frame": arr.reshape(-1, 16, 16)}),
}


@pytest.mark.parametrize("name", ["NUL", r"\\.\NUL", "a?b", "a<b", "a|b", r"Q:\out", r"\\.\no\out"])
@pytest.mark.parametrize("export", EXPORTS)
def test_exports_refuse_names_that_are_no_files(path, export, name):
    arr = open_dataset(path)
    before = {*os.listdir()}
    with pytest.raises(DatasetError):
        EXPORTS[export](arr, name)
    assert {*os.listdir()} == before


def test_names_without_case_are_one_export(path):
    arr = open_dataset(path)
    to_zarr(arr, "out.zarr")
    with pytest.raises(DatasetError, match="exists"):
        to_zarr(arr, "OUT.zarr")


def test_shares_are_network_files(path):
    assert changes.is_network(r"\\server\share\scan.mib")
    assert not changes.is_network(str(path))


ON_SHARES = {
    "of a server": r"\\localhost\C${}",
    "with the prefix of absolute paths": r"\\?\UNC\localhost\C${}",
}


@pytest.mark.parametrize("name", ["Scan.mib", "S*.mib"])
@pytest.mark.parametrize("spelling", ON_SHARES)
def test_files_on_shares(path, spelling, name):
    drive, rest = os.path.splitdrive(path.with_name(name))
    share = ON_SHARES[spelling].format(rest)
    if drive != "C:" or not os.path.exists(os.path.dirname(share)):
        pytest.skip("only administrators have the share of the drive")
    np.testing.assert_array_equal(open_dataset(share, nav_shape=(2, 3)), FRAMES)


MISSING = r"\\localhost\no share", r"\\?\UNC\localhost\no share", "\\\\?\\Q:", "Q:", "C:no ", "*:"


@pytest.mark.parametrize("name", ["scan.mib", "*.mib"])
@pytest.mark.parametrize("folder", MISSING)
def test_missing_files_raise(folder, name):
    with pytest.raises(OSError, match=re.escape(name)):
        open_dataset(f"{folder}{name}" if folder[-1] in ": " else rf"{folder}\{name}")


FOLDERS = "C:", "C:\\", "\\", "\\\\?\\C:\\"


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.usefixtures("path")
def test_drives_are_folders(folder):
    with pytest.raises(DatasetError, match=r"not a file; .* found a directory"):
        open_dataset(folder)


def append(path):
    with path.open("ab") as file:
        file.write(b"more")


CHANGES = {
    "nothing": os.fspath,
    "new bytes": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "more bytes": append,
    "times": lambda path: os.utime(path, ns=(10**18 + 100, 10**18 + 12345600)),
    "a second name": lambda path: os.link(path, path.with_name("link")),
    "another name": lambda path: os.rename(path, path.with_name("other")),
    "no name": os.remove,
}


@pytest.mark.parametrize("change", CHANGES)
def test_status_of_open_files(path, change):
    file, fd = File.at(str(path)), open_file(str(path), 0)
    CHANGES[change](path)
    wanted, found = os.fstat(fd), status_again(file, fd)
    for name in ("size", "ino", "nlink", "atime_ns", "mtime_ns", "ctime_ns"):
        assert getattr(found, f"st_{name}") == getattr(wanted, f"st_{name}")
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        status_again(file, fd)


@pytest.mark.parametrize("change", ["new bytes", "more bytes", "times"])
def test_changes_between_opening_and_reading(path, change, monkeypatch):
    os.utime(path, (0, 0))  # the clock of Windows advances in steps
    arr = open_dataset(path, io="buffered")

    def read_late(*arguments):
        CHANGES[change](path)
        return preadv(*arguments)

    monkeypatch.setattr(buffered, "preadv", read_late)
    with pytest.raises(StaleFileError):
        arr[0, 0].compute(scheduler="sync")


def test_a_frame_asks_once_for_the_whole_status(path, monkeypatch):
    calls, status = [], os.fstat
    arr = open_dataset(path, io="buffered")
    arr[0, 1].compute(scheduler="sync")  # reads compiled code, too
    monkeypatch.setattr(os, "fstat", lambda fd: calls.append(fd) or status(fd))
    np.testing.assert_array_equal(arr[0, 0].compute(scheduler="sync"), FRAMES[0, 0])
    assert len(calls) == 1


def test_pipes_without_readers(path):
    from dask_tiled.system.windows import lacks_reader

    read, write = os.pipe()
    assert not lacks_reader(write)
    os.close(read)
    assert lacks_reader(write)
    os.close(write)
    assert not lacks_reader(write)
    with open(path, "ab") as file:
        assert not lacks_reader(file.fileno())


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "cp437", "utf8"])
def test_consoles_that_lack_characters(path, encoding):
    """Characters that an encoding lacks are printed as escapes."""
    other = path.with_name("日本.mib")
    path.with_suffix(".hdr").unlink()
    os.rename(path, other)
    command = [sys.executable, "-m", "dask_tiled", "info", "--nav-shape", "2,3", other]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert not done.returncode
    wanted = "日本" if encoding == "utf8" else r"\u65e5\u672c"
    assert f"{wanted}.mib" in done.stdout.decode(encoding)
