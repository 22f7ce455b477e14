"""Masters of Eiger detectors: parts of all kinds, channels, masks and pixel sizes."""

import re

import h5py
import numpy as np
import pytest
from checks import refuses
from eiger_writer import write_eiger

from dask_tiled import DoubtWarning, describe, open_dataset

pytestmark = pytest.mark.usefixtures("synchronous")

PIXEL = 7.5e-5
NUMBERS = np.arange(10 * 6 * 8).reshape(10, 6, 8)


def add_detector(entry):
    """Write the pixel size, as all masters do."""
    detector = entry.create_group("instrument/detector")
    detector.attrs["NX_class"] = "NXdetector"
    for name in ("x_pixel_size", "y_pixel_size"):
        detector[name] = PIXEL
        detector[name].attrs["units"] = "m"
    return detector


def write_parts(folder, parts, **options):
    """Write a master with linked parts, as masters before 2024 are."""
    path = write_eiger(folder, parts, **options)
    with h5py.File(path, "a") as master:
        add_detector(master["entry"])["flatfield"] = np.ones((99, 99), "f4")
    return path


def write_2024(folder, channels, frames=10, masks=()):
    """Write a master by the vendor's layout "hdf5 nexus v2024.2 nxmx"; return it and its pixels."""
    shape = frames, len(channels), 6, 8
    pixels = np.arange(np.prod(shape), dtype="u2").reshape(shape)
    layout = h5py.VirtualLayout(shape, "u2")
    for start in range(0, frames, 4):
        name, part = f"scan_data_{start // 4:06d}.h5", pixels[start : start + 4]
        with h5py.File(folder / name, "w") as file:
            file["entry/data/data"] = part
        source = h5py.VirtualSource(name, "entry/data/data", part.shape, "u2")
        layout[start : start + 4] = source
    path = folder / "scan_master.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.attrs["default"] = "entry"
        entry = file.create_group("entry")
        entry.attrs.update(NX_class="NXentry", default="data")
        data = entry.create_group("data")
        data.attrs.update(NX_class="NXdata", signal="data", image_id_indices=0, channel_indices=1)
        data.attrs["axes"] = ["image_id", "channel", ".", "."]
        data.create_virtual_dataset("data", layout)
        data["image_id"], data["channel"] = np.arange(1, frames + 1), list(channels)
        detector = add_detector(entry)
        for channel, mask in zip(channels, masks, strict=False):
            detector[f"{channel}_channel/pixel_mask"] = mask
    return path, pixels


def mask_at(*place):
    mask = np.zeros((6, 8), "u4")
    mask[place] = 1
    return mask


def steps(desc):
    return [(axis.name, axis.units, axis.scale) for axis in desc.axes[-2:]]


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_the_pixel_size_is_that_of_the_detector(tmp_path, marked, count):
    """Also if the group of the parts is marked as NXdata, which does not describe their axes."""
    path = write_parts(tmp_path, [NUMBERS] * count)
    with h5py.File(path, "a") as file:
        if marked:
            file["entry/data"].attrs["NX_class"] = "NXdata"
    assert steps(describe(path)) == [("y", "m", PIXEL), ("x", "m", PIXEL)]


def test_axes_of_nxdata_come_before_the_pixel_size(tmp_path):
    """Spectra, and frames with axes of their own, do not get the pixel size."""
    path = tmp_path / "scan.nxs"
    with h5py.File(path, "w") as file:
        entry = file.create_group("entry")
        add_detector(entry)
        data = entry.create_group("data")
        data.attrs.update(NX_class="NXdata", signal="data", axes=[".", "chi", "q"])
        data["data"], data["q"] = NUMBERS, np.arange(8) * 0.5
        data["q"].attrs["units"] = "1/nm"
    assert steps(describe(path))[0] == ("chi", "", 1)
    assert steps(describe(path))[1] == ("q", "1/nm", 0.5)
    with h5py.File(path, "a") as file:
        file["entry/data"].attrs["axes"] = [".", ".", "."]
        file["entry/data/data"].attrs["interpretation"] = "spectrum"
    assert describe(path).sig_shape == (8,)
    assert {axis.units for axis in describe(path).axes} == {""}


