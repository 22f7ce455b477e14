"""Where an export goes: to a path, where it is visible only when complete, or into a zarr store."""

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
    """Claim a place, yield what is to be filled there, and show the last of that in the end.

    Parameters
    ----------
    store : path-like or zarr store
    attempts : sequence of str
        What is made of the same in the same way has the same names, and goes on with what one that
        was stopped has left. Stores have room for one.
    reads : callable
        Whether what will be stored may be read from a zarr store.
    overwrite : bool
        Replace a node of zarr.
    resume : bool
        Go on with what is left of the same attempts. What is left of others is removed.

    Raises
    ------
    DatasetError
        Something else is there, or a node that may not be replaced; somebody else has claimed it;
        or it cannot be written.
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
