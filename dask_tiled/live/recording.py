"""``record`` and what it returns: a stream that is written to a file, and the array over it."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self
from weakref import finalize

from dask_tiled.errors import (
    DatasetError,
    MissingFramesWarning,
    StreamError,
    TruncatedFileError,
    check_seconds,
    check_whole,
    warn,
)
from dask_tiled.files.file import File, at_rest, following, seen
from dask_tiled.formats.describing import check_options
from dask_tiled.formats.registry import named
from dask_tiled.live.addresses import PROTOCOLS, Address
from dask_tiled.live.outputs import DROP, SPILL, STOP, Bound, files_to_replace
from dask_tiled.live.parent import ENDED, FAILED, PROGRESS, READY, RecordingRequest
from dask_tiled.live.parent import STOP as STOP_MESSAGE
from dask_tiled.live.progress import StreamProgress
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.opening.arrays import open_dataset
from dask_tiled.opening.describing import PARAMETERS
from dask_tiled.system.processes import end, start

CONNECTING, WAITING, RECEIVING = "connecting", "waiting", "receiving"
IN_MEMORY = "/dev/shm"  # noqa: S108 - the folder is made by mkdtemp
SHARE = 4
"""One part in so many of the free memory is the bound of a recording in memory."""
END_SECONDS = 10.0
PAUSE_SECONDS = 2.0
"""Seconds without events after which a stream is shown though no frame is complete."""


def record(
    url: str,
    target: str | os.PathLike[str] | None = None,
    *,
    nav_shape: int | tuple[int, ...] | None = None,
    max_bytes: int | None = None,
    when_full: str = STOP,
    spill_folder: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    overwrite: bool = False,
    on_ready: Callable[[Recording], object] | None = None,
    **options: Any,
) -> Recording:
    """Record the stream of a detector to a file, which can be read while it grows.

    A process of its own receives the stream; this function returns once it is connected, and the
    detector can be armed. The recording ends with the acquisition, or by :meth:`Recording.stop`.

    Parameters
    ----------
    url : str
        Address of the detector: ``merlin://HOST:6342`` for the data port of a Merlin;
        ``dectris://HOST:31001`` for stream V2 of DECTRIS detectors, or port 9999 for V1;
        ``tpx3://HOST:8283`` for the raw stream of SERVAL, or ``tpx3://listen@HOST:8085`` if SERVAL
        is to connect to an address of this machine.
    target : path-like, optional
        The file to write: .mib, with the acquisition header in a .hdr file beside it, .h5 with the
        compressed frames as they came, or .tpx3.
        By default the recording is kept in memory, until it is closed or garbage.
    nav_shape : tuple of int, optional
        Shape of the scan, (y, x); by default from the acquisition header. The file does not store
        it; if it has not as many positions as frames are announced, there is a warning.
    max_bytes : int, optional
        Bound of the frames that are kept; by default none for a file on disk, and a quarter of the
        free memory in memory.
    when_full : {"stop", "drop", "spill"}
        What happens at that bound: the recording fails and keeps what has come; the oldest frames
        are removed, and counted; or later frames go to another folder. The last two write a
        numbered series of files, which only a Merlin's can be. Once frames are removed, arrays
        taken before raise a :class:`StaleFileError`, also by ``refresh``.
    spill_folder : path-like, optional
        An existing folder on disk for "spill".
    timeout : float, optional
        Seconds without data after which the recording fails; by default it waits.
    overwrite : bool
        Whether an existing target is replaced, once a frame is stored; it stays beside until then.
    on_ready : callable, optional
        Called with the recording once the receiver is connected, to arm and trigger the detector.
    **options
        Options of :func:`open_dataset` for :attr:`Recording.array`, such as ``lines`` and
        ``frame_time`` of a stream of events.

    Returns
    -------
    Recording
        The recording, which is a context manager.

    Raises
    ------
    StreamError
        The detector does not answer, or the receiver cannot be started.
    DatasetError
        The arguments are invalid, or the target exists.
    UnknownOptionError
        ``options`` has one that the format does not know.

    See Also
    --------
    open_dataset : Open the file later.

    Examples
    --------
    >>> import dask_tiled
    >>> from dask_tiled.testing import counting_frames, play, write_mib
    >>> path = write_mib("played.mib", counting_frames((4, 6, 64, 64), "uint16"))
    >>> with play(path) as url, dask_tiled.record(url, "scan.mib") as recording:
    ...     done = recording.wait()
    ...     print(recording.progress)
    24 of 24 frames, 201 KiB
    >>> recording.array.shape
    (4, 6, 64, 64)
    """
    address = Address.of(url)
    if on_ready is not None and not callable(on_ready):
        raise DatasetError("invalid on_ready", expected="a function", found=repr(on_ready))
    bound = _bound(max_bytes, when_full, spill_folder, in_memory=target is None)
    if bound.when_full != STOP and not PROTOCOLS[address.protocol].is_series:
        problem = (
            f"a recording of {address.protocol} is one file, which cannot drop or spill frames"
        )
        hint = "Pass a target on a disk with room for the whole scan."
        raise DatasetError(problem, expected=f"when_full={STOP!r}", found=when_full, hint=hint)
    seconds = 0.0 if timeout is None else check_seconds("timeout", timeout)
    protocol = PROTOCOLS[address.protocol]
    suffix, beside = protocol.suffix, protocol.beside
    format = named(options.get("format") or suffix)
    general = {*PARAMETERS} - {"path", "format_options"}
    check_options(format, options.keys() - general, [*general], str(address))
    temporary = _memory_folder() if target is None else ""
    try:
        path = os.path.join(temporary, f"scan{suffix}") if target is None else _file(target, suffix)
        files_to_replace(path, beside, bound, overwrite=overwrite)  # refuse early
        told = str(address), path, bound, _frames(nav_shape), seconds, temporary
        request = RecordingRequest(*told, protocol.most_memory, bool(overwrite))
        recording = Recording(request, {"nav_shape": nav_shape, **options})
        recording._connect()  # noqa: SLF001 - made here
    except BaseException:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    if on_ready is not None:
        try:
            on_ready(recording)
        except BaseException:
            recording.close()
            raise
    return recording


class Recording:
    """The stream of a detector while it is written to a file; :func:`record` returns it.

    As a context manager it stops at the end of the block; what has come stays in the file.

    Attributes
    ----------
    url : str
        Address of the detector.
    path : str
        The file that :func:`open_dataset` reads.
    in_memory : bool
        Whether the file is in memory, and vanishes with the recording.
    options : dict
        Options of :func:`open_dataset` with which the file is opened.
    max_memory : int
        Bytes of memory that the recording takes at most, beyond an interpreter: the buffers of its
        process, and what it keeps in memory.

    Examples
    --------
    >>> import dask_tiled
    >>> from dask_tiled.testing import counting_frames, play, write_mib
    >>> path = write_mib("played.mib", counting_frames((4, 6, 64, 64), "uint16"))
    >>> with play(path) as url, dask_tiled.record(url, "recorded.mib") as recording:
    ...     isinstance(recording, dask_tiled.Recording), recording.wait(60), recording.state
    (True, True, 'complete')
    """

    def __init__(self, request: RecordingRequest, options: dict[str, Any]) -> None:
        self.url, self.options = request.url, options
        self._file, self._bound = request.path, request.bound
        self.in_memory = bool(request.temporary)
        self.max_memory = request.most_memory + (request.bound.nbytes if self.in_memory else 0)
        self._news, self._warned = _News(), set[str]()
        self._seen: tuple[File, ...] = ()
        try:
            self._process, self._connection = start(
                "dask_tiled.live.receiver", *request, environment=os.environ
            )
        except OSError as error:
            what, found = "cannot start a process to receive the stream", str(error)
            raise StreamError(what, path=self.url, found=found) from error
        self._end = finalize(self, _discard, os.getpid(), self._process, request.temporary)
        listen = (self._connection, self._process, self._news, self.url)
        self._listener = threading.Thread(target=_listen, args=listen, daemon=True)
        self._listener.start()

    def _connect(self) -> None:
        """Wait until the receiver is connected."""
        self._news.wait(lambda: self.state != CONNECTING, None)
        if self.error is not None and not self._news.was_connected:
            self.close()
            raise self.error

    @property
    def state(self) -> str:
        """``waiting`` for frames, ``receiving``, ``complete``, ``stopped`` or ``failed``."""
        return self._news.state

    @property
    def error(self) -> DatasetError | None:
        """Why the recording has failed; None if it has not."""
        return self._news.error

    @property
    def is_running(self) -> bool:
        """Whether frames may still come."""
        return self.state in {CONNECTING, WAITING, RECEIVING}

    @property
    def progress(self) -> StreamProgress:
        """Frames, bytes and losses so far."""
        return self._news.progress

    @property
    def path(self) -> str:
        """The file that :func:`open_dataset` reads."""
        is_series = self._bound.is_series
        return os.path.splitext(self._file)[0] + ".hdr" if is_series else self._file

    @property
    def array(self) -> TiledArray:
        """Array of the whole scan, with the frames that have come; :meth:`TiledArray.refresh` adds.

        Frames that have not come, or are lost, are missing. The first frame is waited for. Of a
        stream of events without ``frame_time``, it is what has come, each time anew; such arrays
        cannot be refreshed.

        Raises
        ------
        DatasetError
            The recording has ended without a frame, or as for :func:`open_dataset`.
        """
        self._news.wait(lambda: self.progress.has_content or not self.is_running, None)
        self._warn_of_shape()
        if not self.progress.has_content:
            what = "the recording has no frame"
            raise self.error or StreamError(what, path=self.url, found=self.state)
        arr = self._opened()
        # Without tiles, it is a plain dask array.
        return arr.written_by(self) if isinstance(arr, TiledArray) else arr

    def _opened(self) -> Any:
        """Open the file once it has a complete frame."""
        by = PROTOCOLS[Address.of(self.url).protocol].frames_by
        how: dict[str, Any] = {"missing": "fill", "outside_folder": True, "follow": True}
        if by:  # a stream of events, of which a killed process leaves a part of a chunk
            how |= {"cut": True, "follow": self.options.get(by) is not None}
        if not self._seen:
            with following(True):  # noqa: FBT003 - its only argument
                self._seen = (File.at(self.path),)
        while True:
            events, is_over = self.progress.events, not self.is_running
            try:
                with seen(self._seen), at_rest(is_over):
                    return open_dataset(self.path, **how | self.options)
            except TruncatedFileError:
                if is_over or not by or not how["follow"]:
                    raise
            if not self._news.wait(partial(self._goes_on, events), PAUSE_SECONDS):
                with seen(self._seen), at_rest(True):  # noqa: FBT003 - its only argument
                    open_dataset(self.path, **how | self.options)  # from now on, it is begun

    def _goes_on(self, events: int) -> bool:
        """Return whether more has come, or nothing more will."""
        return self.progress.events > events or not self.is_running

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the recording has ended.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; by default until the end.

        Returns
        -------
        bool
            Whether it has ended.

        Raises
        ------
        StreamError
            The recording has failed; what has come before is in the file.

        Warns
        -----
        MissingFramesWarning
            Frames that were announced have not come.
        """
        if not self._news.wait(lambda: not self.is_running, timeout):
            return False
        if self.error is not None:
            raise self.error
        self._warn()
        return True

    def stop(self) -> None:
        """Stop the recording; what has come stays in the file.

        Do nothing if it has ended, or in a fork of the program that has begun it.
        """
        if not self._news.is_heard:
            return
        if self.is_running:
            with suppress(OSError):  # the process has ended, as the listener sees
                self._connection.send(STOP_MESSAGE)
            if not self._news.wait(lambda: not self.is_running, END_SECONDS):
                end(self._process)  # it does not answer
                self._news.wait(lambda: not self.is_running, END_SECONDS)
        self._warn()

    def close(self) -> None:
        """Stop the recording and end its process; one in memory is discarded."""
        self.stop()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __reduce__(self) -> NoReturn:
        hint = "Pass the array of the recording, or its path."
        raise DatasetError("a recording belongs to the program that has begun it", hint=hint)

    def __repr__(self) -> str:
        return f"<Recording {self.url}: {self.state}, {self.progress}>"

    def _warn(self) -> None:
        """Warn once of frames that were announced and have not come."""
        self._warn_of_shape()
        told = self.progress
        absent = told.expected - told.frames - told.dropped
        if absent > 0 and self.error is None:
            self._warn_once(f"{absent} of {told.expected} frames are missing", MissingFramesWarning)

    def _warn_of_shape(self) -> None:
        """Warn once if the scan has not as many positions as frames were announced."""
        announced, positions = self.progress.expected, _frames(self.options.get("nav_shape"))
        if not announced or not positions or announced == positions:
            return
        differ = f"nav_shape has {positions} positions, but {announced} frames are announced"
        if positions > announced:
            left = f"the last {positions - announced} positions have no frame"
            self._warn_once(f"{differ}: {left}", MissingFramesWarning)
        else:
            left = f"the array leaves out the last {announced - positions} frames"
            self._warn_once(f"{differ}: {left}", UserWarning)

    def _warn_once(self, message: str, category: type[Warning]) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warn(f"{self._file}: {message}", category)


