"""Results that fill while frames arrive, and are in the end those of the finished files."""

import threading
from contextlib import suppress

import dask
import numpy as np
import pytest
from acquisitions import Acquisition, growing
from conftest import ANY_PORT
from formats_table import TABLE

import dask_tiled
from dask_tiled.arriving import following
from dask_tiled.opening.refreshing import Reopening
from dask_tiled.testing import write_raw

pytestmark = pytest.mark.thorough


def results_of(arr):
    """Results of one row, of the scan, of both, and of parts of frames."""
    image = arr.sum((-2, -1))
    return {
        "image": image,
        "scan": [arr.mean((0, 1)), arr.max((0, 1)), arr[1:, :, 2:].astype("f4").sum((0, 1))],
        "centre": dask_tiled.tiles.center_of_mass(arr, sig_ndim=2),
        "relative": image / image.mean(),
        "chosen": (arr[::2, 0].std((1, 2)), np.sqrt(arr[-1].astype("f8")).min()),
    }


def arrays_in(values):
    return [np.asarray(one) for one in dask.base.flatten([*values.values()], (list, tuple))]


def followed(acquisition, results, steps, **options):
    """Compute results; before each state, more of the files is written."""
    sizes = np.linspace(acquisition.written, acquisition.size, steps + 1, dtype=int)[1:].tolist()
    for state in dask_tiled.progressive(results, every=0, **options):
        if sizes:
            acquisition.write_to(sizes.pop(0))
        yield state


def check_exact(state, results):
    """Check that results are those of finished files, bit for bit."""
    (expected,) = dask.compute(results)
    assert state.exact
    assert (state.share, state.problem) == (1, "")
    for found, known in zip(arrays_in(state.values), arrays_in(expected), strict=True):
        assert found.dtype == known.dtype
        assert found.tobytes() == known.tobytes()


