"""Fingerprints of targets: whether one is the same as before, a copy, or another one."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

from dask_tiled.storing.nodes import below, files, is_document

PIECES, PIECE = 32, 4096
"""How many samples of the bytes are read, and their length."""


class Fingerprint(NamedTuple):
    """What a file, or a folder with its files, looked like."""

    nbytes: int
    content: str
    """Hash of names, sizes, metadata of zarr and samples: copies have the same."""
    stamp: str
    """Hash of names, sizes and times of the last change: a moved file keeps it, a copy does not."""

    @classmethod
    def of(cls, path: str) -> Fingerprint:
        """Return the fingerprint of a file or folder."""
        keys = sorted(files(path)) if os.path.isdir(path) else [""]
        places = [below(path, key) if key else path for key in keys]
        content, stamp, sizes = blake2b(digest_size=16), blake2b(digest_size=16), []
        for key, place in zip(keys, places, strict=True):
            try:
                found = os.stat(place)
                size, time = found.st_size, found.st_mtime_ns
            except FileNotFoundError:  # a link, which has a suffix as a key
                size, time = 0, 0
            sizes.append(size)
            content.update(f"{key!r} {size}\n".encode())
            stamp.update(f"{key!r} {size} {time}\n".encode())
        for key, place in zip(keys, places, strict=True):
            if is_document(key):
                with open(place, "rb") as file:
                    content.update(file.read())
        for piece in _samples(places, sizes):
            content.update(piece)
        return cls(sum(sizes), content.hexdigest(), stamp.hexdigest())

    @classmethod
    def at(cls, path: str) -> Fingerprint | None:
        """Return the fingerprint of a path; None if nothing is there."""
        return cls.of(path) if os.path.lexists(path) else None


def _samples(places: Sequence[str], sizes: Sequence[int]) -> Iterator[bytes]:
    """Yield pieces of files at equal distances, from the first byte to the last."""
    ends = [*accumulate(sizes)]
    total = ends[-1] if ends else 0
    for start in sorted({max(0, total - PIECE) * k // (PIECES - 1) for k in range(PIECES)}):
        which = bisect_right(ends, start)
        if which < len(places):
            with open(places[which], "rb") as file:
                file.seek(start - ends[which] + sizes[which])
                yield file.read(PIECE)
