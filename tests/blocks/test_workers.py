"""Workers are asked before work begins: files, folders, libraries and versions."""

import asyncio
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from checks import wait_for
from clusters import cluster, joining
from distributed import Client, LocalCluster, wait

import dask_tiled
from dask_tiled import DatasetError, StaleFileError, open_dataset, to_zarr, verify_zarr
from dask_tiled.blocks import workers
from dask_tiled.blocks.workers import able_workers, ask, question_of
from dask_tiled.reading.worker_report import versions
from dask_tiled.testing import counting_frames, write_npy, write_raw

pytestmark = pytest.mark.slow

FRAMES = counting_frames((12, 16, 32), "uint16")
CHUNKS = (1, 16, 32)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder that workers started by `joining` may see differently."""
    folder = tmp_path_factory.mktemp("shared")
    frames = {"other/changed": FRAMES[:5]}
    for name in (
        *("data", "unseen", "read_only"),
        *("elsewhere/changed", "elsewhere/copy", "other/changed", "other/copy"),
    ):
        (folder / name).mkdir(parents=True)
        path = write_npy(folder / name / "scan.npy", frames.get(name, FRAMES))
        os.utime(path, ns=(10**18, 10**18))
    (folder / "out").mkdir()
    return folder


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Yield the client of a cluster with one worker, whose address is ``client.first``."""
    with (
        cluster(tmp_path_factory.mktemp("cluster")) as client,
        joining(client, "first") as client.first,
    ):
        yield client


def keepers(client, arr):
    """Return the workers that compute an array."""
    kept = arr.persist()
    wait(kept)
    return {address for some in client.who_has(kept).values() for address in some}


UNABLE = "unseen={0}/unseen,elsewhere={0}/elsewhere:{0}/other,read_only={0}/read_only"
LIBRARY = "imagecodecs"
"""Needed for one of the files."""


def test_unable_workers_get_no_tasks(client, root):
    """One warning names the worker, its host, its process and the file; all chunks are right."""
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(root / "scan.tif", FRAMES, compression="lzw")
    faults = f"{UNABLE.format(root)},absent={LIBRARY}"
    out = root / "out" / "scan.zarr"
    with joining(client, "unable", faults=faults) as address:
        pid = client.run(os.getpid)[address]
        named = rf"1 of 2 workers get no tasks.*{address} \(host .*, process {pid}\).*"
        for source, target, problem in (
            ("unseen/scan.npy", out, "No such file or directory"),
            ("elsewhere/changed/scan.npy", out, "another file"),
            ("elsewhere/copy/scan.npy", out, "a copy of the file"),
            ("read_only/scan.npy", root / "read_only" / "scan.zarr", "not writable"),
            ("scan.tif", out, f"{LIBRARY}: not installed"),
        ):
            arr = open_dataset(root / source, chunks=CHUNKS)
            with pytest.warns(UserWarning, match=named + problem) as told:
                stored = to_zarr(arr, target, chunks=CHUNKS, shards=CHUNKS, overwrite=True)
            assert len(told) == 1
            np.testing.assert_array_equal(stored[:], FRAMES)
        arr = open_dataset(root / "unseen" / "scan.npy", chunks=CHUNKS)
        with pytest.warns(UserWarning, match=named):
            verify_zarr(out, arr)
        with pytest.warns(UserWarning, match=named):
            dask_tiled.to_beton(root / "out" / "a.beton", {"x": arr}, overwrite=True)
        with pytest.warns(UserWarning, match=named):
            sums = dask_tiled.run(arr.sum((1, 2)), checkpoint=root / "out" / "sums")
        np.testing.assert_array_equal(sums, FRAMES.sum((1, 2)))
        with pytest.warns(UserWarning, match=named), able_workers([arr.description]):
            assert keepers(client, arr + 1) == {client.first}


