"""HDF5: real files, conventions, links, and missing or unreadable files."""

import ast
import os
import shutil
import sys
import warnings

import numpy as np
import pytest
from checks import axes_text, refused, refuses, write_hdf5
from eiger_writer import write_eiger
from manifest import by_file, manifest

from dask_tiled import (
    Corrections,
    CorruptFileError,
    DoubtWarning,
    TruncatedFileError,
    describe,
    open_dataset,
)
from dask_tiled.codecs.byte_codecs import BYTE_CODECS, fast
from dask_tiled.files.file import File
from dask_tiled.formats.hdf5.detector import read_mask
from dask_tiled.testing import check_format

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

ROWS = manifest("HDF5") + manifest("hspy/zspy")
DATA = np.arange(4 * 5 * 6 * 7, dtype="u2").reshape(4, 5, 6, 7)


@by_file(ROWS, "row")
def test_real_file_equals_h5py_pixel_for_pixel(data, row):
    """Every numeric dataset equals h5py's, and has the shape and sum of the manifest."""
    sums = row["sum"].split(" ; ")
    largest = None
    for text, total in zip(row["shape_dtype"].split(" ; "), sums, strict=True):
        name, rest = text.split(":", 1)
        shape = ast.literal_eval(rest[: rest.index(")") + 1])
        with h5py.File(data / row["file"], "r") as file:
            expected = file[name][()]
        assert expected.shape == shape
        check_format(data / row["file"], expected, dataset=name, cuts=1)
        assert expected.sum(dtype="f8") == pytest.approx(float(total), rel=1e-12, abs=1e-12)
        largest = expected if largest is None or expected.nbytes > largest.nbytes else largest
    arr = open_dataset(data / row["file"])
    assert arr.description.format == "hdf5"
    np.testing.assert_array_equal(arr.compute(), largest)


def test_navigate_of_hyperspy_sets_the_signal_axes(tmp_path):
    contents = {"Experiments/a/data": DATA[:, :, 0]}
    for k, (name, units) in enumerate([("<undefined>", "nm"), ("x", "nm"), ("Energy", "eV")]):
        axis = {"name": name, "units": units, "scale": 0.5, "offset": k, "navigate": k < 2}
        contents[f"Experiments/a/axis-{k}"] = axis
    path = write_hdf5(tmp_path / "a.hspy", contents)
    desc = describe(path)
    assert (desc.nav_shape, desc.sig_shape) == ((4, 5), (7,))
    assert axes_text(desc) == "scan_y 0.5 nm, x 0.5+1 nm, Energy 0.5+2 eV"
    assert describe(path, sig_dims=2).nav_shape == (4,)
    check_format(path, DATA[:, :, 0])


def test_nexus_axes(tmp_path):
    """Groups name the axes, datasets in older files; uneven values are coordinates."""
    contents = {
        "new": {"NX_class": "NXdata", "signal": "d", "axes": ["t", ".", "q"]}, "new/d": DATA[0],
        "new/t": ([0, 1, 4, 9, 16.0], "s"), "new/q": (np.arange(8) - 0.5, "1/angstrom"),
        "new/d@interpretation": "spectrum", "old": {"NX_class": b"NXdata"}, "old/d": DATA[0, 0],
        "old/a": np.linspace(3, 8, 6), "old/d@signal": 1, "old/d@axes": "a:b",
    }  # fmt: skip
    path = write_hdf5(tmp_path / "a.nxs", contents)
    desc = describe(path, dataset="new/d")
    assert axes_text(desc) == "t 1, scan_x 1, q 1 1/angstrom"
    uneven = desc.axes[0]
    assert (uneven.coordinates, uneven.coordinate_units) == ((0, 1, 4, 9, 16), "s")
    assert axes_text(describe(path, dataset="/old")) == "a 1+3, b 1"


