"""Runs with a checkpoint return the values of compute(), and resume after any stop."""

import errno
import itertools
import shutil
import warnings
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from checks import refused

import dask_tiled
import dask_tiled.checkpoints.run as module
from dask_tiled import DatasetError, StaleFileError, open_dataset, run
from dask_tiled.checkpoints.folder import Checkpoint, Small
from dask_tiled.checkpoints.values import decoded, encoded
from dask_tiled.plans import plan
from dask_tiled.reading.counting import counted
from dask_tiled.storing.disk import unwritable
from dask_tiled.storing.folders import Folder, place_in

FRAMES = np.random.default_rng(5).normal(size=(24, 2, 8, 8)).astype("f4")
CHUNKS = (1, 2, 8, 8)
NAV, SIG = (0, 1), (2, 3)


@pytest.fixture(autouse=True)
def chunks_kept(monkeypatch):
    """Let reductions of small arrays have as many tasks as those of large ones."""
    monkeypatch.setattr(plan, "LEAST_TASK_BYTES", 1)
    monkeypatch.setattr(plan, "MOST_REDUCED_CHUNKS", 1000)


@pytest.fixture
def scan(tmp_path):
    """Open a scan of 24 chunks."""
    np.save(tmp_path / "scan.npy", FRAMES)
    return open_dataset(tmp_path / "scan.npy", chunks=CHUNKS)


pytestmark = [pytest.mark.usefixtures("synchronous"), pytest.mark.thorough]


def largest(block):
    """Return the largest pixel of each frame; an opaque function of chunks."""
    return block.max(SIG)


def test_small_results_of_one_group_come_back_into_memory(tmp_path):
    """Two of 60 kB have more bytes together than a single one may have."""
    first, again = (Checkpoint(place_in(str(tmp_path)), every=1e6) for _ in range(2))
    for name in "ab":
        first.add(name, Small(np.full(60_000, ord(name), "u1")))
    first.flush()
    again.recall()
    for name in "ab":
        found = again.held(name)
        assert isinstance(found, Small)
        np.testing.assert_array_equal(found.value, np.full(60_000, ord(name)))


JOBS = {
    "sum": lambda arr: arr.sum(NAV),
    "mean": lambda arr: arr.mean(),
    "std": lambda arr: arr.std(NAV),
    "frame sums": lambda arr: arr.sum(SIG),
    "argmax": lambda arr: arr.argmax(axis=0),
    "masks": lambda arr: dask_tiled.tiles.apply_masks(arr, np.eye(8)[np.newaxis]),
    "centre": dask_tiled.tiles.center_of_mass,
    "histogram": lambda arr: da.histogram(arr, bins=7, range=(-1, 1))[0],
    "two passes": lambda arr: (arr - arr.mean(NAV)).std(SIG),
    "pixels": lambda arr: arr[3:20] * 2,
    "opaque": lambda arr: arr.map_blocks(largest, drop_axis=SIG, dtype="f4"),
    "rechunked": lambda arr: da.median(arr.rechunk({0: -1, 2: 4}), axis=0),
    "several": lambda arr: {"a": arr.std(NAV), "b": [arr.sum(SIG), (arr.max(), 5)]},
    "xarray": lambda arr: dask_tiled.to_xarray(arr).mean("x"),
    "folded": lambda arr: dask_tiled.reduce_tiles(
        arr, init=np.zeros((8, 8)), step=add_tile, combine=np.add
    ),
    "of NumPy": lambda _: da.arange(1000, chunks=10).sum(),
}


def add_tile(total, tile, _):
    """Add the frames of a tile."""
    return total + tile.sum(0)


