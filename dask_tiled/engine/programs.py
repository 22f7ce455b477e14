"""Expressions as flat programs: which ufuncs to call one after the other, with few registers.

The order is that of Sethi and Ullman: of several operands, the one that needs the most registers
comes first, so that a sum takes two of them in whatever order it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.engine.expressions import Call, Function, Node
from dask_tiled.reading.reader import Source

RESULT = -1
"""The register in which the result is wanted."""
MOST_REGISTERS = 8
"""Beyond these, sources are read again where they are used again, instead of kept."""


class Register(NamedTuple):
    """Memory for one tile, and the type in which it is used."""

    number: int
    dtype: np.dtype


class Read(NamedTuple):
    """Read a tile of a source into a register."""

    source: int
    to: Register


class Step(NamedTuple):
    """Call a ufunc on registers and scalars."""

    function: Function
    operands: tuple[Any, ...]
    to: Register


class Program:
    """What computes an expression. It has no open handles, and pickles.

    It is a plain class, so that dask passes it on as one value and does not look inside.
    """

    __slots__ = ("sources", "steps", "width")

    def __init__(
        self, sources: tuple[Source, ...], steps: tuple[Read | Step, ...], width: int
    ) -> None:
        self.sources = sources
        self.steps = steps
        self.width = width

    @property
    def dtype(self) -> np.dtype:
        """Type of the result."""
        return self.steps[-1].to.dtype


def compiled(root: Node) -> Program:
    """Make the program of an expression. What occurs in it several times is computed once."""
    if isinstance(root, Source):
        return Program((root,), (Read(0, Register(RESULT, root.dtype)),), root.dtype.itemsize)
    needs: dict[str, int] = {}
    for node in _postorder(root, lambda call: call.nodes):
        wanted = {x.token: needs[x.token] for x in node.nodes} if isinstance(node, Call) else {}
        inner = sorted(wanted.values(), reverse=True)
        needs[node.token] = max((n + k for k, n in enumerate(inner)), default=1)
    ordered = _postorder(root, lambda call: sorted(call.nodes, key=lambda x: -needs[x.token]))
    calls = [node for node in ordered if isinstance(node, Call)]
    registers = _Registers(calls)
    for node in calls:
        registers.call(node)
    return Program(tuple(registers.sources.values()), tuple(registers.steps), sum(registers.widths))


def _postorder(root: Call, operands: Callable[[Call], list[Node]]) -> Iterator[Node]:
    """Give all nodes, each after its operands; equal ones once. It may be nested to any depth."""
    done: set[str] = set()
    stack: list[Node] = [root]
    while stack:
        node = stack[-1]
        inner = operands(node) if isinstance(node, Call) else []
        waiting = next((x for x in inner if x.token not in done), None)
        if waiting is not None:
            stack.append(waiting)
            continue
        stack.pop()
        done.add(node.token)
        yield node


class _Registers:
    """Gives registers to the values of calls, which come in the order in which they are made."""

    def __init__(self, calls: list[Call]) -> None:
        self.sources: dict[str, Source] = {}
        self.steps: list[Read | Step] = []
        self.widths: list[int] = []
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._where: dict[str, Register] = {}
        self._last = calls[-1]
        self._uses: dict[str, list[int]] = {}  # the next one at the end
        for number in range(len(calls) - 1, -1, -1):
            for token in {x.token for x in calls[number].nodes}:
                self._uses.setdefault(token, []).append(number)

    def call(self, call: Call) -> None:
        """Make the steps of a call, the operands of which that are no sources are there."""
        tokens = {x.token for x in call.nodes}
        for node in call.nodes:
            if isinstance(node, Source) and node.token not in self._where:
                self.sources.setdefault(node.token, node)
                self._numbers.setdefault(node.token, len(self._numbers))
                to = self._where[node.token] = self._take(node.dtype, tokens)
                self.steps.append(Read(self._numbers[node.token], to))
        operands = tuple(
            self._where[x.token] if isinstance(x, (Source, Call)) else x for x in call.operands
        )
        for token in tokens:
            self._uses[token].pop()
        gone = [self._where[token] for token in sorted(tokens) if not self._uses[token]]
        if call is self._last:
            to = Register(RESULT, call.dtype)
        else:
            same = (register for register in gone if register.dtype == call.dtype)
            to = next(same, None) or self._take(call.dtype, tokens)
        self.steps.append(Step(call.function, operands, to))
        for token in tokens:
            if not self._uses[token]:
                del self._where[token]
        self._free += [register.number for register in gone if register.number != to.number]
        self._where[call.token] = to

    def _take(self, dtype: np.dtype, wanted: set[str]) -> Register:
        """Find a register: a free one, a new one, or that of the source that is used again last."""
        if not self._free and len(self.widths) >= MOST_REGISTERS:
            kept = [t for t in self._where if t in self.sources and t not in wanted]
            if kept:
                token = max(kept, key=lambda t: self._uses[t][-1])
                self._free.append(self._where.pop(token).number)
        if not self._free:
            self._free.append(len(self.widths))
            self.widths.append(0)
        number = self._free.pop()
        self.widths[number] = max(self.widths[number], dtype.itemsize)
        return Register(number, dtype)
