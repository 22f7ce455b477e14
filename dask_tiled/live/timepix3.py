"""Raw streams of Timepix3 detectors, as SERVAL sends them: chunks of 64-bit words, a .tpx3 file.

Facts of the stream: the SERVAL manual of Amsterdam Scientific Instruments, "Raw file format".
"""

from __future__ import annotations

from dask_tiled.errors import StreamError
from dask_tiled.live.outputs import Bound, StreamFile
from dask_tiled.live.progress import StreamProgress

MAGIC = b"TPX3"
WORD = 8


class Timepix3Receiver:
    """Writes whole chunks to a .tpx3 file.

    Parameters
    ----------
    url : str
        Address of the detector, for errors.
    path : str
        The file.
    bound : Bound

    Attributes
    ----------
    is_complete : bool
        False: the stream ends when the detector closes it.
    """

    longest = (1 << 16) + WORD

    def __init__(self, url: str, path: str, bound: Bound) -> None:
        self._url, self._out = url, StreamFile(path, bound)
        self._chunks = self._words = 0
        self.is_complete = False

    @property
    def progress(self) -> StreamProgress:
        """Words of events and bytes written so far."""
        return StreamProgress(events=self._words, nbytes=self._out.nbytes)

    def take(self, data: memoryview) -> int:
        """Write the whole chunks of some bytes; return how many bytes these are.

        Raises
        ------
        StreamError
            No chunk begins where one has to, or the recording is full.
        """
        at = chunks = 0
        end, room = len(data) - WORD, self._out.room
        while at <= end:
            size = data[at + 6] | data[at + 7] << 8
            if data[at : at + 4] != MAGIC or size % WORD:
                self._write(data[:at], chunks)
                self._refuse(bytes(data[at : at + WORD]))
            if at + size > end:
                break
            if at + WORD + size > room:
                self._write(data[:at], chunks)
                self._out.begin(WORD + size)
            at += WORD + size
            chunks += 1
        self._write(data[:at], chunks)
        return at

    def flush(self) -> None:
        """Do nothing: readers see what is written."""

    def close(self) -> None:
        """Close the file."""
        self._out.close()

    def _write(self, data: memoryview, chunks: int) -> None:
        if not len(data):
            return
        self._out.begin(len(data))
        self._out.add(data)
        self._out.end()
        self._out.flush()
        self._chunks += chunks
        self._words += len(data) // WORD - chunks

    def _refuse(self, word: bytes) -> None:
        where = f"chunk {self._chunks}"
        what, expected = "no chunk begins where one has to", "TPX3 and whole words of 8 bytes"
        found = word.hex(" ")
        raise StreamError(what, path=self._url, where=where, expected=expected, found=found)
