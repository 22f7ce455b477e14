"""Export on workers that are killed, fail to read and are paused; run as a program.

A scheduler and three workers run as processes. One worker is killed every few seconds, and one
raises EIO at random when it reads or writes, or writes only a part at a time. Clocks of the workers
differ by days. Each export is called again at most once, then compared with the scan by verify_zarr
and by NumPy. Prints counts as JSON.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread

import numpy as np
import psutil
import zarr
from distributed import Client

import dask_tiled

FOLDER, REPEATS, MIB, SEED = Path(sys.argv[1]), *map(int, sys.argv[2:5])
EVERY = float(sys.argv[5])
"""Seconds between kills."""
HERE = Path(__file__).parent
SIG = 256, 256
DRAW = np.random.default_rng(SEED)


def start(stack, *arguments, **environment):
    """Start a process of dask in its own session, and end it and its children with the stack."""
    command = [sys.executable, "-m", "dask", *arguments]
    folders = HERE, HERE / "clocks", HERE.parents[1]
    environment["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    log = stack.enter_context((FOLDER / "log").open("ab"))
    options = {"stdout": log, "stderr": log, "env": os.environ | environment, "cwd": FOLDER}
    process = subprocess.Popen(command, **options, start_new_session=True)

    def stop():
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    stack.callback(stop)
    return process


def cluster(stack):
    """Start a cluster; return its client and the nanny of the worker to kill."""
    file = str(FOLDER / "scheduler.json")
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    start(stack, "scheduler", "--scheduler-file", file, "--port", "0", *local)
    worker = ["worker", "--scheduler-file", file, "--nthreads", "1", *local]
    worker += ["--memory-limit", "1GB", "--preload", "worker_faults"]
    nannies = [
        start(stack, *worker, "--name", name, WORKER_CLOCK=days, WORKER_FAULTS=faults)
        for name, days, faults in (
            ("killed", "-3", ""),
            ("bad", "5", f"eio=0.02,short=0.2,seed={SEED}"),
            ("good", "0", "pause=3"),
        )
    ]
    client = stack.enter_context(Client(scheduler_file=file, timeout=120))
    client.wait_for_workers(3, timeout=120)
    return client, nannies[0]


def kill_often(nanny, ended, found):
    """Kill the workers of a nanny, which starts new ones."""
    while not ended.wait(EVERY):
        with suppress(psutil.Error):
            for child in psutil.Process(nanny.pid).children(recursive=True):
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()
                    found["kills"] += 1


def write_scan(path):
    """Write frames that compress little, and return their number."""
    count = MIB * (1 << 20) // (2 * SIG[0] * SIG[1])
    with path.open("wb") as file:
        for first in range(0, count, 64):
            frames = DRAW.poisson(20, (min(64, count - first), *SIG)).astype("u2")
            frames[:, 0, 0] = np.arange(first, first + len(frames))
            file.write(frames.tobytes())
    return count


def equals(path, out, count):
    """Compare an export with its file by NumPy and zarr alone."""
    stored = zarr.open_group(out, mode="r")["data"]
    frames = np.memmap(path, "u2", "r", shape=(count, *SIG))
    steps = range(0, count, 256)
    return stored.shape == frames.shape and all(
        np.array_equal(stored[k : k + 256], frames[k : k + 256]) for k in steps
    )


def main():
    """Export a number of times, and print counts."""
    found, path, out = Counter(), FOLDER / "scan.raw", FOLDER / "out.zarr"
    count = write_scan(path)
    arr = dask_tiled.open_dataset(path, "raw", dtype="u2", sig_shape=SIG)
    with ExitStack() as stack:
        _, nanny = cluster(stack)
        for _ in range(REPEATS):
            ended = Event()
            killing = Thread(target=kill_often, args=(nanny, ended, found))
            killing.start()
            begun = time.monotonic()
            try:
                for attempt in ("at once", "resumed"):
                    try:
                        dask_tiled.to_zarr(arr, out, progress=False)
                    except (dask_tiled.DatasetError, OSError) as error:
                        found[f"ended by {type(error).__name__}"] += 1
                        sys.stderr.write(f"{error} {getattr(error, '__notes__', '')}\n")
                    else:
                        found[attempt] += 1
                        break
            finally:
                ended.set()
                killing.join()
            found["seconds"] += round(time.monotonic() - begun)
            if out.exists():
                found["equal"] += equals(path, out, count)
                dask_tiled.verify_zarr(out, arr, progress=False)
                found["verified"] += 1
                shutil.rmtree(out)
            found["left over"] += (FOLDER / "out.zarr.part").exists()
            sys.stderr.write(f"{dict(found)}\n")
            shutil.rmtree(f"{out}.part", ignore_errors=True)
    found["exports"] = REPEATS
    sys.stdout.write(json.dumps({"failing_workers": found}) + "\n")


if __name__ == "__main__":
    main()
