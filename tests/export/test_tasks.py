"""Tasks of exports: few for large files, small on the wire, and without memory of their own."""

import gc
import subprocess
import sys
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from conftest import ANY_PORT
from dask.base import collections_to_expr
from distributed import Client, LocalCluster
from distributed.protocol.pickle import dumps

import dask_tiled
from dask_tiled import open_dataset, to_zarr, verify_zarr
from dask_tiled.blocks import alignment, completing, running
from dask_tiled.blocks.alignment import merged_blocks
from dask_tiled.reading.lending import lent_workspace
from dask_tiled.reading.reader import Workspace
from dask_tiled.storing.places import Place
from dask_tiled.testing import counting_frames, write_mib_series, write_raw

MIB = 1 << 20
FRAMES = counting_frames((24, 8, 16), "uint16")


def edges(axis):
    return {0, *np.cumsum(axis).tolist()}


@pytest.mark.parametrize(
    ("blocks", "least", "most"),
    [(60, 60, 60), (6_000, 2048, 6_000), (60_000, 6_000, 8_000), (600_000, 60_000, 80_000)],
    ids=["1 GB", "100 GB", "1 TB", "10 TB"],
)
@pytest.mark.parametrize("columns", [1, 4, 30])
def test_tasks_take_several_blocks(blocks, least, most, columns):
    """Blocks of 16 MiB are merged to at most 128 MiB, and edges of tasks are edges of blocks."""
    chunks = ((128,) * (blocks // columns), (128,) * (columns - 1) + (100,), (512,))
    merged = merged_blocks(chunks, 2)
    counts = [len(axis) for axis in merged]
    assert least <= np.prod(counts) <= most
    assert all(edges(some) <= edges(axis) for some, axis in zip(merged, chunks, strict=True))
    assert 2 * np.prod([max(axis) for axis in merged]) <= 128 * MIB


def test_more_bytes_than_ten_terabytes():
    """There are never more than 80,000 tasks."""
    assert len(merged_blocks(((128,) * 6_000_000,), 2)[0]) <= 80_000
    assert merged_blocks(((0,), (5,)), 2) == ((0,), (5,))


@pytest.mark.thorough
def test_tasks_are_small(tmp_path, monkeypatch):
    """A task of an export of 1 TB takes less than 2 kB; what all tasks share is sent once."""
    path = tmp_path / "large.raw"
    with path.open("wb") as file:
        file.truncate(10**12 // (512 << 17) * (512 << 17))
    arr = open_dataset(path, "raw", dtype="u2", sig_shape=(256, 256), nav_shape=(-1, 512))
    seen = {}

    def look(of, keys, beside=(), **_):
        assert not beside
        tasks = completing._Tasks(of, keys)
        seen.update(collections_to_expr([tasks], True).optimize().__dask_graph__())
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "complete", look)
    with pytest.raises(KeyboardInterrupt):
        to_zarr(arr, tmp_path / "out.zarr")
    tasks = [task for key, task in seen.items() if isinstance(key, tuple)]
    assert 7_400 < len(tasks) < 7_600
    assert max(len(dumps(task)) for task in tasks[::100]) < 2_000
    assert len(seen) == len(tasks) + 1


@pytest.fixture
def scan(tmp_path, monkeypatch):
    """Open a scan of 12 blocks, which 3 tasks take."""
    monkeypatch.setattr(alignment, "FEW_TASKS", 3)
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    return open_dataset(path, "raw", dtype="u2", sig_shape=(8, 16), chunks=(2, 8, 16))


@pytest.fixture
def ran(monkeypatch):
    """List the number of tasks of each run."""
    counts, complete = [], running.complete

    def counted(of, keys, *args, **options):
        counts.append(len(keys))
        return complete(of, keys, *args, **options)

    monkeypatch.setattr(running, "complete", counted)
    return counts


@pytest.mark.usefixtures("synchronous")
def test_tasks_skip_blocks_that_are_stored(scan, tmp_path, ran, written):
    """A stopped export goes on with tasks for the blocks that are missing."""
    out, note, notes = tmp_path / "out.zarr", Place.note, []

    def failing(self, entries):
        if len(notes) == 6:
            raise KeyboardInterrupt
        notes.append(entries)
        note(self, entries)

    export = partial(to_zarr, scan, out, chunks=(2, 8, 16), layout="array")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "note", failing)
        with pytest.raises(KeyboardInterrupt):
            export()
    assert ran == [3]
    written.clear()
    stored = export()
    assert ran == [3, 1, 2]
    noted = {key for entries in notes for key in entries}
    assert {*written} == {f"c/{k}/0/0" for k in range(12)} - noted
    assert len(written) == 6
    np.testing.assert_array_equal(stored[:], FRAMES)
    verify_zarr(out, scan)
    assert ran == [3, 1, 2, 3]


def test_workspaces_are_shared():
    with lent_workspace() as first:
        memory = first.scratch((4,), np.dtype("u1"))
        with lent_workspace() as second:
            assert second is not first
    with lent_workspace() as again:
        assert again is first
        assert np.shares_memory(again.scratch((4,), np.dtype("u1")), memory)
    with pytest.raises(ZeroDivisionError), lent_workspace() as damaged:
        raise ZeroDivisionError
    with lent_workspace() as other:
        assert other is not damaged


def workspaces(block):
    """Return the number of workspaces of this process."""
    gc.collect()
    found = sum(type(some) is Workspace for some in gc.get_objects())
    return np.full(block.shape, found)


@pytest.mark.slow
def test_tasks_keep_no_memory(tmp_path):
    """Workers hold a workspace for each thread, not for each task whose result is wanted."""
    counts = da.zeros(9, int, chunks=1).map_blocks(workspaces, dtype=int, meta=np.empty(0, int))
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": True, **ANY_PORT}
    with LocalCluster(**options) as cluster, Client(cluster):
        results = {"sum": counts.sum()}
        stored = to_zarr(counts, tmp_path / "out.zarr", chunks=1, with_results=results)
        assert 0 < stored[:].max() <= 2


FEW_DESCRIPTORS = """
import os, resource, sys
import numpy as np
import dask.array, tqdm.auto, zarr
import dask_tiled

dask_tiled.formats()
arr = dask_tiled.open_dataset(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    for fd in held[-int(sys.argv[3]):]:
        os.close(fd)
dask_tiled.to_zarr(arr, sys.argv[2], pyramid=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("free", [14, 16])
def test_few_free_descriptors(tmp_path, free):
    """Encoders are imported when an export is planned, not while tasks hold descriptors."""
    path, *_ = write_mib_series(tmp_path / "scan", np.ones((40, 8, 8, 8), "u2"), frames_per_file=8)
    command = [sys.executable, "-c", FEW_DESCRIPTORS, path, tmp_path / "out.zarr", str(free)]
    root = Path(dask_tiled.__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
