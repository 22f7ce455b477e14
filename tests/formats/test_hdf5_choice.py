"""HDF5: the dataset that opens by default; the choice of others by path, number or title."""

import json
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from checks import axes_text, refuses, write_hdf5
from eiger_writer import write_eiger
from manifest import by_file, manifest

from dask_tiled import (
    CorruptFileError,
    MissingFileError,
    TruncatedFileError,
    describe,
    open_dataset,
)
from dask_tiled.testing import check_format

describing = import_module("dask_tiled.formats.describing")
h5py = pytest.importorskip("h5py", reason="h5py is not installed")
emd = pytest.importorskip("rsciio.emd", reason="rosettasciio is not installed")

MORE = manifest("HDF5", "more/") + manifest("hspy/zspy", "more/")
VELOX = [
    row for row in MORE if row["reader"].startswith("rsciio.emd") and "example_s" not in row["file"]
]
SCAN = np.arange(3 * 5 * 7, dtype="u2").reshape(3, 5, 7)


DEFAULTS = {
    "Camera_Ceta_Imaging_Micro.emd": "/Data/Image/b936b39acdb84cd2971d755b7ba267bf/Data",
    "fei_example_dpc_titles.emd": "/Data/Image/15c7bc815fc74329b0dbe36f041c17ed/Data",
    "Test_SI_16x16_215_kx.emd": "/Data/SpectrumStream",
    "example_spectrum.emd": "/signals/__unnamed__/data",
    "Focus_2021-03-16_051.hdf5": "/entry1/counter0/data",
    "Sample_Image_2021-03-16_095.hdf5": "/entry1/counter0/data",
    "example1_v1.0.hdf5": "/Experiments/NIO EELS OK SHELL/data",
}


@by_file(MORE, "row")
def test_default_datasets_of_real_files(data, row):
    path = data / row["file"]
    dataset = DEFAULTS[path.name]
    desc = describe(path)
    assert desc.metadata["hdf5"]["dataset"] == dataset
    assert next(iter(desc.metadata["hdf5"]["datasets"])) == dataset
    if dataset == "/Data/SpectrumStream":
        (stored,) = (one["data"] for one in emd.file_reader(str(path)) if one["data"].ndim == 3)
        np.testing.assert_array_equal(open_dataset(path), stored)
        return
    with h5py.File(path) as file:
        stored = file[dataset][()]
    if "/Data/Image" in dataset:
        frames = np.moveaxis(stored, -1, 0)
        stored = frames if len(frames) > 1 else frames[0]
    np.testing.assert_array_equal(open_dataset(path), stored)


@by_file(VELOX, "row")
def test_pictures_of_velox_equal_those_of_rosettasciio(data, row):
    """Pictures open by RosettaSciIO's titles; a series equals in its first frame."""
    path = data / row["file"]
    pictures = [one for one in emd.file_reader(str(path)) if one["data"].ndim == 2]
    titles = {one["title"]: place for place, one in listed(path).items()}
    images = [one for place, one in listed(path).items() if "SpectrumStream" not in place]
    assert len(pictures) == sum(len(one["shape"]) > 1 for one in images)
    for picture in pictures:
        title = picture["metadata"]["General"]["title"]
        arr = open_dataset(path, dataset=title)
        assert arr.description.metadata["hdf5"]["dataset"] == titles[title]
        first = arr if arr.ndim == 2 else arr[0]
        np.testing.assert_array_equal(first.compute(), picture["data"])
        assert arr.dtype == picture["data"].dtype


def listed(path):
    return describe(path).metadata["hdf5"]["datasets"]


@pytest.mark.thorough
def test_spectra_of_velox_equal_those_of_rosettasciio(data):
    path = data / "more/hdf5/Test_SI_16x16_215_kx.emd"
    spectra = [one for one in emd.file_reader(str(path)) if one["data"].ndim == 1]
    names = [f"SuperXG2{k}" for k in (1, 4, 2, 3)]  # in the order of their paths
    assert len(spectra) == len(names)
    for name, spectrum in zip(names, spectra, strict=True):
        np.testing.assert_array_equal(open_dataset(path, dataset=name), spectrum["data"])


