"""Fourier transforms of axes: frequencies, in reciprocal units."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dask_tiled.labels.axis_kinds import Frequencies, Unplaced, from_negative
from dask_tiled.model.axes import Axis
from dask_tiled.plans.tasks import Function

KINDS = "fft", "ifft", "rfft", "irfft", "hfft", "ihfft"
SHIFTS = "fftshift", "ifftshift"
PACKED = "packed"
"""Layout of scipy.fftpack for real pixels: real and imaginary parts alternate."""
LIBRARIES = "numpy", "scipy", "cupy", "mkl_fft", "pyfftw"
PREFIX = "f_"
"""Prefix of the names of frequency axes."""


class Transform(NamedTuple):
    """A Fourier transform or shift of chunks."""

    kind: str
    axes: tuple[int, ...]
    lengths: tuple[int | None, ...]
    """Lengths passed to the function for the transformed axes; for real transforms, of the
    longer side."""


def transform_of(
    function: Function, values: Sequence[Any], kwargs: Mapping[str, Any], ndim: int
) -> Transform | None:
    """Match a chunk function ``function(chunk, *values)`` that is a Fourier transform or shift.

    The names and arguments are those of ``numpy.fft``, in known libraries only.
    """
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", None) or ""
    kind = name.rstrip("2n")
    if kind not in KINDS + SHIFTS or module.split(".")[0] not in LIBRARIES:
        return None
    names = ["axes"] if kind in SHIFTS else ["n", "axis"] if kind == name else ["s", "axes"]
    given = {**dict(zip(names, values, strict=False)), **kwargs}
    sizes, axes = given.get("n", given.get("s")), given.get("axis", given.get("axes"))
    if "fftpack" in module and kind in ("rfft", "irfft"):
        kind = PACKED
    if axes is None:
        several = tuple(range(ndim if sizes is None or kind == name else len(sizes)))
        axes = several if kind in SHIFTS or name.endswith("n") else (-2, -1)[kind == name :]
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    if sizes is None:
        sizes = (None,) * len(axes)
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return Transform(kind, tuple(axis % ndim for axis in axes), sizes)


def transformed(
    axes: Sequence[Axis | None], transform: Transform, before: Sequence[int], after: Sequence[int]
) -> list[Axis | None]:
    """Return the axes after a transform, from the lengths before and after."""
    new_axes = list(axes)
    for k, (place, length) in enumerate(zip(transform.axes, transform.lengths, strict=True)):
        axis, last = axes[place], k == len(transform.axes) - 1
        if axis is None or transform.kind == PACKED:
            new_axes[place] = None
            continue
        if transform.kind in SHIFTS:
            new_axes[place] = _shifted(axis, after[place], inverse=transform.kind == "ifftshift")
            continue
        halves = transform.kind in ("rfft", "ihfft") and last
        doubles = transform.kind in ("irfft", "hfft") and last
        size = after[place] if doubles or not halves else length or before[place]
        backward = transform.kind in ("ifft", "irfft", "ihfft")
        new_axes[place] = _reciprocal(axis, size, before[place], backward=backward)
    return new_axes


def _reciprocal(axis: Axis, size: int, before: int, *, backward: bool) -> Axis:
    """Return the frequencies of an axis, or the original axis of frequencies.

    Two transforms in the same direction reverse an axis.
    """
    of = axis.of if isinstance(axis, Frequencies) and axis.backward != backward else None
    if of is not None and not isinstance(of, Unplaced):
        step = 1 / (size * axis.scale)
        near = abs(step - of.scale) <= abs(step) * 1e-9
        return Axis(of.name, of.units, of.scale if near else step, of.offset)
    name = axis.name.removeprefix(PREFIX) if axis.name.startswith(PREFIX) else PREFIX + axis.name
    uneven = isinstance(axis, Unplaced | Frequencies) or axis.coordinates
    if uneven or not axis.scale or not before:
        return Unplaced(name)
    scale = 1 / (size * axis.scale)
    units = reciprocal_units(axis.units)
    return Frequencies(name, units, scale, of=axis, count=size, backward=backward)


def _shifted(axis: Axis, size: int, *, inverse: bool) -> Axis:
    if not isinstance(axis, Frequencies) or axis.count != size:
        return Unplaced(axis.name)
    first = size // 2 if inverse else -(-size // 2)
    return from_negative(replace(axis, offset=axis.offset + axis.scale * first))


def reciprocal_units(units: str) -> str:
    """Return the reciprocal of a unit."""
    found = re.fullmatch(r"1/(?:\(([^()]+)\)|([^()/*\s]+))", units)
    if found:
        return found[1] or found[2]
    return f"1/({units})" if re.search(r"[/*^\s]", units) else units and f"1/{units}"
