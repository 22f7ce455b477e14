"""MetaMorph stacks (STK): the number of planes that follow the only page, and their positions.

Layout facts: the STK file format of Universal Imaging, as tifffile's documentation of tags 33628 to
33631 has it. The tags of planes have a count of planes, each of which takes several numbers.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tiff.ifd import Entry, Ifd
from dask_tiled.model.indexing import Array

UIC1, UIC2, UIC3, UIC4 = UIC_TAGS = 33628, 33629, 33630, 33631
PER_PLANE = {UIC2: (5, 6), UIC3: (5, 2), UIC4: (4, 1)}
"""Type of the tags of planes, and how many 32-bit numbers they have for each."""
FACTS = {4: "x", 5: "y", 6: "unit"}
"""Numbers of the facts that are used, of those in UIC1."""
MOST_FACTS, MOST_TEXT = 256, 256
MOST_PLANES = 1 << 20  # whose positions are read
MS_PER_DAY = 86_400_000


class MetaMorphStack(NamedTuple):
    """The planes of a stack."""

    planes: int
    letter: str  # of their axis; "q" if nothing varies from plane to plane, any for one plane
    axes: dict[str, tuple[str, Array]]  # unit, and positions or step, by name
    wavelengths: tuple[float, ...]  # in nm


def read_stack(ifd: Ifd) -> MetaMorphStack | None:
    """Return the planes of a page's stack; None if it has no stack."""
    told = (ifd.entries.get(tag) for tag in PER_PLANE)
    entry = next((e for e in told if e and e[1] == PER_PLANE[e[0]][0]), None)
    if entry is None or not entry[2]:
        return None
    planes, axes, letter = entry[2], _steps(ifd), "q"
    positions, wavelengths = (_table(ifd, tag, planes) for tag in (UIC2, UIC3))
    if positions is not None:
        times = positions[:, 2] * float(MS_PER_DAY) + positions[:, 3]
        axes["t"] = "s", (times - times[0]) / 1000
        letter = "t" if (np.diff(times) > 0).all() else letter
    waves = () if wavelengths is None else tuple(_ratio(wavelengths).tolist())
    if planes > 1 and len(set(waves)) == planes:
        letter = "c"
    if positions is not None:
        steps = _ratio(positions)
        axes["z"] = "µm", steps.cumsum() - steps[0]
        letter = "z" if (steps != 0).all() else letter
    return MetaMorphStack(planes, letter, axes, waves)


def _table(ifd: Ifd, tag: int, planes: int) -> Array | None:
    """Return the numbers of all planes in a tag; None if it is absent or unreadable."""
    entry = ifd.entries.get(tag)
    if entry is None or entry[1:3] != (PER_PLANE[tag][0], planes) or planes > MOST_PLANES:
        return None
    width = PER_PLANE[tag][1]
    with suppress(tools.DatasetError):
        return _words(ifd, entry, width * planes).reshape(planes, width)
    return None


def _steps(ifd: Ifd) -> dict[str, tuple[str, Array]]:
    """Return the pixel sizes in UIC1, whose facts are pairs of a number and a value or offset."""
    entry = ifd.entries.get(UIC1)
    if entry is None or entry[1] != 4 or entry[2] > MOST_FACTS:
        return {}
    found: dict[str, Any] = {}
    read, order = partial(ifd.source.read, what="the facts of a stack"), ifd.source.flavour.order
    with suppress(tools.DatasetError):
        for number, place in _words(ifd, entry, 2 * entry[2]).reshape(-1, 2).tolist():
            name = FACTS.get(number, "")
            if name == "unit" and place >= ifd.source.flavour.word.size:
                length = int(np.frombuffer(read(place, 4), f"{order}u4")[0])
                text = read(place + 4, min(length, MOST_TEXT))
                found[name] = text.partition(b"\0")[0].decode("latin-1")
            elif name and place >= ifd.source.flavour.word.size:
                pair = np.frombuffer(read(place, 8), f"{order}u4")
                found[name] = _ratio(pair[None])
    unit = found.pop("unit", "")
    return {name: (unit, step) for name, step in found.items()}


def _words(ifd: Ifd, entry: Entry, count: int) -> Array:
    """Return 32-bit numbers from the place of an entry on."""
    place, order = ifd.source.place(entry), ifd.source.flavour.order
    stored = ifd.source.read(place, 4 * count, "the tags of a stack")
    words: Array = np.frombuffer(stored, f"{order}u4")
    return words


def _ratio(table: Array) -> Array:
    """Return the first number of each row divided by the second; 0 if that is 0."""
    above, below = table[:, 0].astype(float), table[:, 1].astype(float)
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)
