"""HDF5: facts of the instrument, in each convention."""

import json
import math
import pickle

import numpy as np
import pytest
from checks import instrument_of, nearly, write_hdf5

from dask_tiled import Axis, describe

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

FRAMES = np.zeros((4, 5, 7), "u2")


def hyperspy(path, group, **facts):
    contents = {"Experiments/a/data": FRAMES, f"Experiments/a/{group}": facts}
    return instrument_of(write_hdf5(path, contents))


DAY, OLD_DAY = {"date": "2014-07-09"}, {"_datetime_date": "datetime.date(1991, 10, 1)"}
MOMENT = DAY | {"time": "18:56:37"}


@pytest.mark.parametrize(
    ("facts", "date"),
    [
        (DAY, "2014-07-09"),
        (MOMENT, "2014-07-09T18:56:37"),
        (DAY | {"time": "18:56:37.5", "time_zone": "+09:00"}, "2014-07-09T18:56:37.500000+09:00"),
        (MOMENT | {"time_zone": "UTC"}, "2014-07-09T18:56:37+00:00"),
        (MOMENT | {"time_zone": "EST"}, "2014-07-09T18:56:37"),
        (OLD_DAY, "1991-10-01"),
        (OLD_DAY | {"_datetime_time": "datetime.time(12, 0)"}, "1991-10-01T12:00:00"),
        ({"date": "9 July 2014"}, None),
        ({"time": "18:56:37"}, None),
        ({"date": 20140709, "time": [1, 2]}, None),
    ],
)
def test_dates_of_hyperspy(tmp_path, facts, date):
    """Ambiguous names of time zones are left out."""
    assert hyperspy(tmp_path / "a.hspy", "metadata/General", **facts).get("date") == date


def test_units_of_hyperspy(tmp_path):
    """HyperSpy's units hold unless a file states others; values in unknown units are left out."""
    path = "metadata/Acquisition_instrument/SEM"
    facts = {"beam_energy": 5.0, "working_distance": 4.0, "convergence_angle": 1.5}
    found = hyperspy(tmp_path / "a.hspy", path, **facts)
    assert found == {"beam_energy": 5e3, "working_distance": 4e-3, "convergence_angle": 1.5e-3}
    units = {"beam_energy_units": "eV", "convergence_angle_units": "furlong"}
    found = hyperspy(tmp_path / "b.hspy", path, **facts, **units)
    assert found == {"beam_energy": 5, "working_distance": 4e-3}


def scope(place):
    """Return the contents of HyperSpy's groups of an instrument."""
    of_scope = {"microscope": "Titan", "acquisition_mode": "STEM", "magnification": 3e4}
    of_scope |= {"beam_energy": 80.0, "beam_current": 2.0, "convergence_angle": 21.0}
    return {
        place: {**of_scope, "camera_length": 120.0, "working_distance": 5.0},
        f"{place}/Stage": {"tilt_alpha": 10.0, "tilt_beta": -2.0},
        f"{place}/Detector/Camera": {"name": "K2", "exposure": 0.1},
        f"{place}/Detector/EELS": {"collection_angle": 30.0, "dwell_time": 0.2},
    }


