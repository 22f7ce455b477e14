"""Calls of Windows, with the signatures of POSIX; importing it elsewhere raises an ImportError.

Files are opened so that other programs may still write, rename and remove them.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from ctypes import c_bool, c_int, c_int64, c_uint32, c_void_p, c_wchar_p
from stat import S_IFREG
from typing import Any

from dask_tiled.system.names import offered

WinDLL: Any = offered("ctypes", "WinDLL")
get_last_error: Any = offered("ctypes", "get_last_error")
win_error: Any = offered("ctypes", "FormatError")
get_osfhandle: Any = offered("msvcrt", "get_osfhandle")
open_osfhandle: Any = offered("msvcrt", "open_osfhandle")
if WinDLL is None or get_osfhandle is None:
    raise ImportError("this system is not Windows")

READ = 0x80000000  # right to request
SHARE_READ, SHARE_WRITE, SHARE_DELETE = 1, 2, 4  # rights that others keep
OPEN_EXISTING, OPEN_ALWAYS = 3, 4
DELETE_ON_CLOSE, NO_BUFFERING = 0x04000000, 0x20000000  # flags
ACCESS_DENIED, SHARING_VIOLATION, END_OF_FILE, NO_READER = 5, 32, 38, 232  # errors
NETWORK_DRIVE, NO_ROOT = 4, 1
MOST_BYTES = 1 << 30
"""Bytes of one call: sizes have 32 bits."""
BASIC, STANDARD = 0, 1  # kinds of information
EPOCH = 116444736000000000
"""Start of 1970 in units of 100 ns since 1601."""
UNLONG = 240
"""Longest path that all calls accept without a prefix."""


class _Offset(ctypes.Structure):
    """An OVERLAPPED structure: where a synchronous call reads or writes."""

    _fields_ = [("internal", c_void_p * 2), ("offset", c_int64), ("event", c_void_p)]


class _Basic(ctypes.Structure):
    """A FILE_BASIC_INFO structure; times are in 100 ns."""

    _fields_ = [
        ("created", c_int64),
        ("accessed", c_int64),
        ("written", c_int64),
        ("changed", c_int64),
        ("attributes", c_uint32),
    ]


class _Standard(ctypes.Structure):
    """A FILE_STANDARD_INFO structure."""

    _fields_ = [
        ("allocated", c_int64),
        ("size", c_int64),
        ("links", c_uint32),
        ("deleted", c_bool),
        ("folder", c_bool),
    ]


class _Memory(ctypes.Structure):
    """A MEMORYSTATUSEX structure."""

    _fields_ = [
        ("size", c_uint32),
        ("load", c_uint32),
        ("physical", c_int64),
        ("rest", c_int64 * 6),
    ]


_kernel32 = WinDLL("kernel32", use_last_error=True)
_kernel32.CreateFileW.restype = c_void_p
_kernel32.CreateFileW.argtypes = (
    c_wchar_p,
    c_uint32,
    c_uint32,
    c_void_p,
    c_uint32,
    c_uint32,
    c_void_p,
)
_kernel32.CloseHandle.argtypes = (c_void_p,)
for _call in (_kernel32.ReadFile, _kernel32.WriteFile):
    _call.argtypes = c_void_p, c_void_p, c_uint32, c_void_p, c_void_p
_kernel32.GetFileInformationByHandleEx.argtypes = c_void_p, c_int, c_void_p, c_uint32
_kernel32.GetDriveTypeW.argtypes = (c_wchar_p,)


def _raised(path: str | None = None) -> OSError:
    """Return the error of the last call."""
    code = get_last_error()
    return OSError(0, win_error(code), path, code)


def _created(path: str, shares: int, how: int, flags: int) -> int:
    """Open a file for reading, and return a descriptor that child processes do not inherit."""
    handle = _kernel32.CreateFileW(extended(path), READ, shares, None, how, flags, None)
    if handle == c_void_p(-1).value:
        raise _raised(path)
    try:
        return int(open_osfhandle(handle, os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT))  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        _kernel32.CloseHandle(handle)
        raise


def open_file(path: str, flags: int) -> int:
    """Open a file for reading; the only flag is ``NO_BUFFERING``."""
    shares = SHARE_READ | SHARE_WRITE | SHARE_DELETE
    return _created(path, shares, OPEN_EXISTING, flags & NO_BUFFERING)


def open_locked(path: str) -> int:
    """Lock a folder by a file next to it, which Windows removes when it is closed."""
    try:
        return _created(f"{path}.lock", 0, OPEN_ALWAYS, DELETE_ON_CLOSE)
    except OSError as error:
        # Access is denied while the file is being removed.
        if getattr(error, "winerror", None) in {SHARING_VIOLATION, ACCESS_DENIED}:
            raise BlockingIOError(errno.EAGAIN, error.strerror, path) from None
        raise


def is_locked(descriptor: int, path: str) -> bool:  # noqa: ARG001 - files are locked by name
    """Return whether a lock is of the folder that has the path now."""
    return True


def fstat_again(fd: int, inode: int) -> os.stat_result:
    """Return the status of an open regular file whose inode number is known.

    It cannot change while the file is open. ``os.fstat`` determines it together with the number of
    the volume, for which Wine takes a hundred times as long.
    """
    basic, standard = _information(fd, BASIC, _Basic()), _information(fd, STANDARD, _Standard())
    times = [(time - EPOCH) * 100 for time in (basic.accessed, basic.written, basic.created)]
    fields = S_IFREG, inode, 0, standard.links, 0, 0, standard.size, *(t // 10**9 for t in times)
    names = "st_atime_ns", "st_mtime_ns", "st_ctime_ns"
    return os.stat_result(fields, dict(zip(names, times, strict=True)))


def _information(fd: int, kind: int, out: Any) -> Any:
    size = ctypes.sizeof(out)
    if not _kernel32.GetFileInformationByHandleEx(get_osfhandle(fd), kind, ctypes.byref(out), size):
        raise _raised()
    return out


def preadv(fd: int, buffers: Sequence[Any], at: int) -> int:
    """Read into a buffer at an offset of a file; return 0 at its end."""
    (buffer,) = buffers
    return _moved(_kernel32.ReadFile, fd, (ctypes.c_char * len(buffer)).from_buffer(buffer), at)


def pread(fd: int, nbytes: int, at: int) -> bytes:
    """Read bytes at an offset of a file; fewer at its end."""
    data = bytearray(nbytes)
    return bytes(memoryview(data)[: preadv(fd, [data], at)]) if nbytes else b""


def pwrite(fd: int, data: Any, at: int) -> int:
    """Write bytes at an offset of a file."""
    part = bytes(memoryview(data)[:MOST_BYTES])
    return _moved(_kernel32.WriteFile, fd, ctypes.create_string_buffer(part, len(part)), at)


def _moved(call: Any, fd: int, buffer: ctypes.Array[Any], at: int) -> int:
    """Read or write at an offset, and return the number of bytes."""
    count, place = c_uint32(), _Offset(offset=at)
    nbytes = min(len(buffer), MOST_BYTES)
    done = call(get_osfhandle(fd), buffer, nbytes, ctypes.byref(count), ctypes.byref(place))
    if not done and get_last_error() != END_OF_FILE:
        raise _raised()
    return count.value


def lacks_reader(fd: int) -> bool:
    """Return whether a descriptor is a pipe whose reader has closed it."""
    try:
        handle = get_osfhandle(fd)
    except OSError:  # the descriptor is closed
        return False
    done = _kernel32.WriteFile(handle, None, 0, ctypes.byref(c_uint32()), None)
    return not done and get_last_error() == NO_READER


def extended(path: str) -> str:
    r"""Return a path of any length as one that calls accept: ``\\?\C:\...`` if it is long."""
    if len(path) < UNLONG or path.startswith("\\\\?\\"):
        return path
    full = os.path.abspath(path)
    return f"\\\\?\\UNC{full[1:]}" if full.startswith("\\\\") else f"\\\\?\\{full}"


def physical_memory() -> int:
    """Return the size of the memory in bytes."""
    status = _Memory(size=ctypes.sizeof(_Memory))
    return int(status.physical) if _kernel32.GlobalMemoryStatusEx(ctypes.byref(status)) else 0


def is_network(path: str) -> bool:
    r"""Return whether a path is on a network drive, or that of a share, ``\\server\...``."""
    drive = os.path.splitdrive(os.path.realpath(path))[0].replace("\\\\?\\UNC\\", "\\\\")
    drive = drive.removeprefix("\\\\?\\")
    return drive.startswith("\\\\") or _kernel32.GetDriveTypeW(f"{drive}\\") == NETWORK_DRIVE
