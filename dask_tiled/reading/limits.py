"""Sizes and numbers that bound what reading holds: files, maps, buffers, requests."""

from __future__ import annotations

OPEN_FILES = 8
"""Files held open at once for a chunk, and checked once more at its end. Sums over 512 files, and
those of three arrays, take as long with 1 as with 1,024: the number bounds descriptors, to 128 for
16 threads."""
POPULATED_BYTES = 1 << 18
"""Bytes populated by one madvise call. All frames, or every eighth, take as long with 4 KiB as with
8 MiB; more would load pages between distant frames."""
IDLE_DESCRIPTORS = 32
"""Maximum number of idle descriptors in a process: an eighth of the usual limit of macOS, 256.
Chunks of 128 KiB take 1.07 times as long to read without any."""
BUFFERED_BYTES = 2 << 20
"""Bytes of a read: they stay in a core's share of the cache. Reading takes .97 to 1.01 with 128 KiB
to 8 MiB, on files in the page cache."""
KERNEL_BYTES = 512 << 10
"""Bytes of a read by a kernel: they stay in the cache of a core beside results. Sums take .91 to
.97 with 32 KiB to 2 MiB."""
REQUESTED_BYTES = 128 << 20
"""Bytes that a kernel reads and folds before Python runs again. Sums of 64 MiB take 1.39 times as
long with 1 MiB, 1.11 with 4 MiB and 1.08 with 16 MiB."""
MAPPED_BYTES = 32 << 20
"""Largest window to map: touched pages count as memory of the process. Sums take 1.5 with 1 MiB,
1.08 with 4 MiB, and .97 with 128 MiB."""
LEAST_MAPPED_BYTES = 1 << 20
"""Smallest window to map, even if memory is short: sums take 1.5 with it."""
MAPPED_SHARE = 64
"""Inverse of the share of a thread's memory limit that a worker maps at a time: 32 MiB of 2 GiB."""
KEPT_WINDOW_BYTES = 128 << 20
"""Largest window of a file that stays mapped, between checks of the file: some 10 ms of reading."""
KEPT_BYTES = 1 << 30
"""Total size of the files that stay mapped between chunks: pages of small files, which the system
reclaims on demand."""
KEPT_MAPS = 8
"""Number of files that stay mapped between chunks, each with a descriptor of its own."""
SPARSE = 16
"""Mapped pages are loaded singly if the spacing of frames exceeds their bytes by this factor: the
system loads 16 pages around one. In the page cache, sums take .94 to 1.01 with 2 and with 128."""
GAPS = 1.25
"""Frames are read one by one if their spacing exceeds their bytes by this factor: at most a quarter
more is read than needed. In the page cache, sums take .92 to 1.04 with 1 to 8."""
MOST_READ_FRAMES = 1 << 18
"""Maximum number of frames read at once; their numbers and offsets take about 20 MiB. As many
frames of 8 x 8 pixels take 1.4 times as long in parts of 4,096."""
MOST_SPAN_BYTES = 1 << 20
"""Maximum span of ranges that are read together: half of a buffer."""
LARGE_BYTES = 4096
"""Sources larger than this are not part of every task: 10,000 tasks send at most 40 MiB of them."""
CONVERTED_BYTES = 2 << 20
"""Bytes decoded before they are converted. Corrected frames take 1.6 times as long with 128 KiB,
1.3 with 512 KiB, and .95 with 4 MiB."""
REQUESTS_AHEAD = 8
"""Number of requests sent ahead of the decoding: at 50 ms each, of 4 MiB, they fill 5 Gbit/s."""
KEPT_RESPONSES = 32
"""Responses kept until they are used, or used again: four times those that are sent ahead."""
KEPT_TABLES = 8
"""Keep the exact tables of this many layouts: as many as files that stay open."""
REST_SECONDS = 60
"""A file unchanged for this long is assumed to remain unchanged."""
IDLE_SECONDS = 2.0
"""Seconds after which memory that no task has used is freed."""
PLANNED_FRAMES = 1 << 18
"""Frames whose byte ranges are planned at a time: 24 MiB of numbers."""
MOST_BOX_CELLS = 1 << 24
"""If boxes divide one another into more cells than this, they are treated as disjoint: a byte for
each is 16 MiB."""
EVENT_BYTES = 9 * 8
"""Memory of the numbers of a sparse piece."""
FRAME_BYTES = 96
"""Memory of the number and the byte ranges of a frame: twelve numbers of 8 bytes."""
BLOCK_RANGE_BYTES = 1280
"""Memory of the numbers of a block."""
CELL_PIXELS = 256
"""Edge of a cell in pixels: all inner pixels of a cell are repaired from one box. Frames of 1024 x
1024 with three bad pixels take 1.0 with 32 to 2,048."""
