"""Steps of programs on vectors of pixels, as numbers for the kernel that runs them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.casts import primitive_of
from dask_tiled.engine.expressions import Cast, Operand, Select
from dask_tiled.engine.folding import are_narrow, can_fold, rows_of
from dask_tiled.engine.loops import loop_of
from dask_tiled.engine.programs import RESULT, Program, Register, Stage, Step

Array = npt.NDArray[Any]

VECTOR_BYTES = 16384
"""Of the widest pixels in a program."""
LEAST_ROW = 16
"""Neighbouring pixels that are worth the calls."""
MOST_AT_ONCE = (1 << 16) - 1
"""Pixels whose places are looked for in 2 bytes."""
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
OWN = {np.sqrt, np.absolute, np.add, np.subtract, np.multiply, np.divide}
"""Ufuncs that are primitives where they give floats: numpy's loops are slower, and take floats."""
MOST_IN_WORDS = 4
"""Bytes of unsigned pixels of which several are added up at once."""

NUMBERS_ONLY = {"nansum": "sum", "nanprod": "prod", "nanmean": "sum"}
"""Reductions that are others of the pixels that are numbers."""
PLACES = {"argmin": np.minimum, "argmax": np.maximum}
"""Reductions that find a place, and what finds the pixel there."""
SEVERAL = {"nanmean", "moments", "nanmoments", *PLACES}
"""Reductions that have several results."""
MOST_COUNTED = 2
"""Bytes of pixels whose values are counted, or looked up."""
MOST_BINS, MOST_STEPS = 1 << 16, 8
"""So many bins are known of, and the one of a pixel is at most so far from where it should be."""


class Reduction(NamedTuple):
    """What is made of the pixels of a chunk: one of UFUNCS over some axes, which stay with 1.

    ``moments`` and ``nanmoments`` are number, mean and spread, and ``nanmean`` the sum and the
    number, along a further axis; ``counts`` is how often each value occurs, or how many lie in each
    bin where there may be many. Of ``PLACES`` it is a pixel and its place, counted in C order of
    the axes as they are given.
    """

    name: str
    axes: tuple[int, ...]
    dtype: Any
    """Of the result, or what makes it of that of the pixels; None for that of the pixels."""
    bins: Any = None
    """Bins and range, as ``numpy.histogram`` takes them."""


class NoPrimitive(Exception):  # noqa: N818 - it is no error
    """There is no primitive for a step of a program."""


class Value(NamedTuple):
    """Pixels that a step takes or gives."""

    place: tuple[int, ...]
    dtype: np.dtype
    register: Register | None = None
    """That which has a tile of them, wherever this lies at the time."""

    @property
    def is_dense(self) -> bool:
        """Whether they are neighbours."""
        return self.place[-1] == self.dtype.itemsize


def _occurring(counts: Array, dtype: np.dtype) -> Array:
    """List the values that occur, and how often."""
    total = counts.sum(axis=0)
    (occurring,) = np.nonzero(total)
    found = np.empty(len(occurring), [("value", dtype), ("count", np.int64)])
    found["value"] = occurring.astype(f"u{dtype.itemsize}").view(dtype)
    found["count"] = total[occurring]
    return found


def _edges(bins: Any, dtype: np.dtype) -> tuple[Array, float]:
    """Give the edges of bins for pixels of a type, and how many bins a unit has, about."""
    try:
        _, edges = np.histogram(np.zeros(1, dtype), *bins)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise NoPrimitive(bins) from error
    number, (first, last) = len(edges) - 1, edges[[0, -1]].astype(float)
    scale = number / (last - first) if last > first else math.nan
    numbers = np.arange(number + 1)
    known = edges.dtype.kind in "iuf" and 0 < number <= MOST_BINS and math.isfinite(scale)
    exact = max(abs(first), abs(last)) < 1 << np.finfo(float).nmant
    if not known or not exact or (abs((edges - first) * scale - numbers) > MOST_STEPS).any():
        raise NoPrimitive(bins)
    return edges.astype(float), scale


