"""HDF5: H5OINA files of Oxford Instruments, written by the specification."""

import numpy as np
import pytest
from checks import axes_text, instrument_of, nearly, write_hdf5

from dask_tiled import describe, open_dataset
from dask_tiled.testing import check_format

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

ROWS, COLUMNS = 6, 9
COUNT = ROWS * COLUMNS
RNG = np.random.default_rng(0)
PATTERNS = RNG.integers(0, 999, (COUNT, 8, 10), "i2")
SPECTRA = RNG.poisson(1, (COUNT, 32)).astype("i4")
IMAGE = RNG.integers(0, 255, COUNT, "u1")
AREAS = RNG.random(COUNT).astype("f4")
AREAS[7] = np.nan  # outside of the area that was acquired
HEADER = {
    "Beam Voltage": 20.0,
    "Magnification": 500.0,
    "Working Distance": 12.5,
    "Stage Position/X": 1.5,
    "Stage Position/Tilt": 0.25,
    "Stage Position/Rotation": 0.5,
    "Acquisition Date": "2023-05-04T03:02:01",
}
OF_EBSD = {"Camera Exposure Time": 2.0, "Phases/1/Phase Name": "Ni", "Camera Mode": "8x8"}
OF_EDS = {"Channel Width": 10.0, "Start Channel": -200.0}


def technique(file, name, data, cells, column, **header):
    """Add a technique; values have shape (1, 1) in the specification, (1,) in files of AZtec."""
    shape = (1, 1) if column else (1,)
    lengths = dict(zip(("Y Cells", "X Cells"), cells, strict=True))
    header = {**HEADER, **lengths, "Y Step": 0.5 * (cells[0] > 1), "X Step": 0.25, **header}
    for key, value in header.items():
        text = isinstance(value, str)
        kind = h5py.string_dtype() if text else np.min_scalar_type(value)
        file.create_dataset(f"1/{name}/Header/{key}", shape, kind, data=[[value]][column - 1])
    for key, values in data.items():
        stored = values[:, None] if column and values.ndim == 1 else values
        options = {} if "Patterns" in key else {"compression": "lzf", "chunks": True}
        file.create_dataset(f"1/{name}/Data/{key}", data=stored, **options)


def write(path, cells=(ROWS, COLUMNS), *, column=False):
    def fill(file):
        for key, value in {"Manufacturer": "Oxford Instruments", "Format Version": "5.0"}.items():
            file.create_dataset(key, (1,), h5py.string_dtype(), data=[value])
        euler = np.zeros((COUNT, 3), "f4")
        processed = (PATTERNS % 256).astype("u1")
        ebsd = {
            "Processed Patterns": processed,
            "Unprocessed Patterns": PATTERNS,
            "Euler": euler,
            "Band Contrast": IMAGE,
        }
        technique(file, "EBSD", ebsd, cells, column, **OF_EBSD)
        eds = {"Spectrum": SPECTRA, "Peak Area/Al K series": AREAS, "Live Time": AREAS}
        technique(file, "EDS", eds, cells, column, **OF_EDS)
        images = {"SE/Electron Image 1": IMAGE}
        technique(file, "Electron Image", images, cells, column, **{"Dwell Time": 5.0})

    return write_hdf5(path, fill)


@pytest.fixture(params=[False, True], ids=["row", "column"])
def path(tmp_path, request):
    return write(tmp_path / "a.h5oina", column=request.param)


def test_raw_patterns_open_as_a_scan(path):
    """Patterns have the shape and steps of the scan; datasets are listed by importance."""
    check_format(path, PATTERNS.reshape(ROWS, COLUMNS, 8, 10), cuts=2)
    desc = describe(path)
    assert axes_text(desc) == "scan_y 0.5 µm, scan_x 0.25 µm, y 1, x 1"
    header = desc.metadata["hdf5"]
    assert header["dataset_from"].startswith("Data of H5OINA")
    assert header["axes_from"] == "H5OINA"
    assert header["nav_shape_from"] == "Y Cells and X Cells in /1/EBSD/Header"
    assert [one["title"] for one in header["datasets"].values() if "title" in one] == [
        *("Unprocessed Patterns", "Processed Patterns", "Spectrum", "Electron Image 1"),
        *("Al K series", "Band Contrast", "Euler", "Live Time"),
    ]


