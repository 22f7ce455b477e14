"""Opening the files of an array again: as they have grown, or at another level of a pyramid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dask.array as da

from dask_tiled.errors import DatasetError, warn
from dask_tiled.files.file import GrowingFile, at_rest, seen
from dask_tiled.model.calibration import replaced
from dask_tiled.model.description import BY_USER, Description, facts_of
from dask_tiled.model.growth import Sample, check_continues
from dask_tiled.model.pyramids import lower_levels
from dask_tiled.opened.building import build
from dask_tiled.opened.growing import warn_if_revised
from dask_tiled.opened.tiled_array import TiledArray, Writer
from dask_tiled.opening.describing import check_local, scheme_for
from dask_tiled.tiling.bases import Chunks


@dataclass(frozen=True)
class Reopening:
    """The parameters with which an array was opened, to reopen it."""

    describe: Callable[..., Description]
    """Describes the files as growing files."""
    chunks: Any
    """Chunks requested by the user."""
    sample: Sample | None
    """Sample of the last frame; None if files were not followed."""
    settled: bool
    """Whether the user passed the shape of the scan."""
    writer: Writer | None = None
    """What writes the files; None in copies in other processes."""

    def written_by(self, writer: Writer) -> Reopening:
        """Return the same opening with what writes the files."""
        return replace(self, writer=writer)

    def __reduce__(self) -> tuple[type[Reopening], tuple[Any, ...]]:
        return Reopening, (self.describe, self.chunks, self.sample, self.settled)

    def described(self, old: Description, *, complete: bool = False) -> Description:
        """Describe the files again; errors are those of :meth:`TiledArray.refresh`."""
        check_local(old.files[0].path)
        rests = complete or (self.writer is not None and not self.writer.is_running)
        try:
            with seen(old.files), at_rest(rests):
                new = self.describe()
        except FileNotFoundError:
            for file in old.files:
                GrowingFile.of(file).check()
            raise
        check_continues(old.layout, new.layout)
        if self.sample is not None:
            self.sample.check(new.layout)
        return new

    def again(self, arr: TiledArray, old: Description, *, complete: bool = False) -> da.Array:
        """Reopen the files of ``arr``; see :meth:`TiledArray.refresh`."""
        new = self.described(old, complete=complete)
        warn_if_revised(old, new)
        axes = replaced(new.axes, old.overridden(BY_USER), new.shape, new.files[0].path)
        new = new.with_axes(axes, BY_USER)
        chunks = _longer(arr.chunks, new.shape) or self.chunks
        scheme = scheme_for(new, arr.scheme.requests, chunks, arr.io)
        opening = replace(self, sample=Sample.of(new.layout, new.layout.n_frames - 1))
        return TiledArray(new, scheme, arr.io, opening=opening)

    def levels(self, arr: TiledArray, desc: Description) -> Iterator[da.Array]:
        """Open the lower levels of a pyramid; see :meth:`TiledArray.levels`."""
        before: da.Array = arr
        for options in lower_levels(facts_of(desc)):
            describe = partial(self.describe, **options)
            try:
                new = describe(follow=False)
            except DatasetError as error:
                warn(f"a level of the pyramid is left out: {error}")
                return
            fits = len(new.shape) == before.ndim and new.dtype == before.dtype
            if not fits or any(n > m for n, m in zip(new.shape, before.shape, strict=True)):
                expected, shown = ([*one.shape, str(one.dtype)] for one in (before, new))
                warn(f"a level of the pyramid is left out: {shown} after {expected}")
                return
            new = _calibrated(new, desc)
            opening = replace(self, describe=describe, chunks=None)
            scheme = scheme_for(new, arr.scheme.requests, None, arr.io)
            before = build(new, scheme, arr.io, opening)
            yield before


def _calibrated(level: Description, whole: Description) -> Description:
    """Return a level with the axes that the user calibrated, or saved, for the whole image."""
    axes = [*level.axes]
    for k, (axis, n, size) in enumerate(zip(whole.axes, whole.shape, level.shape, strict=True)):
        if axis.name in whole.calibrations:
            factor = n / size
            middle = axis.offset + axis.scale * (factor - 1) / 2
            axes[k] = replace(axis, scale=axis.scale * factor, offset=middle)
    return level.with_axes(tuple(axes), BY_USER)


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
