"""Exports to zarr are equal to the source, and complete or absent."""

import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import dask_tiled
from dask_tiled import DatasetError, TilingError, open_dataset, to_zarr, verify_zarr
from dask_tiled.export.zarr import sources
from dask_tiled.export.zarr.encoding import Encoder
from dask_tiled.export.zarr.grids import ChunkGrid, grids_of, pyramid_of
from dask_tiled.opened.spec import Given
from dask_tiled.testing import counting_frames, write_mib, write_raw

to_zarr = partial(to_zarr, layout="array")  # without keys of a group
FRAMES = counting_frames((5, 7, 8, 16), "uint16")


@pytest.fixture
def arr(tmp_path):
    """Open a small scan."""
    return open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))


def test_exports_hold_pixels_and_metadata(arr, tmp_path):
    """zarr alone reads the pixels, the names of the axes, and metadata of the file."""
    to_zarr(arr, tmp_path / "out.zarr", attributes={"sample": "gold"})
    stored = zarr.open_array(tmp_path / "out.zarr", mode="r")
    np.testing.assert_array_equal(stored[:], FRAMES)
    assert stored.dtype == np.uint16
    assert stored.metadata.zarr_format == 3
    assert stored.metadata.dimension_names == ("scan_y", "scan_x", "y", "x")
    assert stored.attrs["sample"] == "gold"
    mark = stored.attrs["dask_tiled"]
    assert (mark["format"], mark["version"]) == ("mib", dask_tiled.__version__)
    assert [axis["name"] for axis in mark["axes"]] == ["scan_y", "scan_x", "y", "x"]
    assert mark["metadata"]["mib"]["hdr"]["Frames per Trigger (Number)"] == "7"


def test_every_chunk_is_stored(tmp_path):
    """Chunks of zeros are stored, too, as a missing chunk means damage."""
    to_zarr(da.zeros((6, 4), chunks=(2, 4), dtype="u2"), tmp_path / "out.zarr", chunks=(2, 4))
    files = [path for path in (tmp_path / "out.zarr" / "c").rglob("*") if path.is_file()]
    assert len(files) == 3


sizes = st.integers(1, 9)


@pytest.mark.thorough
@given(st.data())
def test_any_chunks_and_shards(tmp_path_factory, data):
    """Exports are right with any dask chunks, zarr chunks and shards."""
    folder = tmp_path_factory.mktemp("export")
    shape = data.draw(st.tuples(sizes, sizes, sizes))
    expected = counting_frames(shape, "uint32")
    path = write_raw(folder / "scan.raw", expected)
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    grid = tuple(data.draw(st.integers(1, n)) for n in shape)
    times = data.draw(st.none() | st.tuples(*[st.integers(1, 3)] * 3))
    shards = times and tuple(k * n for k, n in zip(times, grid, strict=True))
    opened = open_dataset(
        path, "raw", dtype="u4", nav_shape=shape[:1], sig_shape=shape[1:], chunks=chunks
    )
    index = tuple(slice(data.draw(st.integers(0, n - 1)), None) for n in shape)
    plain = da.from_array(expected, chunks=chunks)
    for source in (opened, opened[index], plain, plain[index] + 1):
        stored = to_zarr(source, zarr.storage.MemoryStore(), chunks=grid, shards=shards)
        if source.shape == shape:  # no chunk is longer than its axis
            assert stored.chunks == grid
        with dask.config.set(scheduler="synchronous"):
            np.testing.assert_array_equal(stored[:], source.compute())


@pytest.mark.parametrize(
    "path", ["a.zarr/", "./b.zarr", "new/folder/c.zarr", "with space [1] \u00b5.zarr", "a::b"]
)
def test_paths_of_all_kinds(arr, tmp_path, monkeypatch, path):
    """Paths may end with a slash, be relative, or lie below folders that do not exist yet."""
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(to_zarr(arr, path)[:], FRAMES)
    verify_zarr(path, arr)
    to_zarr(arr[:1], path, overwrite=True)
    stored = zarr.open_array(zarr.storage.LocalStore(path), mode="r")
    np.testing.assert_array_equal(stored[:], FRAMES[:1])


