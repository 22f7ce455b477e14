"""Samples are valid files of their formats, and equal on every machine."""

import hashlib
import sys
from functools import partial

import dask
import h5py
import nibabel
import numpy as np
import pytest
import rsciio.hspy
import rsciio.quantumdetector
import tifffile
from beton_reader import samples as read_beton
from ome_types import from_xml

import dask_tiled
from dask_tiled import DatasetError, open_dataset, samples
from dask_tiled.samples import scan, spectra, stack, training, volume

pytestmark = pytest.mark.thorough

VERSIONS = {
    "alloy": ("alloy-1", "6413d66b7f882535"),
    "brain": ("brain-1", "fda81b98aeaec8f0"),
    "cells": ("cells-1", "60474b9ef3172bcf"),
    "gold": ("gold-1", "3cdcd0c48840752d"),
    "shapes": ("shapes-1", "7c8d7985db309650"),
}
"""The folder of each sample, and the digest of its pixels. New pixels need a new version."""


@pytest.mark.parametrize("name", samples.__all__)
def test_samples_are_reproducible(name, samples_folder):
    path = getattr(samples, name)()
    version, digest = VERSIONS[name]
    assert path.parent == samples_folder / version
    pixels = open_dataset(path).compute()
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == digest
    size = sum(file.stat().st_size for file in path.parent.iterdir())
    assert size <= 128 << 20


def test_gold_is_a_merlin_scan():
    arr = open_dataset(samples.gold())
    (read,) = rsciio.quantumdetector.file_reader(str(samples.gold()), lazy=True)
    assert read["data"].shape == arr.shape
    np.testing.assert_array_equal(read["data"][7], arr[7][:, ::-1])  # RosettaSciIO flips frames
    assert arr.instrument["threshold"].value == 2000
    assert arr.axes == scan.AXES  # saved in a separate file: MIB stores no axes
    assert [axis.units for axis in arr.axes] == ["nm", "nm", "mrad", "mrad"]


def test_gold_shows_discs_rings_and_phase():
    arr, specimen = open_dataset(samples.gold()), scan.Specimen()
    angle = 0.4 * np.hypot(*(np.indices((128, 128)) - 63.5))
    disk, dark = angle < 1.6, (angle > 8) & (angle < 25)
    mean, seen, centre = dask.compute(
        arr.mean((0, 1)),
        dask_tiled.tiles.apply_masks(arr, [disk, dark]),
        dask_tiled.tiles.center_of_mass(arr, disk),
    )
    # Within the counters' 12 bits; without gold, most electrons are in the disk.
    assert arr.max().compute() < 4096
    assert seen[0, 0, 0] > 0.8 * scan.ELECTRONS
    assert np.corrcoef(seen[..., 1].ravel(), specimen.gold.ravel())[0, 1] > 0.9
    slope = np.stack(np.gradient(specimen.phase), axis=-1)
    for k in range(2):
        found = np.corrcoef(centre[..., k].ravel(), slope[..., k].ravel())[0, 1]
        assert found > 0.98
    # Rings of gold are brighter than the valleys next to them.
    of_ring = (angle / 0.4).astype(int).ravel()
    ring = np.bincount(of_ring, mean.ravel()) / np.bincount(of_ring)
    for squares, valley in ((3, 9.2), (3, 11.2), (4, 11.2), (4, 14), (8, 15.6), (8, 19)):
        at = 1e3 * scan.WAVELENGTH / scan.GOLD_LATTICE * np.sqrt(squares)
        assert ring[int(at / 0.4)] > 1.3 * ring[round(valley / 0.4)]


def test_electrons_are_counted():
    """Counts have Poisson noise, and no electron is counted twice."""
    (row,) = scan.Specimen().counts(1)
    np.testing.assert_array_equal(row, open_dataset(samples.gold())[0])
    sums = row.sum(axis=(1, 2), dtype=int)
    assert (sums < scan.ELECTRONS + 5 * np.sqrt(scan.ELECTRONS)).all()
    flat = row[:, 0:20, 60:68].astype(float)
    assert 0.9 < flat.var() / flat.mean() < 1.6


def test_bad_pixels_are_planted(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "write_gold", partial(scan.write_gold, rows=2))
    with dask.config.set({"dask_tiled.samples-folder": tmp_path}):
        whole, worn = (open_dataset(samples.gold(bad_pixels=bad)) for bad in (False, True))
    assert len({*(arr.description.files[0].path for arr in (whole, worn))}) == 2
    hot, dead = (tuple(np.transpose(places)) for places in (scan.HOT, scan.DEAD))
    expected = whole.compute()
    expected[:, :, *hot], expected[:, :, *dead] = scan.HOT_COUNT, 0
    np.testing.assert_array_equal(worn, expected)
    for place in (*scan.HOT, *scan.DEAD):
        assert str(place) in samples.gold.__doc__


