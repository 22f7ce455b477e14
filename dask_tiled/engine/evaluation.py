"""Compute the chunks of an expression, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.expressions import Operand
from dask_tiled.engine.programs import RESULT, Program, Read, Register
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.indexing import Box
from dask_tiled.reading.reader import Make, Reader, Source, Workspace
from dask_tiled.tiling.bases import Base, fill, split

Array = npt.NDArray[Any]

REGISTER_BYTES = 2 << 20
"""All registers together have so many bytes: a tile is half of that where two are enough."""
KEPT_SOURCES = 256
"""Of so many sources it is kept where their bytes are, some KiB each, from tile to tile."""


def evaluate(program: Program, box: Box, operands: Sequence[Array] = ()) -> Array:
    """Compute one chunk: an array of its own, C-contiguous.

    Operands have as many axes as the chunk, those that they are repeated along of length 1.
    """
    shape = tuple(stop - start for start, stop in box)
    out = np.empty(shape, program.dtype)
    if out.size:
        axes = _tiles(shape, _tile_pixels(program))
        make = partial(_SourceTiles, box=box, axes=axes, workspace=Workspace())
        several = math.prod(map(len, axes)) > 1
        kept = [make(source) for source in program.sources[: KEPT_SOURCES if several else 0]]
        registers = _Registers()
        for number, tile in enumerate(product(*axes)):
            place: Any = (*(slice(*bounds) for bounds in tile), ...)

            def read(source: int, memory: Make, number: int = number) -> Array:
                tiles = kept[source] if source < len(kept) else make(program.sources[source])
                return tiles.read(number, memory)

            some = [_part(x, tile) for x in operands]
            _run(program, read, registers, out[place], some)
    return out


def _part(operand: Array, tile: Box) -> Array:
    """Take what a tile needs of an array that is repeated along axes of length 1."""
    cuts = (slice(*ab) if n > 1 else slice(None) for n, ab in zip(operand.shape, tile, strict=True))
    return operand[tuple(cuts)]


def _tile_pixels(program: Program) -> int | None:
    """Tell how many pixels a tile may have; None where what is compressed would be cut."""
    if any(
        isinstance(d, BlockDecoder) for source in program.sources for d in source.layout.decoders
    ):
        return None
    return max(1, REGISTER_BYTES // max(1, program.width))


def _tiles(shape: tuple[int, ...], pixels: int | None) -> list[Box]:
    """Cut the axes of a chunk, so that tiles follow one another in C order and have no gaps."""
    sizes = shape if pixels is None else fill(shape, pixels, (Base(),) * len(shape))
    return [
        tuple(pairwise(accumulate(split(n, size), initial=0)))
        for n, size in zip(shape, sizes, strict=True)
    ]


class _SourceTiles:
    """The tiles of a source. Its bytes are looked up once for all of them."""

    def __init__(self, source: Source, box: Box, axes: Sequence[Box], workspace: Workspace) -> None:
        n = source.layout.nav_ndim
        self._workspace = workspace
        self._parts = list(product(*axes[n:]))
        counts = (math.prod(b - a for a, b in nav) for nav in product(*axes[:n]))
        self._frames = list(pairwise(accumulate(counts, initial=0)))
        self._reader_of = partial(Reader, source, box, workspace)
        # Plans of corrections are as large as frames: only one tile at a time has them.
        corrected = source.conversion.corrections is not None
        self._reader = None if corrected else self._reader_of(self._parts)

    def read(self, number: int, make: Make) -> Array:
        """Read a tile: its frames on one axis, and all signal axes of the files."""
        frames, part = divmod(number, len(self._parts))
        with self._workspace:
            if self._reader is not None:
                return self._reader.tile(*self._frames[frames], part, make)
            return self._reader_of([self._parts[part]]).tile(*self._frames[frames], 0, make)


class _Registers:
    """Memory of tiles, used again for every tile."""

    def __init__(self) -> None:
        self._memory: dict[int, npt.NDArray[np.uint8]] = {}

    def give(self, register: Register, shape: Sequence[int]) -> Array:
        """Give the memory of a register, as an array."""
        nbytes = math.prod(shape) * register.dtype.itemsize
        memory = self._memory.get(register.number)
        if memory is None or memory.nbytes < nbytes:
            memory = self._memory[register.number] = np.empty(nbytes, np.uint8)
        return memory[:nbytes].view(register.dtype).reshape(shape)

    def maker(self, register: Register) -> Make:
        """Give what makes an array of a shape in a register, if it is wanted."""
        return lambda shape: self.give(register, shape)


def _run(
    program: Program,
    read: Callable[..., Array],
    registers: _Registers,
    out: Array,
    arrays: Sequence[Array],
) -> None:
    """Compute one tile; ``read(source, memory)`` gives that of a source."""
    values: dict[int, Array] = {}
    for step in program.steps:
        to = step.to
        if isinstance(step, Read):
            values.pop(to.number, None)  # it may be a view of a file
            if to.number == RESULT:  # nothing is computed
                out[...] = read(step.source, out.reshape).reshape(out.shape)
                continue
            found = read(step.source, registers.maker(to))
            values[to.number] = found.reshape(out.shape)
            continue
        operands = [
            values[x.number]
            if isinstance(x, Register)
            else arrays[x.number]
            if isinstance(x, Operand)
            else x
            for x in step.operands
        ]
        result = out if to.number == RESULT else registers.give(to, out.shape)
        function: Any = step.function
        function(*operands, out=result)
        values[to.number] = result
