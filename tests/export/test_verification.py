"""verify_zarr compares stored arrays with their sources, and notices any damage."""

import json
from functools import partial

import dask.array as da
import numpy as np
import pytest
import zarr

from dask_tiled import DatasetError, VerificationError, open_dataset, to_zarr, verify_zarr
from dask_tiled.export.zarr import stored_chunks, verification
from dask_tiled.storing.folders import FileReader
from dask_tiled.testing import counting_frames, write_mib

to_zarr = partial(to_zarr, layout="array")  # without keys of a group
FRAMES = counting_frames((5, 7, 8, 16), "uint16")
LAYOUTS = [{"chunks": (2, 3, 8, 16)}, {"chunks": (1, 2, 4, 16), "shards": (2, 4, 8, 16)}]


@pytest.fixture
def arr(tmp_path):
    """Open a small scan."""
    return open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))


@pytest.mark.thorough
@pytest.mark.parametrize("options", LAYOUTS)
def test_equal_arrays_pass(arr, tmp_path, options):
    """The stored array may be a path, an array or a store."""
    stored = to_zarr(arr, tmp_path / "out.zarr", **options)
    for store in (tmp_path / "out.zarr", str(tmp_path / "out.zarr"), stored, stored.store):
        verify_zarr(store, arr)
    store = zarr.storage.MemoryStore()
    to_zarr(arr[1:, ::2], store, **options)
    verify_zarr(store, arr[1:, ::2])
    verify_zarr(store, da.from_array(FRAMES[1:, ::2], chunks=(2, 2, 5, 16)))


@pytest.mark.filterwarnings("ignore:The data type", "ignore:The structured dtype")
def test_colours(data, tmp_path):
    """In the file blue comes first; zarr stores fields in order."""
    arr = open_dataset(data / "dm" / "2D" / "test-23.dm4")
    stored = to_zarr(arr, tmp_path / "out.zarr")
    assert (stored[:]["B"] == arr.compute()["B"]).all()
    verify_zarr(tmp_path / "out.zarr", arr)
    zarr.open_array(tmp_path / "out.zarr")[1, 1] = (4, 4, 5, 0)
    with pytest.raises(VerificationError, match="a pixel differs"):
        verify_zarr(tmp_path / "out.zarr", arr)


def test_errors_locate_differences(arr, tmp_path):
    """The error names the first different pixel of the chunk, and both values."""
    to_zarr(arr, tmp_path / "out.zarr", **LAYOUTS[0])
    changed = zarr.open_array(tmp_path / "out.zarr", mode="r+")
    changed[3, 1, 7, 15] = 7
    changed[3, 2, 0, 0] = 7
    with pytest.raises(VerificationError, match="a pixel differs") as caught:
        verify_zarr(tmp_path / "out.zarr", arr)
    error = caught.value
    assert (error.path, error.where) == (str(tmp_path / "out.zarr"), "[3, 1, 7, 15]")
    assert (error.expected, error.found) == (FRAMES[3, 1, 7, 15], 7)


def test_missing_chunks_raise(tmp_path):
    """zarr reads zeros in place of the missing chunk, which held zeros."""
    arr = da.zeros((4, 4), chunks=2)
    to_zarr(arr, tmp_path / "out.zarr")
    (tmp_path / "out.zarr" / "c" / "1" / "0").unlink()
    with pytest.raises(VerificationError, match="missing") as caught:
        verify_zarr(tmp_path / "out.zarr", arr)
    assert caught.value.where == "c/1/0"


def test_another_array(arr, tmp_path):
    """Shape and dtype are compared first."""
    with pytest.raises(VerificationError, match="the store is empty or does not exist"):
        verify_zarr(tmp_path / "out.zarr", arr)
    to_zarr(arr, tmp_path / "out.zarr")
    for what, other in {"shape": arr[1:], "dtype": arr.astype("u4")}.items():
        with pytest.raises(VerificationError) as caught:
            verify_zarr(tmp_path / "out.zarr", other)
        assert caught.value.where == what
    with pytest.raises(DatasetError, match="Pass the store first"):
        verify_zarr(arr, tmp_path / "out.zarr")


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 99_999, '{"zarr_format": 3, "node_type": "array"}']
)
@pytest.mark.parametrize("name", ["zarr.json", "data/zarr.json"])
def test_invalid_metadata_raises(arr, tmp_path, name, text):
    to_zarr(arr, tmp_path / "a.zarr", layout="group")
    (tmp_path / "a.zarr" / name).write_text(text)
    with pytest.raises(VerificationError) as caught:
        verify_zarr(tmp_path / "a.zarr", arr)
    assert caught.value.path == str(tmp_path / "a.zarr")


@pytest.mark.filterwarnings("ignore:.*stored chunk shape:UserWarning")  # of zarr 3.4 and later
def test_empty_chunks_raise(arr, tmp_path):
    to_zarr(arr, tmp_path / "a.zarr", chunks=(2, 3, 8, 16))
    path = tmp_path / "a.zarr" / "zarr.json"
    document = json.loads(path.read_text())
    document["chunk_grid"]["configuration"]["chunk_shape"][0] = 0
    path.write_text(json.dumps(document))
    message = (
        r"the array has empty chunks|a chunk cannot be decoded|is missing"  # by version of zarr
    )
    with pytest.raises(VerificationError, match=message):
        verify_zarr(path.parent, arr)


@pytest.mark.parametrize(("zarr_format", "name"), [(2, ".zarray"), (3, "zarr.json")])
def test_workers_have_to_see_the_metadata(arr, tmp_path, zarr_format, name):
    """Workers without it would find no chunk."""
    stored = to_zarr(arr, tmp_path / "a.zarr", layout="group", zarr_format=zarr_format)
    (file,) = verification._documents_of(stored)
    assert file.path == str(tmp_path / "a.zarr" / "data" / name)


