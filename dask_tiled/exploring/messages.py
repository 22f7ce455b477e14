"""Messages to the page: a JSON object, optionally followed by the bytes of an array."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.model.indexing import Array

LARGEST = 2048
"""Maximum number of pixels along an axis of a picture; larger pictures are averaged."""
LENGTH = struct.Struct("<I")
PLAIN = {"u1": "u1", "u2": "u2", "f4": "f4"}
"""Dtypes sent unchanged; all others become float32."""


class Message(NamedTuple):
    """A message to the page."""

    head: Mapping[str, Any]
    data: bytes = b""

    @property
    def kind(self) -> str:
        """Type of the message; of several waiting messages of a kind, only the last is sent."""
        return str(self.head["type"])

    def packed(self) -> bytes:
        """Return the message as bytes: length of the JSON, the JSON, the data."""
        head = json.dumps(self.head, allow_nan=False).encode()
        head += b" " * (-(LENGTH.size + len(head)) % 8)  # arrays are aligned to 8 bytes
        return LENGTH.pack(len(head)) + head + self.data


def picture_message(
    kind: str, values: Array, sizes: int, steps: Sequence[float] = (1, 1), **told: Any
) -> Message:
    """Build the message with a picture.

    Parameters
    ----------
    kind : str
    values : ndarray
        The last ``sizes`` axes are those of the picture; one before them counts components.
    steps : sequence of float
        Steps with which pixels were taken; the message says how many pixels one that is sent is.
    """
    shown, bins = values, []
    for axis, step in zip(range(values.ndim - sizes, values.ndim), steps, strict=False):
        by = -(-values.shape[axis] // LARGEST)
        shown = _binned(shown, axis, by)
        bins.append(step * by)
    name = shown.dtype.str[1:]
    sent = np.ascontiguousarray(shown, "<" + PLAIN.get(name, "f4"))
    head = {
        "type": kind,
        "shape": sent.shape[values.ndim - sizes :],
        "components": sent.shape[0] if values.ndim > sizes else 1,
        "dtype": sent.dtype.str[1:],
        "bins": bins,
        **told,
    }
    return Message(head, sent.tobytes())


def _binned(values: Array, axis: int, by: int) -> Array:
    """Average ``by`` neighbours along an axis; an incomplete group is dropped."""
    if by == 1:
        return values
    count = values.shape[axis] // by
    cut = np.take(values, range(count * by), axis)
    shape = (*values.shape[:axis], count, by, *values.shape[axis + 1 :])
    return cut.reshape(shape).mean(axis + 1, dtype=np.float32)
