"""HDF5: what a file means opens, as it is meant; the others by path, number or title."""

import json

import numpy as np
import pytest
from checks import write_hdf5
from manifest import by_file, manifest

from dask_tiled import DatasetError, describe, open_dataset
from dask_tiled.testing import check_format

h5py = pytest.importorskip("h5py", reason="h5py is not installed")
emd = pytest.importorskip("rsciio.emd", reason="rosettasciio is not installed")

MORE = manifest("HDF5", "more/") + manifest("hspy/zspy", "more/")
VELOX = [
    row for row in MORE if row["reader"].startswith("rsciio.emd") and "example_s" not in row["file"]
]
SCAN = np.arange(3 * 5 * 7, dtype="u2").reshape(3, 5, 7)


def axes_of(desc):
    return [(axis.name, axis.units, axis.scale, axis.offset) for axis in desc.axes]


MEANT = {
    "Camera_Ceta_Imaging_Micro.emd": "/Data/Image/b936b39acdb84cd2971d755b7ba267bf/Data",
    "fei_example_dpc_titles.emd": "/Data/Image/15c7bc815fc74329b0dbe36f041c17ed/Data",
    "Test_SI_16x16_215_kx.emd": "/Data/SpectrumStream",
    "example_spectrum.emd": "/signals/__unnamed__/data",
    "Focus_2021-03-16_051.hdf5": "/entry1/counter0/data",
    "Sample_Image_2021-03-16_095.hdf5": "/entry1/counter0/data",
    "example1_v1.0.hdf5": "/Experiments/NIO EELS OK SHELL/data",
}


@by_file(MORE, "row")
def test_real_files_open_what_they_mean(data, row):
    """As h5py reads it."""
    path = data / row["file"]
    dataset = MEANT[path.name]
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
    """All of them, by the titles that it gives; of one with several frames its first."""
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


def test_spectra_of_velox_equal_those_of_rosettasciio(data):
    path = data / "more/hdf5/Test_SI_16x16_215_kx.emd"
    spectra = [one for one in emd.file_reader(str(path)) if one["data"].ndim == 1]
    names = [f"SuperXG2{k}" for k in (1, 4, 2, 3)]  # in the order of their paths
    assert len(spectra) == len(names)
    for name, spectrum in zip(names, spectra, strict=True):
        np.testing.assert_array_equal(open_dataset(path, dataset=name), spectrum["data"])


def test_rendered_spectrum_images_of_velox_are_refused(data):
    path = data / "more/hdf5/Test_SI_16x16_215_kx.emd"
    with h5py.File(path) as file:
        image = next(iter(file["Data/SpectrumImage"]))
    assert not any("SpectrumImage" in place for place in listed(path))
    for dataset in ("Data/SpectrumImage", f"/Data/SpectrumImage/{image}/Data"):
        with pytest.raises(DatasetError, match=r"X-ray events.*SpectrumImage"):
            describe(path, dataset=dataset)


SAID = {
    "BinaryResult": {
        "PixelSize": {"width": "2e7", "height": "3e7"},
        "PixelUnitX": "1/m",
        "PixelUnitY": "1/m",
        "Offset": {"x": "-1e9", "y": "0"},
        "Detector": "BM-Ceta",
    }
}


def column(said, frames=1):
    """Write JSON as Velox does, for each frame."""
    content = np.zeros((60000, frames), "u1")
    content[: len(said)] = np.frombuffer(said, "u1")[:, None]
    return content


def add_velox(file, name, frames, said=b"{}", **options):
    group = file.create_group(f"Data/Image/{name}")
    group.create_dataset("Data", data=np.moveaxis(frames, 0, -1), **options)
    group["Metadata"] = column(said, len(frames))


@pytest.mark.parametrize(
    "options",
    [
        *[{}, {"chunks": (5, 7, 1)}, {"chunks": (2, 4, 2), "compression": 1}],
        {"chunks": (2, 7, 3), "scaleoffset": 0},
    ],
    ids=["whole", "frames", "gzip", "library"],
)
def test_frames_of_velox_come_first(tmp_path, options):
    """However they are stored; calibrations of diffraction patterns are in 1/nm."""
    said = json.dumps(SAID).encode()
    path = write_hdf5(tmp_path / "a.emd", lambda file: add_velox(file, "ab", SCAN, said, **options))
    check_format(path, SCAN)
    desc = describe(path)
    assert axes_of(desc) == [("frame", "", 1, 0), ("y", "1/nm", 0.03, 0), ("x", "1/nm", 0.02, -1)]
    assert listed(path)["/Data/Image/ab/Data"]["title"] == "BM-Ceta"
    check_format(path, SCAN, dataset="Data/Image/ab", cuts=3)
    assert open_dataset(path, sig_dims=1).description.nav_shape == (3, 5)


