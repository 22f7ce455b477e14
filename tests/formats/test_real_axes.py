"""Axes of every real file are those that independent readers see, or else what its bytes say."""

import importlib
import math
import os
import re
import struct
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pint
import pytest
from conftest import DATA
from manifest import manifest

from dask_tiled import describe

pytestmark = [
    pytest.mark.usefixtures("synchronous"),
    pytest.mark.filterwarnings("ignore"),  # of what other readers leave open, or guess
]


class Told(NamedTuple):
    """What a reader says of an axis; None where it says nothing."""

    name: str | None
    size: int
    scale: float | None = None
    offset: float | None = None
    units: str | None = None


SPELLED = {"A^-1": "1/angstrom", "A": "angstrom", "[]": "", "meters": "m", "unknown": ""}


@cache
def si(units):
    """Give how much of the base unit of SI a unit is, and that."""
    one = pint.get_application_registry()(SPELLED.get(units, units))
    base = pint.Quantity(one).to_base_units()
    return base.magnitude, f"{base.units}"


def differences(desc, told):
    """List what is not as another reader sees it, which may leave out axes of length one."""
    axes = list(zip(desc.axes, desc.shape, strict=True))
    if len(told) < len(axes):
        axes = [(axis, size) for axis, size in axes if size != 1]
    sizes = [size for _, size in axes]
    if sizes != [one.size for one in told]:
        return [f"{sizes} elements, {[one.size for one in told]}"]
    found = []
    for (axis, _), one in zip(axes, told, strict=True):
        known, (factor, unit) = one.units is not None, si(axis.units)
        other, other_unit = si(one.units) if known else (factor, unit)
        scale = factor * axis.scale
        if one.name and one.name != axis.name:
            found.append(f"{axis}: named {one.name}")
        if unit != other_unit:
            found.append(f"{axis}: in {one.units}")
        if one.scale is not None and not math.isclose(other * one.scale, scale, rel_tol=1e-6):
            found.append(f"{axis}: steps of {one.scale} {one.units}")
        start = axis.offset * factor if one.offset is None else one.offset * other
        if abs(start - axis.offset * factor) > 1e-3 * abs(scale):
            found.append(f"{axis}: from {one.offset} {one.units}")
    return found


# The readers: each gives the pictures of a file, as options that describe them here, and their axes


def rosettasciio(plugin, names=None, *, numbered=False, parts=False):
    """Read with RosettaSciIO, with our names for those that it gives to axes.

    Without ``names`` they are left out: it makes them up for files that have none. ``numbered``
    ones have several pictures, and ``parts`` of pixels may be an axis.
    """

    def read(path):
        signals = importlib.import_module(f"rsciio.{plugin}").file_reader(str(path))
        for number, signal in enumerate(signals):
            axes = told_by_rosettasciio(signal, names)
            fields = signal["data"].dtype.names if parts else None
            axes += [Told("s", len(fields))] if fields else []
            yield {"dataset": number} if numbered else {}, axes

    return read


def told_by_rosettasciio(signal, names=None):
    axes = []
    for axis in signal["axes"]:
        name = None if names is None else names.get(axis.get("name"), axis.get("name"))
        scale, offset = axis.get("scale"), axis.get("offset")
        axes.append(Told(name, int(axis["size"]), scale, offset, axis["units"] or ""))
    return axes


def rosettasciio_tia(path):
    """Read the elements of a ``.ser`` file, or those of all that an ``.emi`` file belongs to."""
    numbered = path.suffix == ".emi"
    return rosettasciio("tia", numbered=numbered)(path)


def rosettasciio_emd(path):
    """Read pictures of Velox by their titles, its spectra in their order; of others all."""
    known = describe(path).metadata["hdf5"]["datasets"]
    spectra = [{"dataset": place} for place in known if "/Spectrum/" in place]
    for kind in ("images", "single_spectrum"):
        options = {"select_type": kind} if "/Data/" in next(iter(known)) else {}
        for signal in importlib.import_module("rsciio.emd").file_reader(str(path), **options):
            title = {"dataset": signal["metadata"]["General"]["title"]}
            found = title if kind == "images" else spectra.pop(0)
            yield found if options else {}, told_by_rosettasciio(signal, {})
        if not options:
            return


def rosettasciio_nexus(path):
    """Read the group whose signal opens."""
    group = os.path.dirname(describe(path).metadata["hdf5"]["dataset"])
    reader = importlib.import_module("rsciio.nexus").file_reader
    for signal in reader(str(path), dataset_path=group):
        yield {}, told_by_rosettasciio(signal, {})


