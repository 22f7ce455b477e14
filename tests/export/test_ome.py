"""Groups are OME-Zarr images if the specification allows them."""

import importlib
import json

import dask.array as da
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from ome_judges import validate

from dask_tiled import Axis, DatasetError, VerificationError, open_dataset, to_zarr, verify_zarr
from dask_tiled.testing import counting_frames, write_mib, write_nrrd

VOLUME = counting_frames((4, 6, 8), "uint16")
FIELDS = {"spacings": "0.5 2 3", "units": '"nm" "nm" "s"'}


def multiscale(path):
    """Validate a group against the specification; return its only image."""
    (image,) = validate(path)["multiscales"]
    return image


@pytest.fixture
def arr(tmp_path):
    """Open a volume with three scales."""
    return open_dataset(write_nrrd(tmp_path / "volume.nrrd", VOLUME, fields=FIELDS)[0])


def test_scales_and_units(arr, tmp_path):
    to_zarr(arr[1:, :, ::2], tmp_path / "out.zarr")
    image = multiscale(tmp_path / "out.zarr")
    assert image["axes"] == [
        {"name": "z", "type": "time", "unit": "second"},
        {"name": "y", "type": "space", "unit": "nanometer"},
        {"name": "x", "type": "space", "unit": "nanometer"},
    ]
    (level,) = image["datasets"]
    scale, translation = level["coordinateTransformations"]
    assert (scale["scale"], translation["translation"]) == ([3, 2, 1], [3, 0, 0])
    np.testing.assert_array_equal(
        zarr.open_group(tmp_path / "out.zarr", mode="r")[level["path"]], VOLUME[1:, :, ::2]
    )


def test_other_shapes(tmp_path):
    """Scans, pictures and other arrays of two to four axes are images."""
    scan = open_dataset(write_mib(tmp_path / "scan.mib", counting_frames((3, 4, 8, 16), "u2")))
    cases = {
        "scan": (scan, ["index", "space", "space", "space"]),
        "mean": (scan.mean((0, 1)), ["space", "space"]),
        "series": (scan[0], ["index", "space", "space"]),
        "others": (da.ones((3, 4, 5)), ["index", "space", "space"]),
    }
    for name, (one, types) in cases.items():
        to_zarr(one, tmp_path / name)
        image = multiscale(tmp_path / name)
        assert [axis.get("type") for axis in image["axes"]] == types


T, C, INDEX, SPACE = "time", "channel", "index", "space"
ORDERS = {
    "t c z y x": (T, C, SPACE, SPACE, SPACE),
    "c z y x": (C, SPACE, SPACE, SPACE),
    "t c y x": (T, C, SPACE, SPACE),
    "c y x": (C, SPACE, SPACE),
    "t z y x": (T, SPACE, SPACE, SPACE),
    "t y x": (T, SPACE, SPACE),
    "z y x": (SPACE, SPACE, SPACE),
    "y x": (SPACE, SPACE),
    "s y x": (C, SPACE, SPACE),
    "frame y x": (INDEX, SPACE, SPACE),
    "frame c y x": (T, C, SPACE, SPACE),
    "frame z y x": (INDEX, SPACE, SPACE, SPACE),
    "scan_y scan_x y x": (INDEX, SPACE, SPACE, SPACE),
    "t scan_y scan_x y x": (T, INDEX, SPACE, SPACE, SPACE),
    "emission y x": (C, SPACE, SPACE),
    "scan_y scan_x energy": (INDEX, SPACE, SPACE),
    "a b c y x": None,
    "y x s": None,
    "z c y x": None,
    "c t y x": None,
    "t t2 y x": (T, INDEX, SPACE, SPACE),
    "p c z y x": None,
    "x": None,
}


