"""Kinds of TIFF pages: what all pages of one layout have in common, as tifffile sees it.

Layout facts: TIFF, revision 6.0; Adobe's technical notes on TIFF; which of them tifffile follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.tiff.ifd import (
    COUNTS,
    OFFSETS,
    Entry,
    Ifd,
    Source,
    miniature,
    small_values,
)
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain

LAYOUT_TAGS = frozenset(
    {
        *(256, 257, 258, 259, 262, 266, 277, 278, 284, 292, 317, 322, 323, 338, 339, 347, 530),
        *(32997, 32998, 42113, 65007, 65008, 65009),
    }
)
"""Tags that say how pixels are stored. Pages that agree in them are of one kind."""
MOST_PLACES_BYTES = 1 << 26
WHOLE_BYTES = {8, 16, 32, 64, 128}
JPEG = {6, 7, 33007, 34892}
DECODE = "dask_tiled.formats.tiff.decode:decode"


class Kind(NamedTuple):
    """What pages of one layout have in common. Only the place of their segments differs.

    The axes that count are those of ``full``: separate samples, z, y, x, samples side by side.

    Attributes
    ----------
    axes : str
        Those of them that are shown: ``"yx"``, ``"yxs"``, ``"syx"``, ``"zyx"``, ...
    kept : tuple of int
        Their positions.
    full : tuple of int
        Shape of a page, with all five axes.
    segment : tuple of int
        Shape of a strip or tile as it is stored, with all five axes.
    n_segments : int
        How many of them a page has.
    tiled : bool
        Whether segments are tiles, which are stored whole at the edges, or strips.
    dtype : numpy.dtype
        Type of the pixels that come out, in native byte order.
    decoder : Decoder or BlockDecoder
        What makes pixels of a segment.
    nodata : bytes
        The pixel that is shown where a segment was never written.
    problem : str
        Why its segments cannot be decoded; empty where they can.
    """

    axes: str
    kept: tuple[int, ...]
    full: tuple[int, ...]
    segment: tuple[int, ...]
    n_segments: int
    tiled: bool
    dtype: np.dtype
    decoder: Decoder | BlockDecoder
    nodata: bytes
    problem: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a page as it is shown."""
        return tuple(self.full[k] for k in self.kept)

    @property
    def image(self) -> tuple[tuple[int, ...], str, np.dtype]:
        """Give shape, axes and dtype: pages that are equal in these can be frames of one array."""
        return self.shape, self.axes, self.dtype

    @property
    def counts(self) -> tuple[int, ...]:
        """How many segments there are along each of the five axes."""
        return _counts(self.full, self.segment)

    @property
    def blank(self) -> BlockDecoder:
        """Give what makes pixels of segments that were never written."""
        options = (("dtype", self.dtype), ("pixel", self.nodata))
        return BlockDecoder("dask_tiled.formats.hdf5.chunks:constant", self.dtype, options)

    @property
    def stored_bytes(self) -> int:
        """Bytes of a segment that is stored plainly."""
        return math.prod(self.segment) * self.dtype.itemsize


def read_kind(source: Source, ifd: Ifd, values: Mapping[int, tuple[Entry, bytes]]) -> Kind:
    """Have tifffile say what the entries of a page mean.

    Parameters
    ----------
    source : Source
    ifd : Ifd
    values : mapping
        The entries that say how pixels are stored, and their values, by tag.

    Raises
    ------
    CorruptFileError
        They mean nothing.
    DatasetError
        tifffile is not installed.
    """
    with parsed(source, ifd, values) as page:
        return _kind(source, page)


@contextmanager
def parsed(source: Source, ifd: Ifd, values: Mapping[int, tuple[Entry, bytes]]) -> Iterator[Any]:
    """Have tifffile parse entries of a page, and give its TiffPage.

    Raises
    ------
    CorruptFileError
        It cannot, or what is done with the page fails.
    DatasetError
        tifffile is not installed.
    """
    path = source.file.path
    # Where segments are is none of tifffile's business, but it complains without.
    places = {tag: ifd.entries[tag] for tag in (*OFFSETS, *COUNTS) if tag in ifd.entries}
    all_values = {**values, **small_values(source, places, MOST_PLACES_BYTES)}
    try:
        import tifffile
    except ImportError as error:
        raise DatasetError(
            "TIFF files are read with tifffile, which is not installed",
            path=path,
            hint="Run: pip install dask-tiled[tiff]",
        ) from error
    try:
        with tifffile.TiffFile(BytesIO(miniature(source, all_values))) as opened:
            yield opened.pages[0]
    except DatasetError:
        raise
    except Exception as error:  # it raises all sorts of them
        raise CorruptFileError(
            "tifffile cannot read a page", path=path, found=repr(error)[:300]
        ) from error