def test_rendered_spectrum_images_of_velox_raise(data):
    path = data / "more/hdf5/Test_SI_16x16_215_kx.emd"
    with h5py.File(path) as file:
        image = next(iter(file["Data/SpectrumImage"]))
    assert not any("SpectrumImage" in place for place in listed(path))
    for dataset in ("Data/SpectrumImage", f"/Data/SpectrumImage/{image}/Data"):
        refuses(path, r"X-ray events.*SpectrumImage", dataset=dataset)


PATTERN = {
    "BinaryResult": {
        "PixelSize": {"width": "2e7", "height": "3e7"},
        "PixelUnitX": "1/m",
        "PixelUnitY": "1/m",
        "Offset": {"x": "-1e9", "y": "0"},
        "Detector": "BM-Ceta",
    }
}


def column(document, frames=1):
    """Return JSON as Velox stores it, once for each frame."""
    content = np.zeros((60000, frames), "u1")
    content[: len(document)] = np.frombuffer(document, "u1")[:, None]
    return content


def add_velox(file, name, frames, document=b"{}", **options):
    group = file.create_group(f"Data/Image/{name}")
    group.create_dataset("Data", data=np.moveaxis(frames, 0, -1), **options)
    group["Metadata"] = column(document, len(frames))


@pytest.mark.parametrize(
    "options",
    [
        *[{}, {"chunks": (5, 7, 1)}, {"chunks": (2, 4, 2), "compression": 1}],
        {"chunks": (2, 7, 3), "scaleoffset": 0},
    ],
    ids=["whole", "frames", "gzip", "library"],
)
def test_frames_of_velox_come_first(tmp_path, options):
    """Frames are the first axis however they are stored; patterns have scales in 1/nm."""
    document = json.dumps(PATTERN).encode()
    path = write_hdf5(
        tmp_path / "a.emd", lambda file: add_velox(file, "ab", SCAN, document, **options)
    )
    check_format(path, SCAN)
    desc = describe(path)
    assert axes_text(desc) == "frame 1, y 0.03 1/nm, x 0.02-1 1/nm"
    assert listed(path)["/Data/Image/ab/Data"]["title"] == "BM-Ceta"
    check_format(path, SCAN, dataset="Data/Image/ab", cuts=3)
    assert open_dataset(path, sig_dims=1).description.nav_shape == (3, 5)


def test_frames_of_velox_are_not_copied(tmp_path):
    """Frames lie strided in the file, and are described by strides."""
    path = write_hdf5(tmp_path / "a.emd", lambda file: add_velox(file, "ab", SCAN))
    pieces = describe(path).layout.pieces.rows()
    assert pieces.shape.tolist() == [[3, 5, 7]]
    assert pieces.strides.tolist() == [[2, 7 * 3 * 2, 3 * 2]]


@pytest.mark.parametrize(("rest", "chunks"), [("Float", None), ("FloatHalfEven", (2, 3, 1))])
def test_pairs_are_complex_numbers(tmp_path, rest, chunks):
    pairs = np.zeros((1, 5, 7), [(f"{name}{rest}", "<f4") for name in ("real", "imag")])
    for k, name in enumerate(pairs.dtype.names):
        pairs[name] = SCAN[k]
    path = write_hdf5(tmp_path / "a.emd", lambda file: add_velox(file, "ab", pairs, chunks=chunks))
    check_format(path, (SCAN[0] + 1j * SCAN[1]).astype("c8"))


PIXELS = {
    "PixelSize": {"width": "2e-9", "height": "3e-9"},
    "PixelUnitX": "m",
    "PixelUnitY": "m",
    "Offset": {"x": "-4e-9", "y": "0"},
}


def add_eels(file, name, stored, **options):
    group = file.create_group(f"Data/EelsSpectrumImage/{name}")
    group.create_dataset("Data", data=stored, **options)
    group["Metadata"] = column(b'{"Optics": {"AccelerationVoltage": "300000"}}')
    group["AcquisitionMetadata"] = column(b'{"Data": {"offset": 395.5, "dispersion": 0.25}}')
    group = file.require_group("Data/SpectrumImage/cd")
    if "Metadata" not in group:
        document = json.dumps({"BinaryResult": PIXELS}).encode()
        group["Data"], group["Metadata"] = np.zeros((9, 1), "u1"), column(document)


