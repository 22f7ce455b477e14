"""The process of a recording: receives a stream, and writes a file that grows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Any

from dask_tiled.errors import DatasetError, StreamError, format_bytes
from dask_tiled.files.paths import open_file
from dask_tiled.live import byte_sockets, message_sockets
from dask_tiled.live.addresses import PROTOCOLS, Address
from dask_tiled.live.chunk_file import AHEAD, SLACK, shared_lock
from dask_tiled.live.dectris import DectrisReceiver
from dask_tiled.live.merlin import MerlinReceiver
from dask_tiled.live.outputs import Bound, disk_error, files_to_replace
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
from dask_tiled.system.files import allocate
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
    sockets, make = RECEIVERS[address.protocol]
    limit_memory(request.most_memory)
    connection = sockets.connect(address, parent)
    if connection is None:
        return STOPPED
    is_late = address.protocol == "dectris"  # its file is written at the first image
    with closing(connection):
        _replace(request, PROTOCOLS[address.protocol].beside)
        with _claimed(request.path) if is_late else nullcontext():
            receiver = make(request)
            parent.send(READY)
            try:
                state: str = sockets.pump(connection, receiver, parent, request)
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
def _claimed(path: str) -> Iterator[None]:
    """Hold a target before anything is written; it is removed if nothing is.

    Raises
    ------
    StreamError
        The disk is full.
    """
    with open(path, "xb"):
        lock = shared_lock(path)
    try:
        _check_room(path)
        yield
    finally:
        os.close(lock)
        with suppress(FileNotFoundError):
            if not os.path.getsize(path):
                os.unlink(path)


def _check_room(path: str) -> None:
    """Check that the disk has room for what an HDF5 file allocates ahead."""
    try:
        with open_file(path, "r+b") as file:
            allocate(file.fileno(), AHEAD + SLACK)
            file.truncate(0)
    except OSError as error:
        hint = f"It needs {format_bytes(AHEAD + SLACK)} to begin."
        raise disk_error(error, path, hint) from error


def _merlin(request: RecordingRequest) -> MerlinReceiver:
    return MerlinReceiver(request.url, request.path, request.bound, request.frames)


def _timepix3(request: RecordingRequest) -> Timepix3Receiver:
    return Timepix3Receiver(request.url, request.path, request.bound)


def _dectris(request: RecordingRequest) -> DectrisReceiver:
    return DectrisReceiver(request.url, request.path, request.bound, request.frames)


RECEIVERS: dict[str, tuple[Any, Callable[[RecordingRequest], Any]]] = {
    "merlin": (byte_sockets, _merlin),
    "tpx3": (byte_sockets, _timepix3),
    "dectris": (message_sockets, _dectris),
}
"""How the stream of each protocol is received, and by what."""
