"""Slices of opened arrays, and what is saved of them for the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Self

from dask_tiled.errors import DatasetError
from dask_tiled.formats.saved_axes import SavedScan
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import BY_USER, Description
from dask_tiled.model.indexing import Cut


class OpenedPart(NamedTuple):
    """A part of an opened array: the whole, and the cut of each axis."""

    whole: Description
    cuts: tuple[Cut, ...]

    @classmethod
    def all_of(cls, whole: Description) -> Self:
        """Return the whole as a part of itself."""
        return cls(whole, tuple(Cut(0, 1, size) for size in whole.shape))

    def calibrated(self, part: Description) -> Description:
        """Return the whole with the axes of the part, as they are of the file, without any crop.

        Raise a DatasetError if labels or coordinates of the part were changed.
        """
        axes, new = list(self.whole.axes), iter(part.axes)
        for k, cut in enumerate(self.cuts):
            if cut.kept:
                old, axis = self.whole.axes[k], next(new)
                if axis != old.cut(cut.start, cut.step, cut.length):
                    axes[k] = self._extended(axis, cut)
        whole = self.whole.with_axes(tuple(axes), BY_USER)
        starts = [start for start, _ in SavedScan.shown_by(whole).ends]
        told = whole.calibrations
        shifted = (
            self._extended(axis, Cut(start, 1, 0)) if start and axis.name in told else axis
            for axis, start in zip(whole.axes, starts, strict=True)
        )
        return replace(whole, axes=tuple(shifted))

    def _extended(self, axis: Axis, cut: Cut) -> Axis:
        """Return the axis of which a cut is known."""
        if axis.labels or axis.coordinates:
            problem = "labels and coordinates of a part cannot be saved"
            hint = "Call save_axes on the whole opened array."
            path = self.whole.files[0].path
            raise DatasetError(problem, path=path, found=axis.name, hint=hint)
        scale = axis.scale / cut.step
        return replace(axis, scale=scale, offset=axis.offset - scale * cut.start)

    def scan(self) -> SavedScan:
        """Return the shape of the scan, and the crop.

        Raise a DatasetError if it is not that of the file, or the part is no crop.
        """
        selection, path = self.whole.layout.selection, self.whole.files[0].path
        hint, shown = "Save only the axes.", SavedScan.shown_by(self.whole)
        if selection.numbers is not None or selection.first:
            problem, found = "this scan cannot be saved", "selected or skipped frames"
            raise DatasetError(problem, path=path, expected="all frames", found=found, hint=hint)
        if not all(cut.kept and cut.step == 1 for cut in self.cuts):
            problem, found = "this part cannot be saved", "a step, or a single position"
            expected = "a range of positions along each axis"
            raise DatasetError(problem, path=path, expected=expected, found=found, hint=hint)
        pairs = zip(self.cuts, shown.ends, strict=True)
        ends = tuple(
            (first + cut.start, first + cut.start + cut.length) for cut, (first, _) in pairs
        )
        return shown._replace(ends=ends)
