"""Sizes that keep the work on a tile in caches and memory."""

from __future__ import annotations

FOLD_BYTES = 16384
"""Bytes decoded at a time, which stay in the innermost cache with the results."""
TILE_BYTES = 1 << 20
"""Bytes of a tile, where a sink needs tiles."""
DOT_BYTES, DOT_DEPTH = 128 << 10, 32
"""Bytes and frames decoded at a time for products: each part of the weights serves many frames."""
PIXELS_BYTES, PIXELS_DEPTH = 512 << 10, 4
"""Bytes and frames decoded at a time for results by pixel: long pieces of few frames."""
READ_DEPTH = 6
"""Frames read at a time for products with weights that exceed the cache of a core."""
PIXELS_TILE_BYTES = 32 << 20
"""Maximum number of bytes of a tile of several large frames, for results by pixel."""
CACHED_BYTES, SHARED_PIXELS = 512 << 10, 4096
"""Bytes of the parts of frames that several sinks fold in turn, which stay in the cache of a core,
and pixels of a part: longer than a page, so that memory is read in long runs."""
GROUPED_BYTES = 128 << 20
"""Bytes of a window in which the frames of one result are grouped."""
MOST_REVERSED = 4
"""Most masks for which pixels in reversed byte order are folded where they lie."""
LEAST_VIEW = 4096
"""Minimum number of bytes of a run that are folded in place; shorter runs are gathered first."""
SHARED_BYTES = 4 << 20
"""Bytes fetched at a time for several folds, which stay in the outer cache for all of them."""
LEAST_RUN_PIXELS = 64
"""Minimum number of pixels of a run that are folded in place: each run costs a call."""
PROGRAM_BYTES = 8 << 20
"""Maximum number of bytes of all registers of a program for one tile."""
PIECE_PIXELS = 1 << 13
"""Pixels of a frame that are processed at a time for several frames, if results are by pixel."""
MOST_SHARED, SHARED_CONSTANTS = 64, 32 << 10
"""Maximum number of prepared programs that the tasks of a process share, and of bytes of their
constants. Preparing takes 50 to 90 us; a chunk of more frames, or a table of a function, takes much
longer."""
KEPT_READERS = 256
"""Maximum number of readers kept from tile to tile, some KiB each."""
WEIGHTED_DEPTH = 16
"""Frames of an expression that are computed before they are multiplied by weights."""
MOST_PRODUCT_PIXELS, LEAST_PRODUCT_FRAMES = 1 << 18, 8
"""Maximum number of pixels of a frame whose weights stay cached, and minimum number of frames
worth a matrix product."""
VECTOR_BYTES = 16384
"""Bytes of a vector of the widest pixels in a program."""
FRAMES_PIXELS, FRAMES_BYTES = 4096, 24 << 10
"""Maximum number of pixels of several frames that are accumulated at once, and bytes of their
results, which stay in the innermost cache."""
LEAST_ROW = 16
"""Minimum number of pixels in a row of a vector: each row costs a call."""
MOST_GROUP = 32
"""Maximum number of neighbours that are reduced to one pixel, with several such groups in a row."""
MOST_SOURCES = 8
"""Maximum number of sources read at once; a source that a later stage needs again is read again.
A product of eight arrays takes 1.45 times as long with one source at a time, 1.29 with two, 1.14
with four, and 1.05 with sixteen."""
