"""Export to FFCV sample files: whole samples into pages, visible only when complete."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.blocks.ahead import AHEAD_BYTES, in_order
from dask_tiled.blocks.bars import progress_bar
from dask_tiled.blocks.workers import able_workers
from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.files.file import read_head
from dask_tiled.files.paths import open_file
from dask_tiled.formats.beton.descriptor import sniff
from dask_tiled.formats.beton.structure import (
    FIELD_BYTES,
    HEADER_BYTES,
    LEAST_PAGE,
    NAME_BYTES,
    is_page_size,
)
from dask_tiled.graphs.schedulers import cluster
from dask_tiled.model.indexing import Index
from dask_tiled.opened.axes import shown_of
from dask_tiled.reading.cluster import on_a_cluster
from dask_tiled.storing.disk import writing_to
from dask_tiled.storing.new_files import file_path, new_file
from dask_tiled.storing.places import not_cancelled
from dask_tiled.tiling import machine
from dask_tiled.training.arrays import arrays_of
from dask_tiled.training.fields import Encoders, field_of, kind_of
from dask_tiled.training.pages import PageWriter
from dask_tiled.training.sources import ClusterJob, EncodingJob, array_jobs, dataset_jobs


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
    """Write samples to an FFCV file, format 2.

    Several threads encode samples, which are written in a fixed order: equal samples result in
    equal files, the same as FFCV writes with one worker. Memory holds a page for each thread, and
    one chunk.

    On a cluster, workers compute and encode the samples of dask arrays, a chunk in each task. A
    task that fails because of its machine is tried on up to three workers, and the error of the
    last one has notes that name the workers. Memory of this process holds encoded samples of
    256 MiB of pixels.

    Parameters
    ----------
    path : path-like
        Path of the file. It is written below ``path + ".part"`` and moved to ``path`` when it
        is complete.
    fields : mapping of str to array, Dataset of xarray, or data set
        Arrays of one length, of dask, of xarray or in memory, with samples along the first
        axis; or any object with ``len()`` whose items are samples: tuples of values in
        the order of the types, or mappings from names to values, such as :class:`TarSamples`.
    types : mapping of str to type
        Types of the fields: ``"int"``, ``"float"``, ``"bytes"``, ``"json"`` for JSON values,
        ``"image"`` or an :class:`ImageField`, or ``(dtype, shape)`` for arrays. By default from
        the arrays; required for a data set.
    page_size : int
        Size of a page in bytes, a power of two of at least 2 MiB; no sample may be larger.
    workers : int, optional
        Number of threads that encode samples, or of tasks at a time on a cluster; by default one
        per core, or per thread of all workers.
    shuffle : bool
        Shuffle the samples. Samples of arrays are read and written in their own order,
        and only their numbers are shuffled.
    seed : int
        Seed of all random choices.
    indices : sequence of int, optional
        Numbers of the samples to write, in order; by default all.
    executor : concurrent.futures.Executor, optional
        Executor that computes and encodes samples instead of threads and workers: a process pool,
        for data sets that hold the GIL.
    overwrite : bool
        Replace an existing sample file.
    progress : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.

    Raises
    ------
    DatasetError
        The arguments are invalid, the path exists already, or a sample, which the error names,
        cannot be encoded or written. No file is left: the next call starts again.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> fields = {"image": np.zeros((10, 8, 8, 3), "u1"), "label": np.arange(10)}
    >>> dask_tiled.to_beton("train.beton", fields, {"image": dask_tiled.ImageField()})
    >>> dask_tiled.open_dataset("train.beton", field="label").shape
    (10,)
    """
    target = file_path(path)
    if not is_page_size(check_whole("page_size", page_size)):
        expected = f"a power of two, at least {LEAST_PAGE}"
        raise DatasetError("invalid page_size", path=target, expected=expected, found=page_size)
    seed = check_whole("seed", seed, least=0)
    if isinstance(fields, Mapping):
        fields = arrays_of(fields)
    encoders = _encoders(fields, types, seed)
    count = len(next(iter(fields.values()))) if isinstance(fields, Mapping) else len(fields)
    order = _order(count, indices, seed if shuffle else None)
    if workers is not None:
        check_whole("workers", workers, least=1)
    # A worker that waits for its own cluster would deadlock.
    elsewhere = not isinstance(fields, Mapping) or executor is not None or on_a_cluster()
    client = None if elsewhere else cluster()
    arrays = () if client is None else fields.values()
    read = (desc for arr in arrays if isinstance(arr, da.Array) for desc in shown_of(arr).of)
    with (
        able_workers(read),
        new_file(target, _is_samples, overwrite=overwrite) as written,
        writing_to(target),
        not_cancelled(target),
        open_file(written, "r+b", buffering=0) as file,
    ):
        writer, part = PageWriter(file.fileno(), [*encoders], order, page_size), page_size // 2
        jobs: Iterator[EncodingJob | ClusterJob]
        if isinstance(fields, Mapping):
            jobs = array_jobs(fields, encoders, order, part, on_workers=client is not None)
        else:
            jobs = dataset_jobs(fields, encoders, order, writer.mean, part)
        most = sum(client.nthreads().values()) if client is not None else machine.processors()
        threads = workers or most
        ahead = max(threads * page_size, AHEAD_BYTES if client is not None else 0)
        pool = executor or ThreadPoolExecutor(threads, thread_name_prefix="dask-tiled")
        made = in_order(jobs, pool, 2 * threads, ahead, fail_early=True)
        options = {"desc": "to_beton", "unit": " samples", "unit_scale": False}
        try:
            with progress_bar(total=len(order), show=progress, **options) as bar:
                for places, columns in made:
                    writer.append(places, columns)
                    bar.update(len(places))
        except BrokenExecutor as error:
            where = f"after {writer.written} samples"
            raise DatasetError("a process that encodes samples has died", where=where) from error
        finally:
            if executor is None:
                # Do not wait for samples that are no longer needed.
                pool.shutdown(wait=False, cancel_futures=True)
        writer.finish()


def _encoders(fields: Any, types: Mapping[str, Any] | None, seed: int) -> Encoders:
    """Return the fields of a file with their encoders."""
    if not isinstance(types, Mapping | None):
        raise DatasetError("invalid types", expected="a mapping", found=repr(types))
    kinds = dict(types or {})
    if isinstance(fields, Mapping):
        unknown = sorted(set(kinds) - set(fields))
        if unknown:
            raise DatasetError(
                "types names an unknown field", expected=", ".join(fields), found=unknown[0]
            )
        kinds = {
            name: kind_of(arr) if kinds.get(name) is None else kinds[name]
            for name, arr in fields.items()
        }
    elif not hasattr(fields, "__len__") or not hasattr(fields, "__getitem__"):
        expected = "arrays by name, or a data set that has a length and items"
        raise DatasetError("no samples", expected=expected, found=type(fields).__name__)
    if not kinds:
        raise DatasetError("a sample file needs at least one field, with its type")
    found = [field_of(name, kind, seed) for name, kind in kinds.items()]
    stored = [field.name[:NAME_BYTES] for field, _ in found]
    if len(set(stored)) < len(stored):
        raise DatasetError("field names must differ in their first 16 characters", found=stored)
    return dict(found)


def _order(count: int, indices: npt.ArrayLike | None, seed: int | None) -> Index:
    """Return the sample numbers in the order in which they are written."""
    order = np.arange(count)
    if indices is not None:
        given = np.asarray(indices)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise DatasetError("indices must be a list of integers", found=repr(indices))
        wrong = (given < -count) | (given >= count)
        if wrong.any():
            raise DatasetError("no such sample", expected=f"below {count}", found=given[wrong][0])
        order = order[given.astype(np.int64)]
    return order if seed is None else np.random.default_rng(seed).permutation(order)


def _is_samples(path: str) -> bool:
    return sniff(path, read_head(path, HEADER_BYTES + FIELD_BYTES)) is None
