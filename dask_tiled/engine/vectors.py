"""Steps of programs on vectors of pixels, as tables of numbers for the kernel that runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
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
    MOST_COUNTED,
    MOST_GROUP,
    VECTOR_BYTES,
)
from dask_tiled.engine.loops import loop_of
from dask_tiled.engine.programs import RESULT, Program, Stage
from dask_tiled.model.indexing import Array, Index


class Room(NamedTuple):
    """An array that each task makes for itself."""

    number: int
    """Place among the arrays of a task."""
    shape: tuple[int, ...]
    dtype: np.dtype
    initial: npt.ArrayLike | None
    """Initial value; None leaves the memory as it is."""

    @property
    def row(self) -> int:
        """Number of elements of a row, the first axis left out."""
        return math.prod(self.shape[1:])

    def made(self) -> Array:
        """Return the array, with its initial value."""
        if self.initial is None:
            return np.empty(self.shape, self.dtype)
        array = np.zeros(self.shape, self.dtype)  # untouched memory is zero already
        if np.any(self.initial):
            array[...] = self.initial
        return array


Collect = Callable[[Sequence[Array]], Array]
"""Returns the accumulated result from the arrays of a task, in C order of the axes that are left
and perhaps a further one."""


class Totals(NamedTuple):
    """Results that only the pixels of a tile are added to, as they are."""

    results: Room
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


NEGATIVE_POWER = "integer powers raise an error for negative exponents"


class NoPrimitive(Exception):  # noqa: N818 - not an error
    """Raised with the reason if a step of a program has no primitive."""


class Value(NamedTuple):
    """Pixels that a step reads or writes."""

    place: tuple[int, ...]
    dtype: np.dtype
    register: Register | None = None
    """The register that holds the pixels of a tile, whose address varies."""
    memory: int | None = None
    """Number of the array of a task from which the address counts; None for constants."""

    @property
    def is_dense(self) -> bool:
        """Whether the pixels are contiguous."""
        return self.place[-1] == self.dtype.itemsize


def pixel_type(dtype: np.dtype) -> np.dtype:
    """Return the dtype of pixels in our own primitives; raise NoPrimitive if unsupported."""
    if not can_fold(dtype):
        raise NoPrimitive(f"no kernel for {dtype} pixels")
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


class StepTable(NamedTuple):
    """The steps of a stage, as numbers."""

    steps: Array
    """A row for each step. Addresses in the arrays of a task are offsets."""
    links: Index
    """These offsets: a row with the row, the column, and the number of the array."""
    places: list[tuple[int, int, Register]]
    """Rows and columns of the addresses of tiles in registers."""
    primitives: dict[int, tuple[str, Sequence[np.dtype]]]
    """Steps that are our own primitives, with their dtypes."""


class Vectors:
    """The stages of a program as tables of numbers, which tasks bind to their memory.

    The last step writes an output, or accumulates along the axes ``gone``; then the order of
    pixels may matter. All sources are the ``tile`` of the kernel, if its dtype is passed.
    Nothing is compiled until a task begins. Of the operands, only shapes matter.
    """

    def __init__(
        self,
        program: Program,
        operands: Sequence[Array],
        shape: tuple[int, ...],
        nav_ndim: int,
        *,
        tile: np.dtype | None = None,
        gone: Sequence[int] = (),
        end: Callable[[Vectors, Step], Collect] | None = None,
        in_order: bool = False,
        depth: int = 0,
    ) -> None:
        from dask_tiled.kernels import step_layout

        self.layout = step_layout
        self.shape, self._nav_ndim = shape, nav_ndim
        self._alive: list[Array] = []
        self._memory: list[Room | Operand] = []
        self._registers: dict[Hashable, Room] = {}
        self._naturals: list[int] = []
        # Rows are longer if operands have all signal axes.
        self._spreads = bool(shape) and shape[-1] < LEAST_ROW
        self._blocks = blocks = [block.shape for block in self._spread(operands)]
        self.kept = kept = tuple(axis not in gone for axis in range(len(shape)))
        patterns = [*(tuple(n > 1 for n in block) for block in blocks), kept]
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
        """Maximum number of pixels of a vector, for which there are registers."""
        self._per_frame = per_frame = math.prod(shape[nav_ndim : self.first])
        self._by_pixel = nav_ndim < len(kept) and all(kept[nav_ndim:])
        by_frame = not any(
            k and n > 1 for n, k in zip(shape[nav_ndim:], kept[nav_ndim:], strict=True)
        )
        self._is_whole = self.group == 1 and (self._by_pixel or by_frame)
        self._header = np.zeros((2, 16), np.int64)
        self._header[0, :3] = self._columns, per_frame, self.vector
        self.left = tuple(n for n, k in zip(shape, kept, strict=True) if k)
        """Lengths of the axes that are not reduced."""
        self.reduced = math.prod(shape) // max(1, math.prod(self.left))
        """Pixels per result."""
        self.totals: Totals | None = None
        """Results of a program that only accumulates the pixels of a tile."""
        self.adds_frames = self.fetches = False
        """Whether the only step takes several frames, or prefetches integers, in any number."""
        self.collect: Collect | None = None
        """Returns the accumulated result; None if there is an output."""
        self.output: Room | None = None
        """Memory of the output; None if the pixels are reduced."""
        if end is None:
            self.output = self.room((depth, *shape[nav_ndim:]) if depth else shape, program.dtype)
        self._lines: Array | None = None
        if depth:
            self._lines = np.arange(math.prod(shape[: self.first])) % (depth * per_frame)
            self._alive.append(self._lines)
        self.stages = [self._table(stage, tile, end) for stage in program.stages]
        """Tables of all stages; primitives have no addresses yet."""

    @property
    def constants(self) -> list[Array]:
        """Arrays that the steps of all tasks read."""
        return self._alive

    @property
    def constant_bytes(self) -> int:
        """Bytes of these arrays, and of the numbers of frames and results."""
        frames = math.prod(self.shape[: self._nav_ndim])
        return sum(array.nbytes for array in self._alive) + 2 * 8 * frames

    @cached_property
    def frames(self) -> Index:
        """Numbers of the frames of a chunk."""
        return np.arange(math.prod(self.shape[: self._nav_ndim]))

    @cached_property
    def rows(self) -> tuple[Index, tuple[int, ...]]:
        """Result of each frame, and navigation axes of the results."""
        n = self._nav_ndim
        return rows_of(self.shape[:n], [axis for axis in range(n) if self.kept[axis]])

    @cached_property
    def tables(self) -> list[StepTable]:
        """Tables of all stages, with the addresses of their primitives, which are compiled."""
        for table in self.stages:
            for number, (name, dtypes) in table.primitives.items():
                table.steps[number, self.layout.ADDRESS] = _address(name, *dtypes)
        return self.stages

    @cached_property
    def twin(self) -> Index | None:
        """Functions of the first stage for tiles in reversed byte order, or None."""
        from dask_tiled.kernels.fold_functions import reversed_twin

        steps, _, _, primitives = self.tables[0]
        twin = steps[:, self.layout.ADDRESS].copy()
        for number, row in enumerate(steps):
            modes = row[self.layout.PLACES :: self.layout.PLACE_COLUMNS]
            if self.layout.TILE not in modes[: row[self.layout.OPERANDS]]:
                continue
            name, dtypes = primitives.get(number, ("", ()))
            other = reversed_twin(name)
            if other is None:
                return None
            twin[number] = _address(other, *dtypes)
        return twin

    def bind(self, operands: Sequence[Array], out: Array | None = None) -> BoundVectors:
        """Make the arrays of a task; ``out`` is its output if passed, C-contiguous."""
        if any(np.less(operands[number], 0).any() for number in self._naturals):
            raise NoPrimitive(NEGATIVE_POWER)
        operands = self._spread(operands)
        arrays = [
            np.ascontiguousarray(operands[wanted.number], wanted.dtype)
            if isinstance(wanted, Operand)
            else wanted.made()
            if out is None or wanted is not self.output
            else out
            for wanted in self._memory
        ]
        return BoundVectors(self, arrays, self._header.copy())

    def _spread(self, operands: Sequence[Array]) -> Sequence[Array]:
        if not self._spreads:
            return operands
        return [_spread(block, self.shape, self._nav_ndim) for block in operands]

    def _table(
        self,
        stage: Stage,
        tile: np.dtype | None,
        end: Callable[[Vectors, Step], Collect] | None,
    ) -> StepTable:
        """Return the steps of a stage: the last writes the output, or ``end`` accumulates it."""
        self._rows: list[list[int]] = []
        self._links: list[tuple[int, int, int]] = []
        self._places: list[tuple[int, int, Register]] = []
        self._primitives: dict[int, tuple[str, Sequence[np.dtype]]] = {}
        self._kept = stage.kept
        self._values = dict[Register, Value]()
        if self._columns < LEAST_ROW and (tile is None or self._per_frame > 1):
            raise NoPrimitive(IN_SHORT_ROWS)
        if tile is not None:
            nbytes = self._header[0, self.layout.PIXEL_BYTES] = pixel_type(tile).itemsize
            place = self.layout.TILE, 0, 0, 0, nbytes
            self._values = dict.fromkeys(stage.reads, Value(place, tile))
        for step in stage.steps:
            if step.to.number == RESULT and end is not None:
                self.collect = end(self, step)
            else:
                self._values[step.to] = self.step(step, self._target(step.to))
        self.adds_frames &= len(self._rows) == 1
        self.fetches = [row[self.layout.DATA] for row in self._rows] == [self.layout.FETCHES]
        if self.fetches:
            self._header[0, self.layout.VECTOR] = max(self.vector, self._columns)  # no registers
        of_frames = {self.layout.FETCHES, self.layout.FRAMES}
        if self._columns < LEAST_ROW and {row[self.layout.DATA] for row in self._rows} - of_frames:
            raise NoPrimitive(IN_SHORT_ROWS)
        links = np.array(self._links, np.int64).reshape(-1, 3)
        return StepTable(np.array(self._rows, np.int64), links, self._places, self._primitives)

    def _target(self, to: Register) -> Value:
        """Return the destination of a step."""
        if to.number == RESULT:
            assert self.output is not None  # noqa: S101 - for the type checker
            value = self.array(self.output, self.kept, self.group)
            if self._lines is None:
                return value
            size, lines = self.output.dtype.itemsize, self._lines.ctypes.data
            return value._replace(place=(self.layout.ARRAY, 0, self._columns * size, lines, size))
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
            raise NoPrimitive(NEGATIVE_POWER)
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
        """Return whether an operand is not negative; arrays are checked when a task begins."""
        if isinstance(operand, Operand):
            self._naturals.append(operand.number)
            return True
        if isinstance(operand, Register):
            return operand.dtype.kind in "bu"
        return bool(np.greater_equal(operand, 0))

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
            wanted = operand._replace(dtype=dtype or operand.dtype)
            if wanted not in self._memory:
                self._memory.append(wanted)
            number, kept = self._memory.index(wanted), self._blocks[operand.number]
            return self._in_rows(wanted.dtype, tuple(n > 1 for n in kept), memory=number)
        try:
            scalar = np.array(operand, dtype).repeat(self.vector if dense else 1)
        except OverflowError as error:
            raise NoPrimitive(f"{operand} is no {dtype}") from error
        return self.fixed(scalar, dense=dense)

    def fixed(self, array: Array, *, dense: bool = True) -> Value:
        """Return a value for an array that is the same for all pixels."""
        self._alive.append(array)
        place = self.layout.FIXED, array.ctypes.data, 0, 0, array.itemsize * dense
        return Value(place, array.dtype)

    def _tile(self, register: Register) -> Value:
        """Return a value for the tile in a register."""
        size = register.dtype.itemsize
        return Value(
            (self.layout.ARRAY, 0, self._columns * size, 0, size), register.dtype, register
        )

    def room(
        self, shape: Sequence[int], dtype: np.dtype, initial: npt.ArrayLike | None = None
    ) -> Room:
        """Return an array of each task, filled with an initial value if it has one."""
        room = Room(len(self._memory), tuple(shape), dtype, initial)
        self._memory.append(room)
        return room

    def whole(self, room: Room) -> Value:
        """Return a value for an array of a task that is the same for all pixels."""
        place = self.layout.FIXED, 0, 0, 0, room.dtype.itemsize
        return Value(place, room.dtype, memory=room.number)

    def outputs(self, results: Room) -> Iterator[Value]:
        """Yield a value for each row of results, with the axes that are not reduced."""
        value = self.array(results, self.kept, self.group)
        for k in range(results.shape[0]):
            mode, base, *others = value.place
            base += k * results.row * results.dtype.itemsize
            yield value._replace(place=(mode, base, *others))

    def array(self, array: Array | Room, kept: tuple[bool, ...], group: int = 1) -> Value:
        """Return a value for an array with some axes of the chunk, or with one pixel per group."""
        if isinstance(array, Room):
            return self._in_rows(array.dtype, kept, group, memory=array.number)
        self._alive.append(array)
        return self._in_rows(array.dtype, kept, group, array.ctypes.data)

    def _in_rows(
        self,
        dtype: np.dtype,
        kept: tuple[bool, ...],
        group: int = 1,
        base: int = 0,
        memory: int | None = None,
    ) -> Value:
        lead = self.shape[: self.first]
        axes = [axis for axis in range(self.first) if kept[axis]]
        trailing = self.has_rows(kept)
        step = dtype.itemsize * trailing
        width = dtype.itemsize * (self._columns // group if trailing else 1)
        numbers = 0
        if any(self.shape[axis] > 1 for axis in range(self.first) if not kept[axis]):
            rows, _ = rows_of(lead, axes)
            self._alive.append(rows)
            numbers = rows.ctypes.data
        return Value((self.layout.ARRAY, base, width, numbers, step), dtype, memory=memory)

    def has_rows(self, kept: tuple[bool, ...]) -> bool:
        """Return whether an array with such axes has a value per pixel of a row, not per row."""
        last = range(self.first, len(kept))
        return any(kept[axis] and self.shape[axis] > 1 for axis in last)

    def register(self, key: Hashable, dtype: np.dtype) -> Value:
        """Return memory for a vector, the same for equal keys."""
        if key not in self._registers:
            self._registers[key] = self.room([self.vector * 16], np.dtype(np.uint8))
        return self.whole(self._registers[key])._replace(
            place=(self.layout.FIXED, 0, 0, 0, dtype.itemsize), dtype=dtype
        )

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
        data = self.layout.FETCHES if name in FETCHING else self.layout.OWN
        self._primitives[len(self._rows)] = name, dtypes
        self.add(0, data, [*shown, out], group)

    def takes_whole(self, value: Value) -> bool:
        """Return whether whole frames of a tile are accumulated as they are."""
        is_tile = value.place[0] == self.layout.TILE
        return self._is_whole and is_tile and can_fold(value.dtype)

    def takes_frames(self, value: Value) -> bool:
        """Return whether several frames of a tile can be accumulated to results by pixel."""
        return self._by_pixel and self.takes_whole(value)

    def of_frames(self, name: str, value: Value, results: Room, out: Value) -> None:
        """Append a primitive that accumulates several frames to results, whose first row is out."""
        number = np.dtype(np.int64)
        rows = Value((self.layout.FIXED, results.row, 0, 0, 0), number)
        dtypes = [pixel_type(value.dtype), number, number, pixel_type(results.dtype)]
        nbytes = results.shape[0] * results.dtype.itemsize
        self._header[0, self.layout.VECTOR] = min(FRAMES_PIXELS, FRAMES_BYTES // nbytes)
        self.adds_frames = True
        self._primitives[len(self._rows)] = name, dtypes
        self.add(0, self.layout.FRAMES, [value, rows, rows, out])

    def add(self, address: int, data: int, values: Sequence[Value], group: int = 1) -> None:
        """Append a step: a NumPy loop with its data, or a primitive with a negative number."""
        row = [0] * self.layout.STEP_COLUMNS
        row[: self.layout.PLACES] = address, data, len(values), group
        for k, value in enumerate(values):
            first = self.layout.PLACES + self.layout.PLACE_COLUMNS * k
            row[first : first + self.layout.PLACE_COLUMNS] = value.place
            at = len(self._rows), first + self.layout.BASE
            if value.register is not None:
                self._places.append((*at, value.register))
            if value.memory is not None:
                self._links.append((*at, value.memory))
        self._rows.append(row)


class BoundVectors:
    """Vectors with the arrays of a task."""

    def __init__(self, vectors: Vectors, own: list[Array], header: Array) -> None:
        self.vectors = vectors
        self._own, self._layout = own, vectors.layout
        self.header = header
        """Header of the program, and a second row as scratch memory."""
        addresses = np.array([array.ctypes.data for array in own], np.int64)
        self.steps = [_linked(table, addresses) for table in vectors.tables]
        """Steps of each stage, with the addresses of these arrays."""

    @property
    def arrays(self) -> list[Array]:
        """All arrays that steps read or write, and the result."""
        return [*self.vectors.constants, *self._own, self.header]

    @property
    def output(self) -> Array:
        """The output of a program that keeps its pixels."""
        assert self.vectors.output is not None  # noqa: S101 - for the type checker
        return self._own[self.vectors.output.number]

    @property
    def totals(self) -> Array:
        """Results that only the pixels of a tile are added to, as they are."""
        assert self.vectors.totals is not None  # noqa: S101 - for the type checker
        return self._own[self.vectors.totals.results.number]

    @property
    def walk(self) -> tuple[int, ...]:
        """Order of traversal: row lengths, and pixels per piece and per group."""
        columns, per_frame, _, piece = self.header[0, :4]
        return int(columns), int(per_frame), int(piece), self.vectors.group

    @property
    def row(self) -> tuple[int, int]:
        """Pixels of a row, and most pixels of a vector."""
        columns, _, vector = self.header[0, :3]
        return int(columns), int(vector)

    def shorten(self, pixels: int) -> None:
        """Limit the pixels of a vector to the registers of other sinks."""
        self.header[0, self._layout.VECTOR] = min(self.vectors.vector, pixels)

    def take_pieces(self, pixels: int) -> None:
        """Process ``pixels`` pixels of each frame of a tile, then the next ones."""
        self.header[0, self._layout.PIECE] = pixels

    def twin(self) -> Array | None:
        """Return the steps of the first stage for tiles in reversed byte order, or None."""
        if self.vectors.twin is None:
            return None
        twin = self.steps[0].copy()
        twin[:, self._layout.ADDRESS] = self.vectors.twin
        return twin

    def moved(self, steps: Array, columns: Array) -> Array:
        """Return the only step, which takes several frames, with results in other memory."""
        layout, moved = self._layout, steps.copy()
        places, count = layout.PLACES, layout.PLACE_COLUMNS
        rows = len(columns) // len(self.totals)
        moved[0, places + count + layout.BASE] = columns[:rows].size
        out = places + count * 3
        moved[0, out + layout.BASE] = columns.ctypes.data
        moved[0, out + layout.ROW_BYTES] = columns[0].nbytes
        return moved

    def result(self) -> Array:
        """Return the output, or the accumulated result in the dtype of its accumulator."""
        collect = self.vectors.collect
        return self.output if collect is None else collect(self._own)


def _linked(table: StepTable, addresses: Index) -> Array:
    """Return the steps of a table with the addresses of arrays."""
    steps, (rows, columns, numbers) = table.steps.copy(), table.links.T
    steps[rows, columns] += addresses[numbers]
    return steps


def _address(name: str, *dtypes: np.dtype) -> int:
    from dask_tiled.kernels.fold_functions import primitive

    return primitive(name, *dtypes)


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
