"""Compute arrays in a run that can be stopped at any moment, and resumed."""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute, tokenize, unpack_collections

from dask_tiled.blocks.bars import progress_bar
from dask_tiled.blocks.completing import complete
from dask_tiled.blocks.workers import able_workers
from dask_tiled.checkpoints.folder import RESULT, Checkpoint, Small, claimed, load, path_of, store
from dask_tiled.errors import DatasetError, check_seconds
from dask_tiled.graphs.stages import Key, ReadyTasks, Stages, keys_in
from dask_tiled.graphs.unfinished import Unfinished
from dask_tiled.opened.axes import shown_of
from dask_tiled.storing.places import not_cancelled

VERSIONS = "dask-tiled", "dask", "numpy"
"""Packages whose versions may change the bits of partial results."""


@dataclass(frozen=True)
class Progress:
    """The state of a :func:`run`, as passed to ``on_progress``.

    Attributes
    ----------
    bytes_done, bytes_total : int
        Bytes of pixels that have been read, now or in an earlier run, and that are read in all.
        For arrays that were not opened by this package, the numbers of chunks.
    seconds : float
        Duration of this run.
    bytes_per_second : float
        Mean rate of this run.
    seconds_left : float
        Estimate of the remaining time; NaN before the first task is done.
    results : callable
        Return the results so far: a masked array for each array passed to :func:`run`, in the same
        mapping or sequence. Pixels that are not computed yet are masked. Results that combine all
        chunks, such as a sum or a mean of frames, are those of the chunks that have been read. None
        for an xarray object.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> shares = []
    >>> def show(progress: dask_tiled.Progress) -> None:
    ...     shares.append(progress.bytes_done / progress.bytes_total)
    >>> mean = dask_tiled.run(arr.mean((0, 1)), "mean.checkpoint", every=0, on_progress=show)
    >>> shares[-1]
    1.0
    """

    bytes_done: int
    bytes_total: int
    seconds: float
    bytes_per_second: float
    seconds_left: float
    results: Callable[[], Any] = field(repr=False, compare=False)


