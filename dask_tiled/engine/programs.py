"""Expressions as flat programs: a sequence of ufunc calls with few registers.

The order is that of Sethi and Ullman: the operand that needs the most registers comes first, so
that a sum needs two registers, in any order of its terms. Sources are read in turn, a few for each
stage of a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dask_tiled.engine.expressions import (
    Cast,
    Node,
    Operand,
    Operation,
    Scalar,
    UfuncCall,
    in_order,
)
from dask_tiled.reading.reader import Source

RESULT = -1
"""Register of the result."""
MOST_SOURCES = 4
"""Maximum number of sources read at once; a source that a later stage needs again is read again."""


class Register(NamedTuple):
    """Memory for one tile, and the dtype in which it is used."""

    number: int
    dtype: np.dtype


Input = Register | Operand | Scalar
"""Operand of a step: a scalar, the pixels of a register, or an array that is not a source."""


class Step(NamedTuple):
    """A call of a ufunc."""

    function: Operation
    operands: tuple[Input, ...]
    to: Register

    @property
    def factors(self) -> tuple[Register, Operand] | None:
        """The pixels and the array that a product multiplies; None for any other step."""
        if self.function is not np.multiply:
            return None
        for x, weights in (self.operands, self.operands[::-1]):
            if isinstance(x, Register) and isinstance(weights, Operand):
                return x, weights
        return None


class Stage(NamedTuple):
    """Consecutive steps, the sources they read and the registers they leave."""

    reads: dict[Register, int]
    """Index of a source, by the register that its tiles are read into."""
    steps: list[Step]
    kept: set[Register]
    """Registers that later stages use."""


class Program:
    """A compiled expression; it has no open handles, and pickles.

    It is a plain class, as dask does not traverse these.
    """

    __slots__ = ("sources", "stages", "width")

    def __init__(self, sources: tuple[Source, ...], stages: tuple[Stage, ...], width: int) -> None:
        self.sources = sources
        self.stages = stages
        self.width = width
        """Bytes of all registers per pixel."""

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the result."""
        return self.stages[-1].steps[-1].to.dtype

    @property
    def is_read(self) -> bool:
        """Whether the program only reads."""
        step = self.stages[-1].steps[-1]
        (operand, *_), is_cast = step.operands, isinstance(step.function, Cast)
        return is_cast and isinstance(operand, Register) and operand.dtype == step.to.dtype

    @property
    def read(self) -> Program:
        """The program that only reads the first source."""
        return compiled(self.sources[0])

    @property
    def only_step(self) -> Step | None:
        """The step applied to the pixels of a single source, if there is only one."""
        (stage, *more), (step, *further) = self.stages, self.stages[0].steps
        return None if more or further or len(stage.reads) > 1 else step


def compiled(root: Node) -> Program:
    """Compile an expression; common subexpressions are computed once."""
    if isinstance(root, Source):
        pixels, dtype = Register(0, root.dtype), root.dtype
        step = Step(Cast(dtype), (pixels,), Register(RESULT, dtype))
        return Program((root,), (Stage({pixels: 0}, [step], set()),), dtype.itemsize)
    roots: list[Node] = [root]
    needs: dict[int | str, int] = {}
    sources: dict[str, Source] = {}
    for node in in_order(roots, _nodes, _token):
        if isinstance(node, Source):
            sources[node.token] = node
        wanted = sorted((needs[x] for x in {*map(_token, _nodes(node))}), reverse=True)
        needs[node.token] = max((n + k for k, n in enumerate(wanted)), default=1)
    ordered = in_order(roots, lambda x: sorted(_nodes(x), key=lambda y: -needs[y.token]), _token)
    calls = [node for node in ordered if isinstance(node, UfuncCall)]
    numbers = {token: number for number, token in enumerate(sources)}
    last = {x.token: call for call in calls for x in call.nodes}
    pool, stages, where = _Pool(), list[Stage](), dict[int | str, Register]()
    blocks = any(source.layout.has_blocks for source in sources.values())
    most = 1 if blocks else MOST_SOURCES  # with blocks, tiles are whole chunks
    for some in _groups(calls, most):
        inside = {call.token for call in some}
        read = {x.token: x.dtype for call in some for x in call.nodes if isinstance(x, Source)}
        where.update({token: pool.take(dtype) for token, dtype in read.items()})
        stage = Stage({where[token]: numbers[token] for token in read}, [], set())
        for call in some:
            operands = [where[x.token] if isinstance(x, Node) else x for x in call.operands]
            gone = [x.token for x in call.nodes if x.token not in read and last[x.token] is call]
            pool.free += [where.pop(token) for token in dict.fromkeys(gone)]
            to = Register(RESULT, call.dtype) if call is root else pool.take(call.dtype)
            where[call.token] = to
            stage.steps.append(Step(call.function, tuple(operands), to))
            if call is not root and last[call.token].token not in inside:
                stage.kept.add(to)
        pool.free += [where.pop(token) for token in read]
        stages.append(stage)
    return Program(tuple(sources.values()), tuple(stages), pool.width)


def _nodes(node: Node) -> list[Node]:
    return node.nodes if isinstance(node, UfuncCall) else []


def _token(node: Node) -> int | str:
    return node.token


def _groups(calls: list[UfuncCall], most: int) -> Iterator[list[UfuncCall]]:
    """Group consecutive calls that read few sources."""
    some, read = list[UfuncCall](), set[str]()
    for call in calls:
        more = {x.token for x in call.nodes if isinstance(x, Source)}
        if some and len(read | more) > most:
            yield some
            some, read = [], set()
        some.append(call)
        read |= more
    yield some


class _Pool:
    """Pool of registers."""

    def __init__(self) -> None:
        self.free: list[Register] = []
        self.count = self.width = 0

    def take(self, dtype: np.dtype) -> Register:
        """Return a register: the last freed one of that dtype, or a new one."""
        for k in range(len(self.free) - 1, -1, -1):
            if self.free[k].dtype == dtype:
                return self.free.pop(k)
        self.count, self.width = self.count + 1, self.width + dtype.itemsize
        return Register(self.count - 1, dtype)
