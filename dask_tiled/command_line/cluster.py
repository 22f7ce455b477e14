"""Reports of the workers of a cluster, compared with this process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dask_tiled.command_line.opening import described
from dask_tiled.command_line.printing import columns, section, show, show_json

if TYPE_CHECKING:
    from dask_tiled.blocks.workers import Worker
    from dask_tiled.reading.worker_report import WorkerQuestion

CONNECT_SECONDS = 10
CLOCK_SECONDS = 60.0
"""Clocks further apart are reported."""
HEADS = ("worker", "host", "process", "threads", "memory", "clock", "dask-tiled", "differs in")
ADVICE = {
    "dask-tiled": "Install one version for the client, the scheduler and all workers. Exports "
    "refuse others.",
    "files": "Mount the same file systems at the same paths. Exports give these workers no tasks.",
    "libraries": "Install the same libraries on all machines. Exports give these workers no tasks.",
    "answer": "The process is stopped, or its machine is lost. End it: dask may wait for it.",
    "packages": "Install the same versions: others may fail to read what the client sends.",
    "clock": "Set the clock. Results do not depend on it.",
}
"""What to do about each kind of difference."""


def show_cluster(
    address: str,
    files: Sequence[str],
    options: Mapping[str, Any],
    target: str | None,
    *,
    as_json: bool,
) -> None:
    """Print a table of the workers, and what to do about their differences.

    Parameters
    ----------
    address : str
        Address of the scheduler.
    files : sequence of str
        Files that workers should see.
    options : mapping
        Options to open the files.
    target : str, optional
        Path to which workers should write.

    Raises
    ------
    DatasetError
        No scheduler answers, or the files cannot be opened.
    """
    from dask_tiled.blocks.workers import PACKAGE, ask, question_of

    read = [described(files, dict(options))[0]] if files else []
    question = question_of(read, folder=target)
    with client_of(address) as client:
        found = ask(client, question)
    differences = [_differences(one, question) for one in found.workers]
    scheduler = {"address": address, PACKAGE: found.scheduler, "workers": len(found.workers)}
    if as_json:
        workers = [
            {**_values(one), "differs in": told}
            for one, told in zip(found.workers, differences, strict=True)
        ]
        show_json({"Scheduler": scheduler, "Workers": workers})
        return
    rows = [
        [*map(str, _shown(_values(one)).values()), ", ".join(told) or "nothing"]
        for one, told in zip(found.workers, differences, strict=True)
    ]
    details = [
        (f"{one.address}", f"{kind}: {'; '.join(problems)}. {ADVICE[kind]}")
        for one, told in zip(found.workers, differences, strict=True)
        for kind, problems in told.items()
    ]
    show(
        section("Scheduler", [(name, str(value)) for name, value in scheduler.items()]),
        columns(dict.fromkeys(HEADS), rows),
        *([section("Differences", details)] if details else []),
    )


@contextmanager
def client_of(place: Any) -> Iterator[Any]:
    """Yield dask's client of a scheduler's address, or of a cluster; it is the default meanwhile.

    Raise a DatasetError if no scheduler answers.
    """
    from distributed import Client

    from dask_tiled.errors import DatasetError

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="distributed")  # of versions
        try:
            client = Client(place, timeout=CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            path = place if isinstance(place, str) else None
            raise DatasetError("no scheduler answers", path=path, found=str(error)) from error
        with client:
            yield client


@contextmanager
def job_cluster(kind: str, count: int) -> Iterator[Any]:
    """Yield a cluster of dask-jobqueue, configured as its documentation says.

    Parameters
    ----------
    kind : str
        Batch system, such as "slurm".
    count : int
        Number of jobs.

    Raises
    ------
    DatasetError
        dask-jobqueue is not installed, does not support the batch system, or is not configured.
    """
    from dask_tiled.errors import DatasetError

    try:
        import dask_jobqueue
    except ImportError as error:
        hint = "Run: pip install dask-jobqueue"
        raise DatasetError("--cluster needs dask-jobqueue", found="none", hint=hint) from error
    suffix = "Cluster"
    classes = {
        name.removesuffix(suffix).lower(): getattr(dask_jobqueue, name)
        for name in dir(dask_jobqueue)
        if name.endswith(suffix) and name not in {"JobQueueCluster", suffix}
    }
    if kind not in classes:
        expected = f"one of {', '.join(classes)}"
        raise DatasetError("unknown batch system", expected=expected, found=kind)
    try:
        cluster = classes[kind]()
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        hint = f"Set cores, memory and more of jobqueue.{kind} in ~/.config/dask/jobqueue.yaml."
        raise DatasetError("no cluster can be made", found=str(error), hint=hint) from error
    with cluster:
        cluster.scale(jobs=count)
        yield cluster


def _values(worker: Worker) -> dict[str, Any]:
    """Return what a worker reports, by heading."""
    told = worker.answer
    known = (told.host, told.pid) if told else (None, None)
    clock = round(worker.clock, 1) if told else None
    limits = worker.threads, worker.memory_limit
    values = worker.address, *known, *limits, clock, worker.version
    return dict(zip(HEADS, values, strict=False))


def _shown(values: dict[str, Any]) -> dict[str, str]:
    from dask_tiled.errors import format_bytes

    limit, clock = values["memory"], values["clock"]
    shown = {name: "" if value is None else str(value) for name, value in values.items()}
    shown["memory"] = format_bytes(limit) if limit else "no limit"
    return shown | {"clock": "" if clock is None else f"{clock:+.1f} s"}


def _differences(worker: Worker, question: WorkerQuestion) -> dict[str, list[str]]:
    """Return how a worker differs from this process, by kind."""
    from dask_tiled.blocks.workers import PACKAGE
    from dask_tiled.reading.worker_report import versions

    mine, told = versions(), worker.answer
    found: dict[str, list[str]] = {}
    if worker.version not in {"", mine[PACKAGE]}:
        found[PACKAGE] = [f"{worker.version}, here {mine[PACKAGE]}"]
    for name, problem in worker.problems.items():
        kind = "libraries" if name in {*question.libraries, PACKAGE} else "files"
        found.setdefault(kind, []).append(f"{name}: {problem}")
    if told is None:
        return found or {"answer": ["none in time"]}
    others = [
        f"{name} {told.versions.get(name, 'missing')}, here {version}"
        for name, version in mine.items()
        if name != PACKAGE and told.versions.get(name) != version
    ]
    if others:
        found["packages"] = others
    if abs(worker.clock) > CLOCK_SECONDS:
        found["clock"] = [f"{worker.clock:+.0f} s"]
    return found
