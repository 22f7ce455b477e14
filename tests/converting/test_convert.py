"""`convert`: files in other formats, read back by independent libraries."""

import os
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import fsspec
import h5py
import hyperspy.api as hs
import numpy as np
import ome_types
import pytest
import rsciio.hspy
import rsciio.zspy
import tifffile
import xarray
import zarr
from checks import peak_memory

import dask_tiled
from dask_tiled import DatasetError, TiledArray, VerificationError, convert, open_dataset
from dask_tiled.converting import tiff_files
from dask_tiled.converting.convert import KINDS, ZARR
from dask_tiled.model.axes import Axis
from dask_tiled.opened.axes import labelled
from dask_tiled.testing import counting_frames, write_dm

FRAMES = counting_frames((6, 8, 16, 12), "uint16")
AXES = (
    Axis("scan_y", "nm", 0.5),
    Axis("scan_x", "nm", 0.25, 2.0),
    Axis("y", "1/nm", 0.5, -4.0),
    Axis("x", "1/nm", 0.5, -3.0),
)
SUFFIXES = [ZARR, *KINDS]


@pytest.fixture
def arr(tmp_path):
    """Open a scan with axes and facts."""
    steps = [(-axis.offset / axis.scale, axis.scale, axis.units) for axis in AXES]
    tags = {"Microscope Info": {"Voltage": 200000.0, "Name": "Titan"}}
    path = write_dm(tmp_path / "scan.dm4", FRAMES, calibrations=steps, tags=tags)
    opened = open_dataset(path)
    assert opened.axes == AXES
    return opened


def named(arr):
    """Return frames over time, with names and units that every format supports."""
    return labelled(arr[0].astype("u2"), (Axis("t", "s", 0.1), Axis("y", "nm", 2.0), AXES[3]))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_are_written_verified_and_replaced(arr, tmp_path, suffix):
    path, data = tmp_path / f"out{suffix}", arr[:, 0] if "ome" in suffix else arr
    if "ome" in suffix:
        data = labelled(data, (Axis("t"), Axis("y"), Axis("x")))
    convert(data, path, verify=True, progress=False)
    with pytest.raises(DatasetError, match="overwrite=True"):
        convert(data, path, progress=False)
    convert(data + 1, path, overwrite=True, verify=True, progress=False)
    assert sorted(x.name for x in tmp_path.iterdir()) == [path.name, "scan.dm4"]


def test_numpy(arr, tmp_path):
    convert(arr, tmp_path / "a.npy")
    stored = np.load(tmp_path / "a.npy")
    assert (stored.dtype, stored.flags.c_contiguous) == (np.dtype("u2"), True)
    assert np.array_equal(stored, FRAMES)
    convert(arr[1, :, 3:9:2, 5].T.rechunk((2, 3)), tmp_path / "b.npy")  # chunked along all axes
    assert np.array_equal(np.load(tmp_path / "b.npy"), FRAMES[1, :, 3:9:2, 5].T)
    for k, data in enumerate(
        (np.zeros((3, 0), "f4"), np.array(2.5), np.array([(1, 2.0)], "i4,f8"))
    ):
        convert(data, tmp_path / f"c{k}.npy", verify=bool(data.size and data.ndim))
        assert np.array_equal(np.load(tmp_path / f"c{k}.npy"), data)
        assert np.load(tmp_path / f"c{k}.npy").dtype == data.dtype


def check_signal(signal):
    """Compare a signal that RosettaSciIO read with the scan."""
    assert np.array_equal(signal["data"], FRAMES)
    assert signal["data"].dtype == FRAMES.dtype
    found = [
        (x["name"], x["units"], x["scale"], x["offset"], x["navigate"]) for x in signal["axes"]
    ]
    assert found == [(a.name, a.units, a.scale, a.offset, k < 2) for k, a in enumerate(AXES)]
    assert signal["metadata"]["Acquisition_instrument"]["TEM"]["beam_energy"] == 200.0
    tags = signal["original_metadata"]["dm"]["tags"]
    assert tags["Microscope Info"]["Name"] == "Titan"


