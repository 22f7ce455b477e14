"""Programs as jobs: vector after vector of pixels, into an output or into a reduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.expressions import Cast, Operand, Select
from dask_tiled.engine.folding import FrameSink, about_the_mean, are_narrow, can_fold, rows_of
from dask_tiled.engine.jobs import Chunk
from dask_tiled.engine.loops import loop_of
from dask_tiled.engine.programs import Program, Read, Register, Step
from dask_tiled.tiling.negotiation import TilingRequest

Array = npt.NDArray[Any]

VECTOR_BYTES = 16384
"""Of the widest pixels in a program."""
LEAST_ROW = 16
"""Neighbouring pixels that are worth the calls."""
MOST_GROUP = 32
"""So many neighbours, and no more, become one together with others of their row."""

UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.logical_or,
    "all": np.logical_and,
    "nansum": np.add,
    "nanprod": np.multiply,
    "nanmin": np.fmin,
    "nanmax": np.fmax,
    "nanmean": np.add,
}
DENSE = {np.maximum, np.minimum, np.fmax, np.fmin}
"""Ufuncs whose loops are much faster for two arrays than for an array and a number."""


NUMBERS_ONLY = {"nansum": "sum", "nanprod": "prod", "nanmean": "sum"}
"""Reductions that are others of the pixels that are numbers."""
SEVERAL = {"nanmean", "moments", "nanmoments"}
"""Reductions that have several results."""
MOST_COUNTED = 2
"""Bytes of pixels whose values are counted."""


class Reduction(NamedTuple):
    """What is made of the pixels of a chunk: one of UFUNCS over some axes, which stay with 1.

    ``moments`` and ``nanmoments`` are number, mean and spread, and ``nanmean`` the sum and the
    number, along a further axis; ``counts`` is how often each value occurs.
    """

    name: str
    axes: tuple[int, ...]
    dtype: Any
    """Of the result, or what makes it of that of the pixels; None for that of the pixels."""


class NoPrimitive(Exception):  # noqa: N818 - it is no error
    """There is no primitive for a step of a program."""


@dataclass(frozen=True, eq=False)
class Programmed:
    """The job of a program: a chunk of an expression of one source, or a reduction of it."""

    program: Program
    operands: tuple[Array, ...]
    """Those of the program, cut to the chunk."""
    reduction: Reduction | None
    shape: tuple[int, ...]
    """Of the chunk, whose axes may be split for the reduction."""
    nav_ndim: int
    """How many of them are navigation axes."""

    request = TilingRequest("frame")

    @property
    def dtype(self) -> np.dtype:
        """Type of the results."""
        wanted = None if self.reduction is None else self.reduction.dtype
        return self.program.dtype if wanted is None else wanted

    def begin(self, chunk: Chunk) -> VectorSink:
        """Begin to work on a chunk; NoPrimitive if that cannot be done in vectors."""
        return VectorSink(self, chunk)


class Value(NamedTuple):
    """Pixels that a step takes or gives."""

    place: tuple[int, ...]
    dtype: np.dtype

    @property
    def is_dense(self) -> bool:
        """Whether they are neighbours."""
        return self.place[-1] == self.dtype.itemsize


class VectorSink(FrameSink):
    """What a program makes of one chunk."""

    needs_order = True

    def __init__(self, job: Programmed, chunk: Chunk) -> None:
        _plain(chunk.dtype)
        self._job, self._shape = job, job.shape
        gone = () if job.reduction is None else job.reduction.axes
        self._kept = tuple(axis not in gone for axis in range(len(self._shape)))
        self._table = table = _Table(chunk, self._kept, job)
        program = np.array(table.rows, np.int64)
        header = np.zeros((2, 16), np.int64)
        header[0, :3] = table.columns, table.per_frame, table.vector
        frames = np.arange(math.prod(chunk.nav_shape))
        super().__init__("run_program", chunk, frames, program, header)
        self.needs_whole_frames = table.group > 1
        nav = job.shape[: job.nav_ndim]
        rows, nav_shape = rows_of(nav, [axis for axis in range(len(nav)) if self._kept[axis]])
        if 1 < math.prod(nav_shape) < len(frames) and any(self._kept[job.nav_ndim :]):
            self._together = rows

    def result(self) -> Array:
        """Give the output, or the reduction with axes of length 1."""
        shape = tuple(n if kept else 1 for n, kept in zip(self._shape, self._kept, strict=True))
        results, reduction = self._table.results, self._job.reduction
        if reduction is not None and reduction.name == "counts":
            return _occurring(results, _plain(self._job.program.dtype))
        if results.ndim > sum(self._kept):
            results = np.moveaxis(results, 0, -1)
            shape = (*shape, results.shape[-1])
        results = results.reshape(shape)
        if reduction is not None and reduction.name.endswith("moments"):
            moments, gone = results[..., :3], math.prod(self._shape) // math.prod(shape[:-1])
            about_the_mean(moments, results[..., 3] if shape[-1] > 3 else gone)
            return moments
        return results.astype(self._job.dtype, copy=False)


def _occurring(counts: Array, dtype: np.dtype) -> Array:
    """List the values that occur, and how often."""
    total = counts.sum(axis=0)
    (occurring,) = np.nonzero(total)
    found = np.empty(len(occurring), [("value", dtype), ("count", np.int64)])
    found["value"] = occurring.astype(f"u{dtype.itemsize}").view(dtype)
    found["count"] = total[occurring]
    return found


def _plain(dtype: np.dtype) -> np.dtype:
    """Give the type by which primitives of our own know pixels."""
    if not can_fold(dtype):
        raise NoPrimitive(dtype)
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


class _Table:
    """The steps of a program as numbers, and the memory that they work in."""

    def __init__(self, chunk: Chunk, kept: tuple[bool, ...], job: Programmed) -> None:
        self.rows: list[list[int]] = []
        self._shape = shape = job.shape
        self._alive: list[Any] = []
        self._registers: dict[Any, Array] = {}
        self._arrays = [
            block.reshape((1,) * (len(shape) - block.ndim) + block.shape) for block in job.operands
        ]
        patterns = [tuple(n > 1 for n in block.shape) for block in self._arrays]
        patterns.append(kept)
        self.group = _group_of(shape, job.nav_ndim, kept)
        if self.group > 1:  # they are neighbours in a row of what they become
            if any(pattern[-1] != pattern[-2] for pattern in patterns[:-1]):
                raise NoPrimitive
            patterns = [pattern[:-1] for pattern in patterns]
        self._first = _first_of_row(shape[: len(patterns[0])], job.nav_ndim, patterns)
        self.columns = math.prod(shape[self._first :])
        self.per_frame = math.prod(shape[job.nav_ndim : self._first])
        if self.columns < LEAST_ROW:
            raise NoPrimitive
        widest = max((x.to.dtype.itemsize for x in job.program.steps), default=1)
        self.vector = max(1, VECTOR_BYTES // max(4, widest) // self.group) * self.group
        self._values: dict[int, Value] = {}
        self._tile = Value((1, 0, 0, 0, chunk.dtype.itemsize), chunk.dtype)
        *steps, last = job.program.steps
        for step in steps:
            self._step(step, None)
        several = job.reduction is not None and job.reduction.name in SEVERAL
        if several and self.group > 1:
            raise NoPrimitive
        if job.reduction is None:
            self.results: Array = np.empty(shape, last.to.dtype)
            self._step(last, self._output(kept))
        elif job.reduction.name == "counts":
            self._count(last)
        elif job.reduction.name.endswith("moments"):
            self._moments(last, job.reduction, kept)
        else:
            self._reduce(last, job.reduction, kept)

    def _step(self, step: Read | Step, to: Value | None) -> Value:
        """Add what one step of a program needs."""
        if isinstance(step, Read):
            value = self._tile
        elif isinstance(step.function, Cast):
            value = self._cast(self._value(step.operands[0]), step.to.dtype, to or step.to)
        elif isinstance(step.function, Select):
            types = np.dtype(bool), step.to.dtype, step.to.dtype
            condition, *others = (
                self._cast(self._value(x, dtype, dense=True), dtype, k)
                for k, (x, dtype) in enumerate(zip(step.operands, types, strict=True))
            )
            value = to or self._register(step.to.number, step.to.dtype)
            self._own("select", [condition, *others], value)
        else:
            value = self._call(step, to)
        self._values[step.to.number] = value
        return value

    def _call(self, step: Step, to: Value | None) -> Value:
        ufunc = step.function
        types = tuple(
            x.dtype if isinstance(x, (Register, Operand, np.generic)) else type(x)
            for x in step.operands
        )
        loop = loop_of(ufunc, types)
        if loop is None:
            raise NoPrimitive(ufunc)
        *inner, result = loop.dtypes
        operands = [
            self._cast(self._value(x, dtype, dense=ufunc in DENSE), dtype, k)
            for k, (x, dtype) in enumerate(zip(step.operands, inner, strict=True))
        ]
        if result != step.to.dtype:
            raise NoPrimitive(ufunc)
        value = to or self._register(step.to.number, result)
        self._add(loop.address, loop.data, [*operands, value])
        return value

    def _reduce(self, last: Read | Step, reduction: Reduction, kept: tuple[bool, ...]) -> None:
        dtype, value_dtype = reduction.dtype, last.to.dtype
        name = of_numbers(reduction.name, value_dtype)
        kept_shape = tuple(n for n, k in zip(self._shape, kept, strict=True) if k)
        trailing, counted, skips = self._has_rows(kept), name == "nanmean", name in NUMBERS_ONLY
        name = NUMBERS_ONLY.get(name, name)
        if dtype is None:
            dtype = value_dtype
        if name == "sum":
            dtype = sum_dtype(value_dtype, dtype)
        count = math.prod(self._shape) // max(1, math.prod(kept_shape))
        if name == "sum" and trailing and are_narrow(value_dtype, count) and dtype.kind in "iu":
            dtype = np.dtype(f"{dtype.kind}4")
        self.results = np.full((2,) * counted + kept_shape, neutral(name, dtype), dtype)
        out = self._output(kept, *(0,) * counted)
        if name == "sum" and not (trailing or skips) and self._dot(last, out):
            return
        value = self._step(last, None)
        if skips:
            number = self._output(kept, 1) if counted else None
            value = self._numbers(value, neutral(name, dtype), number)
        if self.group > 1:
            self._reduce_groups(name, value, dtype, out)
            return
        if name == "sum":
            self._add_up(value, out)
            return
        loop = loop_of(UFUNCS[name], (dtype, dtype))
        if loop is None:
            raise NoPrimitive(name)
        self._add(loop.address, loop.data, [out, self._cast(value, dtype), out])

    def _reduce_groups(self, name: str, value: Value, dtype: np.dtype, out: Value) -> None:
        """Reduce neighbouring pixels: one of each group after the other."""
        from dask_tiled.kernels.fold_functions import primitive

        if name == "sum":
            size = self._value(self.group, np.int64)
            types = [_plain(value.dtype), size.dtype, size.dtype, _plain(out.dtype)]
            self._primitive(primitive("add_groups", *types), [value, size], out)
            self.rows[-1][3] = self.group
            return
        loop = loop_of(UFUNCS[name], (dtype, dtype))
        if loop is None:
            raise NoPrimitive(name)
        mode, base, *others, step = self._cast(value, dtype).place
        for k in range(self.group):
            one = Value((mode, base + k * step, *others, step * self.group), dtype)
            self._add(loop.address, loop.data, [out, one, out])
            self.rows[-1][3] = self.group

    def _moments(self, last: Read | Step, reduction: Reduction, kept: tuple[bool, ...]) -> None:
        """Keep a pixel, the sums of differences from it and of their squares, and the number."""
        from dask_tiled.kernels.fold_functions import primitive

        name = of_numbers(reduction.name, last.to.dtype)
        rows = 4 if name.startswith("nan") else 3
        self.results = np.zeros((rows, *(n for n, k in zip(self._shape, kept, strict=True) if k)))
        self.results[0] = np.nan
        shift, total, squares, *number = (self._output(kept, k) for k in range(rows))
        value = self._step(last, None)
        for out in number:
            self._count_numbers(value, out)
        types = _plain(value.dtype), shift.dtype, total.dtype, squares.dtype
        address = primitive(f"{name}_{'each' if shift.is_dense else 'row'}", *types)
        self._primitive(address, [value, shift, total], squares)

    def _count(self, last: Read | Step) -> None:
        """Count how often each value occurs, where there are few."""
        dtype = last.to.dtype
        if dtype.kind not in "biu" or dtype.itemsize > MOST_COUNTED:
            raise NoPrimitive(dtype)
        self.results = np.zeros((4, 256**dtype.itemsize), np.int64)
        out = Value((0, self.results.ctypes.data, 0, 0, 8), self.results.dtype)
        self._own("count", [self._step(last, None)], out)

    def _numbers(self, value: Value, other: Any, number: Value | None) -> Value:
        """Put another value in the place of pixels that are no numbers; count the rest."""
        if number is not None:
            self._count_numbers(value, number)
        chosen = self._register("chosen", value.dtype)
        others = self._value(other, value.dtype, dense=True)
        self._own("select", [self._truth(np.isnan, value), others, value], chosen)
        return chosen

    def _count_numbers(self, value: Value, out: Value) -> None:
        self._add_up(self._truth(np.logical_not, self._truth(np.isnan, value)), out)

    def _truth(self, ufunc: np.ufunc, value: Value) -> Value:
        """Tell something of each pixel."""
        loop = loop_of(ufunc, (value.dtype,))
        if loop is None:
            raise NoPrimitive(ufunc)
        found = self._register(ufunc.__name__, np.dtype(bool))
        self._add(loop.address, loop.data, [value, found])
        return found

    def _add_up(self, value: Value, out: Value) -> None:
        self._own("add_each" if out.is_dense else "add_row", [value], out)

    def _dot(self, last: Read | Step, out: Value) -> bool:
        """Add up products with weights without making them."""
        if not isinstance(last, Step) or last.function is not np.multiply:
            return False
        if last.to.dtype.kind != "f" or out.dtype.kind != "f":
            return False
        for x, weights in (last.operands, last.operands[::-1]):
            if isinstance(x, Register) and isinstance(weights, Operand):
                value = self._value(weights, last.to.dtype)
                if value.is_dense:
                    self._own("add_products", [self._value(x), value], out)
                    return True
        return False

    def _value(self, operand: Any, dtype: Any = None, *, dense: bool = False) -> Value:
        """Find an operand; numbers and arrays have the type then, and ``dense`` repeats numbers."""
        if isinstance(operand, Register):
            return self._values[operand.number]
        if isinstance(operand, Operand):
            block = np.ascontiguousarray(self._arrays[operand.number], dtype)
            return self._array(block, tuple(n > 1 for n in block.shape))
        try:
            one = np.array(operand, dtype).repeat(self.vector if dense else 1)
        except OverflowError as error:
            raise NoPrimitive(operand) from error
        self._alive.append(one)
        return Value((0, one.ctypes.data, 0, 0, one.itemsize * dense), one.dtype)

    def _output(self, kept: tuple[bool, ...], *place: int) -> Value:
        where: Any = (*place, ...)
        return self._array(self.results[where], kept, self.group)

    def _array(self, array: Array, kept: tuple[bool, ...], group: int = 1) -> Value:
        """Show an array that has some axes of the chunk, or a pixel for each group of them."""
        lead = self._shape[: self._first]
        axes = [axis for axis in range(self._first) if kept[axis]]
        trailing = self._has_rows(kept)
        step = array.itemsize * trailing
        width = array.itemsize * (self.columns // group if trailing else 1)
        numbers = 0
        if any(self._shape[axis] > 1 for axis in range(self._first) if not kept[axis]):
            rows, _ = rows_of(lead, axes)
            self._alive.append(rows)
            numbers = rows.ctypes.data
        self._alive.append(array)
        return Value((2, array.ctypes.data, width, numbers, step), array.dtype)

    def _has_rows(self, kept: tuple[bool, ...]) -> bool:
        """Tell whether what has such axes has a value for each pixel of a row, or one for all."""
        last = range(self._first, len(kept))
        return any(kept[axis] and self._shape[axis] > 1 for axis in last)

    def _register(self, key: Any, dtype: np.dtype) -> Value:
        if key not in self._registers:
            self._registers[key] = np.empty(self.vector * 16, np.uint8)
        return Value((0, self._registers[key].ctypes.data, 0, 0, dtype.itemsize), dtype)

    def _cast(self, value: Value, dtype: Any, to: Any = 0) -> Value:
        """Convert pixels, if they are of another type."""
        dtype = np.dtype(dtype)
        if value.dtype == dtype and not isinstance(to, (Value, Register)):
            return value
        if isinstance(to, Register):
            to = self._register(to.number, dtype)
        elif not isinstance(to, Value):
            to = self._register(("cast", to), dtype)
        self._own("truth" if dtype.kind == "b" else "cast", [value], to)
        return to

    def _own(self, name: str, operands: list[Value], out: Value) -> None:
        """Add a primitive of our own."""
        from dask_tiled.kernels.fold_functions import primitive

        dense = []
        for k, x in enumerate(operands):
            if x.is_dense:
                dense.append(x)
                continue
            dense.append(self._register(("spread", k), x.dtype))
            self._primitive(primitive("spread", *[_plain(x.dtype)] * 4), [x], dense[-1])
        types = [_plain(x.dtype) for x in dense]
        types += [types[0]] * (3 - len(types))
        self._primitive(primitive(name, *types, _plain(out.dtype)), dense, out)

    def _primitive(self, address: int, operands: list[Value], out: Value) -> None:
        shown = operands + operands[-1:] * (3 - len(operands))
        self._add(address, -1, [*shown, out])

    def _add(self, address: int, data: int, places: Sequence[Value]) -> None:
        row = [address, data, len(places), 1]
        for value in places:
            row += value.place
        self.rows.append(row + [0] * (24 - len(row)))


def sum_dtype(pixel: np.dtype, dtype: np.dtype) -> np.dtype:
    """Choose the type in which pixels are added up whose sums are wanted in another."""
    if pixel.kind in "biu" and (dtype.kind in "iu" or pixel.itemsize <= 4):
        return np.dtype("i8" if pixel.kind == "i" else "u8")
    return np.dtype(np.float64)


def of_numbers(name: str, dtype: np.dtype) -> str:
    """Name the reduction that does the same to pixels of a type, where that has no NaN."""
    if dtype.kind not in "biu":
        return name
    return "sum" if name == "nanmean" else name.removeprefix("nan")


def neutral(name: str, dtype: np.dtype) -> Any:
    """Give the value that changes nothing."""
    if name in ("sum", "any", "nansum"):
        return 0
    if name in ("prod", "all", "nanprod"):
        return 1
    least = name.endswith("min")
    if dtype.kind == "f":
        return np.nan if name.startswith("nan") else np.inf if least else -np.inf
    if dtype.kind == "b":
        return least
    if dtype.kind not in "iu":
        raise NoPrimitive(dtype)
    limits = np.iinfo(dtype)
    return limits.max if least else limits.min


def _group_of(shape: tuple[int, ...], nav_ndim: int, kept: tuple[bool, ...]) -> int:
    """Tell how many neighbours become one, where others of the same row become others."""
    together = len(shape) - nav_ndim > 1 and kept[-2] and not kept[-1] and shape[-2] > 1
    return shape[-1] if together and shape[-1] <= MOST_GROUP else 1


def _first_of_row(
    shape: tuple[int, ...], nav_ndim: int, patterns: Sequence[tuple[bool, ...]]
) -> int:
    """Find the first of the last axes that all patterns have, or have not, together."""
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
