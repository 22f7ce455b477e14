"""Sizes and numbers that bound what graphs are made of."""

from __future__ import annotations

FEW_PARTS = 4
"""Partial results combined per task, if there are few: sums take as long with 2 and 64."""
LEVELS = 3
"""Maximum number of tasks that combine a result in turn."""
OWN_FUNCTIONS = 32
"""Most temporaries of functions of this package, in bytes per pixel of a tile."""
OF_HISTOGRAM = 2.5
"""Most temporaries of ``numpy.histogram``, per byte of the engine's counts of values."""
MOST_PARTS = 64
"""Maximum number of parts of a joined array; each adds overhead, whatever its size."""
LEAST_LENT_PIXELS = 1 << 21
"""Minimum number of pixels of a chunk that is read without fresh memory: ``malloc`` reuses the
memory of smaller ones anyway. With fresh memory, sums of chunks of 32 MiB in NumPy take 1.2 to 1.8
times the processor time, and functions that use a few pixels of a native file up to 2.9 times."""
MOST_PLACES = 1 << 17
"""Longest axis whose selected positions are listed."""
LEAST_RESULT_PIXELS = 1 << 19
"""Minimum number of pixels of a result; concatenating smaller ones takes no noticeable time."""
LEAST_FRAMES = 1 << 12
"""Minimum number of frames that a thread reads: fewer take less time than starting it."""
FEW_PIXELS = 1 << 16
"""Maximum number of pixels that a single task reads, in any number of chunks: a crop of eight
chunks takes 4.7 times as long with a task for each."""
MOST_KEPT, LEAST_KEPT = 1024, 16
"""Limits to the number of results of combined chunks that are kept."""
KEPT_SHARE = 64
"""Within these limits, kept results take at most this fraction of the bytes that are read."""
LEAST_RESULTS = 1000
"""Minimum number of results of chunks that are combined in few levels."""
MOST_COMBINED_BYTES = 256 << 20
"""Maximum number of bytes that a task combines."""
