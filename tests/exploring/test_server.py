"""The server of `explore`: only requests with the token are answered; no message stops it."""

import random
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from checks import wait_for

from dask_tiled import DatasetError, open_dataset
from dask_tiled.exploring import page as page_module
from dask_tiled.exploring import server
from dask_tiled.exploring.page import MODULE, START, STYLE, text_of
from dask_tiled.exploring.pictures import Pictures
from dask_tiled.exploring.session import PageSession
from dask_tiled.testing import write_mib

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of starlette's dependencies
    testclient = pytest.importorskip("starlette.testclient")

TOKEN = "t0ken"  # noqa: S105 - test token
HERE = "http://127.0.0.1:8000"
PIXELS = np.random.default_rng(0).integers(0, 99, (6, 7, 16, 20), "u2")


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    return open_dataset(write_mib(tmp_path_factory.mktemp("scan") / "scan.mib", PIXELS))


@pytest.fixture
def client(scan):
    pictures = Pictures.of(scan, {})
    app = server.app_of(lambda send: PageSession(pictures, send), TOKEN)
    with testclient.TestClient(app, HERE) as made:
        yield made
    wait_for(lambda: not threads_of_pages())


def threads_of_pages():
    """List the threads of pages, without those of dask's pools and of other tests."""
    names = "image", "frame", "exploring", "closing"
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


def connect(client, origin=HERE, token=TOKEN):
    headers = {"origin": origin, "host": HERE.removeprefix("http://")}
    return client.websocket_connect(f"/{token}/socket", headers=headers)


def until(socket, kind):
    """Return the next message of a kind."""
    while True:
        data = socket.receive_bytes()
        length = int.from_bytes(data[:4], "little")
        if f'"type": "{kind}"'.encode() in data[4 : 4 + length]:
            return data


@pytest.mark.parametrize("name", ["", MODULE, STYLE, START])
def test_page_needs_the_token(client, name):
    found = client.get(f"/{TOKEN}/{name}")
    assert found.status_code == 200
    assert found.headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in found.headers["content-security-policy"]
    for path in (f"/wrong/{name}", f"/{TOKEN}x/{name}", f"/{name}", f"//{name}"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    "path", ["session.py", "../session.py", "%2e%2e/session.py", "..%2fsession.py", "/etc/passwd"]
)
def test_other_files_are_not_served(client, path):
    assert client.get(f"/{TOKEN}/{path}").status_code == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""]
)
def test_foreign_hosts_are_refused(client, host):
    """A foreign name that resolves to this server (DNS rebinding) is refused."""
    assert client.get(f"/{TOKEN}/", headers={"host": host}).status_code == 404


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "http://127.0.0.1:8001"])
def test_foreign_origins_are_refused(client, origin):
    with pytest.raises(testclient.WebSocketDisconnect), connect(client, origin):
        pass


def test_wrong_token_is_refused(client):
    with pytest.raises(testclient.WebSocketDisconnect), connect(client, token="t0ken2"):  # noqa: S106
        pass


def test_page_receives_pictures(client):
    with connect(client) as socket:
        socket.send_json({"type": "begin"})
        assert b'"title": "scan.mib"' in until(socket, "scene")
        data = until(socket, "frame")
        assert np.array_equal(
            np.frombuffer(data[-2 * 16 * 20 :], "u2").reshape(16, 20), PIXELS[3, 3]
        )


def test_number_of_pages_is_limited(client, monkeypatch):
    monkeypatch.setattr(server, "MOST_PAGES", 1)
    with connect(client), pytest.raises(testclient.WebSocketDisconnect), connect(client):
        pass
    with connect(client) as socket:
        socket.send_json({"type": "begin"})
        until(socket, "scene")


@pytest.mark.slow
def test_invalid_messages_do_not_stop_the_server(client):
    """Ten thousand invalid messages leave the connection usable, and no threads."""
    chance = random.Random(0)  # noqa: S311 - no cryptography
    usual = '{"type": "show", "sliders": [], "position": [1, 2], "region": null, "detector": {}}'
    with connect(client) as socket:
        threads = len(threads_of_pages())
        for k in range(10_000):
            text = [*usual]
            for _ in range(chance.randrange(1, 8)):
                text[chance.randrange(len(text))] = chr(chance.randrange(32, 1200))
            if k % 1000 == 0:
                text *= 100
            if k % 7 == 0:
                socket.send_bytes("".join(text).encode())
            else:
                socket.send_text("".join(text))
        socket.send_json({"type": "begin"})
        assert b'"title": "scan.mib"' in until(socket, "scene")
        assert len(threads_of_pages()) <= threads + 4


def test_page_shows_errors_of_opening():
    def fail(_):
        raise DatasetError("no such picture", path="scan.mib")

    with testclient.TestClient(server.app_of(fail, TOKEN), HERE) as client, connect(client) as one:
        assert b"scan.mib: no such picture" in until(one, "error")


def test_port_in_use_is_refused():
    with socket.socket() as other:
        other.bind((server.HOST, 0))
        other.listen()
        with pytest.raises(DatasetError, match="cannot be used"):
            server._listening(other.getsockname()[1])


@pytest.mark.parametrize("name", ["starlette", "uvicorn", "websockets"])
def test_missing_extra_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError, match=rf'{name} is missing\. Run: pip install "dask-tiled\[explore'
    ):
        server.serve("scan.mib", {})


@pytest.mark.slow
def test_explore_ends_on_ctrl_c(tmp_path):
    path = write_mib(tmp_path / "scan.mib", PIXELS)
    words = "-m", "dask_tiled", "explore", str(path), "--no-browser"
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    address = process.stdout.readline().split()[0]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address)
    with urlopen(address) as page:  # noqa: S310 - local server
        assert b"page.js" in page.read()
    with pytest.raises(HTTPError, match="404"):
        urlopen(address[:-2] + "/")  # noqa: S310 - local server
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 0
    process.stdout.close()


def test_address_is_passed_in_a_private_file(tmp_path, monkeypatch):
    opened = []

    def run(server, sockets):
        del server
        path = Path(opened[0].removeprefix("file://"))
        assert f":{sockets[0].getsockname()[1]}/" in path.read_text()
        assert path.parent.stat().st_mode & 0o077 == 0

    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("uvicorn.Server.run", run)
    said = []
    server.serve(write_mib(tmp_path / "scan.mib", PIXELS), {}, say=said.append)
    assert len(opened) == len(said) == 1
    assert not Path(opened[0].removeprefix("file://")).exists()


def test_page_loads_nothing_from_other_hosts():
    for name in (MODULE, STYLE, START):
        assert "//" not in text_of(name).replace("// ", "").replace("http://www.w3.org", "")
    assert "http" not in page_module.DOCUMENT