OF_SCOPE = {
    "microscope": "Titan", "acquisition_mode": "STEM", "beam_energy": 80e3, "beam_current": 2e-9,
    "magnification": 3e4, "camera_length": 0.12, "convergence_angle": 0.021,
    "collection_angle": 0.03, "working_distance": 5e-3, "tilt_alpha": math.radians(10),
    "tilt_beta": math.radians(-2), "detector": "K2", "exposure_time": 0.1, "dwell_time": 0.2,
}  # fmt: skip
SIGNAL = {"Experiments/a/data": FRAMES}
NEXUS = {"entry1": {"NX_class": "NXentry"}, "entry1/a/data": FRAMES}
NEXUS["entry1/a"] = {"NX_class": "NXdata", "signal": "data"}
PLACE, EVENT = "entry/measurement", "entry/measurement/events/event1/instrument"
NXEM = {
    "entry": {"NX_class": "NXentry", "default": "data"}, "entry/data/data": FRAMES,
    "entry/data": {"NX_class": "NXdata", "signal": "data"},
    "entry/start_time": "2024-05-01T10:00:00+02:00",
    f"{PLACE}/instrument": {"NX_class": "NXinstrument_em"},
    f"{PLACE}/instrument/fabrication": {"model": "Spectra 300"},
    f"{EVENT}/ebeam_column/electron_source/voltage": (200.0, "kV"),
    f"{EVENT}/optics/semi_convergence_angle": (20, "mrad"),
    f"{EVENT}/optics/camera_length": (25.0, "cm"), f"{EVENT}/optics/magnification": (5e4, ""),
    f"{EVENT}/scan/dwell_time": (10.0, "us"), f"{EVENT}/optics/defocus": (-30.0, "nm"),
    f"{EVENT}/ebeam_column/beam_current": (150.0, "pA"),
    f"{EVENT}/optics/working_distance": (4.0, "mm"),
}  # fmt: skip
OF_NXEM = {
    "microscope": "Spectra 300", "beam_energy": 200e3, "magnification": 5e4, "camera_length": 0.25,
    "convergence_angle": 0.02, "dwell_time": 1e-5, "date": "2024-05-01T10:00:00+02:00",
    "defocus": -30e-9, "beam_current": 150e-12, "working_distance": 4e-3,
}  # fmt: skip
EIGER = {
    "entry": {"NX_class": "NXentry"}, "entry/data": {"NX_class": "NXdata"},
    "entry/data/data_000001": FRAMES, "entry/instrument": {"NX_class": "NXinstrument"},
    "entry/instrument/beam": {"NX_class": "NXbeam"},
    "entry/instrument/beam/incident_energy": (12398.0, "eV"),
    "entry/instrument/beam/incident_wavelength": (1.0, "angstrom"),
    "entry/instrument/detector": {"NX_class": "NXdetector"},
    "entry/instrument/detector/count_time": (0.0099, "s"),
    "entry/instrument/detector/detector_distance": (0.2, "m"),
    "entry/instrument/detector/x_pixel_size": (7.5e-5, "m"),
    "entry/instrument/detector/y_pixel_size": (7.5e-5, "m"),
    "entry/instrument/detector/threshold_energy": (6.199, "keV"),
    "entry/instrument/detector/description": "Dectris EIGER2 Si 4M",
    "entry/instrument/detector/detectorSpecific/data_collection_date": (
        "2025-05-03T01:51:00.302+02:00"
    ),
}  # fmt: skip
OF_EIGER = {
    "photon_energy": 12398, "wavelength": 1e-10, "camera_length": 0.2, "threshold": 6199,
    "detector": "Dectris EIGER2 Si 4M", "y_pixel_size": 7.5e-5, "x_pixel_size": 7.5e-5,
    "exposure_time": 0.0099, "date": "2025-05-03T01:51:00.302000+02:00",
}  # fmt: skip
EMD, METADATA = {"data/scan": {"emd_group_type": 1}, "data/scan/data": FRAMES}, "data/metadata"
TEAM = {"name": "TEAM I", "voltage": 300.0, "voltage_units": "kV"}
OLD = {"accelerating_voltage": 60.0, "accelerating_voltage_units": "kV", "dwell_time": 1}
NEW = {"beam_energy": 60e3, "convergence_semiangle_mrad": 21.0}
FACTS = {
    "HyperSpy": (SIGNAL | scope("Experiments/a/metadata/Acquisition_instrument/SEM"), OF_SCOPE),
    "old HyperSpy": (SIGNAL | scope("Experiments/a/mapped_parameters/TEM"), OF_SCOPE),
    "NeXus of HyperSpy": (
        NEXUS | scope("entry1/auxiliary/hyperspy_metadata/Acquisition_instrument/TEM"), OF_SCOPE
    ),
    "NXem, whose groups may lie anywhere": (NXEM, OF_NXEM),
    "Eiger": (EIGER, OF_EIGER),
    "NCEM": (EMD | {"microscope": TEAM}, {"microscope": "TEAM I", "beam_energy": 300e3}),
    "a unit in the text": (EMD | {"microscope": {"voltage": "80kV"}}, {"beam_energy": 80e3}),
    "no unit": (EMD | {"microscope": {"voltage": 80}}, {}),
    "py4DSTEM": (EMD | {f"{METADATA}/metadata_0/microscope": OLD}, {"beam_energy": 60e3}),
    "new py4DSTEM": (
        EMD | {f"{METADATA}/metadata_0/microscope": NEW},
        {"beam_energy": 60e3, "convergence_angle": 0.021},
    ),
    "Prismatic": (
        EMD | {f"{METADATA}/metadata_0/original/simulation_parameters": {"E": 100.0, "sa": 30.0}},
        {"beam_energy": 100e3, "convergence_angle": 0.03},
    ),
    "a probe": (
        EMD | {"data/metadatabundle/probe": {"convergence_semiangle_mrad": 5.0}},
        {"convergence_angle": 5e-3},
    ),
}  # fmt: skip
"""Contents, and facts of the instrument."""