def pixels_of_ncempy(sizes, told, *, in_pixels=False):
    facts = zip(sizes, *(told[f"pixel{key}"] for key in ("Size", "Origin", "Unit")), strict=True)
    return [
        Told(None, size, step, -origin * step if in_pixels else origin, units)
        for size, step, origin, units in facts
    ]


def ncempy_dm(path):
    with importlib.import_module("ncempy.io.dm").fileDM(str(path)) as file:
        for number in range(file.numObjects - int(file.thumbnail)):
            told = file.getDataset(number)
            yield {"dataset": number}, pixels_of_ncempy(told["data"].shape, told, in_pixels=True)


def ncempy_ser(path):
    told = importlib.import_module("ncempy.io.ser").serReader(str(path))
    *nav, size = told["data"].shape
    if "pixelSize" in told:
        nav, sizes = nav[:-1], (nav[-1], size)
        yield {}, [*(Told(None, n) for n in nav), *pixels_of_ncempy(sizes, told)]
    else:
        keys = ("DimensionSize", "CalibrationDelta", "CalibrationOffset", "Units")
        scan = [Told(None, *map(one.get, keys)) for one in told["scanCalibration"][::-1]]
        yield {}, [*scan, Told(None, size, told["eDelta"], told["eOffset"], "eV")]


def ncempy_mrc(path):
    told = importlib.import_module("ncempy.io.mrc").mrcReader(str(path))
    pairs = zip(told["data"].shape, told["pixelSize"], strict=True)
    yield {}, [Told(None, size, step, None, told["pixelUnit"]) for size, step in pairs]


def ncempy_emd(path):
    with importlib.import_module("ncempy.io.emd").fileEMD(str(path)) as file:
        for group in file.list_emds:
            pixels, dims = file.get_emdgroup(group)
            pairs = zip(pixels.shape, dims, strict=True)
            axes = [Told(name, n, v[1] - v[0], v[0], units) for n, (v, name, units) in pairs]
            yield {"dataset": f"{group.name}/data"}, axes


def ncempy_velox(path):
    """Frames are its last axis, and it leaves out offsets."""
    with importlib.import_module("ncempy.io.emdVelox").fileEMDVelox(str(path)) as file:
        for number, group in enumerate(file.list_data):
            pixels, told = file.get_dataset(number)
            facts = zip("yx", pixels.shape, told["pixelSize"], told["pixelUnit"], strict=False)
            frame = [Told(name, size, step, None, units) for name, size, step, units in facts]
            yield {"dataset": group.name}, [*(Told(None, n) for n in pixels.shape[2:]), *frame]


def mrcfile(path):
    """Give the axes of the cell that those of the array run along."""
    with importlib.import_module("mrcfile").open(path) as file:
        along = [int(file.header[key]) - 1 for key in ("maps", "mapr", "mapc")]
        starts = [int(file.header[key]) for key in ("nzstart", "nystart", "nxstart")]
        steps = [float(file.voxel_size["xyz"[axis]]) for axis in along]
        facts = zip(along, file.data.shape, steps, starts, strict=True)
        yield {}, [Told("xyz"[axis], n, step, step * at, "Å") for axis, n, step, at in facts]


def tifffile(path):
    """Give sizes and names: tifffile takes no resolution for a scale."""
    with importlib.import_module("tifffile").TiffFile(path) as file:
        series = file.series[0]
        pairs = zip(series.axes, series.shape, strict=True)
        yield {}, [Told("frame" if name == "I" else name.lower(), n) for name, n in pairs]


def ome_types(path):
    """Read the image that the file opens, of those that it lists."""
    facts = describe(path).metadata["ome_tiff"]
    images = parsed_ome(facts["xml_path"]).images
    assert facts["datasets"] == tuple(image.name or "" for image in images)
    pixels = images[facts["dataset"]].pixels
    axes = []
    for letter in "tczyx":
        key = "time_increment" if letter == "t" else f"physical_size_{letter}"
        scale, units = (getattr(pixels, name, None) for name in (key, f"{key}_unit"))
        size = getattr(pixels, f"size_{letter}")
        axes.append(Told(letter, size, scale or 1.0, 0.0, units.value if scale else ""))
    yield {"squeeze": False}, axes


@cache
def parsed_ome(path):
    module = importlib.import_module("ome_types")
    return module.from_xml(path) if path.endswith(".ome") else module.from_tiff(path)


