"""The subject of a picture: an array on named axes, which can be cut."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.errors import DatasetError, format_shape, printable
from dask_tiled.files.paths import OF_ZARR
from dask_tiled.measuring.sampling import sample_bytes
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description, facts_of
from dask_tiled.opened.axes import ArrayAxes, shown_of
from dask_tiled.opened.tiled_array import description_of, read_once
from dask_tiled.showing.overviews import overview
from dask_tiled.showing.roles import SPACE, Roles, colour_places

UNTITLED = "an array"
"""Title of an array of no file."""
LONGEST = 4096
LONGEST_OF_LARGE = (4096, 1024, 256)
"""Maximum number of pixels drawn along an axis, for arrays that are not read completely, with 1, 2
or 3 axes."""


class Subject(NamedTuple):
    """An array with its axes and units."""

    arr: da.Array
    axes: tuple[Axis, ...]
    nav_ndim: int
    title: str
    subtitle: str
    units: str = ""
    """Unit of the values; empty if unknown."""
    directions: Mapping[str, str] = {}
    """Anatomical directions of axes, such as ``"LR"``, by name."""
    left_out: tuple[str, ...] = ()
    """Notes about pixels that are not read."""

    @property
    def desc(self) -> Description | None:
        """Description of an opened array, or of a slice of one."""
        return description_of(self.arr)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, without axes of length 1."""
        return self.arr.shape

    @classmethod
    def of(cls, arr: da.Array) -> Subject:
        """Return the subject of an array, without axes of length 1.

        Raise a DatasetError if the array cannot be drawn.
        """
        _check(arr)
        known = shown_of(arr)
        desc = description_of(arr)
        title, subtitle = UNTITLED, f"{_kind(arr.dtype)}, {format_shape(arr.shape)}"
        directions: dict[str, str] = {}
        if known.of:
            first = known.of[0]
            title = printable(_title(first.files[0].path))
            subtitle = f"{'' if desc else 'computed from '}{first.format}, {subtitle}"
            directions = facts_of(first).get("directions", {})
        nav_ndim = _nav_ndim(known)
        kept = [k for k, n in enumerate(arr.shape) if n > 1]
        axes = tuple(known.axes[k] or Axis(f"axis {k}") for k in kept)
        arr = arr[tuple(0 if n == 1 else slice(None) for n in arr.shape)]
        nav_ndim = sum(k < nav_ndim for k in kept)
        # Mapping is slower than reading for a few scattered pages.
        units = known.units or printable(desc.units if desc else "")
        return cls(read_once(arr), axes, nav_ndim, title, subtitle, units, directions)

    @property
    def roles(self) -> Roles:
        """Roles of the axes."""
        return Roles.of(self.axes, self.shape, self.nav_ndim)

    @property
    def colours(self) -> int | None:
        """The colour axis, if it is the last axis or the last but two; colours have no labels."""
        place, ndim = self.roles.colours, len(self.axes)
        ends = {ndim - 3, ndim - 1} if self.nav_ndim <= ndim - 3 else set()
        return place if place in ends and not self.axes[place].labels else None

    def in_colours(self) -> Subject:
        """Return the subject with labelled samples in the order red, green, blue."""
        for k, (axis, size) in enumerate(zip(self.axes, self.shape, strict=True)):
            places = colour_places(axis, size)
            if places and axis.labels:
                axes = (*self.axes[:k], Axis(axis.name), *self.axes[k + 1 :])
                return self._replace(arr=da.take(self.arr, [*places], axis=k), axes=axes)
        return self

    def cut(self, cuts: Sequence[int | slice]) -> Subject:
        """Return a part, with its axes."""
        axes = [
            axis.cut(0, cut.step or 1)
            for axis, cut in zip(self.axes, cuts, strict=True)
            if isinstance(cut, slice)
        ]
        arr = self.arr[tuple(cuts)]
        nav_ndim = sum(isinstance(cut, slice) for cut in cuts[: self.nav_ndim])
        return self._replace(arr=arr, axes=tuple(axes), nav_ndim=nav_ndim)

    def at(self, axis: int, place: int) -> Subject:
        """Return one position along an axis."""
        return self.cut([place if k == axis else slice(None) for k in range(len(self.axes))])

    def thinned(self, first: int = 0) -> Subject:
        """Skip pixels of images that are too large to draw, from an axis on."""
        colours = self.colours
        places = [k for k in range(first, len(self.axes)) if k != colours]
        nbytes = math.prod(self.shape[first:]) * self.arr.dtype.itemsize
        large = nbytes > sample_bytes(self.arr)
        longest = LONGEST_OF_LARGE[min(len(places), 3) - 1] if large else LONGEST
        shown = overview(self.arr, places, longest)
        taken = zip(self.axes, shown.steps, shown.means, strict=True)
        skipped = [one for one in taken if one[1] > 1]
        pixels = [f"{ordinal(step)} pixel along {axis.name}" for axis, step, n in skipped if n == 1]
        blocks = [
            f"{ordinal(step // n)} block of {n} pixels along {axis.name}"
            for axis, step, n in skipped
            if n > 1
        ]
        notes = [f"every {' and '.join(pixels)}"] * bool(pixels)
        notes += [f"the mean of every {' and '.join(blocks)}"] * bool(blocks)
        axes = tuple(shown.axis(k, axis) for k, axis in enumerate(self.axes))
        return self._replace(arr=shown.arr, axes=axes, left_out=(*self.left_out, *notes))


