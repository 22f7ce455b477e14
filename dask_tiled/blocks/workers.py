"""The workers of a cluster before work begins: whether they see the files, in one version."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from dask import config
from dask.base import annotate, get_annotations
from dask.utils import parse_timedelta

from dask_tiled.codecs.chunks import needs_imagecodecs
from dask_tiled.errors import DatasetError, warn
from dask_tiled.files.file import File, RemoteFile, read_head
from dask_tiled.graphs.schedulers import cluster
from dask_tiled.model.description import Description
from dask_tiled.reading.worker_report import PATIENCE, Report, WorkerQuestion, report, versions

PACKAGE = "dask-tiled"
MOST_FILES = 32
"""Maximum number of files that workers look at, evenly spaced in a series."""
HEAD_BYTES = 64
"""First bytes of a file that are compared."""
MOST_NAMED = 5
"""Maximum number of workers that a message names."""
WAIT_SECONDS = 3600.0
"""Time for the first worker, if dask's configuration sets none: batch systems have queues."""
PATIENT_SECONDS = 10.0
"""Time before a warning that there is no worker."""
WAIT_OPTION = "distributed.scheduler.no-workers-timeout"
LOOK_SECONDS = 2.0
"""Seconds between looks for new workers."""
PLENTY = 1e12
"""Amount of a resource of which each task takes 1, so that it never runs out."""
DECODERS = {
    "dask_tiled.formats.fits.tiles:decode_rice": "imagecodecs",
    "dask_tiled.formats.hdf5.": "h5py",
    "dask_tiled.formats.beton.samples:jpeg": "PIL",
    "dask_tiled.formats.beton.samples:any_jpeg": "PIL",
}
"""Modules that decoders import in tasks, by the beginning of the decoder's name."""


class Worker(NamedTuple):
    """A worker, and its report."""

    address: str
    threads: int
    memory_limit: int
    """Bytes; 0 without a limit."""
    answer: Report | None
    """None if the worker is silent, or another version of this package does not understand."""
    version: str
    """Version of this package; "missing" if it is not installed, empty if it is unknown."""
    clock: float
    """Seconds by which the worker's clock is ahead, up to the duration of the request."""
    problems: Mapping[str, str]
    """What the worker lacks, by path or library."""

    @property
    def is_able(self) -> bool:
        """Whether the worker has answered, and lacks nothing."""
        return self.answer is not None and not self.problems

    def __str__(self) -> str:
        if self.answer is None:
            return self.address
        return f"{self.address} (host {self.answer.host}, process {self.answer.pid})"


def question_of(
    descriptions: Iterable[Description],
    *,
    beside: Iterable[File] = (),
    folder: str | None = None,
    libraries: Collection[str] = (),
) -> WorkerQuestion:
    """Return the question to workers that read files, and write to a folder.

    Files that this process does not see itself are left out: tasks raise the error.

    Parameters
    ----------
    descriptions : iterable of Description
        Descriptions of files that are read.
    beside : iterable of File
        Further files that are read.
    folder : str, optional
        A path. Its nearest existing folder has to be the same everywhere.
    libraries : collection of str
        Names of further modules that tasks import.
    """
    files = {file.path: file for file in beside}
    needed = {*libraries}
    for one in descriptions:
        files.update((file.path, file) for file in _spaced(one.layout.files))
        for decoder in one.layout.decoders:
            name = getattr(decoder, "function", "")
            needed |= {module for start, module in DECODERS.items() if name.startswith(start)}
            needed |= {"imagecodecs"} if needs_imagecodecs(decoder) else set()
    heads = ((file, _head(file)) for file in _spaced([*files.values()]))
    seen = tuple((file, head) for file, head in heads if head is not None)
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    where = (folder, os.stat(folder).st_ino) if folder else None
    modules = (name for name in needed - {"__main__"} if find_spec(name))
    return WorkerQuestion(seen, where, tuple(sorted(modules)))


def _spaced(files: Sequence[File]) -> list[File]:
    places = np.unique(np.linspace(0, len(files) - 1, min(len(files), MOST_FILES)).astype(int))
    return [files[k] for k in places.tolist()]


