"""Zeiss CZI (ZISRAW): tiles of any size and position, channels, scenes, and pyramids.

An array is one scene, and begins at the first pixel of its tiles; where tiles overlap, the one with
the larger number is on top. Axes are the dimensions of the tiles; those of length 1 are dropped,
unless ``squeeze=False``. A stack begins at the height of its first plane.

Layout according to public readers, and real files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from dask_tiled.codecs.chunks import needs_imagecodecs
from dask_tiled.errors import check_whole, require
from dask_tiled.formats import tools
from dask_tiled.formats.czi.directory import (
    FILE,
    METADATA,
    SEGMENT,
    SIZED,
    Tiles,
    read_directory,
    read_segment,
)
from dask_tiled.formats.czi.tiles import pieces_of
from dask_tiled.formats.czi.times import read_times
from dask_tiled.formats.tools.choosing import Chosen, choose_picture
from dask_tiled.formats.tools.files import read_exactly
from dask_tiled.formats.tools.text import parse_xml, plain_tree
from dask_tiled.model.axes import of_light_microscope
from dask_tiled.model.colours import of_channels, rgb_in
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.instrument import entries
from dask_tiled.model.together import kept

HEADER: tools.Fields = {
    **SEGMENT, "major": (32, "i4"), "minor": (36, "i4"), "part": (80, "i4"),
    "directory": (84, "i8"), "metadata": (92, "i8"), "update_pending": (100, "i4"),
}  # fmt: skip
XML: tools.Fields = {**SEGMENT, "length": (32, "i4")}
XML_STARTS = 288
"""Offset of the XML in its segment."""
MOST_XML, MOST_COUNT, DEEPEST = 1 << 26, 1 << 20, 512
DROPPED = "CustomAttributes", "Experiment", "HardwareSetting", "Layers"
"""Large XML elements that are not used."""
NAV = "VRIHTCZ"
"""Dimensions in the order of axes, slow ones first. Unknown dimensions precede them."""
NO_AXES = {*SIZED, "S", "M", "B"}
"""Dimensions that are not axes: scenes, mosaic tiles, and blocks (always 0)."""
SAMPLES = "blue", "green", "red", "alpha"
MOST_MISSING = 1 << 20
LARGEST = 1 << 60


def sniff(path: str, head: bytes) -> str | None:
    """Check the name of the first segment."""
    return None if head.startswith(FILE.encode() + b"\0") else f"does not begin with {FILE}"


def describe(
    paths: Sequence[str],
    *,
    dataset: int | str | None = None,
    level: int = 0,
    mosaic: bool = True,
    squeeze: bool = True,
) -> tools.Description:
    """Describe a scene of a file.

    Parameters
    ----------
    paths : sequence of str
        One file.
    dataset : int or str, optional
        Name of a scene, or its index among the scenes present; by default the first.
    level : int
        Level of the pyramid, 0 for full resolution.
    mosaic : bool
        Assemble tiles by their positions; if False, tiles are an axis "m".
    squeeze : bool
        Whether dimensions of length 1, other than y and x, are dropped.
    """
    file = tools.File.only(paths, "czi")
    check_whole("level", level, least=0, path=file.path)
    header = read_segment(file, 0, FILE, HEADER)
    every = kept(read_directory, file, header["directory"])
    told = _read_xml(file, header["metadata"])
    names, (number, doubts), whole = _scene(file, every, told, dataset)
    ratio, ratios, tiles = _at_level(file, every, whole, level)
    corner = [int(whole.start[name].min()) for name in SIZED]
    corners = [(tiles.start[n] - first) // ratio for n, first in zip(SIZED, corner, strict=True)]
    axes, shape, frames = _frames(file, tiles, told["channels"], told["colours"])
    if squeeze:
        axes = [axis for axis, size in zip(axes, shape, strict=True) if size > 1]
        shape = [size for size in shape if size > 1]
    if not mosaic:
        numbers, which = _numbers_of(file, tiles)
        axes, shape = [*axes, tools.Axis("m")], [*shape, len(numbers)]
        frames, corners = frames * len(numbers) + which, [np.zeros_like(which)] * 2
    layout = _layout(file, tiles, frames, shape, corners)
    for name, first in zip(SIZED, corner, strict=True):
        step = told["scaling"].get(name, 0.0)
        axis = tools.Axis.calibrated(name.lower(), "m", step * ratio, step * first * mosaic)
        axes.append(axis)
    if len(layout.sig_shape) > len(SIZED):
        axes.append(tools.Axis("s", labels=SAMPLES[: layout.sig_shape[-1]]))
    if any(map(needs_imagecodecs, layout.decoders)):
        require("imagecodecs", "tiff", file.path)
    for k, axis in enumerate(axes):
        if axis.name == "z":
            step = told["scaling"].get("Z", 0.0)
            axes[k] = tools.Axis.calibrated("z", "m", step, step * int(tiles.start["Z"].min()))
    facts = {
        "dataset": number,
        "datasets": names,
        "nav_shape_from": "the directory of the tiles",
        "levels": tuple(ratios),
        "level": level,
        "mosaic": mosaic,
        "squeeze": squeeze,
        "origin": tuple(corner),
        "tiles": len(tiles.position),
        "compression": tuple(np.unique(tiles.compression).tolist()),
        "update_pending": bool(header["update_pending"]),
        **told,
    }
    every_axis = tuple(map(of_light_microscope, axes))
    desc = tools.Description.of("czi", layout, {"czi": facts}, every_axis)
    return desc.with_doubts(*doubts)


def _scene(
    file: tools.File, every: Tiles, told: dict[str, Any], dataset: int | str | None
) -> tuple[tuple[str, ...], Chosen, Tiles]:
    """Choose a scene; return the names of all, the choice, and its tiles at full resolution."""
    whole = every.some(every.ratio == 1)
    if not len(whole.position):
        raise tools.CorruptFileError("no tile is at full resolution", path=file.path)
    scenes = whole.start.get("S", np.zeros_like(whole.position))
    numbers = np.unique(scenes).tolist()
    names = tuple(told["scenes"].get(str(one)) or f"scene {one}" for one in numbers)
    pixels = np.prod([size.astype(float) for size in whole.size.values()], axis=0)
    sizes = [int(pixels[scenes == one].sum()) for one in numbers]
    chosen = choose_picture(file.path, names, dataset, sizes)
    return names, chosen, whole.some(scenes == numbers[chosen.number])


def _at_level(
    file: tools.File, every: Tiles, whole: Tiles, level: int
) -> tuple[int, list[int], Tiles]:
    """Select the tiles of a level: of the scene, or within its bounds if tiles name no scene."""
    inside = np.ones(len(every.position), bool)
    if "S" in every.start:
        inside = every.start["S"] == whole.start["S"][0]
    for name in SIZED:
        low = int(whole.start[name].min())
        high = int((whole.start[name] + whole.size[name]).max())
        inside &= (every.start[name] >= low) & (every.start[name] < high)
    every = every.some(inside)
    ratios = [1, *(one for one in np.unique(every.ratio).tolist() if one > 1)]
    if level >= len(ratios):
        what, expected = "no such level", f"0 to {len(ratios) - 1}"
        raise tools.DatasetError(what, path=file.path, expected=expected, found=level)
    ratio = ratios[level]
    return ratio, ratios, every.some(every.ratio == ratio) if level else whole


def _frames(
    file: tools.File, tiles: Tiles, channels: tuple[str, ...], colours: tuple[str, ...]
) -> tuple[list[tools.Axis], list[int], Index]:
    """Return the axes of frames, their lengths, and the index of the frame of each tile."""
    others = sorted({*tiles.start} - NO_AXES - {*NAV})
    axes, shape, frames = [], [], np.zeros(len(tiles.position), np.int64)
    for name in (*others, *NAV):
        if name not in tiles.start:
            continue
        start = tiles.start[name] - tiles.start[name].min()
        shape.append(int(start.max()) + 1)
        if math.prod(shape) > MOST_MISSING + 16 * len(frames):
            what, where = "nearly all frames are missing", f"dimension {name}"
            found = f"{len(frames)} tiles for {math.prod(shape)} frames"
            raise tools.CorruptFileError(what, path=file.path, where=where, found=found)
        named = name == "C" and len(channels) == shape[-1]
        known = (channels, colours) if named else ((), ())
        axes.append(tools.Axis(name.lower(), labels=known[0], colours=known[1]))
        frames = frames * shape[-1] + start
    return axes, shape, frames


def _numbers_of(file: tools.File, tiles: Tiles) -> tuple[Index, Index]:
    """Return the distinct tile numbers, and the index of each tile's number among them."""
    sizes = [len(np.unique(tiles.stored[name])) for name in SIZED]
    if max(sizes) > 1:
        what, hint = "tiles of several sizes cannot be an axis", "Leave out mosaic=False."
        raise tools.DatasetError(what, path=file.path, hint=hint)
    numbers = tiles.start.get("M", np.zeros_like(tiles.position))
    found, which = np.unique(numbers, return_inverse=True)
    return found, which