@pytest.mark.parametrize("kind", [str, zarr.storage.LocalStore])
def test_arrays_may_be_replaced_by_their_results(arr, tmp_path, kind):
    """The source is read to the end before it is removed."""
    to_zarr(arr, tmp_path / "out.zarr")
    place = kind(tmp_path / "out.zarr")
    to_zarr(da.from_zarr(place) + 1, place, overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], FRAMES + 1)


@pytest.mark.parametrize("resume", [True, False])
def test_failed_exports_are_invisible(arr, tmp_path, resume):
    """Failed exports leave parts to be resumed, or none, and older exports are untouched."""
    to_zarr(arr[:1], tmp_path / "out.zarr")

    seen = []

    def fail(block):
        if seen:
            raise ZeroDivisionError
        seen.append(block)
        return block

    failing = da.concatenate([arr, arr]).map_blocks(fail, dtype="u2", meta=FRAMES[:0])
    options = {"chunks": FRAMES.shape, "resume": resume}
    with dask.config.set(scheduler="synchronous"), pytest.raises(ZeroDivisionError):
        to_zarr(failing, tmp_path / "out.zarr", overwrite=True, **options)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], FRAMES[:1])
    with dask.config.set(scheduler="synchronous"), pytest.raises(ZeroDivisionError):
        to_zarr(failing, tmp_path / "new" / "folder" / "out.zarr", **options)
    left = ["out.zarr.part"] if resume else []
    assert sorted(os.listdir(tmp_path)) == ["out.zarr", *left, "scan.hdr", "scan.mib"]


def test_two_exports_to_one_place(arr, tmp_path):
    """The second export is refused as long as the first one runs."""
    refused = []

    def export_too(block):
        with pytest.raises(DatasetError, match="another export") as caught:
            to_zarr(arr, tmp_path / "out.zarr", overwrite=True)
        refused.append(caught.value.path)
        return block

    with dask.config.set(scheduler="synchronous"):
        to_zarr(arr.map_blocks(export_too, dtype="u2", meta=FRAMES[:0]), tmp_path / "out.zarr")
    assert refused == [str(tmp_path / "out.zarr.part")]
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], FRAMES)


def test_data_that_appears_during_an_export_is_kept(arr, tmp_path):
    """The path is checked again before the array is moved there."""

    def come(block):
        (tmp_path / "out.zarr").mkdir()
        (tmp_path / "out.zarr" / "thesis.txt").write_text("mine")
        return block

    with pytest.raises(DatasetError, match="other data"):
        to_zarr(
            arr.map_blocks(come, dtype="u2", meta=FRAMES[:0]), tmp_path / "out.zarr", overwrite=True
        )
    assert (tmp_path / "out.zarr" / "thesis.txt").read_text() == "mine"


def test_failed_replacements_restore_the_array(arr, tmp_path, monkeypatch):
    """The replacement fails between its two renamings."""
    to_zarr(arr[:1], tmp_path / "out.zarr")
    rename = os.rename

    def fail(source, target):
        if str(source).endswith("store"):
            raise PermissionError
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(DatasetError, match="cannot be written"):
        to_zarr(arr, tmp_path / "out.zarr", overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], FRAMES[:1])


def test_keys_of_exports_are_unique(arr, tmp_path):
    """A cache of results must not skip an export."""
    seen = []

    class Names(dask.callbacks.Callback):
        def _start(self, dsk):
            seen.append(set(map(str, dsk)))

    with Names():
        for _ in range(2):
            to_zarr(arr, tmp_path / "out.zarr", overwrite=True)
    assert not seen[0] & seen[1]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5)])
def test_arrays_without_pixels_or_axes(tmp_path, shape):
    assert to_zarr(da.zeros(shape), tmp_path / "out.zarr").shape == shape


@pytest.mark.parametrize("chunks", [
    (3,), 0, (0, 7, 8, 16), (-2, 7, 8, 16), "much", 1.5, object(), ((2, 3), 7, 8, 16)
])  # fmt: skip
def test_invalid_chunks_raise(arr, tmp_path, chunks):
    with pytest.raises(TilingError):
        to_zarr(arr, tmp_path / "out.zarr", chunks=chunks)
    assert sorted(os.listdir(tmp_path)) == ["scan.hdr", "scan.mib"]


