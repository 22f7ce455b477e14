"""Results computed during an export, and stored with the array."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.group import DATA, as_a_folder, names_an_array
from dask_tiled.export.zarr.levels import Level
from dask_tiled.graphs.one_pass import why_apart
from dask_tiled.model.indexing import Array
from dask_tiled.opened.inputs import as_array
from dask_tiled.opened.spec import Given


class LateResult(NamedTuple):
    """A result before it is computed."""

    name: str
    given: Given
    apart: str = ""
    """Reason to compute the result separately; empty if it is computed from the written tiles."""

    def moved(self, why: str) -> LateResult:
        """Return the result as one computed separately, unless it has a reason already."""
        return self if self.apart else self._replace(apart=why)


def arrays_of(given: Any) -> dict[str, da.Array]:
    """Check ``with_results``, and return arrays by name.

    Raise a DatasetError if it is not a mapping of names to arrays.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        expected = "a mapping of names to arrays"
        raise DatasetError("invalid with_results", expected=expected, found=type(given).__name__)
    return {name: as_array(one) for name, one in given.items()}


def results_of(arrays: Mapping[str, da.Array], arr: da.Array) -> tuple[LateResult, ...]:
    """Decide which results are computed from the tiles that are written."""
    return tuple(
        LateResult(name, Given.of(one), why_apart(one, arr)) for name, one in arrays.items()
    )


def check_names(results: Sequence[LateResult], others: Sequence[str]) -> None:
    """Check that the names of results are valid, and unused in the group.

    Raise a DatasetError if a name is invalid, or used in the group.
    """
    names = Counter(map(as_a_folder, {DATA, *others, *(one.name for one in results)}))
    for one in results:
        if not names_an_array(one.name, others) or names[as_a_folder(one.name)] > 1:
            raise DatasetError(
                "invalid name of a result",
                expected="a file name that is not used in the group (case is ignored)",
                found=repr(one.name),
            )


def computed(result: LateResult, pixels: Any) -> Array:
    """Check a computed result against the shape and dtype of its dask array.

    Raise a DatasetError if the shape differs, or the dtype cannot be cast safely.
    """
    found, told = np.asarray(pixels), result.given
    if found.shape != told.shape or not np.can_cast(found.dtype, told.dtype, "safe"):
        raise DatasetError(
            f"the result {result.name} differs from its dask array",
            expected=f"{told.dtype} of shape {told.shape}",
            found=f"{found.dtype} of shape {found.shape}",
            hint="Pass dask the chunks and the dtype that the function returns.",
        )
    return found


def encoded(level: Level, pixels: Array) -> Iterator[tuple[str, bytes]]:
    """Yield the keys and encoded chunks of a result."""
    encoder = level.encoder
    memory = np.empty(encoder.room, np.uint8)
    for key, region in encoder.keys(tuple((0, n) for n in encoder.shape)):
        part = np.asarray(pixels[region], encoder.dtype)
        yield level.prefix + key, bytes(encoder.encode([((0,) * part.ndim, part)], memory))
