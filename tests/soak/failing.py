"""Loaded first by the failing worker: faults of its machine in the files of some operations.

``SOAK_FAULTS`` is a folder with a file for each operation that is hit, named by its number, whose
content is the fault: ``blind`` hides the files of the operation, and ``eio`` fails half of all
reads and writes.
"""

import errno
import os
import re

OF_OPERATION = re.compile(r"/operations/(\d+)(?:/|$)|/(\d+)\.zarr")


class Machine:
    """Functions of the system that fail in some files."""

    def __init__(self, folder):
        self.folder, self.opened = folder, os.open

    def fault_of(self, path):
        """Return the fault of the operation that a path belongs to; empty without any."""
        found = OF_OPERATION.search(path) if isinstance(path, str) else None
        if not found:
            return ""
        try:
            fd = self.opened(os.path.join(self.folder, found[1] or found[2]), os.O_RDONLY)
        except FileNotFoundError:
            return ""
        kind = os.read(fd, 10).decode()
        os.close(fd)
        return kind

    def seeing(self, function):
        """Return a function of paths that does not see some."""

        def call(path, *args, **options):
            path = os.fspath(path) if isinstance(path, os.PathLike) else path
            if self.fault_of(path) == "blind":
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return function(path, *args, **options)

        return call

    def failing(self, function):
        """Return a function of descriptors that fails at random."""

        def call(fd, *args):
            kind = self.fault_of(os.readlink(f"/proc/self/fd/{fd}"))
            if kind == "eio" and os.urandom(1)[0] < 128:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return function(fd, *args)

        return call


# dask loads this module twice.
if where := os.environ.pop("SOAK_FAULTS", ""):
    machine = Machine(where)
    os.stat, os.open = machine.seeing(os.stat), machine.seeing(os.open)
    for name in ("pread", "preadv", "pwrite"):
        setattr(os, name, machine.failing(getattr(os, name)))
