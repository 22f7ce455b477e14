"""Groups are OME-Zarr images if the specification allows them."""

import json
import os

import dask.array as da
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from formats_table import ONE_OF_EACH
from hypothesis import given
from hypothesis import strategies as st
from ome_judges import judged, lacking, levels_of, validate

from dask_tiled import Axis, DatasetError, VerificationError, open_dataset, to_zarr, verify_zarr
from dask_tiled.export.zarr import windows
from dask_tiled.model.mark import MARK
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.parametrize(
    ("dims", "pyramid"), [*((dims, 1) for dims in ORDERS), ("s y x", 0), ("t t2 y x", 0)]
)
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


def test_windows_are_chosen_from_the_centres_of_three_images(tmp_path, monkeypatch):
    """Other pixels are darker, and the image in the middle is the brightest."""
    monkeypatch.setattr(windows, "SAMPLED", 8)
    pixels = np.zeros((4, 2, 40, 50), "u2")
    pixels[1:, :, 16:24, 21:29] = 100
    pixels[2] *= 2
    axes = ["t", Axis("c", labels=("DAPI", "GFP")), "y", "x"]
    to_zarr(da.from_array(pixels), tmp_path / "out.zarr", dimension_names=axes)
    for channel in validate(tmp_path / "out.zarr")["omero"]["channels"]:
        assert 100 <= channel["window"]["start"] < 150 < channel["window"]["end"] <= 200


@pytest.mark.thorough
@pytest.mark.parametrize("dims", [one for one in ORDERS if ORDERS[one]])
def test_version_0_4(tmp_path, dims):
    """Format 2 of zarr has OME-Zarr 0.4, readable by zarr and xarray, and opens as it was."""
    names = dims.split()
    sizes = [8 if n in "yx" else 3 for n in names]
    chunks = [4 if n == 8 else 2 for n in sizes]
    pixels = np.random.default_rng(0).integers(0, 900, sizes, "u2")
    labels, colours = tuple("abc"), ("#0000ff", "#00ff00", "#ff0000")
    channel = {"c": {"labels": labels, "colours": colours}}
    axes = [Axis(n, "nm" if n in "zyx" else "", **channel.get(n, {})) for n in names]
    path = tmp_path / "out.zarr"
    options = {"dimension_names": axes, "pyramid": 1, "chunks": chunks}
    to_zarr(da.from_array(pixels, chunks=8), path, zarr_format=2, **options)
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
        assert all(400 < one["window"]["end"] < 900 for one in told["omero"]["channels"])
        assert xr.open_zarr(path).sel(c="b")["data"].ndim == len(names) - 1
        unconsolidated = json.loads((path / ".zattrs").read_text())
        every = json.loads((path / ".zmetadata").read_text())
        assert every["metadata"][".zattrs"] == unconsolidated
    verify_zarr(path, da.from_array(pixels))
    damaged = zarr.open_group(path, mode="r+")["data"]
    damaged[(0,) * len(names)] = 901
    with pytest.raises(VerificationError, match="a pixel differs"):
        verify_zarr(path, da.from_array(pixels))


ZLIB, ZSTD = numcodecs.Zlib(1), numcodecs.Zstd(1)
LZ4 = numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.BITSHUFFLE)


@pytest.mark.parametrize(
    ("dtype", "compressors", "used"),
    [
        *((dtype, "auto", LZ4) for dtype in ("?", "u1", ">u2", "i8", "f4", "c8")),
        *(("M8[s]", "auto", ZSTD), ("M8[s]", None, None), (">u2", None, None), ("f4", ZLIB, ZLIB)),
    ],
)
def test_dtypes_in_format_2(tmp_path, dtype, compressors, used):
    pixels = np.arange(5 * 7 * 9).reshape(5, 7, 9).astype(dtype)
    path = tmp_path / "out.zarr"
    to_zarr(da.from_array(pixels, chunks=5), path, zarr_format=2, compressors=compressors)
    stored = zarr.open_array(path, path="data", mode="r")
    np.testing.assert_array_equal(stored[...], pixels)
    assert (stored.dtype, stored.compressors) == (pixels.dtype, (used,) if used else ())
    verify_zarr(path, da.from_array(pixels))
    if dtype != "M8[s]":
        np.testing.assert_array_equal(open_dataset(path).compute(), pixels)


@pytest.mark.thorough
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
    with pytest.raises(DatasetError, match=r"only be exported to format 3; found zarr_format=2$"):
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