class _News:
    """What the process of a recording has reported."""

    def __init__(self) -> None:
        self.state, self.progress = CONNECTING, StreamProgress()
        self.was_connected = False
        self.error: DatasetError | None = None
        self._changed, self._owner = threading.Condition(), os.getpid()

    @property
    def is_heard(self) -> bool:
        """Whether this process hears news; a fork has no thread that listens."""
        return os.getpid() == self._owner

    def put(self, kind: str, value: Any) -> None:
        """Take a message of the process."""
        with self._changed:
            if kind == READY:
                self.state, self.was_connected = WAITING, True
            elif kind == PROGRESS:
                self.progress = value
                if value.has_content:
                    self.state = RECEIVING
            else:
                self.state, self.error = value
            self._changed.notify_all()

    def wait(self, holds: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until something holds; return whether it does."""
        if not self.is_heard:
            return holds()
        with self._changed:
            return self._changed.wait_for(holds, timeout)


def _listen(connection: Any, process: Any, news: _News, url: str) -> None:
    """Take the messages of a process until it ends."""
    kind = ""
    try:
        while kind != ENDED:
            kind, value = connection.recv()
            news.put(kind, value)
        process.wait()
    except (EOFError, OSError):
        code = process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        hint = "What has come before is in the file."
        error = StreamError("the receiver has died", path=url, found=how, hint=hint)
        news.put(ENDED, (FAILED, error))


def _discard(owner: int, process: Any, folder: str) -> None:
    """End the process of a recording, and remove what it keeps in memory."""
    if os.getpid() == owner:  # a fork does not own it
        end(process)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _bound(max_bytes: Any, when_full: Any, spill_folder: Any, *, in_memory: bool) -> Bound:
    """Check the bound of a recording."""
    if when_full not in (STOP, DROP, SPILL):
        expected = f"{STOP}, {DROP} or {SPILL}"
        raise DatasetError("invalid when_full", expected=expected, found=repr(when_full))
    folder = "" if spill_folder is None else _absolute("spill_folder", spill_folder)
    if (when_full == SPILL) != bool(folder):
        problem, hint = "spill_folder= is for when_full='spill'", "Pass both, or none of them."
        raise DatasetError(problem, expected=f"when_full={SPILL!r}", found=when_full, hint=hint)
    if folder:
        _check_folder("spill_folder", folder)
    if max_bytes is not None:
        return Bound(check_whole("max_bytes", max_bytes, least=1), when_full, folder)
    if in_memory:
        return Bound(shutil.disk_usage(_memory()).free // SHARE, when_full, folder)
    if when_full != STOP:
        raise DatasetError(f"when_full={when_full!r} needs a bound", hint="Pass max_bytes=.")
    return Bound()


def _memory() -> str:
    """Return a folder in memory, where the system has one."""
    return IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else tempfile.gettempdir()


def _memory_folder() -> str:
    return tempfile.mkdtemp(prefix="dask-tiled-", dir=_memory())


def _file(target: str | os.PathLike[str], suffix: str) -> str:
    path = _absolute("target", target)
    if os.path.splitext(path)[1].lower() != suffix:
        found = os.path.splitext(path)[1] or "no suffix"
        raise DatasetError("invalid target", path=path, expected=f"a {suffix} file", found=found)
    _check_folder("the folder of the target", os.path.dirname(path))
    return path


def _check_folder(name: str, path: str) -> None:
    """Raise a DatasetError unless files can be written to a folder."""
    if not os.path.isdir(path):
        raise DatasetError(f"{name} does not exist", path=path)
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise DatasetError(f"{name} cannot be written", path=path, found=str(error)) from error


def _absolute(name: str, path: Any) -> str:
    """Return an absolute path."""
    if not isinstance(path, str | os.PathLike):
        raise DatasetError(f"invalid {name}", expected="a path", found=repr(path))
    return os.path.abspath(os.fspath(path))


def _frames(nav_shape: Any) -> int:
    """Return the number of frames in a scan; 0 if it is not given."""
    if nav_shape is None:
        return 0
    count = 1
    for size in nav_shape if isinstance(nav_shape, tuple | list) else (nav_shape,):
        count *= check_whole("every size in nav_shape", size, least=1)
    return count
