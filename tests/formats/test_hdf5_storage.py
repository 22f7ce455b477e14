"""HDF5: every way in which pixels can be stored gives what h5py reads."""

import importlib
import pickle
import threading

import dask
import numpy as np
import pytest

from dask_tiled import (
    CorruptFileError,
    StaleFileError,
    TilingRequest,
    TruncatedFileError,
    describe,
    map_tiles,
    open_dataset,
)
from dask_tiled.formats.hdf5 import chunks as hdf5_chunks
from dask_tiled.testing import check_format

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

SHAPE = (5, 7, 12, 20)
CHUNKS = (2, 3, 5, 8)
COUNTS = np.random.default_rng(0).poisson(3, SHAPE)
PAIR = np.dtype([("a", ">i2"), ("b", "f8")])


def write(path, data=None, *, name="scan/data", **options):
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=data, **options)
    return path


def oracle(path, name="scan/data"):
    with h5py.File(path, "r") as file:
        pixels = file[name][()]
    return pixels if pixels.dtype.names else pixels.astype(pixels.dtype.newbyteorder("="))


def functions(path, **options):
    """Give the functions that decode the blocks of a file."""
    layout = describe(path, **options).layout
    return {getattr(d, "function", d.__class__.__name__).split(":")[-1] for d in layout.decoders}


@pytest.fixture
def no_library(monkeypatch):
    """Forbid the tasks to open files with h5py."""

    def forbidden(*_args, **_kwargs):
        raise AssertionError("h5py is used in a task")

    monkeypatch.setattr(hdf5_chunks, "_dataset", forbidden)


TYPES = ["u1", "i2", ">u2", "<u4", ">i8", "f2", ">f4", "f8", "c8", ">c16", "?", PAIR]


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"chunks": CHUNKS}, {"chunks": CHUNKS, "compression": 4}])
def test_all_types_of_numbers(tmp_path, dtype, options):
    """Contiguous, in chunks, and deflated; no task needs h5py."""
    data = np.zeros(SHAPE, dtype)
    for part in [data] if data.dtype.names is None else [data["a"], data["b"]]:
        part[...] = COUNTS
    path = write(tmp_path / "a.h5", data, **options)
    check_format(path, oracle(path), cuts=4)


PIPELINES = {
    "gzip": {"compression": 1},
    "shuffled": {"compression": 4, "shuffle": True},
    "only shuffled": {"shuffle": True},
    "summed": {"compression": 4, "shuffle": True, "fletcher32": True},
    "only summed": {"fletcher32": True},
}
PLUGINS = {
    "zstd": ("Zstd", {}),
    "blosc": ("Blosc", {"cname": "lz4", "shuffle": 1}),
    "blosc bits": ("Blosc", {"cname": "zstd", "shuffle": 2}),
    "blosc zlib": ("Blosc", {"cname": "zlib", "shuffle": 0}),
    "lz4": ("LZ4", {}),
    "lz4 in blocks": ("LZ4", {"nbytes": 300}),
}
BY_LIBRARY = {"bitshuffle": ("Bitshuffle", {}), "blosc2": ("Blosc2", {}), "bzip2": ("BZip2", {})}


def plugin(name, options):
    module = pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed")
    return dict(getattr(module, name)(**options))


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("name", [*PIPELINES, *PLUGINS])
@pytest.mark.parametrize("noise", [False, True])
def test_known_filters_need_no_h5py_in_the_task(tmp_path, name, noise):
    """Deflate, shuffle, fletcher32, Zstandard, Blosc and LZ4; also where nothing gets smaller."""
    options = PIPELINES[name] if name in PIPELINES else plugin(*PLUGINS[name])
    data = COUNTS.astype("u2")
    if noise:
        data = np.random.default_rng(1).integers(0, 1 << 16, SHAPE, "u2")
    path = write(tmp_path / "a.h5", data, chunks=CHUNKS, **options)
    assert functions(path) <= {"decode", "Decoder"}  # filters that gain nothing are left out
    check_format(path, data, cuts=5)


