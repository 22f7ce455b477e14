"""Sources of files that grow while a computation waits for their frames."""

from __future__ import annotations

from collections.abc import Sequence

from dask_tiled.model.indexing import Box, Cut
from dask_tiled.model.layout import Layout
from dask_tiled.reading.planning import region_of
from dask_tiled.reading.reader import Source


class Growth:
    """The present layout of growing files, which those who follow them replace."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout


class GrowingSource(Source):
    """A part of growing files, whose tasks read the frames that are there when they run.

    Its identity is that of the first version: a plan of tasks stays valid while files grow.
    Copies in other processes have the frames of the moment at which they were sent.
    """

    __slots__ = ("_first", "_shown", "growth")

    def __init__(self, source: Source, growth: Growth) -> None:
        self.growth = growth
        self.conversion = source.conversion
        self.io = source.io
        self._first = source.layout
        self._shown = growth.layout, source.layout.grown(growth.layout)
        self._token = f"growing-{source.token}"

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        """Layout with all frames that are there."""
        whole, shown = self._shown
        if whole is not self.growth.layout:
            whole = self.growth.layout
            shown = self._first.grown(whole)
            self._shown = whole, shown
        return shown

    def cut(self, cuts: Sequence[Cut]) -> Source:
        """Return a part of the source."""
        first = Source(self._first.cut(cuts), self.conversion, self.io)
        return GrowingSource(first, self.growth)

    def last_frame(self, box: Box) -> int:
        """Return the number of the last frame in a box; -1 if no frame of it will come."""
        frames = region_of(self._first, box).frames
        return int(frames.max()) if len(frames) else -1

    def __reduce__(self) -> tuple[type[Source], tuple[object, ...]]:
        return Source, (self.layout, self.conversion, self.io)
