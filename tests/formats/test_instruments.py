"""Facts of the instrument, in real files and written ones."""

import math
import struct
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import tifffile
from checks import instrument_of, nearly
from mrcfile.dtypes import get_ext_header_dtype

import dask_tiled
from dask_tiled import describe
from dask_tiled.formats.tools.text import local_time
from dask_tiled.model.instrument import Instrument
from dask_tiled.testing import (
    Tile,
    counting_frames,
    write_czi,
    write_direct_electron,
    write_dm,
    write_empad,
    write_fits,
    write_jeol_list,
    write_lif,
    write_mib,
    write_mrc,
    write_nd2,
    write_ndata,
    write_pts,
    write_ripple,
    write_ser,
    write_tvips,
)

TALOS = {
    "microscope": "Tecnai 200 kV D2267 SuperTwin",
    "beam_energy": 200e3,
    **dict.fromkeys(("stage_z", "tilt_alpha", "tilt_beta"), 0),
}
TITAN = {"acquisition_mode": "STEM", "detector": "DigiScan"}
FACTS = {
    "dm/2D/test_STEM_image.dm3": TITAN | {
        "microscope": "FEI Titan", "beam_energy": 200e3, "magnification": 225e3,
        "camera_length": 0.135, "stage_x": -461.276e-6, "stage_y": 52.0039e-6,
        "stage_z": 35.0339e-6, "tilt_alpha": math.radians(24.950478513), "dwell_time": 3.5e-6,
        "date": "2016-08-08T16:26:37+01:00",
    },
    "dm/2D/multi_signal.dm3": TITAN | {
        "microscope": "Example Microscope", "beam_energy": 300e3, "magnification": 1e7,
        "camera_length": 0.077, "stage_x": 78.7215e-6, "stage_y": 100.896e-6,
        "stage_z": -89.5279e-6, "tilt_alpha": math.radians(0.001951998453), "dwell_time": 32.4e-6,
        "date": "2019-12-10T15:32:41-05:00",
    },
    "dm/2D/test_diffraction_pattern.dm3": {
        "microscope": "FEI Tecnai", "acquisition_mode": "TEM", "beam_energy": 200e3,
        "camera_length": 0.32, "detector": "BM-UltraScan", "exposure_time": 0.2,
        "date": "2014-07-09T16:56:34.906000+00:00",
    },
    "dm/2D/test-MonarcCL_spectrum-SI.dm4": {
        "microscope": "Zeiss SEM COM", "acquisition_mode": "SEM", "beam_energy": 5e3,
        "magnification": 5884.540039, "stage_x": 0.06123827398, "stage_y": 0.04601978511,
        "stage_z": 0.02567725815, "tilt_alpha": 0.0005485118362, "tilt_beta": 4.603728279,
        "detector": "PICam 1", "exposure_time": 0.05, "dwell_time": 0.05,
        "date": "2021-09-16T12:06:16-07:00",
    },
    "dm/2D/test-1.dm3": {},
    "ser/old/64x64_TEM_images_acquire.emi": TALOS | {
        "acquisition_mode": "TEM", "magnification": 19500, "defocus": 0, "stage_x": -0.161e-6,
        "stage_y": 0.018e-6, "detector": "WA-Orius", "exposure_time": 0.0625,
        "date": "2016-02-21T17:50:18",
    },
    "ser/old/64x64_diffraction_acquire_1.ser": TALOS | {
        "acquisition_mode": "TEM", "camera_length": 0.49, "stage_x": -0.159e-6, "stage_y": 0.019e-6,
        "detector": "WA-Orius", "exposure_time": 0.0625, "date": "2016-02-21T17:51:15",
    },
    "ser/old/16x16_STEM_BF_DF_acquire_2.ser": TALOS | {
        "acquisition_mode": "STEM", "magnification": 10000, "camera_length": 0.04, "defocus": 0,
        "stage_x": -0.158e-6, "stage_y": 0.019e-6, "dwell_time": 48e-6,
        "date": "2016-02-21T17:53:06",
    },
    "ser/old/16x16-spectrum_image-5x5x1024.emi": {
        "microscope": "Tecnai 300 kV D248 SuperTwin", "acquisition_mode": "STEM",
        "beam_energy": 300e3, "magnification": 1_550_000, "camera_length": 0.56, "defocus": 0,
        "stage_x": -0.331e-6, "stage_y": 0, "stage_z": 0.007e-6, "tilt_alpha": 0, "tilt_beta": 0,
        "exposure_time": 0.05, "date": "2016-02-22T11:56:27",
    },
    "ser/old/no_AcquireDate_1.ser": {
        "microscope": "Titan 300 kV D3188 SuperTwin", "acquisition_mode": "TEM",
        "beam_energy": 300e3, "magnification": 3800, "defocus": -19.827e-6, "stage_x": 133.485e-6,
        "stage_y": 415.972e-6, "stage_z": 2.46e-6, "tilt_alpha": math.radians(15.61),
        "tilt_beta": 0, "exposure_time": 25, "date": "2020-08-05T17:46:07",
    },
    "blo/test2.blo": {
        "beam_energy": 200e3, "camera_length": 0.2, "date": "2015-12-01T15:43:09.828000",
    },
    "tvips/test_tvips_2345_split_000.tvips": {
        "beam_energy": 200e3, "camera_length": 0.08, "date": "1993-06-18T10:34:56+00:00",
    },
    "empad/map4x4.xml": {
        "beam_energy": 300e3, "camera_length": 0.7225, "exposure_time": 1e-3,
        "date": "2019-06-06T13:30:00.164675+02:00",
    },
    "mib/Merlin_Single_Quad/Quad_1_Frame_CounterDepth_24_Rows_256.mib": {
        "detector": "Merlin Quad", "exposure_time": 1e-3, "gain_setting": "SLGM", "threshold": 2e3,
        "date": "2021-04-15T13:44:54.778214+00:00",
    },
    "mib/read_mib/example.mib": {
        "exposure_time": 0.1, "threshold": 20e3, "date": "2018-01-02T15:54:45.255737+00:00",
    },
    "mrc/rsciio/20241021_00405_movie.mrc": {
        "beam_energy": 300e3, "magnification": 1000, "camera_length": 1e-3, "detector": "DESim",
        "exposure_time": 1427.5e-6, "dwell_time": 1464.212499e-6, "gain": 51,
        "date": "2024-10-21T14:36:50-05:00",
    },
    "mrc/mrcfile/EMD-3197.map": {},
    "more/ripple/test_ripple_sdim-1_ndim-1_uint8_meta.rpl": {
        "beam_energy": 100e3, "tilt_alpha": math.radians(2), "date": "2016-08-06T10:55:00",
    },
    "more/ripple/test_ripple_sdim-1_ndim-2_float32_meta.rpl": {
        "beam_energy": 100e3, "convergence_angle": 1e-3, "collection_angle": 10e-3,
        "date": "2016-08-06T10:55:00",
    },
    "more/hdf5/Camera_Ceta_Imaging_Micro.emd": {
        "microscope": "Titan", "acquisition_mode": "TEM", "beam_energy": 300e3,
        "magnification": 26996.349, "camera_length": 0.378, "defocus": 0, "stage_x": 5.7681e-7,
        "stage_y": 1.377e-8, "stage_z": -6.879e-8, "tilt_alpha": -3.136e-6,
        "tilt_beta": 5.9311804e-4, "detector": "BM-Ceta", "exposure_time": 0.4,
        "date": "2020-07-29T16:48:19+00:00",
    },
    "more/hdf5/fei_example_dpc_titles.emd": {
        "microscope": "Titan", "acquisition_mode": "STEM", "beam_energy": 300e3,
        "magnification": 910e3, "camera_length": 3.028, "convergence_angle": 1.046128207e-3,
        "collection_angle": 3.362987419e-3, "inner_collection_angle": 6.025374443e-4, "defocus": 0,
        "stage_x": -1.7292756e-4, "stage_y": 2.658252e-5, "stage_z": -1.148294577e-4,
        "tilt_alpha": 0.08156077184, "tilt_beta": 0.08831366015, "detector": "DF4",
        "dwell_time": 1e-5, "gain_setting": "0", "date": "2020-10-29T13:16:16+00:00",
    },
    "more/hdf5/Test_SI_16x16_215_kx.emd": {
        "microscope": "Titan", "acquisition_mode": "STEM", "beam_energy": 300e3,
        "magnification": 225e3, "camera_length": 0.1159, "convergence_angle": 0.02501065271,
        "defocus": -2.486738962e-7, "stage_x": -4.16116365e-4, "stage_y": 4.00265934e-4,
        "stage_z": -1.4365038e-4, "tilt_alpha": 8.924343277e-5, "tilt_beta": 9.322136611e-5,
        "detector": "SuperXG23", "live_time": 0.5016637422, "real_time": 0.51199625,
        "dwell_time": 1e-3, "date": "2024-02-29T06:58:04+00:00",
    },
    "hspy/example2_v3.1.hspy": {
        "microscope": "FEI Tecnai", "acquisition_mode": "TEM", "beam_energy": 200e3,
        "camera_length": 0.32, "tilt_alpha": math.radians(10), "exposure_time": 0.2,
        "date": "2014-07-09T18:56:37",
    },
    "more/hspy/example1_v1.0.hdf5": {
        "beam_energy": 120e3, "beam_current": 12.345e-9, "convergence_angle": 1.5e-3,
        "collection_angle": 3.4e-3, "dwell_time": 0.1,
    },
    "more/hdf5/Sample_Image_2021-03-16_095.hdf5": {
        "photon_energy": 350, "exposure_time": 0.01, "date": "2021-03-16T15:06:05+01:00",
    },
    "more/hdf5/example_spectrum.emd": {},
    "hdf5/nexus/simple_signal.nxs": {},
    "more/tiff/FEI-Helios-Ebeam-8bits.tif": {
        "microscope": 'Helios NanoLab" 660', "beam_energy": 5e3, "beam_current": 6.25e-12,
        "working_distance": 4.03466e-3, "stage_x": 2.576e-5, "stage_y": -1.94177e-4,
        "stage_z": 7.965e-3, "tilt_alpha": 6.54498e-6, "rotation": -2.3611, "detector": "ETD",
        "dwell_time": 1e-5, "date": "2016-06-13T17:06:40",
    },
    "more/tiff/test_tiff_Zeiss_SEM_512pix.tif": {
        "microscope": "ULTRA 55-36-06", "beam_energy": 5e3, "magnification": 50e3,
        "working_distance": 3.9e-3, "stage_x": 62.9961e-3, "stage_y": 65.3168e-3,
        "stage_z": 44.678e-3, "tilt_alpha": 0, "rotation": math.radians(245.8),
        "detector": "InLens", "date": "2018-09-25T08:20:42",
    },
    "more/tiff/JEOL-SightX-TEM-mag-dummy.tif": {
        "microscope": "JEM-ARM200F", "acquisition_mode": "TEM", "beam_energy": 200e3,
        "beam_current": 259.9e-12, "magnification": 150e3, "stage_z": 635.9e-9,
        "tilt_alpha": math.radians(0.1), "tilt_beta": math.radians(-0.02),
        "detector": "screenCamera", "exposure_time": 0.1,
        "date": "2019-11-27T16:11:26.620540+09:00",
    },
    "more/tiff/test_hamamatsu_streak_SCAN.tif": {
        "microscope": "C10910", "detector": "C13440-20CU", "exposure_time": 0.15,
        "gain_setting": "63", "date": "2022-02-09T18:39:41",
    },
    "tiff/series_181003/P1_T0.tif": {},
    "ometiff/multi_companion/multifile.companion.ome": {"date": "2010-03-02T15:08:59"},
    "ometiff/singles/z-series.ome.tif": {},
}  # fmt: skip
"""All facts in these files, read from their bytes by hand."""


