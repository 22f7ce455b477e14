"""Compute jobs ahead in threads, and yield their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar

AHEAD_BYTES = 256 << 20
"""Bytes read ahead by default."""

T_co = TypeVar("T_co", covariant=True)


class LazyResult(Protocol[T_co]):
    """A lazy result."""

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""

    def compute(self) -> T_co:
        """Compute the result, in any thread."""


def read_ahead(jobs: Iterator[LazyResult[T_co]], prefetch: int, max_bytes: int) -> Generator[T_co]:
    """Compute jobs in new threads, and yield results and raise errors in order.

    Parameters
    ----------
    prefetch, max_bytes : int
        As for :func:`in_order`; with ``prefetch=0`` each job is computed when its result is
        requested.
    """
    if not prefetch:
        yield from (job.compute() for job in jobs)
        return
    pool = ThreadPoolExecutor(prefetch, thread_name_prefix="dask-tiled")
    try:
        yield from in_order(jobs, pool, prefetch, max_bytes)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_order(
    jobs: Iterator[LazyResult[T_co]],
    pool: Executor,
    prefetch: int,
    max_bytes: int,
    *,
    fail_early: bool = False,
) -> Generator[T_co]:
    """Compute jobs in a pool, and yield their results in order.

    Parameters
    ----------
    jobs : iterator of Job
        Advanced only when the next job is to be computed.
    prefetch, max_bytes : int
        Maximum number of jobs ahead, and of their bytes; a larger job is computed alone.
    fail_early : bool
        Raise the error of a job at once, before the results of earlier ones.
    """
    ahead: deque[tuple[int, Future[T_co]]] = deque()
    errors: list[Exception] = []
    following: list[LazyResult[T_co]] = []  # a job that exceeded the limit

    def fill() -> None:
        held = sum(nbytes for nbytes, _ in ahead)
        while len(ahead) < prefetch and not errors:
            try:
                some = following.pop() if following else next(jobs)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - raised when its result is due
                errors.append(error)
                return
            held += some.nbytes
            if ahead and held > max_bytes:
                following.append(some)
                return
            ahead.append((some.nbytes, pool.submit(some.compute)))

    fill()
    while ahead:
        while fail_early and not ahead[0][1].done():
            done, others = wait([future for _, future in ahead], 0)
            for future in done:
                future.result()
            wait(others, None, FIRST_COMPLETED)
        block = ahead[0][1].result()
        ahead.popleft()
        fill()
        yield block
        del block
        fill()
    for error in errors:
        raise error
