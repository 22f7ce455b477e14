"""Exports run in two steps if they would read the same bytes many times."""

import math
import os
from pathlib import Path

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import tifffile
import zarr

from dask_tiled import Corrections, DatasetError, explain, open_dataset, to_zarr, verify_zarr
from dask_tiled.blocks.alignment import aligned_chunks
from dask_tiled.export.zarr import relay, targets
from dask_tiled.export.zarr.relay import relayed, times_read
from dask_tiled.export.zarr.targets import ZarrTarget
from dask_tiled.opened.spec import Given
from dask_tiled.reading.counting import counted
from dask_tiled.storing.places import Place
from dask_tiled.testing import counting_frames, write_mib, write_raw

FRAMES = counting_frames((6, 10, 12, 20), "uint16")
COLUMNS = {"chunks": (6, 10, 4, 8), "progress": False}


@pytest.fixture
def always(monkeypatch):
    """Export in two steps, even if all bytes would be read once."""
    monkeypatch.setattr(relay, "MOST_TIMES", 0)


@pytest.fixture
def steps(monkeypatch):
    """List the folder of the step for each write of a task."""
    found, write = [], ZarrTarget.write

    def listed(self, box, held):
        folders = Path(self.place.content.path).parents
        found.append(next(folder.name for folder in folders if folder.name != "store"))
        write(self, box, held)

    monkeypatch.setattr(targets.ZarrTarget, "write", listed)
    return found


@pytest.fixture
def stopped(tmp_path, monkeypatch, steps):
    """Return a function that interrupts an export before or after it notes a chunk of step two."""

    def stop(*, noted):
        arr, note = scan_of(tmp_path / "scan.mib"), Place.note

        def stopping(folder, entries):
            if noted or len(set(steps)) < 2:
                note(folder, entries)
            if len(set(steps)) == 2:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, dask.config.set(scheduler="synchronous"):
            patch.setattr(Place, "note", stopping)
            with pytest.raises(KeyboardInterrupt):
                to_zarr(arr, tmp_path / "out.zarr", **COLUMNS)
        return arr

    return stop


def scan_of(path, frames=FRAMES, **options):
    return open_dataset(write_mib(path, frames), chunks=(2, 10, 12, 20), **options)


def between(arr, unit):
    given = Given.of(arr)
    return relayed(given, aligned_chunks(given, unit))


def large(folder, gib):
    """Open a sparse file of zeros."""
    path = folder / "scan.raw"
    with path.open("wb") as file:
        file.truncate(gib << 30)
    return open_dataset(path, "raw", dtype="u2", sig_shape=(256, 256))


def test_bytes_that_tasks_read(tmp_path):
    """Chunks of rows are contiguous; chunks of columns reach from the first row to the last."""
    desc = large(tmp_path, 1).description
    assert times_read(desc, (256, 256)) == 1
    assert times_read(desc, (16, 256)) == 1
    assert times_read(desc, (64, 16)) == pytest.approx(16, rel=0.02)
    assert times_read(desc, (1, 256)) == 8  # 512 bytes of a page of 4,096


def test_chunks_that_are_not_stored(tmp_path):
    """Unwritten chunks count by the pixels that are needed, though many are one piece."""
    made = zarr.create_array(tmp_path / "a.zarr", shape=(9000, 9000), chunks=(100, 100), dtype="u2")
    made[:100, :100] = made[5000:5100, 5000:5100] = 1
    arr = open_dataset(tmp_path / "a.zarr")
    assert times_read(arr.description, (300, 300)) == 1
    told = explain(arr.sum())
    assert told.bytes_decoded == arr.nbytes
    assert told.peak_memory < arr.nbytes