def test_frames_of_velox_are_not_copied(tmp_path):
    """They lie strided in the file, and are described so."""
    path = write_hdf5(tmp_path / "a.emd", lambda file: add_velox(file, "ab", SCAN))
    pieces = describe(path).layout.columns()
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
        said = json.dumps({"BinaryResult": PIXELS}).encode()
        group["Data"], group["Metadata"] = np.zeros((9, 1), "u1"), column(said)


@pytest.mark.parametrize("chunks", [None, (5, 9, 1), (2, 4, 2)])
def test_spectrum_images_of_eels(tmp_path, chunks):
    """They are shown as (y, x, energy)."""
    stored = np.random.default_rng(0).integers(0, 99, (5, 9, 4), "u2")  # x, energy, y
    path = write_hdf5(tmp_path / "a.emd", lambda file: add_eels(file, "ab", stored, chunks=chunks))
    expected = stored.transpose(2, 0, 1)
    check_format(path, expected)
    for dataset in ("EELS", "Data/EelsSpectrumImage/ab", 0):
        desc = describe(path, dataset=dataset)
        assert (desc.nav_shape, desc.sig_shape) == ((4, 5), (9,))
        assert axes_of(desc) == [
            ("y", "nm", pytest.approx(3), 0),
            ("x", "nm", pytest.approx(2), pytest.approx(-4)),
            ("Energy loss", "eV", 0.25, 395.5),
        ]
    facts = desc.metadata["hdf5"]["facts"]
    assert facts["/Data/EelsSpectrumImage/ab/AcquisitionMetadata"]["Data"]["dispersion"] == 0.25


def test_lines_of_eels_and_the_picture_that_is_meant(tmp_path):
    """A picture of a detector opens: neither a map of an element nor a spectrum image."""
    with h5py.File(path := tmp_path / "a.emd", "w") as file:
        add_eels(file, "ab", SCAN[0])
        add_eels(file, "bc", SCAN[:, :1, :1])
        recorded = {"Detector": "BF", "DetectorIndex": "5"}
        pictures = {
            "1": {"Detector": "SuperXG2"},
            "2": recorded,
            "3": recorded | {"Detector": "HAADF"},
        }
        for name, said in pictures.items():
            add_velox(file, name, SCAN[:1], json.dumps({"BinaryResult": said}).encode())
    assert meant(path)[0] == "/Data/Image/3/Data"
    assert [place.split("/")[3] for place in listed(path)] == ["3", "2", "1", "ab", "bc"]
    dataset = "/Data/EelsSpectrumImage/ab"
    check_format(path, SCAN[0], dataset=dataset, cuts=2)
    desc = describe(path, dataset=dataset)
    assert desc.dims == ("x", "Energy loss")
    assert desc.sig_shape == SCAN[0].shape[1:]
    check_format(path, SCAN[:, :1, :1].transpose(2, 0, 1), dataset="/Data/EelsSpectrumImage/bc")


def test_damaged_metadata_of_velox_spoil_no_picture(tmp_path):
    with h5py.File(path := tmp_path / "a.emd", "w") as file:
        add_velox(
            file, "a", SCAN[:1], b'{"BinaryResult": {"PixelSize": {"width": "x", "height": []}}}'
        )
        add_velox(file, "b", SCAN[:1], b"\xff{")
        file["Operations/StemInputOperation/c"] = [b"["]
        file["Operations/StemInputOperation/d"] = np.zeros(3)
        file["Displays/ImageDisplay/e"] = [b'{"data": 3, "title": {}}']
    assert axes_of(describe(path)) == [("y", "", 1, 0), ("x", "", 1, 0)]
    assert "the first of 2" in describe(path).metadata["hdf5"]["dataset_from"]
    np.testing.assert_array_equal(open_dataset(path, dataset=1), SCAN[0])


def nxdata(file, path, shape, **attributes):
    group = file.create_group(path)
    group.attrs.update(NX_class="NXdata", **attributes)
    group["d"] = np.full(shape, 7, "u1")
    return group


def meant(path, **options):
    header = describe(path, **options).metadata["hdf5"]
    return header["dataset"], header["dataset_from"]


