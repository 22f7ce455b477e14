"""Scales of TIFF pages, as ImageJ and vendors of microscopes and cameras store them.

TIFF's own resolution describes screens or prints, unless it is finer than those.

Layout facts: the source of ImageJ (TiffDecoder, Calibration); for the vendors, files of theirs, and
the readers of RosettaSciIO.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tiff import eer
from dask_tiled.formats.tiff.ifd import Ifd
from dask_tiled.formats.tiff.metamorph import read_stack
from dask_tiled.formats.tools.files import read_exactly
from dask_tiled.formats.tools.text import number_in, parse_pairs, parse_xml, plain_tree
from dask_tiled.model.units import shifted, wavelength

IMAGEJ = ("ImageJ=", "SCIFIO=")  # beginnings of descriptions
LENGTHS = {"inch": 0.0254, "cm": 1e-2, "mm": 1e-3, "m": 1.0}  # in metres
RESOLUTION_UNITS = {1: "", 2: "inch", 3: "cm"}
MICROMETRES = {"inch": 25_400, "cm": 10_000}
FINEST_PRINT = 5.0
"""In µm: pixels above this, 5080 dpi, are those of screens, scanners and printers."""
IMAGEJ_IGNORES = 72.0  # dpi
ZEISS_WIDTH = 1024  # width of the image that the pixel size refers to
NO_UNITS = {"", "pixel", "pixels", "null"}
UNITS = {"1 / nm": "1/nm"}
SIDES = {"y": "Height", "x": "Width"}
PARTS = "Eos", "ImageFormingSystem"


class PageFacts(NamedTuple):
    """Metadata of a page."""

    ifd: Ifd
    tags: Mapping[str, Any]
    sizes: Mapping[str, int]  # along y and x
    report: Mapping[str, Any]  # of JEOL SightX, or empty

    def text(self, tag: str) -> str:
        """Return a tag that is text; empty for other values."""
        value = self.tags.get(tag)
        return value.strip() if isinstance(value, str) else ""

    def step(self, axis: str) -> float:
        """Return the resolution along an axis, in units per pixel; 0 if unknown."""
        match self.tags.get(f"{axis.upper()}Resolution"):
            case (int(pixels), int(units)) if pixels > 0 and units > 0:
                return units / pixels
        return 0.0

    @property
    def resolution_unit(self) -> str:
        """Unit of the resolution; inch by default."""
        return RESOLUTION_UNITS.get(self.tags.get("ResolutionUnit", 2), "")


class PageScales(NamedTuple):
    """The scales of a page."""

    axes: Mapping[str, tools.Axis] = {}  # by name, if they have a scale
    positions: Mapping[str, Mapping[str, Any]] = {}  # units and values of irregular axes

    @classmethod
    def of(
        cls, axes: Mapping[str, tuple[str, float, float]], *, signed: bool = False
    ) -> PageScales:
        """Calibrate axes by units, step and offset; skip those without units."""
        made = {k: tools.Axis.calibrated(k, *one, signed=signed) for k, one in axes.items()}
        return cls({k: axis for k, axis in made.items() if axis.units})


def is_jeol(tags: Mapping[str, Any]) -> bool:
    """Return whether a page is from JEOL."""
    return str(tags.get("Make", "")).strip().startswith("JEOL")


def read_report(ifd: Ifd) -> Mapping[str, Any]:
    """Read the XML description of JEOL SightX; empty if unreadable."""
    text = re.sub(r"[\x00-\x08\x0b-\x1f]", "", ifd.description)
    with suppress(tools.CorruptFileError):
        report = plain_tree(parse_xml(text.encode(), ifd.source.file.path))
        if isinstance(report, Mapping):
            return report
    return {}


def read_calibration(page: PageFacts) -> tuple[PageScales, str]:
    """Return the scales of a page, and their source, from the first matching convention."""
    for where, read in WAYS.items():
        found = read(page)
        if found is not None:
            return found, where if found.axes or found.positions else "nothing"
    return PageScales(), "nothing"


def _imagej(page: PageFacts) -> PageScales | None:
    """Read ImageJ's scales: a unit in the description applies to the resolution.

    The unit of the resolution is that of y and x alone. For a spacing it would be a guess, which
    ``_in_micrometres`` would make depend on the size of pixels.
    """
    description = page.text("ImageDescription")
    if not description.startswith(IMAGEJ):
        return None
    pairs = parse_pairs(description, "=")
    named, told = _unit(pairs.get("unit", "")), page.resolution_unit
    steps = {name: page.step(name) for name in "yx"}
    if not named and told == "inch":
        steps = {name: 0.0 if step == 1 / IMAGEJ_IGNORES else step for name, step in steps.items()}
    if not named:
        told, steps = _in_micrometres(told, steps)
    unit = named or told
    across = {"z": abs(number_in(pairs, "spacing")), "t": abs(number_in(pairs, "finterval"))}
    steps = {**steps, **across}
    origins = {name: number_in(pairs, f"{name}origin") for name in steps}
    units = {
        "y": (named and _unit(pairs.get("yunit", ""))) or unit,
        "x": unit,
        "z": _unit(pairs.get("zunit", "")) or named,
        "t": _unit(pairs.get("tunit", "s")),
    }
    found = PageScales.of(
        {name: (units[name], step, 0.0 - origins[name] * step) for name, step in steps.items()}
    )
    return found._replace(axes={**found.axes, **_channels(page, pairs.get("channels", ""))})


def _channels(page: PageFacts, count: str) -> dict[str, tools.Axis]:
    """Return the axis of channels if the labels of planes are those of channels, in turns."""
    stored = page.tags.get("IJMetadata")
    labels = stored.get("Labels") if isinstance(stored, Mapping) else None
    n = int(count) if count.isdecimal() and len(count) < 6 else 0
    if not isinstance(labels, tuple) or n < 2 or len(labels) % n:
        return {}
    names = tuple(map(str, labels[:n]))
    if len({*names}) < n or "" in names or tuple(map(str, labels)) != names * (len(labels) // n):
        return {}
    return {"c": tools.Axis("c", labels=names)}


def _metamorph(page: PageFacts) -> PageScales | None:
    """Read the pixel sizes, and the positions and wavelengths of the planes of a stack."""
    stack = read_stack(page.ifd)
    if stack is None:
        return None
    axes = {}
    for name, (unit, places) in stack.axes.items():
        steps = name in page.sizes
        axis = (
            tools.Axis.calibrated(name, _unit(unit), float(places[0]))
            if steps
            else tools.Axis.at(name, unit, places)
        )
        if axis is not None:
            axes[name] = axis
    if stack.letter == "c":
        labels = tuple(f"{wave:g} nm" for wave in stack.wavelengths)
        axes["c"] = tools.Axis("c", labels=labels)
    return PageScales(axes)


def _lsm(page: PageFacts) -> PageScales | None:
    facts = page.tags.get("CZ_LSMINFO")
    if not isinstance(facts, Mapping):
        return None
    steps = {name: number_in(facts, f"VoxelSize{name.upper()}") for name in "xyz"}  # in m
    axes = {name: ("µm", shifted(step, 6), 0.0) for name, step in steps.items()}
    return PageScales.of(axes | {"t": ("s", number_in(facts, "TimeIntervall"), 0.0)})


def _digital_micrograph(page: PageFacts) -> PageScales | None:
    if not any(page.text(str(tag)) for tag in (65003, 65004, 65005)):
        return None
    axes = {}
    for k, name in enumerate(("x", "y", "frame")):
        units, offset, step = (page.tags.get(str(tag + k)) for tag in (65003, 65006, 65009))
        axes[name] = _unit(str(units or "")), number_in(step), 0.0 + number_in(offset)
    return PageScales.of(axes, signed=True)


def _eer(page: PageFacts) -> PageScales | None:
    facts = page.tags.get(eer.FACTS)
    return PageScales.of(eer.scales_of(facts)) if isinstance(facts, Mapping) else None


def _fei(page: PageFacts) -> PageScales | None:
    facts = page.tags.get("FEI_HELIOS", page.tags.get("FEI_SFEG"))
    if not isinstance(facts, Mapping):
        return None
    steps = {name: number_in(facts, "Scan", f"Pixel{side}") for name, side in SIDES.items()}
    if not all(steps.values()):  # camera images
        fields = {
            name: number_in(facts, "IRBeam", f"{f}FW") for name, f in zip("yx", "VH", strict=True)
        }
        sizes = {name: number_in(facts, "Image", f"Resolution{name.upper()}") for name in "yx"}
        steps = {name: fields[name] / sizes[name] if sizes[name] else 0.0 for name in "yx"}
    return PageScales.of({name: ("m", step, 0.0) for name, step in steps.items()})


def _zeiss(page: PageFacts) -> PageScales | None:
    facts = page.tags.get("CZ_SEM")
    if not isinstance(facts, Mapping):
        return None
    numbers = facts.get("")  # unnamed numbers in SI units
    step = number_in(numbers[3]) if isinstance(numbers, tuple) and len(numbers) > 3 else 0.0
    step *= ZEISS_WIDTH / page.sizes["x"]
    return PageScales.of(dict.fromkeys("yx", ("m", step, 0.0)))


def _jeol(page: PageFacts) -> PageScales | None:
    """Divide the camera's pixel size, the resolution, by magnification or camera length."""
    if not is_jeol(page.tags):
        return None
    report = page.report
    eos, lens = (part if isinstance(part, Mapping) else {} for part in map(report.get, PARTS))
    if eos.get("EosMode") != "eosTEM":
        return PageScales()
    mode, value = lens.get("ModeString"), number_in(lens, "SelectorValue")
    units, factor = "", 0.0
    if mode == "MAG" and value > 0:
        units, factor = "nm", 1e9 / value
    elif mode == "DIFF":
        length = value * LENGTHS.get(str(lens.get("SelectorUnitString")), 0.0)
        volts = number_in(report, "ElectronGun", "AccelerationVoltage")
        wave = wavelength(volts) if volts > 0 else 0.0
        units, factor = "1/nm", 1 / (length * wave) if length * wave > 0 else 0.0
    factor *= LENGTHS.get(page.resolution_unit, 0.0)
    return PageScales.of({name: (units, page.step(name) * factor, 0.0) for name in "yx"})