@pytest.mark.thorough
@pytest.mark.usefixtures("always")
def test_large_frames_are_stored_in_parts(tmp_path, steps):
    """Strips of an image are read in one step, and columns written in the next, in few rows."""
    pixels = np.arange(2048 * 8192, dtype="u2").reshape(2048, 8192)
    tifffile.imwrite(tmp_path / "a.tif", pixels, rowsperstrip=16, compression="zstd")
    arr = open_dataset(tmp_path / "a.tif")
    grid = between(arr, (2048, 256))
    assert math.prod(grid.shard) * 2 < pixels.nbytes / 4
    with counted() as counter:
        found = to_zarr(arr, tmp_path / "a.zarr", chunks=(2048, 256))
    assert len(set(steps)) == 2
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert counter.nbytes == sum(file.pages[0].databytecounts)
    np.testing.assert_array_equal(found[:], pixels)


def test_blocks_that_decode_as_a_whole(tmp_path):
    """Compressed chunks are decoded as a whole, however few pixels are needed."""
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file.create_dataset("x", data=FRAMES, chunks=(1, 2, 12, 20), compression="gzip")
    desc = open_dataset(tmp_path / "scan.h5").description
    assert times_read(desc, (12, 20)) == 1
    assert times_read(desc, (4, 20)) == 3


def test_files_that_are_read_once_need_no_second_step(tmp_path):
    """Small files, and large files in chunks of frames or rows, are exported in one step."""
    few, many = large(tmp_path, 1), (16 << 30) // (256 * 256 * 2)
    assert between(few, (few.shape[0], 16, 16)) is None
    arr = large(tmp_path, 16)
    assert between(arr, (1, 256, 256)) is None
    assert between(arr, (1000, 16, 16)) is None
    stored = between(arr, (many, 16, 16))
    assert stored.shard == (1024, 256, 256)
    assert stored.chunk == (1024, 16, 32)  # two columns at once fit in the memory of a chunk
    assert between(da.zeros(arr.shape, chunks=arr.chunks), (many, 16, 16)) is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shards": (6, 10, 8, 16), "chunks": (3, 5, 2, 4)},
        {"chunks": (4, 7, 5, 9)},
        {"chunks": (6, 10, 4, 8), "pyramid": 2},
        {"layout": "array", "compressors": None},
    ],
    ids=["columns", "shards", "uneven", "pyramid", "array"],
)
def test_two_steps_store_the_same_bytes_as_one(tmp_path, monkeypatch, options):
    """The steps leave nothing else."""
    arr = scan_of(tmp_path / "scan.mib")
    options = COLUMNS | options
    to_zarr(arr, tmp_path / "one.zarr", **options)
    monkeypatch.setattr(relay, "MOST_TIMES", 0)
    to_zarr(arr, tmp_path / "two.zarr", **options)
    one, two = (
        {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "one.zarr", tmp_path / "two.zarr")
    )
    pixels = {name for name in one if "/c/" in f"/{name}"}
    assert pixels
    assert {name: two[name] for name in pixels} == {name: one[name] for name in pixels}
    assert len(one) == len(two)
    assert sorted(os.listdir(tmp_path)) == ["one.zarr", "scan.hdr", "scan.mib", "two.zarr"]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["float", "bool", "complex", "missing", "slice", "corrected"])
@pytest.mark.filterwarnings("error::dask_tiled.MissingFramesWarning")
def test_pixels_of_all_kinds(tmp_path, kind):
    """Stored pixels equal the array's, and missing frames raise no further warning."""
    shape, options = FRAMES.shape, {}
    if kind in {"float", "bool", "complex"}:
        frames = FRAMES.astype({"float": "f4", "bool": "?", "complex": "c8"}[kind])
        path = write_raw(tmp_path / "scan.raw", frames)
        options = {"dtype": frames.dtype, "sig_shape": shape[2:], "nav_shape": shape[:2]}
        arr = open_dataset(path, "raw", **options)
    elif kind == "missing":
        arr = scan_of(tmp_path / "scan.mib", nav_shape=(6, 11), missing="fill")
    elif kind == "corrected":
        corrections = Corrections(dark=np.ones(shape[2:], "f4"), excluded_pixels=[(2, 3)])
        arr = scan_of(tmp_path / "scan.mib", corrections=corrections)
    else:
        arr = scan_of(tmp_path / "scan.mib")[1:5, ::2, 1:]
    stored = to_zarr(arr, tmp_path / "out.zarr", chunks=(-1, -1, 4, 8), progress=False)
    np.testing.assert_array_equal(stored[...], arr.compute())


