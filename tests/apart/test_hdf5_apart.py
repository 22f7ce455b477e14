"""HDF5: files that crash, hang or exhaust the library do no harm to the user's process."""

import operator
import os
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from checks import wait_for

from dask_tiled import CorruptFileError, DatasetError, describe, open_dataset
from dask_tiled.apart import calls
from dask_tiled.apart.calls import EndedError, apart
from dask_tiled.apart.child import BY_THE_CLOCK
from dask_tiled.files.paths import give_back

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

pytestmark = pytest.mark.thorough

DATA = np.arange(600, dtype="u2").reshape(10, 6, 10)
GENEROUS = (60, 1 << 30)


def write(path):
    with h5py.File(path, "w") as file:
        file["d"] = DATA
        file["d"].attrs["units"] = "counts"
        file["d"].attrs.update({f"number {k}": k for k in range(8)})
        for k in range(20):
            file[f"group/member {k}"] = k
    return path


def put(content, at, form, *values):
    struct.pack_into(form, content, at, *values)


def heap_object(content, size):
    put(content, content.find(b"GCOL") + 24, "<Q", size)


def heap_reference(content, length):
    heap = struct.pack("<Q", content.find(b"GCOL"))
    put(content, content.find(heap) - 4, "<I", length)


def tree(content, field, form, *values):
    put(content, content.find(b"TREE") + field, form, *values)


def continuation(content):
    """Make a block of messages continue with itself."""
    for at in range(0, len(content) - 24, 8):
        kind, size, _, where = struct.unpack_from("<HHIQ", content, at)
        if (kind, size) == (16, 16) and where < len(content):
            put(content, at + 8, "<Q", at)
            return
    raise AssertionError("no such message")


DEADLY = {
    "a heap whose objects go round": (heap_object, 2**64 - 16),
    "a heap of nothing": (heap_object, 0),
    "a text of 4 GiB": (heap_reference, 2**32 - 1),
    "a tree beside itself": (lambda c: tree(c, 16, "<Q", c.find(b"TREE")),),
    "a tree below itself": (lambda c: (tree(c, 5, "B", 1), tree(c, 32, "<Q", c.find(b"TREE"))),),
    "messages that go on with themselves": (continuation,),
    "a base beyond the file": (lambda c: put(c, 24, "<Q", 1 << 62),),
    "information of a driver beyond the file": (lambda c: put(c, 48, "<Q", 2**64 - 16),),
}


@pytest.mark.parametrize("name", DEADLY)
def test_deadly_files_give_pixels_or_an_error(tmp_path, capfd, name):
    """The error is typed, and the next file opens."""
    good = write(tmp_path / "good.h5")
    content = bytearray(good.read_bytes())
    change, *values = DEADLY[name]
    change(content, *values)
    path = tmp_path / "deadly.h5"
    path.write_bytes(content)
    try:
        desc = describe(path, dataset="d")
    except DatasetError as error:
        assert error.path == str(path)  # noqa: PT017
    else:
        np.testing.assert_array_equal(open_dataset(path, dataset="d"), DATA)
        assert desc.metadata["hdf5"]["facts_complete"] == ("heap" not in name)
    assert describe(good).metadata["hdf5"]["attributes"]["/d"]["units"] == "counts"
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_wait_for_a_writer_has_a_deadline(tmp_path, monkeypatch):
    """The library waits if metadata are damaged in a file that is marked as open."""
    path, copy = tmp_path / "a.h5", tmp_path / "copy.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("d", data=DATA, chunks=(1, 6, 10), maxshape=(None, 6, 10))
        file.swmr_mode = True
        file.flush()
        content = bytearray(path.read_bytes())
    copy.write_bytes(content)
    np.testing.assert_array_equal(open_dataset(copy), DATA)
    content[content.find(b"OHDR") + 8] ^= 0xFF
    copy.write_bytes(content)
    monkeypatch.setattr(calls, "BY_THE_CLOCK", BY_THE_CLOCK)
    with pytest.raises(CorruptFileError, match="the deadline was exceeded"):
        describe(copy)


def test_one_process_for_many_files(tmp_path, started):
    """A file that crashes the library does not end the process."""
    paths = [write(tmp_path / f"{k}.h5") for k in range(3)]
    content = bytearray(paths[1].read_bytes())
    DEADLY["a tree below itself"][0](content)
    paths[1].write_bytes(content)
    describe(paths[0])
    with pytest.raises(CorruptFileError, match="with signal"):
        describe(paths[1])
    describe(paths[2])
    assert len(started) == 1


def test_idle_processes_end_if_descriptors_are_scarce(tmp_path, started):
    path = write(tmp_path / "a.h5")
    describe(path)
    assert started[0].process.poll() is None
    give_back()
    assert started[0].process.poll() is not None
    assert describe(path).shape == DATA.shape
    assert len(started) == 2


@pytest.mark.slow
def test_few_idle_processes_are_kept(started, monkeypatch):
    monkeypatch.setattr(calls, "MOST_IDLE", 1)
    with apart(), apart():
        assert [child.process.poll() for child in started] == [None, None]
    assert sum(child.process.poll() is None for child in started) == 1


