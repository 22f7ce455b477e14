"""Timepix3 streams: times, scans, the index, and real files against other readers."""

import os
import struct
import time

import numpy as np
import pytest
from checks import refused, refuses
from kinds import assert_equals_row, by_row, path_of, rows_of

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    TruncatedFileError,
    describe,
    events,
    open_dataset,
)
from dask_tiled.kernels.limits import INDEXED_BYTES
from dask_tiled.testing import write_tpx3

TICK = 1.5625e-9


def hits_of(frames, side, count=300, seed=0):
    """Return numbers of hits in random pixels, some of which are hit twice."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((frames, side, side), "u4")
    for frame in counts:
        y, x = rng.integers(0, side, (2, count))
        np.add.at(frame, (y, x), 1)
    return counts


FOUR, ONE = hits_of(12, 512), hits_of(12, 256)


@pytest.fixture
def path(tmp_path):
    return write_tpx3(tmp_path / "run.tpx3", FOUR)


@pytest.mark.parametrize(
    ("counts", "options"),
    [
        (FOUR, {}),
        (ONE, {"start": 40.0}),
        (FOUR, {"start": 20.0, "frame_time": 2.5}),
        (ONE, {"start": 20.0, "frame_time": 1.0, "heartbeats": False}),
        (FOUR, {"frame_time": 6.0, "heartbeats": False, "per_chunk": 300}),
        (ONE, {"frame_time": 3.3e-5}),
        (FOUR, {"frame_time": 1e-8}),
    ],
    ids=lambda one: str(one) if isinstance(one, dict) else f"{one.shape[-1]} pixels",
)
def test_time(tmp_path, counts, options):
    """Hits are out of order, times exceed the range of a hit, frames take seconds or ns."""
    path = write_tpx3(tmp_path / "run.tpx3", counts, **options)
    step = options.get("frame_time", 1e-3)
    arr = open_dataset(path, frame_time=step)
    assert arr.dims == ("t", "y", "x")
    assert arr.axes[0].scale == pytest.approx(step)
    if options.get("heartbeats", True):
        assert arr.axes[0].offset == pytest.approx(options.get("start", 0))
    np.testing.assert_array_equal(arr.compute(), counts)
    np.testing.assert_array_equal(arr.sum(axis=(1, 2)).compute(), counts.sum(axis=(1, 2)))
    np.testing.assert_array_equal(open_dataset(path).compute(), counts.sum(axis=0))


def test_hits_equal_those_of_rustpix(tmp_path):
    """It has steps of 25 ns, puts one chip at x = 258, and needs an edge before the hits."""
    rustpix = pytest.importorskip("rustpix", reason="rustpix is not installed")
    path = write_tpx3(tmp_path / "run.tpx3", ONE, line=1)
    theirs = rustpix.read_tpx3_hits(str(path)).to_numpy()
    found = events(path).compute()
    ours = np.stack([-(-found["time"] // 16), found["y"], found["x"] + 258, found["tot"]])
    theirs = np.stack([theirs[name].astype("i8") for name in ("timestamp", "y", "x", "tot")])
    np.testing.assert_array_equal(*(rows[:, np.lexsort(rows)] for rows in (ours, theirs)))


def test_late_heartbeats(tmp_path):
    """Times before the first heartbeat are shifted as well."""
    early = write_tpx3(tmp_path / "a.tpx3", FOUR[:6], start=30, heartbeats=False)
    late = write_tpx3(tmp_path / "b.tpx3", FOUR[6:], start=30.006)
    path = tmp_path / "run.tpx3"
    path.write_bytes(early.read_bytes() + late.read_bytes())
    arr = open_dataset(path, frame_time=1e-3)
    np.testing.assert_array_equal(arr.compute(), FOUR)
    assert arr.axes[0].offset == pytest.approx(30)
    times = events(arr)["time"].compute()
    assert times.min() == round(30 / TICK)


@pytest.mark.parametrize("fly_back", [0, 2e-4])
def test_scan(tmp_path, fly_back):
    """Lines begin at edges; hits of the fly-back are left out."""
    path = write_tpx3(tmp_path / "run.tpx3", FOUR, line=4, fly_back=fly_back)
    options = {"lines": "tdc1_rising", "nav_shape": (3, 4)}
    arr = open_dataset(path, frame_time=1e-3, **options)
    scan = FOUR.reshape(3, 4, 512, 512)
    assert arr.dims == ("scan_y", "scan_x", "y", "x")
    np.testing.assert_array_equal(arr.compute(), scan)
    np.testing.assert_array_equal(arr[1:, ::2, 7, 5:300:2].compute(), scan[1:, ::2, 7, 5:300:2])
    assert arr.metadata["tpx3"]["edges"]["tdc1_rising"] == 3
    shared = open_dataset(path, **options)
    assert shared.metadata["tpx3"]["frame_time"] == pytest.approx(1e-3 + fly_back / 4)
    by_time = open_dataset(path, frame_time=1e-3, nav_shape=(3, 4))
    if not fly_back:
        np.testing.assert_array_equal(shared.compute(), scan)
        np.testing.assert_array_equal(by_time.compute(), scan)


def test_edges_that_begin_pixels(tmp_path):
    path = write_tpx3(tmp_path / "run.tpx3", FOUR, line=1, fly_back=1e-3)
    arr = open_dataset(path, nav_shape=(12, 1), lines="tdc1_rising", frame_time=1e-3)
    np.testing.assert_array_equal(arr[:, 0].compute(), FOUR)


def test_time_over_threshold(path):
    arr = open_dataset(path, frame_time=1e-3, values="tot")
    weights = 1 + np.arange(512, dtype="u8") % 1000
    np.testing.assert_array_equal(arr.compute(), FOUR * weights)
    assert arr.description.units == "25 ns"


def test_events(path):
    arr = open_dataset(path, frame_time=1e-3)
    listed = events(arr[3:5])
    assert listed.shape == (FOUR.sum(),)
    assert listed.dtype.names == ("time", "y", "x", "tot", "chip")
    found = listed.compute()
    counts = np.zeros_like(FOUR)
    frame = ((found["time"] - found["time"].min()) * TICK // 1e-3).astype(int)
    np.add.at(counts, (frame, found["y"], found["x"]), 1)
    np.testing.assert_array_equal(counts, FOUR)
    assert (found["tot"] == 1 + found["x"] % 1000).all()
    chips = np.array([[3, 0], [2, 1]])
    assert (found["chip"] == chips[found["y"] // 256, found["x"] // 256]).all()
    assert events(path).name == events(open_dataset(path)).name
    with pytest.raises(DatasetError, match="has no events"):
        events(np.zeros(3))


def test_many_blocks(tmp_path, monkeypatch):
    """Blocks of the index hold 32,768 hits each; chunks of the list end between them."""
    counts = hits_of(20, 256, 10_000)
    path = write_tpx3(tmp_path / "run.tpx3", counts, per_chunk=3000)
    assert path.stat().st_size > 5 * INDEXED_BYTES
    arr = open_dataset(path, frame_time=1e-3, chunks=(3, 100, -1))
    np.testing.assert_array_equal(arr.compute(), counts)
    np.testing.assert_array_equal(arr[::7, 3].compute(), counts[::7, 3])
    monkeypatch.setattr("dask_tiled.opening.event_lists.CHUNK_BYTES", 1 << 20)
    listed = events(path)
    assert listed.npartitions > 3
    assert len(listed.compute()) == counts.sum()


def test_no_hits(tmp_path):
    path = tmp_path / "run.tpx3"
    path.write_bytes(b"TPX3\x00\x00\x10\x00" + struct.pack("<QQ", 0x4400000E22890038, 0x45 << 56))
    assert open_dataset(path).shape == (256, 256)
    for options in {}, {"frame_time": 1e-3}:
        assert not open_dataset(path, **options).compute().any()
    assert events(path).compute().shape == (0,)
    refuses(path, "too few edges", detailed=True, lines="tdc2_falling", nav_shape=(2, 2))


def test_saved_index(path):
    """A saved index is used if it fits the file, and replaced otherwise."""
    beside = path.with_name("run.tpx3.index.npz")
    open_dataset(path, frame_time=1e-3)
    assert not beside.exists()
    arr = open_dataset(path, frame_time=1e-3, save_index=True)
    content = beside.read_bytes()
    np.testing.assert_array_equal(arr.compute(), FOUR)
    again = open_dataset(path, frame_time=1e-3, save_index=True)
    assert again.name == arr.name
    for damaged in b"", b"PK", content[:-30], content[:100] + bytes(50) + content[150:]:
        beside.write_bytes(damaged)
        assert open_dataset(path, frame_time=1e-3, save_index=True).name == arr.name
    for at in range(len(content) - 22, len(content)):  # the offsets of its parts
        beside.write_bytes(content[:at] + bytes([content[at] ^ 0x80]) + content[at + 1 :])
        assert open_dataset(path, frame_time=1e-3, save_index=True).name == arr.name
    write_tpx3(path, FOUR[:5])
    arr = open_dataset(path, frame_time=1e-3, save_index=True)
    np.testing.assert_array_equal(arr.compute(), FOUR[:5])


def test_saved_index_of_a_file_with_the_same_size_and_time(path):
    before = path.stat()
    open_dataset(path, frame_time=1e-3, save_index=True)
    time.sleep(0.02)  # the steps of times in many file systems
    write_tpx3(path, FOUR[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    arr = open_dataset(path, frame_time=1e-3, save_index=True)
    np.testing.assert_array_equal(arr.compute(), FOUR[::-1])


def test_index_that_cannot_be_saved_raises(path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    beside = path.with_name("run.tpx3.index.npz")
    with refused(beside, "the index cannot be saved next to the scan"):
        open_dataset(path, save_index=True)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"frame_time": 0}, "invalid frame_time"),
        ({"frame_time": 1e-10}, "invalid frame_time"),
        ({"frame_time": float("nan")}, "invalid frame_time"),
        ({"frame_time": "1 ms"}, "invalid frame_time"),
        ({"lines": "tdc1"}, "no such edge"),
        ({"lines": ["tdc1_rising"]}, "no such edge"),
        ({"lines": "tdc1_rising"}, "lines need the shape of the scan"),
        ({"lines": "tdc1_rising", "nav_shape": (-1, 4)}, "lines need the shape of the scan"),
        ({"lines": "tdc1_rising", "nav_shape": (3, 4)}, "too few edges"),
        ({"values": "energy"}, "invalid values"),
        ({"sig_shape": (256, 256)}, "unsupported shape"),
        ({"sig_shape": (512, 256)}, "unsupported shape"),
        ({"cut": 2}, "invalid cut"),
        ({"save_index": "yes"}, "invalid save_index"),
        ({"follow": True}, "a stream is followed frame by frame"),
    ],
    ids=str,
)
def test_invalid_options_raise(path, options, match):
    refuses(path, match, **options)


def test_one_chip_of_four(tmp_path):
    path = write_tpx3(tmp_path / "run.tpx3", ONE)
    arr = open_dataset(path, sig_shape=(512, 512))
    expected = np.zeros((512, 512), "u4")
    expected[:256, 256:] = ONE.sum(axis=0)
    np.testing.assert_array_equal(arr.compute(), expected)


def test_too_many_frames_raise(tmp_path):
    path = write_tpx3(tmp_path / "run.tpx3", ONE, frame_time=2000)
    refuses(path, "too many frames", detailed=True, frame_time=2e-9)


def test_truncated_files(path):
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    with refused(path, "ends inside a chunk", TruncatedFileError, detailed=True) as caught:
        open_dataset(path)
    assert "cut=True" in caught.value.hint
    arr = open_dataset(path, cut=True)
    assert arr.metadata["tpx3"]["lacking_bytes"] == 20
    assert arr.metadata["tpx3"]["hits"] == FOUR.sum() - 3
    assert arr.sum().compute() == FOUR.sum() - 3
    refuses(path, "ends inside a chunk", TruncatedFileError, content=content + b"TPX3")
    path.write_bytes(b"TPX3\0")
    for options in {}, {"cut": True}:
        refuses(path, kind=TruncatedFileError, format="tpx3", **options)


def test_damaged_headers_raise(path):
    content = path.read_bytes()
    at = content.index(b"TPX3", 8)
    for place, value in [(at, 0), (at + 4, 9), (at + 6, 4)]:
        changed = bytearray(content)
        changed[place] = value
        path.write_bytes(changed)
        with refused(path, "no chunk begins", CorruptFileError, detailed=True) as caught:
            open_dataset(path)
        assert caught.value.where == f"byte {at}"


def test_hits_without_times_raise(path):
    content = bytearray(path.read_bytes())
    words = np.frombuffer(content, "<u8")
    changed = np.where(words >> 60 == 0xB, words - (1 << 60), words)
    refuses(path, "hits without times", detailed=True, content=changed.tobytes())


@by_row(rows_of("tpx3"))
def test_real_file(row):
    path = path_of(row)
    assert_equals_row(open_dataset(path).compute(), row)
    desc = describe(path)
    notes = dict(part.strip().rsplit(" ", 1) for part in row["note"].split(";")[1:2])
    assert notes == {"hits": str(desc.metadata["tpx3"]["hits"])}
    hits = events(path).compute()
    total = row["note"].partition("units of 25 ns: ")[2].partition(")")[0]
    assert hits["tot"].sum(dtype="i8") == int(total)
