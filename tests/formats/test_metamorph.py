"""MetaMorph stacks, compared with tifffile and the numbers that were written."""

import numpy as np
import pytest
import tifffile
from checks import axes_text, refuses
from metamorph_writer import write_stk

from dask_tiled import TruncatedFileError, describe, open_dataset
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((6, 5, 7), "u2")
DAY = 2_460_000


@pytest.mark.parametrize("rows", [5, 2])
@pytest.mark.parametrize("dtype", ["u1", "u2"])
def test_planes_behind_the_only_page(tmp_path, dtype, rows):
    frames = FRAMES.astype(dtype)
    path = write_stk(tmp_path / "a.stk", frames, rows=rows, distances=[(1, 4)] * 6)
    arr = open_dataset(path, doubts="raise")
    assert len(arr.description.layout.pieces) <= 3
    np.testing.assert_array_equal(arr.compute(), frames)
    np.testing.assert_array_equal(tifffile.imread(path), frames)


@pytest.mark.parametrize("planes", [2, 6])
def test_distances_are_steps_along_z(tmp_path, planes):
    pixel = (13, 100), (1, 8)
    distances = [(1, 4)] * planes
    path = write_stk(tmp_path / "a.tif", FRAMES[:planes], distances=distances, pixel=pixel)
    desc = describe(path)
    assert axes_text(desc) == "z 0.25 µm, y 0.125 µm, x 0.13 µm"
    with tifffile.TiffFile(path) as file:
        told = file.stk_metadata
        assert file.series[0].axes == "ZYX"
    assert (told["XCalibration"], told["YCalibration"]) == (0.13, 0.125)
    assert told["CalibrationUnits"] == "um"
    assert set(told["ZDistance"]) == {0.25}
    assert desc.metadata["tiff"]["scales_from"] == "tags 33628 to 33631 of MetaMorph"


@pytest.mark.parametrize("even", [True, False])
def test_times_are_positions_along_t(tmp_path, even):
    """The series passes midnight."""
    seconds = np.arange(6) * 2.5 if even else np.array([0, 1, 3, 7, 8, 9.5])
    ms = 86_400_000 - 5000 + (seconds * 1000).astype(int)
    times = [divmod(int(one), 86_400_000) for one in ms]
    path = write_stk(tmp_path / "a.stk", FRAMES, times=[(DAY + day, at) for day, at in times])
    axis = describe(path).axes[0]
    assert axis.name == "t"
    np.testing.assert_allclose(axis.points(6), seconds)
    assert (axis.units or axis.coordinate_units) == "s"


@pytest.mark.parametrize("step", [0, -1])
def test_times_that_do_not_rise_are_no_axis(tmp_path, step):
    times = [(DAY, 9 + step * k) for k in range(6)]
    path = write_stk(tmp_path / "a.stk", FRAMES, times=times)
    assert describe(path).dims == ("frame", "y", "x")


def test_wavelengths_are_names_of_channels(tmp_path):
    frames = FRAMES[:3]
    path = write_stk(tmp_path / "a.stk", frames, times=[(DAY, 0)] * 3, wavelengths=[405, 488, 561])
    axis = describe(path).axes[0]
    assert (axis.name, axis.labels) == ("c", ("405 nm", "488 nm", "561 nm"))


def test_wavelengths_that_vary_along_z_are_a_doubt(tmp_path):
    waves = [405, 488] * 3
    path = write_stk(tmp_path / "a.stk", FRAMES, distances=[(1, 1)] * 6, wavelengths=waves)
    desc = describe(path)
    assert desc.dims == ("z", "y", "x")
    assert [one.code for one in desc.doubts] == ["scan-shape"]
    shaped = open_dataset(path, nav_shape=(3, 2), doubts="raise")
    np.testing.assert_array_equal(shaped.compute(), FRAMES.reshape(3, 2, 5, 7))


@pytest.mark.parametrize("tag", [33630, 33631])
def test_older_stacks_have_no_positions(tmp_path, tag):
    """Any of the tags of planes counts them; also big-endian."""
    options = {"wavelengths": [500] * 6} if tag == 33630 else {}
    path = write_stk(tmp_path / "a.stk", FRAMES, order=">", **options)
    arr = open_dataset(path)
    assert arr.description.dims == ("frame", "y", "x")
    np.testing.assert_array_equal(arr.compute(), FRAMES)