@pytest.mark.parametrize("compressors", ["auto", None, {"name": "gzip"}])
def test_hspy(arr, tmp_path, compressors):
    convert(arr, tmp_path / "a.hspy", compressors=compressors, chunks=(2, 4, 16, 12))
    (signal,) = rsciio.hspy.file_reader(tmp_path / "a.hspy")
    check_signal(signal)
    with h5py.File(tmp_path / "a.hspy") as file:
        (data,) = (one["data"] for one in file["Experiments"].values())
        assert data.chunks == (2, 4, 16, 12)
        assert data.compression == (None if compressors is None else "gzip")
    lazy = hs.load(tmp_path / "a.hspy", lazy=True)
    assert isinstance(lazy, hs.signals.Signal2D)
    assert open_dataset(tmp_path / "a.hspy").axes == AXES


def test_zspy(arr, tmp_path):
    codec = {"name": "zstd", "configuration": {"level": 3}}
    convert(arr, tmp_path / "a.zspy", chunks=(3, 8, 16, 12), compressors=codec)
    (signal,) = rsciio.zspy.file_reader(tmp_path / "a.zspy")
    check_signal(signal)
    assert isinstance(hs.load(tmp_path / "a.zspy"), hs.signals.Signal2D)
    with zarr.storage.ZipStore(tmp_path / "a.zspy", mode="r") as store:
        group = zarr.open_group(store, mode="r")
        assert (group.metadata.zarr_format, group.attrs["file_format"]) == (2, "ZSpy")
        ((_, home),) = group["Experiments"].groups()
        assert home["data"].chunks == (3, 8, 16, 12)
        assert home["data"].compressors[0].get_config()["level"] == 3
    with zipfile.ZipFile(tmp_path / "a.zspy") as file:
        assert len({*file.namelist()}) == len(file.namelist())


def test_nested_facts_round_trip(tmp_path):
    """Lists of more than ten items keep their order; values without an HDF5 type become text."""
    facts = {
        "texts": [f"line {k}" for k in range(12)],
        "numbers": [1.5, 2.5],
        "mixed": [1, "a", [2, 3], {"deep": None}],
        "empty": [],
        "long": "n" * 70000,
        "large": 1 << 80,
        "/a/b": {"flag": True},
    }
    np.arange(64, dtype="u2").tofile(tmp_path / "a.raw")
    arr = open_dataset(tmp_path / "a.raw", "raw", dtype="u2", sig_shape=(8, 8))
    arr = TiledArray(replace(arr.description, metadata={"raw": facts}), arr.scheme, arr.io)
    expected = facts | {"large": str(1 << 80)}
    expected["a.b"] = expected.pop("/a/b")
    for suffix, read in ((".hspy", rsciio.hspy.file_reader), (".zspy", rsciio.zspy.file_reader)):
        convert(arr, tmp_path / f"a{suffix}")
        (signal,) = read(tmp_path / f"a{suffix}")
        assert signal["original_metadata"]["raw"] == expected


def test_imagej_tiff(arr, tmp_path):
    convert(named(arr), tmp_path / "a.tif")
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert (file.is_imagej, file.is_bigtiff, file.series[0].axes) == (True, False, "TYX")
        assert np.array_equal(file.asarray(), FRAMES[0])
        told = file.imagej_metadata
        assert (told["unit"], told["yunit"], told["finterval"]) == ("1/nm", "nm", 0.1)
        page = file.pages[0]
        assert page.tags["XResolution"].value == (2, 1)
        assert page.tags["YResolution"].value == (1, 2)
        assert "x (steps of 0.5 1/nm from -3 1/nm)" in told["Info"]
    assert open_dataset(tmp_path / "a.tif").axes == (
        Axis("t", "s", 0.1),
        Axis("y", "nm", 2.0),
        AXES[3],
    )


