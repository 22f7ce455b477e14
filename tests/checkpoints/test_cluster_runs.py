"""Runs with a checkpoint on a cluster survive lost workers, and keep annotations."""

import os
import signal
import time

import dask
import numpy as np
import pytest
from clusters import started
from distributed import Client

from dask_tiled import open_dataset, run
from dask_tiled.plans import plan
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.slow

FRAMES = counting_frames((24, 4, 16, 16), "uint16")
NAV, SIG = (0, 1), (2, 3)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Yield the client of two workers, one of which has a resource and is not killed."""
    folder = tmp_path_factory.mktemp("cluster")
    address = str(folder / "scheduler.json")
    worker = ["worker", "--scheduler-file", address, "--nthreads", "1", "--no-dashboard"]
    worker += ["--memory-limit", "600MB", "--host", "127.0.0.1", "--no-nanny"]
    scheduler = ["scheduler", "--scheduler-file", address, "--no-dashboard"]
    with (
        started(folder / "s", *scheduler, "--host", "127.0.0.1", "--port", "0"),
        started(folder / "a", *worker),
        started(folder / "b", *worker, "--resources", "SPECIAL=1"),
        Client(scheduler_file=address, timeout=300) as client,
    ):
        client.wait_for_workers(2, 300)
        yield client


@pytest.fixture
def scan(tmp_path, monkeypatch):
    """Open a scan of 24 chunks."""
    monkeypatch.setattr(plan, "LEAST_TASK_BYTES", 1)
    monkeypatch.setattr(plan, "MOST_REDUCED_CHUNKS", 1000)
    np.save(tmp_path / "scan.npy", FRAMES)
    return open_dataset(tmp_path / "scan.npy", chunks=(1, 4, 16, 16))


def test_killed_worker(client, scan, tmp_path):
    """A worker is killed while it runs tasks; the other one runs them again."""
    workers = client.scheduler_info()["workers"]
    (address,) = [name for name, told in workers.items() if not told["resources"]]
    pid, killed = client.run(os.getpid, workers=[address])[address], []

    def slowly(block):
        time.sleep(0.02)
        return block.max((2, 3))

    def kill(progress):
        if not killed and progress.bytes_done > progress.bytes_total / 4:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    x = [scan.map_blocks(slowly, drop_axis=SIG, dtype="u2"), scan.std(NAV)]
    found = run(x, tmp_path / "kept", every=0, on_progress=kill)
    assert killed
    np.testing.assert_array_equal(found[0], FRAMES.max(SIG))
    expected = scan.std(NAV).compute(scheduler="synchronous")
    assert found[1].tobytes() == expected.tobytes()


def test_large_results_are_stored_by_workers(client, scan, tmp_path, monkeypatch):
    """Larger results do not pass the client, and are resumed from the files of workers."""

    def stop(progress):
        if progress.bytes_done >= progress.bytes_total / 2:
            raise KeyboardInterrupt

    def set_small():
        import dask_tiled.checkpoints.folder as module

        module.SMALL_BYTES = 0

    x = scan[:, :, :, :8] + np.uint16(1)
    monkeypatch.setattr("dask_tiled.checkpoints.folder.SMALL_BYTES", 0)
    client.run(set_small)
    with pytest.raises(KeyboardInterrupt):
        run(x, tmp_path / "kept", every=0, on_progress=stop)
    first = list[int]()
    found = run(
        x, tmp_path / "kept", every=0, on_progress=lambda told: first.append(told.bytes_done)
    )
    assert min(first) > x.nbytes / 2
    np.testing.assert_array_equal(found, FRAMES[:, :, :, :8] + 1)


def test_annotations(client, scan, tmp_path):
    """Resources asked for around a run restrict its tasks."""
    workers = client.scheduler_info()["workers"]
    (address,) = [name for name, told in workers.items() if told["resources"]]
    pid = client.run(os.getpid, workers=[address])[address]

    def worker_of(block):
        return np.full(block.shape[:2], os.getpid())

    with dask.annotate(resources={"SPECIAL": 1}):
        x = scan.map_blocks(worker_of, drop_axis=SIG, dtype="i8")
        found = run(x, tmp_path / "kept")
    assert {*found.ravel().tolist()} == {pid}
