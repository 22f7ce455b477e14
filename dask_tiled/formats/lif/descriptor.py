"""Leica LIF and LOF: microscope images, each stored in a memory block and described by XML.

Axes are in the order in which they are stored, slow ones first, without those of length 1. Layout
according to public readers, and real files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.lif.container import (
    BETWEEN,
    LOF,
    MARK,
    LifImage,
    images_of,
    is_project,
    read_file,
    stamps_of,
)
from dask_tiled.formats.tools.choosing import choose_picture
from dask_tiled.formats.tools.header import NUMBER, WORD, Keys, parse_keys, whole
from dask_tiled.formats.tools.text import FILE_TIME, since_1601
from dask_tiled.model.axes import of_light_microscope
from dask_tiled.model.colours import of_channels
from dask_tiled.model.indexing import Array
from dask_tiled.model.instrument import entries
from dask_tiled.model.together import kept

CHANNEL: Keys = {
    "DataType": whole(range(2), 0), "Resolution": whole(range(1, 65)),
    "BytesInc": whole(range(1 << 60), 0), "ChannelTag": whole(range(256), 0), "LUTName": WORD,
}  # fmt: skip
DIMENSION: Keys = {
    "DimID": whole(range(256)), "NumberOfElements": whole(range(1, 1 << 40)), "Origin": NUMBER,
    "Length": NUMBER, "Unit": WORD, "BytesInc": whole(range(1 << 60), 0),
}  # fmt: skip
TILE: Keys = {"PosY": NUMBER, "PosX": NUMBER}
TURNS: Keys = dict.fromkeys(("FlipX", "FlipY", "SwapXY"), whole(range(2), 0))
NAMES = {
    1: "x", 2: "y", 3: "z", 4: "t", 5: "emission", 6: "rotation", 7: "xt_slice", 8: "t_slice",
    9: "excitation", 10: "m", 11: "loop",
}  # fmt: skip
COLOURS = {
    "red": "#ff0000", "green": "#00ff00", "blue": "#0000ff", "cyan": "#00ffff",
    "magenta": "#ff00ff", "yellow": "#ffff00", "gray": "#ffffff", "grey": "#ffffff",
}  # fmt: skip
"""Colours of look-up tables, which also name the channels."""
BLUE = 3
"""Channel tag of blue: if the first sample has it, samples are stored as blue, green, red."""


class StoredAxis(NamedTuple):
    """An axis as stored: its length, and its stride in bytes."""

    axis: tools.Axis
    size: int
    step: int


class Box(NamedTuple):
    """A box of the array, and the file offset of its first pixel."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int


def sniff(path: str, head: bytes) -> str | None:
    """Check the markers and the beginning of the first text."""
    begins = "<LMS".encode("utf-16-le"), LOF.encode("utf-16-le")
    known = head[:4] == MARK.to_bytes(4, "little") and head[8:9] == bytes([BETWEEN])
    known = (known and head[13:].startswith(begins)) or is_project(head)
    return None if known else "no Leica text at the start"


def describe(
    paths: Sequence[str], *, dataset: int | str | None = None, mosaic: bool = False
) -> tools.Description:
    """Describe an image of a file.

    Parameters
    ----------
    paths : sequence of str
        One file.
    dataset : int or str, optional
        Number or name of an image; by default the first.
    mosaic : bool
        Assemble tiles by their positions; if False, tiles are an axis "m".
    """
    file = tools.File.only(paths, "lif")
    root, blocks = kept(read_file, file)
    images = [*images_of(root)]
    if not images:
        raise tools.DatasetError("the file has no images", path=file.path)
    names = tuple(one.name for one in images)
    lengths = [blocks.get(one.block, (0, 0))[1] for one in images]
    number, doubts = choose_picture(file.path, names, dataset, lengths)
    image = images[number]
    channels = [
        parse_keys(file.path, one.attrib, CHANNEL)
        for one in image.found("ImageDescription/Channels/ChannelDescription")
    ]
    channels.sort(key=lambda one: one["BytesInc"])
    dtype = _dtype(file, image, channels)
    axes = _axes(file, image, channels, dtype)
    offset = _place(file, image, blocks, axes, channels, dtype)
    boxes = _boxes(axes, [offset + one["BytesInc"] for one in channels])
    if mosaic:
        axes, boxes = _assembled(file, image, axes, boxes)
    samples, last = axes[-1].axis.name == "s", axes[-1]
    if samples and channels[0]["ChannelTag"] == BLUE:
        names, colours = last.axis.labels[::-1], last.axis.colours[::-1]
        axis = replace(last.axis, labels=names, colours=colours)
        axes[-1] = last._replace(axis=axis, step=-last.step)
        boxes = [box._replace(offset=box.offset + last.step * (last.size - 1)) for box in boxes]
    stamps = stamps_of(image)
    facts = {
        "dataset": number,
        "datasets": names,
        "nav_shape_from": "the dimensions in the XML",
        "channels": tuple(one["LUTName"] for one in channels),
        "hardware": _hardware(image),
        "first_time": since_1601(int(stamps[0])).isoformat() if len(stamps) else "",
        "orientation": "rows as they are stored",
    }
    nav = max(0, len(axes) - 2 - samples)
    shape = tuple(one.size for one in axes)
    steps = (0, *(one.step for one in axes))  # with a leading axis of length 1
    pieces = [tools.Piece(0, (0, *box.start), (1, *box.shape), box.offset, steps) for box in boxes]
    grid, decoders = (1, *shape[:nav]), [tools.plain(dtype)]
    layout = tools.Layout(
        [file], grid, shape[nav:], pieces, decoders, overlapping=mosaic, partial=mosaic
    )
    shown = tuple(of_light_microscope(one.axis) for one in axes)
    desc = tools.Description.of("lif", layout.show(shape[:nav]), {"lif": facts}, shown)
    return desc.with_doubts(*doubts)


