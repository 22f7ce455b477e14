"""A place is filled with bytes under keys, gone on with, and shown at once; whatever these are."""

import os
import pickle

import pytest
import zarr

from dask_tiled import DatasetError
from dask_tiled.storing.beginning import begin
from dask_tiled.storing.nodes import unknown_key
from dask_tiled.storing.places import fingerprint

NODE = b'{"zarr_format": 3, "node_type": "group"}'
DOCUMENTS = {"zarr.json": NODE, "a/zarr.json": NODE}
CHUNKS = {f"a/c/{k}/0": bytes([k]) * 9 for k in range(3)}
ATTEMPT = "-".join(["0f" * 16] * 2)


@pytest.fixture(params=["folder", "memory", "below a path"])
def target(request, tmp_path):
    """Return where bytes go."""
    if request.param == "folder":
        return tmp_path / "out"
    store = zarr.storage.MemoryStore()
    return store if request.param == "memory" else zarr.storage.StorePath(store, "x/y")


def begun(target, attempt=ATTEMPT, *, overwrite=False, resume=True):
    return begin(target, [attempt], lambda _: False, overwrite=overwrite, resume=resume)


def fill(target, chunks=CHUNKS, wanted=CHUNKS, documents=DOCUMENTS, *, noting=True, **options):
    """Store chunks, and commit those that are wanted; tell which were whole before."""
    with begun(target, **options) as (place,):
        whole = place.whole()
        for key, data in chunks.items():
            place.put(key, data)
            place.note({key: fingerprint(data)} if noting else {})
        place.commit(documents, wanted)
    return whole


def shown(target):
    """Return all that a reader finds."""
    if isinstance(target, os.PathLike):
        paths = [path for path in target.rglob("*") if path.is_file()]
        return {str(path.relative_to(target)): path.read_bytes() for path in paths}
    store = target if isinstance(target, zarr.storage.MemoryStore) else target.store
    path = "" if store is target else f"{target.path}/"
    found = store._store_dict.items()  # the keys of a dictionary, in memory
    return {key.removeprefix(path): data.to_bytes() for key, data in found}


def stop(target, chunks, *, noting=True):
    """Stop when some chunks are stored."""
    with pytest.raises(KeyboardInterrupt):
        fill(target, chunks, documents=_Interrupting(DOCUMENTS), noting=noting)


class _Interrupting(dict):
    def __getitem__(self, key):
        raise KeyboardInterrupt


def test_what_is_committed_is_there_and_nothing_else(target):
    """Neither the journal nor what else was stored meanwhile."""
    fill(target, CHUNKS | {"a/c/7/0": b"of an end that was too early"})
    assert shown(target) == CHUNKS | DOCUMENTS


def test_what_was_stored_and_noted_is_whole(target):
    """When it was changed since, it is not."""
    stop(target, CHUNKS)
    stop(target, {"a/c/1/0": CHUNKS["a/c/2/0"]}, noting=False)
    assert fill(target) == {*CHUNKS} - {"a/c/1/0"}
    assert shown(target) == CHUNKS | DOCUMENTS


def test_a_missing_key_is_an_error(target):
    """Nothing shows then."""
    some = dict([*CHUNKS.items()][:2])
    with pytest.raises(DatasetError, match="missing") as caught:
        fill(target, some)
    assert caught.value.where == "a/c/2/0"
    assert "zarr.json" not in shown(target)


@pytest.mark.parametrize("why", ["source", "settings"])
def test_what_another_attempt_has_left(target, why):
    """It is thrown away, with a warning; without one if nobody wants to go on."""
    other = {"source": "1f" * 16 + ATTEMPT[32:], "settings": ATTEMPT[:33] + "1f" * 16}[why]
    stop(target, CHUNKS)
    with pytest.warns(UserWarning, match=f"another {why}|other {why}"):
        assert fill(target, attempt=other) == set()
    stop_again = {"overwrite": True, "resume": False}
    assert fill(target, **stop_again) == set()


def test_places_are_for_all_workers(target):
    """A copy that was pickled writes to the same place."""
    with begun(target) as (place,):
        copy = pickle.loads(pickle.dumps(place))
        for key, data in CHUNKS.items():
            copy.put(key, data)
            copy.note({key: fingerprint(data)})
        place.commit(DOCUMENTS, CHUNKS)
    assert shown(target) == CHUNKS | DOCUMENTS


@pytest.mark.parametrize(
    ("keys", "odd"),
    [
        (["zarr.json", "c/0/1", "c"], None),
        (["zarr.json", "a/zarr.json", "a/c/0", "b/zarr.json", "b/c/0/1"], None),
        ([".zgroup", ".zattrs", "a/.zarray", "a/0.1", "a/2/3"], None),
        (
            ["zarr.json", "5/zarr.json", "5/c/0", "5/c/0.0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f.partial"],
            None,
        ),
        (["zarr.json", ".dask_tiled/export.json", "a/.dask_tiled/export.json"], None),
        (["zarr.json", "a/c/0"], "a/c/0"),
        (["zarr.json", "c/0/notes"], "c/0/notes"),
        (["zarr.json", "c/-1"], "c/-1"),
        (["zarr.json", "c/0, a link"], "c/0, a link"),
        (["zarr.json", ".dask_tiled/mine"], ".dask_tiled/mine"),
    ],
)
def test_keys_of_nodes(keys, odd):
    """Metadata, chunks beside the metadata of their array, and what exports note."""
    assert unknown_key(keys) == odd
