"""Export to zarr: equal, aligned, complete or absent, and never over what is not ours."""

import json
import os
import sys

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import dask_tiled
from dask_tiled import DatasetError, TilingError, open_dataset, to_zarr
from dask_tiled.testing import counting_frames, write_mib, write_raw

FRAMES = counting_frames((5, 7, 8, 16), "uint16")


@pytest.fixture
def arr(tmp_path):
    """Open a small scan."""
    return open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))


def test_export_is_equal_and_says_what_it_is(arr, tmp_path):
    """zarr alone reads the pixels, the names of the axes, and where they come from."""
    to_zarr(arr, tmp_path / "out.zarr", attributes={"sample": "gold"})
    stored = zarr.open_array(tmp_path / "out.zarr", mode="r")
    np.testing.assert_array_equal(stored[:], FRAMES)
    assert stored.dtype == np.uint16
    assert stored.metadata.zarr_format == 3
    assert stored.metadata.dimension_names == ("scan_y", "scan_x", "y", "x")
    assert stored.attrs["sample"] == "gold"
    mark = stored.attrs["dask_tiled"]
    assert mark["format"] == "mib"
    assert [axis["name"] for axis in mark["axes"]] == ["scan_y", "scan_x", "y", "x"]
    assert mark["metadata"]["mib"]["hdr"]["Frames per Trigger (Number)"] == "7"


def test_every_chunk_is_stored(tmp_path):
    """Zeros are written, too: a chunk that is missing is a fault."""
    to_zarr(da.zeros((6, 4), chunks=(2, 4), dtype="u2"), tmp_path / "out.zarr", chunks=(2, 4))
    files = [path for path in (tmp_path / "out.zarr").rglob("*") if path.parent.name != "out.zarr"]
    assert len([path for path in files if path.is_file()]) == 3


sizes = st.integers(1, 9)


@given(st.data())
def test_any_chunks_over_any_chunks(tmp_path_factory, data):
    """No two tasks share a zarr chunk, whatever the chunks of the two are."""
    folder = tmp_path_factory.mktemp("export")
    shape = data.draw(st.tuples(sizes, sizes, sizes))
    expected = counting_frames(shape, "uint32")
    path = write_raw(folder / "scan.raw", expected)
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    grid = tuple(data.draw(st.integers(1, n)) for n in shape)
    opened = open_dataset(
        path, "raw", dtype="u4", nav_shape=shape[:1], sig_shape=shape[1:], chunks=chunks
    )
    index = tuple(slice(data.draw(st.integers(0, n - 1)), None) for n in shape)
    plain = da.from_array(expected, chunks=chunks)
    for source in (opened, opened[index], plain, plain[index] + 1):
        stored = to_zarr(source, zarr.storage.MemoryStore(), chunks=grid)
        with dask.config.set(scheduler="synchronous"):
            np.testing.assert_array_equal(stored[:], source.compute())


def test_chunks_by_default_are_whole_frames(tmp_path):
    """zarr chunks are far smaller than dask chunks, divide them, and never cut a frame."""
    path = tmp_path / "scan.raw"
    with path.open("wb") as file:
        file.truncate(64 * 64 * 2 * 96 * 32)
    arr = open_dataset(path, "raw", dtype="u2", nav_shape=(96, 32), sig_shape=(64, 64))
    stored = to_zarr(arr, tmp_path / "out.zarr")
    assert stored.chunks[2:] == (64, 64)
    assert np.prod(stored.chunks) * 2 <= 16 << 20
    assert all(n % c == 0 for n, c in zip(arr.chunksize, stored.chunks, strict=True))


def test_paths_are_what_users_write(arr, tmp_path, monkeypatch):
    """With a slash at the end, relative, below folders that are not there yet."""
    monkeypatch.chdir(tmp_path)
    for path in ("a.zarr/", "./b.zarr", "new/folder/c.zarr", "with space [1] \u00b5.zarr"):
        to_zarr(arr, path)
        np.testing.assert_array_equal(zarr.open_array(path, mode="r")[:], FRAMES)
        to_zarr(arr[:1], path, overwrite=True)
        np.testing.assert_array_equal(zarr.open_array(path, mode="r")[:], FRAMES[:1])


def test_what_stopped_exports_left_goes(arr, tmp_path):
    """Parts of ours are no obstacle."""
    to_zarr(arr[:1], tmp_path / "out.zarr.part")
    to_zarr(arr[:2], tmp_path / "out.zarr.old")
    to_zarr(arr, tmp_path / "out.zarr")
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob("*.old"))


def test_no_axes(arr):
    """A single pixel is an array without axes."""
    stored = to_zarr(arr[3, 4, 5, 6], zarr.storage.MemoryStore())
    assert stored[()] == FRAMES[3, 4, 5, 6]


def test_an_array_is_not_replaced_unasked(arr, tmp_path):
    """The error says how to replace it; with that said, it is replaced."""
    to_zarr(arr, tmp_path / "out.zarr")
    with pytest.raises(DatasetError, match="overwrite=True"):
        to_zarr(arr[:2], tmp_path / "out.zarr")
    to_zarr(arr[:2], tmp_path / "out.zarr", overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], FRAMES[:2])
    assert sorted(os.listdir(tmp_path)) == ["out.zarr", "scan.hdr", "scan.mib"]


