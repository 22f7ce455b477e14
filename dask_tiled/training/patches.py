"""Parts of axes as samples: patches of frames, and neighbours in a scan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array, Index
from dask_tiled.training.arrays import Make, read_samples

Edges = Literal["shift", "drop"]
"""Patches that would reach over the end of an axis: moved back to end there, or left out."""


POSITION, START = "position", "start"
"""Fields of samples: coordinates of the middle in a scan; first positions of a patch."""


class CountedAxis(NamedTuple):
    """An axis that counts samples by its parts, which may overlap."""

    axis: Axis | None
    length: int
    starts: Index
    size: int = 0
    """Length of a part, an axis of the sample; 0 for single positions, without an axis."""

    @classmethod
    def whole(cls, axis: Axis | None, length: int) -> CountedAxis:
        """Return an axis whose every position is a sample."""
        return cls(axis, length, np.arange(length))

    def centers(self, numbers: Index) -> Array:
        """Return the coordinates of the middle of parts."""
        axis, first = self.axis, self.starts[numbers]
        points = np.arange(float(self.length)) if axis is None else axis.points(self.length)
        middle: Array = (points[first] + points[first + max(1, self.size) - 1]) / 2
        return middle


class ScanAxes(NamedTuple):
    """The axes of a scan that count samples: outer ones, and axes of frames cut into patches."""

    outer: tuple[CountedAxis, ...]
    inner: tuple[CountedAxis, ...] = ()
    cuts: tuple[CountedAxis | None, ...] = ()
    """All axes after the outer ones: one of `inner`, or None if it is not cut."""
    sig: tuple[int, ...] = ()
    """Lengths of these axes."""

    @property
    def counted(self) -> tuple[CountedAxis, ...]:
        """All axes that count samples."""
        return self.outer + self.inner

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the outer axes."""
        return tuple(axis.length for axis in self.outer)

    @property
    def are_patches(self) -> bool:
        """Whether samples are parts of the axes."""
        return any(axis.size for axis in self.counted)

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return math.prod(len(axis.starts) for axis in self.counted)

    def places(self, numbers: Index) -> dict[str, Array]:
        """Return the coordinates of samples in the units of the axes, and their first positions.

        Each has a row for each sample, and a column for each axis that counts samples.
        """
        at = np.unravel_index(numbers, [len(axis.starts) for axis in self.counted] or [1])
        pairs = [*zip(self.counted, at, strict=False)]
        empty = np.empty((len(numbers), 0))
        columns = {
            POSITION: [axis.centers(k) for axis, k in pairs],
            START: [axis.starts[k] for axis, k in pairs],
        }
        return {name: np.stack(some, axis=1) if some else empty for name, some in columns.items()}


class Patches(NamedTuple):
    """Sizes and overlaps of patches by the names of axes."""

    sizes: Mapping[str, int]
    overlaps: Mapping[str, int]
    edges: Edges

    @classmethod
    def of(cls, patch: Any, overlap: Any, edges: Any) -> Patches | None:
        """Check the options of a user; return None without patches."""
        if edges not in get_args(Edges):
            raise DatasetError("invalid edges", expected=get_args(Edges), found=repr(edges))
        given = {"patch": patch, "overlap": {} if overlap is None else overlap}
        if patch is None:
            if overlap is not None:
                raise DatasetError("an overlap needs patches", hint="Pass patch=, too.")
            return None
        for name, value in given.items():
            if not isinstance(value, Mapping) or (name == "patch" and not value):
                expected = "positions by name of the axis, such as {'y': 64, 'x': 64}"
                raise DatasetError(f"invalid {name}", expected=expected, found=repr(value))
        other = [name for name in given["overlap"] if name not in patch]
        if other:
            expected = "an axis of the patch: " + ", ".join(map(repr, patch))
            raise DatasetError("invalid overlap", expected=expected, found=repr(other[0]))
        for name, size in patch.items():
            check_whole(f"patch[{name!r}]", size, least=1)
            least = check_whole(f"overlap[{name!r}]", given["overlap"].get(name, 0), least=0)
            if least >= size:
                expected = f"less than {size}, the size of the patch"
                raise DatasetError(
                    "invalid overlap", where=f"axis {name!r}", expected=expected, found=least
                )
        return cls(patch, given["overlap"], edges)

    def cut(self, axis: Axis | None, length: int) -> CountedAxis | None:
        """Cut an axis into parts; None if the patch has all of it."""
        if axis is None or axis.name not in self.sizes:
            return None
        name = axis.name
        size, step = self.sizes[name], self.sizes[name] - self.overlaps.get(name, 0)
        if size > length:
            raise DatasetError(
                "a patch is larger than its axis",
                where=f"axis {name!r}",
                expected=f"at most {length}",
                found=size,
            )
        starts = np.arange(0, length - size + 1, step)
        if self.edges == "shift" and starts[-1] + size < length:
            starts = np.append(starts, length - size)
        return CountedAxis(axis, length, starts, size)


