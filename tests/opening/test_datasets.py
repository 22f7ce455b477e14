"""`open_datasets`: names, arrays and tables of all datasets of a file."""

import pickle
import re

import h5py
import numpy as np
import pytest
import tifffile
import zarr
from ome_writer import document, image, tiff_data, write_pages

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TiledArray, open_datasets, to_beton
from dask_tiled.formats.hdf5 import descriptor as hdf5
from dask_tiled.formats.hdf5 import library
from dask_tiled.formats.lif import descriptor as lif
from dask_tiled.model.listing import Listing
from dask_tiled.testing import (
    counting_frames,
    write_dm,
    write_fits,
    write_jeol_image,
    write_jeol_list,
    write_lif,
    write_npy,
)

A, B, C = (counting_frames(shape, "u2") for shape in ((4, 6, 8), (5, 7), (3, 4, 6)))


def hdf5_file(path):
    with h5py.File(path, "w") as file:
        file["scan/counts"], file["scan/map"], file["other/map"] = A, B, C
        file["scan/line"] = np.arange(9.0)
    return path, {"counts": A, "scan_map": B, "other_map": C}


def dm_file(path):
    write_dm(path, A[0], name="HAADF", more={"a/b": B, "HAADF": C[0]})
    return path, {"HAADF_0": A[0], "a_b": B, "HAADF_2": C[0]}


def fits_file(path):
    write_fits(path, None, A, B)
    with open(path, "r+b") as file:  # name the last one
        data = file.read()
        at = data.rindex(b"XTENSION")
        card = data.index(b"END" + b" " * 77, at)
        file.seek(card)
        file.write(b"EXTNAME = 'SCI     '".ljust(80) + b"END".ljust(80))
    return path, {"dataset": A, "SCI": B}


def tiff_file(path):
    with tifffile.TiffWriter(path) as file:
        for pixels in (A, B):
            file.write(pixels, photometric="minisblack", metadata=None)
    with tifffile.TiffFile(path) as file:
        assert [one.shape for one in file.series] == [A.shape, B.shape]
    return path, {"dataset_0": A, "dataset_1": B}


def ome_tiff_file(path):
    sizes = dict(zip("TCZYX", (1, 1, 1, 6, 8), strict=True))
    images = [image(sizes, tiff_data(k, 1), number=k, name=f"well {k}") for k in range(3)]
    write_pages(path, A[:3], document("".join(images)))
    return path, {f"well {k}": A[k] for k in range(3)}


def lif_file(path):
    write_lif(path, {"first": A, "second": A + 1}, "zyx")
    return path, {"first": A, "second": A + 1}


def jeol_file(path):
    for name, pixels in (("a.img", B), ("b.map", B + 1)):
        write_jeol_image(path.with_name(name), pixels.astype("u2"))
    return write_jeol_list(path, ["a.img", "b.map"]), {"a.img": B, "b.map": B + 1}


def beton_file(path):
    to_beton(path, {"image": A, "label": np.arange(4)}, page_size=1 << 21, progress=False)
    return path, {"image": A, "label": np.arange(4)}


def zarr_group(path):
    group = zarr.create_group(path)
    for name, pixels in (("counts", A), ("maps/C", B), ("y", np.arange(6.0))):
        group.create_array(name, data=pixels)
    pyramid = group.create_group("overview")
    for level in range(2):
        pyramid.create_array(str(level), data=C[..., :: level + 1, :: level + 1])
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    told = [{"path": str(level)} for level in range(2)]
    for level, one in enumerate(told):
        scale = {"type": "scale", "scale": [1.0, level + 1.0, level + 1.0]}
        one["coordinateTransformations"] = [scale]
    image = {"axes": axes, "datasets": told}
    pyramid.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    return path, {"counts": A, "maps_C": B, "overview": C}


def npy_file(path):
    return write_npy(path, A), {"data": A}


KINDS = {
    "maps.h5": hdf5_file, "two.dm4": dm_file, "hdus.fits": fits_file, "pages.tif": tiff_file,
    "wells.ome.tif": ome_tiff_file, "images.lif": lif_file, "list.ASW": jeol_file,
    "samples.beton": beton_file, "group.zarr": zarr_group, "one.npy": npy_file,
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request, tmp_path):
    return KINDS[request.param](tmp_path / request.param)