def nibabel(path):
    """Give the zooms; where the volume lies in space is in the affine."""
    header = importlib.import_module("nibabel").load(path).header
    space, time = header.get_xyzt_units()
    units = [*[space] * 3, "s" if time == "sec" else time]
    pairs = zip("xyzt", header.get_data_shape(), header.get_zooms(), units, strict=False)
    yield {}, [Told(name, size, float(step), None, unit) for name, size, step, unit in pairs][::-1]


def pynrrd(path):
    """Give the lengths of the steps in space; other axes have none."""
    header = importlib.import_module("nrrd").read_header(str(path))
    steps = [math.hypot(*step) for step in header["space directions"]]
    steps = [None if math.isnan(step) else step for step in steps]
    pairs = zip(header["sizes"], steps, strict=True)
    yield {}, [Told(None, int(size), step) for size, step in pairs][::-1]


SCAN_NAMES = {"y": "scan_y", "x": "scan_x", "dy": "y", "dx": "x"}
TIFF_NAMES = {"height": "y", "width": "x", "depth": "z", "image series": "frame"}
TIFF_NAMES |= {"time": "t", "color|em-wavelength|channel": "c"}

PEERS = {
    "rsciio.blockfile": (rosettasciio("blockfile", SCAN_NAMES), "*.blo"),
    "rsciio.digitalmicrograph": (rosettasciio("digitalmicrograph", numbered=True), "*.dm[34]"),
    "ncempy.dm": (ncempy_dm, "*.dm[34]"),
    "rsciio.empad": (rosettasciio("empad", {"height": "y", "width": "x"}), "*.xml"),
    "rsciio.emd": (rosettasciio_emd, "*/hdf5/*.emd", "hdf5/emd/*"),
    "rsciio.hspy": (rosettasciio("hspy", {}), "*hspy/*"),
    "rsciio.nexus": (rosettasciio_nexus, "*.nxs", "more/hdf5/*.hdf5"),
    "ncempy.emd": (ncempy_emd, "hdf5/emd/*.emd", "*_spectrum.emd"),
    "ncempy.emdVelox": (ncempy_velox, "*/hdf5/[!e]*.emd"),
    "mrcfile": (mrcfile, "*.mrc", "*.map*"),
    "rsciio.mrc": (rosettasciio("mrc"), "*.mrc", "*.map*"),
    "ncempy.mrc": (ncempy_mrc, "*.mrc", "*.map*"),
    "rsciio.quantumdetector": (rosettasciio("quantumdetector", {}), "*.mib"),
    "nibabel": (nibabel, "nifti/*"),
    "rsciio.numpy": (rosettasciio("numpy", {}), "*.npy"),
    "pynrrd": (pynrrd, "*.nrrd", "*.nhdr"),
    "ome-types": (ome_types, "ometiff/*"),
    "rsciio.ripple": (rosettasciio("ripple", {}), "*.rpl"),
    "rsciio.tia": (rosettasciio_tia, "*.ser", "*.emi"),
    "ncempy.ser": (ncempy_ser, "*.ser"),
    "rsciio.tiff": (rosettasciio("tiff", TIFF_NAMES, parts=True), "*.tif*"),
    "tifffile": (tifffile, "*.tif*"),
    "rsciio.tvips": (rosettasciio("tvips", {"dy": "y", "dx": "x"}), "*_000.tvips"),
}
"""Who reads which files."""


# Where they are wrong: what the bytes of the file say in their place


def de_scan(path, told):
    """Direct Electron's ``_info.txt`` has the scales; cells of its headers are of -10 Å."""
    (text,) = (one.read_text() for one in path.parent.glob("*_info.txt"))
    said = dict(re.findall(r"^(.*\S) += (.*)$", text, re.MULTILINE))
    sizes = [int(said[f"Scan - Size {name}"]) for name in "YX"]
    steps = [float(said[f"Specimen Pixel Size {name} (nanometers)"]) for name in "YX"]
    scan = [Told(f"scan_{n}", *one, 0, "nm") for n, *one in zip("yx", sizes, steps, strict=True)]
    steps = [float(said[f"Diffraction Pixel Size {name}"]) for name in "YX"]
    sizes = [one.size for one in told[-2:]]
    frame = [Told(n, *one, 0, "1/nm") for n, *one in zip("yx", sizes, steps, strict=True)]
    kinds = {"movie": scan + frame, "final": frame}
    return kinds.get(path.stem.rpartition("_")[2], scan)


def mrc_header(path, _told):
    """Where the cell begins, and which of its axes is which."""
    numbers = struct.unpack_from("<10i6f3i", path.read_bytes())
    axes = []
    for size, start, along in zip(numbers[:3], numbers[4:7], numbers[16:19], strict=True):
        step = numbers[9 + along] / numbers[6 + along]
        axes.append(Told("xyz"[along - 1], size, step, start * step, "Å"))
    return axes[::-1]


