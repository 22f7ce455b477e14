"""Groups are OME-Zarr images if the specification allows them."""

import dask.array as da
import numpy as np
import pytest
import yaozarrs
import zarr

from dask_tiled import open_dataset, to_zarr
from dask_tiled.testing import counting_frames, write_mib, write_nrrd

VOLUME = counting_frames((4, 6, 8), "uint16")
FIELDS = {"spacings": "0.5 2 3", "units": '"nm" "nm" "s"'}


def multiscale(path):
    """Validate a group against the specification; return its only image."""
    found = yaozarrs.validate_zarr_store(str(path))
    assert found is not None
    (image,) = zarr.open_group(path, mode="r").attrs["ome"]["multiscales"]
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
        "scan": (scan, [None, "space", "space", "space"]),
        "mean": (scan.mean((0, 1)), ["space", "space"]),
        "series": (scan[0], [None, "space", "space"]),
        "others": (da.ones((3, 4, 5)), [None, "space", "space"]),
    }
    for name, (one, types) in cases.items():
        to_zarr(one, tmp_path / name)
        image = multiscale(tmp_path / name)
        assert [axis.get("type") for axis in image["axes"]] == types


def test_arrays_that_are_no_images(arr, tmp_path):
    """The group has no attributes of OME-Zarr."""
    one = arr.sum(0).rechunk(-1)
    cases = {"line": arr.sum((0, 1)), "turned": one[::-1], "many": da.ones((2, 2, 2, 2, 2))}
    for name, made in cases.items():
        to_zarr(made, tmp_path / name)
        assert "ome" not in zarr.open_group(tmp_path / name, mode="r").attrs
    to_zarr(one, tmp_path / "twice", dimension_names=["x", "x"])
    assert "ome" not in zarr.open_group(tmp_path / "twice", mode="r").attrs
