"""Streams of bytes over TCP."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from select import select
from typing import Protocol

from dask_tiled.errors import StreamError
from dask_tiled.live.addresses import Address
from dask_tiled.live.parent import (
    COMPLETE,
    CONNECT_SECONDS,
    POLL_SECONDS,
    READY,
    STOPPED,
    Parent,
    Receiver,
    RecordingRequest,
    Silence,
    closed,
    closed_early,
    no_answer,
)
from dask_tiled.system.names import offered

BUFFER_BYTES = 1 << 20
"""The bytes of a socket are received in a buffer that stays in the cache, if messages fit."""
AT_ONCE = BUFFER_BYTES >> 2
"""Bytes that are waited for, if they come within the time of a poll: to wake up for each small
message takes longer than to receive it."""
FLUSH_SECONDS = 0.05
_LEAST = offered("socket", "SO_RCVLOWAT")


class ByteReceiver(Receiver, Protocol):
    """Writes a stream of bytes to a file."""

    longest: int
    """Bytes of the longest message, all of which it takes at once."""

    def take(self, data: memoryview) -> int:
        """Write what is complete of some bytes; return how many were taken."""


class StreamBuffer:
    """Bytes of a socket that a receiver has not taken yet."""

    def __init__(self, url: str) -> None:
        self._url, self._bytes = url, memoryview(bytearray(BUFFER_BYTES))
        self._used = 0

    @property
    def room(self) -> memoryview:
        """Memory for further bytes, which is never empty."""
        return self._bytes[self._used :]

    @property
    def is_empty(self) -> bool:
        """Whether all bytes were taken."""
        return not self._used

    def pass_on(self, count: int, receiver: ByteReceiver) -> None:
        """Pass bytes on that were received in the room.

        Raises
        ------
        StreamError
            The receiver needs more bytes than the buffer holds; or as for its ``take``.
        """
        used = self._used + count
        taken = receiver.take(self._bytes[:used])
        left = self._bytes[taken:used]
        if len(left) == len(self._bytes):
            if len(left) >= receiver.longest:
                what, found = "a message is too long", repr(bytes(left[:24]))
                raise StreamError(what, path=self._url, expected=f"{used} bytes", found=found)
            self._bytes = memoryview(bytearray(2 * len(left)))
            self._bytes[: len(left)] = left
        elif 0 < taken < used:
            self._bytes[: len(left)] = bytes(left)
        self._used = len(left)


def connect(address: Address, parent: Parent) -> socket.socket | None:
    """Connect to a detector, or wait for it to connect; None if the parent process stops that.

    Raises
    ------
    StreamError
        The detector does not answer, or its address is not one of this machine.
    """
    if address.listens:
        return _accepted(address, parent)
    try:
        # The system adapts the size of its buffer, unless one is set.
        return socket.create_connection(address[1:3], CONNECT_SECONDS)
    except OSError as error:
        raise no_answer(str(address), str(error)) from error


def _accepted(address: Address, parent: Parent) -> socket.socket | None:
    """Wait for a detector that connects."""
    try:
        server = socket.create_server(address[1:3])
    except OSError as error:
        problem, found = "cannot listen at the address", str(error)
        hint = "Pass an address of this machine, and a port that no other program uses."
        raise StreamError(problem, path=str(address), found=found, hint=hint) from error
    with server:
        server.settimeout(POLL_SECONDS)
        parent.send(READY)
        while True:
            if parent.asks_to_stop():
                return None
            try:
                return server.accept()[0]
            except TimeoutError:
                continue


def pump(
    connection: socket.socket, receiver: ByteReceiver, parent: Parent, request: RecordingRequest
) -> str:
    """Pass the bytes of a socket on; return the state in which the stream has ended.

    Raises
    ------
    StreamError
        The stream ends early, or its receiver refuses it.
    """
    buffer, silence, flushed = StreamBuffer(request.url), Silence(request), 0.0
    connection.setblocking(False)  # noqa: FBT003 - takes no keyword
    with suppress(OSError):
        if _LEAST is not None:
            connection.setsockopt(socket.SOL_SOCKET, _LEAST, AT_ONCE)
    while not receiver.is_complete:
        if parent.asks_to_stop(receiver):
            return STOPPED
        if time.monotonic() > flushed + FLUSH_SECONDS:
            receiver.flush()
            parent.report(receiver.progress)  # before this process may be killed
            flushed = time.monotonic()
        select([connection], [], [], POLL_SECONDS)
        try:
            count = connection.recv_into(buffer.room)
        except BlockingIOError:
            silence.check()
            continue
        except OSError as error:
            receiver.flush()
            raise closed_early(receiver, request.url, found=error.strerror) from error
        if not count:
            receiver.flush()
            if not buffer.is_empty:
                raise closed_early(receiver, request.url, expected="a whole message")
            return closed(receiver, request.url)
        silence.end()
        buffer.pass_on(count, receiver)
    return COMPLETE
