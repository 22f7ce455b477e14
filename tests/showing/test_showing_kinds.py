"""`show` by kind of axes: channels, vectors, masks, spectra, and volumes in anatomical views."""

import dask.array as da
import numpy as np
import pytest
from matplotlib.colors import to_hex

import dask_tiled
from dask_tiled import Corrections, show
from dask_tiled.model.axes import Axis
from dask_tiled.opened.axes import labelled
from dask_tiled.showing.panels import hues
from dask_tiled.testing import Tile, write_czi, write_fits, write_mib, write_nrrd

SCAN = Axis("scan_y", "nm", 0.5), Axis("scan_x", "nm", 0.5)


def drawn(figure):
    """Return the panels of a figure by title: pixels, or the values of lines."""
    panels = [axes for axes in figure.axes if axes.get_xlabel()]
    return {
        axes.get_title(): np.asarray(axes.images[0].get_array())
        if axes.images
        else np.stack([line.get_ydata() for line in axes.lines])
        for axes in panels
    }


def bars(figure):
    """Return the labels of the colour bars."""
    bars = [bar for axes in figure.axes for bar in axes.child_axes]
    return [bar.get_ylabel() for bar in bars if bar.axison]


def letters(axes):
    """Return the orientation letters at the top, bottom, left and right."""
    found = {text.get_position(): text.get_text() for text in axes.texts}
    return "".join(found[at] for at in [(0.5, 0.97), (0.5, 0.03), (0.03, 0.5), (0.97, 0.5)])


