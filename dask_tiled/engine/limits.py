"""Sizes that keep the work on a tile in caches and memory.

Figures are processor time, relative to the value here, of scans of 64 MiB in the page cache, with
frames of 256 x 256 pixels of 2 bytes, on a core with 64 KiB and 1 MiB of cache.
"""

from __future__ import annotations

FOLD_BYTES = 16384
"""Bytes decoded at a time, which stay in the innermost cache with the results. Sums of frames in
reversed byte order take 1.17 with 4 KiB, 1.03 with 64 KiB and 1.11 with 256 KiB."""
TILE_BYTES = 1 << 20
"""Bytes of a tile, where a sink needs tiles. Sums of products of two arrays take 2.0 with 256 KiB,
0.8 with 2 MiB and 0.7 with 4 MiB; but frames that are cut elsewhere are added up in another order,
and other functions of tiles leave the cache."""
DOT_BYTES, DOT_DEPTH = 128 << 10, 32
"""Bytes and frames decoded at a time for products: each part of the weights serves many frames.
Sums under four masks take .95 to 1.02 with 16 KiB to 512 KiB, and with 8 to 128 frames: the least
memory that holds 32 parts of 4 KiB."""
PIXELS_BYTES, PIXELS_DEPTH = 512 << 10, 4
"""Bytes and frames decoded at a time for results by pixel: long pieces of few frames. Sums take
.99 to 1.02 with 128 KiB, but lines of wide frames would be cut, and round differently; 1.04 to 1.06
with one frame, and up to 1.09 with 32."""
READ_DEPTH = 6
"""Frames read at once for products, whose kernels take six: sums under masks take up to 1.21 if one
frame or four are read at once into a buffer."""
PIXELS_TILE_BYTES = 32 << 20
"""Maximum number of bytes of a tile of several large frames, for results by pixel. Corrected frames
of 1024 x 1024 take 1.09 one by one."""
CACHED_BYTES, SHARED_PIXELS = 512 << 10, 4096
"""Bytes of the parts of frames that several sinks fold in turn, which stay in the cache of a core,
and pixels of a part: longer than a page, so that memory is read in long runs. Three reductions take
1.06 with 32 KiB, 1.05 with 2 MiB and 1.08 with 1024 pixels; one after the other, 1.1 (64 MiB) to
1.4 (512 MiB)."""
GROUPED_BYTES = 128 << 20
"""Bytes of a window in which the frames of one result are grouped. Sums over one axis of a scan
take 1.2 with 2 MiB, and .99 with 32 MiB."""
MOST_REVERSED = 4
"""Most masks for which pixels in reversed byte order are folded where they lie: none of four takes
1.4. More would take .75 (8 masks) to .85 (32), but are added up in another order."""
LEAST_VIEW = 4096
"""Minimum number of bytes of a run that are folded in place; shorter runs are gathered first. Sums
of runs of 256 bytes take 1.3 in place, those of 1400 bytes as long as here."""
SHARED_BYTES = 4 << 20
"""Bytes fetched at a time for several folds, which stay in the outer cache for all of them. Three
reductions take 1.05 with 256 KiB, and .98 with 128 MiB."""
LEAST_RUN_PIXELS = 64
"""Minimum number of pixels of a run that are folded in place: each run costs a call. Runs of 32
pixels take 1.1 in place, those of 128 take .95."""
PROGRAM_BYTES = 8 << 20
"""Maximum number of bytes of all registers of a program for one tile. Products of two arrays take
1.4 with 1 MiB, and as long with 64 MiB."""
PIECE_PIXELS = 1 << 13
"""Pixels of a frame that are processed at a time for several frames, if results are by pixel:
expressions take .96 with 2,048 and 1.05 with 131,072."""
MOST_SHARED, SHARED_CONSTANTS = 64, 32 << 10
"""Maximum number of prepared programs that the tasks of a process share, and of bytes of their
constants: 2 MiB in all. Preparing takes 50 to 90 us; a chunk of more frames, or a table of a
function, takes much longer."""
KEPT_READERS = 256
"""Maximum number of readers kept from tile to tile, some KiB each. Products of two arrays of frames
that are cut take 1.09 with one."""
WEIGHTED_DEPTH = 16
"""Frames of an expression that are computed before they are multiplied by weights. Sums under four
masks take 1.75 with one frame, .97 with 4, and 1.08 with 64."""
MOST_PRODUCT_PIXELS, LEAST_PRODUCT_FRAMES = 1 << 18, 8
"""Maximum number of pixels of a frame whose weights stay cached, and minimum number of frames
worth a matrix product. Weighted sums of frames take 1.15 to 1.36 by expressions; those of
frames of 1024 x 1024 take 1.36 as products."""
VECTOR_BYTES = 16384
"""Bytes of a vector of the widest pixels in a program, a quarter of the innermost cache. Roots of
corrected frames take .91 to 1.0 with 4 KiB to 256 KiB; but sums round by vectors."""
FRAMES_PIXELS, FRAMES_BYTES = 4096, 24 << 10
"""Maximum number of pixels of several frames that are accumulated at once, and bytes of their
results, which stay in the innermost cache. Sums and maxima over the scan take 1.16 to 1.27 with 256
pixels, .94 to 1.0 with 65,536; 1.05 with 4 KiB, and 1.03 with 256 KiB."""
LEAST_ROW = 16
"""Minimum number of pixels in a row of a vector: each row costs a call. In vectors, rows of 8 take
.8 (roots) to 1.2 (differences) of what NumPy takes; rows of 16 take .84 to 1.06, those of 32 .7 to
1.0."""
MOST_GROUP = 32
"""Maximum number of neighbours that are reduced to one pixel, with several such groups in a row.
Sums of 16 neighbours take 1.3 as rows."""
MOST_SOURCES = 8
"""Maximum number of sources read at once; a source that a later stage needs again is read again.
A product of eight arrays takes 1.21 with one source at a time, 1.05 with two or four, and 1.02 with
sixteen."""
NARROW_FRAMES = 1 << 16
"""Maximum number of values of 2 bytes that can be summed in 4 bytes: 2^16 of at most 2^16 - 1."""
MOST_COUNTED = 2
"""Widest pixels, in bytes, that are counted by value or looked up in a table: of 2^16 entries."""
MOST_AT_ONCE = (1 << 16) - 1
"""Maximum number of pixels of a vector whose positions fit into 2 bytes."""
MOST_IN_WORDS = 4
"""Maximum size of unsigned pixels, in bytes, for summing several at a time: two in 8 bytes."""
MOST_BINS, MOST_STEPS = 1 << 16, 8
"""Limits of bins: their number, whose table of edges stays in the L2 cache, and the largest error
of a pixel's estimated bin, which takes a comparison for each step."""
