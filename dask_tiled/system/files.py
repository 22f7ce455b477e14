"""Open local files; read, write and flush them at an offset."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from dask_tiled.system.names import WINDOWS, libc, offered

TO_READ = os.O_RDONLY | (offered("os", "O_CLOEXEC") or 0) | (offered("os", "O_NONBLOCK") or 0)
"""Flags to open a file: a pipe does not block, and child processes do not inherit it."""
DIRECT: int | None = offered("os", "O_DIRECT") or offered(WINDOWS, "NO_BUFFERING")
"""Flag to bypass the page cache: reads have to be aligned. None if the system has none."""
FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
"""Errors of a disk without room."""
_CAN_FLUSH_FOLDERS = offered("os", "O_DIRECTORY") is not None
_fallocate, _fadvise = offered("os", "posix_fallocate"), offered("os", "posix_fadvise")
_one_at_a_time = threading.Lock()
HINDERS = offered(WINDOWS, "open_file") is not None
"""Whether an open file cannot be replaced, and a mapped one not be truncated or removed."""


def _pread(fd: int, nbytes: int, at: int) -> bytes:
    """Read bytes at an offset of a file; fewer at its end."""
    with _one_at_a_time:
        os.lseek(fd, at, os.SEEK_SET)
        return os.read(fd, nbytes)


def _preadv(fd: int, buffers: Sequence[Any], at: int) -> int:
    """Read into a buffer at an offset of a file; return 0 at its end."""
    (buffer,) = buffers
    with _one_at_a_time, io.FileIO(fd, closefd=False) as file:
        file.seek(at)
        return file.readinto(buffer) or 0


def _pwrite(fd: int, data: Any, at: int) -> int:
    """Write bytes at an offset of a file; return their number."""
    with _one_at_a_time:
        os.lseek(fd, at, os.SEEK_SET)
        return os.write(fd, data)


fstat_again: Callable[[int, int], os.stat_result] | None = offered(WINDOWS, "fstat_again")
"""Returns the status of an open file with a known inode number; None where ``os.fstat`` is fast."""
open_file: Callable[[str, int], int] = offered(WINDOWS, "open_file") or os.open
pread: Callable[[int, int, int], bytes]
preadv: Callable[[int, Sequence[Any], int], int]
pwrite: Callable[[int, Any, int], int]
pread = offered("os", "pread") or offered(WINDOWS, "pread") or _pread
preadv = offered("os", "preadv") or offered(WINDOWS, "preadv") or _preadv
pwrite = offered("os", "pwrite") or offered(WINDOWS, "pwrite") or _pwrite


def _called_back(fd: int, address: int, nbytes: int, at: int) -> int:
    """Read bytes into memory at an address; return -1 if they cannot be read."""
    try:
        return preadv(fd, [(ctypes.c_char * nbytes).from_address(address)], at)
    except OSError:
        return -1


_called = libc("pread") or ctypes.CFUNCTYPE(
    *(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
)(_called_back)
PREAD_ADDRESS = ctypes.cast(_called, ctypes.c_void_p).value or 0
"""Address of a function for compiled code, with the signature of ``pread``."""


def allocate(fd: int, nbytes: int, at: int = 0) -> None:
    """Allocate blocks of a file before they are written, where the system can.

    It halves the time to write them. File systems that cannot are emulated by the C library, which
    reads and writes a byte of each block.
    """
    if nbytes and _fallocate is not None:
        _fallocate(fd, at, nbytes)


def write_back(fd: int) -> None:
    """Begin to write a file to the disk, where the system can."""
    if _fadvise is not None:
        _fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def flush(path: str) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    if os.path.isdir(path) and not _CAN_FLUSH_FOLDERS:
        return
    opened = os.open(path, os.O_RDONLY if _CAN_FLUSH_FOLDERS else os.O_RDWR)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # folders, on some systems
            raise
    finally:
        os.close(opened)
