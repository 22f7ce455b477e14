"""Diffraction patterns by number, for reconstruction: cropped around the beam, read on demand."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError, TilingError, check_whole
from dask_tiled.model.indexing import Array, Index
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.opening.arrays import open_dataset
from dask_tiled.tiles.descans import Descan
from dask_tiled.tiles.following import shifts_of
from dask_tiled.training.arrays import Make, array_of, read_samples
from dask_tiled.training.patches import POSITION, CountedAxis, ScanAxes

PART_BYTES = 4 << 20
"""Bytes of frames that are read at a time before they are binned or moved."""


class Patterns:
    """The diffraction patterns of a scan by number, as reconstructions use them.

    ``patterns[numbers]`` reads some in any order, centred on the beam: memory is that of the
    result, and a few MiB. Corrections of ``open_dataset(corrections=)`` are applied in the same
    pass. :func:`iter_batches`, ``torch.IterableBatches`` and ``torch.Frames`` take the object
    as a source, too.

    Parameters
    ----------
    source : array or path
        Frames, nav + (y, x), of a scan or of a series of scans, see :func:`open_series`.
    size : (int, int), optional
        Pixels (y, x) of a pattern; by default those of a frame, divided by `binning`. Pixels
        outside of frames are 0: a larger size pads.
    binning : int
        Sum so many pixels along both axes.
    center : (float, float), optional
        Position (y, x) of the beam, in pixels of a frame, such as that of :func:`tiles.find_disk`;
        by default the middle. It becomes the pixel ``size // 2``, to which Fourier transforms
        refer after ``fftshift``; with `binning`, a corner of it.
    shift : Descan or array-like, optional
        Distance (y, x) of the beam from `center` in each frame, in pixels, nav + (2,): that of
        :func:`tiles.descan`. Patterns are moved back by whole pixels.
    dtype : dtype
        Of the patterns.
    **options
        Options of :func:`open_dataset`, for a path.

    Raises
    ------
    DatasetError, TilingError
        Frames are not images, or an argument is invalid.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> patterns = dask_tiled.Patterns(arr, size=(64, 64), shift=dask_tiled.tiles.descan(arr))
    >>> patterns.shape, patterns[[7, 3000, 12]].shape, patterns.positions.shape
    ((3840, 64, 64), (3, 64, 64), (3840, 2))
    """

    def __init__(
        self,
        source: Any,
        *,
        size: tuple[int, int] | None = None,
        binning: int = 1,
        center: tuple[float, float] | None = None,
        shift: Descan | npt.ArrayLike | None = None,
        dtype: npt.DTypeLike = "float32",
        **options: Any,
    ) -> None:
        opens = isinstance(source, (str, os.PathLike))
        if options and not opens:
            expected, found = "no options, which are those of paths", ", ".join(options)
            raise DatasetError("unknown option", expected=expected, found=found)
        arr = array_of("frame", open_dataset(source, **options) if opens else source)
        desc = description_of(arr)
        if arr.ndim < 3 or (desc is not None and desc.nav_ndim != arr.ndim - 2):
            expected = "nav + (y, x)"
            raise TilingError("not a scan of images", expected=expected, found=arr.shape)
        self.nav_shape: tuple[int, ...] = tuple(map(int, arr.shape[:-2]))
        """Shape of the scan."""
        axes = shown_of(arr).axes if isinstance(arr, da.Array) else (None,) * arr.ndim
        counted = map(CountedAxis.whole, axes[:-2], self.nav_shape)
        self.scan = ScanAxes(tuple(counted))
        """The axes of the scan, which count patterns."""
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "iuf":
            raise TilingError("invalid dtype", expected="integers or floats", found=self.dtype)
        self._binning = check_whole("binning", binning, least=1, error=TilingError)
        frame = tuple(map(int, arr.shape[-2:]))
        sizes = [n // binning for n in frame] if size is None else _pair("size", size)
        sizes = [check_whole("size", n, least=1, error=TilingError) for n in sizes]
        count = self.scan.n_samples
        self.shape: tuple[int, int, int] = (count, sizes[0], sizes[1])
        """Number of patterns, and their pixels."""
        self._flat, self._window = arr.reshape((count, *frame)), tuple(n * binning for n in sizes)
        middle = [n // 2 for n in frame] if center is None else _pair("center", center)
        moved = np.zeros(2) if shift is None else shifts_of(shift, self.nav_shape).reshape(-1, 2)
        corners = np.rint(np.add(middle, moved)).astype(np.int64)
        self._corners = np.broadcast_to(corners - np.floor_divide(self._window, 2), (count, 2))

    def __len__(self) -> int:
        """Return the number of patterns."""
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """Number of axes, 3."""
        return 3

    @property
    def positions(self) -> Array:
        """Coordinates of all patterns in the scan, (n, axes of the scan), in units of the axes."""
        return self.scan.places(np.arange(len(self)))[POSITION]

    def __getitem__(self, numbers: Any) -> Array:
        """Read patterns: one by its number, several by a slice or a list of numbers.

        Raises
        ------
        IndexError
            There is no such pattern.
        """
        wanted = np.arange(len(self))[
            numbers if isinstance(numbers, slice) else np.asarray(numbers)
        ]
        if np.ndim(wanted) > 1:
            raise IndexError("patterns have one number each")
        found = self.read(np.atleast_1d(wanted), np.empty)
        return found[0] if np.ndim(wanted) == 0 else found

    def read(self, numbers: Index, make: Make) -> Array:
        """Read patterns by number into memory of ``make(shape, dtype)``."""
        out = make((len(numbers), *self.shape[1:]), self.dtype)
        corners, which = np.unique(self._corners[numbers], axis=0, return_inverse=True)
        for group, corner in enumerate(corners.tolist()):
            rows = np.flatnonzero(which.ravel() == group)
            self._read(numbers[rows], corner, out, rows)
        return out

    def _read(self, numbers: Index, corner: Sequence[int], out: Array, rows: Index) -> None:
        """Read patterns with one corner of the window into some rows."""
        ends = [*zip(corner, self._window, self._flat.shape[1:], strict=True)]
        there = [(max(0, first), min(length, first + size)) for first, size, length in ends]
        if any(start >= stop for start, stop in there):
            out[rows] = 0
            return
        part = self._flat[:, slice(*there[0]), slice(*there[1])]
        is_whole = part.shape[1:] == self._window
        inside: Any = tuple(
            slice(start - first, stop - first)
            for (start, stop), first in zip(there, corner, strict=True)
        )
        step = max(1, PART_BYTES // (math.prod(self._window) * part.dtype.itemsize))
        for at in range(0, len(rows), step):
            (pixels,) = read_samples([part], numbers[at : at + step], np.empty)
            if not is_whole:
                padded = np.zeros((len(pixels), *self._window), pixels.dtype)
                padded[:, *inside] = pixels
                pixels = padded
            out[rows[at : at + step]] = self._binned(pixels)

    def _binned(self, pixels: Array) -> Array:
        k = self._binning
        if k == 1:
            return pixels
        binned = np.zeros((len(pixels), *self.shape[1:]), self.dtype)
        for i in range(k):
            for j in range(k):
                np.add(binned, pixels[:, i::k, j::k], out=binned, casting="unsafe")
        return binned


def _pair(name: str, value: Any) -> list[Any]:
    values = np.asarray(value)
    if values.shape != (2,) or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise TilingError(f"invalid {name}", expected="two numbers (y, x)", found=repr(value)[:60])
    pair: list[Any] = values.tolist()
    return pair
