"""The plan of an export holds all decisions, and can be printed."""

import math

import dask.array as da
import numpy as np
import pytest
import zarr

from dask_tiled import open_dataset, to_zarr
from dask_tiled.export.zarr import levels, relay
from dask_tiled.export.zarr.layout import Settings
from dask_tiled.export.zarr.plan import plan_of
from dask_tiled.opened.spec import Given
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.testing import counting_frames, write_mib

FRAMES = counting_frames((6, 10, 12, 20), "uint16")


@pytest.fixture
def arr(tmp_path):
    """Open a small scan."""
    return open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))


def test_a_plan_prints(arr, monkeypatch):
    """The text has the stored arrays, the blocks that are read, and the memory."""
    monkeypatch.setattr(relay, "MOST_TIMES", 0)
    plan = plan_of(Given.of(arr), Settings(chunks=(6, 10, 4, 8), pyramid=1), relay=True)
    text = str(plan)
    for line in (
        "temporary store: 1 documents",
        "pixels: uint16 (6, 10, 12, 20), chunks of (6, 10, 12, 20)",
        "the array -> pixels: 1 blocks of 0.0 MiB",
        "data: uint16 (6, 10, 12, 20), chunks of (6, 10, 4, 8)",
        "level_1/data: uint16 (6, 10, 6, 10), chunks of (6, 10, 4, 8)",
        "pixels -> data, level_1/data",
        "memory: ",
    ):
        assert line in text
    assert plan.memory >= math.prod((6, 10, 12, 20)) * 2


def test_shards_of_levels_cover_many_frames(tmp_path):
    """Otherwise levels would be many small files, slower to write than their pixels."""
    path = tmp_path / "scan.raw"
    with path.open("wb") as file:
        file.truncate(256 << 20)
    arr = open_dataset(path, "raw", dtype="u2", nav_shape=(32, 64), sig_shape=(256, 256))
    (one,) = plan_of(Given.of(arr), Settings(pyramid=3)).steps[0].passes
    assert [level.encoder.stored[0] for level in one.stack.levels] == [2, 8, 8, 8]
    assert one.block_bytes == levels.BLOCK_BYTES


@pytest.mark.parametrize("options", [{}, {"pyramid": 1}, {"chunks": (3, 5, 6, 10)}])
def test_a_plan_lists_all_that_is_stored(arr, options):
    """An export leaves the planned keys and documents, and every pixel is in one block."""
    step = plan_of(Given.of(arr), Settings(**options)).steps[-1]
    contents = {}
    to_zarr(arr, contents, progress=False, **options)
    assert {*contents} == {*step.keys(), *step.documents}
    for one in step.passes:
        assert tuple(map(sum, one.chunks)) == one.stack.base.encoder.shape


def test_descriptions_are_read_once(arr, monkeypatch):
    read = []
    true = TiledArray.description

    def description(self):
        read.append(self)
        return true.fget(self)

    monkeypatch.setattr(TiledArray, "description", property(description))
    given = Given.of(arr)
    assert len(read) <= 2
    read.clear()
    plan_of(given, Settings(pyramid=1, chunks=(6, 10, 4, 8)), relay=True)
    assert not read


def test_temporary_stores_hold_the_pixels(tmp_path, monkeypatch):
    """Blocks may cut the chunks and shards of a temporary store."""
    monkeypatch.setattr(relay, "MOST_TIMES", 0)
    monkeypatch.setattr("dask_tiled.export.zarr.grids.CHUNK_BYTES", 500)
    arr = open_dataset(write_mib(tmp_path / "scan.mib", FRAMES), chunks=(1, 7, -1, -1))
    stored = to_zarr(arr, tmp_path / "out.zarr", chunks=(4, 3, 5, 7), progress=False)
    np.testing.assert_array_equal(stored[...], FRAMES)
    assert isinstance(stored, zarr.Array)
    assert da.from_zarr(stored).shape == FRAMES.shape
