"""TIFF: scales and instrument facts in tags, texts and OME-XML of written files.

Scales are those of vendors and of ImageJ, not the resolution of screens and printers.
"""

import struct
import warnings

import numpy as np
import pytest
import tifffile
from checks import instrument_of, nearly
from ome_writer import document, image, tiff_data, write_pages
from rsciio.tiff import file_reader

from dask_tiled import describe
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")

ALONG = {"height": "y", "width": "x", "image series": "frame", "depth": "z"}
UNITS = {"1 / nm": "1/nm", None: "", "inch": "", "cm": ""}
JEOL = [(271, 2, 10, b"JEOL Ltd.\0", True)]


def theirs(path, **options):
    """Return the axes that RosettaSciIO reads: units, scale and offset by our names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about axes that RosettaSciIO makes even
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
    """Return the axes that have units."""
    desc = describe(path, **options)
    return {axis.name: (axis.units, axis.scale, axis.offset) for axis in desc.axes if axis.units}


def write(path, frames=None, **options):
    """Write a file without the metadata of tifffile."""
    frames = counting_frames((5, 7), "u1") if frames is None else frames
    options = {"photometric": "minisblack", "metadata": None, **options}
    tifffile.imwrite(path, frames, **options)
    return path


def tagged(path, code, text):
    """Write a file with a private tag of text."""
    stored = text.encode("latin-1") + b"\0"
    return write(path, extratags=[(code, 2, len(stored), stored, True)])


def test_uneven_positions_are_metadata(data):
    """RosettaSciIO makes positions even by default."""
    path = data / "more/tiff/test_hamamatsu_streak_SCAN.tif"
    found = describe(path).metadata["tiff"]["positions"]
    assert found.keys() == {"y"}
    assert found["y"]["units"] == "ps"
    (other,) = file_reader(path, hamamatsu_streak_axis_type="data")
    np.testing.assert_array_equal(found["y"]["values"], other["axes"][0]["axis"])


@pytest.mark.parametrize("unit", ["INCH", "CENTIMETER", "NONE"])
@pytest.mark.parametrize("dpi", [1, 72, 4800, 5200, 1e6])
def test_resolutions(tmp_path, dpi, unit):
    """Resolutions finer than those of screens, scanners and printers are scales."""
    pixels = dpi / 2.54 if unit == "CENTIMETER" else dpi
    path = write(tmp_path / "a.tif", resolution=(pixels, pixels), resolutionunit=unit)
    if unit != "NONE" and dpi > 5080:
        assert scales(path) == {n: ("µm", pytest.approx(25_400 / dpi), 0) for n in "yx"}
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
    assert scales(path) == ({} if dpi == 72 else dict.fromkeys("yx", ("µm", 0.254, 0)))


@pytest.mark.parametrize("unit", ["", "inch", "micron", "nm"])
def test_resolution_of_imagej(tmp_path, unit):
    """72 dpi is a scale only if the unit is named; ImageJ ignores it otherwise."""
    facts = {"unit": unit} if unit else {}
    options = {"resolution": (72, 72), "resolutionunit": "INCH", "imagej": True, "metadata": facts}
    path = write(tmp_path / "a.tif", **options)
    known = {"micron": "µm"}.get(unit, unit)
    assert scales(path) == (dict.fromkeys("yx", (known, 1 / 72, 0)) if unit else {})
    if unit == "micron":
        assert scales(path) == theirs(path)


@pytest.mark.parametrize(("stored", "step"), [((1, 4), 4), ((4, 1), 0.25), ((0, 1), None)])
def test_resolutions_are_pixels_per_unit(tmp_path, stored, step):
    path = write(tmp_path / "a.tif", description="ImageJ=1\nunit=nm\n", resolution=(stored, stored))
    with tifffile.TiffFile(path) as file:
        assert file.pages[0].tags["XResolution"].value == stored
    assert scales(path) == (dict.fromkeys("yx", ("nm", step, 0)) if step else {})


@pytest.mark.parametrize("of_z", ["", "nm"])
@pytest.mark.parametrize(("dpcm", "expected"), [(40_000, ("µm", 0.25)), (1000, ("cm", 0.001))])
def test_resolution_of_imagej_without_a_unit(tmp_path, dpcm, expected, of_z):
    """Pixels of microscopes are in µm, as elsewhere; larger ones keep the unit of the tag.

    A spacing whose unit nothing names is no scale: the tag has that of pixels only.
    """
    facts = {"axes": "ZYX", "spacing": 2.5} | ({"zunit": of_z} if of_z else {})
    options = {"resolution": (dpcm, dpcm), "resolutionunit": "CENTIMETER", "imagej": True}
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, counting_frames((2, 5, 7), "u1"), metadata=facts, **options)
    unit, step = expected
    of_pixels = dict.fromkeys("yx", (unit, pytest.approx(step), 0))
    assert scales(path) == of_pixels | ({"z": (of_z, 2.5, 0)} if of_z else {})


@pytest.mark.parametrize("labels", ["abab", "abba", "aaaa", " b b", "aba"])
def test_labels_of_imagej(tmp_path, labels):
    """Labels of planes are those of channels only if each channel has one of its own."""
    facts = {"axes": "TCYX", "Labels": [label.strip() for label in labels]}
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((2, 2, 5, 7), "u1"), imagej=True, metadata=facts)
    (axis,) = (axis for axis in describe(tmp_path / "a.tif").axes if axis.name == "c")
    assert axis.labels == (("a", "b") if labels == "abab" else ())


def test_entries_are_plain_values(tmp_path):
    """Long ones are summarised; those that lead to other data are left out."""
    times = tuple(range(8))
    entries = [
        (34362, 12, 8, times, True),  # an array in tifffile
        (65100, 7, 256, bytes(256), True),
        (65101, 7, 257, bytes(257), True),
        (65102, 3, 256, tuple(range(256)), True),
        (65103, 3, 257, (1,) * 257, True),
        (65104, 2, 3, "µm".encode("cp1252") + b"\0", True),
        (65105, 2, 4, "µm".encode() + b"\0", True),
        (65106, 2, 2, b"\x81\0", True),  # in neither encoding
        (65107, 3, 1, 7, True),
        (65108, 1, 2, b"\1\2", True),
        (65109, 3, 1, 7, True),
    ]
    path = write(tmp_path / "a.tif", np.zeros((64, 96), "u1"), extratags=entries, byteorder="<")
    content = path.read_bytes()  # the last one becomes one of an unknown type
    path.write_bytes(content.replace(struct.pack("<2H", 65109, 3), struct.pack("<2H", 65109, 99)))
    with tifffile.TiffFile(path) as file:
        assert {273, 279} <= {*file.pages[0].tags.keys()}
    facts = describe(path).metadata["tiff"]
    assert facts.keys() == {
        "nav_shape_from", "scales_from", "orientation", "dataset", "datasets", "level", "levels",
        "tags",
    }  # fmt: skip
    assert (facts["dataset"], facts["level"], facts["levels"]) == (0, 0, 1)
    found = facts["tags"]
    assert not {"StripOffsets", "StripByteCounts"} & found.keys()
    assert (found["ImageWidth"], found["MM_Stamp"]) == (96, times)
    assert {name: told for name, told in found.items() if name.startswith("651")} == {
        "65100": "00" * 256,
        "65101": "257 bytes",
        "65102": tuple(range(256)),
        "65103": "257 values",
        "65104": "µm",
        "65105": "µm",
        "65106": "8100",
        "65107": 7,
        "65108": "0102",
    }
    colours = np.zeros((3, 256), "u2")
    palette = write(tmp_path / "b.tif", photometric="palette", colormap=colours)
    assert describe(palette).metadata["tiff"]["tags"]["ColorMap"] == "768 values"


def digital_micrograph(stack=True, scale=0.5):
    """Return the tags of Digital Micrograph."""
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


@pytest.mark.parametrize("scale", [-0.5, 0.0, np.nan, np.inf])
def test_negative_and_invalid_scales(tmp_path, scale):
    path = write(tmp_path / "a.tif", extratags=digital_micrograph(stack=False, scale=scale))
    backwards = {"y": ("nm", -1, 4), "x": ("µm", -0.5, -3)}
    assert scales(path) == (backwards if scale < 0 else {})


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("2018:11:15 19:42:31", "2018-11-15T19:42:31"),
        ("2018-11-15T19:42:31", "2018-11-15T19:42:31"),
        ("0000:00:00 00:00:00", None),
        ("15:11:2018 19:42:31", None),
        ("", None),
    ],
)
def test_date_and_time(tmp_path, text, date):
    path = tagged(tmp_path / "a.tif", 306, text)
    assert instrument_of(path) == ({"date": date} if date else {})


def fei(beam="", scan="", **more):
    sections = {
        "User": {"Date": "05/06/2016"},
        "System": {"SystemType": "Quanta"},
        "Beam": {"HV": 30000, "Beam": beam},
        "EBeam": {"BeamCurrent": 1e-9},
        "IBeam": {"BeamCurrent": 3e-12},
        "Stage": {"StageX": "-", "WorkingDistance": -0.0021},
        "PrivateFei": {"TimeOfCreation": "05.06.2016 01:02:03"},
        **more,
    }
    return scan + "".join(
        f"[{name}]\r\n" + "".join(f"{key}={value}\r\n" for key, value in inner.items())
        for name, inner in sections.items()
    )


QUANTA = {"microscope": "Quanta", "beam_energy": 30e3, "working_distance": -0.0021}
QUANTA["date"] = "2016-06-05T01:02:03"
NOTHING = {"Beam": {"HV": "-"}, "PrivateFei": {"TimeOfCreation": "today"}, "System": {}}
CAMERA = {"IRBeam": {"HFW": 0.2, "VFW": 0.1}, "Image": {"ResolutionX": 1000, "ResolutionY": 400}}
LOST = {"IRBeam": {"HFW": "", "VFW": ""}, "Image": {"ResolutionX": 0}}
FEI = {
    "a scan": (fei(Scan={"PixelWidth": 2e-9, "PixelHeight": 3e-9}), (3e-9, 2e-9), QUANTA),
    "a camera": (fei(**CAMERA), (2.5e-4, 2e-4), QUANTA),
    "a camera without fields": (fei(**LOST), None, QUANTA),
    "no sections": ("Scan=3\r\n", None, {}),
    "no numbers": (fei(Scan={"PixelWidth": "many", "PixelHeight": "-"}), None, QUANTA),
    "electrons": (fei("EBeam"), None, QUANTA | {"beam_current": 1e-9}),
    "ions": (fei("IBeam"), None, QUANTA | {"beam_current": 3e-12}),
    "nothing": (fei("EBeam", **NOTHING), None, {"working_distance": -0.0021}),
}
"""Texts, steps along y and x, and facts of the instrument."""


@pytest.mark.parametrize("tag", [34680, 34682])
@pytest.mark.parametrize("name", FEI)
def test_fei(tmp_path, name, tag):
    """The current is that of the beam that made the picture.

    RosettaSciIO swaps the axes, which differ if pixels are not square.
    """
    text, steps, facts = FEI[name]
    path = tagged(tmp_path / "a.tif", tag, text)
    known = {} if steps is None else dict(zip("yx", steps, strict=True))
    assert scales(path) == {n: ("m", pytest.approx(step), 0) for n, step in known.items()}
    assert instrument_of(path) == nearly(facts)
    if known:
        assert theirs(path)["y"][1] == pytest.approx(known["x"])


ZEISS = """
AP_ACTUALKV
EHT = 20.00 kV
AP_MAG
Mag = {mag}
AP_WD
WD = 4.1 mm
AP_DATE
Date :{date}
AP_TIME
Time :8:20:42
DP_DETECTOR_CHANNEL
Signal A = InLens
"""


@pytest.mark.parametrize(
    ("mag", "times"), [("105 X", 105), ("50.00 K X", 50e3), ("K X", None), ("0 X", None)]
)
@pytest.mark.parametrize(("date", "day"), [("25 Sep 2018", "2018-09-25"), ("yesterday", None)])
def test_zeiss(tmp_path, mag, times, date, day):
    text = "\r\n".join(["0\r\n" * 4, *ZEISS.format(mag=mag, date=date).split("\n")])
    found = instrument_of(tagged(tmp_path / "a.tif", 34118, text))
    expected = {"beam_energy": 20e3, "working_distance": 4.1e-3, "detector": "InLens"}
    expected |= {"magnification": times} if times else {}
    expected |= {"date": f"{day}T08:20:42"} if day else {}
    assert found == nearly(expected)


@pytest.mark.parametrize("numbers", [[0, 0, 0, 2e-9], [0, 0]])
def test_pixels_of_zeiss(tmp_path, numbers):
    """The fourth unnamed number is the size of a pixel, if an image had 1024 of them in a row."""
    text = "\r\n".join([*map(str, numbers), *ZEISS.format(mag="1 X", date="").split("\n")])
    path = tagged(tmp_path / "a.tif", 34118, text)
    size = pytest.approx(2e-9 * 1024 / 7)
    assert scales(path) == (dict.fromkeys("yx", ("m", size, 0)) if len(numbers) > 3 else {})
    if len(numbers) > 3:
        assert theirs(path) == scales(path)


def report(eos="eosTEM", mode="DIFF", value="50", unit="cm", voltage="200000"):
    """Return the XML of a JEOL microscope, as long as in real files."""
    return (
        '<?xml version="1.0"?>\n<TemReporter><IlluminationSystem><ImageField>BF__</ImageField>'
        "</IlluminationSystem><Instruments>JEM-ARM200F</Instruments>"
        "<DateTime>2015-07-30T07:17:25.7725342+09:00</DateTime>"
        f"<Eos><EosMode>{eos}</EosMode></Eos><ElectronGun>"
        f"<AccelerationVoltage>{voltage}</AccelerationVoltage></ElectronGun><ImageFormingSystem>"
        f"<ModeString>{mode}</ModeString><SelectorString>x</SelectorString>"
        f"<ImageFormingMode>TEM_x</ImageFormingMode><SelectorValue>{value}</SelectorValue>"
        f"<SelectorUnitString>{unit}</SelectorUnitString></ImageFormingSystem>"
        "</TemReporter>" + 70_000 * "\n" + "\x01"
    )


ARM = {"microscope": "JEM-ARM200F", "date": "2015-07-30T07:17:25.772534+09:00"}
TEM, STEM = ({"acquisition_mode": mode} for mode in ("TEM", "STEM"))
MAGNIFIED = {"mode": "MAG", "unit": "X"}


@pytest.mark.parametrize(
    ("options", "units", "facts"),
    [
        ({**MAGNIFIED, "value": "150000"}, "nm", TEM | {"magnification": 150e3}),
        ({}, "1/nm", TEM | {"camera_length": 0.5}),
        ({"value": "500", "unit": "mm", "voltage": "1"}, "1/nm", TEM | {"camera_length": 0.5}),
        ({**MAGNIFIED, "value": "1500", "eos": "eosASID"}, "", STEM | {"magnification": 1500}),
        ({"unit": "miles"}, "", TEM),
        ({"voltage": "-3"}, "", TEM | {"camera_length": 0.5}),
        ({"voltage": ""}, "", TEM | {"camera_length": 0.5}),
        ({**MAGNIFIED, "value": "0"}, "", TEM),
        ({**MAGNIFIED, "value": "many", "eos": "eosNew"}, "", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("resolution", ["INCH", "CENTIMETER"])
def test_jeol(tmp_path, options, units, facts, resolution):
    """Scales of images and of diffraction patterns equal RosettaSciIO's."""
    more = {"resolution": (93, 93), "resolutionunit": resolution, "description": report(**options)}
    path = write(tmp_path / "a.tif", extratags=JEOL, **more)
    found = scales(path)
    assert {one[0] for one in found.values()} == {units} - {""}
    if units:
        expected = {n: (u, pytest.approx(s, rel=1e-9), o) for n, (u, s, o) in theirs(path).items()}
        assert found == expected
    voltage = options.get("voltage", "200000")
    energy = {"beam_energy": float(voltage)} if voltage.isdigit() else {}
    assert instrument_of(path) == nearly(ARM | energy | facts)