class Counting(zarr.storage.WrapperStore):
    """A store that records the most bytes of a single request."""

    most = 0

    async def get(self, key, prototype, byte_range=None):
        """Get bytes, and record their number."""
        found = await super().get(key, prototype, byte_range)
        if "c/" in key:
            Counting.most = max(Counting.most, len(found))
        return found


def test_shards_are_not_read_whole(arr, monkeypatch):
    """A window of a shard is in memory at a time, or one chunk."""
    store = zarr.storage.MemoryStore()
    options = {"chunks": (1, 1, 8, 16), "shards": (5, 7, 8, 16), "compressors": None}
    to_zarr(arr, store, **options)
    monkeypatch.setattr(stored_chunks, "WINDOW_BYTES", 1000)
    verify_zarr(Counting(store), arr)
    assert 800 < Counting.most <= 1000


def test_chunks_of_local_shards_are_read_one_by_one(arr, tmp_path, monkeypatch):
    """Each has 256 bytes and a checksum."""
    read, get = [], FileReader.get

    def counted(self, key, part=(0, None)):
        read.append(part)
        return get(self, key, part)

    monkeypatch.setattr(FileReader, "get", counted)
    options = {"chunks": (1, 1, 8, 16), "shards": (5, 7, 8, 16), "compressors": None}
    to_zarr(arr, tmp_path / "out.zarr", **options)
    verify_zarr(tmp_path / "out.zarr", arr)
    assert {stop - start for start, stop in read if stop} == {260}


@pytest.mark.parametrize(
    "options",
    [
        {"serializer": zarr.codecs.BytesCodec(endian="big")},
        {"shards": zarr.core.array.ShardsConfigParam(shape=(2, 4, 8, 16), index_location="start")},
        {"compressors": [zarr.codecs.BloscCodec(cname="zstd"), zarr.codecs.ZstdCodec()]},
        {"compressors": None, "shards": (2, 4, 8, 16)},
        {"filters": [zarr.codecs.TransposeCodec(order=(3, 2, 1, 0))]},
    ],
)
def test_arrays_of_other_software(arr, options):
    """Any codecs and any place of the index of shards are supported."""
    config = {"write_empty_chunks": True}
    store = zarr.storage.MemoryStore()
    given = {"shape": arr.shape, "chunks": (1, 2, 8, 16), "dtype": arr.dtype, "config": config}
    array = zarr.create_array(store, **given, **options)
    array[...] = FRAMES
    verify_zarr(store, arr)
    array[4, 6, 7, 15] = 1
    with pytest.raises(VerificationError, match=r"a pixel differs, at \[4, 6, 7, 15\]"):
        verify_zarr(store, arr)


def test_missing_chunks_in_shards_raise():
    """Empty chunks that zarr leaves out differ from stored ones."""
    array = zarr.create_array(
        {}, shape=(4, 4), chunks=(1, 1), shards=(2, 2), dtype="u2", compressors=None
    )
    array[...] = np.eye(4)
    with pytest.raises(VerificationError, match="missing"):
        verify_zarr(array, da.from_array(np.eye(4, dtype="u2")))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["f4", "c8", "bool", "M8[s]"])
def test_any_bits(tmp_path, dtype):
    """NaN is equal to itself; values are compared by their bits."""
    pixels = np.frombuffer(np.random.default_rng(5).bytes(640), "u1").view("u1")
    pixels = (pixels % 2).astype(bool) if dtype == "bool" else pixels
    pixels = np.resize(pixels, 12 * 9 * 8).view(dtype)
    pixels = pixels[: pixels.size // 9 * 9].reshape(-1, 9)
    arr = da.from_array(pixels, chunks=(2, 4))
    to_zarr(arr, tmp_path / "out.zarr", chunks=(1, 4))
    verify_zarr(tmp_path / "out.zarr", arr)


@pytest.mark.parametrize("options", LAYOUTS)
def test_truncated_files_raise(arr, tmp_path, options):
    """Bytes of a chunk that was read before do not complete a truncated file."""
    to_zarr(arr, tmp_path / "out.zarr", **options)
    chunk = max((tmp_path / "out.zarr" / "c").rglob("[0-9]"), key=lambda path: path.is_file())
    whole = chunk.read_bytes()
    for length in (0, 3, 40, len(whole) // 2, len(whole) - 1):
        chunk.write_bytes(whole[:length])
        with pytest.raises(VerificationError, match=r"cannot be decoded|missing"):
            verify_zarr(tmp_path / "out.zarr", arr)
    chunk.write_bytes(whole)
    verify_zarr(tmp_path / "out.zarr", arr)


@pytest.mark.slow
def test_truncated_files_without_checksums_raise(tmp_path):
    """The chunk that is read before ends with the same bytes."""
    arr = da.zeros((4, 4096), chunks=(1, 4096), dtype="u2")
    config = {"write_empty_chunks": True}
    given = {"shape": arr.shape, "chunks": (1, 4096), "dtype": "u2", "config": config}
    zarr.create_array(tmp_path / "a", **given, compressors=zarr.codecs.BloscCodec())[...] = 0
    chunk = tmp_path / "a" / "c" / "3" / "0"
    whole = chunk.read_bytes()
    for length in (15, len(whole) - 1):
        chunk.write_bytes(whole[:length])
        with pytest.raises(VerificationError, match="cannot be decoded"):
            verify_zarr(tmp_path / "a", arr.rechunk(4))
