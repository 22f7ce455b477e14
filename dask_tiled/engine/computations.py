"""What is done with the pixels of a chunk, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.programs import Program
from dask_tiled.engine.reductions import Reduction
from dask_tiled.engine.vectors import Vectors

Array = npt.NDArray[Any]


class Weighting(NamedTuple):
    """Sums of the pixels of each frame times weights."""

    weights: Array
    """Any axes, which the results have at the end, then the signal axes of the chunk."""
    dtype: np.dtype
    """Of a product, as NumPy has it. Sums of products are made and given in 8 bytes."""


@dataclass(frozen=True, eq=False)
class Computation:
    """A program for a chunk, and what happens to the pixels that it makes."""

    program: Program
    operands: Sequence[Array]
    """Those of the program, cut to the chunk: with all axes, of length 1 where they have none."""
    shape: tuple[int, ...]
    """Of the chunk, whose axes may be split."""
    axes_of: tuple[int, ...]
    """Which axis of the sources each of them is, or is a part of."""
    nav_ndim: int
    """How many of them are navigation axes."""
    end: Reduction | Weighting | None = None
    """None leaves pixels as they are."""
    out: Array | None = None
    """Memory for pixels that are left as they are, C-contiguous."""

    @property
    def dtype(self) -> np.dtype:
        """Type of the results."""
        wanted = None if self.end is None else self.end.dtype
        return self.program.dtype if wanted is None else wanted

    @property
    def reduction(self) -> Reduction | None:
        """The reduction in the end, if it is one."""
        return self.end if isinstance(self.end, Reduction) else None

    def vectors(self, depth: int = 0) -> Vectors:
        """Prepare to work in vectors; with room for the last ``depth`` frames only, if given."""
        reduction = self.reduction
        gone = () if reduction is None else reduction.axes
        in_order = reduction is not None and reduction.row.finds_place
        shape = self.shape, self.nav_ndim, depth
        return Vectors(self.program, self.operands, gone, *shape, self.out, in_order=in_order)