@pytest.mark.parametrize("text", ["<TemReporter>", "<TemReporter/>", "no XML", "<a>" * 50_000])
def test_invalid_xml_of_jeol_is_ignored(tmp_path, text):
    options = {"resolution": (93, 93), "resolutionunit": "INCH", "description": text}
    path = write(tmp_path / "a.tif", extratags=JEOL, **options)
    assert (scales(path), instrument_of(path)) == ({}, {})


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
    content = path.read_bytes()
    for lost in (b"ScalingXUnit", b"ScalingXScalingFile", b"HPD-TA", b"Copyright"):
        path.write_bytes(content.replace(lost, lost[::-1]))
        assert scales(path) == ({"y": ("ps", 1, 0)} if b"X" in lost else {})


@pytest.mark.parametrize("values", [[np.nan] * 5, [1] * 5, [0, np.inf, 2, 3, 4]])
def test_invalid_positions_are_no_scale(tmp_path, values):
    """Finite values are in the metadata."""
    path = write_streak(tmp_path / "a.tif", x=np.arange(7), y=values)
    assert scales(path) == {"x": ("nm", 1, 0)}
    positions = describe(path).metadata["tiff"].get("positions", {})
    assert ("y" in positions) == np.isfinite(values).all()


@pytest.mark.parametrize("place", [10**6, 9999999])
def test_positions_beyond_the_file_are_ignored(tmp_path, place):
    path = write_streak(tmp_path / "a.tif", x=np.arange(7), y=np.arange(5), places=(place, place))
    assert scales(path) == {}