def placed(name: str, values: Array, places: Array, axes: tuple[int, ...] = ()) -> Array:
    """Find the pixels that are wanted along some axes, and of equal ones the first place."""
    if axes:
        best = PLACES[name].reduce(values, axes, keepdims=True)
        hits = (values == best) | np.not_equal(values, values)  # NaN is found before all others
        last = np.iinfo(places.dtype).max
        values, places = best, np.where(hits, places, last).min(axes, keepdims=True)
    found = np.empty(values.shape, [("value", values.dtype), ("place", places.dtype)])
    found["value"], found["place"] = values, places
    return found


def plain(dtype: np.dtype) -> np.dtype:
    """Give the type by which primitives of our own know pixels."""
    if not can_fold(dtype):
        raise NoPrimitive(dtype)
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


class Vectors:
    """The stages of a program as numbers, the memory that they work in, and what comes out."""

    def __init__(
        self,
        program: Program,
        operands: Sequence[Array],
        reduction: Reduction | None,
        shape: tuple[int, ...],
        nav_ndim: int,
        depth: int,
        out: Array | None = None,
    ) -> None:
        from dask_tiled.kernels import step_layout

        self._layout = step_layout
        self._rows: list[list[int]] = []
        self._places: list[tuple[int, int, Register]] = []
        self._shape = shape
        self._alive: list[Any] = []
        self._registers: dict[Any, Array] = {}
        self._arrays = operands
        self._reduction = reduction
        gone = () if reduction is None else reduction.axes
        self.kept = kept = tuple(axis not in gone for axis in range(len(shape)))
        patterns = [*(tuple(n > 1 for n in block.shape) for block in operands), kept]
        places = reduction is not None and reduction.name in PLACES
        self.any_order = not (places or any(any(pattern[nav_ndim:]) for pattern in patterns))
        """Whether the order of a frame's pixels makes no difference."""
        self.group = _group_of(shape, nav_ndim, kept)
        if self.group > 1:  # they are neighbours in a row of what they become
            if any(pattern[-1] != pattern[-2] for pattern in patterns[:-1]):
                raise NoPrimitive
            patterns = [pattern[:-1] for pattern in patterns]
        self._first = _first_of_row(shape[: len(patterns[0])], nav_ndim, patterns)
        self._columns = math.prod(shape[self._first :])
        types = [step.to.dtype for stage in program.stages for step in stage.steps]
        widest = max(4, *(dtype.itemsize for dtype in types))
        self.vector = max(1, VECTOR_BYTES // widest // self.group) * self.group
        per_frame = math.prod(shape[nav_ndim : self._first])
        self.header = np.zeros((2, 16), np.int64)
        self.header[0, :3] = self._columns, per_frame, self.vector
        self._pixel = program.dtype
        room = (depth, *shape[nav_ndim:]) if depth else shape
        if out is None:
            out = np.empty(0 if reduction else room, program.dtype)
        self.results = out
        self._lines: Array | None = None
        if depth:
            self._lines = np.arange(math.prod(shape[: self._first])) % (depth * per_frame)

    def steps(
        self, stage: Stage, tile: np.dtype | None = None
    ) -> tuple[Array, list[tuple[int, int, Register]]]:
        """Give the numbers of a stage, and which of them are addresses of what registers have.

        All that is read is the ``tile`` of the kernel, if its type is given.
        """
        if self._columns < LEAST_ROW:
            raise NoPrimitive
        self._rows, self._places, self._kept = [], [], stage.kept
        self._values = dict[Register, Value]()
        if tile is not None:
            place = self._layout.TILE, 0, 0, 0, plain(tile).itemsize
            self._values = dict.fromkeys(stage.reads, Value(place, tile))
        for step in stage.steps:
            if step.to.number == RESULT and self._reduction is not None:
                self._end(step, self._reduction)
            else:
                self._values[step.to] = self._step(step, self._target(step.to))
        return np.array(self._rows, np.int64), self._places

    @property
    def walk(self) -> tuple[int, ...]:
        """How programs go through pixels: rows, and how many pixels go together."""
        columns, per_frame, _, piece = self.header[0, :4]
        return int(columns), int(per_frame), int(piece), self.group

    def shorten(self, pixels: int) -> None:
        """Take no more pixels at a time than there is memory for elsewhere."""
        self.header[0, self._layout.VECTOR] = min(self.vector, pixels)

    def take_pieces(self, pixels: int) -> None:
        """Take so many pixels of each frame of a tile, then as many others."""
        self.header[0, self._layout.PIECE] = pixels

    def result(self) -> Array:
        """Give the output, or the reduction with axes of length 1, in the type it was made in."""
        shape = tuple(n if kept else 1 for n, kept in zip(self._shape, self.kept, strict=True))
        results, reduction = self.results, self._reduction
        if reduction is not None and reduction.name in PLACES:
            places, axes = self._found, [k for k, n in enumerate(results.shape) if n > shape[k]]
            if axes:
                places = places + self._places_along(axes, reduction)
            return placed(reduction.name, results, places, tuple(axes))
        if reduction is not None and reduction.name == "counts":
            return results if results.ndim == 1 else _occurring(results, plain(self._pixel))
        if results.ndim > sum(self.kept):
            results = np.moveaxis(results, 0, -1)
            shape = (*shape, results.shape[-1])
        results = results.reshape(shape)
        if reduction is not None and reduction.name.endswith("moments"):
            moments, gone = results[..., :3], math.prod(self._shape) // math.prod(shape[:-1])
            about_the_mean(moments, results[..., 3] if shape[-1] > 3 else gone)
            return moments
        return results

    def _target(self, to: Register) -> Value:
        """Tell where a step has its result."""
        if to.number == RESULT and self._lines is not None:
            size, lines = self.results.itemsize, self._lines.ctypes.data
            place = self._layout.ARRAY, self.results.ctypes.data, self._columns * size, lines, size
            return Value(place, to.dtype)
        if to.number == RESULT:
            return self._output(self.kept)
        return self._tile(to) if to in self._kept else self._register(to.number, to.dtype)

    def _step(self, step: Step, to: Value | None) -> Value:
        """Add what one step of a program needs; without ``to``, its result may be what is there."""
        dtype = step.to.dtype
        if isinstance(step.function, Cast):
            return self._cast(self._value(step.operands[0]), dtype, RESULT, to)
        to = to or self._register(RESULT, dtype)
        if isinstance(step.function, Select):
            types = np.dtype(bool), dtype, dtype
            condition, *others = (
                self._cast(self._value(x, wanted, dense=True), wanted, k)
                for k, (x, wanted) in enumerate(zip(step.operands, types, strict=True))
            )
            self._own("select", [condition, *others], to)
            return to
        return self._call(step, to)

    def _call(self, step: Step, to: Value) -> Value:
        ufunc = step.function
        types = tuple(
            x.dtype if isinstance(x, (Register, Operand, np.generic)) else type(x)
            for x in step.operands
        )
        loop = loop_of(ufunc, types)
        if loop is None:
            raise NoPrimitive(ufunc)
        *inner, result = loop.dtypes
        if result != step.to.dtype:
            raise NoPrimitive(ufunc)
        kinds = [x.dtype for x in step.operands if isinstance(x, (Register, Operand))]
        floats = result.kind == "f" and all(map(can_fold, (result, *kinds)))
        if floats and ufunc not in OWN and self._look_up(ufunc, step.operands, to):
            return to
        if ufunc in OWN and floats and len(kinds) == len(step.operands):
            values = [self._value(x, result) for x in step.operands]
            if to in values and to.register is None:  # or pixels would be made one by one
                to = self._register(("other", step.to.number), result)
            self._own(ufunc.__name__, values, to)
            return to
        operands = [
            self._cast(self._value(x, dtype, dense=ufunc in DENSE), dtype, k)
            for k, (x, dtype) in enumerate(zip(step.operands, inner, strict=True))
        ]
        self._add(loop.address, loop.data, [*operands, to])
        return to

    def _look_up(self, ufunc: Any, operands: Sequence[Any], to: Value) -> bool:
        """Take the results of all values that pixels can have from a table, where these are few."""
        value = self._value(operands[0])
        kind, size = value.dtype.kind, value.dtype.itemsize
        if len(operands) > 1 or kind not in "iu" or size > MOST_COUNTED:
            return False
        every = np.arange(256**size, dtype=f"u{size}").view(value.dtype)
        with np.errstate(all="ignore"):
            table = self._fixed(ufunc(every))
        self._own("look_up", [value, table], to)
        return True

    def _end(self, last: Step, reduction: Reduction) -> None:
        """Add what makes the reduction of the last step."""
        if reduction.name in SEVERAL and self.group > 1:
            raise NoPrimitive
        if reduction.name == "counts":
            self._count(last, reduction.bins)
        elif reduction.name.endswith("moments"):
            self._moments(last, reduction, self.kept)
        elif reduction.name in PLACES:
            self._place(last, reduction)
        else:
            self._reduce(last, reduction, self.kept)

    def _reduce(self, last: Step, reduction: Reduction, kept: tuple[bool, ...]) -> None:
        dtype, value_dtype = reduction.dtype, last.to.dtype
        name = of_numbers(reduction.name, value_dtype)
        kept_shape = tuple(n for n, k in zip(self._shape, kept, strict=True) if k)
        trailing, counted, skips = self._has_rows(kept), name == "nanmean", name in NUMBERS_ONLY
        name = NUMBERS_ONLY.get(name, name)
        if dtype is None:
            dtype = value_dtype
        count = math.prod(self._shape) // max(1, math.prod(kept_shape))
        if name == "sum":
            dtype = sum_dtype(value_dtype, dtype)
        if name == "sum" and trailing and are_narrow(value_dtype, count) and dtype.kind in "iu":
            dtype = np.dtype(f"{dtype.kind}4")
        self.results = np.full((2,) * counted + kept_shape, neutral(name, dtype), dtype)
        out = self._output(kept, *(0,) * counted)
        if name == "sum" and not (trailing or skips) and self._dot(last, out):
            return
        exact = name == "sum" and not skips and _is_exact(last)
        value = self._value(last.operands[0]) if exact else self._step(last, None)
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
            types = [plain(value.dtype), size.dtype, size.dtype, plain(out.dtype)]
            self._primitive(primitive("add_groups", *types), [value, size], out)
            self._rows[-1][self._layout.GROUP] = self.group
            return
        loop = loop_of(UFUNCS[name], (dtype, dtype))
        if loop is None:
            raise NoPrimitive(name)
        value = self._cast(value, dtype)
        mode, base, *others, step = value.place
        for k in range(self.group):
            one = value._replace(place=(mode, base + k * step, *others, step * self.group))
            self._add(loop.address, loop.data, [out, one, out])
            self._rows[-1][self._layout.GROUP] = self.group

    def _moments(self, last: Step, reduction: Reduction, kept: tuple[bool, ...]) -> None:
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
        types = plain(value.dtype), shift.dtype, total.dtype, squares.dtype
        address = primitive(f"{name}_{'each' if shift.is_dense else 'row'}", *types)
        self._primitive(address, [value, shift, total], squares)

    def _place(self, last: Step, reduction: Reduction) -> None:
        """Keep a pixel and its place in each row, or of several rows for each pixel of these."""
        from dask_tiled.kernels.fold_functions import primitive

        dtype, first = last.to.dtype, self._first
        by_row = not self._has_rows(self.kept)
        kept = (True,) * first + self.kept[first:] if by_row else self.kept
        shape = [n if k else 1 for n, k in zip(self._shape, kept, strict=True)]
        axes = range(first, len(kept)) if by_row else range(first)
        limit = math.prod(self._shape[axis] for axis in axes)
        places = self._places_along(axes, reduction)
        if by_row and (np.diff(places.ravel()) < 0).any():
            raise NoPrimitive(reduction)
        places = places.astype(np.min_scalar_type(max(limit, 256)))
        self.results = np.full(shape, neutral(reduction.name, dtype), dtype)
        self._found = np.full(shape, limit, places.dtype)
        value = self._step(last, None)
        best, place = self._array(self.results, kept), self._array(self._found, kept)
        where = self._array(places, tuple(n > 1 for n in places.shape))
        name = f"{reduction.name}_{'row' if by_row else 'each'}"
        if by_row and dtype.kind in "biu" and self.vector <= MOST_AT_ONCE:
            name += "_of_whole"
        types = [plain(x.dtype) for x in (value, where, best, place)]
        self._primitive(primitive(name, *types), [value, where, best], place)

    def _places_along(self, axes: Iterable[int], reduction: Reduction) -> Array:
        """Give the part of places that some axes tell, where they are gone."""
        sizes = [self._shape[axis] for axis in reduction.axes]
        found = np.zeros((1,) * len(self._shape), np.int64)
        for k, axis in enumerate(reduction.axes):
            if axis in axes:
                along = np.arange(sizes[k]) * math.prod(sizes[k + 1 :])
                found = found + along.reshape([-1 if x == axis else 1 for x in range(found.ndim)])
        return found

    def _count(self, last: Step, bins: Any) -> None:
        """Count how often each value occurs, where there are few, or how many lie in each bin."""
        dtype = last.to.dtype
        if dtype.kind in "biu" and dtype.itemsize <= MOST_COUNTED:
            self.results, beside = np.zeros((4, 256**dtype.itemsize), np.int64), []
        else:
            edges, scale = _edges(bins, plain(dtype))
            self.results = np.zeros(len(edges) - 1, np.int64)
            beside = [self._fixed(np.array([len(edges) - 1, scale])), self._fixed(edges)]
        name, value = "bins" if beside else "count", self._step(last, None)
        self._own(name, [value, *beside], self._fixed(self.results))

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
        in_words = value.dtype.kind in "bu" and value.dtype.itemsize <= MOST_IN_WORDS
        row = "add_row_of_words" if in_words else "add_row"
        self._own("add_each" if out.is_dense else row, [value], out)

    def _dot(self, last: Step, out: Value) -> bool:
        """Add up products with weights without making them."""
        factors = last.factors
        if factors is None or not last.to.dtype.kind == out.dtype.kind == "f":
            return False
        value = self._value(factors[1], last.to.dtype)
        if value.is_dense:
            self._own("add_products", [self._value(factors[0]), value], out)
        return value.is_dense

    def _value(self, operand: Any, dtype: Any = None, *, dense: bool = False) -> Value:
        """Find an operand; numbers and arrays have the type then, and ``dense`` repeats numbers."""
        if isinstance(operand, Register):
            return self._values.get(operand) or self._tile(operand)
        if isinstance(operand, Operand):
            block = np.ascontiguousarray(self._arrays[operand.number], dtype)
            return self._array(block, tuple(n > 1 for n in block.shape))
        try:
            one = np.array(operand, dtype).repeat(self.vector if dense else 1)
        except OverflowError as error:
            raise NoPrimitive(operand) from error
        return self._fixed(one, dense=dense)

    def _fixed(self, array: Array, *, dense: bool = True) -> Value:
        """Show an array that is the same for all pixels."""
        self._alive.append(array)
        place = self._layout.FIXED, array.ctypes.data, 0, 0, array.itemsize * dense
        return Value(place, array.dtype)

    def _tile(self, register: Register) -> Value:
        """Show the tile that a register has."""
        size = register.dtype.itemsize
        return Value(
            (self._layout.ARRAY, 0, self._columns * size, 0, size), register.dtype, register
        )

    def _output(self, kept: tuple[bool, ...], *place: int) -> Value:
        where: Any = (*place, ...)
        return self._array(self.results[where], kept, self.group)

    def _array(self, array: Array, kept: tuple[bool, ...], group: int = 1) -> Value:
        """Show an array that has some axes of the chunk, or a pixel for each group of them."""
        lead = self._shape[: self._first]
        axes = [axis for axis in range(self._first) if kept[axis]]
        trailing = self._has_rows(kept)
        step = array.itemsize * trailing
        width = array.itemsize * (self._columns // group if trailing else 1)
        numbers = 0
        if any(self._shape[axis] > 1 for axis in range(self._first) if not kept[axis]):
            rows, _ = rows_of(lead, axes)
            self._alive.append(rows)
            numbers = rows.ctypes.data
        self._alive.append(array)
        return Value((self._layout.ARRAY, array.ctypes.data, width, numbers, step), array.dtype)

    def _has_rows(self, kept: tuple[bool, ...]) -> bool:
        """Tell whether what has such axes has a value for each pixel of a row, or one for all."""
        last = range(self._first, len(kept))
        return any(kept[axis] and self._shape[axis] > 1 for axis in last)

    def _register(self, key: Any, dtype: np.dtype) -> Value:
        if key not in self._registers:
            self._registers[key] = np.empty(self.vector * 16, np.uint8)
        place = self._layout.FIXED, self._registers[key].ctypes.data, 0, 0, dtype.itemsize
        return Value(place, dtype)

    def _cast(
        self, value: Value, dtype: np.dtype, number: int = 0, to: Value | None = None
    ) -> Value:
        """Convert pixels, if they are of another type or wanted elsewhere."""
        if value.dtype == dtype and to is None:
            return value
        name = primitive_of(value.dtype, dtype)
        if name is None:
            raise NoPrimitive(dtype)
        to = to or self._register(("cast", number), dtype)
        self._own(name, [value], to)
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
            self._primitive(primitive("spread", *[plain(x.dtype)] * 4), [x], dense[-1])
        types = [plain(x.dtype) for x in dense]
        types += [types[0]] * (3 - len(types))
        self._primitive(primitive(name, *types, plain(out.dtype)), dense, out)

    def _primitive(self, address: int, operands: list[Value], out: Value) -> None:
        shown = operands + operands[-1:] * (3 - len(operands))
        self._add(address, -1, [*shown, out])

    def _add(self, address: int, data: int, values: Sequence[Value]) -> None:
        row = [0] * self._layout.STEP_COLUMNS
        row[: self._layout.PLACES] = address, data, len(values), 1
        for k, value in enumerate(values):
            first = self._layout.PLACES + self._layout.PLACE_COLUMNS * k
            row[first : first + self._layout.PLACE_COLUMNS] = value.place
            if value.register is not None:
                base = first + self._layout.BASE
                self._places.append((len(self._rows), base, value.register))
        self._rows.append(row)


def _is_exact(step: Step) -> bool:
    """Tell whether a step only converts whole numbers, whose sums are the same without that."""
    if not isinstance(step.function, Cast):
        return False
    (operand,), dtype = step.operands, step.to.dtype
    whole = isinstance(operand, Register) and operand.dtype.kind in "biu" and dtype.kind in "iuf"
    few = dtype.kind != "f" or operand.dtype.itemsize <= MOST_COUNTED
    return whole and few and np.can_cast(operand.dtype, dtype)


def about_the_mean(results: Array, count: Any) -> None:
    """Turn a value and the sums of differences from it into number, mean and spread."""
    shift, total, squares = np.moveaxis(results, -1, 0)
    with np.errstate(all="ignore"):  # infinite pixels have no spread; that of others may overflow
        total /= np.maximum(count, 1)
        fits = np.isfinite(squares) | ~np.isfinite(total)
        np.subtract(squares, count * total * total, out=squares, where=fits)
        total += np.where(np.equal(count, 0), 0, shift)
    shift[...] = count


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
