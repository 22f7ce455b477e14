"""Tasks are run to their end: their results released, and tried again on other workers."""

import errno
import os
import pickle
import threading
from collections import Counter

import dask
import dask.array as da
import numpy as np
import pytest
from checks import wait_for
from conftest import ANY_PORT
from dask.callbacks import Callback
from distributed import Client, KilledWorker, LocalCluster, Status, get_worker

from dask_tiled import DatasetError, StaleFileError, TilingError
from dask_tiled.blocks import completing
from dask_tiled.blocks.completing import complete
from dask_tiled.blocks.failures import Failures, TaskFailure, is_of_machine
from dask_tiled.storing.disk import writing_to

COUNT = 12
TRIES = Counter()
"""Numbers of failed tries, by worker."""


def full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out.zarr")


def unwritable():
    with writing_to("out.zarr"):
        full()


def absent():
    raise StaleFileError("the file was removed", path="scan.mib")


def exhausted():
    raise MemoryError("too little memory")


def wrong():
    raise ValueError("a wrong value")


def refused():
    raise TilingError("a wrong shape")


def work(block, names, fail):
    """Fail on some workers."""
    if (name := get_worker().name) in names:
        TRIES[name] += 1
        fail()
    return block


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 3, "threads_per_worker": 1, "processes": False, **ANY_PORT}
    with LocalCluster(**options, silence_logs="CRITICAL") as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    TRIES.clear()
    with Client(cluster) as client:
        yield client
        wait_for(lambda: not client.futures)


def tasks(names, fail):
    """Return an array with a task for each chunk, which fails on some workers, and its keys."""
    blocks = da.arange(COUNT, chunks=1).map_blocks(work, names, fail, meta=np.empty(0, int))
    return blocks, [(blocks.name, k) for k in range(COUNT)]


