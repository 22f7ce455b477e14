"""Sizes and numbers that bound the tasks of a plan."""

from __future__ import annotations

MOST_REDUCED_CHUNKS = 10_000
"""Maximum number of chunks that are reduced in one task each, if chunks can be merged."""
MOST_EVENT_FRAMES = 1 << 20
"""Maximum number of frames of events summed in one task: each takes memory, with events or not."""
LEAST_TASK_BYTES = 4 << 20
"""Minimum number of bytes of a chunk with a task of its own: reading them takes as long as the
task itself. Sums of a scan of 64 MiB in chunks of 512 KiB take 2.2 with 1 MiB, and .65 with 16 MiB,
which leaves four tasks."""
LEAST_RESULT_PIXELS = 64
"""Minimum number of pixels of a chunk per result, if chunks can be cut across: combining the
results of fewer takes longer than a tenth of the reading."""
LEAST_RUN_BYTES = 1 << 18
"""Minimum number of bytes of a frame, or of neighbouring ones, in a chunk that is cut across."""
ENOUGH_CHUNKS = 16
"""Number of chunks that are as good as more."""
CUT_PART_BYTES = 32 << 20
"""Bytes of a part of a chunk that is only cut: several tasks combine its results, and ``malloc``
reuses their memory. Also the largest merged chunk that a task computes whole."""
MOST_CUT_FILES = 8
"""Maximum number of files whose chunks are cut across: each task reads all of them."""
LEAST_EVENT_BYTES = 16 << 20
"""Like ``LEAST_TASK_BYTES``, of events: tasks decode the pieces at their bounds twice."""
STEP_BYTES, SOURCE_BYTES = 100, 500
"""Approximate bytes of a step of a recipe, and of a source without its arrays, when pickled."""
