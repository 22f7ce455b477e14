"""Dark frame, gain map and excluded pixels, applied tile by tile."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError
from dask_tiled.model.indexing import Array, Index

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Corrections:
    """Corrections of a detector's raw counts: ``(counts - dark) * gain``, then repairs.

    Each excluded pixel becomes the mean of the corrected values of its good neighbours: the pixels
    of the 3x3 box around it (3x3x3 with three signal axes, and so on) that lie in the frame and are
    not excluded themselves. If that box holds no good pixel, as behind a beam stop, the smallest
    larger box that holds some is used. With ``fill``, excluded pixels hold that value instead.

    Results are float32, or float64 if float32 cannot hold the counts (integers of 4 and 8 bytes,
    and float64), and are calculated in this dtype; the means are summed in float64.

    Parameters
    ----------
    dark, gain : array-like of real numbers, optional
        Arrays of the signal shape: the dark reference in counts, and the gain factors.
    excluded_pixels : array-like, optional
        Pixels to repair: a boolean mask of the signal shape, dense or sparse (of ``scipy.sparse``
        or ``sparse``), or integers of shape ``(n, d)``, the coordinates of n pixels on d signal
        axes, in the order of the axes. With one signal axis, the shape can be ``(n,)``.
    fill : float, optional
        Value of excluded pixels, for example NaN or 0; by default they are repaired.

    Attributes
    ----------
    dark, gain : array or None
        Read-only; float32 if it holds every value exactly, otherwise float64.
    excluded_pixels : int64 array of shape (n, d), or None
        Coordinates in C order, each pixel once; read-only.
    fill : float or None
        The value of excluded pixels; None if they are repaired.

    Raises
    ------
    DatasetError
        Values are not numeric or not finite in float32, or coordinates are invalid.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> dark = np.zeros((128, 128))
    >>> corrections = dask_tiled.Corrections(dark=dark, excluded_pixels=[(20, 97), (71, 12)])
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold(), corrections=corrections)
    >>> arr.dtype
    dtype('float32')
    """

    dark: Floats | None
    gain: Floats | None
    excluded_pixels: Index | None
    fill: float | None
    _mask_shape: tuple[int, ...] | None
    _token: str

    def __init__(
        self,
        dark: Any = None,
        gain: Any = None,
        excluded_pixels: Any = None,
        fill: float | None = None,
    ) -> None:
        pixels, mask_shape = _pixels(excluded_pixels)
        values = (_plane("dark", dark), _plane("gain", gain), pixels)
        number = None if fill is None else _number("fill", fill)
        _set(self, *values, number, mask_shape, _digest(values, number, mask_shape))

    @property
    def sig_shape(self) -> tuple[int, ...] | None:
        """Shape of a frame; None if only coordinates were given."""
        shapes = (plane.shape for plane in (self.dark, self.gain) if plane is not None)
        return next(shapes, self._mask_shape)

    def check(self, sig_shape: tuple[int, ...], path: str) -> None:
        """Check that the corrections match the frames of a data set.

        Parameters
        ----------
        sig_shape : tuple of int
            Shape of the frames in the files.
        path : str
            Path named in errors.

        Raises
        ------
        DatasetError
            Shapes differ, a pixel lies outside of the frame, or no pixel is good.
        """
        shapes = {
            "dark": None if self.dark is None else self.dark.shape,
            "gain": None if self.gain is None else self.gain.shape,
            "the mask of excluded pixels": self._mask_shape,
        }
        for name, shape in shapes.items():
            if shape is not None and shape != sig_shape:
                raise DatasetError(
                    f"{name} does not have the shape of a frame",
                    path=path,
                    expected=sig_shape,
                    found=shape,
                )
        pixels = self.excluded_pixels
        if pixels is None:
            return
        if pixels.shape[1] != len(sig_shape):
            raise DatasetError(
                "excluded pixels do not have as many coordinates as a frame has axes",
                path=path,
                expected=f"{len(sig_shape)} for each pixel",
                found=pixels.shape[1],
                hint="Coordinates have the shape (n, d); a mask must be boolean.",
            )
        outside = (pixels >= sig_shape).any(axis=1)
        if outside.any():
            raise DatasetError(
                "an excluded pixel lies outside of the frame",
                path=path,
                expected=f"pixels of a frame of shape {sig_shape}",
                found=_first(pixels[outside]),
            )
        if self.fill is None and len(pixels) and len(pixels) == math.prod(sig_shape):
            raise DatasetError(
                "all pixels are excluded, so none can be repaired",
                path=path,
                expected="a pixel that is not excluded",
                found=f"{len(pixels)} excluded pixels",
                hint="Pass fill=, the value of excluded pixels.",
            )

    def dtype(self, native: np.dtype, path: str | None = None) -> np.dtype:
        """Return the type of corrected pixels.

        Parameters
        ----------
        native : numpy.dtype
            Type of the raw pixels.
        path : str, optional
            Path named in errors.

        Raises
        ------
        DatasetError
            Pixels are not booleans, integers or floats of up to 8 bytes.
        """
        if native.kind not in "biuf" or native.itemsize > 8:
            raise DatasetError(
                "pixels of this type cannot be corrected",
                path=path,
                expected="booleans, integers or floats of up to 8 bytes",
                found=native,
            )
        return np.result_type(native, np.float32)

    def __str__(self) -> str:
        parts = [name for name in ("dark", "gain") if getattr(self, name) is not None]
        if self.excluded_pixels is not None:
            shown = "" if self.fill is None else f" as {self.fill:g}"
            parts.append(f"{len(self.excluded_pixels)} excluded pixels{shown}")
        return ", ".join(parts) or "none"

    def __repr__(self) -> str:
        return f"<Corrections: {self}>"

    def __dask_tokenize__(self) -> tuple[str, str]:
        # dask does not tokenize nested objects here: return plain values only.
        return "dask_tiled.Corrections", self._token

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Corrections):
            return NotImplemented
        return self._token == other._token

    def __hash__(self) -> int:
        return hash(self._token)

    def __reduce__(self) -> tuple[Any, ...]:
        values = (self.dark, self.gain, self.excluded_pixels, self.fill)
        return _restore, (*values, self._mask_shape, self._token)


def _array(name: str, values: Any) -> Array:
    """Return an array from an array-like, dense or sparse; refuse masked values."""
    dense = getattr(values, "toarray", None) or getattr(values, "todense", None)
    values = values if dense is None else dense()
    try:
        found = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DatasetError(
            f"{name}: not an array ({error})", found=type(values).__name__
        ) from error
    if np.ma.is_masked(values):
        raise DatasetError(
            f"{name}: some values are masked",
            expected="a value everywhere",
            found=f"{values.mask.sum()} masked values",
            hint="Fill masked values, and pass their pixels as excluded_pixels.",
        )
    return found


def _plane(name: str, values: Any) -> Floats | None:
    """Copy a dark frame or gain map, as float32 if that holds every value exactly, else float64."""
    if values is None:
        return None
    found = _array(name, values)
    if found.dtype.kind not in "biuf":
        raise DatasetError(f"{name}: not real numbers", expected="numbers", found=found.dtype)
    with np.errstate(over="ignore"):
        single = found.astype(np.float32, order="C")
    bad = ~np.isfinite(single)
    if bad.any():
        raise DatasetError(
            f"{name}: some values are not finite, or too large for float32",
            expected="finite numbers",
            found=f"{found[bad][0]} at {_first(np.argwhere(bad))}, one of {bad.sum()}",
            hint="Set excluded pixels to any number: it is not used.",
        )
    return single if (single == found).all() else found.astype(np.float64, order="C")


def _pixels(values: Any) -> tuple[Index | None, tuple[int, ...] | None]:
    """Read a mask or coordinates; return the coordinates and the shape of the mask."""
    if values is None:
        return None, None
    name = "excluded_pixels"
    found = _array(name, values)
    if found.dtype.kind == "b":
        return np.argwhere(found), found.shape
    if found.size == 0:
        return None, None
    if found.dtype.kind not in "iu" or found.ndim not in {1, 2}:
        raise DatasetError(
            f"{name}: neither a mask nor coordinates",
            expected="a boolean mask, or whole numbers of shape (n, d)",
            found=f"{found.dtype} of shape {found.shape}",
        )
    pixels = found.reshape(len(found), -1)
    bad = ((pixels < 0) | (pixels > np.iinfo(np.int64).max)).any(axis=1)
    if bad.any():
        raise DatasetError(
            f"{name}: negative coordinates", expected="0 or more", found=_first(pixels[bad])
        )
    return np.unique(pixels.astype(np.int64), axis=0), None


def _first(pixels: Array) -> tuple[int, ...]:
    return tuple(pixels[0].tolist())


def _number(name: str, value: Any) -> float:
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        return float(value)
    raise DatasetError(f"{name}: not a real number", expected="a number or NaN", found=repr(value))


def _digest(
    arrays: Sequence[Array | None], fill: float | None, mask_shape: tuple[int, ...] | None
) -> str:
    # repr and bytes are equal in all processes; pickled bytes are not.
    digest = hashlib.blake2b(repr((fill, mask_shape)).encode(), digest_size=16)
    for array in arrays:
        digest.update(repr(array is not None and (array.shape, array.dtype.str)).encode())
        if array is not None:
            digest.update(array.tobytes())
    return digest.hexdigest()


def _set(corrections: Corrections, *values: Any) -> None:
    names = ("dark", "gain", "excluded_pixels", "fill", "_mask_shape", "_token")
    for name, value in zip(names, values, strict=True):
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        object.__setattr__(corrections, name, value)


def _restore(*values: Any) -> Corrections:
    """Rebuild corrections from values that are already checked."""
    corrections = object.__new__(Corrections)
    _set(corrections, *values)
    return corrections