CHANNELS = Axis("c", labels=tuple("abc"), colours=("#0000ff", "", "#ff0000"))
SPACES = [Axis("z", "µm", 2), Axis("y", "µm", 0.25), Axis("x", "µm", 0.5)]
IMAGES = [dims for dims, types in ORDERS.items() if types]
REFUSED = {
    "bioio": ([dims for dims in IMAGES if max(map(len, dims.split())) > 1], "single character"),
    "ngff-zarr": ([dims for dims in IMAGES if "scan_x" in dims], "suffix of (z, y, x)"),
}
"""Readers whose rules are narrower than the specification: the axes they refuse, and the reason."""


def exports():
    """Return pixels and options of exports by name."""
    rng, found = np.random.default_rng(0), {}
    for dims in IMAGES:
        sizes = [16 if n in "yx" else 3 for n in dims.split()]
        found[dims] = rng.integers(0, 900, sizes, "u2"), {"dimension_names": dims.split()}
    cells = rng.integers(0, 900, (2, 3, 4, 16, 20), "u2")
    names = [Axis("t", "s", 3), CHANNELS, *SPACES]
    found["cells"] = cells, {"dimension_names": names}
    found["chunks"] = cells, {"dimension_names": [*"tczyx"], "chunks": (1, 2, 3, 5, 7)}
    for dtype in ("u1", "i4", "f4"):
        found[dtype] = cells[0].astype(dtype), {"dimension_names": names[1:]}
    for method in ("nearest", "mode"):
        labels = {"dimension_names": SPACES[1:], "pyramid_method": method}
        found[method] = cells[0, 0, 0].astype("u4"), labels
    return found


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Return levels of exports by name, as zarr reads them, and what all judges say of each."""
    if missing := lacking():
        reason = f"judges of OME-Zarr are not installed: {missing}"
        if os.environ.get("DASK_TILED_REQUIRE_READERS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    folder, expected = tmp_path_factory.mktemp("images"), {}
    for name, (pixels, options) in exports().items():
        for version, zarr_format in (("0.4", 2), ("0.5", 3)):
            path = folder / f"{name} {version}"
            to_zarr(da.from_array(pixels), path, pyramid=1, zarr_format=zarr_format, **options)
            group = zarr.open_group(path, mode="r")
            levels = [group[one][...] for one in ("data", "level_1/data")]
            np.testing.assert_array_equal(levels[0], pixels)
            expected[path.name] = levels_of(levels)
            if name == "nearest":
                label, again = mark_labels(path), folder / f"labels {version}"
                to_zarr(label, again, pyramid=1, zarr_format=zarr_format)
                expected[again.name] = expected[path.name]
    return expected, judged(folder)


def mark_labels(path):
    """Mark an image as labels; return its pixels."""
    group = zarr.open_group(path, mode="r+")
    told = dict(group.attrs)
    (told.get("ome", told))["image-label"] = {}
    group.attrs.put(told)
    return open_dataset(path)


@pytest.mark.slow
def test_all_judges_accept_images(verdicts):
    """Schemas, models and readers of others; in all levels they find the pixels of zarr."""
    expected, found = verdicts
    assert len(found) == 9
    wrong = {}
    for judge, told in found.items():
        refused, reason = REFUSED.get(judge, ((), ""))
        for name, levels in expected.items():
            one = told[name]
            if name[: -len(" 0.5")] in refused:
                right = isinstance(one, str) and reason in one
            elif judge in {"schemas", "yaozarrs"}:
                right = one == {}
            elif judge == "ome-zarr-models":
                is_image = name[: -len(" 0.5")] not in {"labels", "nearest"}
                right = one == {"kind": "Image" if is_image else "ImageLabel"}
            else:
                right = isinstance(one, dict) and one["levels"] == levels
            if not right:
                wrong[judge, name] = one
    assert not wrong


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_labels_stay_labels(tmp_path, zarr_format):
    """An exported label image is one again, whose levels are not averaged."""
    labels = np.arange(64 * 48, dtype="u4").reshape(64, 48)
    path = tmp_path / "0.zarr"
    to_zarr(da.from_array(labels), path, zarr_format=zarr_format)
    arr = mark_labels(path)
    for k in (1, 2):
        path = tmp_path / f"{k}.zarr"
        to_zarr(arr, path, pyramid=1, zarr_format=zarr_format)
        found = zarr.open_group(path, mode="r")["level_1/data"]
        np.testing.assert_array_equal(found[...], labels[::2, ::2])
        arr = open_dataset(path)
    with pytest.raises(DatasetError, match=r"means of labels; expected .*'nearest'.* or 'mode'"):
        to_zarr(arr, tmp_path / "means.zarr", pyramid=1, pyramid_method="mean")
    assert not (tmp_path / "means.zarr").exists()
    to_zarr(arr, tmp_path / "no levels.zarr", pyramid_method="mean")
    assert zarr.open_group(tmp_path / "no levels.zarr", mode="r")["data"].shape == (64, 48)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_readers_find_names_colours_scales_and_units(verdicts, version):
    told = {judge: of_all[f"cells {version}"] for judge, of_all in verdicts[1].items()}
    for judge in ("ome-zarr", "napari-ome-zarr", "ngff-zarr", "bioio"):
        assert told[judge]["names"] == ["a", "b", "c"]
    for judge in ("ome-zarr", "napari-ome-zarr", "ngff-zarr"):
        assert told[judge]["colours"] == [[0, 0, 1], [0, 1, 1], [1, 0, 0]]
    assert told["napari-ome-zarr"]["kind"] == "image"
    assert verdicts[1]["napari-ome-zarr"][f"labels {version}"]["kind"] == "labels"
    assert told["bioio"]["dims"] == [*"TCZYX"]
    assert told["bioio"]["scale"] == [2, 0.25, 0.5]
    assert told["ngff-zarr"]["scale"] == {"t": 3, "c": 1, "z": 2, "y": 0.25, "x": 0.5}
    lengths = dict.fromkeys("zyx", "micrometer")
    assert told["ngff-zarr"]["units"] == {"t": "second", "c": None, **lengths}


@pytest.mark.parametrize(
    ("name", "zarr_format"), [(name, 2 + k % 2) for k, name in enumerate(ONE_OF_EACH)]
)
def test_exports_of_all_formats_keep_axes(sample_of, tmp_path, name, zarr_format):
    """Names, units, scales, offsets, labels, colours and coordinates."""
    arr = open_dataset(**sample_of(name).options)
    if arr.dtype.names or arr.dtype.kind == "O":
        pytest.skip("records and objects are not exported to zarr")
    to_zarr(arr, tmp_path / "out.zarr", zarr_format=zarr_format)
    found = open_dataset(tmp_path / "out.zarr")
    assert found.dtype == arr.dtype
    assert [facts_of_axis(axis) for axis in found.axes] == [facts_of_axis(x) for x in arr.axes]


def facts_of_axis(axis):
    """Return all that an axis says; equal axes may differ in their colours."""
    return axis, axis.colours, axis.coordinates, axis.coordinate_units


COLOUR = st.integers(1, 0xFFFFFF).map("#{:06x}".format)
"""Not black: black, and one colour of all channels, are drawn in others."""
NUMBERS = st.floats(1e-6, 1e6), st.floats(-1e6, 1e6)
UNITS = {T: ["", "s", "ms", "min"], SPACE: ["", "nm", "µm", "Å"], INDEX: [""], C: [""]}


@st.composite
def images(draw):
    """Draw axes of an image of OME-Zarr, and their lengths."""
    dims = draw(st.sampled_from(IMAGES))
    found, sizes = [], []
    for name, kind in zip(dims.split(), ORDERS[dims], strict=True):
        sizes.append(draw(st.integers(1, 4)))
        if name == "c":
            texts = st.lists(st.text(min_size=1), min_size=sizes[-1], max_size=sizes[-1])
            colours = st.lists(COLOUR, min_size=sizes[-1], max_size=sizes[-1], unique=True)
            found.append(Axis(name, labels=tuple(draw(texts)), colours=tuple(draw(colours))))
        else:
            scale, offset = map(draw, NUMBERS)
            found.append(Axis(name, draw(st.sampled_from(UNITS[kind])), scale, offset))
    return found, sizes


@pytest.mark.thorough
@given(images(), st.sampled_from([2, 3]), st.booleans())
def test_any_axes_come_back(tmp_path_factory, image, zarr_format, alone):
    """Also if only the metadata of OME-Zarr are left."""
    axes, sizes = image
    path = tmp_path_factory.getbasetemp() / "axes.zarr"
    options = {"dimension_names": axes, "zarr_format": zarr_format, "overwrite": True}
    to_zarr(da.ones(sizes, dtype="u1"), path, **options)
    if alone:
        for name in ("", "data"):
            node = zarr.open(path / name, mode="r+")
            node.attrs.put({key: x for key, x in node.attrs.items() if key != MARK})
    found = open_dataset(path)
    assert [facts_of_axis(axis) for axis in found.axes] == [facts_of_axis(axis) for axis in axes]


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