@pytest.mark.parametrize("chunks", [None, (5, 9, 1), (2, 4, 2)])
def test_spectrum_images_of_eels(tmp_path, chunks):
    """Spectrum images have the axes (y, x, energy)."""
    stored = np.random.default_rng(0).integers(0, 99, (5, 9, 4), "u2")  # x, energy, y
    path = write_hdf5(tmp_path / "a.emd", lambda file: add_eels(file, "ab", stored, chunks=chunks))
    expected = stored.transpose(2, 0, 1)
    check_format(path, expected)
    for dataset in ("EELS", "Data/EelsSpectrumImage/ab", 0):
        desc = describe(path, dataset=dataset)
        assert (desc.nav_shape, desc.sig_shape) == ((4, 5), (9,))
        assert axes_text(desc) == "y 3 nm, x 2-4 nm, Energy loss 0.25+395.5 eV"
    facts = desc.metadata["hdf5"]["facts"]
    assert facts["/Data/EelsSpectrumImage/ab/AcquisitionMetadata"]["Data"]["dispersion"] == 0.25


@pytest.mark.thorough
def test_lines_of_eels_and_the_default_picture(tmp_path):
    """The default is a picture of a detector, not an element map or a spectrum image."""
    with h5py.File(path := tmp_path / "a.emd", "w") as file:
        add_eels(file, "ab", SCAN[0])
        add_eels(file, "bc", SCAN[:, :1, :1])
        recorded = {"Detector": "BF", "DetectorIndex": "5"}
        pictures = {
            "1": {"Detector": "SuperXG2"},
            "2": recorded,
            "3": recorded | {"Detector": "HAADF"},
        }
        for name, document in pictures.items():
            add_velox(file, name, SCAN[:1], json.dumps({"BinaryResult": document}).encode())
    assert chosen(path)[0] == "/Data/Image/3/Data"
    assert [place.split("/")[3] for place in listed(path)] == ["3", "2", "1", "ab", "bc"]
    dataset = "/Data/EelsSpectrumImage/ab"
    check_format(path, SCAN[0], dataset=dataset, cuts=2)
    desc = describe(path, dataset=dataset)
    assert desc.dims == ("x", "Energy loss")
    assert desc.sig_shape == SCAN[0].shape[1:]
    check_format(path, SCAN[:, :1, :1].transpose(2, 0, 1), dataset="/Data/EelsSpectrumImage/bc")


def test_damaged_metadata_of_velox_are_ignored(tmp_path):
    with h5py.File(path := tmp_path / "a.emd", "w") as file:
        add_velox(
            file, "a", SCAN[:1], b'{"BinaryResult": {"PixelSize": {"width": "x", "height": []}}}'
        )
        add_velox(file, "b", SCAN[:1], b"\xff{")
        file["Operations/StemInputOperation/c"] = [b"["]
        file["Operations/StemInputOperation/d"] = np.zeros(3)
        file["Displays/ImageDisplay/e"] = [b'{"data": 3, "title": {}}']
    assert axes_text(describe(path)) == "y 1, x 1"
    assert "the first of 2" in describe(path).metadata["hdf5"]["dataset_from"]
    np.testing.assert_array_equal(open_dataset(path, dataset=1), SCAN[0])


def nxdata(path, shape=(3, 4), **attributes):
    """Return the contents of a group of NeXus."""
    return {path: {"NX_class": "NXdata", **attributes}, f"{path}/d": np.full(shape, 7, "u1")}


def chosen(path, **options):
    header = describe(path, **options).metadata["hdf5"]
    return header["dataset"], header["dataset_from"]


def test_nexus_default_and_signal_decide(tmp_path):
    """``default`` is followed from the root, through links; larger datasets do not count."""
    contents = {"raw": np.zeros((50, 50)), **nxdata("a/b", (3, 4), signal="d")}
    contents |= nxdata("a/d", (3, 3), signal="d") | nxdata("c/d", (3, 3), signal="d")
    contents |= {"c": {"NX_class": "NXentry", "default": "link"}, "c/link": h5py.SoftLink("/a/d")}
    path = write_hdf5(tmp_path / "a.nxs", contents | {"/": {"default": b"c"}})
    assert chosen(path) == ("/c/link/d", "default of NeXus")
    write_hdf5(path, contents | {"/": {"default": "a/b"}})
    assert chosen(path) == ("/a/b/d", "default of NeXus")
    write_hdf5(path, contents)
    assert chosen(path)[0] == "/c/link/d"  # default of the only NXentry
    del contents["c"]["default"]
    write_hdf5(path, contents)
    assert chosen(path) == ("/a/b/d", "signal of NXdata")  # the largest one
    write_hdf5(path, contents | {"/": {"default": "c"}})
    assert chosen(path)[0] == "/c/d/d"
    assert chosen(path, dataset="c")[0] == "/c/d/d"


