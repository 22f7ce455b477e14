"""FreeSurfer volumes, compared with nibabel."""

import gzip
import struct
from pathlib import Path

import nibabel
import numpy as np
import pytest
from checks import refuses

import dask_tiled
from dask_tiled.testing import check_format, counting_frames, write_mgh


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "f4"])
@pytest.mark.parametrize(("shape", "suffix"), [((4, 5, 6), ".mgz"), ((3, 4, 5, 6), ".mgh")])
def test_files_written_by_nibabel(tmp_path, shape, dtype, suffix):
    volume = counting_frames(shape, dtype)
    path = tmp_path / f"brain{suffix}"
    affine = nibabel.affines.from_matvec(np.diag([2.0, 3.0, 4.0]), [5, 6, 7])
    image = nibabel.MGHImage(volume.T, affine)
    nibabel.save(image, path)

    desc = dask_tiled.describe(path)
    assert desc.format == "mgh"
    assert desc.dims == ("t", "z", "y", "x")[-len(shape) :]
    assert [axis.scale for axis in desc.axes[-3:]] == [4.0, 3.0, 2.0]
    assert {axis.units for axis in desc.axes[-3:]} == {"mm"}
    np.testing.assert_allclose(desc.metadata["mgh"]["affine"], affine)
    check_format(path, volume, cuts=1)


def test_real_file_of_nibabel():
    path = Path(nibabel.__file__).parent / "tests" / "data" / "test.mgz"
    if not path.exists():
        pytest.skip("nibabel comes without its test files")
    image, desc = nibabel.load(path), dask_tiled.describe(path)
    np.testing.assert_allclose(desc.metadata["mgh"]["affine"], image.affine)
    check_format(path, np.asarray(image.dataobj).T.astype(desc.dtype), cuts=3)


@pytest.mark.parametrize("good", [False, True])
def test_written_files_equal_nibabel(tmp_path, good):
    volume = counting_frames((3, 4, 5, 6), "i2")
    turned = (0, 1, 0, 0, 0, 1, 1, 0, 0)
    options = {"delta": (2, 3, 4), "directions": turned, "center": (5, 6, 7)}
    path = write_mgh(tmp_path / "brain.mgh", volume, good=good, repetition=2500, **options)

    image = nibabel.MGHImage.from_bytes(path.read_bytes())
    desc = dask_tiled.describe(path)
    np.testing.assert_array_equal(image.dataobj, volume.T)
    assert ("affine" in desc.metadata["mgh"]) is good  # readers disagree on the default
    np.testing.assert_allclose(desc.metadata["mgh"].get("affine", image.affine), image.affine)
    scales = [axis.scale for axis in desc.axes]
    assert scales == ([2500, 4, 3, 2] if good else [2500, 1, 1, 1])
    assert desc.axes[0].units == "ms"


def test_nan_is_left_out(tmp_path):
    nan = float("nan")
    path = write_mgh(tmp_path / "brain.mgh", np.ones((2, 3, 4), "u1"), delta=(nan, 1, 1))

    desc = dask_tiled.describe(path)
    assert "affine" not in desc.metadata["mgh"]
    assert [axis.scale for axis in desc.axes] == [1, 1, 1]
    assert desc.metadata["mgh"]["header"]["delta"][0] is None


@pytest.mark.parametrize(
    ("at", "value", "match"),
    [(0, 2, "version"), (4, 0, "width"), (16, -1, "nframes"), (20, 2, "type is 2")],
)
def test_invalid_header_raises(tmp_path, at, value, match):
    path = write_mgh(tmp_path / "brain.mgh", np.ones((2, 3, 4), "u1"))
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, at, value)
    path.write_bytes(data)

    refuses(path, match, dask_tiled.CorruptFileError, format="mgh")
    with pytest.raises(dask_tiled.DatasetError):  # found by its suffix
        dask_tiled.describe(path)


@pytest.mark.parametrize("suffix", [".mgh", ".mgz"])
@pytest.mark.parametrize("size", [2**31 - 1, 100_000])
def test_sizes_beyond_the_file_raise(tmp_path, size, suffix):
    path = write_mgh(tmp_path / f"brain{suffix}", np.ones((2, 3, 4), "u1"))
    whole = tmp_path / "whole.mgh"
    write_mgh(whole, np.ones((2, 3, 4), "u1"))
    data = bytearray(whole.read_bytes())
    struct.pack_into(">i", data, 12, size)
    if suffix == ".mgz":
        data = gzip.compress(data)
    path.write_bytes(data)

    refuses(path, "brain", dask_tiled.TruncatedFileError)