@pytest.mark.parametrize("dims", ["tczyx", "czyx", "ctzyx", "zcyx", "tczyxs"])
def test_axes_are_in_the_order_of_imagej(tmp_path, dims):
    """Planes are arranged as tifffile does, and steps, names and times kept."""
    sizes = {"t": 2, "c": 3, "z": 4, "y": 6, "x": 5, "s": 3}
    if "s" in dims:
        sizes["c"] = 2
    pixels = np.arange(np.prod([sizes[k] for k in dims]), dtype="u2")
    pixels = pixels.reshape([sizes[k] for k in dims]).astype("u1" if "s" in dims else "u2")
    steps = {"t": ("s", 3.0), "z": ("µm", 2.0), "y": ("µm", 0.25), "x": ("µm", 0.25)}
    axes = [Axis(name, *steps.get(name, ("", 1.0))) for name in dims]
    names = ("DAPI", "GFP", "µ-RFP")[: sizes["c"]]
    axes = [replace(axis, labels=names) if axis.name == "c" else axis for axis in axes]
    convert(labelled(da.from_array(pixels), axes), tmp_path / "a.tif", verify=True)
    order = sorted(range(len(dims)), key=lambda k: "tzcyxs".index(dims[k]))
    letters = "".join(dims[k] for k in order)
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert (file.is_imagej, file.series[0].axes.lower()) == (True, letters)
        np.testing.assert_array_equal(file.asarray(), pixels.transpose(order))
        told = file.imagej_metadata
        assert [told["spacing"], told.get("finterval")] == [2.0, 3.0 if "t" in dims else None]
        assert told["Labels"][: len(names)] == [*names]
    again = open_dataset(tmp_path / "a.tif")
    assert again.axes == tuple(axes[k] for k in order)
    np.testing.assert_array_equal(again.compute(), pixels.transpose(order))


def test_letters_of_axes_in_plain_tiff(tmp_path):
    """ImageJ lacks 32-bit integers, so the order stays."""
    pixels = np.arange(2 * 3 * 4 * 6 * 5, dtype="i4").reshape(2, 3, 4, 6, 5)
    convert(
        labelled(da.from_array(pixels), [Axis(name) for name in "tczyx"]),
        tmp_path / "a.tif",
        verify=True,
    )
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert (file.is_imagej, file.series[0].axes) == (False, "TCZYX")
    assert [axis.name for axis in open_dataset(tmp_path / "a.tif").axes] == [*"tczyx"]


def test_plain_tiff_where_imagej_lacks_the_dtype(arr, tmp_path, monkeypatch):
    axes = [Axis("y", "nm", 0.5), Axis("x", "nm", 0.5)]
    image = labelled(arr[0, 0].astype("f8"), axes)
    convert(image, tmp_path / "a.tif", verify=True)
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert (file.is_imagej, file.is_shaped) == (False, True)
        assert np.array_equal(file.asarray(), FRAMES[0, 0])
        assert file.shaped_metadata[0]["names"] == ["y", "x"]
        page = file.pages[0]
        assert page.resolutionunit == tifffile.RESUNIT.CENTIMETER
        assert page.resolution == pytest.approx((2e7, 2e7))
    found = open_dataset(tmp_path / "a.tif").axes
    assert [(axis.name, axis.units, axis.scale) for axis in found] == [
        (name, "µm", pytest.approx(5e-4)) for name in "yx"
    ]
    monkeypatch.setattr(tiff_files, "CLASSIC", 1000)  # in place of 4 GiB
    convert(arr, tmp_path / "b.tif", verify=True)
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.is_bigtiff
        assert np.array_equal(file.asarray(), FRAMES)
        assert file.shaped_metadata[0]["scales"] == [0.5, 0.25, 0.5, 0.5]


def test_ome_tiff(arr, tmp_path):
    pixels = arr.astype("u2")
    axes = (
        Axis("t", "s", 0.5),
        Axis("channel", labels=tuple(f"dye {k}" for k in range(8))),
        Axis("y", "um", 0.5),
        Axis("x", "nm", 250.0),
    )
    convert(labelled(pixels, axes), tmp_path / "a.ome.tif", verify=True)
    with tifffile.TiffFile(tmp_path / "a.ome.tif") as file:
        assert (file.is_ome, file.series[0].axes) == (True, "TCYX")
        assert np.array_equal(file.asarray(), FRAMES)
    image = ome_types.from_tiff(tmp_path / "a.ome.tif").images[0]
    told = image.pixels
    assert (told.physical_size_x, told.physical_size_x_unit.value) == (250.0, "nm")
    assert (told.physical_size_y, told.physical_size_y_unit.value) == (0.5, "µm")
    assert (told.time_increment, told.time_increment_unit.value) == (0.5, "s")
    assert [one.name for one in told.channels] == [f"dye {k}" for k in range(8)]
    assert "x (steps of 250 nm)" in image.description
    with pytest.warns(UserWarning, match="no scale for x; it is in the description"):
        convert(named(arr), tmp_path / "b.ome.tif")
    told = ome_types.from_tiff(tmp_path / "b.ome.tif").images[0]
    assert told.pixels.physical_size_x is None
    assert "x (steps of 0.5 1/nm from -3 1/nm)" in told.description


