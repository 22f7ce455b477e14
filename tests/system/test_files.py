"""Files are read at any offset by every way, and other programs may change them meanwhile."""

import os
from pathlib import Path

import numpy as np
import pytest
import zarr

from dask_tiled import (
    StaleFileError,
    TilingRequest,
    map_tiles,
    open_dataset,
    to_zarr,
    verify_zarr,
)
from dask_tiled.files.file import File
from dask_tiled.reading import decoding, mapped
from dask_tiled.system import files, locks
from dask_tiled.testing import counting_frames, write_raw

FRAMES = counting_frames((9, 16, 16), "u2")
RAW = {"format": "raw", "dtype": "u2", "sig_shape": (16, 16)}
WAYS = {
    "of the system": (files.pread, files.preadv, files.pwrite),
    "one at a time": (files._pread, files._preadv, files._pwrite),
}


@pytest.mark.parametrize("way", WAYS)
def test_reads_and_writes_at_an_offset(tmp_path, way):
    read, read_into, write = WAYS[way]
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 40)
    with path.open("r+b", buffering=0) as file:
        fd = file.fileno()
        assert read(fd, 5, 250) == bytes([250, 251, 252, 253, 254])
        assert read(fd, 100, 10230) == path.read_bytes()[10230:]
        assert read(fd, 5, 99999) == b""
        memory = np.zeros(20, "u1")
        assert read_into(fd, [memory[4:].data], 10230) == 10
        assert memory.tolist() == [0] * 4 + [*range(246, 256)] + [0] * 6
        assert read_into(fd, [memory.data], 99999) == 0
        assert write(fd, b"abc", 7) == 3
        assert write(fd, memory, 10240) == 20
    assert path.read_bytes()[6:11] == b"\x06abc\x0a"
    assert path.stat().st_size == 10260


def test_compiled_code_can_call_python(tmp_path):
    """It gets the number of bytes, or -1 for any error."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    memory = np.zeros(32, "u1")
    with open(path, "rb") as file:
        assert files._called_back(file.fileno(), memory.ctypes.data, 32, 512) == 32
    assert memory.tobytes() == FRAMES.tobytes()[512:544]
    assert files._called_back(1 << 20, memory.ctypes.data, 1, 0) == -1


def truncate(path):
    os.truncate(path, 100)


def rewrite(path):
    path.write_bytes(bytes(100))


def replace(path):
    other = path.with_name("other")
    other.write_bytes(bytes(100))
    os.replace(other, path)


CHANGES = [truncate, rewrite, replace, os.remove, lambda path: os.rename(path, f"{path}.old")]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("io", ["auto", "mmap", "buffered"])
@pytest.mark.usefixtures("at_rest")
def test_files_may_be_changed_between_computations(tmp_path, io, change):
    """No open or mapped file hinders other programs; the next chunk raises."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    arr = open_dataset(path, io=io, **RAW)
    np.testing.assert_array_equal(arr, FRAMES)
    change(path)
    with pytest.raises(StaleFileError):
        arr.compute()


@pytest.mark.parametrize("io", ["mmap", "buffered"])
@pytest.mark.usefixtures("at_rest", "synchronous")
def test_files_may_be_renamed_during_a_computation(tmp_path, io, monkeypatch):
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    arr = open_dataset(path, io=io, **RAW)
    run, old = decoding.run_kernel, path.with_name("old")

    def rename_and_run(*args):
        if not old.exists():
            path.rename(old)
            with old.open("r+b"):  # opens for writing
                pass
        run(*args)

    monkeypatch.setattr(decoding, "run_kernel", rename_and_run)
    np.testing.assert_array_equal(arr.compute(), FRAMES)


def test_folders_are_locked_once(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    first = locks.open_locked(str(folder))
    assert locks.is_locked(first, str(folder))
    with pytest.raises(BlockingIOError):
        locks.open_locked(str(folder))
    (folder / "inside").write_bytes(b"1")
    os.close(first)
    os.close(locks.open_locked(str(folder)))
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_flushing_files_and_folders(tmp_path):
    (tmp_path / "file").write_bytes(b"1")
    for path in (tmp_path / "file", tmp_path):
        files.flush(str(path))
    with pytest.raises(FileNotFoundError):
        files.flush(str(tmp_path / "none"))


@pytest.mark.parametrize("depth", [1, 5])
def test_paths_of_any_length(tmp_path, depth):
    """Windows limits paths to 260 characters, unless they have the prefix of absolute paths."""
    start = "\\\\?\\" if os.name == "nt" else ""
    folder = Path(f"{start}{tmp_path.joinpath(*['d' * 60] * depth)}")
    folder.mkdir(parents=True)
    path = write_raw(folder / "scan.raw", FRAMES)
    for io in ("auto", "mmap", "buffered"):
        np.testing.assert_array_equal(open_dataset(path, io=io, **RAW), FRAMES)
    arr = open_dataset(path, chunks=(3, -1, -1), **RAW)
    for overwrite in (False, True):
        to_zarr(arr, folder / "out.zarr", layout="array", overwrite=overwrite)
        verify_zarr(folder / "out.zarr", arr)
        np.testing.assert_array_equal(zarr.open_array(folder / "out.zarr")[:], FRAMES)
    assert {*os.listdir(folder)} == {"scan.raw", "out.zarr"}
    if depth == 1 or os.name != "nt":  # Wine finds no final path of long ones
        np.testing.assert_array_equal(open_dataset(folder / "out.zarr"), FRAMES)


@pytest.mark.usefixtures("nothing_kept")
def test_mapped_files_that_keep_their_length_are_checked_once(tmp_path, monkeypatch):
    """Elsewhere, each tile checks the file before it touches pages."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    arr = open_dataset(path, io="mmap", **RAW)
    tiles = TilingRequest("tile", depth=1)
    checks, check = [], File.check
    monkeypatch.setattr(File, "check", lambda *args: checks.append(args) or check(*args))
    counts = []
    for hinders in (True, False):
        monkeypatch.setattr(mapped, "HINDERS", hinders)
        checks.clear()
        found = map_tiles(np.sqrt, arr, tiling=tiles).compute()
        np.testing.assert_array_equal(found, np.sqrt(FRAMES))
        counts.append(len(checks))
    assert counts[1] - counts[0] == len(FRAMES) - 1
