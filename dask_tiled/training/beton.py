"""Export to FFCV sample files: whole samples into pages, visible only when complete."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.array.doors import arrays_by_name
from dask_tiled.blocks.bars import progress_bar
from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.formats.beton.descriptor import sniff
from dask_tiled.formats.beton.structure import (
    FIELD_BYTES,
    HEADER_BYTES,
    LEAST_PAGE,
    is_page_size,
)
from dask_tiled.model.files import read_head
from dask_tiled.model.indexing import Index
from dask_tiled.model.paths import with_room
from dask_tiled.storing.new_files import file_path, new_file
from dask_tiled.tiling import machine
from dask_tiled.training.fields import Column, Field, field_of, kind_of
from dask_tiled.training.pages import PageWriter
from dask_tiled.training.sources import Batch, array_batches, dataset_batches

HEAD_BYTES = HEADER_BYTES + FIELD_BYTES
"""What sample files are known by."""


def to_beton(
    path: str | os.PathLike[str],
    fields: Any,
    types: Mapping[str, Any] | None = None,
    *,
    page_size: int = 1 << 23,
    workers: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    indices: npt.ArrayLike | None = None,
    executor: Executor | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> None:
    """Write samples to a file of FFCV, format 2.

    Samples are made by several threads, and written in one order: the same samples give the same
    file, as FFCV writes it with one worker. Memory holds a page for each worker, and one chunk.

    Parameters
    ----------
    path : path-like
        Where to. The file is written beside it, below ``path + ".part"``, and moved there when it
        is complete.
    fields : mapping of str to array, Dataset of xarray, or data set
        Arrays of one length, of dask, of xarray or in memory, the first axis of which counts
        samples; or anything with ``len()`` whose items, by number, are samples: tuples of values in
        the order of the types, or mappings from names to values. :class:`TarSamples` is one.
    types : mapping of str to type
        What fields hold: ``"int"``, ``"float"``, ``"bytes"``, ``"json"`` for what JSON can say,
        ``"image"`` or an :class:`ImageField`, or ``(dtype, shape)`` for arrays. By default what
        suits the arrays; a data set needs it.
    page_size : int
        Bytes of a page, a power of two from 2 MiB on; no sample may be larger.
    workers : int, optional
        So many threads make samples; by default one for each processor.
    shuffle : bool
        Bring the samples in an order by chance. Those of arrays are read as they lie, and stay so
        in the pages; only their numbers change.
    seed : int
        For what is done by chance.
    indices : sequence of int, optional
        Which samples are written, in which order; by default all.
    executor : concurrent.futures.Executor, optional
        What makes samples instead of threads: processes, for data sets that hold up threads.
    overwrite : bool
        Replace a sample file that is there.
    progress : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.

    Raises
    ------
    DatasetError
        The arguments do not suit one another, a sample cannot be made or written, which the error
        names, or something else is there already. No file is left.
    """
    target = file_path(path)
    fields = arrays_by_name(fields)
    if not is_page_size(check_whole("page_size", page_size)):
        expected = f"a power of two from {LEAST_PAGE} on"
        raise DatasetError("no size of pages", path=target, expected=expected, found=page_size)
    seed = check_whole("seed", seed, least=0)
    known = _fields(fields, types, seed)
    order = _order(_count(fields), indices, seed if shuffle else None)
    threads = machine.processors() if workers is None else check_whole("workers", workers, least=1)
    with _replacing(target, overwrite=overwrite) as file:
        writer = PageWriter(target, file, known, order, page_size)
        if isinstance(fields, Mapping):
            batches = array_batches(fields, known, order, page_size // 2)
        else:
            batches = dataset_batches(fields, known, order, writer.mean, page_size // 2)
        pool = executor or ThreadPoolExecutor(threads, thread_name_prefix="dask-tiled")
        try:
            _write(writer, batches, pool, threads, show=progress)
        finally:
            if executor is None:
                # Nobody waits for what is being made, and is not wanted any more.
                pool.shutdown(wait=False, cancel_futures=True)
        writer.finish()


def _count(fields: Any) -> int:
    """Count samples."""
    if not isinstance(fields, Mapping):
        return len(fields)
    lengths = {name: arr.shape[0] for name, arr in fields.items()}
    if len(set(lengths.values())) != 1:
        raise DatasetError("the arrays are not of one length", found=lengths)
    return int(next(iter(lengths.values())))


def _fields(fields: Any, types: Mapping[str, Any] | None, seed: int) -> list[Field]:
    if not isinstance(types, Mapping | None):
        raise DatasetError("no types of fields", expected="a mapping", found=repr(types))
    kinds = dict(types or {})
    if isinstance(fields, Mapping):
        for name, arr in fields.items():
            if not isinstance(arr, (np.ndarray, da.Array)) or not arr.ndim:
                raise DatasetError(
                    "no array of samples", where=f"field {name!r}", found=type(arr).__name__
                )
        unknown = sorted(set(kinds) - set(fields))
        if unknown:
            raise DatasetError("a type for no field", expected=", ".join(fields), found=unknown[0])
        kinds = {
            name: kind_of(arr) if kinds.get(name) is None else kinds[name]
            for name, arr in fields.items()
        }
    elif not hasattr(fields, "__len__") or not hasattr(fields, "__getitem__"):
        expected = "arrays by name, or a data set that has a length and items"
        raise DatasetError("no samples", expected=expected, found=type(fields).__name__)
    if not kinds:
        raise DatasetError("a sample file has at least one field, of a type that is given")
    known = [field_of(name, kind, seed) for name, kind in kinds.items()]
    stored = [field.name[:16] for field in known]
    if len(set(stored)) < len(stored):
        raise DatasetError("names that are the same in their first 16 letters", found=stored)
    return known


def _order(count: int, indices: npt.ArrayLike | None, seed: int | None) -> Index:
    """Return the numbers of the samples in the order in which they are written."""
    order = np.arange(count)
    if indices is not None:
        given = np.asarray(indices)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise DatasetError("indices are no list of whole numbers", found=repr(indices))
        wrong = (given < -count) | (given >= count)
        if wrong.any():
            raise DatasetError("no such sample", expected=f"below {count}", found=given[wrong][0])
        order = order[given.astype(np.int64)]
    return order if seed is None else np.random.default_rng(seed).permutation(order)


def _write(
    writer: PageWriter,
    batches: Iterator[Batch],
    pool: Executor,
    workers: int,
    *,
    show: bool | None,
) -> None:
    """Have batches made some ahead, and write them in turn; the first error ends all."""
    pending: deque[tuple[Batch, Future[list[Column]]]] = deque()
    following = next(batches, None)
    limit = workers * writer.page_size
    disable = None if show is None else not show
    with progress_bar(
        total=len(writer.numbers), desc="to_beton", unit=" samples", disable=disable
    ) as bar:
        while pending or following is not None:
            held = sum(batch.nbytes for batch, _ in pending)
            while following is not None and len(pending) < 2 * workers:
                held += following.nbytes
                if pending and held > limit:
                    break
                pending.append((following, pool.submit(following.load)))
                following = next(batches, None)
            if not pending[0][1].done():
                wait([future for _, future in pending if not future.done()], None, FIRST_COMPLETED)
            _check(writer, pending)
            while pending and pending[0][1].done():
                batch, future = pending.popleft()
                writer.append(batch.places, future.result())
                bar.update(len(batch.places))
                del future


def _check(writer: PageWriter, pending: Iterable[tuple[Batch, Future[list[Column]]]]) -> None:
    """Raise what has gone wrong, whoever's turn it is."""
    try:
        for _, future in pending:
            if future.done():
                future.result()
    except BrokenExecutor as error:
        numbers = np.concatenate([writer.numbers[batch.places] for batch, _ in pending])
        where = f"one of the samples {numbers.min()} to {numbers.max()}"
        raise DatasetError("a process that makes samples has died", where=where) from error


@contextmanager
def _replacing(path: str, *, overwrite: bool) -> Iterator[int]:
    """Open a file beside a path, and move it there if all goes well."""
    with new_file(path, _is_samples, overwrite=overwrite) as written:
        file = with_room(partial(os.open, written, os.O_RDWR), written)
        try:
            yield file
        finally:
            os.close(file)


def _is_samples(path: str) -> bool:
    return sniff(path, read_head(path, HEAD_BYTES)) is None
