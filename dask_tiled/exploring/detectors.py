"""Virtual detectors of the page: masks, the computations with them, and equivalent code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError
from dask_tiled.exploring.scene import Scene
from dask_tiled.measuring.calibrating import calibrate
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array
from dask_tiled.opened.axes import shown_of
from dask_tiled.tiles.lengths import PIXELS
from dask_tiled.tiles.masks import apply_masks, center_of_mass
from dask_tiled.tiles.shapes import disk, ring

Mask = npt.NDArray[np.bool_]

SHAPES = "all", "disk", "ring", "rectangle", "point"
SIGNALS = "sum", "center of mass", "quadrants"
IMPORTS = {
    "da": "import dask.array as da",
    "np": "import numpy as np",
    "dask_tiled": "import dask_tiled",
    "tiles": "from dask_tiled import tiles",
}


class Detector(NamedTuple):
    """A region of the frame, and the signal computed from it. All lengths are in pixels."""

    shape: str
    center: tuple[float, ...]
    radius: float
    """Radius of a disk or a ring, along the last axis of a frame."""
    inner: float
    """Inner radius of a ring, along the last axis of a frame."""
    size: tuple[float, ...]
    """Size of a rectangle, along each axis of a frame."""
    signal: str


class SizedDisk(NamedTuple):
    """A disk in the frame whose size is known, which calibrates the detector."""

    size: str
    center: tuple[float, float]
    """Position of its centre, in pixels."""
    radius: float

    @classmethod
    def of(cls, scene: Scene, detector: Detector, size: object) -> Self:
        """Return the disk that a detector covers.

        Raise a DatasetError if it is no disk in a frame along the last axes, or the size no text.
        """
        is_last = scene.frame == (scene.arr.ndim - 2, scene.arr.ndim - 1)
        if detector.shape not in {"disk", "ring"} or not detector.radius or not is_last:
            raise DatasetError("no disk to calibrate by", expected="a disk", found=detector.shape)
        if not isinstance(size, str):
            raise DatasetError("invalid size", expected='such as "20 mrad"', found=repr(size))
        y, x = (round(at, 3) for at in detector.center)
        return cls(size, (y, x), round(detector.radius, 3))

    def calibrated(self, arr: da.Array) -> da.Array:
        """Return an array with axes that count from the centre of the disk."""
        return calibrate(arr, disk=self.size, center=self.center, radius=self.radius)

    @property
    def code(self) -> str:
        """Code of the calibration."""
        options = f"disk={self.size!r}, center={self.center}, radius={self.radius}"
        return f"arr = dask_tiled.calibrate(arr, {options})"


class DetectorJob(NamedTuple):
    """Computation of an image with a detector."""

    scene: Scene
    places: tuple[int, ...]
    detector: Detector
    mask: Mask | None
    """Mask of the pixels; None for all pixels."""
    lines: tuple[str, ...]
    """Code that defines the variable ``mask``."""

    @classmethod
    def of(cls, scene: Scene, places: tuple[int, ...], detector: Detector) -> DetectorJob:
        """Build the mask of a detector, equal to that of its code."""
        if not scene.scan:  # one picture, all of which is shown
            detector = detector._replace(shape="all", signal="sum")
        if scene.are_together(places):
            detector = detector._replace(signal="sum")
        mask, lines = _mask(scene, places, detector)
        return cls(scene, places, detector, mask, tuple(lines))

    @property
    def covered(self) -> Mask:
        """Mask of the pixels of a frame that the detector covers."""
        found = np.full(self.scene.frame_shape, self.detector.shape != "point")
        if self.detector.shape == "point":
            found[tuple(_pixel(self.scene, self.detector))] = True
        return found if self.mask is None else self.mask

    @property
    def adds_whole_numbers(self) -> bool:
        """Whether sums are exact in any order of the pixels."""
        is_sum = self.detector.signal == "sum" or self.detector.shape == "point"
        return is_sum and self.scene.arr.dtype.kind in "biu"

    def expression(self, view: da.Array) -> da.Array:
        """Return the image of a scan, or of a part of one; without a scan, the frame.

        Channels that are shown together are its last axis.
        """
        ndim = len(self.scene.frame)
        sig = tuple(range(-ndim, 0))
        if not self.scene.scan:
            return view
        if self.detector.shape == "point":
            return view[(..., *_pixel(self.scene, self.detector))]
        if self.detector.signal == "center of mass":
            return center_of_mass(view, self.mask, sig_ndim=ndim)
        if self.detector.signal == "quadrants":
            return apply_masks(view, self._quadrants(), sig_ndim=ndim)
        return (view if self.mask is None else view * self.mask).sum(axis=sig)

    def picture(self, values: Array) -> Array:
        """Return an image as the page draws it: scalar, or with components on the first axis."""
        if self.detector.shape != "point" and self.detector.signal == "quadrants":
            upper_left, upper_right, lower_left, lower_right = np.moveaxis(values, -1, 0)
            total = upper_left + upper_right + lower_left + lower_right
            y = lower_left + lower_right - upper_left - upper_right
            x = upper_right + lower_right - upper_left - lower_left
            with np.errstate(all="ignore"):
                return np.stack([y, x]) / total
        return np.moveaxis(values, -1, 0) if values.ndim > len(self.scene.scan) else values

    def code(self, source: str = "") -> str:
        """Return code that computes the image of ``arr``, or of the array that ``source`` opens."""
        ndim, shape = len(self.scene.frame), self.detector.shape
        lines, more = [self.scene.code(self.places)], _more(self.scene, self.places)
        axis = ", ".join(map(str, range(-ndim, 0)))
        axis = f"({axis})" if ndim > 1 else axis
        if not self.scene.scan:
            lines.append("image = arr.compute()")
        elif shape == "point":
            at = ", ".join(map(str, _pixel(self.scene, self.detector)))
            lines.append(f"image = arr[..., {at}].compute()")
        elif self.detector.signal == "center of mass":
            mask = "" if self.mask is None else ", mask"
            lines += [*self.lines, f"image = tiles.center_of_mass(arr{mask}{more}).compute()"]
        elif self.detector.signal == "quadrants":
            y, x = (round(n, 2) for n in self.detector.center)
            height, width = (f"np.arange({n})" for n in self.scene.frame_shape)
            lines += [
                *self.lines,
                f"lower, right = {height}[:, None] >= {y}, {width} >= {x}",
                "quarters = ~lower & ~right, ~lower & right, lower & ~right, lower & right",
                f"quadrants = np.stack(quarters){'' if self.mask is None else ' & mask'}",
                f"image = tiles.apply_masks(arr, quadrants{more}).compute()",
            ]
        else:
            summed = "arr" if self.mask is None else "(arr * mask)"
            lines += [*self.lines, f"image = {summed}.sum(axis={axis}).compute()"]
        text = "\n".join(line for line in lines if line)
        used = [line for name, line in IMPORTS.items() if f"{name}." in f"{source} {text}"]
        return "\n".join([*used, *([f"arr = {source}"] if source else []), text])

    def _quadrants(self) -> Mask:
        y, x = (round(n, 2) for n in self.detector.center)
        height, width = self.scene.frame_shape
        lower, right = np.arange(height)[:, None] >= y, np.arange(width) >= x
        quarters = np.stack([~lower & ~right, ~lower & right, lower & ~right, lower & right])
        return quarters if self.mask is None else quarters & self.mask


def _mask(scene: Scene, places: tuple[int, ...], x: Detector) -> tuple[Mask | None, list[str]]:
    if x.shape in {"all", "point"}:
        return None, []
    ndim, more = len(scene.frame), _more(scene, places)
    if x.shape == "rectangle":
        ends = _ends(scene, x)
        mask = np.zeros(scene.frame_shape, bool)
        mask[tuple(slice(*pair) for pair in ends)] = True
        text = ", ".join(f"{start}:{stop}" for start, stop in ends)
        shape = f"arr.shape[-{ndim}:]"
        return mask, [f"mask = np.zeros({shape}, bool)", f"mask[{text}] = True"]
    view = scene.view(places)
    center = tuple(_position(scene, k, at) for k, at in enumerate(x.center))
    at = f"center=({', '.join(map(repr, center))})"
    if x.shape == "disk":
        radius = _length(scene, x.radius)
        mask = disk(view, radius, center, sig_ndim=ndim)
        return mask, [f"mask = tiles.disk(arr, {radius!r}, {at}{more})"]
    inner, outer = _length(scene, min(x.inner, x.radius)), _length(scene, x.radius)
    mask = ring(view, inner, outer, center, sig_ndim=ndim)
    return mask, [f"mask = tiles.ring(arr, {inner!r}, {outer!r}, {at}{more})"]


def _more(scene: Scene, places: tuple[int, ...]) -> str:
    return f", sig_ndim={len(scene.frame)}" if scene.needs_sig_ndim(places) else ""


def _axes(scene: Scene) -> Sequence[Axis] | None:
    """Return the axes of a frame if they share a unit, so that lengths can use it; else None."""
    known = [shown_of(scene.arr).axes[k] for k in scene.frame]
    axes = [axis for axis in known if axis is not None]
    alike = len({axis.units for axis in axes}) == 1 and axes[0].units
    return axes if alike and len(axes) == len(known) else None


def _length(scene: Scene, pixels: float) -> float | str:
    """Return a length along the last axis, as functions of tiles accept it."""
    axes = _axes(scene)
    if axes is None:
        return f"{_rounded(pixels, 1.0)} {PIXELS}"
    return _rounded(pixels * abs(axes[-1].scale), axes[-1].scale)


def _position(scene: Scene, k: int, pixels: float) -> float | str:
    axes = _axes(scene)
    if axes is None:
        return f"{_rounded(pixels, 1.0)} {PIXELS}"
    return _rounded(axes[k].offset + axes[k].scale * pixels, axes[k].scale)


def _rounded(number: float, step: float) -> float:
    """Round to about a thousandth of a pixel, as the displayed code does."""
    return round(number, 3 - math.floor(math.log10(abs(step))))


def _pixel(scene: Scene, x: Detector) -> list[int]:
    """Return the pixel nearest to a detector."""
    pairs = zip(x.center, scene.frame_shape, strict=True)
    return [min(max(round(at), 0), size - 1) for at, size in pairs]


def _ends(scene: Scene, x: Detector) -> list[tuple[int, int]]:
    """Return the bounds of a rectangle along each axis; at least one pixel."""
    found = []
    for at, size, length in zip(x.center, x.size, scene.frame_shape, strict=True):
        start = min(max(round(at - size / 2 + 0.5), 0), length - 1)
        found.append((start, min(max(round(at + size / 2 + 0.5), start + 1), length)))
    return found


def usual(scene: Scene, disk: Sequence[float] | None) -> Detector:
    """Return the initial detector of a page: the bright disk, if one was found."""
    shape = scene.frame_shape
    middle = tuple((n - 1) / 2 for n in shape)
    size = tuple(max(1.0, n / 4) for n in shape)
    radius = max(1.0, min(shape) / 6)
    kind = "disk" if len(shape) == 2 else "rectangle"
    if disk is not None:
        *middle_of_disk, radius = disk
        middle = tuple(middle_of_disk)
    return Detector(kind, middle, radius, radius / 2, size, "sum")