@pytest.mark.thorough
@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize("fail", [full, unwritable, absent, exhausted])
@pytest.mark.parametrize("bad", [{0}, {0, 1}], ids=["one", "two"])
def test_failed_tasks_are_tried_on_other_workers(client, bad, fail, with_sum):
    blocks, keys = tasks(bad, fail)
    done, taken = [], {}
    beside = [blocks.sum()] if with_sum else []
    found = complete(blocks, keys, beside, done=done.append, take=taken.__setitem__)
    assert sorted(done) == keys
    assert {key: int(*value) for key, value in taken.items()} == {key: key[1] for key in keys}
    assert found == ([COUNT * (COUNT - 1) // 2] if with_sum else [])
    wait_for(lambda: not client.cluster.scheduler.tasks)


@pytest.mark.parametrize(
    ("fail", "kind"),
    [(full, OSError), (unwritable, DatasetError), (absent, StaleFileError)],
)
def test_errors_of_all_workers_are_raised(client, fail, kind):
    """The error is that of the task, with a note for each of the three workers."""
    blocks, keys = tasks({0, 1, 2}, fail)
    with pytest.raises(kind) as caught:
        complete(blocks, keys, done=keys.remove)
    assert type(caught.value) is kind
    notes = caught.value.__notes__
    workers = client.scheduler_info()["workers"]
    assert {address for address in workers for note in notes if address in note} == {*workers}
    assert all(f"process {os.getpid()}): " in note and str(caught.value) in note for note in notes)
    assert len(notes) == len(workers) == 3


def test_tasks_are_tried_on_three_of_four_workers():
    options = {"n_workers": 4, "threads_per_worker": 1, "processes": False, **ANY_PORT}
    blocks, keys = tasks({0, 1, 2, 3}, full)
    with (
        LocalCluster(**options, silence_logs="CRITICAL") as cluster,
        Client(cluster),
        pytest.raises(OSError, match="No space") as caught,
    ):
        complete(blocks, keys[:1], done=keys.remove)
    assert len(caught.value.__notes__) == 3


def test_stolen_tasks():
    """Failures of one worker that steals a task again and again count once, but end some time."""

    class Stealing:
        def run_on_scheduler(self, _, keys, final, *__):
            return {key: TaskFailure(key, ("bad",), "bad", key not in final) for key in keys}

    failures, error = Failures(Stealing(), []), OSError("no such disk")
    for _ in range(11):
        failures.move({"key": error})
    with pytest.raises(OSError, match="no such disk") as caught:
        failures.move({"key": error})
    assert caught.value.__notes__ == ["failed on bad: no such disk"]


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("fail", [wrong, refused])
def test_errors_of_the_work_are_raised_at_once(fail):
    blocks, keys = tasks({0, 1, 2}, fail)
    with pytest.raises(ValueError, match="a wrong") as caught:
        complete(blocks, keys, done=keys.remove)
    (note,) = caught.value.__notes__
    assert "failed on inproc://" in note


def test_annotations_are_kept(client):
    """A task that may run on one worker is not tried on another."""
    blocks, keys = tasks({0}, full)
    (address,) = (
        key for key, told in client.scheduler_info()["workers"].items() if told["id"] == 0
    )
    with dask.annotate(workers=[address]), pytest.raises(OSError, match="No space") as caught:
        complete(blocks, keys, done=keys.remove)
    assert len(caught.value.__notes__) == 1
    assert TRIES.keys() == {0}


def test_schedulers_that_run_no_functions(client, monkeypatch):
    """The error is raised, with a warning that says why no other worker tries."""

    def refuse(*_):
        raise ValueError("not allowed")

    monkeypatch.setattr(client, "run_on_scheduler", refuse)
    blocks, keys = tasks({0, 1, 2}, full)
    with (
        pytest.warns(UserWarning, match="not tried again: .*not allowed"),
        pytest.raises(OSError, match="No space"),
    ):
        complete(blocks, keys, done=keys.remove)


@pytest.mark.usefixtures("client")
def test_paused_workers_are_named(cluster, monkeypatch):
    monkeypatch.setattr(completing, "LOOK_SECONDS", 0)
    worker = cluster.workers[1]
    worker.status = Status.paused
    blocks, keys = tasks(set(), full)
    done = []

    def resume(key):
        done.append(key)
        worker.status = Status.running

    with pytest.warns(UserWarning, match=f"{worker.address}: the worker is paused.*, and") as seen:
        complete(blocks, keys, done=resume)
    assert len(seen) == 1
    assert len(done) == COUNT


@pytest.mark.thorough
def test_clusters_without_workers_are_told(monkeypatch):
    """Also if the workers are lost while a result is fetched, which the next one computes again."""
    monkeypatch.setattr(completing, "LOOK_SECONDS", 0)
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, **ANY_PORT}
    with (
        LocalCluster(**options, silence_logs="CRITICAL") as cluster,
        Client(cluster) as client,
    ):
        blocks, keys = tasks(set(), full)
        gather, lost, told, taken = client._gather, [], [], {}

        async def lose(futures, **options):
            if not lost:
                lost.extend(cluster.workers.values())
                for worker in lost:
                    await worker.close()
            return await gather(futures, **options)

        def add_one(text):
            told.append(text)
            cluster.scale(3)

        monkeypatch.setattr(client, "_gather", lose)
        monkeypatch.setattr(completing, "warn", add_one)
        complete(blocks, keys, done=lambda _: None, take=taken.__setitem__)
    assert len(lost) == 2
    assert told == ["the cluster has no workers: tasks wait until one joins"]
    assert {key: int(*value) for key, value in taken.items()} == {key: key[1] for key in keys}


@pytest.mark.thorough
@pytest.mark.parametrize("scheduler", ["threads", "synchronous", "processes"])
def test_without_a_cluster(scheduler, processes):
    blocks = da.arange(COUNT, chunks=1) + 1
    keys, taken, done = [(blocks.name, k) for k in range(0, COUNT, 2)], {}, []
    options = processes if scheduler == "processes" else {"scheduler": scheduler}
    with dask.config.set(options):
        (total,) = complete(blocks, keys, [blocks.sum()], done=done.append, take=taken.__setitem__)
    assert total == COUNT * (COUNT + 1) // 2
    assert sorted(done) == keys
    assert {key: int(*value) for key, value in taken.items()} == {key: key[1] + 1 for key in keys}


def test_causes_decide_in_other_processes():
    """Errors keep their cause and their notes when they are pickled."""
    for fail, expected in ((full, True), (unwritable, True), (refused, False)):
        with pytest.raises(Exception, match=r"space|shape") as caught:
            fail()
        caught.value.add_note("a note")
        again = pickle.loads(pickle.dumps(caught.value))
        assert str(again) == str(caught.value)
        assert again.__notes__ == ["a note"]
        assert is_of_machine(again) is expected
    assert is_of_machine(KilledWorker("key", None, 3))


def test_overlapping_threads_lose_no_task():
    """dask takes registered callbacks away while another thread computes."""
    x = da.ones(200, chunks=1) + 1
    keys = [(x.name, k) for k in range(200)]
    told = [[] for _ in range(4)]

    def run(mine):
        complete(x, keys, done=mine.append)

    threads = [threading.Thread(target=run, args=(mine,)) for mine in told]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert [sorted(mine) for mine in told] == [keys] * 4


def test_callbacks_of_the_user_are_called():
    x, seen = da.ones(4, chunks=1) + 1, []
    with Callback(posttask=lambda key, *_: seen.append(key)):
        complete(x, [(x.name, 2)], done=lambda _: None)
    assert (x.name, 2) in seen
