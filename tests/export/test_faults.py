"""After random faults nothing incomplete is visible, and the next export resumes.

``make fuzz-export`` repeats each fault many times.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import clusters
import numpy as np
import pytest
import zarr
from checks import wait_for
from conftest import ANY_PORT
from distributed import Client, Future, LocalCluster
from hypothesis import settings

from dask_tiled import DatasetError, VerificationError, open_dataset, to_zarr, verify_zarr
from dask_tiled.testing import counting_frames, write_raw

pytestmark = pytest.mark.slow

LONG = settings.default.max_examples >= 500
"""Whether ``make fuzz-export`` runs the tests."""


REPEATS = 10 if LONG else 1
PROGRAM = "stopped_exports.py"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Run the program that stops exports; return its counts, with full disks if it may mount."""
    folder = tmp_path_factory.mktemp("stopped")
    kinds = ["kills", "races", "killed_steps", "refused_steps"]
    alone = ["unshare", "--map-root-user", "--mount"]
    try:
        mount = [*alone, "mount", "-t", "tmpfs", "none", folder]
        subprocess.run(mount, check=True, capture_output=True)
        kinds.append("full_disks")
    except (OSError, subprocess.CalledProcessError):
        alone = []
    program = [*alone, sys.executable, "-W", "error", Path(__file__).with_name(PROGRAM)]
    command = [*program, folder, str(REPEATS), "7", *kinds]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stderr
    sys.stdout.write(done.stdout)  # which ``make fuzz-export`` shows
    counts = [pair for line in done.stdout.splitlines() for pair in json.loads(line).items()]
    return {kind: Counter(found) for kind, found in counts}


def test_killed_exports_are_resumed(stopped):
    found = stopped["kills"]
    assert found["equal"] == found["killed"] == 5 * REPEATS
    assert not found["left over"]
    assert not found["incomplete and visible"]


def test_full_disks(stopped):
    """Exports to a full file system raise, and the next ones resume."""
    if "full_disks" not in stopped:
        pytest.skip("no file system can be mounted here")
    found = stopped["full_disks"]
    assert found["equal"] == found["refused"] == (22 if LONG else 2)
    assert not found["left over"]
    assert not found["something else"]
    assert not found["incomplete and visible"]


@pytest.mark.parametrize("kind", ["killed_steps", "refused_steps"])
def test_exports_stopped_at_every_step(stopped, kind):
    """Arrays, pyramids, results, growing files, stores and sample files are exported."""
    found = stopped[kind]
    ended = found["ended by -9" if kind == "killed_steps" else "ended by 3"]
    assert found["equal after that"] == ended + found["done"]
    assert ended > (100 if LONG else 3)
    assert found["done"] == 6
    assert not found["left over"]
    assert not found["lost"]