@pytest.mark.parametrize("dims", ORDERS)
@pytest.mark.parametrize("pyramid", [0, 1])
def test_types_of_axes(tmp_path, dims, pyramid):
    """Every group that claims to be an image is one by all judges; others do not claim it."""
    names = dims.split()
    sizes = [4 if n in "yx" else 3 for n in names]
    path = tmp_path / "out.zarr"
    options = {"pyramid": pyramid} if len(names) > 1 else {}
    to_zarr(da.ones(sizes, dtype="u2"), path, dimension_names=names, **options)
    if ORDERS[dims] is None:
        assert "ome" not in zarr.open_group(path, mode="r").attrs
        return
    image = multiscale(path)
    assert tuple(axis["type"] for axis in image["axes"]) == ORDERS[dims]
    assert [axis["name"] for axis in image["axes"]] == names


@pytest.mark.parametrize(
    ("unit", "word", "kind"),
    [
        ("nm", "nanometer", "space"), ("um", "micrometer", "space"), ("µm", "micrometer", "space"),
        ("Å", "angstrom", "space"), ("mm", "millimeter", "space"), ("ms", "millisecond", "time"),
        ("min", "minute", "time"), ("h", "hour", "time"), ("s", "second", "time"),
        ("1/nm", "1/nm", "index"), ("eV", "eV", "index"), ("", None, "index"),
    ],
)  # fmt: skip
def test_units_in_words_of_the_specification(tmp_path, unit, word, kind):
    axes = [Axis("a", unit), Axis("y", "nm"), Axis("x", "nm")]
    to_zarr(da.ones((2, 4, 4)), tmp_path / "out.zarr", dimension_names=axes)
    first = multiscale(tmp_path / "out.zarr")["axes"][0]
    assert (first.get("unit"), first["type"]) == (word, kind)


@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "f4"])
@pytest.mark.parametrize("pyramid", [0, 1])
def test_channels(tmp_path, dtype, pyramid):
    """Names, colours and windows for viewers; names and colours come back."""
    pixels = np.zeros((2, 3, 2, 40, 50), dtype)
    pixels[:, 1] = np.linspace(0, 100, 50).astype(dtype)
    pixels[:, 2] = 7
    colours = "#0000ff", "#00ff00", ""
    names = "DAPI", "GFP", "Cy5"
    axes = [Axis("t", "s", 3), Axis("c", labels=names, colours=colours), Axis("z", "µm", 2)]
    axes += [Axis("y", "µm", 0.25), Axis("x", "µm", 0.25)]
    path = tmp_path / "out.zarr"
    to_zarr(da.from_array(pixels), path, dimension_names=axes, pyramid=pyramid)
    told = validate(path)
    channels = told["omero"]["channels"]
    assert [one["label"] for one in channels] == [*names]
    assert [one["color"] for one in channels] == ["0000FF", "00FF00", "00FFFF"]
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype != "f4" else (None, None)
    for one, some in zip(channels, np.moveaxis(pixels, 1, 0), strict=True):
        window = one["window"]
        assert low is None or (window["min"], window["max"]) == (low, high)
        assert some.min() <= window["start"] < window["end"] <= max(some.max(), some.min() + 1)
    assert channels[1]["window"]["end"] > 90
    opened = open_dataset(path)
    assert opened.axes[1].labels == names
    assert opened.axes[1].colours == colours
    assert [axis.name for axis in opened.axes] == [*"tczyx"]
    assert xr.open_zarr(path).sel(c="GFP")["data"].shape == (2, 2, 40, 50)


