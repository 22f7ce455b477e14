"""Schedulers and workers of dask, started from the command line."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import dask_tiled


@contextmanager
def started(folder, *arguments, **environment):
    """Run a ``dask`` command in a new folder; on exit, kill it and its children."""
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