@pytest.mark.parametrize("name", [*BY_LIBRARY, "lzf", "scaleoffset", "szip"])
def test_other_filters_are_left_to_h5py(tmp_path, name):
    """Block by block."""
    data = COUNTS.astype("u2")
    if name in BY_LIBRARY:
        options = plugin(*BY_LIBRARY[name])
    elif name == "scaleoffset":
        options = {"scaleoffset": 0}
    else:
        options = {"compression": name}
    path = write(tmp_path / "a.h5", data, chunks=CHUNKS, **options)
    assert functions(path) == {"read"}
    check_format(path, data, cuts=5)


def test_a_task_opens_the_file_once_and_closes_it(tmp_path, monkeypatch):
    """However many blocks it reads; afterwards nothing is open."""
    path = write(tmp_path / "a.h5", COUNTS.astype("u2"), chunks=CHUNKS, compression="lzf")
    opened = []

    class Counted(h5py.File):
        def __init__(self, *args, **kwargs):
            opened.append(self)
            super().__init__(*args, **kwargs)

    arr = open_dataset(path, chunks=(4, 6, 12, 20))
    monkeypatch.setattr(h5py, "File", Counted)
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(arr.compute(), COUNTS)
        assert len(opened) == arr.npartitions == 4
        arr.sum(axis=(2, 3)).compute()
    assert not any(opened)


@pytest.mark.usefixtures("no_library")
def test_chunks_that_skip_filters(tmp_path):
    """Each chunk says which filters it did without; without any it lies there as it is."""
    path = tmp_path / "a.h5"
    data = COUNTS[:4, :6, :10, :16].astype("u2")
    with h5py.File(path, "w") as file:
        made = file.create_dataset("d", data=data, chunks=CHUNKS, compression=4, shuffle=True)
        made.id.write_direct_chunk((0, 0, 0, 0), data[:2, :3, :5, :8].tobytes(), 0b11)
        shuffled = data[2:4, :3, :5, :8].copy().view("u1").reshape(-1, 2).T.tobytes()
        made.id.write_direct_chunk((2, 0, 0, 0), shuffled, 0b10)
    assert functions(path) == {"decode", "Decoder"}
    check_format(path, data)


@pytest.mark.parametrize("options", [{}, {"compression": 4}, {"compression": "lzf"}], ids=str)
@pytest.mark.parametrize("fill", [None, 7])
def test_chunks_that_were_never_written(tmp_path, options, fill):
    """They read as the fill value of the file; none, some or all of them are there."""
    path = tmp_path / "a.h5"
    rng = np.random.default_rng(2)
    for written in (0.0, 0.3, 0.9):
        with h5py.File(path, "w") as file:
            made = file.create_dataset(
                "scan/data", SHAPE, ">i4", chunks=CHUNKS, fillvalue=fill, **options
            )
            for corner in np.argwhere(rng.random((3, 3, 3, 3)) < written) * CHUNKS:
                box = tuple(slice(a, a + n) for a, n in zip(corner, CHUNKS, strict=True))
                made[box] = COUNTS[box]
        check_format(path, oracle(path), cuts=5)
        desc = describe(path)
        assert len(desc.layout.pieces) <= 81 + 40
        path = tmp_path / f"{written}.h5"


