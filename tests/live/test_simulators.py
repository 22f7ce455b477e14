"""The recipes of the page "At the microscope" run against LiberTEM-live's simulators."""

import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from checks import wait_for
from chromium.pages import drag_while_filling
from played_series import stream_v1, write_played_series

import dask_tiled
from dask_tiled.testing import counting_frames, write_mib, write_tpx3

PAGE = Path(__file__).parents[2] / "docs" / "microscope.rst"
FRAMES = counting_frames((4, 6, 64, 64), "uint16")
SECONDS = 300
MERLIN_PORTS = "--data-port", "6342", "--control-port", "6341", "--trigger-port", "6343"


LISTENS = r"listening \('[^']*', (\d+)\)"
"""Printed by the simulator of Timepix3, which sleeps after any connection, also one for a try."""


def write_dump(frames):
    """Write a captured stream V1, as the simulator plays it; return its parts."""
    path = write_played_series("played.h5", frames)
    parts = [part for parts in stream_v1(path) for part in parts]
    dump = b"".join(struct.pack("<q", len(part)) + part for part in parts)
    Path("series.dump").write_bytes(dump)
    return parts


def commands():
    """Return the PATH with the simulators."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])


def block(section, language):
    """Return the first block of code of a section."""
    text = re.split(rf"^{section}\n-+$", PAGE.read_text("utf8"), flags=re.MULTILINE)[1]
    code = re.search(rf"code-block:: {language}\n\n((?:   .*\n|\n)+)", text)[1]
    return re.sub("^   ", "", code, flags=re.MULTILINE)


def free_port():
    """Return a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def listens(port):
    """Return whether a program listens at a port."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.fixture
def simulators(tmp_path, monkeypatch):
    """Return a function that starts the simulator of a recipe, and returns the ports it has.

    Those of the recipe are replaced; ``pattern`` finds one that it prints.
    """
    monkeypatch.chdir(tmp_path)
    started = []

    def start(section, ports, options=(), wait=None, pattern=None):
        command = shlex.split(block(section, "sh"))
        program = shutil.which(command[0], path=commands())
        if program is None:
            reason = f"needs {command[0]} of LiberTEM-live"
            if os.environ.get("DASK_TILED_REQUIRE_READERS") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
        told = {port: free_port() for port in ports}
        words = [str(told.get(word, word)) for word in (*command[1:], *options)]
        with open("log", "w") as log:
            process = subprocess.Popen(
                [program, *words], stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)

        def is_ready():
            assert process.poll() is None, Path("log").read_text()
            if wait:
                return listens(told[wait])
            found = re.findall(pattern, Path("log").read_text())
            told.update({"34567": int(found[-1])} if found else {})
            return bool(found)

        wait_for(is_ready, SECONDS)
        return told

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)  # simulators start processes of their own
        process.wait()


@pytest.fixture
def simulated(simulators):
    """Return a function that runs a recipe: its simulator, then its code with other ports."""

    def run(section, ports, options=(), wait=None, pattern=None):
        code = block(section, "python")
        for port, other in simulators(section, ports, options, wait, pattern).items():
            code = code.replace(port, str(other))
        names = {}
        exec(compile(code, section, "exec"), names)  # noqa: S102 - of the page
        return names

    return run


@contextmanager
def gate(port, nbytes):
    """Pass the bytes of a connection on, those of the detector up to a number; yield the port.

    Yields also a function that lets all pass.
    """
    opened = threading.Event()

    def passed(source, target, left):
        with suppress(OSError):
            while left > 0 or opened.wait(SECONDS):
                part = source.recv(min(left, 1 << 16) if left > 0 else 1 << 16)
                target.sendall(part)
                left -= len(part)
                if not part:
                    break

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            ours, _ = server.accept()
            with ours, socket.create_connection(("127.0.0.1", port)) as detector:
                back = threading.Thread(target=passed, args=(ours, detector, 1 << 40), daemon=True)
                back.start()
                passed(detector, ours, nbytes)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], opened.set


SCAN = counting_frames((16, 24, 64, 64), "uint16")


@pytest.mark.slow
@pytest.mark.parametrize("section", ["Merlin", "DECTRIS"])
def test_a_scan_fills_while_a_detector_is_dragged(chromium, served, simulators, section):
    """Half of it passes at first; every result is that of the finished file."""
    code = block(section, "python").split("url = ")[0]  # with the function that arms
    if section == "Merlin":
        path = write_mib("played.mib", SCAN)
        ports = simulators(section, MERLIN_PORTS[1::2], MERLIN_PORTS, wait="6341")
        port, nbytes, suffix = ports["6342"], path.stat().st_size // 2 + (1 << 10), "mib"
    else:
        series = write_dump(SCAN.reshape(-1, 64, 64))
        ports = simulators(section, ["8910"], pattern=r"listening on tcp://[^:]*:(\d+)")
        port, nbytes, suffix = ports["34567"], sum(map(len, series)) // 2 + (1 << 10), "h5"
    for old, new in ports.items():
        code = code.replace(old, str(new))
    names = {}
    exec(compile(code, section, "exec"), names)  # noqa: S102 - of the page
    arm = names["start" if section == "Merlin" else "arm"]
    with gate(port, nbytes) as (passing, open_gate):
        url = f"{section.lower()}://127.0.0.1:{passing}"
        with dask_tiled.record(
            url, f"scan.{suffix}", nav_shape=(16, 24), on_ready=arm
        ) as recording:
            session = drag_while_filling(
                chromium, served(recording), open_gate, SCAN[..., 0, 0].size
            )
    np.testing.assert_array_equal(session.image(), (SCAN * session.mask).sum((2, 3)))


@pytest.mark.slow
def test_merlin(simulated):
    write_mib("played.mib", FRAMES)
    names = simulated("Merlin", MERLIN_PORTS[1::2], MERLIN_PORTS, wait="6341")
    recording = names["recording"]
    assert recording.state == "complete"
    np.testing.assert_array_equal(recording.array, FRAMES)


@pytest.mark.slow
def test_dectris(simulated):
    write_dump(FRAMES.reshape(24, 64, 64))
    names = simulated("DECTRIS", ["8910"], pattern=r"listening on tcp://[^:]*:(\d+)")
    recording = names["recording"]
    assert recording.state == "complete"
    np.testing.assert_array_equal(recording.array, FRAMES)


@pytest.mark.slow
def test_timepix3(simulated):
    """The simulator sends a file again and again, after a pause."""
    hits = np.random.default_rng(0).poisson(0.05, (6, 256, 256))
    path = write_tpx3("played.tpx3", hits, line=3, frame_time=0.01)
    names = simulated("Timepix3", ["8283"], pattern=LISTENS)
    np.testing.assert_array_equal(names["image"], hits.sum((1, 2)).reshape(2, 3))
    assert names["state"].exact
    assert names["recording"].state == "stopped"
    assert Path("hits.tpx3").read_bytes() == path.read_bytes()
    np.testing.assert_array_equal(names["recording"].array, hits.reshape(2, 3, 256, 256))


def sums_until(recording, nbytes):
    """Yield the states of a sum; stop the recording when so many bytes have come."""
    for state in dask_tiled.progressive(recording.array.sum((2, 3)), every=0):
        yield state
        if recording.progress.nbytes >= nbytes:
            recording.stop()


@pytest.mark.slow
def test_timepix3_that_begins_again(simulators):
    """The times of a file that is sent twice go back: results are those of the file at the end."""
    hits = np.random.default_rng(1).poisson(0.05, (6, 256, 256))
    path = write_tpx3("played.tpx3", hits, line=3, frame_time=0.01)
    port = simulators("Timepix3", ["8283"], ("--sleep", "0.5"), pattern=LISTENS)["8283"]
    scan = {"frame_time": 0.01, "nav_shape": (2, 3)}
    twice = 2 * path.stat().st_size
    with (
        dask_tiled.record(f"tpx3://127.0.0.1:{port}", "hits.tpx3", **scan) as recording,
        pytest.warns(UserWarning, match="events came late"),
    ):
        *_, state = sums_until(recording, twice)
    assert state.exact
    again = dask_tiled.open_dataset("hits.tpx3", missing="fill", cut=True, **scan)
    np.testing.assert_array_equal(state.values, again.sum((2, 3)))
    written = np.frombuffer(Path("hits.tpx3").read_bytes(), "<u8")
    assert state.values.sum() == (written >> np.uint64(60) == 0xB).sum()