def run(
    x: Any,
    checkpoint: Any,
    *,
    every: float = 60.0,
    resume: bool = True,
    progress: bool | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Any:
    """Compute arrays, and keep partial results in a folder: a run that is stopped can be resumed.

    The same call continues with the results in the folder, whatever stopped the previous one: an
    interruption, an error, a full disk, a killed process, worker or scheduler, a power failure.
    The values are bit for bit those of ``dask.compute(x)``.

    Parameters
    ----------
    x : dask.array.Array, or xarray object over some, or a mapping or sequence of them
        The arrays to compute, in one pass over the files where that is possible.
    checkpoint : path-like
        A folder, which is created; of all workers of a cluster, on a file system that they share.
    every : float
        Seconds after which results of up to 64 KiB are stored, and ``on_progress`` is called.
        Larger partial results are stored when they are computed.
    resume : bool
        Continue an equal computation. If False, partial results in the folder are discarded.
    progress : bool, optional
        Show bytes, rate and time left; by default in a terminal and in a notebook. With True, a
        line is written to the log of a job every ten seconds.
    on_progress : callable, optional
        Called with a :class:`Progress` after a task, at most every ``every`` seconds, and at the
        end. It runs in this thread; an error that it raises ends the run.

    Returns
    -------
    numpy.ndarray, number or xarray object
        As ``dask.compute(x)[0]``.

    Raises
    ------
    DatasetError
        The folder holds other files or another computation, or another run uses it; it cannot be
        written; or ``x`` holds no dask arrays.
    StaleFileError
        A file was changed, replaced or removed.

    Warns
    -----
    UserWarning
        Partial results are discarded: files have changed, or versions of dask-tiled, dask or NumPy.

    Notes
    -----
    What is kept are the chunks of results, such as those of virtual images, and combined results of
    chunks, such as sums of frames: at most about a thousand, fewer if they are large. Partial
    results are in zarr groups, each with the checksums of a journal: a damaged one is computed
    again. When the computation is complete, the folder holds only its results, and the same call
    returns them. Remove the folder when they are not needed any more.

    Computations are the same if dask gives them the same names: it does so for unchanged files, and
    for equal computations from them in equal chunks. A cluster that limits the memory of its
    workers may lead to other chunks: pass ``chunks`` to :func:`open_dataset` if the next one has
    other workers.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> results = {"mean": arr.mean((0, 1)), "sums": arr.sum((2, 3))}
    >>> found = dask_tiled.run(results, checkpoint="gold.checkpoint")
    >>> found["mean"].shape
    (128, 128)
    """
    arrays, repack = unpack_collections(x)
    if not arrays:
        raise DatasetError("nothing to compute", expected="dask arrays", found=type(x).__name__)
    every = check_seconds("every", every, zero=True)
    names = [sorted({str(_name(key)) for key in keys_in(one.__dask_keys__())}) for one in arrays]
    told = {"name": tokenize(names), "results": [*map(_told, arrays)]}
    largest = max(_block_bytes(one) for one in arrays)
    read = [d for one in arrays if isinstance(one, da.Array) for d in shown_of(one).of]
    path = path_of(checkpoint)

    def get(graph: Any, keys: Any, **_: Any) -> Any:
        stages = Stages(graph, keys, largest)
        about = json.loads(json.dumps({**told, "versions": _versions(), "files": _files(stages)}))
        with (
            able_workers(read, folder=os.path.dirname(path)),
            claimed(path, about, resume=resume) as place,
            not_cancelled(place.path),
        ):
            kept = Checkpoint(place, every)
            kept.recall()
            one = _StageRun(stages, kept, arrays, repack, every, on_progress)
            with one.shown(show=progress):
                one.finish()
            values = {key: kept.value(one.name(key)) for key in stages.wanted}
        return _nested(keys, values)

    (found,) = compute(x, scheduler=get)
    return found


class _StageRun:
    """A run of the stages of a computation."""

    def __init__(
        self,
        stages: Stages,
        kept: Checkpoint,
        arrays: Sequence[Any],
        repack: Callable[[Any], Any],
        every: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._stages, self._kept = stages, kept
        self._arrays, self._repack = arrays, repack
        self._every, self._on_progress = every, on_progress
        # dask names last steps differently in every process.
        self._results = {str(key): f"{RESULT}{k}" for k, key in enumerate(stages.wanted)}
        self._names = {key: self._named(key) for key in stages.kept}
        self._total = stages.bytes_left(())
        self._first = self._done = self._total - stages.bytes_left(self._there())
        self._start = self._last = time.monotonic()
        self._bar: Any = None

    def _named(self, key: Key) -> str:
        name = key if isinstance(key, str) else repr(key)
        for text, result in self._results.items():
            name = name.replace(text, result)
        return name

    def name(self, key: Key) -> str:
        """Return the name of a result in the folder."""
        return self._names[key]

    def _there(self) -> set[Key]:
        """Return the keys of results that are there, some in memory only."""
        return {key for key, name in self._names.items() if name in self._kept}

    def _needed(self, stored: Collection[str]) -> list[str]:
        """Return the names of results that are needed while no more are stored."""
        there = {key for key, name in self._names.items() if name in stored}
        needed = self._stages.remaining(there)
        return [name for key, name in self._names.items() if key in needed]

    @contextmanager
    def shown(self, *, show: bool | None) -> Iterator[None]:
        """Show a progress bar."""
        unit = {} if self._stages.counts_bytes else {"unit": "chunks", "unit_scale": False}
        bar = progress_bar(total=self._total, initial=self._done, desc="run", show=show, **unit)
        with closing(bar):
            self._bar = bar
            yield

    def finish(self) -> None:
        """Run all stages that are left; results in memory are stored in any case."""
        try:
            while True:
                stage = self._stages.next(self._there())
                if not stage.ends:
                    break
                self._run(stage)
                self._kept.flush()
                self._kept.keep(self._needed(self._kept.stored))
        finally:
            self._kept.flush()
        self._tell(due=True)

    def _run(self, stage: ReadyTasks) -> None:
        """Run the tasks of a stage."""
        done, place = f"run-{uuid.uuid4().hex}", self._kept.place
        seen, names = self._there(), self._names
        held = {key: self._kept.held(names[key]) for key in stage.tasks.keys() & seen}
        values, calls = dict[Key, Any](), dict[Key, Any]()
        for key, one in held.items():
            if isinstance(one, Small):
                values[key] = one.value
            else:
                calls[key] = load, place, one, names[key]
        stores = {key: (store, place, names[key]) for key in stage.ends}
        graph = stage.graph(done, values, calls, stores)
        ends = {(done, n): key for n, key in enumerate(stage.ends)}
        of = da.Array(graph, done, ((1,) * len(ends),), meta=np.empty(0, bool))

        def take(end: Key, found: Any) -> None:
            self._kept.add(self._names[ends[end]], found)

        def count(end: Key) -> None:
            read = self._stages.newly_read(ends[end], seen)
            self._done += read
            self._bar.update(read)
            self._tell(due=time.monotonic() >= self._last + self._every)

        complete(of, [*ends], done=count, take=take)

    def _tell(self, *, due: bool) -> None:
        """Call the user's function if it is due."""
        if self._on_progress is None or not due:
            return
        self._last = now = time.monotonic()
        seconds = now - self._start
        rate = (self._done - self._first) / max(seconds, 1e-9)
        left = (self._total - self._done) / rate if rate else math.nan
        told = self._done, self._total, seconds, rate, left, self._unfinished
        self._on_progress(Progress(*told))

    def _unfinished(self) -> Any:
        """Return the results so far, as the user passed the arrays."""
        found = Unfinished(
            self._stages,
            lambda key: self._names.get(key, "") in self._kept,
            lambda key: self._kept.value(self._names[key]),
        )
        results = [
            found.array(k, arr.shape, arr.chunks) if isinstance(arr, da.Array) else None
            for k, arr in enumerate(self._arrays)
        ]
        (shown,) = self._repack(results)
        return shown


def _nested(keys: Any, values: dict[Key, Any]) -> Any:
    return [_nested(key, values) for key in keys] if isinstance(keys, list) else values[keys]


def _name(key: Key) -> str:
    return key[0] if isinstance(key, tuple) else key


def _told(one: Any) -> str:
    """Describe a result for errors."""
    if not isinstance(one, da.Array):
        return type(one).__name__
    return f"{one.name.rpartition('-')[0]}, {one.dtype} of shape {one.shape}"


def _block_bytes(one: Any) -> int:
    if not isinstance(one, da.Array) or math.isnan(one.nbytes):
        return 0
    return int(one.nbytes) // max(1, one.npartitions)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in VERSIONS}


def _files(stages: Stages) -> dict[str, Any]:
    """Return the versions of all files, by path."""
    files = (file for source in stages.sources.values() for file in source.layout.files)
    return {file.path: [file.size, file.mtime_ns, file.inode, file.ctime_ns] for file in files}
