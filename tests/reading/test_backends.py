"""Backends: each reads the same bytes in bounded memory, or raises a typed error."""

import errno
import mmap
import os
import sys

import dask
import numpy as np
import pytest
from checks import open_files, ran, refused
from hypothesis import given
from hypothesis import strategies as st
from strategies import cuts

from dask_tiled import DatasetError, StaleFileError, open_dataset
from dask_tiled.engine.folding import FrameSink
from dask_tiled.files.file import File
from dask_tiled.model.requests import DEPTH, DONE, FD, IN_MEMORY
from dask_tiled.reading import backend, backends, buffered, descriptors, mapped
from dask_tiled.reading import decoding as reading_module
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.reading.buffered import ALIGNMENT
from dask_tiled.reading.limits import BUFFERED_BYTES
from dask_tiled.system import files
from dask_tiled.testing import counting_frames, write_mib, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

EVERY_BACKEND = pytest.mark.parametrize("io", BACKENDS)
READING = pytest.mark.parametrize("io", ["buffered", "direct"])
FRAMES = counting_frames((9, 16, 16), "u2")
# Neither native byte order, whose tiles would be views, nor aligned.
RAW = {"format": "raw", "dtype": ">u2", "sig_shape": (16, 16), "frame_header": 3}


@pytest.fixture(autouse=True)
def no_idle_descriptors():
    """Close idle file descriptors before and after each test."""
    close_idle()
    yield
    close_idle()


def close_idle():
    while descriptors._idle:
        os.close(descriptors._idle.popleft()[1])


@pytest.fixture
def path(tmp_path):
    return write_raw(tmp_path / "scan.raw", FRAMES.astype(">u2"), frame_header=3)


def test_few_bytes_cost_few_questions_about_a_file(path, monkeypatch):
    """Where an open file hinders others, it is opened and checked by its descriptor only."""
    monkeypatch.setattr(backends, "HINDERS", True)
    monkeypatch.setattr(descriptors, "HINDERS", True)
    asked, look = [], File._found
    monkeypatch.setattr(backends, "rests", lambda *_: pytest.fail("asked whether the file rests"))
    monkeypatch.setattr(File, "_found", lambda file: asked.append(file) or look(file))
    arr = open_dataset(path, **RAW)
    asked.clear()
    np.testing.assert_array_equal(arr[4].compute(), FRAMES[4])
    assert not asked
    path.unlink()
    with pytest.raises(StaleFileError, match="removed"):
        arr[4].compute()
    assert len(asked) == 1


# Equal results


@pytest.mark.thorough
@given(data=st.data())
def test_every_layout_through_every_backend(layouts, data):
    """All backends agree for any slice and any block size."""
    options, frames = layouts[data.draw(st.sampled_from(sorted(layouts)), label="layout")]
    count = len(frames)
    places = st.lists(st.integers(0, count - 1), min_size=1, max_size=20)
    roi = data.draw(st.none() | places, label="roi")
    expected = frames if roi is None else frames[roi]
    index = data.draw(cuts(expected.shape), label="index")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffered, "KERNEL_BYTES", data.draw(st.sampled_from([1, 100, 5000])))
        patch.setattr(buffered, "BUFFERED_BYTES", data.draw(st.sampled_from([1, 100, 5000])))
        patch.setattr(buffered, "REQUESTED_BYTES", data.draw(st.sampled_from([1, 4096, 10_000])))
        window = data.draw(st.sampled_from([1, 4096, 10_000]))
        for name in ("MAPPED_BYTES", "KEPT_WINDOW_BYTES"):
            patch.setattr(mapped, name, window)
        patch.setattr(mapped, "KEPT_BYTES", data.draw(st.sampled_from([0, 1 << 30])))
        patch.setattr(backend, "POPULATED_BYTES", data.draw(st.sampled_from([4096, 1 << 18])))
        patch.setattr(backend, "OPEN_FILES", data.draw(st.sampled_from([1, 2])))
        for io in ["auto", "at rest", *BACKENDS]:
            kind = "auto" if io == "at rest" else io
            arr = open_dataset(**options, nav_shape=(count,), roi=roi, io=kind)
            seconds = 0 if io == "at rest" else 60
            with dask.config.set({"dask-tiled.rest-seconds": seconds}):
                found = arr[index].compute()
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected[index], err_msg=io)


