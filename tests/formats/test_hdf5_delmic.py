"""Delmic: acquisitions with their axes, as RosettaSciIO reads them, never the thumbnail."""

import warnings

import numpy as np
import pytest
from delmic_writer import write_delmic

from dask_tiled import describe, open_dataset

delmic = pytest.importorskip("rsciio.delmic", reason="rosettasciio has no reader of Delmic")
pytestmark = pytest.mark.usefixtures("synchronous")

RANDOM = np.random.default_rng(1)
WAVELENGTHS = np.linspace(4e-7, 9e-7, 11)
UNITS = {"m": 1, "µm": 1e-6, "nm": 1e-9, "pm": 1e-12, "s": 1, "µs": 1e-6, "ns": 1e-9, "ps": 1e-12}


def counts(*shape):
    return RANDOM.integers(0, 60_000, shape, dtype="u2")


SURVEY = {"data": counts(1, 1, 1, 12, 16), "title": "Secondary electrons survey"}
CONCURRENT = {
    "data": counts(1, 1, 1, 3, 4),
    "title": "Secondary electrons concurrent",
    "steps": (3e-7, 4e-7),
}
RESOLVED = [
    {
        "data": counts(1, 1, 1, 5, 7),
        "title": "Angle-resolved",
        "date": 1.7e9 + k,
        "facts": {"PolePosition": (3.0, 2.0)},
    }
    for k in (3, 1, 2, 0, 11, 10, 9, 8, 7, 6, 5, 4)
]
POLARIZED = [
    {**one, "facts": {**one["facts"], "Polarization": name}, "data": one["data"] + k}
    for k, name in enumerate(("vertical", "horizontal"))
    for one in RESOLVED
]
KINDS = {
    "intensity": {"data": counts(1, 1, 1, 3, 4), "title": "CL intensity"},
    "spectra": {"data": counts(11, 1, 1, 3, 4), "scales": {"C": WAVELENGTHS}},
    "spectrum of a spot": {"data": counts(11, 1, 1, 1, 1), "scales": {"C": WAVELENGTHS}},
    "spectra of a line": {"data": counts(11, 1, 1, 1, 4), "scales": {"C": WAVELENGTHS}},
    "time traces": {
        "data": counts(1, 9, 1, 3, 4),
        "title": "Time Correlator",
        "scales": {"T": np.arange(9) * 5e-10 + 1e-9},
    },
    "spectra over time": {
        "data": counts(11, 9, 1, 3, 4),
        "title": "Temporal Spectrum",
        "scales": {"C": WAVELENGTHS, "T": np.arange(9) * 5e-7},
    },
    "spectra over angle": {
        "data": counts(11, 9, 1, 3, 4),
        "title": "AR Spectrum",
        "labels": "CAZYX",
        "scales": {"C": WAVELENGTHS, "A": np.full(9, np.nan)},
    },
    "wavelengths of a polynomial": {
        "data": counts(11, 1, 1, 3, 4),
        "scales": {"C": WAVELENGTHS + 1e-8 * np.arange(11) ** 2},
    },
    "chunks": {
        "data": counts(11, 1, 1, 3, 4),
        "scales": {"C": WAVELENGTHS},
        "chunks": (4, 1, 1, 2, 3),
        "compression": "gzip",
    },
}
DIMS = {
    "intensity": ("y", "x"),
    "spectra": ("scan_y", "scan_x", "wavelength"),
    "wavelengths of a polynomial": ("scan_y", "scan_x", "wavelength"),
    "spectrum of a spot": ("wavelength",),
    "spectra of a line": ("scan_x", "wavelength"),
    "time traces": ("scan_y", "scan_x", "time"),
    "spectra over time": ("scan_y", "scan_x", "time", "wavelength"),
    "spectra over angle": ("scan_y", "scan_x", "angle", "wavelength"),
    "chunks": ("scan_y", "scan_x", "wavelength"),
}


def check_axes(axes, expected):
    """Compare coordinates with those of RosettaSciIO, in SI units."""
    for axis, other in zip(axes, expected, strict=True):
        if other["name"] in {"Angle", "Angle A", "Angle B"}:
            assert (axis.units, axis.scale, axis.offset) == ("", 1, 0)
            continue
        points = other.get("axis")
        if points is None:
            points = other["offset"] + other["scale"] * np.arange(other["size"])
        units = axis.coordinate_units or axis.units
        ours = axis.points(len(points)) * UNITS[units]
        np.testing.assert_allclose(ours, points * UNITS[other["units"]], rtol=1e-9, atol=1e-18)
        assert units == other["units"]


@pytest.mark.parametrize("kind", KINDS)
def test_acquisitions_equal_those_of_rosettasciio(tmp_path, kind):
    path = write_delmic(tmp_path / "a.h5", [SURVEY, CONCURRENT, KINDS[kind]])
    (expected,) = delmic.file_reader(str(path))
    arr = open_dataset(path, doubts="raise")
    assert arr.dims == DIMS[kind]
    np.testing.assert_array_equal(arr, expected["data"])
    assert arr.dtype == expected["data"].dtype
    check_axes(arr.axes, expected["axes"])
    sig = sum(name in {"time", "angle", "wavelength"} for name in arr.dims) or 2
    assert len(arr.description.sig_shape) == sig
    told = arr.description.instrument
    assert (told["exposure_time"].value, told["exposure_time"].unit) == (0.25, "s")
    assert str(told["date"].value).startswith("2023-11-14T22:13:20")


