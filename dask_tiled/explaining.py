"""What a computation would take, before it is computed; and what it took, beside."""

from __future__ import annotations

import html
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dask.array as da
from dask import config
from dask.base import compute
from dask.system import CPU_COUNT

from dask_tiled.array.dask_graph.rehearsal import planned_for, rehearse
from dask_tiled.errors import DatasetError, check_whole, format_bytes
from dask_tiled.model.tables import html_table, text_table
from dask_tiled.reading.amounts import Amount, amount_of, passes_of
from dask_tiled.reading.counting import counted

MOST_FILES = 3
"""So many names of files are shown."""


@dataclass(frozen=True)
class Measured:
    """What a computation took.

    Attributes
    ----------
    bytes_read : int
        Bytes that were read from files.
    peak_memory : int
        Most bytes that Python and NumPy had allocated at the same time since it began.
    seconds : float
        How long it took, while memory was traced.
    """

    bytes_read: int
    peak_memory: int
    seconds: float


@dataclass(frozen=True)
class Explanation:
    """What a computation takes: it prints as text, and as a table in notebooks.

    Attributes
    ----------
    files : tuple of str
        The files that are read.
    file_bytes : int
        Their sizes, together.
    bytes_read : int
        Bytes that all tasks fetch from files, exactly: of pixels, or of compressed chunks, each as
        often as it is read. What lies between them is not counted.
    bytes_decoded : int
        Bytes of the pixels that these decode to, in the type of the files.
    passes : float
        How many times pixels that are read are read, in the mean: more than 1 where tasks that
        dask does not put together need the same pixels. 0 if nothing is read.
    tasks : int
        Number of tasks that a scheduler gets.
    plans : tuple of str
        What runs on tiles: for each set of chunks the number of tasks, and the tree of what is
        computed.
    left : tuple of (str, str)
        What is left to dask, chunk by chunk, and why.
    threads : int
        Number of threads that the peak is for.
    peak_memory : int
        Bytes of memory that arrays take at most in a process with so many threads: chunks, tiles,
        buffers and results. What the process had before, compiled code, and the mapped pages of
        files, which the system takes back when it needs them, are not counted.
    measured : Measured or None
        What happened, if it was run.
    results : tuple
        What was computed, if it was run: NumPy arrays, or xarray objects, in the order in which
        they were given.
    """

    files: tuple[str, ...]
    file_bytes: int
    bytes_read: int
    bytes_decoded: int
    passes: float
    tasks: int
    plans: tuple[str, ...]
    left: tuple[tuple[str, str], ...]
    threads: int
    peak_memory: int
    measured: Measured | None = None
    results: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """Yield what is expected, and what was measured beside it."""
        done = self.measured
        more = len(self.files) - MOST_FILES
        names = ", ".join([*self.files[:MOST_FILES], *([f"{more} more"] if more > 0 else [])])
        files = f"{names} ({format_bytes(self.file_bytes)})" if names else "none"
        read = f"{format_bytes(self.bytes_read)}, {_times(self.passes)}" if names else "nothing"
        yield "files", files, ""
        yield "read", read, format_bytes(done.bytes_read) if done else ""
        yield "decoded", format_bytes(self.bytes_decoded), ""
        yield "tasks", f"{self.tasks}", ""
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        peak = format_bytes(done.peak_memory) if done else ""
        yield "memory", f"at most {format_bytes(self.peak_memory)} in {threads}", peak
        if done:
            yield "time", "", f"{done.seconds:.3g} s"

    def _table(self) -> list[tuple[str, ...]]:
        rows = [*self._rows()]
        if self.measured is None:
            return [row[:2] for row in rows]
        return [("", "expected", "measured"), *rows]

    def __str__(self) -> str:
        lines = [text_table(self._table())]
        lines += [f"on tiles: {plan}" for plan in self.plans]
        lines += ["left to dask:", *(f"  {what}: {why}" for what, why in self.left)] * any(
            self.left
        )
        if not self.plans and not self.left and self.files:
            lines.append("pixels are read as they are")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        plans = [f"<p>on tiles:</p><pre>{html.escape(plan)}</pre>" for plan in self.plans]
        left = f"<p>left to dask:</p>{html_table(self.left)}" if self.left else ""
        return f"<div>{html_table(self._table())}{''.join(plans)}{left}</div>"


