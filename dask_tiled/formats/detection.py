"""Which format a file has, or a user means."""

from __future__ import annotations

import os

from dask_tiled.errors import UnknownFormatError
from dask_tiled.formats.format import Format
from dask_tiled.formats.registry import formats
from dask_tiled.model.files import read_head

HEAD_BYTES = 4096
"""Bytes at the start of a file that a format sees when it says whether the file is its own."""


def detect(path: str) -> Format:
    """Find out the format of a file: by its content first, by its suffix second.

    Formats whose files usually have that suffix are asked first.
    """
    head = read_head(path, HEAD_BYTES)
    suffix = os.path.splitext(path)[1].lower()
    claimants = [format for format in formats().values() if suffix in format.extensions]
    others = [format for format in formats().values() if suffix not in format.extensions]
    reasons = {}
    for format in (*claimants, *others):
        try:
            reason = format.sniff(path, head)
        except Exception as error:  # noqa: BLE001 - one format must not stand in the way of others
            reason = f"failed with {error!r}"
        if reason is None:
            return format
        reasons[format.name] = reason
    if len(claimants) == 1:
        return claimants[0]
    tried = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise UnknownFormatError("no format recognises the file", path=path, found=tried)