def test_part_of_a_stack_in_ome_tiff(arr, tmp_path):
    """Each plane has its position, and the file begins where the part does."""
    axes = Axis("c"), Axis("z", "µm", 0.5, -1), Axis("y", "µm", 0.5), Axis("x", "µm", 0.5)
    convert(labelled(arr.astype("u2"), axes)[:, 5:], tmp_path / "a.ome.tif", verify=True)
    planes = ome_types.from_tiff(tmp_path / "a.ome.tif").images[0].pixels.planes
    found = [(one.the_c, one.the_z, one.position_z, one.position_z_unit.value) for one in planes]
    assert found == [(c, z, 1.5 + z / 2, "µm") for c in range(6) for z in range(3)]
    told = dask_tiled.describe(tmp_path / "a.ome.tif").axes
    assert [(one.name, one.offset) for one in told] == [("c", 0), ("z", 1.5), ("y", 0), ("x", 0)]


@pytest.mark.parametrize("name", ["a.tif", "b.tif", "a.ome.tif"])
def test_uneven_axes_in_tiff_are_a_doubt_without_a_scale(arr, tmp_path, name):
    """The last two are floats, which ImageJ lacks, and OME-TIFF."""
    points = (0.0, 1.0, 4.0, 9.0, 16.0, 25.0, 36.0, 49.0)
    axes = (Axis("t", coordinates=points, coordinate_units="s"), Axis("y"), Axis("x"))
    image = labelled(arr[0].astype("f8" if name == "b.tif" else "u2"), axes)
    with pytest.warns(dask_tiled.DoubtWarning, match=r"the positions of t are not equally") as told:
        convert(image, tmp_path / name, verify=True)
    assert len(told) == 1
    found = open_dataset(tmp_path / name)
    assert found.shape == (8, 16, 12)
    assert (found.axes[0].units, found.axes[0].scale, found.axes[0].coordinates) == ("", 1, ())
    with tifffile.TiffFile(tmp_path / name) as file:
        text = f"{file.imagej_metadata} {file.pages[0].description}"
        assert "uneven steps from 0 to 49 s" in text


def test_colours(tmp_path):
    picture = np.random.default_rng(0).integers(0, 255, (2, 9, 7, 3), "u1")
    arr = labelled(da.from_array(picture), (Axis("z"), Axis("y"), Axis("x"), Axis("s")))
    for name in ("a.tif", "a.ome.tif"):
        convert(arr, tmp_path / name, verify=True)
        with tifffile.TiffFile(tmp_path / name) as file:
            assert file.series[0].axes == "ZYXS"
            assert file.pages[0].photometric == tifffile.PHOTOMETRIC.RGB
            assert np.array_equal(file.asarray(), picture)


def test_zarr_zip(arr, tmp_path):
    convert(arr, tmp_path / "a.zarr.zip", chunks=(2, 8, 16, 12), pyramid=1)
    with zarr.storage.ZipStore(tmp_path / "a.zarr.zip", mode="r") as store:
        stored = xarray.open_zarr(store)
        assert np.array_equal(stored["data"], FRAMES)
        assert stored["scan_x"].attrs["units"] == "nm"
        assert zarr.open_array(store, path="level_1/data", mode="r").shape == (6, 8, 8, 6)
        dask_tiled.verify_zarr(store, arr)