@pytest.mark.usefixtures("always")
def test_files_are_read_once(tmp_path, steps, stopped):
    """An export that was interrupted in its second step does not repeat the first."""
    arr, out = stopped(noted=False), tmp_path / "out.zarr"
    assert not out.exists()
    first = steps[0]
    assert first in os.listdir(f"{out}.part")
    steps.clear()
    to_zarr(arr, out, **COLUMNS)
    assert steps
    assert first not in steps
    verify_zarr(out, arr)
    assert sorted(os.listdir(tmp_path)) == ["out.zarr", "scan.hdr", "scan.mib"]


@pytest.mark.usefixtures("always")
def test_resuming_without_the_first_step(tmp_path, stopped, monkeypatch, recwarn):
    """No warning says that the export starts afresh."""
    arr = stopped(noted=True)
    monkeypatch.setattr(relay, "MOST_TIMES", 4)
    to_zarr(arr, tmp_path / "out.zarr", **COLUMNS)
    assert not [x for x in recwarn if "afresh" in str(x.message)]
    verify_zarr(tmp_path / "out.zarr", arr)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("step", [0, 1])
def test_an_export_resumes_after_an_error_in_either_step(tmp_path, steps, monkeypatch, step):
    arr, put = scan_of(tmp_path / "scan.mib"), Place.put

    def failing(folder, key, data):
        if len(set(steps)) == step + 1 and "c/" in key:
            raise DatasetError("no room", path=key)
        put(folder, key, data)

    monkeypatch.setattr(Place, "put", failing)
    with pytest.raises(DatasetError, match="no room"):
        to_zarr(arr, tmp_path / "out.zarr", **COLUMNS)
    kept = ["out.zarr.part"] * step  # the parts that the first step has stored
    assert sorted(os.listdir(tmp_path)) == [*kept, "scan.hdr", "scan.mib"]
    monkeypatch.setattr(Place, "put", put)
    stored = to_zarr(arr, tmp_path / "out.zarr", **COLUMNS)
    np.testing.assert_array_equal(stored[...], FRAMES)
    assert sorted(os.listdir(tmp_path)) == ["out.zarr", "scan.hdr", "scan.mib"]


@pytest.mark.usefixtures("always")
def test_stores_are_written_in_one_step(tmp_path):
    """Stores have no place for a temporary array."""
    store, arr = zarr.storage.MemoryStore(), scan_of(tmp_path / "scan.mib")
    stored = to_zarr(arr, store, **COLUMNS)
    np.testing.assert_array_equal(stored[...], FRAMES)


@pytest.mark.thorough
@pytest.mark.usefixtures("always")
def test_several_arrays_in_two_steps(tmp_path, steps):
    """Each array has parts of its own in the temporary store, which is removed."""
    scan = scan_of(tmp_path / "scan.mib")
    arrays, out = {"whole": scan, "part": scan[:3]}, tmp_path / "o.zarr"
    to_zarr(arrays, out, chunks={"y": 4, "x": 8}, progress=False)
    assert len({*steps}) == 2
    np.testing.assert_array_equal(open_dataset(out, dataset="whole"), FRAMES)
    np.testing.assert_array_equal(open_dataset(out, dataset="part"), FRAMES[:3])
    assert {*os.listdir(tmp_path)} == {"scan.mib", "scan.hdr", "o.zarr"}
    verify_zarr(out, arrays)
