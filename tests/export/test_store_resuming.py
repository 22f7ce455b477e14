"""Stopped exports to stores resume, and stop if another export has begun."""

from functools import partial

import dask.array as da
import fsspec
import numpy as np
import pytest
import zarr
from checks import stop_export

from dask_tiled import DatasetError, to_zarr
from dask_tiled.storing.places import Place
from dask_tiled.testing import counting_frames

to_zarr = partial(to_zarr, layout="array")  # without keys of a group
pytestmark = pytest.mark.usefixtures("synchronous")

PIXELS = counting_frames((6, 4, 8), "uint16")
ARR = da.from_array(PIXELS, chunks=(2, 4, 8))
CHUNKS = {f"c/{k}/0/0" for k in range(3)}


@pytest.fixture(params=["memory", "fsspec", "inside"])
def place(request):
    """Yield a store, a URL or a path in a store in place of a bucket."""
    if request.param == "fsspec":
        yield "memory://bucket/out.zarr"
        fsspec.filesystem("memory").rm("/bucket", recursive=True)
    else:
        store = zarr.storage.MemoryStore()
        yield store if request.param == "memory" else zarr.storage.StorePath(store, "a/b")


@pytest.fixture
def written(monkeypatch):
    """List the keys that are written."""
    keys, put = [], Place.put

    def listed(self, key, data):
        keys.append(key.removeprefix("data/"))
        put(self, key, data)

    monkeypatch.setattr(Place, "put", listed)
    return keys


def stop(monkeypatch, place, arr=ARR, after=2, **options):
    """Interrupt an export after it has noted some chunks."""
    stop_export(monkeypatch, Place, arr, place, after, **{"layout": "array"} | options)
    with pytest.raises(FileNotFoundError):
        zarr.open(place, mode="r+")


@pytest.mark.parametrize("layout", ["array", "group"])
def test_noted_chunks_are_not_written_again(place, monkeypatch, written, layout):
    """Only other chunks are written, and no journal is left."""
    stop(monkeypatch, place, layout=layout)
    written.clear()
    stored = to_zarr(ARR, place, layout=layout)
    assert len(CHUNKS & {*written}) == 1
    np.testing.assert_array_equal(stored[:], PIXELS)
    assert not [key for key in _keys(stored) if "journal" in key]


@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_unproven_chunks_are_written_again(place, monkeypatch, written, damage):
    """A chunk that is noted in the journal must also be intact."""
    stop(monkeypatch, place)
    first = next(key for key in written if key in CHUNKS)
    opened = zarr.storage.StorePath(*_opened(place)) / first
    if damage == "flip":
        data = bytearray(zarr.core.sync.sync(opened.get()).to_bytes())
        data[7] ^= 4
        buffer = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(data))
        zarr.core.sync.sync(opened.store.set(opened.path, buffer))
    else:
        zarr.core.sync.sync(opened.delete())
    written.clear()
    stored = to_zarr(ARR, place)
    assert len(CHUNKS & {*written}) == 2
    assert first in written
    np.testing.assert_array_equal(stored[:], PIXELS)


def test_another_export_starts_afresh(place, monkeypatch, written):
    """A warning says why, and no chunk of the other export is left."""
    stop(monkeypatch, place, chunks=(1, 4, 8))
    written.clear()
    with pytest.warns(UserWarning, match="other settings") as warned:
        stored = to_zarr(ARR, place)
    assert warned[0].filename == __file__
    assert {key for key in written if key.startswith("c/")} == CHUNKS
    assert len([key for key in _keys(stored) if "/c/" in f"/{key}"]) == 3
    other = ARR + 1
    with pytest.raises(DatasetError, match="overwrite=True"):
        to_zarr(other, place)
    np.testing.assert_array_equal(to_zarr(other, place, overwrite=True)[:], PIXELS + 1)


@pytest.mark.parametrize("second", [ARR, ARR + 1])
def test_the_export_that_began_last_continues(place, second):
    """The other export raises, and shows nothing."""
    results = []

    def begin_another(block, block_id):
        if block_id == (1, 0, 0):
            results.append(to_zarr(second, place, resume=False)[:])
        return block

    first = ARR.map_blocks(begin_another, dtype="u2", meta=PIXELS[:0])
    with pytest.raises(DatasetError, match="another export"):
        to_zarr(first, place)
    np.testing.assert_array_equal(results[0], second)
    np.testing.assert_array_equal(zarr.open_array(place, mode="r+")[:], results[0])


def test_errors_of_stores(place, monkeypatch):
    """Errors of stores become DatasetError with the store and the key; the next export succeeds."""
    opened = _opened(place)[0]
    true = type(opened).set

    async def full(self, key, value, *args):
        if key.endswith("c/1/0/0"):
            raise OSError(28, "No space left on device")
        await true(self, key, value, *args)

    with monkeypatch.context() as patch:
        patch.setattr(type(opened), "set", full)
        with pytest.raises(DatasetError, match="No space") as caught:
            to_zarr(ARR, place)
    assert (caught.value.path, caught.value.where) == (str(opened), "c/1/0/0")
    np.testing.assert_array_equal(to_zarr(ARR, place)[:], PIXELS)


def _opened(place):
    if isinstance(place, str):
        return zarr.storage.FsspecStore.from_url(place), ""
    return (place.store, place.path) if isinstance(place, zarr.storage.StorePath) else (place, "")


def _keys(array):
    async def listed():
        return [key async for key in array.store.list()]

    return zarr.core.sync.sync(listed())
