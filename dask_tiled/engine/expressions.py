"""Elementwise expressions of sources, and the steps that compute them.

An expression is a :class:`Source`, or a function applied to expressions, other arrays and values.
Once the dtypes of the other arrays are known, a :class:`Draft` turns it into steps of ufuncs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.limits import MOST_COUNTED
from dask_tiled.model.indexing import Array
from dask_tiled.reading.reader import Source

Scalar = np.generic | bool | int | float | complex

NUMBERS = "biufc"
"""Dtype kinds of expressions."""


class Cast:
    """Type conversion with ``casting="unsafe"``."""

    __name__ = "astype"

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype


class Select:
    """``numpy.where``, called like a ufunc."""

    __name__ = "where"

    def __call__(
        self, condition: npt.ArrayLike, these: npt.ArrayLike, others: npt.ArrayLike
    ) -> Array:
        """Return ``these`` where the condition is true, ``others`` elsewhere."""
        return np.where(condition, these, others)


class Register(NamedTuple):
    """Memory for one tile, and the dtype in which it is used."""

    number: int
    dtype: np.dtype


class Operand(NamedTuple):
    """An array of an expression that is no source; each task gets the chunk it needs."""

    number: int
    dtype: np.dtype


Operation = np.ufunc | Cast | Select
Pixels = Register | Operand
Input = Pixels | Scalar
"""Operand of a step: a scalar, the pixels of a register, or an array that is not a source."""


class Step(NamedTuple):
    """A call of a ufunc."""

    function: Operation
    operands: tuple[Input, ...]
    to: Register

    @property
    def registers(self) -> list[Register]:
        """Operands that are registers."""
        return [x for x in self.operands if isinstance(x, Register)]

    @property
    def is_exact_cast(self) -> bool:
        """Whether the step casts integers to a dtype that holds the same sum."""
        (operand, *_), dtype = self.operands, self.to.dtype
        if not isinstance(self.function, Cast) or not isinstance(operand, Register):
            return False
        whole = operand.dtype.kind in "biu" and dtype.kind in "iuf"
        few = dtype.kind != "f" or operand.dtype.itemsize <= MOST_COUNTED
        return whole and few and np.can_cast(operand.dtype, dtype)

    @property
    def factors(self) -> tuple[Register, Operand] | None:
        """The pixels and the array that a product multiplies; None for any other step."""
        if self.function is not np.multiply:
            return None
        for x, weights in (self.operands, self.operands[::-1]):
            if isinstance(x, Register) and isinstance(weights, Operand):
                return x, weights
        return None


T = TypeVar("T")


class Apply:
    """A function of chunks, applied to expressions, other arrays and values."""

    __slots__ = ("function", "kwargs", "operands")

    def __init__(
        self, function: Callable[..., Any], kwargs: Mapping[str, Any], operands: tuple[object, ...]
    ) -> None:
        self.function = function
        self.kwargs = kwargs
        self.operands = operands

    @property
    def inner(self) -> list[Expression]:
        """Operands that are expressions."""
        return [x for x in self.operands if isinstance(x, Expression)]


Expression = Apply | Source
"""Pixels of opened arrays, and elementwise computations on them."""


def nodes_of(expression: Expression) -> list[Expression]:
    """Return the nodes of an expression in topological order."""
    return [*in_order([expression], lambda x: x.inner if isinstance(x, Apply) else (), id)]


def in_order(
    roots: Iterable[T], inner: Callable[[T], Iterable[T]], key: Callable[[T], Hashable]
) -> Iterator[T]:
    """Yield all nodes below some roots, each after its ``inner`` nodes, at any depth.

    Nodes with equal keys come once.
    """
    done = set[Hashable]()
    stack = [*roots][::-1]
    while stack:
        node = stack[-1]
        waiting = []
        if key(node) not in done:
            waiting = [x for x in inner(node) if key(x) not in done]
        if waiting:
            stack += waiting[::-1]
            continue
        stack.pop()
        if key(node) not in done:
            done.add(key(node))
            yield node


def as_scalar(value: object) -> Scalar | None:
    """Return a Python or NumPy number; None for anything else."""
    if isinstance(value, np.ndarray) and not value.ndim and type(value) is np.ndarray:
        value = value[()]
    if isinstance(value, np.generic):
        return value if value.dtype.kind in NUMBERS else None
    exact = type(value) in (bool, int, float, complex)
    return value if exact and isinstance(value, (int, float, complex)) else None


OPERATORS = {
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"),
        *("lshift", "rshift", "lt", "le", "eq", "ne", "ge", "gt", "neg", "pos", "abs", "invert"),
    )
}


def astype(pixels: Array, astype_dtype: npt.DTypeLike) -> Array:
    """Cast a chunk."""
    return pixels.astype(astype_dtype)


def is_elementwise(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a chunk function is elementwise, and the engine may know its steps."""
    if function in MADE_OF:
        return kwargs.keys() <= {*MADE_OF[function].keywords}
    return not kwargs and (function in OPERATORS or isinstance(function, np.ufunc))


