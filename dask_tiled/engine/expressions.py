"""Elementwise expressions over sources, with shared parts.

An expression is a :class:`Source`, or a :class:`Call` of a ufunc on expressions and scalars.
Extending an expression takes constant time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

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


class Call:
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
        return [operand for operand in self.operands if isinstance(operand, (Source, Call))]


Node = Source | Call
Pixels = Node | Operand


def call(function: Operation, operands: Sequence[object]) -> Call | None:
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
    return Call(function, tuple(scalars), dtype)


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


class _Shown(np.ndarray):
    """Placeholder of an expression that reports the ufunc an operator calls."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **_: object
    ) -> tuple[np.ufunc, tuple[object, ...]]:
        return ufunc, inputs


def call_operator(
    function: Callable[..., tuple[np.ufunc, tuple[object, ...]]], operands: Sequence[object]
) -> Call | None:
    """Apply a Python operator, such as ``operator.add``, as NumPy applies it to arrays.

    NumPy chooses the ufunc by the operands: ``x ** 2`` becomes a square.
    """
    if any(not isinstance(x, Pixels) and as_scalar(x) is None for x in operands):
        return None
    shown = [np.ones(1, x.dtype).view(_Shown) if isinstance(x, Pixels) else x for x in operands]
    found = {id(one): x for one, x in zip(shown, operands, strict=True)}
    ufunc, inputs = function(*shown)
    return call(ufunc, [found.get(id(x), x) for x in inputs])