@pytest.mark.parametrize("name", FACTS)
def test_real_files(data, name):
    assert instrument_of(data / name) == nearly(FACTS[name], absolute=1e-12)


# Written files

FRAMES = counting_frames((2, 5, 7), "u2")


def scope(illumination, imaging, **more):
    return {"Illumination Mode": illumination, "Imaging Mode": imaging, **more}


def tags_of_gatan():
    """Yield tags of Digital Micrograph, and the facts in them."""
    eels = {
        "Acquisition": {
            "Exposure (s)": 7e-5, "Number of frames": 50, "Date": "14/05/2019",
            "Start time": "20:50:13",
        },
        "Experimental Conditions": {
            "Convergence semi-angle (mrad)": 21.0, "Collection semi-angle (mrad)": 62.0,
        },
    }  # fmt: skip
    tags = {"EELS": eels, "Microscope Info": {"Probe Current (nA)": 0.5, "Name": "Tecnai"}}
    facts = {
        "microscope": "Tecnai", "beam_current": 0.5e-9, "convergence_angle": 0.021,
        "collection_angle": 0.062, "exposure_time": 3.5e-3, "date": "2019-05-14T20:50:13",
    }  # fmt: skip
    yield tags, facts
    began = {"Acquisition begin": "27/10/2020 13:34:29 ", "Integration time (s)": 30.0}
    tags = {"CL": {"Acquisition": began}, "Microscope Info": {"Microscope": "Ultra"}}
    yield tags, {"microscope": "Ultra", "exposure_time": 30, "date": "2020-10-27T13:34:29"}
    # Day and month are ambiguous.
    either = {"Acquisition": {"Date": "09/11/2020", "Start time": "17:04:19"}}
    yield {"SI": either, "DataBar": {"Exposure Time (s)": 0.5}}, {"exposure_time": 0.5}
    # The time in UTC, counted from 1601 by Windows, decides, and gives the time zone.
    bar = {"Acquisition Date": "9/11/2020", "Acquisition Time": "5:04:19 PM", "Device Name": "US"}
    moment = datetime(2020, 9, 11, 15, 4, 20, tzinfo=UTC) - datetime(1601, 1, 1, tzinfo=UTC)
    bar["Acquisition Time (OS)"] = int(moment.total_seconds()) * 10_000_000
    pattern = scope("EFTEM", "EFTEM DIFFRACTION", **{"Indicated Magnification": 320.0})
    facts = {
        "acquisition_mode": "TEM", "camera_length": 0.32, "detector": "US",
        "date": "2020-09-11T17:04:19+02:00",
    }  # fmt: skip
    yield {"DataBar": bar, "Microscope Info": pattern}, facts
    stage = {f"Stage {k}": 1.0 for k in ("Alpha", "Beta", "X", "Y", "Z")}
    optics = {"STEM Camera Length": 80.0, "Voltage": 6e4, "Indicated Magnification": 1e6}
    frame = {"Sequence": {"Acquisition Start Time (epoch)": 1_500_000_000_000}}
    device = {"Device": {"Name": "K3"}, "Parameters": {"High Level": {"Exposure (s)": 0.125}}}
    tags = {
        "Session Info": {"Microscope": "ARM"},
        "DigiScan": {"Sample Time": 4.0},
        "Acquisition": {"Frame": frame, **device},
        "Microscope Info": scope("STEM", "DIFFRACTION", **optics, **{"Stage Position": stage}),
    }
    facts = {
        "microscope": "ARM", "acquisition_mode": "STEM", "beam_energy": 60e3, "magnification": 1e6,
        "camera_length": 0.08, "stage_x": 1e-6, "stage_y": 1e-6, "stage_z": 1e-6,
        "tilt_alpha": math.pi / 180, "tilt_beta": math.pi / 180, "detector": "K3",
        "exposure_time": 0.125, "dwell_time": 4e-6, "date": "2017-07-14T02:40:00+00:00",
    }  # fmt: skip
    yield tags, facts
    yield {"SI": {"Acquisition": {"Pixel time (s)": 0.25}}}, {"dwell_time": 0.25}


