"""HDF5: facts beside the pixels are in the metadata, within bounds."""

import json

import numpy as np
import pytest
from checks import axes_text, write_hdf5
from eiger_writer import write_eiger

from dask_tiled import describe
from dask_tiled.formats.hdf5 import attributes as hdf5_attributes
from dask_tiled.formats.hdf5 import facts as hdf5_facts
from dask_tiled.testing import check_format

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

FRAMES = np.arange(12 * 5 * 7, dtype="u2").reshape(12, 5, 7)


def facts_of(path, **options):
    header = describe(path, **options).metadata["hdf5"]
    return header["facts"], header["facts_complete"]


VELOX = "/Data/Image/b936b39acdb84cd2971d755b7ba267bf/Metadata"
HYPERSPY = "/Experiments/test_diffraction_pattern/metadata"
FACTS = {
    "more/hdf5/Camera_Ceta_Imaging_Micro.emd": [
        (VELOX, "Acquisition", "AcquisitionStartDatetime", {"DateTime": "1596041299"})
    ],
    "more/hdf5/Sample_Image_2021-03-16_095.hdf5": [
        ("/entry1", "start_time", "2021-03-16T15:06:05+01:00"),
        ("/entry1", "control", "energy@units", "eV"),
        ("/entry1", "instrument", "source", "name", "Swiss Light Source"),
        ("/entry1", "sample", "start_position", (1.0, 1.0, 1.0)),
    ],
    "hdf5/nexus/simple_signal.nxs": [
        ("/entry1", "auxiliary", "original_metadata", "instrument", "energy", 12.0),
        ("/entry1", "auxiliary", "original_metadata", "instrument", "energy@units", "keV"),
    ],
    "hdf5/emd/py4DSTEM_size2x3x4x5.h5": [
        ("/datacube_root/metadatabundle", "calibration", "R_pixel_size", 0.126796875),
        ("/datacube_root/metadatabundle", "calibration", "R_pixel_units", "nm"),
    ],
    "hspy/example2_v3.1.hspy": [
        (HYPERSPY, "Acquisition_instrument", "TEM", "Detector", "Camera", "exposure", 0.2),
        (HYPERSPY, "_HyperSpy", "Folding", "original_shape", None),
    ],
}


@pytest.mark.parametrize("name", FACTS)
def test_facts_of_real_files(data, name):
    """Facts are plain values, at the paths that they have in the file."""
    facts, complete = facts_of(data / name)
    assert complete
    for *path, expected in FACTS[name]:
        found = facts
        for part in path:
            found = found[part]
        assert found == expected
    json.dumps(facts)


NEXUS = {"entry": {"NX_class": "NXentry"}, "entry/frames": FRAMES, "entry/kept": 3.5}


def nexus(path, **contents):
    """Write a NeXus file with further contents of the entry."""
    return write_hdf5(path, NEXUS | {f"entry/{name}": one for name, one in contents.items()})


def test_only_small_plain_values_are_read(tmp_path):
    """Links, compressed or compound datasets and references are left out without an error."""
    values = {"one": [7], "few": [1, 2], "many": np.zeros(65), "nan": np.nan, "nans": [1, np.nan]}
    values |= {"null": h5py.Empty("f4"), "void": np.zeros((), "V3")}
    values |= {"record": np.zeros((), "i4,f4"), "outside": h5py.ExternalLink("none.h5", "/")}
    values |= {"up": h5py.SoftLink("/entry"), "nowhere": h5py.SoftLink("/none")}
    path = nexus(tmp_path / "a.nxs", **values)
    with h5py.File(path, "r+") as file:
        file["entry"].create_dataset("packed", data=[1, 2], compression=1)
        file["entry"].attrs["reference"] = file["entry"].ref
    facts, complete = facts_of(path, dataset="/entry/frames")
    assert complete
    kept = {"few": (1, 2), "kept": 3.5, "nan": None, "nans": (1, None), "one": 7}
    assert facts == {"/entry": {"NX_class": "NXentry", **kept}}


def test_long_texts_are_truncated(tmp_path):
    numbers = {f"entry@n{k}": k for k in range(100)}
    path = write_hdf5(tmp_path / "a.nxs", NEXUS | {"entry/long": "x" * 20_000} | numbers)
    facts, complete = facts_of(path)
    assert facts["/entry"]["long"] == "x" * 10_000
    assert facts["/entry"]["n99"] == 99
    assert not complete


