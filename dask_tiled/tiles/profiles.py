"""Radial profiles: means over rings around a centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import tokenize

from dask_tiled.engine.jobs import TileInfo
from dask_tiled.errors import TilingError, check_whole
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array, Index
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.opened.tile_functions import map_tiles, reducible
from dask_tiled.tiles.lengths import Length, Place, SignalAxes, center_of, distances
from dask_tiled.tiles.masks import weights_of
from dask_tiled.tiles.shapes import ROUNDING
from dask_tiled.tiles.sparse_masks import SparseMasks


def radial_profile(
    arr: Any,
    center: Sequence[Length] | None = None,
    step: Length | None = None,
    *,
    bins: int | None = None,
    mask: npt.ArrayLike | None = None,
    sig_ndim: int | None = None,
) -> da.Array:
    """Return the mean of every frame over rings around a centre.

    Parameters
    ----------
    arr : dask.array.Array
        Numbers: nav + sig.
    center : sequence of float or str, optional
        Centre of the rings, as in :func:`disk`; by default it is found in the frames.
    step : float or str, optional
        Width of the rings, given as the radius of :func:`disk`; by default the size of a pixel, or
        its longer side.
    bins : int, optional
        Number of rings; by default as many as hold all pixels.
    mask : array-like, optional
        Weights of the pixels, of the shape of a frame: pixels with weight 0, for example behind a
        beam stop, are ignored.
    sig_ndim : int, optional
        As in :func:`dask_tiled.map_tiles`.

    Returns
    -------
    dask.array.Array
        Shape nav + (bins,), float32, or a wider dtype if the pixels require it. Ring ``k`` holds
        the pixels at a distance of ``k * step`` or more, and less than ``(k + 1) * step``; the
        coordinates of the axis ``radius`` are the middles of the rings. It is NaN for rings without
        pixels.

    Raises
    ------
    TilingError
        As in :func:`disk`, or the mask does not have the shape of a frame.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> from dask_tiled import tiles
    >>> profile = tiles.radial_profile(arr.mean(axis=(0, 1)))
    >>> dask_tiled.to_xarray(profile).dims
    ('radius',)
    """
    x = reducible(arr, sig_ndim)
    frame = SignalAxes.of(x)
    if step is None:
        unit = frame.units
        width = max(frame.steps(unit), default=1.0)
    else:
        width, unit = frame.length("step", step)
    if not width:
        raise TilingError("step is 0", expected="a positive width")
    weights = None if mask is None else weights_of(mask, frame.shape)
    at = center_of(x, frame, center)
    token = "" if weights is None else tokenize(weights)
    rings = Rings(frame.shape, at, frame.steps(unit), width, weights, token)
    if bins is None:
        bins = 1 + int(rings.numbers().max(initial=-1))
    count = check_whole("bins, the number of rings,", bins, least=1, error=TilingError)
    dtype = np.result_type(x.arr.dtype, np.float32)
    means = partial(_means, rings=rings, count=count)
    sig = len(frame.shape)
    found = map_tiles(means, x.arr, dtype=dtype, sig_shape=(count,), sig_ndim=sig)
    radius = Axis("radius", unit, width, width / 2)
    shown = shown_of(x.arr)
    return labelled(found, [*shown.axes[: x.nav_ndim], radius], shown.units)


@dataclass(frozen=True)
class Rings:
    """Rings around a centre; small to pickle, each process makes the masks once."""

    shape: tuple[int, ...]
    center: Place
    steps: tuple[float, ...]
    """Size of a pixel along each axis, in the unit of the width."""
    width: float
    weights: Array | None = field(compare=False)
    token: str = ""
    """Identity of the weights."""

    def numbers(self) -> Index:
        """Return the index of the ring of each pixel."""
        rings = distances(self.shape, self.center, self.steps) / self.width
        return np.floor(rings * (1 + ROUNDING)).astype(np.int64)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        numbers = self.shape, self.center, self.steps, self.width, self.token
        return "dask_tiled.Rings", *map(tokenize, numbers)


@lru_cache(maxsize=8)
def _masks(rings: Rings, count: int) -> tuple[SparseMasks, Array]:
    """Return a mask for each of the first ``count`` rings, and the sums of their weights."""
    numbers = rings.numbers().reshape(-1)
    weights = np.ones(numbers.shape) if rings.weights is None else rings.weights.reshape(-1)
    places = np.flatnonzero((numbers < count) & (weights != 0))
    numbers, weights = numbers[places], weights[places]
    masks = SparseMasks.sorted(numbers, places, weights, count)
    return masks, np.bincount(numbers, weights, count)


def _means(tile: Array, _: TileInfo, rings: Rings, count: int) -> Array:
    masks, sizes = _masks(rings, count)
    with np.errstate(all="ignore"):
        return masks.sums(tile) / sizes
