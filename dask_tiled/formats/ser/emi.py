"""The ``.emi`` file beside ``.ser`` files: what TIA says about them, as XML between binary objects.

The layout of the binary part is not published; the XML is found by its root element.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from dask_tiled.errors import choose_dataset
from dask_tiled.formats import tools
from dask_tiled.formats.tools.files import absolute, is_file, names_in, natural_key
from dask_tiled.formats.tools.text import MAX_COUNT, local_time, parse_xml

MAGIC = b"JK\x00\x02"
SCANNED_BYTES = 1 << 24  # so much of a file is searched: it can hold images, too
MAX_OBJECTS = 256
START, STOP = b"<ObjectInfo>", b"</ObjectInfo>"
SKIPPED = {"TrueImageHeaderInfo"}
"""Numbers without names; those that are known say again what is described with names."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def ser_of(emi: str, dataset: int | str | None) -> str:
    """Find the ``.ser`` file of an ``.emi`` file with this number or name, or else the first."""
    folder, name = os.path.split(absolute(emi))
    stem = os.path.splitext(name)[0]
    pattern = re.compile(re.escape(stem) + r"_\d+\.ser", re.IGNORECASE)
    present = names_in(folder, *(f"{stem}_{n}.ser" for n in (1, 2)))
    names = sorted(filter(pattern.fullmatch, present), key=natural_key)
    if not names:
        hint = "TIA keeps some single spectra in the .emi file alone, which cannot be read."
        raise tools.DatasetError("no .ser file beside the .emi file", path=emi, hint=hint)
    stems = [os.path.splitext(entry)[0] for entry in names]
    by_name = names if dataset in names else stems
    return os.path.join(folder, names[choose_dataset(emi, by_name, dataset)])


def emi_of(ser: str) -> str | None:
    """Find the ``.emi`` file that a ``.ser`` file belongs to, if it is there."""
    stem = re.sub(r"_\d+$", "", os.path.splitext(ser)[0])
    for emi in (stem + ".emi", stem + ".EMI"):
        if is_file(emi) and tools.read_head(emi, len(MAGIC)) == MAGIC:
            return emi
    return None


def object_of(objects: Mapping[str, Any], ser: str) -> dict[str, Any]:
    """Find what is said of a file: objects are in the order of files, reference images aside."""
    number = re.search(r"_(\d+)\.\w+$", ser)
    told = [one for one in objects.values() if isinstance(one, dict) and "AcquireInfo" in one]
    own = [one for one in told if "OriginalImageUuid" not in one]
    place = int(number[1]) if number else 0
    return own[place - 1] if 1 <= place <= len(own) else {}


def read_objects(path: str) -> dict[str, Any]:
    """Read the XML of an ``.emi`` file, in its order, as one nested dict per object.

    What cannot be read is told in place of the object: it must not stand in the way of the pixels.
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
"""What TIA says of the instrument, with the units in the names; times are in seconds."""


def _share(tree: Any, seen: dict[str, Any]) -> Any:
    """Use equal parts of the objects again, which describe one microscope: pickles get small."""
    if isinstance(tree, dict):
        tree = {seen.setdefault(key, key): _share(value, seen) for key, value in tree.items()}
    return seen.setdefault(repr(tree), tree)


def _object(text: bytes, path: str, most: int) -> tuple[Any, int]:
    """Read an object; tell how many elements and attributes may follow it."""
    try:
        root = parse_xml(text.decode("utf8", "replace").encode(), path, max_count=most)
    except tools.CorruptFileError as error:
        return f"not read: {error.found}", most // 2
    return _tree(root), most - sum(1 + len(one.attrib) for one in root.iter())


def _tree(element: Element) -> Any:
    """Turn an element into a number, a text, or a dict of its children."""
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
