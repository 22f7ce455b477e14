"""Sizes and numbers that bound what reading holds: files, maps, buffers, requests."""

from __future__ import annotations

OPEN_FILES = 8
"""Files held open at once for a chunk: sums over 512 files take as long with 1 as with 1,024."""
POPULATED_BYTES = 1 << 18
"""Bytes populated by one madvise call. All frames, or every eighth, take as long with 4 KiB as with
8 MiB; more would load pages between distant frames."""
IDLE_DESCRIPTORS = 32
"""Maximum number of idle descriptors in a process."""
BUFFERED_BYTES = 2 << 20
"""Bytes of a read: they stay in a core's share of the cache."""
KERNEL_BYTES = 512 << 10
"""Bytes of a read by a kernel: they stay in the cache of a core beside results."""
REQUESTED_BYTES = 128 << 20
"""Bytes that a kernel reads and folds before Python runs again. Sums of 64 MiB take 1.39 times as
long with 1 MiB, 1.11 with 4 MiB and 1.08 with 16 MiB."""
MAPPED_BYTES = 32 << 20
"""Largest window to map: touched pages count as memory of the process."""
LEAST_MAPPED_BYTES = 1 << 20
"""Smallest window to map, even if memory is short."""
MAPPED_SHARE = 64
"""Inverse of the share of a thread's memory limit that a worker maps at a time."""
KEPT_WINDOW_BYTES = 128 << 20
"""Largest window of a file that stays mapped, between checks of the file."""
KEPT_BYTES = 1 << 30
"""Total size of the files that stay mapped between chunks."""
KEPT_MAPS = 8
"""Number of files that stay mapped between chunks."""
SPARSE = 16
"""Mapped pages are loaded singly if the spacing of frames exceeds their bytes by this factor."""
GAPS = 1.25
"""Frames are read one by one if their spacing exceeds their bytes by this factor."""
MOST_SPAN_BYTES = 1 << 20
"""Maximum span of ranges that are read together."""
LARGE_BYTES = 4096
"""Sources larger than this are not part of every task."""
CONVERTED_BYTES = 1 << 19
"""Bytes decoded before they are converted: they stay in the cache."""
REQUESTS_AHEAD = 8
"""Number of requests sent ahead of the decoding."""
KEPT_RESPONSES = 32
"""Responses kept until they are used, or used again."""
KEPT_TABLES = 8
"""Keep the exact tables of this many layouts."""
REST_SECONDS = 60
"""A file unchanged for this long is assumed to remain unchanged."""
IDLE_SECONDS = 2.0
"""Seconds after which memory that no task has used is freed."""
