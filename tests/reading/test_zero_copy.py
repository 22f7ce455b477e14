"""Pixels are copied only where necessary, and only the bytes of a slice are read."""

import ctypes
import errno
import gc
import mmap
import os

import dask
import numpy as np
import pytest
import tifffile
from conftest import ANY_PORT
from distributed import Client, LocalCluster

from dask_tiled import StaleFileError, map_tiles, open_dataset
from dask_tiled.plans.tasks import pixels_of
from dask_tiled.reading import backends, buffered, mapped
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.system import pages
from dask_tiled.system.pages import is_cached
from dask_tiled.testing import counting_frames, write_npy, write_raw

pytestmark = pytest.mark.usefixtures("quick_collections", "synchronous", "at_rest")

FRAMES = counting_frames((12, 32, 32), "u2")
RAW = {"format": "raw", "dtype": "u2", "sig_shape": (32, 32)}


@pytest.fixture
def path(tmp_path):
    return write_raw(tmp_path / "scan.raw", FRAMES)


def owner(array):
    """Return the object that owns the memory of an array."""
    while isinstance(array, (np.ndarray, memoryview)):
        array = array.obj if isinstance(array, memoryview) else array.base
    return array


def is_mapped(array):
    return isinstance(owner(array), mmap.mmap)


def chunk(arr):
    """Return the first chunk as a task loads it."""
    return pixels_of(arr._source, arr._grid, (0,) * arr.ndim)


def tiles_of(arr):
    """Return for each tile that `map_tiles` passes whether it is a view of a mapped file."""
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
    made = map_tiles(note, arr)  # calls note on zeros
    seen.clear()
    found = made.compute()
    np.testing.assert_array_equal(found, expected)
    assert not is_mapped(found)
    return seen


# Tiles as views


@pytest.mark.parametrize(("io", "scheduler"), [("auto", "synchronous"), ("mmap", "threads")])
def test_no_view_leaves_a_task(path, io, scheduler):
    """Chunks are copies: later changes of the file do not reach them."""
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
    """Tiles of native dtypes are read-only views of the mapped file."""
    options = {**RAW, **options}
    arr = open_dataset(path, nav_shape=(3,), **options)
    assert all(tiles_of(arr))
    content = path.read_bytes()[options.get("file_header", 0) :]
    assert arr.compute().tobytes() == content[: arr.nbytes]


def test_slices_of_whole_runs_are_views(path, tmp_path):
    """Slices of consecutive frames, or of consecutive rows of a frame, are views."""
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
    """compute() returns writeable copies, of one chunk or many."""
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


def test_file_changed_while_mapped_raises(path):
    arr = open_dataset(path, chunks=-1, **RAW)

    def change(tile, _):
        os.utime(path, ns=(0, 10**18))
        return tile

    with pytest.raises(StaleFileError) as caught:
        map_tiles(change, arr).compute()
    assert caught.value.path == str(path)


def maps_of(path):
    """Return the number of maps of a file."""
    with open("/proc/self/maps") as maps:
        return sum(line.rstrip().endswith(str(path)) for line in maps)


@pytest.mark.thorough
@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_small_file_stays_mapped(path, dtype):
    """All arrays over a file share one map, until the last is deleted."""
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
@pytest.mark.parametrize("compression", ["zlib", None])
def test_compressed_files_are_not_mapped(tmp_path, monkeypatch, compression):
    """Mapped pages count as memory; to copy compressed bytes is quick beside decoding them."""
    path = tmp_path / "image.tif"
    image = np.random.default_rng(0).integers(0, 9, (128, 128), "u2")
    tifffile.imwrite(path, image, tile=(64, 64), compression=compression)
    monkeypatch.setattr(backends, "LEAST_MAPPED_BYTES", 0)
    arr = open_dataset(path)
    np.testing.assert_array_equal(arr.compute(), image)
    assert maps_of(path) == (compression is None)


@pytest.mark.usefixtures("nothing_kept")
def test_sparse_pixels_come_from_the_kept_map(path, monkeypatch):
    """The kept map avoids a system call per frame."""
    monkeypatch.setattr(backends, "is_cached", lambda *_: True)
    monkeypatch.delattr(buffered.Buffered, "windows")
    arr = open_dataset(path, chunks=(5, -1, -1), **RAW)
    np.testing.assert_array_equal(arr[:, 3, 4].compute(), FRAMES[:, 3, 4])
    assert maps_of(path) == 1


@pytest.mark.usefixtures("nothing_kept")
def test_sparse_pixels_that_are_not_cached_are_read(path, monkeypatch):
    """The system would load the pages around each of them."""
    arr = open_dataset(path, chunks=(5, -1, -1), **RAW)
    arr.sum().compute()
    assert maps_of(path) == 1
    monkeypatch.setattr(backends, "is_cached", lambda *_: False)
    monkeypatch.delattr(mapped.MappedWindows, "windows")
    np.testing.assert_array_equal(arr[:, 3, 4].compute(), FRAMES[:, 3, 4])