def test_xarray_objects_keep_their_axes(arr, tmp_path):
    data = dask_tiled.to_xarray(arr).assign_coords(scan_x=np.arange(8) * 3.0)
    data.scan_x.attrs["units"] = "mm"
    convert(data.sum(["y", "x"]), tmp_path / "a.hspy", verify=True)
    (signal,) = rsciio.hspy.file_reader(tmp_path / "a.hspy")
    assert (signal["axes"][1]["units"], signal["axes"][1]["scale"]) == ("mm", 3.0)


@pytest.mark.parametrize("name", ["a.zarr", "a.zarr.zip"])
def test_zarr_keeps_attributes_of_xarray_objects(tmp_path, name):
    data = xarray.DataArray(FRAMES, dims=("scan", "frame", "y", "x"), attrs={"sample": "gold"})
    convert(data, tmp_path / name, verify=True)
    store = zarr.storage.ZipStore(tmp_path / name) if name.endswith(".zip") else tmp_path / name
    assert xarray.open_zarr(store)["data"].attrs["sample"] == "gold"


def test_zarr_zip_leaves_dask_as_it_is(tmp_path):
    """dask's configuration is that of all threads; a cluster could not write the file."""
    seen = []

    def noted(block):
        seen.append((dask.config.get("scheduler", None), threading.current_thread().name))
        return block

    arr = da.ones((4, 8), chunks=2, dtype="u2").map_blocks(noted, dtype="u2")
    seen.clear()
    with dask.config.set(scheduler="synchronous"):
        convert(arr, tmp_path / "a.zarr.zip", progress=False)
    assert {name for name, _ in seen} == {"synchronous"}
    assert all(thread.startswith("ThreadPoolExecutor") for _, thread in seen)


@pytest.mark.parametrize("name", ["out.h5", "out.nc", "out", "out.zarr.gz", "out.zip", ".hspy.txt"])
def test_unknown_suffixes_are_refused_before_reading(tmp_path, name):
    with pytest.raises(DatasetError, match=r"expected one of \.zarr, \.zarr\.zip, \.hspy, \.zspy"):
        convert(tmp_path / "is not there", tmp_path / name)
    assert not [*tmp_path.iterdir()]


def test_suffixes_ignore_case(arr, tmp_path):
    convert(labelled(arr[0], (Axis("T"), Axis("Y"), Axis("x"))), tmp_path / "A.OME.TIF")
    with tifffile.TiffFile(tmp_path / "A.OME.TIF") as file:
        assert file.is_ome


GZIP_77 = {"name": "gzip", "configuration": {"level": 77}}


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("a.npy", {"pyramid": 1}, r"\.npy do not support pyramid=; expected no options"),
        ("a.tif", {"compressors": None}, r"\.tif do not support compressors="),
        ("a.hspy", {"shards": 1}, "expected chunks= or compressors="),
        ("a.zarr.zip", {"follow": True}, "do not support follow="),
        ("a.hspy", {"compressors": {"name": "zstd"}}, "gzip:0 to gzip:9"),
        ("a.hspy", {"compressors": GZIP_77}, "gzip:0 to gzip:9"),
        ("a.zspy", {"compressors": {"name": "none such"}}, "zarr format 2.*zstd:5"),
        ("a.zspy", {"compressors": [1]}, "zarr format 2.*zstd:5"),
        (
            "a.ome.tif",
            {},
            "not supported by OME-TIFF; expected t, c and z.*found scan_y, scan_x, y, x",
        ),
    ],
)
def test_unsupported_options_are_refused(arr, tmp_path, name, options, match):
    with pytest.raises(DatasetError, match=match) as caught:
        convert(arr, tmp_path / name, **options)
    assert caught.value.path == str(tmp_path / name)
    assert os.listdir(tmp_path) == ["scan.dm4"]


@pytest.mark.parametrize(
    ("name", "pixels", "match"),
    [
        ("a.npy", np.array([{}]), "Python objects"),
        ("a.tif", np.zeros((4, 4), bool), "not supported by TIFF.*found bool"),
        ("a.tif", np.zeros(4), "not an image"),
        ("a.ome.tif", np.zeros((4, 4), "i8"), "found int64"),
        ("a.hspy", np.zeros(4, "M8[s]"), "not supported by HyperSpy"),
    ],
)
def test_unsupported_pixels_are_refused(tmp_path, name, pixels, match):
    with pytest.raises(DatasetError, match=match):
        convert(pixels, tmp_path / name)
    assert not [*tmp_path.iterdir()]


