"""Nothing is copied that need not be, and nothing is read that is not shown."""

import ctypes
import gc
import mmap
import os

import dask
import numpy as np
import pytest
from conftest import ANY_PORT
from distributed import Client, LocalCluster

from dask_tiled import StaleFileError, map_tiles, open_dataset
from dask_tiled.array.tasks import pixels_of
from dask_tiled.reading import backends
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.testing import counting_frames, write_npy, write_raw

pytestmark = pytest.mark.usefixtures("synchronous", "at_rest")

FRAMES = counting_frames((12, 32, 32), "u2")
RAW = {"format": "raw", "dtype": "u2", "sig_shape": (32, 32)}


@pytest.fixture
def path(tmp_path):
    return write_raw(tmp_path / "scan.raw", FRAMES)


def owner(array):
    """Walk to what the memory of an array belongs to."""
    while isinstance(array, (np.ndarray, memoryview)):
        array = array.obj if isinstance(array, memoryview) else array.base
    return array


def is_mapped(array):
    return isinstance(owner(array), mmap.mmap)


def chunk(arr):
    """Return the first chunk as a task gets it."""
    return pixels_of(arr._source, arr._grid, (0,) * arr.ndim)


def tiles_of(arr):
    """Show an array to a function, and tell of each tile whether it is a view of a mapped file."""
    seen = []

    def note(tile, _):
        if is_mapped(tile):
            assert np.shares_memory(tile, np.frombuffer(owner(tile), np.uint8))
            assert tile.flags.aligned
            with pytest.raises(ValueError, match="WRITEABLE"):
                tile.flags.writeable = True
        assert tile.flags.c_contiguous
        assert not tile.flags.writeable
        seen.append(is_mapped(tile))
        return tile

    expected = arr.compute()
    made = map_tiles(note, arr)  # which is tried on zeros
    seen.clear()
    found = made.compute()
    np.testing.assert_array_equal(found, expected)
    assert not is_mapped(found)
    return seen


# Tiles that lie in the file as they are


@pytest.mark.parametrize(("io", "scheduler"), [("auto", "synchronous"), ("mmap", "threads")])
def test_no_view_leaves_a_task(path, io, scheduler):
    """What a file becomes after its task is nothing to who has the pixels."""
    arr = open_dataset(path, io=io, chunks=(4, -1, -1), **RAW)
    seen = []

    def note(block):
        seen.append((is_mapped(block), block.flags.writeable))
        return block[:1]

    parts = arr.map_blocks(note, dtype="u2", chunks=(1, 32, 32), meta=np.empty((0, 0, 0), "u2"))
    with dask.config.set(scheduler=scheduler):
        kept = [
            arr.persist(),
            parts.persist(),
            arr.rechunk((5, 7, 9)).persist(),
            arr[:, ::-1].persist(),
        ]
    assert seen == [(False, True)] * 3
    write_raw(path, FRAMES + 1)
    os.truncate(path, 5)
    for found, expected in zip(kept, (FRAMES, FRAMES[::4], FRAMES, FRAMES[:, ::-1]), strict=True):
        np.testing.assert_array_equal(found.compute(), expected)


NATIVE = {
    "u2": {"io": "mmap", "chunks": (1, -1, -1)},
    "header": {"file_header": 6},
    "f4": {"dtype": "f4", "sig_shape": (32, 16)},
    "bool": {"dtype": "i1", "sig_shape": (32, 64)},
    "other frames": {"sig_shape": (16, 32)},
}


@pytest.mark.parametrize("options", NATIVE.values(), ids=NATIVE)
def test_native_types_are_views(path, options):
    """Of mapped memory and no other, and nobody can write to them."""
    options = {**RAW, **options}
    arr = open_dataset(path, nav_shape=(3,), **options)
    assert all(tiles_of(arr))
    content = path.read_bytes()[options.get("file_header", 0) :]
    assert arr.compute().tobytes() == content[: arr.nbytes]


def test_slices_of_whole_runs_are_views(path, tmp_path):
    """Frames that follow each other, and rows of one frame."""
    arr = open_dataset(path, chunks=-1, **RAW)
    for index in (np.s_[3:7], np.s_[5], np.s_[5, 3:9], np.s_[5, 3]):
        assert all(tiles_of(arr[index])), index
    npy = open_dataset(write_npy(tmp_path / "scan.npy", FRAMES.reshape(3, 4, 32, 32)))
    assert all(tiles_of(npy))
    assert all(tiles_of(npy[1:, :]))