@pytest.mark.parametrize("dims", [one for one in ORDERS if ORDERS[one]])
def test_version_0_4(tmp_path, dims):
    """Format 2 of zarr has OME-Zarr 0.4, readable by zarr and xarray, and opens as it was."""
    names = dims.split()
    sizes = [8 if n in "yx" else 3 for n in names]
    pixels = np.random.default_rng(0).integers(0, 900, sizes, "u2")
    labels, colours = tuple("abc"), ("#0000ff", "#00ff00", "#ff0000")
    channel = {"c": {"labels": labels, "colours": colours}}
    axes = [Axis(n, "nm" if n in "zyx" else "", **channel.get(n, {})) for n in names]
    path = tmp_path / "out.zarr"
    options = {"dimension_names": axes, "pyramid": 1, "chunks": (2,) * len(names)}
    to_zarr(da.from_array(pixels, chunks=4), path, zarr_format=2, **options)
    told = validate(path)
    (image,) = told["multiscales"]
    assert image["version"] == "0.4"
    assert tuple(axis["type"] for axis in image["axes"]) == ORDERS[dims]
    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == group["data"].metadata.zarr_format == 2
    np.testing.assert_array_equal(group["data"][...], pixels)
    assert group["level_1/data"].size < pixels.size
    opened = open_dataset(path)
    np.testing.assert_array_equal(opened.compute(), pixels)
    assert opened.axes == tuple(axes)
    assert [axis.colours for axis in opened.axes] == [axis.colours for axis in axes]
    assert xr.open_zarr(path)["data"].dims == (*names,)
    if "c" in names:
        assert [one["label"] for one in told["omero"]["channels"]] == ["a", "b", "c"]
        assert {one["window"]["end"] > 400 for one in told["omero"]["channels"]} == {True}
        assert xr.open_zarr(path).sel(c="b")["data"].ndim == len(names) - 1
        unconsolidated = json.loads((path / ".zattrs").read_text())
        every = json.loads((path / ".zmetadata").read_text())
        assert every["metadata"][".zattrs"] == unconsolidated
    verify_zarr(path, da.from_array(pixels))
    damaged = zarr.open_group(path, mode="r+")["data"]
    damaged[(0,) * len(names)] = 901
    with pytest.raises(VerificationError, match="a pixel differs"):
        verify_zarr(path, da.from_array(pixels))


@pytest.mark.parametrize("dtype", ["?", "u1", ">u2", "i8", "f4", "c8", "M8[s]"])
@pytest.mark.parametrize("compressors", ["auto", None, "zlib"])
def test_dtypes_in_format_2(tmp_path, dtype, compressors):
    pixels = np.arange(5 * 7 * 9).reshape(5, 7, 9).astype(dtype)
    codec = numcodecs.Zlib(1) if compressors == "zlib" else compressors
    path = tmp_path / "out.zarr"
    to_zarr(da.from_array(pixels, chunks=3), path, zarr_format=2, compressors=codec)
    stored = zarr.open_array(path, path="data", mode="r")
    np.testing.assert_array_equal(stored[...], pixels)
    assert stored.dtype == pixels.dtype
    verify_zarr(path, da.from_array(pixels))
    if dtype != "M8[s]":
        np.testing.assert_array_equal(open_dataset(path).compute(), pixels)


def test_default_chunks_in_format_2(tmp_path):
    """Of opened arrays and computed ones, with levels: no shards."""
    arr = open_dataset(write_mib(tmp_path / "scan.mib", counting_frames((6, 8, 64, 64), "u2")))
    for name, one in {"opened": arr, "computed": arr + 1}.items():
        to_zarr(one, tmp_path / name, zarr_format=2, pyramid=2)
        group = zarr.open_group(tmp_path / name, mode="r")
        for level in ("data", "level_1/data", "level_2/data"):
            assert all(map(int.__le__, group[level].chunks, group[level].shape))
        verify_zarr(tmp_path / name, one)
    with pytest.raises(DatasetError, match="format 2 of zarr has no shards"):
        to_zarr(arr, tmp_path / "sharded", zarr_format=2, shards=(2, 8, 64, 64))
    with pytest.raises(DatasetError, match="unknown zarr_format; expected 2 or 3; found 4"):
        to_zarr(arr, tmp_path / "four", zarr_format=4)
    with pytest.raises(DatasetError, match="only be exported to format 3"):
        to_zarr(arr, tmp_path / "follow", zarr_format=2, follow=True)
    to_zarr(arr, tmp_path / "opened", overwrite=True)
    assert not list((tmp_path / "opened").rglob(".z*"))
    to_zarr(
        arr,
        tmp_path / "opened",
        overwrite=True,
        zarr_format=2,
        with_results={"mean": arr.mean((0, 1))},
    )
    assert not list((tmp_path / "opened").rglob("zarr.json"))
    assert [*open_dataset(tmp_path / "opened").metadata["zarr"]["datasets"]] == ["data", "mean"]
    found = open_dataset(tmp_path / "opened", dataset="mean")
    np.testing.assert_array_equal(found.compute(), arr.mean((0, 1)).compute())


