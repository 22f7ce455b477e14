"""Elementwise expressions over sources, with shared parts.

An expression is a :class:`Source`, or a :class:`UfuncCall` of a ufunc on expressions and scalars.
Extending an expression takes constant time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

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


class Operand(NamedTuple):
    """An array of an expression that is no source; each task gets the chunk it needs."""

    number: int
    dtype: np.dtype


Operation = np.ufunc | Cast | Select
T = TypeVar("T")


class UfuncCall:
    """A ufunc applied to expressions and scalars, pixel by pixel."""

    __slots__ = ("dtype", "function", "operands")

    def __init__(
        self, function: Operation, operands: tuple[Node | Operand | Scalar, ...], dtype: np.dtype
    ) -> None:
        self.function = function
        self.operands = operands
        self.dtype = dtype

    @property
    def token(self) -> int:
        """Identity: expressions with equal dask names are one object."""
        return id(self)

    @property
    def nodes(self) -> list[Node]:
        """Operands that are expressions."""
        return [operand for operand in self.operands if isinstance(operand, (Source, UfuncCall))]


Node = Source | UfuncCall
Pixels = Node | Operand


def call(function: Operation, operands: Sequence[object]) -> UfuncCall | None:
    """Apply a ufunc to expressions and scalars; None unless it returns one number per pixel."""
    if isinstance(function, np.ufunc) and (
        function.nout != 1 or function.signature or function.nin != len(operands)
    ):
        return None
    found = (x if isinstance(x, Pixels) else as_scalar(x) for x in operands)
    scalars = [x for x in found if x is not None]
    if len(scalars) < len(operands):
        return None
    # NumPy decides the result dtype; its scalars count by dtype, Python's by kind.
    tried = [np.ones(1, x.dtype) if isinstance(x, Pixels) else x for x in scalars]
    try:
        with np.errstate(all="ignore"):
            dtype = function.dtype if isinstance(function, Cast) else function(*tried).dtype
    except (TypeError, ValueError, ArithmeticError):
        return None
    if dtype.kind not in NUMBERS:
        return None
    return UfuncCall(function, tuple(scalars), dtype)


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


class _Placeholder(np.ndarray):
    """Placeholder of an expression that reports the ufunc an operator calls."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **_: object
    ) -> tuple[np.ufunc, tuple[object, ...]]:
        return ufunc, inputs


def call_operator(
    function: Callable[..., tuple[np.ufunc, tuple[object, ...]]], operands: Sequence[object]
) -> UfuncCall | None:
    """Apply a Python operator, such as ``operator.add``, as NumPy applies it to arrays.

    NumPy chooses the ufunc by the operands: ``x ** 2`` becomes a square.
    """
    if any(not isinstance(x, Pixels) and as_scalar(x) is None for x in operands):
        return None
    shown = [
        np.ones(1, x.dtype).view(_Placeholder) if isinstance(x, Pixels) else x for x in operands
    ]
    found = {id(one): x for one, x in zip(shown, operands, strict=True)}
    ufunc, inputs = function(*shown)
    return call(ufunc, [found.get(id(x), x) for x in inputs])


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
    """Return whether a chunk function is elementwise."""
    if function is astype:
        return kwargs.keys() == {"astype_dtype"}
    if function is np.round:
        return kwargs.keys() <= {"decimals"}
    known = function in OPERATORS or function in MADE_OF
    return not kwargs and (known or isinstance(function, np.ufunc))


def node_of(
    function: Callable[..., Any], kwargs: Mapping[str, Any], operands: Sequence[object]
) -> Pixels | None:
    """Build the expression of an elementwise function; None if the engine has none."""
    if isinstance(function, np.ufunc):
        return call(function, operands)
    if function in MADE_OF:
        make, count = MADE_OF[function]
        return make(*operands, **kwargs) if len(operands) == count else None
    return call_operator(function, operands)


def _converted(pixels: Pixels, astype_dtype: npt.DTypeLike) -> Pixels | None:
    dtype = np.dtype(astype_dtype)
    return pixels if pixels.dtype == dtype else call(Cast(dtype), [pixels])


def _rounded(pixels: Pixels, decimals: int = 0) -> Pixels | None:
    is_whole = pixels.dtype.kind in "iu"
    if is_whole and decimals >= 0:
        return pixels
    known = is_whole or pixels.dtype.kind == "f"
    if not known or abs(decimals) > np.finfo(np.float64).precision:
        return None
    if not decimals:
        return call(np.rint, [pixels])
    steps = [np.multiply, np.true_divide][:: 1 if decimals > 0 else -1]
    found: Pixels | None = pixels
    for ufunc in (steps[0], np.rint, steps[1]):
        found = found and call(ufunc, [found, 10.0 ** abs(int(decimals))][: ufunc.nin])
    return found and _converted(found, pixels.dtype)


def _finite(pixels: Pixels) -> Pixels | None:
    if pixels.dtype.kind in "iu":
        return pixels
    if pixels.dtype.kind != "f":
        return None
    limits = np.finfo(pixels.dtype)
    numbers = _select(call(np.isnan, [pixels]), pixels.dtype.type(0), pixels)
    return _clip(numbers, limits.min, limits.max)


def _select(*operands: object) -> UfuncCall | None:
    return call(Select(), operands)


def _clip(pixels: Pixels | None, low: object, high: object) -> Pixels | None:
    found = pixels
    for ufunc, limit in ((np.maximum, low), (np.minimum, high)):
        found = found if limit is None or found is None else call(ufunc, [found, limit])
    return found


MADE_OF: dict[Callable[..., Any], tuple[Callable[..., Pixels | None], int]] = {
    astype: (_converted, 1),
    np.where: (_select, 3),
    np.clip: (_clip, 3),
    np.round: (_rounded, 1),
    np.nan_to_num: (_finite, 1),
}
"""Functions composed of ufuncs: how to build them, and their number of operands."""
