"""Files that may change are not mapped: recent, open for writing, growing, or remote."""

import errno
import mmap
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import dask
import h5py
import numpy as np
import pytest

from dask_tiled import DatasetError, map_tiles, open_dataset
from dask_tiled.reading import backends, decoding, mapped
from dask_tiled.system import changes, mounts
from dask_tiled.testing import counting_frames, write_raw

pytestmark = pytest.mark.usefixtures("synchronous", "nothing_kept")

FRAMES = counting_frames((9, 16, 16), "u2")
RAW = {"format": "raw", "dtype": "u2", "sig_shape": (16, 16)}
AT_REST = {"dask-tiled.rest-seconds": 0}
NO_LEASES = "this system cannot detect writers"


@pytest.fixture
def path(tmp_path):
    return write_raw(tmp_path / "scan.raw", FRAMES)


def is_mapped(arr):
    """Return whether `map_tiles` passes views of a mapped file."""
    seen = []

    def note(tile, _):
        owner = tile
        while isinstance(owner, (np.ndarray, memoryview)):
            owner = owner.obj if isinstance(owner, memoryview) else owner.base
        seen.append(isinstance(owner, mmap.mmap))
        return tile

    found = map_tiles(note, arr, dtype=arr.dtype, sig_shape=arr.shape[1:]).compute()
    np.testing.assert_array_equal(found, FRAMES)
    assert len(seen) == 1
    return seen[0]


# Times


def advance_clock(monkeypatch, seconds):
    """Set the clock forward."""
    now = time.time_ns()
    monkeypatch.setattr(backends.time, "time_ns", lambda: now + round(seconds * 1e9))


def test_recent_files_are_not_mapped(path, monkeypatch):
    """The age of a file is checked in each task; a minute is old enough."""
    arr = open_dataset(path, **RAW)
    for seconds, expected in ((0, False), (58, False), (60, True), (-3600, False), (1e9, True)):
        advance_clock(monkeypatch, seconds)
        assert is_mapped(arr) == expected, seconds


@pytest.mark.parametrize("age", [10**9, -(10**9)], ids=["old", "of the future"])
def test_set_times_of_modification_do_not_count(path, monkeypatch, age):
    """Copies keep the times of their originals; files with future times are never mapped."""
    os.utime(path, (0, time.time() - age))
    arr = open_dataset(path, **RAW)
    assert not is_mapped(arr)
    advance_clock(monkeypatch, 60)
    assert is_mapped(arr) == (age > 0)


def test_rest_seconds(path, monkeypatch):
    arr = open_dataset(path, **RAW)
    with dask.config.set(AT_REST):
        assert is_mapped(arr)
    advance_clock(monkeypatch, 1000)
    with dask.config.set({"dask-tiled.rest-seconds": 1001}):
        assert not is_mapped(arr)


@pytest.mark.parametrize("seconds", [-1, "soon", None, 0.5])
def test_invalid_rest_seconds_are_refused(path, seconds):
    arr = open_dataset(path, **RAW)
    name = "dask-tiled.rest-seconds"
    with dask.config.set({name: seconds}), pytest.raises(DatasetError, match=name):
        arr.compute()


# Writers


def test_followed_files_are_not_mapped(path):
    with dask.config.set(AT_REST):
        assert not is_mapped(open_dataset(path, follow=True, **RAW))


WRITER = """
import mmap, os, sys
path, kind = sys.argv[1:]
fd = os.open(path, os.O_RDWR)
if kind == "mapped":
    view = mmap.mmap(fd, 0)
    os.close(fd)
print("open", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def writer(path):
    """Yield a function that opens the file for writing in another process."""
    writers = []

    def start(kind):
        command = [sys.executable, "-c", WRITER, str(path), kind]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        writers.append(subprocess.Popen(command, **pipes))
        assert writers[-1].stdout.readline() == "open\n"
        return writers[-1]

    yield start
    for one in writers:
        if one.poll() is None:
            one.communicate("\n", timeout=300)


def detects_writers(path):
    """Return whether this system can detect writers."""
    with open(path, "rb") as file, open(path, "ab"):
        return changes.is_written(file.fileno())


@pytest.mark.parametrize("kind", ["open", "mapped"])
def test_files_open_for_writing_are_not_mapped(path, writer, kind):
    if not detects_writers(path):
        pytest.skip(NO_LEASES)
    arr = open_dataset(path, **RAW)
    with dask.config.set(AT_REST):
        assert is_mapped(arr)
        process = writer(kind)
        assert not is_mapped(arr)
        process.communicate("\n", timeout=300)
        assert is_mapped(arr)


OPENS = """
import os, sys, time
waits = []
while len(waits) < 1000 or not os.path.exists(sys.argv[2]):
    start = time.monotonic()
    os.close(os.open(sys.argv[1], os.O_WRONLY))
    waits.append(time.monotonic() - start)
