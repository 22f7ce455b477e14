"""Steps of programs on vectors of pixels, as tables of numbers for the kernel that runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.casts import primitive_of
from dask_tiled.engine.expressions import Cast, Input, Operand, Register, Select, Step
from dask_tiled.engine.folding import can_fold, rows_of
from dask_tiled.engine.limits import (
    FRAMES_BYTES,
    FRAMES_PIXELS,
    LEAST_ROW,
    MOST_GROUP,
    VECTOR_BYTES,
)
from dask_tiled.engine.loops import loop_of
from dask_tiled.engine.programs import RESULT, Program, Stage
from dask_tiled.model.indexing import Array

Collect = Callable[[], Array]
"""Returns the accumulated result, in C order of the axes that are left and perhaps a further
one."""


class Totals(NamedTuple):
    """Results that only the pixels of a tile are added to, as they are."""

    results: Array
    """Several rows, then the axes that are left."""
    initial: npt.ArrayLike
    """Initial value of the results, or of each row."""
    adds: bool
    """Whether they are sums, exact in any order."""


FETCHING = {"add_words", "count_above", "count_below", "min_row", "max_row"}
"""Primitives that prefetch their first operand."""
IN_SHORT_ROWS = f"rows are shorter than {LEAST_ROW} pixels"
DENSE = {np.maximum, np.minimum, np.fmax, np.fmin}
"""Ufuncs whose loops are much faster for two arrays than for an array and a scalar."""
OWN = {np.sqrt, np.absolute, np.add, np.subtract, np.multiply, np.divide}
"""Ufuncs with our own primitives for float results: NumPy's loops are slower and need casts."""
COMPLEX = {np.dtype(np.complex64), np.dtype(np.complex128)}
"""Types with primitives of their own only for casts."""
MOST_COUNTED = 2
"""Widest pixels, in bytes, that are counted by value or looked up in a table."""


class NoPrimitive(Exception):  # noqa: N818 - not an error
    """Raised with the reason if a step of a program has no primitive."""


class Value(NamedTuple):
    """Pixels that a step reads or writes."""

    place: tuple[int, ...]
    dtype: np.dtype
    register: Register | None = None
    """The register that holds the pixels of a tile, whose address varies."""

    @property
    def is_dense(self) -> bool:
        """Whether the pixels are contiguous."""
        return self.place[-1] == self.dtype.itemsize


def pixel_type(dtype: np.dtype) -> np.dtype:
    """Return the dtype of pixels in our own primitives; raise NoPrimitive if unsupported."""
    if not can_fold(dtype):
        raise NoPrimitive(f"no kernel for {dtype} pixels")
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


