"""Axes of length 1 in files of light microscopes: dropped by all formats of frames."""

import numpy as np
import pytest
import tifffile

from dask_tiled import open_dataset
from dask_tiled.testing import Tile, write_czi, write_lif, write_nd2

PLANE = np.arange(20 * 30, dtype="u2").reshape(20, 30)
SHAPES = [(1, 1, 1), (1, 2, 1), (3, 1, 4)]


def czi(path, pixels):
    places = np.ndindex(pixels.shape[:3])
    starts = [dict(zip("TCZ", place, strict=True)) for place in places]
    tiles = (Tile({**at, "X": 0, "Y": 0}, pixels[tuple(at.values())]) for at in starts)
    return write_czi(path / "a.czi", tiles, scaling={"Z": 5e-7})


def ome_tiff(path, pixels):
    tifffile.imwrite(path / "a.ome.tif", pixels, metadata={"axes": "TCZYX"})
    return path / "a.ome.tif"


def nd2(path, pixels):
    return write_nd2(path / "a.nd2", np.moveaxis(pixels, 1, 2), "tzcyx")


def lif(path, pixels):
    return write_lif(path / "a.lif", {"a": pixels}, "tczyx")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("write", [czi, ome_tiff, nd2, lif])
def test_they_are_dropped(tmp_path, write, shape):
    pixels = np.arange(np.prod(shape), dtype="u2").reshape(*shape, 1, 1) + PLANE
    arr = open_dataset(write(tmp_path, pixels))
    kept = [name for name, size in zip("tczyx", pixels.shape, strict=True) if size > 1]
    assert sorted(arr.dims) == sorted(kept)  # ND2 has z before c
    order = [kept.index(name) for name in arr.dims]
    np.testing.assert_array_equal(arr.compute(), pixels.squeeze().transpose(order))


@pytest.mark.parametrize("write", [czi, ome_tiff])
def test_they_can_be_kept(tmp_path, write):
    pixels = PLANE.reshape(1, 1, 1, 20, 30)
    arr = open_dataset(write(tmp_path, pixels), squeeze=False)
    assert arr.dims == ("t", "c", "z", "y", "x")
    np.testing.assert_array_equal(arr.compute(), pixels)


def test_stacks_begin_at_their_first_plane(tmp_path):
    """Planes 5 to 7 of a stack lie at the heights that they have in it."""
    tiles = (Tile({"Z": z, "X": 0, "Y": 0}, PLANE + z) for z in (5, 6, 7))
    arr = open_dataset(write_czi(tmp_path / "a.czi", tiles, scaling={"Z": 5e-7}))
    z = arr.axes[0]
    assert (z.name, z.units) == ("z", "\N{MICRO SIGN}m")
    assert np.allclose(z.points(3), [2.5, 3.0, 3.5])
