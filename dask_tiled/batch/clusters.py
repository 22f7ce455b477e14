"""Conversions on a cluster: whole files on its workers, or one file on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from dask.base import get_annotations

from dask_tiled.batch.children import ConverterPool
from dask_tiled.batch.connections import SchedulerPlace
from dask_tiled.batch.one import ConversionRow, ConversionTask
from dask_tiled.blocks.workers import able_workers, answers, wait_for_worker
from dask_tiled.converting.convert import ZARR
from dask_tiled.files.file import File
from dask_tiled.graphs.schedulers import cluster

SHARED_AT_A_TIME = 2
"""Pictures whose chunks all workers share at a time: the next one begins while one ends."""
LEAST_SHARED = 64 << 20
"""Bytes of pixels below which all workers are not faster than one."""
AHEAD = 2
"""Conversions for each thread of the workers, so that none waits for the next one."""


def cluster_elsewhere() -> Any:
    """Return the client of the cluster that dask computes on; None for one of this process."""
    client = cluster()
    is_here = client is None or client.scheduler.address.startswith("inproc://")
    return None if is_here else client


class ClusterConverters:
    """Conversions by the workers of a cluster.

    A picture with more than its share of the bytes that are left, the number of threads being that
    of all workers, is converted chunk by chunk on all of them; others whole, in a child process of
    a worker. No worker is then busy for longer than all of them together would be.

    Parameters
    ----------
    run : str
        Name of the batch.
    client : distributed.Client
    jobs : int or None
        Number of conversions at a time; None for as many as the workers have threads for.
    resources : mapping
        Resources of dask that the workers need.
    """

    def __init__(self, run: str, client: Any, jobs: int | None, resources: Any) -> None:
        self._run, self._client, self._jobs = run, client, jobs
        self._place = SchedulerPlace.of(client)
        self._whole = client.get_executor(pure=False, resources=resources)
        self._pool = ConverterPool()
        self._shared = ThreadPoolExecutor(SHARED_AT_A_TIME)

        self._threads = 1

    @property
    def jobs(self) -> int:
        """Number of conversions at a time; 0 if the scheduler is lost."""
        with suppress(OSError, ValueError):
            self._threads = max(1, sum(self._client.nthreads().values()))
        is_lost = self._client.status != "running"
        return 0 if is_lost else self._jobs or AHEAD * self._threads

    def submit(self, task: ConversionTask, left: int) -> Future[ConversionRow]:
        """Begin a conversion; ``left`` is the number of bytes of those that have not ended."""
        nbytes, target = task.planned.nbytes, task.planned.target
        is_shared = nbytes > max(left // self._threads, LEAST_SHARED) and target.endswith(ZARR)
        if is_shared:
            return self._shared.submit(self._pool.convert, task._replace(scheduler=self._place))
        future: Future[ConversionRow] = self._whole.submit(_convert_here, task)
        return future

    def stop(self) -> None:
        """Interrupt all conversions; what they have written is kept, if it can be resumed."""
        self._pool.stop(self._run)
        self._shared.shutdown(wait=False, cancel_futures=True)
        with suppress(OSError, ValueError):  # the scheduler is lost
            workers = [*self._client.nthreads()]
            self._client.sync(answers, self._client, workers, _stop_here, self._run)

    def end(self) -> None:
        """End all processes of this machine, and cancel what workers have not begun."""
        self._pool.end()
        self._shared.shutdown()
        with suppress(OSError, ValueError):
            self._whole.shutdown(wait=False)


@contextmanager
def on_cluster(
    run: str, client: Any, jobs: int | None, sources: Sequence[str], target: str, end: float | None
) -> Iterator[ClusterConverters]:
    """Yield the conversions by workers that see the sources and the folder of the targets.

    Wait for a worker, until the end by the monotonic clock.

    Raises
    ------
    DatasetError
        No worker is able or joins in time, or the cluster has another version of this package.
    """
    files = list[File]()
    for path in sources:
        with suppress(OSError, ValueError):  # a row tells
            files.append(File.at(path))
    if end is not None and not wait_for_worker(client, max(0.1, end - monotonic())):
        yield ClusterConverters(run, client, jobs, {})
        return
    with able_workers([], beside=files, folder=target):
        yield ClusterConverters(run, client, jobs, get_annotations().get("resources", {}))


_of_this_worker = ConverterPool()
"""A process for each thread of a worker that converts; they end with the worker."""


def _convert_here(task: ConversionTask) -> ConversionRow:
    return _of_this_worker.convert(task)


def _stop_here(run: str) -> None:
    _of_this_worker.stop(run)
