"""Tags of the pixel layout of a TIFF page, with the defaults of TIFF 6.0."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from dask_tiled.formats.tiff.ifd import INTEGERS, Entry, Ifd, Values, unpack

WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = 256, 257, 258, 259, 262, 266
SAMPLES, ROWS, PLANAR, FAX_OPTIONS, PREDICTOR, TILE_WIDTH = 277, 278, 284, 292, 317, 322
TILE_HEIGHT, EXTRA_SAMPLES, FORMAT, SUBSAMPLING = 323, 338, 339, 530
DEPTH, TILE_DEPTH = 32997, 32998
JPEG_TABLES, NODATA = 347, 42113
ONES = {BITS, COMPRESSION, FILL_ORDER, SAMPLES, PLANAR, PREDICTOR, FORMAT, DEPTH, TILE_DEPTH}
ZEROS = {WIDTH, HEIGHT, PHOTOMETRIC, ROWS, FAX_OPTIONS, TILE_WIDTH, TILE_HEIGHT}
"""Tags by their default."""
NUMBERS = ONES | ZEROS | {EXTRA_SAMPLES, SUBSAMPLING}
LAYOUT_TAGS = NUMBERS | {JPEG_TABLES, NODATA}
"""Tags of the pixel layout; pages with equal values are of one kind."""
OLD_JPEG = 6  # a compression
RGB, YCBCR = 2, 6  # photometric interpretations
KINDS = {1: "u", 2: "i", 3: "f", 4: "u", 6: "c"}
"""Kinds of dtypes by sample format; undefined samples are unsigned integers."""
COMPLEX_INTEGER = 5  # a sample format that NumPy lacks
DTYPES = {"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"}
NUMBER_TYPES = {"b": int, "u": int, "i": int, "f": float, "c": complex}
"""Types of Python by kinds of dtypes."""


class PixelTags:
    """The layout tags of a page: ``tags[COMPRESSION]`` is a number."""

    def __init__(self, ifd: Ifd, values: Values) -> None:
        self._ifd = ifd
        self._numbers = {tag: self._parse(*values[tag]) for tag in NUMBERS & values.keys()}
        self.jpeg_tables, self._nodata = (
            values[tag][1] if tag in values else b"" for tag in (JPEG_TABLES, NODATA)
        )
        if self[COMPRESSION] == OLD_JPEG:  # its defaults are those of libtiff
            if self._numbers.get(PHOTOMETRIC) in {None, (RGB,)}:
                self._numbers[PHOTOMETRIC] = (YCBCR,)
            self._numbers.setdefault(BITS, (8,))
            if self[PHOTOMETRIC] in {0, 1, YCBCR}:
                self._numbers.setdefault(SAMPLES, (3,))

    def __contains__(self, tag: int) -> bool:
        return bool(self._numbers.get(tag))

    def __getitem__(self, tag: int) -> int:
        found = self._numbers.get(tag) or (int(tag in ONES),)
        if len(found) > 1:
            problem, told = "an entry of the layout has several numbers", f"{found[:9]}"
            raise self._ifd.corrupt(problem, expected=f"one in tag {tag}", found=told)
        return found[0]

    def of_samples(self, tag: int) -> tuple[int, ...]:
        """Return the numbers of the samples; one if all are equal."""
        found = self._numbers.get(tag) or (1,)
        found = found[: max(1, self[SAMPLES])]  # LSM has too many
        return found[:1] if len({*found}) == 1 else found

    @property
    def interleaved(self) -> bool:
        """Whether the samples of a pixel are beside each other."""
        return self[PLANAR] == 1

    @property
    def subsampled(self) -> bool:
        """Whether colours have a lower resolution."""
        found = self._numbers.get(SUBSAMPLING)
        return found != (1, 1) if found else self[PHOTOMETRIC] == YCBCR

    @property
    def axes(self) -> str:
        """Axes of a page: "yx", "yxs", "syx", "zyx", ..."""
        inner = "yx" if self[DEPTH] == 1 else "zyx"
        if self[SAMPLES] <= 1 and self[PHOTOMETRIC] != RGB:
            return inner
        return f"{inner}s" if self.interleaved else f"s{inner}"

    @property
    def full(self) -> tuple[int, ...]:
        """Shape of a page, with five axes: planar samples, z, y, x, interleaved samples."""
        size, samples = (self[DEPTH], self[HEIGHT], self[WIDTH]), self[SAMPLES]
        samples = samples if "s" in self.axes else 1
        return (1, *size, samples) if self.interleaved else (samples, *size, 1)

    @property
    def segment(self) -> tuple[int, ...]:
        """Stored shape of a strip or tile, with the same axes."""
        _, _, height, width, samples = self.full
        if TILE_WIDTH in self:
            return 1, self[TILE_DEPTH], self[TILE_HEIGHT], self[TILE_WIDTH], samples
        rows = self._numbers.get(ROWS, ())
        return 1, 1, min(height, rows[0]) if len(rows) == 1 else height, width, samples

    @property
    def dtype(self) -> np.dtype | None:
        """Dtype of samples, in native byte order; None if NumPy has none."""
        (form, *others), (bits, *more) = map(self.of_samples, (FORMAT, BITS))
        if others or more:
            return None
        kind = KINDS.get(form, "")
        if (kind, bits) == ("u", 1):
            return np.dtype(bool)
        size = next((n for n in (1, 2, 4, 8, 16) if bits <= 8 * n), 0)
        packed = 0 < bits < 32 if kind in {"u", "i"} else (kind, bits) == ("f", 24)
        known = f"{kind}{size}" in DTYPES and (packed or bits == 8 * size)
        return np.dtype(f"{kind}{size}") if known else None

    def fill(self, dtype: np.dtype) -> bytes:
        """Return a pixel that was never written: GDAL's number if it fits, otherwise 0."""
        text, number = self._nodata.rstrip(b"\0").replace(b",", b"."), NUMBER_TYPES[dtype.kind]
        with suppress(ValueError, ArithmeticError), np.errstate(over="raise"):
            return np.array(number(text.decode("ascii")), dtype).tobytes()
        return bytes(dtype.itemsize)

    def _parse(self, entry: Entry, value: bytes) -> tuple[int, ...]:
        if entry[1] not in INTEGERS:
            found = f"type {entry[1]} of tag {entry[0]}"
            raise self._ifd.corrupt("an entry of the layout is no number", found=found)
        return unpack(self._ifd.source.flavour.order, entry[1], value)
