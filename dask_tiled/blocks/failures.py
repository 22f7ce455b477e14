"""Failed tasks on a cluster: what failed where, and which other workers try again.

dask documents the attributes of its scheduler that are used here. If they are missing, or the
scheduler runs no functions, failed tasks are not tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dask_tiled.errors import StaleFileError, warn_once
from dask_tiled.plans.tasks import Key

MOST_WORKERS = 3
"""Number of workers on which a task is tried."""
MOST_TRIES = 12
"""Number of tries: an idle worker may steal a task from another one, although it has failed."""


class TaskFailure(NamedTuple):
    """A task that failed on some workers."""

    key: Key
    """Key of the task, which another task may depend on."""
    workers: tuple[str, ...]
    """Addresses of the workers."""
    where: str
    """Addresses, hosts and process numbers of the workers, as text."""
    is_moved: bool
    """Whether the task waits for another worker now."""


class Failures:
    """The failures of a run on a cluster.

    Parameters
    ----------
    client : distributed.Client
    results : sequence of keys
        Tasks that combine the results of many others.
    """

    def __init__(self, client: Any, results: Sequence[Key]) -> None:
        self._client = client
        self._results = results
        self._workers: dict[Key, set[str]] = {}
        self._notes: dict[Key, dict[str, str]] = {}
        self._tries = Counter[Key]()

    def move(self, errors: Mapping[Key, BaseException]) -> None:
        """Let other workers try failed tasks.

        Parameters
        ----------
        errors : mapping
            The errors of tasks, by key.

        Raises
        ------
        Exception
            The first error that is not of the machine, or of a task that no other worker may try.
            Notes name the workers on which the task has failed.
        """
        final = {key for key, error in errors.items() if not is_of_machine(error)}
        final |= {key for key, tries in self._tries.items() if tries >= MOST_TRIES - 1}
        try:
            found = self._client.run_on_scheduler(
                move_on_scheduler, [*errors], final, self._workers, self._results
            )
        except Exception as error:  # noqa: BLE001 - the errors of another version of dask
            warn_once(f"failed tasks are not tried again: {error!r}", UserWarning)
            raise next(iter(errors.values())) from None
        for key, failure in found.items():
            self._workers.setdefault(failure.key, set()).update(failure.workers)
            self._tries[failure.key] += 1
            notes = self._notes.setdefault(failure.key, {})
            notes[failure.where] = f"failed on {failure.where}: {errors[key]}"
        for key, failure in found.items():
            if not failure.is_moved:
                for note in self._notes[failure.key].values():
                    errors[key].add_note(note)
                raise errors[key]


def is_of_machine(error: BaseException | None) -> bool:
    """Return whether a task may succeed elsewhere: where the file exists, or the disk works.

    Errors of files and disks, of memory, and of killed workers are of the machine. A file that is
    absent or has changed may be as expected on another machine.
    """
    from distributed import KilledWorker

    kinds = OSError, MemoryError, StaleFileError, KilledWorker
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__
    return error is not None


def move_on_scheduler(
    keys: Collection[Key],
    final: Collection[Key],
    before: Mapping[Key, set[str]],
    results: Sequence[Key],
    dask_scheduler: Any = None,
) -> dict[Key, TaskFailure]:
    """Start failed tasks on workers, if possible on hosts, where no task has failed.

    The restrictions of annotations apply. Without any, all workers may take the task once those
    chosen here are lost.

    Parameters
    ----------
    final : collection of keys
        Tasks that are not started again.
    before : mapping
        Addresses of workers on which tasks have failed before, by key of the task.
    results : sequence of keys
        Tasks whose dependencies all leave workers on which any task has failed: if a dependency of
        a result fails, dask drops the others, and computes them again.

    Returns
    -------
    dict
        Failures by key, one for each failed task. Tasks that run again already are left out.
    """
    found: dict[Key, TaskFailure] = {}
    seen: set[Key] = set()
    moved: list[Key] = []
    workers = dask_scheduler.workers
    erred = (task for task in map(dask_scheduler.tasks.get, keys) if task is not None)
    causes = {task.exception_blame for task in erred if task.state == "erred"} - {None}
    suspects = set[str]().union(*before.values(), *(cause.erred_on or () for cause in causes))
    for key in keys:
        task = dask_scheduler.tasks.get(key)
        if task is not None and task.state != "erred":
            continue
        cause = task and task.exception_blame
        if not cause:  # the scheduler refused the graph
            found[key] = TaskFailure(key, (), dask_scheduler.address, is_moved=False)
            continue
        if cause.key in seen:
            continue
        seen.add(cause.key)
        failed = {*(cause.erred_on or ())}
        tried = failed | before.get(cause.key, set())
        is_final = {key, cause.key} & {*final} or len(tried) >= MOST_WORKERS
        is_moved = not is_final and _move(dask_scheduler, cause, tried, suspects)
        if is_moved:
            moved.append(cause.key)
        told = ", ".join(_told(workers.get(address), address) for address in sorted(failed))
        found[key] = TaskFailure(cause.key, tuple(failed), told, is_moved)
    for task in _below(dask_scheduler, results if moved else ()):
        if task.key not in moved:
            _move(dask_scheduler, task, before.get(task.key, set()), suspects)
    dask_scheduler.stimulus_retry(moved)
    return found


def _below(scheduler: Any, keys: Sequence[Key]) -> set[Any]:
    """Return all tasks that tasks depend on."""
    found = set[Any]()
    left = [task for task in map(scheduler.tasks.get, keys) if task is not None]
    while left:
        more = {*left.pop().dependencies} - found
        found |= more
        left += more
    return found


def _move(scheduler: Any, task: Any, tried: set[str], suspects: set[str]) -> bool:
    """Restrict a task to workers that have not tried it; return False if there are none."""
    workers = scheduler.workers
    if task.loose_restrictions:  # any worker is allowed, not just those chosen before
        task.worker_restrictions = task.host_restrictions = None
    allowed = scheduler.valid_workers(task)
    hosts = {x.address: x.host for x in (workers.values() if allowed is None else allowed)}
    left = {*hosts} - tried
    trusted = left - suspects
    bad = {workers[x].host for x in suspects if x in workers}
    chosen = {x for x in trusted if hosts[x] not in bad} or trusted or left
    if chosen:
        bound = task.worker_restrictions or task.host_restrictions
        task.loose_restrictions = task.loose_restrictions or not bound
        task.worker_restrictions, task.host_restrictions = chosen, None
    return bool(chosen)


def _told(worker: Any, address: str) -> str:
    return address if worker is None else f"{address} (host {worker.host}, process {worker.pid})"
