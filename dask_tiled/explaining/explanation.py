"""The cost of a computation: estimated beforehand, and measured."""

from __future__ import annotations

import html
import math
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import dask.array as da
from dask import config
from dask.base import compute
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT

from dask_tiled.errors import DatasetError, check_whole, format_bytes, printable
from dask_tiled.explaining.limits import (
    MARGIN,
    MOST_FILES,
    PROCESS_BYTES,
    TASK_BYTES,
    TASKS_PER_SECOND,
    THREAD_BYTES,
)
from dask_tiled.graphs.layers import DESCRIPTION
from dask_tiled.graphs.walk import TaskWalk
from dask_tiled.model.description import Description
from dask_tiled.model.doubts import Doubt
from dask_tiled.model.tables import html_table, text_table
from dask_tiled.opened.axes import shown_of
from dask_tiled.plans.recipes import Recipe
from dask_tiled.plans.tasks import sent_bytes
from dask_tiled.reading.amounts import Amount, amount_of, passes_of
from dask_tiled.reading.counting import counted
from dask_tiled.tiling.limits import USUAL_COUNT
from dask_tiled.tiling.negotiation import block_chunks
from dask_tiled.tiling.scheme import negotiate


@dataclass(frozen=True)
class Measured:
    """The measured cost of a computation.

    Attributes
    ----------
    bytes_read : int
        Bytes that were read from files.
    peak_memory : int
        Peak of the memory allocated by Python and NumPy during the run, in bytes.
    seconds : float
        Duration, while memory was traced.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> done = dask_tiled.explain(arr[:2].sum(), run=True)
    >>> isinstance(done.measured, dask_tiled.Measured), done.measured.bytes_read
    (True, 4194304)
    """

    bytes_read: int
    peak_memory: int
    seconds: float


@dataclass(frozen=True)
class OnCluster:
    """What a computation takes on a cluster.

    Attributes
    ----------
    workers : int
        Number of workers, each with ``Explanation.threads`` threads.
    graph_bytes : int
        Bytes of the graph that the client sends to the scheduler.
    seconds : (float, float) or None
        Shortest and longest duration, if ``gb_per_s`` was passed: the time to read all bytes, and
        that of a scheduler that takes 4,000 or 1,000 tasks a second, at the same time or after it.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> found = dask_tiled.explain(arr.sum(), workers=4, gb_per_s=1).cluster
    >>> isinstance(found, dask_tiled.OnCluster), 0.03 < found.seconds[0] < found.seconds[1] < 0.1
    (True, True)
    """

    workers: int
    graph_bytes: int
    seconds: tuple[float, float] | None


@dataclass(frozen=True)
class Explanation:
    """The cost of a computation; prints as text, and as a table in notebooks.

    Attributes
    ----------
    files : tuple of str
        The files that are read.
    file_bytes : int
        Sum of their sizes.
    bytes_read : int
        Exact number of bytes of pixels or compressed chunks that all tasks fetch from files,
        counted as often as they are read. Gaps are not counted.
    bytes_decoded : int
        Size of the decoded pixels in bytes, in the dtype of the files.
    passes : float
        Mean number of times that a pixel is read: more than 1 if separate tasks need the same
        pixels, 0 if nothing is read.
    tasks : int
        Number of tasks that ``dask.compute`` passes to a scheduler; the ``compute`` of one array
        may need fewer.
    plans : tuple of str
        Computations on tiles: for each set of chunks the number of tasks, and the tree of
        operations.
    left : tuple of (str, str)
        Operations on whole chunks, and why: those left to dask, and those without a kernel.
    threads : int
        Number of threads that the peak assumes.
    peak_memory : int
        Memory in bytes for arrays in a process with `threads` threads: chunks, tiles, buffers and
        results. It is an upper limit if `unseen` is empty: of functions named there, only arguments
        and results are counted. Memory used before, compiled code, and mapped pages of files, which
        the operating system reclaims when needed, are not counted.
    unseen : tuple of str
        Functions of users, NumPy, SciPy and dask that may allocate more than their results, and
        "pixels of dtype object".
    blocks : str
        Which parts of chunks are read instead of the whole chunks that were chosen for tiles;
        empty if none are.
    doubts : tuple of Doubt
        Choices that the files leave open; see :class:`Description`.
    lacking : tuple of str
        Files that lack frames, with the number of frames that are there.
    cluster : OnCluster or None
        What the computation takes on a cluster, if ``workers`` was passed.
    measured : Measured or None
        The measured cost, if it was run.
    results : tuple
        The results, if it was run: NumPy arrays, or xarray objects, in the order in which
        they were given.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> found = dask_tiled.explain(arr.sum())
    >>> isinstance(found, dask_tiled.Explanation), found.passes
    (True, 1.0)
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
    unseen: tuple[str, ...] = ()
    blocks: str = ""
    doubts: tuple[Doubt, ...] = ()
    lacking: tuple[str, ...] = ()
    cluster: OnCluster | None = None
    measured: Measured | None = None
    results: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the rows of the table: name, expected and measured value."""
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
        memory = f"{format_bytes(self.peak_memory)} in {threads}"
        others = ", ".join(self.unseen)
        memory = f"{memory}, plus what {others} may allocate" if others else f"at most {memory}"
        yield "memory", memory, format_bytes(done.peak_memory) if done else ""
        if self.blocks:
            yield "blocks", self.blocks, ""
        if self.cluster:
            yield f"on {self.cluster.workers} workers", _on_cluster_text(self.cluster), ""
        for lacking in self.lacking:
            yield "not complete", printable(lacking), ""
        for doubt in self.doubts:
            yield "doubt", printable(str(doubt)), ""
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
            lines.append("pixels are read unchanged")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        plans = [f"<p>on tiles:</p><pre>{html.escape(plan)}</pre>" for plan in self.plans]
        left = f"<p>left to dask:</p>{html_table(self.left)}" if self.left else ""
        return f"<div>{html_table(self._table())}{''.join(plans)}{left}</div>"


