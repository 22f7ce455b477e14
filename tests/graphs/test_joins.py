"""Computation on concatenated and stacked arrays runs on the tiles of each part."""

import dask
import dask.array as da
import numpy as np
import pytest
from checks import on_tiles

import dask_tiled
from dask_tiled.graphs import joins
from dask_tiled.plans.recipes import Recipes
from dask_tiled.testing import write_mib

pytestmark = pytest.mark.usefixtures("synchronous")

COUNTS = np.random.default_rng(0).poisson(3, size=(2, 4, 6, 16, 16)).astype("u2")
DARK = np.arange(256).reshape(16, 16) % 5


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scans")
    paths = [write_mib(folder / f"{k}.mib", counts) for k, counts in enumerate(COUNTS)]
    return [dask_tiled.open_dataset(x, nav_shape=(4, 6), chunks=(2, 3, 16, 16)) for x in paths]


JOINTS = {
    "two": lambda a, b, xp, k: xp.concatenate([a, b], axis=k),
    "itself": lambda a, _, xp, k: xp.concatenate([a, a, a], axis=k),
    "parts": lambda a, b, xp, k: xp.concatenate([a[:2], b[2:]][: 2 - (k > 0)], axis=k),
    "types": lambda a, b, xp, k: xp.concatenate([a, b.astype("f4"), a * 2], axis=k),
    "inner": lambda a, b, xp, k: xp.concatenate([xp.concatenate([a, b], axis=k), a], axis=k),
    "stack": lambda a, b, xp, k: xp.stack([a, b], axis=k),
    "same": lambda a, _, xp, k: xp.stack([a, a], axis=k),
}
USES = {
    "frames": lambda x: x.sum(axis=(-2, -1)),
    "scan": lambda x: x.mean(axis=(0, 1)),
    "all": lambda x: x.std(),
    "program": lambda x: (x * 2 + 1).max(axis=0),
    "both": lambda x: (x * x.astype("f8")).sum(axis=-1),
    "cut": lambda x: x[:, 1:5, 1:].min(axis=-1),
    "one": lambda x: x[1].sum(axis=0),
    "moved": lambda x: x.T.sum(axis=0),
}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("joint", JOINTS)
def test_joined_arrays(scans, joint, axis):
    joined = JOINTS[joint](*scans, da, axis)
    expected = JOINTS[joint](*COUNTS, np, axis)
    for use in [*USES.values()][([*JOINTS].index(joint) + axis) % 2 :: 2]:
        found, wanted = use(joined), use(expected)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found.compute(), wanted, rtol=1e-6)
        assert on_tiles(found)
    np.testing.assert_array_equal(joined.compute(), expected)


def test_operands_of_joined_arrays(scans):
    joined, expected = da.concatenate(scans), np.concatenate(COUNTS)
    for found, wanted in [
        ((joined - DARK).sum(axis=(2, 3)), (expected - DARK).sum(axis=(2, 3))),
        (da.einsum("abyx,yx->ab", joined, DARK), np.einsum("abyx,yx->ab", expected, DARK)),
        ((joined - joined.mean(axis=0)).max(axis=1), (expected - expected.mean(0)).max(1)),
    ]:
        assert on_tiles(found)
        np.testing.assert_allclose(found.compute(), wanted)


def test_repeated_parts_are_read_once(scans, monkeypatch):
    begun, make = [], Recipes.make
    monkeypatch.setattr(Recipes, "make", lambda *args: begun.append(args) or make(*args))
    total = da.concatenate([scans[0], scans[0]], axis=1).sum(axis=(2, 3))
    np.testing.assert_array_equal(total.compute(), np.tile(COUNTS[0].sum(axis=(2, 3)), 2))
    assert len(begun) == scans[0].npartitions


def test_expressions_that_cannot_be_split(scans, monkeypatch):
    joined, expected = da.concatenate(scans), np.concatenate(COUNTS)
    line = np.arange(8.0).reshape(8, 1, 1, 1)
    numbered = da.map_blocks(lambda x, block_id: x + block_id[0], joined, dtype="i8")
    for found, wanted in [
        ((joined * da.from_array(line, chunks=2)).sum(), (expected * line).sum()),
        (numbered.max(axis=(1, 2, 3)), (expected.max(axis=(1, 2, 3)) + np.arange(8) // 2)),
        (da.tensordot(joined, line, axes=([0], [0])).sum(), (expected * line).sum()),
        (joined[::-1].sum(axis=(2, 3)), expected[::-1].sum(axis=(2, 3))),
        (joined.rechunk((3, 6, 16, 16)).sum(axis=0), expected.sum(axis=0)),
        (joined[1, 2, 3, 4], expected[1, 2, 3, 4]),
    ]:
        np.testing.assert_allclose(found.compute(), wanted)
    monkeypatch.setattr(joins, "MOST_PARTS", 1)
    assert not on_tiles(joined.sum(axis=(2, 3)))
    kept = dask.persist(joined.sum(axis=(2, 3)))[0]
    np.testing.assert_array_equal(kept.compute(), expected.sum(axis=(2, 3)))


@pytest.mark.parametrize("boundary", ["reflect", "periodic", "nearest", "none"])
def test_chunks_that_overlap(scans, boundary):
    """dask joins borders to chunks with layers of their own kind."""
    arr, pixels = scans[0].rechunk((2, 6, 16, 16)), COUNTS[0]
    around = da.overlap.overlap(arr, {0: 1}, boundary={0: boundary})
    plain = da.overlap.overlap(da.from_array(pixels, arr.chunks), {0: 1}, boundary={0: boundary})
    np.testing.assert_array_equal(around, plain)
    trimmed = da.overlap.trim_overlap(around, {0: 1}, boundary={0: boundary})
    np.testing.assert_array_equal(trimmed.persist(), pixels)


def test_joined_arrays_with_their_own_reductions(scans):
    arr, _ = scans
    expected, found = (
        rolled + rolled.mean(axis=(2,), keepdims=True)
        for rolled in (np.roll(COUNTS[0] << 1, 1, axis=2), da.roll(arr << 1, 1, axis=2))
    )
    np.testing.assert_allclose(found, expected)
