"""Sparse frames: written files, compared with their arrays and with LiberTEM."""

import importlib

import numpy as np
import pytest
from checks import refuses
from libertem_reader import libertem_reads

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError, UnknownFormatError
from dask_tiled.testing import check_format, counting_frames, write_raw_csr

pytestmark = pytest.mark.usefixtures("synchronous")


def sparse_frames(shape, dtype):
    """Return frames whose pixels are mostly 0, in one frame all of them."""
    frames = counting_frames(shape, dtype, bits=6)
    frames[frames.real % 4 > 0] = 0
    frames[0, 1] = 0
    return frames


@pytest.mark.parametrize(
    ("dtype", "pointers", "shuffle"),
    [
        *[("u1", "<i4", True), ("i2", ">u8", False), (">u4", "<i4", False), ("i8", ">u8", True)],
        *[("f4", "<i4", True), (">f8", ">u8", True), ("c8", ">u8", False)],
    ],
)
def test_every_type(tmp_path, dtype, pointers, shuffle):
    """Types of either byte order are read, with pixels in any order."""
    frames = sparse_frames((3, 4, 5, 6), dtype)
    options = {"indptr_dtype": pointers, "indices_dtype": pointers, "shuffle": shuffle}
    path = write_raw_csr(tmp_path / "scan [1].toml", frames, **options)
    expected = frames.astype(np.dtype(dtype).newbyteorder("="))
    check_format(path, expected, cuts=2)
    stored = dask_tiled.describe(path).metadata["raw_csr"]["nonzero"]
    assert stored == np.count_nonzero(frames) * (2 if shuffle else 1)
    check_format(path, expected.reshape(12, 30, 1), cuts=1, nav_shape=(12,), sig_shape=(30, 1))
    moved = dask_tiled.open_dataset(path, sync_offset=-2).compute().reshape(12, 5, 6)
    np.testing.assert_array_equal(moved[2:], expected.reshape(12, 5, 6)[:10])