def _title(path: str) -> str:
    """Return the name of a file; for a zarr document, the name of its store."""
    folder, name = os.path.split(path.rstrip("/"))
    if name not in OF_ZARR:
        return name
    folders = folder.split("/")[::-1]
    return next((one for one in folders if ".zarr" in one), folders[0])


def _check(arr: da.Array) -> None:
    if arr.dtype.kind not in "biufc" and not {*"RGB"} <= {*(arr.dtype.names or ())}:
        problem, expected = "this dtype cannot be drawn", "numbers, booleans or colours"
        raise DatasetError(problem, expected=expected, found=arr.dtype)
    if any(map(math.isnan, arr.shape)):
        problem, hint = "the shape is unknown", "Call compute_chunk_sizes() first."
        raise DatasetError(problem, found=f"shape {arr.shape}", hint=hint)
    if not all(n > 0 for n in arr.shape) or max(arr.shape, default=1) == 1:
        problem, expected = "there is nothing to draw", "more than one pixel"
        raise DatasetError(problem, expected=expected, found=f"shape {arr.shape}")


def _nav_ndim(shown: ArrayAxes) -> int:
    """Return the number of axes before the first axis of frames or spectra."""
    names = [axis and axis.name for axis in shown.axes]
    nav = {axis.name for one in shown.of for axis in one.axes[: one.nav_ndim]} | {None}
    outer = [name in nav for name in names]
    if shown.of and False in outer:
        return outer.index(False)
    last = (names[-1] or "").casefold()
    is_spectrum = not shown.of and last and last not in SPACE and not last.startswith("scan")
    return max(len(names) - (1 if is_spectrum else 2), 0)


def _kind(dtype: np.dtype) -> str:
    return "colours" if dtype.names else str(dtype)


def ordinal(n: int) -> str:
    """Format an ordinal number."""
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{'th' if n % 100 in (11, 12, 13) else suffix}"


def numbers(pixels: da.Array) -> Any:
    """Return pixels as drawable numbers: moduli of complex numbers, integers for booleans."""
    if pixels.dtype.names:
        return da.stack([pixels[name] for name in "RGB"], axis=-1)
    if pixels.dtype.kind == "c":
        return abs(pixels)
    return pixels.astype(np.uint8) if pixels.dtype == bool else pixels
