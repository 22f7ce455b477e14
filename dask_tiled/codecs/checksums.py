"""Checksums: CRC32C, and the Fletcher32 of HDF5."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_tiled.model.indexing import Bytes


def crc32c(data: Any) -> int:
    """Return the CRC32C of bytes or of an array in C order."""
    from google_crc32c import value

    view = np.frombuffer(data, np.uint8) if memoryview(data).nbytes else np.empty(0, np.uint8)
    view.flags.writeable = False  # required by ``value``
    return int(value(view))


def seal(memory: Bytes, count: int) -> Bytes:
    """Append the CRC32C of the first ``count`` bytes; return bytes and checksum."""
    memory[count : count + 4] = np.array([crc32c(memory[:count])], "<u4").view(np.uint8)
    return memory[: count + 4]


def without_crc32c(data: Any) -> memoryview:
    """Check and remove the CRC32C at the end.

    Raise a ValueError if the checksum does not match.
    """
    data = memoryview(data).cast("B")
    if len(data) < 4:
        raise ValueError(f"{len(data)} bytes, too short for a checksum")
    found, stored = crc32c(data[:-4]), int.from_bytes(data[-4:], "little")
    if found != stored:
        raise ValueError(f"CRC32C {found:#010x}, but stored {stored:#010x}")
    return data[:-4]


def without_fletcher32(data: Bytes) -> Bytes:
    """Check and remove the checksum of HDF5; some old files have the bytes of its halves swapped.

    Raise a RuntimeError if the checksum does not match.
    """
    from numcodecs import Fletcher32

    try:
        Fletcher32().decode(np.ascontiguousarray(data))
    except RuntimeError:
        if len(data) < 4:
            raise
        Fletcher32().decode(np.concatenate((data[:-4], data[[-3, -4, -1, -2]])))
    return data[:-4]
