"""Detect files at rest: mapping a file that may change while it is read is not safe."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from operator import call

from dask import config

from dask_tiled.errors import check_whole
from dask_tiled.model.files import File
from dask_tiled.model.paths import SHORT, is_url, with_room

REST_SECONDS = 60
"""A file unchanged for this long is assumed to remain unchanged."""


def rests(file: File, fd: int) -> bool:
    """Return whether a file is at rest, so that it is safe to map it.

    It has been unchanged for ``dask-tiled.rest-seconds`` of dask's configuration, lies on this
    machine, and neither grows nor is open for writing. The times of a local file are of this
    machine's clock; a time in the future is no evidence of rest.

    Raises
    ------
    DatasetError
        The configuration is not a number of seconds.
    """
    name = "dask-tiled.rest-seconds"
    seconds = check_whole(name, config.get(name, REST_SECONDS), least=0)
    age = time.time_ns() - max(file.mtime_ns, file.ctime_ns)
    young = age < 0 or age < seconds * 10**9
    return not (young or not can_rest(file) or is_written(fd))


def can_rest(file: File) -> bool:
    """Return whether a file is local and does not grow."""
    return not (file.grows or is_remote(file.path))


def is_written(fd: int) -> bool:
    """Return whether a program has a file open for writing, as far as the system reports it.

    Linux reports it to the owner of the file and to root: neither gets a lease then.
    """
    try:
        import fcntl

        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        lease = partial(_library().fcntl, fd, fcntl.F_SETLEASE)
        calls = partial(lease, fcntl.F_RDLCK), ctypes.get_errno, partial(lease, fcntl.F_UNLCK)
    except (ImportError, AttributeError, OSError):  # another system
        return False
    # The GIL is held from the lease to its end. Otherwise a thread that opens the file for writing
    # and holds the GIL, as h5py does, would wait for a lease that never ends.
    answers: list[int] = list(map(call, calls))  # type: ignore[arg-type]
    return answers[0] != 0 and answers[1] == errno.EAGAIN


@cache
def _library() -> ctypes.PyDLL:
    """Return the C library, whose functions are called with the GIL held."""
    return ctypes.PyDLL(None, use_errno=True)


@contextmanager
def leased(fd: int) -> Iterator[int]:
    """Hold a read lease of a file: opening it for writing, or truncating it, blocks meanwhile.

    Linux grants a lease to the owner of the file and to root, while no program has the file open
    for writing. The kernel announces the end of a lease by a signal that is ignored by default.

    Yields
    ------
    int
        0, or the errno if no lease was granted.
    """
    try:
        import fcntl

        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except (ImportError, AttributeError):  # another system
        yield errno.ENOSYS
        return
    except OSError as error:
        yield error.errno or errno.EIO
        return
    try:
        yield 0
    finally:
        with suppress(OSError):  # after 45 s, Linux revokes a lease
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


# fmt: off
REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "orangefs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
}
# fmt: on
"""Types of network file systems. All user-space types count as such, except on local block
devices."""


MOUNTS = "/proc/self/mountinfo"
_mounts: dict[tuple[int, int], str] = {}


def is_remote(path: str) -> bool:
    """Return whether a file lies on a network file system, where loading mapped pages can fail.

    A file counts as local if the system has no table of mounts.
    """
    if is_url(path):
        return True
    try:
        device = os.stat(path).st_dev
    except OSError:
        return False
    number = os.major(device), os.minor(device)
    if number not in _mounts:  # not read yet, or mounted since
        _mounts.update({number: "", **_types()})
    return _mounts[number] in REMOTE


def _types() -> dict[tuple[int, int], str]:
    """Return the types of the mounted file systems by device."""
    try:
        table = with_room(partial(open, MOUNTS, encoding="utf-8", errors="surrogateescape"), MOUNTS)
    except OSError as error:
        if error.errno in SHORT:
            raise
        return {}
    with table:
        lines = table.readlines()
    return dict(map(parse_mount, lines))


def parse_mount(line: str) -> tuple[tuple[int, int], str]:
    """Parse the device and the type in a line of ``/proc/self/mountinfo``."""
    before, _, after = line.partition(" - ")
    major, _, minor = before.split()[2].partition(":")
    kind = after.split()[0]
    in_user_space = kind == "fuse" or kind.startswith("fuse.")
    return (int(major), int(minor)), "nfs" if in_user_space else kind