# Memory


def sparse(path, nbytes):
    """Write a large file that takes no disk space."""
    with path.open("wb") as stream:
        stream.truncate(nbytes)
    return path


def large_files(folder):
    """Yield names, open functions and unit sizes of files whose frames exceed a block."""
    size = 1024  # frames of 2 MiB and more
    raw = {"format": "raw", "sig_shape": (size, size), "nav_shape": (3,)}
    path = sparse(folder / "scan.raw", 3 * size * size * 2)
    yield "raw", lambda io: open_dataset(path, dtype=">u2", io=io, chunks=-1, **raw), 2
    shape = (2, 3, 1000, 700)
    fortran = folder / "scan.npy"
    np.lib.format.open_memmap(fortran, "w+", ">u2", shape, fortran_order=True).flush()
    yield "npy", lambda io: open_dataset(fortran, io=io, chunks=-1), 2
    frame = np.zeros((1024, 2048), "u2")
    quad = write_mib(folder / "quad.mib", [frame], kind="R64", depth=12, quad=True, hdr=False)
    yield "quad", lambda io: open_dataset(quad, io=io, chunks=-1), 8
    one = write_mib(folder / "one.mib", [frame], kind="R64", depth=24, hdr=False)
    yield "24 bit", lambda io: open_dataset(one, io=io, chunks=-1), 8 + frame.nbytes


@READING
def test_buffers_are_about_a_block(tmp_path, monkeypatch, io):
    """Each read uses one buffer of a block and one unit, for any slice of large frames."""
    sizes = []
    allocate = buffered._aligned

    def spy(size):
        sizes.append(size)
        return allocate(size)

    monkeypatch.setattr(buffered, "_aligned", spy)
    for name, opened, unit in large_files(tmp_path):
        arr = opened(io)
        for index in (
            np.s_[...],
            np.s_[..., 1::2],
            np.s_[..., 3:-5],
            np.s_[..., 5],
            np.s_[..., 5, :],
        ):
            sizes.clear()
            arr[index].compute()
            assert sizes, name
            assert max(sizes) <= BUFFERED_BYTES + unit + 2 * ALIGNMENT, (name, index)
            assert len(sizes) == 1, (name, index)


def test_maps_are_bounded(path, monkeypatch):
    """Large files are mapped in parts: touched pages count as memory of the process."""
    sizes = []

    class Spy(mmap.mmap):
        def __new__(cls, fileno, length, **options):
            sizes.append(length)
            return super().__new__(cls, fileno, length, **options)

    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1500)
    monkeypatch.setattr(mapped, "KEPT_BYTES", path.stat().st_size - 1)
    monkeypatch.setattr(backend.mmap, "mmap", Spy)
    arr = open_dataset(path, io="mmap", chunks=-1, **RAW)
    assert arr.npartitions == 1
    np.testing.assert_array_equal(arr.compute(), FRAMES)
    assert len(sizes) > 1
    assert max(sizes) <= 1500 + mmap.ALLOCATIONGRANULARITY


@READING
def test_short_reads_are_continued(path, monkeypatch, io):
    read = files.preadv
    least = 1 if io == "buffered" else ALIGNMENT  # direct reads stay aligned

    def little(fd, views, offset):
        return read(fd, [view[: max(least, 7)] for view in views], offset)

    monkeypatch.setattr(buffered, "preadv", little)
    np.testing.assert_array_equal(open_dataset(path, io=io, **RAW).compute(), FRAMES)


# Errors


@READING
def test_read_errors_name_the_file(path, monkeypatch, io):
    arr = open_dataset(path, io=io, **RAW)

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = open_files(path.parent)
    monkeypatch.setattr(buffered, "preadv", fail)
    with pytest.raises(OSError, match=r"scan\.raw") as caught:
        arr.compute()
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(path)
    monkeypatch.undo()
    assert open_files(path.parent) <= before  # the failed descriptor is closed
    np.testing.assert_array_equal(arr.compute(), FRAMES)