def test_first_workers(tmp_path, root):
    """An export waits for the first worker; where no worker is able, nothing is written."""
    arr, blind = open_dataset(root / "unseen" / "scan.npy"), f"unseen={root}/unseen"
    with ThreadPoolExecutor() as pool, cluster(tmp_path) as client:
        exported = pool.submit(to_zarr, arr, root / "out" / "first.zarr")
        with joining(client, "blind", faults=blind) as address:
            with pytest.raises(DatasetError, match="no worker can do this work") as caught:
                exported.result(60)
            pid = client.run(os.getpid)[address]
            assert caught.value.path == str(root / "unseen" / "scan.npy")
            assert re.search(rf"{address} \(host .*, process {pid}\)", caught.value.found)
            assert not [*(root / "out").glob("first*")]
        exported = pool.submit(to_zarr, arr, root / "out" / "first.zarr")
        with pytest.raises(TimeoutError):
            exported.result(0.5)
        with joining(client, "able"):
            np.testing.assert_array_equal(exported.result(60)[:], FRAMES)


def test_other_versions_are_refused(client, root, tmp_path):
    """Both versions are named, and nothing is written."""
    told = tmp_path / "dask_tiled-0.0.7.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: dask-tiled\nVersion: 0.0.7\n")
    arr, out = open_dataset(root / "data" / "scan.npy"), root / "out"
    for name, version, options in (
        ("old", "0.0.7", {"paths": [tmp_path]}),
        ("bare", "missing", {"faults": "absent=dask_tiled"}),
    ):
        with joining(client, name, **options) as address:
            with pytest.raises(DatasetError, match="another version of dask-tiled") as caught:
                to_zarr(arr, out / "version.zarr")
            assert caught.value.expected.startswith(f"{dask_tiled.__version__}, ")
            assert caught.value.found.startswith(f"{version} on {address}")
    assert not [*out.glob("version*")]


def test_workers_that_join_later(client, root):
    """Able workers that join get tasks, also with annotations of the user; others get none."""
    arr, blind = open_dataset(root / "unseen" / "scan.npy"), f"unseen={root}/unseen"

    def able():
        told = client.scheduler_info(n_workers=-1)["workers"]
        return {one for one in told if any(told[one]["resources"].values())}

    with ExitStack() as stack:
        stack.enter_context(joining(client, "blind at first", faults=blind))
        stack.enter_context(dask.annotate(retries=2, resources={"SCRATCH": 0}))
        with pytest.warns(UserWarning, match="1 of 2 workers"):
            stack.enter_context(able_workers([arr.description]))
        assert able() == {client.first}
        stack.enter_context(joining(client, "blind later", faults=blind))
        later = stack.enter_context(joining(client, "able later"))
        wait_for(lambda: able() == {client.first, later})
        annotations = dask.get_annotations()
        assert annotations["retries"] == 2
        assert len(annotations["resources"]) == 2
    assert not able()


def test_workers_that_leave_are_not_asked(client, root, monkeypatch):
    """An answer of theirs would be waited for: 30 s."""
    asked, run = [], Client.run
    arr, blind = open_dataset(root / "unseen" / "scan.npy"), f"unseen={root}/unseen"
    with joining(client, "blind", faults=blind), ExitStack() as stack:
        told = pytest.warns(UserWarning, match="1 of 3 workers")
        with joining(client, "leaves") as address, told:
            stack.enter_context(able_workers([arr.description]))
        monkeypatch.setattr(
            Client, "run", lambda *a, **kw: asked.extend(kw["workers"]) or run(*a, **kw)
        )
        stack.close()
    assert client.first in asked
    assert address not in asked


def test_silent_workers_are_left_out(client, root, monkeypatch):
    """A stopped process does not keep an export from beginning."""
    arr, silent, run = open_dataset(root / "data" / "scan.npy"), [], Client.run
    with joining(client, "stopped") as address:
        pid = client.run(os.getpid)[address]

        def asked(*args, **options):
            request = run(*args, **options)
            if options.get("workers") == [address]:
                silent.append(request)
            return request

        def answered(request, seconds):  # for that worker no longer than a second
            return asyncio.wait_for(request, 1 if request in silent else seconds)

        monkeypatch.setattr(Client, "run", asked)
        impatient = SimpleNamespace(gather=asyncio.gather, wait_for=answered)
        monkeypatch.setattr(workers, "asyncio", impatient)
        os.kill(pid, signal.SIGSTOP)
        told = {one.address: one for one in ask(client, question_of([arr.description])).workers}
        assert told[address].answer is None
        assert told[client.first].answer is not None
        with able_workers([arr.description]):
            assert "resources" not in dask.get_annotations()


