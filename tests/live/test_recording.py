"""Recordings of streams: the file is what the detector sent, whatever happens."""

import os
import pickle
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from itertools import islice

import cbor2
import numpy as np
import psutil
import pytest
from checks import wait_for
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from mutating import KINDS, MOST_MEMORY, STREAMS, TOKENS, mutated, receive, receiver_of
from played_series import PUSHES, framed, write_played_series

import dask_tiled
from dask_tiled import DatasetError, MissingFramesWarning, StreamError
from dask_tiled.command_line.app import app
from dask_tiled.exploring.pictures import source_of
from dask_tiled.live import recording as recording_module
from dask_tiled.live.addresses import PROTOCOLS, Address
from dask_tiled.live.byte_sockets import connect, pump
from dask_tiled.live.merlin import MerlinReceiver
from dask_tiled.live.outputs import Bound
from dask_tiled.live.parent import Parent, RecordingRequest
from dask_tiled.live.progress import StreamProgress
from dask_tiled.live.zmtp import MOST_MESSAGE
from dask_tiled.testing import counting_frames, play, write_mib, write_tpx3
from dask_tiled.testing.playing import dectris_messages, merlin_messages, mpx, pushing, sending

pytestmark = pytest.mark.thorough

FRAMES = counting_frames((4, 6, 32, 32), "uint16")
RECORD = 384 + 2 * 32 * 32
SECONDS = 300


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A file as its detector writes it."""
    return write_mib(tmp_path_factory.mktemp("played") / "played.mib", FRAMES)


@pytest.fixture(scope="module")
def hits():
    """Numbers of hits in frames of a Timepix3."""
    return np.random.default_rng(0).poisson(0.05, (6, 256, 256))


@pytest.fixture(scope="module")
def played_hits(hits, tmp_path_factory):
    """A stream of hits as SERVAL writes it, in chunks of 100."""
    return write_tpx3(tmp_path_factory.mktemp("hits") / "played.tpx3", hits, line=3)


@contextmanager
def recorded(messages, target, **options):
    """Record messages that a detector sends, and wait for the end."""
    options = {"closes": True, "kind": "merlin", **options}
    closes, kind = options.pop("closes"), options.pop("kind")
    with (
        sending(lambda: messages, closes=closes) as port,
        dask_tiled.record(f"{kind}://127.0.0.1:{port}", target, **options) as recording,
    ):
        yield recording


@contextmanager
def pausing(played, count):
    """Play a Merlin that pauses after some frames; yield its URL, and a function that ends that."""
    goes_on = threading.Event()

    def messages():
        for number, message in enumerate(merlin_messages(played)):
            if number > count:  # the header comes first
                goes_on.wait()
            yield message

    with sending(messages) as port:
        try:
            yield f"merlin://127.0.0.1:{port}", goes_on.set
        finally:
            goes_on.set()


@contextmanager
def unanswered():
    """Yield a port where nothing listens; no other program can take it meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def ended(recording):
    """Wait for the end; return the error or None."""
    try:
        assert recording.wait(SECONDS)
    except StreamError as error:
        return error
    return None


@pytest.mark.parametrize("target", ["scan.mib", None])
def test_a_recording_is_the_file_that_was_sent(played, tmp_path, target):
    ready = []
    path = target and tmp_path / target
    with (
        play(played) as url,
        dask_tiled.record(
            url.replace("merlin", "MERLIN"), path, on_ready=ready.append
        ) as recording,
    ):
        assert recording.wait(SECONDS)
    with pytest.raises(DatasetError, match="a recording belongs to the program"):
        pickle.dumps(recording)
    assert ready == [recording]
    assert recording.state == "complete"
    assert recording.progress[:3] == (24, 24, 0)
    np.testing.assert_array_equal(recording.array, FRAMES)
    with open(recording.path, "rb") as file:
        assert file.read() == played.read_bytes()
    with open(os.path.splitext(recording.path)[0] + ".hdr", "rb") as file:
        assert file.read() == played.with_suffix(".hdr").read_bytes()
    assert recording.in_memory == (target is None)
    assert (recording.max_memory > 256 << 20) == recording.in_memory
    recording.close()
    assert os.path.exists(recording.path) == (target is not None)


