"""Layout of an array on the page: axes of the scan, axes of the frame, sliders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import dask.array as da
import numpy as np

from dask_tiled.model.axes import Axis
from dask_tiled.model.colours import drawn
from dask_tiled.model.indexing import Array
from dask_tiled.model.units import readable
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.tile_functions import reducible
from dask_tiled.showing.roles import CHANNELS, MOST_APART, STACKED
from dask_tiled.showing.subject import Subject, numbers


class Scene(NamedTuple):
    """An array, and the roles of its axes longer than 1."""

    arr: da.Array
    """Real numbers: the array, or a real form of it."""
    axes: tuple[Axis, ...]
    scan: tuple[int, ...]
    """Up to two axes, along which frames are selected."""
    frame: tuple[int, ...]
    """One or two axes."""
    colours: int | None
    """Axis of red, green and blue, which are shown as one picture; only without a scan."""
    order: tuple[int, ...]
    """Positions of red, green and blue along it."""
    title: str
    subtitle: str
    units: str
    prepared: str
    """Code that derives the array from the opened one; empty if both are equal."""
    doubts: tuple[str, ...]
    """Choices that the files leave open, and frames that they lack."""

    @classmethod
    def of(cls, arr: da.Array) -> Self:
        """Choose the roles of an array's axes.

        Raise a DatasetError if the array cannot be drawn.
        """
        subject = Subject.of(arr)
        scan, frame, colours, order, *_ = subject.roles
        shown, prepared = subject.arr, []
        if len(subject.axes) < arr.ndim:
            prepared = [f"arr = arr[{', '.join(':' if n > 1 else '0' for n in arr.shape)}]"]
        axes = list(subject.axes)
        if shown.dtype.names:
            prepared += ['arr = da.stack([arr[name] for name in "RGB"])']
            shown = da.stack([shown[name] for name in "RGB"])
            axes = [Axis("colour", labels=("R", "G", "B")), *axes]
            scan, frame = tuple(k + 1 for k in scan), tuple(k + 1 for k in frame)
            colours = 0
        elif shown.dtype.kind in "cb":
            prepared += ["arr = abs(arr)" if shown.dtype.kind == "c" else 'arr = arr.astype("u1")']
            shown = numbers(shown)
        if scan or len(frame) < 2:
            colours = None
        roles = scan, frame, colours, order
        told = subject.title, subject.subtitle, subject.units
        of = shown_of(arr).of
        done = (desc for desc in of if not desc.files[-1].grows)
        lacking = (f"not complete: {desc.lacking()}" for desc in done if not desc.complete)
        doubts = dict.fromkeys([*lacking, *(str(one) for desc in of for one in desc.doubts)])
        return cls(shown, tuple(axes), *roles, *told, "\n".join(prepared), tuple(doubts))

    @property
    def sliders(self) -> tuple[int, ...]:
        """Remaining axes, along which one position is selected."""
        seen = {*self.scan, *self.frame, self.colours}
        return tuple(k for k in range(self.arr.ndim) if k not in seen)

    @property
    def channels(self) -> int | None:
        """Axis with a slider whose positions may be shown together, each in its colour.

        Only of images and stacks of them: frames of a scan are shown one channel at a time.
        """
        is_scan = any(self.axes[k].name not in STACKED for k in self.scan)
        if is_scan or self.colours is not None or len(self.frame) < 2:
            return None
        sizes = self.arr.shape
        known = (k for k in self.sliders if self.axes[k].name in CHANNELS and k < self.frame[0])
        return next((k for k in known if sizes[k] <= MOST_APART), None)

    @property
    def slider_sizes(self) -> tuple[int, ...]:
        """Positions along the axes with sliders; all channels together are one more."""
        return tuple(self.arr.shape[k] + (k == self.channels) for k in self.sliders)

    def are_together(self, places: Sequence[int]) -> bool:
        """Return whether all channels are shown together."""
        sizes = zip(self.sliders, places, strict=True)
        return any(place == self.arr.shape[k] for k, place in sizes)

    @property
    def scan_shape(self) -> tuple[int, ...]:
        """Shape of the scan."""
        return tuple(self.arr.shape[k] for k in self.scan)

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of a frame."""
        return tuple(self.arr.shape[k] for k in self.frame)

    def indices(self, places: Sequence[int]) -> tuple[int | slice, ...]:
        """Return the index that selects positions along the axes with sliders."""
        chosen = dict(zip(self.sliders, places, strict=True))
        found = (chosen.get(k, n) for k, n in enumerate(self.arr.shape))
        pairs = zip(found, self.arr.shape, strict=True)
        return tuple(slice(None) if place == n else place for place, n in pairs)

    def view(self, places: Sequence[int]) -> da.Array:
        """Return the scan of frames at positions along the axes with sliders.

        Channels that are shown together follow the axes of the scan.
        """
        view = self.arr[self.indices(places)]
        return da.moveaxis(view, 1, 0) if self._begins_with_channels(places) else view

    def _begins_with_channels(self, places: Sequence[int]) -> bool:
        """Return whether channels that are shown together precede the axis of a stack."""
        first = self.scan[0] if self.scan and self.are_together(places) else 0
        return self.channels is not None and self.channels < first

    def picture(self, frame: Array) -> Array:
        """Return a frame as the page draws it: scalar, or colours on the first axis."""
        if self.colours is None:
            return frame
        place = sum(k < self.colours for k in self.frame)
        return np.moveaxis(frame, place, 0)[list(self.order)]

    def code(self, places: Sequence[int]) -> str:
        """Return code that derives the scan of frames from the array; empty if both are equal."""
        lines = [self.prepared] if self.prepared else []
        index = [":" if isinstance(one, slice) else str(one) for one in self.indices(places)]
        if {*index} != {":"}:
            lines.append(f"arr = arr[{', '.join(index)}]")
        if self._begins_with_channels(places):
            lines.append("arr = da.moveaxis(arr, 1, 0)")
        return "\n".join(lines)

    def needs_sig_ndim(self, places: Sequence[int]) -> bool:
        """Return whether functions of tiles need ``sig_ndim`` to identify the axes of a frame."""
        return reducible(self.view(places), None).nav_ndim != len(self.scan)

    def as_json(self) -> dict[str, Any]:
        """Convert the layout to JSON values for the page, with suitable prefixes of units."""
        sizes: dict[str, float] = {}  # axes with one unit keep one unit
        for axis, count in zip(self.axes, self.arr.shape, strict=True):
            sizes[axis.units] = max(sizes.get(axis.units, 0.0), abs(axis.scale) * count)
        units = {unit: readable(unit, size) for unit, size in sizes.items()}
        axes = [
            {
                "name": axis.name,
                "units": units[axis.units][0],
                "scale": _finite(axis.scale, 1.0) * units[axis.units][1],
                "offset": _finite(axis.offset, 0.0) * units[axis.units][1],
                "size": size,
                "labels": [*axis.labels],
                "colours": drawn(axis.colours, size) if axis.colours or k == self.channels else [],
                "coordinates": [*axis.coordinates],
                "coordinate_units": axis.coordinate_units,
            }
            for k, (axis, size) in enumerate(zip(self.axes, self.arr.shape, strict=True))
        ]
        return {
            "axes": axes,
            "scan": self.scan,
            "frame": self.frame,
            "sliders": self.sliders,
            "channels": self.channels,
            "title": self.title,
            "subtitle": self.subtitle,
            "units": self.units,
            "doubts": self.doubts,
        }


def _finite(number: float, otherwise: float) -> float:
    return float(number) if np.isfinite(number) and number else otherwise