def refuse_direct(monkeypatch, folder=""):
    """Make direct reads fail below a folder."""
    real = os.open

    def open_file(path, flags, *args, **options):
        if flags & os.O_DIRECT and str(path).startswith(str(folder)):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(descriptors, "open_file", open_file)


def test_unsupported_direct_reads_are_refused(path, monkeypatch):
    """Opening raises an error that names the alternative."""
    refuse_direct(monkeypatch)
    with refused(path, "direct reads") as caught:
        open_dataset(path, io="direct", **RAW)
    assert "O_DIRECT" in caught.value.expected
    assert "Invalid argument" in caught.value.found
    assert "io='buffered'" in caught.value.hint
    for io in ("auto", "mmap", "buffered"):
        np.testing.assert_array_equal(open_dataset(path, io=io, **RAW).compute(), FRAMES)


def test_direct_reads_of_a_series_on_two_file_systems(tmp_path, monkeypatch):
    """The error names the file that does not support direct reads."""
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        frames = FRAMES.astype(">u2")
        paths.append(write_raw(tmp_path / name / "scan.raw", frames, frame_header=3))
    refuse_direct(monkeypatch, tmp_path / "b")
    with refused(paths[1], "direct reads"):
        open_dataset(paths, io="direct", **RAW).compute()


def test_systems_without_direct_reads(path, monkeypatch):
    monkeypatch.setattr(descriptors, "DIRECT", None)
    with pytest.raises(DatasetError, match="direct reads"):
        open_dataset(path, io="direct", **RAW)


# Reads by kernels


@READING
@pytest.mark.parametrize("nbytes", [1, 2000, 5000, 1 << 20])
def test_kernels_read_frames_in_any_order(path, monkeypatch, io, nbytes):
    """Sums are right for any request size, frame order and reduction axes."""
    monkeypatch.setattr(buffered, "KERNEL_BYTES", nbytes)
    frames = FRAMES.reshape(3, 3, 16, 16)
    arr = open_dataset(path, io=io, nav_shape=(3, 3), chunks=-1, **RAW)
    for index in np.s_[...], np.s_[::-1], np.s_[:, ::-2], np.s_[..., 4:8, :], np.s_[..., 3]:
        part, wanted = arr[index], frames[index]
        for axes in (0, (0, 1), tuple(range(2, part.ndim))):
            np.testing.assert_array_equal(part.sum(axis=axes).compute(), wanted.sum(axis=axes))


def test_frames_that_share_results_are_read_at_once(path, monkeypatch):
    """Four frames of a sum by pixel are read at once, if they fit into a block."""
    monkeypatch.setattr(buffered, "KERNEL_BYTES", 1)
    depths, take = [], FrameSink.take_window

    def spy(sink, window):
        depths.append(int(window.request[DEPTH]))
        return take(sink, window)

    monkeypatch.setattr(FrameSink, "take_window", spy)
    arr = open_dataset(path, io="buffered", chunks=-1, **RAW)
    for axes in 0, (1, 2):
        np.testing.assert_array_equal(arr.sum(axis=axes).compute(), FRAMES.sum(axis=axes))
    monkeypatch.setattr(buffered, "BUFFERED_BYTES", 600)
    arr.sum(axis=0).compute()
    assert depths == [4, 1, 1]


def break_kernel_reads(monkeypatch, times):
    """Make kernels read from an invalid descriptor."""
    calls, take = [], FrameSink.take_window

    def bad(sink, window):
        if len(calls) < times and window.request is not IN_MEMORY:
            calls.append(window.request[DONE])
            window.request[FD] = 1 << 30
        return take(sink, window)

    monkeypatch.setattr(FrameSink, "take_window", bad)
    return calls


@READING
def test_failed_kernel_reads_are_retried(path, monkeypatch, io):
    monkeypatch.setattr(buffered, "REQUESTED_BYTES", 2000)
    calls = break_kernel_reads(monkeypatch, 1)
    found = open_dataset(path, io=io, chunks=-1, **RAW).sum(axis=0).compute()
    np.testing.assert_array_equal(found, FRAMES.sum(axis=0))
    assert calls


