"""Nikon ND2, version 3, as NIS-Elements writes it.

A file is a sequence of chunks, and ends with a map of them. Every frame is a chunk: its time in ms,
then rows of pixels with interleaved components, the channels. All other axes are loops of the
experiment, slow ones first. Metadata are trees of named values.

Layout according to public readers, and real files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.chunks import chunk_decoder
from dask_tiled.formats import tools
from dask_tiled.formats.nd2.chunks import (
    ATTRIBUTES,
    EXPERIMENT,
    FRAME,
    SIGNATURE,
    START,
    TIMES,
    TREES,
    ChunkTable,
    read_chunk,
    read_header,
    read_map,
    read_tree,
)
from dask_tiled.formats.tools.text import number_in, since_1970
from dask_tiled.model.colours import of_channels, rgb
from dask_tiled.model.doubts import Doubt, left_over
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.instrument import entries
from dask_tiled.model.pieces import axis_columns, piece_table

SIZES = dict.fromkeys(("uiWidth", "uiHeight", "uiComp", "uiWidthBytes"), range(1, 1 << 31))
TYPES = {8: "u1", 16: "u2", 32: "f4"}
LOSSLESS, LOSSY = 0, 1
MOST_LOOKED = 1000
"""Maximum number of frames whose headers are checked, evenly spread over the file."""
TIME, POSITIONS, STACK, SPECTRAL, CUSTOM, UNEVEN_TIME = 1, 2, 4, 6, 7, 8
LOOPS = {TIME: "t", POSITIONS: "p", STACK: "z", CUSTOM: "custom", UNEVEN_TIME: "t"}
MOST_MISSING = 100_000
UNIX_EPOCH = 2440587.5
"""The Unix epoch as a Julian date."""


class FrameFormat(NamedTuple):
    """Properties shared by all frames: size, channels, samples per pixel, dtype, bytes of a row."""

    height: int
    width: int
    channels: int
    samples: int
    dtype: np.dtype
    row: int

    @property
    def sig_shape(self) -> tuple[int, ...]:
        """Rows, columns, and the samples if there are several."""
        return (self.height, self.width, self.samples)[: 2 + (self.samples > 1)]


def sniff(path: str, head: bytes) -> str | None:
    """Check the signature chunk."""
    known = head.startswith(START + SIGNATURE)
    return None if known else "does not begin with the signature chunk"


def describe(paths: Sequence[str]) -> tools.Description:
    """Describe a file: loops of the experiment, channels, and the two axes of a frame.

    Frames that were never recorded are missing. Channels are an axis if there are several, and so
    are the samples of a pixel.
    """
    file = tools.File.only(paths, "nd2")
    chunks = read_map(file)
    told = {key: read_tree(file, chunks, name) for key, name in TREES.items()}
    attributes = told["attributes"]
    frames = _frames_of(file, attributes, told["picture"])
    recorded = int(chunks.numbers[-1]) + 1
    axes, shape, doubts = _grid(file, told["experiment"], recorded)
    total = math.prod(shape)
    if not shape and len(chunks.numbers) > 1:
        axes, shape = [tools.Axis("frame")], [recorded]
    nav, every = (*shape,), (*shape, frames.channels)
    layout = _layout(file, chunks, frames, packed=attributes.get("eCompression") == LOSSLESS)
    layout = layout.show(every, numbers=_numbers(file, chunks, math.prod(shape), frames.channels))
    if frames.channels == 1:
        layout = layout.show(nav, numbers=layout.selection.numbers)
    else:
        axes.append(_channels(told["picture"], frames.channels))
    facts = {"nav_shape_from": "the loops of the experiment" if total > 1 else "the frames", **told}
    facts["orientation"] = "rows as they are stored"
    every_axis = (*axes, *_sig_axes(told["picture"], frames))
    desc = tools.Description.of("nd2", layout, {"nd2": facts}, every_axis)
    more = left_over(nav, len(chunks.numbers), "the loops of the experiment") if nav else ()
    return desc.with_doubts(*doubts, *more)


def _children(tree: Any, key: str) -> list[dict[str, Any]]:
    found = tree.get(key) if isinstance(tree, dict) else None
    inner = found.values() if isinstance(found, dict) else ()
    return [one for one in inner if isinstance(one, dict)]


def _frames_of(
    file: tools.File, attributes: dict[str, Any], picture: dict[str, Any]
) -> FrameFormat:
    """Read and check the attributes of the frames."""
    for key, known in {**SIZES, "uiBpcInMemory": TYPES, "eCompression": (0, 2)}.items():
        found = attributes.get(key, 2 if key == "eCompression" else None)
        if type(found) is not int or found not in known:
            missing = found is None or key in SIZES
            kind = tools.CorruptFileError if missing else tools.DatasetError
            what = "invalid attributes" if missing else "unsupported frames"
            expected = " or ".join(map(str, known)) if key not in SIZES else "a positive number"
            where, path = f"{key} in {ATTRIBUTES}", file.path
            found = "lossy compression" if (key, found) == ("eCompression", LOSSY) else found
            raise kind(what, path=path, where=where, expected=expected, found=found)
    width, height, components, row = (attributes[key] for key in SIZES)
    dtype = np.dtype(f"<{TYPES[attributes['uiBpcInMemory']]}")
    least = width * components * dtype.itemsize
    if row < least:
        what, where = "rows are too short for their pixels", f"uiWidthBytes in {ATTRIBUTES}"
        expected = f"{least} bytes or more"
        raise tools.CorruptFileError(
            what, path=file.path, where=where, expected=expected, found=row
        )
    planes = int(number_in(picture.get("sPicturePlanes"), "uiCount"))
    channels = planes if planes > 0 and components % planes == 0 else components
    return FrameFormat(height, width, channels, components // channels, dtype, row)


def _layout(
    file: tools.File, chunks: ChunkTable, frames: FrameFormat, *, packed: bool
) -> tools.Layout:
    """Build the layout of all stored channels, after a check of the headers of some frames."""
    count, (channels, samples, item) = len(chunks.places), (*frames[2:4], frames.dtype.itemsize)
    before = set()
    for k in np.unique(np.linspace(0, count - 1, min(count, MOST_LOOKED)).astype(int)).tolist():
        at, name = int(chunks.places[k]), FRAME + f"{chunks.numbers[k]}!".encode()
        start, length = read_header(file, at, name)
        before.add((start - at, length == chunks.lengths[k] or packed))
    least = 8 + frames.row * frames.height
    if len(before) > 1 or not all(same for _, same in before):
        raise tools.CorruptFileError("the headers of the frames differ", path=file.path)
    ((header, _),) = before
    if not packed and (chunks.lengths < least).any():
        what, found = "a frame is too short", int(chunks.lengths.min())
        raise tools.TruncatedFileError(what, path=file.path, expected=least, found=found)
    offsets, grid = chunks.places + header + 8, (count, channels)
    sig = frames.sig_shape
    if packed:
        wide, rest = divmod(frames.row, channels * samples * item)
        if rest:
            what = "compressed rows padded by part of a pixel are not supported"
            raise tools.DatasetError(what, path=file.path, found=f"{frames.row} bytes")
        stored = (1, channels, frames.height, wide, *sig[2:])
        order = [0, 2, 3, 1, 4][: len(stored)]
        turned = {"name": "transpose", "configuration": {"order": order}}
        codecs = [turned, {"name": "bytes"}, {"name": "numcodecs.zlib"}]
        decoder: Any = chunk_decoder(codecs, stored, frames.dtype, called="frame")
        sizes, steps = chunks.lengths - 8, np.zeros((1, len(grid + sig)), np.int64)
    else:
        decoder, sizes = tools.plain(frames.dtype), np.zeros(1, np.int64)
        inner = samples * item, frames.row, channels * samples * item, item
        steps = axis_columns([0], inner[: 1 + len(sig)])
        if count > 1 and len(gaps := np.unique(np.diff(offsets))) == 1:
            steps[0, 0], count, offsets = gaps[0], 1, offsets[:1]
    box = (len(chunks.places) // count, channels, *sig)
    corners = axis_columns(np.arange(count), (0,) * (len(box) - 1))
    table = piece_table(corners, box, offsets, steps, nbytes=sizes)
    return tools.Layout([file], grid, sig, table, [decoder])


def _numbers(file: tools.File, chunks: ChunkTable, total: int, channels: int) -> Index | None:
    """Return the stored frame of each position, -1 if missing; None if all are stored in order."""
    count = len(chunks.numbers)
    if chunks.numbers[-1] == count - 1:
        return None
    if total > 16 * (count + MOST_MISSING):
        what, found = "nearly all frames are missing", f"{count} frames"
        raise tools.CorruptFileError(what, path=file.path, expected=f"{total} frames", found=found)
    rows = np.full(total, -1)
    inside = chunks.numbers < total
    rows[chunks.numbers[inside]] = np.flatnonzero(inside)
    every = rows[:, None] * channels + np.arange(channels)
    return np.where(rows[:, None] < 0, -1, every).reshape(-1)


def _grid(
    file: tools.File, experiment: dict[str, Any], frames: int
) -> tuple[list[tools.Axis], list[int], tuple[Doubt, ...]]:
    """Return the axes of the loops, slow ones first, their lengths, and a doubt or none.

    Frames are in a row if loops take turns inside another one, unless their number shows that only
    one of them was recorded.
    """
    axes, shape, turns = _loops(file, experiment)
    counts = [count for _, count in turns]
    if not turns or (frames == math.prod(shape) and counts.count(max(counts)) == 1):
        return axes, shape, ()
    named = " and ".join(f"{name} of {count}" for name, count in turns)
    text = f"{frames} frames are shown in a row, as loops of the experiment take turns: {named}"
    doubt = Doubt("scan-shape", text, f"pass nav_shape, or nav_shape=({frames},) for a series")
    return [], [], (doubt,)


def _loops(
    file: tools.File, experiment: dict[str, Any]
) -> tuple[list[tools.Axis], list[int], list[tuple[str, int]]]:
    """Return axes and lengths of the loops, and names and lengths of those that take turns.

    Of loops on one level, the longest is an axis.
    """
    axes: list[tools.Axis] = []
    shape: list[int] = []
    turns: list[tuple[str, int]] = []
    level: dict[str, Any] | None = experiment
    while level:
        kind, told = level.get("eType", 0), level.get("uLoopPars")
        count, axis = _loop(kind, told, level)
        if count and kind not in LOOPS:
            what, where = "unsupported loop", f"eType in {EXPERIMENT}"
            expected = ", ".join(map(str, LOOPS))
            raise tools.DatasetError(
                what, path=file.path, where=where, expected=expected, found=kind
            )
        if count > 1 and axis is not None:
            taken = sum(one.name.startswith(axis.name) for one in axes)
            axes.append(tools.Axis(f"{axis.name}_{taken}") if taken else axis)
            shape.append(count)
        inner = [one.get("SLxExperiment", one) for one in _children(level, "ppNextLevelEx")]
        found = [_loop(one.get("eType", 0), one.get("uLoopPars"), one) for one in inner]
        kinds = {(axis.name, count): None for count, axis in found if count and axis is not None}
        turns += kinds if len(kinds) > 1 else ()
        level = max(zip(found, inner, strict=True), key=_length, default=(None, None))[1]
    return axes, shape, turns


def _length(loop: tuple[tuple[int, Any], Any]) -> int:
    return loop[0][0]


def _loop(kind: Any, told: Any, level: dict[str, Any]) -> tuple[int, tools.Axis | None]:
    """Return the length of a loop and its axis; (0, None) for levels that are not an axis."""
    if not isinstance(told, dict) or kind in {0, SPECTRAL}:
        return 0, None
    count, name = int(number_in(told, "uiCount")), LOOPS.get(kind, "")
    if kind == STACK:
        ends = number_in(told, "dZHigh") - number_in(told, "dZLow")
        step = number_in(told, "dZStep") or abs(ends) / max(1, count - 1)
        return count, tools.Axis.calibrated(name, "µm", step)
    if kind == TIME:
        period = number_in(told, "dPeriod") or number_in(told, "dAvgPeriodDiff")
        return count, tools.Axis.calibrated(name, "s", period / 1000)
    valid = level.get("pItemValid") or told.get("pPeriodValid") or ()
    valid = tuple(valid.values()) if isinstance(valid, dict) else valid
    some = _children(told, "Points" if kind == POSITIONS else "pPeriod")
    if isinstance(valid, tuple) and valid:
        some = [one for one, right in zip(some, valid, strict=False) if right]
    if kind == UNEVEN_TIME:
        return sum(int(number_in(one, "uiCount")) for one in some), tools.Axis(name)
    if kind == POSITIONS and some:
        names = tuple(str(one.get("dPosName") or one.get("pPosName") or "") for one in some)
        return len(some), tools.Axis(name, labels=names if all(names) else ())
    return count, tools.Axis(name)


def _channels(picture: dict[str, Any], count: int) -> tools.Axis:
    """Return the axis of channels, with their names and colours."""
    planes = _children(picture.get("sPicturePlanes"), "sPlaneNew")
    if len(planes) != count:
        return tools.Axis("c")
    names = tuple(str(one.get("sDescription") or "") for one in planes)
    colours = of_channels([_colour(one.get("uiColor")) for one in planes])
    return tools.Axis("c", labels=names if all(names) else (), colours=colours)


def _colour(number: Any) -> str:
    """Convert an integer, 0xBBGGRR; empty if it is another value."""
    if not isinstance(number, int):
        return ""
    return rgb(int.from_bytes((number & 0xFFFFFF).to_bytes(3, "little"), "big"))


def _sig_axes(picture: dict[str, Any], frames: FrameFormat) -> tuple[tools.Axis, ...]:
    size = number_in(picture, "dCalibration") if picture.get("bCalibrated", True) else 0
    aspect = number_in(picture, "dAspect") or 1
    lengths = {"y": size * aspect, "x": size}
    axes = [tools.Axis.calibrated(name, "µm", length) for name, length in lengths.items()]
    return (*axes, tools.Axis("s"))[: len(frames.sig_shape)]


def read_headers(desc: tools.Description) -> Array:
    """Read the acquisition times of the frames, in seconds from the start."""
    file = desc.files[0]
    chunks = read_map(file)
    if TIMES not in chunks.named:
        raise tools.DatasetError("the file has no times of its frames", path=file.path)
    data = read_chunk(file, chunks.named[TIMES], TIMES.encode())
    times = np.frombuffer(data, "<f8", min(len(data) // 8, int(chunks.numbers[-1]) + 1))
    some = np.full(len(chunks.numbers), math.nan)
    there = chunks.numbers < len(times)
    some[there] = times[chunks.numbers[there]] / 1000
    channels = desc.layout.n_frames // len(some)
    return np.repeat(some, channels).view([("time", "f8")])


ROWS = (
    ("microscope", "**/m_sMicroscopeFullName"),
    ("detector", "**/pCameraSetting/CameraUserName"),
    ("magnification", "**/pObjectiveSetting/dObjectiveMag"),
    ("exposure_time", "**/dExposureTime", "ms"),
    ("date", "dTimeAbsolute", "", lambda day: since_1970((day - UNIX_EPOCH) * 86_400)),
)

FORMAT = tools.Format(
    name="nd2",
    extensions=(".nd2",),
    summary="Nikon ND2 of version 3: loops of time, position and height, channels, colours, zlib",
    nav_shape_from="the loops of the experiment",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=entries({"nd2/picture": ROWS}),
    peers=("nd2", "bioio"),
    aliases=("nikon",),
)