def test_unknown_chunks_and_masked_pixels_are_refused(arr, tmp_path):
    with pytest.raises(DatasetError, match="compute_chunk_sizes"):
        convert(arr[arr > 3], tmp_path / "a.npy")
    with pytest.raises(DatasetError, match="Fill masked pixels first"):
        convert(da.ma.masked_less(arr, 3), tmp_path / "a.npy")
    assert os.listdir(tmp_path) == ["scan.dm4"]


@pytest.mark.parametrize("suffix", [".npy", ".tif", ".hspy", ".zspy"])
def test_big_endian_pixels(tmp_path, suffix):
    pixels = np.arange(60.0, dtype=">f4").reshape(5, 12)
    convert(pixels, tmp_path / f"a{suffix}", verify=True)
    if suffix != ".zspy":
        assert np.array_equal(open_dataset(tmp_path / f"a{suffix}").compute(), pixels)


@pytest.mark.parametrize("suffix", KINDS)
def test_only_files_of_the_same_format_are_replaced(arr, tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    for put in (
        lambda: path.write_bytes(b"notes"),
        path.mkdir,
        lambda: path.symlink_to("scan.dm4"),
    ):
        put()
        with pytest.raises(DatasetError, match="holds other data"):
            convert(arr, path, overwrite=True)
        assert path.exists()
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_conversions_leave_no_file(tmp_path, suffix, error):
    def stop(block, block_info=None):
        if block_info[0]["chunk-location"][0] == 2:
            raise error
        return block

    arr = da.from_array(FRAMES[0], chunks=(2, -1, -1)).map_blocks(stop, dtype="u2")
    arr = labelled(arr, (Axis("t"), Axis("y"), Axis("x")))
    path = tmp_path / f"out{suffix}"
    with pytest.raises((KeyboardInterrupt, OSError, DatasetError)):
        convert(arr, path, progress=False)
    assert not [*tmp_path.iterdir()]


def test_remains_of_killed_conversions_are_removed(arr, tmp_path):
    (tmp_path / "a.npy.part").mkdir()
    (tmp_path / "a.npy.part" / ("0" * 32)).write_bytes(b"half of it")
    convert(arr, tmp_path / "a.npy", verify=True)
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "scan.dm4"]


@pytest.mark.parametrize("suffix", [".npy", ".tif", ".hspy"])
def test_verify_file_finds_a_flipped_bit(arr, tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    options = {"compressors": None} if suffix == ".hspy" else {}
    convert(arr, path, **options)
    data = bytearray(path.read_bytes())
    data[data.index(FRAMES[2, 3].tobytes()) + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(VerificationError, match=r"a pixel differs, at \[2, 3, 0, 1\]"):
        dask_tiled.converting.convert.verify_file(path, arr)
    convert(arr[:5], path, overwrite=True, **options)
    with pytest.raises(VerificationError, match=r"differs in shape or dtype.*\(6, 8, 16, 12\)"):
        dask_tiled.converting.convert.verify_file(path, arr)


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".npy", ".hspy", ".zspy"])
def test_memory_is_bounded(tmp_path, suffix):
    """Converting 96 MiB takes less than 64 MiB of memory."""
    pixels = np.random.default_rng(0).integers(0, 9, (4, 1 << 20), "u1")
    arr = da.tile(da.from_array(pixels, chunks=(4, -1)), (24, 1)).reshape(96, 1024, 1024)

    with peak_memory() as found:
        options = {"compressors": None} if suffix != ".npy" else {}
        convert(arr, tmp_path / f"a{suffix}", progress=False, **options)
    assert found[0] < 64 << 20