def _hamamatsu(page: PageFacts) -> PageScales | None:
    """Read the positions of all pixels along an axis, which are stored in the file."""
    ours = page.text("Artist").startswith("Copyright Hamamatsu")
    if not ours or not page.text("Software").startswith("HPD-TA"):
        return None
    axes: dict[str, tools.Axis] = {}
    positions: dict[str, Mapping[str, Any]] = {}
    for name, size in page.sizes.items():
        key, text = f"Scaling{name.upper()}", page.text("ImageDescription")
        units = re.search(rf'\b{key}Unit="([^"]+)"', text)
        place = re.search(rf'\b{key}ScalingFile="#(\d{{1,15}}),0*{size}"', text)
        if not units or not place:  # in pixels
            continue
        try:
            stored = read_exactly(page.ifd.source.file.path, 4 * size, int(place[1]), "a scale")
        except tools.DatasetError:  # another program may have rewritten the file without it
            continue
        points = np.frombuffer(stored, "<f4")
        axis = tools.Axis.at(name, units[1], points)
        if axis is not None:
            axes[name] = axis
        if (axis is None or axis.coordinates) and np.isfinite(points).all():
            positions[name] = {"units": units[1], "values": tuple(points.tolist())}
    return PageScales(axes, positions)


def _resolution(page: PageFacts) -> PageScales | None:
    """Use the resolution as a scale if it is too fine for screens and printers."""
    unit, steps = _in_micrometres(page.resolution_unit, {name: page.step(name) for name in "yx"})
    return PageScales.of({k: (unit, x, 0.0) for k, x in steps.items() if unit == "µm"})