COPIES = {
    "byte order": lambda path: open_dataset(path, **{**RAW, "dtype": ">u2"}),
    "gaps": lambda path: open_dataset(path, **RAW, frame_footer=2, nav_shape=(11,)),
    "not aligned": lambda path: open_dataset(path, **RAW, file_header=1, nav_shape=(11,)),
    "crop": lambda path: open_dataset(path, **RAW)[:, 1:, 1:],
    "every other frame": lambda path: open_dataset(path, **RAW)[::2],
    "missing frames": lambda path: open_dataset(path, **RAW, nav_shape=(13,)),
    "converted": lambda path: open_dataset(write_npy(path.with_suffix(".npy"), FRAMES), dtype="i2"),
    "another order": lambda path: open_dataset(path, **RAW, roi=[1, 0]),
    "frames again": lambda path: open_dataset(path, **RAW, roi=[1, 1]),
    "two files": lambda path: open_dataset([path, path], **RAW),
    "buffered": lambda path: open_dataset(path, io="buffered", **RAW),
    "direct": lambda path: open_dataset(path, io="direct", **RAW),
}


@pytest.mark.parametrize("opened", COPIES.values(), ids=COPIES)
def test_other_tiles_are_decoded(path, opened):
    arr = opened(path)
    assert not any(tiles_of(arr))
    found = chunk(arr)
    assert found.flags.writeable
    assert found.flags.c_contiguous
    found[...] = 0
    assert path.read_bytes() == FRAMES.tobytes()


# Results


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("chunks", [-1, (4, -1, -1)], ids=str)
def test_results_are_writeable(path, scheduler, chunks):
    """What compute() returns is the user's own, of one chunk as of many."""
    arr = open_dataset(path, chunks=chunks, **RAW)
    before = path.read_bytes()
    with dask.config.set(scheduler=scheduler, num_workers=1):
        for part, expected in ((arr, FRAMES), (arr[3], FRAMES[3]), (arr[2:4, 5], FRAMES[2:4, 5])):
            found = part.compute()
            np.testing.assert_array_equal(found, expected)
            assert found.flags.writeable
            assert not is_mapped(found)
            found += 1
        several = dask.compute(arr, arr[0])
        assert all(one.flags.writeable for one in several)
    assert path.read_bytes() == before


def test_a_file_that_changes_while_it_is_mapped(path):
    """What a function made of a view is thrown away."""
    arr = open_dataset(path, chunks=-1, **RAW)

    def change(tile, _):
        os.utime(path, ns=(0, 10**18))
        return tile

    with pytest.raises(StaleFileError) as caught:
        map_tiles(change, arr).compute()
    assert caught.value.path == str(path)


def maps_of(path):
    """Count the maps of a file."""
    with open("/proc/self/maps") as maps:
        return sum(line.rstrip().endswith(str(path)) for line in maps)


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_a_small_file_stays_mapped_while_it_is_open(path, dtype):
    """Once, for all arrays of it; its pages are not mapped again for each chunk."""
    arr = open_dataset(path, chunks=(2, -1, -1), **{**RAW, "dtype": dtype})
    for part in (arr, arr[3:5], arr[:, 4:9]):
        part.compute()
        part.sum(axis=0).compute()
        assert maps_of(path) == 1
    part = arr[1:]
    del arr
    part.compute()
    assert maps_of(path) == 1
    del part
    gc.collect()
    assert not maps_of(path)


@pytest.mark.usefixtures("nothing_kept")
def test_sparse_pixels_come_from_what_stays_mapped(path, monkeypatch):
    """Reading frame by frame would ask the system for each of them, every time."""
    monkeypatch.delattr(backends.Buffered, "windows")
    arr = open_dataset(path, chunks=(5, -1, -1), **RAW)
    np.testing.assert_array_equal(arr[:, 3, 4].compute(), FRAMES[:, 3, 4])
    assert maps_of(path) == 1