def test_missing_library_names_its_extra(arr, tmp_path, monkeypatch):
    for name, library, extra in (("a.tif", "tifffile", "tiff"), ("a.hspy", "h5py", "hdf5")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            with pytest.raises(DatasetError, match=rf"written with {library}.*\[{extra}\]"):
                convert(arr, tmp_path / name)
    assert os.listdir(tmp_path) == ["scan.dm4"]


def test_paths_are_opened(arr, tmp_path):
    convert(Path(arr.description.files[0].path), tmp_path / "a.npy")
    assert np.array_equal(np.load(tmp_path / "a.npy"), FRAMES)


MAPS = {
    "bf": ("bright_field", lambda a, disk: a[..., disk].sum(-1)),
    "adf": ("dark_field", lambda a, disk: a[..., ~disk].sum(-1)),
    "sum": ("sum", lambda a, _: a.sum((2, 3))),
    "mean": ("mean", lambda a, _: a.mean((0, 1))),
    "max": ("max", lambda a, _: a.max((0, 1))),
}


@pytest.mark.parametrize("suffix", [".zarr", ".zarr.zip"])
def test_maps_are_stored_with_the_data(arr, tmp_path, suffix):
    """The disk may be given in units of the axes."""
    path = tmp_path / f"out{suffix}"
    y, x = (
        axis.offset + axis.scale * np.arange(n) for axis, n in zip(AXES[2:], (16, 12), strict=True)
    )
    disk = np.hypot(y[:, None] - 0.5, x - 1) <= 1.2
    given = ("0.5 1/nm", 1, 1.2)
    options = {"maps_disk": given, "with_results": None, "verify": True, "progress": False}
    convert(arr, path, maps=[*MAPS, "com"], **options)
    opened = zarr.storage.ZipStore(path, mode="r") if suffix == ".zarr.zip" else path
    group = zarr.open_group(opened, mode="r")
    for name, expected in MAPS.values():
        np.testing.assert_array_equal(group[name][...], expected(FRAMES, disk))
    assert group["center_of_mass"].shape == (6, 8, 2)


@pytest.mark.parametrize("layout", ["group", "array"])
def test_stored_bytes(arr, tmp_path, layout):
    """`stored_bytes` counts all levels of a pyramid, or an array without a group."""
    options = {"layout": layout, "pyramid": 1 if layout == "group" else False}
    address = f"memory://{tmp_path.name}.zarr"
    dask_tiled.to_zarr(arr, address, **options)
    content = fsspec.filesystem("memory")
    keys = content.find(address)
    arrays = [key for key in keys if b'"node_type": "group"' not in content.cat(key)]
    found = dask_tiled.converting.convert.stored_bytes(address)
    assert found == sum(content.size(key) for key in arrays)


REFUSED_MAPS = {
    "another name": (lambda a: a, "hadf", "no such map.*haadf"),
    "frames in a row": (lambda a: a.reshape(48, 16, 12), "bf", "bf needs a scan of images"),
    "spectra": (lambda a: a[:, :, 3], "com", "one of sum, mean, max"),
    "one frame": (lambda a: a[0, 0], "mean", "maps need navigation axes"),
    "no disk": (lambda a: a, "sum,adf", "no bright disk .* Pass maps_disk="),
}


@pytest.mark.parametrize(("maps", "disk", "match"), [
    ("com,sum", (1, 1, 1), "a disk only applies to bf, abf, adf, haadf"),
    ("", (1, 1, 1), "a disk only applies to bf|no such map"),
    ("bf", (900, 1, 1.2), "no pixel is in the disk; expected at least one of the 16 x 12 pixels"),
    ("adf", (1, 1), "invalid disk"),
])  # fmt: skip
def test_invalid_disks_are_refused(arr, tmp_path, maps, disk, match):
    with pytest.raises(DatasetError, match=match):
        convert(arr, tmp_path / "out.zarr", maps=maps, maps_disk=disk)
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("name", REFUSED_MAPS)
def test_invalid_maps_are_refused_before_writing(arr, tmp_path, name):
    make, maps, match = REFUSED_MAPS[name]
    with pytest.raises(DatasetError, match=match):
        convert(make(arr), tmp_path / "out.zarr", maps=maps)
    with pytest.raises(DatasetError, match="do not support maps="):
        convert(arr, tmp_path / "out.npy", maps="mean")
    assert not {*tmp_path.iterdir()} - {tmp_path / "scan.dm4"}
