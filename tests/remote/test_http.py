"""Files on an HTTP server: few requests, only for the bytes needed, and typed errors."""

import os
import pickle
import subprocess
import sys
import traceback

import dask
import numpy as np
import pytest
from range_server import serving

from dask_tiled import (
    DatasetError,
    RemoteError,
    StaleFileError,
    TruncatedFileError,
    describe,
    open_dataset,
    open_volumes,
)
from dask_tiled.files.file import File
from dask_tiled.remote import fetching
from dask_tiled.testing import counting_frames, write_mib, write_mib_series, write_npy

BLOCK = fetching.BLOCK_BYTES
FRAME = 384 + 2 * 256 * 256
"""Bytes of a frame and its header."""


@pytest.fixture(scope="module")
def frames():
    return counting_frames((8, 10, 256, 256), "u2", bits=12)


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def path(tmp_path, frames):
    return write_mib(tmp_path / "scan.mib", frames, hdr=False)


@pytest.fixture
def url(server, path):
    return server.url(path)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Shorten the pause between attempts, and clear the cache of blocks."""
    monkeypatch.setattr(fetching, "PAUSE", 0.001)
    fetching._blocks.clear()


def scan(url, **options):
    return open_dataset(url, nav_shape=(8, 10), **options)


@pytest.mark.thorough
def test_remote_files_open_like_local_ones(path, url):
    with File.at(url).open() as stream, path.open("rb") as local:
        assert stream.read() == local.read()
        buffers = bytearray(100), bytearray(100)
        for one, buffer in zip((stream, local), buffers, strict=True):
            one.seek(-60, 2)
            assert one.readinto(buffer) == 60
        assert buffers[0] == buffers[1]


def test_opening_reads_headers(server, url):
    describe(url, nav_shape=(8, 10))
    assert server.sent <= 3 * BLOCK
    assert len(server.asked) <= 6


@pytest.mark.parametrize(
    ("options", "index", "requests", "sent"),
    [
        ({}, np.s_[35:36], 1, FRAME - 384),
        ({"roi": [71, 3, 40, 4]}, np.s_[[71, 3, 40, 4]], 3, 5 * FRAME),
    ],
    ids=["one frame", "any order"],
)
def test_only_requested_frames_are_sent(server, url, frames, options, index, requests, sent):
    arr = open_dataset(url, nav_shape=None if options else (80,), **options)
    server.reset()
    expected = frames.reshape(-1, 256, 256)[index]
    np.testing.assert_array_equal(arr[slice(None) if options else index].compute(), expected)
    assert len(server.asked) == requests
    assert server.sent <= sent


def test_rows_of_large_frames(server, tmp_path):
    """Slices of large frames are requested without the rest of the frame."""
    frames = counting_frames((6, 1024, 1024), "u2")
    arr = open_dataset(server.url(write_npy(tmp_path / "large.npy", frames)))
    server.reset()
    np.testing.assert_array_equal(arr[:, 500:502, 7].compute(), frames[:, 500:502, 7])
    assert len(server.asked) == 6
    assert server.sent < 6 * 4096


def test_chunks_are_few_parallel_requests(server, url, frames):
    arr = scan(url, chunks=-1)
    server.reset()
    server.slowness, server.together = 0.05, 2
    np.testing.assert_array_equal(arr.sum((2, 3)).compute(), frames.sum((2, 3)))
    assert len(server.asked) == -(-80 * FRAME // fetching.REQUEST_BYTES)
    assert server.most_at_once > 1
    assert server.sent == 80 * FRAME - 384
    server.reset()
    np.testing.assert_array_equal(arr[..., 40, 60].compute(), frames[..., 40, 60])
    assert len(server.asked) <= 3


def test_headers_are_cached(server, url):
    describe(url)
    server.reset()
    describe(url)
    assert [name for name, _ in server.asked].count("/scan.mib") == 1  # checks the version


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_schedulers(request, url, frames, scheduler):
    arr = pickle.loads(pickle.dumps(scan(url, chunks=(4, 10, 256, 256))))
    options = {"scheduler": scheduler}
    if scheduler == "processes":
        options = request.getfixturevalue("processes")
    with dask.config.set(**options):
        np.testing.assert_array_equal(arr.compute(), frames)


@pytest.mark.parametrize("fault", ["drop", "cut", "short", 500, 503])
def test_temporary_faults(server, url, frames, fault):
    """Requests that fail twice are repeated until they succeed."""
    failures = {}

    def fail_twice(number, _path):
        key = server.asked[number - 1]
        failures[key] = failures.get(key, 0) + 1
        return fault if failures[key] < 3 else None

    server.fault = fail_twice
    np.testing.assert_array_equal(scan(url).compute(), frames)
    assert max(failures.values()) >= 3


@pytest.mark.parametrize("fault", ["drop", "cut", "short", 500])
def test_permanent_faults_raise(server, url, fault):
    arr = scan(url)
    server.fault = lambda _number, _path: fault
    with pytest.raises(RemoteError, match="the server failed") as caught:
        arr[0].compute()
    assert caught.value.path == url
    with pytest.raises(RemoteError):
        open_dataset(url)


@pytest.mark.slow
def test_slow_servers(server, url):
    """Slow requests raise after the timeout in storage_options."""
    times = {"client_options": {"timeout": "200ms", "allow_http": True}}
    arr = scan(url, storage_options=times)
    server.fault = lambda _number, _path: "slow"
    with pytest.raises(RemoteError, match="the server failed"):
        arr[0, 0].compute()


def test_server_without_ranges(server, url):
    server.fault = lambda _number, _path: "whole"
    with pytest.raises(RemoteError, match="byte ranges") as caught:
        open_dataset(url)
    assert caught.value.path == url


@pytest.mark.parametrize(
    ("status", "kind"), [(401, PermissionError), (403, PermissionError), (400, RemoteError)]
)
def test_refused_requests_are_not_repeated(server, url, status, kind):
    arr = scan(url)
    server.fault = lambda _number, _path: status
    for ask in (lambda: open_dataset(url), arr[0, 0].compute):
        server.reset()
        with pytest.raises(kind, match=url):
            ask()
    assert len(server.asked) == 1


def test_missing_and_empty_files_raise(server, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.mib"):
        open_dataset(server.url() + "nothing.mib")
    with pytest.raises(RemoteError, match="the server failed"):
        open_dataset("http://127.0.0.1:9/scan.mib")
    (tmp_path / "empty.mib").touch()
    with pytest.raises(TruncatedFileError, match="is empty"):
        open_dataset(server.url(tmp_path / "empty.mib"))


def test_errors_name_the_proxy_without_its_password(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9/")
    with pytest.raises(RemoteError, match=r"http_proxy sets the proxy 127\.0\.0\.1:9/;") as caught:
        open_dataset("http://microscope.example/scan.mib")
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(RemoteError, match="the server failed") as caught:
        open_dataset("http://127.0.0.1:9/scan.mib")
    assert caught.value.hint is None


def test_endless_bodies_raise(server, url):
    """Reading stops after the requested bytes, and the request is not repeated."""
    arr = scan(url)
    server.reset()
    server.fault = lambda _number, _path: "endless"
    with pytest.raises(RemoteError, match="more bytes than") as caught:
        arr[0, 0].compute()
    assert caught.value.path == url
    assert len(server.asked) == 1
    assert server.sent < 32 << 20  # sockets buffer some


def test_removed_file_raises(url, path):
    arr = scan(url)
    path.unlink()
    with pytest.raises(StaleFileError, match="has been removed"):
        arr.compute()


@pytest.mark.parametrize("tags", [True, False])
def test_changed_file_raises(server, url, path, frames, tags):
    """Changes are detected by ETag, or by size without ETag."""
    server.tags = tags
    arr = scan(url)
    write_mib(path, frames[::-1] if tags else frames[1:], hdr=False)
    for stale in (arr, arr[0], arr.sum()):
        with pytest.raises(StaleFileError, match="changed") as caught:
            stale.compute()
        assert caught.value.path == url
    again = scan(url)
    assert again.name != arr.name
    first = frames[::-1] if tags else frames[1:]
    np.testing.assert_array_equal(again[:7].compute(), first[:7])


def test_file_changed_during_reading_raises(server, url, path):
    arr = scan(url, chunks=-1)
    server.reset()

    def change(number, _path):
        if number == 2:
            os.utime(path, ns=(0, 0))

    server.fault = change
    with pytest.raises(StaleFileError):
        arr.compute()


@pytest.mark.thorough
def test_queries(server, path, frames):
    """Queries are sent with every request, and never shown."""
    server.query = "signature=s3cret%2F&x=1"
    arr = scan(f"{server.url(path)}?{server.query}")
    np.testing.assert_array_equal(arr.compute(), frames)
    assert "s3cret" not in repr(arr.description) + repr(arr.description.files) + arr.name
    assert arr.description.format == "mib"
    with pytest.raises(PermissionError):
        open_dataset(server.url(path))
    for fault, kind in ((500, RemoteError), (403, PermissionError), (400, RemoteError)):
        server.fault = lambda _number, _path, fault=fault: fault
        with pytest.raises(kind) as caught:
            arr[0].compute()
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    twice = [f"{server.url(path)}?{query}" for query in ("a=1", "a=2")]
    with pytest.raises(DatasetError, match="queries"):
        open_dataset(twice)


@pytest.mark.thorough
def test_redirects_to_other_hosts_carry_no_secrets(server, path, frames, tmp_path):
    server.query = "signature=s3cret"
    headers = {"x-api-key": "s3cret", "authorization": "s3cret"}
    with serving(tmp_path) as other:
        server.elsewhere = other.url()[:-1]
        arr = scan(
            f"{server.url(path)}?{server.query}",
            storage_options={"client_options": {"default_headers": headers}},
        )
        np.testing.assert_array_equal(arr[0].compute(), frames[0])
        assert "s3cret" in str(server.headers[0])
        assert other.headers
        assert "s3cret" not in str(other.headers)


@pytest.mark.parametrize("name", ["a b.mib", "#1+1=2[x]~&'.mib", "ü%41.mib"])
def test_names(server, tmp_path, frames, name):
    path = write_mib(tmp_path / name, frames[0], hdr=False)
    np.testing.assert_array_equal(open_dataset(server.url(path)).compute(), frames[0])
    pattern = f"{server.url()}*.mib"
    np.testing.assert_array_equal(open_dataset(pattern).compute(), frames[0])


def test_patterns(server, tmp_path, frames):
    paths = [write_npy(tmp_path / f"{n}.npy", frames[0]) for n in (9, 10)]
    arr = open_volumes(f"{server.url()}*.npy")
    expected = [server.url(path) for path in paths]
    assert [file.path for file in arr.description.files] == expected
    np.testing.assert_array_equal(arr.compute(), [frames[0], frames[0]])
    with pytest.raises(FileNotFoundError, match="no file"):
        open_dataset(f"{server.url()}*.mib")
    server.lists = False
    with pytest.raises(DatasetError, match="does not list"):
        open_dataset(f"{server.url()}*.npy")


@pytest.mark.parametrize(("lists", "status"), [(True, 200), (True, 500), (False, 200)])
def test_series(server, tmp_path, lists, status):
    """One file opens its series, whether or not the server lists the folder."""
    server.lists, server.listing_status = lists, status
    frames = counting_frames((12, 4, 128), "u2", bits=12)
    members = write_mib_series(tmp_path / "scan-", frames, frames_per_file=5, hdr=False)
    arr = open_dataset(server.url(members[1]))
    np.testing.assert_array_equal(arr.compute(), frames)


def test_series_of_a_failing_server(server, tmp_path):
    """A file that the server fails to send does not end the series."""
    frames = counting_frames((12, 4, 128), "u2", bits=12)
    members = write_mib_series(tmp_path / "scan-", frames, frames_per_file=5, hdr=False)
    server.fault = lambda _number, path: 500 if path.endswith(members[2].name) else None
    with pytest.raises(RemoteError):
        open_dataset(server.url(members[0]))


@pytest.mark.parametrize("scheme", ["https", "ftp", "zip://scan.mib::ftp"])
def test_passwords_in_urls(scheme):
    """URLs with passwords are refused: texts and errors would show the password."""
    with pytest.raises(DatasetError, match="password") as caught:
        open_dataset(f"{scheme}://user:s3cret@127.0.0.1:1/scan.mib")
    assert "s3cret" not in str(caught.value)


def test_many_files_at_once(server, tmp_path, frames):
    """Requests run ahead across files."""
    paths = [write_npy(tmp_path / f"{n:02}.npy", frames[n % 8, n % 10]) for n in range(40)]
    arr = open_volumes([server.url(path) for path in paths], chunks=-1)
    server.reset()
    server.slowness, server.together = 0.1, 5
    expected = np.array([frames[n % 8, n % 10] for n in range(40)])
    np.testing.assert_array_equal(arr.mean(0).compute(), expected.mean(0))
    assert len(server.asked) == 40
    assert 4 < server.most_at_once <= 16


def test_waiting_answers_are_bounded(url, frames, monkeypatch):
    """Few answers are held in memory, for any chunk size and order of reading."""
    from dask_tiled.reading import remote

    monkeypatch.setattr(fetching, "REQUEST_BYTES", 1 << 20)
    monkeypatch.setattr(remote, "BUFFERED_BYTES", 1 << 20)
    monkeypatch.setattr(remote, "REQUESTS_AHEAD", 2)
    monkeypatch.setattr(remote, "KEPT_RESPONSES", 4)
    most, backends = [], []

    class Watched(remote.Remote):
        def __init__(self):
            super().__init__()
            backends.append(self)

        def __call__(self, *args):
            found = super().__call__(*args)
            most.append(len(self._answers))
            return found

    monkeypatch.setattr("dask_tiled.reading.reader.Remote", Watched)
    arr = scan(url, chunks=-1)
    np.testing.assert_array_equal(arr.sum((2, 3)).compute(), frames.sum((2, 3)))
    np.testing.assert_array_equal(arr.sum((0, 1)).compute(), frames.sum((0, 1)))
    assert max(most) <= 4
    assert not any(backend._answers for backend in backends)


def test_local_and_remote_files_together_are_refused(url, path):
    with pytest.raises(DatasetError, match="local files and URLs"):
        open_dataset([url, path])


def test_invalid_options_are_refused(url, path):
    with pytest.raises(DatasetError, match="io cannot be chosen"):
        open_dataset(url, io="mmap")
    with pytest.raises(DatasetError, match="URL"):
        open_dataset(path, storage_options={})
    with pytest.raises(DatasetError, match="unknown store, or invalid option"):
        open_dataset("s3://bucket/scan.mib", storage_options={"nonsense": 1})
    with pytest.raises(DatasetError, match="invalid storage options"):
        open_dataset(url, storage_options="public")
    with pytest.raises(DatasetError, match="pickled for other processes"):
        open_dataset(url, storage_options={"client_options": lambda: 0})
    with pytest.raises(DatasetError, match="fsspec"):
        open_dataset("nonsense://host/scan.mib")


FORK = """
import os, sys
import dask_tiled
arr = dask_tiled.open_dataset(sys.argv[1])
if pid := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
try:
    arr[0].compute(scheduler="synchronous")
except dask_tiled.RemoteError as error:
    os._exit(7 if "fork" in str(error) else 1)
os._exit(2)
"""


@pytest.mark.slow
def test_forks_raise(url):
    """Reading in a forked process raises instead of blocking."""
    done = subprocess.run([sys.executable, "-c", FORK, url], timeout=300, check=False)
    assert done.returncode == 7


def test_file_urls(path, frames):
    np.testing.assert_array_equal(scan(f"file://{path}").compute(), frames)


def test_without_obstore(url, monkeypatch):
    from dask_tiled.remote import stores

    stores._store.cache_clear()
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(DatasetError, match=r"dask-tiled\[remote\]"):
        open_dataset(url)
    stores._store.cache_clear()
