"""Which files rest: what may be changed while it is read is not to be mapped."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from dask import config

from dask_tiled.errors import check_whole
from dask_tiled.model.files import File
from dask_tiled.model.paths import SHORT, is_url, with_room

REST_SECONDS = 60
"""A file that has been left alone for so long is taken for one that stays so."""


def rests(file: File, fd: int) -> bool:
    """Return whether a file stays as it is, as far as can be told: to map it is safe then.

    It has been left alone for as many seconds as ``dask-tiled.rest-seconds`` of dask's
    configuration says, lies on this machine, and neither grows nor is open for writing. As it lies
    here, its times are of the clock of this machine; such as are still to come tell no age.

    Raises
    ------
    DatasetError
        The configuration is no number of seconds.
    """
    name = "dask-tiled.rest-seconds"
    seconds = check_whole(name, config.get(name, REST_SECONDS), least=0)
    age = time.time_ns() - max(file.mtime_ns, file.ctime_ns)
    young = age < 0 or age < seconds * 10**9
    return not (young or not can_rest(file) or is_written(fd))


def can_rest(file: File) -> bool:
    """Return whether a file lies on this machine and does not grow."""
    return not (file.grows or is_remote(file.path))


def is_written(fd: int) -> bool:
    """Return whether another program has a file open for writing, where that can be told.

    Linux tells the owner of a file, and root.
    """
    with leased(fd) as refused:
        return refused == errno.EAGAIN


@contextmanager
def leased(fd: int) -> Iterator[int]:
    """Hold a lease of a file: to open it for writing, or to cut it short, has to wait.

    Linux grants one to the owner of a file, and to root, while no program has it open for writing.
    The signal that asks for it back is one that is ignored by default.

    Yields
    ------
    int
        0, or the number of the error if there is no lease.
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
        with suppress(OSError):  # it has been taken away, which Linux does after 45 s
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


# fmt: off
REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "orangefs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
}
# fmt: on
"""Types of network file systems; everything in user space counts as one, too,
but for what lies on a block device of this machine."""


MOUNTS = "/proc/self/mountinfo"
_mounts: dict[tuple[int, int], str] = {}


def is_remote(path: str) -> bool:
    """Return whether a file lies on a network file system, where mapped pages can fail to come.

    Where the system has no table of mounts to look it up in, it counts as local.
    """
    if is_url(path):
        return True
    try:
        device = os.stat(path).st_dev
    except OSError:
        return False
    number = os.major(device), os.minor(device)
    if number not in _mounts:  # never looked up, or mounted since
        _mounts.update({number: "", **_types()})
    return _mounts[number] in REMOTE


def _types() -> dict[tuple[int, int], str]:
    """List the types of the mounted file systems by device."""
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
    """Read device and type from a line of ``/proc/self/mountinfo``."""
    before, _, after = line.partition(" - ")
    major, _, minor = before.split()[2].partition(":")
    kind = after.split()[0]
    in_user_space = kind == "fuse" or kind.startswith("fuse.")
    return (int(major), int(minor)), "nfs" if in_user_space else kind