def test_each_dataset_by_name(kind, monkeypatch):
    """The arrays are those that were written; only those that are asked for are opened."""
    path, expected = kind
    opened = []

    def counted(*args, **options):
        opened.append(options)
        return dask_tiled.open_dataset(*args, **options)

    monkeypatch.setattr("dask_tiled.opening.datasets.open_dataset", counted)
    datasets = open_datasets(path)
    assert {*datasets} == {*expected}
    assert len(datasets) == len(expected)
    assert all(name in datasets for name in expected)
    table = repr(datasets).splitlines()
    assert not opened
    for name, pixels in expected.items():
        arr = datasets[name]
        assert type(arr) is TiledArray
        assert datasets[name].name == arr.name
        np.testing.assert_array_equal(arr.compute(), pixels)
        (row,) = (line for line in table if line.startswith(f"{name}  "))
        dims = ", ".join(arr.description.dims)
        assert re.split("  +", row) == [name, str(pixels.shape), str(arr.dtype), dims]
        assert "<th" in datasets._repr_html_()
    assert len(opened) == 2 * len(expected)
    with pytest.raises(KeyError, match="no dataset 'missing'; expected one of '"):
        datasets["missing"]
    assert datasets.get("missing") is None
    assert "missing" not in datasets
    assert 0 not in datasets
    again = pickle.loads(pickle.dumps(datasets))
    assert [*again] == [*datasets]


def test_names_are_unique():
    """Equal names, slashes, dots, empty names and those of suffixes stay apart; others stay."""
    names = ["a", "a", "a_1", "/", "", "..", "x/y", "x_y", "µ", "a"]
    listing = Listing.of({"dataset": 0, "datasets": tuple(names)})
    found = [*listing.names.values()]
    assert found == [
        "a_0", "a_1_2", "a_1", "data", "dataset", "..", "x_y_2", "x_y", "µ", "a_9"
    ]  # fmt: skip
    assert [*listing.names] == [*range(10)]


@pytest.mark.parametrize(("names", "text"), [("ab", "1 of 2, a; the others: b"), ("a", "")])
def test_listings_name_the_others(names, text):
    assert str(Listing.of({"dataset": 0, "datasets": (*names,)})) == text


def test_a_damaged_dataset(tmp_path):
    """The others open, also if the default one is damaged; the table tells the reason."""
    path, expected = hdf5_file(tmp_path / "maps.h5")
    with h5py.File(path, "a") as file:
        link = h5py.VirtualLayout((40, 60, 80), "u2")
        link[:] = h5py.VirtualSource("absent.h5", "d", (40, 60, 80))
        file.create_virtual_dataset("lost", link)
    datasets = open_datasets(path)
    assert {*datasets} == {*expected, "lost"}
    with pytest.raises(DatasetError, match="is missing"):
        datasets["lost"]
    assert re.search(r"^lost +cannot be opened: .* missing", repr(datasets), re.MULTILINE)
    assert "cannot be opened" in datasets._repr_html_()
    for name, pixels in expected.items():
        np.testing.assert_array_equal(datasets[name].compute(), pixels)
    for pixels in ("a.img", "b.map"):
        (tmp_path / pixels).write_bytes(b"nothing")
    with pytest.raises(DatasetError, match="the list names is missing"):
        open_datasets(write_jeol_list(tmp_path / "list.ASW", ["no.img", "none.img"]))


def test_structure_is_read_once(tmp_path, monkeypatch):
    """One job describes all HDF5 datasets; each equals its description alone."""
    path, expected = hdf5_file(tmp_path / "maps.h5")
    jobs = []

    def counted(file, *looks):
        jobs.append(looks)
        return library.safely(file, *looks)

    monkeypatch.setattr(hdf5, "safely", counted)
    datasets = open_datasets(path)
    assert len(jobs) == 1
    found = {name: arr.description for name, arr in datasets.items()}
    repr(datasets)
    assert len(jobs) == 2
    for name, key in zip(("counts", "scan_map"), ("scan/counts", "scan/map"), strict=True):
        assert found[name] == dask_tiled.describe(path, dataset=key)
    del jobs[:]
    with h5py.File(path, "a") as file:  # another version of the file
        file["scan/counts"][0] = 7
    np.testing.assert_array_equal(datasets["counts"][0], np.full_like(A[0], 7))
    assert len(jobs) == 1

    def crashing(file, *looks):
        jobs.append(looks)
        if len(looks[0].args[1]) > 1:
            raise CorruptFileError("the library crashes", path=file.path)
        return library.safely(file, *looks)

    monkeypatch.setattr(hdf5, "safely", crashing)
    for name, arr in open_datasets(path).items():
        assert arr.shape == expected[name].shape
    assert len(jobs) == 1 + 1 + 1 + len(expected)


