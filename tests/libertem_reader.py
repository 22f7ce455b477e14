"""Read files through LiberTEM, in one child process for all tests.

Numba's compiler is off: compiling takes longer than reading small files in plain Python. Reads are
buffered, because LiberTEM's memory-mapped reads refuse 1-bit raw frames of most sizes.
"""

import atexit
import json
import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

# Reads a line of jobs, answers with a line: null or a traceback.
SCRIPT = """
import json, sys, traceback
import numpy as np
from libertem.api import Context
from libertem.common import Shape
from libertem.io.dataset.base import BufferedBackend, TilingScheme

out, sys.stdout = sys.stdout, sys.stderr
context = Context.make_with("inline")

def read(kind, parameters, target):
    backend = {} if kind in ("hdf5", "ser", "raw_csr") else {"io_backend": BufferedBackend()}
    data = context.load(kind, **backend, **parameters)
    absent = 0 if kind == "ser" else np.nan  # frames that an interrupted scan lacks
    frames = np.full((data.shape.nav.size, *data.shape.sig), absent, "f8")
    tileshape = Shape((1, *data.shape.sig), sig_dims=len(data.shape.sig))
    scheme = TilingScheme.make_for_shape(tileshape=tileshape, dataset_shape=data.shape)
    for partition in data.get_partitions():
        for tile in partition.get_tiles(scheme, dest_dtype=np.float64):
            start = tile.tile_slice.origin[0]
            pixels = tile.data.toarray() if kind == "raw_csr" else tile.data
            frames[start : start + tile.shape[0]] = pixels.reshape(-1, *data.shape.sig)
    found = {"frames": frames.reshape(data.shape)}
    corrections = data.get_correction_data()
    if corrections.get_dark_frame() is not None:
        found["dark"] = corrections.get_dark_frame()
    if corrections.get_gain_map() is not None:
        found["gain"] = corrections.get_gain_map()
    if corrections.get_excluded_pixels() is not None:
        found["excluded"] = corrections.get_excluded_pixels().todense()
    np.savez(target, **found)

for line in sys.stdin:
    try:
        for job in json.loads(line):
            read(*job)
        error = None
    except Exception:
        error = traceback.format_exc()
    print(json.dumps(error), file=out, flush=True)
"""


def start(script=SCRIPT, **environment):
    """Start a process that answers each line of jobs with a line."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def stop(process):
    process.communicate()


@cache
def shared():
    """Return the process that all tests share."""
    process = start(NUMBA_DISABLE_JIT="1")
    atexit.register(stop, process)
    return process


def libertem_reads(folder, jobs, process=None):
    """Read files through LiberTEM.

    Parameters
    ----------
    folder : Path
        Folder for temporary results.
    jobs : dict
        For each name, LiberTEM's name of the format and the options of ``Context.load``.
    process : Popen, optional
        Process to use in place of the shared one.

    Returns
    -------
    dict
        For each name, a dict of arrays: "frames" as float64, and "dark", "gain" and "excluded"
        where the data set has them.
    """
    pytest.importorskip("libertem", reason="LiberTEM is not installed")
    process = process or shared()
    targets = {name: str(folder / f"libertem{k}.npz") for k, name in enumerate(jobs)}
    line = json.dumps([(*job, targets[name]) for name, job in jobs.items()], default=str)
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, "LiberTEM's process has ended"
    assert json.loads(answer) is None, json.loads(answer)
    return {name: dict(np.load(target)) for name, target in targets.items()}
