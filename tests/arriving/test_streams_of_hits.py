"""Timepix3 streams that are followed: complete frames, late hits, and damaged streams."""

import itertools
import struct
import threading
import warnings
from contextlib import suppress

import numpy as np
import pytest
from checks import refused
from hypothesis import example, given
from hypothesis import strategies as st

import dask_tiled
from dask_tiled.arriving.computation import Arriving
from dask_tiled.files.file import at_rest
from dask_tiled.formats.tpx3.index import SPAN
from dask_tiled.kernels.tpx3 import HitIndexer
from dask_tiled.storing.places import Place
from dask_tiled.testing.playing import sending

pytestmark = pytest.mark.thorough

TICK = 1.5625e-9
STEP = 2 * SPAN
"""Ticks of a frame: the next one is complete when the one after it has begun."""
NAV = ROWS, COLUMNS = 5, 4
SCAN = {"frame_time": STEP * TICK, "nav_shape": NAV}
LINES = {**SCAN, "lines": "tdc1_rising"}
ROW = COLUMNS * STEP


def hit_words(time, y, x):
    """Return hits of one chip, with a time over threshold of 1 + x."""
    time, y, x = (np.asarray(one, np.int64) for one in (time, y, x))
    coarse = -(-time // 16)
    address = (x >> 1 << 9) | (y >> 2 << 3) | ((x & 1) << 2) | (y & 3)
    word = (address << 44) | ((coarse & 0x3FFF) << 30) | ((1 + x) << 20)
    word |= ((coarse * 16 - time) << 16) | ((coarse >> 14) & 0xFFFF)
    return word.astype("<u8").reshape(-1) | np.uint64(0xB << 60)


def edge_word(time):
    """Return a rising edge of TDC 1."""
    time = int(time)
    return np.array([(0x6F << 56) | (time >> 1 << 9) | ((1 + 6 * (time & 1)) << 5)], "<u8")


def heartbeat(time):
    """Return both words of a heartbeat."""
    timer = time >> 4
    low, high = (0x44 << 56) | (timer & 0xFFFFFFFF) << 16, (0x45 << 56) | (timer >> 32) << 16
    return np.array([low, high], "<u8")


def chunk(words, chip=0):
    return b"TPX3" + bytes([chip, 0]) + struct.pack("<H", 8 * len(words)) + words.tobytes()


def chunks_of(words, per_chunk):
    return [chunk(words[k : k + per_chunk]) for k in range(0, len(words), per_chunk)]


class Scan:
    """Hits at random times of a scan, out of order within a span; counts are made from the same.

    Parameters
    ----------
    late : int
        Ticks by which hits come late at most.
    fly_back : int
        Ticks between two lines.
    """

    def __init__(self, seed, count=600, late=SPAN // 2, fly_back=0, start=1000):
        rng = np.random.default_rng(seed)
        frame = np.sort(rng.integers(0, ROWS * COLUMNS, count))
        frame[0] = 0
        lines = start + np.arange(ROWS) * (ROW + fly_back)
        within = rng.integers(0, STEP, count)
        within[0] = 0
        time = lines[frame // COLUMNS] + frame % COLUMNS * STEP + within
        y, x = rng.integers(0, 256, (2, count))
        self.counts = np.zeros((ROWS * COLUMNS, 256, 256), "u4")
        np.add.at(self.counts, (frame, y, x), 1)
        self.counts = self.counts.reshape(*NAV, 256, 256)
        self.tot = self.counts * np.arange(1, 257, dtype="u8")
        words = [*hit_words(time, y, x).reshape(-1, 1), *map(edge_word, lines)]
        due = np.concatenate([time + rng.integers(0, late + 1, count), lines])
        self.words = np.concatenate([words[k] for k in np.argsort(due, kind="stable")])


class Growing:
    """A stream that is written piece by piece."""

    def __init__(self, path, content):
        self.path, self.content, self.written = path, content, 0

    def write_to(self, stop):
        with open(self.path, "ab") as file:
            file.write(self.content[self.written : stop])
        self.written = max(self.written, stop)

    def open(self, **options):
        """Open the stream once it has a complete frame, or is written."""
        while self.written < len(self.content):
            self.write_to(self.written + 100)
            with suppress(dask_tiled.TruncatedFileError):
                return dask_tiled.open_dataset(self.path, follow=True, **options)
        with at_rest(True):
            return dask_tiled.open_dataset(self.path, follow=True, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scan.tpx3"


def grow_during_export(monkeypatch, stream):
    """Write the rest of a stream when the next export has stored a chunk."""
    put, calls = Place.put, itertools.count()

    def stored(self, key, data):
        put(self, key, data)
        if "/c/" in f"/{key}" and next(calls) == 0:
            stream.write_to(len(stream.content))

    monkeypatch.setattr(Place, "put", stored)


@pytest.mark.parametrize(
    ("options", "fly_back"),
    [(SCAN, 0), (LINES, 0), (LINES, SPAN), ({**LINES, "values": "tot"}, SPAN)],
)
def test_rows_fill_and_are_those_of_the_hits(path, options, fly_back):
    """Complete rows are exact, others are missing, whatever has come of them."""
    scan = Scan(0, fly_back=fly_back)
    stream = Growing(path, b"".join(chunks_of(scan.words, 20)))
    expected = scan.tot if "values" in options else scan.counts
    arr, counts = stream.open(**options), []
    while stream.written < len(stream.content):
        stream.write_to(stream.written + 333)
        arr = arr.refresh()
        there = arr.description.layout.n_frames
        flat = arr.compute().reshape(-1, 256, 256)
        np.testing.assert_array_equal(flat[:there], expected.reshape(flat.shape)[:there])
        assert not flat[there:].any()
        assert len(arr.description.missing) == ROWS * COLUMNS - there
        counts.append(there)
    assert counts == sorted(counts)
    assert len({*counts}) > 10
    assert counts[-1] < ROWS * COLUMNS, "hits may still come"
    arr = arr.refresh(complete=True)
    np.testing.assert_array_equal(arr.compute(), expected)
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, **options), expected)


def test_a_frame_waits_for_hits_that_may_be_late(path):
    """It is complete with the first hit, or edge, that is 10 ms later than its end."""
    start = heartbeat(1000), hit_words(1000, 0, 0), edge_word(1000)
    path.write_bytes(chunk(np.concatenate(start)))
    with refused(path, "no frame is complete yet", dask_tiled.TruncatedFileError):
        dask_tiled.open_dataset(path, follow=True, **SCAN)
    stop = 1000 + STEP + SPAN
    for word, options, there in [
        (hit_words(stop - 1, 5, 5), SCAN, 0),
        (edge_word(stop + 2), SCAN, 0),
        (edge_word(stop + 2), LINES, 1),
        (hit_words(stop, 5, 5), SCAN, 1),
    ]:
        path.write_bytes(chunk(np.concatenate([*start, word])))
        try:
            arr = dask_tiled.open_dataset(path, follow=True, **options)
        except dask_tiled.TruncatedFileError:
            assert not there
        else:
            assert arr.description.layout.n_frames == there


def followed(stream, arr):
    """Yield the states of two results; after each, the stream goes on by a row."""
    results = {"image": arr.sum((2, 3)), "mean": arr.mean((0, 1))}
    for state in dask_tiled.progressive(results, every=0, rest=1.0):
        yield state
        rows = rows_of(arr)
        while stream.written < len(stream.content) and (state.problem or rows_of(arr) <= rows):
            stream.write_to(stream.written + 200)
            with suppress(dask_tiled.CorruptFileError):
                arr = arr.refresh()


def rows_of(arr):
    return arr.description.layout.n_frames // COLUMNS


@pytest.mark.parametrize("options", [SCAN, LINES])
def test_results_are_those_of_the_finished_file(path, options):
    scan = Scan(1, count=3000)
    stream = Growing(path, b"".join(chunks_of(scan.words, 40)))
    *states, last = followed(stream, stream.open(**options))
    shown = [int(state.values["image"].count()) for state in states]
    assert shown == sorted(shown)
    assert any(0 < count < ROWS * COLUMNS for count in shown), "rows appear"
    assert (last.exact, last.share, last.missing) == (True, 1, 0)
    np.testing.assert_array_equal(last.values["image"], scan.counts.sum((2, 3)))
    whole = dask_tiled.open_dataset(path, **options, chunks=(1, -1, -1, -1))
    assert last.values["mean"].tobytes() == whole.mean((0, 1)).compute().tobytes()


def test_each_byte_is_indexed_once(path, monkeypatch):
    """Looks cost as much as there are new bytes, also the last one."""
    scan, seen, add = Scan(2, count=3000), [], HitIndexer.add

    def counted(self, part, **options):
        before = self.at
        wrong = add(self, part, **options)
        seen.append(self.at - before)
        return wrong

    monkeypatch.setattr(HitIndexer, "add", counted)
    stream = Growing(path, b"".join(chunks_of(scan.words, 40)))
    stream.write_to(6000)
    arr = dask_tiled.open_dataset(path, follow=True, **SCAN)
    while stream.written < 12_000:
        stream.write_to(stream.written + 1000)
        arr = arr.refresh()
    *_, last = followed(stream, arr)
    np.testing.assert_array_equal(last.values["image"], scan.counts.sum((2, 3)))
    assert sum(seen) == len(stream.content)
    assert len(seen) > 10


def late_hits():
    """Hits of frame 1 that come when row 2 is there, and the counts."""
    scan = Scan(3)
    late = hit_words(np.full(7, 1000 + STEP + 5), np.full(7, 9), np.arange(7))
    half = len(scan.words) // 2
    scan.counts[0, 1, 9, :7] += 1
    words = np.concatenate([scan.words[:half], late, scan.words[half:]])
    return scan, Growing(None, b"".join(chunks_of(words, 20)))


@pytest.mark.parametrize("options", [SCAN, LINES])
def test_late_hits_begin_the_computation_again(path, options):
    scan, stream = late_hits()
    stream.path = path
    arr = stream.open(**options)
    with pytest.warns(UserWarning, match="events came late") as warned:
        *states, last = followed(stream, arr)
    assert len(warned) == 2, "the test refreshes, too; from then on frames wait longer"
    shares = [state.share for state in states]
    assert shares != sorted(shares)
    np.testing.assert_array_equal(last.values["image"], scan.counts.sum((2, 3)))
    assert last.exact


def test_late_hits_of_rows_that_are_exported_raise(path, monkeypatch):
    _, stream = late_hits()
    stream.path = path
    arr = stream.open(**SCAN)
    stream.write_to(len(stream.content) // 2 - 300)
    arr = arr.refresh()
    assert arr.description.layout.n_frames > COLUMNS
    grow_during_export(monkeypatch, stream)
    target, rows = path.with_suffix(".zarr"), (1, COLUMNS, 256, 256)
    with (
        pytest.warns(UserWarning, match="events came late"),
        refused(path, "rows that are already written have changed", dask_tiled.StaleFileError),
    ):
        dask_tiled.to_zarr(arr, target, chunks=rows, shards=rows, follow=True, progress=False)


def test_exports_follow(path, monkeypatch):
    scan = Scan(4)
    stream = Growing(path, b"".join(chunks_of(scan.words, 20)))
    arr = stream.open(**LINES)
    stream.write_to(len(stream.content) // 2)
    grow_during_export(monkeypatch, stream)
    rows = (1, COLUMNS, 256, 256)
    z = dask_tiled.to_zarr(
        arr, path.with_suffix(".zarr"), chunks=rows, follow=True, rest=0.2, progress=False
    )
    np.testing.assert_array_equal(z[:], scan.counts)


def test_times_that_are_told_late(path):
    """Times before the first heartbeat shift all at once, and frames stay what they are."""
    scan = Scan(5)
    pieces = chunks_of(scan.words, 20)
    pieces.insert(len(pieces) // 2, chunk(heartbeat((7 << 36) + 1000 + 2 * ROW)))
    stream = Growing(path, b"".join(pieces))
    arr = stream.open(**LINES)
    with pytest.warns(UserWarning, match="events came late"):
        *_, last = followed(stream, arr)
    np.testing.assert_array_equal(last.values["image"], scan.counts.sum((2, 3)))


@pytest.mark.parametrize("cut", [False, True])
def test_a_stream_that_stops_in_a_chunk(path, cut):
    scan = Scan(6)
    content = b"".join(chunks_of(scan.words, 20))[:-52]
    stream = Growing(path, content)
    arr = stream.open(**LINES, cut=cut)
    if cut:
        *_, last = followed(stream, arr)
        whole = dask_tiled.open_dataset(path, **LINES, cut=True)
        np.testing.assert_array_equal(last.values["image"], whole.sum((2, 3)))
        assert last.values["image"].sum() == len(scan.words) - ROWS - 6
        return
    with refused(path, "ends inside a chunk", dask_tiled.TruncatedFileError):
        list(followed(stream, arr))


def test_damaged_and_truncated_streams_raise(path):
    content = b"".join(chunks_of(Scan(7).words, 20))
    half = content.index(b"TPX3", len(content) // 2)
    stream = Growing(path, content[:half] + b"\0" * 999)
    arr = stream.open(**SCAN)
    with refused(path, "no chunk begins", dask_tiled.CorruptFileError) as caught:
        for state in followed(stream, arr):
            problem = state.problem
    assert caught.value.where == f"byte {half}"
    assert "no chunk begins" in problem
    path.write_bytes(content[:half])
    arr = dask_tiled.open_dataset(path, follow=True, **SCAN)
    path.write_bytes(content[: half - 500])
    with pytest.raises(dask_tiled.StaleFileError):
        arr.refresh()


def test_chips_that_appear_late(path):
    """The shape of frames cannot change: it has to be passed."""
    words = Scan(8).words
    pieces = chunks_of(words, 20)
    pieces.insert(len(pieces) // 2, chunk(hit_words([1000 + 2 * ROW + STEP], [3], [4]), chip=3))
    stream = Growing(path, b"".join(pieces))
    arr = stream.open(**SCAN)
    assert arr.shape == (*NAV, 256, 256)
    with refused(path, "shape or dtype of the scan changed") as caught:
        list(followed(stream, arr))
    assert "sig_shape" in caught.value.hint
    again = Growing(path, stream.content)
    path.unlink()
    arr = again.open(**SCAN, sig_shape=(512, 512))
    *_, last = followed(again, arr)
    assert last.values["image"].sum() == len(words) - ROWS + 1


def test_streams_that_cannot_be_followed(path):
    path.write_bytes(chunk(hit_words([1000], [1], [1])))
    for options in {}, {"lines": "tdc1_rising", "nav_shape": NAV}:
        with refused(path, "a stream is followed frame by frame") as caught:
            dask_tiled.open_dataset(path, follow=True, **options)
        assert "frame_time" in caught.value.hint


def outcome(compute):
    """Return a result, or the type of the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compute()
        except dask_tiled.DatasetError as error:
            return type(error)


def streamed(stream, options, cuts):
    """Follow a stream that is written up to some places, one after the other."""
    arr = stream.open(**options)
    arriving = Arriving([arr.sum((2, 3)), arr[:, :, ::3].max((0, 1))])
    for stop in (*cuts, len(stream.content)):
        stream.write_to(stop)
        arriving.step(1e9)
    while not arriving.state.exact:
        arriving.step(0)
    return arriving.values()


@example(0, 0, (LINES, 0), 27, [], [(0.65625, 46)], [(0.625, 0)])
@given(
    seed=st.integers(0, 1 << 16),
    late=st.sampled_from([0, SPAN // 3, SPAN, 4 * SPAN]),
    shown=st.sampled_from([(SCAN, 0), (LINES, 0), (LINES, SPAN)]),
    per_chunk=st.integers(1, 80),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    damage=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 63)), max_size=3),
    beats=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1 << 36)), max_size=2),
)
def test_any_stream(tmp_path_factory, seed, late, shown, per_chunk, cuts, damage, beats):
    """Results, or errors, are those of the finished file, which are those of the hits."""
    options, fly_back = {**shown[0], "sig_shape": (512, 512)}, shown[1]
    scan = Scan(seed, count=200, late=late, fly_back=fly_back)
    pieces = chunks_of(scan.words, per_chunk)
    for place, beat in beats:
        at, (low, high) = int(place * len(pieces)), heartbeat(beat).reshape(2, 1)
        pieces[at:at] = [chunk(low), chunk(high)]  # as SERVAL sends them
    content = bytearray(b"".join(pieces))
    for place, bit in damage:
        content[int(place * (len(content) - 9)) + bit // 8] ^= 1 << bit % 8
    path = tmp_path_factory.mktemp("any") / "scan.tpx3"
    stream = Growing(path, bytes(content))
    stops = sorted(int(cut * len(content)) for cut in cuts)
    found = outcome(lambda: streamed(stream, options, stops))
    stream.write_to(len(content))

    def finished():
        arr = dask_tiled.open_dataset(path, missing="fill", **options)
        return [arr.sum((2, 3)).compute(), arr[:, :, ::3].max((0, 1)).compute()]

    expected = outcome(finished)
    if isinstance(expected, type):
        assert found is expected
        return
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    if not damage and not beats:
        np.testing.assert_array_equal(found[0], scan.counts.sum((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("options", [SCAN, LINES])
def test_a_recording_is_followed(path, options):
    """Half of the stream is sent at first; the connection ends with the stream."""
    scan, goes_on = Scan(9, count=2000), threading.Event()
    pieces = chunks_of(scan.words, 50)

    def half_at_first():
        for k, piece in enumerate(pieces):
            if k == len(pieces) // 2:
                goes_on.wait()
            yield piece

    with (
        sending(half_at_first, closes=True) as port,
        dask_tiled.record(f"tpx3://127.0.0.1:{port}", path, **options) as recording,
    ):
        counts = []
        arr = recording.array
        assert recording.is_running
        for state in dask_tiled.progressive(arr.sum((2, 3)), every=0):
            if not state.exact:
                counts.append(int(state.values.count()))
                if counts[-1] >= COLUMNS:
                    goes_on.set()
    assert counts == sorted(counts)
    assert state.exact
    np.testing.assert_array_equal(state.values, scan.counts.sum((2, 3)))
    np.testing.assert_array_equal(arr.refresh(), scan.counts)
    np.testing.assert_array_equal(recording.array, scan.counts)
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, **options), scan.counts)


@pytest.mark.slow
def test_a_recording_that_pauses_before_a_frame_is_complete(path, monkeypatch):
    """The array has no frames then, which are there at the end."""
    monkeypatch.setattr("dask_tiled.live.recording.PAUSE_SECONDS", 0.2)
    scan, goes_on = Scan(10), threading.Event()
    pieces = chunks_of(scan.words, 5)

    def some_at_first():
        yield pieces[0]
        goes_on.wait()
        yield from pieces[1:]

    with (
        sending(some_at_first, closes=True) as port,
        dask_tiled.record(f"tpx3://127.0.0.1:{port}", path, **SCAN) as recording,
    ):
        arr = recording.array
        assert arr.shape == scan.counts.shape
        assert len(arr.description.missing) == ROWS * COLUMNS
        goes_on.set()
        *_, state = dask_tiled.progressive(arr.sum((2, 3)), every=0)
    np.testing.assert_array_equal(state.values, scan.counts.sum((2, 3)))
