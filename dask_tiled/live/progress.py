"""What a recording has received so far."""

from __future__ import annotations

from typing import NamedTuple

MOST_GAP = 1 << 20
"""Most frames that may be lost at once of a stream whose length is unknown."""


class StreamProgress(NamedTuple):
    """What a recording has received and written so far.

    Attributes
    ----------
    frames : int
        Frames in the file. Streams of events have none.
    expected : int
        Frames that the detector announces; 0 if it does not.
    lost : int
        Frames that the detector has numbered, but that have not come.
    dropped : int
        Frames, the oldest ones, that were removed for lack of room.
    events : int
        Words of 64 bits in the file that are no heads of chunks, for streams of events: hits, edges
        of the trigger inputs, and others.
    nbytes : int
        Bytes in the file, without those that were dropped.
    skipped : int
        Bytes before the acquisition began.
    restarts : int
        How often the numbers of frames have begun again, or stayed the same, in a Merlin's stream.
    repeated : int
        Frames that had come already, and were left out.

    Examples
    --------
    >>> import dask_tiled
    >>> print(dask_tiled.StreamProgress(frames=21, expected=24, lost=3, nbytes=180096))
    21 of 24 frames, 175.9 KiB, 3 lost
    """

    frames: int = 0
    expected: int = 0
    lost: int = 0
    dropped: int = 0
    events: int = 0
    nbytes: int = 0
    skipped: int = 0
    restarts: int = 0
    repeated: int = 0

    @property
    def has_content(self) -> bool:
        """Whether the file has frames or events."""
        return bool(self.frames or self.events)

    def __str__(self) -> str:
        from dask_tiled.errors import format_bytes

        of = f" of {self.expected}" if self.expected else ""
        what = f"{self.events} events" if self.events else f"{self.frames}{of} frames"
        names = "lost", "dropped", "restarts", "repeated"
        more = [f"{count} {name}" for name in names if (count := getattr(self, name))]
        return ", ".join([what, format_bytes(self.nbytes), *more])
