"""Elementwise expressions over sources, as values that share their parts.

An expression is a :class:`Source` or a :class:`Call` of a ufunc on others and on scalars. Making a
larger one of it takes the same time however large it is.
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
"""Kinds of dtypes that expressions have."""


class Cast:
    """What changes the type of pixels, called like a ufunc."""

    __name__ = "astype"

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype

    def __call__(self, pixels: npt.ArrayLike) -> Array:
        """Convert pixels, in whatever way the types allow."""
        return np.asarray(pixels).astype(self.dtype)


class Select:
    """What takes pixels of one array or another, called like a ufunc."""

    __name__ = "where"

    def __call__(
        self, condition: npt.ArrayLike, these: npt.ArrayLike, others: npt.ArrayLike
    ) -> Array:
        """Take these pixels where the condition is true, and the others elsewhere."""
        return np.where(condition, these, others)


class Operand(NamedTuple):
    """An array that an expression works on beside its sources; chunks of it come with each task."""

    number: int
    dtype: np.dtype


Operation = np.ufunc | Cast | Select
T = TypeVar("T")


class Call:
    """What a ufunc makes of other expressions and of scalars, pixel by pixel."""

    __slots__ = ("dtype", "function", "operands")

    def __init__(
        self,
        function: Operation,
        operands: tuple[Node | Operand | Scalar, ...],
        dtype: np.dtype,
    ) -> None:
        self.function = function
        self.operands = operands
        self.dtype = dtype

    @property
    def token(self) -> int:
        """What tells it from every other one: those that dask names alike are one."""
        return id(self)

    @property
    def nodes(self) -> list[Node]:
        """The operands that are no scalars."""
        return [operand for operand in self.operands if isinstance(operand, (Source, Call))]


Node = Source | Call
Pixels = Node | Operand


def call(function: Operation, operands: Sequence[object]) -> Call | None:
    """Apply a ufunc to expressions and scalars; None where no number comes out for each pixel."""
    if isinstance(function, np.ufunc) and (
        function.nout != 1 or function.signature or function.nin != len(operands)
    ):
        return None
    found = (x if isinstance(x, Pixels) else as_scalar(x) for x in operands)
    scalars = [x for x in found if x is not None]
    if len(scalars) < len(operands):
        return None
    # numpy says best which type comes out; scalars count by their type, Python's by their kind.
    tried = [np.ones(1, x.dtype) if isinstance(x, Pixels) else x for x in scalars]
    try:
        with np.errstate(all="ignore"):
            dtype = function(*tried).dtype
    except (TypeError, ValueError, ArithmeticError):
        return None
    if dtype.kind not in NUMBERS:
        return None
    return Call(function, tuple(scalars), dtype)


def in_order(
    roots: Iterable[T], inner: Callable[[T], Iterable[T]], key: Callable[[T], Hashable]
) -> Iterator[T]:
    """Yield all that roots are made of, each after its ``inner`` ones; of any depth.

    What has the same key comes once.
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
    """Return a number as Python or numpy has it, or None if it is none."""
    if isinstance(value, np.ndarray) and not value.ndim and type(value) is np.ndarray:
        value = value[()]
    if isinstance(value, np.generic):
        return value if value.dtype.kind in NUMBERS else None
    exact = type(value) in (bool, int, float, complex)
    return value if exact and isinstance(value, (int, float, complex)) else None


class _Shown(np.ndarray):
    """Stands for an expression where numpy is asked what an operator does."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **_: object
    ) -> tuple[np.ufunc, tuple[object, ...]]:
        return ufunc, inputs


def call_operator(
    function: Callable[..., tuple[np.ufunc, tuple[object, ...]]], operands: Sequence[object]
) -> Call | None:
    """Apply an operator of Python, such as ``operator.add``, as numpy applies it to arrays.

    numpy chooses the ufunc by the operands: ``x ** 2`` is a square, for one.
    """
    if any(not isinstance(x, Pixels) and as_scalar(x) is None for x in operands):
        return None
    shown = [np.ones(1, x.dtype).view(_Shown) if isinstance(x, Pixels) else x for x in operands]
    found = {id(one): x for one, x in zip(shown, operands, strict=True)}
    ufunc, inputs = function(*shown)
    return call(ufunc, [found.get(id(x), x) for x in inputs])