def test_chunks_and_shards_by_names_of_axes(arr, tmp_path):
    named = {"chunks": {"scan_y": 2, "x": 4}, "shards": {"scan_y": 4}}
    stored = to_zarr(arr, tmp_path / "out.zarr", **named)
    assert (stored.chunks, stored.shards) == ((2, 7, 8, 4), (4, 7, 8, 16))
    results = to_zarr(arr.sum(axis=3), tmp_path / "sums.zarr", chunks={"y": 2})
    assert results.chunks == (5, 7, 2)
    with pytest.raises(TilingError, match="expected scan_y, scan_x, y, x; found z"):
        to_zarr(arr, tmp_path / "other.zarr", chunks={"z": 2})


@pytest.mark.parametrize("source", ["a", da.ma.masked_less(da.ones(3), 2), None])
def test_invalid_sources_raise(tmp_path, source):
    """Missing files, masked arrays and None raise."""
    with pytest.raises((DatasetError, FileNotFoundError)):
        to_zarr(source, tmp_path / "out.zarr")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("store", [None, b"out.zarr", "a\0.zarr", "none://out.zarr"])
def test_invalid_stores_raise(arr, store):
    with pytest.raises(DatasetError, match=r"invalid store|invalid path|not known"):
        to_zarr(arr, store)


@pytest.mark.parametrize("shape", [(3, 3), (3, 5), (1, 4), (4,)])
def test_chunks_of_unexpected_shapes_raise(tmp_path, shape):
    """Chunks are neither cut nor filled; the export fails, and leaves nothing."""
    arr = da.from_delayed(dask.delayed(np.ones)(shape), (3, 4), "f8")
    with pytest.raises(
        DatasetError, match="another shape than its dask array states; expected \\(3, 4\\)"
    ):
        to_zarr(arr, tmp_path / "out.zarr")
    assert not [*tmp_path.iterdir()]


def test_attributes_of_the_user(arr, tmp_path):
    """NumPy's values are written as JSON; the key of the package stays."""
    given = {"dose": np.float32(0.5), "angles": np.arange(3), "dask_tiled": "mine"}
    stored = to_zarr(arr, tmp_path / "out.zarr", attributes=given)
    assert stored.attrs["dose"] == 0.5
    assert stored.attrs["angles"] == [0, 1, 2]
    assert stored.attrs["dask_tiled"]["format"] == "mib"
    with pytest.raises(DatasetError, match="attributes"):
        to_zarr(arr, tmp_path / "other.zarr", attributes=["dose"])


@pytest.mark.parametrize("kind", ["memory", "dict", "fsspec"])
def test_a_store_that_may_be_read_is_not_replaced(arr, kind):
    """The store is emptied first, so the graph must not read it at any depth."""
    contents = {}
    store = {"memory": zarr.storage.MemoryStore(contents), "dict": contents, "fsspec": "memory://a"}
    to_zarr(arr, store[kind], overwrite=True)
    inner = (
        da.from_zarr(store[kind]) if kind != "dict" else da.from_array(zarr.open_array(contents))
    )
    for source in (inner + 1, da.concatenate([inner[:2], da.ones_like(inner)]).rechunk(2)):
        with pytest.raises(DatasetError, match="may read from the store"):
            to_zarr(source, store[kind], overwrite=True)
    np.testing.assert_array_equal(inner, FRAMES)
    to_zarr(arr + 1, store[kind], overwrite=True)
    np.testing.assert_array_equal(inner, FRAMES + 1)


def test_graphs_that_do_not_pickle_may_read_the_store(arr):
    """Arrays with such graphs are not written over arrays in stores."""
    store, lock = {}, threading.Lock()
    to_zarr(arr, store)
    with pytest.raises(DatasetError, match="may read from the store"):
        to_zarr(arr.map_blocks(lambda x: (lock, x)[1], meta=FRAMES[:0]), store, overwrite=True)


def test_a_zip_file_is_not_replaced(arr, tmp_path):
    """Nothing can be removed from a zip file."""
    with zarr.storage.ZipStore(tmp_path / "out.zip", mode="a") as store:
        to_zarr(arr, store)
        with pytest.raises(DatasetError, match="overwrite=True"):
            to_zarr(arr, store)
        with pytest.raises(DatasetError, match="cannot replace data"):
            to_zarr(da.from_zarr(store) + 1, store, overwrite=True)
        np.testing.assert_array_equal(zarr.open_array(store, mode="r+")[:], FRAMES)