def ser_header(path, told):
    """Calibrations as they are stored: of the first element, or of the scan of spectra.

    An offset is that of one of the positions. Of images the last row is the first in the file.
    """
    content = path.read_bytes()
    (table,) = struct.unpack_from("<I", content, 22)
    (first,) = struct.unpack_from("<I", content, table)
    if content[6:8] == b"\x20\x41":  # spectra
        at, scan = 30, []
        for _ in told[:-1]:
            size, offset, step, place, length = struct.unpack_from("<IddiI", content, at)
            scan.append(Told(None, size, step, offset - place * step, "m"))
            at += 28 + length
            at += 4 + struct.unpack_from("<I", content, at)[0]
        return [*scan[::-1], told[-1]]
    x, step_x, at_x, y, step_y, at_y = struct.unpack_from("<ddiddi", content, first)
    emi = path.with_name(path.stem.rpartition("_")[0] + ".emi").read_bytes()
    units = "1/m" if re.search(rb"<Label>Mode</Label><Value> TEM [^<]*Diffraction", emi) else "m"
    rows, columns = (one.size for one in told[-2:])
    last = y + (rows - 1 - at_y) * step_y
    return [
        *told[:-2],
        Told("y", rows, -step_y, last, units),
        Told("x", columns, step_x, x - at_x * step_x, units),
    ]


def spectrum_image(path, told):
    """Digital Micrograph stores the scan last, and calls it one of spectra."""
    assert "Spectrum image".encode("utf-16-le") in path.read_bytes()
    return told[1:] + told[:1]


def no_centre(path, told):
    """The microscope measured pixels, and no centre of the detector."""
    (text,) = (one.read_text() for one in path.parent.glob("*.xml"))
    measured = text[text.index("<iom_measurements>") : text.index("</iom_measurements>")]
    assert "calibrated_pixelsize" in measured
    assert not re.search("cent(er|re)|origin|offset", measured)
    return [one._replace(offset=0) for one in told]


def frames_of_velox(_path, told):
    """Of a picture of two frames it gives the first; ncempy sees both."""
    return [Told("frame", 2), *told]


def centimetres(path, told):
    """The resolution is finer than that of any screen, and its unit is the centimetre."""
    with importlib.import_module("tifffile").TiffFile(path) as file:
        tags = file.pages[0].tags
        assert tags["ResolutionUnit"].value == 3
        steps = [np.divide(*tags[f"{k}Resolution"].value[::-1]) for k in "YX"]
    return [one._replace(scale=k, units="cm") for one, k in zip(told, steps, strict=True)]


def streak(path, told):
    """Positions lie behind the page: those in time are not even, and are no scale."""
    content = path.read_bytes()
    axes = []
    for one, name in zip(told, "YX", strict=True):
        place = re.search(rf'Scaling{name}ScalingFile="#(\d+),(\d+)"'.encode(), content)
        at = np.frombuffer(content, "<f4", int(place[2]), int(place[1])).astype(float)
        step = (at[-1] - at[0]) / (len(at) - 1)
        even = np.allclose(at, at[0] + step * np.arange(len(at)), rtol=0, atol=0.1 * step)
        axes.append(
            one._replace(scale=step, offset=at[0]) if even else Told("y", len(at), 1, 0, "")
        )
    return axes


def companion(path, _told):
    """The image is that of the companion file, of which the member holds some planes."""
    (text,) = (one.read_text() for one in path.parent.glob("*.companion.ome"))
    sizes = {name.lower(): int(n) for name, n in re.findall(r'Size([XYZCT])="(\d+)"', text)}
    return [Told(name, sizes[name]) for name in "tczyx" if sizes[name] > 1]


def camera(path, told):
    """The times of these frames are the same; pixels are those of the camera, in nm, always."""
    content = b"".join(part.read_bytes() for part in sorted(path.parent.glob("*.tvips")))
    (header,) = struct.unpack_from("<I", content, 48)
    step = header + 2 * told[1].size * told[2].size
    times = {content[k + 4 : k + 12] for k in range(256, len(content), step)}
    assert len(times) == 1
    return [Told("frame", told[0].size, 1, 0, ""), *(one._replace(units="nm") for one in told[1:])]


