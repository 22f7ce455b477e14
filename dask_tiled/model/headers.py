"""The headers of frames, which are an array of their own: where they lie, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.model.layout import Layout

Records = npt.NDArray[Any]


class WrongHeader(Exception):  # noqa: N818 - it becomes an error where the file is known
    """Something in the header with a number that cannot be: number, place, expected, found."""


def copy_fields(
    records: Records,
    facts: Records,
    names: Mapping[str, str],
    times: Mapping[str, Mapping[str, int]],
) -> None:
    """Give fields as they are stored, and times in microseconds since 1970.

    Parameters
    ----------
    records, facts : structured array
    names : mapping
        What a field of the facts is called in the records.
    times : mapping
        Of each time the fields that are added up, and the microseconds that they count.
    """
    for name, field in names.items():
        facts[name] = records[field]
    for name, parts in times.items():
        counts = sum(records[field].astype("i8") * unit for field, unit in parts.items())
        facts[name] = np.asarray(counts).view("M8[us]")


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of all frames.

    Attributes
    ----------
    layout : Layout
        Where they lie: each is the one pixel of a frame, of a type of records or of bytes. Frames
        have the same numbers as those of the pixels.
    dtype : numpy.dtype
        Structured type of what they say.
    decode : callable
        ``decode(records, facts)`` writes what some of them say into an array of `dtype`, in which
        there stands what missing ones say. It raises :class:`WrongHeader`.
    """

    layout: Layout
    dtype: np.dtype
    decode: Callable[[Records, Records], None]


def stored_headers(
    layout: Layout, names: Mapping[str, str], times: Mapping[str, Mapping[str, int]] | None = None
) -> Headers:
    """Make headers of fields that say something as they are stored.

    Parameters
    ----------
    layout : Layout
        With one pixel for each frame, of a structured type.
    names : mapping
        Names of facts, and the fields that they are.
    times : mapping, optional
        Names of times, and of each the fields that are added up, with the microseconds since 1970
        that they count.
    """
    (decoder,) = layout.decoders
    kinds = [(name, decoder.dtype[field].newbyteorder("=")) for name, field in names.items()]
    kinds += [(name, np.dtype("M8[us]")) for name in times or {}]
    return Headers(layout, np.dtype(kinds), partial(copy_fields, names=names, times=times or {}))


def missing_facts(shape: tuple[int, ...], dtype: np.dtype) -> Records:
    """Return what missing headers say: NaN, NaT, 0, False and empty texts."""
    facts = np.zeros(shape, dtype)
    for name in dtype.names or ():
        kind = dtype[name].base.kind
        if kind in "fmM":
            facts[name] = np.nan if kind == "f" else np.array("NaT", dtype[name].base)
    return facts