def explain(x: Any, *more: Any, threads: int | None = None, run: bool = False) -> Explanation:
    """Explain what a computation takes: bytes of files, tasks, and memory, before it is computed.

    Parameters
    ----------
    x, *more : dask.array.Array, or xarray object over some
        What is to be computed, all of it together, as ``dask.compute(x, *more)`` does.
    threads : int, optional
        Number of threads of the process; by default that of dask's scheduler of threads here.
        Workers of a cluster take the same each, for their threads, but for the results.
    run : bool
        Compute it as well, in so many threads of this process. What was measured stands beside what
        was expected, and ``results`` has what was computed. Allocations are traced meanwhile, which
        takes time where there are many small tasks.

    Returns
    -------
    Explanation
        It prints as text, and as a table in notebooks.

    Raises
    ------
    DatasetError
        Something is no dask array, or ``threads`` is no whole number above 0.

    Notes
    -----
    What runs on tiles is prepared as tasks prepare it. So code is compiled where it would be in the
    first computation, and that one finds it.

    Examples
    --------
    >>> import dask_tiled
    >>> from dask_tiled.testing import counting_frames, write_npy
    >>> arr = dask_tiled.open_dataset(write_npy("scan.npy", counting_frames((4, 8, 16), "uint16")))
    >>> dask_tiled.explain(arr.sum(axis=0), arr.std()).bytes_read
    1024
    """
    collections = [x, *more]
    for one in collections:
        _check(one)
    threads = _threads() if threads is None else check_whole("threads", threads, least=1)
    plans, left = planned_for(collections)
    found = rehearse(collections, threads)
    amounts = [amount_of(found.sources[token], reads) for token, reads in found.reads.items()]
    total = Amount(*(sum(one[k] for one in amounts) for k in (0, 1)))
    files = {
        file.path: file.size for source in found.sources.values() for file in source.layout.files
    }
    explained = Explanation(
        files=tuple(files),
        file_bytes=sum(files.values()),
        bytes_read=total.fetched,
        bytes_decoded=total.decoded,
        passes=passes_of((found.sources[x], reads) for x, reads in found.reads.items()),
        tasks=found.tasks,
        plans=plans,
        left=left,
        threads=threads,
        peak_memory=found.peak,
    )
    return _run(explained, collections) if run else explained


def _check(one: Any) -> None:
    is_array = isinstance(one, da.Array) or type(one).__module__.split(".")[0] == "xarray"
    graph = getattr(one, "__dask_graph__", lambda: None)()  # a DataTree of xarray has none
    if not is_array or graph is None:
        raise DatasetError(
            "only computations of arrays are explained",
            expected="a dask array, or an object of xarray over some",
            found=type(one).__name__,
        )


def _threads() -> int:
    """Return the number of threads that dask uses here."""
    if config.get("scheduler", None) in ("sync", "synchronous", "single-threaded"):
        return 1
    return int(config.get("num_workers", None) or CPU_COUNT)


def _run(explained: Explanation, collections: Sequence[Any]) -> Explanation:
    """Compute it, and put what was measured beside what was expected."""
    workers = {"scheduler": "threads", "num_workers": explained.threads}
    if explained.threads == 1:
        workers = {"scheduler": "synchronous"}
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with counted() as counter:
            begin = time.perf_counter()
            results = compute(*collections, traverse=False, **workers)
            seconds = time.perf_counter() - begin
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if not traced:
            tracemalloc.stop()
    measured = Measured(counter.nbytes, max(0, peak - before), seconds)
    return replace(explained, measured=measured, results=results)


def _times(passes: float) -> str:
    return "once" if passes == 1 else f"{passes:.3g} times"
