"""EMPAD scans and series: an ``.xml`` file, and the ``.raw`` file of frames that it names.

Layout as public readers describe it, checked with real files of the versions 0.51, 0.7 and 1.2.
Frames have 130 rows of 128 pixels, of which the last two hold metadata.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from xml.etree.ElementTree import Element

import numpy as np

from dask_tiled.errors import OutsideFolderError, StaleFileError
from dask_tiled.files.file import is_filling
from dask_tiled.files.paths import in_folder
from dask_tiled.formats import tools
from dask_tiled.formats.tools.files import (
    absolute,
    file_size,
    named_file,
    named_in,
    names_in,
    natural_key,
)
from dask_tiled.formats.tools.text import local_time, plain_tree, read_xml, since_1970
from dask_tiled.model.axes import nav_axes, sig_axes
from dask_tiled.model.doubts import Doubt, inferred_scan, unknown_scan
from dask_tiled.model.instrument import entries

NAME = re.compile(r"_x(\d+)(?:_y(\d+))?\.raw$", re.IGNORECASE)
"""File name of a scan, ``scan_x4_y4.raw``, or of a series, ``series_x10.raw``."""
SIZE = re.compile(r"\s*0*[1-9][0-9]{0,9}\s*")
MEASURED = "iom_measurements"
NO_XML = Element("root")
MAX_NEIGHBOURS = 64
"""Search at most this many ``.xml`` files for the one that names a ``.raw`` file."""


def is_xml(head: bytes) -> bool:
    """Return whether a file begins like XML."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"<?xml", b"<root", b"<!"))


def raw_name(root: Element, path: str) -> str:
    """Return the name of the file of frames, without folder: it lies beside the ``.xml`` file."""
    node = root.find("raw_file")
    told = "" if node is None else node.get("filename", "")
    name = re.split(r"[\\/]", told)[-1]
    if name in {"", ".", ".."}:
        problem, found = "the XML does not name a file of frames", repr(told)
        raise tools.CorruptFileError(
            problem, path=path, where="raw_file", expected="a filename", found=found
        )
    return name


def xml_of(raw: str) -> str | None:
    """Return the ``.xml`` file that names a ``.raw`` file in the same folder."""
    folder, name = os.path.split(absolute(raw))
    names = names_in(folder, os.path.splitext(name)[0] + ".xml")
    entries = [entry for entry in names if entry.lower().endswith(".xml")]
    for entry in sorted(entries, key=natural_key)[:MAX_NEIGHBOURS]:
        xml = in_folder(folder, entry)
        try:
            if is_xml(tools.read_head(xml, 64)) and raw_name(read_xml(xml), xml) == name:
                return xml
        except (OutsideFolderError, StaleFileError):
            raise
        except (tools.DatasetError, FileNotFoundError, PermissionError):
            continue
    return None