class Draft:
    """Steps of an expression, each of which has a register of its own, and so has each source.

    A function that returns None has no steps in the engine, or not one number per pixel.
    """

    def __init__(self) -> None:
        self.sources: dict[Register, Source] = {}
        self.steps: dict[Register, Step] = {}
        self._read: dict[str, Register] = {}

    def read(self, source: Source) -> Register:
        """Return the register of a source."""
        if source.token not in self._read:
            self._read[source.token] = self._register(source.dtype)
            self.sources[self._read[source.token]] = source
        return self._read[source.token]

    def add(self, function: Operation, operands: tuple[Input, ...], dtype: np.dtype) -> Register:
        """Append a step, and return its register."""
        to = self._register(dtype)
        self.steps[to] = Step(function, operands, to)
        return to

    def summand(self, register: Register) -> Register:
        """Return the register before casts that do not change sums of its pixels."""
        while register in self.steps and self.steps[register].is_exact_cast:
            (operand, *_) = self.steps[register].registers
            register = operand
        return register

    def apply(
        self, function: Callable[..., Any], kwargs: Mapping[str, Any], operands: Sequence[object]
    ) -> Pixels | None:
        """Append the steps of an elementwise function."""
        if isinstance(function, np.ufunc):
            return self.call(function, operands)
        if function in MADE_OF:
            made = MADE_OF[function]
            return (
                made.append(self, *operands, **kwargs) if len(operands) == made.operands else None
            )
        return self._call_operator(function, operands)

    def call(self, function: Operation, operands: Sequence[object]) -> Register | None:
        """Append a ufunc of pixels and scalars."""
        if isinstance(function, np.ufunc) and (
            function.nout != 1 or function.signature or function.nin != len(operands)
        ):
            return None
        converted = (x if isinstance(x, Pixels) else as_scalar(x) for x in operands)
        scalars = [x for x in converted if x is not None]
        if len(scalars) < len(operands):
            return None
        # NumPy decides the result dtype; its scalars count by dtype, Python's by kind.
        tried = [np.ones(1, x.dtype) if isinstance(x, Pixels) else x for x in scalars]
        try:
            with np.errstate(all="ignore"):
                dtype = function.dtype if isinstance(function, Cast) else function(*tried).dtype
        except (TypeError, ValueError, ArithmeticError):
            return None
        return self.add(function, tuple(scalars), dtype) if dtype.kind in NUMBERS else None

    def _call_operator(
        self,
        function: Callable[..., tuple[np.ufunc, tuple[object, ...]]],
        operands: Sequence[object],
    ) -> Register | None:
        """Append a Python operator, such as ``operator.add``, as NumPy applies it to arrays.

        NumPy chooses the ufunc by the operands: ``x ** 2`` becomes a square.
        """
        if any(not isinstance(x, Pixels) and as_scalar(x) is None for x in operands):
            return None
        shown = [
            np.ones(1, x.dtype).view(_Placeholder) if isinstance(x, Pixels) else x for x in operands
        ]
        operand_of = {id(placeholder): x for placeholder, x in zip(shown, operands, strict=True)}
        ufunc, inputs = function(*shown)
        return self.call(ufunc, [operand_of.get(id(x), x) for x in inputs])

    def _register(self, dtype: np.dtype) -> Register:
        return Register(len(self.sources) + len(self.steps), dtype)


class _Placeholder(np.ndarray):
    """Placeholder of pixels that reports the ufunc an operator calls."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **_: object
    ) -> tuple[np.ufunc, tuple[object, ...]]:
        return ufunc, inputs


def _converted(draft: Draft, pixels: Pixels, astype_dtype: npt.DTypeLike) -> Pixels | None:
    dtype = np.dtype(astype_dtype)
    return pixels if pixels.dtype == dtype else draft.call(Cast(dtype), [pixels])


def _rounded(draft: Draft, pixels: Pixels, decimals: int = 0) -> Pixels | None:
    is_whole = pixels.dtype.kind in "iu"
    if is_whole and decimals >= 0:
        return pixels
    known = is_whole or pixels.dtype.kind == "f"
    if not known or abs(decimals) > np.finfo(np.float64).precision:
        return None
    if not decimals:
        return draft.call(np.rint, [pixels])
    steps = [np.multiply, np.true_divide][:: 1 if decimals > 0 else -1]
    result: Pixels | None = pixels
    for ufunc in (steps[0], np.rint, steps[1]):
        result = result and draft.call(ufunc, [result, 10.0 ** abs(int(decimals))][: ufunc.nin])
    return result and _converted(draft, result, pixels.dtype)


def _finite(draft: Draft, pixels: Pixels) -> Pixels | None:
    if pixels.dtype.kind in "iu":
        return pixels
    if pixels.dtype.kind != "f":
        return None
    limits = np.finfo(pixels.dtype)
    numbers = _select(draft, draft.call(np.isnan, [pixels]), pixels.dtype.type(0), pixels)
    return _clip(draft, numbers, limits.min, limits.max)


def _select(draft: Draft, *operands: object) -> Register | None:
    return draft.call(Select(), operands)


def _clip(draft: Draft, pixels: Pixels | None, low: object, high: object) -> Pixels | None:
    found = pixels
    for ufunc, limit in ((np.maximum, low), (np.minimum, high)):
        found = found if limit is None or found is None else draft.call(ufunc, [found, limit])
    return found


class MadeOf(NamedTuple):
    """A function composed of ufuncs."""

    append: Callable[..., Pixels | None]
    """``append(draft, *operands, **keywords)`` appends its steps, and returns the last register;
    None leaves the function to dask. Any operand may be a number."""
    operands: int
    """Number of operands."""
    keywords: tuple[str, ...] = ()
    """Keywords that ``append`` takes; a call with others is left to dask."""


MADE_OF: dict[Callable[..., Any], MadeOf] = {
    astype: MadeOf(_converted, 1, ("astype_dtype",)),
    np.where: MadeOf(_select, 3),
    np.clip: MadeOf(_clip, 3),
    np.round: MadeOf(_rounded, 1, ("decimals",)),
    np.nan_to_num: MadeOf(_finite, 1),
}
"""Functions of chunks, as dask calls them."""
