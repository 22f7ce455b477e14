"""JEOL's streams of X-ray events (.pts): counts in the channels of a spectrum at each position.

Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import MissingFramesWarning, check_flag, printable, warn
from dask_tiled.formats import tools
from dask_tiled.formats.tools.files import read_exactly
from dask_tiled.model.blocks import Fetch
from dask_tiled.model.decoders import function_at
from dask_tiled.model.events import EventRun, Target
from dask_tiled.model.indexing import Index
from dask_tiled.model.instrument import entries
from dask_tiled.model.pieces import axis_columns, piece_table

MAGIC = (304).to_bytes(4, "little") + b"PTTDFILE"
HEADER: tools.Fields = {
    "tree": (20, "u4"), "length": (24, "u4"), "data": (28, "u4"), "data_length": (32, "u4"),
}  # fmt: skip
BEFORE_TREE = 12
"""Bytes of the header before its tree."""
OPENS, CLOSES = 1, 255
KINDS = {2: "<u2", 3: "<i4", 4: "<f4", 5: "<f8"}
TEXT = 12
MOST_HEADER, MOST_DEPTH = 1 << 24, 64
CHANNELS = STEPS = 4096
SIDES = {f"{n}x{n}": n for n in (1 << k for k in range(4, 13))}
MEASURED = "PTTD Data", "AnalyzableMap MeasData"
PIECE_BYTES, PART_BYTES, MOST_KEPT = 1 << 16, 1 << 20, 8


class Scan(NamedTuple):
    """A square scan: its pixels along each axis, and the offset of the words in the file."""

    side: int
    data: int


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
        Read a file that was cut off, and include a last frame that was broken off.
    """
    file = tools.File.only(paths, "pts")
    check_flag("cut", cut, path=file.path)
    tree, scan = _read_header(file, cut=cut)
    rows, n_frames, complete = _index(file, scan)
    some = _shown(file, range(n_frames - (not complete and not cut)), frames)
    if not some:
        warn(f"{file.path}: the only frame was broken off. Pass cut=True.", MissingFramesWarning)
    layout = _layout(file, scan, rows, some, summed=frames == "sum")
    found = _found(tree)
    size = found["scan_size"] / found["magnification"] * 1000 if found["magnification"] else 0.0
    energy = found["offset"] - found["zero_channel"] * found["step"]
    axes = [tools.Axis.calibrated(f"scan_{name}", "µm", size / scan.side) for name in "yx"]
    axes.append(tools.Axis.calibrated("energy", "keV", found["step"], energy))
    if frames != "sum":
        seconds = found["dwell_time"] / 1000 * scan.side**2
        frame = tools.Axis.calibrated("frame", "s", seconds).cut(some.start, some.step)
        axes.insert(0, frame)
    told = {**found, "frames": n_frames, "complete": complete, "nav_shape_from": "Pixels"}
    return tools.Description.of("pts", layout, {"pts": told}, tuple(axes))


def _shown(file: tools.File, every: range, frames: Any) -> range:
    """Return the numbers of the frames that the user asks for."""
    try:
        some = every if isinstance(frames, str) and frames == "sum" else every[frames]
    except (TypeError, ValueError, IndexError):
        some = None
    if not isinstance(some, range) or some.step < 1 or not (some or frames == "sum"):
        what, expected = "invalid frames", f'"sum", or a slice with some of {len(every)} frames'
        raise tools.DatasetError(what, path=file.path, expected=expected, found=repr(frames))
    return some


def _read_header(file: tools.File, *, cut: bool) -> tuple[dict[str, Any], Scan]:
    """Read the tree of the header, and the shape of the scan; check the length of the file."""
    header = tools.read_fields(file.path, HEADER)
    allowed = {"length": range(BEFORE_TREE, MOST_HEADER)}
    tools.check_fields(file.path, header, HEADER, allowed, "invalid header")
    length, start = header["length"] - BEFORE_TREE, header["tree"] + BEFORE_TREE
    tree = read_tree(file.path, read_exactly(file.path, length, start, "the header"))
    told = str(_at(tree, *MEASURED, "Meas Cond", "Pixels"))
    if told not in SIDES:
        what, expected = "unsupported scan", ", ".join(SIDES)
        raise tools.DatasetError(
            what, path=file.path, where="Pixels", expected=expected, found=told
        )
    data, nbytes = header["data"], header["data_length"]
    cut_off = not cut and file.size != nbytes  # some count the header
    if file.size <= data or (cut_off and file.size < data + nbytes):
        what, hint = "the file is cut off", "Pass cut=True to read the events that are there."
        expected, found = f"{data + nbytes} bytes", f"{file.size} bytes"
        raise tools.TruncatedFileError(
            what, path=file.path, expected=expected, found=found, hint=hint
        )
    return tree, Scan(SIDES[told], data)


def read_tree(path: str, data: bytes) -> dict[str, Any]:
    """Read the header: entries with a name and a value, and further entries inside.

    The value of an entry with others inside has the empty name among them.
    """
    root: dict[str, Any] = {}
    levels, at = [root], 0
    try:
        while at < len(data):
            if data[at] != OPENS:
                levels = levels[:-1] if data[at] == CLOSES and len(levels) > 1 else levels
                at += 1
                continue
            (length,) = struct.unpack_from("<I", data, at + 1)
            name = data[at + 5 : at + 5 + length].partition(b"\0")[0].decode("latin1")
            kind, nbytes = struct.unpack_from("<II", data, at + 5 + length)
            at += 13 + length + nbytes
            entry: dict[str, Any] = {"": _value(kind, data[at - nbytes : at])}
            levels[-1].setdefault(name, entry)
            levels = [*levels, entry][:MOST_DEPTH]
    except struct.error as error:
        raise tools.TruncatedFileError(
            "the header ends inside an entry", path=path, where=f"byte {at} of it"
        ) from error
    return root