def test_nexus_default_and_signal_decide(tmp_path):
    """From the root on, through links; the largest dataset does not."""
    with h5py.File(path := tmp_path / "a.nxs", "w") as file:
        file["raw"] = np.zeros((50, 50))
        for entry, group in ("ab", "ad", "cd"):
            nxdata(file, f"{entry}/{group}", (3, 3 + (group == "b")), signal="d")
        file["c"].attrs.update(NX_class="NXentry", default="link")
        file["c/link"] = h5py.SoftLink("/a/d")
        file.attrs["default"] = b"c"
    assert meant(path) == ("/c/link/d", "default of NeXus")
    with h5py.File(path, "r+") as file:
        file.attrs["default"] = "a/b"
    assert meant(path) == ("/a/b/d", "default of NeXus")
    with h5py.File(path, "r+") as file:
        del file.attrs["default"]
    assert meant(path)[0] == "/c/link/d"  # of the one entry that there is
    with h5py.File(path, "r+") as file:
        del file["c"].attrs["default"]
    assert meant(path) == ("/a/b/d", "signal of NXdata")  # which is the largest
    with h5py.File(path, "r+") as file:
        file.attrs["default"] = "c"
    assert meant(path)[0] == "/c/d/d"
    assert meant(path, dataset="c")[0] == "/c/d/d"


def test_nexus_without_default_says_that_several_are_equal(tmp_path):
    with h5py.File(path := tmp_path / "a.nxs", "w") as file:
        nxdata(file, "e/a", (99,), signal="d")
        for name in "bcd":
            nxdata(file, f"e/{name}", (3, 4), signal="d")
        file["e/z"] = np.zeros((50, 50))
    assert meant(path) == ("/e/b/d", "signal of NXdata, the first of 3 of its size")
    assert [one["shape"] for one in listed(path).values()] == [(3, 4)] * 3 + [(99,), (50, 50)]
    for number, name in enumerate(["b", "c", "d", "a"]):
        assert meant(path, dataset=number) == (f"/e/{name}/d", "its number")
    for wrong in (5, -1, 1.5, True):
        with pytest.raises(DatasetError, match="a number below 5"):
            describe(path, dataset=wrong)


def test_old_nexus_marks_the_signal_itself(tmp_path):
    with h5py.File(path := tmp_path / "a.nxs", "w") as file:
        group = nxdata(file, "e/data", (2, 3))
        file["e/data/counts"] = np.ones((3, 4))
        file["e/data/counts"].attrs["signal"] = np.int32(1)
        file["e/data/large"] = np.zeros((9, 9))
        group.parent.attrs["NX_class"] = "NXentry"
    assert meant(path)[0] == "/e/data/counts"


def test_an_eiger_master_means_its_series(tmp_path):
    """Also where only one part of it is there, and where its signal is the first part."""
    with h5py.File(path := tmp_path / "a_master.h5", "w") as file:
        for k in (1, 2):
            file[f"entry/data/data_{k:06d}"] = SCAN[k:]
        file["entry/instrument/detector/mask"] = np.zeros((100, 100), "u4")
    assert meant(path) == ("/entry/data", "names of an Eiger master")
    np.testing.assert_array_equal(open_dataset(path), np.concatenate([SCAN[1:], SCAN[2:]]))
    with h5py.File(path, "r+") as file:
        file["entry/data"].attrs.update(NX_class="NXdata", signal="data_000001")
    assert meant(path) == ("/entry/data", "signal of NXdata")
    with h5py.File(path, "r+") as file:
        del file["entry/data/data_000002"]
        del file["entry/data"].attrs["signal"]
    assert meant(path)[0] == "/entry/data/data_000001"
    with h5py.File(path, "r+") as file:
        file["entry/data/data_000000"] = h5py.ExternalLink("gone.h5", "/d")
    with pytest.raises(DatasetError, match="data_000000"):
        describe(path)


def test_emd_and_hyperspy_name_their_arrays(tmp_path):
    """Other arrays may be larger."""
    with h5py.File(path := tmp_path / "a.emd", "w") as file:
        group = file.create_group("a/scan")
        group.attrs["emd_group_type"] = np.int32(1)
        group["data"], group["dim1"] = SCAN[0], np.zeros(500)
        file["a/large"] = np.zeros((40, 40))
        other = file.create_group("a/other")
        other.attrs["emd_group_type"] = "array"
        other["datacube"], other["dim0"] = SCAN, np.zeros(3)
        for name in ("metadata", "pointlist"):
            made = file.create_group(f"a/{name}")
            made.attrs["emd_group_type"] = name
            made["data"] = np.zeros((60, 60))
    assert meant(path) == ("/a/other/datacube", "emd_group_type")
    assert meant(path, dataset="a/scan")[0] == "/a/scan/data"
    with h5py.File(path := tmp_path / "a.hspy", "w") as file:
        for name, shape in {"a": (3, 4), "b": (3, 4), "c": (2, 2)}.items():
            file[f"Experiments/{name}/data"] = np.zeros(shape)
            file[f"Experiments/{name}/learning_results/factors"] = np.zeros((9, 9))
    assert meant(path) == (
        "/Experiments/a/data",
        "Experiments of HyperSpy, the first of 2 of its size",
    )