@pytest.mark.thorough
def test_acquisitions_are_listed_by_title_as_rosettasciio_sorts_them(tmp_path):
    drift = {"data": counts(1, 5, 1, 2, 3), "title": "Anchor region"}
    acquisitions = [SURVEY, drift, CONCURRENT, KINDS["spectra"], KINDS["intensity"]]
    path = write_delmic(tmp_path / "a.h5", acquisitions)
    expected = delmic.file_reader(str(path), signal="all")
    listed = describe(path).metadata["hdf5"]["datasets"]
    titles = [one["metadata"]["General"]["title"] for one in expected]
    assert [one["title"] for one in listed.values()] == titles
    for number, (title, one) in enumerate(zip(titles, expected, strict=True)):
        place = next(path for path, facts in listed.items() if facts["title"] == title)
        group = place.split("/")[1]
        for dataset in (number, title, place, group, f"{group}/ImageData"):
            np.testing.assert_array_equal(open_dataset(path, dataset=dataset), one["data"])
    thumbnail = open_dataset(path, dataset="/Preview/Image")
    assert (thumbnail.shape, thumbnail.dims) == ((512, 512, 3), ("y", "x", "s"))


@pytest.mark.thorough
@pytest.mark.parametrize("polarized", [False, True])
def test_angle_resolved_images_are_a_scan_in_order_of_time(tmp_path, polarized):
    images = POLARIZED if polarized else RESOLVED
    path = write_delmic(tmp_path / "a.h5", [SURVEY, CONCURRENT, *images])
    expected = delmic.file_reader(str(path))
    titles = ["Angle-resolved vertical", "Angle-resolved horizontal"]
    assert len(expected) == (2 if polarized else 1)
    for title, other in zip(titles if polarized else ["Angle-resolved"], expected, strict=True):
        arr = open_dataset(path, dataset=title)
        assert arr.dims == ("scan_y", "scan_x", "y", "x")
        np.testing.assert_array_equal(arr, other["data"])
        check_axes(arr.axes[:2], other["axes"][:2])
    assert len(describe(path).doubts) == polarized


@pytest.mark.thorough
def test_incomplete_angle_resolved_scans_are_single_images(tmp_path):
    path = write_delmic(tmp_path / "a.h5", [CONCURRENT, *RESOLVED[:-1]])
    desc = describe(path)
    assert desc.shape == (5, 7)
    (doubt,) = desc.doubts
    assert "11 arrays may be meant" in doubt.text
    for number, one in enumerate(RESOLVED[:-1], 1):
        arr = open_dataset(path, dataset=f"Acquisition{number}")
        np.testing.assert_array_equal(arr, one["data"][0, 0, 0])


def test_values_of_an_acquisition_are_facts_unless_invalid(tmp_path):
    facts = {"AccelerationVoltage": 1e4, "LensNA": 0.9}
    spectra = {**KINDS["spectra"], "facts": facts, "invalid": ("LensNA",)}
    desc = describe(write_delmic(tmp_path / "a.h5", [spectra]))
    found = desc.metadata["hdf5"]["facts"]
    assert found["/Acquisition0/PhysicalData"]["AccelerationVoltage"] == 1e4
    assert "LensNA" not in found["/Acquisition0/PhysicalData"]
    assert found["/Acquisition0/SVIData"]["Company"] == "Delmic"
    assert desc.instrument["beam_energy"].value == 1e4


def test_damaged_values_leave_the_pixels(tmp_path):
    """Without labels, scales and titles, images have the usual order."""
    import h5py

    path = write_delmic(tmp_path / "a.h5", [KINDS["spectra"]])
    with h5py.File(path, "a") as file:
        group = file["Acquisition0"]
        del group["ImageData/Image"].attrs["DIMENSION_LABELS"]
        del group["PhysicalData/Title"], group["ImageData/YOffset"]
        group["ImageData/DimensionScaleX"][...] = np.nan
        group["ImageData/DimensionScaleC"][...] = WAVELENGTHS**2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arr = open_dataset(path)
    np.testing.assert_array_equal(arr, KINDS["spectra"]["data"][:, 0, 0].transpose(1, 2, 0))
    assert arr.dims == DIMS["spectra"]
    assert arr.axes[1].scale == 1


def test_a_linear_wavelength_is_an_offset_and_a_step(tmp_path):
    """As Odemis before version 2.3 wrote it."""
    path = write_delmic(tmp_path / "a.h5", [{**KINDS["spectra"], "scales": {"C": 5e-8}}])
    import h5py

    with h5py.File(path, "a") as file:
        file["Acquisition0/ImageData/COffset"] = 4e-7
    axis = describe(path).axes[-1]
    assert (axis.units, axis.scale, axis.offset) == ("nm", pytest.approx(50), pytest.approx(400))


def test_other_objects_of_such_names_are_no_acquisitions(tmp_path):
    """A dataset, a group without an image, an image of unknown axes, and a circular link."""
    import h5py

    path = write_delmic(tmp_path / "a.h5", [SURVEY, {**KINDS["spectra"], "labels": "CTZQX"}])
    with h5py.File(path, "a") as file:
        file["Acquisition7"] = np.ones((600, 600))
        file.create_group("Acquisition8/PhysicalData")
        file["Acquisition9"] = h5py.SoftLink("/Acquisition9")
    arr = open_dataset(path, doubts="raise")
    np.testing.assert_array_equal(arr, SURVEY["data"][0, 0, 0])
    assert len(arr.description.metadata["hdf5"]["datasets"]) == 1