def test_cached_bytes(path, monkeypatch):
    with path.open("rb") as file:
        assert is_cached(file.fileno(), 0)
        monkeypatch.setattr(pages, "_IF_CACHED", 8)
        for number, expected in ((errno.EAGAIN, False), (errno.EOPNOTSUPP, True)):
            monkeypatch.setattr(pages, "_preadv", failing(number))
            assert is_cached(file.fileno(), 0) is expected
        monkeypatch.setattr(pages, "_IF_CACHED", None)
        assert is_cached(file.fileno(), 0)


def failing(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.usefixtures("nothing_kept")
def test_windows_of_kept_maps_have_equal_numbers_of_pages(tmp_path, monkeypatch):
    """Windows are bounded by touched pages, not by the bytes between them."""
    frame = 8 * mmap.PAGESIZE
    frames = counting_frames((64, 2, frame // 4), "u2")
    arr = open_dataset(write_npy(tmp_path / "scan.npy", frames), chunks=-1)
    monkeypatch.setattr(mapped, "KEPT_WINDOW_BYTES", 4 * frame)
    around, shown = mapped.Kept._around, []

    def note(self, file, start, stop, *, sparse):
        shown.append(stop - start)
        return around(self, file, start, stop, sparse=sparse)

    monkeypatch.setattr(mapped.Kept, "_around", note)
    for index, spans in ((np.s_[:], 16), (np.s_[:, 1, 7], 3)):
        shown.clear()
        total = arr[index].sum(axis=0).compute()
        np.testing.assert_array_equal(total, frames[index].sum(axis=0))
        assert len(shown) == spans


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_kept")
def test_kept_maps_are_limited_in_bytes_and_files(path, tmp_path, monkeypatch):
    paths = [write_raw(tmp_path / f"{k}.raw", FRAMES) for k in range(4)]
    for limits, count in (((3, 8), 3), ((8, 2), 2), ((0, 8), 0)):
        monkeypatch.setattr(mapped, "KEPT_BYTES", limits[0] * path.stat().st_size)
        monkeypatch.setattr(mapped, "KEPT_MAPS", limits[1])
        arr = open_dataset(paths, chunks=(5, -1, -1), **RAW)
        for _ in range(2):
            np.testing.assert_array_equal(arr.compute(), np.concatenate([FRAMES] * 4))
        assert sum(map(maps_of, paths)) == count
        del arr
        gc.collect()


@pytest.mark.usefixtures("nothing_kept")
def test_file_with_a_kept_map_may_change(path):
    """Each chunk checks the file, and a new version gets a new map."""
    arr = open_dataset(path, chunks=-1, **{**RAW, "dtype": ">u2"})
    arr.compute()
    write_raw(path, FRAMES[:6])
    with pytest.raises(StaleFileError):
        arr.compute()
    again = open_dataset(path, chunks=-1, **RAW)
    np.testing.assert_array_equal(again.compute(), FRAMES[:6])


def describe_block(block):
    """Return whether a block is mapped, writeable, and owns its memory."""
    return np.array([[[is_mapped(block), block.flags.writeable, block.flags.owndata]]])


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.slow
def test_workers_own_their_chunks(path):
    """Workers keep and send copies: a view would count as memory that cannot be released."""
    options = {"n_workers": 1, "threads_per_worker": 1, **ANY_PORT}
    arr = open_dataset(path, chunks=(4, -1, -1), **RAW)
    told = arr.map_blocks(describe_block, chunks=((1,) * 3, (1,), (3,)), dtype=bool)
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        are_mapped, writeable, _ = client.compute(told).result().T[:, 0]
        assert not are_mapped.any()
        assert writeable.all()
        kept = client.persist(arr)
        np.testing.assert_array_equal(client.compute(kept[3:5]).result(), FRAMES[3:5])
        inside = client.run(lambda: len(mapped._kept))
        assert set(inside.values()) == {0}
        with dask.config.set(scheduler="synchronous"):  # in spite of the client
            assert all(tiles_of(arr))


# Sparse slices

PAGE = mmap.PAGESIZE


def resident(path):
    """Return the number of pages of a file in the page cache, by mincore."""
    size = os.path.getsize(path)
    libc = ctypes.CDLL(None, use_errno=True)
    # ctypes accepts only writeable buffers, hence a private map.
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
    """Write a sparse file of 500 frames of 1024 x 1024 pixels, 1 GB."""
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
def test_one_pixel_per_frame_reads_one_page_per_frame(large, io, dtype):
    """500 of 250 000 pages enter the page cache; none with direct reads."""
    arr = open_dataset(large, "raw", dtype=dtype, sig_shape=(1024, 1024), io=io)
    found = arr[:, 300, 700].compute()
    np.testing.assert_array_equal(found, np.arange(1, 501, dtype="<u2").view(dtype))
    # Some file systems read several pages at a time.
    assert resident(large) <= (500 * 4 if io != "direct" else 500)
    if io == "mmap":
        assert resident(large) >= 400  # otherwise mincore shows nothing
