"""A detector played from a file: its messages, sent to whoever connects to this machine."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dask_tiled.testing.frames import StrPath

Messages = Iterable[bytes | memoryview]


@contextmanager
def play(path: StrPath, *, frames_per_second: float = math.inf) -> Iterator[str]:
    """Play a detector: send a recorded file, as the detector did, to each program that connects.

    It listens on a free port of 127.0.0.1 while the context lasts.

    Parameters
    ----------
    path : path-like
        A .mib file of a Merlin with its .hdr file.
    frames_per_second : float
        Highest rate; by default as fast as it is received.

    Yields
    ------
    str
        The URL for :func:`dask_tiled.record`.

    Raises
    ------
    ValueError
        No detector sends such a file.
    """
    suffix = Path(path).suffix
    if suffix not in MESSAGES:
        raise ValueError(f"path: expected one of {', '.join(MESSAGES)}, found {suffix!r}")
    protocol, messages = MESSAGES[suffix]
    interval = 1 / frames_per_second
    with sending(lambda: messages(Path(path)), interval=interval) as port:
        yield f"{protocol}://127.0.0.1:{port}"


@contextmanager
def sending(
    messages: Callable[[], Messages], *, interval: float = 0.0, closes: bool = False
) -> Iterator[int]:
    """Send messages to each program that connects; yield the port.

    ``closes``: whether the connection ends with the last message; detectors keep it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_over = threading.Event()

        def serve() -> None:
            with suppress(OSError):  # the server is closed at the end
                while not is_over.is_set():
                    connection, _ = server.accept()
                    with suppress(OSError), connection:
                        _send(connection, messages(), interval)
                        if not closes:
                            connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            is_over.set()
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)


def _send(connection: socket.socket, messages: Messages, interval: float) -> None:
    begun = time.monotonic()
    for number, message in enumerate(messages):
        ahead = begun + number * interval - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        connection.sendall(message)


def merlin_messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of a Merlin: the acquisition header, and a frame each."""
    header = path.with_suffix(".hdr").read_bytes()
    yield mpx(header)
    with path.open("rb") as file:
        fields = file.read(64).split(b",")
        width, height, kind = int(fields[4]), int(fields[5]), fields[6].strip().decode()
        bits = _raw_bits(header) if kind == "R64" else int(kind[1:])
        nbytes = int(fields[2]) + width * height * bits // 8
        file.seek(0)
        while frame := file.read(nbytes):
            yield mpx(frame)


def mpx(content: bytes) -> bytes:
    """Return a message of a Merlin."""
    return b"MPX,%010d,%b" % (len(content) + 1, content)


def _raw_bits(header: bytes) -> int:
    """Return the bits of a stored pixel by the counter depth in an acquisition header."""
    line = next(one for one in header.splitlines() if one.startswith(b"Counter Depth"))
    return {1: 1, 6: 8, 12: 16, 24: 16}[int(line.split(b"\t")[1])]


MESSAGES: dict[str, tuple[str, Callable[[Path], Messages]]] = {".mib": ("merlin", merlin_messages)}
