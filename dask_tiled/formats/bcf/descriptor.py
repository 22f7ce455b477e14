"""Bruker's maps of X-ray spectra (.bcf), a spectrum at each position of a scan.

Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dask_tiled.errors import check_whole
from dask_tiled.formats import tools
from dask_tiled.formats.bcf.container import MAGIC, EntryContent, read_entry, unframed, unpacked
from dask_tiled.formats.tools.events import event_layout
from dask_tiled.formats.tools.text import number_in, parse_xml, plain_tree
from dask_tiled.model.blocks import Fetch
from dask_tiled.model.decoders import function_at
from dask_tiled.model.events import EventRun, EventTarget
from dask_tiled.model.indexing import Index
from dask_tiled.model.instrument import entries

XML, MAP = "HeaderData", "SpectrumData0"
SIZES: tools.Fields = {"height": (0, "i4"), "width": (4, "i4")}
LINES = 0x1A0
"""Position of the first line."""
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
    spectrum, microscope = told["spectrum"], told["microscope"]
    if channels is None:
        channels = round(number_in(spectrum, "ChannelCount", default=4096))
    check_whole("channels", channels, least=1, most=MOST_CHANNELS, path=file.path)
    step, first = number_in(spectrum, "CalibLin"), number_in(spectrum, "CalibAbs")
    axes = (
        tools.Axis.calibrated("scan_y", "µm", number_in(microscope, "DY")),
        tools.Axis.calibrated("scan_x", "µm", number_in(microscope, "DX")),
        tools.Axis.calibrated("energy", "keV", step, first),
    )
    facts = {**told, "nav_shape_from": f"the sizes in {MAP}"}
    return tools.Description.of(
        "bcf", _layout(read_entry(file, MAP), channels), {"bcf": facts}, axes
    )


def _read_xml(entry: EntryContent) -> dict[str, dict[str, Any]]:
    """Read facts about microscope, detector and spectrum from the XML."""
    text = bytearray()
    for part in entry.parts():
        text += part.data
        if len(text) > MOST_XML:
            break  # the XML is refused as too large
    limits = {"max_bytes": MOST_XML, "max_count": 1 << 20, "max_depth": 512}
    take = dict.fromkeys(DROPPED, lambda _: None)
    root, told = parse_xml(bytes(text), entry.file.path, take=take, **limits), {}
    for name, kind in CLASSES.items():
        found = root.findall(f".//ClassInstance[@Type='{kind}']")
        tree = plain_tree(found[-1 if name == "spectrum" else 0]) if found else {}
        told[name] = tree if isinstance(tree, dict) else {}
    return told


@lru_cache(MOST_KEPT)
def _lines(entry: EntryContent) -> tuple[int, Index]:
    """Return the pixels of a line, and the positions of the lines and of their end."""
    path, indexer = entry.file.path, None
    for part in entry.parts():
        if indexer is None:
            sizes = tools.parse_fields(part.tobytes()[:LINES].ljust(LINES, b"\0"), SIZES)
            allowed = dict.fromkeys(SIZES, range(1, MOST_SIDE))
            tools.check_fields(path, sizes, SIZES, allowed, "invalid size of the map")
            make = function_at("dask_tiled.kernels.bcf:LineIndexer")
            indexer = make(sizes["height"], sizes["width"], LINES)
        if not indexer.add(part):
            what, expected = "a pixel or line is damaged", f"{sizes['width']} pixels at most"
            raise tools.CorruptFileError(what, path=path, expected=expected, found="more")
    if indexer is None or indexer.missing:
        what, found = "the map ends early", indexer and indexer.missing
        raise tools.TruncatedFileError(what, path=path, expected="all lines", found=found)
    return sizes["width"], indexer.starts


def _layout(entry: EntryContent, channels: int) -> tools.Layout:
    """Build the layout of pieces: lines that begin near each other, with the blocks they are in."""
    width, starts = _lines(entry)
    height = len(starts) - 1
    size, places = entry.blocks()
    begins = np.diff(starts[:-1] // max(size, PIECE_BYTES), prepend=-1) != 0
    begins |= np.arange(height) % max(1, PIECE_PIXELS // width) == 0
    first = np.flatnonzero(begins)
    after = np.append(first[1:], height)
    begin, end = starts[first] // size, -(-starts[after] // size)
    if places is not None:
        begin, end = places[begin], places[end]
    offset = entry.place(begin)
    packed = 0 if places is None else size
    options = (("chunk", entry.chunk), ("packed", packed), ("width", width))
    decoder = tools.EventDecoder("dask_tiled.formats.bcf.descriptor:add", np.dtype("u4"), options)
    layout = event_layout(
        [entry.file],
        height * width,
        (channels,),
        decoder,
        offset=offset,
        nbytes=entry.place(end - 1) + 1 - offset,
        start=first * width,
        stop=after * width,
        state=starts[first] % size,
    )
    return layout.show((height, width))


def add(
    run: EventRun, fetch: Fetch, target: EventTarget, *, chunk: int, packed: int, width: int
) -> None:
    """Add the pulses and counts of lines to their channels."""
    dtype = target.out.dtype
    kernel = function_at("dask_tiled.kernels.bcf:add_kernel")(dtype)
    most = min(np.iinfo(dtype).max, np.iinfo(np.int64).max)
    columns = (run.offsets, run.sizes, run.starts, run.stops, run.states)
    for offset, size, first, stop, at in zip(*(one.tolist() for one in columns), strict=True):
        data = unframed(fetch(run.file, offset, offset + size), offset, chunk)
        if packed:
            data = unpacked(data, packed, run.file.path, offset)
        rows, lines = target.rows(first, stop), (stop - first) // width
        wrong = kernel(data, at, lines, width, rows, target.columns, target.out, most)
        if wrong >= 0:
            found = f"another pixel at byte {wrong} from its first line"
            run.refuse("a line is damaged", offset, "pixels in its channels", found)


ROWS = (("beam_energy", "HV", "kV"), ("magnification", "Mag"))
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
