"""Expressions as flat programs: a sequence of ufunc calls with few registers.

The order is that of Sethi and Ullman: the operand that needs the most registers comes first, so
that a sum needs two registers, in any order of its terms. Sources are read in turn, a few for each
stage of a program.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.engine.expressions import Cast, Draft, Register, Step, in_order
from dask_tiled.engine.limits import MOST_SOURCES
from dask_tiled.reading.reader import Source

RESULT = -1
"""Register of the result."""


class Stage(NamedTuple):
    """Consecutive steps, the sources they read and the registers they leave."""

    reads: dict[Register, int]
    """Index of a source, by the register that its tiles are read into."""
    steps: list[Step]
    kept: set[Register]
    """Registers that later stages use."""

    @property
    def key(self) -> Hashable:
        """Key: stages with equal keys have the same steps."""
        steps = []
        for function, operands, to in self.steps:
            called = (
                function if isinstance(function, np.ufunc) else getattr(function, "dtype", None)
            )
            # 1 equals True and 1.0, and registers equal operands of expressions.
            given = [(type(x), x if isinstance(x, tuple) else repr(x)) for x in operands]
            steps.append((type(function), called, to, *given))
        return tuple(steps), tuple(self.reads.items()), frozenset(self.kept)


class Program:
    """A compiled expression; it has no open handles, and pickles.

    It is a plain class, as dask does not traverse these.
    """

    __slots__ = ("_key", "sources", "stages", "width")

    def __init__(self, sources: tuple[Source, ...], stages: tuple[Stage, ...], width: int) -> None:
        self.sources = sources
        self.stages = stages
        self.width = width
        """Bytes of all registers per pixel."""
        self._key: Hashable = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the key, which takes less to make than to send."""
        return Program, (self.sources, self.stages, self.width)

    @property
    def key(self) -> Hashable:
        """Key: programs with equal keys have the same steps, whatever their sources."""
        if self._key is None:
            self._key = tuple(stage.key for stage in self.stages)
        return self._key

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
        return read_only(self.sources[0])

    @property
    def only_step(self) -> Step | None:
        """The step applied to the pixels of a single source, if there is only one."""
        (stage, *more), (step, *further) = self.stages, self.stages[0].steps
        return None if more or further or len(stage.reads) > 1 else step


def read_only(source: Source) -> Program:
    """Return the program that reads a source."""
    pixels, dtype = Register(0, source.dtype), source.dtype
    step = Step(Cast(dtype), (pixels,), Register(RESULT, dtype))
    return Program((source,), (Stage({pixels: 0}, [step], set()),), dtype.itemsize)


def compiled(draft: Draft, root: Register) -> Program:
    """Order the steps that a register of a draft needs, and let them share registers."""
    if root in draft.sources:
        return read_only(draft.sources[root])

    def inner(x: Register) -> list[Register]:
        return draft.steps[x].registers if x in draft.steps else []

    needs: dict[Register, int] = {}
    for x in in_order([root], inner, _itself):
        wanted = sorted((needs[y] for y in {*inner(x)}), reverse=True)
        needs[x] = max((n + k for k, n in enumerate(wanted)), default=1)
    numbers = {x: k for k, x in enumerate(x for x in needs if x in draft.sources)}
    ordered = in_order([root], lambda x: sorted(inner(x), key=lambda y: -needs[y]), _itself)
    steps = [draft.steps[x] for x in ordered if x in draft.steps]
    last = {x: step.to for step in steps for x in step.registers}
    pool, stages, where = _Pool(), list[Stage](), dict[Register, Register]()
    sources = tuple(draft.sources[x] for x in numbers)
    blocks = any(source.layout.has_blocks for source in sources)
    most = 1 if blocks else MOST_SOURCES  # with blocks, tiles are whole chunks
    for group in _groups(steps, numbers, most):
        inside = {step.to for step in group}
        read = dict.fromkeys(x for step in group for x in step.registers if x in numbers)
        where.update({x: pool.take(x.dtype) for x in read})
        stage = Stage({where[x]: numbers[x] for x in read}, [], set())
        for step in group:
            operands = [where[x] if isinstance(x, Register) else x for x in step.operands]
            gone = [x for x in step.registers if x not in read and last[x] == step.to]
            pool.free += [where.pop(x) for x in dict.fromkeys(gone)]
            dtype = step.to.dtype
            to = Register(RESULT, dtype) if step.to == root else pool.take(dtype)
            where[step.to] = to
            stage.steps.append(Step(step.function, tuple(operands), to))
            if step.to != root and last[step.to] not in inside:
                stage.kept.add(to)
        pool.free += [where.pop(x) for x in read]
        stages.append(stage)
    return Program(sources, tuple(stages), pool.width)


def _itself(register: Register) -> Register:
    return register


def _groups(steps: list[Step], sources: Collection[Register], most: int) -> Iterator[list[Step]]:
    """Group consecutive steps that read few sources."""
    group, read = list[Step](), set[Register]()
    for step in steps:
        more = {x for x in step.registers if x in sources}
        if group and len(read | more) > most:
            yield group
            group, read = [], set()
        group.append(step)
        read |= more
    yield group


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