def test_two_axes_come_before_one(tmp_path):
    """Without any convention the largest picture opens, not the longest table."""
    with h5py.File(path := tmp_path / "a.h5", "w") as file:
        file["table"], file["one"], file["two"] = np.zeros(1000), SCAN[0], SCAN[1]
    assert meant(path) == ("/one", "the largest in the file, the first of 2 of its size")
    assert list(listed(path)) == ["/one", "/two", "/table"]


def test_an_empty_array_is_not_meant(tmp_path):
    """While others hold numbers, however many axes it has."""
    with h5py.File(path := tmp_path / "a.h5", "w") as file:
        file["empty"], file["table"], file["one"] = np.zeros((0, 8192)), SCAN[0, 0], SCAN[0, 0, :1]
    assert meant(path)[0] == "/table"
    assert list(listed(path)) == ["/table", "/one", "/empty"]
    with pytest.raises(DatasetError, match="the array is empty"):
        describe(path, dataset="empty")


@pytest.mark.parametrize(("record_by", "sig_ndim"), [("spectrum", 1), ("image", 2)])
def test_hyperspy_1_0_says_what_the_signal_is(tmp_path, record_by, sig_ndim):
    """Its axes say neither whether they are navigated, nor come in the order of the array."""
    with h5py.File(path := tmp_path / "a.hdf5", "w") as file:
        group = file.create_group("Experiments/a")
        group["data"] = SCAN
        for k, place in enumerate((2, 0, 1)):
            axis = {"index_in_array": place, "name": f"n{place}", "scale": 0.5, "offset": place}
            group.create_group(f"axis-{k}").attrs.update(axis, units="undefined")
        group.create_group("mapped_parameters").attrs["record_by"] = np.bytes_(record_by)
    desc = describe(path)
    assert (desc.dims, len(desc.sig_shape)) == (("n0", "n1", "n2"), sig_ndim)
    assert [axis.offset for axis in desc.axes] == [0, 1, 2]


@pytest.mark.parametrize(
    ("place", "record_by", "sig_ndim"),
    [
        ("mapped_parameters", "spectrum", 1),
        ("metadata/Signal", "spectrum", 1),
        ("metadata/Signal", "image", 2),
        ("metadata/Signal", "", 2),
    ],
)
def test_axes_of_hyperspy_1_1_and_1_2_have_a_scale_alone(tmp_path, place, record_by, sig_ndim):
    """Neither what is navigated nor a place in the array: their order is that of the array."""
    with h5py.File(path := tmp_path / "a.hdf5", "w") as file:
        group = file.create_group("Experiments/a")
        group["data"] = SCAN
        for k, size in enumerate(SCAN.shape):
            axis = {"name": f"n{k}", "scale": 0.5 + k, "offset": k, "size": size, "units": "eV"}
            group.create_group(f"axis-{k}").attrs.update(axis)
        group.create_group(place).attrs["record_by"] = record_by
    desc = describe(path)
    assert axes_of(desc) == [(f"n{k}", "eV", 0.5 + k, k) for k in range(3)]
    assert len(desc.sig_shape) == sig_ndim
    assert desc.metadata["hdf5"]["axes_from"] == "HyperSpy"
    check_format(path, SCAN, cuts=2)


def test_axes_of_hyperspy_that_are_no_scale(tmp_path):
    """Axes with values are a scale where these are equally spaced."""
    with h5py.File(path := tmp_path / "a.hspy", "w") as file:
        group = file.create_group("Experiments/a")
        group["data"] = SCAN[0]
        for k, values in enumerate([[0, 1, 4, 9, 16.0], np.linspace(3, 6, 7)]):
            axis = group.create_group(f"axis-{k}")
            axis.attrs.update(_type="DataAxis", name=f"n{k}", units="nm", navigate=False)
            axis["axis"] = values
    desc = describe(path)
    assert axes_of(desc) == [("n0", "nm", 1, 0), ("n1", "nm", 0.5, 3)]


def test_null_attributes_are_none(tmp_path):
    """Wherever they stand, and whatever should stand there."""
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
    assert axes_of(describe(path)) == [("y", "", 1, 0), ("x", "", 1, 0)]
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


def test_lines_below_in_units_of_emd(tmp_path):
    """They are left out between a prefix and a unit, and nowhere else."""
    with h5py.File(path := tmp_path / "a.emd", "w") as file:
        group = file.create_group("a")
        group.attrs["emd_group_type"] = 1
        group["data"] = np.zeros([2] * len(UNITS), "u1")
        for k, written in enumerate(UNITS, 1):
            group[f"dim{k}"] = [0, 0.5]
            group[f"dim{k}"].attrs.update(name=f"n{k}", units=np.bytes_(written.encode()))
    axes = describe(path).axes
    assert [axis.units for axis in axes] == list(UNITS.values())