def test_channels_have_names_pixel_sizes_and_masks(tmp_path):
    path, pixels = write_2024(tmp_path, ["threshold_1"], masks=[mask_at(0, 1)])
    arr = open_dataset(path, corrections="dataset")
    assert steps(arr.description) == [("y", "m", PIXEL), ("x", "m", PIXEL)]
    assert arr.description.axes[1].labels == ("threshold_1",)
    corrected = np.argwhere((arr.compute() != pixels).any(axis=(0, 1)))
    assert corrected.tolist() == [[0, 1]]
    scan = open_dataset(path, nav_shape=(2, 5))
    assert scan.dims == ("scan_y", "scan_x", "y", "x")
    assert scan.description.axes[0].offset == 0
    np.testing.assert_array_equal(scan, pixels.reshape(2, 5, 6, 8))


@pytest.mark.parametrize("count", [2, 3])
def test_a_scan_never_mixes_channels(tmp_path, count):
    names = [f"threshold_{k + 1}" for k in range(count - 1)] + ["difference"]
    path, pixels = write_2024(tmp_path, names)
    arr = open_dataset(path)
    assert arr.description.axes[1].labels == tuple(names)
    np.testing.assert_array_equal(arr, pixels)
    for nav_shape, whole in (((2, 5), (2, 5)), ((-1, 2), (5, 2)), (10, (10,)), ((3, 3), (3, 3))):
        if nav_shape in ((-1, count), (3, count)):  # all channels
            continue
        with pytest.warns(DoubtWarning, match=f"the first of {count} channels .*{names[0]}"):
            scan = open_dataset(path, nav_shape=nav_shape)
        first = pixels[: np.prod(whole), 0].reshape(*whole, 6, 8)
        np.testing.assert_array_equal(scan, first)
        assert scan.description.metadata["hdf5"]["channel"] == names[0]
    scan = open_dataset(path, nav_shape=(2, 5, count), doubts="raise")
    assert scan.dims == ("scan_y", "scan_x", "channel", "y", "x")
    assert scan.description.axes[2].labels == tuple(names)
    np.testing.assert_array_equal(scan, pixels.reshape(2, 5, count, 6, 8))
    for wrong in ((4, 5), 10 * count, (1, 11)):
        refuses(path, f"would mix channels; .*ends with {count} for all", nav_shape=wrong)


@pytest.mark.parametrize("nav_shape", [(10, 2), (2, 5, 2), (2, 5)])
def test_the_offset_counts_positions_of_all_channels(tmp_path, nav_shape):
    path, pixels = write_2024(tmp_path, ["threshold_1", "threshold_2"])
    options = {"nav_shape": nav_shape, "missing": "fill", "doubts": "ignore"}
    per_position = pixels if nav_shape[-1] == 2 else pixels[:, :1]
    for offset in (1, -1):
        expected = np.zeros_like(per_position)
        if offset > 0:
            expected[:-1] = per_position[1:]
        else:
            expected[1:] = per_position[:-1]
        arr = open_dataset(path, sync_offset=offset, **options)
        np.testing.assert_array_equal(arr, expected.reshape(arr.shape))
    assert describe(path, nav_shape=(-1, 2), sync_offset=1).shape == (9, 2, 6, 8)
    assert describe(path, nav_shape=(-1, 3), sync_offset=1).shape == (3, 3, 6, 8)


@pytest.mark.parametrize(("energies", "shown"), [([4e3], 4e3), ([4e3, 8e3], None)])
def test_a_threshold_is_a_fact_if_there_is_one(tmp_path, energies, shown):
    names = [f"threshold_{k + 1}" for k in range(len(energies))]
    path, _ = write_2024(tmp_path, names)
    with h5py.File(path, "a") as file:
        for name, energy in zip(names, energies, strict=True):
            group = file.create_group(f"entry/instrument/detector/{name}_channel")
            group["threshold_energy"] = energy / 1000
            group["threshold_energy"].attrs["units"] = "keV"
    found = describe(path).instrument.get("threshold")
    assert (found and (found.value, found.unit)) == (shown and (pytest.approx(shown), "eV"))


def test_masks_that_differ_are_for_one_channel(tmp_path):
    names = ["threshold_1", "threshold_2"]
    path, pixels = write_2024(tmp_path, names, masks=[mask_at(0, 1), mask_at(2, 3)])
    refuses(path, r"masks of the channels differ.*threshold_1, thresh", corrections="dataset")
    scan = open_dataset(path, nav_shape=(2, 5), corrections="dataset", doubts="ignore")
    different = (scan.compute() != pixels[:, 0].reshape(2, 5, 6, 8)).any(axis=(0, 1))
    assert np.argwhere(different).tolist() == [[0, 1]]
    with h5py.File(path, "a") as file:
        del file["entry/instrument/detector/threshold_1_channel"]
    refuses(
        path,
        r"no pixel mask .*threshold_1_channel/pixel_mask",
        nav_shape=(2, 5),
        corrections="dataset",
        doubts="ignore",
    )


