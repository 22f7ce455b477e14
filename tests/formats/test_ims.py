"""Imaris files: levels, times and channels, padded volumes, and real files against h5py."""

import numpy as np
import pytest
from checks import axes_text, refused, refuses
from kinds import assert_equals_row, by_row, path_of, rows_of

from dask_tiled import TruncatedFileError, describe, open_dataset
from dask_tiled.testing import check_format, counting_frames, write_ims

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

VOLUMES = counting_frames((3, 2, 5, 11, 13), "u2")
EXTENT = ((-1.0, 5.5), (2.0, 4.75), (0.0, 10.0))
TIMES = [f"2024-05-06 07:08:{second:02}.500" for second in (1, 3, 5)]
FACTS = {"RecordingDate": "2024-05-06 07:08:01.500", "MicroscopeModality": "Confocal"}


@pytest.fixture
def path(tmp_path):
    options = {"extent": EXTENT, "times": TIMES, "channels": ["DAPI", "GFP"], "facts": FACTS}
    return write_ims(tmp_path / "cells.ims", VOLUMES, levels=3, **options)


def test_axes_and_facts(path):
    desc = describe(path)
    assert desc.format == "hdf5"
    assert desc.nav_ndim == 3
    assert axes_text(desc) == "t 2 s, c 1, z 2+1 µm, y 0.25+2.125 µm, x 0.5-0.75 µm"
    assert desc.axes[1].labels == ("DAPI", "GFP")
    assert desc.metadata["hdf5"]["axes_from"] == "Imaris"
    assert len(desc.metadata["hdf5"]["levels"]) == 3
    assert desc.metadata["hdf5"]["facts"]["/DataSetInfo/Image"]["Unit"] == "um"
    assert desc.instrument["microscope"].value == "Confocal"
    assert desc.instrument["date"].value.startswith("2024-05-06T07:08:01")


@pytest.mark.parametrize("level", range(3))
def test_levels(path, level):
    """Each level is cropped to its own size, and its voxels are larger."""
    expected = VOLUMES[..., :: 2**level, :: 2**level, :: 2**level]
    check_format(path, expected, cuts=5, level=level)
    axis = describe(path, level=level).axes[-1]
    assert axis.scale == pytest.approx(6.5 / expected.shape[-1])
    assert axis.offset == pytest.approx(axis.scale / 2 - 1.0)
    by_path = open_dataset(path, dataset=f"/DataSet/ResolutionLevel {level}")
    np.testing.assert_array_equal(by_path.compute(), expected)
    assert "picture" not in repr(by_path.description)  # levels are not images of their own


def test_unknown_level_raises(path, tmp_path):
    with refused(path, "no such level", detailed=True) as caught:
        open_dataset(path, level=3)
    assert caught.value.expected == "0 to 2"
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["a"] = VOLUMES[0, 0]
    with refused(other, "no such level", detailed=True) as caught:
        open_dataset(other, level=1)
    assert caught.value.expected == "0: the array has no pyramid"


@pytest.mark.parametrize("kind", ["contiguous", "compact", "external", "virtual"])
def test_padded_volumes_without_chunks(tmp_path, kind):
    """Volumes are cropped to the picture in every storage but external files, which raise."""
    path = write_ims(tmp_path / "cells.ims", VOLUMES[:1, :1], chunks=None)
    padded = np.pad(VOLUMES[0, 0], [(0, 1), (0, 2), (0, 3)], constant_values=7)
    place = "DataSet/ResolutionLevel 0/TimePoint 0/Channel 0"
    with h5py.File(path, "r+") as file:
        del file[f"{place}/Data"]
        if kind == "compact":
            create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            create.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple(padded.shape)
            kind_of = h5py.h5t.NATIVE_UINT16
            h5py.h5d.create(file[place].id, b"Data", kind_of, space, create)
            file[f"{place}/Data"][...] = padded
        elif kind == "external":
            padded.tofile(tmp_path / "pixels.bin")
            external = [("pixels.bin", 0, padded.nbytes)]
            file[place].create_dataset("Data", padded.shape, "u2", external=external)
        elif kind == "virtual":
            file["elsewhere"] = padded
            layout = h5py.VirtualLayout(padded.shape, "u2")
            layout[...] = h5py.VirtualSource(".", "elsewhere", padded.shape, "u2")
            file[place].create_virtual_dataset("Data", layout)
        else:
            file[f"{place}/Data"] = padded
    if kind == "external":
        refuses(path, "external files of such a dataset are not supported")
    else:
        check_format(path, VOLUMES[:1, :1], cuts=3)


def test_groups_are_sorted_as_numbers(tmp_path):
    volumes = counting_frames((12, 1, 1, 2, 3), "u1")
    path = write_ims(tmp_path / "cells.ims", volumes, chunks=None)
    np.testing.assert_array_equal(open_dataset(path).compute(), volumes)


def test_missing_volume_raises(path):
    with h5py.File(path, "r+") as file:
        del file["DataSet/ResolutionLevel 1/TimePoint 2/Channel 0/Data"]
    with refused(path, kind=TruncatedFileError) as caught:
        open_dataset(path, level=1)
    assert caught.value.expected.endswith("TimePoint 2/Channel 0/Data")
    np.testing.assert_array_equal(open_dataset(path).compute(), VOLUMES)


@pytest.mark.parametrize("size", ["", "0", "x", "999", "-3"])
def test_invalid_sizes_are_ignored(tmp_path, size):
    """The whole volume is read."""
    path = write_ims(tmp_path / "cells.ims", VOLUMES, padded=False)
    with h5py.File(path, "r+") as file:
        group = file["DataSet/ResolutionLevel 0/TimePoint 0/Channel 0"]
        group.attrs["ImageSizeX"] = np.array(list(size) or [""], "S1")
    np.testing.assert_array_equal(open_dataset(path).compute(), VOLUMES)


@by_row(rows_of("ims"))
def test_real_file_equals_h5py(row):
    path = path_of(row)
    arr = open_dataset(path)
    assert_equals_row(arr.compute(), row)
    picture = tuple(map(slice, arr.shape[2:]))
    with h5py.File(path, "r") as file:
        for t, c in np.ndindex(arr.shape[:2]):
            stored = file[f"DataSet/ResolutionLevel 0/TimePoint {t}/Channel {c}/Data"]
            np.testing.assert_array_equal(arr[t, c].compute(), stored[picture])
