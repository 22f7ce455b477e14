"""Bruker's maps of X-ray spectra (.bcf), a spectrum at each position of a scan.

Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from dask_tiled.errors import check_whole
from dask_tiled.formats import tools
from dask_tiled.formats.bcf.container import (
    MAGIC,
    Entry,
    packed_blocks,
    read_entry,
    unframed,
    unpacked,
)
from dask_tiled.formats.tools.text import parse_xml, plain_tree
from dask_tiled.model.blocks import Fetch
from dask_tiled.model.decoders import function_at
from dask_tiled.model.events import EventRun, Target
from dask_tiled.model.indexing import Index
from dask_tiled.model.instrument import entries
from dask_tiled.model.pieces import axis_columns, piece_table

XML, MAP = "HeaderData", "SpectrumData0"
SIZES: tools.Fields = {"height": (0, "i4"), "width": (4, "i4")}
LINES = 0x1A0
"""Position of the first line."""
PART_BYTES = 1 << 19
"""Bytes of a map that are read at once, if they are not packed."""
PIECE_BYTES = 1 << 17
PIECE_PIXELS = 1 << 20
"""Most pixels of a piece, unless a line has more; pixels may be absent."""
MOST_XML, MOST_SIDE, MOST_CHANNELS, MOST_KEPT = 1 << 26, 1 << 20, 1 << 16, 8
DROPPED = "Data", "Palette", "LineCounter", "ResponseFunction", "Channels", "DetLayers"
"""Large XML elements that are not used."""
CLASSES = {"microscope": "TRTSEMData", "stage": "TRTSEMStageData", "detector": "TRTDetectorHeader"}
CLASSES |= {"analysis": "TRTESMAHeader", "spectrum": "TRTSpectrumHeader"}


def sniff(path: str, head: bytes) -> str | None:
    """Check the name of the container."""
    return None if head.startswith(MAGIC) else f"does not begin with {MAGIC.decode()}"


def describe(paths: Sequence[str], *, channels: int | None = None) -> tools.Description:
    """Describe a map of spectra.

    Parameters
    ----------
    paths : sequence of str
        One file.
    channels : int, optional
        Number of channels, by default that of the sum of all spectra. A pulse in a later channel is
        an error.
    """
    file = tools.File.only(paths, "bcf")
    told = _read_xml(read_entry(file, XML))
    given = _number(told["spectrum"], "ChannelCount", 4096) if channels is None else channels
    count = check_whole("channels", given, least=1, most=MOST_CHANNELS, path=file.path)
    entry = read_entry(file, MAP)
    shape, starts, block = _lines(entry)
    layout = _layout(entry, shape, starts, block, count)
    scales = {"y": "DY", "x": "DX"}
    scan = tuple(
        tools.Axis.calibrated(f"scan_{name}", "µm", _number(told["microscope"], key))
        for name, key in scales.items()
    )
    step, first = (_number(told["spectrum"], key) for key in ("CalibLin", "CalibAbs"))
    axes = (tools.Axis("frame"), tools.Axis.calibrated("energy", "keV", step, first))
    desc = tools.Description.of("bcf", layout, {"bcf": told}, axes)
    return desc.with_scan(shape, f"the sizes in {MAP}", scan)


def _read_xml(entry: Entry) -> dict[str, Any]:
    """Read facts about microscope, detector and spectrum from the XML."""
    path = entry.file.path
    if entry.length > MOST_XML:
        _refuse(entry, "the XML is too long", f"{MOST_XML} bytes at most", entry.length)
    text = b"".join(part.tobytes() for part in _parts(entry)[1])
    take = dict.fromkeys(DROPPED, lambda _: None)
    root = parse_xml(text, path, take=take, max_bytes=MOST_XML, max_count=1 << 20, max_depth=512)
    told = {}
    for name, kind in CLASSES.items():
        found = root.findall(f".//ClassInstance[@Type='{kind}']")
        tree = plain_tree(found[-1 if name == "spectrum" else 0]) if found else {}
        told[name] = tree if isinstance(tree, dict) else {}
    return told


def _number(tree: dict[str, Any], key: str, default: float = 0.0) -> Any:
    """Return a number, whose decimal point may be a comma."""
    try:
        value = float(str(tree.get(key, default)).replace(",", "."))
    except ValueError:
        return default
    return int(value) if isinstance(default, int) and abs(value) <= MOST_CHANNELS else value


def _parts(entry: Entry) -> tuple[tuple[int, Index] | None, Any]:
    """Return the packed blocks, None if not packed, and the content, part by part."""
    packed = packed_blocks(entry)
    if packed is None:
        ends = range(0, entry.length, PART_BYTES)
        return None, (entry.read(at, at + PART_BYTES, "an entry") for at in ends)
    size, places = packed
    pairs = zip(places[:-1].tolist(), places[1:].tolist(), strict=True)

    def refuse(found: str) -> NoReturn:
        _refuse(entry, "a packed block is damaged", "zlib", found)

    parts = (entry.read(at, end, "a packed block") for at, end in pairs)
    return packed, (unpacked(part, size, refuse) for part in parts)


@lru_cache(MOST_KEPT)
def _lines(entry: Entry) -> tuple[tuple[int, int], Index, tuple[int, Index] | None]:
    """Return the shape of a map, positions of lines and of their end, and the packed blocks."""
    packed, parts = _parts(entry)
    index = function_at("dask_tiled.kernels.bcf:index_kernel")()
    shape, base, state = (0, 0), 0, np.array([LINES, 0, 0])
    found, kept = np.zeros(0, np.int64), np.empty(0, np.uint8)
    for part in parts:
        data = np.concatenate([kept, part])
        if not shape[0]:
            if len(data) < LINES:
                _refuse(entry, "the map is too short", f"{LINES} bytes", len(data))
            sizes = tools.parse_fields(data[: tools.size_of(SIZES)].tobytes(), SIZES)
            allowed = dict.fromkeys(SIZES, range(1, MOST_SIDE))
            tools.check_fields(entry.file.path, sizes, SIZES, allowed, "invalid size of the map")
            shape = (sizes["height"], sizes["width"])
            found = np.zeros(shape[0], np.int64)
        before = int(state[2])
        if state[0] < len(data) and not index(data, shape[1], found, state):
            _refuse(entry, "a pixel or line is damaged", f"{shape[1]} pixels at most", "more")
        found[before : int(state[2])] += base
        cut = min(int(state[0]), len(data))
        base, kept = base + cut, data[cut:]
        state[0] -= cut
    if state[2] < shape[0] or state[1] or state[0] > 0:
        what, told = "the map ends early", f"{state[2]} lines, {state[1]} pixels missing"
        raise tools.TruncatedFileError(
            what, path=entry.file.path, expected=f"{shape[0]} lines", found=told
        )
    return shape, np.append(found, base + int(state[0])), packed


def _layout(
    entry: Entry,
    shape: tuple[int, int],
    starts: Index,
    packed: tuple[int, Index] | None,
    channels: int,
) -> tools.Layout:
    """Build the layout of pieces: lines that begin in the same packed block, or near each other."""
    size = PIECE_BYTES if packed is None else packed[0]
    lines = max(1, PIECE_PIXELS // shape[1])
    begins = np.diff(starts[:-1] // size, prepend=-1) != 0
    begins |= np.arange(shape[0]) % lines == 0
    first = np.flatnonzero(begins)
    after = np.append(first[1:], shape[0])
    begin, end = starts[first], starts[after]
    skipped = np.zeros_like(begin)
    if packed is not None:
        skipped = begin % size
        begin, end = packed[1][begin // size], packed[1][-(-end // size)]
    begin, end = np.array([*map(entry.place, begin)]), np.array([*map(entry.place, end - 1)]) + 1
    options = {"chunk": entry.chunk, "packed": size if packed else 0, "width": shape[1]}
    decoder = tools.EventDecoder(
        "dask_tiled.formats.bcf.descriptor:add", np.dtype("u4"), tuple(options.items())
    )
    table = piece_table(
        axis_columns(first * shape[1], (0,)),
        axis_columns((after - first) * shape[1], (channels,)),
        begin,
        axis_columns(skipped, (0,)),
        nbytes=end - begin,
    )
    return tools.Layout([entry.file], (shape[0] * shape[1],), (channels,), table, [decoder])


def add(
    run: EventRun, fetch: Fetch, target: Target, *, chunk: int, packed: int, width: int
) -> None:
    """Add the pulses and counts of lines to their channels."""
    dtype = target.out.dtype
    kernel = function_at("dask_tiled.kernels.bcf:add_kernel")(dtype)
    most = min(np.iinfo(dtype).max, np.iinfo(np.int64).max)
    columns = (run.offsets, run.sizes, run.starts, run.stops, run.states)
    for offset, size, first, stop, at in zip(*(one.tolist() for one in columns), strict=True):

        def refuse(found: str, offset: int = offset) -> NoReturn:
            run.refuse("a line is damaged", offset, "pixels in its channels", found)

        data = unframed(fetch(run.file, offset, offset + size), offset, chunk)
        data = np.ascontiguousarray(unpacked(data, packed, refuse) if packed else data)
        rows = target.rows(first, stop)
        wrong = kernel(
            data, at, (stop - first) // width, width, rows, target.columns, target.out, most
        )
        if wrong >= 0:
            refuse(f"another pixel at byte {wrong} from its first line")


def _refuse(entry: Entry, problem: str, expected: object, found: object) -> NoReturn:
    raise tools.CorruptFileError(problem, path=entry.file.path, expected=expected, found=found)


ROWS = (
    ("beam_energy", "HV", "kV"),
    ("magnification", "Mag"),
)

FORMAT = tools.Format(
    name="bcf",
    extensions=(".bcf",),
    summary="maps of X-ray spectra by Bruker",
    nav_shape_from="the sizes of the map",
    sniff=sniff,
    describe=describe,
    instrument=entries({"bcf/microscope": ROWS}),
    peers=("RosettaSciIO",),
    aliases=("bruker",),
)