SHOWN = {
    "single frame": [NUMBERS[0]],
    "frames": [NUMBERS[0], NUMBERS[1], NUMBERS[2]],
    "frame between stacks": [NUMBERS[:2], NUMBERS[2], NUMBERS[3:]],
    "two sizes of integers": [NUMBERS[:4].astype("u4"), NUMBERS[4:].astype("u2")],
    "two byte orders and signs": [NUMBERS[:4].astype(">u2"), NUMBERS[4:].astype("<i2")],
    "two sizes of floats": [NUMBERS[:4].astype("f4"), NUMBERS[4:].astype("f8")],
    "two thresholds": [NUMBERS[:8].reshape(4, 2, 6, 8), NUMBERS[8:].reshape(1, 2, 6, 8)],
}


@pytest.mark.parametrize("options", [{}, {"compression": "gzip", "shuffle": True}], ids=str)
@pytest.mark.parametrize("kind", SHOWN)
def test_parts_of_all_kinds_are_shown(tmp_path, kind, options):
    parts = SHOWN[kind]
    stacks = [part[None] if part.ndim == 2 else part for part in parts]
    expected = np.concatenate(stacks) if len(parts) > 1 else parts[0]
    arr = open_dataset(write_parts(tmp_path, parts, **options), doubts="raise")
    assert arr.dtype == expected.dtype
    np.testing.assert_array_equal(arr, expected)
    assert steps(arr.description) == [("y", "m", PIXEL), ("x", "m", PIXEL)]


REFUSED = {
    "frame size": [NUMBERS[:4], NUMBERS[4:, :5]],
    "thresholds": [NUMBERS[:4].reshape(2, 2, 6, 8), NUMBERS[4:]],
    "spectrum": [NUMBERS[:4], NUMBERS[0, 0]],
    "integers that no type holds": [NUMBERS[:4].astype("u8"), NUMBERS[4:].astype("i8")],
    "integers and floats": [NUMBERS[:4].astype("u4"), NUMBERS[4:].astype("f4")],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_parts_that_cannot_be_combined_are_refused(tmp_path, kind):
    path = write_parts(tmp_path, REFUSED[kind])
    refuses(path, r"part of the series differs, at .*/data_000002; exp")
    for k, part in enumerate(REFUSED[kind], 1):
        arr = open_dataset(path, dataset=f"/entry/data/data_{k:06d}", sig_dims=1)
        np.testing.assert_array_equal(arr, part)


def test_announced_images_that_are_absent_are_positions_of_a_scan(tmp_path):
    pixels = 1 + np.arange(10 * 2 * 48).reshape(10, 2, 6, 8)
    path = write_parts(tmp_path, [pixels[:4], pixels[4:8], pixels[8:]])
    with h5py.File(path, "a") as file:
        specific = file.create_group("entry/instrument/detector/detectorSpecific")
        specific["nimages"], specific["ntrigger"] = 10, 1
    (tmp_path / "scan_data_000003.h5").unlink()
    options = {"missing": "fill", "doubts": "ignore"}
    expected = np.where(np.arange(10)[:, None, None] < 8, pixels[:, 0], 0)
    scan = open_dataset(path, nav_shape=(2, 5), **options)
    np.testing.assert_array_equal(scan, expected.reshape(2, 5, 6, 8))
    assert scan.description.missing.tolist() == [8, 9]


def test_channels_of_a_series_are_numbered_or_named_by_the_detector(tmp_path):
    path = write_parts(tmp_path, SHOWN["two thresholds"])
    assert describe(path).dims == ("frame", "channel", "y", "x")
    assert describe(path).axes[1].labels == ("1", "2")
    refuses(path, re.escape("each with 2 channels (1, 2)"), nav_shape=(2, 3))
    with h5py.File(path, "a") as file:
        for k in (1, 2):
            file.create_group(f"entry/instrument/detector/threshold_{k}_channel")
    assert describe(path).axes[1].labels == ("threshold_1", "threshold_2")