print(max(waits))
"""


def test_leases_do_not_block_writers(path, tmp_path):
    """Frequent leases neither delay processes that open the file, nor end one by a signal."""
    if not detects_writers(path):
        pytest.skip(NO_LEASES)
    enough, answers = tmp_path / "enough", set()
    command = [sys.executable, "-c", OPENS, str(path), str(enough)]
    with (
        open(path, "rb") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other,
    ):
        while other.poll() is None:
            answers |= {changes.is_written(file.fileno()) for _ in range(1000)}
            if answers == {False, True}:  # the other process had it open at times
                enough.touch()
        longest = float(other.stdout.read())
    assert longest < 20  # a lease that is never released blocks for 45 s


def test_without_leases_files_count_as_not_written(path, monkeypatch):
    """Leases are absent on other systems and for files of other users."""
    monkeypatch.setattr(changes, "_EXISTS", False)
    with open(path, "ab") as file:
        assert not changes.is_written(file.fileno())


# Leases

REVERSED = {**RAW, "dtype": ">u2", "chunks": -1}  # needs decoding


def test_leases_keep_writers_out_during_decoding(path, monkeypatch):
    """A non-blocking open for writing fails while pixels are decoded, and works afterwards."""
    if not detects_writers(path):
        pytest.skip(NO_LEASES)
    arr = open_dataset(path, **REVERSED)
    decode, refused = decoding.run_kernel, []

    def decode_and_open(*args):
        with pytest.raises(BlockingIOError):
            os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        refused.append(len(mapped._kept))
        decode(*args)

    monkeypatch.setattr(decoding, "run_kernel", decode_and_open)
    np.testing.assert_array_equal(arr.compute(), FRAMES.view(">u2"))
    assert refused == [1]
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("kind", ["open", "mapped"])
def test_without_a_lease_nothing_is_mapped(path, writer, kind):
    """A file already open for writing gets no lease."""
    if not detects_writers(path):
        pytest.skip(NO_LEASES)
    arr = open_dataset(path, **REVERSED)
    writer(kind)
    np.testing.assert_array_equal(arr.compute(), FRAMES.view(">u2"))
    assert not mapped._kept


def test_windows_without_a_lease_are_read(path, monkeypatch):
    asked = []

    @contextmanager
    def every_other(fd):
        asked.append(fd)
        yield errno.EAGAIN if len(asked) % 2 else 0

    monkeypatch.setattr(backends, "leased", every_other)
    monkeypatch.setattr(backends, "MAPPED_BYTES", 2 * FRAMES[0].nbytes)
    arr = open_dataset(path, **REVERSED)
    np.testing.assert_array_equal(arr.compute(), FRAMES.view(">u2"))
    assert len(asked) > 3


def test_hdf5_files_are_read_without_a_lease(tmp_path, monkeypatch):
    """h5py holds the GIL while it opens a file for writing, so that no lease could be released."""
    monkeypatch.setattr(backends, "leased", None)
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["frames"] = FRAMES
    arr = open_dataset(tmp_path / "scan.h5", chunks=-1)
    np.testing.assert_array_equal(arr.compute(), FRAMES)


# Network file systems

LOCAL = [
    "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
    "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,resv_strict",
    "30 1 0:41 / / rw shared:1 master:2 propagate_from:3 - overlay overlay rw,lowerdir=/a:/b",
    "31 1 0:42 /@home /home rw - btrfs /dev/sda2 rw,subvol=/@home",
    "33 1 0:44 / /tank rw - zfs nfs rw",
    "34 1 8:1 / /mnt/windows rw - fuseblk /dev/sda1 rw",
]
REMOTE = [
    "40 1 0:51 / /data rw,relatime - nfs4 server:/export rw,vers=4.2",
    "41 1 0:52 /a /mnt/two\\040words rw shared:9 - nfs server:/a\\040b rw",
    "42 1 0:53 / /home rw - cifs //server/home rw",
    "43 1 0:54 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw,flock",
    "46 1 0:57 / /mnt/ssh rw - fuse.sshfs me@host: rw,user_id=0",
    "48 1 0:59 / /mnt/some rw - fuse /dev/fuse rw,user_id=0",
    "49 1 0:60 / /shared rw - 9p shared rw,trans=virtio",
    "51 1 0:62 / /vm rw - virtiofs vm rw",
]


@pytest.mark.parametrize("line", LOCAL + REMOTE)
def test_mounts(line):
    device, kind = mounts.parse_mount(line + "\n")
    assert (kind in changes.REMOTE) == (line in REMOTE)
    assert "{}:{}".format(*device) == line.split()[2]


def test_mounts_of_this_machine_can_be_read(path):
    table = mounts.types()
    with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
        assert len(table) == len({line.split()[2] for line in lines})
    assert backends.is_remote(str(path)) in {True, False}
    assert not backends.is_remote("/no/such/file")


def test_without_mountinfo_files_are_local(path, monkeypatch):
    def fail(*_, **__):
        raise FileNotFoundError(errno.ENOENT, "no /proc")

    monkeypatch.setattr(changes, "_types", {})
    monkeypatch.setattr("builtins.open", fail)
    try:
        assert not backends.is_remote(str(path))
    finally:
        monkeypatch.undo()


@pytest.mark.parametrize(("kind", "mapped"), [("ext4", True), (None, True), ("nfs4", False)])
def test_network_files_are_mapped_only_on_request(path, monkeypatch, kind, mapped):
    device = path.stat().st_dev
    types = {} if kind is None else {(os.major(device), os.minor(device)): kind}
    monkeypatch.setattr(changes, "types", lambda: types)
    monkeypatch.setattr(changes, "_types", {})
    with dask.config.set(AT_REST):
        assert is_mapped(open_dataset(path, **RAW)) == mapped
        assert is_mapped(open_dataset(path, io="mmap", **RAW))