def test_limits_of_a_job(monkeypatch):
    """Jobs are limited in processor time, in elapsed time (ten times that), and in memory."""
    monkeypatch.setattr(calls, "BY_THE_CLOCK", BY_THE_CLOCK)
    for waste in (partial(sum, range(1 << 50)), partial(time.sleep, 3600)):
        with apart() as run, pytest.raises(EndedError, match="the deadline was exceeded"):
            run(0.1, 1 << 30, waste)
    with apart() as run, pytest.raises(MemoryError):
        run(60, 1 << 26, bytearray, 1 << 28)
    with apart() as run:
        assert len(run(*GENEROUS, bytes, 1 << 22)) == 1 << 22


def test_errors_are_passed_on():
    with apart() as run:
        with pytest.raises(KeyError, match="'name'"):
            run(*GENEROUS, operator.getitem, {}, "name")
        with pytest.raises(EndedError, match="with signal 6"):
            run(*GENEROUS, os.abort)
        assert run(*GENEROUS, abs, -1) == 1


INTERRUPT = "import os, time; os.kill({}, 2); time.sleep(3600)"


@pytest.fixture
def interrupts():
    """Make SIGINT raise KeyboardInterrupt: in the background of a shell it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_keyboard_interrupt_kills_the_process(tmp_path, started):
    """The wait ends at once, and the next file opens in a new process."""
    path = write(tmp_path / "a.h5")
    describe(path)
    with pytest.raises(KeyboardInterrupt), apart() as run:
        run(3600, 1 << 30, exec, INTERRUPT.format(os.getpid()))
    assert started[0].process.returncode == -signal.SIGKILL
    assert describe(path).shape == DATA.shape
    assert len(started) == 2


def test_killed_process_is_replaced(tmp_path, started):
    path = write(tmp_path / "a.h5")
    describe(path)
    for fork in (True, False):
        with apart() as run:
            os.kill(run(*GENEROUS, os.getpid) if fork else started[-1].process.pid, signal.SIGKILL)
            started[-1].process.wait()
        assert describe(path).shape == DATA.shape
    assert len(started) == 3


CLOSED = """
import os, sys
for number in (0, 1, 2):
    os.close(number)
import dask_tiled
os._exit(dask_tiled.open_dataset(sys.argv[1]).shape != (3, 4, 5))
"""


@pytest.mark.slow
def test_programs_without_standard_streams(tmp_path):
    """Pipes to the process may have the descriptors 0 to 2."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.zeros((3, 4, 5))
    done = subprocess.run([sys.executable, "-c", CLOSED, tmp_path / "a.h5"], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("executable", [None, "/none"])
def test_failure_to_start_a_process_raises(tmp_path, monkeypatch, executable):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.zeros((3, 4, 5))
    monkeypatch.setattr(calls, "_idle", [])
    monkeypatch.setattr("multiprocessing.spawn._python_exe", executable)
    with pytest.raises(DatasetError, match="cannot start a process"):
        open_dataset(tmp_path / "a.h5")


@pytest.mark.slow
def test_threads_open_files_at_once(tmp_path):
    paths = [write(tmp_path / f"{k}.h5") for k in range(12)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(describe, paths))
    assert [desc.files[0].path for desc in found] == [str(path) for path in paths]
    assert {desc.shape for desc in found} == {DATA.shape}


WAYS_TO_GO = """
import multiprocessing, os, signal, sys
import numpy
from dask_tiled.apart import calls
from dask_tiled.formats.hdf5 import descriptor

def look(path):
    assert descriptor.describe([path]).shape == (10, 6, 10)
    return [child.process.pid for child in calls._children]

if __name__ == "__main__":
    path, end = sys.argv[1:]
    own = look(path)
    pid = os.fork()
    if not pid:
        assert set(look(path)).isdisjoint(own)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    daemon = multiprocessing.get_context("spawn").Process(target=look, args=(path,), daemon=True)
    daemon.start()
    daemon.join()
    assert daemon.exitcode == 0
    assert look(path) == own
    print(*own, flush=True)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def is_running(pid):
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no list of processes")
@pytest.mark.parametrize("end", ["leaves", "killed"])
def test_forks_and_daemons_have_processes_of_their_own(tmp_path, end):
    """Processes end with their parent, and print nothing."""
    script, path = tmp_path / "script.py", write(tmp_path / "a.h5")
    script.write_text(WAYS_TO_GO)
    command = [sys.executable, "-W", "error", "-X", "dev", str(script), str(path), end]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0 if end == "leaves" else -signal.SIGKILL)
    (pid,) = map(int, done.stdout.split())
    wait_for(lambda: not is_running(pid))


def zipped(path, chunk, packed, others=()):
    """Write chunks that are marked as deflated."""
    with h5py.File(path, "w") as file:
        made = file.create_dataset(
            "d", (chunk * (1 + len(others)),), "u1", chunks=(chunk,), compression=1
        )
        for k, content in enumerate([packed, *others]):
            made.id.write_direct_chunk((k * chunk,), content)
    return path


def test_chunks_too_large_for_their_bytes_raise(tmp_path):
    """All chunks are checked at opening, each one before memory is allocated for it."""
    path = zipped(tmp_path / "a.h5", 1 << 30, bytes(1 << 19))
    with pytest.raises(CorruptFileError, match="too large for their stored bytes"):
        describe(path)
    path = zipped(tmp_path / "b.h5", 1 << 20, bytes(100), [bytes(5000)] * 2)
    with pytest.raises(CorruptFileError, match="at most 103200"):
        open_dataset(path)[: 1 << 20].compute()
