"""Merlin's data port: messages of ``MPX``, a length and ``HDR`` or ``MQ1``, as a .mib file.

Facts of the protocol: the Merlin user manual of Quantum Detectors, "TCP/IP data", and public
clients. The length counts the comma after it.
"""

from __future__ import annotations

import os
import re

from dask_tiled.errors import DatasetError, StreamError
from dask_tiled.formats.mib.descriptor import read_header, scan_shape
from dask_tiled.formats.tools.text import read_pairs
from dask_tiled.live.outputs import Bound, StreamFile, disk_error
from dask_tiled.live.progress import MOST_GAP, StreamProgress

MESSAGE = re.compile(rb"MPX,(\d{10}),(HDR|MQ1),")
HEAD = 15
"""Bytes of a message before its content."""
LEAST = HEAD + 96
"""Bytes of a message that are needed to begin it: a frame header has 256 or more."""
MOST_HEADER, MOST_FRAME = 1 << 18, 1 << 28
"""Longest acquisition header, and longest frame with its header."""
FRAME, ACQUISITION = b"MQ1", b"HDR"


class MerlinReceiver:
    """Writes the frames of one acquisition to a .mib file, and its header to a .hdr file.

    Parameters
    ----------
    url : str
        Address of the detector, for errors.
    path : str
        The .mib file.
    bound : Bound
    frames : int
        Frames of the scan, if the acquisition header announces none; 0 is unknown.

    Attributes
    ----------
    is_complete : bool
        Whether the acquisition is complete.
    """

    longest = MOST_HEADER + LEAST

    def __init__(self, url: str, path: str, bound: Bound, frames: int = 0) -> None:
        self._url, self._hdr = url, os.path.splitext(path)[0] + ".hdr"
        self._out = StreamFile(path, bound)
        self._scan = frames
        self._expected = self._skipped = self._lost = self._restarts = self._repeated = 0
        self._frames = self._left = self._number = self._before = self._nbytes = 0
        self._head = b""
        self._fields: list[bytes] = []
        self._begun = self._repeats = self.is_complete = False

    @property
    def progress(self) -> StreamProgress:
        """Frames and bytes written so far."""
        out = self._out
        return StreamProgress(
            frames=out.records,
            expected=self._expected,
            lost=self._lost,
            dropped=out.dropped,
            nbytes=out.nbytes,
            skipped=self._skipped,
            restarts=self._restarts,
            repeated=self._repeated,
        )

    def take(self, data: memoryview) -> int:
        """Write what is complete of some bytes of the stream; return how many were taken.

        Raises
        ------
        StreamError
            The stream contradicts itself, or the recording is full.
        """
        at, end = 0, len(data)
        while at < end and not self.is_complete:
            if self._left:
                size = min(self._left, end - at)
                if not self._repeats:
                    self._out.add(data[at : at + size])
                at += size
                self._left -= size
                if not self._left:
                    self._end_frame()
            elif not self._begun:
                taken = self._acquisition(data[at:])
                at += taken
                if not taken:
                    break
            elif end - at < LEAST:
                break
            else:
                at += self._begin_frame(data[at : at + LEAST])
        self._out.flush()
        return at

    def flush(self) -> None:
        """Do nothing: readers see what is written."""

    def close(self) -> None:
        """Close the file, which then has whole frames only."""
        self._out.close()

    def _acquisition(self, data: memoryview) -> int:
        """Find the acquisition header, which begins an acquisition; skip what comes before."""
        content = bytes(data[: MOST_HEADER + LEAST])
        found = next((one for one in MESSAGE.finditer(content) if one[2] == ACQUISITION), None)
        if found is None:  # a message may be cut at the end
            skipped = max(0, len(content) - HEAD - 4)
            self._skipped += skipped
            return skipped
        if found.start():
            self._skipped += found.start()
            return found.start()
        nbytes = int(found[1]) - 1
        if nbytes > MOST_HEADER:
            expected = f"{MOST_HEADER} bytes at most"
            raise self._error("the acquisition header is too long", expected, nbytes)
        if len(content) < HEAD + nbytes:
            return 0
        try:
            with open(self._hdr, "xb") as file:
                file.write(content[HEAD : HEAD + nbytes])
        except OSError as error:
            raise disk_error(error, self._hdr) from error
        keys = read_pairs(self._hdr, ":\t", "latin1")
        announced = keys.get("Frames in Acquisition (Number)", "").strip()
        shape = scan_shape(keys) or ()
        count = 1
        for size in shape:
            count *= size
        frames = int(announced) if announced.isdecimal() else 0
        self._expected = frames or (count if shape else self._scan)
        self._begun = True
        return HEAD + nbytes

    def _begin_frame(self, head: memoryview) -> int:
        """Check the message of a frame; its content follows."""
        found = MESSAGE.match(head)
        if found is None:
            expected = "MPX, a length of 10 digits, and MQ1"
            raise self._error("no message begins where one has to", expected, bytes(head[:24]))
        kind, nbytes = found[2], int(found[1]) - 1
        if kind == ACQUISITION:
            what, expected = "another acquisition has begun", f"{self._expected or 'more'} frames"
            raise self._error(what, expected, f"{self._frames} frames")
        if not LEAST - HEAD <= nbytes <= MOST_FRAME:
            expected = f"{LEAST - HEAD} to {MOST_FRAME} bytes"
            raise self._error("invalid length of a frame", expected, nbytes)
        text = bytes(head[HEAD:])
        fields = text.split(b",", 8)[:8]
        if self._frames and (nbytes != self._nbytes or fields[2:] != self._fields[2:]):
            expected = f"{self._nbytes} bytes, {b','.join(self._fields[2:]).decode('latin1')}"
            told = b",".join(fields[2:]).decode("latin1")
            raise self._error("the frames differ", expected, f"{nbytes} bytes, {told}")
        self._repeats = text == self._head  # the number and the time are the same, too
        if not self._repeats:
            self._count(fields[1])
            self._out.begin(nbytes)
        self._left, self._nbytes, self._fields, self._head = nbytes, nbytes, fields, text
        return HEAD

    def _count(self, text: bytes) -> None:
        """Compare the number of a frame with that of the frame before.

        Readers place the frames after lost ones by their numbers, which have to increase then.
        """
        if not text.isdigit() or len(text) > 18:
            raise self._error("invalid number of a frame", "digits", text.decode("latin1"))
        number, expected = int(text), self._expected
        if not self._frames and not 0 < number <= expected:
            self._before = self._number = number - 1  # nothing is known of frames before
        gap = number - self._number - 1
        if gap < 0:
            self._restart(number)
        elif number - self._before > expected if expected else gap > MOST_GAP:
            most = self._before + expected if expected else self._number + 1 + MOST_GAP
            what = "the number of a frame is beyond the acquisition"
            raise self._error(what, f"{most} at most", number)
        elif gap and self._restarts:
            what = "frames are lost after the numbers have begun again"
            raise self._error(what, f"number {self._number + 1}", number)
        else:
            self._lost += gap
        self._number = number

    def _restart(self, number: int) -> None:
        """Begin to count the numbers again, or at the number of the frame before."""
        first = self._before + 1
        if number not in {1, first, self._number}:
            what = "the numbers of frames go back"
            raise self._error(what, f"{self._number + 1}, or {first} again", number)
        if self._lost:
            what = "the numbers of frames begin again after frames were lost"
            raise self._error(what, f"number {self._number + 1}", number)
        self._restarts += 1
        self._before = number - 1

    def _end_frame(self) -> None:
        if self._repeats:
            self._repeated += 1
            return
        self._out.end()
        self._frames += 1
        if self._frames == 1:
            self._check_first()
        came = self._frames + (0 if self._restarts else self._lost)
        self.is_complete = 0 < self._expected <= came

    def _check_first(self) -> None:
        """Check by the reader of the format that the header of a frame describes its bytes."""
        self._out.flush()
        path = self._out.present
        try:
            _, geometry = read_header(path)
        except DatasetError as error:
            raise self._error("invalid frame header", error.expected, error.found) from error
        if geometry.record_bytes != self._nbytes:
            expected = f"{geometry.record_bytes} bytes, as in the frame header"
            raise self._error("the length of a frame is wrong", expected, self._nbytes)

    def _error(self, problem: str, expected: object, found: object) -> StreamError:
        where = f"frame {self._frames} of the acquisition"
        return StreamError(problem, path=self._url, where=where, expected=expected, found=found)
