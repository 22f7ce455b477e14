"""Shapes of scans whose neighbouring lines are alike, where neither files nor headers tell them."""

import numpy as np
import pytest
from checks import refuses

import dask_tiled
from dask_tiled import DatasetError, describe, open_dataset
from dask_tiled.opening.scan_lines import FEWEST_FRAMES, line_lengths, scan_candidates
from dask_tiled.testing import write_mib

TIMES = "\N{MULTIPLICATION SIGN}"
pytestmark = pytest.mark.filterwarnings("ignore:.*in a row", "ignore:.*inferred")


def texture(shape, seed, *, roughness=1.5, counts=1000):
    """Return counts of a specimen with features of all sizes."""
    rng = np.random.default_rng(seed)
    y, x = np.meshgrid(np.fft.fftfreq(shape[0]), np.fft.rfftfreq(shape[1]), indexing="ij")
    rough = np.fft.rfft2(rng.normal(size=shape)) / (np.hypot(y, x) + 0.5 / max(shape)) ** roughness
    values = np.fft.irfft2(rough, s=shape)
    return rng.poisson(np.clip(counts * (1 + 0.2 * values / values.std()), 0, None))


def lattice(shape, period, turn=0.3):
    y, x = np.indices(shape)
    u, v = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
    waves = 1 + 0.3 * np.cos(2 * np.pi * u / period) * np.cos(2 * np.pi * v / period)
    return np.random.default_rng(0).poisson(200 * waves)


@pytest.mark.parametrize("shape", [(60, 64), (64, 64), (200, 37), (31, 240)])
@pytest.mark.parametrize("counts", [30, 300, 1000])
def test_lengths_of_lines(shape, counts):
    sums = np.ravel(texture(shape, 1, counts=counts)).astype(float)
    assert line_lengths(sums, sums.size) == [shape[1]]
    assert line_lengths(sums[5:], sums.size) == [shape[1]]  # from any frame on


def test_noise_suggests_nothing():
    rng = np.random.default_rng(0)
    for count in (100, 1000, 40_000):
        assert line_lengths(rng.poisson(50, count).astype(float), count) == []
        assert line_lengths(np.cumsum(rng.normal(size=count)), count) == []  # drifts
        assert line_lengths(np.arange(count, dtype=float), count) == []
        assert line_lengths(np.ones(count), count) == []
    few = np.ravel(texture((7, 9), 0)).astype(float)
    assert few.size < FEWEST_FRAMES
    assert line_lengths(few, few.size) == []


def write(folder, sums, side=16):
    """Write frames with a bright disk of these counts, without the shape of the scan."""
    y, x = np.indices((side, side)) - side // 2
    frames = (np.hypot(y, x) < 4) * np.reshape(sums, (-1, 1, 1)) + 1
    return write_mib(folder / "scan.mib", frames.astype("u2"), hdr=False), frames


def test_auto_takes_lines_that_are_alike(tmp_path):
    path, frames = write(tmp_path, texture((20, 30), 3))
    assert describe(path).nav_shape == (600,)
    arr = open_dataset(path, nav_shape="auto")
    np.testing.assert_array_equal(arr, frames.reshape(20, 30, 16, 16))
    (doubt,) = arr.description.doubts
    assert "inferred: neighbouring lines of 30 frames are alike" in doubt.text
    assert doubt.settle == "pass nav_shape=(20, 30)"
    refuses(path, kind=dask_tiled.DoubtError, nav_shape="auto", doubts="raise")


@pytest.mark.thorough
def test_auto_refuses_what_is_ambiguous(tmp_path):
    path, _ = write(tmp_path, lattice((64, 96), 12.5))
    with pytest.raises(DatasetError, match=r"6144 frames; likely are \(\d+, \d+\).*; \(") as info:
        open_dataset(path, nav_shape="auto")
    assert "Pass nav_shape=." in str(info.value)
    path, _ = write(tmp_path, texture((20, 30), 3).ravel()[:-7])
    refuses(path, r"593 frames; likely are \(19, 30\): neighbouring", nav_shape="auto")


def serpentine():
    sums = texture((32, 40), 0)
    sums[1::2] = sums[1::2, ::-1]
    return sums


def periodic():
    return 1000 + 50 * np.sin(2 * np.pi * np.arange(1200) / 40)


def blinking():
    return np.random.default_rng(0).poisson(1000, 1200) + 300 * (np.arange(1200) % 48 == 0)


def repeated():
    return np.tile(np.random.default_rng(0).poisson(1000, 40), 30)


@pytest.mark.parametrize(
    ("sums", "why"),
    [
        (serpentine, r"lines of 40 frames ran to and fro"),
        (periodic, "as in a periodic series|more alike"),
        (blinking, "as in a periodic series|more alike"),
        (repeated, "as in a periodic series|more alike"),
        (lambda: texture((13, 200), 5), "the shape of the scan"),  # more uneven than is looked for
    ],
)
def test_auto_refuses_what_explains_itself_otherwise(tmp_path, sums, why):
    path, _ = write(tmp_path, sums())
    refuses(path, why, nav_shape="auto")


def test_spikes_suggest_nothing():
    for seed in range(60):
        sums = 1e6 * (np.random.default_rng(seed).random(1200) < 0.003)
        assert line_lengths(sums, 1200) == []


def test_auto_folds_rows_of_any_format(tmp_path):
    _, frames = write(tmp_path, texture((20, 30), 3))
    np.save(tmp_path / "scan.npy", frames)
    arr = open_dataset(tmp_path / "scan.npy", nav_shape="auto")
    np.testing.assert_array_equal(arr, frames.reshape(20, 30, 16, 16))
    assert [one.code for one in arr.description.doubts] == ["scan-shape"]
    np.save(tmp_path / "scan.npy", frames[:100])
    refuses(
        tmp_path / "scan.npy", r"nothing suggests the shape.*100 frames in a row", nav_shape="auto"
    )


@pytest.mark.thorough
def test_pictures_of_likely_shapes(tmp_path):
    """The shape that is likely, and a square; without a doubt, none."""
    sums = texture((20, 45), 4)
    path, _ = write(tmp_path, sums)
    arr = open_dataset(path)
    lines, square = scan_candidates(arr)
    assert [one.name for one in (lines, square)] == [f"20 {TIMES} 45", f"30 {TIMES} 30"]
    pixels = np.count_nonzero(np.hypot(*(np.indices((16, 16)) - 8)) < 4)
    np.testing.assert_array_equal(lines.image, sums * pixels + 256)
    np.testing.assert_array_equal(square.image.ravel(), lines.image.ravel())
    assert scan_candidates(arr[2:]) == []
    assert scan_candidates(open_dataset(path, nav_shape=(900,))) == []
    figure = dask_tiled.show(arr)
    assert [axes.get_title() for axes in figure.axes] == [
        "Mean frame", "Sum of each frame", f"20 {TIMES} 45?", f"30 {TIMES} 30?",
    ]  # fmt: skip
    np.testing.assert_array_equal(figure.axes[2].images[0].get_array(), lines.image)
    assert f"20 {TIMES} 45: neighbouring lines of 45 frames are alike" in figure.get_supxlabel()
    assert len(dask_tiled.show(arr, style="publication").axes) == 2