def assert_equal(found, expected):
    """Compare bit for bit, also types."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, one in expected.items():
            assert_equal(found[name], one)
    elif isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, xr.DataArray):
        xr.testing.assert_identical(found, expected)
    else:
        one, other = np.asarray(found), np.asarray(expected)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


class Stop(BaseException):
    """The end of a process, simulated."""


def stop_after(count):
    """Return a function for ``on_progress`` that raises at its call number ``count``."""
    calls = itertools.count(1)
    told = []

    def stop(progress):
        told.append(progress)
        if next(calls) == count:
            raise Stop

    stop.told = told
    return stop


@pytest.mark.parametrize("job", JOBS)
def test_runs_return_the_bits_of_compute_and_resume(scan, tmp_path, job):
    """After a stop, only what had not been read is read; afterwards, nothing is computed."""
    x = JOBS[job](scan)
    (expected,) = dask.compute(x)
    folder = tmp_path / "kept"
    for count in (1, 2, 1):
        with pytest.raises(Stop):
            run(x, folder, every=0, on_progress=stop_after(count))
    resumed = stop_after(0)
    with counted() as counter:
        assert_equal(run(x, folder, on_progress=resumed), expected)
    if job != "of NumPy":
        one = resumed.told[-1]
        assert counter.nbytes == round(one.bytes_per_second * one.seconds)
        assert one.bytes_done == one.bytes_total
        assert counter.nbytes < one.bytes_total or job == "several"  # no group was complete
    with counted() as counter:
        assert_equal(run(x, folder), expected)
    assert counter.nbytes == 0


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_schedulers(scan, tmp_path, processes, scheduler):
    x = [scan.sum(NAV), scan.sum(SIG)]
    expected = dask.compute(*x)
    options = processes if scheduler == "processes" else {"scheduler": scheduler}
    with dask.config.set(**options):
        assert_equal(run(x, tmp_path / "kept", every=0), list(expected))


def test_stored_results_are_few(scan, tmp_path):
    """Partial results that others have replaced are removed, and at the end all of them."""
    stop = stop_after(24)
    with pytest.raises(Stop):
        run(
            {"std": scan.std(NAV), "sums": scan.sum(SIG)},
            tmp_path / "kept",
            on_progress=stop,
            every=0,
        )
    found = run({"std": scan.std(NAV), "sums": scan.sum(SIG)}, tmp_path / "kept")
    group = zarr.open_group(tmp_path / "kept" / "store", mode="r")
    arrays = [array for _, one in group.groups() for _, array in one.arrays()]
    assert sum(array.nbytes for array in arrays) == sum(x.nbytes for x in found.values())


def test_results_so_far(tmp_path):
    """Sums and means are those of the frames that were read; other pixels are masked."""
    frames = np.zeros((16, 1, 2, 2), "i8")
    frames[:] = 2 ** np.arange(16).reshape(-1, 1, 1, 1)  # a sum shows which frames it has
    np.save(tmp_path / "scan.npy", frames)
    arr = open_dataset(tmp_path / "scan.npy", chunks=(1, 1, 2, 2))
    told = []

    def show(progress):
        told.append((progress, progress.results()))

    run([arr.sum(NAV), arr.mean(NAV), arr.sum(SIG)], tmp_path / "kept", every=0, on_progress=show)
    shares = set()
    for progress, (total, mean, sums) in told:
        assert all(isinstance(x, np.ma.MaskedArray) for x in (total, mean, sums))
        there = [k for k in range(16) if not sums.mask[k].any()]
        np.testing.assert_array_equal(sums[there], 4 * frames[there, :, 0, 0])
        shares.add(len(there))
        for found, is_mean in ((total, False), (mean, True)):
            if found.mask.all():
                continue
            sums_of = {n: found * n if is_mean else found for n in range(1, 17)}
            count = next(n for n, x in sums_of.items() if int(x[0, 0]).bit_count() == n)
            np.testing.assert_array_equal(found, found[0, 0])
            assert progress.bytes_done >= count * frames[0].nbytes
    assert len(shares) > 4
    progress, (total, _, sums) = told[-1]
    assert progress.bytes_done == progress.bytes_total == frames.nbytes
    assert not total.mask.any()
    assert not sums.mask.any()


def test_progress_counts_resumed_bytes(scan, tmp_path):
    stop = stop_after(12)
    with pytest.raises(Stop):
        run(scan.sum(SIG), tmp_path / "kept", every=0, on_progress=stop)
    again = stop_after(0)
    run(scan.sum(SIG), tmp_path / "kept", every=0, on_progress=again)
    assert again.told[0].bytes_done > stop.told[-1].bytes_done
    assert again.told[-1].bytes_done == scan.nbytes == again.told[-1].bytes_total
    assert again.told[-1].seconds_left == 0


def test_damaged_files_are_noticed(scan, tmp_path):
    """One flipped bit in any file of the folder: the values stay, as the part is computed again."""
    x, folder = [scan.sum(NAV), scan.sum(SIG)], tmp_path / "kept"
    expected = list(dask.compute(*x))
    with pytest.raises(Stop):
        run(x, folder, every=0, on_progress=stop_after(15))
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    draw = np.random.default_rng(1)
    for number, file in enumerate([*files[::11], Path("store/zarr.json")]):
        copied = tmp_path / f"copy-{number}"
        shutil.copytree(folder, copied)
        data = bytearray((copied / file).read_bytes())
        data[draw.integers(len(data))] ^= 1 << draw.integers(8)
        (copied / file).write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tested below
            assert_equal(run(x, copied, progress=False), expected)


def test_a_damaged_record_is_not_another_computation(scan, tmp_path):
    """A record that differs from its fingerprint is damaged, though it can be read."""
    x, folder = scan.sum(SIG), tmp_path / "kept"
    with pytest.raises(Stop):
        run(x, folder, every=0, on_progress=stop_after(15))
    record = folder / "store/zarr.json"
    record.write_bytes(record.read_bytes().replace(b"float32", b"float33"))
    with pytest.warns(UserWarning, match="the record of the checkpoint is damaged"):
        assert_equal([run(x, folder, progress=False)], [x.compute()])


def test_only_the_damaged_part_is_computed_again(scan, tmp_path):
    x, folder = scan.sum(SIG), tmp_path / "kept"
    stop = stop_after(15)
    with pytest.raises(Stop):
        run(x, folder, every=0, on_progress=stop)
    file = next(folder.glob("store/*/0-0/c/0/0/0"))
    file.write_bytes(file.read_bytes()[:-1])
    expected = x.compute()
    with counted() as counter:
        assert_equal(run(x, folder), expected)
    left = scan.nbytes - stop.told[-1].bytes_done
    assert left <= counter.nbytes <= left + FRAMES[0].nbytes


def test_damaged_record(scan, tmp_path):
    """Without its record nothing in a folder is used."""
    with pytest.raises(Stop):
        run(scan.sum(SIG), tmp_path / "kept", every=0, on_progress=stop_after(5))
    (tmp_path / "kept/store/zarr.json").write_text("{")
    with (
        pytest.warns(UserWarning, match="record of the checkpoint is damaged"),
        counted() as counter,
    ):
        run(scan.sum(SIG), tmp_path / "kept")
    assert counter.nbytes == scan.nbytes


def test_full_disk(scan, tmp_path, monkeypatch):
    """A full disk ends a run with an error that names the folder; the next one continues."""
    x, folder, count = scan.sum(SIG), tmp_path / "kept", itertools.count()
    with monkeypatch.context() as patch:
        true = Folder.put

        def full(self, key, data):
            if next(count) > 30:
                raise unwritable(folder, OSError(errno.ENOSPC, "No space left on device"))
            true(self, key, data)

        patch.setattr(Folder, "put", full)
        with refused(folder, match="No space left"):
            run(x, folder, every=0)
    expected = x.compute()
    with counted() as counter:
        assert_equal(run(x, folder), expected)
    assert 0 < counter.nbytes < scan.nbytes


@pytest.mark.parametrize("where", ["thesis.txt", "store/thesis.txt", "journal/mine", "sub/c/0"])
def test_files_of_others_are_never_removed(scan, tmp_path, where):
    folder = tmp_path / "kept"
    for resume in (True, False):
        (folder / where).parent.mkdir(parents=True, exist_ok=True)
        (folder / where).write_text("mine")
        with refused(folder, match="other files"):
            run(scan.sum(), folder, resume=resume)
        assert (folder / where).read_text() == "mine"


def test_unfinished_files_of_killed_runs_are_removed(scan, tmp_path):
    left = tmp_path / "kept" / "writing" / ("0f" * 16)
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    run(scan.max(), tmp_path / "kept")
    assert not left.exists()


def test_other_computations_are_refused(scan, tmp_path):
    """The folder of another computation stays as it is, unless it is discarded on purpose."""
    folder = tmp_path / "kept"
    with pytest.raises(Stop):
        run(scan.sum(SIG), folder, every=0, on_progress=stop_after(9))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with refused(folder, match="another computation", detailed=True) as caught:
        run(scan.std(NAV), folder)
    assert "(24, 2)" in caught.value.found
    assert "(8, 8)" in caught.value.expected
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert_equal(run(scan.std(NAV), folder, resume=False), scan.std(NAV).compute())


def test_changed_files_and_versions_start_again(scan, tmp_path, monkeypatch):
    """Results of another version of a file, or of the package, are discarded with a warning."""
    folder, path = tmp_path / "kept", tmp_path / "scan.npy"
    with pytest.raises(Stop):
        run(scan.sum(SIG), folder, every=0, on_progress=stop_after(9))
    np.save(path, FRAMES + 1)
    with pytest.raises(StaleFileError):
        run(scan.sum(SIG), folder)
    changed = open_dataset(path, chunks=CHUNKS)
    with pytest.warns(UserWarning, match="computed from changed files"):
        found = run(changed.sum(SIG), folder)
    assert_equal(found, changed.sum(SIG).compute())
    monkeypatch.setattr(module, "_versions", lambda: dict.fromkeys(module.VERSIONS, "0"))
    with pytest.warns(UserWarning, match="of other versions"), counted() as counter:
        run(changed.sum(SIG), folder)
    assert counter.nbytes == scan.nbytes


def test_one_run_uses_a_folder(scan, tmp_path):
    """A second run is refused while the first is running."""

    def again(_):
        with refused(tmp_path / "kept", match="writing to this path"):
            run(scan.sum(SIG), tmp_path / "kept")
        raise Stop

    with pytest.raises(Stop):
        run(scan.sum(SIG), tmp_path / "kept", every=0, on_progress=again)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"x": 5}, "nothing to compute; expected dask arrays; found int"),
        ({"every": -1}, "every= must be a duration"),
        ({"every": float("nan")}, "every= must be a duration"),
        ({"every": "often"}, "every= must be a duration"),
        ({"checkpoint": 7}, "invalid checkpoint; expected a folder; found 7"),
        ({"checkpoint": "s3://bucket/folder"}, "invalid checkpoint; expected a folder"),
        ({"checkpoint": "scan.npy"}, "scan.npy.*expected a folder; found a file"),
    ],
)
def test_arguments(scan, tmp_path, monkeypatch, arguments, match):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError, match=match):
        run(**{"x": scan.sum(), "checkpoint": "kept"} | arguments)


def test_masked_arrays_are_computed_again(scan, tmp_path):
    """Results that zarr cannot store are told once, and have the values of compute()."""
    x = da.ma.masked_greater(scan, 0).map_blocks(np.ma.max, axis=SIG, drop_axis=SIG, dtype="f4")
    expected = x.compute()
    with pytest.warns(UserWarning, match="MaskedArray cannot be kept"):
        found = run(x, tmp_path / "kept", every=0)
    np.testing.assert_array_equal(found.filled(9), expected.filled(9))


def test_values_keep_types_bits_and_order():
    draw = np.random.default_rng(3)
    pairs = np.zeros((2, 3), [("value", "f4"), ("place", "i8")])
    pairs["value"] = draw.random((2, 3))
    values = {
        "fortran": np.asfortranarray(draw.random((3, 4, 5))),
        "turned": draw.random((3, 4, 5))[::-1].transpose(1, 0, 2),
        "nothing": np.zeros((0, 3)),
        "pairs": pairs,
        "void": pairs[0, 0],
        "text": np.array(["a", "bcd"]),
        "swapped": np.arange(4, dtype=">f4"),
        "date": np.datetime64("2020-01-01"),
        "scalar": np.float32(np.nan),
        "no axes": np.array(3, "i2"),
        "nested": {"n": np.arange(3), "rest": [(1, "x", None, True), 2.5, float("inf")]},
        "complex": np.arange(3) * 1j,
    }
    skipped = list[str]()
    unstorable = {"mask": np.ma.masked_array([1]), "object": np.array([None]), "set": {1}}
    found = dict(decoded(encoded(values | unstorable, lambda name, _: skipped.append(name))))
    assert skipped == [*unstorable]
    assert found.keys() == values.keys()
    assert repr(found["nested"]) == repr(values["nested"])
    for name in values.keys() - {"nested"}:
        one, other = found[name], values[name]
        assert type(one) is type(other)
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    assert found["fortran"].flags.f_contiguous
    assert found["turned"].transpose(1, 0, 2).flags.c_contiguous
