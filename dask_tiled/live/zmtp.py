"""ZeroMQ's protocol between a detector that pushes messages and this side, which pulls them.

Messages stay in the buffer of the socket until they are written, which takes a fraction of the time
of a library that allocates each part. Facts of the protocol: ZMTP 3.1, 3.0 and 2.0, RFCs 37, 23 and
15 of rfc.zeromq.org.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

from dask_tiled.errors import StreamError, format_bytes
from dask_tiled.live import byte_sockets
from dask_tiled.live.addresses import Address
from dask_tiled.live.framing import COMMAND, LONG, MORE
from dask_tiled.live.parent import CONNECT_SECONDS, POLL_SECONDS, Parent, Receiver, no_answer
from dask_tiled.live.progress import StreamProgress

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
VERSION, PULLS, PUSHES = 3, 7, 8
"""Major version of this side, and the codes of both types of sockets in version 2."""
MECHANISM = b"NULL".ljust(20, b"\0")
GREETING_BYTES, SIGNED_BYTES = 64, len(SIGNATURE) + 1
READY, PING, PONG = b"\5READY", b"\4PING", b"\4PONG"
SOCKET_TYPE = b"Socket-Type"
LIFETIME_BYTES = 2
"""Bytes of the lifetime in a PING, before what a PONG repeats."""
MOST_COMMAND = 1 << 16
MOST_MESSAGE, MOST_PARTS = 512 << 20, 64
"""The longest message, and its most parts: three channels of 32 bits of an EIGER2 16M take 208 MiB,
and masks and flat fields of two 277 MiB."""
TOO_LONG = "Switch compression on, record fewer channels, or set header_detail to basic."
"""What makes messages shorter, in the SIMPLON API."""

Spans: TypeAlias = list[tuple[int, int]]
"""First byte and end of each part of a message."""


class MessageReceiver(Receiver, Protocol):
    """Writes messages to a file."""

    def take_alike(self, data: memoryview, at: int) -> int:
        """Write the messages from a position on that are like one before; return their end."""

    def take(self, parts: Sequence[bytes]) -> bool:
        """Write a message; return whether the stream goes on."""


class MessageStream:
    """Passes the messages of a connection on to their receiver.

    Parameters
    ----------
    connection : socket
    receiver : MessageReceiver
    url : str
        Address of the detector, for errors.

    Attributes
    ----------
    is_complete : bool
        Whether the stream has ended.
    """

    longest = MOST_MESSAGE

    def __init__(self, connection: socket.socket, receiver: MessageReceiver, url: str) -> None:
        self._connection, self._receiver, self._url = connection, receiver, url
        self._count, self.is_complete = 0, False
        self.flush, self.close = receiver.flush, receiver.close

    @property
    def progress(self) -> StreamProgress:
        """What is in the file."""
        return self._receiver.progress

    def take(self, data: memoryview) -> int:
        """Take the whole messages of some bytes; return how many bytes these are.

        Raises
        ------
        StreamError
            The bytes are no messages, one is too long, or as for the receiver.
        """
        at, receiver = 0, self._receiver
        while not self.is_complete:
            at = receiver.take_alike(data, at)
            spans, end = self._message(data, at)
            if not end:
                break
            at = end
            if spans:
                goes_on = receiver.take([bytes(data[start:stop]) for start, stop in spans])
                self.is_complete = not goes_on
            self._count += bool(spans)
        return at

    def _message(self, data: memoryview, first: int) -> tuple[Spans, int]:
        """Return the parts of a message, and its end, which is 0 if it is not complete.

        A command has no parts.
        """
        spans, at, size = Spans(), first, len(data)
        while at + 1 < size:
            flags = data[at]
            if flags & LONG:
                start = at + 9
                stop = start + int.from_bytes(data[at + 1 : start])
            else:
                start = at + 2
                stop = start + data[at + 1]
            if stop - first > MOST_MESSAGE or len(spans) == MOST_PARTS:
                expected = f"up to {MOST_PARTS} parts and {format_bytes(MOST_MESSAGE)}"
                found = f"{len(spans) + 1} parts, {format_bytes(stop - first)}"
                raise self._refused("a message is too long", expected, found, TOO_LONG)
            if flags & ~LONG > MORE:
                if flags & ~LONG != COMMAND or spans:
                    problem, expected = "no message begins where one has to", "flags 0 to 4, or 6"
                    raise self._refused(problem, expected, flags)
                return spans, self._answered(data, start, stop)
            if stop > size:
                break
            spans.append((start, stop))
            if not flags & MORE:
                return spans, stop
            at = stop
        return Spans(), 0

    def _answered(self, data: memoryview, start: int, stop: int) -> int:
        """Answer a command, and return its end; 0 if it is not complete."""
        if stop > len(data):
            return 0
        body = bytes(data[start:stop])
        if body.startswith(PING):
            with suppress(OSError):  # the detector reads no answers, or has closed the connection
                self._connection.send(_command(PONG + body[len(PING) + LIFETIME_BYTES :]))
        return stop

    def _refused(
        self, problem: str, expected: object, found: object, hint: str | None = None
    ) -> StreamError:
        return StreamError(
            problem,
            path=self._url,
            where=f"message {self._count}",
            expected=expected,
            found=found,
            hint=hint,
        )


def connect(address: Address, parent: Parent) -> socket.socket | None:
    """Connect to a detector that pushes messages; None if the parent process stops that.

    Raises
    ------
    StreamError
        Nothing answers, or what answers does not push messages.
    """
    connection = byte_sockets.connect(address, parent)
    if connection is None:
        return None
    try:
        if _Handshake(connection, parent, str(address)).shake():
            return connection
    except OSError as error:
        connection.close()
        raise no_answer(str(address), str(error)) from error
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


class _Handshake:
    """The beginning of a connection.

    Attributes
    ----------
    stops : bool
        Whether the parent process has stopped it.
    """

    def __init__(self, connection: socket.socket, parent: Parent, url: str) -> None:
        self._connection, self._parent, self._url = connection, parent, url
        self._end = time.monotonic() + CONNECT_SECONDS
        self._stops = False
        connection.settimeout(POLL_SECONDS)

    def shake(self) -> bool:
        """Greet the other side; return False if the parent process stops that."""
        self._connection.sendall(SIGNATURE + bytes([VERSION]))
        signed = self._read(SIGNED_BYTES)
        if self._stops:
            return False
        if signed[0] != SIGNATURE[0] or not signed[9] & 1:
            raise self._refused("the greeting of ZeroMQ", signed)
        if signed[10] < VERSION:
            return self._shake_hands_of_version_2()
        rest = GREETING_BYTES - SIGNED_BYTES - 1 - len(MECHANISM)
        self._connection.sendall(b"\0" + MECHANISM + bytes(rest))
        greeting = self._read(GREETING_BYTES - SIGNED_BYTES)
        if not self._stops and greeting[1 : 1 + len(MECHANISM)] != MECHANISM:
            raise self._refused("no encryption", greeting[1 : 1 + len(MECHANISM)].rstrip(b"\0"))
        self._connection.sendall(_command(READY + _property(SOCKET_TYPE, b"PULL")))
        flags, size = self._read(2) or bytes(2)
        if flags & LONG:
            size = int.from_bytes(bytes([size]) + self._read(7))
        body = self._read(min(size, MOST_COMMAND))
        if not self._stops and _properties(body).get(SOCKET_TYPE.lower()) != b"PUSH":
            raise self._refused("a socket that pushes", body[:60])
        return not self._stops

    def _shake_hands_of_version_2(self) -> bool:
        self._connection.sendall(bytes([PULLS, 0, 0]))  # and an identity of no bytes
        kind, _, size = self._read(3) or bytes(3)
        self._read(size)
        if not self._stops and kind != PUSHES:
            raise self._refused("a socket that pushes", bytes([kind]))
        return not self._stops

    def _read(self, count: int) -> bytes:
        """Return some bytes; none if the parent process stops that."""
        data = b""
        while len(data) < count and not self._stops:
            self._stops = self._parent.asks_to_stop()
            try:
                part = self._connection.recv(count - len(data))
                if not part:
                    raise no_answer(self._url, "the connection was closed")
                data += part
            except TimeoutError:
                pass
            if len(data) < count and time.monotonic() > self._end:
                raise no_answer(self._url, f"no greeting within {CONNECT_SECONDS} s")
        return b"" if self._stops else data

    def _refused(self, expected: str, found: bytes) -> StreamError:
        what = "what answers does not push messages by ZeroMQ"
        return StreamError(what, path=self._url, expected=expected, found=repr(found))


def _command(body: bytes) -> bytes:
    """Return a command as it is sent."""
    if len(body) < 1 << 8:
        return bytes([COMMAND, len(body)]) + body
    return bytes([COMMAND | LONG]) + len(body).to_bytes(8, "big") + body


def _property(name: bytes, value: bytes) -> bytes:
    """Return a property of a connection as it is sent."""
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def _properties(body: bytes) -> dict[bytes, bytes]:
    """Return the properties in a READY command by their names, which have no case."""
    properties, at = dict[bytes, bytes](), len(READY)
    while body.startswith(READY) and at < len(body):
        start = at + 1 + body[at] + 4
        stop = start + int.from_bytes(body[start - 4 : start])
        properties[body[at + 1 : start - 4].lower()] = body[start:stop]
        at = stop
    return properties
