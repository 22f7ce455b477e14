"""Scales of TIFF files: those of vendors and of ImageJ, and no dots per inch of screens."""

import warnings

import numpy as np
import pytest
import tifffile
from rsciio.tiff import file_reader

from dask_tiled import describe
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")

ALONG = {"height": "y", "width": "x", "image series": "frame", "depth": "z"}
UNITS = {"1 / nm": "1/nm", None: "", "inch": "", "cm": ""}


def theirs(path, **options):
    """Give the axes that RosettaSciIO reads: units, scale and offset by our names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of axes that it makes even
        (found, *_) = file_reader(path, **options)
    return {
        ALONG[axis["name"]]: (
            UNITS.get(axis["units"], axis["units"]),
            axis["scale"],
            axis["offset"],
        )
        for axis in found["axes"]
        if axis["name"] in ALONG
    }


def scales(path, **options):
    """Give the axes that have units."""
    desc = describe(path, **options)
    return {axis.name: (axis.units, axis.scale, axis.offset) for axis in desc.axes if axis.units}


def write(path, frames=None, **options):
    """Write a file without what tifffile says of itself."""
    frames = counting_frames((5, 7), "u1") if frames is None else frames
    options = {"photometric": "minisblack", "metadata": None, **options}
    tifffile.imwrite(path, frames, **options)
    return path


def test_positions_that_are_not_even_are_metadata(data):
    """RosettaSciIO makes them even unless it is asked for what is there."""
    path = data / "more/tiff/test_hamamatsu_streak_SCAN.tif"
    found = describe(path).metadata["tiff"]["positions"]
    assert found.keys() == {"y"}
    assert found["y"]["units"] == "ps"
    (other,) = file_reader(path, hamamatsu_streak_axis_type="data")
    np.testing.assert_array_equal(found["y"]["values"], other["axes"][0]["axis"])


# Files that tifffile writes


@pytest.mark.parametrize("unit", ["INCH", "CENTIMETER", "NONE"])
@pytest.mark.parametrize("dpi", [1, 64, 72, 96, 150, 300, 600, 1200, 2400, 4800, 25400, 1e6])
def test_resolutions(tmp_path, dpi, unit):
    """As fine as no screen, scanner or printer, they are scales."""
    pixels = dpi / 2.54 if unit == "CENTIMETER" else dpi
    path = write(tmp_path / "a.tif", resolution=(pixels, pixels), resolutionunit=unit)
    known = {"INCH": "inch", "CENTIMETER": "cm"}.get(unit)
    if known and dpi > 5080:
        assert scales(path) == {n: (known, pytest.approx(1 / pixels), 0) for n in "yx"}
    else:
        assert scales(path) == {}
    facts = describe(path).metadata["tiff"]
    assert facts["tags"]["XResolution"] == facts["tags"]["YResolution"]
    where = "XResolution, YResolution and ResolutionUnit"
    assert facts["scales_from"] == (where if scales(path) else "nothing")


@pytest.mark.parametrize("dpi", [72, 100_000])
def test_without_a_unit_the_resolution_is_per_inch(tmp_path, dpi):
    path = write(tmp_path / "a.tif", resolution=(dpi, dpi), resolutionunit="INCH")
    with tifffile.TiffFile(path, mode="r+") as file:
        tag = file.pages[0].tags["ResolutionUnit"]
        at, order = tag.offset, file.byteorder
    content = bytearray(path.read_bytes())
    content[at : at + 2] = (297).to_bytes(2, {"<": "little", ">": "big"}[order])  # another tag
    path.write_bytes(content)
    assert scales(path) == ({} if dpi == 72 else dict.fromkeys("yx", ("inch", 1e-5, 0)))


@pytest.mark.parametrize("unit", ["", "inch", "micron", "nm"])
def test_imagej_says_what_its_resolution_is(tmp_path, unit):
    """72 dpi is a scale only if the unit is named; ImageJ ignores it otherwise."""
    facts = {"unit": unit} if unit else {}
    options = {"resolution": (72, 72), "resolutionunit": "INCH", "imagej": True, "metadata": facts}
    path = write(tmp_path / "a.tif", **options)
    known = {"micron": "µm"}.get(unit, unit)
    assert scales(path) == (dict.fromkeys("yx", (known, 1 / 72, 0)) if unit else {})
    if unit == "micron":
        assert scales(path) == theirs(path)


def digital_micrograph(stack=True, scale=0.5):
    """Give the tags of Digital Micrograph."""
    units, offsets, steps = ("µm", "nm", "s"), (-3.0, 4.0, 7.0), (scale, 2 * scale, 2.5)
    tags = []
    for k in range(3 if stack else 2):
        text = units[k].encode() + b"\0"
        tags.append((65003 + k, 2, len(text), text, True))
        tags.append((65006 + k, 12, 1, offsets[k], True))
        tags.append((65009 + k, 12, 1, steps[k], True))
    return sorted(tags)


@pytest.mark.parametrize("frames", [1, 3])
def test_digital_micrograph(tmp_path, frames):
    pixels = counting_frames((frames, 5, 7), "f4")
    options = {"extratags": digital_micrograph(), "resolution": (72, 72), "resolutionunit": 2}
    path = write(tmp_path / "a.tif", pixels, **options)
    expected = {"frame": ("s", 2.5, 7), "y": ("nm", 1, 4), "x": ("µm", 0.5, -3)}
    if frames == 1:
        del expected["frame"]
    assert scales(path) == theirs(path) == expected
    assert "Digital Micrograph" in describe(path).metadata["tiff"]["scales_from"]


def test_vendors_scales_of_a_pyramid(tmp_path):
    path = tmp_path / "a.tif"
    frame = counting_frames((64, 96), "u2")
    with tifffile.TiffWriter(path) as writer:
        options = {"metadata": None, "photometric": "minisblack"}
        writer.write(frame, subifds=1, extratags=digital_micrograph(stack=False), **options)
        writer.write(frame[::2, ::2], subfiletype=1, **options)
    assert scales(path, level=1) == {"y": ("nm", 2, 4), "x": ("µm", 1, -3)}


def test_digital_micrograph_backwards(tmp_path):
    tags = digital_micrograph(stack=False, scale=-0.5)
    path = write(tmp_path / "a.tif", extratags=tags)
    assert scales(path) == theirs(path) == {"y": ("nm", -1, 4), "x": ("µm", -0.5, -3)}


@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf])
def test_scales_that_cannot_be_are_left_out(tmp_path, scale):
    path = write(tmp_path / "a.tif", extratags=digital_micrograph(stack=False, scale=scale))
    assert scales(path) == {}


FEI = {
    "a scan": ("[Scan]\nPixelWidth=2e-9\nPixelHeight=3e-9\n", (3e-9, 2e-9)),
    "a camera": (
        "[IRBeam]\nHFW=0.2\nVFW=0.1\n[Image]\nResolutionX=1000\nResolutionY=400\n",
        (2.5e-4, 2e-4),
    ),
    "a camera without fields": ("[IRBeam]\nHFW=\nVFW=\n[Image]\nResolutionX=0\n", None),
    "no sections": ("Scan=3\n", None),
    "no numbers": ("[Scan]\nPixelWidth=many\nPixelHeight=-\n", None),
}


@pytest.mark.parametrize("tag", [34680, 34682])
@pytest.mark.parametrize("name", FEI)
def test_fei(tmp_path, name, tag):
    """RosettaSciIO has the two axes the wrong way round where pixels are not square."""
    text, steps = FEI[name]
    content = ("[User]\nUser=me\n" + text).replace("\n", "\r\n").encode()
    path = write(tmp_path / "a.tif", extratags=[(tag, 2, len(content) + 1, content, True)])
    known = {} if steps is None else dict(zip("yx", steps, strict=True))
    assert scales(path) == {n: ("m", pytest.approx(step), 0) for n, step in known.items()}
    if known:
        assert theirs(path)["y"][1] == pytest.approx(known["x"])


def report(eos="eosTEM", mode="MAG", value="150000", unit="", voltage="200000"):
    """Write what a microscope of JEOL says, at the length of real ones."""
    return (
        '<?xml version="1.0"?>\n<TemReporter><IlluminationSystem><ImageField>BF__</ImageField>'
        f"</IlluminationSystem><Eos><EosMode>{eos}</EosMode></Eos><ElectronGun>"
        f"<AccelerationVoltage>{voltage}</AccelerationVoltage></ElectronGun><ImageFormingSystem>"
        f"<ModeString>{mode}</ModeString><SelectorString>x</SelectorString>"
        f"<ImageFormingMode>TEM_x</ImageFormingMode><SelectorValue>{value}</SelectorValue>"
        f"<SelectorUnitString>{unit}</SelectorUnitString></ImageFormingSystem>"
        "</TemReporter>" + 70_000 * "\n" + "\x01"
    )


@pytest.mark.parametrize(
    ("options", "units"),
    [
        ({}, "nm"),
        ({"mode": "DIFF", "value": "50", "unit": "cm"}, "1/nm"),
        ({"mode": "DIFF", "value": "500", "unit": "mm", "voltage": "80000"}, "1/nm"),
        ({"eos": "modeASID"}, ""),
        ({"mode": "DIFF", "value": "5", "unit": "miles"}, ""),
        ({"mode": "DIFF", "value": "5", "unit": "cm", "voltage": "-3"}, ""),
        ({"value": "0"}, ""),
        ({"value": "many"}, ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("resolution", ["INCH", "CENTIMETER"])
def test_jeol(tmp_path, options, units, resolution):
    """Magnified, or diffracted: as RosettaSciIO reads it."""
    more = {"resolution": (93, 93), "resolutionunit": resolution, "description": report(**options)}
    path = write(tmp_path / "a.tif", extratags=[(271, 2, 10, b"JEOL Ltd.\0", True)], **more)
    found = scales(path)
    assert {one[0] for one in found.values()} == {units} - {""}
    if units:
        expected = {n: (u, pytest.approx(s, rel=1e-9), o) for n, (u, s, o) in theirs(path).items()}
        assert found == expected


def test_a_report_of_jeol_that_is_no_xml(tmp_path):
    more = {"resolution": (93, 93), "resolutionunit": "INCH", "description": "<TemReporter>"}
    path = write(tmp_path / "a.tif", extratags=[(271, 2, 10, b"JEOL Ltd.\0", True)], **more)
    assert scales(path) == {}


def write_streak(path, *, x, y, places=None):
    """Write the positions of pixels behind the page, as Hamamatsu's cameras do."""
    frame = counting_frames((len(y), len(x)), "u2")
    extra = [(305, 2, 11, b"HPD-TA 9.5\0", True), (315, 2, 20, b"Copyright Hamamatsu\0", True)]
    for _ in range(2):
        at = path.stat().st_size if path.exists() else 10**6
        first, second = places or (at, at + 4 * len(x))
        text = (
            f'[Scaling],ScalingXUnit="nm",ScalingXScalingFile="#{first:07},{len(x):04}",'
            f'ScalingYUnit="ps",ScalingYScalingFile="#{second:07},{len(y):04}"\r\n'
        )
        write(path, frame, description=text, extratags=extra, software=False)
    with path.open("ab") as stream:
        stream.write(np.asarray(x, "<f4").tobytes() + np.asarray(y, "<f4").tobytes())
    return path