def test_emd_written_by_ncempy(tmp_path):
    """[n_m] is nm; equal names of axes are replaced."""
    emd = pytest.importorskip("ncempy.io.emd", reason="ncempy is not installed")
    axes = [
        (np.arange(n) * 0.25 - 1, "Q" if k > 2 else f"R{k}", "[n_m]")
        for k, n in enumerate(DATA.shape, 1)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = emd.fileEMD(str(tmp_path / "a.emd"), readonly=False)
        file.put_emdgroup("scan", DATA, axes)
        del file
    path = tmp_path / "a.emd"
    np.testing.assert_array_equal(open_dataset(path), DATA)
    assert describe(path).metadata["hdf5"]["dataset_from"] == "emd_group_type"
    scales = "R1 0.25-1 nm, R2 0.25-1 nm, y 0.25-1 nm, x 0.25-1 nm"
    assert axes_text(describe(path)) == scales


def write_master(folder, parts, links):
    """Write a master whose files have a packed chunk for each frame."""
    hdf5plugin = pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed")
    options = {"chunks": (1, *parts[0].shape[1:]), **hdf5plugin.Bitshuffle()}
    return write_eiger(folder, parts, links=links, **options)


@pytest.fixture
def eiger(tmp_path):
    """Write a master with three files of frames, the last of which is shorter."""
    frames = np.random.default_rng(0).poisson(1, (10, 64, 48)).astype("u4")
    path = write_master(tmp_path, [frames[:4], frames[4:8], frames[8:]], links=4)
    with h5py.File(path, "r+") as file:
        for name in "yx":
            size = file.create_dataset(f"entry/instrument/detector/{name}_pixel_size", data=75e-6)
            size.attrs["units"] = "m"
        file["entry/instrument/detector/mask"] = np.zeros((500, 500), "u4")
    return path, frames


def test_master_of_many_files(tmp_path):
    """A task reads more files than stay open at once, or than one deadline suffices for."""
    frames = np.random.default_rng(0).poisson(0.1, (140, 16, 24)).astype("u4")
    path = write_master(tmp_path, np.split(frames, 70), links=70)
    arr = open_dataset(path)
    np.testing.assert_array_equal(arr, frames)
    np.testing.assert_array_equal(arr.sum((1, 2)), frames.sum((1, 2)))
    last = open_dataset(path, dataset="entry/data/data_000070")
    np.testing.assert_array_equal(last, frames[-2:])
    assert describe(path).metadata["hdf5"]["chunks"] == (1, 16, 24)


def test_missing_last_files_of_a_master(tmp_path):
    """Present files open, with a warning that names the missing ones."""
    path = write_master(tmp_path, np.ones((2, 4, 5, 6), "u2"), links=4)
    with pytest.warns(DoubtWarning, match=r"data_000003, and 1 more cannot be read"):
        assert open_dataset(path).shape == (8, 5, 6)
    refuses(path, "data_000003", TruncatedFileError, missing="raise")


def test_pixel_mask_of_an_eiger(eiger):
    """Pixels with any bit in the mask are repaired; a mask of another shape is ignored."""
    path, frames = eiger
    refuses(path, "no pixel mask in the file", dataset="/entry/data", corrections="dataset")
    mask = np.zeros((64, 48), "u4")
    mask[3, 4], mask[:, 20], mask[40, 40] = 1, 8, 1 << 31
    with h5py.File(path, "a") as file:
        detector = file["entry/instrument/detector"]
        detector["pixel_mask"] = np.ones((5, 5), "u4")
        own = detector.create_group("detectorSpecific")
        own.create_dataset("pixel_mask", data=mask, chunks=True, compression=1)
        own["detectorModule_000/countrate_correction_table"] = np.ones((2, 1000), "f4")
        detector["countrate_correction_applied"] = 1
        own["countrate_correction_count_cutoff"] = np.uint32(126634)
    facts = describe(path, dataset="/entry/data").metadata["hdf5"]["detector"]
    assert facts == {
        "pixel_mask": "/entry/instrument/detector/detectorSpecific/pixel_mask",
        "countrate_correction_applied": 1,
        "countrate_correction_count_cutoff": 126634,
        "countrate_correction_table": "/entry/instrument/detector/detectorSpecific/"
        "detectorModule_000/countrate_correction_table",
    }
    arr = open_dataset(path, dataset="/entry/data", corrections="dataset")
    expected = open_dataset(
        path, dataset="/entry/data", corrections=Corrections(excluded_pixels=mask != 0)
    )
    np.testing.assert_array_equal(arr, expected)
    assert (arr.compute()[:, mask == 0] == frames[:, mask == 0]).all()
    with pytest.raises(CorruptFileError, match=r"^[^:]*master\.h5: the mask has changed"):
        read_mask(File.at(os.fspath(path)), facts["pixel_mask"], (64, 47))


def test_links_and_the_choice_of_a_dataset(tmp_path):
    """The largest numeric dataset opens, and cycles end; links must lead somewhere."""
    with h5py.File(path := tmp_path / "a.h5", "w") as file:
        group = file.create_group("a/b")
        group["up"] = file["a"]
        file["text"] = ["x" * 1000] * 100
        file["scalar"] = 3.0
        file["a/data"] = DATA
        file["a/small"] = DATA[0].astype("f4")
        group["soft"] = h5py.SoftLink("/a/small")
        group["self"] = h5py.ExternalLink("a.h5", "/a")
        file.attrs.update(count=np.int32(3), many=np.zeros(1000), text=np.bytes_(b"abc"))
    check_format(path, DATA, cuts=2)
    header = describe(path).metadata["hdf5"]
    assert header["dataset"] == "/a/data"
    assert header["datasets"]["/a/small"] == {"shape": (5, 6, 7), "dtype": "float32", "chunks": ()}
    assert header["attributes"]["/"] == {"count": 3, "text": "abc"}
    assert "up" not in str(header["datasets"])
    check_format(path, DATA[0].astype("f4"), dataset="a/b/soft", cuts=2)
    for name, link, lost in (
        ("nowhere", h5py.SoftLink("/a/none"), "'none' in /a does not exist"),
        ("gone", h5py.ExternalLink("gone.h5", "/"), "gone.h5 does not exist"),
    ):
        with h5py.File(path, "a") as file:
            file[f"a/b/{name}"] = link
        refuses(path, f"at /a/b/{name}; found {lost}", TruncatedFileError)
        assert describe(path, dataset="a/data").shape == DATA.shape
        refuses(
            path, f"at /a/b/{name}; found {lost}", TruncatedFileError, dataset=f"a/b/{name}/data"
        )
    for name in ("text", "scalar", "a/none"):
        refuses(path, "no such dataset of numbers", dataset=name)
    refuses(path, "different shape", dataset="a/data", sig_shape=(42,))


LEADS = {
    "a soft link to it": "the link /d",
    "a link of a linked file": "the link /d",
    "numbered parts": "the sources of /d",
    "a source of a source": "the sources of /d",
    "axes": "the link /dim1",
}


def number_sources(file, name, dataset):
    """Write a virtual dataset whose sources have numbers in their names."""
    h5s, properties = h5py.h5s, h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    space = h5s.create_simple((5, 6, 7), (h5s.UNLIMITED, 6, 7))
    space.select_hyperslab((0, 0, 0), (h5s.UNLIMITED, 1, 1), stride=(5, 6, 7), block=(5, 6, 7))
    properties.set_virtual(space, name.encode(), dataset.encode(), h5s.create_simple((5, 6, 7)))
    h5py.h5d.create(file.id, b"d", h5py.h5t.STD_U16LE, space, properties)


def test_all_numbered_sources_are_read(tmp_path):
    for k in range(3):
        write_hdf5(tmp_path / f"{k}.h5", {"d": DATA[k]})
    path = write_hdf5(tmp_path / "a.h5", lambda file: number_sources(file, "%b.h5", "d"))
    np.testing.assert_array_equal(open_dataset(path), DATA[:3].reshape(15, 6, 7))


@pytest.mark.parametrize("how", LEADS)
def test_files_outside_of_the_folder_raise(tmp_path, how):
    """The error names the link or the sources; ``outside_folder=True`` allows them."""
    inside, outside = tmp_path / "scan", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    write_hdf5(outside / "0.h5", {"d": DATA[0]})
    other = "../elsewhere/0.h5"
    virtual = h5py.VirtualLayout((10, 6, 7), "u2")
    virtual[::2] = h5py.VirtualSource(other, "d", (5, 6, 7))
    path = inside / "a.h5"
    with h5py.File(path, "w") as file:
        if "link" in how:
            file["d"] = h5py.ExternalLink(other, "/d")
            file["soft"] = h5py.SoftLink("/d")
        elif how == "axes":
            file.attrs["emd_group_type"] = 1
            file["d"], file["dim1"] = DATA[0], h5py.ExternalLink(other, "/d")
        elif how == "numbered parts":
            number_sources(file, other.replace("0.h5", "%b.h5"), "d")
        else:
            file.create_virtual_dataset("d", virtual, fillvalue=9)
    dataset = "soft" if "soft" in how else "d"
    named = path
    if "of a" in how:  # a.h5 leads to b.h5 beside it, which leads outside
        named = path.rename(inside / "b.h5")
        with h5py.File(path, "w") as file:
            if how == "a source of a source":
                layout = h5py.VirtualLayout((20, 6, 7), "u2")
                layout[::2] = h5py.VirtualSource("b.h5", "d", (10, 6, 7))
                file.create_virtual_dataset("d", layout)
            else:
                file["d"] = h5py.ExternalLink("b.h5", "/d")
    for options in ({"dataset": dataset}, {}):
        with refused(named, "outside of its folder") as caught:
            describe(path, **options)
        assert caught.value.where.endswith(f" in {LEADS[how]}")
        assert str(outside) in str(caught.value.found)
    arr = open_dataset(path, dataset=dataset, outside_folder=True).compute().reshape(-1, 6, 7)
    step = {5: 1, 10: 2, 20: 4}[len(arr)]
    np.testing.assert_array_equal(arr[: 5 * step : step], DATA[0])


def test_links_out_of_the_folder_raise_only_if_followed(tmp_path):
    (tmp_path / "scan").mkdir()
    write_hdf5(tmp_path / "x.h5", {"d": DATA})
    contents = {"a/small": DATA[0], "a/b/large": DATA, "a/out": h5py.ExternalLink("../x.h5", "/d")}
    path = write_hdf5(tmp_path / "scan/a.h5", contents)
    for name, expected in {"a/small": DATA[0], "a/b": DATA}.items():
        np.testing.assert_array_equal(open_dataset(path, dataset=name), expected)
    for options in ({}, {"dataset": "a"}, {"dataset": "a/out"}):
        refuses(path, r"the link /a/out.*outside_folder=True", **options)
    assert "/a/out" in describe(path, outside_folder=True).metadata["hdf5"]["datasets"]


def test_files_moved_together(tmp_path):
    """Files linked by absolute paths are found beside the master, as by the HDF5 library."""
    (tmp_path / "old").mkdir()
    write_hdf5(tmp_path / "old/x.h5", {"d": DATA})
    write_hdf5(tmp_path / "old/a.h5", {"d": h5py.ExternalLink(f"{tmp_path}/old/x.h5", "/d")})
    moved = (tmp_path / "old").rename(tmp_path / "new")
    np.testing.assert_array_equal(open_dataset(moved / "a.h5"), DATA)
    (tmp_path / "links").mkdir()
    (tmp_path / "links/a.h5").symlink_to(moved / "a.h5")
    np.testing.assert_array_equal(open_dataset(tmp_path / "links/a.h5"), DATA)


@pytest.mark.timeout(60)
def test_circular_links(tmp_path):
    with h5py.File(path := tmp_path / "a.h5", "w") as file:
        file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")
        file["c"] = h5py.ExternalLink("a.h5", "/c")
        part, whole = (h5py.VirtualLayout((4, 6, 7), "u2") for _ in range(2))
        part[:2] = h5py.VirtualSource("a.h5", "part", (4, 6, 7))[::2]
        whole[...] = h5py.VirtualSource("a.h5", "whole", (4, 6, 7))
        file.create_virtual_dataset("part", part)
        file.create_virtual_dataset("whole", whole)
        file["frames"] = DATA
    np.testing.assert_array_equal(open_dataset(path), DATA)
    for name in "abc":
        refuses(path, "no such dataset of numbers", dataset=name)
    refuses(path, "has itself as a source", CorruptFileError, dataset="part")
    refuses(path, "has itself as a source", CorruptFileError, dataset="whole")


@pytest.mark.parametrize("how", ["old", "new", "swmr"])
def test_files_open_for_writing(tmp_path, how):
    """Files with a writer open, unless the writer is elsewhere and excludes readers."""
    path, copy = tmp_path / "a.h5", tmp_path / "b.h5"
    with h5py.File(path, "w", libver="earliest" if how == "old" else "latest") as file:
        file.create_dataset("d", data=DATA, chunks=(1, 5, 6, 7), maxshape=(None, 5, 6, 7))
        if how == "swmr":
            file.swmr_mode = True
        file.flush()
        np.testing.assert_array_equal(open_dataset(path).compute(), DATA)
        shutil.copy(path, copy)  # as if another process was writing
    if how == "new":
        refuses(copy, "already open for write", CorruptFileError)
    else:
        np.testing.assert_array_equal(open_dataset(copy).compute(), DATA)


@pytest.mark.skipif(os.name != "posix" or not hasattr(os, "geteuid"), reason="permissions")
def test_read_only_folders(tmp_path):
    path = write_hdf5(tmp_path / "a.h5", {"d": DATA})
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        np.testing.assert_array_equal(open_dataset(path).compute(), DATA)
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.usefixtures("hdf5_here")
@pytest.mark.parametrize(("library", "compression"), [("h5py", 1), ("imagecodecs", "lzf")])
def test_missing_libraries(tmp_path, monkeypatch, library, compression):
    """The error says what to install."""
    options = {"data": np.zeros_like(DATA), "compression": compression}
    path = write_hdf5(tmp_path / "a.h5", lambda file: file.create_dataset("d", **options))
    monkeypatch.setitem(sys.modules, library, None)
    refuses(path, rf'{library}, .* pip install "dask-tiled\[hdf5\]"')


@pytest.mark.usefixtures("hdf5_here")
@pytest.mark.parametrize("cname", ["none", "lz4", "zstd"])
def test_bitshuffle_needs_no_library(tmp_path, monkeypatch, cname):
    hdf5plugin = pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed")
    options = {"data": DATA, "chunks": True, **hdf5plugin.Bitshuffle(cname=cname)}
    path = write_hdf5(tmp_path / "a.h5", lambda file: file.create_dataset("d", **options))
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    fast.cache_clear()
    np.testing.assert_array_equal(open_dataset(path), DATA)
    fast.cache_clear()


def test_chunks_on_all_axes_are_decoded_once(tmp_path, monkeypatch):
    """LiberTEM #984, #971, #954 and #574: chunks of dask do not cut stored chunks."""
    data = np.random.default_rng(0).poisson(2, (20, 28, 24, 24)).astype("u2")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("d", data=data, chunks=(8, 8, 8, 8), compression=1, shuffle=True)
    stored, calls, codec = 3 * 4 * 3 * 3, [], BYTE_CODECS["numcodecs.zlib"]

    def counted(*args):
        calls.append(args)
        return codec.decode(*args)

    monkeypatch.setitem(BYTE_CODECS, "numcodecs.zlib", codec._replace(decode=counted))
    assert describe(path).base_shape == (8, 8, 8, 8)
    for chunks in (None, (8, 16, 24, 24), (16, 28, 24, 24)):
        arr = open_dataset(path, chunks=chunks)
        for axes in ((0, 1), (2, 3)):
            calls.clear()
            np.testing.assert_array_equal(arr.sum(axis=axes).compute(), data.sum(axis=axes))
            assert len(calls) == stored


@pytest.mark.usefixtures("hdf5_here")
def test_opening_reads_no_pixels(tmp_path, monkeypatch):
    """RosettaSciIO #526: opening and slicing are lazy for every compression."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name, how in {"plain": None, "gzip": "gzip", "lzf": "lzf"}.items():
            file.create_dataset(name, data=DATA, compression=how)

    def forbidden(*_args, **_kwargs):
        raise AssertionError("pixels are read")

    for method in ("__getitem__", "__array__", "read_direct"):
        monkeypatch.setattr(h5py.Dataset, method, forbidden)
    for name in ("plain", "gzip", "lzf"):
        assert open_dataset(path, dataset=name)[1:].shape == (3, 5, 6, 7)
