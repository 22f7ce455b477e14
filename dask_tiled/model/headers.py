"""The headers of frames as an array: their layout and their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.model.layout import Layout

Records = npt.NDArray[Any]


class WrongHeader(Exception):  # noqa: N818 - converted to an error that names the file
    """A numbered header has an invalid field: number, field, expected, found."""


def copy_fields(
    records: Records,
    facts: Records,
    names: Mapping[str, str],
    times: Mapping[str, Mapping[str, int]],
) -> None:
    """Copy fields, and add up times in microseconds since 1970.

    Parameters
    ----------
    records, facts : structured array
    names : mapping
        Field of the records for each field of the facts.
    times : mapping
        For each time, the fields that are summed, and their units in microseconds.
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
        Location of the headers: a layout with one pixel per frame, a record or bytes, whose frame
        numbers are those of the pixels.
    dtype : numpy.dtype
        Structured dtype of the decoded headers.
    decode : callable
        ``decode(records, facts)`` decodes headers into an array of `dtype`, which is initialised
        with the values of missing headers. It raises :class:`WrongHeader`.
    """

    layout: Layout
    dtype: np.dtype
    decode: Callable[[Records, Records], None]


def stored_headers(
    layout: Layout, names: Mapping[str, str], times: Mapping[str, Mapping[str, int]] | None = None
) -> Headers:
    """Return headers whose fields are copied as they are stored.

    Parameters
    ----------
    layout : Layout
        Layout with one pixel per frame, of a structured dtype.
    names : mapping
        Field of the records for each fact.
    times : mapping, optional
        For each time, the fields that are summed, and their units in microseconds.
    """
    (decoder,) = layout.decoders
    kinds = [(name, decoder.dtype[field].newbyteorder("=")) for name, field in names.items()]
    kinds += [(name, np.dtype("M8[us]")) for name in times or {}]
    return Headers(layout, np.dtype(kinds), partial(copy_fields, names=names, times=times or {}))


def missing_facts(shape: tuple[int, ...], dtype: np.dtype) -> Records:
    """Return the values of missing headers: NaN, NaT, 0, False and empty texts."""
    facts = np.zeros(shape, dtype)
    for name in dtype.names or ():
        kind = dtype[name].base.kind
        if kind in "fmM":
            facts[name] = np.nan if kind == "f" else np.array("NaT", dtype[name].base)
    return facts
