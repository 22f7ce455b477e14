"""Which files lie on another machine."""

from __future__ import annotations

import os

REMOTE = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "pvfs2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "wekafs",
    }
)
"""Types of network file systems; everything in user space counts as one, too,
but for what lies on a block device of this machine."""


_mounts: dict[tuple[int, int], str] = {}


def is_remote(path: str) -> bool:
    """Tell whether a file lies on a network file system, where mapped pages can fail to come.

    Where the system has no table of mounts to look it up in, it counts as local.
    """
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
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            lines = table.readlines()
    except OSError:
        return {}
    return dict(map(parse_mount, lines))


def parse_mount(line: str) -> tuple[tuple[int, int], str]:
    """Read device and type from a line of ``/proc/self/mountinfo``."""
    before, _, after = line.partition(" - ")
    major, _, minor = before.split()[2].partition(":")
    kind = after.split()[0]
    in_user_space = kind == "fuse" or kind.startswith("fuse.")
    return (int(major), int(minor)), "nfs" if in_user_space else kind
