"""Files per second of a catalogue: first and second run, beside `describe` in a loop.

``python benchmarks/catalogue.py FOLDER --files 10000`` writes small files of seven formats to the
folder, unless it has them. It prints rates by the clock and by processor time, which matters on a
busy machine, and the memory of all processes. ``--tiled PYTHON`` takes an interpreter with
``tiled[server]``, whose `register` is run over the same folder: of the seven formats it opens HDF5
and NumPy. bioio opens none of them, and has no catalogue.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Sized
from contextlib import suppress
from functools import partial
from pathlib import Path

import h5py
import numpy as np

import dask_tiled
from dask_tiled.testing import write_dm, write_edf, write_mib, write_mrc, write_ser

FRAMES = np.arange(4 * 16 * 16, dtype="u2").reshape(4, 16, 16)


def write_hdf5(path: Path, frames: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file["entry/data/data"] = frames


WRITERS: dict[str, Callable[..., object]] = {
    "mib": write_mib,
    "mrc": write_mrc,
    "dm4": lambda path, frames: write_dm(path, frames[0]),
    "ser": write_ser,
    "h5": write_hdf5,
    "npy": np.save,
    "edf": lambda path, frames: write_edf(path, frames[:1]),
}


def write(folder: Path, count: int) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for k in range(count):
        suffix = [*WRITERS][k % len(WRITERS)]
        path = folder / f"{k // 1000:03}" / f"scan_{k:06}_.{suffix}"
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            WRITERS[suffix](path, FRAMES)
        paths.append(str(path))
    return paths


class Memory(threading.Thread):
    """Largest proportional memory of this process and its children."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.ended = 0, threading.Event()

    def run(self) -> None:
        """Add up the memory of the processes every 0.2 s."""
        while not self.ended.wait(0.2):
            self.most = max(self.most, sum(map(_memory, _family(os.getpid()))))


def _family(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        with suppress(OSError):
            for task in os.listdir(f"/proc/{found[-1]}/task"):
                text = Path(f"/proc/{found[-1]}/task/{task}/children").read_text("ascii")
                waiting += map(int, text.split())
    return found


def _memory(pid: int) -> int:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
        return int(text.partition("\nPss:")[2].split()[0]) << 10
    return 0


def _cpu_seconds() -> float:
    """Return the CPU time of this process, and of its children that still run or have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for pid in _family(os.getpid()):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def timed(what: str, count: int, work: Callable[[], int]) -> None:
    memory = Memory()
    memory.start()
    begun, cpu = time.perf_counter(), _cpu_seconds()
    found = work()
    seconds, cpu = time.perf_counter() - begun, _cpu_seconds() - cpu
    memory.ended.set()
    memory.join()
    rate = f"{count / seconds:7.0f} files/s in {seconds:6.1f} s, {1e3 * cpu / count:5.2f} ms CPU"
    print(f"{what:22} {rate} a file, {found} rows, at most {memory.most >> 20} MiB", flush=True)


TILED = """
import asyncio, sys, time, warnings
warnings.simplefilter("ignore")
from tiled.catalog import in_memory
from tiled.client import Context, from_context
from tiled.client.register import register
from tiled.server.app import build_app

folder = sys.argv[1]
with Context.from_app(build_app(in_memory(readable_storage=[folder]))) as context:
    client = from_context(context)
    begun, cpu = time.perf_counter(), time.process_time()
    asyncio.run(register(client, folder))
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu

    def count(node):
        return sum(count(x) if k.isdigit() else 1 for k, x in node.items())

    print(seconds, cpu, count(client))
"""
"""Registers a folder in an empty catalogue of tiled, without the time for imports."""


def registered(python: str, folder: Path, count: int) -> None:
    """Print the rate of tiled."""
    command = [python, "-c", TILED, str(folder.resolve())]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, cpu, rows = map(float, found.split("\n")[-2].split())
    rate = f"{count / seconds:7.0f} files/s in {seconds:6.1f} s, {1e3 * cpu / count:5.2f} ms CPU"
    print(f"{'register of tiled':22} {rate} a file, {rows:.0f} rows", flush=True)


def _length(function: Callable[..., Sized], options: dict[str, Path]) -> int:
    return len(function(**options))


def described(paths: list[str]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(bool(dask_tiled.describe(path).shape) for path in paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--tiled", metavar="PYTHON", help="interpreter with tiled[server]")
    given = parser.parse_args()
    paths = write(given.folder, given.files)
    count = sum(len(files) for _, _, files in os.walk(given.folder))
    print(f"{count} files, load {os.getloadavg()[0]:.1f}", flush=True)
    keep = given.folder.parent / f"{given.folder.name}.sqlite"
    keep.unlink(missing_ok=True)
    catalogued = partial(dask_tiled.catalogue, given.folder, thumbnails=False)
    for what, options in (
        ("catalogue", dict[str, Path]()),
        ("kept", {"keep": keep}),
        ("again", {"keep": keep}),
    ):
        timed(what, count, partial(_length, catalogued, options))
    timed("describe in a loop", count, lambda: described(paths))
    if given.tiled is not None:
        registered(given.tiled, given.folder, count)


if __name__ == "__main__":
    main()
