"""Requests of the page: parsed from messages, with every field checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from dask_tiled.errors import DatasetError
from dask_tiled.exploring.detectors import SHAPES, SIGNALS, Detector, usual
from dask_tiled.exploring.scene import Scene

MOST_LETTERS = 4096
"""Maximum number of characters of a message; longer ones are refused unread."""
FARTHEST = 2.0**31
"""Upper limit of pixel coordinates in messages."""

Places = tuple[int, ...]
Bounds = tuple[tuple[int, int], ...]
"""Half-open bounds along each axis of a picture."""


class State(NamedTuple):
    """Current selection of a page."""

    places: Places
    """Positions along the axes with sliders; the size of the axis for channels together."""
    position: Places
    """Position of the scan whose frame is displayed."""
    region: Bounds | None
    """Half-open bounds along each axis of the scan: the mean of these frames is shown instead."""
    detector: Detector

    @classmethod
    def first(cls, scene: Scene, disk: Sequence[float] | None = None) -> Self:
        """Return the initial state of a page."""
        sizes = scene.arr.shape
        middle = tuple(sizes[k] if k == scene.channels else sizes[k] // 2 for k in scene.sliders)
        position = tuple(n // 2 for n in scene.scan_shape)
        return cls(middle, position, None, usual(scene, disk))

    @classmethod
    def read(cls, scene: Scene, message: Mapping[str, Any]) -> Self:
        """Parse the request of a page. Positions outside an axis are clipped to it.

        Raise a DatasetError if a field is missing, or of another type.
        """
        places = _places("sliders", message.get("sliders"), scene.slider_sizes)
        position = _places("position", message.get("position"), scene.scan_shape)
        region = message.get("region")
        if region is not None:
            region = bounds("region", region, scene.scan_shape)
        return cls(places, position, region, _detector(scene, message.get("detector")))

    def as_json(self) -> dict[str, Any]:
        """Convert the state to JSON values for the page."""
        return {
            "sliders": self.places,
            "position": self.position,
            "region": self.region,
            "detector": self.detector._asdict(),
        }


def read_message(text: object) -> Mapping[str, Any]:
    """Parse a message of the page: a JSON object with a string as its ``type``.

    Raise a DatasetError if the message is not such an object, or too long.
    """
    if not isinstance(text, str) or len(text) > MOST_LETTERS:
        raise _wrong("message", f"a text of at most {MOST_LETTERS} characters", type(text).__name__)
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong("message", "JSON", text[:40]) from error
    return check_message(message)


def check_message(message: object) -> Mapping[str, Any]:
    """Check that a message is an object with a string as its ``type``."""
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise _wrong("message", "an object with a type", message)
    return message


def whole(name: str, value: object, size: int) -> int:
    """Parse a position along an axis, clipped to the axis."""
    return min(max(round(_number(name, value)), 0), size - 1)


def _number(name: str, value: object) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not -FARTHEST < value < FARTHEST or not math.isfinite(value):  # type: ignore[operator, arg-type]
        raise _wrong(name, "a number", value)
    return float(value)  # type: ignore[arg-type]


def _numbers(name: str, values: object, count: int) -> list[float]:
    if not isinstance(values, list) or len(values) != count:
        raise _wrong(name, f"{count} numbers", values)
    return [_number(name, value) for value in values]


def _places(name: str, values: object, sizes: Sequence[int]) -> Places:
    numbers = _numbers(name, values, len(sizes))
    return tuple(whole(name, n, size) for n, size in zip(numbers, sizes, strict=True))


def bounds(name: str, value: object, sizes: Sequence[int]) -> Bounds:
    """Parse half-open bounds along axes, clipped to them; at least one pixel each.

    Raise a DatasetError if there is no pair of numbers for each axis.
    """
    if not isinstance(value, list) or len(value) != len(sizes) or not value:
        raise _wrong(name, "a pair of numbers for each axis", value)
    found = []
    for ends, size in zip(value, sizes, strict=True):
        low, high = sorted(_numbers(name, ends, 2))
        start = whole(name, low, size)
        found.append((start, min(max(round(high), start + 1), size)))
    return tuple(found)


def _detector(scene: Scene, value: object) -> Detector:
    if not isinstance(value, dict):
        raise _wrong("detector", "an object", value)
    ndim = len(scene.frame)
    shape, signal = value.get("shape"), value.get("signal")
    shapes = SHAPES if ndim == 2 else ("all", "rectangle", "point")
    if shape not in shapes:
        raise _wrong("shape", f"one of {', '.join(shapes)}", shape)
    if signal not in (SIGNALS if ndim == 2 else SIGNALS[:1]):
        raise _wrong("signal", f"one of {', '.join(SIGNALS)}", signal)
    radius, inner = (abs(_number(name, value.get(name))) for name in ("radius", "inner"))
    center = tuple(_numbers("center", value.get("center"), ndim))
    size = tuple(abs(n) for n in _numbers("size", value.get("size"), ndim))
    return Detector(str(shape), center, radius, inner, size, str(signal))


def _wrong(name: str, expected: str, found: object) -> DatasetError:
    return DatasetError(f"invalid {name} from the page", expected=expected, found=found)