@pytest.mark.skipif(not LONG, reason="make fuzz-export runs it: it takes minutes")
def test_failing_workers(tmp_path):
    """Exports on workers that are killed, paused and fail to read end whole, or by one resume."""
    repeats, mib = 20, 2048
    program = Path(__file__).with_name("failing_workers.py")
    command = [sys.executable, program, tmp_path, *map(str, (repeats, mib, 7, 5))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    sys.stdout.write(done.stdout)
    found = Counter(json.loads(done.stdout)["failing_workers"])
    assert found["at once"] + found["resumed"] == repeats
    assert found["equal"] == found["verified"] == repeats
    assert not found["left over"]


@pytest.mark.skipif(not LONG, reason="make fuzz-export runs it; test_cluster.py has one export")
def test_memory_of_workers():
    """Workers hold no more memory the more they have written."""
    program = Path(__file__).with_name("worker_memory.py")
    command = [sys.executable, program, "--gib", "1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout


def test_two_exports_to_one_path(stopped):
    """One export completes, the other is refused."""
    found = stopped["races"]
    assert found["equal"] == found["one done, the other refused"] == REPEATS


@pytest.fixture
def scan(tmp_path):
    """Return a scan of twelve chunks, the same with a last chunk that waits, and its pixels."""
    frames = counting_frames((12, 8, 16), "uint16")
    path = write_raw(tmp_path / "scan.raw", frames)
    raw = {"format": "raw", "dtype": "u2", "sig_shape": (8, 16), "chunks": (1, 8, 16)}
    arr = open_dataset(path, **raw)
    return arr, arr.map_blocks(_slowly, dtype="u2"), frames


ACTED = threading.Event()
"""Set when the action of `while_it_runs` is over, for which the last chunk waits."""


def _slowly(block, block_id):
    time.sleep(0.05)
    if block_id[0] == 11:
        ACTED.wait(300)
    return block


def while_it_runs(client, action, seconds):
    """Call a function in a thread, some seconds after the first tasks have started."""
    ACTED.clear()

    def act():
        while not client.futures:
            time.sleep(0.01)
        time.sleep(seconds)
        action()
        ACTED.set()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_cancelled_futures(scan, tmp_path):
    """Exports whose tasks another client cancels raise, and the next ones succeed."""
    _, slow, frames = scan
    draw = np.random.default_rng(0)
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, **ANY_PORT}
    with LocalCluster(**options) as cluster, Client(cluster) as client:

        def cancel():
            client.cancel([Future(key, client) for key in list(client.futures)], force=True)

        for k in range(REPEATS):
            out = tmp_path / f"{k}.zarr"
            thread = while_it_runs(client, cancel, draw.uniform(0, 0.25))
            with pytest.raises(DatasetError, match="cancelled") as caught:
                to_zarr(slow, out, chunks=(1, 8, 16), layout="array")
            thread.join()
            assert caught.value.path == f"{out}.part"
            assert not out.exists()
            stored = to_zarr(slow, out, chunks=(1, 8, 16), layout="array")
            np.testing.assert_array_equal(stored[:], frames)


def test_lost_schedulers(tmp_path):
    """The error names the scheduler, and the next call resumes."""
    frames = np.arange(6, dtype="u2")[:, None, None] * np.ones((1, 64, 64), "u2")
    path = write_raw(tmp_path / "scan.raw", frames)
    raw = {"format": "raw", "dtype": "u2", "sig_shape": (64, 64), "chunks": (1, 64, 64)}
    gone, out = tmp_path / "gone", tmp_path / "out.zarr"

    def wait(block):  # pickled by value, as workers do not find this module
        while block.flat[0] == 4 and not gone.exists():
            time.sleep(0.02)
        return block

    arr = open_dataset(path, **raw).map_blocks(wait, meta=np.empty((0, 0, 0), "u2"))
    options = {"chunks": (1, 64, 64), "layout": "array"}

    def kill(client):
        wait_for(lambda: len([*tmp_path.glob("out.zarr.part/*/journal/*")]) >= 2)
        os.kill(client.run_on_scheduler(os.getpid), signal.SIGKILL)

    with ExitStack() as stack:
        client = stack.enter_context(clusters.cluster(tmp_path))
        address = str(client.folder / "scheduler.json")
        worker = ["worker", "--scheduler-file", address, "--no-dashboard", "--nthreads", "2"]
        stack.enter_context(clusters.started(client.folder / "w", *worker, "--no-nanny"))
        thread = threading.Thread(target=kill, args=(client,))
        thread.start()
        with pytest.raises(DatasetError, match="the scheduler was lost") as caught:
            to_zarr(arr, out, **options)
        thread.join()
    assert caught.value.path == f"{out}.part"
    kept = {key: key.stat().st_ino for key in tmp_path.glob("out.zarr.part/*/store/c/*/0/0")}
    assert len(kept) >= 2
    gone.touch()
    np.testing.assert_array_equal(to_zarr(arr, out, **options)[:], frames)
    assert {*kept.values()} <= {key.stat().st_ino for key in out.glob("c/*/0/0")}


CODECS = [
    {},
    {"shards": (12, 8, 16)},
    {"compressors": None},
    {"compressors": zarr.codecs.ZstdCodec(), "shards": (4, 8, 16)},
    {"compressors": zarr.codecs.GzipCodec()},
]


@pytest.mark.parametrize("options", CODECS, ids=["default", "shards", "none", "zstd", "gzip"])
def test_flipped_bits(scan, tmp_path, options):
    """zarr and verify_zarr notice any flipped bit."""
    arr, _, _ = scan
    to_zarr(arr, tmp_path / "out.zarr", chunks=(2, 8, 16), layout="array", **options)
    files = [path for path in (tmp_path / "out.zarr" / "c").rglob("*") if path.is_file()]
    draw = np.random.default_rng(3)
    for _ in range(20 * REPEATS):
        file = files[draw.integers(len(files))]
        data = file.read_bytes()
        damaged = bytearray(data)
        damaged[draw.integers(len(data))] ^= 1 << draw.integers(8)
        file.write_bytes(damaged)
        with pytest.raises(Exception):  # noqa: B017, PT011 - each codec has its own
            zarr.open_array(tmp_path / "out.zarr", mode="r")[:]
        file.write_bytes(data)
    verify_zarr(tmp_path / "out.zarr", arr)
    file.write_bytes(damaged)
    with pytest.raises(VerificationError, match="cannot be decoded") as caught:
        verify_zarr(tmp_path / "out.zarr", arr)
    assert caught.value.where == str(file.relative_to(tmp_path / "out.zarr"))