@READING
def test_kernel_errors_name_the_file(path, monkeypatch, io):
    arr = open_dataset(path, io=io, chunks=-1, **RAW).sum(axis=0)
    break_kernel_reads(monkeypatch, 9)
    with pytest.raises(OSError, match=r"scan\.raw") as caught:
        arr.compute()
    assert caught.value.errno == errno.EIO


@READING
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("change", ["touch", "rewrite", "grow", "shrink"])
def test_files_changed_before_a_kernel_reads(path, monkeypatch, io, at, change):
    monkeypatch.setattr(buffered, "REQUESTED_BYTES", 2000)
    arr = open_dataset(path, io=io, chunks=-1, **RAW).sum(axis=0)
    calls, take = [], FrameSink.take_window

    def change_and_take(sink, window):
        if len(calls) == at:
            globals()[change](path)
        calls.append(window)
        return take(sink, window)

    monkeypatch.setattr(FrameSink, "take_window", change_and_take)
    with refused(path, kind=StaleFileError):
        arr.compute()
    assert len(calls) > at


# Changing files


def touch(path):
    os.utime(path, ns=(0, 10**18))


def rewrite(path):
    with open(path, "r+b") as stream:
        stream.write(b"\xff" * 1000)
    touch(path)


def grow(path):
    with open(path, "ab") as stream:
        stream.write(b"more")