def _value(kind: int, data: bytes) -> Any:
    if kind == TEXT:
        return printable(data.partition(b"\0")[0].decode("latin1"))
    if kind in KINDS and len(data) == int(KINDS[kind][2]):
        return np.frombuffer(data, KINDS[kind])[0].item()
    return None


def _at(tree: dict[str, Any], *names: str) -> Any:
    """Return the value of an entry, None if there is none."""
    for name in names:
        tree = tree.get(name, {}) if name else {}  # the empty name is that of a value
    return tree.get("")


def _found(tree: dict[str, Any]) -> dict[str, Any]:
    """Return what the header tells of the microscope and of energies; numbers are finite."""
    doc, params = (*MEASURED, "Doc"), ("PTTD Param", "Params")
    template = str(_at(tree, *MEASURED, "Meas Cond", "Tpl"))
    places = {
        "magnification": (*MEASURED, "MeasCond", "Mag"),
        "beam_energy": (*MEASURED, "MeasCond", "AccKV"),
        "scan_size": (*params, "PARAMPAGE0", "ScanSize"),
        "working_distance": (*params, "PARAMPAGE0", "WorkD"),
        "zero_channel": (*params, "PARAMPAGE1", "Tpl", template, "DigZ"),
        "step": (*doc, "CoefA"),
        "offset": (*doc, "CoefB"),
        "dwell_time": (*doc, "DwellTime(msec)"),
    }
    found: dict[str, Any] = {}
    for name, names in places.items():
        value = _at(tree, *names)
        finite = isinstance(value, int | float) and math.isfinite(value)
        found[name] = float(value) if finite else 0.0
    for name, key in {"microscope": "SEM", "detector": "DetT"}.items():
        found[name] = str(_at(tree, *params, "PARAMPAGE0", key) or "")
    return found


@lru_cache(MOST_KEPT)
def _index(file: tools.File, scan: Scan) -> tuple[Index, int, bool]:
    """Index the pieces of a stream; return them, the number of frames, if the last is complete."""
    kernel, state = function_at("dask_tiled.kernels.pts:index_kernel")(), 0
    every = []
    for at in range(scan.data, file.size, PART_BYTES):
        data = np.frombuffer(file.read(PART_BYTES, at), np.uint8)
        rows = np.zeros((-(-len(data) // PIECE_BYTES), 3), np.int64)
        state = kernel(data, state, PIECE_BYTES, scan.side, rows)
        every.append(rows)
    line = (state >> 12) & (STEPS - 1)
    complete = line >= STEPS - STEPS // scan.side
    return np.concatenate(every), (state >> 24) + 1, complete


def _layout(
    file: tools.File, scan: Scan, rows: Index, frames: range, *, summed: bool
) -> tools.Layout:
    """Build the layout of pieces: those with counts in the frames."""
    area = scan.side * scan.side
    states, first, after = rows.T
    ends = first // area - frames.start, np.maximum(after - 1, 0) // area - frames.start
    low, high = np.maximum(-(-ends[0] // frames.step), 0), ends[1] // frames.step
    some = np.flatnonzero((after > 0) & (low <= high) & (low < len(frames)))
    some = some if len(some) else np.arange(1)
    one = summed & (low == high) & (first // area == (after - 1) // area)
    stop = 1 if summed else len(frames)
    begin = np.where(one, first % area, area * np.minimum(low, stop - 1) * (not summed))
    end = np.where(one, (after - 1) % area + 1, area * np.minimum(high + 1, stop))
    end = np.where(summed & ~one, area, end)
    shown = (frames.start, frames.step, len(frames), int(summed))
    options = {"side": scan.side, "frames": shown}
    decoder = tools.EventDecoder(f"{__name__}:add", np.dtype("u2"), tuple(options.items()))
    offset = scan.data + PIECE_BYTES * some
    table = piece_table(
        axis_columns(begin[some], (0,)),
        axis_columns(np.maximum(end - begin, 0)[some], (CHANNELS,)),
        offset,
        axis_columns(states[some], (0,)),
        nbytes=np.minimum(PIECE_BYTES, file.size - offset),
    )
    nav = (scan.side, scan.side) if summed else (len(frames), scan.side, scan.side)
    layout = tools.Layout([file], (math.prod(nav),), (CHANNELS,), table, [decoder])
    return layout.show(nav)


def add(run: EventRun, fetch: Fetch, target: Target, *, side: int, frames: tuple[int, ...]) -> None:
    """Add the counts of pieces to the spectra of their pixels."""
    dtype = target.out.dtype
    kernel = function_at("dask_tiled.kernels.pts:add_kernel")(dtype)
    most, shown = min(np.iinfo(dtype).max, np.iinfo(np.int64).max), np.array(frames)
    for part, data in run.parts(fetch):
        first, stop = target.wanted(int(part.starts.min()), int(part.stops.max()))
        rows, where = target.rows(first, stop), (part.offsets, part.sizes, part.states)
        if kernel(data, *where, side, shown, first, rows, target.columns, target.out, most) >= 0:
            what, hint = "more counts in a pixel than its type can hold", 'Pass dtype="uint32".'
            raise tools.DatasetError(what, path=run.file.path, found=dtype, hint=hint)


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
    aliases=("jeol",),
)
