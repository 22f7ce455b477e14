"""TVIPS series: real and written ones, compared with LiberTEM and RosettaSciIO."""

import numpy as np
import pytest
from checks import axes_text, refuses
from libertem_reader import libertem_reads
from manifest import by_file, expected_of, manifest

import dask_tiled
from dask_tiled.testing import check_format, counting_frames, write_tvips

pytestmark = [
    pytest.mark.usefixtures("synchronous"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

ROWS = [row for row in manifest("TVIPS") if row["reader"].startswith("rsciio")]


def raster(shape, before=0, after=0):
    """Return the positions of a scan, with frames before and after it at one place."""
    scan = list(np.ndindex(*shape))
    return [(5.0, 5.0)] * before + [(float(y), float(x)) for y, x in scan] + [(0.0, 0.0)] * after


def rsciio_pixels(path, **options):
    reader = pytest.importorskip("rsciio.tvips", reason="RosettaSciIO is not installed")
    return reader.file_reader(str(path), **options)[0]["data"]


@by_file(ROWS, "row")
def test_series_has_the_numbers_of_the_manifest_and_equals_rosettasciio(data, row):
    """Any file opens the series."""
    shape, dtype, total = expected_of(row)
    theirs = rsciio_pixels(data / row["file"])
    for number in range(3):
        arr = dask_tiled.open_dataset(data / row["file"].replace("_000", f"_00{number}"))
        assert (arr.description.format, arr.shape, arr.dtype) == ("tvips", shape, dtype)
        np.testing.assert_array_equal(arr, theirs)
        assert int(arr.sum()) == total
    assert arr.description.dims == ("frame", "y", "x")
    assert arr.description.metadata["tvips"]["header"]["IHT"] == 200


@pytest.mark.parametrize(("version", "frames_per_file"), [(1, None), (1, 5), (2, 5)])
@pytest.mark.parametrize("dtype", ["u1", "u2"])
def test_synthetic_series_equals_frames(tmp_path, dtype, version, frames_per_file):
    frames = counting_frames((12, 5, 7), dtype)
    options = {"version": version, "frames_per_file": frames_per_file}
    paths = write_tvips(tmp_path / "a b", frames, **options)
    check_format(paths[-1], frames, cuts=5)
    check_format(paths[::-1], frames, cuts=2)
    desc = dask_tiled.describe(paths[0])
    assert axes_text(desc) == "time 0.02 s, y 15600 nm, x 15600 nm"
    if version == 2:  # RosettaSciIO refuses version 1
        np.testing.assert_array_equal(rsciio_pixels(paths[0]), frames)


@pytest.mark.slow
def test_scan_by_positions_equals_libertem(tmp_path):
    cases = {"plain": (0, 0), "early": (3, 0), "late": (3, 2)}
    expected = {}
    for name, (before, after) in cases.items():
        frames = counting_frames((before + 20 + after, 6, 8), "u2")
        positions = raster((4, 5), before, after)
        paths = write_tvips(
            tmp_path / name, frames, positions=positions, frames_per_file=30, frame_header=120
        )
        expected[paths[0]] = frames[before : before + 20].reshape(4, 5, 6, 8)
    frames = counting_frames((12, 6, 8), "u1")
    paths = write_tvips(tmp_path / "version 1", frames, version=1, frames_per_file=5)
    jobs = {path: ("tvips", {"path": path}) for path in (*expected, paths[0])}
    theirs = libertem_reads(tmp_path, jobs)
    np.testing.assert_array_equal(frames, theirs[paths[0]]["frames"])
    np.testing.assert_array_equal(frames, dask_tiled.open_dataset(paths[0]))
    for path, pixels in expected.items():
        check_format(path, pixels, cuts=3)
        np.testing.assert_array_equal(pixels, theirs[path]["frames"])
        desc = dask_tiled.describe(path)
        assert desc.dims == ("scan_y", "scan_x", "y", "x")
        assert desc.metadata["tvips"]["scan_from"].startswith("Scan_x")


def test_scan_start_holds_for_other_shapes_and_is_left_out_on_demand(tmp_path):
    frames = counting_frames((25, 6, 8), "u2")
    positions = raster((4, 5), 3, 2)
    path = write_tvips(tmp_path / "a", frames, positions=positions, frames_per_file=2)[0]
    assert dask_tiled.describe(path).metadata["tvips"]["scan_start"] == 3
    found = dask_tiled.open_dataset(path, nav_shape=(2, 10))
    np.testing.assert_array_equal(found, frames[3:23].reshape(2, 10, 6, 8))
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, scan="none"), frames)
    later = dask_tiled.open_dataset(path, sync_offset=1)
    np.testing.assert_array_equal(later, frames[4:24].reshape(4, 5, 6, 8))
    chosen = dask_tiled.open_dataset(path, roi=[0, 19])
    np.testing.assert_array_equal(chosen, frames[[3, 22]])


