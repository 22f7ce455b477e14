"""Faults of files and disks during reads and writes."""

import os
import shutil
import time
from contextlib import suppress

RENAMED = ("replaced", "removed")
"""Atomic changes, which may happen to a single file while it is opened."""
SHORTENED = ("truncated", "rewritten shorter")
CHANGED = (*RENAMED, *SHORTENED, "rewritten", "put back", "grown", "status")
OF_WORKERS = (*("worker killed", "worker stopped", "worker paused"), "worker blind", "worker eio")
"""Faults of a worker; the last two in the files of an operation, until it is over."""
FAILING = OF_WORKERS[3:]
NOTICED = (*RENAMED, "truncated")
"""Changes that followed files detect; appended and overwritten bytes count as new data."""


def is_written(path):
    """Return whether a growing file exists and has content."""
    return path.exists() and path.stat().st_size > 0


def change(kind, folder, versions, draw):
    """Change the files of a sample, and return whether any file was there."""
    if kind in {"truncated", "grown", "status", "removed"}:
        names = [name for name in versions.cut if is_written(folder / name)]
        if not names:
            return False
        path = folder / names[draw.integers(len(names))]
        size = path.stat().st_size
        if kind == "truncated":
            os.truncate(path, draw.integers(size))
        elif kind == "grown":
            with path.open("ab") as file:
                file.write(draw.bytes(draw.integers(1, 5000)))
        elif kind == "status":
            path.chmod(0o640)
        else:
            path.unlink()
        return True
    # Copy headers, too: the other version is another scan.
    root = versions.folders[1]
    for source in sorted(path for path in root.rglob("*") if path.is_file()):
        target = folder / source.relative_to(root)
        data = source.read_bytes()
        if kind == "replaced":
            beside = target.with_name(f".{target.name}.new")
            beside.write_bytes(data)
            beside.replace(target)
            continue
        before = target.stat()
        with target.open("wb" if kind == "rewritten shorter" else "r+b") as file:
            file.write(data)
            file.truncate()
        if kind == "put back" and before.st_size == len(data):
            os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    return True


def fill(disk, free):
    """Fill a disk up to `free` bytes, while other processes write to it."""
    with (disk / "ballast").open("wb") as file:
        for _ in range(10):
            left = shutil.disk_usage(disk).free - free
            with suppress(OSError):
                if left > 0:
                    os.posix_fallocate(file.fileno(), 0, left)
                return


def empty(disk):
    """Free the disk, and wait, as starting processes or late tasks may hold the space longer."""
    ballast, patience = disk / "ballast", time.monotonic() + 10
    if ballast.exists():
        wanted = shutil.disk_usage(disk).free + ballast.stat().st_blocks * 512
        ballast.unlink()
        while shutil.disk_usage(disk).free < wanted and time.monotonic() < patience:
            time.sleep(0.01)