def _head(file: File) -> bytes | None:
    """Return the first bytes of a file on disk; None if it is not the one that was opened."""
    if isinstance(file, RemoteFile):
        return b""
    try:
        file.check()
        return read_head(file.path, HEAD_BYTES)
    except (OSError, DatasetError):
        return None


class Cluster(NamedTuple):
    """The processes of a cluster."""

    workers: list[Worker]
    scheduler: str
    """Version of this package on the scheduler; "missing" if it is not installed."""


def ask(client: Any, question: WorkerQuestion, known: Collection[str] = ()) -> Cluster:
    """Ask all workers at once; those that have ended meanwhile are left out.

    Parameters
    ----------
    client : distributed.Client
    known : collection of str
        Addresses of workers to leave out.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    addresses = [address for address in workers if address not in known]
    found = client.sync(answers, client, addresses, report, question)
    scheduler = client.sync(_answer, client.run_on_scheduler, versions)[0]
    unclear = isinstance(scheduler, Exception) or any(isinstance(x, Exception) for x, _ in found)
    told = client.sync(_answer, client.get_versions, packages=["dask_tiled"])[0] if unclear else {}
    told = {} if not isinstance(told, Mapping) else told
    if not isinstance(scheduler, Mapping):
        scheduler = {PACKAGE: _version_in(told.get("scheduler"))}
    asked = []
    for address, (answer, clock) in zip(addresses, found, strict=True):
        told_by, version, problems = None, "", {}
        if isinstance(answer, Report):
            told_by, version, problems = answer, answer.versions[PACKAGE], answer.problems
        elif isinstance(answer, Exception):
            version = _version_in(told.get("workers", {}).get(address))
            problems = {PACKAGE: str(answer)}
            if not version:  # the worker has ended
                continue
        threads, limit = (int(workers[address][x] or 0) for x in ("nthreads", "memory_limit"))
        asked.append(Worker(address, threads, limit, told_by, version, clock, problems))
    return Cluster(asked, scheduler[PACKAGE])


def _version_in(told: Any) -> str:
    """Return the version of this package in dask's answer; empty without an answer."""
    return str(told["packages"].get("dask_tiled") or "missing") if told else ""


async def answers(client: Any, workers: Sequence[str], *call: Any) -> list[tuple[Any, float]]:
    """Call a function on workers at once; return each result or error, and the clock's lead."""
    some = (_answer(client.run, *call, workers=[one], on_error="return") for one in workers)
    return [
        (found.get(one) if isinstance(found, Mapping) else found, lead)
        for one, (found, lead) in zip(workers, await asyncio.gather(*some), strict=True)
    ]


async def _answer(request: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, float]:
    """Return the answer, an error, or None if there is none in time, and the clock's lead."""
    began = time.time()
    try:
        found = await asyncio.wait_for(request(*args, **options), PATIENCE + 10)
    except TimeoutError:
        return None, 0.0
    except Exception as error:  # noqa: BLE001 - judged by the caller
        return error, 0.0
    middle = (began + time.time()) / 2
    (one,) = found.values() if len(found) == 1 else (None,)
    return found, one.clock - middle if isinstance(one, Report) else 0.0


def check_versions(found: Cluster) -> None:
    """Check that all processes of a cluster have the version of this process.

    Raises
    ------
    DatasetError
        Another version is installed, or none.
    """
    mine = versions()[PACKAGE]
    others: dict[str, list[str]] = {}
    named = [
        ("the scheduler", found.scheduler),
        *((str(one), one.version) for one in found.workers),
    ]
    for name, version in named:
        if version and version != mine:
            others.setdefault(version, []).append(name)
    if others:
        told = (f"{version} on {_named(some)}" for version, some in sorted(others.items()))
        raise DatasetError(
            "the cluster has another version of dask-tiled",
            expected=f"{mine}, as in this process",
            found="; ".join(told),
            hint="Install the same version for the client, the scheduler and all workers.",
        )


def _named(workers: Sequence[str]) -> str:
    more = len(workers) - MOST_NAMED
    return ", ".join([*workers[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])])


def wait_for_worker(client: Any, seconds: float) -> bool:
    """Return whether a worker is there, or joins in time; warn if that takes long.

    Meanwhile a task waits, without which an adaptive cluster starts no worker.
    """
    if client.scheduler_info()["workers"]:
        return True
    waiting = client.submit(int, pure=False)
    soon = min(seconds, PATIENT_SECONDS)
    try:
        if _has_joined(client, soon):
            return True
        address = client.scheduler.address
        warn(f"{address} has no worker; waiting for one, for {seconds:g} s in all")
        return seconds > soon and _has_joined(client, seconds - soon)
    finally:
        waiting.release()