@pytest.mark.usefixtures("hdf5_here")
def test_large_values_are_not_read(tmp_path, monkeypatch):
    """The limit holds for texts of variable or fixed length, and for attributes."""
    monkeypatch.setattr(hdf5_facts, "MOST_BYTES", 1000)
    monkeypatch.setattr(hdf5_attributes, "MOST_BYTES", 1000)
    large = {"text": "x" * 1001, "texts": ["a", "x" * 999, "b"], "fixed": b"x" * 1001}
    small = {"short": "x" * 1000, "shorts": ["a", "bc"], "exact": b"x" * 1000}
    path = nexus(tmp_path / "a.nxs", **large, **small)
    with h5py.File(path, "r+") as file:
        file["entry"].attrs.update(large=np.zeros(1001, "u1"), small=np.zeros(3, "u1"))
    read = []
    for kind in (h5py.Dataset, h5py.AttributeManager):
        get = kind.__getitem__

        def reading(self, key, get=get, **options):
            found = get(self, key, **options)
            text = isinstance(found, (bytes, str))
            read.append(len(found) if text else getattr(found, "nbytes", 0))
            return found

        monkeypatch.setattr(kind, "__getitem__", reading)
    facts, complete = facts_of(path)
    assert max(read) == 1000
    assert not complete
    assert facts["/entry"].keys() == {"NX_class", "kept", "short", "shorts", "exact", "small"}


@pytest.mark.parametrize(
    ("bound", "value"),
    [("MOST_VALUES", 10), ("MOST_CHARACTERS", 40), ("DEEPEST", 3), ("MOST_NAMES", 5)],
)
@pytest.mark.usefixtures("hdf5_here")
def test_number_of_facts_is_bounded(tmp_path, monkeypatch, bound, value):
    """``facts_complete`` is False if facts were left out."""
    path = nexus(tmp_path / "a.nxs", **{f"{'g/' * k}n{k}": k for k in range(10)})
    assert facts_of(path)[1]
    monkeypatch.setattr(hdf5_facts, bound, value)
    facts, complete = facts_of(path)
    assert not complete
    assert 0 < len(str(facts)) < 300


def test_circular_groups(tmp_path):
    path = nexus(tmp_path / "a.nxs")
    with h5py.File(path, "r+") as file:
        for k in range(3):
            file[f"entry/up{k}"] = file["entry"]
    facts, complete = facts_of(path)
    assert facts["/entry"]["kept"] == 3.5
    assert complete


def write_beside(master, **attributes):
    return write_hdf5(master.with_name("s.h5"), {"STEM Metadata": attributes})


@pytest.fixture
def master(tmp_path):
    """Write an Arina master with 12 frames in two files."""
    path = write_eiger(tmp_path, np.split(FRAMES, [7]), stem="s")
    with h5py.File(path, "r+") as file:
        file["entry/instrument/detector/photon_energy"] = 8000.0
        file["entry/instrument/detector/photon_energy"].attrs["units"] = "eV"
    return path


def test_scan_is_in_the_file_beside_a_master(master):
    """Scan shape and steps are read from there if the shape fits the frames."""
    size = {"Pixel Size": [0.25, 0.25]}
    write_beside(master, **size, **{"Scan Size X": 4, "Scan Size Y": [3]})
    desc = describe(master)
    assert axes_text(desc) == "scan_y 0.25 nm, scan_x 0.25 nm, y 1, x 1"
    header = desc.metadata["hdf5"]
    assert header["nav_shape_from"] == "Scan Size Y and Scan Size X in s.h5/STEM Metadata"
    assert header["facts"]["s.h5/STEM Metadata"]["Pixel Size"] == (0.25, 0.25)
    assert desc.doubts == ()
    check_format(master, FRAMES.reshape(3, 4, 5, 7), cuts=3)


def test_scan_without_a_fitting_shape_is_square(master):
    """Frames are one axis if their number is no square, or no scan is recorded."""
    write_beside(master, **{"Pixel Size": 0.5, "Scan Size X": 5, "Scan Size Y": 5})
    assert describe(master).nav_shape == (12,)
    with h5py.File(master, "r+") as file:
        del file["entry/data/data_000002"]
        file["entry/data/data_000002"] = FRAMES[:2]
    desc = describe(master)
    assert desc.nav_shape == (3, 3)
    assert [doubt.settle for doubt in desc.doubts] == ["pass nav_shape=(3, 3)"]
    assert desc.metadata["hdf5"]["nav_shape_from"].startswith("inferred")
    assert [axis.scale for axis in desc.axes[:2]] == [0.5, 0.5]
    master.with_name("s.h5").unlink()
    assert describe(master).nav_shape == (9,)


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n broken", b"text"])
def test_damaged_file_beside_a_master_is_ignored(master, content):
    master.with_name("s.h5").write_bytes(content)
    assert describe(master).nav_shape == (12,)
