"""Colours of channels in files of light microscopes."""

import numpy as np
import pytest
import tifffile
from kinds import path_of
from ome_types import from_xml

from dask_tiled import convert, describe, open_dataset
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.inputs import as_array
from dask_tiled.testing import Tile, write_czi, write_ims, write_lif, write_nd2

FRAMES = np.zeros((3, 8, 12), "u2")


def colours_of(path, name="c"):
    return {axis.name: axis.colours for axis in describe(path).axes}[name]


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ([-16776961, 16711935, 65535], ("#ff0000", "#00ff00", "#0000ff")),  # signed 0xRRGGBBAA
        ([4278190335, 0, -1], ("#ff0000", "#000000", "#ffffff")),
        (["", "x", "1e99"], ()),
        (["", "16711935", "nan"], ("", "#00ff00", "")),
    ],
)
def test_ome_tiff(tmp_path, stored, expected):
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, FRAMES, metadata={"axes": "CYX", "Channel": {"Name": [*"abc"]}})
    text = tifffile.tiffcomment(path)
    for name, colour in zip("abc", stored, strict=True):
        text = text.replace(f'Name="{name}"', f'Name="{name}" Color="{colour}"')
    tifffile.tiffcomment(path, text.encode())
    assert colours_of(path) == expected


def test_ome_tiff_that_we_write(tmp_path):
    colours = "#ff0000", "#00ff80", "#0000ff"
    path = tmp_path / "a.nd2"
    write_nd2(path, FRAMES, "cyx", channels=[*"abc"], colours=[0xFF, 0x80FF00, 0xFF0000])
    convert(path, tmp_path / "a.ome.tif", progress=False)
    assert colours_of(tmp_path / "a.ome.tif") == colours
    (image,) = from_xml(tifffile.tiffcomment(tmp_path / "a.ome.tif")).images
    rgb = [channel.color.as_rgb_tuple()[:3] for channel in image.pixels.channels]
    assert rgb == [(255, 0, 0), (0, 255, 128), (0, 0, 255)]


def test_czi(tmp_path):
    """Colours of the display settings precede those of the acquisition."""
    tiles = [Tile({"C": c, "Y": 0, "X": 0}, frame) for c, frame in enumerate(FRAMES)]
    path = tmp_path / "a.czi"
    write_czi(path, tiles, channels=[*"abc"])
    assert colours_of(path) == ()
    write_czi(path, tiles, channels=[*"abc"], colours=["#FF00A1FF", "#00ff00", "purple"])
    assert colours_of(path) == ("#00a1ff", "#00ff00", "")
    write_czi(path, tiles, channels=[*"abcd"], colours=["#FF00A1FF"] * 4)
    assert colours_of(path) == ()  # one name more than channels


@pytest.mark.parametrize(
    ("name", "labels", "colours"),
    [
        ("czi/DAPI_GFP.czi", ("DAPI", "GFP"), ("#0000ff", "#00ff00")),
        ("czi/tiles.czi", ("Ch1", "T PMT"), ("#00ff00", "#ffffff")),
        ("czi/mosaic_test.czi", ("EGFP",), ("#00ff5b",)),
        ("nd2/example-multichannel.nd2", None, ("#ffffff", "#0033ff", "#07ff00", "#ffbf00")),
        ("nd2/cluster.nd2", None, ("#78e90f", "#fe0100")),
    ],
)
def test_real_files(name, labels, colours):
    """As in the XML of CZI files, and the integers of ND2 files, which are 0xBBGGRR."""
    kept = {"squeeze": False} if name.startswith("czi") else {}
    (axis,) = [axis for axis in describe(path_of({"file": name}), **kept).axes if axis.name == "c"]
    assert labels in (None, axis.labels)
    assert axis.colours == colours


def test_nd2(tmp_path):
    path = tmp_path / "a.nd2"
    write_nd2(path, FRAMES, "cyx", colours=[0x0000FF, 0x07FF00])
    assert colours_of(path) == ("#ff0000", "#00ff07", "")
    write_nd2(path, FRAMES, "cyx")
    assert colours_of(path) == ()


def test_lif(tmp_path):
    path = tmp_path / "a.lif"
    write_lif(path, {"cells": FRAMES}, "cyx", channels=["Cyan", "Gray", "LUT 7"])
    assert colours_of(path) == ("#00ffff", "#ffffff", "")
    # Samples stored as blue, green and red are turned, with their colours.
    samples = np.zeros((8, 12, 3), "u1")
    options = {"channels": ["Blue", "Green", "Red"], "tags": [3, 2, 1]}
    write_lif(path, {"cells": samples}, "yxs", **options)
    assert colours_of(path, "s") == ("#ff0000", "#00ff00", "#0000ff")


@pytest.mark.parametrize("damaged", ["1 0", "2 0 0", "a b c", "nan 0 0"])
def test_ims(tmp_path, damaged):
    path = tmp_path / "a.ims"
    colours = [(1, 0.5, 0), (0, 0, 1), (1, 1, 1)]
    write_ims(path, FRAMES[None, :, None], channels=[*"abc"], colours=colours)
    assert colours_of(path) == ("#ff8000", "#0000ff", "#ffffff")
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "r+") as file:
        file["DataSetInfo/Channel 1"].attrs["Color"] = np.frombuffer(damaged.encode(), "S1")
    assert colours_of(path) == ("#ff8000", "", "#ffffff")


def test_colours_follow_their_channels(tmp_path):
    """Through slices, selections, arithmetic, exports and saved files."""
    path = tmp_path / "a.nd2"
    write_nd2(path, FRAMES, "cyx", channels=["r", "g", "b"], colours=[0xFF, 0xFF00, 0xFF0000])
    arr = open_dataset(path)
    red, green, blue = "#ff0000", "#00ff00", "#0000ff"
    assert arr[1:].axes[0].colours == (green, blue)
    assert arr[::-1].axes[0].colours == (blue, green, red)
    assert arr[[2, 0]].axes[0].colours == (blue, red)
    assert shown_of(arr * 2.0).axes[0].colours == (red, green, blue)
    shown = arr.to_xarray().sel(c=["b", "r"])
    assert as_array(shown).axes[0].colours == (blue, red)
    arr.to_zarr(tmp_path / "a.zarr", progress=False)
    assert open_dataset(tmp_path / "a.zarr").axes[0].colours == (red, green, blue)
