"""Choose the zarr chunks and shards into which large frames are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dask_tiled.model.description import Description
from dask_tiled.tiling.bases import bases, ceil_div, largest_divisor, part_bases

SHORT = 16
"""Length up to which axes, such as colours, are not cut."""


def _usual_side(sig: Sequence[int], pixels: int) -> int:
    """Return the power of two that is the length of chunks of about so many pixels."""
    short = [n for n in sig if n <= SHORT]
    return 1 << math.ceil(math.log2(pixels / math.prod(short)) / max(1, len(sig) - len(short)))


def cut_frame(
    desc: Description, pixels: int, shard_pixels: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose chunks and shards near squares of about so many pixels, in whole blocks of the file.

    Shards are chunks times powers of two, so that levels of a pyramid can have shards of half the
    length.
    """
    nav, sig = desc.nav_ndim, desc.sig_shape
    side = _usual_side(sig, pixels)
    blocks = [base.size for base in part_bases(desc.layout, bases(desc)[nav:], shard_pixels)]
    chunk = [_length(*one, side) for one in zip(sig, blocks, strict=True)]
    shard = [ceil_div(block, k) * k for block, k in zip(blocks, chunk, strict=True)]
    for k, block in enumerate(blocks):
        # The shards of strips are as long as a frame: where they are too large, chunks are lower.
        lower = ceil_div(side // 2, block) * block
        if math.prod(shard) > shard_pixels and lower < chunk[k] == shard[k]:
            chunk[k] = shard[k] = lower
    order = sorted(range(len(sig)), key=lambda k: (-shard[k], sig[k]))
    for left, k in zip(range(len(sig), 0, -1), order, strict=True):
        longest = max(1, shard_pixels) ** (1 / left)
        while 2 * shard[k] <= longest:
            shard[k] *= 2
        if shard[k] >= sig[k]:
            shard[k] = ceil_div(sig[k], chunk[k]) * chunk[k]
        shard_pixels //= min(shard[k], sig[k])
    ones = (1,) * nav
    return (*ones, *chunk), (*ones, *shard)


def _length(n: int, block: int, side: int) -> int:
    """Choose the length of chunks along an axis of ``n`` pixels, in blocks of a length."""
    if n <= SHORT:
        return n
    if block <= side:
        return min(n, side // block * block)
    even = largest_divisor(block, side)
    return even if 2 * even > side else side


def cut_shard(desc: Description, shard: tuple[int, ...], pixels: int) -> tuple[int, ...]:
    """Divide the signal axes of a shard into chunks of about so many pixels, if they divide it."""
    side, nav = _usual_side(desc.sig_shape, pixels), desc.nav_ndim
    parts = ((n, largest_divisor(n, side)) for n in shard[nav:])
    return (*shard[:nav], *(part if 4 * part > side else n for n, part in parts))
