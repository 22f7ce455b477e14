"""Streams of bytes over TCP."""

from __future__ import annotations

import socket
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
    no_answer,
)

BUFFER_BYTES = 1 << 20
"""The bytes of a socket are received in a buffer that stays in the cache."""


class ByteReceiver(Receiver, Protocol):
    """Writes a stream of bytes to a file."""

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
        if not taken and used == len(self._bytes):
            what, found = "a message is too long", repr(bytes(self._bytes[:24]))
            raise StreamError(what, path=self._url, expected=f"{used} bytes", found=found)
        if 0 < taken < used:
            self._bytes[: used - taken] = bytes(self._bytes[taken:used])
        self._used = used - taken


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
    buffer, silence = StreamBuffer(request.url), Silence(request)
    connection.settimeout(POLL_SECONDS)
    while not receiver.is_complete:
        if parent.asks_to_stop(receiver):
            return STOPPED
        try:
            count = connection.recv_into(buffer.room)
        except TimeoutError:
            silence.check()
            continue
        if not count:
            if not buffer.is_empty:
                what, found = "the detector has closed the connection", str(receiver.progress)
                raise StreamError(what, path=request.url, expected="a whole message", found=found)
            return closed(receiver, request.url)
        silence.end()
        buffer.pass_on(count, receiver)
    return COMPLETE
