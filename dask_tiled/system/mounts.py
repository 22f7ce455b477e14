"""Types of mounted file systems, and mount points below a folder."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from dask_tiled.system.names import offered

MOUNTS = "/proc/self/mountinfo"
_HAS_DEVICES = offered("os", "major") is not None


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
    if not _HAS_DEVICES:
        return set()
    root = os.fsencode(os.path.join(os.path.realpath(path), ""))
    with suppress(FileNotFoundError), open(MOUNTS, "rb") as file:
        escaped = (line.split(b" ")[4] for line in file)
        places = [re.sub(rb"\\(\d{3})", lambda x: bytes([int(x[1], 8)]), x) for x in escaped]
        return {os.fsdecode(x.removeprefix(root)) for x in places if x.startswith(root)}
    return set()
