"""Jobs of map_tiles and reduce_tiles: functions of users, called on the tiles of a chunk."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize

from dask_tiled.engine.jobs import Chunk, TileInfo
from dask_tiled.errors import TilingError
from dask_tiled.model.indexing import Array
from dask_tiled.tiling.negotiation import TilingRequest


def with_info(func: Callable[..., Any], arrays: int) -> Callable[..., Any]:
    """Return a function of arrays and a :class:`TileInfo`, which ``func`` need not accept.

    A ufunc of as many inputs as arrays gets the arrays alone, and so does a function whose
    parameter after the arrays does not exist, or is optional and not called ``info``.
    """
    called, bound = (func.func, len(func.args)) if isinstance(func, partial) else (func, 0)
    if isinstance(called, np.ufunc):
        takes_info = called.nin - bound > arrays
    else:
        try:
            parameters = [*inspect.signature(func).parameters.values()]
        except (TypeError, ValueError):  # some functions written in C have no signature
            return func
        positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        listed = [parameter for parameter in parameters if parameter.kind in positional]
        more = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
        following = listed[arrays : arrays + 1]
        takes_info = more if not following else _is_info(following[0])
    return func if takes_info else lambda *values: func(*values[:arrays])


def _is_info(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty or parameter.name in {"info", "tile_info"}


@dataclass(frozen=True, eq=False)
class MapTiles:
    """The job of :func:`map_tiles`."""

    func: Callable[..., npt.ArrayLike]
    dtype: np.dtype
    sig_shape: tuple[int, ...] | None
    """Signal shape of the result; None if results have the shape of the tile."""
    request: TilingRequest
    out: Array | None = None
    """Output buffer of a chunk, C-contiguous."""

    def begin(self, chunk: Chunk) -> MapSink:
        """Return the sink of a chunk."""
        return MapSink(self, chunk)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        values = str(self.dtype), self.sig_shape, tokenize(self.request)
        return "dask_tiled.MapTiles", tokenize(self.func), *values


class MapSink:
    """Sink that collects the results of a function."""

    def __init__(self, job: MapTiles, chunk: Chunk) -> None:
        self._job = job
        self.function = job.func
        self._func = with_info(job.func, 1)
        self._chunk = chunk
        sig_shape = chunk.sig_shape if job.sig_shape is None else job.sig_shape
        shape = (math.prod(chunk.nav_shape), *sig_shape)
        self._results = np.empty(shape, job.dtype) if job.out is None else job.out.reshape(shape)

    @property
    def arrays(self) -> list[Array]:
        """All arrays that the sink holds."""
        return [self._results]

    def working_bytes(self, tile: tuple[int, ...]) -> int:
        """Return the bytes of the function's result for a tile of a shape."""
        shape = tile if self._job.sig_shape is None else (tile[0], *self._job.sig_shape)
        return math.prod(shape) * self._job.dtype.itemsize

    def take(self, tile: Array, first: int, info: TileInfo) -> None:
        """Apply the function to a tile, and store the result."""
        result = np.asarray(self._func(tile, info))
        sig_shape = self._job.sig_shape
        expected = tile.shape if sig_shape is None else (len(tile), *sig_shape)
        if result.shape != expected:
            raise TilingError(
                "the function returned a wrong shape",
                expected=expected,
                found=result.shape,
                hint="A function of whole frames may need tiling=TilingRequest('frame').",
            )
        part = self._chunk.part(info) if sig_shape is None else ()
        self._results[(slice(first, first + len(tile)), *part)] = result

    def result(self) -> Array:
        """Return the results, with the navigation shape of the chunk."""
        chunk, job = self._chunk, self._job
        ones = () if job.sig_shape is None else (1,) * len(chunk.sig_shape)
        return self._results.reshape(chunk.nav_shape + ones + self._results.shape[1:])


@dataclass(frozen=True, eq=False)
class ReduceTiles:
    """The job of :func:`reduce_tiles`."""

    init: Array
    func: Callable[..., npt.ArrayLike | None]
    request: TilingRequest

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the state."""
        return self.init.dtype

    def begin(self, chunk: Chunk) -> ReduceSink:
        """Return the sink of a chunk."""
        return ReduceSink(self, chunk)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return "dask_tiled.ReduceTiles", *map(tokenize, (self.init, self.func, self.request))


class ReduceSink:
    """Sink that holds the state of a reduction in one chunk."""

    def __init__(self, job: ReduceTiles, chunk: Chunk) -> None:
        self.function = job.func
        self._step = with_info(job.func, 2)
        self._state = job.init.copy()
        self._ones = (1,) * len(chunk.box)

    @property
    def arrays(self) -> list[Array]:
        """All arrays that the sink holds."""
        return [self._state]

    def working_bytes(self, _: tuple[int, ...]) -> int:
        """Return the bytes of a state."""
        return self._state.nbytes

    def take(self, tile: Array, first: int, info: TileInfo) -> None:  # noqa: ARG002
        """Update the state with a tile."""
        state = self._step(self._state, tile, info)
        if state is not None:
            state = checked(state, self._state, "step")
            # The memory of the tile is reused for the next one.
            self._state = state.copy() if np.may_share_memory(state, tile) else state

    def result(self) -> Array:
        """Return the state, after an axis of length 1 for each axis of the chunk."""
        return self._state.reshape(self._ones + self._state.shape)


def checked(found: npt.ArrayLike | None, state: Array, name: str) -> Array:
    """Check the shape of an updated state, and cast it to the dtype of the state."""
    if found is None or np.shape(found) != state.shape:
        raise TilingError(
            f"{name} returned another shape than init has",
            expected=state.shape,
            found=None if found is None else np.shape(found),
        )
    return np.asarray(found, state.dtype)
