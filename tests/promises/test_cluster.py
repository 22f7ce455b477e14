"""Work on clusters whose processes share neither working directory nor memory with the client."""

import os
import platform
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import dask
import dask.array as da
import distributed.comm.tcp
import numpy as np
import psutil
import pytest
import zarr
from checks import wait_for
from clusters import started
from dask.core import flatten
from distributed import Client, futures_of, wait
from formats_table import TABLE

import dask_tiled
from dask_tiled import (
    DatasetError,
    StaleFileError,
    VerificationError,
    as_zarr,
    iter_blocks,
    map_tiles,
    open_dataset,
    reduce_tiles,
    to_zarr,
    verify_zarr,
)
from dask_tiled.testing import counting_frames, write_mib

pytestmark = pytest.mark.slow

FRAMES = counting_frames((12, 16, 32, 32), "uint16")
CHUNKS = (1, 16, 32, 32)
MEMORY_LIMIT = 500_000_000
SPILLING = {"DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "0.2"}
"""Share of memory from which results are spilled at once; other memory is only polled."""


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Yield the client of two workers, one of which has a resource."""
    folder = tmp_path_factory.mktemp("cluster")
    address = str(folder / "scheduler.json")
    worker = ["worker", "--scheduler-file", address, "--nthreads", "2", "--no-dashboard"]
    worker += ["--memory-limit", str(MEMORY_LIMIT), "--host", "127.0.0.1", "--name"]
    special = ["--resources", "SPECIAL=1", "--no-nanny"]  # one worker that is restarted is enough
    scheduler = ["scheduler", "--scheduler-file", address, "--no-dashboard"]
    with ExitStack() as stack:
        host = ["--host", "127.0.0.1", "--port", "0"]
        stack.enter_context(started(folder / "s", *scheduler, *host))
        stack.enter_context(started(folder / "a", *worker, "plain", **SPILLING))
        stack.enter_context(started(folder / "b", *worker, "special", *special, **SPILLING))
        client = stack.enter_context(Client(scheduler_file=address, timeout=300))
        client.wait_for_workers(2, timeout=300)
        yield client


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder of the client alone, and name its files by relative paths."""
    monkeypatch.chdir(tmp_path)
    write_mib("scan.mib", FRAMES)
    return tmp_path


@pytest.fixture
def arr(here):
    assert Path.cwd() == here
    return open_dataset("scan.mib", chunks=CHUNKS)


@pytest.fixture
def traffic(monkeypatch):
    """Count the bytes that the client sends and receives."""
    seen = Counter()
    pack, unpack = distributed.comm.tcp.to_frames, distributed.comm.tcp.from_frames

    async def sent(*args, **kwargs):
        frames = await pack(*args, **kwargs)
        seen["sent"] += sum(map(len, map(memoryview, frames)))
        return frames

    async def received(frames, *args, **kwargs):
        seen["received"] += sum(map(len, map(memoryview, frames)))
        return await unpack(frames, *args, **kwargs)

    monkeypatch.setattr(distributed.comm.tcp, "to_frames", sent)
    monkeypatch.setattr(distributed.comm.tcp, "from_frames", received)
    return seen


def worker_of(client, name):
    """Return the address of a worker."""
    workers = client.scheduler_info()["workers"]
    (found,) = (address for address, about in workers.items() if about["name"] == name)
    return found


def keepers(client, collection):
    """List the addresses of the workers that have the results of a collection."""
    wait(collection)
    return {address for some in client.who_has(collection).values() for address in some}


# Results


WORK = {
    "all": lambda x: x,
    "slice": lambda x: x[2:5, ::3, 4:20, 7],
    "backwards": lambda x: x[::-1, [3, 1]],
    "sum of frames": lambda x: x.sum(axis=(2, 3)),
    "deviation": lambda x: x.std(axis=(0, 1)),
    "expression": lambda x: ((x * 2.5 - x[0, 0]) ** 2).max(axis=(2, 3)),
    "neighbours": lambda x: x[1:].astype("i4") - x[:-1],
    "transposed": lambda x: x.transpose(2, 3, 0, 1).max(axis=-1),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.usefixtures("client")
def test_expressions(arr, name):
    np.testing.assert_allclose(WORK[name](arr).compute(), WORK[name](FRAMES), rtol=1e-12)


@pytest.mark.usefixtures("client")
def test_functions_on_tiles(arr):
    brightest = map_tiles(lambda tile, _: tile.max(axis=(1, 2)), arr, dtype="u2")
    np.testing.assert_array_equal(brightest.compute(), FRAMES.max(axis=(2, 3)))
    add = lambda state, tile, _: state + tile.sum()  # noqa: E731 - pickled by value
    assert reduce_tiles(arr, init=0, step=add, combine=np.add).compute() == FRAMES.sum()
    masks = np.ones((2, 32, 32)) * [[[1]], [[2]]]
    found = dask_tiled.tiles.apply_masks(arr, masks).compute()
    np.testing.assert_allclose(found[..., 1], 2 * FRAMES.sum(axis=(2, 3)))


@pytest.mark.usefixtures("client")
def test_blocks_in_order(arr, traffic):
    """Blocks are read in the process of the client, not on workers."""
    for k, block in enumerate(iter_blocks(arr)):
        np.testing.assert_array_equal(block.pixels, FRAMES[k : k + 1])
    assert k == 11
    assert traffic["received"] < 10_000


@pytest.mark.usefixtures("client")
def test_every_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lazy, expected = {}, {}
    for name, make in TABLE.items():
        (tmp_path / name).mkdir()
        sample = make(Path(name), "scan")
        lazy[name], expected[name] = open_dataset(**sample.options), sample.expected
    (found,) = dask.compute(lazy)
    for name, frames in expected.items():
        np.testing.assert_array_equal(found[name], frames, err_msg=name)


@pytest.mark.usefixtures("client")
def test_zarr(arr, here):
    """Exports are verified by paths, stores and arrays, and leave no other files."""
    to_zarr(arr, "out.zarr", shards=(3, 16, 32, 32), chunks=CHUNKS, layout="array")
    np.testing.assert_array_equal(zarr.open_array(here / "out.zarr", mode="r")[:], FRAMES)
    store = zarr.storage.LocalStore("out.zarr", read_only=True)
    for stored in ("out.zarr", store, zarr.open_array("out.zarr", mode="r")):
        verify_zarr(stored, arr)
    to_zarr(arr, zarr.storage.LocalStore("other.zarr"))
    verify_zarr(zarr.open_group("other.zarr", mode="r"), arr)
    shown = da.from_zarr(as_zarr(arr))
    np.testing.assert_array_equal(shown[2:4].compute(), FRAMES[2:4])
    assert sorted(path.name for path in here.iterdir()) == [
        "other.zarr", "out.zarr", "scan.hdr", "scan.mib",
    ]  # fmt: skip


@pytest.mark.usefixtures("client")
def test_progress_of_exports(arr, capsys):
    """The last line shows the bytes of all pixels."""
    to_zarr(arr, "out.zarr", progress=True)
    last = capsys.readouterr().err.strip().splitlines()[-1].rpartition("\r")[-1]
    assert last.startswith("to_zarr: 100%")
    assert "393k/393k" in last
    assert "B/s]" in last


@pytest.mark.usefixtures("client")
def test_chunks_are_writeable_on_workers(arr):
    def add_in_place(block):
        block += 1
        return block

    changed = arr.map_blocks(add_in_place, dtype=arr.dtype, meta=arr._meta)
    np.testing.assert_array_equal(changed.compute(), FRAMES + 1)


# Traffic


SMALL, KEY = 30_000, 200
"""Maximum bytes between client and scheduler per job, and per result."""


@pytest.mark.usefixtures("client", "here")
def test_graphs_are_small(traffic):
    """No pixels pass through the client either."""
    with open("long.raw", "wb") as file:
        file.truncate(4096 * 64 * 64)
    arr = open_dataset("long.raw", "raw", dtype="u1", sig_shape=(64, 64), chunks=(64, -1, -1))
    masks = np.random.default_rng(0).random((3, 64, 64))
    work = {
        "opened": arr,
        "slice": arr[5:4000:3, :40],
        "sum": arr.sum(axis=(1, 2)),
        "expression": (np.sqrt(arr) * 2).mean(axis=0),
        "tiles": map_tiles(lambda tile, _: tile + 1, arr, dtype="u1"),
        "masks": dask_tiled.tiles.apply_masks(arr, masks),
    }
    own = {"masks": masks.nbytes}
    for name, lazy in work.items():
        traffic.clear()
        kept = lazy.persist()
        wait(kept)
        assert traffic["sent"] < SMALL + KEY * kept.npartitions + own.get(name, 0), name
        assert traffic["received"] < SMALL + KEY * kept.npartitions, name
        del kept
    traffic.clear()
    to_zarr(arr, "out.zarr", chunks=(64, 64, 64))
    verify_zarr("out.zarr", arr)
    assert max(traffic.values()) < 2 * (SMALL + KEY * 4096 // 64)


# Errors


def pids(client):
    return client.run(os.getpid)


WAYS = {
    "pixels": lambda arr: arr.compute(),
    "sum": lambda arr: arr.sum(axis=(2, 3)).compute(),
    "expression": lambda arr: (arr * 2 + arr[0]).max().compute(),
    "tiles": lambda arr: map_tiles(lambda tile, _: tile + 1, arr, dtype="u2").compute(),
    "export": lambda arr: to_zarr(arr, "out.zarr"),
}


@pytest.mark.parametrize("way", WAYS)
def test_files_that_workers_lack(client, arr, here, way):
    """The error names the file, is raised at once, and kills no worker."""
    before = pids(client)
    (here / "scan.mib").rename(here / "elsewhere.mib")
    with pytest.raises(StaleFileError, match="the same path") as caught:
        WAYS[way](arr)
    assert caught.value.path == str(here / "scan.mib")
    assert pids(client) == before
    named = {f"on the worker {w}: host {platform.node()}, process {before[w]}" for w in before}
    assert named & {*caught.value.__notes__}


@pytest.mark.usefixtures("client")
def test_errors_of_exports(arr):
    """Errors of tasks reach the user; stores in the memory of the client are refused."""

    def fail(_block):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        to_zarr(arr.map_blocks(fail, dtype="u2", meta=arr._meta), "out.zarr")
    with pytest.raises(DatasetError, match="other processes"):
        to_zarr(arr, {})
    to_zarr(arr, "out.zarr")
    zarr.open_array("out.zarr/data", mode="r+")[5, 6, 7, 15] = 0
    with pytest.raises(VerificationError) as caught:
        verify_zarr("out.zarr", arr)
    assert caught.value.where == "[5, 6, 7, 15]"


def test_folders_that_workers_lack(client, arr, here):
    """The client makes the folder of an export; workers do not."""
    folder, before = here / "out.zarr.part", pids(client)

    def lose(block):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        return block

    with pytest.raises(DatasetError, match="workers must write to the same file system"):
        to_zarr(arr.map_blocks(lose, dtype="u2", meta=arr._meta), "out.zarr")
    assert not (here / "out.zarr").exists()
    assert pids(client) == before


# Memory


@pytest.fixture
def large(here):
    """Return an array of three times as many bytes as a worker may use, and its frame sums."""
    sums = np.zeros(3 * MEMORY_LIMIT // 131_072, "u8")
    with open("large.raw", "wb") as file:
        file.truncate(len(sums) * 131_072)
        for k in range(0, len(sums), 97):
            sums[k] = k + 1
            file.seek(k * 131_072 + 2 * k)
            file.write((k + 1).to_bytes(2, "little"))
    options = {"format": "raw", "dtype": "<u2", "sig_shape": (256, 256)}
    yield open_dataset("large.raw", **options), sums
    (here / "large.raw").unlink()


def memory(pid, name):
    """Return a memory figure of a process in bytes, and reset its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith(name))
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return int(kib) * 1024


LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="known on Linux only")


@LINUX
def test_files_larger_than_memory(client, large):
    """Reductions need some MiB per thread, exports a few chunks."""
    arr, sums = large
    workers = pids(client)
    for worker in workers:  # load code
        with dask.annotate(workers=[worker]):
            arr[:9].sum(axis=(1, 2)).compute()
    usual = {pid: memory(pid, "VmRSS") for pid in workers.values()}
    np.testing.assert_array_equal(arr.sum(axis=(1, 2)).compute(), sums)
    assert all(memory(pid, "VmHWM") < before + (24 << 20) for pid, before in usual.items())
    stored = to_zarr(arr, "out.zarr", layout="array")
    assert all(memory(pid, "VmHWM") < before + (64 << 20) for pid, before in usual.items())
    np.testing.assert_array_equal(stored[97:200:97].sum(axis=(1, 2)), sums[97:200:97])
    assert pids(client) == workers
    states = client.run(lambda dask_worker: dask_worker.status.name)
    assert {*states.values()} == {"running"}


@LINUX
def test_memory_of_results_is_released(client, large):
    """Otherwise a worker that spills its results gains no memory, and pauses forever."""
    worker = worker_of(client, "plain")
    pid, arr = pids(client)[worker], large[0][:576]
    with dask.annotate(workers=[worker]):
        arr[:9].compute()  # load code
        before = memory(pid, "VmRSS")
        kept = arr.with_chunks((288, -1, -1)).persist()
        assert keepers(client, kept) == {worker}
    del kept
    wait_for(lambda: memory(pid, "VmRSS") <= before + arr.nbytes // 2)


def test_results_larger_than_memory(client, large):
    """Workers spill results to disk, and read them back."""
    arr, sums = large
    before, worker = pids(client), worker_of(client, "plain")
    with dask.annotate(workers=[worker]):
        kept = arr[:4500].with_chunks((64, -1, -1)).persist()
        wait(kept)
        assert kept.nbytes > MEMORY_LIMIT
        spilled = client.run(lambda dask_worker: dask_worker.data.spilled_total.memory)
        assert spilled[worker] > kept.nbytes // 2
        np.testing.assert_array_equal(kept.sum(axis=(1, 2)).compute(), sums[:4500])
    assert pids(client) == before


# Annotations


ANNOTATED = {
    "opened": lambda arr: arr.with_chunks(arr.chunks),
    "slice": lambda arr: arr[:, ::2],
    "sum": lambda arr: arr.sum(axis=(2, 3)),
    "expression": lambda arr: np.sqrt(arr + 1),
    "tiles": lambda arr: map_tiles(lambda tile, _: tile + 1, arr),
    "dask": lambda arr: da.zeros(arr.shape, chunks=CHUNKS) + 1,
}


@pytest.mark.parametrize("name", ANNOTATED)
def test_workers_and_resources(client, arr, name):
    """Annotations hold with optimized graphs, and with graphs that are not optimized."""
    by_name = [*ANNOTATED].index(name) % 2
    annotations = {"workers": ["special"]} if by_name else {"resources": {"SPECIAL": 1}}
    with dask.annotate(**annotations):
        lazy = ANNOTATED[name](arr)
        kept = lazy[1:].persist()
    assert keepers(client, kept) == {worker_of(client, "special")}
    kept = lazy[:9].persist(optimize_graph=False)
    assert keepers(client, kept) == {worker_of(client, "special")}


@pytest.mark.usefixtures("client")
def test_retries(arr, here):
    def fail_once(block, block_id):
        with open(f"{here}/{block_id[0]}", "a+") as file:
            file.write("x")
            if file.tell() == 1:
                raise OSError("once")
        return block

    failing = arr.map_blocks(fail_once, dtype="u2", meta=arr._meta)
    with pytest.raises(OSError, match="once"):
        failing[:1].compute()
    with dask.annotate(retries=2):
        np.testing.assert_array_equal(failing.compute(), FRAMES)
        np.testing.assert_array_equal(to_zarr(failing, "out.zarr")[:], FRAMES)


@pytest.mark.usefixtures("client")
def test_names_of_tasks(arr):
    """Tasks have the keys of the collection, which name the operation."""
    named = {"mib": arr[1:], "add": arr + 1, "sum": arr.sum(axis=0)}
    for name, lazy in named.items():
        assert lazy.name.startswith(f"{name}-")
        kept = lazy.persist()
        assert {future.key for future in futures_of(kept)} == {*flatten(lazy.__dask_keys__())}
        wait(kept)


# Last, as the worker takes a while to come back


def test_exports_survive_a_killed_worker(client, arr, here):
    begun, killed = here / "begun", here / "killed"
    begun.mkdir()

    def waiting(block, block_id):
        (begun / f"{block_id[0]}").touch()
        while len([*begun.iterdir()]) > 6 and not killed.exists():  # the first ones do not wait
            time.sleep(0.01)
        return block + 1

    victim, journal = pids(client)[worker_of(client, "plain")], here / "out.zarr.part"

    def kill():
        while len([*journal.glob("*/journal/*")]) < 3:
            time.sleep(0.01)
        assert not (here / "out.zarr").exists()
        os.kill(victim, signal.SIGKILL)
        killed.touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    lazy = arr.map_blocks(waiting, dtype="u2", meta=arr._meta)
    stored = to_zarr(lazy, "out.zarr", chunks=CHUNKS, shards=CHUNKS)
    killer.join()
    wait_for(lambda: not psutil.pid_exists(victim))  # until its nanny has noticed
    np.testing.assert_array_equal(stored[:], FRAMES + 1)
    assert not journal.exists()
