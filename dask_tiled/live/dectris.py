"""Series of DECTRIS detectors by ZeroMQ, stream V1 or V2, as an HDF5 file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from dask_tiled.errors import StreamError
from dask_tiled.live import stream_v1, stream_v2
from dask_tiled.live.chunk_file import ChunkFile
from dask_tiled.live.outputs import Bound
from dask_tiled.live.progress import MOST_GAP, StreamProgress
from dask_tiled.live.series import (
    AlikeImages,
    PackedArray,
    SeriesEnd,
    SeriesImage,
    SeriesMessage,
    SeriesStart,
    WrongMessageError,
)

MOST_CHUNKS = 1 << 32
"""Chunks of a dataset in HDF5, one for the frame of each channel, are fewer."""
MOST_AT_ONCE = 1 << 10
"""Images written between two looks at others."""


class DectrisReceiver:
    """Writes the frames of one series to an HDF5 file.

    Parameters
    ----------
    url : str
        Address of the detector, for errors.
    path : str
        The file.
    bound : Bound
    frames : int
        Frames of the scan, if the series announces none; 0 is unknown.
    in_memory : bool
        Whether the file is in memory.

    Attributes
    ----------
    is_complete : bool
        Whether the series has ended.
    """

    def __init__(
        self, url: str, path: str, bound: Bound, frames: int = 0, *, in_memory: bool = False
    ) -> None:
        self._in_memory = in_memory
        self._url, self._path, self._bound, self._scan = url, path, bound, frames
        self._file: ChunkFile | None = None
        self._start: SeriesStart | None = None
        self._alike: AlikeImages | None = None
        self._next = self._came = self._skipped = self._repeated = 0
        self._gaps = list[range]()  # numbers of frames that have not come, in order
        self.is_complete = False

    @property
    def progress(self) -> StreamProgress:
        """Frames and bytes that readers see."""
        return StreamProgress(
            frames=0 if self._file is None else self._file.frames,
            expected=self._expected,
            lost=self._next - self._came,
            nbytes=0 if self._file is None else self._file.nbytes,
            skipped=self._skipped,
            repeated=self._repeated,
        )

    @property
    def _expected(self) -> int:
        return self._start.frames or self._scan if self._start is not None else 0

    def take(self, parts: Sequence[bytes]) -> bool:
        """Write a message; return whether the series goes on.

        Raises
        ------
        StreamError
            The message is invalid or contradicts others, or the recording is full.
        """
        try:
            message = self._read(parts)
            if isinstance(message, SeriesStart):
                self._begin(message)
            elif self._start is None or message is None:
                self._skipped += sum(map(len, parts))
            else:
                self._go_on(message)
                if isinstance(message, SeriesImage):
                    self._remember(parts)
        except WrongMessageError as wrong:
            part, expected, found = wrong.args
            what = f"a message is invalid: {part}"
            raise self._error(what, expected, found) from wrong
        return not self.is_complete

    def take_alike(self, data: memoryview, at: int) -> int:
        """Write images that are like one before, in their order; return their end.

        Most images are. Parsing others takes several times as long.

        Parameters
        ----------
        data : memoryview
            Bytes of the stream.
        at : int
            Where a message begins.

        Raises
        ------
        StreamError
            The recording is full.
        """
        if self._alike is None or self._file is None:
            return at
        most = self._expected - self._next if self._expected else MOST_AT_ONCE
        images, end = self._alike.find(data, at, self._next, most)
        if images:
            self._file.append(self._next, images)
            self._came += len(images)
            self._next += len(images)
        return end

    def flush(self) -> None:
        """Show readers what was written."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _read(self, parts: Sequence[bytes]) -> SeriesMessage:
        if not parts or not parts[0]:
            raise WrongMessageError("content", "a message", "nothing")
        return stream_v1.read_parts(parts) if _is_v1(parts) else stream_v2.read_message(parts[0])

    def _begin(self, start: SeriesStart) -> None:
        """Begin the series; in stream V1 its configuration may be a message of its own."""
        if start.frames * len(start.channels) >= MOST_CHUNKS:
            expected = f"less than {MOST_CHUNKS} of all channels"
            raise WrongMessageError("number of frames", expected, start.frames)
        if self._start is None and start.series >= 0:
            self._start = start
        elif self._start is not None and start.series < 0 and not self._start.frames:
            self._start = start._replace(series=self._start.series)
        elif self._start is not None:
            found = f"series {start.series} after {self._came} frames"
            raise self._error("another acquisition has begun", "the end of the series", found)

    def _go_on(self, message: SeriesImage | SeriesEnd) -> None:
        """Take a message of the series."""
        if self._start is not None and message.series != self._start.series:
            raise WrongMessageError("series", self._start.series, message.series)
        if isinstance(message, SeriesEnd):
            self.is_complete = True
        else:
            self._append(message)

    def _remember(self, parts: Sequence[bytes]) -> None:
        """Find images like this one from now on, unless their pixels are framed for the file."""
        if self._file is None or (_is_v1(parts) and self._file.like.compression == "lz4"):
            return
        made = stream_v1.AlikeImagesV1 if _is_v1(parts) else stream_v2.AlikeImagesV2
        self._alike = made(parts, self._file.like)

    def _append(self, image: SeriesImage) -> None:
        """Write the frames of an exposure at its number."""
        if self._start is None:
            return
        number, expected = image.number, self._expected
        if expected and number >= expected:
            raise WrongMessageError("number of the frame", f"less than {expected}", number)
        if not expected and number > self._next + MOST_GAP:
            raise WrongMessageError("number of the frame", f"about {self._next}", number)
        gap = bisect_right(self._gaps, number, key=attrgetter("start")) - 1
        is_late = gap >= 0 and number in self._gaps[gap]
        if number < self._next and not is_late:
            self._repeated += 1
            return
        channels = self._start.channels if self._file is None else self._file.channels
        frames = [image.channels.get(name) for name in channels]
        if None in frames or len(image.channels) != len(channels):
            expected_names, found = ", ".join(channels), ", ".join(image.channels)
            raise WrongMessageError("channels", expected_names, found[:80])
        self._write(number, channels, [one for one in frames if one is not None])
        self._came += 1
        if is_late:
            whole = self._gaps[gap]
            parts = range(whole.start, number), range(number + 1, whole.stop)
            self._gaps[gap : gap + 1] = filter(None, parts)
        else:
            self._gaps += filter(None, [range(self._next, number)])
            self._next = number + 1

    def _write(self, number: int, channels: tuple[str, ...], frames: list[PackedArray]) -> None:
        if self._start is None:
            return
        if self._file is None:
            if not frames:
                raise WrongMessageError("channels", "one or more", "none")
            what = self._path, self._bound, self._start, channels, frames[0]
            self._file = ChunkFile(*what, in_memory=self._in_memory)
        like = self._file.like
        for frame in frames:
            if frame[:3] != like[:3]:
                told = [f"{one.dtype} {one.shape}, {one.compression!r}" for one in (like, frame)]
                raise self._error("the frames differ", *told)
        self._file.append(number, [[frame.data for frame in frames]])

    def _error(self, problem: str, expected: object, found: object) -> StreamError:
        where = f"frame {self._next} of the series"
        return StreamError(problem, path=self._url, where=where, expected=expected, found=found)


def _is_v1(parts: Sequence[bytes]) -> bool:
    return parts[0].startswith(b"{")