def test_contiguous_data_that_was_never_written(tmp_path):
    """It is the fill value, too; however large it is, it takes one piece and no memory."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("small", (3, 4, 5), "f4", fillvalue=np.nan)
        file.create_dataset("huge", (1 << 20, 1 << 20, 64, 64), "u2", chunks=(1, 1, 64, 64))
        file["huge"][5, 5] = 3
    check_format(path, np.full((3, 4, 5), np.nan, "f4"), dataset="small")
    huge = open_dataset(path)
    assert len(huge.description.layout.pieces) == 5
    np.testing.assert_array_equal(huge[4:7, 5, 0, 0].compute(), [0, 3, 0])


@pytest.mark.parametrize("size", [0, 512, 4096])
def test_data_behind_a_user_block(tmp_path, size):
    """As MATLAB writes it; offsets count from the start of the file."""
    for options in ({}, {"chunks": CHUNKS}, {"chunks": CHUNKS, "compression": 1}):
        path = tmp_path / "a.mat"
        with h5py.File(path, "w", userblock_size=size) as file:
            file.create_dataset("d", data=COUNTS, **options)
        check_format(path, COUNTS, cuts=3)


@pytest.mark.parametrize("kind", ["compact", "bits", "12 of 16 bits"])
def test_what_only_the_library_understands(tmp_path, kind):
    """Data in a header, bit fields, and numbers with fewer bits than their bytes have."""
    path = tmp_path / "a.h5"
    data = np.random.default_rng(3).integers(0, 1 << 12, (6, 8, 10), "u2")
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        kinds = {"bits": h5py.h5t.STD_B16BE, "compact": h5py.h5t.STD_U16LE}
        dtype = kinds.get(kind, h5py.h5t.STD_U16LE).copy()
        if kind == "compact":
            properties.set_layout(h5py.h5d.COMPACT)
        elif kind != "bits":
            dtype.set_precision(12)
        space = h5py.h5s.create_simple(data.shape)
        made = h5py.h5d.create(file.id, b"d", dtype, space, properties)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, data, dtype)
    assert functions(path) == {"read"}
    check_format(path, oracle(path, "d"), cuts=5)


def test_equally_spaced_chunks_are_one_piece(tmp_path):
    """And those that follow each other here and there are few: frames are frames."""
    path = tmp_path / "a.h5"
    frames = np.arange(6 * 9 * 8 * 10, dtype="u2").reshape(6, 9, 8, 10)
    with h5py.File(path, "w") as file:
        made = file.create_dataset("d", frames.shape, "u2", chunks=(1, 1, 8, 10))
        for y in range(6):
            made[y] = frames[y]
        made = file.create_dataset("e", frames.shape, "u2", chunks=(1, 3, 8, 10))
        for y in (3, 5, 4, 0, 2, 1):
            made[y] = frames[y]
    assert len(describe(path, dataset="d").layout.pieces) == 1
    assert describe(path, dataset="d").base_shape == ()
    assert len(describe(path, dataset="e").layout.pieces) == 6
    check_format(path, frames, dataset="d")
    check_format(path, frames, dataset="e")


def test_external_raw_files(tmp_path, monkeypatch):
    """One after the other, cut anywhere between two pixels."""
    path, data = tmp_path / "a.h5", COUNTS.astype("u2")
    raw = data.tobytes()
    parts = [(0, 3338), (3338, 10000), (10000, len(raw))]
    monkeypatch.chdir(tmp_path)
    for k, (first, stop) in enumerate(parts):
        (tmp_path / f"{k}.raw").write_bytes(b"x" * k + raw[first:stop])
    external = [(f"{k}.raw", k, stop - first) for k, (first, stop) in enumerate(parts)]
    with h5py.File(path, "w") as file:
        file.create_dataset("d", SHAPE, "u2", external=external)
    monkeypatch.chdir("/")
    assert functions(path) == {"Decoder"}
    assert len(describe(path).files) == 4
    check_format(path, data)
    (tmp_path / "1.raw").unlink()
    with pytest.raises(TruncatedFileError, match=r"1\.raw"):
        describe(path)


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("options", [{}, {"chunks": (2, 5, 8), "compression": 4}], ids=str)
def test_virtual_datasets(tmp_path, options):
    """Stacked or put side by side, of whole datasets: pieces in the files that hold them."""
    for k in range(4):
        write(tmp_path / f"{k}.h5", COUNTS[k].astype(">u2"), name="d", **options)
    sources = [h5py.VirtualSource(f"{k}.h5", "d", SHAPE[1:], dtype=">u2") for k in range(4)]
    stack = h5py.VirtualLayout((5, *SHAPE[1:]), ">u2")
    row = h5py.VirtualLayout((7, 30, 40), ">u2")
    for k in range(4):
        stack[k] = sources[k]
        y, x = (0, 18)[k // 2], (0, 20)[k % 2]
        row[:, y : y + 12, x : x + 20] = sources[k]
    path = tmp_path / "virtual.h5"
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("stack", stack, fillvalue=9)
        file.create_virtual_dataset("row", row)
    assert "read" not in functions(path, dataset="stack")
    for name in ("stack", "row"):
        check_format(path, oracle(path, name), dataset=name, cuts=6)
    (tmp_path / "2.h5").unlink()
    with pytest.raises(TruncatedFileError, match=r"2\.h5"):
        describe(path, dataset="row")


def test_virtual_datasets_of_parts(tmp_path):
    """Every second frame of another dataset: the library reads it."""
    write(tmp_path / "0.h5", COUNTS[0], name="d")
    layout = h5py.VirtualLayout((14, *SHAPE[2:]), "i8")
    layout[::2] = h5py.VirtualSource("0.h5", "d", SHAPE[1:])
    path = tmp_path / "virtual.h5"
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("d", layout, fillvalue=-1)
    assert functions(path) == {"read"}
    check_format(path, oracle(path, "d"))


def test_a_file_that_has_changed_is_stale(tmp_path):
    """Also where the library reads it."""
    path = write(tmp_path / "a.h5", COUNTS.astype("u2"), chunks=CHUNKS, compression="lzf")
    arr = open_dataset(path)
    write(path, COUNTS.astype("u2") + 1, chunks=CHUNKS, compression="lzf")
    with pytest.raises(StaleFileError):
        arr.compute()
    np.testing.assert_array_equal(open_dataset(path).compute(), COUNTS + 1)


@pytest.mark.parametrize("name", [*PIPELINES, *PLUGINS, "lzf"])
def test_damaged_chunks(tmp_path, name):
    """Whatever their bytes are: pixels, or a typed error."""
    if name in PLUGINS:
        options = plugin(*PLUGINS[name])
    else:
        options = PIPELINES.get(name, {"compression": "lzf"})
    path = write(tmp_path / "a.h5", COUNTS.astype("u2"), chunks=SHAPE, **options)
    with h5py.File(path, "r") as file:
        chunk = file["scan/data"].id.get_chunk_info(0)
    good = path.read_bytes()
    rng = np.random.default_rng(4)
    failed = 0
    for k in range(60):
        data = bytearray(good)
        span = 20 if k % 2 else chunk.size
        at = chunk.byte_offset + int(rng.integers(span))
        data[at : at + 4] = rng.bytes(min(4, chunk.byte_offset + chunk.size - at))
        path.write_bytes(data)
        try:
            open_dataset(path).compute()
        except CorruptFileError:
            failed += 1
    assert failed or name == "only shuffled"


def test_threads_decode_beside_each_other(tmp_path, monkeypatch):
    """No lock is held while a chunk is decoded."""
    module = importlib.import_module("dask_tiled.formats.hdf5.filters")
    barrier = threading.Barrier(2, timeout=20)
    inflate = module.FILTERS[1]

    def both(*args):
        barrier.wait()
        return inflate(*args)

    monkeypatch.setitem(module.FILTERS, 1, both)
    path = write(tmp_path / "a.h5", COUNTS, chunks=(1, *SHAPE[1:]), compression=1)
    arr = open_dataset(path, chunks=(1, -1, -1, -1))[:4]
    with dask.config.set(scheduler="threads", num_workers=2):
        np.testing.assert_array_equal(arr.compute(), COUNTS[:4])


def test_descriptions_are_small_and_pickle(tmp_path):
    """There is no handle in the graph."""
    path = write(tmp_path / "a.h5", COUNTS)
    assert len(pickle.dumps(describe(path))) < 4096
    with h5py.File(path, "r+") as file:
        arr = open_dataset(path)  # somebody else may write
        file.attrs["more"] = 1
    assert b"h5py" not in pickle.dumps(arr)


@pytest.mark.parametrize("options", [{"fletcher32": True}, {"shuffle": True}], ids=list)
def test_chunks_that_are_stored_as_they_are_outlive_the_next_read(tmp_path, options):
    """A checksum, or the order of single bytes, leaves pixels in the memory they were read to."""
    counts = np.random.default_rng(0).integers(0, 256, (18, 64, 64), "u1")
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:  # chunks that no tile fits, so that some are kept
        for k, part in enumerate((counts[:9], counts[9:]), 1):
            name = f"entry/data/data_{k:06d}"
            file.create_dataset(name, data=part, chunks=(4, 32, 64), **options)
    arr = open_dataset(path, io="buffered", chunks=-1)
    request = TilingRequest("frame", depth=3)
    tiles = map_tiles(lambda tile, _: tile.copy(), arr, dtype="u1", tiling=request)
    np.testing.assert_array_equal(tiles.compute(), counts)
