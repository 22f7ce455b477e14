"""Decoders by name, and the conversion of decoded pixels to those of the array.

A :class:`Decoder` is a value. The numba function is imported only in the task that decodes, so
describing files and building graphs never load numba.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import with_room
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.indexing import Array


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decoder of one unit of bytes into pixels.

    Attributes
    ----------
    kernel : str
        Name of the numba function in :mod:`dask_tiled.kernels.decoding`, which documents the
        signature, or ``"module:function"``.
    dtype : numpy.dtype
        Dtype of the decoded pixels, in native byte order.
    nbytes : int
        Size of a unit in bytes.
    pixels : int
        Number of pixels in a unit, neighbours along the last axis.
    lag : int
        Distance in bytes to a second unit that is read together with the first; 0 if there is none.
    """

    kernel: str
    dtype: np.dtype
    nbytes: int
    pixels: int = 1
    lag: int = 0

    @property
    def width(self) -> int:
        """Bytes of the decoded pixels of a unit."""
        return self.pixels * self.dtype.itemsize

    @property
    def is_copy(self) -> bool:
        """Whether decoded pixels are the stored bytes."""
        return self.kernel == "copy" and self.pixels == 1

    @property
    def reach(self) -> int:
        """Bytes from the start of a unit to the end of the last byte read for it."""
        return self.nbytes + self.lag


UNIFORM = "dask_tiled.codecs.chunks:fill"
"""Function of decoders of blocks that are not stored."""


@dataclass(frozen=True, slots=True)
class BlockDecoder:
    """Decoder of a piece that decodes only as a whole, because it is compressed.

    Attributes
    ----------
    function : str
        A Python function, as ``"module:function"``. ``function(block, fetch, **options)`` returns
        the pixels of a :class:`~dask_tiled.model.blocks.Block`; ``fetch(file, start, stop)`` reads
        bytes, and ``fetch.keep(key, make)`` keeps resources open for the other blocks of a task.
    dtype : numpy.dtype
        Dtype of the decoded pixels, in native byte order.
    options : tuple of (str, value)
        Further arguments of the function, as plain values.
    object_bytes : int
        Mean size in bytes of the decoded Python objects, if pixels are objects.
    many : str
        A Python function, as ``"module:function"``, that decodes many frames at once, each of which
        is one block: ``many(run, fetch, out, **options)`` writes the frames of a
        :class:`~dask_tiled.model.blocks.BlockRun` into an array. Empty if there is none.
    """

    function: str
    dtype: np.dtype
    options: tuple[tuple[str, Any], ...] = ()
    object_bytes: int = 0
    many: str = ""

    @property
    def is_uniform(self) -> bool:
        """Whether blocks hold one value, so that decoding one takes no memory."""
        return self.function == UNIFORM