def test_short_frame_headers_have_no_positions(tmp_path):
    """LiberTEM takes pixels for positions."""
    frames = np.zeros((6, 4, 5), "f4")
    frames[:, 0, 3] = [0, 1, 2, 0, 1, 2]  # where Scan_x would be
    frames = frames.view("u2").copy()
    path = write_tvips(tmp_path / "a", frames, frame_header=56)[0]
    check_format(path, frames, cuts=2)


@pytest.mark.slow
def test_rotator_index_gives_square_scans_as_in_rosettasciio(tmp_path):
    frames = counting_frames((14, 6, 8), "u2")
    rotator = [0, 0, 0, *range(1, 10), 9, 9]
    path = write_tvips(tmp_path / "a", frames, rotator=rotator, frames_per_file=4)[0]
    check_format(path, frames[3:12].reshape(3, 3, 6, 8), cuts=3)
    np.testing.assert_array_equal(
        rsciio_pixels(path, scan_shape="auto"), frames[3:12].reshape(3, 3, 6, 8)
    )
    jumping = [0, 0, 0, 1, 2, 2, 4, 5, 5, 5, 8, 9, 9, 9]
    path = write_tvips(tmp_path / "b", frames, rotator=jumping)[0]
    arr = dask_tiled.open_dataset(path)
    np.testing.assert_array_equal(arr, rsciio_pixels(path, scan_shape="auto"))
    lost = [0, 0, 0, 1, 2, 3, 5, 6, 7, 8, 9, 9, 9, 9]
    path = write_tvips(tmp_path / "c", frames, rotator=lost)[0]
    assert list(dask_tiled.describe(path).missing) == [3]


def test_long_series_is_judged_by_its_first_4096_headers_and_the_last(tmp_path):
    frames = np.arange(70 * 70 + 5, dtype="u2").reshape(-1, 1, 1)
    rotator = [0] * 5 + list(range(1, 70 * 70 + 1))
    path = write_tvips(tmp_path / "a", frames, rotator=rotator, frame_header=60)[0]
    arr = dask_tiled.open_dataset(path)
    np.testing.assert_array_equal(arr, frames[5:].reshape(70, 70, 1, 1))
    positions = raster((70, 70), 5)
    path = write_tvips(tmp_path / "b", frames, positions=positions)[0]
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), arr)
    rotator[100:] = [n + 1 for n in rotator[100:]]
    path = write_tvips(tmp_path / "c", frames, rotator=rotator, frame_header=60)[0]
    assert dask_tiled.open_dataset(path).shape == frames.shape


@pytest.mark.parametrize("hysteresis", [0, 2])
def test_winding_scan_has_every_second_row_reversed(tmp_path, hysteresis):
    """RosettaSciIO reverses the first row, and is compared from the second row on."""
    frames = counting_frames((21, 6, 8), "u2")
    path = write_tvips(tmp_path / "a", frames)[0]
    expected = frames[:20].reshape(4, 5, 6, 8).copy()
    expected[1::2] = np.roll(expected[1::2, ::-1], hysteresis, axis=1)
    options = {"winding": True, "hysteresis": hysteresis}
    check_format(path, expected, nav_shape=(4, 5), cuts=3, **options)
    options = {"winding_scan_axis": "x", "hysteresis": hysteresis, "scan_start_frame": 5}
    theirs = rsciio_pixels(path, scan_shape=(3, 5), **options)
    np.testing.assert_array_equal(theirs, expected[1:])
    refuses(path, "winding", winding=True)
    refuses(path, "winding", nav_shape=(20,), winding=True)


@pytest.mark.parametrize(
    "options", [{"scan": "no"}, {"hysteresis": 1}, {"winding": True, "hysteresis": -1}]
)
def test_wrong_options_raise(tmp_path, options):
    path = write_tvips(tmp_path / "a", counting_frames((20, 6, 8), "u2"))[0]
    refuses(path, nav_shape=(4, 5), **options)


def test_series_without_its_first_file_raises(tmp_path):
    paths = write_tvips(tmp_path / "a", counting_frames((9, 6, 8), "u2"), frames_per_file=3)
    paths[0].unlink()
    with pytest.raises(dask_tiled.UnknownFormatError, match="first file") as caught:
        dask_tiled.describe(paths[1])
    assert caught.value.hint == "The series header is in the file ..._000.tvips."
