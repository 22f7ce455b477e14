"""TIFF: what tags and texts say of the instrument, in files that are made here."""

import numpy as np
import pytest
import tifffile
from checks import instrument_of, nearly
from ome_writer import document, image, tiff_data, write_pages

FRAME = np.zeros((5, 7), "u1")


def write(path, **options):
    options = {"photometric": "minisblack", "metadata": None, **options}
    tifffile.imwrite(path, FRAME, **options)
    return path


def tagged(path, code, text):
    """Write a file with a private tag of text."""
    stored = text.encode("latin-1") + b"\0"
    return write(path, extratags=[(code, 2, len(stored), stored, True)])


@pytest.mark.parametrize(
    ("told", "date"),
    [
        ("2018:11:15 19:42:31", "2018-11-15T19:42:31"),
        ("2018-11-15T19:42:31", "2018-11-15T19:42:31"),
        ("0000:00:00 00:00:00", None),
        ("15:11:2018 19:42:31", None),
        ("", None),
    ],
)
def test_date_and_time(tmp_path, told, date):
    path = tagged(tmp_path / "a.tif", 306, told)
    assert instrument_of(path) == ({"date": date} if date else {})


def fei(beam="EBeam", **more):
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
    return "".join(
        f"[{name}]\r\n" + "".join(f"{key}={value}\r\n" for key, value in inner.items())
        for name, inner in sections.items()
    )


@pytest.mark.parametrize("tag", [34680, 34682])
@pytest.mark.parametrize(("beam", "current"), [("EBeam", 1e-9), ("IBeam", 3e-12), ("", None)])
def test_fei(tmp_path, tag, beam, current):
    """Currents are those of the beam that made the picture."""
    expected = {
        "microscope": "Quanta",
        "beam_energy": 30e3,
        "beam_current": current,
        "working_distance": -0.0021,
        "date": "2016-06-05T01:02:03",
    }
    if current is None:
        del expected["beam_current"]
    assert instrument_of(tagged(tmp_path / "a.tif", tag, fei(beam))) == nearly(expected)


def test_fei_that_says_nothing(tmp_path):
    wrong = {"Beam": {"HV": "-"}, "PrivateFei": {"TimeOfCreation": "today"}, "System": {}}
    found = instrument_of(tagged(tmp_path / "a.tif", 34682, fei(**wrong)))
    assert found == {"working_distance": -0.0021}


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


def jeol(selector, unit, mode="eosTEM", energy="200000"):
    return f"""<?xml version="1.0"?><TemReporter>
    <Instruments>JEM-ARM200F</Instruments><DateTime>2015-07-30T07:17:25.7725342+09:00</DateTime>
    <ElectronGun><AccelerationVoltage>{energy}</AccelerationVoltage></ElectronGun>
    <Eos><EosMode>{mode}</EosMode></Eos><ImageFormingSystem><ModeString>DIFF</ModeString>
    <SelectorValue>{selector}</SelectorValue><SelectorUnitString>{unit}</SelectorUnitString>
    </ImageFormingSystem></TemReporter>"""


@pytest.mark.parametrize(
    ("said", "more"),
    [
        (("400", "mm"), {"acquisition_mode": "TEM", "camera_length": 0.4}),
        (("40", "cm"), {"acquisition_mode": "TEM", "camera_length": 0.4}),
        (("1500", "X", "eosASID"), {"acquisition_mode": "STEM", "magnification": 1500}),
        (("many", "X", "eosNew"), {}),
        (("3", "X", "eosTEM", ""), {"acquisition_mode": "TEM", "magnification": 3}),
    ],
)
def test_jeol(tmp_path, said, more):
    tags = [(271, 2, 10, b"JEOL Ltd.\0", True)]
    path = write(tmp_path / "a.tif", description=jeol(*said), extratags=tags)
    expected = {
        "microscope": "JEM-ARM200F",
        "beam_energy": 200e3,
        "date": "2015-07-30T07:17:25.772534+09:00",
    }
    if len(said) == 4:
        del expected["beam_energy"]
    assert instrument_of(path) == nearly(expected | more)


@pytest.mark.parametrize("text", ["<TemReporter>", "<TemReporter/>", "no XML", "<a>" * 50_000])
def test_jeol_that_cannot_be_read(tmp_path, text):
    tags = [(271, 2, 10, b"JEOL Ltd.\0", True)]
    assert instrument_of(write(tmp_path / "a.tif", description=text, extratags=tags)) == {}


@pytest.mark.parametrize(
    "text",
    [
        "[Camera]" * 8000,
        "[Camera],CameraName=" * 3000 + "\n",
        "[Application][Acquisition],ExposureTime=",
    ],
)
def test_descriptions_of_others(tmp_path, text):
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
    tail = tail.replace("/></Pixels>", "/></Pixels>")
    channel = tail.replace(
        'SamplesPerPixel="1"/>', 'SamplesPerPixel="1"><DetectorSettings ID="Detector:1"/></Channel>'
    )
    xml = document(f"{DEVICES.format(more=more)}{head}{references}<Pixels{channel}")
    return write_pages(path, [FRAME], xml)


REFERENCES = """<AcquisitionDate>2019-05-04T03:02:01Z</AcquisitionDate>
<InstrumentRef ID="Instrument:1"/><ObjectiveSettings ID="Objective:1"/>"""


@pytest.mark.parametrize(
    ("more", "magnification"), [("", 63), ('CalibratedMagnification="62.5"', 62.5)]
)
def test_ome(tmp_path, more, magnification):
    """Of several objectives and detectors those that the image names."""
    path = ome(tmp_path / "a.ome.tif", REFERENCES, more)
    assert instrument_of(path) == {
        "microscope": "LSM 880",
        "magnification": magnification,
        "detector": "Airyscan",
        "date": "2019-05-04T03:02:01+00:00",
    }


@pytest.mark.parametrize("references", ["", '<InstrumentRef ID="Instrument:7"/>'])
def test_ome_without_references(tmp_path, references):
    """Then nothing says which instrument it was."""
    assert instrument_of(ome(tmp_path / "a.ome.tif", references)) == {"detector": "Airyscan"}
