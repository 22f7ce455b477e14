"""Exports of growing files equal the complete files, and are invisible until then."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import zarr

from dask_tiled import DatasetError, StaleFileError, open_dataset, to_zarr, verify_zarr
from dask_tiled.blocks import alignment
from dask_tiled.export.zarr import following
from dask_tiled.opened import growing
from dask_tiled.storing import folders
from dask_tiled.testing import counting_frames, write_mib_series, write_mrc, write_tvips

FRAMES = counting_frames((48, 8, 16), "uint16")
FRAME = FRAMES[0].nbytes
RAW = {"format": "raw", "dtype": "u2", "sig_shape": (8, 16), "follow": True}


class Acquisition:
    """A fake clock: each second of sleep triggers the next event."""

    def __init__(self, monkeypatch, path):
        self.path = path
        self.now = 0.0
        self.events = []
        monkeypatch.setattr(growing.time, "sleep", self.sleep)
        monkeypatch.setattr(growing.time, "monotonic", lambda: self.now)

    def append(self, frames, rest=0):
        """Write whole frames, and some bytes of the next one."""
        at = self.path.stat().st_size if self.path.exists() else 0
        stop = frames * FRAME + rest
        with self.path.open("ab") as file:
            file.write(FRAMES.tobytes()[at:stop])

    def sleep(self, _):
        self.now += 1
        if self.events:
            self.events.pop(0)()

    def then(self, *counts):
        self.events += [lambda n=n: self.append(n, rest=3 if n < 48 else 0) for n in counts]


@pytest.fixture
def acquisition(monkeypatch, tmp_path):
    monkeypatch.setattr(alignment, "TASK_BYTES", FRAME)  # little is written at once
    acquisition = Acquisition(monkeypatch, tmp_path / "scan.raw")
    acquisition.append(2, rest=7)
    return acquisition


def stored(path):
    return zarr.open_array(path, path="data", mode="r")[...].reshape(FRAMES.shape)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("nav", "options"),
    [
        (None, {"chunks": (2, -1, -1), "shards": (6, -1, -1)}),
        ((48,), {"chunks": (4, -1, -1)}),
        ((6, 8), {"chunks": (1, -1, -1, -1), "shards": (3, -1, -1, -1)}),
        ((6, 8), {}),
    ],
)
def test_chunks_are_written_once_and_shown_in_the_end(acquisition, tmp_path, written, nav, options):
    out = tmp_path / "out.zarr"
    early = []
    acquisition.then(5, 11, 12, 30, 47)
    acquisition.events.append(lambda: (acquisition.append(48), early.append(out.exists())))
    arr = open_dataset(acquisition.path, **RAW, nav_shape=nav)
    to_zarr(arr, out, follow=True, rest=30, layout="group", **options)
    assert early == [False]
    assert np.array_equal(stored(out), FRAMES)
    assert len(written) == len(set(written))
    assert sorted(os.listdir(tmp_path)) == ["out.zarr", "scan.raw"]
    assert acquisition.now > 30 if nav is None else acquisition.now < 10
    verify_zarr(out, arr.refresh())
    to_zarr(arr.refresh(), out, overwrite=True)
    assert np.array_equal(stored(out), FRAMES)


@pytest.mark.thorough
def test_growing_series(acquisition, tmp_path):
    members = write_mib_series(tmp_path / "a", FRAMES, frames_per_file=10, digits=2, hdr=False)
    content = [path.read_bytes() for path in members]
    for path in members[1:]:
        path.unlink()
    pairs = [*zip(members, content, strict=True)][1:]
    acquisition.events += [lambda path=p, data=d: path.write_bytes(data) for p, d in pairs]
    out = tmp_path / "out.zarr"
    to_zarr(open_dataset(members[0], follow=True), out, follow=True, chunks=(7, 8, 16))
    assert np.array_equal(stored(out), FRAMES)


@pytest.mark.parametrize("known", ["before", "along", "last"])
def test_a_number_of_frames_that_is_known_before_ends_the_export(acquisition, tmp_path, known):
    path = write_mrc(tmp_path / "a.mrc", FRAMES)
    content = path.read_bytes()

    def write(count):
        number = {"before": 48, "along": count, "last": 48 if count == 48 else 0}[known]
        head = content[:8] + number.to_bytes(4, "little") + content[12:1024]
        with path.open("r+b") as file:
            file.write(head + content[1024 : 1024 + count * FRAME])

    os.truncate(path, 1024)
    write(3)
    acquisition.events += [lambda n=n: write(n) for n in (10, 20, 40, 48)]
    out = tmp_path / "out.zarr"
    to_zarr(open_dataset(path, follow=True), out, follow=True, rest=50)
    assert np.array_equal(stored(out), FRAMES)
    assert (acquisition.now < 10) == (known == "before")


def test_names_of_axes_follow_later_frames(acquisition, tmp_path):
    """A TVIPS file has a time axis only if two frames show a step in time."""
    (path,) = write_tvips(tmp_path / "a", FRAMES)
    content, frame = path.read_bytes(), 108 + FRAME
    os.truncate(path, 256 + frame + 9)
    arr = open_dataset(path, nav_shape=(48,), follow=True)
    assert (arr.dims[0], len(arr.description.missing)) == ("frame", 47)

    def write():
        with path.open("ab") as file:
            file.write(content[256 + frame + 9 :])

    acquisition.events.append(write)
    out = to_zarr(arr, tmp_path / "out.zarr", follow=True)
    assert np.array_equal(out[...], FRAMES)
    assert out.metadata.dimension_names[0] == "time"


def test_missing_frames_are_filled_when_the_file_rests(acquisition, tmp_path):
    acquisition.then(13)
    arr = open_dataset(acquisition.path, **RAW, nav_shape=(6, 8), fill_value=9)
    with pytest.warns(UserWarning, match="35 of 48 frames are missing") as warned:
        to_zarr(arr, tmp_path / "out.zarr", follow=True)
    assert warned[0].filename == __file__
    found = stored(tmp_path / "out.zarr")
    assert np.array_equal(found[:13], FRAMES[:13])
    assert (found[13:] == 9).all()


def test_files_grow_while_rows_are_written(acquisition, tmp_path, monkeypatch):
    """Time spent on writing does not count as rest of the file."""
    write = following.write_blocks

    def slowly(*args, **options):
        acquisition.now += 20
        return write(*args, **options)

    monkeypatch.setattr(following, "write_blocks", slowly)
    acquisition.then(9, 22, 30, 48)
    arr = open_dataset(acquisition.path, **RAW, nav_shape=(48,))
    to_zarr(arr, tmp_path / "out.zarr", follow=True, chunks=(4, 8, 16))
    assert np.array_equal(stored(tmp_path / "out.zarr"), FRAMES)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def stopped(acquisition, out, nav=None, **options):
    """Follow until an interrupt."""
    acquisition.events.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        follow(acquisition, out, nav, **options)
    assert not out.exists()


def follow(acquisition, out, nav=None, **options):
    to_zarr(open_dataset(acquisition.path, **RAW, nav_shape=nav), out, follow=True, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("nav", [None, (48,)])
def test_interrupted_exports_are_resumed(acquisition, tmp_path, written, nav):
    out, options = tmp_path / "out.zarr", {"chunks": (4, 8, 1)}
    acquisition.then(9, 21)
    stopped(acquisition, out, nav, **options)
    assert len(written) == 5 * 16
    acquisition.then(30, 48)
    follow(acquisition, out, nav, **options)
    assert sorted(written) == sorted(f"data/c/{k}/0/{x}" for k in range(12) for x in range(16))
    assert np.array_equal(stored(out), FRAMES)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*frames are missing")
@pytest.mark.parametrize(
    ("nav", "chunks", "counts"), [(None, (4, 8, 16), (9, 22)), ((6, 8), (1, 8, 8, 16), ())]
)
def test_incomplete_last_chunks_are_written_again(
    acquisition, tmp_path, monkeypatch, nav, chunks, counts
):
    """A file that rested may have grown since, also before its first row was complete."""
    out = tmp_path / "out.zarr"
    acquisition.then(*counts)
    with monkeypatch.context() as patch:
        patch.setattr(folders, "_replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            follow(acquisition, out, nav, chunks=chunks)
    acquisition.then(48)
    follow(acquisition, out, nav, chunks=chunks)
    assert np.array_equal(stored(out), FRAMES)


@pytest.mark.thorough
def test_chunks_of_another_measurement_are_not_used(acquisition, tmp_path):
    """The other measurement has the same first frame and the same inode."""
    out, options = tmp_path / "out.zarr", {"chunks": (4, 8, 16)}
    acquisition.then(20)
    stopped(acquisition, out, **options)
    other = FRAMES.copy()
    other[1:] = FRAMES[1:][::-1]
    acquisition.path.write_bytes(other.tobytes())
    with pytest.warns(UserWarning, match="starts again") as warned:
        follow(acquisition, out, **options)
    assert warned[0].filename == __file__
    assert np.array_equal(stored(out), other)


@pytest.mark.parametrize("fault", ["cut off", "written anew", "replaced"])
def test_changed_files_end_the_export(acquisition, tmp_path, fault):
    def happens():
        if fault == "replaced":
            other = tmp_path / "other"
            other.write_bytes(FRAMES[::-1].tobytes())
            os.replace(other, acquisition.path)
        else:
            data = b"" if fault == "cut off" else FRAMES[::-1].tobytes()
            acquisition.path.write_bytes(data)

    acquisition.then(9)
    acquisition.events.append(happens)
    with pytest.raises((StaleFileError, DatasetError), match=r"scan\.raw"):
        to_zarr(open_dataset(acquisition.path, **RAW), tmp_path / "out.zarr", follow=True)
    assert not (tmp_path / "out.zarr").exists()


def test_exports_that_cannot_follow(acquisition, tmp_path):
    arr = open_dataset(acquisition.path, **RAW)
    for bad, options in ((arr[1:], {}), (arr + 1, {}), (arr, {"rest": 0}), (arr, {"rest": "1 s"})):
        with pytest.raises(DatasetError):
            to_zarr(bad, tmp_path / "out.zarr", follow=True, **options)
    with pytest.raises(DatasetError, match="only be exported to a local path"):
        to_zarr(arr, zarr.storage.MemoryStore(), follow=True)
    assert os.listdir(tmp_path) == ["scan.raw"]


WRITER = """
import sys, time
path, size = sys.argv[1], 256
content = open(path + ".all", "rb").read()
with open(path, "ab", buffering=0) as file:
    for at in range(0, len(content), 1000):
        file.write(content[at : at + 1000])
        time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_writing_process_is_followed(tmp_path):
    path = tmp_path / "scan.raw"
    (tmp_path / "scan.raw.all").write_bytes(FRAMES.tobytes())
    path.write_bytes(b"")
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as writer:
        while path.stat().st_size < FRAME:
            assert writer.poll() is None
        arr = open_dataset(path, **RAW, nav_shape=(6, 8))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            to_zarr(arr, tmp_path / "out.zarr", follow=True, rest=60)
    assert np.array_equal(stored(tmp_path / "out.zarr"), FRAMES)
