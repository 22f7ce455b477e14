"""The process of a recording: receives a stream, and writes a file that grows."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Any, TypeAlias

from dask_tiled.errors import DatasetError, StreamError, format_bytes
from dask_tiled.live import byte_sockets, zmtp
from dask_tiled.live.addresses import PROTOCOLS, Address
from dask_tiled.live.chunk_file import AHEAD, SLACK, reserve, shared_lock
from dask_tiled.live.dectris import DectrisReceiver
from dask_tiled.live.merlin import MerlinReceiver
from dask_tiled.live.outputs import Bound, files_to_replace
from dask_tiled.live.parent import (
    ENDED,
    FAILED,
    PROGRESS,
    READY,
    STOPPED,
    Parent,
    RecordingRequest,
)
from dask_tiled.live.timepix3 import Timepix3Receiver
from dask_tiled.system.limits import limit_memory, reset
from dask_tiled.system.processes import connection_of


def serve(number: int, *request: Any) -> None:
    """Receive a stream until it is complete, or the parent process stops it."""
    reset()
    parent = Parent(connection_of(number))
    url, path, bound, *rest = request
    asked = RecordingRequest(url, path, Bound(*bound), *rest)
    state, error = FAILED, None  # type: str, DatasetError | None
    try:
        state = _received(asked, parent)
    except DatasetError as failed:
        error = failed
    except (OSError, RuntimeError, MemoryError, ImportError, ValueError, TypeError) as failed:
        error = StreamError("the recording failed", path=url, found=str(failed) or repr(failed))
    parent.send(ENDED, (state, error))
    if parent.is_gone and asked.temporary:
        import shutil

        shutil.rmtree(asked.temporary, ignore_errors=True)


def _received(request: RecordingRequest, parent: Parent) -> str:
    """Receive a stream, and return the state in which it has ended."""
    address = Address.of(request.url)
    protocol, (connect, make) = PROTOCOLS[address.protocol], RECEIVERS[address.protocol]
    limit_memory(request.most_memory)
    connection = connect(address, parent)
    if connection is None:
        return STOPPED
    with closing(connection):
        _replace(request, protocol.beside)
        with _claimed(request) if protocol.is_late else nullcontext():
            receiver = make(request, connection)
            parent.send(READY)
            try:
                state = byte_sockets.pump(connection, receiver, parent, request)
            finally:
                receiver.close()
                parent.send(PROGRESS, receiver.progress)
            return state


def _replace(request: RecordingRequest, beside: str) -> None:
    """Remove the files of an earlier recording."""
    path, bound, overwrite = request.path, request.bound, request.overwrite
    for one in files_to_replace(path, beside, bound, overwrite=overwrite):
        os.unlink(one)


@contextmanager
def _claimed(request: RecordingRequest) -> Iterator[None]:
    """Hold a target before anything is written; it is removed if nothing is.

    Raises
    ------
    StreamError
        The disk is full.
    """
    path, nbytes = request.path, AHEAD + SLACK
    with open(path, "xb"):
        lock = shared_lock(path)
    try:
        hint = f"It needs {format_bytes(nbytes)} to begin."
        reserve(path, nbytes, in_memory=bool(request.temporary), hint=hint)
        os.truncate(path, 0)
        yield
    finally:
        os.close(lock)
        with suppress(FileNotFoundError):
            if not os.path.getsize(path):
                os.unlink(path)


def _merlin(request: RecordingRequest, _: socket.socket) -> MerlinReceiver:
    return MerlinReceiver(request.url, request.path, request.bound, request.frames)


def _timepix3(request: RecordingRequest, _: socket.socket) -> Timepix3Receiver:
    return Timepix3Receiver(request.url, request.path, request.bound)


def _dectris(request: RecordingRequest, connection: socket.socket) -> zmtp.MessageStream:
    told = request.url, request.path, request.bound, request.frames
    receiver = DectrisReceiver(*told, in_memory=bool(request.temporary))
    return zmtp.MessageStream(connection, receiver, request.url)


Connect: TypeAlias = Callable[[Address, Parent], socket.socket | None]
Make: TypeAlias = Callable[[RecordingRequest, socket.socket], byte_sockets.ByteReceiver]
RECEIVERS: dict[str, tuple[Connect, Make]] = {
    "merlin": (byte_sockets.connect, _merlin),
    "tpx3": (byte_sockets.connect, _timepix3),
    "dectris": (zmtp.connect, _dectris),
}
"""How the detectors of each protocol are connected, and what takes their streams."""
