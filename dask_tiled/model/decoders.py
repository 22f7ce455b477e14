"""From bytes to the pixels of an array: decoders by name, and the conversion of what they give.

A :class:`Decoder` is a value. The numba function behind it is imported where pixels are made, in
the task, so describing and graph building never load numba.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.indexing import Array


@dataclass(frozen=True, slots=True)
class Decoder:
    """How one unit of bytes becomes pixels.

    Attributes
    ----------
    kernel : str
        The numba function: its name in :mod:`dask_tiled.kernels.decoding`, which tells the
        signature, or ``"module:function"``.
    dtype : numpy.dtype
        Type of the pixels that come out, in native byte order.
    nbytes : int
        Bytes of a unit.
    pixels : int
        Pixels in a unit. They are neighbours along the last axis.
    lag : int
        Distance in bytes to a second unit that is read together with the first; 0 where there is
        none.
    """

    kernel: str
    dtype: np.dtype
    nbytes: int
    pixels: int = 1
    lag: int = 0

    @property
    def width(self) -> int:
        """Bytes of the pixels of a unit."""
        return self.pixels * self.dtype.itemsize

    @property
    def is_copy(self) -> bool:
        """Whether pixels are stored just as they come out."""
        return self.kernel == "copy" and self.pixels == 1

    @property
    def reach(self) -> int:
        """Bytes from the start of a unit to the end of all that is read with it."""
        return self.nbytes + self.lag


@dataclass(frozen=True, slots=True)
class BlockDecoder:
    """How a piece becomes pixels that decodes only as a whole, because it is compressed.

    Attributes
    ----------
    function : str
        A Python function, as ``"module:function"``. ``function(block, fetch, **options)`` gives the
        pixels of a :class:`~dask_tiled.model.blocks.Block`; ``fetch(file, start, stop)`` reads
        bytes, and ``fetch.keep(key, make)`` keeps open what the other blocks of a task need, too.
    dtype : numpy.dtype
        Type of the pixels that it gives, in native byte order.
    options : tuple of (str, value)
        Further arguments of the function: plain values.
    object_bytes : int
        Bytes of a Python object that it gives, in the mean, where these are its pixels.
    many : str
        A Python function, as ``"module:function"``, that decodes whole frames at once, each of
        which is a block: ``many(run, fetch, out, **options)`` writes the frames of a
        :class:`~dask_tiled.model.blocks.BlockRun` into an array. Empty if there is none.
    """

    function: str
    dtype: np.dtype
    options: tuple[tuple[str, Any], ...] = ()
    object_bytes: int = 0
    many: str = ""


def plain(dtype: np.dtype) -> Decoder:
    """Return the decoder of pixels that are stored as numpy would store them.

    Parameters
    ----------
    dtype : numpy.dtype
        Type in the file, of either byte order. Records, text and long doubles keep the byte order
        of the file; everything else comes out native.
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
    """Import what a name as ``"module:function"`` stands for."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


@dataclass(frozen=True, slots=True)
class Conversion:
    """From the pixels of the files to those of the array."""

    native: np.dtype  # type in which the files' pixels are decoded
    dtype: np.dtype  # type of the array
    fill_value: Any  # value of all pixels of missing frames, of type ``dtype``
    corrections: Corrections | None = None  # applied before the type is changed
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
        """Make a conversion of what a user asks for."""
        wanted = native if corrections is None else corrections.dtype(native, path)
        if scaling is not None:
            wanted = np.result_type(wanted, np.float64)
        if dtype is not None:
            wanted = _dtype(dtype, native, path)
        return cls(native, wanted, _fill(fill_value, wanted, path), corrections, scaling)

    @property
    def nothing(self) -> bool:
        """Whether pixels stay as they are decoded."""
        same = self.corrections is None and self.scaling is None
        return same and self.dtype == self.native

    def finish(self, pixels: Array, out: Array) -> None:
        """Scale pixels that are corrected already, and write them in the type of the array."""
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
        if wanted.kind in "iu":  # NumPy has two types of 8 bytes, of which zarr knows one
            wanted = np.dtype(wanted.str)
    except (TypeError, ValueError) as error:
        raise DatasetError("not a dtype", path=path, found=dtype) from error
    if wanted != native:  # records and texts may have the byte order of the file
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
    """Return a fill value in the type of the array: exactly, but that floats are rounded."""
    if value is None or (type(value) is int and value == 0):
        return np.zeros((), dtype)[()]
    try:
        given = np.asarray(value)
        if given.dtype == object:  # which NumPy converts, or fails to, by what is in it
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
            "fill_value does not fit the pixels", path=path, expected=f"a {dtype}", found=value
        )
    return filled[()]
