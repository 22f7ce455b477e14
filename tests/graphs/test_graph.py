"""Graphs are symbolic and small, with one task per chunk; slices and names follow dask."""

import contextlib
import copy
import os
import pickle

import cloudpickle
import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from checks import open_files
from dask.blockwise import Blockwise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import basic_indices, chunked

import dask_tiled
from dask_tiled import DatasetError, TiledArray, scheme_of
from dask_tiled.plans.tasks import pixels_of
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.reading.mapped import MappedWindows
from dask_tiled.reading.ranges import Window
from dask_tiled.testing import counting_frames, write_mib, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

NAV, SIG = (3, 4), (64, 128)


def refuse(*_args, **_options):
    raise AssertionError("something was computed")


@pytest.fixture
def computing_nothing():
    with dask.config.set(scheduler=refuse):
        yield


# Options of the writer, bits per pixel, pixels per unit, bytes per unit.
KINDS = {
    "U16": ({"kind": "U16"}, 16, 1, 2),
    "U16 quad": ({"kind": "U16", "quad": True}, 16, 1, 2),
    "1 bit": ({"kind": "R64", "depth": 1}, 1, 64, 8),
    "6 bit": ({"kind": "R64", "depth": 6}, 6, 8, 8),
    "12 bit": ({"kind": "R64", "depth": 12}, 12, 4, 8),
    "24 bit": ({"kind": "R64", "depth": 24}, 24, 4, 16),
    "1 bit quad": ({"kind": "R64", "depth": 1, "quad": True}, 1, 64, 8),
    "12 bit quad": ({"kind": "R64", "depth": 12, "quad": True}, 12, 4, 8),
}


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Write a scan of each kind; return the paths and the pixels."""
    folder = tmp_path_factory.mktemp("scans")
    found = {}
    for name, (options, bits, _, _) in KINDS.items():
        dtype = {1: "u1", 6: "u1", 24: "u4"}.get(bits, "u2")
        frames = counting_frames(NAV + SIG, dtype, bits=bits)
        found[name] = write_mib(folder / f"{name} scan.mib", frames, **options), frames
    return found


@pytest.fixture
def scan(scans):
    """Return a small array of several chunks, and its pixels."""
    path, frames = scans["12 bit"]
    return dask_tiled.open_dataset(path, chunks=(1, 2, 40, 128)), frames


@pytest.fixture
def hole(tmp_path):
    """Return options that open 1,000,000 frames of 2 x 2 pixels, one per chunk."""
    path = tmp_path / "hole.raw"
    with path.open("wb") as file:
        file.truncate(8_000_000)
    return {
        "path": path,
        "format": "raw",
        "dtype": ">u2",
        "nav_shape": (1000, 1000),
        "sig_shape": (2, 2),
        "chunks": (1, 1, 2, 2),
        "io": "counting",
    }


def tasks_of(arr):
    """List the tasks that remain after optimization."""
    (optimized,) = dask.optimize(arr)
    return list(dict(optimized.dask))


def is_symbolic(arr):
    layers = arr.dask.layers.values()
    return len(layers) == 1 and all(
        isinstance(layer, Blockwise) and not layer.is_materialized() for layer in layers
    )


def plus_one(block):
    return block + 1


# A million chunks


@pytest.mark.usefixtures("computing_nothing")
def test_a_million_chunks_are_symbolic(hole, loads):
    arr = dask_tiled.open_dataset(**hole)
    assert arr.npartitions == 1_000_000
    assert type(arr) is TiledArray
    assert isinstance(arr, da.Array)
    assert is_symbolic(arr)
    assert len(pickle.dumps(arr)) < 20_000
    assert len(cloudpickle.dumps(arr)) < 20_000
    assert len(cloudpickle.dumps(arr.dask)) < 20_000
    assert "1,000,000 of 1" in arr._repr_html_()
    assert "1000, 1000" in repr(arr)
    assert str(arr.description)
    assert is_symbolic(arr)
    assert not loads


@pytest.mark.usefixtures("computing_nothing")
@pytest.mark.parametrize(
    "index", [np.s_[..., 1, 1], np.s_[..., 1:, :1], np.s_[:, ::2], np.s_[5:, 7], np.s_[3]], ids=str
)
def test_slices_of_a_million_chunks_are_symbolic(hole, loads, index):
    arr = dask_tiled.open_dataset(**hole)
    cut = arr[index]
    assert type(cut) is TiledArray
    assert is_symbolic(cut)
    assert len(pickle.dumps(cut)) < 20_000
    assert arr._graph is None  # the graph of the whole is not built
    assert not loads


def test_one_of_a_million_chunks(hole, loads):
    arr = dask_tiled.open_dataset(**hole)
    assert len(tasks_of(arr[123, 456])) == 1
    arr[123, 456].compute()
    assert len(loads) == 1
    assert loads[0].span == (8 * 123_456, 8 * 123_457)
    assert loads.nbytes == 8


# Tasks


def test_one_task_per_chunk(scan):
    arr, _ = scan
    for whole in (arr, arr.map_blocks(plus_one, dtype=arr.dtype), arr[1:].map_blocks(plus_one) * 2):
        assert len(tasks_of(whole)) == whole.npartitions


@pytest.mark.parametrize("index", [np.s_[...], np.s_[::2, 1:, 3::7, 5::11]], ids=str)
def test_pickled_sources_are_small(scans, index):
    for path, frames in scans.values():
        arr = dask_tiled.open_dataset(path, chunks=(3, 4, 64, 128))[index]
        sent = pickle.dumps((arr._source, arr._grid))
        assert len(sent) < 2000
        source, grid = pickle.loads(sent)
        np.testing.assert_array_equal(pixels_of(source, grid, (0, 0, 0, 0)), frames[index])


# Bytes


class Poisoned(MappedWindows):
    """Return buffers with garbage outside the requested bytes."""

    def windows(self, ranges, limit=None, *, at_once=0):
        for part, data, base, _ in super().windows(ranges, limit, at_once=at_once):
            first, stop = part.span
            unit = np.arange(part.units.decoder.nbytes)
            if part.units.decoder.lag:
                unit = np.concatenate([unit, unit + part.units.decoder.lag])
            runs = part.runs()
            units = np.add.outer(runs.starts, np.arange(runs.length) * runs.step)
            wanted = np.unique(np.add.outer(units, unit))
            assert len(wanted) == part.nbytes
            buffer = np.random.default_rng(0).integers(0, 256, stop - first, "u1")
            buffer[wanted - first] = data[wanted - base]
            buffer.flags.writeable = False
            yield Window(part, buffer, first)


def units_in(index, size, pixels):
    """Count the units that hold the pixels of an index."""
    return len(np.unique(np.atleast_1d(np.arange(size)[index]) // pixels))


CROPS = [
    np.s_[:, :, :, :],
    np.s_[:, :, 40, 60],  # on the turned chips of a quad
    np.s_[:, :, 5, 127],
    np.s_[:, :, 8:50, 10:70],
    np.s_[:, :, 32, :],
    np.s_[1, 2, 30:34, 63:65],
    np.s_[::2, 1::2, 3::7, 5::11],
    np.s_[:, 3, :, 64:128],
    np.s_[2:, :, 33:34, 1::2],
]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("index", CROPS, ids=str)
def test_crops_read_only_their_units(scans, loads, monkeypatch, index, name):
    monkeypatch.setitem(BACKENDS, "poisoned", Poisoned)
    (path, frames), (_, _, pixels, nbytes) = scans[name], KINDS[name]
    for chunks in [(3, 4, 64, 128), (2, 2, 20, 64)]:
        options = {"chunks": chunks, "io": "poisoned"}
        arr = dask_tiled.open_dataset(path, **options)[index]
        np.testing.assert_array_equal(arr.compute(), frames[index])

    arr = dask_tiled.open_dataset(path, chunks=(3, 4, 64, 128), io="counting")[index]
    np.testing.assert_array_equal(arr.compute(), frames[index])
    n_frames = frames[index[:2]].size // frames[0, 0].size
    rows = np.atleast_1d(np.arange(64)[index[2]]).size
    assert loads.nbytes == n_frames * rows * units_in(index[3], 128, pixels) * nbytes


# Slices


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_slices_equal_those_of_numpy(small, data):
    """Slices of slices, too; their blocks have the promised shapes."""
    path, expected = small
    chunks = data.draw(chunked(expected.shape))
    arr = dask_tiled.open_dataset(path, "raw", dtype="u1", **SMALL, chunks=chunks)
    assert arr.chunks == chunks
    for _ in range(data.draw(st.integers(0, 3))):
        index = data.draw(basic_indices(arr.shape))
        expected, arr = expected[index], arr[index]
        assert type(arr) is TiledArray or not expected.size
        if not expected.size:
            break
        assert arr.description.shape == expected.shape
        assert len(arr.description.dims) == arr.ndim
        assert scheme_of(arr).chunks == arr.chunks
    np.testing.assert_array_equal(arr.compute(), expected)
    shapes = {
        index: tuple(axis[i] for axis, i in zip(arr.chunks, index, strict=True))
        for index in np.ndindex(*arr.numblocks)
    }
    blocks = dask.compute({index: arr.blocks[index] if index else arr for index in shapes})[0]
    assert {index: block.shape for index, block in blocks.items()} == shapes


SMALL = {"nav_shape": (7, 5), "sig_shape": (4, 6)}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    frames = counting_frames((7, 5, 4, 6), "u1")
    return write_raw(tmp_path_factory.mktemp("small") / "small.raw", frames), frames


def open_small(small, **options):
    path, frames = small
    options = {"dtype": "u1", **SMALL, "chunks": (3, 2, 4, 6), **options}
    return dask_tiled.open_dataset(path, "raw", **options), frames


@pytest.mark.parametrize("index", [np.s_[1:], np.s_[0], np.s_[:, ::2]], ids=str)
def test_slices_of_frames_refuse_another_nav_shape(small, index):
    """The first frames of a slice are not the first frames of the file."""
    arr, _ = open_small(small)
    with pytest.raises(DatasetError, match="slice"):
        arr[index].description.with_frames((1,))
    assert arr[..., 1:].description.with_frames((1,)).nav_shape == (1,)


def test_full_slices_keep_the_name(scan):
    arr, _ = scan
    for index in [(), ..., slice(None), (slice(0, 3), ...), np.s_[:, :, ::1, :1000]]:
        assert arr[index].name == arr.name
        assert type(arr[index]) is TiledArray


PICKS = {
    "list": np.s_[[2, 0]],
    "list on x": np.s_[:, [4, 0, 0]],
    "array": np.s_[np.array([1, 1, 0])],
    "from behind": np.s_[[-1, 3], ..., ::2],
    "mask": np.s_[np.array([True, False, True, False, False, True, True])],
    "mask of the scan": np.s_[np.arange(35).reshape(7, 5) % 3 == 1],
    "mask of the scan, and slices": np.s_[np.arange(35).reshape(7, 5) > 20, 1:, ::2],
    "points": np.s_[[6, 0, 2], [4, 4, 1]],
    "negative step": np.s_[::-1],
    "negative steps": np.s_[5::-2, ::-1, 1:3],
    "int and list": np.s_[3, [1, 4]],
    "list and int": np.s_[[1, 4], 3, 1:3],
}


@pytest.mark.parametrize("index", PICKS.values(), ids=PICKS)
def test_frames_in_any_order(small, index):
    arr, frames = open_small(small)
    found = arr[index]
    assert type(found) is TiledArray
    np.testing.assert_array_equal(found.compute(), frames[index])
    np.testing.assert_array_equal(found[1:].sum(axis=0).compute(), frames[index][1:].sum(axis=0))
    np.testing.assert_array_equal(arr[1:, ::2][[3, 1]].compute(), frames[1:, ::2][[3, 1]])
    with contextlib.suppress(NotImplementedError, IndexError, ValueError):
        assert found.chunks == da.from_array(frames, chunks=arr.chunks)[index].chunks


def test_indices_that_dask_accepts(small):
    arr, frames = open_small(small)
    indices = np.array([1, 5, 2])
    np.testing.assert_array_equal(arr[da.from_array(indices)].compute(), frames[indices])
    mask = np.arange(7) % 2 == 0
    np.testing.assert_array_equal(arr[da.from_array(mask)].compute(), frames[mask])
    np.testing.assert_array_equal(arr[arr > 100].compute(), frames[frames > 100])
    np.testing.assert_array_equal(arr.vindex[[1, 2], [3, 4]].compute(), frames[[1, 2], [3, 4]])
    np.testing.assert_array_equal(arr.blocks[1, 0].compute(), frames[3:6, :2])
    np.testing.assert_array_equal(arr[np.int64(2), np.uint8(1)].compute(), frames[2, 1])
    np.testing.assert_array_equal(arr[np.float64(1) : np.float64(3)].compute(), frames[1:3])


@pytest.mark.parametrize("index", [7, -8, (0, 5), (0,) * 5, 1.5, (0, 0, 0, 6)], ids=str)
def test_invalid_indices_raise(small, index):
    arr, _ = open_small(small)
    with pytest.raises(IndexError):
        arr[index]


# Results


@pytest.mark.thorough
def test_at_most_one_map_stays_open(scan):
    arr, _ = scan
    arr.compute()
    process, path = psutil.Process(), arr.description.files[0].path
    files = open_files(os.path.dirname(path))
    for _ in range(3):
        arr.compute()
        assert sum(path in m.path for m in process.memory_maps(grouped=False)) <= 1
    assert open_files(os.path.dirname(path)) == files


def test_large_references_are_sent_once(scans):
    """A reference of the size of a frame is a task of its own, not a part of every task."""
    path, frames = scans["12 bit"]
    dark = np.arange(frames[0, 0].size).reshape(frames.shape[2:])
    corrections = dask_tiled.Corrections(dark=dark)
    arr = dask_tiled.open_dataset(path, chunks=(1, 1, 64, 128), corrections=corrections)
    (optimized,) = dask.optimize(arr + 1)
    sizes = sorted(len(cloudpickle.dumps(task)) for task in dict(optimized.dask).values())
    assert len(sizes) == arr.npartitions + 1
    assert sizes[-2] < 4000 < 4 * dark.size < sizes[-1]
    np.testing.assert_array_equal(arr.compute(), frames - dark.astype("f4"))


def test_assigning_items(small):
    arr, frames = open_small(small)
    changed, expected = arr.copy(), frames.copy()
    list(changed.__dask_keys__()), changed.dask
    changed[0], expected[0] = 5, 5
    changed[:, 1, ::2], expected[:, 1, ::2] = 6, 6
    changed[changed > 250] = 0
    expected[expected > 250] = 0

    assert changed.description is None
    assert changed.name != arr.name
    for index in [np.s_[...], np.s_[0], np.s_[1:, 1, ::2], np.s_[..., 2]]:
        np.testing.assert_array_equal(changed[index].compute(), expected[index])
    np.testing.assert_array_equal(changed.copy().compute(), expected)
    np.testing.assert_array_equal(pickle.loads(cloudpickle.dumps(changed)).compute(), expected)
    np.testing.assert_array_equal((changed + 1).compute(), expected + 1)
    assert arr.description is not None
    np.testing.assert_array_equal(arr.compute(), frames)


def test_assigning_to_a_slice(small):
    arr, frames = open_small(small)
    cut, expected = arr[1:, 2], frames[1:, 2].copy()
    cut[2], expected[2] = 1, 1
    np.testing.assert_array_equal(cut.compute(), expected)
    np.testing.assert_array_equal(arr.compute(), frames)


def test_operations_in_place(small):
    arr, frames = open_small(small)
    changed = arr.copy()
    np.add(changed, 1, out=changed)
    assert changed.description is None
    np.testing.assert_array_equal(changed[1:3, 2].compute(), frames[1:3, 2] + 1)
    added = arr
    added += 1
    np.testing.assert_array_equal(added[1:3].compute(), frames[1:3] + 1)
    np.testing.assert_array_equal(arr[1:3].compute(), frames[1:3])


def test_copies(small):
    arr, frames = open_small(small)
    copies = {
        "pickle": pickle.loads(pickle.dumps(arr)),
        "cloudpickle": pickle.loads(cloudpickle.dumps(arr)),
        "method": arr.copy(),
        "copy": copy.copy(arr),
        "deepcopy": copy.deepcopy(arr),
    }
    for made in copies.values():
        assert type(made) is TiledArray
        assert made is not arr
        assert (made.name, made.chunks, made.dtype) == (arr.name, arr.chunks, arr.dtype)
        assert made.description == arr.description
        assert scheme_of(made) == scheme_of(arr)
        np.testing.assert_array_equal(made[1, ::2].compute(), frames[1, ::2])
    cut = pickle.loads(pickle.dumps(arr[1:, 2, ::3]))
    assert cut.name == arr[1:, 2, ::3].name
    np.testing.assert_array_equal(cut.compute(), frames[1:, 2, ::3])


def test_protocols_of_numpy(small):
    arr, frames = open_small(small)
    np.testing.assert_array_equal(np.asarray(arr), frames)
    assert np.asarray(arr, dtype="f4").dtype == "f4"
    assert isinstance(np.sum(arr), da.Array)
    assert np.sum(arr).compute() == frames.sum()
    assert len(arr) == 7
    assert int(arr[1, 2, 3, 4]) == frames[1, 2, 3, 4]
    assert (arr.ndim, arr.size, arr.nbytes, arr.itemsize) == (4, 840, 840, 1)
    for one, frame in zip(arr, frames, strict=True):
        np.testing.assert_array_equal(one, frame)
    assert isinstance(np.concatenate([arr, arr]), da.Array)


# Names


def test_names_tell_versions_of_a_file_apart(tmp_path, small):
    path = tmp_path / "scan.raw"
    path.write_bytes(small[0].read_bytes())
    names = set()
    tick = 100 if os.name == "nt" else 1  # of the times of files, in ns
    for change in (
        lambda: None,
        lambda: os.utime(path, ns=(0, 10**18)),
        lambda: os.utime(path, ns=(0, 10**18 + tick)),
        lambda: path.write_bytes(path.read_bytes() * 2),
        lambda: path.rename(tmp_path / "old.raw"),
    ):
        change()
        if not path.exists():
            path.write_bytes((tmp_path / "old.raw").read_bytes())
            stat = (tmp_path / "old.raw").stat()
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        arr, _ = open_small((path, None))
        names |= {arr.name, arr[1].name}
    assert len(names) == 2 * 5


def test_names_tell_options_apart(small):
    variants = [
        {},
        {"dtype": "i1"},
        {"dtype": ">u2", "sig_shape": (4, 3), "chunks": (3, 2, 4, 3)},
        {"nav_shape": (5, 7)},
        {"nav_shape": (6, 5)},
        {"sig_shape": (6, 4), "chunks": -1},
        {"file_header": 1, "nav_shape": (6, 5)},
        {"frame_header": 1, "nav_shape": (6, 5)},
        {"frame_footer": 1, "nav_shape": (6, 5)},
        {"chunks": -1},
        {"chunks": ((2, 4, 1), 5, 4, 6)},
        {"chunks": ((4, 2, 1), 5, 4, 6)},
    ]
    names = [open_small(small, **options)[0].name for options in variants]
    assert len(set(names)) == len(names)
    again = [open_small(small, **options)[0].name for options in variants]
    assert again == names


def test_names_tell_slices_apart(small):
    arr, _ = open_small(small)
    indices = [np.s_[:3], np.s_[1:4], np.s_[::2], np.s_[1::2], np.s_[:, 0], np.s_[:, 1]]
    indices += [np.s_[..., 0], np.s_[..., 0, :], np.s_[..., :1], np.s_[0], np.s_[:1], np.s_[..., 1]]
    names = {arr[index].name for index in indices}
    assert len(names) == len(indices)
    assert arr[1:4].name not in {arr.name, arr[1:5].name}
    assert arr[2:][1:3].name == arr[3:5].name or arr[2:][1:3].chunks != arr[3:5].chunks