@pytest.mark.parametrize(
    "text",
    [
        "[Camera]" * 8000,
        "[Camera],CameraName=" * 3000 + "\n",
        "[Application][Acquisition],ExposureTime=",
    ],
)
def test_unrelated_descriptions_are_ignored(tmp_path, text):
    assert instrument_of(write(tmp_path / "a.tif", description=text)) == {}


# OME-TIFF


DEVICES = """<Instrument ID="Instrument:1"><Microscope Manufacturer="Zeiss" Model="LSM 880"/>
<Detector ID="Detector:0" Model="PMT 1"/><Detector ID="Detector:1" Model="Airyscan"/>
<Objective ID="Objective:0" NominalMagnification="10"/>
<Objective ID="Objective:1" NominalMagnification="63.0" {more}/></Instrument>"""


def ome(path, references, more=""):
    """Write a set of one image, with references to the devices of an instrument."""
    picture = image((1, 1, 1, 5, 7), tiff_data(), dtype="u1")
    head, _, tail = picture.partition("<Pixels")
    channel = tail.replace(
        'SamplesPerPixel="1"/>', 'SamplesPerPixel="1"><DetectorSettings ID="Detector:1"/></Channel>'
    )
    xml = document(f"{DEVICES.format(more=more)}{head}{references}<Pixels{channel}")
    return write_pages(path, [np.zeros((5, 7), "u1")], xml)


REFERENCES = """<AcquisitionDate>2019-05-04T03:02:01Z</AcquisitionDate>
<InstrumentRef ID="Instrument:1"/><ObjectiveSettings ID="Objective:1"/>"""


@pytest.mark.parametrize(
    ("more", "magnification"), [("", 63), ('CalibratedMagnification="62.5"', 62.5)]
)
def test_ome(tmp_path, more, magnification):
    """The objective and the detector are those that the image refers to."""
    path = ome(tmp_path / "a.ome.tif", REFERENCES, more)
    assert instrument_of(path) == {
        "microscope": "LSM 880",
        "magnification": magnification,
        "detector": "Airyscan",
        "date": "2019-05-04T03:02:01+00:00",
    }


@pytest.mark.parametrize("references", ["", '<InstrumentRef ID="Instrument:7"/>'])
def test_ome_without_references(tmp_path, references):
    """Without a valid reference, the instrument is unknown."""
    assert instrument_of(ome(tmp_path / "a.ome.tif", references)) == {"detector": "Airyscan"}