class PatchedArray:
    """Patches of an array as samples along its first axis.

    Parameters
    ----------
    arr : array
        The outer axes as its first one, then all others.
    outer, inner : sequence of CountedAxis
        Outer axes of the array, and axes that count patches after these.
    cuts : sequence of CountedAxis or None
        The other axes of the array: one of `inner`, or None for an axis that is not cut.
    """

    def __init__(
        self,
        arr: Any,
        outer: Sequence[CountedAxis],
        inner: Sequence[CountedAxis],
        cuts: Sequence[CountedAxis | None],
    ) -> None:
        self._arr, self._outer, self._counted = arr, outer, (*outer, *inner)
        self._cuts = [*cuts, *[None] * (arr.ndim - 1 - len(cuts))]
        self._counts = tuple(len(axis.starts) for axis in self._counted)
        self.dtype = arr.dtype
        self._ends = [
            n if axis is None else axis.size
            for axis, n in zip(self._cuts, arr.shape[1:], strict=True)
        ]
        kept = (axis.size for axis in outer if axis.size)
        self.shape = math.prod(self._counts), *kept, *self._ends

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, numbers: Index, make: Make) -> Array:
        """Read patches by number, those at the same place of frames together."""
        places = np.unravel_index(numbers, self._counts)
        starts = [axis.starts[at] for axis, at in zip(self._counted, places, strict=True)]
        frames = np.zeros((len(numbers), 1), np.int64)
        for axis, first in zip(self._outer, starts, strict=False):
            part = first[:, None] + np.arange(max(1, axis.size))
            frames = (frames[:, :, None] * axis.length + part[:, None, :]).reshape(len(first), -1)
        by_axis = dict(zip(map(id, self._counted), starts, strict=True))
        cut = [(k, by_axis[id(axis)]) for k, axis in enumerate(self._cuts, 1) if axis is not None]
        if not cut:
            return self._read(self._arr, frames, make)
        corners, which = np.unique(np.stack([at for _, at in cut], 1), axis=0, return_inverse=True)
        out = None
        for group, corner in enumerate(corners.tolist()):
            index = [slice(None)] * self._arr.ndim
            for (k, _), start in zip(cut, corner, strict=True):
                index[k] = slice(start, start + self._ends[k - 1])
            rows = np.flatnonzero(which.ravel() == group)
            values = self._read(self._arr[tuple(index)], frames[rows], make)
            if len(corners) == 1:
                return values
            out = make((len(numbers), *self.shape[1:]), self.dtype) if out is None else out
            out[rows] = values
        assert out is not None  # noqa: S101 - for the type checker
        return out

    def _read(self, arr: Any, frames: Index, make: Make) -> Array:
        (values,) = read_samples([arr], frames.ravel(), make)
        return values.reshape(len(frames), *self.shape[1:])
