"""as_zarr shows the pixels of opened arrays to any client, without copies."""

import os
import pickle
import threading

import dask.array as da
import fsspec
import numpy as np
import pytest
import xarray
import zarr
from checks import peak_memory
from formats_table import ONE_OF_EACH
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import basic_indices, selections, shown

from dask_tiled import DatasetError, StaleFileError, TilingError, as_zarr, open_dataset
from dask_tiled.testing import counting_frames, write_dm, write_mib, write_raw

FRAMES = counting_frames((5, 7, 8, 16), "uint16")


@pytest.fixture
def arr(tmp_path):
    """Open a small scan."""
    return open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_format_is_zarr(name, sample_of):
    sample = sample_of(name)
    array = as_zarr(open_dataset(**sample.options))
    assert array.dtype == sample.expected.dtype
    np.testing.assert_array_equal(array[:], sample.expected)


@settings(max_examples=settings.default.max_examples // 4)
@given(st.data())
def test_any_part_in_any_chunks(tmp_path_factory, data):
    """Slices of selections with missing frames, in chunks that end beyond the edge."""
    folder = tmp_path_factory.mktemp("scan")
    frames = counting_frames((12, 5, 6), "uint16")
    path = write_raw(folder / "scan.raw", frames, frame_header=3)
    nav_shape, sync_offset, roi = data.draw(selections())
    arr = open_dataset(
        path, "raw", dtype="u2", sig_shape=(5, 6), frame_header=3, nav_shape=nav_shape,
        sync_offset=sync_offset, roi=roi, fill_value=7,
    )  # fmt: skip
    expected, _ = shown(frames, nav_shape, sync_offset, roi, 7)
    index = data.draw(basic_indices(arr.shape))
    part = arr[index]
    if 0 in part.shape:
        return
    chunks = tuple(data.draw(st.integers(1, n)) for n in part.shape)
    array = as_zarr(part, chunks=chunks)
    assert array.chunks == chunks
    np.testing.assert_array_equal(array[...], expected[index])
    inner = data.draw(basic_indices(array.shape))
    np.testing.assert_array_equal(array[inner], expected[index][inner])


def test_clients_agree(tmp_path):
    """zarr, xarray and dask read the same pixels; xarray sees coordinates with units."""
    axes = [(0.0, 0.5, "nm"), (2.0, 0.5, "nm"), (4.0, 0.25, "1/nm"), (0.0, 0.0, "1/nm")]
    write_dm(tmp_path / "scan.dm4", FRAMES, calibrations=axes)
    arr = open_dataset(tmp_path / "scan.dm4")
    array = as_zarr(arr, chunks=(2, 3, 8, 16))
    assert array.read_only
    assert array.metadata.zarr_format == 3
    assert array.metadata.dimension_names == ("scan_y", "scan_x", "y", "x")
    assert array.attrs["dask_tiled"]["format"] == "dm"
    again = zarr.open_array(array.store, path="data", mode="r")
    group = zarr.open_group(array.store, mode="r")
    data = xarray.open_zarr(array.store, consolidated=False)["data"]
    assert data.dims == ("scan_y", "scan_x", "y", "x")
    assert set(data.coords) == {"scan_y", "scan_x", "y"}  # a scale of 0 is none
    for axis, size in zip(arr.description.axes[:3], arr.shape, strict=False):
        assert data[axis.name].attrs == {"units": axis.units}
        np.testing.assert_array_equal(data[axis.name], axis.offset + axis.scale * np.arange(size))
    for found in (array[:], again[:], group["data"][:], data.to_numpy()):
        np.testing.assert_array_equal(found, FRAMES)
    lazy = da.from_zarr(array)
    assert lazy.chunksize == (2, 3, 8, 16)
    np.testing.assert_array_equal(lazy.sum((0, 1)).compute(), arr.sum((0, 1)).compute())


def test_files_behind_urls():
    """The zarr array pickles, and its attributes hold the name of the file only."""
    fsspec.filesystem("memory").pipe("/virtual/scan.raw", FRAMES.tobytes())
    arr = open_dataset("memory://virtual/scan.raw", "raw", dtype="u2", sig_shape=(8, 16))
    array = pickle.loads(pickle.dumps(as_zarr(arr, chunks=(4, 8, 16))))
    np.testing.assert_array_equal(array[:], FRAMES.reshape(-1, 8, 16))
    assert array.attrs["dask_tiled"]["files"] == [os.path.basename(arr.description.files[0].path)]
    fsspec.filesystem("memory").pipe("/virtual/scan.raw", FRAMES.tobytes()[::-1])
    with pytest.raises(StaleFileError):
        array[0]


def test_computed_arrays_have_no_files(arr):
    changed = arr[:]
    changed = changed.copy()
    changed[0] = 0
    for computed in (arr + 1, arr.sum((2, 3)), da.zeros(3), changed, FRAMES):
        with pytest.raises(DatasetError, match="only opened arrays"):
            as_zarr(computed)


def test_uneven_chunks_raise(arr):
    with pytest.raises(TilingError, match="equal along every axis"):
        as_zarr(arr, chunks=((1, 3, 1), 7, 8, 16))
    assert as_zarr(arr, chunks={"scan_y": 2, "x": 4}).chunks == (2, 7, 8, 4)


def test_unsupported_dtypes_raise(tmp_path):
    path = write_raw(tmp_path / "scan.raw", np.zeros((2, 3, 4), np.longdouble))
    arr = open_dataset(path, "raw", dtype=np.longdouble, sig_shape=(3, 4))
    with pytest.raises(DatasetError, match=r"scan.raw: zarr does not support the dtype"):
        as_zarr(arr)


@pytest.mark.parametrize("change", ["rewritten", "shorter", "gone"])
def test_changed_files_raise(arr, change):
    """A changed file must not look like a missing chunk, which zarr would fill."""
    array = as_zarr(arr, chunks=(1, 7, 8, 16))
    np.testing.assert_array_equal(array[0], FRAMES[0])
    path = arr.description.files[0].path
    if change == "gone":
        os.unlink(path)
    else:
        with open(path, "r+b") as file:
            if change == "shorter":
                file.truncate(1000)
            else:
                file.write(b"MQ2")
    with pytest.raises(StaleFileError):
        array[1]
    with pytest.raises(StaleFileError):
        da.from_zarr(array).sum().compute()


def test_only_requested_chunks_are_read(arr, monkeypatch):
    """Chunks are not read in the thread of zarr's event loop."""
    from dask_tiled.export.virtual import store as virtual_store

    read, threads = [], set()
    real = virtual_store.pixels_of

    def noted(source, grid, block, out):
        if source.layout.files != arr.description.files:  # of an earlier test
            return real(source, grid, block, out)
        read.append(block)
        threads.add(threading.current_thread().name)
        return real(source, grid, block, out)

    monkeypatch.setattr(virtual_store, "pixels_of", noted)
    array = as_zarr(arr, chunks=(1, 7, 8, 16))
    assert read == []
    np.testing.assert_array_equal(array[1:3], FRAMES[1:3])
    assert sorted(read) == [(1, 0, 0, 0), (2, 0, 0, 0)]
    assert not any("loop" in name for name in threads)


@pytest.mark.thorough
def test_memory_is_that_of_concurrent_chunks(tmp_path):
    """Two of 64 chunks are read at a time."""
    path = tmp_path / "scan.raw"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    arr = open_dataset(path, "raw", dtype="u2", nav_shape=(64,), sig_shape=(512, 1024))
    array = as_zarr(arr, chunks=(1, 512, 1024))
    array[0]
    with zarr.config.set({"async.concurrency": 2}), peak_memory() as peak:
        array[:, 5, 5]
    assert peak[0] < 8 << 20
