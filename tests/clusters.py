"""Processes of a cluster, as they are started from a command line."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import dask_tiled


@contextmanager
def started(folder, *arguments, **environment):
    """Start a command of dask, in a folder of its own; at the end, kill it and what it started."""
    folder.mkdir()
    command = [sys.executable, "-m", "dask", *arguments]
    environment = {"PYTHONPATH": str(Path(dask_tiled.__file__).parents[1]), **environment}
    with (folder / "log").open("wb") as log:
        options = {"cwd": folder, "stdout": log, "stderr": log, "env": os.environ | environment}
        process = subprocess.Popen(command, **options, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