def shrink(path):
    os.truncate(path, os.path.getsize(path) // 2)


def vanish(path):
    os.unlink(path)


def replace(path):
    with open(path, "rb") as stream:
        content = stream.read()
    with open(f"{path}.new", "wb") as stream:
        stream.write(content)
    os.replace(f"{path}.new", path)


CHANGES = [touch, rewrite, grow, shrink, vanish, replace]


@EVERY_BACKEND
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("warm", [False, True])
def test_files_changed_between_open_and_compute(path, io, change, warm):
    """Changes raise, also while a descriptor of the old file is open."""
    arr = open_dataset(path, io=io, **RAW)
    if warm:
        arr.compute()
        assert len(descriptors._idle) == (not files.HINDERS)
    change(path)
    for part in (arr, arr[3], arr[..., 2, 2]):
        with refused(path, kind=StaleFileError):
            part.compute()


@EVERY_BACKEND
@pytest.mark.parametrize("change", [touch, rewrite, grow], ids=lambda f: f.__name__)
def test_files_changed_during_compute(path, monkeypatch, io, change):
    arr = open_dataset(path, io=io, chunks=-1, **RAW)
    run, calls = reading_module.run_kernel, []

    def run_and_change(*args):
        run(*args)
        if not calls:
            change(path)
        calls.append(args)

    monkeypatch.setattr(reading_module, "run_kernel", run_and_change)
    with refused(path, kind=StaleFileError):
        arr.compute()
    assert calls
    assert not descriptors._idle


@READING
@pytest.mark.parametrize("at", [0, 1])
def test_files_shortened_during_compute(path, monkeypatch, io, at):
    """The file may shrink between the check of its size and a read."""
    monkeypatch.setattr(buffered, "BUFFERED_BYTES", 600)
    arr = open_dataset(path, io=io, chunks=-1, **RAW)
    read, calls = files.preadv, []

    def change_and_read(*args):
        if len(calls) == at:
            shrink(path)
        calls.append(args)
        return read(*args)

    monkeypatch.setattr(buffered, "preadv", change_and_read)
    with refused(path, kind=StaleFileError):
        arr.compute()
    assert len(calls) > at


@EVERY_BACKEND
@pytest.mark.parametrize("change", [vanish, replace], ids=lambda f: f.__name__)
def test_files_removed_or_replaced_during_compute(path, monkeypatch, io, change):
    """A chunk that has the file open is completed; the next raises."""
    arr = open_dataset(path, io=io, chunks=-1, **RAW)
    run, calls = reading_module.run_kernel, []

    def change_and_run(*args):
        if not calls:
            change(path)
        calls.append(args)
        run(*args)

    monkeypatch.setattr(reading_module, "run_kernel", change_and_run)
    np.testing.assert_array_equal(arr.compute(), FRAMES)
    with pytest.raises(StaleFileError):
        arr.compute()


# Descriptors


def test_idle_descriptors_are_used_again(path, monkeypatch):
    arr = open_dataset(path, chunks=(2, -1, -1), **RAW)
    opens, real = [], os.open
    monkeypatch.setattr(
        descriptors, "open_file", lambda *args, **kw: opens.append(args[0]) or real(*args, **kw)
    )
    for _ in range(3):
        arr.compute()
    assert opens.count(str(path)) == len(descriptors._idle) == 2  # for the map and the lease


def test_direct_descriptors_are_separate(path):
    """Descriptors opened with O_DIRECT are reused only by direct reads."""
    for io in ("direct", "buffered", "direct", "mmap"):
        arr = open_dataset(path, io=io, **RAW)
        np.testing.assert_array_equal(arr.compute(), FRAMES)
    assert len(descriptors._idle) == 2


@pytest.mark.thorough
@EVERY_BACKEND
def test_threads_share_descriptors(tmp_path, io):
    """Eight threads that borrow descriptors at once read correct pixels."""
    paths = [write_raw(tmp_path / f"{i}.raw", FRAMES[i : i + 1].astype(">u2")) for i in range(9)]
    arr = open_dataset(paths, **{**RAW, "frame_header": 0}, io=io, chunks=(1, 4, 16))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with dask.config.set(scheduler="threads", num_workers=8):
            for _ in range(10):
                np.testing.assert_array_equal(arr.compute(), FRAMES)
    finally:
        sys.setswitchinterval(interval)
    assert len(descriptors._idle) <= descriptors.IDLE_DESCRIPTORS


def test_descriptors_changed_during_iteration(tmp_path, monkeypatch):
    class Changing(type(descriptors._idle)):
        def __iter__(self):
            raise RuntimeError("deque mutated during iteration")

    monkeypatch.setattr(descriptors, "_idle", Changing())
    path = write_raw(tmp_path / "a.raw", FRAMES.astype(">u2"))
    arr = open_dataset(path, **{**RAW, "frame_header": 0})
    assert arr[0].compute().shape == FRAMES.shape[1:]
    for _, fd in (descriptors._idle.pop() for _ in range(len(descriptors._idle))):
        os.close(fd)


FORKS = """
import os, sys
import dask
import numpy as np
import dask_tiled
from dask_tiled.reading import descriptors

path, io = sys.argv[1:]
dask.config.set(scheduler="synchronous")
arr = dask_tiled.open_dataset(
    path, "raw", dtype=">u2", sig_shape=(16, 16), frame_header=3, io=io, chunks=(2, -1, -1)
)
expected = arr.compute()  # descriptors are open, kernels compiled
((_, fd),) = descriptors._idle
os.lseek(fd, 7, os.SEEK_SET)  # a shared open file would show this position, and share leases
children = []
for _ in range(2):
    child = os.fork()
    if not child:
        same = all(np.array_equal(arr.compute(), expected) for _ in range(5))
        ((_, own),) = descriptors._idle
        os._exit(0 if same and os.lseek(own, 0, os.SEEK_CUR) == 0 else 1)
    children.append(child)
for _ in range(5):
    assert np.array_equal(arr.compute(), expected)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 2
"""


@pytest.mark.slow
def test_forks_have_their_own_descriptors(path):
    """Forks open files anew: a shared open file would share leases."""
    ran(FORKS, path, "buffered")


@EVERY_BACKEND
@pytest.mark.usefixtures("nothing_kept")
def test_errors_leak_no_descriptors(path, io):
    arr = open_dataset(path, io=io, **RAW)
    arr.compute()
    before = open_files(path.parent)
    content = path.read_bytes()
    for change in (touch, shrink, vanish):
        path.write_bytes(content)
        arr = open_dataset(path, io=io, **RAW)
        change(path)
        for _ in range(3):
            with pytest.raises(StaleFileError):
                arr.compute()
    assert open_files(path.parent) - len(descriptors._idle) == before - 1


@EVERY_BACKEND
def test_file_replaced_by_a_pipe_does_not_block(path, io):
    arr = open_dataset(path, io=io, **RAW)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StaleFileError):
        arr.compute()