def _dtype(file: tools.File, image: LifImage, channels: Sequence[dict[str, Any]]) -> np.dtype:
    """Return the dtype of the pixels, which all channels share."""
    kinds = {("uf"[one["DataType"]], -(-one["Resolution"] // 8)) for one in channels}
    known = {(kind, n): f"<{kind}{2 ** (n - 1).bit_length()}" for kind in "uf" for n in range(1, 9)}
    del known["f", 1]
    found = {known.get(one, "") for one in kinds}
    if len(found) != 1 or "" in found:
        what, expected = "unsupported channels", "one type of whole numbers or floats"
        told = [(one["DataType"], one["Resolution"]) for one in channels]
        raise tools.DatasetError(
            what, path=file.path, where=image.name, expected=expected, found=told[:20]
        )
    return np.dtype(found.pop())


def _axes(
    file: tools.File, image: LifImage, channels: Sequence[dict[str, Any]], dtype: np.dtype
) -> list[StoredAxis]:
    """Return the axes of dimensions and channels, slow ones first."""
    found = image.found("ImageDescription/Dimensions/DimensionDescription")
    dims = [parse_keys(file.path, one.attrib, DIMENSION) for one in found]
    names = [NAMES.get(one["DimID"], f"dimension_{one['DimID']}") for one in dims]
    axes = []
    for k, one in enumerate(dims):
        name = f"{names[k]}_{k}" if names[k] in names[:k] else names[k]
        count, step = one["NumberOfElements"], one["BytesInc"]
        if count > 1 and step < dtype.itemsize:
            raise tools.CorruptFileError(
                "the stride of an axis is smaller than a pixel",
                path=file.path,
                where=f"BytesInc of {name} in {image.name}",
                expected=f"{dtype.itemsize} or more",
                found=step,
            )
        scale = one["Length"] / max(1, count - 1)
        axis = tools.Axis.calibrated(name, one["Unit"], scale, one["Origin"], signed=True)
        axes.append(StoredAxis(axis, count, step))
    axes.sort(key=lambda one: -one.step)
    axes = [one for one in axes if one.size > 1] or axes[-1:]
    if not axes:
        what, where = "the image has no dimensions", image.name
        raise tools.CorruptFileError(what, path=file.path, where=where)
    if len(channels) > 1:
        step = int(np.diff([one["BytesInc"] for one in channels]).max())
        labels = tuple(one["LUTName"] for one in channels)
        name = "s" if step * len(channels) <= axes[-1].step else "c"
        told = all(labels) and len({*labels}) == len(labels)
        colours = of_channels([COLOURS.get(one.casefold(), "") for one in labels])
        axis = tools.Axis(name, labels=labels if told else (), colours=colours)
        axes.append(StoredAxis(axis, len(channels), step))
        axes.sort(key=lambda one: -one.step)
    return axes


def _place(
    file: tools.File,
    image: LifImage,
    blocks: dict[str, tuple[int, int]],
    axes: Sequence[StoredAxis],
    channels: Sequence[dict[str, Any]],
    dtype: np.dtype,
) -> int:
    """Return the file offset of the pixels, after a check of the length of their block."""
    offset, size = blocks.get(image.block) or blocks.get(LOF) or (0, 0)
    if not size:
        what, where = "the pixels of the image are not in the file", image.name
        raise tools.DatasetError(what, path=file.path, where=where, found=image.block)
    reach = sum((one.size - 1) * one.step for one in axes if one.axis.name not in {"c", "s"})
    reach += channels[-1]["BytesInc"] + dtype.itemsize
    if reach > size:
        what, where, found = "the block of the image is too short", image.name, f"{size} bytes"
        expected = f"{reach} bytes"
        raise tools.TruncatedFileError(
            what, path=file.path, where=where, expected=expected, found=found
        )
    return offset


def _boxes(axes: Sequence[StoredAxis], offsets: Sequence[int]) -> list[Box]:
    """Return one box of all channels, or one for each channel if they are not evenly spaced."""
    start, shape = (0,) * len(axes), tuple(one.size for one in axes)
    if len(set(np.diff(offsets).tolist())) < 2:
        return [Box(start, shape, offsets[0])]
    at = next(k for k, one in enumerate(axes) if one.axis.name in {"c", "s"})
    one = (*shape[:at], 1, *shape[at + 1 :])
    return [
        Box((*start[:at], k, *start[at + 1 :]), one, offset) for k, offset in enumerate(offsets)
    ]


def _assembled(
    file: tools.File, image: LifImage, axes: list[StoredAxis], boxes: Sequence[Box]
) -> tuple[list[StoredAxis], list[Box]]:
    """Place tiles at their positions, later ones on top."""
    places = {one.axis.name: k for k, one in enumerate(axes)}
    info = next(iter(image.found("Attachment[@Name='TileScanInfo']")), None)
    if "m" not in places or info is None or not {"x", "y"} <= {*places}:
        what, expected = "the image has no tiles with positions", "an axis m, x, y, and positions"
        found = ", ".join(places)
        raise tools.DatasetError(
            what, path=file.path, where=image.name, expected=expected, found=found
        )
    turns = parse_keys(file.path, info.attrib, TURNS)
    if any(turns.values()):
        what = "tiles that are flipped or swapped are not supported"
        raise tools.DatasetError(what, path=file.path, where=image.name, found=str(turns))
    at, tiles = places["m"], axes[places["m"]]
    told = [[*parse_keys(file.path, one.attrib, TILE).values()] for one in info]
    scales = [axes[places[name]].axis.scale for name in "yx"]
    pixels = np.rint((np.array(told).reshape(-1, 2) - np.min(told or [[0, 0]], axis=0)) / scales)
    far = len(told) != tiles.size or not np.isfinite(pixels).all() or (abs(pixels) > 1 << 40).any()
    if far:
        what, expected = "invalid tile positions", f"{tiles.size} positions"
        raise tools.CorruptFileError(
            what, path=file.path, where=image.name, expected=expected, found=len(told)
        )
    corners = pixels.astype(np.int64).tolist()
    moved = []
    for k, corner in enumerate(corners):
        for box in boxes:
            start = list(box.start)
            for name, first in zip("yx", corner, strict=True):
                start[places[name]] += first
            del start[at]
            shape = (*box.shape[:at], *box.shape[at + 1 :])
            moved.append(Box(tuple(start), shape, box.offset + k * tiles.step))
    larger = dict(zip("yx", np.max(corners, axis=0).tolist(), strict=True))
    kept = [one._replace(size=one.size + larger.get(one.axis.name, 0)) for one in axes]
    return [*kept[:at], *kept[at + 1 :]], moved


def _hardware(image: LifImage) -> dict[str, str]:
    """Return the hardware settings of the microscope."""
    found: dict[str, str] = {}
    for setting in image.found("Attachment[@Name='HardwareSetting']")[:1]:
        found |= setting.attrib
        for one in setting:
            found |= one.attrib
    return found


def read_headers(desc: tools.Description) -> Array:
    """Read the acquisition times of the frames."""
    file, told = desc.files[0], desc.metadata["lif"]
    root, _ = read_file(file)
    stamps = stamps_of([*images_of(root)][told["dataset"]])
    if len(stamps) != desc.layout.n_frames:
        what, expected = "no time stamp for each frame", f"{desc.layout.n_frames} time stamps"
        raise tools.DatasetError(what, path=file.path, expected=expected, found=len(stamps))
    microseconds = stamps.astype("i8") // 10 - FILE_TIME * 1_000_000
    return microseconds.view("M8[us]").view([("time", "M8[us]")])


ROWS = (
    ("microscope", "SystemTypeName"),
    ("microscope", "MicroscopeModel"),
    ("magnification", "Magnification"),
    ("stage_x", "StagePosX", "m"),
    ("stage_y", "StagePosY", "m"),
    ("stage_z", "ZPosition", "m"),
    ("dwell_time", "PixelDwellTime", "s"),
)

FORMAT = tools.Format(
    name="lif",
    extensions=(".lif", ".lof"),
    summary="Leica LIF and LOF: several images, channels, colours, lambda scans, mosaics",
    nav_shape_from="the dimensions in the XML",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=entries({"lif/hardware": ROWS, "lif": [("date", "first_time")]}),
    peers=("liffile", "readlif"),
    aliases=("leica",),
)
