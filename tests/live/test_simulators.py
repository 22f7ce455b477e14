"""The recipes of the page "At the microscope" run against LiberTEM-live's simulators.

``DASK_TILED_SIMULATORS`` is the folder of their commands, if they are not in the PATH.
"""

import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from played_series import stream_v1, write_played_series

import dask_tiled
from dask_tiled.testing import counting_frames, write_mib, write_tpx3

PAGE = Path(__file__).parents[2] / "docs" / "microscope.rst"
FRAMES = counting_frames((4, 6, 64, 64), "uint16")
SECONDS = 60


def commands():
    """Return the PATH with the simulators."""
    return os.pathsep.join([os.environ.get("DASK_TILED_SIMULATORS", ""), os.environ["PATH"]])


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
def simulated(tmp_path, monkeypatch):
    """Return a function that runs a recipe: its simulator, then its code with other ports."""
    monkeypatch.chdir(tmp_path)
    started = []

    def run(section, ports, options=(), wait=None, pattern=None):
        command = shlex.split(block(section, "sh"))
        program = shutil.which(command[0], path=commands())
        if program is None:
            pytest.skip(f"needs {command[0]} of LiberTEM-live")
        told = {port: free_port() for port in ports}
        words = [str(told.get(word, word)) for word in command[1:]]
        words += [str(told.get(word, word)) for word in options]
        with open("log", "w") as log:
            process = subprocess.Popen([program, *words], stdout=log, stderr=log)
        started.append(process)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and process.poll() is None:
            found = re.findall(pattern, Path("log").read_text()) if pattern else []
            if (pattern and found) or (wait and listens(told[wait])):
                break
            time.sleep(0.05)
        code = block(section, "python")
        for port, other in {**told, **({"34567": found[-1]} if pattern else {})}.items():
            code = code.replace(port, str(other))
        names = {}
        exec(compile(code, section, "exec"), names)  # noqa: S102 - of the page
        return names["recording"]

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_merlin(simulated):
    write_mib("played.mib", FRAMES)
    ports = ("--data-port", "6342", "--control-port", "6341", "--trigger-port", "6343")
    recording = simulated("Merlin", ports[1::2], ports, wait="6341")
    assert recording.state == "complete"
    np.testing.assert_array_equal(recording.array, FRAMES)


@pytest.mark.slow
def test_dectris(simulated, tmp_path):
    frames = FRAMES.reshape(24, 64, 64)
    path = write_played_series(tmp_path / "played.h5", frames)
    parts = [part for parts in stream_v1(path) for part in parts]
    dump = b"".join(struct.pack("<q", len(part)) + part for part in parts)
    Path("series.dump").write_bytes(dump)
    recording = simulated("DECTRIS", ["8910"], pattern=r"listening on tcp://[^:]*:(\d+)")
    assert recording.state == "complete"
    np.testing.assert_array_equal(recording.array, FRAMES)


@pytest.mark.slow
def test_timepix3(simulated):
    hits = np.random.default_rng(0).poisson(0.05, (6, 256, 256))
    path = write_tpx3("played.tpx3", hits, line=3)
    recording = simulated("Timepix3", ["8283"], wait="8283")
    content = path.read_bytes()
    written = Path("hits.tpx3").read_bytes()
    repeated = content * -(-len(written) // len(content))
    assert len(written) > 8_000
    assert repeated.startswith(written)
    Path("whole.tpx3").write_bytes(content)
    arr = dask_tiled.open_dataset("whole.tpx3", lines="tdc1_rising", nav_shape=(2, 3))
    assert arr.shape == recording.array.shape
