"""Limits of the decompressed size.

Layout facts: RFC 1951 (deflate), RFC 8878 (Zstandard), the block format of LZ4, CCSDS 121.0 (SZIP),
and the sources of bzip2, LZF, Blosc and LZMA.
"""

from __future__ import annotations

from collections.abc import Mapping

RATIOS: Mapping[str, int] = {
    "packbits": 64,  # 2 bytes expand to at most 128
    "lzf": 88,  # 3 bytes expand to at most 264
    "lz4": 255,  # for each byte that lengthens a match
    "deflate": 1032,  # 2 bits expand to at most 258 bytes
    "lzw": 1 << 12,  # 12 bits expand to at most the size of the table
    "szip": 1 << 13,  # 9 bits expand to at most 64 blocks of 32 samples
    "lzma": 1 << 13,  # a dozen near-certain bits expand to 273 bytes
    "zstd": 1 << 15,  # 4 bytes expand to at most a block of 128 KiB
    "blosc": 1 << 15,  # may hold Zstandard
    "bzip2": 1 << 21,  # some 40 bytes expand to 900,000 runs of 259
}
"""Highest compression ratio, by codec."""
SMALL, MOST_RATIO = 1 << 28, 1 << 17
"""Limits of all other codecs: ``SMALL`` bytes or this ratio, whichever is more. Blosc 2 and many
image codecs have no ratio of their own: a few bytes may encode a constant area."""


def most_bytes(codec: str, packed: int) -> int:
    """Return the maximum number of bytes that ``packed`` compressed bytes can decode to."""
    ratio = RATIOS.get(codec)
    return max(SMALL, MOST_RATIO * packed) if ratio is None else ratio * packed


def check_room(codec: str, packed: int, wanted: int) -> None:
    """Check that compressed bytes can decode to the requested size, before allocating it.

    Raises
    ------
    ValueError
        ``wanted`` is too large.
    """
    most = most_bytes(codec, packed)
    if wanted > most:
        raise ValueError(f"{packed} bytes, which decode to at most {most}")
