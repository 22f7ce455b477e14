"""Stained cells of a confocal microscope: an OME-TIFF set of several files."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dask_tiled.errors import require

PLANES, SIDE = 12, 256
PLANES_PER_FILE = 6
NAMESPACE = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
CHANNELS = {"nuclei": (461, 65535), "membranes": (520, 16711935), "spots": (617, -16776961)}
"""Emission wavelengths in nm, and colours: red, green, blue and alpha in 32 bits."""

HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<OME xmlns="{namespace}" UUID="{uuid}" Creator="dask-tiled samples">
<Instrument ID="Instrument:0"><Microscope Manufacturer="Simulated" Model="Confocal"/>
<Objective ID="Objective:0" Manufacturer="Simulated" Model="Plan Apo" NominalMagnification="63.0"
 LensNA="1.4" Immersion="Oil" WorkingDistance="0.14" WorkingDistanceUnit="mm"/></Instrument>
<Image ID="Image:0" Name="cells"><AcquisitionDate>2026-01-01T12:00:00</AcquisitionDate>
<InstrumentRef ID="Instrument:0"/><ObjectiveSettings ID="Objective:0" Medium="Oil"/>
<Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" SignificantBits="12" SizeX="{side}"
 SizeY="{side}" SizeZ="{planes}" SizeC="3" SizeT="1" PhysicalSizeX="0.2" PhysicalSizeXUnit="µm"
 PhysicalSizeY="0.2" PhysicalSizeYUnit="µm" PhysicalSizeZ="0.6" PhysicalSizeZUnit="µm">
"""
CHANNEL = """<Channel ID="Channel:0:{c}" Name="{name}" SamplesPerPixel="1" Color="{colour}"
 EmissionWavelength="{wavelength}" EmissionWavelengthUnit="nm" ContrastMethod="Fluorescence"/>
"""
PLANE = """<TiffData FirstC="{c}" FirstZ="{z}" FirstT="0" IFD="{ifd}" PlaneCount="1">
<UUID FileName="{name}">{uuid}</UUID></TiffData>
"""
TAIL = "</Pixels></Image></OME>"


def draw_cells() -> NDArray[np.uint16]:
    """Return the counts of channels and planes, (C, Z, Y, X)."""
    rng = np.random.default_rng(1)
    z, y, x = np.ogrid[:PLANES, :SIDE, :SIDE]
    nuclei, membranes, spots = np.zeros((3, PLANES, SIDE, SIDE))
    for at_z, at_y, at_x, size in rng.uniform((3, 20, 20, 14), (9, 236, 236, 24), (22, 4)):
        # A plane is as thick as three pixels: the cells are round.
        radius = np.sqrt((3 * (z - at_z)) ** 2 + (y - at_y) ** 2 + (x - at_x) ** 2) / size
        nuclei += 300 * np.exp(-((radius / 0.5) ** 4))
        membranes += 250 * np.exp(-(((radius - 1) / 0.09) ** 2))
    for at_z, at_y, at_x in rng.uniform((2, 8, 8), (10, 248, 248), (90, 3)):
        away = (3 * (z - at_z)) ** 2 + (y - at_y) ** 2 + (x - at_x) ** 2
        spots += 500 * np.exp(-away / 5)
    mean = np.stack([nuclei, membranes, spots]) + 8
    # Rounded, so that results do not depend on the last bit.
    return rng.poisson(np.rint(64 * mean) / 64).astype(np.uint16)


def write_cells(folder: Path) -> None:
    """Write the set; each of its files has the whole OME-XML."""
    places = [
        (f"cells_{name}_{k // PLANES_PER_FILE}.ome.tif", c, k)
        for c, name in enumerate(CHANNELS)
        for k in range(PLANES)
    ]
    tifffile = require("tifffile", "tiff", folder)
    inner = "".join(
        CHANNEL.format(c=c, name=name, wavelength=wavelength, colour=colour)
        for c, (name, (wavelength, colour)) in enumerate(CHANNELS.items())
    )
    inner += "".join(
        PLANE.format(c=c, z=k, ifd=k % PLANES_PER_FILE, name=name, uuid=_uuid_of(name))
        for name, c, k in places
    )
    counts = draw_cells()
    for name in dict.fromkeys(name for name, _, _ in places):
        head = HEAD.format(namespace=NAMESPACE, uuid=_uuid_of(name), side=SIDE, planes=PLANES)
        pages = np.stack([counts[c, k] for of, c, k in places if of == name])
        with tifffile.TiffWriter(folder / name, byteorder="<") as writer:
            description: bytes | None = (head + inner + TAIL).encode()
            for page in pages:
                writer.write(page, description=description, metadata=None, software=False)
                description = None


def _uuid_of(name: str) -> str:
    return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}"