@pytest.fixture
def cells(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    pixels = np.random.default_rng(0).integers(0, 4000, (4, 3, 20, 24), "uint16")
    told = {"axes": "ZCYX", "Channel": {"Name": ["DAPI", "GFP <x>", "RFP"]}}
    tifffile.imwrite(tmp_path / "cells.ome.tif", pixels, metadata=told)
    return dask_tiled.open_dataset(tmp_path / "cells.ome.tif"), pixels


@pytest.mark.thorough
def test_channels_are_never_averaged(cells):
    arr, pixels = cells
    figure = show(arr)
    *names, together = drawn(figure)
    assert names == ["DAPI", "GFP <x>", "RFP"]
    for k, name in enumerate(names):
        np.testing.assert_allclose(drawn(figure)[name], pixels[:, k].mean(0))
    assert drawn(figure)[together].shape == (20, 24, 3)
    assert "mean of each along z" in figure.get_supxlabel()


@pytest.mark.thorough
def test_channels_keep_their_names(cells):
    arr, pixels = cells
    assert [*drawn(show(arr[1:, 2]))][:2] == ["GFP <x>", "RFP"]
    found = drawn(show(arr.max(axis=arr.dims.index("z"))))
    assert [*found][:3] == ["DAPI", "GFP <x>", "RFP"]
    assert np.array_equal(found["RFP"], pixels[:, 2].max(0))


def test_composite_keeps_the_colour_of_each_channel():
    pixels = np.zeros((2, 8, 8), "u1")
    pixels[0, :4], pixels[1, 4:] = 9, 9
    axes = [Axis("c", labels=("up", "down")), Axis("y"), Axis("x")]
    image = drawn(show(labelled(da.from_array(pixels), axes)))["together"]
    assert image[0, 0].tolist() == [0, 255, 255]
    assert image[7, 0].tolist() == [255, 0, 255]


@pytest.mark.thorough
def test_composite_has_the_colours_of_the_file_and_a_legend():
    pixels = np.zeros((2, 8, 8), "u1")
    pixels[0, :4], pixels[1, 4:] = 9, 9
    colours = "#ff8000", "#0000ff"
    axes = [Axis("c", labels=("up", "down"), colours=colours), Axis("y"), Axis("x")]
    figure = show(labelled(da.from_array(pixels), axes))
    image = drawn(figure)["together"]
    assert image[0, 0].tolist() == [255, 128, 0]
    assert image[7, 0].tolist() == [0, 0, 255]
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == ["up", "down"]
    shown = [to_hex(patch.get_facecolor()) for patch in legend.get_patches()]
    assert shown == [*colours]


def test_samples_stored_as_blue_green_red_are_colours(tmp_path):
    frame = np.random.default_rng(0).integers(0, 255, (12, 16, 3), "u1")
    path = write_czi(tmp_path / "a.czi", [Tile({"C": 0, "Y": 0, "X": 0}, frame)])
    ((_, found),) = drawn(show(path)).items()
    np.testing.assert_array_equal(found, frame[..., ::-1])


@pytest.mark.thorough
def test_many_channels_are_sampled():
    axes = [Axis("c"), Axis("y"), Axis("x")]
    figure = show(labelled(da.ones((9, 5, 6)), axes))
    assert [*drawn(figure)] == [f"c = {k}" for k in range(6)] + ["together"]
    assert "6 of 9 positions along c" in figure.get_supxlabel()
    assert "Mean frame" in drawn(show(labelled(da.ones((40, 5, 6)), axes)))


def vectors(y, x, units="px"):
    pixels = da.from_array(np.stack(np.broadcast_arrays(y, x), axis=-1).astype(float))
    return labelled(pixels, [*SCAN, Axis("component", labels=("y", "x"))], units)


def test_vectors_have_a_direction_panel():
    rows, columns = np.mgrid[-4:5, -5:6]
    figure = show(vectors(rows, columns))
    found = drawn(figure)
    assert [*found] == ["Direction and length", "y", "x"]
    assert np.array_equal(found["y"], rows)
    assert np.array_equal(found["x"], columns)
    assert bars(figure) == ["px", "px"]
    colours = found["Direction and length"]
    assert colours[4, 5].tolist() == [0, 0, 0]  # length 0
    assert colours[4, -1].argmax() == 0  # right is red
    assert len(figure.axes[0].collections) == 1  # arrows
    assert not figure.get_supxlabel()


@pytest.mark.thorough
def test_arrows_point_down_for_positive_y():
    figure = show(vectors(np.where(np.arange(24)[:, None] < 12, 2.0, -2.0), np.zeros((24, 24))))
    (arrows,) = figure.axes[0].collections
    down = arrows.V.reshape(-1)
    assert (down[arrows.Y < 6] < 0).all()
    assert (down[arrows.Y > 6] > 0).all()
    assert not np.any(arrows.U)


def test_directions_have_distinct_hues():
    right, down, left, up = hues(np.array([0, 1, 0, -1.0]), np.array([1.0, 0, -1, 0]), 1.0)
    assert right[0] > right[1]
    assert up[1] > up[2]
    assert left[2] > left[0]
    assert down[2] > down[1]
    assert len({tuple(colour) for colour in (right, down, left, up)}) == 4


@pytest.mark.thorough
def test_vectors_are_drawn_from_their_mean():
    rows = np.random.default_rng(1).normal(31.5, 0.5, (12, 12))
    figure = show(vectors(rows, np.full((12, 12), 40.0)))
    mean = f"y = {rows.mean():.4g} px, x = 40 px"
    assert figure.get_supxlabel() == f"vectors from their mean, {mean}"
    assert np.array_equal(drawn(figure)["y"], rows)
    figure = show(vectors(np.full((12, 12), np.nan), rows))
    figure.draw_without_rendering()


def test_vectors_along_a_line_are_lines():
    axes = [SCAN[0], Axis("component", labels=("y", "x"))]
    figure = show(labelled(da.from_array(np.stack([np.arange(9.0), np.ones(9)], 1)), axes, "px"))
    (lines,) = drawn(figure).values()
    assert lines.tolist() == [[*range(9)], [1] * 9]
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["y", "x"]


def test_unnamed_last_axis_of_two_gives_two_images():
    pixels = np.random.default_rng(2).normal(size=(7, 9, 2))
    found = drawn(show(pixels))
    assert [*found] == ["axis 2 = 0", "axis 2 = 1"]
    assert np.array_equal(found["axis 2 = 1"], pixels[..., 1])


@pytest.mark.thorough
def test_masks_are_images():
    pixels = np.arange(5 * 6 * 3).reshape(5, 6, 3)
    axes = [*SCAN, Axis("mask", labels=("inner", "ring", "outer"))]
    found = drawn(show(labelled(da.from_array(pixels), axes)))
    assert [*found] == ["inner", "ring", "outer"]
    assert np.array_equal(found["ring"], pixels[..., 1])


ENERGY = Axis("energy", "keV", 0.01)


def test_few_spectra_are_lines():
    pixels = np.random.default_rng(3).random((3, 200))
    axes = [Axis("frame", labels=("a", "b", "c")), ENERGY]
    figure = show(labelled(da.from_array(pixels), axes, "counts"))
    assert np.array_equal(drawn(figure)[""], pixels)
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("energy (keV)", "counts")
    assert show(labelled(da.ones((30, 200)), [Axis("frame"), ENERGY])).axes[0].images


def test_spectrum_image_of_a_dask_array():
    pixels = np.random.default_rng(4).random((4, 5, 60))
    found = drawn(show(labelled(da.from_array(pixels), [*SCAN, ENERGY])))
    np.testing.assert_allclose(found["Mean spectrum"][0], pixels.mean((0, 1)))
    np.testing.assert_allclose(found["Sum of each spectrum"], pixels.sum(-1))


def head(shape=(11, 13, 15)):
    return np.random.default_rng(5).integers(1, 99, shape, "int16")


def upright(image):
    """Return the central planes of the image as nibabel turns it, by orientation letters."""
    nibabel = pytest.importorskip("nibabel")
    right, front, up = (axis // 2 for axis in nibabel.as_closest_canonical(image).shape)
    turned = np.asarray(nibabel.as_closest_canonical(image).dataobj)
    return {
        "SIPA": turned[right].T[::-1],
        "SILR": turned[:, front].T[::-1],
        "APLR": turned[:, :, up].T[::-1],
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("codes", "suffix"),
    [("RAS", "nii"), ("LPS", "nii"), ("PSR", "mgz"), ("IAL", "nii"), ("ARI", "mgz")],
)
def test_volumes_are_shown_in_anatomical_views(tmp_path, codes, suffix):
    nibabel = pytest.importorskip("nibabel")
    turned = nibabel.orientations.inv_ornt_aff(nibabel.orientations.axcodes2ornt(codes), (0, 0, 0))
    oblique = nibabel.eulerangles.euler2mat(0.2, 0.1, -0.15)
    affine = nibabel.affines.from_matvec(oblique @ np.diag([2.0, 1, 3]) @ turned[:3, :3].round())
    kind = nibabel.MGHImage if suffix == "mgz" else nibabel.Nifti1Image
    image = kind(head(), affine)
    nibabel.save(image, tmp_path / f"brain.{suffix}")
    image = nibabel.load(tmp_path / f"brain.{suffix}")
    figure = show(tmp_path / f"brain.{suffix}")
    expected = upright(image)
    assert {letters(axes) for axes in figure.axes} == {*expected}
    for axes in figure.axes:
        found = np.asarray(axes.images[0].get_array())
        assert np.array_equal(found, expected[letters(axes)])


@pytest.mark.thorough
def test_extents_turn_with_the_pixels(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    affine = np.diag([-2.0, -2.0, 2.0, 1.0])  # axes point left, posterior, superior
    nibabel.save(nibabel.Nifti1Image(head(), affine), tmp_path / "brain.nii")
    arr = dask_tiled.open_dataset(tmp_path / "brain.nii")
    axial = show(arr[7]).axes[0]
    assert letters(axial) == "APLR"
    assert axial.images[0].get_extent() == [21, -1, 25, -1]
    assert letters(show(arr[::-1][7]).axes[0]) == "APLR"
    assert letters(show(arr.mean(axis=0)).axes[0]) == "APLR"
    assert letters(show(arr[:, 3]).axes[0]) == "SILR"


def test_volumes_without_orientation_are_not_turned(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(head(), None)
    nibabel.save(image, tmp_path / "volume.nii")
    figure = show(tmp_path / "volume.nii")
    assert not figure.axes[0].texts
    assert np.array_equal(drawn(figure)["z = 7"], head().T[7])


@pytest.mark.parametrize("space", ["left-posterior-superior", "LPS", "RAS", "scanner-xyz"])
def test_spaces_of_nrrd(tmp_path, space):
    fields = {"space": space, "space directions": "(1,0,0) (0,1,0) (0,0,1)"}
    header, *_ = write_nrrd(tmp_path / "head.nrrd", head().T, fields=fields)
    directions = dask_tiled.describe(header).metadata["nrrd"].get("directions")
    if space == "scanner-xyz":
        assert directions is None
        return
    last = "RL", "AP", "IS"
    expected = last if space != "RAS" else ("LR", "PA", "IS")
    assert directions == dict(zip("xyz", expected, strict=True))
    assert letters(show(header).axes[0]) == "APLR"


@pytest.mark.thorough
def test_series_of_volumes_show_one_volume(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    pixels = np.random.default_rng(6).integers(0, 99, (5, 6, 7, 3), "int16")
    nibabel.save(nibabel.Nifti1Image(pixels, np.eye(4)), tmp_path / "functional.nii")
    figure = show(tmp_path / "functional.nii")
    assert "t: 1 of 3" in figure.get_supxlabel()
    assert len(figure.axes) == 3


@pytest.mark.thorough
def test_units_of_values(tmp_path):
    pixels = np.random.default_rng(7).poisson(9, (4, 5, 8, 8)).astype("uint16")
    path = write_mib(tmp_path / "scan.mib", pixels)
    assert {label.split(",")[0] for label in bars(show(path))} == {"counts"}
    corrected = dask_tiled.open_dataset(path, corrections=Corrections(dark=np.ones((8, 8))))
    assert not any("counts" in label for label in bars(show(corrected)))
    assert bars(show(np.arange(64.0).reshape(8, 8))) == [""]


@pytest.mark.parametrize(("scale", "expected"), [(1, "adu"), (2, "")])
def test_units_of_fits_need_scaled_pixels(tmp_path, scale, expected):
    cards = {"BUNIT": "adu", "BSCALE": float(scale)}
    path = write_fits(tmp_path / "image.fits", np.ones((4, 5), "i2"), cards=cards)
    assert dask_tiled.describe(path).units == expected
    assert dask_tiled.describe(path, scaled=True).units == "adu"


def test_units_of_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=np.ones((4, 5))).attrs["units"] = "V"
    assert dask_tiled.describe(tmp_path / "a.h5").units == "V"