def of_gatan(folder):
    for number, (tags, expected) in enumerate(tags_of_gatan()):
        for stored in (tags, {"source": {"Tags at creation": tags}}):  # of a picture, of a stack
            yield write_dm(folder / f"{number}.dm4", FRAMES, tags=stored), expected


def of_mrc(folder):
    """Write extended headers of FEI, new and old, and a file of Direct Electron."""
    fields = {
        "Microscope type": b"Titan", "Camera name": b"Ceta", "Metadata size": 768,
        "HT": 3e5, "Magnification": 1e5, "Camera length": 0.5, "Convergence angle": 0.02,
        "Integration time": 1.5, "Dwell time": 0.25, "Defocus": -1e-6, "X-Stage": 2e-6,
        "Alpha tilt": 30, "Timestamp": 43831.5,
    }  # fmt: skip
    extended = np.zeros(2, get_ext_header_dtype(b"FEI1", "<"))
    for name, value in fields.items():
        extended[name] = value
    options = {"extended": extended.tobytes(), "extended_type": b"FEI1"}
    facts = {
        "microscope": "Titan", "beam_energy": 3e5, "magnification": 1e5, "camera_length": 0.5,
        "convergence_angle": 0.02, "defocus": -1e-6, "stage_x": 2e-6, "stage_y": 0, "stage_z": 0,
        "tilt_alpha": math.pi / 6, "tilt_beta": 0, "detector": "Ceta", "dwell_time": 0.25,
        "exposure_time": 1.5, "date": "2020-01-01T12:00:00",
    }  # fmt: skip
    yield write_mrc(folder / "fei.mrc", FRAMES.astype("i2"), **options), facts
    old = bytearray(1024 * 128)
    struct.pack_into("<13f", old, 0, 45, 0, 30, 0, 0, 0, 0, -5e-6, 2, 0, 0, 0, 8e4)
    facts = {  # values above a metre are in micrometres
        "magnification": 8e4, "defocus": -5e-6, "stage_x": 30e-6, "stage_y": 0, "stage_z": 0,
        "tilt_alpha": math.pi / 4, "tilt_beta": 0, "exposure_time": 2,
    }  # fmt: skip
    yield write_mrc(folder / "old.mrc", FRAMES.astype("i2"), extended=bytes(old)), facts
    info = {
        "Instrument Project Name": "Polara",
        "Instrument Project TEMorSTEM Mode": 1,
        "Instrument Project Magnification": -1,
        "Scan - Enable": "Disable",
        "Scan - Dwell Time (microseconds)": 3,
        "ADUs Per Electron Bin1x": 300,
        "Timestamp (seconds since Epoch)": 1695682755,
    }
    text = "".join(f"{key:60} = {value}\n" for key, value in info.items())
    (folder / "a_info.txt").write_text(text, "utf8")
    facts = {"microscope": "Polara", "acquisition_mode": "STEM", "gain": 300}
    facts["date"] = "2023-09-25T22:59:15+00:00"
    yield write_mrc(folder / "a_movie.mrc", FRAMES), facts


