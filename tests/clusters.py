"""Schedulers and workers of dask, started from the command line."""

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

from checks import wait_for

import dask_tiled
from dask_tiled.system.processes import end

TESTS = Path(__file__).parent


@contextmanager
def started(folder, *arguments, **environment):
    """Run a ``dask`` command in a new folder; on exit, end it and its forks if it still runs."""
    folder.mkdir()
    command = [sys.executable, "-m", "dask", *arguments]
    environment = {"PYTHONPATH": str(Path(dask_tiled.__file__).parents[1]), **environment}
    with (folder / "log").open("wb") as log:
        options = {"cwd": folder, "stdout": log, "stderr": log, "env": os.environ | environment}
        process = subprocess.Popen(command, **options, start_new_session=True)
    try:
        yield process
    finally:
        end(process)


@contextmanager
def cluster(folder):
    """Run a scheduler without workers; yield its client."""
    from distributed import Client

    address = str(folder / "scheduler.json")
    with ExitStack() as stack:
        host = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        scheduler = ["scheduler", "--scheduler-file", address, *host]
        stack.enter_context(started(folder / "s", *scheduler))
        client = stack.enter_context(Client(scheduler_file=address, timeout=300))
        client.folder = folder
        yield client


def addresses(client):
    return {*client.scheduler_info(n_workers=-1)["workers"]}


@contextmanager
def joining(client, name, *options, faults="", paths=()):
    """Run a worker with faults of its machine; yield its address."""
    before = addresses(client)
    paths = [*map(str, paths), str(Path(dask_tiled.__file__).parents[1]), str(TESTS)]
    command = ["worker", "--scheduler-file", str(client.folder / "scheduler.json"), "--no-nanny"]
    command += ["--preload", str(TESTS / "failing.py"), "--no-dashboard", "--host", "127.0.0.1"]
    command += options or ("--nthreads", "2", "--memory-limit", "600MB")
    environment = {"FAULTS": faults, "PYTHONPATH": os.pathsep.join(paths)}
    with started(client.folder / name, *command, **environment):
        (address,) = wait_for(lambda: addresses(client) - before)
        yield address
    wait_for(lambda: address not in addresses(client))
