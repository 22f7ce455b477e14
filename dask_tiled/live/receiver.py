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
from dask_tiled.live.outputs import Bound, ReplacedFiles, files_to_replace
from dask_tiled.live.parent import (
    ENDED,
    FAILED,
    READY,
    STOPPED,
    Parent,
    RecordingRequest,
)
from dask_tiled.live.timepix3 import Timepix3Receiver
from dask_tiled.system.limits import limit_memory, reset
from dask_tiled.system.locks import open_locked
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
    with _claimed(request) if address.listens else nullcontext():
        connection = connect(address, parent)
    if connection is None:
        return STOPPED
    with closing(connection), closing(_replaced(request, protocol.beside)) as replaced:
        parent.when_begun = replaced.remove
        with _claimed(request) if protocol.is_late else nullcontext():
            if protocol.is_late:
                _check_room(request)
            receiver = make(request, connection)
            parent.send(READY)
            try:
                state = byte_sockets.pump(connection, receiver, parent, request)
            finally:
                receiver.close()
                parent.report(receiver.progress)
            return state


def _replaced(request: RecordingRequest, beside: str) -> ReplacedFiles:
    """Move the files of an earlier recording."""
    path, bound, overwrite = request.path, request.bound, request.overwrite
    return ReplacedFiles(files_to_replace(path, beside, bound, overwrite=overwrite))


@contextmanager
def _claimed(request: RecordingRequest) -> Iterator[None]:
    """Hold a target before anything is written; a new one is removed if nothing is.

    Raises
    ------
    DatasetError
        Another recording writes the target.
    """
    path = request.path
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
        os.close(open_locked(path))
    except BlockingIOError:
        problem = "another recording writes the target"
        raise DatasetError(problem, path=path) from None
    lock = shared_lock(path)
    try:
        yield
    finally:
        os.close(lock)
        with suppress(FileNotFoundError):
            if not os.path.getsize(path):
                os.unlink(path)


def _check_room(request: RecordingRequest) -> None:
    """Check that there is room to begin."""
    nbytes = AHEAD + SLACK
    hint = f"It needs {format_bytes(nbytes)} to begin."
    reserve(request.path, nbytes, in_memory=bool(request.temporary), hint=hint)
    os.truncate(request.path, 0)


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
