"""EMPAD scans and series: an ``.xml`` file, and the ``.raw`` file of frames that it names.

Layout as public readers describe it, and real files. Frames are stored as 130 rows of 128 pixels,
of which the last two hold metadata.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.formats.empad.xml import (
    frame_axes,
    is_xml,
    raw_name,
    scan_axes,
    scan_shapes,
    xml_of,
)
from dask_tiled.formats.format import Format
from dask_tiled.formats.tools.markup import plain_tree, read_xml
from dask_tiled.formats.tools.records import Record, lay_out
from dask_tiled.formats.tools.series import named_file
from dask_tiled.model.decoders import plain
from dask_tiled.model.description import Description, nav_axes
from dask_tiled.model.files import File, read_head

RECORD = Record((128, 128), plain(np.dtype("<f4")), footer=2 * 128 * 4)


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
    if named or xml_of(path) is not None:
        return None
    return "no .xml file names it, and its name does not tell the number of its frames"


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    outside_folder: bool = False,
) -> Description:
    """Describe a scan or a series.

    The name of the ``.raw`` file and several places in the ``.xml`` file can tell the shape of the
    scan; what agrees with the number of frames is taken.

    Parameters
    ----------
    paths : sequence of str
        One file: the ``.xml`` file, or the ``.raw`` file, with or without its ``.xml`` file.
    nav_shape : tuple of int, optional
        Shape of the scan, by default what the files tell.
    outside_folder : bool
        Whether the ``.raw`` file may be a link that leads out of the folder.
    """
    file = File.only(paths, "empad")
    xml = file.path if is_xml(read_head(file.path, 64)) else xml_of(file.path)
    root = None if xml is None else read_xml(xml)
    if root is not None and xml == file.path:
        file = _raw_of(xml, raw_name(root, xml), outside=outside_folder)
    layout = lay_out([file], RECORD, settled=nav_shape is not None)
    facts = {} if root is None else {"xml_path": xml, "xml": plain_tree(root)}
    axes = nav_axes(1) + frame_axes(root)
    desc = Description.of("empad", layout, {"empad": facts}, axes)
    told = [] if nav_shape is not None else list(scan_shapes(file.path, root))
    if not told:
        return desc
    told_by, shape = _choose(told, layout.n_frames, file.path)
    return desc.with_scan(shape, told_by, scan_axes(shape, root))


def _raw_of(xml: str, name: str, *, outside: bool) -> File:
    raw = os.path.join(os.path.dirname(xml), name)
    try:
        return File.at(named_file(name, xml, "raw_file", outside=outside) or raw)
    except OSError as error:
        raise DatasetError(
            f"the file of frames cannot be found: {error.strerror}",
            path=xml,
            where="raw_file",
            expected=raw,
            hint="If it was renamed, open the .raw file itself.",
        ) from error


def _choose(
    told: Sequence[tuple[str, tuple[int, ...]]], frames: int, path: str
) -> tuple[str, tuple[int, ...]]:
    """Choose what tells the number of frames in the file."""
    fitting = [(told_by, shape) for told_by, shape in told if math.prod(shape) == frames]
    if fitting:
        return fitting[0]
    truncated = frames < min(math.prod(shape) for _, shape in told)
    raise (TruncatedFileError if truncated else CorruptFileError)(
        "the file does not hold the frames of the scan",
        path=path,
        expected=" or ".join(f"{shape} ({told_by})" for told_by, shape in told),
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
