"""The same pixels from every scheduler of dask, and workers whose memory stays flat."""

import hashlib
import itertools
import multiprocessing
import os
import re
import time
from concurrent.futures import ProcessPoolExecutor

import dask
import numpy as np
import psutil
import pytest
import tifffile
from checks import write_hdf5
from conftest import ANY_PORT
from distributed import Client, LocalCluster, futures_of

import dask_tiled
from dask_tiled.testing import counting_frames, write_mib, write_mib_series, write_raw

pytestmark = pytest.mark.slow

NAV, SIG = (6, 10), (32, 48)
CHUNKS = (2, 7, 32, 48)
MEMORY_LIMIT = 480_000_000


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Open a raw file, a Merlin file and a series of files; and their pixels."""
    folder = tmp_path_factory.mktemp("scans")
    floats = counting_frames(NAV + SIG, ">f4")
    packed = counting_frames(NAV + SIG, "u2", bits=12)
    raw = write_raw(folder / "scan.raw", floats, frame_header=3)
    mib = write_mib(folder / "scan.mib", packed, kind="R64", depth=12)
    series = write_mib_series(folder / "series", packed, frames_per_file=17, digits=2)
    tiff, hdf5 = folder / "scan.tif", folder / "scan.h5"
    tifffile.imwrite(tiff, packed, tile=(16, 16), compression="zlib", photometric="minisblack")
    write_hdf5(hdf5, lambda file: file.create_dataset("x", data=packed, chunks=(1, 5, 32, 48)))
    raw_options = {"dtype": ">f4", "nav_shape": NAV, "sig_shape": SIG, "frame_header": 3}
    return {
        "raw": (dask_tiled.open_dataset(raw, "raw", **raw_options, chunks=CHUNKS), floats),
        "mib": (dask_tiled.open_dataset(mib, chunks=CHUNKS), packed),
        "series": (dask_tiled.open_dataset(series[1], chunks=CHUNKS), packed),
        "tiff": (dask_tiled.open_dataset(tiff, chunks=CHUNKS), packed),
        "hdf5": (dask_tiled.open_dataset(hdf5, chunks=CHUNKS), packed),
    }


@pytest.fixture(scope="module")
def client():
    options = {"n_workers": 2, "threads_per_worker": 2, "memory_limit": MEMORY_LIMIT}
    with (
        LocalCluster(processes=True, **ANY_PORT, **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def checksum(frames):
    return hashlib.blake2b(np.ascontiguousarray(frames).astype("<f8").tobytes()).hexdigest()


PARTS = {
    "whole": lambda arr: arr,
    "crop": lambda arr: arr[1:5, ::3, 3:20, 5:48:7],
    "pixel": lambda arr: arr[..., 10, 20],
    "images": lambda arr: arr.sum(axis=(-2, -1), dtype="f8"),
    "chunks that meet": lambda arr: arr[1:].astype("f8") - arr[:-1],
    "whole scans of pixels": lambda arr: arr.reshape(60, 32, 48).argmax(axis=0),
}


def parts(scans):
    """Give what a user computes of every scan, lazy, and checksums of what it should be."""
    lazy, expected = {}, {}
    for (name, (arr, frames)), (part, take) in itertools.product(scans.items(), PARTS.items()):
        lazy[name, part] = take(arr)
        expected[name, part] = checksum(take(frames))
    return lazy, expected


def test_a_cluster(scans, client):
    lazy, expected = parts(scans)
    (future,) = client.compute([lazy])
    assert {key: checksum(part) for key, part in future.result().items()} == expected


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_processes_and_threads(scans, start):
    """However they are started, and whatever this process has open and compiled by then."""
    lazy, expected = parts(scans)
    found = [dask.compute(lazy, scheduler="threads", num_workers=4)[0]]
    with ProcessPoolExecutor(2, multiprocessing.get_context(start)) as pool:
        found += dask.compute(lazy, scheduler="processes", pool=pool)
    for results in found:
        assert {key: checksum(part) for key, part in results.items()} == expected


def test_arrays_that_stay_on_a_cluster(scans, client):
    arr, frames = scans["mib"]
    kept = client.persist(arr)
    found = client.compute(kept[2, 3:].sum(axis=0, dtype="u8")).result()
    np.testing.assert_array_equal(found, frames[2, 3:].sum(axis=0))


def test_chunks_are_writeable_on_workers(scans, client):
    arr, frames = scans["raw"]

    def add_in_place(block):
        block += 1
        return block

    changed = arr.map_blocks(add_in_place, dtype=arr.dtype, meta=arr._meta)
    found = client.compute(changed).result()
    np.testing.assert_array_equal(found, frames + 1)


def test_errors_come_back_whole(tmp_path, client):
    path = write_raw(tmp_path / "scan.raw", np.zeros((4, 8, 8), "u1"))
    arr = dask_tiled.open_dataset(path, "raw", dtype="u1", sig_shape=(8, 8))
    os.utime(path, ns=(0, 0))
    with pytest.raises(dask_tiled.StaleFileError, match=r"scan\.raw") as caught:
        client.compute(arr).result()
    assert caught.value.path == str(path)
    assert "written" in caught.value.expected


@pytest.fixture(scope="module")
def long_scan(tmp_path_factory):
    """A file half as large again as a worker may become: one pixel of each frame is not zero."""
    path = tmp_path_factory.mktemp("long") / "scan.raw"
    n_frames, frame = 1440, 512 * 512 * 2
    with path.open("wb") as file:
        file.truncate(n_frames * frame)
        for k in range(n_frames):
            file.seek(k * frame + 2 * k)
            file.write((k + 1).to_bytes(2, "big"))
    assert path.stat().st_size > 1.5 * MEMORY_LIMIT
    return path, sum(range(1, n_frames + 1))


def test_memory_stays_flat(client, long_scan):
    """One worker reads a file that is larger than its limit, by itself."""
    path, total = long_scan
    options = {"dtype": ">u2", "sig_shape": (512, 512), "chunks": (16, -1, -1)}
    arr = dask_tiled.open_dataset(path, "raw", **options)
    worker, _ = client.scheduler_info()["workers"]
    alone = {"workers": [worker], "allow_other_workers": False}

    def sum_and_size(block):
        size = psutil.Process().memory_info().rss
        return np.array([[[block.sum(dtype="u8"), size]]], dtype="u8")

    def state(dask_worker):
        return os.getpid(), psutil.Process().memory_info().rss, dask_worker.status.name

    client.compute(arr[:16].sum(), **alone).result()  # modules and kernels are loaded
    pid, size, _ = client.run(state, workers=[worker])[worker]
    empty = np.empty((0, 0, 0), "u8")
    work = arr.map_blocks(sum_and_size, chunks=(1, 1, 2), dtype="u8", meta=empty)
    sums, sizes = client.compute(work, **alone).result(timeout=120)[:, 0].T
    assert client.compute(arr.sum(dtype="u8"), **alone).result(timeout=120) == total

    assert len(sums) == arr.npartitions == 90
    assert sums.sum() == total
    assert sizes.max() < size + 6 * arr.blocks[0].nbytes  # two threads, one chunk each
    assert sizes.max() < 0.8 * MEMORY_LIMIT  # where a worker pauses
    now, _, status = client.run(state, workers=[worker])[worker]
    assert (now, status) == (pid, "running")
    logs = [entry for entries in client.get_worker_logs().values() for entry in entries]
    assert not [text for _, text in logs if re.search("pausing|restarting|terminat", text.lower())]


def test_memory_of_results_goes_back_to_the_system(client, long_scan):
    """Or a worker that spills its results has no more room than before, and pauses for good."""
    options = {"dtype": ">u2", "sig_shape": (512, 512), "chunks": (72, -1, -1)}
    arr = dask_tiled.open_dataset(long_scan[0], "raw", **options)[:144]
    worker, _ = client.scheduler_info()["workers"]
    alone = {"workers": [worker], "allow_other_workers": False}

    def size():
        return client.run(lambda: psutil.Process().memory_info().rss, workers=[worker])[worker]

    client.compute(arr[:2], **alone).result()  # modules and kernels are loaded
    before = size()
    kept = client.persist(arr, **alone)
    assert not any(future.exception() for future in futures_of(kept, client))
    del kept
    end = time.monotonic() + 10
    while size() > before + arr.nbytes // 2:
        assert time.monotonic() < end
        time.sleep(0.05)
