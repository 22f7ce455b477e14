"""What real files say of the instrument: all of it, and what RosettaSciIO reads of the same."""

import math
import warnings
from datetime import datetime
from importlib import import_module

import pytest
from checks import instrument_of, nearly

SAID = {
    "more/hdf5/Camera_Ceta_Imaging_Micro.emd": {
        "microscope": "Titan",
        "acquisition_mode": "TEM",
        "beam_energy": 300e3,
        "magnification": 26996.349,
        "camera_length": 0.378,
        "defocus": 0,
        "stage_x": 5.7681e-7,
        "stage_y": 1.377e-8,
        "stage_z": -6.879e-8,
        "tilt_alpha": -3.136e-6,
        "tilt_beta": 5.9311804e-4,
        "detector": "BM-Ceta",
        "exposure_time": 0.4,
        "date": "2020-07-29T16:48:19+00:00",
    },
    "more/hdf5/fei_example_dpc_titles.emd": {
        "microscope": "Titan",
        "acquisition_mode": "STEM",
        "beam_energy": 300e3,
        "magnification": 910e3,
        "camera_length": 3.028,
        "convergence_angle": 1.046128207e-3,
        "collection_angle": 3.362987419e-3,
        "inner_collection_angle": 6.025374443e-4,
        "defocus": 0,
        "stage_x": -1.7292756e-4,
        "stage_y": 2.658252e-5,
        "stage_z": -1.148294577e-4,
        "tilt_alpha": 0.08156077184,
        "tilt_beta": 0.08831366015,
        "detector": "DF4",
        "dwell_time": 1e-5,
        "gain_setting": "0",
        "date": "2020-10-29T13:16:16+00:00",
    },
    "more/hdf5/Test_SI_16x16_215_kx.emd": {
        "microscope": "Titan",
        "acquisition_mode": "STEM",
        "beam_energy": 300e3,
        "magnification": 225e3,
        "camera_length": 0.1159,
        "convergence_angle": 0.02501065271,
        "defocus": -2.486738962e-7,
        "stage_x": -4.1612091e-4,
        "stage_y": 4.00265934e-4,
        "stage_z": -1.4365038e-4,
        "tilt_alpha": 8.924343277e-5,
        "tilt_beta": 1.016960377e-4,
        "detector": "SuperXG2",
        "dwell_time": 1e-3,
        "date": "2024-02-29T06:58:04+00:00",
    },
    "hspy/example2_v3.1.hspy": {
        "microscope": "FEI Tecnai",
        "acquisition_mode": "TEM",
        "beam_energy": 200e3,
        "camera_length": 0.32,
        "tilt_alpha": math.radians(10),
        "exposure_time": 0.2,
        "date": "2014-07-09T18:56:37",
    },
    "more/hspy/example1_v1.0.hdf5": {
        "beam_energy": 120e3,
        "beam_current": 12.345e-9,
        "convergence_angle": 1.5e-3,
        "collection_angle": 3.4e-3,
        "dwell_time": 0.1,
    },
    "more/hdf5/Sample_Image_2021-03-16_095.hdf5": {
        "photon_energy": 350,
        "exposure_time": 0.01,
        "date": "2021-03-16T15:06:05+01:00",
    },
    "more/hdf5/Focus_2021-03-16_051.hdf5": {
        "photon_energy": 715.008807,
        "exposure_time": 0.01,
        "date": "2021-03-16T12:42:07+01:00",
    },
    "more/hdf5/example_spectrum.emd": {},
    "hdf5/emd/py4DSTEM_size2x3x4x5.h5": {},
    "hdf5/emd/example_signal.emd": {},
    "hdf5/nexpy/example.nxs": {},
    "hdf5/nexus/simple_signal.nxs": {},
    "more/tiff/FEI-Helios-Ebeam-8bits.tif": {
        "microscope": 'Helios NanoLab" 660',
        "beam_energy": 5e3,
        "beam_current": 6.25e-12,
        "working_distance": 4.03466e-3,
        "stage_x": 2.576e-5,
        "stage_y": -1.94177e-4,
        "stage_z": 7.965e-3,
        "tilt_alpha": 6.54498e-6,
        "rotation": -2.3611,
        "detector": "ETD",
        "dwell_time": 1e-5,
        "date": "2016-06-13T17:06:40",
    },
    "more/tiff/test_tiff_Zeiss_SEM_512pix.tif": {
        "microscope": "ULTRA 55-36-06",
        "beam_energy": 5e3,
        "magnification": 50e3,
        "working_distance": 3.9e-3,
        "stage_x": 62.9961e-3,
        "stage_y": 65.3168e-3,
        "stage_z": 44.678e-3,
        "tilt_alpha": 0,
        "rotation": math.radians(245.8),
        "detector": "InLens",
        "date": "2018-09-25T08:20:42",
    },
    "more/tiff/JEOL-SightX-TEM-mag-dummy.tif": {
        "microscope": "JEM-ARM200F",
        "acquisition_mode": "TEM",
        "beam_energy": 200e3,
        "beam_current": 259.9e-12,
        "magnification": 150e3,
        "stage_z": 635.9e-9,
        "tilt_alpha": math.radians(0.1),
        "tilt_beta": math.radians(-0.02),
        "detector": "screenCamera",
        "exposure_time": 0.1,
        "date": "2019-11-27T16:11:26.620540+09:00",
    },
    "more/tiff/test_hamamatsu_streak_SCAN.tif": {
        "microscope": "C10910",
        "detector": "C13440-20CU",
        "exposure_time": 0.15,
        "gain_setting": "63",
        "date": "2022-02-09T18:39:41",
    },
    "tiff/exampletiffs/mri.tif": {},
    "tiff/series_181003/P1_T0.tif": {},
    "ometiff/multi_companion/multifile.companion.ome": {"date": "2010-03-02T15:08:59"},
    "ometiff/singles/z-series.ome.tif": {},
}
"""All that is found; the files' bytes say so. What they leave empty is not there."""