def test_frames_are_there_as_they_come(played, tmp_path):
    with (
        pausing(played, 12) as (url, go_on),
        dask_tiled.record(url, tmp_path / "scan.mib", nav_shape=(4, 6)) as recording,
    ):
        first = recording.array  # waits for a frame
        count = first.description.layout.n_frames
        assert recording.is_running
        assert 0 < count <= 12
        assert first.shape == FRAMES.shape
        go_on()
        assert recording.wait(SECONDS)
        came = np.zeros_like(FRAMES).reshape(24, 32, 32)
        came[:count] = FRAMES.reshape(24, 32, 32)[:count]
        np.testing.assert_array_equal(first, came.reshape(FRAMES.shape))
        np.testing.assert_array_equal(first.refresh(), FRAMES)


def numbered(frame, number):
    """Return a frame with another number."""
    return frame[:4] + b"%06d" % number + frame[10:]


def faulty(name, header, frames):
    """Yield the messages of a detector with a fault."""
    half = frames[:9]
    wide = frames[9].replace(b"0032,0032", b"0032,0064") + bytes(2048)
    lying = frames[0].replace(b"0032,0032", b"0064,0032")
    yield from {
        "in small pieces": lambda: (bytes([b]) for b in b"".join(map(mpx, [header, *frames]))),
        "stops in a frame": lambda: [mpx(header), *map(mpx, half), mpx(frames[9])[:999]],
        "stops in a header": lambda: [mpx(header), *map(mpx, half), b"MPX,00000"],
        "another acquisition": lambda: map(mpx, [header, *half, header, *frames]),
        "another size": lambda: map(mpx, [header, *half, wide]),
        "a longer message": lambda: map(mpx, [header, *half, frames[9] + b"x"]),
        "a wrong length": lambda: [mpx(header), *map(mpx, half), b"MPX,9999999999,", frames[9]],
        "a short length": lambda: [mpx(header), *map(mpx, half), b"MPX,0000000003,", frames[9]],
        "a first frame that lies": lambda: map(mpx, [header, lying]),
        "no message": lambda: [mpx(header), *map(mpx, half), b"HTTP/1.1 200 OK" * 99],
        "no number": lambda: map(mpx, [header, *half, frames[9][:4] + b"abcdef" + frames[9][10:]]),
        "garbage before": lambda: [b"GARBAGE" * 99, mpx(frames[0]), *map(mpx, [header, *frames])],
        "a long garbage": lambda: [bytes(1 << 21), *map(mpx, [header, *frames])],
        "a long header": lambda: [mpx(b"HDR," + bytes(1 << 19))],
        "lost frames": lambda: map(mpx, [header, *frames[:5], *frames[8:]]),
        "numbers again": lambda: map(
            mpx, [header, *half, *(numbered(f, k) for k, f in enumerate(frames[9:], 1))]
        ),
        "nothing": list,
        "a number of its own": lambda: map(
            mpx, [header, *(numbered(f, k) for k, f in enumerate(frames, 1000))]
        ),
        "numbers in pairs": lambda: map(
            mpx, [header, *(numbered(f, 1 + k // 2) for k, f in enumerate(frames))]
        ),
        "a frame again": lambda: map(mpx, [header, *frames[:4], *frames[3:]]),
        "a number beyond the end": lambda: map(mpx, [header, *half, numbered(frames[9], 25)]),
        "a wild first number": lambda: map(
            mpx, [header, numbered(frames[0], 999_999), *frames[1:]]
        ),
        "numbers back": lambda: map(mpx, [header, *half, numbered(frames[9], 5)]),
        "lost frames, numbers again": lambda: map(
            mpx, [header, *frames[:5], *frames[8:12], *(numbered(frames[12], 1), frames[13])]
        ),
        "numbers again, lost frames": lambda: map(
            mpx, [header, *half, numbered(frames[9], 1), numbered(frames[10], 5)]
        ),
    }[name]()


COMPLETE = {
    "in small pieces": (24, 0, 0),
    "garbage before": (24, 0, 0),
    "a long garbage": (24, 0, 0),
    "lost frames": (21, 3, 0),
    "numbers again": (24, 0, 1),
    "a number of its own": (24, 0, 0),
    "numbers in pairs": (24, 0, 12),
    "a frame again": (24, 0, 0),
}
FAILED = {
    "stops in a frame": (9, "closed the connection"),
    "stops in a header": (9, "closed the connection"),
    "another acquisition": (9, "another acquisition has begun, at frame 9"),
    "another size": (9, "the frames differ"),
    "a longer message": (9, "the frames differ"),
    "a wrong length": (9, "invalid length of a frame"),
    "a short length": (9, "invalid length of a frame"),
    "a first frame that lies": (1, "the length of a frame is wrong"),
    "no message": (9, "no message begins where one has to"),
    "no number": (9, "invalid number of a frame"),
    "a long header": (0, "the acquisition header is too long"),
    "nothing": (0, "closed the connection"),
    "a number beyond the end": (9, "beyond the acquisition, at frame 9"),
    "a wild first number": (1, "numbers of frames go back, at frame 1"),
    "numbers back": (9, "go back, at frame 9 of the acquisition; expected 10, or 1 again; found 5"),
    "lost frames, numbers again": (9, "begin again after frames were lost"),
    "numbers again, lost frames": (10, "lost after the numbers have begun again"),
}


@pytest.fixture(scope="module")
def contents(played):
    """The acquisition header, and the frames with their headers."""
    header, *frames = (bytes(message[15:]) for message in merlin_messages(played))
    assert len(frames) == 24
    return header, frames


@pytest.mark.parametrize("name", COMPLETE)
def test_streams_that_are_unusual(contents, tmp_path, name):
    with recorded(faulty(name, *contents), tmp_path / "scan.mib") as recording:
        if COMPLETE[name][1]:
            with pytest.warns(MissingFramesWarning, match="3 of 24 frames are missing"):
                assert ended(recording) is None
        assert ended(recording) is None
    told = recording.progress
    assert (told.frames, told.lost, told.restarts) == COMPLETE[name]
    assert told.repeated == (name == "a frame again")
    assert told.nbytes == told.frames * RECORD
    expected = FRAMES.reshape(24, 32, 32).copy()
    lost = [5, 6, 7] if told.lost else []
    expected[lost] = 0
    np.testing.assert_array_equal(recording.array.reshape(-1, 32, 32), expected)
    assert recording.array.description.missing.tolist() == lost


@pytest.mark.parametrize("name", FAILED)
def test_faults_are_typed_errors_and_keep_what_has_come(contents, tmp_path, name):
    frames, message = FAILED[name]
    with recorded(faulty(name, *contents), tmp_path / "scan.mib") as recording:
        error = ended(recording)
    assert message in str(error)
    assert str(error).startswith(recording.url)
    assert (recording.state, recording.error) == ("failed", error)
    assert os.path.getsize(recording.path) == frames * RECORD
    if frames > 1:
        came = np.zeros((24, 32, 32))
        places = [k + 3 * (k > 4 and recording.progress.lost == 3) for k in range(frames)]
        came[places] = FRAMES.reshape(24, 32, 32)[places]
        np.testing.assert_array_equal(recording.array, came.reshape(FRAMES.shape))
    elif not frames:
        with pytest.raises(StreamError, match=message):
            recording.array  # noqa: B018 - raises


def test_code_of_a_page_opens_what_a_failed_recording_has(contents, tmp_path):
    with recorded(faulty("no message", *contents), tmp_path / "scan.mib") as recording:
        assert ended(recording) is not None
    arr = eval(source_of(recording, {}), {"dask_tiled": dask_tiled})  # noqa: S307 - our own
    np.testing.assert_array_equal(arr, recording.array)
    assert arr.description.missing.tolist() == [*range(9, 24)]


@pytest.mark.parametrize(("nbytes", "is_refused"), [(1 << 28, False), ((1 << 28) + 1, True)])
def test_the_longest_frame_of_a_merlin(contents, tmp_path, nbytes, is_refused):
    header, frames = contents
    receiver = MerlinReceiver("merlin://test:1", str(tmp_path / "a.mib"), Bound())
    stream = mpx(header) + b"MPX,%010d," % (nbytes + 1) + frames[0]
    with pytest.raises(StreamError, match="to 268435456 bytes") if is_refused else nullcontext():
        receiver.take(memoryview(stream))
    receiver.close()


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mutated_streams_end_in_typed_errors(tmp_path_factory, name, data):
    """A receiver takes or refuses bytes, and its file has no more than was sent."""
    folder = tmp_path_factory.mktemp("mutated")
    stream_of = STREAMS[name][0]
    edit = st.tuples(
        st.sampled_from(KINDS), st.floats(0, 1), st.integers(0, 300), st.sampled_from(TOKENS)
    )
    stream = mutated(stream_of(folder), data.draw(st.lists(edit, min_size=1, max_size=4)))
    receiver = receiver_of(name, folder)
    receive(receiver, stream, data.draw(st.integers(1, 200)))
    assert receiver.progress.nbytes <= len(stream) < MOST_MEMORY


SCAN = {"nav_shape": (2, 3), "lines": "tdc1_rising", "frame_time": 1e-3}


@pytest.mark.parametrize(
    ("nav_shape", "category", "message"),
    [
        ((5, 5), MissingFramesWarning, "25 positions, but 24 .*: the last 1 positions have no"),
        ((2, 5), UserWarning, "10 positions, but 24 .*: the array leaves out the last 14 frames"),
    ],
)
def test_a_scan_of_another_size(played, tmp_path, nav_shape, category, message):
    with (
        play(played) as url,
        dask_tiled.record(url, tmp_path / "a.mib", nav_shape=nav_shape) as recording,
    ):
        with pytest.warns(category, match=message) as warned:
            assert recording.wait(SECONDS)
        assert len(warned) == 1
    assert recording.array.shape[:2] == nav_shape


def test_a_recording_of_hits(played_hits, hits, tmp_path):
    with (
        play(played_hits) as url,
        dask_tiled.record(url, tmp_path / "a.tpx3", **SCAN) as recording,
    ):
        assert recording.wait(SECONDS)
    assert (tmp_path / "a.tpx3").read_bytes() == played_hits.read_bytes()
    np.testing.assert_array_equal(recording.array.reshape(hits.shape), hits)
    chunks = played_hits.read_bytes().count(b"TPX3")
    assert recording.progress.events == played_hits.stat().st_size // 8 - chunks > hits.sum()


def test_hits_of_a_detector_that_connects(played_hits, tmp_path):
    """Parts of a stream are there as they come; a stream that ends in a chunk is refused."""
    content = played_hits.read_bytes()
    half = len(content) // 2
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    url, path = f"tpx3://listen@127.0.0.1:{port}", tmp_path / "a.tpx3"
    with dask_tiled.record(url, path) as recording:
        with socket.create_connection(("127.0.0.1", port)) as detector:
            detector.sendall(content[:half])
            arr, first = recording.array, 0
            while first < half - (1 << 12):
                arr, first = recording.array, recording.progress.nbytes
            count = int(arr.sum())
            detector.sendall(content[half:-4])
        assert "expected a whole message" in str(ended(recording))
        assert int(arr.sum()) == count > 0
    size = path.stat().st_size
    assert content[:size] == path.read_bytes()
    assert len(content) - size <= 8 * 102
    with recorded([content[:half], b"TPX4" * 99], tmp_path / "b.tpx3", kind="tpx3") as recording:
        assert "TPX3 and whole words of 8 bytes" in str(ended(recording))


@pytest.mark.parametrize("protocol", ["merlin", "tpx3", "dectris"])
def test_nobody_listens(tmp_path, protocol):
    suffix = {"merlin": "mib", "tpx3": "tpx3", "dectris": "h5"}[protocol]
    with unanswered() as port, pytest.raises(StreamError, match="no detector answers"):
        dask_tiled.record(f"{protocol}://127.0.0.1:{port}", tmp_path / f"scan.{suffix}")
    assert not [*tmp_path.iterdir()]


def test_a_silent_detector(contents, tmp_path):
    header, frames = contents
    messages = [mpx(header), *map(mpx, frames[:3])]
    with recorded(messages, tmp_path / "a.mib", closes=False, timeout=0.2) as recording:
        assert "sends nothing" in str(ended(recording))
    with recorded(messages, tmp_path / "b.mib", closes=False) as recording:
        assert recording.array.shape == FRAMES.shape
        wait_for(lambda: recording.progress.frames == 3)
        assert not recording.wait(0.01)
        with pytest.warns(MissingFramesWarning, match="21 of 24 frames are missing"):
            recording.stop()
    assert (recording.state, recording.error) == ("stopped", None)
    assert recording.progress.frames == 3


def test_a_full_disk(played, tmp_path):
    """The child inherits the limit of the size of files."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9 * RECORD + 100, before[1]))
    try:
        with play(played) as url, dask_tiled.record(url, tmp_path / "scan.mib") as recording:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert "the disk is full" in str(ended(recording))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.path.getsize(recording.path) == 9 * RECORD
    assert recording.array.description.missing.tolist() == [*range(9, 24)]


def receiver_process():
    """Return the process of the only recording."""
    (child,) = (one for one in psutil.Process().children() if "live.receiver" in str(one.cmdline()))
    return child


def test_a_killed_receiver(played, tmp_path):
    with (
        pausing(played, 3) as (url, _),
        dask_tiled.record(url, tmp_path / "scan.mib") as recording,
    ):
        assert recording.array.shape == FRAMES.shape
        receiver_process().kill()
        assert "the receiver has died; found signal 9" in str(ended(recording))
    count = os.path.getsize(recording.path) // RECORD
    arr = dask_tiled.open_dataset(recording.path, missing="fill")
    assert arr.description.missing.tolist() == [*range(count, 24)]
    np.testing.assert_array_equal(
        np.asarray(arr).reshape(24, 32, 32)[:count], FRAMES.reshape(24, 32, 32)[:count]
    )


DIES = """
import sys, time, dask_tiled
recording = dask_tiled.record(sys.argv[1])
print(recording.path, flush=True)
recording.array
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.mark.slow
def test_a_killed_program_leaves_nothing_in_memory(played):
    with pausing(played, 3) as (url, _):
        command = [sys.executable, "-c", DIES, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            path = program.stdout.readline().strip()
            assert program.stdout.readline() == "ready\n"
            assert os.path.exists(path)
            program.kill()
        wait_for(lambda: not os.path.exists(os.path.dirname(path)))


def test_a_target_belongs_to_one_recording(played, tmp_path):
    path = tmp_path / "scan.mib"
    with pausing(played, 3) as (url, go_on), dask_tiled.record(url, path) as recording:
        with pytest.raises(DatasetError, match="the target exists"):
            dask_tiled.record(url, path)
        with pytest.raises(DatasetError, match="another recording writes the target"):
            dask_tiled.record(url, path, overwrite=True)
        go_on()
        assert recording.wait(SECONDS)
    with play(played) as url, dask_tiled.record(url, path, overwrite=True) as recording:
        assert recording.wait(SECONDS)
    np.testing.assert_array_equal(recording.array, FRAMES)


def test_two_listen_at_one_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StreamError, match=r"cannot listen at the address; found .* in use"):
            dask_tiled.record(f"tpx3://listen@127.0.0.1:{port}", tmp_path / "a.tpx3")


def test_the_system_sizes_the_buffer_of_a_socket():
    """By tcp(7), a size that is set is not adapted."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as plain,
        connect(Address("merlin", *server.getsockname()), None) as made,
    ):
        sizes = [one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for one in (plain, made)]
    assert sizes[0] == sizes[1]


def test_the_longest_message_fits_the_memory():
    """In a buffer, as parts, and as frames, of which two copies are made while they are decoded."""
    libraries = 256 << 20
    assert 4 * MOST_MESSAGE + libraries <= PROTOCOLS["dectris"].most_memory


@pytest.mark.parametrize("protocol", ["merlin", "dectris"])
def test_a_detector_that_resets_the_connection(contents, tmp_path, protocol):
    """All frames before are in the file."""
    header, frames = contents
    begin, messages = b"", [*map(mpx, [header, *frames[:9]]), mpx(frames[9])[:999]]
    if protocol == "dectris":
        series = dectris_messages(write_played_series(tmp_path / "played.h5", FRAMES[0]))
        begin, messages = PUSHES, [framed([message]) for message in islice(series, 5)]
    is_recorded = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            connection.sendall(begin)
            assert is_recorded.wait(SECONDS)
            connection.sendall(b"".join(messages))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"{protocol}://127.0.0.1:{server.getsockname()[1]}"
        with dask_tiled.record(url, tmp_path / f"a{PROTOCOLS[protocol].suffix}") as recording:
            is_recorded.set()
            error = ended(recording)
        thread.join(SECONDS)
    expected = FRAMES.reshape(24, 32, 32)[:9] if protocol == "merlin" else FRAMES[0, :4]
    what, count = "the detector has closed the connection", len(expected)
    assert str(error).startswith(f"{url}: {what} after {count} of ")
    assert "Errno" not in str(error)
    assert (recording.state, recording.error, recording.progress.frames) == ("failed", error, count)
    np.testing.assert_array_equal(recording.array.reshape(-1, 32, 32)[:count], expected)


@pytest.mark.parametrize("when_full", ["stop", "drop", "spill"])
def test_bounds(played, tmp_path, when_full):
    """Sixteen files hold 8 frames: each frame is in a file of its own."""
    options = {"max_bytes": 8 * RECORD, "when_full": when_full}
    if when_full == "spill":
        (tmp_path / "disk").mkdir()
        options["spill_folder"] = tmp_path / "disk"
    with play(played) as url, dask_tiled.record(url, tmp_path / "a.mib", **options) as recording:
        error = ended(recording)
    told, arr = recording.progress, recording.array
    expected = FRAMES.reshape(24, 32, 32).copy()
    if when_full == "stop":
        assert "the recording is full" in str(error)
        expected[8:] = 0
    else:
        assert error is None
    if when_full == "drop":
        assert (told.frames, told.dropped) == (8, 16)
        expected[:16] = 0
    if when_full == "spill":
        assert told.frames == 24
        assert len([*(tmp_path / "disk").iterdir()]) == 16
    assert sum(one.stat().st_size for one in tmp_path.glob("a*.mib") if not one.is_symlink()) <= (
        8 * RECORD
    )
    np.testing.assert_array_equal(arr.reshape(24, 32, 32), expected)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("scan.mib", {}, r"no address of a detector; expected merlin://HOST.* found 'scan.mib'"),
        ("merlyn://a", {}, "Do you mean 'merlin'"),
        ("merlin://", {}, "no address"),
        ("merlin://a:b", {}, "invalid address"),
        ("merlin://me@a", {}, "invalid address of a detector; expected .* found me"),
        ("merlin://a/b", {}, "invalid address"),
        ("merlin://a#b", {}, "found b"),
        (123, {}, "no address of a detector; .* found 123"),
        ("merlin://a", {"target": 3}, "invalid target; expected a path; found 3"),
        ("merlin://a", {"target": "no/such/a.mib"}, "no/such: the folder of the target does not"),
        (
            "merlin://a",
            {"target": "/proc/a.mib"},
            "/proc: the folder of the target cannot be written",
        ),
        ("merlin://a", {"target": "folder.mib", "overwrite": True}, "the target is a folder"),
        ("merlin://a", {"when_full": ["drop"]}, "invalid when_full"),
        ("merlin://a", {"spill_folder": 3, "when_full": "spill"}, "invalid spill_folder"),
        ("merlin://a", {"on_ready": 3}, "invalid on_ready; expected a function; found 3"),
        ("tpx3://listen@192.0.2.1", {"target": "a.tpx3"}, "cannot listen at the address"),
        ("merlin://a", {"target": "a.h5"}, "invalid target; expected a .mib file; found .h5"),
        ("merlin://a", {"when_full": "drop"}, "needs a bound"),
        ("merlin://a", {"when_full": "x"}, "invalid when_full"),
        ("merlin://a", {"max_bytes": 0}, "max_bytes"),
        ("merlin://a", {"timeout": 0}, "timeout"),
        ("merlin://a", {"nav_shape": (0, 3)}, "nav_shape"),
        ("merlin://a", {"spill_folder": "x"}, "spill_folder= is for when_full='spill'"),
        ("merlin://a", {"nav_shap": (4, 6)}, "no option 'nav_shap'.* Do you mean 'nav_shape'"),
        (
            "tpx3://a",
            {"target": "a.tpx3", "when_full": "drop", "max_bytes": 9},
            "a recording of tpx3 is one file, which cannot drop or spill",
        ),
        ("tpx3://a", {"target": "a.tpx3", "line": "tdc1"}, "'tpx3' has no option 'line'"),
    ],
)
def test_invalid_arguments(tmp_path, monkeypatch, url, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.mib").mkdir()
    with pytest.raises(DatasetError, match=message):
        dask_tiled.record(url, **{"target": tmp_path / "scan.mib", **options})


def test_command(played, played_hits, tmp_path):
    with play(played) as url:
        done = CliRunner().invoke(app, ["record", url, str(tmp_path / "scan.mib")])
    assert (done.exit_code, done.stderr) == (0, f"{url}: ready\n")
    assert done.stdout == f"{tmp_path / 'scan.mib'}: 24 of 24 frames, 57 KiB\n"
    with play(played_hits) as hits_url:
        told = CliRunner().invoke(
            app, ["record", hits_url, str(tmp_path / "a.tpx3"), "--progress", "--nav-shape", "2,3"]
        )
    assert re.search(r"\d{4} events \[", told.stderr)
    for options, message in (
        ([], "no detector answers"),
        (["--when-full", "drop"], "--when-full drop needs a bound. Pass --max-bytes."),
        (["--spill-folder", "x"], "--spill-folder is for --when-full spill"),
    ):
        failed = CliRunner().invoke(app, ["record", url, str(tmp_path / "b.mib"), *options])
        assert failed.exit_code == 2
        assert message in failed.stderr


def earlier(folder):
    """Write the files of an earlier recording; return all files."""
    for name in ("a.mib", "a.hdr", "a_000001.mib"):
        (folder / name).write_bytes(b"earlier")
    return {one: one.read_bytes() for one in folder.iterdir()}


@pytest.mark.parametrize("series", [False, True])
def test_what_a_recording_replaces(played, tmp_path, series):
    """Only its own files, once the detector is connected."""
    files, target = earlier(tmp_path), tmp_path / "a.mib"
    how = {"max_bytes": 99 * RECORD, "when_full": "drop"} if series else {}
    with unanswered() as port, pytest.raises(StreamError, match="no detector answers"):
        dask_tiled.record(f"merlin://127.0.0.1:{port}", target, overwrite=True, **how)
    assert {one: one.read_bytes() for one in tmp_path.iterdir()} == files
    with play(played) as url, dask_tiled.record(url, target, overwrite=True, **how) as recording:
        assert recording.wait(SECONDS)
    np.testing.assert_array_equal(recording.array, FRAMES)
    assert ((tmp_path / "a_000001.mib").read_bytes() == b"earlier") != series
    if not series:
        (target.unlink(), (tmp_path / "a.hdr").unlink())
        with play(played) as url, dask_tiled.record(url, target) as recording:  # beside a series
            assert recording.wait(SECONDS)


def test_files_beside_a_target_are_never_replaced(played, tmp_path):
    """They may be what an earlier recording that was killed has moved away."""
    earlier(tmp_path)
    kept = tmp_path / "a.mib.replaced"
    kept.write_bytes(b"kept")
    files = {one: one.read_bytes() for one in tmp_path.iterdir()}
    with play(played) as url, pytest.raises(DatasetError, match="has left a file") as caught:
        dask_tiled.record(url, tmp_path / "a.mib", overwrite=True)
    assert caught.value.path == str(kept)
    assert {one: one.read_bytes() for one in tmp_path.iterdir()} == files


@pytest.mark.parametrize("protocol", ["merlin", "dectris"])
def test_a_full_disk_keeps_the_earlier_file(played, tmp_path, protocol):
    """Until the first frame of another recording is stored."""
    resource = pytest.importorskip("resource")
    suffixes = ("mib", "hdr") if protocol == "merlin" else ("h5",)
    files = {tmp_path / f"a.{suffix}": b"earlier" * 999 for suffix in suffixes}
    for path, content in files.items():
        path.write_bytes(content)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    messages = [[cbor2.dumps({"type": "other", "series_id": 1})]] * 9
    with play(played) if protocol == "merlin" else pushing(messages) as source:
        url = source if protocol == "merlin" else f"dectris://127.0.0.1:{source}"
        resource.setrlimit(resource.RLIMIT_FSIZE, (900, before[1]))
        try:
            with (
                pytest.raises(StreamError, match="the disk is full"),
                dask_tiled.record(url, next(iter(files)), overwrite=True) as recording,
            ):
                recording.wait(SECONDS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {one: one.read_bytes() for one in tmp_path.iterdir()} == files


def test_two_recordings_that_wait_for_a_detector(played_hits, tmp_path):
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as server:
            ports.append(server.getsockname()[1])
    urls, path = [f"tpx3://listen@127.0.0.1:{port}" for port in ports], tmp_path / "a.tpx3"
    with dask_tiled.record(urls[0], path) as recording:
        for overwrite, message in ((False, "the target exists"), (True, "another recording")):
            with pytest.raises(DatasetError, match=message):
                dask_tiled.record(urls[1], path, overwrite=overwrite)
        with socket.create_connection(("127.0.0.1", ports[0])) as detector:
            detector.sendall(played_hits.read_bytes())
        assert recording.wait(SECONDS)
    assert path.read_bytes() == played_hits.read_bytes()


def test_clocks_that_jump(played, tmp_path, monkeypatch):
    """Times of day are not used: neither by what receives, nor by what waits."""
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(jumps) * 1e9)
    told = RecordingRequest("merlin://a", str(tmp_path / "a.mib"), Bound(), 0, 60.0, "", 1 << 30)
    receiver = MerlinReceiver("merlin://a", told.path, Bound())
    with play(played, frames_per_second=100) as url:
        with connect(Address.of(url), None) as connection:
            assert pump(connection, receiver, Parent(Nobody()), told) == "complete"
        receiver.close()
        with dask_tiled.record(url, tmp_path / "b.mib", timeout=300) as recording:
            image = recording.array.sum((2, 3))
            *_, last = dask_tiled.progressive(image, every=0.01)
            assert recording.wait(SECONDS)
    np.testing.assert_array_equal(last.values, FRAMES.sum((2, 3)))
    assert (tmp_path / "a.mib").read_bytes() == (tmp_path / "b.mib").read_bytes()


class Flushing:
    """A receiver that notes when it is flushed, and is complete then."""

    is_complete, longest, progress = False, 1, StreamProgress()

    def __init__(self, events):
        self.events = events

    def take(self, data):
        return len(data)

    def flush(self):
        self.progress = StreamProgress(frames=len(self.events) + 1)
        self.is_complete = True
        self.events.append(self.progress)


def test_what_is_flushed_is_reported_at_once(monkeypatch):
    """Of a process that is killed later, the progress is what is in the file."""
    events = []
    monkeypatch.setattr(Parent, "asks_to_stop", lambda *_: False)
    monkeypatch.setattr(Parent, "send", lambda _, *message: events.append(message))
    request = RecordingRequest("merlin://a", "a.mib", Bound(), 0, 60.0, "", 1 << 30)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"a")
        assert pump(ours, Flushing(events), Parent(None), request) == "complete"
    assert events == [StreamProgress(frames=1), ("progress", StreamProgress(frames=1))]


class Nobody:
    """The connection to a process that says nothing."""

    def send(self, _):
        pass

    def poll(self):
        return False


def test_spilled_files_are_replaced(played, tmp_path):
    """Those of the same target; a file of another recording is refused before it begins."""
    for name in ("disk", "other"):
        (tmp_path / name).mkdir()
    disk = tmp_path / "disk"
    options = {"max_bytes": 8 * RECORD, "when_full": "spill", "spill_folder": disk}
    with play(played) as url:
        for _ in range(2):
            with dask_tiled.record(url, tmp_path / "a.mib", overwrite=True, **options) as recording:
                assert recording.wait(SECONDS)
            np.testing.assert_array_equal(recording.array, FRAMES)
        for target, message in (("other/a.mib", "of another recording"), ("disk/b.mib", "itself")):
            with pytest.raises(DatasetError, match=message):
                dask_tiled.record(url, tmp_path / target, overwrite=True, **options)
    np.testing.assert_array_equal(recording.array, FRAMES)


def test_a_target_that_waits_for_its_first_frame(tmp_path):
    with pushing([]) as port:
        url, path = f"dectris://127.0.0.1:{port}", tmp_path / "a.h5"
        with dask_tiled.record(url, path):
            for overwrite, message in ((False, "the target exists"), (True, "another recording")):
                with pytest.raises(DatasetError, match=message):
                    dask_tiled.record(url, path, overwrite=overwrite)
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_does_not_end_the_recording(contents, tmp_path):
    header, frames = contents
    messages = [mpx(header), *map(mpx, frames[:3])]
    with recorded(messages, tmp_path / "a.mib", closes=False) as recording:
        assert recording.array.shape == FRAMES.shape
        child = os.fork()
        if not child:
            recording_module.END_SECONDS = 3600  # if it is waited for, this test hangs
            recording.close()
            os._exit(recording.wait())
        assert os.waitpid(child, 0)[1] == 0
        assert not recording.wait(0.2)
        with pytest.warns(MissingFramesWarning):
            recording.stop()
    assert recording.state == "stopped"


def test_a_receiver_that_does_not_answer(contents, tmp_path, monkeypatch):
    stopping = pytest.importorskip("signal").SIGSTOP
    header, frames = contents
    messages = [mpx(header), *map(mpx, frames[:3])]
    with recorded(messages, tmp_path / "a.mib", closes=False) as recording:
        assert recording.array.shape == FRAMES.shape
        os.kill(receiver_process().pid, stopping)
        monkeypatch.setattr(recording_module, "END_SECONDS", 0.5)
        recording.stop()
    assert recording.state == "failed"
    assert "the receiver has died" in str(recording.error)


def test_hits_within_a_bound(tmp_path):
    """The chunks that fit are kept, although more came at once."""
    chunk = b"TPX3\0\0" + (80).to_bytes(2, "little") + b"\xb0" * 80
    path, bound = tmp_path / "a.tpx3", 100_000
    with recorded([chunk * 2_000], path, kind="tpx3", max_bytes=bound) as recording:
        assert "the recording is full" in str(ended(recording))
    assert path.read_bytes() == chunk * (bound // 88)
    assert recording.progress.events == 10 * (bound // 88)
