"""Begin an export: to a path, which appears when complete, or to a zarr store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from dask_tiled.storing.folders import begin_beside, check_free, local_path
from dask_tiled.storing.object_stores import begin_in_store
from dask_tiled.storing.places import Place


@contextmanager
def begin(
    store: Any,
    attempts: Sequence[str],
    reads: Callable[[Any], bool],
    *,
    overwrite: bool,
    resume: bool,
) -> Iterator[Sequence[Place]]:
    """Claim a path or a store, yield a place for each attempt, and publish the last one.

    Parameters
    ----------
    store : path-like or zarr store
    attempts : sequence of str
        Keys: exports with equal keys may resume each other. Stores hold only the last one.
    reads : callable
        Predicate: whether the exported array may read a zarr store.
    overwrite : bool
        Replace a zarr node.
    resume : bool
        Continue stopped exports of the same attempts; remove others.

    Raises
    ------
    DatasetError
        The path exists and may not be replaced; another export has claimed
        it; or the path cannot be written.
    """
    path = local_path(store)
    if path is None:
        options = {"overwrite": overwrite, "resume": resume}
        with begin_in_store(store, attempts[-1], reads, **options) as place:
            yield [place]
    else:
        check = partial(check_free, overwrite=overwrite)
        with begin_beside(path, attempts, check, resume=resume) as places:
            yield places
