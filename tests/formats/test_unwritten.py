"""Chunks that were never written: filled, and refused on demand."""

import h5py
import numpy as np
import pytest
import zarr
from checks import refuses

from dask_tiled import TruncatedFileError, describe, open_dataset, to_zarr
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((6, 8, 8), "u2")
LEFT_OUT = FRAMES.copy()
LEFT_OUT[2:4, :4] = 0


def written(array):
    """Write all chunks of an array but one."""
    array[:2], array[4:], array[2:4, 4:] = FRAMES[:2], FRAMES[4:], FRAMES[2:4, 4:]


def in_zarr(folder, **options):
    path = folder / "scan.zarr"
    array = zarr.create_array(path, shape=FRAMES.shape, dtype="u2", chunks=(2, 4, 8), **options)
    written(array)
    return path


def in_shards(folder):
    return in_zarr(folder, shards=(2, 8, 8))


def in_zarr_2(folder):
    return in_zarr(folder, zarr_format=2)


def in_hdf5(folder):
    with h5py.File(folder / "scan.h5", "w") as file:
        written(file.create_dataset("data", FRAMES.shape, "u2", chunks=(2, 4, 8)))
    return folder / "scan.h5"


def in_packed_hdf5(folder):
    with h5py.File(folder / "scan.h5", "w") as file:
        data = file.create_dataset("data", FRAMES.shape, "u2", chunks=(2, 4, 8), compression="gzip")
        written(data)
    return folder / "scan.h5"


@pytest.mark.parametrize("write", [in_zarr, in_shards, in_zarr_2, in_hdf5, in_packed_hdf5])
def test_an_unwritten_chunk(tmp_path, write):
    """It reads as the fill value; missing="raise" refuses it."""
    path = write(tmp_path)
    for missing in (None, "fill"):
        arr = open_dataset(path, missing=missing)
        np.testing.assert_array_equal(arr, LEFT_OUT)
    assert arr.metadata[arr.description.format]["unwritten_chunks"] == 1
    assert not arr.description.doubts
    with pytest.raises(TruncatedFileError, match=r"never written; .* found 1 of them"):
        describe(path, missing="raise")


def test_contiguous_data_that_were_never_written(tmp_path):
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file.create_dataset("data", FRAMES.shape, "u2")
    assert not open_dataset(tmp_path / "scan.h5").any().compute()
    refuses(tmp_path / "scan.h5", "never written", TruncatedFileError, missing="raise")


def test_whole_data_pass(tmp_path):
    """Parts of a virtual dataset that have no source are none of its chunks."""
    to_zarr(FRAMES, tmp_path / "scan.zarr")
    assert describe(tmp_path / "scan.zarr", missing="raise").shape == FRAMES.shape
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file.create_dataset("data", data=FRAMES, chunks=(2, 4, 8))
        layout = h5py.VirtualLayout((6, 9, 8), "u2")
        layout[:, :8] = h5py.VirtualSource(file["data"])
        file.create_virtual_dataset("v", layout)
    for name in ("data", "v"):
        assert describe(tmp_path / "scan.h5", dataset=name, missing="raise").shape[0] == 6
