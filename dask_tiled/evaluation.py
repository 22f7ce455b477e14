"""Compute the chunks of an expression, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled import buffers
from dask_tiled.boxes import Box
from dask_tiled.decoders import BlockDecoder
from dask_tiled.division import Base, fill, split
from dask_tiled.loader import LARGE_BYTES, Edges, RawChunk, read_pixels, value_bytes
from dask_tiled.programs import RESULT, Program, Read, Register

Array = npt.NDArray[Any]

REGISTER_BYTES = 2 << 20
"""All registers together have so many bytes: a tile is half of that where two are enough."""
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
    """Compute one chunk: an array of its own, C-contiguous.

    Raises
    ------
    StaleFileError
        A file has changed since it was opened.
    """
    program, box = evaluation.program, evaluation.box(block_id)
    shape = tuple(stop - start for start, stop in box)
    out = buffers.empty(shape, program.dtype)
    registers = _Registers()
    for tile in _tiles(shape, _tile_pixels(program)):
        place: Any = (*(slice(*bounds) for bounds in tile), ...)
        within = tuple((o + a, o + b) for (o, _), (a, b) in zip(box, tile, strict=True))
        _run(program, within, registers, out[place])
    return out


def _tile_pixels(program: Program) -> int | None:
    """Tell how many pixels a tile may have; None where what is compressed would be cut."""
    if any(isinstance(d, BlockDecoder) for leaf in program.leaves for d in leaf.layout.decoders):
        return None
    return max(1, REGISTER_BYTES // max(1, program.width))


def _tiles(shape: tuple[int, ...], pixels: int | None) -> Iterator[Box]:
    """Cut a chunk into tiles that follow one another in C order, none of which has a gap."""
    if 0 in shape:
        return iter(())
    sizes = shape if pixels is None else fill(shape, pixels, (Base(),) * len(shape))
    axes = [
        pairwise(accumulate(split(n, size), initial=0))
        for n, size in zip(shape, sizes, strict=True)
    ]
    return product(*axes)


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


def _run(program: Program, box: Box, registers: _Registers, out: Array) -> None:
    """Compute one tile."""
    values: dict[int, Array] = {}
    for step in program.steps:
        to = step.to
        if isinstance(step, Read):
            leaf = program.leaves[step.leaf]
            raw = RawChunk(leaf.layout, leaf.conversion, box, leaf.io)
            values.pop(to.number, None)  # it may be a view of a file
            values[to.number] = read_pixels(raw, registers.maker(to))
            continue
        operands = [values[x.number] if isinstance(x, Register) else x for x in step.operands]
        result = out if to.number == RESULT else registers.give(to, out.shape)
        function: Any = step.function
        function(*operands, out=result)
        values[to.number] = result
