"""Loaded first by every process of a soak: many small chunks, and planted faults on request.

Planted faults prove that a soak detects them: ``SOAK_PLANTED`` names faults to put into the
package, for example ``a_descriptor,a_pixel=100``.
"""

import itertools
import os
import tempfile
import threading
import time

from dask_tiled.files.file import File
from dask_tiled.graphs import results
from dask_tiled.plans import plan
from dask_tiled.reading import reader


def a_descriptor():
    """Leak a descriptor with each opened file."""
    look = File.at.__func__

    def leaking(cls, path):
        os.dup(0)
        return look(cls, path)

    File.at = classmethod(leaking)


def a_pixel(often=1000):
    """Flip a bit in one of `often` tiles."""
    read, count = reader.read_into, itertools.count(1)

    def wrong(tile, *args):
        read(tile, *args)
        if next(count) % often == 0 and tile.size:
            tile.reshape(-1).view("u1")[0] ^= 1

    reader.read_into = wrong


def a_hang(late=1000):
    """Hang after `late` tiles, every time: a single hang may hit an operation that fails anyway."""
    read, count = reader.read_into, itertools.count(1)

    def waiting(*args):
        if next(count) >= late:
            time.sleep(1e6)
        read(*args)

    reader.read_into = waiting


def memory():
    """Keep 2 MiB with every tile."""
    read, kept = reader.read_into, []

    def keeping(*args):
        kept.append(b"x" * (2 << 20))
        read(*args)

    reader.read_into = keeping


def a_thread():
    """Leak a thread with every tile."""
    read = reader.read_into

    def leaving(*args):
        threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
        read(*args)

    reader.read_into = leaving


def a_file():
    """Leave a temporary file, once."""
    read, count = reader.read_into, itertools.count(1)

    def leaving(*args):
        if next(count) == 50:
            os.close(tempfile.mkstemp()[0])
        read(*args)

    reader.read_into = leaving


PLANTED = {f.__name__: f for f in (a_descriptor, a_pixel, a_hang, a_thread, a_file, memory)}


def prepare():
    """Set up this process for a soak."""
    plan.LEAST_TASK_BYTES, results.FEW_PIXELS = 1, 0
    for planted in filter(None, os.environ.get("SOAK_PLANTED", "").split(",")):
        name, *numbers = planted.split("=")
        PLANTED[name](*map(int, numbers))


prepare()