def _has_joined(client: Any, seconds: float) -> bool:
    with suppress(TimeoutError):
        client.wait_for_workers(1, timeout=seconds)
        return True
    return False


@contextmanager
def able_workers(descriptions: Iterable[Description], **more: Any) -> Iterator[None]:
    """Restrict the tasks of a block to workers that see the files and the folder.

    All workers are asked at once, before any task runs. If there are none, wait for the first. If
    some workers are unable, they get no tasks, and new workers are asked as they join; otherwise
    nothing is restricted. On threads and processes of this machine, nothing happens. Parameters are
    those of :func:`question_of`.

    Raises
    ------
    DatasetError
        No worker is able or joins in time, or the cluster has another version of this package.

    Warns
    -----
    UserWarning
        Some workers are unable, or there is none yet.
    """
    client = cluster()
    if client is None:
        yield
        return
    question = question_of(descriptions, **more)
    seconds = parse_timedelta(config.get(WAIT_OPTION, None) or WAIT_SECONDS)
    if not wait_for_worker(client, seconds):
        address = client.scheduler.address
        raise DatasetError(
            "no worker has joined the cluster",
            path=address,
            expected=f"a worker within {seconds:g} s",
            hint=f"Start workers, such as `dask worker {address}`. To wait longer, set "
            f"{WAIT_OPTION} of dask's configuration.",
        )
    found = ask(client, question)
    check_versions(found)
    workers = found.workers
    unable = [one for one in workers if one.problems]
    if not unable:
        yield
        return
    if not any(one.is_able for one in workers):
        path, problem = next(iter(unable[0].problems.items()))
        raise DatasetError(
            "no worker can do this work",
            path=path,
            expected="on a worker what this process sees",
            found=f"{problem}, on {_named([*map(str, unable)])}",
            hint="Mount the same file systems, and install the same libraries, on all machines.",
        )
    told = (f"{one}: {path}: {why}" for one in unable for path, why in [*one.problems.items()][:1])
    warn(
        f"{len(unable)} of {len(workers)} workers get no tasks, as they do not see what this "
        f"process sees: {'; '.join([*told][:MOST_NAMED])}"
    )
    with _Granted(client, question, workers) as name:
        resources = {**get_annotations().get("resources", {}), name: 1}
        with annotate(resources=resources):
            yield


class _Granted(threading.Thread):
    """Grants a resource to able workers, also to those that join later; yields its name."""

    def __init__(self, client: Any, question: WorkerQuestion, workers: Iterable[Worker]) -> None:
        super().__init__(daemon=True)
        self._client, self._question = client, question
        self._resource = f"dask-tiled-{uuid.uuid4().hex}"
        self._known: set[str] = set()
        self._able: list[str] = []
        self._ended = threading.Event()
        self._grant(workers)

    def _grant(self, workers: Iterable[Worker]) -> None:
        mine = versions()[PACKAGE]
        some = [one for one in workers if one.answer or one.problems]  # not silent ones
        able = [one.address for one in some if one.is_able and one.version == mine]
        self._known.update(one.address for one in some)
        if able:
            self._able += able
            self._set(able, PLENTY)

    def _set(self, workers: Sequence[str], amount: float) -> None:
        call = _set_resource, self._resource, amount
        self._client.sync(answers, self._client, workers, *call)

    def run(self) -> None:
        """Look for new workers until the end."""
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self._grant(ask(self._client, self._question, self._known).workers)
            except (OSError, ValueError):  # the scheduler is lost: tasks tell
                continue

    def __enter__(self) -> str:
        self.start()
        return self._resource

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        if self._client.status == "running":
            there = self._client.scheduler_info(n_workers=-1)["workers"]
            # Workers that have left would be waited for.
            self._set([one for one in self._able if one in there], 0)


async def _set_resource(name: str, amount: float, dask_worker: Any = None) -> None:
    """Set the amount of a resource of this worker."""
    await dask_worker.set_resources(**{name: amount})
