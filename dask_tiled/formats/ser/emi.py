"""The ``.emi`` file beside ``.ser`` files: metadata in XML between binary objects.

The binary part is undocumented; the XML is found by its root element.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

from dask_tiled.files.paths import in_folder
from dask_tiled.formats import tools
from dask_tiled.formats.tools.choosing import choose_picture
from dask_tiled.formats.tools.files import absolute, is_file, names_in, natural_key
from dask_tiled.formats.tools.text import MAX_COUNT, local_time, parse_xml
from dask_tiled.model.doubts import Doubt

MAGIC = b"JK\x00\x02"
SCANNED_BYTES = 1 << 24  # only this much is searched, as files may hold images
MAX_OBJECTS = 256
START, STOP = b"<ObjectInfo>", b"</ObjectInfo>"
SKIPPED = {"TrueImageHeaderInfo"}
"""Unnamed numbers, which repeat named ones as far as known."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class ChosenSeries(NamedTuple):
    """The ``.ser`` file that is chosen of those of an ``.emi`` file."""

    file: tools.File
    number: int
    names: tuple[str, ...]
    """Names of all."""
    doubts: tuple[Doubt, ...]


def ser_of(emi: str, dataset: int | str | None) -> ChosenSeries:
    """Return the ``.ser`` file of an ``.emi`` file with a number or name, or the first in doubt."""
    folder, name = os.path.split(absolute(emi))
    stem = os.path.splitext(name)[0]
    pattern = re.compile(re.escape(stem) + r"_\d+\.ser", re.IGNORECASE)
    present = names_in(folder, *(f"{stem}_{n}.ser" for n in (1, 2)))
    names = sorted(filter(pattern.fullmatch, present), key=natural_key)
    if not names:
        hint = "TIA stores some single spectra in the .emi file only, which is not supported."
        raise tools.DatasetError("no .ser file beside the .emi file", path=emi, hint=hint)
    stems = [os.path.splitext(entry)[0] for entry in names]
    by_name = names if dataset in names else stems
    files = [tools.File.at(in_folder(folder, entry)) for entry in names]
    number, doubts = choose_picture(emi, by_name, dataset, [file.size for file in files])
    return ChosenSeries(files[number], number, tuple(stems), doubts)


def emi_of(ser: str) -> str | None:
    """Return the ``.emi`` file of a ``.ser`` file, if there is one."""
    stem = re.sub(r"_\d+$", "", os.path.splitext(ser)[0])
    for emi in (stem + ".emi", stem + ".EMI"):
        if is_file(emi) and tools.read_head(emi, len(MAGIC)) == MAGIC:
            return emi
    return None


def object_of(objects: Mapping[str, Any], ser: str) -> dict[str, Any]:
    """Return the object of a file: objects are in file order, without reference images."""
    number = re.search(r"_(\d+)\.\w+$", ser)
    told = [one for one in objects.values() if isinstance(one, dict) and "AcquireInfo" in one]
    own = [one for one in told if "OriginalImageUuid" not in one]
    place = int(number[1]) if number else 0
    return own[place - 1] if 1 <= place <= len(own) else {}


def read_objects(path: str) -> dict[str, Any]:
    """Read the XML objects of an ``.emi`` file, as nested dicts, in order.

    An unreadable object is replaced by a message, so that the pixels can be opened.
    """
    parts = tools.read_head(path, SCANNED_BYTES).split(STOP, MAX_OBJECTS)[:-1]
    texts = [part[part.index(START) :] + STOP for part in parts if START in part]
    seen: dict[str, Any] = {}
    objects, most = {"path": path}, MAX_COUNT
    for k, text in enumerate(texts):
        value, most = _object(text, path, most)
        objects[f"object_{k}"] = _share(value, seen)
    return objects


SCOPE = "ExperimentalDescription"
DWELL = "AcquireInfo/DwellTimePath"
ENERGY = "ExperimentalConditions/MicroscopeConditions/AcceleratingVoltage"
ROWS = (
    ("microscope", f"{SCOPE}/Microscope", "", lambda text: text.removeprefix("Microscope ")),
    ("acquisition_mode", f"{SCOPE}/Mode", "", lambda text: "STEM" if "STEM" in text else "TEM"),
    ("beam_energy", f"{SCOPE}/High tension (kV)", "kV"),
    ("beam_energy", ENERGY, "V"),
    ("magnification", f"{SCOPE}/Magnification (x)"),
    ("camera_length", f"{SCOPE}/Camera length (m)", "m"),
    ("defocus", f"{SCOPE}/Defocus (um)", "um"),
    *((f"stage_{k}", f"{SCOPE}/Stage {k.upper()} (um)", "um") for k in "xyz"),
    ("tilt_alpha", f"{SCOPE}/Stage A (deg)", "deg"),
    ("tilt_beta", f"{SCOPE}/Stage B (deg)", "deg"),
    ("detector", "AcquireInfo/CameraNamePath"),
    ("exposure_time", DWELL, "s", None, lambda acquired: "CameraNamePath" in acquired),
    ("exposure_time", "AcquireInfo/IntegrationTime", "s"),
    ("dwell_time", DWELL, "s", None, lambda acquired: "CameraNamePath" not in acquired),
    ("date", "AcquireDate", "", local_time),
)
"""Facts of TIA, with units in the names; times are in seconds."""


def _share(tree: Any, seen: dict[str, Any]) -> Any:
    """Share equal parts of the objects, which repeat the microscope: pickles become small."""
    if isinstance(tree, dict):
        tree = {seen.setdefault(key, key): _share(value, seen) for key, value in tree.items()}
    return seen.setdefault(repr(tree), tree)


def _object(text: bytes, path: str, most: int) -> tuple[Any, int]:
    """Parse an object; return the remaining number of elements and attributes too."""
    try:
        root = parse_xml(text.decode("utf8", "replace").encode(), path, max_count=most)
    except tools.CorruptFileError as error:
        return f"not read: {error.found}", most // 2
    return _tree(root), most - sum(1 + len(one.attrib) for one in root.iter())


def _tree(element: Element) -> Any:
    """Convert an element to a number, a text, or a dict of its children."""
    text = (element.text or "").strip()
    if not len(element):
        return float(text) if len(text) < 40 and NUMBER.fullmatch(text) else text
    tree: dict[str, Any] = {}
    for child in element:
        if child.tag == "Root" and len(child):
            tree.update(_tree(child))
        elif child.tag == "Data" and len(child) > 1:  # a name, a value and perhaps a unit
            name, *units = ((part.text or "").strip() for part in (child[0], *child[2:]))
            tree[f"{name} ({''.join(units)})" if any(units) else name] = _tree(child[1])
        elif child.tag not in SKIPPED:
            tree[child.tag] = _tree(child)
    return tree