def scan_shapes(raw: str, root: Element) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield possible scan shapes, (y, x) or (n,), with their sources, most reliable first."""
    name = NAME.search(raw)
    told: list[tuple[str, tuple[str | None, ...]]] = []
    if name is not None:
        told.append(("the name of the .raw file", name.group(2, 1) if name[2] else (name[1],)))
    if root.findtext("type", "").strip() == "series":
        told.append(("count", (root.findtext("count"),)))
    # A search recording leaves stale numbers for the mode "acquire".
    for mode in ("acquire", "search"):
        where = f"scan_parameters[@mode='{mode}']"
        told.append((where, tuple(root.findtext(f"{where}/scan_resolution_{n}") for n in "yx")))
    told.append(("pix_y and pix_x", (root.findtext("pix_y"), root.findtext("pix_x"))))
    for told_by, texts in told:
        sizes = tuple(int(text) for text in texts if text and SIZE.fullmatch(text))
        if len(sizes) == len(texts):
            yield told_by, sizes


def scan_axes(shape: tuple[int, ...], root: Element) -> tuple[tools.Axis, ...]:
    """Return the scan axes, calibrated by the field of view."""
    axes = nav_axes(len(shape))
    if len(shape) != 2:
        return axes
    fields = _numbers(root, "optics.get_full_scan_field_of_view")  # one per axis, or the larger one
    larger = _numbers(root, "full_scan_field_of_view/x")
    factor = _numbers(root, "full_scan_field_of_view/scale_factor")
    if len(fields) == 2:
        steps = [field / size for field, size in zip(fields, shape, strict=True)]
    elif larger and factor:
        steps = [larger[0] / factor[0] / max(shape)] * 2
    else:
        return axes
    pairs = zip(axes, steps, strict=True)
    return tuple(replace(axis, units="nm", scale=step * 1e9) for axis, step in pairs)


def _numbers(root: Element, name: str) -> list[float]:
    """Parse the numbers of a measurement: lengths in metres, and factors."""
    text = root.findtext(f"{MEASURED}/{name}", "")
    words = re.findall(r"\d+(?:\.\d*)?(?:[eE][-+]?\d{1,3})?", text, re.ASCII)
    numbers = [float(word) for word in words]
    return numbers if all(1e-30 < number < 1e30 for number in numbers) else []


RECORD = tools.Record((128, 128), tools.plain(np.dtype("<f4")), footer=2 * 128 * 4)


def sniff(path: str, head: bytes) -> str | None:
    """Check for XML that names a file of frames, or for such a file."""
    if is_xml(head):
        try:
            raw_name(read_xml(path), path)
        except tools.DatasetError as error:
            return error.problem
        return None
    frames, rest = divmod(file_size(path), RECORD.nbytes)
    if not path.lower().endswith(".raw") or rest or not frames:
        return "neither XML nor a .raw file of whole frames of 130 x 128 float32"
    named = any(math.prod(shape) == frames for _, shape in scan_shapes(path, NO_XML))
    if named or xml_of(path) is not None:
        return None
    return "no .xml file names it, and its name does not give the number of frames"


def describe(
    paths: Sequence[str], *, nav_shape: tuple[int, ...] | None = None
) -> tools.Description:
    """Describe a scan or a series.

    The name of the ``.raw`` file and several entries of the ``.xml`` file may give the scan shape;
    the first that matches the number of frames is used.

    Parameters
    ----------
    paths : sequence of str
        One file: the ``.xml`` file, or the ``.raw`` file, with or without its ``.xml`` file.
    nav_shape : tuple of int, optional
        Shape of the scan, by default from the files.
    """
    file = tools.File.only(paths, "empad")
    xml = file.path if is_xml(tools.read_head(file.path, 64)) else xml_of(file.path)
    root = NO_XML if xml is None else read_xml(xml)
    if xml == file.path:
        file = _raw_of(xml, raw_name(root, xml))
    told = [] if nav_shape is not None else list(scan_shapes(file.path, root))
    settled = nav_shape is not None or (is_filling() and bool(told))
    layout = tools.lay_out([file], RECORD, settled=settled)
    facts = {} if xml is None else {"xml_path": xml, "xml": plain_tree(root)}
    size = _numbers(root, "calibrated_pixelsize")
    frame = tuple(tools.Axis(name, "1/nm", size[0] * 1e9) for name in "yx" if size)
    axes = nav_axes(1) + (frame or sig_axes(2))
    desc = tools.Description.of("empad", layout, {"empad": facts}, axes)
    for told_by, shape in _fitting(told, layout.n_frames, grows=file.grows):
        desc = desc.with_scan(shape, told_by, scan_axes(shape, root))
        return desc.with_doubts(*_contradicted(shape, layout.n_frames, told))
    if not told:
        return desc if nav_shape is not None else desc.with_doubts(*unknown_scan(layout.n_frames))
    truncated = layout.n_frames < min(math.prod(shape) for _, shape in told)
    raise (tools.TruncatedFileError if truncated else tools.CorruptFileError)(
        "the number of frames does not match the scan",
        path=file.path,
        expected=" or ".join(f"{shape} ({told_by})" for told_by, shape in told),
        found=f"{layout.n_frames} frames",
        hint=f"Pass nav_shape=({layout.n_frames},) to read them in file order.",
    )


def _fitting(
    told: Sequence[tuple[str, tuple[int, ...]]], frames: int, *, grows: bool
) -> list[tuple[str, tuple[int, ...]]]:
    """Return the scan shapes that may be those of the frames, the most reliable one first.

    Of several shapes for which frames are missing, the smallest one is taken.
    """
    larger = [one for one in told if math.prod(one[1]) >= frames]
    exact = [one for one in larger if math.prod(one[1]) == frames]
    if grows or exact:
        return larger if grows else exact
    return sorted(larger, key=lambda one: math.prod(one[1])) if is_filling() else []


def _contradicted(
    shape: tuple[int, ...], frames: int, told: Sequence[tuple[str, tuple[int, ...]]]
) -> tuple[Doubt, ...]:
    """Return the doubt that another shape is meant, of those that suit the frames as well."""
    exact = frames == math.prod(shape)
    larger = (one for _, one in told if math.prod(one) >= frames)
    others = {str(one) for one in larger if not exact or math.prod(one) == frames} - {str(shape)}
    if not others:
        return ()
    why = f"{frames} frames are there, and the file also says {' and '.join(sorted(others))}"
    return (inferred_scan(shape, why),)


def _raw_of(xml: str, name: str) -> tools.File:
    raw = named_in(os.path.dirname(xml), name)
    try:
        return tools.File.at(named_file(name, xml, "raw_file") or raw)
    except OSError as error:
        raise tools.DatasetError(
            f"the file of frames cannot be found: {error.strerror}",
            path=xml,
            where="raw_file",
            expected=raw,
            hint="If it was renamed, open the .raw file itself.",
        ) from error


def read_headers(desc: tools.Description) -> tools.Headers:
    """Return the two rows after each frame, whose meaning is not documented."""
    kind = np.dtype([("footer", "<f4", (2, 128))])
    footers = tools.beside_frames(desc.layout, kind, RECORD.frame_bytes)
    return tools.stored_headers(footers, {"footer": "footer"})


def _time(stamp: Mapping[str, str]) -> datetime | None:
    return local_time(stamp["@isoformat"], since_1970(stamp["@timestamp"]))


MEASUREMENTS = (
    ("beam_energy", "source.get_voltage", "V"),
    ("beam_energy", "high_voltage", "V"),
    ("camera_length", "optics.get_cameralength", "m"),
    ("camera_length", "nominal_camera_length", "m"),
)
ROWS = (("exposure_time", "exposure_time", "ms"), ("date", "timestamp", "", _time))
"""Entry names of two software versions."""

FORMAT = tools.Format(
    name="empad",
    extensions=(".xml",),
    summary="EMPAD scans and series: the .xml file and its .raw file, or the .raw file alone",
    nav_shape_from="the .xml file or the name of the .raw file, whichever matches the frames",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=entries({f"empad/xml/{MEASURED}": MEASUREMENTS, "empad/xml": ROWS}),
    peers=("LiberTEM", "RosettaSciIO"),
    aliases=("cornell",),
)
