"""Timepix3 streams (.tpx3), as SERVAL writes them: hits, edges of the TDC and heartbeats.

Layout after the table of words in the SERVAL manual, as public readers quote it, and real files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from dask_tiled.errors import nearest
from dask_tiled.files.file import GrowingFile, is_at_rest
from dask_tiled.formats import tools
from dask_tiled.formats.tools.events import event_layout
from dask_tiled.formats.tpx3.hits import FAR, HIT, TICK, FrameTimes
from dask_tiled.formats.tpx3.index import FARTHEST, MAGIC, StreamIndex, followed, index_of

EDGES = {"tdc1_rising": 0xF, "tdc1_falling": 0xA, "tdc2_rising": 0xE, "tdc2_falling": 0xB}
VALUES = "counts", "tot"
SIDE = 256
"""Pixels along each axis of a chip."""
MOST_FRAMES = 1 << 40


def sniff(path: str, head: bytes) -> str | None:
    """Check the header of the first chunk."""
    return None if head.startswith(MAGIC) and len(head) >= 8 else "does not begin with TPX3"


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    sig_shape: tuple[int, ...] | None = None,
    frame_time: float | None = None,
    lines: str | None = None,
    values: str = "counts",
    save_index: bool = False,
    cut: bool = False,
) -> tools.Description:
    """Describe the hits of a stream as frames.

    Parameters
    ----------
    paths : sequence of str
        One file.
    nav_shape : tuple of int, optional
        Shape of a scan. With ``lines``, each edge begins a line of its last number of positions.
    sig_shape : tuple of int, optional
        (256, 256) or (512, 512), by default as the stream has one chip or four.
    frame_time : float, optional
        Seconds of a frame, or of a position of the scan; frames begin at the first hit. By
        default one frame has all hits; with ``lines``, positions share the median time of a line.
    lines : {"tdc1_rising", "tdc1_falling", "tdc2_rising", "tdc2_falling"}, optional
        Edges at which lines of the scan begin. Hits before them, and after the last position of a
        line, are left out.
    values : {"counts", "tot"}
        Count hits, or add their time over threshold, in steps of 25 ns.
    save_index : bool
        Keep the index of times in a file beside the stream, which ends in ``.index.npz``; not of a
        stream that is followed.
    cut : bool
        Read a stream that ends inside a chunk, or is still being written: the hits that it has now.
    """
    file = tools.File.only(paths, "tpx3")
    _check(file, frame_time, lines, values)
    stream = followed(file, EDGES[lines] if lines else None) if file.grows else None
    file = GrowingFile.of(file) if cut else file
    if stream is None:
        index = index_of(file, save=save_index)
    else:
        index = stream.extended(file, complete=is_at_rest())
    _check_index(file, index, cut=cut)
    chips = tuple(chip for chip in range(4) if index.chips >> chip & 1)
    sides = [SIDE, 2 * SIDE] if chips == (0,) else [2 * SIDE]
    side = sides[0] if sig_shape is None else sig_shape[0]
    if (side, side) != (sig_shape or (side, side)) or side not in sides:
        what, expected = "unsupported shape of frames", " or ".join(f"({n}, {n})" for n in sides)
        raise tools.DatasetError(what, path=file.path, expected=expected, found=sig_shape)
    hits = int(index.hits.sum())
    ends = (int(index.first.min()), int(index.last.max())) if hits else (0, 0)
    frames, count = _frames(file, index, ends, nav_shape, frame_time, lines)
    if index.horizon < FARTHEST:
        count = min(count, int(frames.at(np.array([index.horizon]))[0][0]))
    if stream is not None:
        stream.was_begun |= count > 0
        if not stream.was_begun:  # neither the first hit nor the chips are known for sure
            _refuse_begun(file, hits)
    layout = _layout(file, index, frames, count, side, with_tot=values == "tot")
    axes: tuple[tools.Axis, ...] = (tools.Axis("y"), tools.Axis("x"))
    timeless = lines is None and frame_time is None
    if timeless:
        layout = layout.show(())
    elif lines is None:
        axes = (tools.Axis.calibrated("t", "s", frames.step * TICK, ends[0] * TICK), *axes)
    else:
        axes = (tools.Axis("frame"), *axes)
    facts = {
        "chips": chips,
        "hits": hits,
        "first_time": ends[0] * TICK,
        "last_time": ends[1] * TICK,
        "nav_shape_from": "no frames" if timeless else "lines" if lines else "frame_time",
        "edges": {name: int((index.kinds == kind).sum()) for name, kind in EDGES.items()},
        "frame_time": 0.0 if timeless else frames.step * TICK,
        "lacking_bytes": index.lacking,
        "units": "25 ns" if values == "tot" else "",
    }
    return tools.Description.of("tpx3", layout, {"tpx3": facts}, axes)


def _check(file: tools.File, frame_time: Any, lines: Any, values: Any) -> None:
    """Check the options."""
    if values not in VALUES:
        expected = " or ".join(VALUES)
        raise tools.DatasetError("invalid values", path=file.path, expected=expected, found=values)
    if lines is not None and lines not in tuple(EDGES):
        what, expected, hint = "no such edge", " or ".join(EDGES), nearest(str(lines), EDGES)
        raise tools.DatasetError(what, path=file.path, expected=expected, found=lines, hint=hint)
    number = isinstance(frame_time, (int, float, np.number)) and not isinstance(frame_time, bool)
    if frame_time is not None and not (number and TICK <= frame_time < FAR * TICK):
        what, expected = "invalid frame_time", f"seconds, {TICK} or more"
        raise tools.DatasetError(what, path=file.path, expected=expected, found=frame_time)
    if file.grows and frame_time is None:
        what = "a stream is followed frame by frame"
        hint = "Pass frame_time=, also with lines; or follow=False and cut=True for what has come."
        raise tools.DatasetError(what, path=file.path, expected="frame_time", hint=hint)


def _refuse_begun(file: tools.File, hits: int) -> NoReturn:
    """Raise the error of a stream that has no complete frame yet."""
    what, hint = "no frame is complete yet", "Wait, and open the file again."
    raise tools.TruncatedFileError(what, path=file.path, found=f"{hits} hits", hint=hint)


def _check_index(file: tools.File, index: StreamIndex, *, cut: bool) -> None:
    """Check that the stream is complete, and that its hits have times."""
    if index.lacking and not cut:
        raise tools.TruncatedFileError(
            "the file ends inside a chunk",
            path=file.path,
            expected=f"{file.size + index.lacking} bytes or more",
            found=f"{file.size} bytes",
            hint="Pass cut=True to read the hits that are there.",
        )
    if not len(index.offset):
        raise tools.TruncatedFileError("the file ends inside its first word", path=file.path)
    if index.without_time:
        what, found = "hits without times are not supported", f"{index.without_time} of them"
        raise tools.DatasetError(what, path=file.path, expected="words 0xB", found=found)


def _frames(
    file: tools.File,
    index: StreamIndex,
    ends: tuple[int, int],
    nav_shape: tuple[int, ...] | None,
    frame_time: float | None,
    lines: str | None,
) -> tuple[FrameTimes, int]:
    """Return the times of the frames, and their number."""
    step = (frame_time or 0) / TICK
    step = round(step) if math.isclose(step, round(step), rel_tol=1e-12) else step
    if lines is None and frame_time is None:
        return FrameTimes(np.array([-FAR]), 1, 2.0 * FAR), 1
    if lines is None:
        frames = FrameTimes(np.array(ends[:1]), MOST_FRAMES, step)
        count = int(frames.at(np.array(ends[1:]))[1][0])
        _check_count(file, count)
        return frames, count
    if not nav_shape:
        what, hint = "lines need the shape of the scan", "Pass nav_shape=, without -1."
        raise tools.DatasetError(what, path=file.path, hint=hint)
    marks = np.unique(index.times[index.kinds == EDGES[lines]])
    if not len(marks) and index.horizon < FARTHEST:
        _refuse_begun(file, int(index.hits.sum()))
    if not len(marks) or (step == 0 and len(marks) < 2):
        what, expected = "the stream has too few edges for lines", f"{1 + (step == 0)} or more"
        hint = "Choose another edge, or pass frame_time."
        raise tools.DatasetError(
            what, path=file.path, expected=expected, found=len(marks), hint=hint
        )
    step = step or float(np.median(np.diff(marks))) / nav_shape[-1]
    count = len(marks) * nav_shape[-1]
    _check_count(file, count)
    return FrameTimes(marks, nav_shape[-1], step), count


def _check_count(file: tools.File, count: int) -> None:
    if count >= MOST_FRAMES:
        what, expected = "too many frames", f"less than {MOST_FRAMES}"
        hint = "Pass a longer frame_time."
        raise tools.DatasetError(what, path=file.path, expected=expected, found=count, hint=hint)


def _layout(
    file: tools.File,
    index: StreamIndex,
    frames: FrameTimes,
    count: int,
    side: int,
    *,
    with_tot: bool,
) -> tools.Layout:
    """Build the layout of sparse pieces: the blocks of the index."""
    options = {"wide": side > SIDE, "step": frames.step, "with_tot": int(with_tot)}
    where = "dask_tiled.formats.tpx3.hits"
    decoder = tools.EventDecoder(
        f"{where}:add",
        np.dtype("u8" if with_tot else "u4"),
        tuple(options.items()),
        records=f"{where}:records",
        record=HIT,
        marks=frames.marks.astype("<i8").tobytes(),
        per_mark=frames.per_mark,
    )
    return event_layout(
        [file],
        count,
        (side, side),
        decoder,
        offset=index.offset,
        nbytes=index.nbytes,
        start=np.minimum(frames.at(index.first)[0], count),
        stop=np.minimum(frames.at(index.last)[1], count),
        state=index.start,
        events=index.hits,
    )


FORMAT = tools.Format(
    name="tpx3",
    extensions=(".tpx3",),
    summary="Timepix3 streams of SERVAL: hits as pictures, in time, or in a scan by TDC edges",
    nav_shape_from="the option frame_time, or the edges of the TDC",
    sniff=sniff,
    describe=describe,
    peers=("tpx3awkward", "LiberTEM-live"),
    aliases=("timepix3", "serval"),
)
