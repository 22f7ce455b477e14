"""How far a batch is."""

from __future__ import annotations

from typing import NamedTuple

from dask_tiled.errors import format_bytes


class BatchProgress(NamedTuple):
    """How far a batch is.

    Attributes
    ----------
    done, total : int
        Number of conversions that have ended, and of all.
    nbytes, total_nbytes : int
        Bytes of their pixels.
    worked : int
        Bytes of pixels that were converted by this run.
    seconds : float
        Time since the start.
    """

    done: int
    total: int
    nbytes: int
    total_nbytes: int
    worked: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes of pixels converted in a second; 0 if none were."""
        return self.worked / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds to the end at this rate; None if it is unknown."""
        rest = self.total_nbytes - self.nbytes
        return rest / self.rate if self.rate else None

    def __str__(self) -> str:
        text = f"{self.done} of {self.total}"
        text += f", {format_bytes(self.nbytes)} of {format_bytes(self.total_nbytes)}"
        if self.left is None:
            return text
        return f"{text}, {format_bytes(self.rate)}/s, {format_seconds(self.left)} left"


def format_seconds(seconds: float) -> str:
    """Return a duration as text, such as "3 h 5 min" or "12 s"."""
    if seconds < 1:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
