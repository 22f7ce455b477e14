"""Other programs that may change a file: writers, leases that they wait for, other machines."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import call
from typing import Any

from dask_tiled.system.mounts import types
from dask_tiled.system.names import WINDOWS, libc, offered

_fcntl: Any = offered("fcntl", "fcntl")
_SET_LEASE, _SET_SIGNAL = offered("fcntl", "F_SETLEASE"), offered("fcntl", "F_SETSIG")
_READ, _NONE = offered("fcntl", "F_RDLCK"), offered("fcntl", "F_UNLCK")
_SIGNAL = offered("signal", "SIGURG")
"""Announces the end of a lease; ignored by default."""
_EXISTS = None not in (_fcntl, _SET_LEASE, _SET_SIGNAL, _SIGNAL)
_held_fcntl = libc("fcntl", holds_gil=True)
_major, _minor = offered("os", "major"), offered("os", "minor")
_types: dict[tuple[int, int], str] = {}

# fmt: off
REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "orangefs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
}
# fmt: on
"""Types of network file systems. All user-space types count as such, except on local block
devices."""


def is_written(fd: int) -> bool:
    """Return whether a program has a file open for writing, as far as the system reports it.

    Linux reports it to the owner of the file and to root: neither gets a lease then.
    """
    if not _EXISTS or _held_fcntl is None:
        return False
    try:
        _fcntl(fd, _SET_SIGNAL, _SIGNAL)
    except OSError:
        return False
    lease = partial(_held_fcntl, fd, _SET_LEASE)
    calls = partial(lease, _READ), ctypes.get_errno, partial(lease, _NONE)
    # The GIL is held from the lease to its end. Otherwise a thread that opens the file for writing
    # and holds the GIL, as h5py does, would wait for a lease that never ends.
    answers: list[int] = list(map(call, calls))  # type: ignore[arg-type]
    return answers[0] != 0 and answers[1] == errno.EAGAIN


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
    if not _EXISTS:
        yield errno.ENOSYS
        return
    try:
        _fcntl(fd, _SET_SIGNAL, _SIGNAL)
        _fcntl(fd, _SET_LEASE, _READ)
    except OSError as error:
        yield error.errno or errno.EIO
        return
    try:
        yield 0
    finally:
        with suppress(OSError):  # after 45 s, Linux revokes a lease
            _fcntl(fd, _SET_LEASE, _NONE)


def _is_network(path: str) -> bool:
    """Return whether a file lies on a network file system.

    A file counts as local if the system has no table of mounts. Raise an OSError if the file does
    not exist, or the table cannot be opened.
    """
    if _major is None:
        return False
    device = os.stat(path).st_dev
    number = _major(device), _minor(device)
    if number not in _types:  # not read yet, or mounted since
        _types.update({number: "", **types()})
    return _types[number] in REMOTE


is_network: Callable[[str], bool] = offered(WINDOWS, "is_network") or _is_network
