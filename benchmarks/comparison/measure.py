"""Timing of all readers on a scan, after a check of their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from comparison.scans import Scan, expectations

Job = Callable[[int], Any]
Open = Callable[[Scan], Mapping[str, Job]]


class Timing(NamedTuple):
    """Times of one job with one reader.

    Attributes
    ----------
    reader, format, job : str
    threads : str
        Requested number of threads: "1", "2" or "all".
    nbytes : int
        Size of the stored frames in bytes.
    seconds : list of float
        Time of each repeat; empty if the job failed.
    note : str
        "wrong", or the reason of the failure; empty otherwise.
    """

    reader: str
    format: str
    job: str
    threads: str
    nbytes: int
    seconds: list[float]
    note: str = ""


def time_scan(
    scan: Scan,
    readers: Mapping[str, Open],
    limits: Mapping[str, Open],
    jobs: Sequence[str],
    *,
    repeats: int,
    threads: str,
) -> Iterator[Timing]:
    """Check and time jobs on a scan with all readers, in turns.

    Yields
    ------
    Timing
        Times of every reader and limit, for every job.
    """
    expected = expectations(scan)
    opened = {name: _open(reader, scan) for name, reader in {**readers, **limits}.items()}
    for job in jobs:
        notes: dict[str, str] = {}
        runs: dict[str, Job] = {}
        wanted = expected[job]()
        for name, known in opened.items():
            if isinstance(known, str):
                notes[name] = known
            elif job in known:
                notes[name] = _check(known[job], None if name in limits else wanted)
                runs[name] = known[job]
        seconds = take_turns({k: run for k, run in runs.items() if not notes[k]}, repeats)
        for name, note in notes.items():
            times = seconds.get(name, [])
            yield Timing(name, scan.format.name, job, threads, scan.nbytes, times, note)


PATIENCE = 10
"""Seconds after which a job is not repeated."""


def take_turns(runs: Mapping[str, Job], repeats: int) -> dict[str, list[float]]:
    """Time jobs in turns, `repeats` times; every second time in the opposite order.

    Otherwise each job would always find the caches as the same other one has left them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(1, repeats + 1):
        for name, run in [*runs.items()][:: 1 if repeat % 2 else -1]:
            if sum(seconds[name]) > PATIENCE:
                continue
            start = time.perf_counter()
            run(repeat)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def _open(reader: Open, scan: Scan) -> Mapping[str, Job] | str:
    """Open a scan; return its jobs, or the reason why it cannot be opened."""
    try:
        return reader(scan)
    except Exception as error:  # noqa: BLE001 - failures of readers are results
        return reason(error)


def _check(run: Job, wanted: Any) -> str:
    """Run a job once, which also compiles its kernels, and check the result."""
    try:
        result = run(0)
    except Exception as error:  # noqa: BLE001 - as above
        return reason(error)
    if wanted is None:
        return ""
    # Some readers sum in single precision.
    right = result.shape == wanted.shape and np.allclose(result, wanted, rtol=1e-4, atol=1e-6)
    return "" if right else "wrong"


def reason(error: Exception) -> str:
    """Return the reason of an error in one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:120].rstrip(": ")