def _in_micrometres(unit: str, steps: dict[str, float]) -> tuple[str, dict[str, float]]:
    """Convert steps to µm if they are too fine for screens and printers."""
    found = {name: step * MICROMETRES.get(unit, math.inf) for name, step in steps.items()}
    fine = all(step < FINEST_PRINT for step in found.values())
    return ("µm", found) if fine else (unit, steps)


WAYS = {
    "the description of ImageJ": _imagej,
    "tags 33628 to 33631 of MetaMorph": _metamorph,
    "tag 34412 of Zeiss LSM": _lsm,
    "tags 65003 to 65011 of Digital Micrograph": _digital_micrograph,
    f"tag {eer.ACQUISITION} of EER": _eer,
    "tag 34680 or 34682 of FEI": _fei,
    "tag 34118 of Zeiss": _zeiss,
    "the description of JEOL SightX": _jeol,
    "the description of Hamamatsu HPD-TA": _hamamatsu,
    "XResolution, YResolution and ResolutionUnit": _resolution,
}
"""Sources of scales, and their readers, which return None for other pages."""


def _unit(text: str) -> str:
    known = re.sub(r"\\u([0-9A-Fa-f]{4})", lambda match: chr(int(match[1], 16)), text).strip()
    return "" if known in NO_UNITS else UNITS.get(known, known)
