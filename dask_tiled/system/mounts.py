"""Network file systems, and mount points below a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dask_tiled.system.names import WINDOWS, offered

# fmt: off
REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "orangefs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
}
# fmt: on
"""Types of network file systems. All user-space types count as such, except on local block
devices."""
MOUNTS = "/proc/self/mountinfo"

_major: Any
_minor: Any
_major, _minor = offered("os", "major"), offered("os", "minor")
_mounts: dict[tuple[int, int], str] = {}


def _is_network(path: str) -> bool:
    """Return whether a file lies on a network file system.

    A file counts as local if the system has no table of mounts. Raise an OSError if the file does
    not exist, or the table cannot be opened.
    """
    if _major is None:
        return False
    device = os.stat(path).st_dev
    number = _major(device), _minor(device)
    if number not in _mounts:  # not read yet, or mounted since
        _mounts.update({number: "", **types()})
    return _mounts[number] in REMOTE


is_network: Callable[[str], bool] = offered(WINDOWS, "is_network") or _is_network


def types() -> dict[tuple[int, int], str]:
    """Return the types of the mounted file systems by device; none if the system lists none."""
    with (
        suppress(FileNotFoundError, PermissionError),
        open(MOUNTS, encoding="utf-8", errors="surrogateescape") as table,
    ):
        return dict(map(parse_mount, table))
    return {}


def parse_mount(line: str) -> tuple[tuple[int, int], str]:
    """Parse the device and the type in a line of the table."""
    before, _, after = line.partition(" - ")
    major, _, minor = before.split()[2].partition(":")
    kind = after.split()[0]
    in_user_space = kind == "fuse" or kind.startswith("fuse.")
    return (int(major), int(minor)), "nfs" if in_user_space else kind


def mounted_below(path: str) -> set[str]:
    """Return the mount points below a folder, relative to it; none if the system lists none."""
    root = os.fsencode(os.path.join(os.path.realpath(path), ""))
    with suppress(FileNotFoundError), open(MOUNTS, "rb") as file:
        escaped = (line.split(b" ")[4] for line in file)
        places = [re.sub(rb"\\(\d{3})", lambda x: bytes([int(x[1], 8)]), x) for x in escaped]
        return {os.fsdecode(x.removeprefix(root)) for x in places if x.startswith(root)}
    return set()