def _kind(source: Source, page: Any) -> Kind:
    full = tuple(map(int, page.shaped))
    samples = full[4]
    strip = min(int(page.rowsperstrip), full[2])
    segment: tuple[int, ...] = (1, 1, strip, full[3], samples)
    if page.is_tiled:
        tile = page.tiledepth, page.tilelength, page.tilewidth
        segment = (1, *map(int, tile), samples)
    if min(full) < 1 or min(segment) < 1 or math.prod(full) >> 60 or math.prod(segment) >> 60:
        raise CorruptFileError(
            "a page without pixels",
            path=source.file.path,
            found=f"a page of {full} pixels in segments of {segment}",
        )
    with_samples = "S" in page.axes
    kept = tuple(
        k
        for k in range(5)
        if k in {2, 3}
        or (k == 1 and full[1] > 1)
        or (with_samples and k == (4 if page.planarconfig == 1 else 0))
    )
    axes = "".join("szyxs"[k] for k in kept)
    dtype = _dtype(page)
    return Kind(
        axes,
        kept,
        full,
        segment,
        math.prod(_counts(full, segment)),
        bool(page.is_tiled),
        dtype or np.dtype("u1"),
        _decoder(source, page, dtype or np.dtype("u1"), axes, segment),
        np.array([page.nodata]).astype(dtype).tobytes(),
        _problem(page) if dtype else f"samples of {page.bitspersample} bits",
    )


def _counts(full: tuple[int, ...], segment: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-n // step) for n, step in zip(full, segment, strict=True))


def _dtype(page: Any) -> np.dtype | None:
    """Give the type of the samples; None if numpy has none for them."""
    if page.dtype is not None:
        return np.dtype(page.dtype)
    bits = page.bitspersample
    if page.sampleformat == 2 and isinstance(bits, int) and 0 < bits < 32:
        return np.dtype("i1" if bits <= 8 else "i2" if bits <= 16 else "i4")
    return None


def _problem(page: Any) -> str:
    """Say what is not known to decode the segments of a page."""
    from dask_tiled.formats.tiff.decode import BYTE_CODECS, IMAGE_CODECS, PREDICTORS

    compression = int(page.compression)
    if compression not in {1, *BYTE_CODECS, *IMAGE_CODECS}:
        return f"compression {compression}"
    if compression not in IMAGE_CODECS:
        if int(page.predictor) not in PREDICTORS:
            return f"predictor {int(page.predictor)}"
        if page.is_subsampled:
            return "subsampled colours without JPEG"
        if isinstance(page.bitspersample, tuple):
            return f"samples of {page.bitspersample} bits"
        if page.sampleformat == 5:
            return "complex integers"
    return ""


def _decoder(
    source: Source, page: Any, dtype: np.dtype, axes: str, segment: tuple[int, ...]
) -> Decoder | BlockDecoder:
    """Give what makes pixels of a segment: bytes that are stored as numpy would need no codec."""
    order = source.flavour.order
    compression, predictor = int(page.compression), int(page.predictor)
    bits = page.bitspersample
    if compression == predictor == page.fillorder == 1 and bits in WHOLE_BYTES:
        return plain(dtype.newbyteorder(order))
    options: dict[str, Any] = {
        "axes": axes,
        "compression": compression,
        "segment": segment[1:],
        "tiled": bool(page.is_tiled),
        "stored": dtype.newbyteorder(order).str,
        "bits": bits if isinstance(bits, int) else 0,
    }
    if compression in JPEG:
        options |= {
            "tables": page.jpegtables,
            "photometric": int(page.photometric),
            "planar": page.planarconfig != 1,
            "extra": bool(page.extrasamples),
        }
    elif compression == 3:
        options["t4options"] = int(page.tags.valueof(292, 0))
    options |= {"predictor": predictor} if predictor != 1 else {}
    options |= {"reversed_bits": True} if page.fillorder == 2 else {}
    return BlockDecoder(DECODE, dtype, tuple(sorted(options.items())))