def test_stack_of_one_plane_is_a_frame(tmp_path):
    path = write_stk(tmp_path / "a.stk", FRAMES[:1], distances=[(1, 1)], pixel=((1, 2), (1, 2)))
    arr = open_dataset(path)
    assert [(axis.name, axis.scale) for axis in arr.axes] == [("y", 0.5), ("x", 0.5)]
    np.testing.assert_array_equal(arr.compute(), FRAMES[0])


def test_files_of_stacks_are_one_array(tmp_path):
    paths = [
        write_stk(tmp_path / f"a{k}.stk", FRAMES + k, distances=[(1, 2)] * 6) for k in range(2)
    ]
    arr = open_dataset(paths)
    assert arr.description.dims == ("file", "z", "y", "x")
    np.testing.assert_array_equal(arr.compute(), [FRAMES, FRAMES + 1])


def test_more_planes_than_the_file_holds(tmp_path):
    """Planes are announced that the file lacks: an error, and missing frames on request."""
    path = write_stk(tmp_path / "a.stk", FRAMES[:1], times=[(DAY, 0)])
    content = bytearray(path.read_bytes())
    for tag in (33629, 33631):
        at = content.index(tag.to_bytes(2, "little") + bytes([5 if tag == 33629 else 4, 0]))
        content[at + 4 : at + 8] = (1 << 30).to_bytes(4, "little")
    refuses(path, f"{1 << 30} frames, as in tags 33629", TruncatedFileError, content=content)
    arr = open_dataset(path, nav_shape=(3,), missing="fill", fill_value=7)
    np.testing.assert_array_equal(arr[0].compute(), FRAMES[0])
    assert (arr[2].compute() == 7).all()


def test_compressed_stacks(tmp_path):
    """Only the place of the first plane is known: the error says so."""
    path = tmp_path / "a.stk"
    tag = (33629, 5, 6, (1, 1) * 6, True)
    tifffile.imwrite(path, FRAMES[0], compression="lzw", metadata=None, extratags=[tag])
    refuses(path, "where the planes of a compressed stack lie", TruncatedFileError)
    arr = open_dataset(path, nav_shape=(6,), missing="fill", fill_value=7)
    np.testing.assert_array_equal(arr[0].compute(), FRAMES[0])
    assert (arr[1:].compute() == 7).all()


def test_copied_tags_on_several_pages_are_ignored(tmp_path):
    """A program that writes each plane as a page may keep the tags of the stack."""
    path = tmp_path / "a.tif"
    tag = (33629, 5, 6, (1, 1) * 6, True)
    with tifffile.TiffWriter(path) as writer:
        for frame in FRAMES:
            writer.write(frame, metadata=None, extratags=[tag], contiguous=False)
    np.testing.assert_array_equal(open_dataset(path).compute(), FRAMES)


def test_positions_out_of_reach_are_not_needed(tmp_path):
    path = write_stk(tmp_path / "a.stk", FRAMES, distances=[(1, 0)] * 6)
    content = bytearray(path.read_bytes())
    for tag, kind in ((33628, 4), (33629, 5)):
        at = content.index(tag.to_bytes(2, "little") + bytes([kind, 0]))
        content[at + 8 : at + 12] = b"\xf0\xff\xff\xff"
    path.write_bytes(content)
    arr = open_dataset(path)
    assert arr.description.dims == ("frame", "y", "x")
    np.testing.assert_array_equal(arr.compute(), FRAMES)


def test_tags_of_no_planes_are_ignored(tmp_path):
    path = write_stk(tmp_path / "a.stk", FRAMES[:1], distances=[(1, 1)])
    content = bytearray(path.read_bytes())
    at = content.index((33629).to_bytes(2, "little") + bytes([5, 0]))
    content[at + 4 : at + 8] = bytes(4)
    path.write_bytes(content)
    np.testing.assert_array_equal(open_dataset(path).compute(), FRAMES[0])