def _layout(
    file: tools.File, tiles: Tiles, frames: Index, shape: Sequence[int], corners: Sequence[Index]
) -> tools.Layout:
    """Build the layout from tiles in the order of their numbers, later ones on top."""
    order = np.argsort(tiles.start.get("M", np.zeros_like(frames)), kind="stable")
    tiles, (y, x) = tiles.some(order), (one[order] for one in corners)
    counts = np.bincount(frames)
    there = np.flatnonzero(counts)
    frame = (np.cumsum(counts > 0) - 1)[frames[order]]
    sizes = [tiles.stored[name] for name in SIZED]
    sig = tuple(int((first + n).max()) for first, n in zip((y, x), sizes, strict=True))
    if len(there) * math.prod(sig) > LARGEST:
        what, found = "the tiles are too far from each other", f"{sig} pixels"
        raise tools.CorruptFileError(what, path=file.path, found=found)
    table, decoders = pieces_of(file, tiles, frame, (y, x))
    sig = (*sig, int(table.column("shape", 3).max())) if table.ndim > 3 else sig
    several = bool((counts > 1).any())
    partial = several or any((n != whole).any() for n, whole in zip(sizes, sig, strict=False))
    layout = tools.Layout(
        [file], (len(there),), sig, table, decoders, overlapping=several, partial=partial
    )
    total = math.prod(shape)
    if len(there) == total:
        return layout.show(tuple(shape))
    numbers = np.full(total, -1)
    numbers[there] = np.arange(len(there))
    return layout.show(tuple(shape), numbers=numbers)