WRONG = {
    ("rsciio.digitalmicrograph", "*MonarcCL*"): spectrum_image,
    ("ncempy.dm", "*MonarcCL*"): spectrum_image,
    ("rsciio.empad", "*"): no_centre,
    ("rsciio.emd", "*Test_SI*"): frames_of_velox,
    ("rsciio.mrc", "*.map"): mrc_header,
    ("ncempy.mrc", "*EMD-3001.map"): mrc_header,
    ("*mrc*", "mrc/rsciio/*"): de_scan,
    ("rsciio.tia", "*_acquire*"): ser_header,
    ("rsciio.tia", "*_preview*"): ser_header,
    ("rsciio.tia", "*-spectrum_image*"): ser_header,
    ("ncempy.ser", "*_acquire_*"): ser_header,
    ("ncempy.ser", "*_preview_*"): ser_header,
    ("ncempy.ser", "*-spectrum_image*"): ser_header,
    ("rsciio.tiff", "tiff/series_181003/*"): centimetres,
    ("rsciio.tiff", "*_streak_*"): streak,
    ("rsciio.tiff", "*companion/*"): companion,
    ("tifffile", "*companion/*"): companion,
    ("rsciio.tvips", "*"): camera,
}
"""What is right in place of what a reader says: its docstring tells why."""

UNREAD = {
    ("ncempy.dm", "*/test-8.*"): (OSError, "23"),
    ("ncempy.dm", "*/test-14.*"): (OSError, "14"),
    ("ncempy.dm", "*/test-23.*"): (OSError, "23"),
    ("ncempy.dm", "*_packed_*"): (OSError, "27"),
    ("rsciio.mrc", "*.map.*"): (ValueError, "mode"),
    ("ncempy.mrc", "*.map.*"): ((OSError, ValueError), "argument|too big"),
    ("rsciio.quantumdetector", "*RAW.mib"): (NotImplementedError, "RAW"),
    ("rsciio.numpy", "*-objarr.npy"): (ValueError, "Object"),
    ("ncempy.ser", "*no_AcquireDate*"): (TypeError, "None"),
    ("rsciio.tiff", "*_planar.tif"): (ValueError, "last dimension"),
    ("tifffile", "*i_nofilename*"): (KeyError, "FileName"),
    ("rsciio.tiff", "*i_nofilename*"): (KeyError, "FileName"),
}
"""What readers cannot read; it opens here, but for arrays of Python's objects."""

MADE = [*DATA.glob("ometiff/[!e]_*/*.ome*"), *DATA.glob("ometiff/e_*/e_t0[01]*.ome*")]
FILES = [row["file"] for row in manifest()] + [row["file"] for row in manifest(folder="more/")]
FILES += sorted(str(path.relative_to(DATA)) for path in MADE)  # of 59 that are alike eleven
CASES = [
    (file, peer)
    for peer, (_, *patterns) in PEERS.items()
    for file in FILES
    if any(fnmatch(file, pattern) for pattern in patterns)
]


def excepted(table, peer, file):
    """Find what stands in a table for a pair, or None."""
    keys = [key for key in table if fnmatch(peer, key[0]) and fnmatch(file, key[1])]
    assert len(keys) < 2
    return table[keys[0]] if keys else None


@pytest.mark.parametrize(("file", "peer"), CASES or [pytest.param(None, None, id="no data")])
def test_axes_are_those_that_others_see(data, file, peer):
    """Or, where they are wrong, what the bytes of the file say; a needless exception fails."""
    read = PEERS[peer][0]
    unread, right = (excepted(table, peer, file) for table in (UNREAD, WRONG))
    if unread:
        with pytest.raises(unread[0], match=unread[1]):
            list(read(data / file))
        return
    found, needed = [], False
    for options, told in read(data / file):
        desc = describe(data / file, **options)
        wrong = differences(desc, told)
        needed = needed or bool(wrong)
        if right and wrong:
            wrong = differences(desc, right(Path(desc.files[0].path), told))
        found.append(wrong)
    assert found
    assert not any(found), found
    assert needed == bool(right)


@pytest.mark.usefixtures("data")
def test_every_file_is_read_by_another():
    """But for those that stand beside others, and MetaImage, which is read by hand elsewhere."""
    alone = {file for file in FILES if not any(file == one for one, _ in CASES)}
    beside = ("*.hdr", "*.raw", "*_info.txt", "*_00[12].tvips", "*.mha")
    assert alone == {file for file in FILES if any(fnmatch(file, one) for one in beside)}


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("table", [WRONG, UNREAD], ids=["wrong", "unread"])
def test_exceptions_are_of_files_that_are_there(table):
    for peer, pattern in table:
        assert any(fnmatch(one, peer) and fnmatch(file, pattern) for file, one in CASES)
