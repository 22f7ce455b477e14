"""H5OINA of Oxford Instruments: patterns, spectra, electron images and maps exported by AZtec.

Layout facts: "Oxford Instruments NanoAnalysis HDF5 File Specification", versions 1.0 to 8.0
(https://github.com/oinanoanalysis/h5oina). Slices such as ``/1`` have a group for each technique,
with ``Data`` and a ``Header``. The first axis of all data is the scan position, row by row; a
second axis may have length 1. The header holds the numbers of positions along x and y, and the
steps in µm; a line has one position along y.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_tiled.formats.hdf5.attributes import number
from dask_tiled.formats.hdf5.convention import Calibration, Convention, Meant, Scan
from dask_tiled.formats.hdf5.datasets import Found, Picture
from dask_tiled.formats.hdf5.tree import BROKEN, Tree
from dask_tiled.model.axes import Axis

KINDS = (
    r"/EBSD/Data/Unprocessed Patterns",
    r"/EBSD/Data/Processed Patterns",
    r"/EDS\d*/Data/Spectrum",
    r"/Electron Image/Data/(SE|BSE|FSE)/[^/]+",
    r"/EDS\d*/Data/[^/]+/[^/]+",
    r"",
)
"""Listing order: raw patterns, background-corrected patterns, spectra, images, element maps, all
others."""
OF_FILE = "Manufacturer", "Software Version", "Format Version"


class H5oina(Convention):
    """H5OINA, all versions."""

    name = "H5OINA"
    instrument = (
        ("beam_energy", "*Header/Beam Voltage", "kV"),
        ("magnification", "*Header/Magnification"),
        ("working_distance", "*Header/Working Distance", "mm"),
        ("stage_x", "*Header/Stage Position/X", "mm"),
        ("stage_y", "*Header/Stage Position/Y", "mm"),
        ("stage_z", "*Header/Stage Position/Z", "mm"),
        ("tilt_alpha", "*Header/Stage Position/Tilt", "rad"),
        ("rotation", "*Header/Stage Position/Rotation", "rad"),
        ("exposure_time", "*Header/Camera Exposure Time", "ms"),
        ("dwell_time", "*Header/Dwell Time", "us"),
        ("date", "*Header/Acquisition Date"),
    )

    def meant(self, tree: Tree, found: Found) -> Meant:
        """List all data with a value, a spectrum or a frame for each position."""
        stored = [one for one in found.pictures.values() if "/Data/" in one.path]
        counts = {one: math.prod(_cells(tree, one)) for one in set(map(_header, stored))}
        ranked: list[tuple[int, Picture]] = []
        for one in stored:
            if counts[_header(one)] == one.shape[0]:
                rank = next(k for k, kind in enumerate(KINDS) if re.search(f"{kind}$", one.path))
                flat = len(one.shape) == 1
                shape, order = ((*one.shape, 1), (1, 0)) if flat else (one.shape, ())
                title = posixpath.basename(one.path)
                ranked.append((rank, one._replace(shape=shape, order=order, title=title)))
        ranked.sort(key=lambda pair: pair[0])
        return Meant("Data of H5OINA", [one for _, one in ranked])

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:
        """Read the energies of spectra; patterns have no scale."""
        if not math.prod(_cells(tree, _header(picture))):
            return None
        axes = [Axis("")] * len(picture.shape)
        if re.search(f"{KINDS[2]}$", picture.path):
            step, start = _values(tree, _header(picture), "Channel Width", "Start Channel")
            axes[-1] = Axis.calibrated("Energy", "eV", step, start)
        return Calibration(tuple(axes), max(1, len(axes) - 1))

    def scan(self, tree: Tree, picture: Picture, frames: int) -> Scan | None:
        """Read the shape and steps of the scan."""
        shape = _cells(tree, _header(picture))
        if math.prod(shape) != frames:
            return None
        steps = _values(tree, _header(picture), "Y Step", "X Step")
        axes = (Axis.calibrated(f"scan_{n}", "µm", s) for n, s in zip("yx", steps, strict=True))
        told_by = f"Y Cells and X Cells in {_header(picture)}"
        return Scan(shape, told_by, (*axes,)[-len(shape) :], flat=picture.shape[1:] == (1,))

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:
        """Return the header of the technique, and attributes of the file."""
        header = _header(picture)
        return {"/": OF_FILE, header: ()} if math.prod(_cells(tree, header)) else {}


def _header(picture: Picture) -> str:
    technique, data, _ = picture.path.partition("/Data/")
    return f"{technique}/Header" if data else ""


def _cells(tree: Tree, header: str) -> tuple[int, ...]:
    """Return the shape of the scan; (0,) if unknown."""
    rows, columns = map(int, _values(tree, header, "Y Cells", "X Cells")) if header else (0, 0)
    return (max(0, rows), max(0, columns))[rows == 1 :]


def _values(tree: Tree, header: str, *names: str) -> list[float]:
    """Read numbers of a header; 0 for missing ones."""
    return [_value(tree, f"{header}/{name}") for name in names]


def _value(tree: Tree, path: str) -> float:
    try:
        found = tree.look(tree.root, path)
        return number(np.asarray(tree.read(found)), 0.0) if getattr(found, "size", 0) == 1 else 0.0
    except BROKEN:  # the pixels may be readable
        return 0.0
