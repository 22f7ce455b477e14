"""The store of virtual arrays passes zarr's own tests, and some more."""

import asyncio
import functools
import inspect
import pickle
from collections.abc import MutableMapping
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.testing.store import StoreTests

from dask_tiled import as_zarr, open_dataset
from dask_tiled.export.virtual.store import GroupContents, VirtualStore
from dask_tiled.testing import counting_frames, write_raw


class Documents(GroupContents, MutableMapping):
    """Documents that can be set, and an array without chunks."""

    def __init__(self, documents):
        self.documents = documents
        self.source = SimpleNamespace(token="")
        self.shape = ()
        self.counts = (0,)

    def __setitem__(self, key, value):
        self.documents[key] = value.to_bytes()

    def __delitem__(self, key):
        del self.documents[key]


class Filled(VirtualStore):
    """The store, in which zarr's tests set documents before they read."""

    supports_writes = supports_deletes = True

    def __init__(self, documents=(), *, read_only=False):
        super().__init__(Documents(dict(documents)))
        self._read_only = read_only

    def __repr__(self):
        return "Filled()"


def in_a_loop(function):
    """Return a function that runs a coroutine function to its end."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        return asyncio.run(function(*args, **kwargs))

    return run


class TestByZarr(StoreTests[Filled, cpu.Buffer]):
    """Run all tests of zarr-python for stores."""

    store_cls = Filled
    buffer_cls = cpu.Buffer

    for _name, _test in inspect.getmembers(StoreTests, inspect.iscoroutinefunction):
        if _name.startswith("test_"):
            locals()[_name] = in_a_loop(_test)

    async def set(self, store, key, value):
        store.contents.documents[key] = value.to_bytes()

    async def get(self, store, key):
        return self.buffer_cls.from_bytes(store.contents.documents[key])

    @pytest.fixture
    def store_kwargs(self):
        return {"documents": {}}

    @pytest.fixture
    def store(self, open_kwargs):
        return asyncio.run(Filled.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs):
        return Filled(**store_kwargs)

    def test_store_repr(self, store):
        assert repr(store) == "Filled()"

    def test_store_supports_writes(self, store):
        assert super(Filled, store).supports_writes is False

    def test_store_supports_listing(self, store):
        assert store.supports_listing


FRAMES = counting_frames((5, 7, 4, 6), "uint16")


@pytest.fixture
def array(tmp_path):
    path = write_raw(tmp_path / "scan.raw", FRAMES, file_header=4)
    arr = open_dataset(path, "raw", dtype="u2", nav_shape=(5, 7), sig_shape=(4, 6), file_header=4)
    return as_zarr(arr, chunks=(2, 7, 4, 6))


async def collect(names):
    return [name async for name in names]


def names(listing):
    return asyncio.run(collect(listing))


def test_listed_keys_exist(array):
    """Each listed key has bytes, as many as its stated size."""
    store = array.store
    keys = names(store.list())
    chunks = [f"data/c/{i}/0/0/0" for i in range(3)]
    assert sorted(keys) == sorted(["zarr.json", "data/zarr.json", *chunks])
    assert names(store.list_prefix("data/c/1")) == ["data/c/1/0/0/0"]
    for key in keys:
        assert asyncio.run(store.exists(key))
        data = asyncio.run(store.get(key, default_buffer_prototype()))
        assert len(data) == asyncio.run(store.getsize(key))


@pytest.mark.parametrize(
    ("folder", "children"),
    [
        ("", ["data", "zarr.json"]), ("data", ["c", "zarr.json"]), ("data/", ["c", "zarr.json"]),
        ("data/c", ["0", "1", "2"]), ("data/c/2", ["0"]), ("data/c/2/0/0", ["0"]),
        ("data/c/2/0/0/0", []), ("data/c/3", []), ("dat", []), ("data/c/x", []),
    ],
)  # fmt: skip
def test_folders_are_listed_without_their_chunks(array, folder, children):
    assert sorted(names(array.store.list_dir(folder))) == children


@pytest.mark.parametrize(
    "key",
    ["c/0/0/0/0", "data/c/3/0/0/0", "data/c/00/0/0/0", "data/c/-1/0/0/0", "data/c/0/0/0",
     "data/c/0/0/0/0/0", "data/c/\u0661/0/0/0", "data/d/0/0/0/0", "datac/0/0/0/0", "data", ""],
)  # fmt: skip
def test_other_keys_do_not_exist(array, key):
    assert not asyncio.run(array.store.exists(key))
    assert asyncio.run(array.store.get(key, default_buffer_prototype())) is None
    with pytest.raises(FileNotFoundError):
        asyncio.run(array.store.getsize(key))


def test_chunks_equal_those_that_zarr_stores(array):
    """Chunks are little-endian, and filled beyond the edge."""
    stored = zarr.create_array(
        {}, shape=FRAMES.shape, chunks=array.chunks, dtype="u2", compressors=None
    )
    stored[:] = FRAMES
    for key in ("c/0/0/0/0", "c/2/0/0/0"):
        expected = asyncio.run(stored.store.get(key, default_buffer_prototype()))
        found = asyncio.run(array.store.get(f"data/{key}", default_buffer_prototype()))
        assert found.to_bytes() == expected.to_bytes()


def test_writing_raises(array):
    store = array.store
    assert store.read_only
    assert not store.supports_writes
    assert not store.supports_deletes
    value = cpu.Buffer.from_bytes(b"0")
    for writes in (store.set("data/c/0/0/0/0", value), store.delete("zarr.json")):
        with pytest.raises(ValueError, match="read-only"):
            asyncio.run(writes)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(NotImplementedError):
        store.with_read_only(read_only=False)
    assert store.with_read_only(read_only=True) == store


def test_equal_stores_are_equal(array):
    """Unpickled copies are equal; other documents make another store."""
    copied = pickle.loads(pickle.dumps(array.store))
    assert copied == array.store
    assert hash(copied) == hash(array.store)
    assert copied != VirtualStore(Documents({}))
    assert array.store != "a store"
    np.testing.assert_array_equal(zarr.open_array(copied, path="data", mode="r")[:], FRAMES)
