"""How the bytes of read ranges are fetched."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import numpy.typing as npt

from dask_tiled.ranges import ReadRanges

Bytes = npt.NDArray[np.uint8]
Backend = Callable[[ReadRanges], AbstractContextManager[tuple[Bytes, int]]]
"""Gives bytes of ``ranges.file``, and the offset in the file of the first of them."""


@contextmanager
def mapped(ranges: ReadRanges) -> Iterator[tuple[Bytes, int]]:
    """Map the span of the ranges, and give it back afterwards: nothing is copied.

    A mapping past the end of a file ends the process when it is touched, so the open descriptor is
    looked at before. It is looked at afterwards too, so that two versions of a file never mix.
    """
    first, stop = ranges.span
    start = first - first % mmap.ALLOCATIONGRANULARITY
    ranges.file.check()  # opening something else that has its name could wait for ever
    with open(ranges.file.path, "rb", buffering=0) as stream:
        ranges.file.check(os.fstat(stream.fileno()))
        view = mmap.mmap(stream.fileno(), stop - start, access=mmap.ACCESS_READ, offset=start)
        # Not closed by hand: it goes with the last array on it, and cannot go before.
        yield np.frombuffer(view, dtype=np.uint8), start
        ranges.file.check(os.fstat(stream.fileno()))


BACKENDS: dict[str, Backend] = {"mmap": mapped}
