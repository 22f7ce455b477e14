"""`find_bad_pixels` finds the planted bad pixels of simulated and real scans, and no others."""

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dask_tiled import (
    Corrections,
    DatasetError,
    TilingError,
    find_bad_pixels,
    open_dataset,
    samples,
)
from dask_tiled.testing import write_mib, write_npy

pytestmark = pytest.mark.usefixtures("synchronous")

SIG = (44, 40)
Y, X = np.indices(SIG)


def flat(rng):
    return np.full(SIG, rng.uniform(2, 300))


def disk(rng):
    at = rng.uniform(14, 26, 2)
    inside = np.hypot(Y - at[0], X - at[1]) < rng.uniform(6, 11)
    return np.where(inside, rng.uniform(20, 2000), rng.choice([0, 0.01, 1, 5]))


def gradient(rng):
    return 1 + rng.uniform(10, 300) * (Y + 2 * X) / 100


def spots(rng):
    rates = np.full(SIG, rng.choice([0, 0.1, 3]))
    for y, x in rng.uniform(0, 40, (12, 2)):
        squares = (Y - y) ** 2 + (X - x) ** 2
        rates = rates + rng.uniform(1, 500) * np.exp(-squares / 2 / rng.uniform(0.8, 3) ** 2)
    return rates


def sparse(rng):
    """Most pixels of most frames are 0."""
    return np.full(SIG, rng.uniform(0.001, 0.05))


def decay(rng):
    return 3000 * np.exp(-np.hypot(Y - 20, X - 22) / rng.uniform(2, 8)) + 0.01


SCENES = [flat, disk, gradient, spots, sparse, decay]


