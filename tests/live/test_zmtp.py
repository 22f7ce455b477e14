"""Messages of ZeroMQ: what a peer may send, and a library's socket as the judge."""

import socket
import threading
from contextlib import contextmanager, suppress

import pytest
import zmq
from played_series import GREETING, PUSHES, framed

from dask_tiled import StreamError
from dask_tiled.live.addresses import Address
from dask_tiled.live.zmtp import MessageStream, connect


class Stopping:
    """A parent that stops after some looks."""

    def __init__(self, looks=1 << 30):
        self.looks = looks

    def asks_to_stop(self, _=None):
        self.looks -= 1
        return self.looks < 0


class Kept:
    """A receiver that keeps messages, those that are alike apart."""

    is_complete = False

    def __init__(self):
        self.messages = []

    def take_alike(self, _, at):
        return at

    def take(self, parts):
        self.messages.append(parts)
        return parts != [b"end"]

    def flush(self):
        pass

    close = flush


@contextmanager
def peer(sent):
    """Listen, and send bytes to who connects; what comes is appended to a list."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        came = []

        def serve():
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(sent)
                while part := connection.recv(1 << 10):
                    came.append(part)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address("dectris", *server.getsockname()), came
        thread.join(60)


def received(connection):
    """Return the messages of a connection until its last one."""
    kept, data = Kept(), b""
    stream = MessageStream(connection, kept, "dectris://test:1")
    connection.settimeout(300)
    while not stream.is_complete:
        data += connection.recv(1 << 16)
        data = data[stream.take(memoryview(data)) :]
    return kept.messages


MESSAGES = [[b"a" * 255], [b"", b"b" * 256, b"c"], [b"d" * 70_000], [b""], [b"end"]]


def test_messages_of_a_library():
    with zmq.Context() as context, context.socket(zmq.PUSH) as server:
        server.setsockopt(zmq.HEARTBEAT_IVL, 50)
        server.setsockopt(zmq.HEARTBEAT_TIMEOUT, 60_000)
        port = server.bind_to_random_port("tcp://127.0.0.1")
        with connect(Address("dectris", "127.0.0.1", port), Stopping()) as connection:
            for parts in MESSAGES:
                server.send_multipart(parts)
            assert received(connection) == MESSAGES


def test_a_heartbeat_is_answered():
    sent = PUSHES + b"\4\x0b\4PING\0\1abcd" + framed([b"end"])
    with peer(sent) as (address, came), connect(address, Stopping()) as connection:
        assert received(connection) == [[b"end"]]
    assert b"".join(came).endswith(b"\4\x09\4PONGabcd")


def test_names_of_properties_have_no_case():
    """By RFC 23."""
    with peer(PUSHES.replace(b"Socket-Type", b"socket-TYPE")) as (address, _):
        connect(address, Stopping()).close()


def test_a_peer_of_version_2():
    """By RFC 15: after the version come the type of the socket, 8 for PUSH, and its identity."""
    sent = GREETING[:10] + b"\1\x08\0\3own" + framed([b"a"]) + framed([b"end"])
    with peer(sent) as (address, came), connect(address, Stopping()) as connection:
        assert received(connection) == [[b"a"], [b"end"]]
    assert b"".join(came) == GREETING[:11] + b"\7\0\0"


WRONG = {
    "another protocol": (b"HTTP/1.1 200 OK\r\n\r\n", "expected the greeting of ZeroMQ"),
    "encryption": (GREETING[:12] + b"CURVE".ljust(52, b"\0"), "no encryption; found b'CURVE'"),
    "a publisher": (PUSHES.replace(b"PUSH", b"XPUB"), "a socket that pushes"),
    "a publisher of version 2": (GREETING[:10] + b"\1\x01\0\0", "a socket that pushes"),
    "a publisher named PUSH": (
        GREETING + b"\4\x37\5READY\x0bSocket-Type\0\0\0\3PUB\5Other\0\0\0\x14" + PUSHES[-20:],
        "a socket that pushes",
    ),
    "an error": (GREETING + b"\4\x09\5ERROR\2no", "pushes; found .*ERROR"),
    "half a greeting": (GREETING[:30], "no detector answers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_push_messages(name, monkeypatch):
    sent, message = WRONG[name]
    if name == "half a greeting":
        monkeypatch.setattr("dask_tiled.live.zmtp.CONNECT_SECONDS", 0.1)
    with peer(sent) as (address, _), pytest.raises(StreamError, match=message):
        connect(address, Stopping())


def test_a_greeting_byte_by_byte(monkeypatch):
    """A peer that sends for ever has as long as one that sends nothing."""
    monkeypatch.setattr("dask_tiled.live.zmtp.CONNECT_SECONDS", 0.1)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(GREETING + b"\6" + (1 << 16).to_bytes(8, "big"))
                while not ended.wait(0.001):
                    connection.sendall(b"a")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            with pytest.raises(StreamError, match="no greeting within"):
                connect(Address("dectris", *server.getsockname()), Stopping())
        finally:
            ended.set()
            thread.join(60)


@pytest.mark.parametrize("is_gone", [False, True])
def test_heartbeats_that_nobody_answers(is_gone):
    """A PONG for which the system has no room, or no peer, is left out."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with suppress(BlockingIOError):
            while not is_gone and ours.send(bytes(1 << 16)):
                pass
        if is_gone:
            theirs.close()
        kept = Kept()
        sent = b"\4\x0b\4PING\0\1abcd" + framed([b"end"])
        assert MessageStream(ours, kept, "dectris://test:1").take(memoryview(sent)) == len(sent)
        assert kept.messages == [[b"end"]]


def test_a_handshake_that_is_stopped():
    with peer(b"") as (address, _):
        assert connect(address, Stopping(1)) is None


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"\x03" + (1 << 40).to_bytes(8, "big") + b"a", "a message is too long"),
        (b"\1\0" * 65, "a message is too long"),
        (b"\x08\1a", "no message begins where one has to"),
        (b"\1\1a\4\6\5READY", "no message begins where one has to"),
    ],
)
def test_wrong_messages(sent, message):
    stream = MessageStream(None, Kept(), "dectris://test:1")
    with pytest.raises(StreamError, match=message):
        stream.take(memoryview(framed([b"a"]) + sent))
