"""Errors are typed and name the file, what was expected and what was found."""

import os
import pickle
import re
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
from checks import refused

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    StaleFileError,
    TilingError,
    TruncatedFileError,
    UnknownFormatError,
    describe,
    open_dataset,
)
from dask_tiled.testing import counting_frames, write_mib, write_npy, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((6, 4, 8), "uint16", bits=12)
RAW = {"format": "raw", "dtype": "uint16", "sig_shape": (4, 8)}
WAYS = {"detected": {}, "npy": {"format": "npy"}, "mib": {"format": "mib"}, "raw": RAW}
EVERY_WAY = pytest.mark.parametrize("options", WAYS.values(), ids=list(WAYS))


def write_small(path, kind="U16", **options):
    """Write six small frames without a .hdr file."""
    return write_mib(path, FRAMES, kind=kind, hdr=False, **options)


# Paths of no file of frames


NO_FILES = {
    "folder": (os.mkdir, r"a directory\. Pass one of its files", DatasetError),
    "empty": (Path.touch, "empty", TruncatedFileError),
    "pipe": (os.mkfifo, "pipe", DatasetError),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["scan1.mib", "scan.hdr", "scan"])
@pytest.mark.parametrize("kind", NO_FILES)
@EVERY_WAY
def test_paths_of_no_file_of_frames_raise(tmp_path, options, kind, name):
    """Every format refuses such paths; pipes do not block."""
    make, why, error = NO_FILES[kind]
    make(path := tmp_path / name)
    with refused(path, why, error, detailed=True):
        open_dataset(path, **options)


@EVERY_WAY
def test_missing_files_raise(tmp_path, options):
    """Missing files raise FileNotFoundError with the path."""
    path, present = tmp_path / "scan.mib", write_small(tmp_path / "a.mib")
    for one in [path] if options == WAYS["npy"] else [path, [present, path]]:
        with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
            open_dataset(one, **options)


# Arguments


@pytest.mark.parametrize("path", [None, 3, b"scan.mib", {"scan.mib"}, {"scan.mib": 1}, "", "a\0b"])
@pytest.mark.parametrize("listed", [False, True])
def test_invalid_paths_raise(path, listed):
    """A path is a string or a path-like object; several paths need an order."""
    with pytest.raises(DatasetError, match="invalid path") as caught:
        open_dataset([path] if listed else path)
    assert caught.value.found == repr(path)


def test_no_files_and_open_files(tmp_path):
    """An open file is no list of paths."""
    with pytest.raises(DatasetError, match="no files"):
        open_dataset([])
    path = write_small(tmp_path / "scan.mib")
    with path.open("rb") as file, pytest.raises(DatasetError, match="invalid path"):
        open_dataset(file)


def test_unknown_backends_raise(tmp_path):
    """The error names the known backends."""
    with pytest.raises(DatasetError, match="mmap") as caught:
        open_dataset(write_small(tmp_path / "scan.mib"), io="telepathy")
    assert caught.value.found == "telepathy"


@pytest.mark.parametrize(
    "shape",
    [
        *[(0,), (-2,), (2, 0), (-1, -1), 0, "ab", ("a",), (1.5, 2), 2.5, (None,), True, (True, 6)],
        *[{2, 3}, np.array([1.5]), np.array([[2, 3]]), np.True_, (1,) * 70],
    ],
    ids=repr,
)
def test_wrong_shapes_raise(tmp_path, shape):
    """Shapes are positive integers, at most as many as NumPy allows axes."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    for name in ("nav_shape", "sig_shape"):
        with pytest.raises(DatasetError):
            open_dataset(path, **{**RAW, name: shape})


@pytest.mark.parametrize("shape", [6, (2, 3), [2, 3], np.array([2, 3]), np.array(6), np.uint8(6)])
def test_shapes_of_all_kinds_of_integers(tmp_path, shape):
    """Shapes may be spelled in any way that NumPy accepts."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    desc = describe(path, **RAW, nav_shape=shape)
    assert desc.nav_shape == tuple(np.atleast_1d(shape))
    assert all(type(n) is int for n in desc.shape)


@pytest.mark.parametrize("sig_dims", [-1, True, 1.0, "2", None])
def test_wrong_sig_dims_raise(tmp_path, sig_dims):
    path = write_npy(tmp_path / "scan.npy", FRAMES)
    assert describe(path, sig_dims=np.int64(1)).nav_ndim == 2
    with refused(path, "sig_dims"):
        open_dataset(path, sig_dims=sig_dims)


