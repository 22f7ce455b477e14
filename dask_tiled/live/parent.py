"""Messages between the process of a recording and the one that has asked for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from dask_tiled.errors import StreamError
from dask_tiled.live.outputs import Bound
from dask_tiled.live.progress import StreamProgress

STOP = "stop"
READY, PROGRESS, ENDED = "ready", "progress", "ended"
"""Messages to and from the process."""
COMPLETE, STOPPED, FAILED = "complete", "stopped", "failed"
"""States in which a recording ends."""
POLL_SECONDS = 0.02
"""How often the process looks for messages of its parent, and reports its progress."""
CONNECT_SECONDS = 10.0
"""How long a detector may take to answer."""


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
    most_memory: int
    """Bytes that the process may take beyond what the interpreter and its modules do."""
    overwrite: bool = False
    """Whether existing files are replaced once the detector is connected."""


class Receiver(Protocol):
    """Writes a stream to a file."""

    is_complete: bool

    @property
    def progress(self) -> StreamProgress:
        """What is in the file."""

    def flush(self) -> None:
        """Show readers what was written."""

    def close(self) -> None:
        """Close the file, without what is not complete."""


class Parent:
    """The process that has asked for the recording.

    Attributes
    ----------
    is_gone : bool
        Whether it has ended.
    when_begun : callable
        Called when the file has content.
    """

    def __init__(self, connection: Any) -> None:
        self._connection, self._next = connection, 0.0
        self._told: StreamProgress | None = None
        self.is_gone = False
        self.when_begun: Callable[[], None] = lambda: None

    def send(self, kind: str, value: Any = None) -> None:
        """Send a message, if there is a process to send it to."""
        try:
            self._connection.send((kind, value))
        except OSError:
            self.is_gone = True

    def report(self, progress: StreamProgress) -> None:
        """Report the progress if it has changed."""
        if progress != self._told:
            self._told = progress
            if progress.has_content:
                self.when_begun()
            self.send(PROGRESS, progress)

    def asks_to_stop(self, receiver: Receiver | None = None) -> bool:
        """Report the progress, and look for messages, now and then."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + POLL_SECONDS
        if receiver is not None:
            self.report(receiver.progress)
        try:
            return self.is_gone or (self._connection.poll() and self._connection.recv() == STOP)
        except (EOFError, OSError):
            self.is_gone = True
            return True


class Silence:
    """The time since the detector has sent anything.

    Raises
    ------
    StreamError
        From ``check``: the detector has sent nothing for too long.
    """

    def __init__(self, request: RecordingRequest) -> None:
        self._request, self._last = request, time.monotonic()

    def end(self) -> None:
        """Begin to count again."""
        self._last = time.monotonic()

    def check(self) -> None:
        """Raise a StreamError if it has lasted too long."""
        quiet = time.monotonic() - self._last
        if self._request.timeout and quiet > self._request.timeout:
            what, found = "the detector sends nothing", f"{quiet:.1f} s without data"
            raise StreamError(what, path=self._request.url, found=found)


def no_answer(url: str, found: str) -> StreamError:
    """Return the error of a detector that does not answer."""
    hint = "Start the software of the detector first, or check host and port."
    return StreamError("no detector answers", path=url, found=found, hint=hint)


def closed(receiver: Receiver, url: str) -> str:
    """Return the state of a stream that the detector has ended.

    Raise a StreamError unless all frames have come.
    """
    progress = receiver.progress
    if progress.has_content and not progress.expected:
        return COMPLETE
    raise closed_early(receiver, url)


def closed_early(
    receiver: Receiver, url: str, *, expected: str = "all frames", found: str | None = None
) -> StreamError:
    """Return the error of a detector that ends the connection before the stream is complete."""
    what = f"the detector has closed the connection after {receiver.progress}"
    return StreamError(what, path=url, expected=expected, found=found)
