"""EMPAD scans and series: an ``.xml`` file, and the ``.raw`` file of frames that it names.

Layout as public readers describe it, and real files. Frames are stored as 130 rows of 128 pixels,
of which the last two hold metadata.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_tiled.decoders import plain
from dask_tiled.description import Description, nav_axes
from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.files import File, read_head
from dask_tiled.formats import Format, natural_key
from dask_tiled.formats.empad_xml import frame_axes, is_xml, raw_name, scan_axes, scan_shapes
from dask_tiled.markup import plain_tree, read_xml
from dask_tiled.records import Record, count_frames, record_layout

RECORD = Record((128, 128), plain(np.dtype("<f4")), footer=2 * 128 * 4)
MAX_NEIGHBOURS = 64
"""So many ``.xml`` files in the folder are looked at for the one that names a ``.raw`` file."""


def sniff(path: str, head: bytes) -> str | None:
    """Look for XML that names a file of frames, or for such a file."""
    if is_xml(head):
        try:
            raw_name(read_xml(path), path)
        except DatasetError as error:
            return error.problem
        return None
    frames, rest = divmod(os.path.getsize(path), RECORD.nbytes)
    if not path.lower().endswith(".raw") or rest or not frames:
        return "neither XML nor a .raw file of whole frames of 130 x 128 float32"
    named = any(math.prod(shape) == frames for _, shape in scan_shapes(path, None))
    if named or _xml_of(path) is not None:
        return None
    return "no .xml file names it, and its name does not tell the number of its frames"


def describe(paths: Sequence[str], *, nav_shape: tuple[int, ...] | None = None) -> Description:
    """Describe a scan or a series.

    The name of the ``.raw`` file and several places in the ``.xml`` file can tell the shape of the
    scan; what agrees with the number of frames is taken.

    Parameters
    ----------
    paths : sequence of str
        One file: the ``.xml`` file, or the ``.raw`` file, with or without its ``.xml`` file.
    nav_shape : tuple of int, optional
        Shape of the scan, by default what the files tell.
    """
    path = File.only(paths, "empad").path
    raw, xml = (None, path) if is_xml(read_head(path, 64)) else (path, _xml_of(path))
    root = None if xml is None else read_xml(xml)
    if root is not None and raw is None:
        raw = os.path.join(os.path.dirname(path), raw_name(root, path))
    file = _raw_file(raw or path, path)
    counts = count_frames([file], RECORD, settled=nav_shape is not None)
    metadata: dict[str, Any] = {}
    if root is not None:
        metadata |= {"xml_path": xml, "xml": plain_tree(root)}
    layout = record_layout([file], counts, RECORD)
    axes = frame_axes(root)
    desc = Description.of("empad", layout, {"empad": metadata}, (*nav_axes(1), *axes))
    told = [] if nav_shape is not None else list(scan_shapes(file.path, root))
    if not told:
        return desc
    source, shape = _choose(told, counts[0], file.path)
    metadata["nav_shape_from"] = source
    return replace(desc.with_scan(shape, source), axes=(*scan_axes(shape, root), *axes))


def _raw_file(raw: str, path: str) -> File:
    try:
        return File.at(raw)
    except OSError as error:
        raise DatasetError(
            "the file of frames cannot be found",
            path=path,
            where="raw_file",
            expected=raw,
            found=error.strerror,
            hint="If it was renamed, open the .raw file itself.",
        ) from error


def _xml_of(raw: str) -> str | None:
    """Find the ``.xml`` file beside a ``.raw`` file that names it."""
    folder, name = os.path.split(os.path.abspath(raw))
    entries = sorted((e for e in os.listdir(folder) if e.lower().endswith(".xml")), key=natural_key)
    for entry in entries[:MAX_NEIGHBOURS]:
        xml = os.path.join(folder, entry)
        try:
            if is_xml(read_head(xml, 64)) and raw_name(read_xml(xml), xml) == name:
                return xml
        except (DatasetError, OSError):
            continue
    return None


def _choose(
    told: Sequence[tuple[str, tuple[int, ...]]], frames: int, path: str
) -> tuple[str, tuple[int, ...]]:
    """Choose what tells the number of frames in the file."""
    for source, shape in told:
        if math.prod(shape) == frames:
            return source, shape
    truncated = frames < min(math.prod(shape) for _, shape in told)
    raise (TruncatedFileError if truncated else CorruptFileError)(
        "the file does not hold the frames of the scan",
        path=path,
        expected=" or ".join(f"{shape} ({source})" for source, shape in told),
        found=f"{frames} frames",
        hint="Pass a nav_shape to read them.",
    )


FORMAT = Format(
    name="empad",
    extensions=(".xml",),
    summary="EMPAD scans and series: the .xml file and its .raw file, or the .raw file alone",
    nav_shape_from="the .xml file or the name of the .raw file, whichever tells the frames in it",
    sniff=sniff,
    describe=describe,
    peers=("LiberTEM", "RosettaSciIO"),
)
