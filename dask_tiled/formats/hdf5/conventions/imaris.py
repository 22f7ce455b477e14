"""Imaris 5.5: a volume for each time and channel, at several resolution levels.

Layout facts: the description of the file format in imaris/ImarisWriter; files of Imaris. Volumes
lie at ``ResolutionLevel r/TimePoint t/Channel c/Data`` as (z, y, x), and may be padded beyond the
size in ``ImageSizeX`` and so on. Every attribute is an array of single characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from math import nan
from typing import Any

import numpy as np

from dask_tiled.formats.hdf5.attributes import LONGEST_TEXT, MOST_VALUES, attribute, text
from dask_tiled.formats.hdf5.convention import Calibration, Convention, Meant
from dask_tiled.formats.hdf5.datasets import MOST_OBJECTS, Found, Picture, picture_of
from dask_tiled.formats.hdf5.library import names_in
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.formats.tools.text import local_time, number_in
from dask_tiled.model.axes import Axis
from dask_tiled.model.colours import of_channels, rgb

LEVEL, TIME, CHANNEL = "ResolutionLevel", "TimePoint", "Channel"
PICTURE = re.compile(rf"(.*)/{LEVEL} \d+")
MARK, DATA, INFO = "ImarisDataSet", "DataSetDirectoryName", "DataSetInfoDirectoryName"
"""Attributes of the root: the one that identifies Imaris files, and the names of two groups."""
MOST_CHANNELS = 100
"""Maximum number of channels whose metadata are read."""
ENDS = "ExtMin", "ExtMax"
AXES = {"z": 2, "y": 1, "x": 0}
"""Numbers of the axes in attribute names."""


class Imaris(Convention):
    """Imaris files, all resolution levels."""

    name = "Imaris"
    instrument = (
        ("microscope", "*Image/MicroscopeName"),
        ("microscope", "*Image/MicroscopeModality"),
        ("magnification", "*Image/LensPower"),
        ("date", "*Image/RecordingDate", "", local_time),
    )

    def meant(self, tree: Tree, found: Found) -> Meant:
        """Return the levels, each with all times and channels."""
        top, _ = found.top
        data = f"/{text_attribute(tree.root, DATA) or 'DataSet'}"
        if top or MARK not in tree.root.attrs:
            return Meant()
        numbers = _numbers(tree, data, LEVEL)
        paths = tuple(f"{data}/{LEVEL} {number}" for number in numbers)
        levels = [_level(tree, found, path) for path in paths]
        shown = [one._replace(levels=paths) for one in levels if one is not None]
        return Meant(MARK, shown, alone=True) if len(shown) == len(paths) > 0 else Meant()

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:
        """Read the extent of the image, which all levels share."""
        if not picture.grid or picture.order:
            return None
        told = _group(tree, "Image")
        unit = told.get("Unit", "")
        axes = []
        for (name, number), size in zip(AXES.items(), picture.shape[2:], strict=True):
            low, high = (number_in(told, f"{end}{number}", default=nan) for end in ENDS)
            step = (high - low) / size
            axes.append(Axis.calibrated(name, unit, step, low + step / 2))
        count = picture.grid[1] if picture.grid[1] <= MOST_CHANNELS else 0
        every = [_group(tree, f"{CHANNEL} {k}") for k in range(count)]
        labels = tuple(one.get("Name", "") for one in every)
        colours = of_channels([_colour(one.get("Color", "")) for one in every])
        channels = Axis("c", labels=labels if all(labels) else (), colours=colours)
        return Calibration((_times(tree, picture.grid[0]), channels, *axes), 2)

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:
        """Return the attributes of the image and of its channels."""
        if not picture.grid:
            return {}
        channels = (f"{CHANNEL} {k}" for k in range(min(picture.grid[1], MOST_CHANNELS)))
        groups = {f"/{_info(tree)}/{name}": _group(tree, name) for name in ("Image", *channels)}
        return {path: told for path, told in groups.items() if told}


def text_attribute(item: Any, name: str) -> str:
    """Read an attribute as text, up to a null character."""
    value = attribute(item, name)
    single = isinstance(value, np.ndarray) and value.dtype.kind == "S" and value.dtype.itemsize == 1
    found = text(value.tobytes() if single else value)
    return found.partition("\0")[0].strip()


def _info(tree: Tree) -> str:
    return text_attribute(tree.root, INFO) or "DataSetInfo"


def _group(tree: Tree, name: str) -> dict[str, str]:
    """Read the attributes of a group of ``DataSetInfo``."""
    found = tree.look(tree.root, f"{_info(tree)}/{name}")
    names = [] if found is None else list(found.attrs)[:MOST_VALUES]
    return {key: value[:LONGEST_TEXT] for key in names if (value := text_attribute(found, key))}


def _colour(text: str) -> str:
    """Convert red, green and blue between 0 and 1; empty if they are invalid."""
    with suppress(ValueError):
        red, green, blue = (round(255 * float(one)) for one in text.split())
        if all(0 <= one < 256 for one in (red, green, blue)):
            return rgb(red << 16 | green << 8 | blue)
    return ""


def _numbers(tree: Tree, path: str, name: str) -> list[int]:
    """Return the sorted numbers of the groups "name number" in a group."""
    group = tree.look(tree.root, path)
    names = names_in(group, MOST_OBJECTS) if hasattr(group, "attrs") else []
    matches = (re.fullmatch(rf"{name} (\d{{1,9}})", one) for one in names)
    return sorted(int(match[1]) for match in matches if match)


def _level(tree: Tree, found: Found, path: str) -> Picture | None:
    """Combine the volumes of a level; None if it has none."""
    times = _numbers(tree, path, TIME)
    channels = _numbers(tree, f"{path}/{TIME} {times[0]}", CHANNEL) if times else []
    places = [f"{path}/{TIME} {t}/{CHANNEL} {c}/Data" for t, c in product(times, channels)]
    volumes = [found.pictures.get(one) or _volume(tree, one) for one in places]
    first = volumes[0] if volumes else None
    if first is None or len(first.shape) != len(AXES):
        return None
    kind = first.shape, first.dtype
    alike = [one is not None and (one.shape, one.dtype) == kind for one in volumes]
    missing = tuple(place for place, fits in zip(places, alike, strict=True) if not fits)
    members = tuple(one.members[0] for one in volumes if one is not None)
    grid = len(times), len(channels)
    shape = (*grid, *_sizes(members[0].parent, first.shape))
    return Picture(path, shape, first.dtype, members, missing, grid=grid)


def _volume(tree: Tree, path: str) -> Picture | None:
    """Open a volume that the search did not reach."""
    return picture_of(path, tree.look(tree.root, path))


def _sizes(channel: Any, stored: tuple[int, ...]) -> tuple[int, ...]:
    """Read the size of the image, which is at most the stored one."""
    told = (text_attribute(channel, f"ImageSize{name.upper()}") for name in AXES)
    sizes = (int(one) if one.isdecimal() and len(one) < 10 else 0 for one in told)
    return tuple(min(size, n) or n for size, n in zip(sizes, stored, strict=True))


def _times(tree: Tree, count: int) -> Axis:
    """Read the time axis, in seconds from the first time point."""
    told = tree.look(tree.root, f"{_info(tree)}/TimeInfo")
    if told is None or count < 2:
        return Axis("t")
    with suppress(ValueError, TypeError, OverflowError):  # TypeError: None for an invalid date
        moments: list[Any] = [
            local_time(text_attribute(told, f"TimePoint{k + 1}")) for k in range(count)
        ]
        seconds = [(one - moments[0]).total_seconds() for one in moments]
        return Axis.at("t", "s", np.array(seconds)) or Axis("t")
    return Axis("t")