class Vectors:
    """The stages of a program as tables of numbers, their memory and their result.

    The last step writes an output, or accumulates along the axes ``gone``; then the order of
    pixels may matter.
    """

    def __init__(
        self,
        program: Program,
        operands: Sequence[Array],
        gone: Sequence[int],
        shape: tuple[int, ...],
        nav_ndim: int,
        depth: int,
        out: Array | None = None,
        *,
        in_order: bool,
    ) -> None:
        from dask_tiled.kernels import step_layout

        self._layout = step_layout
        self._rows: list[list[int]] = []
        self._places: list[tuple[int, int, Register]] = []
        self.shape = shape
        self._alive: list[Array] = []
        self._registers: dict[Hashable, Array] = {}
        if shape and shape[-1] < LEAST_ROW:  # rows are longer if operands have all signal axes
            operands = [_spread(block, shape, nav_ndim) for block in operands]
        self._arrays = operands
        self.kept = kept = tuple(axis not in gone for axis in range(len(shape)))
        patterns = [*(tuple(n > 1 for n in block.shape) for block in operands), kept]
        self.any_order = not (in_order or any(any(pattern[nav_ndim:]) for pattern in patterns))
        """Whether the order of the pixels in a frame is irrelevant."""
        self.group = _group_of(shape, nav_ndim, kept)
        if self.group > 1:  # a group is a part of a row
            if any(pattern[-1] != pattern[-2] for pattern in patterns[:-1]):
                raise NoPrimitive("no kernel for bins of operands that vary inside a bin")
            patterns = [pattern[:-1] for pattern in patterns]
        self.first = _first_of_row(shape[: len(patterns[0])], nav_ndim, patterns)
        self._columns = math.prod(shape[self.first :])
        types = [step.to.dtype for stage in program.stages for step in stage.steps]
        widest = max(4, *(dtype.itemsize for dtype in types))
        self.vector = max(1, VECTOR_BYTES // widest // self.group) * self.group
        self._per_frame = per_frame = math.prod(shape[nav_ndim : self.first])
        self._by_pixel = nav_ndim < len(kept) and all(kept[nav_ndim:])
        by_frame = not any(
            k and n > 1 for n, k in zip(shape[nav_ndim:], kept[nav_ndim:], strict=True)
        )
        self._is_whole = self.group == 1 and (self._by_pixel or by_frame)
        self.header = np.zeros((2, 16), np.int64)
        self.header[0, :3] = self._columns, per_frame, self.vector
        self.left = tuple(n for n, k in zip(shape, kept, strict=True) if k)
        """Lengths of the axes that are not reduced."""
        self.reduced = math.prod(shape) // max(1, math.prod(self.left))
        """Pixels per result."""
        if out is None:
            room = (depth, *shape[nav_ndim:]) if depth else shape
            out = np.empty(0 if gone else room, program.dtype)
        self.results = out
        self.totals: Totals | None = None
        """Results of a program that only accumulates the pixels of a tile."""
        self.adds_frames = False
        """Whether the only step takes several frames."""
        self._primitives: dict[int, tuple[str, Sequence[np.dtype]]]
        self._collect: Collect | None = None
        self._lines: Array | None = None
        if depth:
            self._lines = np.arange(math.prod(shape[: self.first])) % (depth * per_frame)

    @property
    def arrays(self) -> list[Array]:
        """All arrays that steps read or write, and the result."""
        own = [*self._alive, *self._registers.values(), self.results, self.header]
        return own if self._lines is None else [*own, self._lines]

    def steps(
        self,
        stage: Stage,
        tile: np.dtype | None = None,
        end: Callable[[Vectors, Step], Collect] | None = None,
    ) -> tuple[Array, list[tuple[int, int, Register]]]:
        """Return the table of a stage, and which entries are addresses of tiles in registers.

        All sources are the ``tile`` of the kernel, if its dtype is passed. The last step
        writes an output, or ``end`` appends the steps that accumulate it.
        """
        self._rows, self._places, self._kept = [], [], stage.kept
        self._primitives = {}
        self._values = dict[Register, Value]()
        if self._columns < LEAST_ROW and (tile is None or self._per_frame > 1):
            raise NoPrimitive(IN_SHORT_ROWS)
        if tile is not None:
            nbytes = self.header[0, self._layout.PIXEL_BYTES] = pixel_type(tile).itemsize
            place = self._layout.TILE, 0, 0, 0, nbytes
            self._values = dict.fromkeys(stage.reads, Value(place, tile))
        for step in stage.steps:
            if step.to.number == RESULT and end is not None:
                self._collect = end(self, step)
            else:
                self._values[step.to] = self.step(step, self._target(step.to))
        self.adds_frames &= len(self._rows) == 1
        if [row[self._layout.DATA] for row in self._rows] == [self._layout.FETCHES]:
            self.header[0, self._layout.VECTOR] = max(self.vector, self._columns)  # no registers
        of_frames = {self._layout.FETCHES, self._layout.FRAMES}
        if self._columns < LEAST_ROW and {row[self._layout.DATA] for row in self._rows} - of_frames:
            raise NoPrimitive(IN_SHORT_ROWS)
        return np.array(self._rows, np.int64), self._places

    @property
    def walk(self) -> tuple[int, ...]:
        """Order of traversal: row lengths, and pixels per piece and per group."""
        columns, per_frame, _, piece = self.header[0, :4]
        return int(columns), int(per_frame), int(piece), self.group

    def shorten(self, pixels: int) -> None:
        """Limit the pixels of a vector to the registers of other sinks."""
        self.header[0, self._layout.VECTOR] = min(self.vector, pixels)

    def take_pieces(self, pixels: int) -> None:
        """Process ``pixels`` pixels of each frame of a tile, then the next ones."""
        self.header[0, self._layout.PIECE] = pixels

    def result(self) -> Array:
        """Return the output, or the accumulated result in the dtype of its accumulator."""
        return self.results if self._collect is None else self._collect()

    def _target(self, to: Register) -> Value:
        """Return the destination of a step."""
        if to.number == RESULT and self._lines is not None:
            size, lines = self.results.itemsize, self._lines.ctypes.data
            place = self._layout.ARRAY, self.results.ctypes.data, self._columns * size, lines, size
            return Value(place, to.dtype)
        if to.number == RESULT:
            return self.array(self.results, self.kept, self.group)
        return self._tile(to) if to in self._kept else self.register(to.number, to.dtype)

    def step(self, step: Step, to: Value | None = None) -> Value:
        """Append a step of a program; without ``to``, the result may be an existing value."""
        dtype = step.to.dtype
        if isinstance(step.function, Cast):
            return self.cast(self.value(step.operands[0]), dtype, RESULT, to)
        to = to or self.register(RESULT, dtype)
        if isinstance(step.function, Select):
            types = np.dtype(bool), dtype, dtype
            condition, *others = (
                self.cast(self.value(operand, wanted, dense=True), wanted, k)
                for k, (operand, wanted) in enumerate(zip(step.operands, types, strict=True))
            )
            self.own("select", [condition, *others], to)
            return to
        return self._call(step.function, step, to)

    def _call(self, ufunc: np.ufunc, step: Step, to: Value) -> Value:
        types = tuple(
            operand.dtype if isinstance(operand, (Register, Operand, np.generic)) else type(operand)
            for operand in step.operands
        )
        loop = loop_of(ufunc, types)
        if loop is None or loop.dtypes[-1] != step.to.dtype:
            raise NoPrimitive(_of_types(ufunc, types))
        *inner, result = loop.dtypes
        if ufunc is np.power and result.kind == "i" and not self._is_natural(step.operands[1]):
            raise NoPrimitive("integer powers raise an error for negative exponents")
        kinds = [x.dtype for x in step.operands if isinstance(x, (Register, Operand))]
        floats = result.kind == "f" and all(map(can_fold, (result, *kinds)))
        if floats and ufunc not in OWN and self._look_up(ufunc, step.operands, to):
            return to
        if ufunc in OWN and floats and len(kinds) == len(step.operands):
            values = [self.value(operand, result) for operand in step.operands]
            if to in values and to.register is None:  # aliasing would prevent SIMD
                to = self.register(("other", step.to.number), result)
            self.own(ufunc.__name__, values, to)
            return to
        operands = [
            self.cast(self.value(operand, dtype, dense=ufunc in DENSE), dtype, k)
            for k, (operand, dtype) in enumerate(zip(step.operands, inner, strict=True))
        ]
        self.add(loop.address, loop.data, [*operands, to])
        return to

    def _is_natural(self, operand: Input) -> bool:
        """Return whether an operand is known not to be negative."""
        if isinstance(operand, Register):
            return operand.dtype.kind in "bu"
        values = self._arrays[operand.number] if isinstance(operand, Operand) else operand
        return bool(np.greater_equal(values, 0).all())

    def _look_up(self, ufunc: np.ufunc, operands: Sequence[Input], to: Value) -> bool:
        """Look results up in a table of all pixel values, if these are few; return whether."""
        value = self.value(operands[0])
        kind, size = value.dtype.kind, value.dtype.itemsize
        if len(operands) > 1 or kind not in "iu" or size > MOST_COUNTED:
            return False
        with np.errstate(all="ignore"):
            table = self.fixed(ufunc(_every(value.dtype)))
        self.own("look_up", [value, table], to)
        return True

    def twin(self, steps: Array) -> Array | None:
        """Return a table of steps for tiles in reversed byte order, or None."""
        from dask_tiled.kernels.fold_functions import reversed_twin

        twin = steps.copy()
        for number, row in enumerate(steps):
            modes = row[self._layout.PLACES :: self._layout.PLACE_COLUMNS]
            if self._layout.TILE not in modes[: row[self._layout.OPERANDS]]:
                continue
            name, dtypes = self._primitives.get(number, ("", ()))
            other = reversed_twin(name)
            if other is None:
                return None
            twin[number, self._layout.ADDRESS] = self._address(other, *dtypes)
        return twin

    def moved(self, steps: Array, columns: Array) -> Array:
        """Return the only step, which takes several frames, with results in other memory."""
        moved, places, count = steps.copy(), self._layout.PLACES, self._layout.PLACE_COLUMNS
        assert self.totals is not None  # noqa: S101 - for the type checker
        rows = len(columns) // len(self.totals.results)
        moved[0, places + count + self._layout.BASE] = columns[:rows].size
        out = places + count * 3
        moved[0, out + self._layout.BASE] = columns.ctypes.data
        moved[0, out + self._layout.ROW_BYTES] = columns[0].nbytes
        return moved

    def loop(self, ufunc: np.ufunc, operands: Sequence[Value], out: Value, group: int = 1) -> None:
        """Append the loop of a ufunc for the dtypes of the operands."""
        types = tuple(x.dtype for x in operands)
        loop = loop_of(ufunc, types)
        if loop is None:
            raise NoPrimitive(_of_types(ufunc, types))
        self.add(loop.address, loop.data, [*operands, out], group)

    def value(self, operand: Input, dtype: np.dtype | None = None, *, dense: bool = False) -> Value:
        """Resolve an operand; scalars and arrays get ``dtype``, and ``dense`` repeats scalars."""
        if isinstance(operand, Register):
            return self._values.get(operand) or self._tile(operand)
        if isinstance(operand, Operand):
            block = self._contiguous(self._arrays[operand.number], dtype)
            return self.array(block, tuple(n > 1 for n in block.shape))
        try:
            scalar = np.array(operand, dtype).repeat(self.vector if dense else 1)
        except OverflowError as error:
            raise NoPrimitive(f"{operand} is no {dtype}") from error
        return self.fixed(scalar, dense=dense)

    def fixed(self, array: Array, *, dense: bool = True) -> Value:
        """Return a value for an array that is the same for all pixels."""
        self._alive.append(array)
        place = self._layout.FIXED, array.ctypes.data, 0, 0, array.itemsize * dense
        return Value(place, array.dtype)

    def _tile(self, register: Register) -> Value:
        """Return a value for the tile in a register."""
        size = register.dtype.itemsize
        return Value(
            (self._layout.ARRAY, 0, self._columns * size, 0, size), register.dtype, register
        )

    def outputs(self, results: Array) -> Iterator[Value]:
        """Yield a value for each result, with the axes that are not reduced."""
        for k in range(len(results)):
            yield self.array(results[k, ...], self.kept, self.group)

    def array(self, array: Array, kept: tuple[bool, ...], group: int = 1) -> Value:
        """Return a value for an array with some axes of the chunk, or with one pixel per group."""
        lead = self.shape[: self.first]
        axes = [axis for axis in range(self.first) if kept[axis]]
        trailing = self.has_rows(kept)
        step = array.itemsize * trailing
        width = array.itemsize * (self._columns // group if trailing else 1)
        numbers = 0
        if any(self.shape[axis] > 1 for axis in range(self.first) if not kept[axis]):
            rows = self._rows_of(lead, axes)
            self._alive.append(rows)
            numbers = rows.ctypes.data
        self._alive.append(array)
        return Value((self._layout.ARRAY, array.ctypes.data, width, numbers, step), array.dtype)

    def has_rows(self, kept: tuple[bool, ...]) -> bool:
        """Return whether an array with such axes has a value per pixel of a row, not per row."""
        last = range(self.first, len(kept))
        return any(kept[axis] and self.shape[axis] > 1 for axis in last)

    def register(self, key: Hashable, dtype: np.dtype) -> Value:
        """Return memory for a vector, the same for equal keys."""
        if key not in self._registers:
            self._registers[key] = np.empty(self.vector * 16, np.uint8)
        place = self._layout.FIXED, self._registers[key].ctypes.data, 0, 0, dtype.itemsize
        return Value(place, dtype)

    def cast(
        self, value: Value, dtype: np.dtype, number: int = 0, to: Value | None = None
    ) -> Value:
        """Cast pixels, if their dtype differs or if ``to`` is passed."""
        if value.dtype == dtype and to is None:
            return value
        to = to or self.register(("cast", number), dtype)
        is_half = np.float16 in (value.dtype, dtype)  # unsupported by numba
        if is_half and dtype.kind == "f" and value.dtype.itemsize <= MOST_COUNTED:
            every = _every(value.dtype)
            with np.errstate(over="ignore"):
                table = every.astype(dtype)
            kind = np.dtype(np.uint16) if dtype == np.float16 else dtype
            operands = [value._replace(dtype=np.dtype(f"u{every.itemsize}"))]
            operands.append(self.fixed(table.view(kind)))
            self.own("look_up", operands, to._replace(dtype=kind))
            return to
        name = primitive_of(value.dtype, dtype)
        if name is None:
            raise NoPrimitive(f"no kernel for casts of {value.dtype} to {dtype}")
        self.own(name, [value], to)
        return to

    def own(self, name: str, operands: list[Value], out: Value) -> None:
        """Append one of our own primitives; operands that are not contiguous are copied first."""
        dense = []
        for k, operand in enumerate(operands):
            if operand.is_dense:
                dense.append(operand)
                continue
            dense.append(self.register(("spread", k), operand.dtype))
            self.primitive("spread", [operand], dense[-1], types=[operand.dtype] * 3)
        types = [operand.dtype for operand in dense]
        self.primitive(name, dense, out, types=types + [types[0]] * (3 - len(types)))

    def primitive(
        self,
        name: str,
        operands: list[Value],
        out: Value,
        *,
        types: Sequence[np.dtype] = (),
        group: int = 1,
    ) -> None:
        """Append one of our own primitives, with operands as they are."""
        shown = operands + operands[-1:] * (3 - len(operands))
        dtypes = [*(types or [x.dtype for x in shown]), out.dtype]
        dtypes = [x if name == "cast" and x in COMPLEX else pixel_type(x) for x in dtypes]
        data = self._layout.FETCHES if name in FETCHING else self._layout.OWN
        self._primitives[len(self._rows)] = name, dtypes
        self.add(self._address(name, *dtypes), data, [*shown, out], group)

    def takes_whole(self, value: Value) -> bool:
        """Return whether whole frames of a tile are accumulated as they are."""
        is_tile = value.place[0] == self._layout.TILE
        return self._is_whole and is_tile and can_fold(value.dtype)

    def takes_frames(self, value: Value) -> bool:
        """Return whether several frames of a tile can be accumulated to results by pixel."""
        return self._by_pixel and self.takes_whole(value)

    def of_frames(self, name: str, value: Value, results: Array, out: Value) -> None:
        """Append a primitive that accumulates several frames to results, whose first row is out."""
        number = np.dtype(np.int64)
        rows = Value((self._layout.FIXED, results[0].size, 0, 0, 0), number)
        dtypes = [pixel_type(value.dtype), number, number, pixel_type(results.dtype)]
        nbytes = len(results) * results.itemsize
        self.header[0, self._layout.VECTOR] = min(FRAMES_PIXELS, FRAMES_BYTES // nbytes)
        self._alive.append(results)
        self.adds_frames = True
        self._primitives[len(self._rows)] = name, dtypes
        self.add(self._address(name, *dtypes), self._layout.FRAMES, [value, rows, rows, out])

    def add(self, address: int, data: int, values: Sequence[Value], group: int = 1) -> None:
        """Append a step: a NumPy loop with its data, or a primitive with a negative number."""
        row = [0] * self._layout.STEP_COLUMNS
        row[: self._layout.PLACES] = address, data, len(values), group
        for k, value in enumerate(values):
            first = self._layout.PLACES + self._layout.PLACE_COLUMNS * k
            row[first : first + self._layout.PLACE_COLUMNS] = value.place
            if value.register is not None:
                base = first + self._layout.BASE
                self._places.append((len(self._rows), base, value.register))
        self._rows.append(row)

    def room(self, shape: Sequence[int], value: npt.ArrayLike, dtype: np.dtype) -> Array:
        """Return memory for accumulated results, filled with their initial value."""
        results = np.zeros(shape, dtype)  # untouched memory is zero already
        if np.any(value):
            results[...] = value
        return results

    def _address(self, name: str, *dtypes: np.dtype) -> int:
        from dask_tiled.kernels.fold_functions import primitive

        return primitive(name, *dtypes)

    def _contiguous(self, operand: Array, dtype: np.dtype | None) -> Array:
        return np.ascontiguousarray(operand, dtype)

    def _rows_of(self, lead: tuple[int, ...], axes: Sequence[int]) -> Array:
        return rows_of(lead, axes)[0]


class Rehearsal(Vectors):
    """Steps that are checked but never run: nothing is compiled, and no memory is filled."""

    def room(self, shape: Sequence[int], _: npt.ArrayLike, dtype: np.dtype) -> Array:
        """Return memory that is not filled."""
        return np.empty(shape, dtype)

    def _address(self, *_: object) -> int:
        return 0

    def _contiguous(self, operand: Array, dtype: np.dtype | None) -> Array:
        return np.empty(operand.shape, dtype or operand.dtype)

    def _rows_of(self, *_: object) -> Array:
        return np.empty(0, np.int64)


def _every(dtype: np.dtype) -> Array:
    """Return all values of pixels of one or two bytes, in the order of their bits."""
    return np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)


def _of_types(ufunc: np.ufunc, types: Iterable[np.dtype | type]) -> str:
    names = (x.name if isinstance(x, np.dtype) else x.__name__ for x in types)
    return f"no kernel for {ufunc.__name__} of {' and '.join(names)}"


def _spread(block: Array, shape: tuple[int, ...], nav_ndim: int) -> Array:
    """Broadcast an operand along all signal axes, if it has any."""
    if math.prod(block.shape[nav_ndim:]) == 1:
        return block
    return np.broadcast_to(block, block.shape[:nav_ndim] + shape[nav_ndim:])


def _group_of(shape: tuple[int, ...], nav_ndim: int, kept: tuple[bool, ...]) -> int:
    """Return the number of neighbours that become one pixel, with several groups in a row."""
    together = len(shape) - nav_ndim > 1 and kept[-2] and not kept[-1] and shape[-2] > 1
    return shape[-1] if together and shape[-1] <= MOST_GROUP else 1


def _first_of_row(
    shape: tuple[int, ...], nav_ndim: int, patterns: Sequence[tuple[bool, ...]]
) -> int:
    """Return the first axis of a row: all patterns have, or lack, all axes from it on."""
    first = len(shape)
    seen: list[bool | None] = [None] * len(patterns)
    while first > nav_ndim:
        axis = first - 1
        if shape[axis] > 1:
            now = [pattern[axis] for pattern in patterns]
            if any(s is not None and s != n for s, n in zip(seen, now, strict=True)):
                break
            seen = [*now]
        first = axis
    return first
