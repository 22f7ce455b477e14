"""Sizes of what kernels process at a time.

Figures are processor time, relative to the value here, of scans of 64 MiB in the page cache, with
frames of 256 x 256 pixels of 2 bytes, on a core with 64 KiB and 1 MiB of cache.
"""

from __future__ import annotations

BLOCK, LONG_BLOCK = 1024, 4096
"""Pixels of a block of a weighted sum: four masks of it stay in the L1 cache, 16 KiB of weights of
4 bytes. Blocks are four times as long if weights have 2 bytes, and sums are exact."""
MOST_PRODUCT_FRAMES = 96
"""Frames for which several masks of a block stay in the L2 cache. Sums under 8 masks take .95 to
.97 with 32 and 256 frames."""
FEW_BYTES = 512 << 10
"""Weights up to this size, half of the L2 cache, stay in it, so few whole frames are processed at a
time. Sums under one mask of 256 KiB take 1.16 if it is not taken as such."""
FRAMES_OF_ONE = 6
"""Frames multiplied by one mask at once: with one frame, sums take 1.19, with two 1.10, with twelve
1.06."""
FETCHED_BYTES = 1024
"""Bytes processed between prefetches, where frames are accumulated one by one: a multiple of a
cache line. Sums and maxima take .91 to 1.03 with 256 and 4,096."""
AHEAD = 4096
"""Distance of prefetches, in bytes: a page, at whose end the prefetches of the processor stop. Sums
and maxima take .96 to 1.0 with 1,024 and 16,384."""
RUNS_AHEAD, SHORT_RUN = 16, 4096
"""Distance of prefetches in runs, and bytes of a run that is prefetched: a page. Sums of cropped
rows take 1.19 with 4 runs."""
PACKED_FRAMES = 8
"""Packed frames added at once, which are as many streams of memory. Sums of frames of 12 bits over
a scan take no longer with 2 or 32."""
SEARCHED_PIXELS = 128
"""Pixels compared at a time: a position is looked for only in those that hold a new extreme.
Positions of maxima take up to 1.08 with 16, and 1.13 to 1.24 with 1,024."""
FRAMES_AT_ONCE = 32
"""Frames added to the same results, while these are in the innermost cache. Sums over the scan take
.88 with 4 and 1.0 with 256; those of frames of 32 x 32 take 1.2 and .97."""
CORRECTED_PIXELS = 2048
"""Pixels whose dark and gain stay in the L1 cache while all frames pass: 16 KiB of 4 bytes each.
Sums of corrected frames take 1.01 to 1.11 with 256, and 1.1 with 32,768."""
COMPRESSED_BYTES = 256 << 10
"""Largest block of compressed pixels: it stays in the L2 cache together with its output. Exports
take 1.02 to 1.06 with 32 KiB, and .98 with 2 MiB, of which readers decode more in vain."""
INDEXED_BYTES = 256 << 10
"""Bytes after which an entry of the index of a stream ends: 40 bytes for each are nothing, and a
task decodes at most as many in vain."""
SKIPPED_BYTES = 256
"""Bytes that are skipped at once where no line begins: four cache lines."""
LONG_MATCH = 128
"""Bytes of a match from which calls of memset and memcpy are faster. Sums of compressed frames of
few counts take .93 to 1.15 with 16, and .97 to 1.2 with 2,048."""
MOST_CODE_BYTES = 64 << 20
"""Upper limit of the size of a file of machine code, a thousand times that of usual ones: a larger
one is not read."""
