"""The order of samples in an epoch, and its division among processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.model.indexing import Index

Shuffle = Literal["pages", "all", False]
Tail = Literal["pad", "drop", "keep"]
"""Samples that cannot be divided evenly: repeat the first ones, leave them out, or keep them."""
PAGE_BYTES = 8 << 20
"""Bytes of a page: consecutive samples that are read together."""
PAGES = 8
"""Number of pages whose samples are shuffled together."""


def shuffled(count: int, shuffle: Any, sample_bytes: int, chance: Sequence[int]) -> Index:
    """Return the sample numbers in the order of an epoch.

    Parameters
    ----------
    chance : sequence of int
        Random seed, and number of the epoch.
    """
    check_shuffle(shuffle)
    if not shuffle:
        return np.arange(count)
    rng = np.random.default_rng(chance)
    if shuffle == "all":
        return rng.permutation(count)
    page = max(1, PAGE_BYTES // sample_bytes)
    starts = rng.permutation(np.arange(0, count, page))
    groups = [starts[at : at + PAGES] for at in range(0, len(starts), PAGES)]
    parts = [
        rng.permutation(np.concatenate([np.arange(a, min(a + page, count)) for a in group]))
        for group in groups
    ]
    return np.concatenate(parts) if parts else np.arange(0)


def check_shuffle(shuffle: Any) -> None:
    """Raise a DatasetError if it is no shuffle."""
    if shuffle is not False and not (isinstance(shuffle, str) and shuffle in get_args(Shuffle)):
        raise DatasetError("invalid shuffle", expected=get_args(Shuffle), found=repr(shuffle))


def part_of(order: Index, part: tuple[int, int], tail: Tail) -> Index:
    """Return the samples of one of several processes: consecutive ones of the order.

    Parameters
    ----------
    part : (int, int)
        Number of the process, and number of processes.
    tail : {"pad", "drop", "keep"}
        "pad" repeats the first samples, "drop" leaves out the last ones, so that all processes have
        equally many; with "keep" they differ by one at most.
    """
    start, size = span_of(len(order), part, tail)
    if start + size > len(order):
        order = np.resize(order, start + size)
    return order[start : start + size]


def span_of(count: int, part: Any, tail: Any) -> tuple[int, int]:
    """Return the place of the first sample of a process in the order, and their number."""
    if not isinstance(part, Sequence) or len(part) != 2:
        expected = "the number of the process, and of all processes"
        raise DatasetError("invalid part", expected=expected, found=repr(part))
    world = check_whole("part[1]", part[1], least=1)
    rank = check_whole("part[0]", part[0], least=0, most=world - 1)
    if tail not in get_args(Tail):
        raise DatasetError("invalid tail", expected=get_args(Tail), found=repr(tail))
    size, left = divmod(count, world)
    if tail == "keep":
        return rank * size + min(rank, left), size + (rank < left)
    if tail == "drop" and count and not size:
        expected = f"at most {count} parts, or another tail"
        raise DatasetError("fewer samples than parts", expected=expected, found=world)
    size += tail == "pad" and left > 0
    return rank * size, size
