"""Sizes and numbers that bound chunks and tiles."""

from __future__ import annotations

THREAD_CHUNKS = 8
"""Chunks that must fit into the memory of a thread: results, copies, and chunks that wait."""
PROCESSOR_CHUNKS, DECODED_CHUNKS = 2, 32
"""Minimum number of chunks per processor, and minimum number of chunks of an array with
compressed pixels."""
LEAST_SHARE = 16 << 20
"""Chunks are not made smaller than this for the sake of parallelism."""
LEAST_PART_BYTES = 4 << 20
"""Parts of large frames are not smaller: functions of chunks take several times their memory."""
MOST_ARRIVING_ROWS = 4096
"""Number of rows of a scan, whose frames are arriving, above which several rows are one chunk."""
USUAL_COUNT = 10_000
"""Number of chunks above which they grow: a scheduler takes about a millisecond for each task."""
GROWN_CHUNKS = 2
"""Chunks that must fit into the memory of a thread if they grow: tiles bound the memory of jobs."""
MOST_CHUNK_FRAMES = 1 << 18
"""Maximum number of frames of a chunk: more frames need more memory for numbers and offsets than
for pixels."""
MOST_CHUNKS = 1 << 22
"""Maximum number of chunks of an array; more take seconds and gigabytes before anything is
computed."""
LEAST_TILE_BYTES, MOST_TILE_BYTES = 128 << 10, 1 << 20
"""Smaller tiles cost more calls than they save cache misses. Sums by ``map_tiles`` of 64 MiB take
1.3 to 1.5 with 128 KiB, 1.1 to 1.2 with 256 KiB, and .95 to 1.0 with 4 MiB and 16 MiB."""
USUAL_CACHE_BYTES = 1 << 20
"""Second-level cache of a core, if the system does not report it: that of processors of servers."""
