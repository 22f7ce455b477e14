"""Refreshing: reopen files that have grown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import dask.array as da

from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.describing import check_local, scheme_for
from dask_tiled.model.calibration import replaced
from dask_tiled.model.description import BY_USER, Description
from dask_tiled.model.files import GrowingFile, seen
from dask_tiled.model.growth import Sample, check_continues
from dask_tiled.tiling.bases import Chunks


class Opening(NamedTuple):
    """The parameters with which an array was opened, to reopen it."""

    describe: Callable[[], Description]
    """Describes the files as growing files."""
    chunks: Any
    """Chunks requested by the user."""
    sample: Sample | None
    """Sample of the last frame; None if files were not followed."""
    settled: bool
    """Whether the user passed the shape of the scan."""

    def again(self, arr: TiledArray, old: Description) -> da.Array:
        """Reopen the files of ``arr``; see :meth:`TiledArray.refresh`."""
        check_local(old.files[0].path)
        try:
            with seen(old.files):
                new = self.describe()
        except FileNotFoundError:
            for file in old.files:
                GrowingFile.of(file).check()
            raise
        check_continues(old.layout, new.layout)
        if self.sample is not None:
            self.sample.check(new.layout)
        axes = replaced(new.axes, old.overridden(BY_USER), new.shape, new.files[0].path)
        new = new.with_axes(axes, BY_USER)
        chunks = _longer(arr.chunks, new.shape) or self.chunks
        scheme = scheme_for(new, arr.scheme.requests, chunks, arr.io)
        opening = self._replace(sample=Sample.of(new.layout, new.layout.n_frames - 1))
        return TiledArray(new, scheme, arr.io, opening=opening)


def _longer(chunks: Chunks, shape: tuple[int, ...]) -> Chunks | None:
    """Return the chunks of a longer array, if the old chunks determine their length."""
    if tuple(map(sum, chunks))[1:] != shape[1:]:
        return None
    first = chunks[0]
    if sum(first) == shape[0]:
        return chunks
    if len(first) == 1:
        return None
    rest = shape[0] - sum(first[:-1])
    whole, end = divmod(rest, first[0])
    return ((*first[:-1], *(first[0],) * whole, *(end,) * bool(end)), *chunks[1:])
