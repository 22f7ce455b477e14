"""Parts of frames as a page shows them: at a level of the pyramid, with few enough pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import dask.array as da

from dask_tiled.exploring.messages import LARGEST
from dask_tiled.exploring.scene import Scene
from dask_tiled.exploring.state import Bounds, State
from dask_tiled.measuring.sampling import sample_bytes
from dask_tiled.opened.tiled_array import levels_of
from dask_tiled.showing.overviews import overview


class ZoomedPart(NamedTuple):
    """Pixels of a part of a frame, or of the frames of a region."""

    pixels: da.Array
    """Axes of a region of the scan, if any, then those of a frame."""
    window: Bounds
    """Bounds in the frame; they may exceed those asked for."""
    steps: list[float]
    """Pixels of the frame for each pixel, along each axis."""


def scenes_of(arr: da.Array) -> list[Scene]:
    """Return the scene of an array, and those of the stored levels of large frames."""
    scene = Scene.of(arr)
    if max(scene.frame_shape) <= LARGEST:
        return [scene]
    found = [scene]
    for level in levels_of(arr)[1:]:
        lower = Scene.of(level)
        if _roles(lower) != _roles(scene):  # an axis is reduced to one pixel
            break
        found.append(lower)
    return found


def _roles(scene: Scene) -> tuple[object, ...]:
    return scene.arr.ndim, scene.scan, scene.scan_shape, scene.frame, scene.colours


def part_of(scenes: Sequence[Scene], state: State, window: Bounds) -> ZoomedPart:
    """Return a part of the frame at a position, or of the frames of a region.

    The level is the smallest one with as many pixels as the page shows. What remains too large is
    sampled.
    """
    scene, sizes = scenes[0], [stop - start for start, stop in window]
    wanted = max(1, *(-(-size // LARGEST) for size in sizes))
    level = next(one for one in reversed(scenes) if max(_factors(scene, one)) <= wanted)
    factors = _factors(scene, level)
    view = level.view(_places(scene, level, state))
    outer = 0
    if state.region is not None and scene.scan:
        view, outer = view[tuple(slice(*ends) for ends in state.region)], len(scene.scan)
    elif scene.scan:
        view = view[state.position]
    pairs = zip(window, factors, level.frame_shape, strict=True)
    ends = [(int(a / by), min(n, math.ceil(b / by))) for (a, b), by, n in pairs]
    chosen = level.indices(_places(scene, level, state))
    kept = [k for k, one in enumerate(chosen) if isinstance(one, slice) and k not in level.scan]
    frame = [outer + kept.index(k) for k in level.frame]
    cuts = dict(zip(frame, ends, strict=True))
    view = view[tuple(slice(*cuts.get(k, (None,))) for k in range(view.ndim))]
    steps = [*factors]
    if view.nbytes > sample_bytes(view):
        found = overview(view, frame, LARGEST)
        view, steps = found.arr, [by * found.steps[k] for by, k in zip(factors, frame, strict=True)]
    bounds = tuple(
        (round(a * by), min(size, round(b * by)))
        for (a, b), by, size in zip(ends, factors, scene.frame_shape, strict=True)
    )
    return ZoomedPart(view, bounds, steps)


def _factors(scene: Scene, level: Scene) -> list[float]:
    """Return the pixels of a frame for each pixel of a level; sizes of levels may be rounded."""
    pairs = zip(scene.frame_shape, level.frame_shape, strict=True)
    return [
        by if abs(by * n - size) <= by else size / n
        for size, n, by in ((size, n, round(size / n)) for size, n in pairs)
    ]


def _places(scene: Scene, level: Scene, state: State) -> list[int]:
    """Return the positions of the sliders in a level, which may have fewer planes."""
    sizes = zip(scene.sliders, level.sliders, strict=True)
    return [
        place * level.arr.shape[there] // scene.arr.shape[here]
        for place, (here, there) in zip(state.places, sizes, strict=True)
    ]