def of_direct_electron(folder):
    info = {
        "Instrument Accelerating Voltage (V)": 300e3, "Instrument Project Magnification": 1000,
        "Instrument Project Camera Length (centimeters)": 2.5, "Camera Model": "DESim",
        "Frame Exposure Time (nanoseconds)": 1427500, "Scan - Enable": "Enable",
        "Scan - Dwell Time (microseconds)": 1464.5, "ADUs Per Electron": 51,
        "Timestamp (seconds since Epoch)": 1695682755, "Local time": "Mon Sep 25 17:59:15 2023",
    }  # fmt: skip
    facts = {
        "beam_energy": 300e3, "magnification": 1000, "camera_length": 0.025, "detector": "DESim",
        "exposure_time": 1427.5e-6, "dwell_time": 1464.5e-6, "gain": 51,
        "date": "2023-09-25T17:59:15-05:00",
    }  # fmt: skip
    yield write_direct_electron(folder, FRAMES, info), facts


SCOPE = {
    "Microscope": ("Microscope Tecnai", ""), "Mode": ("TEM uP SA Zoom Image", ""),
    "High tension": (200, "kV"), "Magnification": (19500, "x"), "Camera length": (0.49, "m"),
    "Defocus": (-2.5, "um"), "Stage X": (1.5, "um"), "Stage Y": (2, "um"), "Stage Z": (3, "um"),
    "Stage A": (30, "deg"), "Stage B": (-15, "deg"),
}  # fmt: skip
SCOPE_FACTS = {
    "microscope": "Tecnai", "acquisition_mode": "TEM", "beam_energy": 200e3,
    "magnification": 19500, "camera_length": 0.49, "defocus": -2.5e-6, "stage_x": 1.5e-6,
    "stage_y": 2e-6, "stage_z": 3e-6, "tilt_alpha": math.pi / 6, "tilt_beta": -math.pi / 12,
}  # fmt: skip