def test_stores_show_complete_arrays_only(arr):
    """Documents are written last; chunks of a stopped export are no obstacle."""
    store = {}

    def fail(_block):
        assert not any("zarr.json" in key for key in store)
        raise ZeroDivisionError

    parts = da.concatenate([arr, arr.map_blocks(fail, dtype="u2", meta=FRAMES[:0])])
    with dask.config.set(scheduler="synchronous"), pytest.raises(ZeroDivisionError):
        to_zarr(parts, store, chunks=(5, 7, 8, 16))
    store.setdefault("c/0/0/0/0", zarr.core.buffer.cpu.Buffer.from_bytes(b"left"))
    with pytest.warns(UserWarning, match="another source"):
        assert to_zarr(arr, store)[4, 6, 7, 15] == FRAMES[4, 6, 7, 15]


def test_other_keys_of_a_store_stay(arr):
    """Only keys below the path of the export are removed."""
    store = {}
    group = zarr.create_group(store)
    group.create_array("other", shape=(3,), dtype="u1")[:] = 7
    with pytest.raises(DatasetError, match="the store is not empty"):
        to_zarr(arr, store)
    place = zarr.storage.StorePath(zarr.storage.MemoryStore(store), "scan")
    to_zarr(arr, place)
    to_zarr(arr[1:], place, overwrite=True)
    np.testing.assert_array_equal(group["other"][:], [7, 7, 7])
    np.testing.assert_array_equal(group["scan"][:], FRAMES[1:])


@pytest.mark.parametrize(
    ("shape", "chunks", "shards"),
    [
        ((64, 64, 64, 64), (2, 64, 64, 64), (32, 64, 64, 64)),
        ((3, 251, 64, 128), (1, 63, 64, 128), (3, 252, 64, 128)),  # 251 is prime
        ((1009, 64, 128), (64, 64, 128), (1024, 64, 128)),
        ((4, 4096, 4096), (1, 128, 4096), (1, 2048, 4096)),
        ((4, 4), (4, 4), None),
    ],
)
def test_chunks_and_shards_are_chosen(shape, chunks, shards):
    """Chunks have about 1 MiB and shards about 16 MiB, whatever the lengths of the axes."""
    arr = da.zeros(shape, chunks=shape, dtype="u2")
    assert grids_of(Given.of(arr), None, None) == (chunks, shards)


def test_chunks_of_opened_arrays_may_differ_from_those_of_dask(tmp_path):
    """Unless tasks keep the chunks of dask, as where they compute results."""
    arr = open_dataset(write_mib(tmp_path / "scan.mib", FRAMES), chunks=(2, 7, 8, 16))
    assert grids_of(Given.of(arr), None, None) == (FRAMES.shape, None)
    assert grids_of(Given.of(arr), None, None, keeps=True) == ((2, 7, 8, 16), None)


def test_shards_of_levels_cover_the_same_area():
    """The last one would have 64 KiB, and has 128 KiB."""
    given = Given.of(da.zeros((8192, 4096), chunks=4096, dtype="u1"))
    first = ChunkGrid(given.shape, *grids_of(given, None, None))
    assert first.shard == (4096, 4096)
    levels = pyramid_of(given, 4, "mean", ["y", "x"], first, like=False).levels
    kept = [level.shard or level.chunk for level in levels]
    assert kept == [(2048, 2048), (1024, 1024), (512, 512), (512, 256)]


def test_shards_are_multiples_of_chunks(arr, tmp_path):
    """Other shards raise, and so do arrays of unknown shapes."""
    with pytest.raises(TilingError, match="compute_chunk_sizes"):
        to_zarr(arr.ravel()[arr.ravel() > 5], tmp_path / "out.zarr")
    with pytest.raises(TilingError, match="multiples"):
        to_zarr(arr, tmp_path / "out.zarr", chunks=(2, 7, 8, 16), shards=(3, 7, 8, 16))
    assert to_zarr(arr, tmp_path / "out.zarr", shards=(2, 7, 8, 16)).shards == (2, 7, 8, 16)


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, False)])
def test_progress(arr, tmp_path, capsys, progress, shown):
    """By default, bars are shown on terminals only."""
    to_zarr(arr, tmp_path / "out.zarr", progress=progress)
    assert ("to_zarr: 100%" in capsys.readouterr().err) is shown


