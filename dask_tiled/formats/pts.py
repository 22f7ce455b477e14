"""JEOL's streams of X-ray events (.pts): counts in the channels of a spectrum at each position.

Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.jeol.entries import BEFORE_TREE, inside, read_tree
from dask_tiled.formats.tools.events import (
    SUM,
    WORDS,
    add_words,
    count_words,
    event_layout,
    frames_shown,
    overflow,
)
from dask_tiled.formats.tools.files import read_exactly
from dask_tiled.formats.tools.text import number_in
from dask_tiled.model.blocks import Fetch
from dask_tiled.model.decoders import function_at
from dask_tiled.model.events import EventRun, EventTarget
from dask_tiled.model.indexing import Index
from dask_tiled.model.instrument import entries

MAGIC = (304).to_bytes(4, "little") + b"PTTDFILE"
HEADER: tools.Fields = {
    "tree": (20, "u4"), "length": (24, "u4"), "data": (28, "u4"), "data_length": (32, "u4"),
}  # fmt: skip
MOST_HEADER = 1 << 24
STEPS = 4096
"""Steps of the beam along each axis, and channels."""
COUNTS = 0xB000
"""First word of a count."""
SIDES = {f"{n}x{n}": n for n in (1 << k for k in range(4, 13))}
MEASURED = "PTTD Data", "AnalyzableMap MeasData"
PIECE_BYTES, PART_BYTES, MOST_KEPT, MOST_FRAMES = 1 << 16, 1 << 18, 8, 1 << 20


def sniff(path: str, head: bytes) -> str | None:
    """Check the name of the file type."""
    return None if head.startswith(MAGIC) else "does not begin with PTTDFILE"


def describe(
    paths: Sequence[str], *, frames: str | slice = "sum", cut: bool = False
) -> tools.Description:
    """Describe a map of spectra.

    Parameters
    ----------
    paths : sequence of str
        One file.
    frames : "sum" or slice
        Add up all frames of the scan, or show some along an axis of their own.
    cut : bool
        Read a file of another length than its header says, and include a last frame that was
        broken off.
    """
    file = tools.File.only(paths, "pts")
    tree, side, data = _read_header(file, cut=cut)
    rows = _index(file, data)
    n_frames, complete = int(rows[-1, 1]) + 1, int(rows[-1, 3]) >= STEPS - STEPS // side
    shown = frames_shown(file.path, frames, n_frames - (not complete and not cut))
    layout = _layout(file, side, rows, shown, summed=frames == SUM)
    found = _facts(tree)
    size = found["scan_size"] / found["magnification"] * 1000 if found["magnification"] else 0.0
    energy = found["offset"] - found["zero_channel"] * found["step"]
    axes = [tools.Axis.calibrated(f"scan_{name}", "µm", size / side) for name in "yx"]
    axes.append(tools.Axis.calibrated("energy", "keV", found["step"], energy))
    if frames != SUM:
        seconds = found["dwell_time"] / 1000 * side**2
        frame = tools.Axis.calibrated("frame", "s", seconds).cut(shown.start, shown.step)
        axes.insert(0, frame)
    told = {**found, "frames": n_frames, "complete": complete, "nav_shape_from": "Pixels"}
    return tools.Description.of("pts", layout, {"pts": told}, tuple(axes))


def _read_header(file: tools.File, *, cut: bool) -> tuple[dict[str, Any], int, int]:
    """Read the tree of the header, the pixels along each axis, and the offset of the words."""
    header = tools.read_fields(file.path, HEADER)
    allowed = {"length": range(BEFORE_TREE, MOST_HEADER)}
    tools.check_fields(file.path, header, HEADER, allowed, "invalid header")
    length, start = header["length"] - BEFORE_TREE, header["tree"] + BEFORE_TREE
    tree = read_tree(file.path, read_exactly(file.path, length, start, "the header"))
    told = str(inside(tree, *MEASURED, "Meas Cond").get("Pixels"))
    if told not in SIDES:
        what, expected = "unsupported scan", ", ".join(SIDES)
        raise tools.DatasetError(
            what, path=file.path, where="Pixels", expected=expected, found=told
        )
    data, nbytes = header["data"], header["data_length"]
    # Some files count the header, too. Words that were appended would be read as events.
    exact = (file.size - nbytes) % (1 << 32) in (0, data)
    if file.size <= data or not (cut or exact):
        shorter, longer = file.size < data + max(nbytes, 1), file.size > max(data, nbytes)
        problems = ["cut off"] * shorter + ["longer than its header says"] * longer
        raise (tools.TruncatedFileError if shorter else tools.CorruptFileError)(
            f"the file is {' or '.join(problems)}",
            path=file.path,
            expected=f"{data + nbytes} bytes",
            found=f"{file.size} bytes",
            hint="Pass cut=True to read the events that are there.",
        )
    return tree, SIDES[told], data


def _facts(tree: dict[str, Any]) -> dict[str, Any]:
    """Return what the header tells of the microscope and of energies; unknown numbers are 0."""
    page = inside(tree, "PTTD Param", "Params", "PARAMPAGE0")
    conditions, doc = inside(tree, *MEASURED, "MeasCond"), inside(tree, *MEASURED, "Doc")
    template = str(inside(tree, *MEASURED, "Meas Cond").get("Tpl"))
    templates = inside(tree, "PTTD Param", "Params", "PARAMPAGE1", "Tpl")
    return {
        "microscope": str(page.get("SEM") or ""),
        "detector": str(page.get("DetT") or ""),
        "scan_size": number_in(page, "ScanSize"),
        "working_distance": number_in(page, "WorkD"),
        "magnification": number_in(conditions, "Mag"),
        "beam_energy": number_in(conditions, "AccKV"),
        "zero_channel": number_in(templates, template, "DigZ"),
        "step": number_in(doc, "CoefA"),
        "offset": number_in(doc, "CoefB"),
        "dwell_time": number_in(doc, "DwellTime(msec)"),
    }


@lru_cache(MOST_KEPT)
def _index(file: tools.File, data: int) -> Index:
    """Index the pieces of a stream, none of which has words of two frames: rows of numbers."""
    kernel = function_at("dask_tiled.kernels.pts:index_kernel")()
    rows, found = np.zeros((PART_BYTES // 2 + 2, 6), np.int64), []
    rows[0, 0] = data
    for at in range(data, file.size, PART_BYTES):
        words = np.frombuffer(file.read(min(PART_BYTES, file.size - at) & -2, at), np.uint8)
        count = kernel(words, at, PIECE_BYTES, rows)
        found.append(rows[:count].copy())
        rows[0] = rows[count]
        if rows[0, 1] > MOST_FRAMES:
            what, expected = "the stream has too many frames", f"{MOST_FRAMES} at most"
            raise tools.CorruptFileError(what, path=file.path, expected=expected)
    return np.concatenate([*found, rows[:1]])


def _layout(
    file: tools.File, side: int, rows: Index, shown: range, *, summed: bool
) -> tools.Layout:
    """Build the layout of the pieces of some frames."""
    area, step = side * side, STEPS // side
    offset, frame, first, last, before, _ = rows.T
    sizes = np.diff(offset, append=file.size)
    place, rest = np.divmod(frame - shown.start, shown.step)
    some = np.flatnonzero((rest == 0) & (place >= 0) & (place < len(shown)))
    some = some if len(some) else np.arange(1)  # left out
    begin = 0 if summed else area * place
    nav = (side, side) if summed else (len(shown), side, side)
    options = (("shift", step.bit_length() - 1),)
    decoder = tools.EventDecoder(f"{__name__}:add", np.dtype("u2"), options)
    layout = event_layout(
        [file],
        math.prod(nav),
        (STEPS,),
        decoder,
        offset=offset[some],
        nbytes=sizes[some],
        start=(begin + first // step * side)[some],
        stop=(begin + (last // step + 1) * side)[some],
        state=(first * STEPS + before)[some],
    )
    return layout.show(nav, 0 if shown else area)


def add(run: EventRun, fetch: Fetch, target: EventTarget, *, shift: int) -> None:
    """Add the counts of pieces to the spectra of their pixels."""
    dtype, words = target.out.dtype, np.full(WORDS, -1, np.int32)
    words[COUNTS : COUNTS + STEPS] = target.columns
    shared = target.shared(run)
    if shared.any():
        add_words(run, target, words, count_words(run.some(shared), fetch))
    kernel = function_at("dask_tiled.kernels.pts:add_kernel")(dtype)
    by_pixel = not target.columns.any()
    for part, data in run.some(~shared).parts(fetch):
        first, stop = target.wanted(int(part.starts.min()), int(part.stops.max()))
        where = part.offsets, part.sizes, part.starts, part.states
        rows = target.rows(first, stop)
        if kernel(data, *where, shift, first, rows, words, by_pixel, target.out) >= 0:
            overflow(run, dtype)


ROWS = (
    ("microscope", "microscope"),
    ("detector", "detector"),
    ("magnification", "magnification"),
    ("beam_energy", "beam_energy", "kV"),
    ("dwell_time", "dwell_time", "ms"),
    ("working_distance", "working_distance", "mm"),
)

FORMAT = tools.Format(
    name="pts",
    extensions=(".pts",),
    summary="maps of X-ray spectra by JEOL, as streams of events",
    nav_shape_from="the header",
    sniff=sniff,
    describe=describe,
    instrument=entries({"pts": ROWS}),
    peers=("RosettaSciIO",),
)