def of_tia(folder):
    """Write an image of a camera, a scan, and a spectrum without a high tension."""
    acquired = [
        "<CameraNamePath>Orius</CameraNamePath><DwellTimePath>0.0625</DwellTimePath>",
        "<DwellTimePath>4.8e-05</DwellTimePath>",
        "<IntegrationTime>0.25</IntegrationTime>",
    ]
    facts = [{"detector": "Orius", "exposure_time": 0.0625}, {"dwell_time": 48e-6}]
    facts.append({"exposure_time": 0.25, "beam_energy": 80e3, "acquisition_mode": "STEM"})
    text, stem = "JK\0\2", folder / "tia"
    for number, (inner, expected) in enumerate(zip(acquired, facts, strict=True)):
        told = SCOPE if number < 2 else {**SCOPE, "Mode": ("STEM nP", ""), "High tension": (1, "")}
        labels = "".join(
            f"<Data><Label>{label}</Label><Value>{value}</Value><Unit>{unit}</Unit></Data>"
            for label, (value, unit) in told.items()
        )
        text += f"<ObjectInfo><ExperimentalDescription><Root>{labels}</Root>"
        text += f"</ExperimentalDescription><AcquireInfo>{inner}</AcquireInfo>"
        text += "<AcquireDate>Sun Feb 21 17:50:18 2016</AcquireDate><ExperimentalConditions>"
        text += "<MicroscopeConditions><AcceleratingVoltage>80000</AcceleratingVoltage>"
        text += "</MicroscopeConditions></ExperimentalConditions></ObjectInfo>"
        path = write_ser(folder / f"tia_{number + 1}.ser", FRAMES)
        stem.with_suffix(".emi").write_text(text, "latin1")
        yield path, SCOPE_FACTS | {"date": "2016-02-21T17:50:18"} | expected


