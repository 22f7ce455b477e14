"""DM5 files: equal to DM4 files of the same images."""

import h5py
import numpy as np
import pytest
from formats_table import write_dm5

from dask_tiled import describe, open_dataset
from dask_tiled.testing import counting_frames, write_dm

pytestmark = pytest.mark.usefixtures("synchronous")

UNITS = ("nm", "nm", "1/nm", "mrad")


SHAPES = [((7,), 1), ((1, 7), 1), ((4, 7), 1), ((2, 3, 7), 1), ((5, 6), 2), ((3, 5, 6), 2)]
SHAPES += [((2, 3, 5, 6), 2)]


@pytest.mark.parametrize(
    ("shape", "sig_dims", "transposed"),
    [*((*one, False) for one in SHAPES), ((2, 3, 7), 1, True), ((2, 3, 5, 6), 2, True)],
    ids=str,
)
def test_images_of_every_shape_equal_dm4(tmp_path, shape, sig_dims, transposed):
    frames = counting_frames(shape, "f4")
    nav = len(shape) - sig_dims
    steps = [(2.0 + k, 0.5 * (k + 1), unit) for k, unit in enumerate(UNITS[: len(shape)])]
    said = {"Format": np.bytes_("Spectrum image")} if sig_dims == 1 and len(shape) > 1 else {}
    if not transposed and (len(shape) == 4 or (nav, sig_dims) == (2, 1)):
        said["Data Order Swapped"] = np.uint8(1)
    order = (*range(nav, len(shape)), *range(nav)) if transposed else tuple(range(len(shape)))
    stored = frames.transpose(order)
    voltage = {"Microscope Info": {"Voltage": np.float64(200e3)}}
    image = "scan", stored, [steps[k] for k in order][::-1], {"Meta Data": said, **voltage}, 2
    path = write_dm5(tmp_path / "a.dm5", [image])
    other = write_dm(
        tmp_path / "a.dm4", frames, sig_dims=sig_dims, transposed=transposed, calibrations=steps
    )
    arr, expected = open_dataset(path), open_dataset(other)
    np.testing.assert_array_equal(arr.compute(), frames)
    assert (arr.shape, arr.axes) == (expected.shape, expected.axes)
    assert arr.description.nav_ndim == expected.description.nav_ndim
    assert arr.instrument["beam_energy"].value == 200e3


def test_the_image_of_the_first_document_opens(tmp_path):
    """Thumbnails are not listed; images have names."""
    images = [
        ("thumbnail", np.zeros((64, 64), "u4"), [], {}, 23),
        ("large", np.ones((90, 90), "f4"), [], {}, 2),
        ("spectrum", np.arange(2048, dtype="f4"), [(10.0, 0.5, "eV")], {}, 2),
    ]
    path = write_dm5(tmp_path / "a.dm5", images, shown=2, thumbnails=[0])
    desc = describe(path)
    assert (desc.shape, desc.axes[0].units, desc.axes[0].offset) == ((2048,), "eV", -5.0)
    assert [*desc.metadata["hdf5"]["datasets"]] == [
        f"/ImageList/[{k}]/ImageData/Data" for k in (2, 1)
    ]
    assert describe(path, dataset="large").shape == (90, 90)
    assert describe(path, dataset="/ImageList/[0]/ImageData/Data").shape == (64, 64)


@pytest.mark.parametrize("shown", [-1, 7, 1 << 40])
def test_references_that_lead_nowhere(tmp_path, shown):
    """The first image that is no thumbnail opens."""
    images = [("a", np.zeros((8, 8), "u1"), [], {}, 6), ("b", np.ones((9, 9), "u1"), [], {}, 6)]
    path = write_dm5(tmp_path / "a.dm5", images, shown=0, thumbnails=[0])
    with h5py.File(path, "r+") as file:
        file["ImageSourceList/[0]"].attrs["ImageRef"] = shown
    assert describe(path).shape == (9, 9)


def test_colours_and_complex_pixels(tmp_path):
    pixels = np.arange(12, dtype="u1").reshape(1, 3, 4)
    colours = pixels.view("u4")[..., 0]
    waves = (np.arange(6).reshape(2, 3) * (1 + 2j)).astype("c8")
    path = write_dm5(tmp_path / "a.dm5", [("c", colours, [], {}, 23), ("w", waves, [], {}, 3)])
    found = open_dataset(path).compute()
    assert [found[name].tolist() for name in "RGBA"] == [
        pixels[..., k].tolist() for k in (2, 1, 0, 3)
    ]
    np.testing.assert_array_equal(open_dataset(path, dataset="w"), waves)


def test_four_axes_without_units_are_a_doubt(tmp_path):
    path = write_dm5(tmp_path / "a.dm5", [("s", np.zeros((2, 3, 4, 5), "u2"), [], {}, 10)])
    (doubt,) = describe(path).doubts
    assert (doubt.code, describe(path).shape) == ("axes-order", (4, 5, 2, 3))