@pytest.mark.usefixtures("nothing_kept")
def test_windows_of_what_stays_mapped_have_as_many_pages_each(tmp_path, monkeypatch):
    """However far apart they lie, a file is looked at once for so many that are touched."""
    frame = 8 * mmap.PAGESIZE
    frames = counting_frames((64, 2, frame // 4), "u2")
    arr = open_dataset(write_npy(tmp_path / "scan.npy", frames), chunks=-1)
    monkeypatch.setattr(backends, "MAPPED_BYTES", 4 * frame)
    around, shown = backends.Kept._around, []

    def note(self, file, start, stop, *, sparse):
        shown.append(stop - start)
        return around(self, file, start, stop, sparse=sparse)

    monkeypatch.setattr(backends.Kept, "_around", note)
    for index, spans in ((np.s_[:], 16), (np.s_[:, 1, 7], 3)):
        shown.clear()
        total = arr[index].sum(axis=0).compute()
        np.testing.assert_array_equal(total, frames[index].sum(axis=0))
        assert len(shown) == spans


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_kept")
def test_little_stays_mapped(path, tmp_path, monkeypatch):
    """Not more than so many bytes and files together."""
    paths = [write_raw(tmp_path / f"{k}.raw", FRAMES) for k in range(4)]
    for limits, count in (((3, 8), 3), ((8, 2), 2), ((0, 8), 0)):
        monkeypatch.setattr(backends, "KEPT_BYTES", limits[0] * path.stat().st_size)
        monkeypatch.setattr(backends, "KEPT_MAPS", limits[1])
        arr = open_dataset(paths, chunks=(5, -1, -1), **RAW)
        for _ in range(2):
            np.testing.assert_array_equal(arr.compute(), np.concatenate([FRAMES] * 4))
        assert sum(map(maps_of, paths)) == count
        del arr
        gc.collect()


@pytest.mark.usefixtures("nothing_kept")
def test_a_file_that_stays_mapped_may_change(path):
    """It is looked at for every chunk, and its new version is mapped anew."""
    arr = open_dataset(path, chunks=-1, **{**RAW, "dtype": ">u2"})
    arr.compute()
    write_raw(path, FRAMES[:6])
    with pytest.raises(StaleFileError):
        arr.compute()
    again = open_dataset(path, chunks=-1, **RAW)
    np.testing.assert_array_equal(again.compute(), FRAMES[:6])


def describe_block(block):
    """Return how a block came to a worker."""
    return np.array([[[is_mapped(block), block.flags.writeable, block.flags.owndata]]])


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.slow
def test_workers_own_their_chunks(path):
    """Results are kept there, and sent: a view would count as memory that cannot be given back."""
    options = {"n_workers": 1, "threads_per_worker": 1, **ANY_PORT}
    arr = open_dataset(path, chunks=(4, -1, -1), **RAW)
    told = arr.map_blocks(describe_block, chunks=((1,) * 3, (1,), (3,)), dtype=bool)
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        mapped, writeable, _ = client.compute(told).result().T[:, 0]
        assert not mapped.any()
        assert writeable.all()
        kept = client.persist(arr)
        np.testing.assert_array_equal(client.compute(kept[3:5]).result(), FRAMES[3:5])
        inside = client.run(lambda: len(backends._kept))
        assert set(inside.values()) == {0}
        with dask.config.set(scheduler="synchronous"):  # not the cluster's, though there is one
            assert all(tiles_of(arr))


# Sparse cuts

PAGE = mmap.PAGESIZE


def resident(path):
    """Count the pages of a file that have been read: mincore tells what is in the page cache."""
    size = os.path.getsize(path)
    libc = ctypes.CDLL(None, use_errno=True)
    # A private map that can be written to has an address that ctypes can take.
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as view:
        pages = (ctypes.c_ubyte * -(-size // PAGE))()
        start = ctypes.c_char.from_buffer(view)
        address = ctypes.c_void_p(ctypes.addressof(start))
        status = libc.mincore(address, ctypes.c_size_t(size), pages)
        error = ctypes.get_errno()
        del start
    if status:
        pytest.skip(f"mincore: {os.strerror(error)}")
    return int((np.frombuffer(pages, np.uint8) & 1).sum())


@pytest.fixture
def large(tmp_path):
    """A file of 1 GB that takes no space: 500 frames of 1024 x 1024 pixels."""
    path = tmp_path / "large.raw"
    with path.open("wb") as file:
        file.truncate(500 * (2 << 20))
        for k in range(500):
            file.seek(k * (2 << 20) + 2 * (300 * 1024 + 700))
            file.write((k + 1).to_bytes(2, "little"))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(path) > 100:
        pytest.skip("pages cannot be dropped here")
    yield path
    path.unlink()


@pytest.mark.parametrize("io", BACKENDS)
@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_a_pixel_of_each_frame_touches_its_pages_alone(large, io, dtype):
    """500 pages of 250 000; direct reads leave none behind."""
    arr = open_dataset(large, "raw", dtype=dtype, sig_shape=(1024, 1024), io=io)
    found = arr[:, 300, 700].compute()
    np.testing.assert_array_equal(found, np.arange(1, 501, dtype="<u2").view(dtype))
    # A few more where a file system reads several pages at a time.
    assert resident(large) <= (500 * 4 if io != "direct" else 500)
    if io == "mmap":
        assert resident(large) >= 400  # otherwise nothing is measured here
