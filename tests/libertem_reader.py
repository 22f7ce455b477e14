"""Read files through LiberTEM, in a process of its own.

Without numba's compiler, which takes longer than reading small files does as plain Python.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import json, sys
import numpy as np
from libertem.api import Context
from libertem.common import Shape
from libertem.io.dataset.base import BufferedBackend, TilingScheme

context = Context.make_with("inline")
for kind, parameters, target in json.loads(sys.argv[1]):
    data = context.load(kind, io_backend=BufferedBackend(), **parameters)
    frames = np.full((data.shape.nav.size, *data.shape.sig), np.nan)
    tileshape = Shape((1, *data.shape.sig), sig_dims=2)
    scheme = TilingScheme.make_for_shape(tileshape=tileshape, dataset_shape=data.shape)
    for partition in data.get_partitions():
        for tile in partition.get_tiles(scheme, dest_dtype=np.float64):
            start = tile.tile_slice.origin[0]
            frames[start : start + tile.shape[0]] = tile.data
    found = {"frames": frames.reshape(data.shape)}
    corrections = data.get_correction_data()
    if corrections.get_dark_frame() is not None:
        found["dark"] = corrections.get_dark_frame()
    if corrections.get_gain_map() is not None:
        found["gain"] = corrections.get_gain_map()
    if corrections.get_excluded_pixels() is not None:
        found["excluded"] = corrections.get_excluded_pixels().todense()
    np.savez(target, **found)
"""


def libertem_reads(folder, jobs):
    """Read files through LiberTEM.

    Parameters
    ----------
    folder : Path
        Where results may be put.
    jobs : dict
        For each name, the format as LiberTEM calls it, and what ``Context.load`` takes.

    Returns
    -------
    dict
        For each name, a dict of arrays: "frames" as float64, and "dark", "gain" and "excluded"
        where the data set has them.
    """
    pytest.importorskip("libertem", reason="LiberTEM is not installed")
    targets = {name: str(folder / f"libertem{k}.npz") for k, name in enumerate(jobs)}
    text = json.dumps([(*job, targets[name]) for name, job in jobs.items()], default=str)
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, text]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    result = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return {name: dict(np.load(target)) for name, target in targets.items()}
