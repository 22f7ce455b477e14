"""Places: keys are stored, resumed, and committed at once, in folders and other stores."""

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
    """Return a folder, a store, or a path in a store."""
    if request.param == "folder":
        return tmp_path / "out"
    store = zarr.storage.MemoryStore()
    return store if request.param == "memory" else zarr.storage.StorePath(store, "x/y")


def begun(target, attempt=ATTEMPT, *, overwrite=False, resume=True):
    return begin(target, [attempt], lambda _: False, overwrite=overwrite, resume=resume)


def fill(target, chunks=CHUNKS, wanted=CHUNKS, documents=DOCUMENTS, *, noting=True, **options):
    """Store chunks and commit the wanted keys; return the keys that were complete before."""
    with begun(target, **options) as (place,):
        whole = place.whole()
        for key, data in chunks.items():
            place.put(key, data)
            place.note({key: fingerprint(data)} if noting else {})
        place.commit(documents, wanted)
    return whole


def shown(target):
    """Return all keys and values that a reader sees."""
    if isinstance(target, os.PathLike):
        paths = [path for path in target.rglob("*") if path.is_file()]
        return {path.relative_to(target).as_posix(): path.read_bytes() for path in paths}
    store = target if isinstance(target, zarr.storage.MemoryStore) else target.store
    path = "" if store is target else f"{target.path}/"
    found = store._store_dict.items()
    return {key.removeprefix(path): data.to_bytes() for key, data in found}


def stop(target, chunks, *, noting=True):
    """Store chunks, and stop before the commit."""
    with pytest.raises(KeyboardInterrupt):
        fill(target, chunks, documents=_Interrupting(DOCUMENTS), noting=noting)


class _Interrupting(dict):
    def __getitem__(self, key):
        raise KeyboardInterrupt


def test_committed_keys_are_there_and_no_others(target):
    """The journal and unwanted keys are removed."""
    fill(target, CHUNKS | {"a/c/7/0": b"of an end that was too early"})
    assert shown(target) == CHUNKS | DOCUMENTS


def test_whole_lists_stored_and_noted_keys(target):
    """Keys overwritten since are not whole."""
    stop(target, CHUNKS)
    stop(target, {"a/c/1/0": CHUNKS["a/c/2/0"]}, noting=False)
    assert fill(target) == {*CHUNKS} - {"a/c/1/0"}
    assert shown(target) == CHUNKS | DOCUMENTS


def test_missing_keys_raise(target):
    """Nothing is committed then."""
    some = dict([*CHUNKS.items()][:2])
    with pytest.raises(DatasetError, match="missing") as caught:
        fill(target, some)
    assert caught.value.where == "a/c/2/0"
    assert "zarr.json" not in shown(target)


@pytest.mark.parametrize("why", ["source", "settings"])
def test_remains_of_other_attempts_are_removed(target, why):
    """Removal warns, unless resume is off."""
    other = {"source": "1f" * 16 + ATTEMPT[32:], "settings": ATTEMPT[:33] + "1f" * 16}[why]
    stop(target, CHUNKS)
    with pytest.warns(UserWarning, match=f"another {why}|other {why}"):
        assert fill(target, attempt=other) == set()
    stop_again = {"overwrite": True, "resume": False}
    assert fill(target, **stop_again) == set()


def test_pickled_places_write_to_the_same_target(target):
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
    """Metadata, chunks of arrays and the records of exports are known keys; others are not."""
    assert unknown_key(keys) == odd
