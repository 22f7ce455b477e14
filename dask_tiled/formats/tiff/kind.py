"""Kinds of TIFF pages, as tifffile parses them: layout and tags."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.chunks import unwritten
from dask_tiled.errors import require
from dask_tiled.formats import tools
from dask_tiled.formats.tiff.ifd import COUNTS, OFFSETS, SUB_IFDS, Ifd, OpenTiff, Values
from dask_tiled.formats.tiff.metamorph import UIC_TAGS
from dask_tiled.formats.tiff.storage import decoder_of

LAYOUT_TAGS = {
    *(256, 257, 258, 259, 262, 266, 277, 278, 284, 292, 317, 322, 323, 338, 339, 347, 530),
    *(32997, 32998, 42113, 65007, 65008, 65009),
}
"""Tags of the pixel layout; pages with equal values are of one kind."""
LINKS = {
    34665,
    34853,
    40965,
    SUB_IFDS,
    *UIC_TAGS,
    *OFFSETS,
    *COUNTS,
}  # tags that refer to other data
MOST_PLACES_BYTES = 1 << 26
MOST_VALUE_BYTES = 1 << 16
MOST_LISTED = 256  # longer values are summarised


class PageLayout(NamedTuple):
    """The common layout of pages, which differ only in the offsets of their segments.

    There are five axes: planar samples, z, y, x, interleaved samples.
    """

    axes: str  # axes of a page: "yx", "yxs", "syx", "zyx", ...
    kept: tuple[int, ...]  # their positions among the five axes
    full: tuple[int, ...]  # shape of a page
    segment: tuple[int, ...]  # stored shape of a strip or tile
    n_segments: int
    tiled: bool  # tiles are padded at the edges, strips are not
    dtype: np.dtype
    decoder: tools.Decoder | tools.BlockDecoder
    blank: tools.BlockDecoder  # for segments that were never written
    problem: str  # why segments cannot be decoded; empty if they can

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a page, with these axes only."""
        return tuple(self.full[k] for k in self.kept)

    @property
    def image(self) -> tuple[tuple[int, ...], str, np.dtype]:
        """Shape, axes and dtype: pages with equal values may be frames of one array."""
        return self.shape, self.axes, self.dtype

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the decoded bytes of a page or segment of this shape."""
        return math.prod(shape) * self.dtype.itemsize


def read_kind(ifd: Ifd, values: Values) -> PageLayout:
    """Return the kind of a page, from its `LAYOUT_TAGS`, parsed by tifffile."""
    with parsed(ifd, values) as page:
        full = tuple(map(int, page.shaped))
        segment = (1, 1, min(int(page.rowsperstrip), full[2]), *full[3:])
        if page.is_tiled:
            segment = (1, *map(int, (page.tiledepth, page.tilelength, page.tilewidth)), full[4])
        if min(full) < 1 or min(segment) < 1 or math.prod(full) >> 60 or math.prod(segment) >> 60:
            sizes = f"a page of {full} pixels in segments of {segment}"
            raise ifd.corrupt("a page without pixels", found=sizes)
        known = _dtype(page)
        dtype = known or np.dtype("u1")
        axes, samples = page.axes.lower(), 4 if page.planarconfig == 1 else 0
        kept = tuple({"z": 1, "y": 2, "x": 3}.get(letter, samples) for letter in axes)
        shown = tuple(segment[k] for k in kept)
        decoder, problem = decoder_of(ifd, page, dtype, axes, shown)
        return PageLayout(
            axes=axes,
            kept=kept,
            full=full,
            segment=segment,
            n_segments=math.prod(counts_of(full, segment)),
            tiled=bool(page.is_tiled),
            dtype=dtype,
            decoder=decoder,
            blank=unwritten(dtype, np.array([page.nodata]).astype(dtype).tobytes()),
            problem=problem if known else f"samples of {page.bitspersample} bits",
        )


def read_tags(ifd: Ifd) -> dict[str, Any]:
    """Read the entries of a page as plain values, by the names of tifffile."""
    values = ifd.small_values(ifd.entries.keys() - LINKS, MOST_VALUE_BYTES)
    try:
        with parsed(ifd, values) as page:
            shown = [tag for tag in page.tags if tag.code in values]
            return {str(tag.name): _plain(tag.value) for tag in shown}
    except tools.CorruptFileError:  # no layout tags among them: these are for display
        return {}


def counts_of(full: tuple[int, ...], segment: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of segments along each axis of a page."""
    return tuple(-(-n // step) for n, step in zip(full, segment, strict=True))


@contextmanager
def parsed(ifd: Ifd, values: Values) -> Iterator[Any]:
    """Parse some entries of a page with tifffile, in a minimal file in memory."""
    path = ifd.source.file.path
    tifffile = require("tifffile", "tiff", path)
    # tifffile needs segment offsets, though it reads no segments
    places = ifd.small_values((*OFFSETS, *COUNTS), MOST_PLACES_BYTES)
    logging.getLogger("tifffile").addFilter(_divert)  # adding a filter again has no effect
    said: list[str] = []
    token = _said.set(said)
    try:
        with tifffile.TiffFile(BytesIO(_miniature(ifd.source, {**values, **places}))) as opened:
            yield opened.pages[0]
    except tools.DatasetError:
        raise
    except Exception as error:  # tifffile raises many errors
        found = "; ".join((repr(error), *said))
        raise tools.CorruptFileError(
            "tifffile cannot read a page", path=path, found=found
        ) from error
    finally:
        _said.reset(token)


_said: ContextVar[list[str] | None] = ContextVar("said", default=None)


def _divert(record: logging.LogRecord) -> bool:
    """Filter out, and collect, what tifffile logs about a page that is parsed here."""
    said = _said.get()
    if said is not None:
        said.append(record.getMessage())
    return said is None


def _miniature(source: OpenTiff, values: Values) -> bytes:
    """Return a TIFF file with one IFD."""
    _, word, number, entry = source.flavour
    first = len(source.magic) + word.size
    behind = first + number.size + entry.size * len(values) + word.size
    entries, after = [], b""
    for _, (stored, value) in sorted(values.items()):
        field = value if len(value) <= word.size else word.pack(behind + len(after))
        entries.append(entry.pack(*stored[:3], field))
        if field is not value:
            after += value + b"\0" * (len(value) % 2)
    start = [source.magic, word.pack(first), number.pack(len(values))]
    return b"".join([*start, *entries, word.pack(0), after])


def _dtype(page: Any) -> np.dtype | None:
    """Return the dtype of the samples; None if NumPy has none."""
    if page.dtype is not None:
        return np.dtype(page.dtype.str)  # with NumPy's canonical name
    bits = page.bitspersample
    if page.sampleformat == 2 and isinstance(bits, int) and 0 < bits < 32:
        return np.dtype("i1" if bits <= 8 else "i2" if bits <= 16 else "i4")
    return None


def _plain(value: Any) -> Any:
    """Return a value as numbers, text and tuples."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist() if value.size <= MOST_LISTED else range(value.size)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)  # tifffile returns enums
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, bytes):
        return value.hex() if len(value) <= MOST_LISTED else f"{len(value)} bytes"
    if isinstance(value, (tuple, list, range)):
        return tuple(map(_plain, value)) if len(value) <= MOST_LISTED else f"{len(value)} values"
    return str(value)[:MOST_LISTED]
