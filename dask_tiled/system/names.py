"""Names that only some systems have, their use, and what happens without them."""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any

from dask_tiled.foreign import Names, Use

SLOWER_READS = "a lock allows one read of a process at a time"
NO_LEASES = "files that may change are read instead of mapped"
LATE_PAGES = "pages of mapped files are loaded when they are touched"
PATIENT_CHILD = "HDF5 files are read by a child process that is replaced after each failure"

NAMES: Names = {
    "os": {
        "O_CLOEXEC": Use("files that child processes do not inherit", "the system decides"),
        "O_DIRECT": Use("reads that bypass the page cache", 'io="direct" is refused'),
        "O_DIRECTORY": Use("flushing the names in a folder", "the system flushes them"),
        "O_NONBLOCK": Use("opening without waiting for a pipe", "the kind is checked before"),
        "RWF_NOWAIT": Use("detecting cached pages", "all pages are assumed to be cached"),
        "fork": Use("a fork for each job of the child that reads HDF5 files", PATIENT_CHILD),
        "memfd_create": Use(
            "batches of DataLoader workers in memory that is used again", "PyTorch sends them"
        ),
        "killpg": Use("ending the forks of that child", "the child is terminated"),
        "major": Use("the number of a device", "files count as local, and nothing as mounted"),
        "posix_fadvise": Use("writing back large files early", "the system decides"),
        "posix_fallocate": Use("allocating a file at once", "files grow while they are written"),
        "pread": Use("reading a few bytes at an offset", SLOWER_READS),
        "preadv": Use("reading into memory at an offset", SLOWER_READS),
        "pwrite": Use("writing at an offset", "a lock allows one write of a process at a time"),
        "register_at_fork": Use("resetting state in forks", "there are no forks"),
        "sysconf": Use("the size of the memory", "chunks do not depend on the memory"),
    },
    "fcntl": {
        "F_SETLEASE": Use("leases of files", NO_LEASES),
        "fcntl": Use("leases of files", NO_LEASES),
        "flock": Use("locks of exports", "two exports to one path are not detected"),
    },
    "libc": {
        "fcntl": Use("detecting writers of a file", "files unchanged for long count as at rest"),
        "madvise": Use("populating mapped pages", LATE_PAGES),
        "mmap": Use("private pages of a file", "pixels are copied"),
        "mremap": Use("private pages of a file", "pixels are copied"),
        "pread": Use("reading in compiled code", "compiled code calls Python to read"),
    },
    "mmap": {
        "MADV_RANDOM": Use("loading single pages", "pages around them are loaded, too"),
    },
    "resource": {
        "getrlimit": Use("the number of files that may be open", "it is assumed to suffice"),
        "setrlimit": Use("a memory limit of the child that reads HDF5 files", "it has no limit"),
    },
    "signal": {
        "setitimer": Use(
            "the deadline of that child", "its wall time is limited, not its CPU time"
        ),
    },
}
"""Names by module; "libc" is the C library of the process."""


WINDOWS = "dask_tiled.system.windows"
"""The module of the calls of Windows, which exists there only."""


def offered(module: str, name: str) -> Any:
    """Return a name of a module; None if the system lacks it."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return None


def libc(name: str, *, holds_gil: bool = False) -> Any:
    """Return a function of the C library; None if the system lacks it."""
    try:
        library = (ctypes.PyDLL if holds_gil else ctypes.CDLL)(None, use_errno=True)
        return getattr(library, name)
    except (OSError, TypeError, AttributeError):
        return None