@pytest.mark.parametrize("name", FACTS)
def test_facts_of_conventions(tmp_path, name):
    contents, expected = FACTS[name]
    assert instrument_of(write_hdf5(tmp_path / "a.h5", contents)) == nearly(expected)


def test_facts_beside_an_arina_master(tmp_path):
    master = write_hdf5(tmp_path / "a_master.h5", EIGER)
    scan = {"High Tension": [80e3], "Camera Length": [0.115], "Magnification": [0.0]}
    write_hdf5(tmp_path / "a.h5", {"STEM Metadata": scan})
    beside = {"beam_energy": 80e3, "camera_length": 0.115}
    assert instrument_of(master) == nearly({**OF_EIGER, **beside})


def velox(file, document):
    file["Data/Image/a/Data"] = FRAMES.transpose(1, 2, 0)
    column = np.zeros((max(len(document) + 1, 37_000), 4), "u1")
    column[: len(document)] = np.frombuffer(document, "u1")[:, None]
    file["Data/Image/a/Metadata"] = column


@pytest.mark.parametrize(
    "facts",
    [
        {"Detectors": [], "BinaryResult": {"Detector": "HAADF"}},
        {"Detectors": {"a": None}, "BinaryResult": {"Detector": "HAADF"}},
        {"Detectors": {"a": {"DetectorName": "b", "ExposureTime": "3"}}, "BinaryResult": "HAADF"},
        {"Detectors": {"a": {"ExposureTime": "3"}}, "BinaryResult": {}},
        {"Acquisition": {"AcquisitionStartDatetime": {"DateTime": "1e300"}}},
        {"Acquisition": {"AcquisitionStartDatetime": {"DateTime": "0"}}},
        {"Optics": {"OperatingMode": [], "AccelerationVoltage": "nan", "CameraLength": "-1"}},
        {"CustomProperties": {"X.TimeStamp": {"value": "now"}}},
        {"BinaryResult": {"PixelSize": {"width": 10**400, "height": 10**400}}},
        {"Optics": {"AccelerationVoltage": math.nan, "CameraLength": math.inf, "a": [math.nan]}},
    ],
    ids=lambda facts: json.dumps(facts)[:60],
)
def test_invalid_facts_of_velox_are_left_out(tmp_path, facts):
    path = write_hdf5(tmp_path / "a.emd", lambda file: velox(file, json.dumps(facts).encode()))
    assert instrument_of(path).keys() <= {"detector"}
    desc = describe(path)
    assert pickle.loads(pickle.dumps(desc)) == desc
    assert desc.axes == tuple(map(Axis, ("frame", "y", "x")))


@pytest.mark.parametrize(
    "document",
    [
        b"[" * 100_000,
        b'{"a": ' * 900 + b"1" + b"}" * 900,
        json.dumps({str(k): {str(m): m for m in range(9)} for k in range(8000)}).encode(),
        b'{"Optics": {"AccelerationVoltage": "' + b"9" * 100_000 + b'"}}',
    ],
    ids=["open", "deep", "wide", "long"],
)
def test_damaged_and_huge_metadata_of_velox(tmp_path, document):
    path = write_hdf5(tmp_path / "a.emd", lambda file: velox(file, document))
    assert instrument_of(path) == {}
    pickle.dumps(describe(path))