def test_containers_are_read_once(tmp_path, monkeypatch):
    path, expected = lif_file(tmp_path / "images.lif")
    read, calls = lif.read_file, []
    monkeypatch.setattr(lif, "read_file", lambda file: calls.append(file) or read(file))
    datasets = open_datasets(path)
    for name, pixels in expected.items():
        np.testing.assert_array_equal(datasets[name].compute(), pixels)
    assert len(calls) == 2


def test_options_are_passed_to_each(tmp_path):
    path, _ = hdf5_file(tmp_path / "maps.h5")
    datasets = open_datasets(path, dtype="f4", doubts="raise", chunks=-1, axes={"y": "2 nm"})
    for arr in datasets.values():
        assert arr.dtype == "f4"
        assert arr.npartitions == 1
        assert {one.name: one.units for one in arr.description.axes}["y"] == "nm"
    assert "float32" in repr(datasets)
    for name in ("dataset", "field"):
        with pytest.raises(DatasetError, match=f"one dataset; expected all .*; found {name}="):
            open_datasets(path, **{name: 1})
    with pytest.raises(DatasetError, match="has no option 'datset'"):
        open_datasets(path, datset=1)
    with pytest.raises(DatasetError, match="no such format"):
        open_datasets(path, "velvet")
    with pytest.raises(FileNotFoundError):
        open_datasets(tmp_path / "absent.h5")


def test_relative_paths_stay_valid(tmp_path, monkeypatch):
    _, expected = dm_file(tmp_path / "two.dm4")
    monkeypatch.chdir(tmp_path)
    datasets = open_datasets("two.dm4")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(datasets["a_b"], expected["a_b"])


def test_tables_are_short(tmp_path):
    """The table describes the first 20 datasets, and counts the others."""
    images = {f"image {number}": np.full((2, 3), number, "u1") for number in range(30)}
    lines = repr(open_datasets(write_lif(tmp_path / "a.lif", images, "yx"))).splitlines()
    assert lines[0] == "30 datasets of a.lif"
    assert len(lines) == 23
    assert lines[-1].split() == ["...", "10", "more"]


@pytest.mark.slow
def test_two_thousand_datasets(tmp_path):
    """All are listed, and metadata, which exports store, list 100."""
    path = tmp_path / "many.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for number in range(2000):
            file[f"d{number:04}"] = np.full((2, 3), number)
    datasets = open_datasets(path)
    assert [*datasets] == [f"d{number:04}" for number in range(2000)]
    arr = datasets["d1999"]
    assert (arr == 1999).all().compute()
    assert len(arr.description.metadata["hdf5"]["datasets"]) == 100


REAL = {
    "more/hdf5/Test_SI_16x16_215_kx.emd": 14,
    "more/hdf5/fei_example_dpc_titles.emd": 9,
    "dm/2D/multi_signal.dm3": 2,
    "ser/old/16x16_STEM_BF_DF_acquire.emi": 2,
    "../kinds/lif/LeicaLASX_wavelength-sweep_example.lif": 3,
    "../kinds/czi/S3_1Pos_2Mosaic_T1_Z1_CH1.czi": 3,
    "../kinds/czi/WellD6-7_S2.czi": 2,
    "../kinds/velox/SI_empty_selection.emd": 10,
}
"""Real files, and how many signals or images other readers find in them."""


@pytest.mark.parametrize("name", REAL)
def test_real_files(data, name):
    """Each dataset is listed once, and opens as it does by its number or path."""
    datasets = open_datasets(data / name)
    assert len(datasets) == REAL[name]
    table = datasets._repr_html_()
    for key, arr in datasets.items():
        assert key in table
        assert str(arr.shape) in table