def test_hamamatsu(tmp_path):
    x, y = 400 + 0.5 * np.arange(7), np.arange(5) ** 2
    path = write_streak(tmp_path / "a.tif", x=x, y=y)
    assert scales(path) == {"x": ("nm", 0.5, 400)}
    positions = describe(path).metadata["tiff"]["positions"]
    assert positions == {"y": {"units": "ps", "values": (0, 1, 4, 9, 16)}}
    path = write_streak(tmp_path / "b.tif", x=x[::-1], y=np.arange(5))
    assert scales(path) == {"y": ("ps", 1, 0), "x": ("nm", -0.5, 403)}
    assert "positions" not in describe(path).metadata["tiff"]


@pytest.mark.parametrize("values", [[np.nan] * 5, [1] * 5, [0, np.inf, 2, 3, 4]])
def test_positions_that_are_no_axis(tmp_path, values):
    """They are no scale; numbers are told of."""
    path = write_streak(tmp_path / "a.tif", x=np.arange(7), y=values)
    assert scales(path) == {"x": ("nm", 1, 0)}
    told = "y" in describe(path).metadata["tiff"].get("positions", {})
    assert told == np.isfinite(values).all()


@pytest.mark.parametrize("place", [10**6, 9999999])
def test_positions_that_are_not_there(tmp_path, place):
    path = write_streak(tmp_path / "a.tif", x=np.arange(7), y=np.arange(5), places=(place, place))
    assert scales(path) == {}
