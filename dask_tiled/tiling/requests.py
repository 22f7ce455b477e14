"""What consumers wish, and all else that chunks and tiles are negotiated from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from dask.utils import parse_bytes

from dask_tiled.errors import TilingError, check_whole
from dask_tiled.model.description import Description
from dask_tiled.tiling.bases import Base

By = Literal["tile", "frame", "chunk", "pixel"]

check_positive = partial(check_whole, least=1, error=TilingError)


@dataclass(frozen=True, slots=True)
class TilingRequest:
    """What a consumer wishes.

    Parameters
    ----------
    by : {"tile", "frame", "chunk", "pixel"}
        What it works on: parts of frames over several frames ("tile", the least demanding), whole
        frames ("frame"), everything a chunk holds at once ("chunk"), or all frames of a few
        detector pixels ("pixel", the only wish for which frames are cut into several chunks).
    depth : int, optional
        Frames in a tile: so many if they fit, and no more.
    nbytes : int, optional
        Bytes of a decoded tile; of a chunk for "chunk" and "pixel".

    Raises
    ------
    TilingError
        A number is not positive, or ``by`` is none of the four.
    """

    by: By = "tile"
    depth: int | None = None
    nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.by not in ("tile", "frame", "chunk", "pixel"):
            raise TilingError(
                "unknown kind of tiling", expected="tile, frame, chunk or pixel", found=self.by
            )
        for name in ("depth", "nbytes"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))

    def __str__(self) -> str:
        wishes = [f"depth {self.depth}"] * (self.depth is not None)
        wishes += [f"{self.nbytes} bytes"] * (self.nbytes is not None)
        return f"by {self.by}" + (f" ({', '.join(wishes)})" if wishes else "")


def parse_size(name: str, value: Any) -> int:
    """Read a number of bytes as dask's configuration has them."""
    try:
        size = int(parse_bytes(value))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise TilingError(f"{name} is no size", found=value) from error
    return check_positive(name, size)


def as_requests(requests: Any) -> tuple[TilingRequest, ...]:
    """Read one request or several; none stands for the usual tiles."""
    many = isinstance(requests, Iterable) and not isinstance(requests, str)
    wishes = tuple(requests) if many else (requests,)
    for wish in wishes:
        if not isinstance(wish, TilingRequest):
            raise TilingError("not a tiling request", expected="TilingRequest", found=repr(wish))
    return wishes or (TilingRequest(),)


@dataclass(slots=True)
class Question:
    """All that chunks and tiles are negotiated from, and the reasons that come up on the way.

    There is at least one wish; ``dtype`` is that of the pixels that consumers get, and ``bases``
    tell where each axis may be cut.
    """

    desc: Description
    wishes: tuple[TilingRequest, ...]
    dtype: np.dtype
    bases: tuple[Base, ...]
    reasons: list[tuple[str, str]] = field(default_factory=list)

    @property
    def kinds(self) -> set[By]:
        """What the consumers work on."""
        return {wish.by for wish in self.wishes}

    @property
    def nav_bases(self) -> tuple[Base, ...]:
        """Where the navigation axes may be cut."""
        return self.bases[: self.desc.nav_ndim]

    @property
    def sig_bases(self) -> tuple[Base, ...]:
        """Where the signal axes may be cut."""
        return self.bases[self.desc.nav_ndim :]

    def say(self, name: str, reason: str) -> None:
        """Write down what was decided, and why."""
        self.reasons.append((name, reason))
