"""The process of a recording: reads a socket, and writes a file that grows."""

from __future__ import annotations

import socket
import time
from contextlib import closing
from typing import Any, NamedTuple, Protocol

from dask_tiled.errors import DatasetError, StreamError
from dask_tiled.live.addresses import Address
from dask_tiled.live.merlin import MerlinReceiver
from dask_tiled.live.outputs import Bound
from dask_tiled.live.progress import StreamProgress
from dask_tiled.system.limits import limit_memory, reset
from dask_tiled.system.processes import connection_of

STOP = "stop"
READY, PROGRESS, ENDED = "ready", "progress", "ended"
"""Messages to and from the process."""
COMPLETE, STOPPED, FAILED = "complete", "stopped", "failed"
BUFFER_BYTES = 1 << 20
"""The bytes of a socket are received in a buffer that stays in the cache."""
SOCKET_BYTES = 8 << 20
"""Bytes that the system is asked to keep while the process is busy."""
MOST_BYTES = 256 << 20
"""Memory that the process may take beyond what the interpreter and its modules do."""
POLL_SECONDS = 0.02
"""How often the process looks for messages of its parent, and reports its progress."""
CONNECT_SECONDS = 10.0


class RecordingRequest(NamedTuple):
    """What the process of a recording receives and writes, as JSON values."""

    url: str
    path: str
    bound: Bound
    frames: int
    """Frames of the scan; 0 if unknown."""
    timeout: float
    """Seconds without data after which the recording ends; 0 is unbounded."""
    temporary: str
    """Folder that is removed if the parent process dies; empty if there is none."""


class Receiver(Protocol):
    """Writes a stream of bytes to a file."""

    is_complete: bool

    @property
    def progress(self) -> StreamProgress:
        """What is in the file."""

    def take(self, data: memoryview) -> int:
        """Write what is complete of some bytes; return how many were taken."""

    def close(self) -> None:
        """Close the file, without what is not complete."""


class Parent:
    """The process that has asked for the recording.

    Attributes
    ----------
    is_gone : bool
        Whether it has ended.
    """

    def __init__(self, connection: Any) -> None:
        self._connection, self._next = connection, 0.0
        self._told: StreamProgress | None = None
        self.is_gone = False

    def send(self, kind: str, value: Any = None) -> None:
        """Send a message, if there is a process to send it to."""
        try:
            self._connection.send((kind, value))
        except OSError:
            self.is_gone = True

    def asks_to_stop(self, receiver: Receiver) -> bool:
        """Report the progress, and look for messages, now and then."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + POLL_SECONDS
        if receiver.progress != self._told:
            self._told = receiver.progress
            self.send(PROGRESS, self._told)
        try:
            return self.is_gone or (self._connection.poll() and self._connection.recv() == STOP)
        except (EOFError, OSError):
            self.is_gone = True
            return True


def serve(number: int, *request: Any) -> None:
    """Receive a stream until it is complete, or the parent process stops it."""
    reset()
    parent = Parent(connection_of(number))
    url, path, bound, *rest = request
    asked = RecordingRequest(url, path, Bound(*bound), *rest)
    limit_memory(MOST_BYTES)
    state, error = FAILED, None  # type: str, DatasetError | None
    try:
        state = _received(asked, parent)
    except DatasetError as failed:
        error = failed
    except (OSError, MemoryError) as failed:
        error = StreamError("the recording failed", path=url, found=str(failed) or repr(failed))
    parent.send(ENDED, (state, error))
    if parent.is_gone and asked.temporary:
        import shutil

        shutil.rmtree(asked.temporary, ignore_errors=True)


def _received(request: RecordingRequest, parent: Parent) -> str:
    """Receive a stream, and return the state in which it has ended."""
    address = Address.of(request.url)
    connection = _connected(address, parent)
    if connection is None:
        return STOPPED
    receiver = MerlinReceiver(request.url, request.path, request.bound, request.frames)
    with closing(connection), closing(receiver):
        parent.send(READY)
        try:
            state = _pump(connection, receiver, parent, request)
        finally:
            receiver.close()
            parent.send(PROGRESS, receiver.progress)
    return state


def _connected(address: Address, parent: Parent) -> socket.socket | None:
    """Connect to a detector."""
    del parent
    try:
        made = socket.create_connection(address[1:3], CONNECT_SECONDS)
    except OSError as error:
        hint = "Start the software of the detector first, or check host and port."
        what, found = "no detector answers", str(error)
        raise StreamError(what, path=str(address), found=found, hint=hint) from error
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
    return made


class StreamBuffer:
    """Bytes of a socket that a receiver has not taken yet."""

    def __init__(self, url: str) -> None:
        self._url, self._bytes = url, memoryview(bytearray(BUFFER_BYTES))
        self._used = 0

    @property
    def room(self) -> memoryview:
        """Memory for further bytes, which is never empty."""
        return self._bytes[self._used :]

    def pass_on(self, count: int, receiver: Receiver) -> None:
        """Pass bytes on that were received in the room.

        Raises
        ------
        StreamError
            The receiver needs more bytes than the buffer holds; or as for its ``take``.
        """
        used = self._used + count
        taken = receiver.take(self._bytes[:used])
        if not taken and used == len(self._bytes):
            what, found = "a message is too long", repr(bytes(self._bytes[:24]))
            raise StreamError(what, path=self._url, expected=f"{used} bytes", found=found)
        if 0 < taken < used:
            self._bytes[: used - taken] = bytes(self._bytes[taken:used])
        self._used = used - taken


def _pump(
    connection: socket.socket, receiver: Receiver, parent: Parent, request: RecordingRequest
) -> str:
    """Pass the bytes of a socket on."""
    buffer, last = StreamBuffer(request.url), time.monotonic()
    connection.settimeout(POLL_SECONDS)
    while not receiver.is_complete:
        if parent.asks_to_stop(receiver):
            return STOPPED
        try:
            count = connection.recv_into(buffer.room)
        except TimeoutError:
            quiet = time.monotonic() - last
            if request.timeout and quiet > request.timeout:
                what, found = "the detector sends nothing", f"{quiet:.1f} s without data"
                raise StreamError(what, path=request.url, found=found) from None
            continue
        if not count:
            return _ended(receiver, request)
        last = time.monotonic()
        buffer.pass_on(count, receiver)
    return COMPLETE


def _ended(receiver: Receiver, request: RecordingRequest) -> str:
    """Return the state of a stream that the detector has ended."""
    progress = receiver.progress
    if progress.frames and not progress.expected:
        return COMPLETE
    what, found = "the detector has closed the connection", str(progress)
    raise StreamError(what, path=request.url, expected="all frames", found=found)
