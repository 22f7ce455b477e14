"""What tifffile sees in a TIFF page: what all pages of one layout have in common, and its tags."""

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
from dask_tiled.formats.tiff.ifd import COUNTS, OFFSETS, SUB_IFDS, Ifd, Source, Values
from dask_tiled.formats.tiff.storage import decoder_of

LAYOUT_TAGS = {
    *(256, 257, 258, 259, 262, 266, 277, 278, 284, 292, 317, 322, 323, 338, 339, 347, 530),
    *(32997, 32998, 42113, 65007, 65008, 65009),
}
"""Tags that say how pixels are stored. Pages that agree in them are of one kind."""
LINKS = {34665, 34853, 40965, SUB_IFDS, *OFFSETS, *COUNTS}  # lead elsewhere
MOST_PLACES_BYTES = 1 << 26
MOST_VALUE_BYTES = 1 << 16
MOST_LISTED = 256  # longer values are told of, and not shown


class Kind(NamedTuple):
    """What pages of one layout have in common. Only the place of their segments differs.

    There are five axes: separate samples, z, y, x, samples side by side.
    """

    axes: str  # those that are shown: "yx", "yxs", "syx", "zyx", ...
    kept: tuple[int, ...]  # their positions among all five
    full: tuple[int, ...]  # shape of a page
    segment: tuple[int, ...]  # shape of a strip or tile as it is stored
    n_segments: int
    tiled: bool  # tiles are stored whole at the edges, and strips are not
    dtype: np.dtype
    decoder: tools.Decoder | tools.BlockDecoder
    blank: tools.BlockDecoder  # for segments that were never written
    problem: str  # why segments cannot be decoded, if they cannot

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a page as it is shown."""
        return tuple(self.full[k] for k in self.kept)

    @property
    def image(self) -> tuple[tuple[int, ...], str, np.dtype]:
        """Return shape, axes and dtype: pages that are equal in these may be frames of an array."""
        return self.shape, self.axes, self.dtype

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Count the bytes of pixels of a page, or of a segment, as they come out."""
        return math.prod(shape) * self.dtype.itemsize


def read_kind(ifd: Ifd, values: Values) -> Kind:
    """Have tifffile say what the entries of a page mean that `LAYOUT_TAGS` are about."""
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
        return Kind(
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
    """Read the entries of a page as plain values, by the names that tifffile gives them."""
    values = ifd.small_values(ifd.entries.keys() - LINKS, MOST_VALUE_BYTES)
    try:
        with parsed(ifd, values) as page:
            shown = [tag for tag in page.tags if tag.code in values]
            return {str(tag.name): _plain(tag.value) for tag in shown}
    except tools.CorruptFileError:  # of the layout nothing is: these are for people
        return {}


def counts_of(full: tuple[int, ...], segment: tuple[int, ...]) -> tuple[int, ...]:
    """Count the segments along each axis of a page."""
    return tuple(-(-n // step) for n, step in zip(full, segment, strict=True))


@contextmanager
def parsed(ifd: Ifd, values: Values) -> Iterator[Any]:
    """Have tifffile parse some entries of a page, in a small file that leads nowhere."""
    path = ifd.source.file.path
    tifffile = require("tifffile", "tiff", path)
    # Where segments are is none of its business, but it complains without.
    places = ifd.small_values((*OFFSETS, *COUNTS), MOST_PLACES_BYTES)
    logging.getLogger("tifffile").addFilter(_divert)  # there is one, however often it is added
    said: list[str] = []
    token = _said.set(said)
    try:
        with tifffile.TiffFile(BytesIO(_miniature(ifd.source, {**values, **places}))) as opened:
            yield opened.pages[0]
    except tools.DatasetError:
        raise
    except Exception as error:  # it raises all sorts of them
        found = "; ".join((repr(error), *said))
        raise tools.CorruptFileError(
            "tifffile cannot read a page", path=path, found=found
        ) from error
    finally:
        _said.reset(token)


_said: ContextVar[list[str] | None] = ContextVar("said", default=None)


def _divert(record: logging.LogRecord) -> bool:
    """Keep what tifffile logs of a page that is parsed here, and only that, out of the logs."""
    said = _said.get()
    if said is not None:
        said.append(record.getMessage())
    return said is None


def _miniature(source: Source, values: Values) -> bytes:
    """Make a TIFF file of one IFD."""
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
    """Return the type of the samples; None if numpy has none for them."""
    if page.dtype is not None:
        return np.dtype(page.dtype.str)  # which has the name that NumPy itself gives it
    bits = page.bitspersample
    if page.sampleformat == 2 and isinstance(bits, int) and 0 < bits < 32:
        return np.dtype("i1" if bits <= 8 else "i2" if bits <= 16 else "i4")
    return None


def _plain(value: Any) -> Any:
    """Write a value with numbers, text and tuples."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist() if value.size <= MOST_LISTED else range(value.size)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)  # tifffile gives numbers names
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, bytes):
        return value.hex() if len(value) <= MOST_LISTED else f"{len(value)} bytes"
    if isinstance(value, (tuple, list, range)):
        return tuple(map(_plain, value)) if len(value) <= MOST_LISTED else f"{len(value)} values"
    return str(value)[:MOST_LISTED]