def of_light_microscopes(folder):
    for name, told in (("Axio", "><System>Axio</System>"), ("Z1", ' Name="Z1">')):
        facts = f"<Instrument><Microscopes><Microscope{told}</Microscope>"
        facts += "</Microscopes><Objectives><Objective><NominalMagnification>20"
        facts += "</NominalMagnification></Objective></Objectives><Detectors><Detector "
        facts += 'Name="Camera"/></Detectors></Instrument>'
        options = {"facts": facts, "channels": ["a"]}
        path = write_czi(folder / f"{name}.czi", [Tile({"Y": 0, "X": 0}, FRAMES[0])], **options)
        expected = {"microscope": name, "magnification": 20, "detector": "Camera"}
        yield path, expected | {"exposure_time": 2.5e-3, "date": "2024-05-06T07:08:09+00:00"}
    settings = {"SystemTypeName": "TCS SP8", "Magnification": "63", "ZPosition": "2.5E-6"}
    settings |= {"StagePosX": "0.01", "StagePosY": "-0.02", "PixelDwellTime": "4.5E-7"}
    options = {"hardware": settings, "stamps": [132_564_512_000_000_000 + k for k in range(2)]}
    expected = {
        "microscope": "TCS SP8", "magnification": 63, "stage_x": 0.01, "stage_y": -0.02,
        "stage_z": 2.5e-6, "dwell_time": 4.5e-7, "date": "2021-01-30T03:33:20+00:00",
    }  # fmt: skip
    yield write_lif(folder / "a.lif", {"a": FRAMES}, "tyx", **options), expected
    options = {"hardware": {"MicroscopeModel": "DM6"}}
    yield write_lif(folder / "b.lif", {"a": FRAMES}, "tyx", **options), {"microscope": "DM6"}
    facts = {"dExposureTime": 12.5, "sCamera": {"pCameraSetting": {"CameraUserName": "Orca"}}}
    facts["sOptics"] = {
        "m_sMicroscopeFullName": "Ti2",
        "pObjectiveSetting": {"dObjectiveMag": 40.0},
    }
    expected = {"microscope": "Ti2", "detector": "Orca", "magnification": 40}
    expected |= {"exposure_time": 0.0125, "date": "2023-02-24T18:00:00+00:00"}
    yield write_nd2(folder / "a.nd2", FRAMES, "tyx", facts=facts), expected


def of_ripple(folder):
    further = {"beam-energy": 100, "convergence-angle": 1, "collection-angle": 10}
    facts = {"beam_energy": 100e3, "convergence_angle": 1e-3, "collection_angle": 10e-3}
    facts["tilt_alpha"] = math.pi / 90
    for moment, date in (({"time": "10:55:00"}, "2016-08-06T10:55:00"), ({}, "2016-08-06")):
        told = {**further, "tilt-stage": 2, "date": "2016-08-06", **moment}
        path, _ = write_ripple(folder / f"{len(moment)}.rpl", FRAMES, further=told)
        yield path, facts | {"date": date}