@pytest.mark.parametrize("name", SAID)
def test_real_files(data, name):
    assert instrument_of(data / name) == nearly(SAID[name])


PEERS = {  # names of RosettaSciIO, our names, and how many of our units theirs are
    "beam_energy": ("beam_energy", 1e3),
    "beam_current": ("beam_current", 1e-9),
    "camera_length": ("camera_length", 1e-3),
    "magnification": ("magnification", 1),
    "microscope": ("microscope", None),
    "working_distance": ("working_distance", 1e-3),
    "dwell_time": ("dwell_time", 1),
    "Stage.tilt_alpha": ("tilt_alpha", math.pi / 180),
    "Stage.tilt_beta": ("tilt_beta", math.pi / 180),
    "Detector.Camera.exposure": ("exposure_time", 1),
}


def theirs(plugin, path):
    """Read what RosettaSciIO says, by our names: from its metadata, or by what it maps to them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = import_module(f"rsciio.{plugin}").file_reader(str(path))[0]
    said = {}
    for source, (target, convert) in found.get("mapping", {}).items():
        value = found["original_metadata"]
        for key in source.split("."):
            value = value.get(key) if hasattr(value, "get") else None
        if value is not None and target != "Sample.elements":
            said[target] = value if convert is None else convert(value)
    said = dict(flat(found["metadata"])) | said
    result = {"date": f"{said['General.date']}T{said['General.time']}"}
    for name, (ours, factor) in PEERS.items():
        for kind in ("SEM", "TEM"):
            value = said.get(f"Acquisition_instrument.{kind}.{name}")
            if value and (factor is None or not isinstance(value, str)):  # 0 is no magnification
                result[ours] = value if factor is None else value * factor
    return result


def flat(tree, path=""):
    for key, value in tree.items():
        inner = isinstance(value, dict)
        yield from flat(value, f"{path}{key}.") if inner else [(path + key, value)]


@pytest.mark.parametrize(
    ("plugin", "name", "least"),
    [
        ("emd", "more/hdf5/Camera_Ceta_Imaging_Micro.emd", 5),
        ("emd", "more/hdf5/fei_example_dpc_titles.emd", 7),
        ("emd", "more/hdf5/Test_SI_16x16_215_kx.emd", 7),
        ("hspy", "hspy/example2_v3.1.hspy", 6),
        ("tiff", "more/tiff/FEI-Helios-Ebeam-8bits.tif", 6),
        ("tiff", "more/tiff/test_tiff_Zeiss_SEM_512pix.tif", 4),
        ("tiff", "more/tiff/JEOL-SightX-TEM-mag-dummy.tif", 7),
        ("tiff", "more/tiff/test_hamamatsu_streak_SCAN.tif", 1),
    ],
)
def test_rosettasciio_reads_the_same(data, plugin, name, least):
    """It tells dates of Velox in the time zone of the machine, and a few digits of angles."""
    expected, found = theirs(plugin, data / name), instrument_of(data / name)
    assert len(expected) >= least
    ours, date = (datetime.fromisoformat(one.pop("date")) for one in (found, expected))
    assert (ours.astimezone() if plugin == "emd" else ours).replace(tzinfo=None) == date
    assert {key: found[key] for key in expected} == nearly(expected, absolute=1e-5)
