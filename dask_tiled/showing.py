"""A picture of an array: what a few frames of it show, on its axes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import compute

from dask_tiled.array.axes import shown_of
from dask_tiled.array.tiled_array import read_once
from dask_tiled.discs import Disc, find_disc
from dask_tiled.errors import DatasetError, check_whole, printable
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Array
from dask_tiled.opening import open_dataset
from dask_tiled.panels import (
    SAVED_DOTS_PER_INCH,
    Image,
    Line,
    Panel,
    check_target,
    draw,
)
from dask_tiled.sampling import SAMPLE_BYTES, mean_of, steps_between

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Path = str | os.PathLike[str]

LONGEST = 4096
LONGEST_OF_LARGE = (4096, 1024, 256)
"""Along no axis are more pixels shown, of more than SAMPLE_BYTES in 1, 2, 3 axes."""
DEPTHS = "z", "depth"
"""What formats call the axis along which images make a volume."""
COLOURS = "s", "c", "channel", "component", "colour", "rgb"
"""What formats call an axis of three or four colours."""


def show(
    arr: da.Array | Array | Path | Sequence[Path],
    target: Path | IO[bytes] | None = None,
    *,
    frames: int | None = None,
) -> Figure:
    """Draw what is in an array, on its axes and with their units.

    A scan is shown by its mean frame, and by what is inside and outside of the bright disc of that,
    as virtual detectors see it; where there is no disc, by sums of its frames. Of a stack the mean
    of each frame is shown beside, of a volume three planes through its middle. Images, spectra and
    what is computed of files are drawn as they are.

    Of a large file a sample of frames is read, at equal distances, and the picture says how many
    of how many. Contrast leaves out half a percent of the pixels at both ends.

    Parameters
    ----------
    arr : dask.array.Array, numpy.ndarray, path-like or sequence of path-like
        An opened array, or what is computed of one; or files, as for :func:`open_dataset`. Numbers,
        truth values or colours; of complex numbers the moduli are shown.
    target : path-like or file, optional
        Where to save the picture; the suffix tells its kind, which is PNG for a file object.
    frames : int, optional
        Read so many frames at most; by default all frames of a file of up to 512 MiB, and of others
        some 16,384 frames or 512 MiB (64 MiB of URLs).

    Returns
    -------
    matplotlib.figure.Figure
        It shows itself in a notebook.

    Raises
    ------
    ImportError
        There is no matplotlib.
    DatasetError
        There is nothing that can be drawn; or as for :func:`open_dataset`.

    Examples
    --------
    >>> import dask_tiled
    >>> from dask_tiled.testing import write_mib
    >>> path = write_mib("scan.mib", np.ones((24, 32, 64, 64), "uint16"))
    >>> figure = dask_tiled.show(path, "scan.png")
    """
    check_target(target)
    limit = None if frames is None else check_whole("frames", frames, least=1)
    given: Any = da.from_array(arr, chunks=-1) if isinstance(arr, np.ndarray) else arr
    opened = given if isinstance(given, da.Array) else open_dataset(given, missing="fill")
    source = _Source.of(opened)
    drawn, notes = source.panels(limit)
    figure = draw(drawn, source.title, source.subtitle, notes)
    if target is not None:
        figure.savefig(target, dpi=SAVED_DOTS_PER_INCH)
    return figure


class _Source(NamedTuple):
    """An array, and what is known of its axes."""

    arr: da.Array
    axes: tuple[Axis, ...]
    nav_ndim: int
    title: str
    subtitle: str

    @property
    def desc(self) -> Description | None:
        """Of the array as it was opened, or a slice of it."""
        return getattr(self.arr, "description", None)

    @classmethod
    def of(cls, arr: da.Array) -> _Source:
        """Find out what an array shows; axes of length 1 are left out."""
        fields = {*(arr.dtype.names or ())}
        if arr.dtype.kind not in "biufc" and not {*"RGB"} <= fields:
            problem, expected = "this type has no picture", "numbers, truth values or colours"
            raise DatasetError(problem, expected=expected, found=arr.dtype)
        if any(map(math.isnan, arr.shape)):
            problem, hint = "the shape is not known", "Call its compute_chunk_sizes() first."
            raise DatasetError(problem, found=f"shape {arr.shape}", hint=hint)
        if not all(n > 0 for n in arr.shape) or max(arr.shape, default=1) == 1:
            problem, expected = "there is nothing to draw", "more than one pixel"
            raise DatasetError(problem, expected=expected, found=f"shape {arr.shape}")
        subtitle = f"{arr.dtype if not fields else 'colours'}, {_by(arr.shape)}"
        known = shown_of(arr)
        title = "an array"
        if known.of:
            first = known.of[0]
            title = printable(os.path.basename(first.files[0].path.rstrip("/")))
            computed = "" if getattr(arr, "description", None) else "computed of "
            subtitle = f"{computed}{first.format}, {subtitle}"
        nav = {axis.name for one in known.of for axis in one.axes[: one.nav_ndim]} | {None}
        names = [axis and axis.name for axis in known.axes]
        outer = [name in nav for name in names]
        nav_ndim = outer.index(False) if False in outer else len(outer)
        if nav_ndim == arr.ndim:
            nav_ndim = max(arr.ndim - 2, 0)
        index = tuple(0 if n == 1 else slice(None) for n in arr.shape)
        kept = [k for k, n in enumerate(arr.shape) if n > 1]
        axes = [known.axes[k] or Axis(f"axis {k}") for k in kept]
        arr = read_once(arr[index])  # to map a few pages here and there takes longer
        nav_ndim = sum(k < nav_ndim for k in kept)
        if nav_ndim == 1 and arr.ndim == 3 and axes[0].name in DEPTHS:
            nav_ndim = 0
        return cls(arr, tuple(axes), nav_ndim, title, subtitle)

    def panels(self, limit: int | None) -> tuple[list[Panel], list[str]]:
        """Compute what is drawn, and tell how much of the array that is."""
        sig_ndim = self.arr.ndim - self.nav_ndim
        image_ndim = sig_ndim - (self._colours() is not None)
        is_scan = self.nav_ndim and self.arr.ndim > 2 and image_ndim < 3
        return self._scan(limit) if is_scan and sig_ndim else self._plain()

    def _colours(self) -> int | None:
        """Return which of the last three axes are colours."""
        return colour_axis([axis.name for axis in self.axes], self.arr.shape, self.nav_ndim)

    def _plain(self) -> tuple[list[Panel], list[str]]:
        """Show one image, one line or three planes."""
        colours = self._colours()
        rest = self.arr.ndim - (3 if colours is not None else min(self.arr.ndim, 3))
        middle = [n // 2 for n in self.arr.shape[:rest]]
        notes = [
            f"{axis.name}: {place} of {n}"
            for axis, place, n in zip(self.axes, middle, self.arr.shape, strict=False)
        ]
        cuts = [*middle, *_every(self.arr.shape[rest:], self.arr.dtype)]
        if colours is not None:
            shown = self._cut(cuts)
            pixels = np.moveaxis(_computed(shown.arr), colours - rest, -1)
            axes = tuple(axis for k, axis in enumerate(shown.axes) if k != colours - rest)
            return [Image("", pixels, (axes[0], axes[1]))], notes + shown.strides(self)
        if self.arr.ndim - rest < 3:
            shown = self._cut(cuts)
            return [_panel("", _computed(shown.arr), shown.axes)], notes + shown.strides(self)
        planes = []
        for k in range(3):
            place = self.arr.shape[rest + k] // 2
            plane = self._cut([*cuts[: rest + k], place, *cuts[rest + k + 1 :]])
            planes.append((f"{self.axes[rest + k].name} = {place}", plane))
        found = _computed(*(plane.arr for _, plane in planes))
        drawn = [
            _panel(name, x, plane.axes) for (name, plane), x in zip(planes, found, strict=True)
        ]
        return drawn, [*notes, "three planes through the middle", *planes[0][1].strides(self)]

    def _scan(self, limit: int | None) -> tuple[list[Panel], list[str]]:
        """Show the mean frame, and what virtual detectors see."""
        nav, whole = self.nav_ndim, math.prod(self.arr.shape[: self.nav_ndim])
        every = [slice(None, None, step) for step in steps_between(self.arr, nav, limit)]
        colours = self._colours()
        sample = self._cut([*every, *_every(self.arr.shape[nav:], self.arr.dtype)])
        there = np.ones(sample.arr.shape[:nav], bool)
        if sample.desc is not None:
            there.ravel()[sample.desc.missing] = False
        notes = [
            sample.said(every, whole, int(np.count_nonzero(~there))),
            *sample.strides(self, nav),
        ]
        if not there.any():
            raise DatasetError("there is nothing to draw", found="missing frames alone")
        pixels = numbers(sample.arr if there.all() else sample.arr[there])
        outer = pixels.ndim - (sample.arr.ndim - nav)
        mean = mean_of(pixels, outer)
        axes = sample.axes[nav:]
        if colours is not None:
            mean, axes = np.moveaxis(mean, colours - nav, -1), _without(axes, colours - nav)
        disc = find_disc(mean) if mean.ndim == 2 and nav > 1 else None
        masks = np.ones((1, *pixels.shape[outer:]))
        titles = ["Sum of each frame"]
        if disc is not None:
            inside = disc.mask(mean.shape)
            masks, titles = np.stack([inside, ~inside]), ["Bright field", "Dark field"]
        seen = np.full((*there.shape, len(masks)), np.nan)
        seen[there] = _sums(pixels, masks.astype(float), outer).reshape(-1, len(masks))
        if nav > 2:
            notes.append(f"mean along {', '.join(a.name for a in sample.axes[: nav - 2])}")
            seen = _mean_over(seen, nav - 2)
        outer_axes = sample.axes[max(0, nav - 2) : nav]
        drawn: list[Panel] = [_panel("Mean frame", mean, axes, disc)]
        drawn += [_panel(t, seen[..., k], outer_axes) for k, t in enumerate(titles)]
        return drawn, notes

    def _cut(self, cuts: Sequence[int | slice]) -> _Source:
        """Show a part, on its axes."""
        axes = [
            axis.cut(0, cut.step or 1)
            for axis, cut in zip(self.axes, cuts, strict=True)
            if isinstance(cut, slice)
        ]
        arr = self.arr[tuple(cuts)]
        nav_ndim = sum(isinstance(cut, slice) for cut in cuts[: self.nav_ndim])
        return self._replace(arr=arr, axes=tuple(axes), nav_ndim=nav_ndim)

    def strides(self, whole: _Source, first: int = 0) -> list[str]:
        """Say of which axes, from one on, not every position is shown."""
        scales = {axis.name: axis.scale for axis in whole.axes}
        steps = {axis.name: round(axis.scale / scales[axis.name]) for axis in self.axes[first:]}
        names = [f"{_ordinal(step)} pixel along {name}" for name, step in steps.items() if step > 1]
        return [f"every {' and '.join(names)}"] if names else []

    def said(self, every: Iterable[slice], whole: int, missing: int) -> str:
        """Say how many frames were read."""
        count = math.prod(self.arr.shape[: self.nav_ndim])
        text = f"all {whole:,} frames"
        if count < whole:
            steps = ", ".join(
                f"every {_ordinal(cut.step)} along {axis.name}"
                for axis, cut in zip(self.axes, every, strict=False)
                if cut.step > 1
            )
            text = f"a sample: {count:,} of {whole:,} frames, {steps}"
        return f"{text}, of which {missing:,} are missing" if missing else text


def _every(shape: Sequence[int], dtype: np.dtype) -> list[slice]:
    """Choose which pixels of an image or a volume are shown."""
    large = math.prod(shape) * dtype.itemsize > SAMPLE_BYTES
    longest = LONGEST_OF_LARGE[min(len(shape), 3) - 1] if large else LONGEST
    return [slice(None, None, -(-n // longest)) for n in shape]


def _ordinal(n: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{'th' if n % 100 in (11, 12, 13) else suffix}"


def _by(shape: Iterable[int]) -> str:
    return " \N{MULTIPLICATION SIGN} ".join(f"{n}" for n in shape)


def _without(axes: tuple[Axis, ...], place: int) -> tuple[Axis, ...]:
    return axes[:place] + axes[place + 1 :]


def colour_axis(names: Sequence[str], shape: Sequence[int], first: int = 0) -> int | None:
    """Find the axis of colours among the last three, from the first one that may be it on."""
    places = range(max(first, len(shape) - 3), len(shape))
    if len(places) == 3:
        for k in (places[2], places[0]):
            if names[k] in COLOURS and shape[k] in (3, 4):
                return k
    return None


def numbers(pixels: da.Array) -> Any:
    """Return what is shown of pixels: moduli, and whole numbers for truth values."""
    if pixels.dtype.names:
        return da.stack([pixels[name] for name in "RGB"], axis=-1)
    if pixels.dtype.kind == "c":
        return abs(pixels)
    return pixels.astype(np.uint8) if pixels.dtype == bool else pixels


def _computed(*arrays: da.Array) -> Any:
    found = compute(*map(numbers, arrays))
    return found if len(arrays) > 1 else found[0]


def _sums(pixels: da.Array, masks: Array, ndim: int) -> Array:
    """Add up every frame under masks; pixels that are not finite do not count, NaN if none is."""
    sig, there = tuple(range(ndim, pixels.ndim)), np.True_
    if pixels.dtype.kind == "f":
        finite = da.isfinite(pixels)
        pixels, there = da.where(finite, pixels, 0), finite.any(sig)
    sums = da.tensordot(pixels, masks, (sig, tuple(range(1, masks.ndim))))
    found, there = compute(sums, there)
    return np.where(there[..., np.newaxis], found, np.nan)


def _mean_over(values: Array, ndim: int) -> Array:
    """Return the mean along the first axes, of what is there."""
    axes, there = tuple(range(ndim)), ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.divide(np.nansum(values, axis=axes), there.sum(axis=axes))


def _panel(title: str, values: Array, axes: tuple[Axis, ...], disc: Disc | None = None) -> Panel:
    if len(axes) == 1:
        return Line(title, values, axes[0])
    return Image(title, values, (axes[0], axes[1]), disc, title == "Mean frame")