def explain(
    x: Any,
    *more: Any,
    threads: int | None = None,
    workers: int | None = None,
    gb_per_s: float | None = None,
    run: bool = False,
) -> Explanation:
    """Estimate the cost of a computation, before computing it: bytes read, tasks, and memory.

    Parameters
    ----------
    x, *more : dask.array.Array, or xarray object over some
        Arrays to compute together, as ``dask.compute(x, *more)`` does.
    threads : int, optional
        Number of threads of the process; by default that of dask's threaded scheduler here. A
        worker of a cluster needs the same memory for its threads, except for the results.
    workers : int, optional
        Number of workers of a cluster, to add what the computation takes there.
    gb_per_s : float, optional
        Gigabytes of files that one worker reads and computes in a second, as measured, to add a
        duration.
    run : bool
        Also compute, with this number of threads in this process, to show measured next to expected
        values; ``results`` has the results. Tracing allocations takes time if there are many small
        tasks.

    Returns
    -------
    Explanation
        It prints as text, and as a table in notebooks.

    Raises
    ------
    DatasetError
        A value is not a dask array, ``threads`` or ``workers`` is not a positive integer, or
        ``gb_per_s`` is not a positive number or passed without ``workers``.

    Notes
    -----
    Computations on tiles are prepared as in tasks, which compiles code that the first computation
    can then use.

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
    rate = _rate(workers, gb_per_s)
    walk = TaskWalk(collections)
    fixed = PROCESS_BYTES + THREAD_BYTES * threads + TASK_BYTES * walk.number
    amounts = [amount_of(walk.sources[token], reads) for token, reads in walk.reads.items()]
    total = Amount(*(sum(one[k] for one in amounts) for k in (0, 1)))
    files = {
        file.path: file.size for source in walk.sources.values() for file in source.layout.files
    }
    whole = Counter[Recipe]()
    for (recipe, *_), number in walk.refusals.items():
        whole[recipe] += number
    plans = chain.from_iterable(one.plans for one in walk.plans)
    described = [*chain.from_iterable(map(_described, collections))]
    explained = Explanation(
        files=tuple(files),
        file_bytes=sum(files.values()),
        bytes_read=total.fetched,
        bytes_decoded=total.decoded,
        passes=passes_of((walk.sources[x], reads) for x, reads in walk.reads.items()),
        tasks=walk.number,
        plans=tuple(filter(None, (plan.text(walk.counts, whole) for plan in plans))),
        left=_left(collections, walk),
        threads=threads,
        peak_memory=int(walk.peak(threads) * MARGIN) + fixed,
        unseen=tuple(sorted(walk.unseen)),
        blocks="; ".join(dict.fromkeys(chain.from_iterable(map(_blocks, collections)))),
        doubts=tuple(dict.fromkeys(x for desc in described for x in desc.doubts)),
        lacking=tuple(dict.fromkeys(filter(None, map(_lacking, described)))),
    )
    if workers is not None:
        workers = check_whole("workers", workers, least=1)
        reading = explained.bytes_read / (workers * rate) if rate else 0.0
        seconds = _seconds(reading, walk.number) if rate else None
        cluster = OnCluster(workers, sent_bytes(walk.sent), seconds)
        explained = replace(explained, cluster=cluster)
    return _run(explained, collections) if run else explained


def _rate(workers: int | None, gb_per_s: Any) -> float | None:
    """Return bytes per second, or None."""
    if gb_per_s is None:
        return None
    is_number = isinstance(gb_per_s, (int, float)) and not isinstance(gb_per_s, bool)
    if not is_number or not 0 < gb_per_s < math.inf:
        problem, expected = "invalid gb_per_s", "a positive number of gigabytes a second"
        raise DatasetError(problem, expected=expected, found=repr(gb_per_s))
    if workers is None:
        raise DatasetError("gb_per_s is that of a worker", expected="workers=", found="none")
    return float(gb_per_s) * 1e9


def _seconds(reading: float, tasks: int) -> tuple[float, float]:
    best, busy = (tasks / rate for rate in TASKS_PER_SECOND)
    return max(reading, best), reading + busy


def _left(collections: Sequence[Any], walk: TaskWalk) -> tuple[tuple[str, str], ...]:
    """Return the operations on whole chunks, and why, without concatenated results."""
    left = {x for one in walk.plans for x in one.left(but=walk.keys)}
    late = (x[1:] for x in walk.refusals if x[1:3] not in left)
    left |= {(what, f"{why}, in chunks of {shape} pixels") for what, why, shape in late}
    if not all(isinstance(one.__dask_graph__(), HighLevelGraph) for one in collections):
        left.add(("expressions", "dask uses array expressions, which have other graphs"))
    return tuple(sorted(left))


def _on_cluster_text(cluster: OnCluster) -> str:
    text = f"{format_bytes(cluster.graph_bytes)} sent to the scheduler"
    if cluster.seconds is None:
        return text
    shortest, longest = cluster.seconds
    return f"{text}, {shortest:.3g} to {longest:.3g} s"


def _lacking(desc: Description) -> str:
    """Return the name of a file that lacks frames, and how many are there; empty if none lack."""
    text = desc.lacking()
    return f"{os.path.basename(desc.files[-1].path)}: {text}" if text else ""


def _described(one: Any) -> Iterator[Description]:
    """Yield the files that an array, or an xarray object, is computed from."""
    variables = getattr(one, "variables", {"": one}).values()  # those of a Dataset
    for variable in variables:
        held = getattr(variable, "variable", variable)  # of a DataArray
        if held.chunks is not None:
            arr = held if isinstance(held, da.Array) else held.data
            yield from shown_of(arr).of


def _blocks(one: Any) -> Iterator[str]:
    """Yield a text for each opened array that is read in parts of its usual chunks."""
    graph = one.__dask_graph__()
    for layer in graph.layers.values() if isinstance(graph, HighLevelGraph) else ():
        noted = layer.collection_annotations or {}
        desc, chunks = noted.get(DESCRIPTION), noted.get("chunks")
        if desc is None or chunks is None or math.prod(map(len, chunks)) <= USUAL_COUNT:
            continue
        usual = negotiate(desc)
        nbytes, count = usual.block_bytes, math.prod(map(len, usual.chunks))
        if nbytes is not None and block_chunks(desc, usual.chunks, nbytes) == chunks:
            parts = math.prod(map(len, chunks))
            yield f"{parts} parts of {count} chunks: functions of whole chunks get them one by one"


def _check(one: Any) -> None:
    is_array = isinstance(one, da.Array) or type(one).__module__.split(".")[0] == "xarray"
    graph = getattr(one, "__dask_graph__", lambda: None)()  # an xarray DataTree has none
    if not is_array or graph is None:
        raise DatasetError(
            "only computations of arrays can be explained",
            expected="a dask array, or an xarray object that wraps dask arrays",
            found=type(one).__name__,
        )


def _threads() -> int:
    """Return the number of threads that dask uses here."""
    if config.get("scheduler", None) in ("sync", "synchronous", "single-threaded"):
        return 1
    return int(config.get("num_workers", None) or CPU_COUNT)


def _run(explained: Explanation, collections: Sequence[Any]) -> Explanation:
    """Run the computation, and add the measured cost."""
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
