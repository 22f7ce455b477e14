"""Numbers of which explanations are made, and limits of what they show."""

from __future__ import annotations

MOST_FILES = 3
"""Maximum number of file names shown: a line has room for some."""
TASK_BYTES = 5 << 10
"""Memory of a task in dask. Maps over 500 chunks of a frame take 2.8 to 4.8 KiB for each task,
together with its result."""
PROCESS_BYTES = 1 << 18
"""Memory that does not depend on array sizes, without compiled code. Maps over 64 small chunks take
480 KiB with their tasks, which take 320."""
THREAD_BYTES = 1 << 17
"""Additional memory per thread: 4 to 6 KiB, and the memory of its reading, such as 64 KiB of the
system's allocator."""
MARGIN = 1.06
"""Safety factor on the estimate, for untracked memory: of 400 random expressions whose functions
are all known, none has exceeded it."""
TASKS_PER_SECOND = 4000, 1000
"""Tasks that a scheduler takes at best, and on a busy machine. Threads take 5,400 a second of
processor time, and 1,600 where six processes share two cores."""