@pytest.mark.parametrize("reader", ["ome_zarr", "napari_ome_zarr", "ngff_zarr"])
def test_other_readers(tmp_path, reader):
    """They show channels by name, in their colours, and all levels."""
    module = pytest.importorskip(reader)
    pixels = np.random.default_rng(0).integers(0, 900, (2, 3, 4, 64, 80), "u2")
    axes = [Axis("t", "s", 3), Axis("c", labels=tuple("abc"), colours=("#0000ff", "", "#ff0000"))]
    axes += [Axis("z", "µm", 2), Axis("y", "µm", 0.25), Axis("x", "µm", 0.25)]
    path = str(tmp_path / "out.zarr")
    to_zarr(da.from_array(pixels), path, dimension_names=axes, pyramid=2)
    if reader == "ome_zarr":
        (node,) = importlib.import_module("ome_zarr.reader").Reader(
            importlib.import_module("ome_zarr.io").parse_url(path)
        )()
        data, names = node.data, node.metadata["channel_names"]
        colours = [tuple(one[1]) for one in node.metadata["colormap"]]
    elif reader == "ngff_zarr":
        found = module.from_ngff_zarr(path, validate=True)
        data = [one.data for one in found.images]
        channels = found.metadata.omero.channels
        names = [one.label for one in channels]
        hexes = [[one.color[k : k + 2] for k in (0, 2, 4)] for one in channels]
        colours = [tuple(int(part, 16) / 255 for part in parts) for parts in hexes]
    else:
        ((data, told, _),) = module.napari_get_reader(path)(path)
        names = told["name"]
        colours = [tuple(one.colors[1][:3]) for one in told["colormap"]]
    assert [level.shape[-2:] for level in data] == [(64, 80), (32, 40), (16, 20)]
    np.testing.assert_array_equal(data[0], pixels)
    assert [*names] == ["a", "b", "c"]
    assert colours == [(0, 0, 1), (0, 1, 1), (1, 0, 0)]


def test_channels_that_are_not_listed(tmp_path):
    """Without names and colours, of other types, and in spectra."""
    cases = {
        "unnamed": (Axis("c"), "u2"),
        "complex": (Axis("c", labels=tuple("abc")), "c8"),
        "many": (Axis("c", labels=tuple(map(str, range(65)))), "u2"),
    }
    for name, (axis, dtype) in cases.items():
        arr = da.ones((len(axis.labels) or 3, 8, 8), dtype=dtype)
        to_zarr(arr, tmp_path / name, dimension_names=[axis, "y", "x"])
        assert "omero" not in validate(tmp_path / name)


def test_arrays_that_are_no_images(arr, tmp_path):
    """The group has no attributes of OME-Zarr."""
    one = arr.sum(0).rechunk(-1)
    cases = {"line": arr.sum((0, 1)), "turned": one[::-1], "many": da.ones((2,) * 6)}
    for name, made in cases.items():
        to_zarr(made, tmp_path / name)
        assert "ome" not in zarr.open_group(tmp_path / name, mode="r").attrs
    to_zarr(one, tmp_path / "twice", dimension_names=["x", "x"])
    assert "ome" not in zarr.open_group(tmp_path / "twice", mode="r").attrs