def test_pieces_of_frames(tmp_path, monkeypatch):
    """Frames lie in pieces, the last of which may be smaller."""
    module = importlib.import_module("dask_tiled.formats.raw_csr")
    frames = sparse_frames((3, 4, 5, 6), "u2")
    monkeypatch.setattr(module, "PIECE_BYTES", 2 * np.count_nonzero(frames) * 5 // 12 + 1)
    path = write_raw_csr(tmp_path / "a.toml", frames)
    desc = dask_tiled.describe(path)
    assert desc.layout.pieces.rows().shape[:, 0].tolist() == [5, 5, 2]
    check_format(path, frames)
    arr = dask_tiled.open_dataset(path)
    np.testing.assert_array_equal(arr.sum(axis=(0, 1)).compute(), frames.sum(axis=(0, 1)))
    np.testing.assert_array_equal(arr.max(axis=(2, 3)).compute(), frames.max(axis=(2, 3)))


@pytest.mark.parametrize("dtype", ["u1", "i1"])
def test_overflowing_pixels_raise(tmp_path, dtype):
    frames = np.zeros((2, 3, 2, 2), dtype)
    frames[1, 1, 1] = 100, 27
    path = write_raw_csr(tmp_path / "a.toml", frames)
    same = np.array([2, 2], "<i4")
    same.tofile(tmp_path / "a.indices")
    arr = dask_tiled.open_dataset(path)
    assert arr.compute().max() == 127
    assert arr.sum().compute() == 127
    frames[1, 1, 1] = (200, 56) if dtype == "u1" else (100, 28)
    write_raw_csr(path, frames)
    same.tofile(tmp_path / "a.indices")
    arr = dask_tiled.open_dataset(path)
    with pytest.raises(DatasetError, match="more in a pixel than its type can hold"):
        arr.compute()
    total = frames.sum(dtype="i8")
    assert arr.sum(axis=0).compute().max() == total
    assert dask_tiled.open_dataset(path, dtype="i4").max().compute() == total


def test_pixels_of_8_bytes_are_added_without_a_check(tmp_path):
    frames = np.zeros((2, 3, 2, 2), "u8")
    frames[1, 1, 1] = 1 << 63, 3
    path = write_raw_csr(tmp_path / "a.toml", frames)
    np.array([2, 2], "<i4").tofile(tmp_path / "a.indices")
    assert dask_tiled.open_dataset(path)[1, 1].compute().tolist() == [[0, 0], [(1 << 63) + 3, 0]]


@pytest.mark.slow
def test_equals_libertem(tmp_path):
    frames = sparse_frames((3, 4, 5, 6), "i4")
    path = write_raw_csr(tmp_path / "a.toml", frames, indptr_dtype="<i4")
    theirs = libertem_reads(tmp_path, {"csr": ("raw_csr", {"path": path})})["csr"]["frames"]
    np.testing.assert_array_equal(dask_tiled.open_dataset(path).compute(), theirs)


def test_missing_file_is_named(tmp_path):
    path = write_raw_csr(tmp_path / "a.toml", sparse_frames((3, 4, 5, 6), "u2"))
    (tmp_path / "a.data").unlink()
    with pytest.raises(TruncatedFileError, match=r"data_file.*no such file") as caught:
        dask_tiled.open_dataset(path)
    assert caught.value.path == str(path)
    assert caught.value.expected == str(tmp_path / "a.data")


@pytest.mark.parametrize(("name", "value"), [("a.indptr", -1), ("a.indptr", 99), ("a.indices", 30)])
def test_invalid_pointers_raise_when_read(tmp_path, name, value):
    """Decreasing pointers and columns beyond a frame name their file."""
    frames = sparse_frames((3, 4, 5, 6), "u2")
    path = write_raw_csr(tmp_path / "a.toml", frames, indices_dtype="<i8")
    numbers = np.fromfile(tmp_path / name, "<i8")
    numbers[5] = value
    numbers.tofile(tmp_path / name)
    with pytest.raises(CorruptFileError, match=name):
        dask_tiled.open_dataset(path).compute()


@pytest.mark.parametrize(
    ("key", "value", "where", "expected"),
    [
        ("filetype", '"raw"', "params.filetype", "raw_csr"),
        ("nav_shape", "[]", "params.nav_shape", "1 to 8 sizes, not too large"),
        (
            "nav_shape",
            "[1, 1, 1, 1, 1, 1, 1, 3, 4]",
            "params.nav_shape",
            "1 to 8 sizes, not too large",
        ),
        ("sig_shape", "[65536, 32769]", "params.sig_shape", "1 to 8 sizes, not too large"),
        ("sig_shape", "[5, 0]", "params.sig_shape", "1 to 8 sizes, not too large"),
        ("data_file", '""', "data_file", "the name of a file"),
        ("data_file", r'"a\u0000"', "data_file", "the name of a file"),
        ("data_file", "3", "data_file", "the name of a file"),
        ("data_dtype", '"V2"', "data_dtype", "a NumPy dtype of kind iufc"),
        ("data_dtype", '"no type"', "data_dtype", "a NumPy dtype of kind iufc"),
        ("indptr_dtype", '"f8"', "indptr_dtype", "a NumPy dtype of kind iu"),
        ("indices_dtype", '"(2,)i4"', "indices_dtype", "a NumPy dtype of kind iu"),
        ("comment", f'"{998 * "."}"', "the file", "at most 1000 dots"),
        ("comment", f'"{(1 << 16) * "x"}"', "the file", "at most 65536 bytes"),
    ],
)
def test_invalid_values_are_named(tmp_path, key, value, where, expected):
    path = write_raw_csr(tmp_path / "a.toml", sparse_frames((3, 4, 5, 6), "u2"))
    lines = [line for line in path.read_text("utf8").splitlines() if not line.startswith(key)]
    place = 1 if key in ("comment", "filetype", "nav_shape", "sig_shape") else len(lines)
    path.write_text("\n".join([*lines[:place], f"{key} = {value}", *lines[place:]]), "utf8")
    with pytest.raises(CorruptFileError) as caught:
        dask_tiled.open_dataset(path, format="raw_csr")
    assert caught.value.where == where
    assert caught.value.expected == expected
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[3, 4]", "[12]"),
        ("[3, 4]", "[3, 1, 1, 1, 1, 1, 1, 4]"),
        ("[5, 6]", "[65536, 32768]"),
        ("[params]", f"[params]\ncomment = '{997 * '.'}'"),
    ],
)
def test_limits_themselves_are_read(tmp_path, old, new):
    path = write_raw_csr(tmp_path / "a.toml", sparse_frames((3, 4, 5, 6), "u2"))
    path.write_text(path.read_text("utf8").replace(old, new), "utf8")
    assert dask_tiled.describe(path).metadata["raw_csr"]["nonzero"] > 0


def test_other_toml_files_are_not_recognised(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text("[project]\nname = 'x'\n")
    refuses(path, "looks like text", UnknownFormatError)
    refuses(path, "params", CorruptFileError, format="raw_csr")