@dataclass(frozen=True, slots=True)
class EventDecoder(BlockDecoder):
    """Decoder of a sparse piece: a run of bytes with events, each of which adds to a pixel.

    Pixels without events are 0, boxes of pieces may overlap, and the files have one frame axis. The
    first stride of a piece is a number of the format's own, which is passed on as its ``state``.

    Attributes
    ----------
    function : str
        ``function(run, fetch, target, **options)`` adds the events of an
        :class:`~dask_tiled.model.events.EventRun` to an
        :class:`~dask_tiled.model.events.EventTarget`.
    index : str
        A Python function, as ``"module:function"``, that finds the frames of each piece where only
        the events tell: ``index(run, fetch, **options)`` returns three arrays, the first frame of
        each piece, the frame after its last, and its state. It sees all pieces of a file in the
        order of the table, once in a process. Empty if the boxes of the table are exact.
    records : str
        A Python function, as ``"module:function"``, that lists events: ``records(run, fetch, out,
        **options)`` writes them to an array of `record`, and returns how many there are. The second
        stride of a piece is the number of its events, and there is one file. Empty if there is
        none.
    record : numpy.dtype
        Structured dtype of a listed event.
    marks : bytes
        Numbers of 8 bytes, each of which begins some frames; events of these frames do not depend
        on later marks. Empty if there are none.
    per_mark : int
        Number of frames that follow a mark.
    """

    index: str = ""
    records: str = ""
    record: np.dtype | None = None
    marks: bytes = b""
    per_mark: int = 0

    def until(self, stop: int) -> EventDecoder:
        """Return the decoder of the frames before one, with the marks that these need."""
        if not self.marks:
            return self
        return replace(self, marks=self.marks[: 8 * -(-stop // self.per_mark)])


def plain(dtype: np.dtype) -> Decoder:
    """Return the decoder of uncompressed pixels in a NumPy dtype.

    Parameters
    ----------
    dtype : numpy.dtype
        Dtype in the file, of either byte order. Records, text and long doubles keep the byte order
        of the file; all other pixels are decoded to native byte order.
    """
    if dtype.kind == "b":
        return Decoder("truth", dtype, 1)
    native = dtype.newbyteorder("=")
    word = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    swappable = dtype.kind in "iufcmM" and word in {2, 4, 8}
    if dtype == native:
        return Decoder("copy", native, dtype.itemsize)
    if swappable:
        return Decoder(f"swap{word}", native, dtype.itemsize)
    return Decoder("copy", dtype, dtype.itemsize)


def function_at(name: str) -> Any:
    """Import the object named ``"module:function"``; wait for a file descriptor if all are used."""
    module, _, function = name.partition(":")
    return getattr(with_room(partial(importlib.import_module, module), module), function)


@dataclass(frozen=True, slots=True)
class Conversion:
    """Conversion from the pixels of the files to those of the array."""

    native: np.dtype  # dtype of decoded pixels
    dtype: np.dtype  # dtype of the array
    fill_value: Any  # value of missing pixels, of type ``dtype``
    corrections: Corrections | None = None  # applied before the dtype is changed
    scaling: tuple[float, float] | None = None
    """Gain and offset from the file's header: ``pixels * gain + offset``, after the
    corrections, in float64 or complex128."""

    @classmethod
    def of(
        cls,
        native: np.dtype,
        path: str,
        dtype: npt.DTypeLike | None = None,
        fill_value: Any = 0,
        corrections: Corrections | None = None,
        scaling: tuple[float, float] | None = None,
    ) -> Conversion:
        """Return the conversion that the options of a user request."""
        wanted = native if corrections is None else corrections.dtype(native, path)
        if scaling is not None:
            wanted = np.result_type(wanted, np.float64)
        if dtype is not None:
            wanted = _dtype(dtype, native, path)
        return cls(native, wanted, _fill(fill_value, wanted, path), corrections, scaling)

    @property
    def nothing(self) -> bool:
        """Whether decoded pixels stay unchanged."""
        return self.only_casts and self.dtype == self.native

    @property
    def only_casts(self) -> bool:
        """Whether at most the dtype of decoded pixels is changed."""
        return self.corrections is None and self.scaling is None

    @property
    def widens(self) -> bool:
        """Whether at most integers become wider ones."""
        whole = self.native.kind in "iu" and self.dtype.kind in "iu"
        return self.only_casts and whole and np.can_cast(self.native, self.dtype)

    def finish(self, pixels: Array, out: Array) -> None:
        """Scale corrected pixels and write them in the dtype of the array."""
        if self.scaling is None:
            np.copyto(out, pixels, casting="unsafe")
            return
        gain, offset = self.scaling
        wide = np.result_type(pixels, np.float64)
        scaled = out if out.dtype == wide else np.empty(out.shape, wide)
        with np.errstate(all="ignore"):
            np.multiply(pixels, gain, out=scaled, dtype=wide)
            scaled += offset
            if scaled is not out:
                np.copyto(out, scaled, casting="unsafe")

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        fill: Any = self.fill_value
        if not self.dtype.hasobject:
            fill = np.asarray(fill, self.dtype).tobytes()
        corrections = None if self.corrections is None else self.corrections.__dask_tokenize__()
        values = str(self.native), str(self.dtype), fill, corrections, self.scaling
        return "dask_tiled.Conversion", *values


def _dtype(dtype: npt.DTypeLike, native: np.dtype, path: str) -> np.dtype:
    try:
        wanted = np.dtype(dtype)
        if wanted.kind in "iu":  # NumPy has two 8-byte integer types; zarr has one
            wanted = np.dtype(wanted.str)
    except (TypeError, ValueError) as error:
        raise DatasetError(
            "invalid dtype", path=path, expected="a NumPy dtype", found=dtype
        ) from error
    if wanted != native:  # records and text may keep the byte order of the file
        wanted = wanted.newbyteorder("=")
    kinds = "biufc"
    if wanted != native and (wanted.kind not in kinds or native.kind not in kinds):
        raise DatasetError(
            "pixels cannot be converted",
            path=path,
            expected="numbers",
            found=f"{native} to {wanted}",
        )
    return wanted


def _fill(value: Any, dtype: np.dtype, path: str) -> Any:
    """Return a fill value in the dtype of the array; only floats may be rounded."""
    if value is None or (type(value) is int and value == 0):
        return np.zeros((), dtype)[()]
    try:
        given = np.asarray(value)
        if given.dtype == object:  # NumPy may convert them differently, depending on their values
            raise TypeError(value)  # noqa: TRY301
        with np.errstate(all="ignore"):
            filled = (given if dtype.kind == "c" else given.real).astype(dtype)
        if dtype.kind in "fc" and given.dtype.kind in "fc":
            precision = np.finfo(dtype).eps
            same = filled.ndim == 0 and np.allclose(filled, given, precision, 0, equal_nan=True)
        else:
            missing = (filled != filled) & (given != given)  # noqa: PLR0124 - NaT differs from itself
            same = filled.ndim == 0 and bool(np.all((filled == given) | missing))
    except (TypeError, ValueError, OverflowError):
        same = False
    if not same:
        raise DatasetError(
            "fill_value cannot be stored in the dtype of the pixels",
            path=path,
            expected=f"a {dtype}",
            found=value,
        )
    return filled[()]
