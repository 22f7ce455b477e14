"""Messages over ZeroMQ, which a detector pushes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from dask_tiled.live.addresses import Address
from dask_tiled.live.parent import (
    COMPLETE,
    CONNECT_SECONDS,
    POLL_SECONDS,
    STOPPED,
    Parent,
    Receiver,
    RecordingRequest,
    Silence,
    closed,
    no_answer,
)

MOST_QUEUED, MOST_MESSAGE = 24, 64 << 20
"""Messages that wait in this process, and the longest one: together within its memory."""
AT_ONCE = 256
"""Messages between two looks at the clock."""
FLUSH_SECONDS = 0.05


class MessageReceiver(Receiver, Protocol):
    """Writes messages to a file."""

    def take(self, parts: Sequence[bytes]) -> bool:
        """Write a message; return whether the stream goes on."""

    def flush(self) -> None:
        """Show readers what was written."""


class MessageSocket(NamedTuple):
    """A socket that pulls messages, and the socket of its events."""

    messages: Any
    events: Any
    context: Any

    def was_closed(self) -> bool:
        """Return whether the connection has ended."""
        import zmq
        from zmq.utils.monitor import recv_monitor_message

        while self.events.poll(0):
            if recv_monitor_message(self.events)["event"] == zmq.EVENT_DISCONNECTED:
                return True
        return False

    def close(self) -> None:
        """Close the sockets, and drop what they hold."""
        self.messages.disable_monitor()
        self.messages.close(linger=0)
        self.events.close(linger=0)
        self.context.term()


def connect(address: Address, parent: Parent) -> MessageSocket | None:
    """Connect to a detector; None if the parent process stops that.

    Raises
    ------
    StreamError
        The detector does not answer.
    """
    import zmq
    from zmq.utils.monitor import recv_monitor_message

    context = zmq.Context()
    messages = context.socket(zmq.PULL)
    messages.setsockopt(zmq.RCVHWM, MOST_QUEUED)
    messages.setsockopt(zmq.MAXMSGSIZE, MOST_MESSAGE)
    messages.setsockopt(zmq.IPV6, ":" in address.host)
    events = messages.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    made, end = MessageSocket(messages, events, context), time.monotonic() + CONNECT_SECONDS
    host = f"[{address.host}]" if ":" in address.host else address.host
    found, shaken = f"nothing within {CONNECT_SECONDS} s", zmq.EVENT_HANDSHAKE_SUCCEEDED
    try:
        messages.connect(f"tcp://{host}:{address.port}")
        while time.monotonic() < end:
            if parent.asks_to_stop():
                made.close()
                return None
            is_told = events.poll(int(1000 * POLL_SECONDS))
            if is_told and recv_monitor_message(events)["event"] == shaken:
                return made
    except zmq.ZMQError as error:
        found = str(error)
    made.close()
    raise no_answer(str(address), found)


def pump(
    connection: MessageSocket, receiver: MessageReceiver, parent: Parent, request: RecordingRequest
) -> str:
    """Pass messages on; return the state in which the stream has ended.

    Raises
    ------
    StreamError
        The stream ends early, or its receiver refuses it.
    """
    import zmq

    socket, silence, flushed = connection.messages, Silence(request), 0.0
    while not receiver.is_complete:
        if parent.asks_to_stop(receiver):
            return STOPPED
        if socket.poll(int(1000 * POLL_SECONDS)):
            silence.end()
            with suppress(zmq.Again):  # all that have come
                for _ in range(AT_ONCE):
                    if not receiver.take(socket.recv_multipart(zmq.NOBLOCK)):
                        break
        elif connection.was_closed():
            receiver.flush()
            return closed(receiver, request.url)
        else:
            silence.check()
        if time.monotonic() > flushed + FLUSH_SECONDS:
            receiver.flush()
            flushed = time.monotonic()
    return COMPLETE