def test_cells_are_an_ome_tiff_set():
    path, counts = samples.cells(), stack.draw_cells()
    files = sorted(path.parent.iterdir())
    assert len(files) == 6
    for file in files:
        with tifffile.TiffFile(file) as tif:
            np.testing.assert_array_equal(tif.series[0].asarray(), counts)
            ome = from_xml(tif.ome_metadata)
    for file in files[::3]:
        np.testing.assert_array_equal(open_dataset(file), counts)
    pixels = ome.images[0].pixels
    assert [channel.name for channel in pixels.channels] == ["nuclei", "membranes", "spots"]
    assert pixels.physical_size_z_quantity.to("nm").magnitude == pytest.approx(600)
    assert ome.instruments[0].objectives[0].lens_na == 1.4
    arr = open_dataset(path)
    assert [(axis.scale, axis.units) for axis in arr.axes[1:]] == [
        (0.6, "µm"), (0.2, "µm"), (0.2, "µm"),
    ]  # fmt: skip
    assert {"microscope", "magnification", "date"} <= {*arr.instrument}


def test_alloy_is_a_hyperspy_file():
    path = samples.alloy()
    found = rsciio.hspy.file_reader(str(path))
    assert {one["metadata"]["General"]["title"] for one in found} == {"EDS", "HAADF", "BF"}
    listed = dask_tiled.describe(path).metadata["hdf5"]["datasets"]
    assert len(listed) == 3
    for one in found:
        title = one["metadata"]["General"]["title"]
        arr = open_dataset(path, dataset=f"Experiments/{title}")
        np.testing.assert_array_equal(arr, one["data"])
        for axis, told in zip(arr.axes, one["axes"], strict=True):
            assert (axis.name, axis.units, axis.scale) == (
                told["name"], told["units"], told["scale"],
            )  # fmt: skip
        assert arr.instrument["beam_energy"].value == 200_000
        assert one["metadata"]["Acquisition_instrument"]["TEM"]["beam_energy"] == 200
    with h5py.File(path) as file:
        assert file["Experiments/EDS/data"].chunks is None
    spectrum = open_dataset(path).sum((0, 1)).compute()
    peaks = {energy for lines in spectra.LINES.values() for energy in lines if energy > 8}
    for energy in peaks:
        at = round(energy / 0.01)
        assert spectrum[at] > 2 * spectrum[at - 30]


def test_brain_is_upright():
    image = nibabel.load(samples.brain())
    assert nibabel.aff2axcodes(image.affine) == ("R", "A", "S")
    assert image.header.get_value_label("sform_code") == "mni"
    assert image.header.get_xyzt_units()[0] == "mm"
    voxels = np.asarray(image.dataobj)
    np.testing.assert_array_equal(open_dataset(samples.brain()), voxels.T)

    def middle(mask):
        return image.affine[:3, :3] @ np.argwhere(mask).mean(axis=0) + image.affine[:3, 3]

    assert middle(voxels > 900)[0] > 80  # the capsule, on the right
    skin = (voxels > 380) & (voxels < 450)
    skin[:, :100] = False
    assert middle(skin)[1] > 70  # the nose, in front
    white = (voxels > 650) & (voxels < 800)
    assert middle(white[..., :15] if white[..., :15].any() else white)[2] < 0  # the stem, below
    assert [axis.name for axis in open_dataset(samples.brain()).axes] == ["z", "y", "x"]
    np.testing.assert_array_equal(volume.draw_head(), voxels)


def test_shapes_are_a_sample_file():
    drawn = training.draw_shapes()
    found = read_beton(samples.shapes())
    for name, column in zip(drawn, zip(*found, strict=True), strict=True):
        np.testing.assert_array_equal(np.stack(column), drawn[name])
        np.testing.assert_array_equal(open_dataset(samples.shapes(), field=name), drawn[name])
    # At equal size, a circle covers less than a square and more than a triangle.
    bright = drawn["image"].mean(-1) > 120
    areas = [bright[drawn["label"] == k].mean() for k in range(3)]
    assert areas[1] > areas[0] > areas[2] > 0


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [("cells", "tifffile", "tiff"), ("alloy", "h5py", "hdf5")],
)
def test_missing_library_names_its_extra(name, library, extra, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with (
        dask.config.set({"dask_tiled.samples-folder": tmp_path}),
        pytest.raises(DatasetError, match=rf"{library}, which is not installed.*\[{extra}\]"),
    ):
        getattr(samples, name)()
    assert not any(tmp_path.iterdir())
