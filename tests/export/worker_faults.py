"""Loaded first by workers that fail: ``WORKER_FAULTS`` names faults, as ``eio=0.02,pause=3``."""

import errno
import os
import threading
import time

import numpy as np

FAULTS = dict(pair.split("=") for pair in os.environ.get("WORKER_FAULTS", "").split(",") if pair)
DRAW = np.random.default_rng([int(FAULTS.get("seed", 0)), os.getpid()])


def eio(share):
    """Fail to read and write files, in a share of the calls."""

    def failing(true):
        def call(fd, *args):
            if DRAW.random() < share and is_regular(fd):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return true(fd, *args)

        return call

    for name in ("preadv", "posix_fallocate"):
        setattr(os, name, failing(getattr(os, name)))


def is_regular(fd):
    """Return whether a descriptor is that of the scan or of an export."""
    return ".raw" in (path := os.readlink(f"/proc/self/fd/{fd}")) or ".zarr.part" in path


def short(share):
    """Read less than was asked for, in a share of the calls."""
    preadv = os.preadv

    def call(fd, buffers, *args):
        if DRAW.random() < share:
            buffers = [memoryview(buffers[0])[: max(1, len(memoryview(buffers[0])) // 3)]]
        return preadv(fd, buffers, *args)

    os.preadv = call


def pause(seconds):
    """Stop this process for a second, every few seconds."""

    def stop():
        while True:
            time.sleep(seconds)
            os.system(f"(sleep 1; kill -CONT {os.getpid()}) & kill -STOP {os.getpid()}")  # noqa: S605

    threading.Thread(target=stop, daemon=True).start()


def dask_setup(worker):
    """Begin to fail, once the worker runs."""
    assert worker.address
    for name, value in FAULTS.items():
        if name != "seed":
            {"eio": eio, "short": short, "pause": pause}[name](float(value))