def test_nexus_without_default_counts_signals_of_equal_size(tmp_path):
    contents = {"e/z": np.zeros((50, 50)), **nxdata("e/a", (99,), signal="d")}
    for name in "bcd":
        contents |= nxdata(f"e/{name}", signal="d")
    path = write_hdf5(tmp_path / "a.nxs", contents)
    assert chosen(path) == ("/e/b/d", "signal of NXdata, the first of 3 of its size")
    assert [one["shape"] for one in listed(path).values()] == [(3, 4)] * 3 + [(99,), (50, 50)]
    for number, name in enumerate(["b", "c", "d", "a"]):
        assert chosen(path, dataset=number) == (f"/e/{name}/d", "its number")
    for wrong in (5, -1, 1.5, True):
        refuses(path, "a number below 5", dataset=wrong)


FLAT, MASK = np.ones((6, 8), "f4"), np.zeros((6, 8), "u4")


@pytest.fixture
def impatient(monkeypatch):
    """Do not wait for files that are designated."""
    monkeypatch.setattr(describing, "PATIENCE", 0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("options", [{}, {"missing": "raise"}, {"follow": True}])
@pytest.mark.parametrize("beside", [{"flatfield": FLAT, "pixel_mask": MASK}, {}])
def test_links_that_lead_nowhere_come_before_the_largest_array(tmp_path, beside, options):
    """A master without its data files does not open its flatfield."""
    path = write_eiger(tmp_path, (), links=2)
    with h5py.File(path, "r+") as file:
        for name, pixels in beside.items():
            file[f"entry/instrument/detector/{name}"] = pixels
    refuses(path, r"data_000001; found scan_data_000001\.h5", TruncatedFileError, **options)
    if beside:
        flat = open_dataset(path, dataset="/entry/instrument/detector/flatfield")
        np.testing.assert_array_equal(flat, FLAT)
    for k in (1, 2):
        with h5py.File(tmp_path / f"scan_data_{k:06d}.h5", "w") as file:
            file["entry/data/data"] = SCAN + k
    np.testing.assert_array_equal(open_dataset(path), np.concatenate([SCAN + 1, SCAN + 2]))


COUNTS = {"entry/data": {"NX_class": "NXdata", "signal": "counts"}}


def test_a_signal_that_leads_nowhere_raises(tmp_path):
    contents = {**COUNTS, "entry/data/counts": h5py.SoftLink("/gone/counts"), "other": SCAN}
    path = write_hdf5(tmp_path / "scan.nxs", contents)
    for options in ({}, {"dataset": "entry"}, {"dataset": "/entry/data/counts"}):
        refuses(path, r"/entry/data/counts; found 'gone' in /", TruncatedFileError, **options)
    np.testing.assert_array_equal(open_dataset(path, dataset="other"), SCAN)
    np.testing.assert_array_equal(open_dataset(path, dataset=0), SCAN)
    write_hdf5(path, contents | {"gone/counts": SCAN + 1})
    np.testing.assert_array_equal(open_dataset(path), SCAN + 1)


GONE, LOST = h5py.ExternalLink("gone.h5", "/data"), h5py.SoftLink("/gone")
AXIS = {"name": "axis", "navigate": False, "size": 5}
AXES = {"Experiments/a/data": SCAN[0], "Experiments/a/axis-1": AXIS}
NO_SIGNAL = {"entry/data": {"NX_class": "NXdata", "signal": "gone"}}
NOWHERE = {
    "a default": (
        {"/": {"default": "entry"}, "entry": GONE}, "/entry; found gone.h5 does not exist"
    ),
    "above a default": (
        {"/": {"default": "entry/data"}, "entry": LOST}, "/entry; found 'gone' in / does not exist"
    ),
    "no default": ({"/": {"default": "gone"}}, "/gone; found 'gone' in / does not exist"),
    "a circle": (
        {
            "entry": {"NX_class": "NXentry", "default": "data"},
            "entry/data": h5py.SoftLink("/entry/same"), "entry/same": h5py.SoftLink("/entry/data"),
        },
        "/entry/data; found too many links lead to",
    ),
    "no signal": (NO_SIGNAL, "/entry/data/gone; found 'gone' in /entry/data does not exist"),
    "HyperSpy": (
        {"Experiments/a/data": GONE}, "/Experiments/a/data; found gone.h5 does not exist"
    ),
    "EMD": (
        {"array": {"emd_group_type": 1}, "array/data": GONE, "array/dim1": np.arange(3)},
        "/array/data; found gone.h5 does not exist",
    ),
    "an axis": (
        {**AXES, "Experiments/a/axis-0": GONE},
        "/Experiments/a/axis-0; found gone.h5 does not exist",
    ),
    "values": (
        {"Experiments/a/axis-0": AXIS, **AXES, "Experiments/a/axis-1/axis": LOST},
        "/Experiments/a/axis-1/axis; found 'gone' in / does not exist",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", NOWHERE)
def test_designations_that_lead_nowhere_come_before_the_largest_array(tmp_path, how):
    contents, found = NOWHERE[how]
    path = write_hdf5(tmp_path / "a.h5", contents | {"largest": np.ones((99, 99))})
    for options in ({}, {"missing": "fill"}, {"follow": True}):
        refuses(path, f", at {found}", MissingFileError, **options)
        assert open_dataset(path, dataset="largest", **options).shape == (99, 99)


def test_default_attributes_in_a_circle_raise(tmp_path):
    contents = {"largest": np.ones((99, 99)), "/": {"default": "a"}}
    contents |= {"a": {"default": "/a/b"}, "a/b": {"default": "/a"}}
    path = write_hdf5(tmp_path / "a.nxs", contents)
    refuses(path, "default attributes lead in a circle", CorruptFileError)
    assert open_dataset(path, dataset="largest").shape == (99, 99)


ARRAY, LARGE = {"emd_group_type": "array"}, np.zeros((60, 60))
CHOSEN = {
    "a lost signal leaves the others": (
        {**NO_SIGNAL, **nxdata("entry/other", signal="d"), "largest": LARGE},
        ("/entry/other/d", "signal of NXdata"),
    ),
    "links beside a signal": (
        {**COUNTS, "entry/data/counts": SCAN, "log": GONE},
        ("/entry/data/counts", "signal of NXdata"),
    ),
    "old NeXus marks the dataset": (
        {
            "e": {"NX_class": "NXentry"}, **nxdata("e/data", (2, 3)), "e/data/large": LARGE,
            "e/data/counts": np.ones((3, 4)), "e/data/counts@signal": np.int32(1),
        },
        ("/e/data/counts", "signal of NXdata"),
    ),
    "EMD": (
        {
            "a/scan": {"emd_group_type": np.int32(1)}, "a/scan/data": SCAN[0], "a/large": LARGE,
            "a/scan/dim1": np.zeros(500), "a/other": ARRAY, "a/other/datacube": SCAN,
            "a/other/dim0": np.zeros(3), "a/metadata": {"emd_group_type": "metadata"},
            "a/metadata/data": LARGE, "a/pointlist": {"emd_group_type": "pointlist"},
            "a/pointlist/data": LARGE,
        },
        ("/a/other/datacube", "emd_group_type"),
    ),
    "HyperSpy": (
        {
            f"Experiments/{name}": value
            for place, size in (("a", 3), ("b", 3), ("c", 2))
            for name, value in {
                f"{place}/data": np.zeros((size, 4)), f"{place}/learning_results/factors": LARGE
            }.items()
        },
        ("/Experiments/a/data", "Experiments of HyperSpy, the first of 2 of its size"),
    ),
    "two axes come before one": (
        {"table": np.zeros(1000), "one": SCAN[0], "two": SCAN[1]},
        ("/one", "the largest in the file, the first of 2 of its size"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", CHOSEN)
def test_arrays_that_come_before_others(tmp_path, why):
    contents, expected = CHOSEN[why]
    path = write_hdf5(tmp_path / "a.h5", contents)
    assert chosen(path) == expected
    if why == "EMD":
        assert chosen(path, dataset="a/scan")[0] == "/a/scan/data"


def test_empty_arrays_come_last(tmp_path):
    """Behind pictures, longer tables and shorter ones."""
    contents = {"empty": np.zeros((0, 8192)), "table": SCAN[0, 0], "one": SCAN[0, 0, :1]}
    path = write_hdf5(tmp_path / "a.h5", contents | {"two": SCAN[1]})
    assert [*listed(path)] == ["/two", "/table", "/one", "/empty"]
    refuses(path, "the array is empty", dataset="empty")


@pytest.mark.thorough
@pytest.mark.timeout(60)
def test_deep_groups_and_many_lost_signals_are_read_in_bounded_time(tmp_path):
    """Neither a path nor the search for lost signals takes time by the square of their number."""
    with h5py.File(path := tmp_path / "deep.nxs", "w") as file:
        group = file
        for _ in range(300):
            group = group.create_group("a")
        group["data"], file.attrs["default"] = SCAN, "/".join("a" * 300)
        group.attrs["signal"], file["largest"] = "data", np.ones((99, 99))
    assert open_dataset(path).shape == SCAN.shape
    with h5py.File(path := tmp_path / "many.nxs", "w") as file:
        for k in range(300):
            group = file.create_group(f"entry_{k}")
            group.attrs.update(NX_class="NXdata", signal="gone")
            group["beside"] = h5py.SoftLink("/gone")
        file["largest"] = np.ones((99, 99))
    refuses(path, "/entry_0/gone; found 'gone' in /entry_0", MissingFileError)


@pytest.mark.parametrize("attempts", [1, 3])
def test_following_waits_for_files_that_are_named(tmp_path, monkeypatch, attempts):
    """The data file lands after some attempts to open the master."""
    path, waits = write_eiger(tmp_path, (), links=1), []
    with h5py.File(path, "r+") as file:
        file["entry/instrument/detector/flatfield"] = FLAT

    def land(seconds):
        waits.append(seconds)
        if len(waits) == attempts:
            with h5py.File(tmp_path / "scan_data_000001.h5", "w") as file:
                file["entry/data/data"] = SCAN

    clock = SimpleNamespace(monotonic=lambda: 0, sleep=land)
    monkeypatch.setattr(describing, "time", clock)
    refuses(path, r"scan_data_000001\.h5", MissingFileError)
    assert waits == []
    np.testing.assert_array_equal(open_dataset(path, follow=True), SCAN)
    assert len(waits) == attempts


def test_eiger_master_opens_its_series(tmp_path):
    """The series opens even if it has one part only, or its signal is the first part."""
    with h5py.File(path := tmp_path / "a_master.h5", "w") as file:
        for k in (1, 2):
            file[f"entry/data/data_{k:06d}"] = SCAN[k:]
        file["entry/instrument/detector/mask"] = np.zeros((100, 100), "u4")
    assert chosen(path) == ("/entry/data", "names of an Eiger master")
    np.testing.assert_array_equal(open_dataset(path), np.concatenate([SCAN[1:], SCAN[2:]]))
    with h5py.File(path, "r+") as file:
        file["entry/data"].attrs.update(NX_class="NXdata", signal="data_000001")
    assert chosen(path) == ("/entry/data", "signal of NXdata")
    with h5py.File(path, "r+") as file:
        del file["entry/data/data_000002"]
        del file["entry/data"].attrs["signal"]
    assert chosen(path)[0] == "/entry/data/data_000001"
    with h5py.File(path, "r+") as file:
        file["entry/data/data_000000"] = h5py.ExternalLink("gone.h5", "/d")
    refuses(path, "data_000000")


@pytest.fixture
def lists():
    """Write a dataset of lists of variable length."""

    def write(group, name, shape, element="u4"):
        group.create_dataset(name, shape, dtype=h5py.vlen_dtype(np.dtype(element)))

    return write


LISTS = "lists of variable length.*, at {}; expected a dataset of numbers; found 12 lists"


@pytest.mark.parametrize("element", ["u4", "f8", [("qx", "f8"), ("counts", "f4")]], ids=str)
def test_lists_of_variable_length_are_named(tmp_path, lists, element):
    """Also beside small arrays; but not beside frames, or if another array is named."""
    path = tmp_path / "electrons.h5"
    with h5py.File(path, "w") as file:
        lists(file, "events/frames", (3, 4), element)
    for options in ({}, {"dataset": "events"}, {"dataset": "events/frames"}):
        refuses(path, LISTS.format("/events/frames"), **options)
    with h5py.File(path, "a") as file:
        file["events/scan_positions"], file["sum"] = np.arange(12), SCAN[0, :3, :4]
    for options in ({}, {"dataset": "events"}):
        refuses(path, LISTS.format("/events/frames"), **options)
    np.testing.assert_array_equal(open_dataset(path, dataset="sum"), SCAN[0, :3, :4])
    np.testing.assert_array_equal(open_dataset(path, dataset="events/scan_positions"), range(12))
    with h5py.File(path, "a") as file:
        file["frames"] = np.ones((12, 5, 7))
    assert open_dataset(path, doubts="raise").shape == (12, 5, 7)


def test_records_with_lists_are_named_and_texts_are_not_lists(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        record = np.dtype([("x", "f4"), ("hits", h5py.vlen_dtype(np.dtype("i4")))])
        file.create_dataset("records", (12,), record)
    refuses(path, LISTS.format("/records"))
    with h5py.File(path, "w") as file:
        file["names"], file["numbers"] = ["a"] * 12, np.arange(12)
    np.testing.assert_array_equal(open_dataset(path), np.arange(12))


MARKS = {
    "data": {"data": {"NX_class": "NXdata", "signal": "data"}},
    "array": {"array": {"emd_group_type": "array"}},
    "Experiments/a": {},
}


@pytest.mark.parametrize("place", MARKS)
def test_designated_lists_come_before_larger_arrays(tmp_path, lists, place):
    contents = {f"{place}/{name}": np.arange(4) for name in ("dim0", "dim1")} | MARKS[place]
    path = write_hdf5(tmp_path / "a.h5", contents | {"large": np.ones((99, 99))})
    with h5py.File(path, "a") as file:
        lists(file[place], "data", (3, 4))
    refuses(path, LISTS.format(".*/data"))
    assert open_dataset(path, dataset="large").shape == (99, 99)


COLOURS = np.arange(20 * 30 * 3, dtype="u1").reshape(20, 30, 3)
INTERLACED = {"PIXEL": (0, 1, 2), "LINE": (0, 2, 1), "PLANE": (2, 0, 1)}


@pytest.mark.parametrize("options", [{}, {"chunks": (2, 3, 3), "compression": "gzip"}], ids=str)
@pytest.mark.parametrize("mode", INTERLACED)
def test_true_colour_images_are_one_picture(tmp_path, mode, options):
    """As h5py reads them, whose axes the Image Specification orders."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        stored = COLOURS.transpose(INTERLACED[mode])
        picture = file.create_dataset("picture", data=stored, **options)
        names = {"CLASS": "IMAGE", "IMAGE_SUBCLASS": "IMAGE_TRUECOLOR"}
        for name, value in {**names, "INTERLACE_MODE": f"INTERLACE_{mode}"}.items():
            picture.attrs[name] = np.bytes_(value)
    arr = open_dataset(path)
    assert arr.description.sig_shape == (20, 30, 3)
    assert arr.dims == ("y", "x", "s")
    np.testing.assert_array_equal(arr, COLOURS)
    np.testing.assert_array_equal(open_dataset(path, sig_dims=2), COLOURS)
    with h5py.File(path, "a") as file:
        file["picture"].attrs["IMAGE_SUBCLASS"] = np.bytes_("IMAGE_INDEXED")
    np.testing.assert_array_equal(open_dataset(path), stored)


MODELS = [("rgb", 3, ""), ("rgba", 4, ""), ("hsl", 3, "HSL"), ("hsla", 4, "HSLA")]


@pytest.mark.parametrize(("model", "count", "labels"), [*MODELS, ("cmyk", 4, "CMYK")])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_colour_interpretations_of_nexus(tmp_path, model, count, labels, lead):
    pixels = np.arange(np.prod(lead) * 35 * count, dtype="u1").reshape(*lead, 5, 7, count)
    told = {"entry/data/counts@interpretation": f"{model}-image"}
    path = write_hdf5(tmp_path / "a.nxs", {**COUNTS, "entry/data/counts": pixels, **told})
    arr = open_dataset(path)
    assert arr.dims == (*("frame",) * len(lead), "y", "x", "s")
    assert arr.description.sig_shape == (5, 7, count)
    assert arr.description.axes[-1].labels == tuple(labels)
    np.testing.assert_array_equal(arr, pixels)
    write_hdf5(path, {**COUNTS, "entry/data/counts": pixels[..., :2], **told})
    assert open_dataset(path).description.sig_shape == (7, 2)


def hyperspy_axes(*axes, **contents):
    """Return a signal of HyperSpy with the attributes of its axes."""
    places = {f"Experiments/a/axis-{k}": axis for k, axis in enumerate(axes)}
    return places | {f"Experiments/a/{name}": value for name, value in contents.items()}


@pytest.mark.parametrize(
    ("place", "record_by", "sig_ndim"),
    [
        ("mapped_parameters", "spectrum", 1), ("metadata/Signal", "spectrum", 1),
        ("metadata/Signal", "image", 2), ("metadata/Signal", "", 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [(2, 0, 1), None])
def test_axes_of_hyperspy_1(tmp_path, place, record_by, sig_ndim, order):
    """Axes have no ``navigate``; before 1.1 they have a place in the array, in any order."""
    axes = [
        {"name": f"n{k}", "scale": 0.5 + k, "offset": k, "units": "eV"}
        | ({} if order is None else {"index_in_array": k})
        for k in order or range(3)
    ]
    contents = hyperspy_axes(*axes, data=SCAN, **{place: {"record_by": np.bytes_(record_by)}})
    path = write_hdf5(tmp_path / "a.hdf5", contents)
    desc = describe(path)
    assert axes_text(desc) == "n0 0.5 eV, n1 1.5+1 eV, n2 2.5+2 eV"
    assert len(desc.sig_shape) == sig_ndim
    assert desc.metadata["hdf5"]["axes_from"] == "HyperSpy"
    check_format(path, SCAN, cuts=1)


def test_values_of_axes_of_hyperspy(tmp_path):
    """Equally spaced values are a scale, others coordinates."""
    axes = [{"_type": "DataAxis", "name": name, "units": "nm", "navigate": False} for name in "ab"]
    values = {"axis-0/axis": [0, 1, 4, 9, 16.0], "axis-1/axis": np.linspace(3, 6, 7)}
    path = write_hdf5(tmp_path / "a.hspy", hyperspy_axes(*axes, data=SCAN[0], **values))
    desc = describe(path)
    assert axes_text(desc) == "a 1, b 0.5+3 nm"
    assert desc.axes[0].coordinates == (0, 1, 4, 9, 16)
    assert desc.axes[0].coordinate_units == "nm"


def test_null_attributes_are_ignored(tmp_path):
    null = h5py.Empty("S1")
    with h5py.File(path := tmp_path / "a.hspy", "w") as file:
        group = file.create_group("Experiments/a")
        group["data"] = SCAN[0]
        file["Experiments/null"] = h5py.Empty("f8")
        for k in range(2):
            names = ("name", "units", "scale", "offset", "navigate")
            group.create_group(f"axis-{k}").attrs.update(dict.fromkeys(names, null))
        for item in (file, file["Experiments"], group, group["data"]):
            for name in ("default", "signal", "NX_class", "emd_group_type", "axes", "title"):
                item.attrs[name] = null
        group.attrs["kept"] = 3
    assert axes_text(describe(path)) == "y 1, x 1"
    assert describe(path).metadata["hdf5"]["attributes"] == {"/Experiments/a": {"kept": 3}}


UNITS = {
    "[n_m]": "nm",
    "[n_m^-1]": "nm^-1",
    "[1/n_m]": "1/nm",
    "[m_rad]": "mrad",
    "[k_eV]": "keV",
    "[]": "",
    "[m]": "m",
    "n_m n_s": "nm ns",
    **{text: text for text in ("A^-1", "arb_u", "e_per_s", "k_B", "m_e", "x_n_m", "n_m_2", "_")},
}


def test_underscores_in_units_of_emd(tmp_path):
    """An underscore between a prefix and a unit is removed, others are kept."""
    with h5py.File(path := tmp_path / "a.emd", "w") as file:
        group = file.create_group("a")
        group.attrs["emd_group_type"] = 1
        group["data"] = np.zeros([2] * len(UNITS), "u1")
        for k, written in enumerate(UNITS, 1):
            group[f"dim{k}"] = [0, 0.5]
            group[f"dim{k}"].attrs.update(name=f"n{k}", units=np.bytes_(written.encode()))
    axes = describe(path).axes
    assert [axis.units for axis in axes] == list(UNITS.values())