def test_spectra_have_energies(path):
    expected = SPECTRA.reshape(ROWS, COLUMNS, 32)
    check_format(path, expected, dataset="Spectrum", cuts=2)
    for dataset in ("1/EDS", "1/EDS/Data/Spectrum"):
        axis = describe(path, dataset=dataset).axes[-1]
        assert (axis.name, axis.units, axis.scale, axis.offset) == ("Energy", "eV", 10, -200)


@pytest.mark.parametrize(
    ("dataset", "values"),
    [("Electron Image 1", IMAGE), ("Al K series", AREAS), ("1/EBSD/Data/Band Contrast", IMAGE)],
)
def test_images_and_maps_have_a_value_at_each_position(path, dataset, values):
    """Images and maps have two axes, though they are stored along one."""
    arr = open_dataset(path, dataset=dataset)
    expected = values.reshape(ROWS, COLUMNS)
    np.testing.assert_array_equal(arr.compute(), expected)
    np.testing.assert_array_equal(arr[2:5, 3].compute(), expected[2:5, 3])
    np.testing.assert_allclose(arr[3:].sum(axis=0).compute(), expected[3:].sum(axis=0), rtol=1e-6)
    assert arr.dtype == values.dtype
    assert [(a.name, a.scale) for a in arr.description.axes] == [("scan_y", 0.5), ("scan_x", 0.25)]


def test_lines_have_one_axis(tmp_path):
    path = write(tmp_path / "a.h5oina", (1, COUNT))
    check_format(path, PATTERNS, cuts=2)
    assert str(describe(path).axes[0]) == "scan_x (steps of 0.25 µm)"
    np.testing.assert_array_equal(open_dataset(path, dataset="Electron Image 1"), IMAGE)


def test_facts_of_the_header(path):
    """Facts are those of the file and of the opened technique."""
    facts = describe(path).metadata["hdf5"]["facts"]
    assert facts["/"] == {"Manufacturer": "Oxford Instruments", "Format Version": "5.0"}
    assert facts["/1/EBSD/Header"]["Phases"] == {"1": {"Phase Name": "Ni"}}
    assert facts.keys() == {"/", "/1/EBSD/Header"}
    common = {
        "beam_energy": 20e3,
        "magnification": 500,
        "working_distance": 12.5e-3,
        "stage_x": 1.5e-3,
        "tilt_alpha": 0.25,
        "rotation": 0.5,
        "date": "2023-05-04T03:02:01",
    }
    assert instrument_of(path) == nearly({**common, "exposure_time": 2e-3})
    image = describe(path, dataset="Electron Image 1").instrument
    assert image["dwell_time"].value == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [("X Cells", 8), ("X Cells", 0), ("Y Cells", -1), ("X Cells", np.nan), ("Y Cells", None)],
)
def test_invalid_scan_shape_is_ignored(tmp_path, name, value):
    """Data open in their stored shape."""
    path = write(tmp_path / "a.h5oina")
    with h5py.File(path, "r+") as file:
        for group in file["1"].values():
            del group[f"Header/{name}"]
            if value is not None:
                group[f"Header/{name}"] = [value]
    np.testing.assert_array_equal(open_dataset(path, dataset="1/EDS/Data/Spectrum"), SPECTRA)
    np.testing.assert_array_equal(open_dataset(path, dataset="1/EBSD/Data/Band Contrast"), IMAGE)


def test_invalid_steps_are_ignored(tmp_path):
    path = write(tmp_path / "a.h5oina")
    with h5py.File(path, "r+") as file:
        for name, value in {"X Step": [np.nan], "Y Step": b"wide"}.items():
            del file[f"1/EBSD/Header/{name}"]
            file[f"1/EBSD/Header/{name}"] = value
    assert axes_text(describe(path)) == "scan_y 1, scan_x 1, y 1, x 1"
