"""Ripple files of Lispix: a text header, ``.rpl``, and the pixels beside it, ``.raw``.

Layout after NIST's description of Lispix, with the calibration that HyperSpy adds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.byte_order import in_order
from dask_tiled.formats.tools.header import NUMBER, WORD, Keys, choice, parse_keys, whole
from dask_tiled.formats.tools.text import read_pairs
from dask_tiled.formats.tools.volume import check_bytes, pixels_beside
from dask_tiled.model.instrument import entries

MARK = re.compile(rb"^data-length\t", re.MULTILINE | re.IGNORECASE)
TYPE = "data-type and data-length"
TYPES = {
    **{f"signed {size}": f"i{size}" for size in (1, 2, 4, 8)},
    **{f"unsigned {size}": f"u{size}" for size in (1, 2, 4, 8)},
    **{f"float {size}": f"f{size}" for size in (4, 8)},
}
ORDERS = {"little-endian": "<", "big-endian": ">", "dont-care": ""}
"""HyperSpy writes ``dont-care`` for the order of the machine, whatever that is."""
IMAGE = {"depth": "frame", "height": "y", "width": "x"}
VECTOR = {"height": "scan_y", "width": "scan_x", "depth": "channel"}
"""Axes in file order, with their default names."""
KEYS: Keys = {
    **{axis: whole(tools.POSITIVE) for axis in IMAGE},
    "offset": whole(range(1 << 62)),
    TYPE: choice(TYPES),
    "byte-order": choice(ORDERS),
    "record-by": choice({"image": (IMAGE, 2), "vector": (VECTOR, 1)}),
    "ev-per-chan": NUMBER,
    **{f"{axis}-{key}": WORD for axis in IMAGE for key in ("name", "units")},
    **{f"{axis}-{key}": NUMBER for axis in IMAGE for key in ("scale", "origin")},
}


def sniff(path: str, head: bytes) -> str | None:
    """Check for the pixel length, in the file or in the header of a ``.raw`` file."""
    header = _header_of(path)
    if MARK.search(head if header == path else tools.read_head(header, 4096)):
        return None
    return "no line data-length, in the file or a .rpl file beside it"


def _header_of(path: str) -> str:
    stem, suffix = os.path.splitext(path)
    return (suffix.lower() == ".raw" and tools.beside(stem, ".rpl", ".RPL")) or path


def describe(
    paths: Sequence[str], *, byte_order: Literal["little", "big"] | None = None
) -> tools.Description:
    """Describe images or spectra, given either file; scan axes of length 1 are dropped.

    Parameters
    ----------
    byte_order : {"little", "big"}, optional
        Byte order of the pixels, by default the header's; little where it does not care.
    """
    path = _header_of(tools.File.only(paths, "ripple").path)
    pairs = {key.lower(): text for key, text in read_pairs(path, "\t", "latin1").items()}
    values = parse_keys(path, _settled(pairs), KEYS)
    names, sig_dims = values["record-by"]
    shown = [axis for k, axis in enumerate(names, sig_dims - 3) if k >= 0 or values[axis] > 1]
    shape, offset = tuple(values[axis] for axis in shown), values["offset"]
    silent = "the key byte-order of the header is dont-care"
    stored, told = np.dtype(values[TYPE]), values["byte-order"] or None
    dtype, doubts = in_order(stored, told, byte_order, path, silent)
    file = pixels_beside(path, ".raw", ".RAW")
    check_bytes(file, shape, dtype, offset, exact=True)
    axes = [_axis(axis, values, names[axis]) for axis in shown]
    facts = {"header": {tools.printable(k): tools.printable(v) for k, v in pairs.items()}}
    options: dict[str, Any] = {"sig_dims": sig_dims, "packed": False, "skip": offset}
    desc = tools.describe_volume("ripple", file, shape, dtype, axes, facts, **options)
    return desc.with_doubts(*doubts)


def _settled(pairs: dict[str, str]) -> dict[str, str]:
    """Remove comments, and set the record order of a single image."""
    texts = {key: text.partition(";")[0].strip() for key, text in pairs.items()}
    texts[TYPE] = " ".join(texts.get(key, "") for key in TYPE.split(" and "))
    if texts.get("record-by") == "dont-care" and texts.get("depth") == "1":
        texts["record-by"] = "image"
    return texts


def _axis(axis: str, values: dict[str, Any], default: str) -> tools.Axis:
    name, units = (values[f"{axis}-{key}"].replace("<undefined>", "") for key in ("name", "units"))
    scale, origin = values[f"{axis}-scale"], values[f"{axis}-origin"]
    if default == "channel" and not scale:  # the only calibration of Lispix
        scale, units = values["ev-per-chan"], units or "eV"
    return tools.Axis.calibrated(name or default, units, scale, origin, signed=True)


ROWS = (
    ("beam_energy", "beam-energy", "kV"),
    ("convergence_angle", "convergence-angle", "mrad"),
    ("collection_angle", "collection-angle", "mrad"),
    ("tilt_alpha", "tilt-stage", "deg"),
    ("date", "", "", lambda keys: f"{keys['date']}T{keys['time']}"),
    ("date", "date"),
)
"""Keys and units of HyperSpy."""

FORMAT = tools.Format(
    name="ripple",
    extensions=(".rpl",),
    summary="images and spectra: integers of 8 to 64 bits, floats of 32 and 64, both byte orders",
    nav_shape_from="the header",
    sniff=sniff,
    describe=describe,
    instrument=entries({"ripple/header": ROWS}),
    peers=("RosettaSciIO",),
    aliases=("lispix",),
)
