"""`iter_batches`: order of epochs, resuming, reading ahead, and bounded memory."""

import threading

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tiled import DatasetError, iter_batches, open_dataset, to_beton
from dask_tiled.training import order


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("batches") / "a.beton"
    samples = [(np.full((8, 16), i, "u2"), i, bytes(i % 5), {"i": i}) for i in range(101)]
    types = {"x": ("u2", (8, 16)), "label": "int", "text": "bytes", "meta": "json"}
    to_beton(path, samples, types, page_size=1 << 21, progress=False)
    return path


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("dask-tiled_")]


@pytest.mark.parametrize("shuffle", [False, "pages", "all"])
def test_epoch_has_every_sample_once(path, shuffle):
    labels, other = [], iter_batches(path, 10, shuffle=shuffle, seed=3)
    for batch in iter_batches(path, 10, shuffle=shuffle, seed=3, epoch=1):
        assert list(batch) == ["x", "label", "text", "meta"]
        assert batch["x"].shape == (len(batch["label"]), 8, 16)
        assert (batch["x"] == batch["label"][:, None, None]).all()
        assert batch["x"].flags.writeable
        assert batch["text"] == [bytes(i % 5) for i in batch["label"].tolist()]
        assert batch["meta"] == [f'{{"i": {i}}}' for i in batch["label"].tolist()]
        labels.append(batch["label"].tolist())
    assert [len(one) for one in labels] == [10] * 10 + [1]
    assert (labels == [batch["label"].tolist() for batch in other]) == (shuffle is False)
    found = np.concatenate(labels)
    assert (np.sort(found) == np.arange(101)).all()
    assert (found == np.arange(101)).all() == (shuffle is False)


@pytest.mark.thorough
@given(data=st.data())
def test_order_depends_only_on_seed_and_epoch(data):
    count, size = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 20))
    values = np.arange(count)
    arrays = {"a": da.from_array(values, data.draw(st.integers(1, 60))), "b": values * 2}
    given_ = {
        "shuffle": data.draw(st.sampled_from([False, "pages", "all"])),
        "seed": data.draw(st.integers(0, 9)),
        "epoch": data.draw(st.integers(0, 9)),
    }
    epoch = [batch["a"].tolist() for batch in iter_batches(arrays, size, **given_)]
    other = {
        "prefetch": data.draw(st.integers(0, 3)),
        "max_bytes": data.draw(st.sampled_from([0, 100, 1 << 20])),
        "start": data.draw(st.integers(0, min(5, count // size))),
        "drop_last": size <= count and data.draw(st.booleans()),
    }
    again = [batch["a"].tolist() for batch in iter_batches(arrays, size, **given_, **other)]
    whole = [one for one in epoch if len(one) == size or not other["drop_last"]]
    assert again == whole[other["start"] :]
    assert all(
        (batch["b"] == 2 * batch["a"]).all() for batch in iter_batches(arrays, size, **given_)
    )


def test_pages_are_read_in_large_pieces(path, monkeypatch):
    monkeypatch.setattr(order, "PAGE_BYTES", 10 * 8 * 16 * 2)
    monkeypatch.setattr(order, "PAGES", 2)
    fields = {"x": open_dataset(path, field="x")}
    for batch in iter_batches(fields, 20, shuffle="pages"):
        pages = np.unique(batch["x"][:, 0, 0] // 10)
        assert len(pages) <= 4  # a batch may span two groups of two pages


def test_memory_is_bounded():
    held, most, lock = [0], [0], threading.Lock()

    def load(block_id):  # noqa: ARG001 - dask passes it
        with lock:
            held[0] += 1
            most[0] = max(most[0], held[0])
        return np.zeros((10, 1000), "u1")

    arr = da.map_blocks(load, chunks=((10,) * 50, (1000,)), dtype="u1", meta=np.empty((0, 0), "u1"))
    for number, _ in enumerate(iter_batches({"x": arr}, 10, max_bytes=40_000)):
        with lock:
            held[0] -= 1
        if number == 20:
            break
    assert most[0] <= 5


def test_batches_are_copies():
    values = np.zeros((20, 3))
    for batch in iter_batches({"x": values}, 5):
        batch["x"] += 1
    assert not values.any()


def test_memory_is_bounded_for_object_arrays():
    sizes = []

    def load(values):
        sizes.append(len(values))
        return np.array([bytes(1000)] * len(values), object)

    arr = da.arange(10_000, chunks=100).map_blocks(load, dtype=object, meta=np.empty(0, object))
    next(iter_batches({"x": arr}, 10, prefetch=0))
    assert sum(sizes) < 1000


@pytest.mark.parametrize(
    ("fields", "options", "problem"),
    [
        ({}, {}, "no samples"),
        (7, {}, "not an array of samples"),
        ({"a": np.zeros(3)}, {"batch_size": 4, "drop_last": True}, "batch_size exceeds"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, {}, "different lengths"),
        ({"a": np.zeros(3)}, {"shuffle": "page"}, "invalid shuffle"),
        ({"a": np.zeros(3)}, {"shuffle": True}, "invalid shuffle"),
        ({"a": np.zeros(3)}, {"shuffle": 0}, "invalid shuffle"),
        ({"a": np.zeros(3)}, {"shuffle": np.arange(3)}, "invalid shuffle"),
        ({"a": np.zeros(3)}, {"seed": -1}, "seed"),
        ({"a": np.zeros(3)}, {"epoch": -1}, "epoch"),
        ({"a": np.zeros(3)}, {"start": -1}, "start"),
        ({"a": np.zeros(3)}, {"start": 3}, "start is behind"),
        ({"a": np.zeros(3)}, {"part": (3, 4), "tail": "drop"}, "fewer samples than parts"),
        ({"a": np.zeros(3)}, {"bogus": 1}, "unknown option.*bogus"),
        ({"a": np.zeros(3)}, {"fields": 3}, "invalid fields"),
        ([], {}, "no samples"),
        ({"a": np.zeros(3)}, {"batch_size": 0}, "batch_size"),
    ],
)
def test_wrong_arguments(fields, options, problem):
    with pytest.raises(DatasetError, match=problem):
        iter_batches(fields, **{"batch_size": 2, **options})


def test_errors_are_raised_in_order():
    def load(block_id):
        if block_id == (3,):
            raise ValueError("chunk 3")
        return np.full(10, block_id[0])

    arr = da.map_blocks(load, chunks=((10,) * 6,), dtype="i8", meta=np.empty(0, "i8"))
    found = []
    with pytest.raises(ValueError, match="chunk 3"):
        found.extend(batch["x"][0] for batch in iter_batches({"x": arr}, 10, max_bytes=0))
    assert found == [0, 1, 2]