@pytest.mark.parametrize("shape", [(7,), (2, 4), (1 << 70,), (1 << 40, 1 << 40)])
@pytest.mark.parametrize("format", ["raw", "mib", "npy"])
def test_nav_shape_of_too_many_frames_raises(tmp_path, format, shape):
    """Too many frames raise if frames must not be missing, or if the array would be too large."""
    path = {
        "raw": lambda: write_raw(tmp_path / "scan.raw", FRAMES),
        "mib": lambda: write_small(tmp_path / "scan.mib"),
        "npy": lambda: write_npy(tmp_path / "scan.npy", FRAMES),
    }[format]()
    options = RAW if format == "raw" else {}
    with refused(path, detailed=True) as caught:
        open_dataset(path, nav_shape=shape, missing="raise", **options)
    if shape[0] < 8:
        assert "6 frames" in str(caught.value)
        assert isinstance(caught.value, TruncatedFileError)
        assert describe(path, nav_shape=shape, **options).missing.tolist() == [6, 7][: len(shape)]


def test_sig_shape_that_contradicts_the_header_raises(tmp_path):
    path = write_small(tmp_path / "scan.mib")
    with refused(path, detailed=True):
        open_dataset(path, sig_shape=(8, 4))


# Files that change between open and compute


def rewrite(path):
    """Write other content of the same length."""
    before = path.stat()
    path.write_bytes(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def into_directory(path):
    """Replace a file by a directory."""
    path.unlink()
    path.mkdir()


def into_fifo(path):
    """Replace a file by a pipe."""
    path.unlink()
    os.mkfifo(path)


def without_folder(path):
    """Remove the folder of a file."""
    shutil.rmtree(path.parent)


def folder_into_file(path):
    """Replace the folder of a file by a file."""
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"no folder")


CHANGES = [rewrite, os.unlink, into_directory, into_fifo, without_folder, folder_into_file]


@pytest.fixture
def mib(tmp_path):
    (tmp_path / "folder").mkdir()
    return write_small(tmp_path / "folder" / "scan.mib")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_file_changed_between_open_and_compute(mib, change):
    """Two versions of a file never mix: arrays of the old version raise StaleFileError."""
    arr = open_dataset(mib)
    part = arr[2:4, 1, ::3]
    arr.compute()
    change(mib)
    for stale in (arr, part, arr[0], arr[::-1], arr.sum()):
        with refused(mib, kind=StaleFileError, detailed=True):
            stale.compute()


@pytest.mark.parametrize("later", [0, 1])
def test_reopening_a_changed_file_reads_its_new_content(mib, later):
    """The new array has another name, and the new pixels."""
    before, mtime = open_dataset(mib), mib.stat().st_mtime_ns
    write_mib(mib, FRAMES[::-1], hdr=False)
    os.utime(mib, ns=(0, mtime + later))
    after = open_dataset(mib)
    assert after.name != before.name
    np.testing.assert_array_equal(after.compute(), FRAMES[::-1])


# Errors of other processes


@pytest.mark.parametrize("kind", [DatasetError, UnknownFormatError, CorruptFileError, TilingError])
def test_errors_pickle(kind):
    """Every error is a DatasetError and a ValueError, and keeps its fields when pickled."""
    error = kind(
        "problem", path="a/b", where="byte 3", expected=(1, 2), found="nothing", hint="Look."
    )
    assert isinstance(error, DatasetError)
    assert isinstance(error, ValueError)
    error.add_note("on a worker")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    before_hint = "\n" if kind is UnknownFormatError else ". "
    message = f"a/b: problem, at byte 3; expected (1, 2); found nothing{before_hint}Look."
    assert str(copy) == str(error) == message
    assert vars(copy) == vars(error)
    assert copy.__notes__ == ["on a worker"]


@pytest.mark.slow
def test_errors_of_worker_processes(mib, processes):
    """Errors of worker processes keep their type and message."""
    arr = open_dataset(mib)
    rewrite(mib)
    with refused(mib, "has changed", StaleFileError) as caught:
        dask.compute(arr, **processes)
    assert str(mib) in str(caught.value)
