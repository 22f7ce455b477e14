"""JEOL's images and maps of elements (.img, .map), spectra (.EDS), and lists of data sets (.ASW).

Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_tiled.errors import choose_dataset
from dask_tiled.formats import pts, tools
from dask_tiled.formats.jeol.entries import BEFORE_TREE, ArrayEntry, inside, read_tree
from dask_tiled.formats.tools.choosing import choose_picture
from dask_tiled.formats.tools.files import named_file
from dask_tiled.formats.tools.text import number_in, serial_date
from dask_tiled.model.instrument import entries

OF_IMAGE, OF_SPECTRUM = b"\x34\0\0\0JED-2200", b"\x02\0\0\0\x02\0\0\0\0\0"
OF_LIST = bytes(BEFORE_TREE) + b"\x01\x09\0\0\0FileType\0"
IMAGE: tools.Fields = {"data": (44, "u4")}
SPECTRUM: tools.Fields = {
    "date": (10, "f8"), "title": (18, "S80"), "mark_1": (130, "i4"), "mark_7": (214, "i4"),
    "live_time": (258, "f8"), "real_time": (266, "f8"), "step": (362, "f8"), "offset": (370, "f8"),
    "channels": (454, "i4"),
}  # fmt: skip
MARKS = {"mark_1": (1,), "mark_7": (7,)}
MOST_TREE, MOST_CHANNELS = 1 << 26, 1 << 20


def sniff(path: str, head: bytes) -> str | None:
    """Check the beginning of a file."""
    known = head.startswith((OF_IMAGE, OF_LIST)) or _is_spectrum(head)
    return None if known else "begins like no image, spectrum or list of JEOL"


def _is_spectrum(head: bytes) -> bool:
    if not head.startswith(OF_SPECTRUM) or len(head) < tools.size_of(SPECTRUM):
        return False
    return tools.wrong_field(tools.parse_fields(head, SPECTRUM), MARKS) is None


def describe(paths: Sequence[str], *, dataset: int | str | None = None) -> tools.Description:
    """Describe an image, a map or a spectrum.

    Parameters
    ----------
    paths : sequence of str
        One file.
    dataset : int or str, optional
        Number or name of a data set in a list, by default the first.
    """
    file = tools.File.only(paths, "jeol")
    if not file.read(len(OF_LIST)).startswith(OF_LIST):
        choose_dataset(file.path, (os.path.basename(file.path),), dataset)
        return _described(file)
    names = _names(read_tree(file.path, file.read(MOST_TREE, BEFORE_TREE)))
    if not names:
        raise tools.DatasetError("the list names no files", path=file.path)
    found = [named_file(name, file.path, "the list") for name in names]
    sizes = [0 if path is None else tools.File.at(path).size for path in found]
    number, doubts = choose_picture(file.path, names, dataset, sizes)
    path = found[number]
    if path is None:
        what, hint = "a file that the list names is missing", "Choose another one by dataset=."
        raise tools.TruncatedFileError(what, path=file.path, expected=names[number], hint=hint)
    desc = _described(tools.File.at(path))
    facts = {**desc.metadata.get("jeol", {}), "dataset": number, "datasets": names}
    metadata = {"jeol": {}} | dict(desc.metadata) | {"jeol": facts}  # those of a .pts come second
    return replace(desc, metadata=metadata).with_doubts(*doubts)


def _names(tree: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of files, relative to the list."""
    samples = inside(tree, "SampleInfo").values()
    views = [view for one in samples for view in inside(one, "ViewInfo").values()]
    found = [inside(one).get("Filename") for x in views for one in inside(x, "ViewData").values()]
    names = (one.replace("\\", "/").removeprefix("./") for one in found if isinstance(one, str))
    return tuple(filter(None, names))


def _described(file: tools.File) -> tools.Description:
    """Describe a file, by its beginning."""
    head = file.read(tools.size_of(SPECTRUM))
    if head.startswith(OF_IMAGE):
        return _image(file)
    if _is_spectrum(head):
        return _spectrum(file)
    if head.startswith(pts.MAGIC):
        return pts.describe([file.path])
    what, expected = "not a data set of JEOL", "an image, a map, a spectrum, or a .pts file"
    raise tools.CorruptFileError(what, path=file.path, expected=expected, found=head[:16])


def _image(file: tools.File) -> tools.Description:
    """Describe an image, whose pixels are the value of an entry."""
    start = tools.read_fields(file.path, IMAGE)["data"] + BEFORE_TREE
    tree = read_tree(file.path, file.read(MOST_TREE, start))
    image, microscope = inside(tree, "Image"), inside(tree, "Instrument")
    size: Any = image.get("Size")
    pixels: Any = image.get("Bits")
    right = isinstance(size, tuple) and [*map(type, size)] == [int, int] and min(size) > 0
    count = pixels.length if isinstance(pixels, ArrayEntry) else 0
    if not right or count != size[0] * size[1]:
        what, found = "the image does not fit its size", f"{count} pixels"
        raise tools.CorruptFileError(what, path=file.path, expected=f"{size}", found=found)
    width, height = size
    scale = number_in(microscope, "ScanSize") * 1000 / (number_in(microscope, "Mag") or np.inf)
    axes = [
        tools.Axis.calibrated("y", "µm", scale / height),
        tools.Axis.calibrated("x", "µm", scale / width),
    ]
    facts = {
        "title": str(image.get("Title") or ""),
        "microscope": str(microscope.get("Name") or ""),
        "beam_energy": number_in(microscope, "AccV"),
        "magnification": number_in(microscope, "Mag"),
        "working_distance": number_in(microscope, "WorkD"),
        "date": number_in(image, "Created"),
    }
    options = {"skip": start + pixels.offset, "packed": False}
    dtype = np.dtype(pixels.dtype)
    return tools.describe_volume("jeol", file, (height, width), dtype, axes, facts, **options)


def _spectrum(file: tools.File) -> tools.Description:
    """Describe a spectrum, whose channels follow the header."""
    header = tools.read_fields(file.path, SPECTRUM)
    allowed = {"channels": range(1, MOST_CHANNELS)}
    tools.check_fields(file.path, header, SPECTRUM, allowed, "invalid number of channels")
    axis = tools.Axis.calibrated("energy", "keV", header["step"], header["offset"])
    shape, skip = (header["channels"],), tools.size_of(SPECTRUM)
    options: dict[str, Any] = {"sig_dims": 1, "skip": skip, "packed": False}
    return tools.describe_volume("jeol", file, shape, np.dtype("<i4"), [axis], header, **options)


ROWS = (
    ("microscope", "microscope"),
    ("beam_energy", "beam_energy", "kV"),
    ("magnification", "magnification"),
    ("working_distance", "working_distance", "mm"),
    ("live_time", "live_time", "s"),
    ("real_time", "real_time", "s"),
    ("date", "date", "", serial_date),
)

FORMAT = tools.Format(
    name="jeol",
    extensions=(".eds", ".asw"),  # MRC and NIfTI files end in .map and .img, too
    summary="spectra, images and maps (.img, .map) by JEOL, and lists of them",
    nav_shape_from="no frames",
    sniff=sniff,
    describe=describe,
    instrument=entries({"jeol": ROWS, "pts": pts.ROWS}),
    peers=("RosettaSciIO",),
)
