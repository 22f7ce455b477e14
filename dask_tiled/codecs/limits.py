"""How many bytes compressed bytes can become.

Layout facts: RFC 1951 (deflate), RFC 8878 (Zstandard), the block format of LZ4, CCSDS 121.0 (SZIP),
and the sources of bzip2, LZF, Blosc and LZMA.
"""

from __future__ import annotations

from collections.abc import Mapping

RATIOS: Mapping[str, int] = {
    "packbits": 64,  # 2 bytes expand to at most 128
    "lzf": 88,  # 3 bytes to 264
    "lz4": 255,  # each byte that lengthens a match
    "deflate": 1032,  # 2 bits to 258 bytes
    "lzw": 1 << 12,  # 12 bits to as many entries as their table has
    "szip": 1 << 13,  # 9 bits to 64 blocks of 32 samples
    "lzma": 1 << 13,  # a dozen nearly certain choices to 273 bytes
    "zstd": 1 << 15,  # 4 bytes to a block of 128 KiB
    "blosc": 1 << 15,  # Zstandard inside
    "bzip2": 1 << 21,  # some 40 bytes to 900,000 runs of 259
}
"""How many bytes one byte stands for at most, by the codec."""
SMALL, MOST_RATIO = 1 << 28, 1 << 17
"""Any other codec may make so many bytes, and more where a byte stands for no more than this. Such
have no bounds of their own: of Blosc 2 and of many images, a few bytes are an even area."""


def most_bytes(codec: str, packed: int) -> int:
    """Return how many bytes some compressed ones can become."""
    ratio = RATIOS.get(codec)
    return max(SMALL, MOST_RATIO * packed) if ratio is None else ratio * packed


def check_room(codec: str, packed: int, wanted: int) -> None:
    """Make sure that compressed bytes can become as many as memory is about to be taken for.

    Raises
    ------
    ValueError
        They cannot.
    """
    most = most_bytes(codec, packed)
    if wanted > most:
        raise ValueError(f"{packed} bytes, which can be {most} at most")
