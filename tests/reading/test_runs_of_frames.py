"""Files with one frame per chunk: many chunks are decoded in one call, into the result."""

import dask
import h5py
import numcodecs
import numpy as np
import pytest
import zarr

from dask_tiled import Corrections, open_dataset
from dask_tiled.codecs import chunks
from dask_tiled.codecs.pipeline import Pipeline
from dask_tiled.errors import CorruptFileError
from dask_tiled.reading.counting import counted

hdf5plugin = pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed")

SHAPE = (6, 5, 40, 24)
FRAMES = np.random.default_rng(0).poisson(0.3, SHAPE).astype("u2")
FILTERS = {
    "bitshuffle": dict(hdf5plugin.Bitshuffle()),
    "Blosc": dict(hdf5plugin.Blosc(cname="lz4", shuffle=1)),
    "Zstandard": dict(hdf5plugin.Zstd()),
    "deflate": {"compression": 4, "shuffle": True},
}


@pytest.fixture(params=FILTERS)
def filters(request):
    """Return h5py's options of a filter."""
    return FILTERS[request.param]


def write(path, frames=FRAMES, chunk=(1, 1, 40, 24), **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("d", data=frames, chunks=chunk, **options)
    return path


@pytest.fixture
def calls(monkeypatch):
    """Record calls that decode single chunks, and runs of chunks."""
    found = {"decode": [], "decode_many": []}
    for name, some in found.items():
        original = getattr(chunks, name)

        def spied(first, *args, original=original, some=some, **options):
            some.append(first)
            return original(first, *args, **options)

        monkeypatch.setattr(chunks, name, spied)
    return found


@pytest.mark.parametrize("dtype", ["u1", ">u2", "u4", "?"])
def test_whole_frames(tmp_path, filters, calls, dtype):
    """Whole frames are decoded in runs; those of foreign byte order one by one."""
    frames = FRAMES.astype(dtype)
    arr = open_dataset(write(tmp_path / "a.h5", frames, **filters), chunks=(4, 5, 40, 24))
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(arr, frames)
        np.testing.assert_array_equal(arr.sum((2, 3)), frames.sum((2, 3)))
        np.testing.assert_array_equal(arr[3, 4], frames[3, 4])
        np.testing.assert_array_equal(arr[::2, ::-1], frames[::2, ::-1])
    assert calls["decode_many"]
    assert bool(calls["decode"]) == (dtype == ">u2")


def test_failed_frames_are_decoded_again(tmp_path, monkeypatch):
    """After a MemoryError no frame is left undecoded in the result."""
    original, failed = Pipeline.decode, []

    def decode(self, *args, **options):
        if not failed:
            failed.append(1)
            raise MemoryError
        return original(self, *args, **options)

    arr = open_dataset(write(tmp_path / "a.h5", **FILTERS["deflate"]))
    monkeypatch.setattr(Pipeline, "decode", decode)
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(arr, FRAMES)
    assert failed


def test_parts_of_frames_are_decoded_one_by_one(tmp_path, filters, calls):
    arr = open_dataset(write(tmp_path / "a.h5", **filters))
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(arr[:, :, 3:30:2, 5:], FRAMES[:, :, 3:30:2, 5:])
    assert not calls["decode_many"]


def test_missing_and_repeated_frames(tmp_path, filters):
    frames = FRAMES.reshape(30, 40, 24)
    path = write(tmp_path / "a.h5", frames, (1, 40, 24), **filters)
    arr = open_dataset(path, nav_shape=(5, 8), sync_offset=-4, fill_value=9)
    with dask.config.set(scheduler="synchronous"):
        expected = np.full((40, 40, 24), 9, "u2")
        expected[4:34] = frames
        np.testing.assert_array_equal(arr, expected.reshape(5, 8, 40, 24))
        again = arr.reshape(40, 40, 24)[[7, 7, 5, 7]]
        np.testing.assert_array_equal(again, expected[[7, 7, 5, 7]])


def test_corrections_and_types(tmp_path, filters):
    dark, bad = np.full((40, 24), 0.5), [(3, 3), (20, 7)]
    arr = open_dataset(
        write(tmp_path / "a.h5", **filters), corrections=Corrections(dark=dark, excluded_pixels=bad)
    )
    with dask.config.set(scheduler="synchronous"):
        found = arr.compute()
    good = np.ones((40, 24), bool)
    good[tuple(np.transpose(bad))] = False
    np.testing.assert_allclose(found[..., good], (FRAMES - dark)[..., good], rtol=1e-6)


def test_bytes_of_chunks_are_counted(tmp_path, filters):
    path = write(tmp_path / "a.h5", **filters)
    with h5py.File(path) as file:
        stored = file["d"].id.get_storage_size()
    arr = open_dataset(path)
    with counted() as counter, dask.config.set(scheduler="synchronous"):
        arr.sum().compute()
    assert counter.nbytes == stored


def test_damaged_chunk_in_a_run(tmp_path, filters):
    """The error names the chunk, and other chunks decode."""
    path = write(tmp_path / "a.h5", **filters)
    with h5py.File(path) as file:
        place = file["d"].id.get_chunk_info_by_coord((2, 3, 0, 0))
    with open(path, "r+b") as file:
        file.seek(place.byte_offset)
        file.write(bytes(place.size))
    arr = open_dataset(path, chunks=(2, 5, 40, 24))
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(arr[:2], FRAMES[:2])
        with pytest.raises(CorruptFileError, match=f"byte {place.byte_offset}"):
            arr.compute()


def test_unwritten_chunks_read_as_fill_value(tmp_path, filters):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("d", SHAPE, "u2", chunks=(1, 1, 40, 24), fillvalue=7, **filters)
        made[1, 2] = FRAMES[1, 2]
        made[4] = FRAMES[4]
    expected = np.full(SHAPE, 7, "u2")
    expected[1, 2], expected[4] = FRAMES[1, 2], FRAMES[4]
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(open_dataset(path), expected)


@pytest.mark.parametrize("compressors", [zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec()])
@pytest.mark.parametrize("order", ["filters", "serializer"])
def test_transposed_and_big_endian_chunks(tmp_path, calls, compressors, order):
    """Chunks decompress into the result, and are reordered there."""
    last = {
        "filters": zarr.codecs.TransposeCodec(order=(0, 2, 1)),
        "serializer": zarr.codecs.BytesCodec(endian="big"),
    }
    frames = FRAMES.reshape(30, 40, 24)
    options = {order: last[order], "compressors": compressors}
    zarr.create_array(tmp_path / "a.zarr", data=frames, chunks=(1, 40, 24), **options)
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(open_dataset(tmp_path / "a.zarr"), frames)
    assert calls["decode_many"]


@pytest.mark.parametrize("compressor", [numcodecs.Zlib(), numcodecs.Blosc()])
def test_fortran_order(tmp_path, compressor):
    """zarr format 2 may store chunks in Fortran order."""
    frames = FRAMES.reshape(30, 40, 24)
    options = {"zarr_format": 2, "order": "F", "compressors": compressor}
    zarr.create_array(tmp_path / "a.zarr", data=frames, chunks=(1, 40, 24), **options)
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(open_dataset(tmp_path / "a.zarr"), frames)


def test_chunks_damaged_once_are_decoded_again(tmp_path, filters, monkeypatch):
    """A chunk that fails once, and those after it in the run, are decoded again."""
    path = write(tmp_path / "a.h5", **filters)
    original, broken = chunks.decode_many, []

    def decode_many(run, fetch, out, **options):
        out[...] = 4711

        def once(file, start, stop):
            data = fetch(file, start, stop)
            if broken:
                return data
            broken.append(start)
            return np.concatenate([data[: len(data) // 3], np.zeros(len(data), np.uint8)])

        original(run, once, out, **options)

    monkeypatch.setattr(chunks, "decode_many", decode_many)
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(open_dataset(path), FRAMES)
    assert broken