def test_reports(client, root, monkeypatch):
    """Any limits and clocks are reported; each worker is asked once."""
    arr, asked, run = open_dataset(root / "data" / "scan.npy"), [], Client.run
    monkeypatch.setattr(
        Client, "run", lambda *a, **kw: asked.append(kw["workers"]) or run(*a, **kw)
    )
    options = ["--nthreads", "64", "--memory-limit", "0"]
    with joining(client, "large", *options, faults="clock=259200") as address:
        found = ask(client, question_of([arr.description]))
    assert sorted(asked) == sorted([[client.first], [address]])
    told = {one.address: one for one in found.workers}
    assert (told[address].threads, told[address].memory_limit) == (64, 0)
    assert (told[client.first].threads, told[client.first].memory_limit) == (2, 600_000_000)
    assert told[address].clock == pytest.approx(259200, abs=30)
    assert told[client.first].clock == pytest.approx(0, abs=30)
    assert found.scheduler == dask_tiled.__version__
    for one in found.workers:
        assert one.answer.versions == versions()
        assert not one.problems


def test_long_series_are_sampled(tmp_path):
    for k in range(40):
        write_raw(tmp_path / f"{k:02}.raw", FRAMES[:1])
    arr = open_dataset(tmp_path / "*.raw", "raw", dtype="u2", sig_shape=FRAMES.shape[1:])
    names = [file.path for file, _ in question_of([arr.description]).files]
    assert len(names) == len({*names}) == workers.MOST_FILES
    assert names[0].endswith("00.raw")
    assert names[-1].endswith("39.raw")
    assert names == sorted(names)


@pytest.mark.usefixtures("client")
def test_files_that_the_client_lacks(tmp_path):
    """Tasks raise the error, as on threads."""
    path = write_npy(tmp_path / "scan.npy", FRAMES)
    arr = open_dataset(path)
    Path(path).unlink()
    assert not question_of([arr.description]).files
    with pytest.raises(StaleFileError, match="removed"):
        to_zarr(arr, tmp_path / "scan.zarr")


def test_no_worker_joins(tmp_path, monkeypatch):
    """An export ends with an error, in the time that dask's configuration sets."""
    monkeypatch.setattr(workers, "PATIENT_SECONDS", 0.1)
    arr = open_dataset(write_npy(tmp_path / "scan.npy", FRAMES))
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(n_workers=0, **options) as local, Client(local) as client:
        says = r"no worker has joined the cluster; expected a worker within 0\.3 s.* `dask worker "
        with (
            dask.config.set({workers.WAIT_OPTION: "300ms"}),
            pytest.warns(UserWarning, match="has no worker; waiting for one, for 0.3 s in all"),
            pytest.raises(DatasetError, match=f"(?s)inproc.*{says}inproc"),
        ):
            to_zarr(arr, tmp_path / "scan.zarr")
        wait_for(lambda: not client.futures)
    assert not (tmp_path / "scan.zarr").exists()


def test_adaptive_clusters_start_a_worker(tmp_path):
    """They have none before there is a task."""
    arr = open_dataset(write_npy(tmp_path / "scan.npy", FRAMES))
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(n_workers=0, **options) as local, Client(local):
        local.adapt(minimum=0, maximum=1, interval="100ms")
        with dask.config.set({workers.WAIT_OPTION: "60s"}):
            np.testing.assert_array_equal(to_zarr(arr, tmp_path / "scan.zarr")[:], FRAMES)


def test_workers_in_this_process():
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(n_workers=1, **options) as local, Client(local) as client, able_workers([]):
        assert len(ask(client, question_of([])).workers) == 1
