"""A format with planted faults, each of which a campaign has to find."""

import ctypes
import json
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from dask_tiled import DatasetError, Format, register_format
from dask_tiled.formats.raw import FORMAT as RAW
from dask_tiled.kernels import decoding
from fuzzing import trial
from fuzzing.packings import Place
from fuzzing.seeds import Seed

HEADER, SHAPE = b"The name of the file says its fault.".ljust(64), (3, 4, 8)


def refuse(text):
    error = DatasetError("wrong", path="scan.planted")
    error.args = (text,)
    raise error


def read_beyond():
    """Call a kernel with runs of bytes that reach beyond both ends of its array."""
    data, out = np.zeros(16, np.uint8), np.zeros(16, np.uint8)
    starts, dests = np.array([15, -8]), np.array([0, 8])
    decoding.compiled("swap8")(data, starts, 8, out, dests, 8, 1, 8, 0)


def refuse_trees(path):
    """Fail for a tree in a list in a list, which hardly any damaged bytes form."""
    with suppress(ValueError):
        made = json.loads(path.read_bytes())
        for one in made if isinstance(made, list) else ():
            if isinstance(one, list) and any(isinstance(x, (list, dict)) for x in one):
                raise LookupError("a tree in a tree")


FAULTS = {
    "nothing": lambda: None,
    "wrong": lambda: None,
    "death": lambda: ctypes.string_at(0),
    "hang": lambda: time.sleep(3600),
    "slow": lambda: time.sleep(trial.SLOW + 0.2),
    "error": lambda: {}["missing"],
    "memory": lambda: np.ones(40 << 20),
    "stderr": lambda: sys.stderr.write("words\n"),
    "warning": lambda: warnings.warn("words", RuntimeWarning, stacklevel=1),
    "message": lambda: refuse("words " * 1000),
    "bounds": read_beyond,
}


def sniff(path, head):
    return None if path.endswith(".planted") else "no fault is planted"


def describe(paths):
    fault = paths[0].split(".")[-2]
    if fault == "nothing":  # a fault of drawn structures only
        refuse_trees(Path(paths[0]))
    FAULTS[fault]()
    start = 0 if fault == "wrong" else len(HEADER)
    return RAW.describe(paths, dtype="u1", sig_shape=SHAPE[1:], file_header=start)


def seed_of(fault):
    pixels, path = np.arange(np.prod(SHAPE), dtype="u1").reshape(SHAPE), f"scan.{fault}.planted"
    seed = Seed(f"planted {fault}", {path: HEADER + pixels.tobytes()}, {"path": path}, pixels)
    place = Place(path, len(HEADER), 0, pixels[0].nbytes, "plain", pixels.dtype)
    return replace(seed, places=[place], pixel_share=0.5)


SEEDS = [*map(seed_of, FAULTS)]


def plant():
    """Register the format, in this process only."""
    register_format(
        Format(
            name="planted",
            extensions=(),
            summary="",
            nav_shape_from="",
            sniff=sniff,
            describe=describe,
        )
    )
