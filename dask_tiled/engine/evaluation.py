"""Compute the chunks of an expression, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.expressions import Leaf
from dask_tiled.engine.programs import RESULT, Program, Read, Register
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.reading import buffers
from dask_tiled.reading.backends import Backend
from dask_tiled.reading.boxes import Box, cut_to
from dask_tiled.reading.loader import LARGE_BYTES, Edges, RawChunk, like_numpy, value_bytes
from dask_tiled.reading.tile_reader import TileReader
from dask_tiled.tiling.division import Base, fill, split

Array = npt.NDArray[Any]

REGISTER_BYTES = 2 << 20
"""All registers together have so many bytes: a tile is half of that where two are enough."""
KEPT_LEAVES = 256
"""Of so many sources it is kept where their bytes are, some KiB each, from tile to tile."""
STEP_BYTES, LEAF_BYTES = 100, 500
"""What a step of a program takes, and a leaf beside its arrays, about."""


class Evaluation:
    """What every task of an expression needs: its program, and the edges of its chunks.

    It is a plain class, so that dask passes it on as one value and does not look inside.
    """

    __slots__ = ("edges", "program")

    def __init__(self, program: Program, edges: tuple[Edges, ...]) -> None:
        self.program = program
        self.edges = edges

    @property
    def is_large(self) -> bool:
        """Whether it is too large to be a part of every task."""
        leaves, steps = self.program.leaves, self.program.steps
        arrays = sum(value_bytes(leaf.layout, leaf.conversion) for leaf in leaves)
        return arrays + LEAF_BYTES * len(leaves) + STEP_BYTES * len(steps) > LARGE_BYTES

    def box(self, block_id: tuple[int, ...]) -> Box:
        """Give the box of a chunk."""
        return tuple(edges[i] for edges, i in zip(self.edges, block_id, strict=True))


def evaluate(evaluation: Evaluation, block_id: tuple[int, ...]) -> Array:
    """Compute one chunk: an array of its own, C-contiguous, or a scalar.

    Raises
    ------
    StaleFileError
        A file has changed since it was opened.
    """
    program, box = evaluation.program, evaluation.box(block_id)
    shape = tuple(stop - start for start, stop in box)
    out = buffers.empty(shape, program.dtype)
    if out.size:
        axes = _tiles(shape, _tile_pixels(program))
        make = partial(_LeafTiles, box=box, axes=axes, backends={})
        several = math.prod(map(len, axes)) > 1
        leaves = [make(leaf) for leaf in program.leaves[: KEPT_LEAVES if several else 0]]
        read = partial(_read, program, make, leaves)
        registers = _Registers()
        for number, tile in enumerate(product(*axes)):
            place: Any = (*(slice(*bounds) for bounds in tile), ...)
            _run(program, partial(read, number), registers, out[place])
    return like_numpy(out)


def _read(
    program: Program,
    make: Callable[[Leaf], _LeafTiles],
    kept: Sequence[_LeafTiles],
    number: int,
    leaf: int,
    memory: Callable[[tuple[int, ...]], Array],
) -> Array:
    """Read a tile of a source, of which what was looked up before may be kept."""
    tiles = kept[leaf] if leaf < len(kept) else make(program.leaves[leaf])
    return tiles.read(number, memory)


def _tile_pixels(program: Program) -> int | None:
    """Tell how many pixels a tile may have; None where what is compressed would be cut."""
    if any(isinstance(d, BlockDecoder) for leaf in program.leaves for d in leaf.layout.decoders):
        return None
    return max(1, REGISTER_BYTES // max(1, program.width))


def _tiles(shape: tuple[int, ...], pixels: int | None) -> list[Box]:
    """Cut the axes of a chunk, so that tiles follow one another in C order and have no gaps."""
    sizes = shape if pixels is None else fill(shape, pixels, (Base(),) * len(shape))
    return [
        tuple(pairwise(accumulate(split(n, size), initial=0)))
        for n, size in zip(shape, sizes, strict=True)
    ]


class _LeafTiles:
    """The tiles of a source. Its bytes are looked up once for all of them.

    Parameters
    ----------
    leaf : Leaf
    box : Box
        The chunk.
    axes : sequence of Box
        The tiles along each axis of the chunk.
    backends : dict
        The backends of the sources before it, which are shared.
    """

    def __init__(
        self, leaf: Leaf, box: Box, axes: Sequence[Box], backends: dict[Any, Backend]
    ) -> None:
        raw = RawChunk(leaf.layout, leaf.conversion, box, leaf.io)
        region = raw.region()
        n = len(region.nav_counts)
        self._parts = [cut_to(region.sig, part) for part in product(*axes[n:])]
        counts = (math.prod(b - a for a, b in nav) for nav in product(*axes[:n]))
        self._frames = list(pairwise(accumulate(counts, initial=0)))
        backend = raw.backend()
        self._backend = backends.setdefault(type(backend), backend)
        self._make = partial(TileReader, leaf.layout, leaf.conversion, region, self._backend)
        # Plans of corrections are as large as frames: only one tile at a time has them.
        self._reader = self._make(self._parts) if leaf.conversion.corrections is None else None

    def read(self, number: int, make: Callable[[tuple[int, ...]], Array]) -> Array:
        """Read a tile: its frames on one axis, and all signal axes of the files."""
        frames, part = divmod(number, len(self._parts))
        with self._backend:
            if self._reader is not None:
                return self._reader.pixels(*self._frames[frames], part, make)
            return self._make([self._parts[part]]).pixels(*self._frames[frames], 0, make)


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

    def maker(self, register: Register) -> Callable[[tuple[int, ...]], Array]:
        """Give what makes an array of a shape in a register, if it is wanted."""
        return lambda shape: self.give(register, shape)


def _run(program: Program, read: Callable[..., Array], registers: _Registers, out: Array) -> None:
    """Compute one tile; ``read(leaf, memory)`` gives that of a source."""
    values: dict[int, Array] = {}
    for step in program.steps:
        to = step.to
        if isinstance(step, Read):
            values.pop(to.number, None)  # it may be a view of a file
            found = read(step.leaf, registers.maker(to))
            values[to.number] = found.reshape(out.shape)
            continue
        operands = [values[x.number] if isinstance(x, Register) else x for x in step.operands]
        result = out if to.number == RESULT else registers.give(to, out.shape)
        function: Any = step.function
        function(*operands, out=result)
        values[to.number] = result