def scan(scene, rng, count):
    """Simulate a scan with Poisson noise, varying brightness and slightly uneven pixel gains."""
    rates = scene(rng) * rng.normal(1, rng.choice([0, 0.02, 0.04]), SIG).clip(0.8, 1.2)
    brightness = rng.uniform(0.2, 1.8, (count // 10, 10, 1, 1)) ** rng.integers(0, 2)
    frames = rng.poisson(rates * brightness)
    return frames.astype(rng.choice(["u2", "f4"])), rates


def found_in(frames, **options):
    arr = da.from_array(frames, chunks=(-1, 5, -1, -1))
    return {tuple(p) for p in find_bad_pixels(arr, **options).excluded_pixels.tolist()}


@pytest.mark.thorough
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("scene", SCENES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.sampled_from([30, 100, 300]))
def test_good_scans_have_no_bad_pixels(scene, seed, count):
    frames, _ = scan(scene, np.random.default_rng(seed), count)
    assert found_in(frames) == set()


PLANTED = (5, 6), (20, 21), (30, 9), (11, 33), (38, 30), (25, 14)


@pytest.mark.thorough
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("scene", SCENES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_hot_pixels_are_found(scene, seed):
    """Hot pixels are constant or noisy; two are neighbours."""
    rng = np.random.default_rng(seed)
    frames, _ = scan(scene, rng, 200)
    level = 8 * frames.mean((0, 1)).max() + 20
    for k, place in enumerate(PLANTED):
        frames[:, :, *place] = level if k % 2 else rng.poisson(level, frames.shape[:2])
    frames[:, :, 5, 7] = level
    assert found_in(frames) == {*PLANTED, (5, 7)}


@pytest.mark.thorough
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("scene", [flat, gradient, disk])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(["dead", "stuck", "weak"]))
def test_dead_pixels_are_found_where_there_is_light(scene, seed, kind):
    """Dead pixels are 0, stuck ones constant, weak ones show a tenth of the counts."""
    rng = np.random.default_rng(seed)
    frames, rates = scan(scene, rng, 300)
    assume(rates.max() > 30)
    boxes = np.lib.stride_tricks.sliding_window_view(np.pad(rates, 3), (7, 7))
    lit = boxes.min((2, 3)) > 0.3 * rates.max()
    planted = {place for place in PLANTED if lit[place]}
    for place in planted:
        pixel = frames[:, :, *place]
        pixel[...] = {"dead": 0, "stuck": int(rates[place]), "weak": pixel // 10}[kind]
    assert found_in(frames) == planted


@pytest.mark.thorough
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("scene", [flat, gradient, sparse])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_noisy_pixels_are_found(scene, seed):
    """Noisy pixels are found by their variance: their mean is normal."""
    rng = np.random.default_rng(seed)
    frames, rates = scan(scene, rng, 400)
    frames = frames.astype("f4")
    for place in PLANTED:
        noise = 8 * (frames[:, :, *place].std() + 0.1 * rates[place] + 1)
        frames[:, :, *place] += rng.normal(0, noise, frames.shape[:2])
    assert found_in(frames) == {*PLANTED}


@pytest.mark.thorough
@pytest.mark.parametrize("bad_pixels", [True, False])
@pytest.mark.parametrize("frames", [2000, 4000])
def test_small_discs_of_many_crystals(bad_pixels, frames):
    """Disks of 4 pixels, on rings and cut by the edge, are not taken for bad pixels."""
    path = samples.gold(bad_pixels=bad_pixels)
    found = find_bad_pixels(open_dataset(path), frames=frames).excluded_pixels
    seen = [(20, 97), (45, 110), (71, 12), (88, 41), (103, 64)] if bad_pixels else []
    rare = {(9, 30), (120, 120)}
    assert sorted({*map(tuple, found.tolist())} - rare) == seen


def test_single_frame_events_are_ignored():
    """Cosmic rays and a run of empty frames mark no pixel as bad."""
    rng = np.random.default_rng(0)
    frames = rng.poisson(gradient(rng), (20, 20, *SIG)).astype("u2")
    for k in range(60):
        frames[k // 20, k % 20, rng.integers(44), rng.integers(40)] = 60000
    frames[15, 3:9] = 0
    assert found_in(frames) == set()


def test_dead_lines_are_found():
    rng = np.random.default_rng(0)
    frames = rng.poisson(gradient(rng), (10, 20, *SIG)).astype("u2")
    frames[..., 17, :] = 0
    frames[..., :, 30] = 0
    expected = {(17, x) for x in range(40)} | {(y, 30) for y in range(44)}
    assert found_in(frames) == expected


def test_slope_at_the_edge_is_not_a_bad_line():
    frames = np.broadcast_to(X, (30, *SIG)).astype("u2")
    assert found_in(frames[:, None]) == set()


REAL = "npy/lfw_subset.npy", "tiff/exampletiffs/mri.tif", "mrc/mrcfile/EMD-3001.map"


@pytest.mark.parametrize("name", REAL)
def test_real_images(data, name):
    """Edges and texture of real images are not taken for bad pixels; planted ones are found."""
    arr = open_dataset(data / name)
    assert find_bad_pixels(arr).excluded_pixels.size == 0
    frames = arr.compute().astype("f8")
    frames -= frames.min()
    planted = (10, 12), (17, 9)
    for place in planted:
        frames[:, *place] = 12 * frames.mean(0).max()
    found = find_bad_pixels(da.from_array(frames)).excluded_pixels.tolist()
    assert {*map(tuple, found)} == {*planted}


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_pixels_that_are_always_nan_are_bad():
    rng = np.random.default_rng(0)
    frames = rng.poisson(20, (5, 20, *SIG)).astype("f4")
    frames[..., 7, 8], frames[0, 3, 9, 9] = np.nan, np.nan
    assert found_in(frames) == {(7, 8)}


@pytest.mark.parametrize("sig", [(300,), (9, 12, 10)])
def test_spectra_and_volumes(sig):
    rng = np.random.default_rng(1)
    places = np.indices(sig).sum(axis=0)
    frames = rng.poisson(20 + 0.2 * places, (300, *sig)).astype("u4")
    planted = [(100,), (250,)] if len(sig) == 1 else [(4, 5, 6), (2, 8, 3)]
    frames[:, *planted[0]], frames[:, *planted[1]] = 900, 0
    arr = da.from_array(frames, chunks=(50, *sig))
    found = find_bad_pixels(arr, sig_ndim=len(sig))
    assert {tuple(p) for p in found.excluded_pixels.tolist()} == {*planted}
    assert found.sig_shape == sig


@pytest.mark.thorough
def test_found_corrections_repair_the_array(tmp_path):
    """Corrections that the array was opened with are kept."""
    rng = np.random.default_rng(0)
    frames = rng.poisson(50, (8, 16, 64, 64)).astype("u2")
    frames[..., 10, 20], frames[..., 40, 41] = 4000, 0
    path = write_mib(tmp_path / "scan.mib", frames)
    arr = open_dataset(path)
    found = find_bad_pixels(arr)
    assert found == find_bad_pixels(open_dataset(path, chunks=(2, 5, 64, 64)))
    assert found.excluded_pixels.tolist() == [[10, 20], [40, 41]]
    better = open_dataset(path, corrections=found)
    assert abs(better.mean((0, 1)).compute() - 50).max() < 5
    assert find_bad_pixels(better) == found

    known = Corrections(np.full((64, 64), 3.0), None, [(1, 2)], fill=np.nan)
    more = find_bad_pixels(open_dataset(path, corrections=known))
    assert more.excluded_pixels.tolist() == [[1, 2], [10, 20], [40, 41]]
    assert (more.dark == 3).all()
    assert np.isnan(more.fill)
    with pytest.raises(TilingError, match="frames are cropped"):
        find_bad_pixels(arr[..., 3:, :])


@pytest.mark.thorough
def test_sample_of_frames(tmp_path):
    rng = np.random.default_rng(0)
    frames = rng.poisson(50, (1000, 16, 16)).astype("u2")
    frames[:, 3, 4] = 999
    frames[1::2] = 0  # not in the sample
    path = write_npy(tmp_path / "scan.npy", frames)
    arr = open_dataset(path, nav_shape=(1000,), missing="fill")
    assert find_bad_pixels(arr, frames=500).excluded_pixels.tolist() == [[3, 4]]
    late = open_dataset(path, nav_shape=(3000,), missing="fill")
    assert find_bad_pixels(late[::2]).excluded_pixels.tolist() == [[3, 4]]
    with dask.config.set(scheduler="threads"):
        assert find_bad_pixels(arr[::2]).excluded_pixels.tolist() == [[3, 4]]


def test_frames_are_read_once():
    calls = []

    def look(frames):
        calls.append(len(frames))
        return frames

    frames = np.random.default_rng(0).poisson(50, (100, *SIG)).astype("u2")
    arr = da.from_array(frames, chunks=(20, *SIG)).map_blocks(look, meta=frames[:0])
    assert find_bad_pixels(arr).excluded_pixels.size == 0
    assert sum(calls) == 100


@pytest.mark.parametrize(
    ("arr", "options", "problem"),
    [
        (da.zeros((19, 8, 8)), {}, "too few frames"),
        (da.zeros((8, 8)), {}, "too few frames"),
        (da.zeros((30, 8, 8)), {"frames": 19}, "frames, the size of the sample"),
        (da.zeros((30, 8, 8)), {"threshold": 0}, "threshold is not positive"),
        (da.zeros((30, 8, 8), dtype="c8"), {}, "real numbers"),
        (da.zeros((0, 8, 8)), {}, "no frames"),
        ("scan.mib", {}, "array"),
    ],
    ids=range(7),
)
def test_invalid_arguments_are_refused(arr, options, problem):
    with pytest.raises(DatasetError, match=problem) as caught:
        find_bad_pixels(arr, **options)
    assert caught.value.found is not None
