"""Series of TIFF pages: those that are frames of one array, and its shape.

Pages of one shape and dtype are a series, wherever they are in the file, unless the first page has
a description by ImageJ or tifffile, or the tags of MetaMorph. These programs write files in which
further frames follow the only page.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tiff import eer, lsm
from dask_tiled.formats.tiff.calibration import IMAGEJ
from dask_tiled.formats.tiff.kind import PageLayout
from dask_tiled.formats.tiff.metamorph import MetaMorphStack, read_stack
from dask_tiled.formats.tiff.pages import Pages
from dask_tiled.formats.tools.text import parse_json, parse_pairs
from dask_tiled.model.doubts import Doubt
from dask_tiled.model.indexing import Index

SHAPED = ('{"shape":', "shape=(")  # beginnings of tifffile's descriptions
COUNTS = {"t": "frames", "z": "slices", "c": "channels"}
MOST_FRAMES = 1 << 40


class PageSeries(NamedTuple):
    """Pages that are frames of one array; frames may follow the only page."""

    name: str
    numbers: Index  # in the main chain
    nav_shape: tuple[int, ...]
    letters: str  # one per axis; "i" or "q" for axes without a meaning
    source: str  # of the shape
    promised: int = 0  # number of frames, if some are missing
    doubts: tuple[Doubt, ...] = ()

    def rows(self, pages: Pages, chain: Index, level: int, *, settled: bool) -> Index:
        """Return the rows of the frames in the table; pages of a level are added to it.

        Missing frames raise unless the number is `settled`.
        """
        rows = chain[self.numbers]
        frames = math.prod(self.nav_shape)
        file = pages.file_of(int(rows[0]))
        if frames < self.promised and not settled:
            raise tools.TruncatedFileError(
                "frames that the header promises are missing",
                path=file.path,
                expected=f"{self.promised} frames, as in {self.source}",
                found=f"{frames} frames",
                hint=f"Pass missing='fill', or nav_shape={(self.promised,)}.",
            )
        if frames == len(rows):
            return pages.read(file, self.numbers.tolist(), level=level) if level else rows
        if level:
            problem = "frames without pages have no levels"
            raise tools.DatasetError(problem, path=file.path, found=level)
        return np.array([pages.follow(int(rows[0]), frames)])


def find_series(pages: Pages, chain: Index) -> list[PageSeries]:
    """Return the series of a file."""
    description = pages.ifd(chain[0]).description
    series = None
    if description.startswith(IMAGEJ):
        series = _imagej(pages, chain, description)
    elif description.startswith(SHAPED):
        series = _shaped(pages, chain)
    elif eer.stored_facts(pages.ifd(chain[0])):
        return _eer(pages, chain)
    elif len(chain) == 1:
        series = _metamorph(pages, chain)
    else:
        return _lsm(pages, chain, _by_image(pages, chain))
    return series or _by_image(pages, chain)


def is_one_frame(pages: Pages, chain: Index) -> bool:
    """Return whether a file, given all of its pages, can hold only one frame."""
    return len(chain) == 1 and _room(pages, chain[0]) < 2


def _by_image(pages: Pages, chain: Index) -> list[PageSeries]:
    """Group pages of one shape and dtype."""
    images = [kind.image for kind in pages.kinds]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, kind in enumerate(pages.columns(chain)[1].tolist()):
        groups.setdefault(images[kind], []).append(number)
    return [_plain_series(np.array(numbers)) for numbers in groups.values()]


def _plain_series(numbers: Index) -> PageSeries:
    if len(numbers) == 1:
        return PageSeries("", numbers, (), "", "one page has no navigation axes")
    return PageSeries(
        "", numbers, (len(numbers),), "i", "the number of pages of one shape and type"
    )


def _imagej(pages: Pages, chain: Index, description: str) -> list[PageSeries] | None:
    """Return the series in ImageJ's description; None if the pages contradict it."""
    pairs = parse_pairs(description, "=")
    kind = pages.kind_of(int(chain[0]))
    counts = {axis: _count(pairs.get(name, "1")) for axis, name in COUNTS.items()}
    told = _count(pairs.get("images", "1"))
    if not all(counts.values()):
        return None
    chunky = kind.full[4] == counts["c"] and told * counts["c"] == math.prod(counts.values())
    if chunky or counts["c"] == kind.full[0]:
        counts["c"] = 1  # samples of a pixel, an axis of the page
    order = pairs.get("order", "").lower()
    letters = (order if sorted(order) == sorted("czt") else "czt")[::-1]
    images = math.prod(counts.values())
    if images == 1:
        images = told if len(chain) == 1 else len(chain)
    remain = max(1, images // math.prod(counts.values()))
    shape = {"i": remain, **{axis: counts[axis] for axis in letters}}
    kept = {axis: n for axis, n in shape.items() if n != 1}
    if math.prod(kept.values()) != images:
        return None
    source = "the description of ImageJ"
    if not _there(pages, chain, images):
        return _cut_short(pages, chain, images, source)
    numbers = np.arange(len(chain) if len(chain) == images else 1)
    return [PageSeries("", numbers, tuple(kept.values()), "".join(kept), source)]


def _shaped(pages: Pages, chain: Index) -> list[PageSeries] | None:
    """Return the series in tifffile's descriptions; None if the pages contradict them."""
    series: list[PageSeries] = []
    source = "the description of tifffile"
    at = 0
    while at < len(chain):
        row = chain[at]
        told = _read_shape(pages.ifd(row).description)
        if told is None:
            return None
        shape, letters, name, truncated = told
        kind = pages.kind_of(row)
        frames, rest = divmod(math.prod(shape), math.prod(kind.full))
        left = chain[at:]
        if rest or frames < 1:
            return None
        own = left[: 1 if truncated else frames]
        if len(own) < frames or not _there(pages, own, frames):
            own = left[:1]  # all frames may follow one page
        if not _there(pages, own, frames):
            short = _cut_short(pages, left, frames, source, least=1 if truncated else 2)
            return short and [*series, *(one._replace(numbers=one.numbers + at) for one in short)]
        nav, axes = _nav(shape, letters, frames, kind)
        numbers = np.arange(at, at + len(own))
        series.append(PageSeries(name, numbers, nav, axes, source))
        at += len(own)
    return series


def _metamorph(pages: Pages, chain: Index) -> list[PageSeries] | None:
    """Return the planes of a stack of MetaMorph; None for other pages."""
    stack = read_stack(pages.ifd(chain[0]))
    if stack is None or stack.planes < 2:
        return None
    source = "tags 33629 to 33631 of MetaMorph"
    there = min(stack.planes, _room(pages, chain[0]))
    kind, start = pages.kind_of(chain[0]), int(pages.segments(chain[:1])[0][0, 0])
    if not isinstance(kind.decoder, tools.Decoder):
        source += ", which do not tell where the planes of a compressed stack lie"
    before = pages[chain[0]].ifd - start
    if before > 0:
        there = max(1, min(there, before // kind.nbytes(kind.full)))
    promised = stack.planes if there < stack.planes else 0
    doubts = _mixed(stack)
    return [PageSeries("", np.arange(1), (there,), stack.letter, source, promised, doubts)]


def _mixed(stack: MetaMorphStack) -> tuple[Doubt, ...]:
    """Return the doubt that planes along z or t are of several wavelengths; none otherwise."""
    waves = len(set(stack.wavelengths))
    if waves < 2 or stack.letter == "c":
        return ()
    shown = {"q": "in a row"}.get(stack.letter, f"along {stack.letter}")
    text = f"{stack.planes} planes of {waves} wavelengths are shown {shown}"
    return (Doubt("scan-shape", text, "pass nav_shape, such as (planes, wavelengths)"),)


def _lsm(pages: Pages, chain: Index, series: list[PageSeries]) -> list[PageSeries]:
    """Shape the first series of an LSM file, if it has as many frames as the file tells."""
    shape = lsm.shape_of(lsm.read_facts(pages.ifd(chain[0])) or {})
    first, *others = series
    if not shape or math.prod(shape.values()) != len(first.numbers):
        return series
    source, letters = "tag 34412 of Zeiss LSM", "".join(shape)
    return [PageSeries("", first.numbers, tuple(shape.values()), letters, source), *others]


def _eer(pages: Pages, chain: Index) -> list[PageSeries]:
    """Return the frames of electron events, and then the image that may precede them."""
    series: dict[bool, list[PageSeries]] = {True: [], False: []}
    for one in _by_image(pages, chain):
        is_counted = pages.kind_of(chain[one.numbers[0]]).dtype.kind == "b"
        letters, name = "t" if one.nav_shape else "", "frames" if is_counted else eer.INTEGRATED
        series[is_counted].append(one._replace(letters=letters, name=name))
    return series[True] + series[False]


def _nav(
    shape: tuple[int, ...], letters: str, frames: int, kind: PageLayout
) -> tuple[tuple[int, ...], str]:
    """Split the shape of a series; the axes of pages come last."""
    if shape[-1] == 1 and shape[-1 - len(kind.shape) : -1] == kind.shape:  # an axis of samples
        shape, letters = shape[:-1], letters[: len(shape) - 1]
    split = len(shape) - len(kind.shape)
    if split >= 0 and shape[split:] == kind.shape:
        fits = len(letters) == len(shape) and letters[split:].lower() == kind.axes
        return shape[:split], letters[:split].lower() if fits else "q" * split
    return ((), "") if frames == 1 else ((frames,), "q")


def _there(pages: Pages, rows: Index, frames: int) -> bool:
    """Return whether pages hold this many frames: one frame each, or all after a single page."""
    if len(rows) == frames:
        return len({pages.kinds[k].image for k in np.unique(pages.columns(rows)[1])}) == 1
    return 1 <= frames <= min(MOST_FRAMES, _room(pages, rows[0]))


def _room(pages: Pages, row: int) -> int:
    """Return how many frames a file can hold from a page on; 1 if none can follow it."""
    kind = pages.kind_of(row)
    offsets = pages.segments(np.array([row]))[0][0]
    rows, height = kind.segment[2], kind.full[2]
    whole = height % rows == 0 or kind.n_segments == -(-height // rows)
    gapless = (np.diff(offsets) == kind.nbytes(kind.segment)).all()
    if not (isinstance(kind.decoder, tools.Decoder) and not kind.tiled and gapless and whole):
        return 1
    return (pages.file_of(row).size - int(offsets[0])) // kind.nbytes(kind.full)


def _cut_short(
    pages: Pages, chain: Index, frames: int, source: str, *, least: int = 2
) -> list[PageSeries] | None:
    """Return a series of the frames after the last page of a truncated file, or None."""
    # Several pages are complete: descriptions are copied together with pages.
    row = chain[0]
    room = _room(pages, row)
    at_the_end = pages.segments(chain[:1])[0][0, 0] > pages[row].ifd
    if len(chain) > 1 or not at_the_end or not least <= room < frames:
        return None
    return [PageSeries("", np.arange(1), (room,), "i", source, frames)]


def _read_shape(description: str) -> tuple[tuple[int, ...], str, str, bool] | None:
    """Parse a description by tifffile; None if it is not one.

    Return the shape, the axes, the name, and whether all frames follow one page.
    """
    text = description.strip()
    if text.startswith("shape=("):
        text = f'{{"shape": [{text[7:-1].rstrip(", ")}]}}'
    try:
        told = parse_json(text)
    except ValueError:
        return None
    shape = told.get("shape") if isinstance(told, dict) else None
    if not shape or not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        return None
    letters, name = (str(told.get(key, "")) for key in ("axes", "name"))
    return tuple(shape), letters, name, told.get("truncated") is True


def _count(text: str) -> int:
    return int(text) if text.strip().isdecimal() and len(text) < 16 else 0