@pytest.mark.parametrize(
    "name", ["raw series", "mib u16", "mib 12 bit quad", "mrc i2", "tvips series", "blo"]
)
def test_pictures_fill_and_are_exact(name, tmp_path):
    sample = TABLE[name](tmp_path, "scan")
    options, acquisition = growing(sample)
    options["nav_shape"] = (len(sample.frames) // 2, 2)
    arr = None
    while arr is None:
        acquisition.write_to(acquisition.written + 30)
        with suppress(dask_tiled.DatasetError):  # no complete frame yet
            arr = dask_tiled.open_dataset(**options)
    steps = len(arr.description.missing) // 2  # each has a whole frame
    states = [*followed(acquisition, results_of(arr), steps)]
    *earlier, last = states
    check_exact(last, results_of(dask_tiled.open_dataset(**options | {"follow": False})))
    images = [state.values["image"] for state in earlier]
    shown = [int(image.count()) for image in images]
    assert shown == sorted(shown)
    assert shown[0] == 0
    assert len({*shown}) > 1, "rows appear one by one"
    for image in images:
        assert (image.compressed() == last.values["image"][~image.mask]).all()
    assert [state.missing for state in states] == sorted((s.missing for s in states), reverse=True)
    assert not any(state.exact for state in earlier)


@pytest.fixture
def floats(tmp_path):
    """Float frames, whose sums depend on their order, while they grow."""
    frames = np.random.default_rng(3).normal(size=(16 * 8, 33, 40)).astype("f4")
    path = write_raw(tmp_path / "scan.raw", frames)
    acquisition = Acquisition([path])
    acquisition.write_to(frames[:3].nbytes)
    options = {"format": "raw", "dtype": "f4", "sig_shape": (33, 40), "nav_shape": (16, 8)}
    return path, options, acquisition


def test_floats_are_added_in_the_same_order(floats):
    path, options, acquisition = floats
    arr = dask_tiled.open_dataset(path, **options, follow=True)
    *_, last = followed(acquisition, results_of(arr), 40)
    check_exact(last, results_of(arr.refresh()))
    del last.values["relative"]  # a mean of the image: dask adds chunks of it
    whole = results_of(dask_tiled.open_dataset(path, **options))
    check_exact(last, {name: whole[name] for name in last.values})


def test_every_frame_is_read_once(floats):
    path, options, acquisition = floats
    arr = dask_tiled.open_dataset(path, **options, follow=True)
    lock, seen = threading.Lock(), []

    def summed(tile):
        with lock:
            seen.append(tile[..., 0, 0].copy().ravel())
        return tile

    x = dask_tiled.map_tiles(summed, arr, dtype=arr.dtype)
    seen.clear()
    states = [*followed(acquisition, [x.sum((2, 3)), x.max((0, 1))], 40)]
    assert len(states) > 16
    frames = np.fromfile(path, "f4").reshape(-1, 33, 40)
    assert sorted(np.concatenate(seen)) == sorted(frames[:, 0, 0])


def test_frames_that_never_come_are_missing_ones(floats):
    path, options, _ = floats
    arr = dask_tiled.open_dataset(path, **options, sync_offset=-3, fill_value=7, follow=True)
    with pytest.warns(dask_tiled.MissingFramesWarning, match="missing in .*scan.raw: 125"):
        *_, last = dask_tiled.progressive(arr.sum((2, 3)), rest=0.2)
    options |= {"sync_offset": -3, "fill_value": 7, "missing": "fill"}
    assert last.exact
    assert last.missing == 125
    assert (last.values == dask_tiled.open_dataset(path, **options).sum((2, 3)).compute()).all()


@pytest.fixture
def rarely_described(floats, monkeypatch):
    """Return an array whose descriptions count as slow, and its states after the next one."""
    path, options, acquisition = floats
    monkeypatch.setattr(following, "SHARE", 1e9)
    arr = dask_tiled.open_dataset(path, **options, follow=True)
    states = dask_tiled.progressive(arr.sum((2, 3)), every=0, rest=0.2)
    next(states)
    acquisition.write_to(acquisition.size // 2)
    assert next(states).missing < 125
    return arr, states


def test_files_are_described_before_they_count_as_complete(floats, rarely_described):
    """Descriptions that take long are rare: the last one may lack what has come since."""
    (*_, acquisition), (arr, states) = floats, rarely_described
    acquisition.write_to(acquisition.size)
    *_, last = states
    assert (last.exact, last.missing) == (True, 0)
    np.testing.assert_array_equal(last.values, arr.refresh().sum((2, 3)))


def test_parts_of_frames_are_growth(floats, rarely_described, monkeypatch):
    """The last description finds a part of a frame: the rest of it may still come."""
    (*_, acquisition), (_, states) = floats, rarely_described
    acquisition.write_to(acquisition.size // 2 + 2)
    look = following.Following.look

    def followed_by_the_rest(self, *, at_once=False):
        grew = look(self, at_once=at_once)
        if at_once:
            acquisition.write_to(acquisition.size)
        return grew

    monkeypatch.setattr(following.Following, "look", followed_by_the_rest)
    *_, last = states
    assert (last.exact, last.missing) == (True, 0)


def test_growth_during_the_first_description_is_seen(floats, monkeypatch):
    path, options, acquisition = floats
    arr = dask_tiled.open_dataset(path, **options, follow=True)
    described = Reopening.described

    def slowly(*args, **options):
        found = described(*args, **options)
        acquisition.write_to(acquisition.size)
        return found

    monkeypatch.setattr(Reopening, "described", slowly)
    monkeypatch.setattr(following, "DESCRIBE", 3600)
    *_, last = dask_tiled.progressive(arr.sum((2, 3)), every=0, rest=0.2)
    assert (last.exact, last.missing) == (True, 0)


def test_replaced_files_and_nothing_to_compute_are_errors(floats):
    path, options, _ = floats
    arr = dask_tiled.open_dataset(path, **options, follow=True)
    states = dask_tiled.progressive(arr.sum((2, 3)))
    next(states)
    path.write_bytes(b"\xff" * 4 * 33 * 40 * 5)
    with pytest.raises(dask_tiled.StaleFileError):
        list(states)
    with pytest.raises(dask_tiled.DatasetError, match="nothing to compute"):
        dask_tiled.progressive([1, 2])


@pytest.mark.slow
def test_workers_of_a_cluster_read_what_has_arrived(floats):
    path, options, acquisition = floats
    client = pytest.importorskip("distributed").Client
    with client(n_workers=1, threads_per_worker=1, **ANY_PORT):
        arr = dask_tiled.open_dataset(path, **options, follow=True)
        *_, last = followed(acquisition, results_of(arr), 10)
        check_exact(last, results_of(arr.refresh()))