def test_default_compressors(arr, monkeypatch):
    """Bit shuffle and LZ4 for numbers, with a checksum, without calls of zarr and copies."""
    monkeypatch.setattr(Encoder, "_alone", None)
    stored = to_zarr(arr, {}, chunks=(1, 7, 8, 16))
    blosc = zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=2)
    assert stored.compressors == (blosc, zarr.codecs.Crc32cCodec())
    np.testing.assert_array_equal(stored[:], FRAMES)
    verify_zarr(stored, arr)
    chunk = FRAMES[:1]
    assert Encoder(stored)._whole(chunk) is chunk


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
def test_encoded_chunks_may_be_longer_than_their_pixels():
    """Codecs that only zarr calls state no maximum: here 8 bytes of checksums are added."""
    pixels = np.arange(32, dtype="u2")
    adler = {"name": "numcodecs.adler32", "configuration": {}}
    stored = to_zarr(da.from_array(pixels), {}, chunks=8, shards=8, compressors=adler)
    np.testing.assert_array_equal(stored[:], pixels)
    verify_zarr(stored, da.from_array(pixels))


@pytest.mark.thorough
def test_compressors(arr, tmp_path):
    """Compressors are those of zarr, with a single checksum that detects damage."""
    check, gzip = zarr.codecs.Crc32cCodec(), zarr.codecs.GzipCodec(level=1)
    for asked, used in (
        (None, (check,)),
        ([], (check,)),
        (check, (check,)),
        (gzip, (gzip, check)),
        (gzip.to_dict(), (gzip, check)),
        ([gzip, check], (gzip, check)),
        ([gzip, check.to_dict()], (gzip, check)),
    ):
        stored = to_zarr(arr, tmp_path / "out.zarr", compressors=asked, overwrite=True)
        assert stored.compressors == used
        np.testing.assert_array_equal(stored[:], FRAMES)


SHARD, TASK = 16, 16
"""MiB of pixels: of a shard by default, and of a task whose zarr chunks cut the frames."""
HELD = {
    "plain": 1 + SHARD,
    "cut frames": TASK + 1.5,
    "pyramid": 1 + SHARD + SHARD / 3,
    "computed": 8 + 1,
    "follow": 1 + SHARD,
    "beton": 2 + 8,
}
"""MiB that each of two workers holds: pixels, and encoded chunks, which are no smaller."""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="known on Linux only")
def test_memory_of_exports(tmp_path):
    """Each worker may take 16 MiB more, for windows of files and memory that is kept free.

    Other processes may delay the freeing of memory, so the lower of two peaks counts.
    """
    program = str(Path(__file__).with_name("exports_memory.py"))
    lowest = dict.fromkeys(HELD, np.inf)
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        command = [sys.executable, program, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = dict(pair for line in done.stdout.splitlines() for pair in json.loads(line).items())
        assert found.keys() == HELD.keys()
        lowest = {name: min(lowest[name], peak) for name, peak in found.items()}
        if all(lowest[name] < 2 * (held + 16) for name, held in HELD.items()):
            return
    pytest.fail(f"{lowest}")


@pytest.mark.parametrize("name", ["sync of zarr.core", "dictionary of a store"])
def test_missing_private_names_of_zarr(arr, monkeypatch, name):
    """Exports succeed, and arrays are not replaced by their readers, perhaps with more caution."""
    store = zarr.storage.MemoryStore()
    to_zarr(arr[:1], store)
    if name == "sync of zarr.core":
        monkeypatch.setitem(sys.modules, "zarr.core.sync", None)
    else:
        monkeypatch.setattr(sources, "vars", lambda _: {}, raising=False)
    again = zarr.storage.MemoryStore()
    stored = to_zarr(arr, again)
    np.testing.assert_array_equal(stored[:], FRAMES)
    source = da.from_array(zarr.open_array(store), asarray=True)
    with pytest.raises(DatasetError):
        to_zarr(source + 1, store, overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(store)[:], FRAMES[:1])