FEI = """[Stage]\r\nStageX=-1e-3\r\nStageY=-2e-3\r\nStageZ=-3e-3\r\nStageT=-0.5\r\nStageR=-2\r\n
[Detectors]\r\nName=ETD\r\n[Scan]\r\nDwelltime=1e-5\r\n"""
FEI_FACTS = {
    "stage_x": -1e-3, "stage_y": -2e-3, "stage_z": -3e-3, "tilt_alpha": -0.5, "rotation": -2,
    "detector": "ETD", "dwell_time": 1e-5,
}  # fmt: skip
ZEISS = {
    "AP_IPROBE": "I Probe = 100 pA", "AP_STAGE_AT_X": "Stage at X = 1.5 mm",
    "AP_STAGE_AT_Y": "Stage at Y = 2.5 mm", "AP_STAGE_AT_Z": "Stage at Z = 3.5 mm",
    "AP_STAGE_AT_T": "Stage at T = 30.0 °", "AP_STAGE_AT_R": "Stage at R = 60.0 °",
    "DP_DETECTOR_TYPE": "Detector = SE2", "DP_DWELL_TIME": "Dwell Time = 50 ns",
    "SV_SERIAL_NUMBER": "Serial No. = ULTRA 55",
}  # fmt: skip
ZEISS_FACTS = {
    "microscope": "ULTRA 55", "beam_current": 100e-12, "stage_x": 1.5e-3, "stage_y": 2.5e-3,
    "stage_z": 3.5e-3, "tilt_alpha": math.pi / 6, "rotation": math.pi / 3, "detector": "SE2",
    "dwell_time": 50e-9,
}  # fmt: skip
JEOL = """<TemReporter><ElectronGun><BeamCurrent>260</BeamCurrent></ElectronGun><GonioStage>
<StagePosition><MZ>635</MZ><TX>30</TX><TY>-15</TY></StagePosition></GonioStage><JemBaumerCamera>
<Parameter><ExposureTimeValue>100000</ExposureTimeValue></Parameter></JemBaumerCamera>
<ImageSourceDetector>screenCamera</ImageSourceDetector></TemReporter>"""
JEOL_FACTS = {
    "beam_current": 260e-12, "stage_z": 635e-9, "tilt_alpha": math.pi / 6,
    "tilt_beta": -math.pi / 12, "detector": "screenCamera", "exposure_time": 0.1,
}  # fmt: skip
STREAK = """[Application],Software="HPD-TA"\r\n[Camera],CameraName="C13440",Type=34\r\n
[Acquisition],NrExposure=9,ExposureTime=150 ms,AcqMode=3\r\n
[Streak camera],DeviceName="C10910",MCP Gain=63,Mode="Operate"\r\n"""
STREAK_FACTS = {
    "microscope": "C10910", "detector": "C13440", "exposure_time": 0.15, "gain_setting": "63"
}  # fmt: skip


def of_tiff(folder):
    zeiss = "".join(f"{name}\r\n{text}\r\n" for name, text in ZEISS.items())
    told = [(34682, FEI), (34118, zeiss), (270, JEOL), (270, STREAK)]
    facts = FEI_FACTS, ZEISS_FACTS, JEOL_FACTS, STREAK_FACTS
    for (tag, text), expected in zip(told, facts, strict=True):
        entries = [(tag, text.encode("latin1") + b"\0"), (271, b"JEOL Ltd.\0")]
        entries = [(tag, 2, len(text), text, True) for tag, text in entries]
        path = folder / f"{len(text)}.tif"
        tifffile.imwrite(path, FRAMES[0], metadata=None, extratags=entries)
        yield path, expected


