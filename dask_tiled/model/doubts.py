"""Doubts: choices that a file does not settle, and the options that settle them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

ALIKE = 10
"""Ratio of sizes up to which the smaller array may be meant."""
MOST_RIVALS = 6
"""Name at most this many arrays in a doubt."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An assumption about a file that leaves a choice open.

    Attributes
    ----------
    code : str
        Name of the kind of doubt, the same for all formats and versions, such as "lost-files";
        :doc:`/doubts` lists all of them.
    text : str
        What was assumed, as a sentence without a full stop.
    settle : str
        The option that settles it, such as "pass nav_shape=(4, 5)".

    Examples
    --------
    >>> import dask_tiled
    >>> str(dask_tiled.Doubt("scan-shape", "the file has 20 frames in a row", "pass nav_shape"))
    'the file has 20 frames in a row: pass nav_shape'
    """

    code: str
    text: str
    settle: str

    def __str__(self) -> str:
        return f"{self.text}: {self.settle}"


WHOLE = "whole nav_shape"
"""A ``nav_shape`` of which no frame is missing."""
SETTLED_BY: Mapping[str, frozenset[str]] = {
    "axes-order": frozenset({"transposed"}),
    "byte-order": frozenset({"byte_order"}),
    "default-dataset": frozenset({"dataset", "field"}),
    "extended-header": frozenset({"extended_header"}),
    "first-channel": frozenset(),
    "left-over-frames": frozenset({"nav_shape", "sync_offset"}),
    "lost-datasets": frozenset(),
    "lost-files": frozenset({WHOLE, "missing"}),
    "lost-frames": frozenset({"missing"}),
    "pixel-type": frozenset({"signed"}),
    "scan-shape": frozenset({"nav_shape"}),
    "uneven-axis": frozenset({"axes"}),
    "unfinished": frozenset({"missing", "follow"}),
}
"""Options of ``open_dataset`` that settle doubts, by code; ``axes`` if it has all of them."""
MOST_LACKING = 6
"""Name at most this many arrays that a group lacks."""
INCOMPLETE = frozenset({"lost-files", "unfinished"})
"""Codes of doubts that frames are lacking."""
OF_THE_LIST = frozenset({"lost-datasets"})
"""Codes of doubts that the list of the datasets of a file is not complete."""


def unknown_scan(frames: int) -> tuple[Doubt, ...]:
    """Return the doubt that frames in a row may be a scan; none of a single frame."""
    if frames < 2:
        return ()
    text = f"{frames} frames are shown in a row, as the files do not tell the shape of a scan"
    settle = f"pass nav_shape=(rows, columns), or nav_shape=({frames},) for a series"
    return (Doubt("scan-shape", text, settle),)


def inferred_scan(shape: tuple[int, ...], why: str) -> Doubt:
    """Return the doubt that a scan shape is inferred, with the reason."""
    text = f"the scan shape {shape} is inferred: {why}"
    return Doubt("scan-shape", text, f"pass nav_shape={shape}")


class Suggestion(NamedTuple):
    """A shape of the scan that the frames suggest."""

    shape: tuple[int, ...]
    first: int
    """Number of the first frame of the scan."""
    why: str

    def __str__(self) -> str:
        start = f" from frame {self.first} on" if self.first else ""
        return f"{self.shape}{start}: {self.why}"


def suggested(doubt: Doubt, frames: int, shapes: Sequence[Suggestion]) -> Doubt:
    """Return a doubt about a scan with the shapes that the frames suggest."""
    if not shapes:
        return doubt
    text = f"{doubt.text}; the {frames} frames suggest {'; '.join(map(str, shapes))}"
    settle = f"pass nav_shape='auto' for {shapes[0].shape}; or {doubt.settle}"
    return replace(doubt, text=text, settle=settle)


def left_over(shape: tuple[int, ...], frames: int, told_by: str) -> tuple[Doubt, ...]:
    """Return the doubt that frames are left over after a scan; none if it takes all of them."""
    count = math.prod(shape)
    more, rows = frames - count, math.prod(shape[:-1])
    if more <= 0 or not count:
        return ()
    name = os.path.basename(told_by)
    text = f"the scan {shape} of {name} takes {count} of {frames} frames; {more} are left out"
    settle = f"pass nav_shape={shape}, or sync_offset={more} if they come first"
    if more % rows == 0:
        wider = (*shape[:-1], shape[-1] + more // rows)
        settle += f", or nav_shape={wider} if each line has {more // rows} more"
    return (Doubt("left-over-frames", text, settle),)


def uneven_axis(name: str, why: str) -> Doubt:
    """Return the doubt that positions along an axis, which a file gives, are not shown."""
    text = f"the axis {name} is shown in pixels: its positions in the file {why}"
    settle = f"pass {_option(name)} '0.5 nm from 10 nm'}}, or other steps"
    return Doubt("uneven-axis", text, settle)


def _option(name: str) -> str:
    """Return the beginning of the option that calibrates an axis."""
    return f"axes={{{str(name)!r}:"


def may_be_meant(size: float, shown: float) -> bool:
    """Return whether an array may be meant in place of the one that is shown, by their sizes."""
    return 0 < shown <= size * ALIKE


def by_size_only(
    first: str | int,
    others: Sequence[str | int],
    told_by: str,
    option: str = "dataset",
    *,
    more: bool = False,
) -> tuple[Doubt, ...]:
    """Return the doubt that an array is not the one that is meant; none if there are no others.

    Parameters
    ----------
    first : str or int
        Name or number of the array that is shown.
    others : sequence of str or int
        Names or numbers of others that may be meant.
    told_by : str
        Why the first one is shown.
    option : str
        Option that chooses an array.
    more : bool
        Whether the search for others has ended before the last array.
    """
    if not others:
        return ()
    named = ", ".join(map(str, others[:MOST_RIVALS])) + ", ..." * (len(others) > MOST_RIVALS)
    count = f"{len(others) + 1} arrays{' or more' if more else ''}"
    text = f"{count} may be meant; {first} is shown, {told_by}; the others: {named}"
    return (Doubt("default-dataset", text, f"pass {option}={first!r}, or the name of another"),)


def surplus(announced: int, frames: int, told_by: str) -> tuple[Doubt, ...]:
    """Return the doubt that there are more frames than announced, all of which are shown."""
    if frames <= announced:
        return ()
    text = f"{frames} frames are shown, {frames - announced} more than {told_by} announce"
    settle = f"pass nav_shape=({announced},), or nav_shape=({frames},) for all"
    return (Doubt("left-over-frames", text, settle),)


def lost_frames(lost: Sequence[tuple[str, int]]) -> tuple[Doubt, ...]:
    """Return the doubt that frames are shown in file order although some are lost; or none.

    Parameters
    ----------
    lost : sequence of (str, int)
        Paths, and numbers of frames that are lost inside these files.
    """
    if not lost:
        return ()
    (path, _), count = lost[0], sum(frames for _, frames in lost)
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    text = (
        f"frames are shown in file order, although their sequence numbers lack {count}"
        f" inside {os.path.basename(path)}{more}"
    )
    positions = f"{count} more position{'s' * (count > 1)}"
    settle = f"pass a nav_shape with {positions} to show each frame at its place"
    return (Doubt("lost-frames", text, settle),)


def left_out(shape: tuple[int, ...], pages: int) -> tuple[Doubt, ...]:
    """Return the doubt that OME-XML lists pages beyond the sizes of its image; none without any."""
    if not pages:
        return ()
    sizes = f"SizeT * SizeC * SizeZ = {math.prod(shape)}"
    text = f"TiffData lists {pages} pages beyond {sizes}, which are left out"
    settle = f"pass nav_shape={shape}, or format='tiff' for all pages"
    return (Doubt("left-over-frames", text, settle),)


def unfinished(why: str) -> Doubt:
    """Return the doubt that more frames may come."""
    settle = "pass follow=True to add the frames that arrive, or missing='fill' to leave it so"
    return Doubt("unfinished", f"the acquisition may not be complete: {why}", settle)


def lost_datasets(count: int, kind: str, at: int, why: str) -> Doubt:
    """Return the doubt that a file has more datasets than those listed, which end at a byte."""
    text = f"{count} {kind} are listed, up to byte {at}; what follows is not read, as {why}"
    return Doubt("lost-datasets", text, "pass dataset=, the number of the one that is meant")


def lacking(names: Sequence[str]) -> Doubt:
    """Return the doubt that an exported group lacks arrays, which could not be read."""
    listed = ", ".join(map(repr, names[:MOST_LACKING])) + ", ..." * (len(names) > MOST_LACKING)
    text = f"the export of the group is incomplete: arrays are lacking: {listed}"
    return Doubt("unfinished", text, "repeat the export, or pass missing='fill' to leave it so")


def unsettled(
    doubts: Iterable[Doubt], options: Iterable[str], axes: Iterable[str] = ()
) -> tuple[Doubt, ...]:
    """Return the doubts that none of the passed options settles, nor the calibration of an axis."""
    passed, calibrated = frozenset(options), tuple(f"pass {_option(name)}" for name in axes)
    left = (one for one in doubts if not SETTLED_BY.get(one.code, frozenset()) & passed)
    return tuple(one for one in left if not one.settle.startswith(calibrated))


def as_json(doubts: Iterable[Doubt]) -> list[dict[str, str]]:
    """Return doubts as JSON values."""
    return [asdict(one) for one in doubts]


def from_json(told: Any) -> tuple[Doubt, ...]:
    """Restore doubts from JSON values; invalid ones are skipped."""
    listed = told if isinstance(told, list) else []
    names = {"code", "text", "settle"}
    return tuple(
        Doubt(**one)
        for one in listed
        if isinstance(one, dict)
        and one.keys() == names
        and all(isinstance(x, str) for x in one.values())
    )
