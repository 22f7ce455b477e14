"""References as Parquet files are read lazily by fsspec, and replaced on request."""

import errno
import json
import os
import shutil

import h5py
import numpy as np
import pytest
import xarray
from zarr_readers import group_of

from dask_tiled import DatasetError, open_dataset, to_references
from dask_tiled.export.virtual import parquet
from dask_tiled.storing.claims import claimed
from dask_tiled.testing import counting_frames, write_dm, write_mib

pytest.importorskip("fastparquet", reason="fastparquet is not installed")
# fsspec reads with pandas, which recommends another library.
pytestmark = pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
FRAMES = counting_frames((5, 7, 8, 16), "uint16")
AXES = [(0.0, 0.5, "nm"), (2.0, 0.5, "nm"), (4.0, 0.25, "1/nm"), (0.0, 0.25, "1/nm")]


@pytest.mark.parametrize("rows", [4, 100_000])
def test_chunks_and_coordinates_are_read(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(parquet, "ROWS", rows)
    path = write_dm(tmp_path / "scan #1 \u00b5.dm4", FRAMES, calibrations=AXES)
    target = tmp_path / "scan.parquet"
    arr = open_dataset(path)
    to_references(arr[:, 1:], target)
    group = group_of(str(target), lazy=True)
    np.testing.assert_array_equal(group["data"][...], FRAMES[:, 1:])
    np.testing.assert_array_equal(group["scan_x"][...], -0.5 + 0.5 * np.arange(6))
    assert sorted(os.listdir(tmp_path)) == ["scan #1 \u00b5.dm4", "scan.parquet"]


def test_xarray_opens_the_folder(tmp_path):
    """xarray uses the engine of kerchunk."""
    pytest.importorskip("kerchunk", reason="kerchunk is not installed")
    path = write_dm(tmp_path / "scan.dm4", FRAMES, calibrations=AXES)
    to_references(open_dataset(path), tmp_path / "scan.parq")
    data = xarray.open_dataset(f"{tmp_path}/scan.parq", engine="kerchunk")["data"]
    assert data.dims == ("scan_y", "scan_x", "y", "x")
    assert data["scan_x"].attrs["units"] == "nm"
    np.testing.assert_array_equal(data, FRAMES)


def test_codecs_of_numcodecs_and_of_this_package(tmp_path):
    for name, options in [("gzip", {"compression": 1}), ("lzf", {"compression": "lzf"})]:
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("d", data=FRAMES % 2, chunks=(1, 7, 8, 16), **options)
        target = tmp_path / f"{name}.parquet"
        to_references(open_dataset(path), target)
        found = group_of(str(target), lazy=True)["data"]
        np.testing.assert_array_equal(found[...], FRAMES % 2)


def test_only_references_are_replaced(tmp_path):
    arr = open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))
    target = tmp_path / "new" / "scan.parquet"
    to_references(arr, target)
    with pytest.raises(DatasetError, match="overwrite=True"):
        to_references(arr[:2], target)
    to_references(arr[:2], target, overwrite=True)
    assert group_of(str(target), lazy=True)["data"].shape == (2, 7, 8, 16)
    assert os.listdir(target.parent) == ["scan.parquet"]
    other = tmp_path / "other.parquet"
    other.mkdir()
    (other / ".zmetadata").write_text(json.dumps({"metadata": {}}))
    for path in (other, tmp_path / "link.parquet"):
        if path != other:
            path.symlink_to(target)
        with pytest.raises(DatasetError, match="holds other data"):
            to_references(arr, path, overwrite=True)
    assert os.listdir(other) == [".zmetadata"]


def test_failed_replacements_keep_the_references(tmp_path, monkeypatch):
    """Complete references exist at any time, except during one renaming."""
    arr = open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))
    target, rename = tmp_path / "new" / "scan.parquet", os.rename
    to_references(arr, target)

    def refused(source, place):
        if os.path.basename(source) == "store":
            raise OSError(errno.EBUSY, "Device or resource busy")
        rename(source, place)

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(DatasetError, match="busy"):
        to_references(arr[:2], target, overwrite=True)
    assert group_of(str(target), lazy=True)["data"].shape == FRAMES.shape
    assert os.listdir(target.parent) == ["scan.parquet"]


@pytest.mark.parametrize("left", ["replaced", "an attempt"])
def test_killed_replacements_are_repaired(tmp_path, left):
    """Replaced references come back, and incomplete new ones are removed."""
    arr = open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))
    target, part = tmp_path / "scan.parquet", tmp_path / "scan.parquet.part"
    to_references(arr, target)
    part.mkdir()
    if left == "replaced":
        target.rename(part / "replaced")
    else:
        attempt = part / f"{'0' * 32}-{'1' * 32}"
        attempt.mkdir()
        shutil.copytree(target, attempt / "store")
    with pytest.raises(DatasetError, match="overwrite=True"):
        to_references(arr[:2], target)
    to_references(arr[:2], target, overwrite=True)
    assert group_of(str(target), lazy=True)["data"].shape == (2, 7, 8, 16)
    assert sorted(os.listdir(tmp_path)) == ["scan.hdr", "scan.mib", "scan.parquet"]


def test_two_exports_to_one_place(tmp_path):
    arr = open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))
    target = tmp_path / "scan.parquet"
    with claimed(str(target)), pytest.raises(DatasetError, match="another"):
        to_references(arr, target)
    assert not target.exists()


def test_zarr_format_3_is_refused(tmp_path):
    arr = open_dataset(write_mib(tmp_path / "scan.mib", FRAMES), nav_shape=(6, 7))
    with pytest.raises(
        DatasetError, match="a fill value for missing chunks that only zarr format 3 has"
    ):
        to_references(arr, tmp_path / "scan.parquet")
    with pytest.raises(
        DatasetError,
        match="the target does not support this zarr_format; expected 2; found zarr_format=3",
    ):
        to_references(arr, tmp_path / "scan.parquet", zarr_format=3)
    assert not (tmp_path / "scan.parquet").exists()