def test_an_array_can_be_replaced_by_what_is_computed_from_it(arr, tmp_path):
    """The source is read to the end before it goes."""
    to_zarr(arr, tmp_path / "out.zarr")
    to_zarr(da.from_zarr(tmp_path / "out.zarr") + 1, tmp_path / "out.zarr", overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], FRAMES + 1)


@pytest.mark.parametrize("where", ["out.zarr", "out.zarr.part", "out.zarr.old"])
@pytest.mark.parametrize("what", ["folder", "file", "foreign array", "link"])
def test_what_is_not_ours_stays(arr, tmp_path, where, what):
    """Neither at the place of the export nor beside it is anything lost, whatever is asked for."""
    place = tmp_path / where
    if what == "folder":
        place.mkdir()
        (place / "thesis.txt").write_text("mine")
    elif what == "file":
        place.write_text("mine")
    elif what == "foreign array":
        zarr.create_array(place, shape=(3,), dtype="u1")[:] = 7
    else:
        to_zarr(arr, tmp_path / "elsewhere.zarr")
        place.symlink_to(tmp_path / "elsewhere.zarr")
    before = sorted(os.walk(tmp_path, followlinks=True))
    with pytest.raises(DatasetError) as caught:
        to_zarr(arr, tmp_path / "out.zarr", overwrite=True)
    assert caught.value.path == str(place)
    assert sorted(os.walk(tmp_path, followlinks=True)) == before


def test_a_failed_export_is_not_seen(arr, tmp_path):
    """Neither an array nor its parts stay behind, and an older export is untouched."""
    to_zarr(arr[:1], tmp_path / "out.zarr")

    def fail(_block):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        to_zarr(arr.map_blocks(fail, dtype="u2"), tmp_path / "out.zarr", overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], FRAMES[:1])
    assert not (tmp_path / "out.zarr.part").exists()


def test_a_store_that_holds_something_is_left_alone(arr):
    """As at a path."""
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, shape=(3,), dtype="u1")
    with pytest.raises(DatasetError, match="holds something"):
        to_zarr(arr, store, overwrite=True)
    store = zarr.storage.MemoryStore()
    to_zarr(arr, store)
    with pytest.raises(DatasetError, match="overwrite=True"):
        to_zarr(arr, store)
    assert to_zarr(arr[:2], store, overwrite=True).shape == (2, 7, 8, 16)


def test_unknown_chunks_are_refused(arr, tmp_path):
    """zarr needs to know the shape."""
    flat = arr.ravel()
    with pytest.raises(TilingError, match="compute_chunk_sizes"):
        to_zarr(flat[flat > 5], tmp_path / "out.zarr")


def test_uneven_zarr_chunks_are_refused(arr, tmp_path):
    """A zarr array has one size of chunks."""
    with pytest.raises(TilingError, match="equal"):
        to_zarr(arr, tmp_path / "out.zarr", chunks=((2, 3), 7, 8, 16))


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, False)])
def test_progress(arr, tmp_path, capsys, progress, shown):
    """A bar on request; by itself only on a terminal."""
    to_zarr(arr, tmp_path / "out.zarr", progress=progress)
    assert ("100% Completed" in capsys.readouterr().err) is shown


def test_compressors_are_zarrs(arr, tmp_path):
    """Any that zarr takes; by default with checksums, so that damage is noticed."""
    stored = to_zarr(arr, tmp_path / "a.zarr")
    assert stored.compressors[0].to_dict()["configuration"]["checksum"] is True
    assert to_zarr(arr, tmp_path / "b.zarr", compressors=None).compressors == ()


def test_attributes_are_plain(tmp_path):
    """What headers say is written as JSON, whatever Python types it comes in."""
    path = write_raw(tmp_path / "scan.raw", FRAMES[0])
    arr = open_dataset(
        path, "raw", dtype=">u2", sig_shape=(8, 16), file_header=np.int64(0), chunks=(3, 8, 16)
    )
    to_zarr(arr, tmp_path / "out.zarr")
    text = json.loads((tmp_path / "out.zarr" / "zarr.json").read_text("utf8"))
    assert text["attributes"]["dask_tiled"]["metadata"]["raw"]["file_header"] == 0
    assert text["attributes"]["dask_tiled"]["version"] == dask_tiled.__version__


def test_memory_is_bounded(tmp_path):
    """An export holds a chunk or two a worker, however long the file is."""
    path = tmp_path / "scan.raw"
    with path.open("wb") as file:
        file.truncate(512 << 20)
    script = f"""
import resource, sys, dask, dask_tiled, zarr
arr = dask_tiled.open_dataset({str(path)!r}, "raw", dtype=">u2", sig_shape=(256, 256),
                              tiling=dask_tiled.TilingRequest("chunk", nbytes=8 << 20))
dask.config.set(scheduler="threads", num_workers=2)
dask_tiled.to_zarr(arr[:64], {str(tmp_path / "warm.zarr")!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
dask_tiled.to_zarr(arr, {str(tmp_path / "out.zarr")!r})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = int(_run(script)) * 1024
    assert grown < 128 << 20


def _run(script):
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout
