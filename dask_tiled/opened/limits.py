"""Sizes and numbers that bound what opened arrays keep and look at."""

from __future__ import annotations

MOST_FOLLOWED = 10_000
"""Number of names above which those of arrays that no longer exist are removed: 280 bytes each,
less than 3 MiB in all."""
MOST_NAMED = 20
"""Maximum number of labels in an error: as many fit into a few lines."""
CHECK_SECONDS = 0.1
"""Shortest interval between checks of growing files: a frame is seen before anybody would notice,
and a check takes less than a hundredth of it."""
EXPECTED_FRAMES = 1 << 20
"""Number of frames assumed for the choice of chunks, if the number is unknown: a scan of 1024 x
1024, for which chunks have their full size."""
