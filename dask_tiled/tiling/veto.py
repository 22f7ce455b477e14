"""A format's last word on tiling, and the checks that whatever it says has to pass."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from dask_tiled.errors import TilingError
from dask_tiled.model.decoders import function_at
from dask_tiled.tiling.division import Base
from dask_tiled.tiling.requests import Question


def adjusted(
    q: Question, kind: str, proposal: tuple[int, ...], whole: Sequence[int], bases: Sequence[Base]
) -> tuple[int, ...]:
    """Ask the format whether it likes a shape.

    :class:`~dask_tiled.Description` tells how a format names its function, and how it is called.

    Parameters
    ----------
    q : Question
    kind : {"chunk", "tile"}
        A chunk has the axes of the array; a tile has one axis of frames, and the signal axes.
    proposal : tuple of int
        The shape that was negotiated.
    whole : sequence of int
        What it is a part of: the array, or a chunk.
    bases : sequence of Base
        Where each of these axes may be cut.

    Returns
    -------
    tuple of int

    Raises
    ------
    TilingError
        The function does not exist; or the format refuses the shape, or gives one that is not
        positive, larger than ``whole``, no whole number of blocks, cuts what must stay whole, or
        has more pixels than the proposal and a block both have.
    """
    name = q.desc.adjust_tiling
    if not name:
        return proposal
    try:
        answer = _function(name)(q.desc, kind, proposal)
    except TilingError as error:
        raise _error(q, f"refuses the {kind} {proposal}: {error.problem}", error.hint) from error
    shape = _checked(q, kind, answer, proposal, whole, bases)
    if shape != proposal:
        q.say(kind, f"{shape}: the format {q.desc.format} prefers it to {proposal}")
    return shape


def _function(name: str) -> Any:
    try:
        return function_at(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TilingError(f"{name} is no function", hint=str(error)) from error


def _error(q: Question, problem: str, hint: str | None = None) -> TilingError:
    text = f"the format {q.desc.format} {problem}"
    return TilingError(text, path=q.desc.files[0].path, where=q.desc.adjust_tiling, hint=hint)


def _checked(
    q: Question,
    kind: str,
    answer: Any,
    proposal: tuple[int, ...],
    whole: Sequence[int],
    bases: Sequence[Base],
) -> tuple[int, ...]:
    try:
        shape = tuple(map(operator.index, answer))
    except TypeError as error:
        raise _error(q, f"gives a {kind} {answer!r}, which is no shape") from error
    given = f"gives a {kind} {shape} instead of {proposal}"
    if len(shape) != len(whole) or any(not 0 < n <= m for n, m in zip(shape, whole, strict=False)):
        raise _error(q, f"{given}: it is no part of {tuple(whole)}")
    if any(n % b.size and n < m for n, m, b in zip(shape, whole, bases, strict=True)):
        blocks = tuple(base.size for base in bases)
        raise _error(q, f"{given}: it is incompatible with blocks of {blocks}")
    block = math.prod(min(n, base.size) for n, base in zip(whole, bases, strict=True))
    if math.prod(shape) > max(math.prod(proposal), block):
        raise _error(q, f"{given}: it is larger")
    _check_wishes(q, kind, given, (shape, proposal, tuple(whole)))
    return shape


def _check_wishes(q: Question, kind: str, given: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Make sure that the consumers get what they were promised."""
    shape, proposal, whole = shapes
    first = len(shape) - len(q.desc.sig_shape)
    for axis, places in enumerate(q.avoid, first):
        if places and shape[axis] not in {proposal[axis], whole[axis]}:
            raise _error(q, f"{given}: excluded pixels may lie at its borders")
    frames_whole = shape[first:] == whole[first:]
    if kind == "tile":
        kept = {"chunk": shape == proposal, "frame": frames_whole}
        deepest = min((w.depth for w in q.wishes if w.depth), default=shape[0])
        if shape[0] > max(deepest, proposal[0]):
            raise _error(q, f"{given}: it is deeper than a consumer wants")
    else:
        kept = {} if q.kinds == {"pixel"} else dict.fromkeys(q.kinds, frames_whole)
    for wanted in sorted(q.kinds):
        if not kept.get(wanted, True):
            raise _error(q, f"{given}: a consumer wants more of it whole, by {wanted}")