def _read_xml(file: tools.File, at: int) -> dict[str, Any]:
    """Read the metadata in XML; if it is damaged, report that, as pixels may be intact."""
    told: dict[str, Any] = {"scaling": {}, "channels": (), "colours": (), "scenes": {}, "image": {}}
    told |= {"instrument": "", "problem": ""}
    try:
        length = read_segment(file, at, METADATA, XML)["length"]
        if not 0 <= length <= MOST_XML:
            what, expected = "the XML is too long", f"{MOST_XML} bytes at most"
            raise tools.CorruptFileError(what, path=file.path, expected=expected, found=length)  # noqa: TRY301
        text = read_exactly(file.path, length, at + XML_STARTS, "the XML")
        take = dict.fromkeys(DROPPED, lambda _: None)
        limits = {"max_bytes": MOST_XML, "max_count": MOST_COUNT, "max_depth": DEEPEST}
        root = parse_xml(text.rstrip(b"\0"), file.path, take=take, **limits)
    except (tools.CorruptFileError, tools.TruncatedFileError) as error:
        return {**told, "problem": str(error)}
    for one in root.findall("Metadata/Scaling/Items/Distance"):
        try:
            told["scaling"][one.get("Id", "")] = float(one.findtext("Value", ""))
        except ValueError:
            continue
    image, inner = root.find("Metadata/Information/Image"), "Dimensions/Channels/Channel"
    if image is not None:
        channels = image.findall(inner)
        shown = _shown_channels(root, channels)
        told["channels"] = tuple(
            one.get("Name") or other.get("Name") or one.get("Id") or ""
            for one, other in zip(channels, shown, strict=True)
        )
        told["colours"] = of_channels(
            [
                rgb_in(other.findtext("Color")) or rgb_in(one.findtext("Color"))
                for one, other in zip(channels, shown, strict=True)
            ]
        )
        for one in image.findall("Dimensions/S/Scenes/Scene"):
            told["scenes"][one.get("Index", "")] = one.get("Name", "")
        told["image"] = {one.tag: (one.text or "").strip() for one in image if not len(one)}
        if channels:
            told["image"]["exposure"] = channels[0].findtext("ExposureTime", "")
    instrument = root.find("Metadata/Information/Instrument")
    if instrument is not None:
        told["instrument"] = plain_tree(instrument)
    return told


def _shown_channels(root: Element, channels: Sequence[Element]) -> list[Element]:
    """Return the display settings of channels: by identifier, or else by number."""
    settings = root.findall("Metadata/DisplaySetting/Channels/Channel")
    known = {one.get("Id"): one for one in settings}
    own = {one.get("Id") for one in channels}
    free = [Element("Channel") if one.get("Id") in own else one for one in settings]
    free += [Element("Channel")] * len(channels)
    return [known.get(one.get("Id"), free[k]) for k, one in enumerate(channels)]


def read_headers(desc: tools.Description) -> Array:
    """Read the acquisition times of the frames, in seconds."""
    file, told = desc.files[0], desc.metadata["czi"]
    options = {key: told[key] for key in ("dataset", "level", "mosaic", "squeeze")}
    whole, times = describe([file.path], **options), read_times(file)
    axis = whole.dims.index("t") if "t" in whole.dims else None
    length = 1 if axis is None else whole.shape[axis]
    if len(times) < length:
        what, expected = "no time for each frame", f"{length} times"
        raise tools.DatasetError(what, path=file.path, expected=expected, found=len(times))
    numbers = whole.layout.selection.numbers
    places = np.arange(math.prod(whole.nav_shape))
    if numbers is not None:
        places = places[numbers >= 0]
    t = 0 if axis is None else np.unravel_index(places, whole.nav_shape)[axis]
    return np.broadcast_to(times[t], len(places)).astype([("time", "f8")])


ROWS = (
    ("microscope", "instrument/Microscopes/Microscope/@Name"),
    ("microscope", "instrument/Microscopes/Microscope/System"),
    ("magnification", "instrument/Objectives/Objective/NominalMagnification"),
    ("detector", "instrument/Detectors/Detector/@Name"),
    ("exposure_time", "image/exposure", "ns"),
    ("date", "image/AcquisitionDateAndTime"),
)

FORMAT = tools.Format(
    name="czi",
    extensions=(".czi",),
    summary="Zeiss CZI: scenes, mosaics, pyramids, channels, colours, all but raw compressions",
    nav_shape_from="the directory of the tiles",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=entries({"czi": ROWS}),
    peers=("czifile", "pylibCZIrw", "bioio"),
    aliases=("zeiss", "zisraw"),
)