def write_files(folder):
    """Write files with facts that no real file has; yield each with the expected facts."""
    yield from of_gatan(folder)
    yield from of_mrc(folder)
    yield from of_direct_electron(folder)
    yield from of_tia(folder)
    yield from of_light_microscopes(folder)
    yield from of_ripple(folder)
    yield from of_tiff(folder)
    source = {"hardware_source_name": "Ronchigram", "exposure": 0.5}
    named = {"hardware_source": source, "instrument": {"high_tension": 6e4}}
    tuned = {"hardware_source": {**source, "autostem": {"high_tension_v": 6e4}}}
    expected = {"beam_energy": 60e3, "detector": "Ronchigram", "exposure_time": 0.5}
    for number, metadata in enumerate((named, tuned)):
        yield write_ndata(folder / f"{number}.ndata1", FRAMES, metadata=metadata), expected
    expected = {"detector": "Merlin Quad", "exposure_time": 1e-3, "gain_setting": "SLGM"}
    expected |= {"threshold": 2e3, "date": "2020-01-01T12:00:00+00:00"}
    yield write_mib(folder / "a.mib", FRAMES), expected
    write_pts(folder / "a.pts", np.zeros((1, 16, 16, 4096), "u2"))
    expected = {"microscope": "JEM", "detector": "EX", "working_distance": 5.5e-3}
    expected |= {"beam_energy": 200e3, "magnification": 4000, "dwell_time": 0.5e-3}
    yield folder / "a.pts", expected
    yield write_jeol_list(folder / "a.ASW", ["a.pts"]), expected
    xml = write_empad(folder / "b.xml", np.zeros((2, 128, 128), "f4"), nav_shape=(1, 2))
    whole = xml.read_text("utf8")
    for names in (
        ("high_voltage", "nominal_camera_length"),
        ("source.get_voltage", "optics.get_cameralength"),
    ):
        told = "".join(f"<{one}>{n}</{one}>" for one, n in zip(names, (8e4, 0.369), strict=True))
        stamp = '<timestamp isoformat="2016-08-27T20:54:33+02:00" timestamp="1472324073"/>'
        text = whole.replace("<iom_measurements>", f"{stamp}<iom_measurements>{told}")
        xml = folder / f"{names[0]}.xml"
        xml.write_text(text, "utf8")
        expected = {"beam_energy": 80e3, "camera_length": 0.369, "exposure_time": 1e-3}
        yield xml, expected | {"date": "2016-08-27T20:54:33+02:00"}
    for mode, name in ((1, "magnification"), (2, "camera_length")):
        (tvips,) = write_tvips(folder / f"c{mode}", FRAMES)
        content = bytearray(tvips.read_bytes())
        struct.pack_into("<2i", content, 40, 120, 5000)
        struct.pack_into("<3I", content, 256 + 4, 86_400, 250, 0)
        struct.pack_into("<I", content, 256 + 24, mode)
        tvips.write_bytes(content)
        expected = {"beam_energy": 120e3, name: 5e3 if mode == 1 else 5}
        yield tvips, expected | {"date": "1970-01-02T00:00:00.250000+00:00"}
    cards = {"INSTRUME": "CCD", "EXPTIME": 30.5, "DATE-OBS": "2001-02-03T04:05:06.7"}
    expected = {"detector": "CCD", "exposure_time": 30.5, "date": "2001-02-03T04:05:06.700000"}
    yield write_fits(folder / "d.fits", FRAMES, cards=cards), expected


@pytest.mark.parametrize(
    "text",
    [
        "Sat Aug 27 20:54:33 2016",
        "27.08.2016 20:54:33",
        "8/27/2016 8:54:33 PM",
        "27/08/2016 08:54:33 p.m.",
        "2016-08-27T20:54:33",
    ],
)
def test_dates_are_read_in_every_notation(text):
    assert local_time(text) == datetime(2016, 8, 27, 20, 54, 33)  # noqa: DTZ001
    utc = datetime(2016, 8, 27, 15, 24, 34, tzinfo=UTC)
    assert local_time(text, utc).isoformat() == "2016-08-27T20:54:33+05:30"
    assert local_time(text, utc - timedelta(days=2)) is None
    assert local_time(text, utc + timedelta(minutes=5)) is None


def test_dates_keep_their_time_zone():
    text = "2016-08-27T20:54:33+02:00"
    utc = datetime(2016, 8, 27, 18, 54, 33, tzinfo=UTC)
    assert local_time(text).isoformat() == local_time(text, utc).isoformat() == text


def test_written_files(tmp_path):
    for path, expected in write_files(tmp_path):
        assert instrument_of(path) == nearly(expected, absolute=1e-12), path


ELSEWHERE = {"hdf5", "tiff", "ome_tiff"}
"""Formats whose files are in tests of their own."""
NEVER = {"zarr"}
"""Formats whose facts are those of other formats."""


def test_every_declared_fact_is_tested(tmp_path, sample_of):
    """Each declaration of a format matches a written file."""
    descs = [describe(path) for path, _ in write_files(tmp_path)]
    descs += [
        describe(**sample_of(name).options) for name in ("bcf", "blo", "jeol", "jeol spectrum")
    ]
    formats = dask_tiled.formats()
    unmet = {
        (format.name, name, entry.path)
        for format in formats.values()
        for name, entries in format.instrument.items()
        for entry in entries
        if format.name not in ELSEWHERE | NEVER
        and not any(
            Instrument({}, desc.metadata, {name: [entry]})
            for desc in descs
            if desc.format == format.name
        )
    }
    assert not unmet
