"""HDF5: pixels equal h5py's for every kind of storage."""

import contextlib
import lzma
import re
import zlib
from pathlib import Path

import dask
import numpy as np
import pytest
from checks import refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    MissingFileError,
    StaleFileError,
    TilingRequest,
    TruncatedFileError,
    describe,
    map_tiles,
    open_dataset,
)
from dask_tiled.apart import calls
from dask_tiled.codecs.pipeline import Pipeline
from dask_tiled.files.file import File, filling
from dask_tiled.formats.hdf5 import boxes, pieces, tree
from dask_tiled.formats.hdf5.filters import codecs_of
from dask_tiled.formats.hdf5.library import filters_of, open_file
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
    """Return the functions that decode the blocks of a file."""
    layout = describe(path, **options).layout
    return {getattr(d, "function", d.__class__.__name__).split(":")[-1] for d in layout.decoders}


@pytest.fixture
def no_library(monkeypatch):
    """Fail if a task reads with h5py."""

    def forbidden(**_):
        raise AssertionError("h5py is used in a task")

    monkeypatch.setattr(boxes, "apart", forbidden)


TYPES = ["u1", "i2", ">u2", "<u4", ">i8", "f2", ">f4", "f8", "c8", ">c16", "?", PAIR]


STORED = [{}, {"chunks": CHUNKS}, {"chunks": CHUNKS, "compression": 4}] * 4


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize(("dtype", "options"), [*zip(TYPES, STORED, strict=True)], ids=str)
def test_all_types_of_numbers(tmp_path, dtype, options):
    """Contiguous, chunked and deflated numbers are read without h5py in the task."""
    data = np.zeros(SHAPE, dtype)
    for part in [data] if data.dtype.names is None else [data["a"], data["b"]]:
        part[...] = COUNTS
    path = write(tmp_path / "a.h5", data, **options)
    check_format(path, oracle(path), cuts=1)


PIPELINES = {
    "gzip": {"compression": 1},
    "shuffled": {"compression": 4, "shuffle": True},
    "only shuffled": {"shuffle": True},
    "summed": {"compression": 4, "shuffle": True, "fletcher32": True},
    "only summed": {"fletcher32": True},
    "lzf": {"compression": "lzf", "shuffle": True, "fletcher32": True},
    "szip": {"compression": "szip"},
}
PLUGINS = {
    "zstd": ("Zstd", {}),
    "blosc": ("Blosc", {"cname": "lz4", "shuffle": 1}),
    "blosc bits": ("Blosc", {"cname": "zstd", "shuffle": 2}),
    "blosc zlib": ("Blosc", {"cname": "zlib", "shuffle": 0}),
    "lz4": ("LZ4", {}),
    "blosc snappy": ("Blosc", {"cname": "snappy", "shuffle": 1}),
    "bzip2": ("BZip2", {}),
    "lz4 in blocks": ("LZ4", {"nbytes": 300}),
    "bits": ("Bitshuffle", {"cname": "none"}),
    "bits lz4": ("Bitshuffle", {}),
    "bits lz4 in blocks": ("Bitshuffle", {"nelems": 64}),
    "bits zstd": ("Bitshuffle", {"cname": "zstd"}),
}


def pipeline(name):
    """Return the options with which h5py applies filters."""
    if name in PIPELINES:
        return PIPELINES[name]
    module = pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed")
    filter, options = PLUGINS[name]
    return dict(getattr(module, filter)(**options))


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("name", [*PIPELINES, *PLUGINS])
def test_known_filters_need_no_h5py_in_the_task(tmp_path, name):
    """Chunks that do not get smaller (in the last frames) are decoded as well."""
    data = COUNTS.astype("u2")
    data[2:] = np.random.default_rng(1).integers(0, 1 << 16, data[2:].shape, "u2")
    path = write(tmp_path / "a.h5", data, chunks=CHUNKS, **pipeline(name))
    assert functions(path) <= {"decode", "Decoder"}  # h5py skips filters that gain nothing
    check_format(path, data, cuts=1)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"scaleoffset": 0}, {"scaleoffset": 0, "compression": 4}])
def test_other_filters_are_left_to_h5py(tmp_path, options):
    data = COUNTS.astype("u2")
    path = write(tmp_path / "a.h5", data, chunks=CHUNKS, **options)
    assert functions(path) == {"read"}
    check_format(path, data, cuts=2)


def stored_chunk(folder, data, name):
    """Write a chunk with h5py and its plugins; return its bytes and the filters applied."""
    with h5py.File(folder / "chunk.h5", "w") as file:
        made = file.create_dataset("d", data=data, chunks=data.shape, **pipeline(name))
        skipped, content = made.id.read_direct_chunk((0,))
        found = filters_of(made)
    some = tuple(f for k, f in enumerate(found) if not skipped >> k & 1)
    return np.frombuffer(content, "u1"), some


KNOWN_ERRORS = (
    *(ValueError, RuntimeError, TypeError, LookupError, ArithmeticError, OSError, EOFError),
    *(zlib.error, lzma.LZMAError),
)


def undo(content, applied, size):
    codecs = [{"name": "bytes"}, *codecs_of(applied)]
    return Pipeline(codecs, (size,), np.dtype("u1")).decode(content)


@pytest.mark.parametrize("name", [*PIPELINES, *PLUGINS])
@settings(max_examples=12)
@given(st.data())
def test_filters_invert_the_plugins(tmp_path_factory, name, data):
    """Chunks may end inside of a block of the codec."""
    dtype = data.draw(st.sampled_from(["u1", ">u2", "u4", "f8"] + ["S3", "c16"] * (name != "szip")))
    some = st.integers(32, 99) | st.sampled_from([32, 127, 4096, 8191, 8193, 20001])
    size = data.draw(some if name == "szip" else st.integers(1, 31) | some)
    noise = data.draw(st.sampled_from([2, 20, 256]))
    content = np.random.default_rng(size).integers(0, noise, size * np.dtype(dtype).itemsize, "u1")
    chunk, applied = stored_chunk(tmp_path_factory.getbasetemp(), content.view(dtype), name)
    np.testing.assert_array_equal(undo(chunk, applied, len(content)), content)


@pytest.fixture(params=[*PIPELINES, *PLUGINS], scope="module")
def intact(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunks")
    return stored_chunk(folder, COUNTS.ravel().astype("u2"), request.param)


@settings(max_examples=20)
@given(data=st.data())
def test_damaged_chunks_decode_to_their_size_or_raise(intact, data):
    """Damaged bytes and parameters never end the process."""
    chunk, applied = intact
    size = COUNTS.size * 2
    place = st.integers(0, min(24, len(chunk)) - 1) | st.integers(0, len(chunk) - 1)
    chunk = chunk.copy()
    for at in data.draw(st.lists(place, max_size=4)):
        chunk[at] = data.draw(st.integers(0, 255))
    chunk = chunk[: data.draw(st.just(len(chunk)) | place)]
    if data.draw(st.booleans()):
        wrong = st.integers(0, 64) | st.sampled_from([2**31 - 1, 2**31, 2**32 - 1])
        applied = [
            (n, tuple(data.draw(st.just(v) | wrong) for v in values)) for n, values in applied
        ]
    with contextlib.suppress(*KNOWN_ERRORS):
        assert len(undo(chunk, applied, size)) == size


def lengthened(at):
    return lambda chunk: np.concatenate([chunk[:at], np.full(4, 0x7F, "u1"), chunk[at + 4 :]])


WRONG_LENGTHS = [("blosc", lengthened(at), "compressed and") for at in (4, 8, 12)]
WRONG_LENGTHS += [
    ("bits", lambda chunk: chunk[:-16], "7990 bytes"),
    ("bits lz4", lambda chunk: chunk[:-5], "a block at bytes"),
]


@pytest.mark.parametrize(("name", "change", "match"), WRONG_LENGTHS, ids=range(5))
def test_lengths_in_a_chunk(tmp_path, name, change, match):
    """Lengths that are wrong or too short raise, as codecs trust them or leave pixels unset."""
    chunk, applied = stored_chunk(tmp_path, np.arange(4003, dtype="u2"), name)
    with pytest.raises(ValueError, match=match):
        undo(change(chunk), applied, 8006)


def test_damaged_bitshuffled_chunk_raises(tmp_path):
    """The lengths are right, but the first block begins with a copy from a distance of 0."""
    chunk, applied = stored_chunk(tmp_path, np.arange(4003, dtype="u2"), "bits lz4")
    chunk = chunk.copy()
    chunk[16:19] = 0
    with pytest.raises(ValueError, match="a block is damaged"):
        undo(chunk, applied, 8006)


def test_bitshuffled_blocks_as_long_as_their_pixels(tmp_path):
    """Such blocks are compressed, unlike those of the LZ4 filter."""
    for zeros in range(600):
        data = np.random.default_rng(0).integers(0, 256, 20000, "u1")
        data[8192 - zeros : 8192] = 0
        chunk, applied = stored_chunk(tmp_path, data, "bits lz4")
        if int.from_bytes(chunk[12:16].tobytes(), "big") == 8192:
            break
    else:
        pytest.fail("there is no such block")
    np.testing.assert_array_equal(undo(chunk, applied, len(data)), data)


def test_checksums_of_old_files(tmp_path):
    """Checksums with swapped bytes in each half are valid, as for h5py."""
    data = np.arange(100, dtype="u2")
    chunk, applied = stored_chunk(tmp_path, data, "only summed")
    swapped = np.concatenate([chunk[:-4], chunk[[-3, -4, -1, -2]]])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("d", (100,), "u2", chunks=(100,), fletcher32=True)
        made.id.write_direct_chunk((0,), swapped.tobytes())
        np.testing.assert_array_equal(made, data)
    np.testing.assert_array_equal(undo(swapped, applied, 200).view("u2"), data)


def test_task_opens_the_file_once(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5", COUNTS.astype("u2"), chunks=CHUNKS, scaleoffset=0)
    used = []

    def counted(**options):
        used.append(options)
        return calls.apart(**options)

    arr = open_dataset(path, chunks=(4, 6, 12, 20))
    monkeypatch.setattr(boxes, "apart", counted)
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(arr.compute(), COUNTS)
        assert used == [{"renewed": True}] * arr.npartitions


@pytest.mark.usefixtures("no_library")
def test_chunks_that_skip_filters(tmp_path):
    """A chunk names the filters that were skipped when it was written, one or all."""
    path = tmp_path / "a.h5"
    data = COUNTS[:4, :6, :10, :16].astype("u2")
    with h5py.File(path, "w") as file:
        made = file.create_dataset("d", data=data, chunks=CHUNKS, compression=4, shuffle=True)
        made.id.write_direct_chunk((0, 0, 0, 0), data[:2, :3, :5, :8].tobytes(), 0b11)
        shuffled = data[2:4, :3, :5, :8].copy().view("u1").reshape(-1, 2).T.tobytes()
        made.id.write_direct_chunk((2, 0, 0, 0), shuffled, 0b10)
    assert functions(path) == {"decode", "Decoder"}
    check_format(path, data)


@pytest.mark.parametrize(
    ("options", "fill", "written"),
    [({"scaleoffset": 4}, 7, 0.3), ({"compression": 4}, 7, 0.0), ({}, None, 0.9)],
    ids=str,
)
def test_absent_chunks_read_as_the_fill_value(tmp_path, options, fill, written):
    path = tmp_path / "a.h5"
    rng = np.random.default_rng(2)
    with h5py.File(path, "w") as file:
        made = file.create_dataset(
            "scan/data", SHAPE, ">i4", chunks=CHUNKS, fillvalue=fill, **options
        )
        for corner in np.argwhere(rng.random((3, 3, 3, 3)) < written) * CHUNKS:
            box = tuple(slice(a, a + n) for a, n in zip(corner, CHUNKS, strict=True))
            made[box] = COUNTS[box]
    check_format(path, oracle(path), cuts=2)
    assert len(describe(path).layout.pieces) <= 81 + 40


def test_unwritten_data_take_few_pieces(tmp_path):
    """Unwritten data read as the fill value; sizes that no array can have raise."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("small", (3, 4, 5), "f4", fillvalue=np.nan)
        file.create_dataset("huge", (1 << 10, 1 << 20, 64, 64), "u2", chunks=(1, 1, 64, 64))
        file["huge"][5, 5] = 3
        file.create_dataset("beyond", (1 << 60, 4, 4), "u1", chunks=(1, 4, 4))
    check_format(path, np.full((3, 4, 5), np.nan, "f4"), dataset="small")
    huge = open_dataset(path, dataset="huge")
    assert len(huge.description.layout.pieces) == 5
    np.testing.assert_array_equal(huge[4:7, 5, 0, 0].compute(), [0, 3, 0])
    refuses(path, "the array is too large, at /beyond", CorruptFileError, dataset="beyond")


def test_data_behind_a_user_block(tmp_path):
    """Offsets count from the start of the file, also behind a user block as MATLAB's."""
    path = tmp_path / "a.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("d", data=COUNTS)
    check_format(path, COUNTS, cuts=1)


@pytest.mark.usefixtures("hdf5_here")
def test_old_libraries_raise_for_a_user_block(tmp_path, monkeypatch):
    """HDF5 before 1.14.4 returns wrong offsets of chunks behind a user block."""
    for size in (0, 512):
        with h5py.File(tmp_path / f"{size}.mat", "w", userblock_size=size) as file:
            file.create_dataset("d", data=COUNTS, chunks=CHUNKS)
    monkeypatch.setattr(h5py.version, "hdf5_version_tuple", (1, 14, 3))
    assert describe(tmp_path / "0.mat").shape == COUNTS.shape
    refuses(tmp_path / "512.mat", r"user block; expected version 1\.14\.4")


def test_compact_data(tmp_path):
    """The library reads data that are stored in a header."""
    path, data = tmp_path / "a.h5", COUNTS[0, 0].astype("u2")
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(data.shape)
        made = h5py.h5d.create(file.id, b"d", h5py.h5t.STD_U16LE, space, properties)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, data)
    assert functions(path) == {"read"}
    check_format(path, data, cuts=1)


@st.composite
def chunked(draw):
    """Draw the version of a file, a chunked dataset, the boxes to write, a number of attributes."""
    axes = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4))
    shape = tuple(max(axis) for axis in axes)
    most = tuple(draw(st.sampled_from([None, n, n + 5])) for n in shape)
    box = st.tuples(*(st.slices(n).filter(lambda some: (some.step or 1) > 0) for n in shape))
    options = {
        "shape": shape,
        "chunks": tuple(min(axis) for axis in axes),
        "maxshape": most,
        "fillvalue": draw(st.sampled_from([None, 7])),
        **draw(
            st.sampled_from([{}, {"compression": 1}, {"compression": "lzf"}, {"shuffle": True}])
        ),
    }
    versions = ["latest", "earliest", ("v108", "v108"), ("v110", "v110")]
    how = {
        "libver": draw(st.sampled_from(versions)),
        "userblock_size": draw(st.sampled_from([0, 512])),
    }
    return how, options, draw(st.lists(box, max_size=3)), draw(st.sampled_from([0, 3, 40]))


@pytest.mark.thorough
@given(chunked())
def test_chunks_are_found_in_every_index(tmp_path_factory, drawn):
    """Attributes move the messages of the header, wherever they are."""
    how, options, written, attributes = drawn
    path = tmp_path_factory.getbasetemp() / "chunked.h5"
    with h5py.File(path, "w", **how) as file:
        made = file.create_dataset("d", dtype="<i4", **options)
        made.attrs.update({f"attribute {k}": np.full(20, k) for k in range(attributes)})
        for k, some in enumerate(written, 1):
            made[some] = k
    np.testing.assert_array_equal(open_dataset(path).compute(), oracle(path, "d"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "written"),
    [({}, slice(1, 7, 3)), ({"compression": 1}, slice(None)), ({"scaleoffset": 0}, slice(1))],
    ids=str,
)
def test_chunks_along_an_unlimited_inner_axis(tmp_path, options, written):
    """HDF5 returns wrong places for such chunks, so the library reads them."""
    path = tmp_path / "a.h5"
    most = (*SHAPE[:1], None, *SHAPE[2:])
    with h5py.File(path, "w", libver="latest") as file:
        made = file.create_dataset("d", SHAPE, "i4", chunks=CHUNKS, maxshape=most, **options)
        made[:, written] = COUNTS[:, written]
    assert functions(path) == {"read"}
    check_format(path, oracle(path, "d"), cuts=1)


@pytest.mark.thorough
@pytest.mark.usefixtures("hdf5_here")
def test_many_chunks_along_an_unlimited_inner_axis(tmp_path, monkeypatch):
    """Several chunks are read at a time; arrays too large for an index raise."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        made = file.create_dataset("d", (60, 50), "u1", chunks=(1, 1), maxshape=(60, None))
        made[5, 7] = 9
        huge = file.create_dataset(
            "huge", (1 << 20, 1 << 27), "u1", chunks=(1, 1 << 15), maxshape=(1 << 20, None)
        )
        huge[5, 7] = 9
    refuses(path, "too large for an extensible array", dataset="huge")
    for block, most, expected in [(100, 1000, 30), (1, 1000, 1000), (1, 10, 10)]:
        monkeypatch.setattr(pieces, "READ_BYTES", block)
        monkeypatch.setattr(pieces, "MOST_BLOCKS", most)
        arr = open_dataset(path, dataset="d")
        assert len(arr.description.layout.pieces) == expected
        np.testing.assert_array_equal(np.argwhere(arr.compute()), [[5, 7]])


def test_unfiltered_chunks_at_the_edges(tmp_path):
    """h5py cannot call H5Pset_chunk_opts, so the test sets the flag in the file."""
    imagecodecs = pytest.importorskip("imagecodecs", reason="imagecodecs is not installed")
    path, data = tmp_path / "a.h5", np.arange(12 * 6, dtype="<u2").reshape(12, 6)
    with h5py.File(path, "w", libver="latest") as file:
        options = {"chunks": (5, 5), "shuffle": True, "compression": 4}
        made = file.create_dataset("d", data=data, **options)
        for y, x in [(0, 5), (5, 5), (10, 0), (10, 5)]:
            chunk = np.zeros((5, 5), "<u2")
            part = data[y : y + 5, x : x + 5]
            chunk[: part.shape[0], : part.shape[1]] = part
            made.id.write_direct_chunk((y, x), chunk.tobytes())
        at = h5py.h5o.get_info(made.id).addr
    content = bytearray(path.read_bytes())
    message = content.index(b"\x02\0\x03\x01\x05\x05\x02", at)  # class, flags, axes, width
    content[message + 1] = 1
    assert content[at : at + 6] == b"OHDR\x02\x01"  # the length in two bytes, then the messages
    stop = at + 8 + int.from_bytes(content[at + 6 : at + 8], "little")
    checksum = imagecodecs.h5checksum_lookup3(bytes(content[at:stop]))
    content[stop : stop + 4] = checksum.to_bytes(4, "little")
    path.write_bytes(content)
    np.testing.assert_array_equal(oracle(path, "d"), data)
    check_format(path, data, cuts=4)


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize(
    ("order", "nbytes", "filtered"),
    [("LE", 1, True), ("BE", 1, False), ("BE", 2, True), ("LE", 4, False), ("BE", 8, False)],
)
def test_bit_fields_are_unsigned_integers(tmp_path, order, nbytes, filtered):
    """HDF5 itself does not convert one big-endian byte."""
    path, stored = tmp_path / "a.h5", np.dtype({"LE": "<", "BE": ">"}[order] + f"u{nbytes}")
    data = np.random.default_rng(3).integers(0, 256, (6, 8 * nbytes), "u1")
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((6, 8))
        if filtered:
            properties.set_deflate(4)
        dtype, space = (
            getattr(h5py.h5t, f"STD_B{8 * nbytes}{order}"),
            h5py.h5s.create_simple((6, 8)),
        )
        made = h5py.h5d.create(file.id, b"d", dtype, space, properties)
        content = zlib.compress(data.tobytes()) if filtered else data.tobytes()
        made.write_direct_chunk((0, 0), content)
    check_format(path, data.view(stored).astype(f"u{nbytes}"), cuts=3)


def test_bit_fields_with_padding_are_unsupported(tmp_path):
    """The error is no CorruptFileError; h5py does not read them either."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        content = h5py.h5t.STD_B16LE.encode()
        dtype = h5py.h5t.decode(content[:-2] + b"\x0c\0")  # 12 bits
        made = h5py.h5d.create(file.id, b"d", dtype, h5py.h5s.create_simple((3, 4)))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ones((3, 4), "u2"), dtype)
    with pytest.raises(DatasetError, match="cannot convert the type") as caught:
        open_dataset(path).compute()
    assert not isinstance(caught.value, CorruptFileError)


ARRAYS = {
    "whole": {},
    "chunks": {"chunks": (2, 3)},
    "deflated": {"chunks": (2, 3), "compression": 4},
    "extensible": {"chunks": (2, 3), "maxshape": (5, None)},
    "external": {"external": [("a.raw", 0, 5 * 7 * 4 * 6 * 2)]},
}


@pytest.mark.parametrize("how", ARRAYS)
def test_elements_that_are_arrays_have_more_axes(tmp_path, monkeypatch, how):
    """The axes of the elements are the last ones."""
    path, data = tmp_path / "a.h5", COUNTS[:, :, :4, :6].astype("<i2")
    monkeypatch.chdir(tmp_path)
    with h5py.File(path, "w", libver="latest" if how == "extensible" else None) as file:
        made = file.create_dataset("d", (5, 7), np.dtype(("<i2", (4, 6))), **ARRAYS[how])
        written = 5 if how == "external" else 4
        made[:written] = data[:written]
    data[written:] = 0
    check_format(path, data, cuts=1)


def test_scalar_dataset_of_an_array(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("d", (), np.dtype((">f4", (4, 6))))
        made[()] = COUNTS[0, 0, :4, :6]
    check_format(path, COUNTS[0, 0, :4, :6].astype("f4"))


@pytest.mark.thorough
def test_unlimited_virtual_datasets(tmp_path):
    """Datasets are as long as their sources, also if sources take turns."""
    unlimited, path = h5py.h5s.UNLIMITED, tmp_path / "a.h5"
    for k in range(2):
        with h5py.File(tmp_path / f"{k}.h5", "w", libver="latest") as file:
            most = (None, *SHAPE[2:])
            file.create_dataset("d", data=COUNTS[k], chunks=(1, *SHAPE[2:]), maxshape=most)
    with h5py.File(path, "w", libver="latest") as file:
        for name, count in [("one", 1), ("turns", 2)]:
            layout = h5py.VirtualLayout((7 * count, *SHAPE[2:]), "i8", maxshape=most)
            for k in range(count):
                source = h5py.VirtualSource(f"{k}.h5", "d", SHAPE[1:], maxshape=most)
                layout[k:unlimited:count] = source[0:unlimited]
            file.create_virtual_dataset(name, layout)
    check_format(path, COUNTS[0], dataset="one", cuts=1)
    turns = COUNTS[:2].swapaxes(0, 1).reshape(14, *SHAPE[2:])
    check_format(path, turns, dataset="turns", cuts=1)
    with h5py.File(tmp_path / "0.h5", "r+") as file:
        file["d"].resize(9, 0)
        file["d"][7:] = 5
    np.testing.assert_array_equal(
        open_dataset(path, dataset="one")[6:, 0, 0], [COUNTS[0, 6, 0, 0], 5, 5]
    )
    (tmp_path / "1.h5").unlink()
    refuses(path, r"1\.h5", TruncatedFileError, dataset="turns")


def test_equally_spaced_chunks_are_one_piece(tmp_path):
    """Frames are one piece; parts of frames in another order are a piece for each row."""
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
    check_format(path, frames, dataset="d", cuts=5)
    check_format(path, frames, dataset="e", cuts=5)


def test_external_raw_files(tmp_path, monkeypatch):
    """Files are read one after the other, cut between any two pixels."""
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
    refuses(path, r"1\.raw", TruncatedFileError)


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("options", [{}, {"chunks": (2, 5, 8), "compression": 4}], ids=str)
def test_virtual_datasets(tmp_path, options):
    """Sources, stacked or side by side, are pieces in their own files."""
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
        alone = h5py.VirtualLayout(SHAPE[1:], ">u2")
        alone[...] = sources[1]
        file.create_virtual_dataset("alone", alone)
    assert "read" not in functions(path, dataset="stack")
    for name in ("stack", "row", "alone"):
        check_format(path, oracle(path, name), dataset=name, cuts=2)
    (tmp_path / "2.h5").unlink()
    refuses(path, r"2\.h5", TruncatedFileError, dataset="row")


NESTED = COUNTS.astype("u2").reshape(-1, *SHAPE[2:])[:24] + 1
ORDERS = {
    "one after the other": lambda k, n: slice(n * k, n * k + n),
    "in turn": lambda k, _: slice(k, None, 2),
}


def write_nested(folder, outer, inner):
    """Write 24 frames in 4 files, two virtual datasets of 12 and one of these; return its path."""
    outermost = h5py.VirtualLayout(NESTED.shape, "u2")
    for k in range(2):
        part = NESTED[ORDERS[outer](k, 12)]
        layout = h5py.VirtualLayout(part.shape, "u2")
        for j in range(2):
            name, own = f"{k}{j}.h5", ORDERS[inner](j, 6)
            write(folder / name, part[own], name="d")
            layout[own] = h5py.VirtualSource(name, "d", part[own].shape, "u2")
        with h5py.File(folder / f"{k}.h5", "w") as file:
            file.create_virtual_dataset("d", layout, fillvalue=3)
        outermost[ORDERS[outer](k, 12)] = h5py.VirtualSource(f"{k}.h5", "d", part.shape, "u2")
    with h5py.File(folder / "all.h5", "w") as file:
        file.create_virtual_dataset("d", outermost, fillvalue=3)
    return folder / "all.h5"


@pytest.mark.parametrize(
    ("outer", "inner", "removed"),
    [
        ("one after the other", "in turn", ("00.h5",)),
        ("in turn", "one after the other", ("11.h5", "0.h5")),
        ("one after the other", "one after the other", ("00.h5", "01.h5")),
        ("in turn", "in turn", ("01.h5", "10.h5")),
    ],
)
def test_lost_sources_of_nested_virtual_datasets(tmp_path, outer, inner, removed):
    """Frames are missing that lie in lost files, or in sources of lost files."""
    path, lost = write_nested(tmp_path, outer, inner), np.zeros(24, bool)
    np.testing.assert_array_equal(open_dataset(path, doubts="raise"), NESTED)
    for name in removed:
        (tmp_path / name).unlink()
        frames = np.arange(24)[ORDERS[outer](int(name[0]), 12)]
        lost[frames if len(name) == 4 else frames[ORDERS[inner](int(name[1]), 6)]] = True
    for missing in (None, "raise"):
        with pytest.raises(MissingFileError, match="|".join(map(re.escape, removed))):
            open_dataset(path, missing=missing)
    arr = open_dataset(path, missing="fill", fill_value=7)
    assert arr.description.missing.tolist() == np.flatnonzero(lost).tolist()
    assert set(arr.description.metadata["hdf5"]["missing_files"]) == {*removed}
    np.testing.assert_array_equal(arr, np.where(lost[:, None, None], 7, NESTED))


@pytest.mark.parametrize("outer", ORDERS)
@pytest.mark.parametrize("removed", [("0.h5", "1.h5"), ("00.h5", "01.h5", "1.h5")], ids="-".join)
def test_virtual_datasets_without_any_source_raise(tmp_path, outer, removed):
    path = write_nested(tmp_path, outer, "in turn")
    for name in removed:
        (tmp_path / name).unlink()
    with pytest.raises(MissingFileError, match="all files that hold the dataset are") as caught:
        describe(path, missing="fill")
    assert set(caught.value.expected.split(", ")) == {*removed}


def test_sources_are_visited_once(tmp_path, monkeypatch):
    """Those of virtual datasets that the library reads, to check them and to find lost ones."""
    path, opened = write_nested(tmp_path, "in turn", "in turn"), []
    (tmp_path / "01.h5").unlink()
    monkeypatch.setattr(
        tree, "open_file", lambda file: opened.append(Path(file.path).name) or open_file(file)
    )
    with filling(True), tree.Tree(File.at(path)) as opened_tree:
        dataset = opened_tree.root["d"]
        lost = opened_tree.check_sources(dataset)
    assert sorted(opened) == sorted(["all.h5", "0.h5", "1.h5", "00.h5", "10.h5", "11.h5"])
    assert {name for name, _ in lost} == {"01.h5"}
    frames = [start[0] + k for _, (start, size) in lost for k in range(size[0])]
    assert sorted(frames) == [2, 6, 10, 14, 18, 22]


def test_parts_of_nested_virtual_datasets(tmp_path):
    """A selection of the source, and boxes that are no frames, lose just their own pixels."""
    write(tmp_path / "a.h5", NESTED[:6], name="d")
    part = h5py.VirtualLayout((12, *SHAPE[2:]), "u2")
    part[:6] = h5py.VirtualSource("a.h5", "d", NESTED[:6].shape, "u2")
    part[6:, :, :10] = h5py.VirtualSource("b.h5", "d", (6, 12, 10), "u2")
    part[6:, :, 10:] = h5py.VirtualSource("a.h5", "d", NESTED[:6].shape, "u2")[:, :, 10:]
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file.create_virtual_dataset("d", part, fillvalue=3)
    whole = h5py.VirtualLayout((8, *SHAPE[2:]), "u2")
    whole[::2] = h5py.VirtualSource("part.h5", "d", part.shape, "u2")[4:8]
    whole[1::2] = h5py.VirtualSource("a.h5", "d", NESTED[:6].shape, "u2")[2:]
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("d", whole, fillvalue=3)
    arr = open_dataset(tmp_path / "all.h5", missing="fill")
    expected = np.empty(whole.shape, "u2")
    expected[[0, 2]], expected[1::2] = NESTED[4:6], NESTED[2:6]
    expected[[4, 6], :, :10], expected[[4, 6], :, 10:] = 3, NESTED[:2, :, 10:]
    np.testing.assert_array_equal(arr, expected)
    assert arr.description.metadata["hdf5"]["missing_files"] == ("b.h5",)


def test_changed_file_is_stale(tmp_path):
    """The task raises, also where the library reads."""
    path = write(tmp_path / "a.h5", COUNTS.astype("u2"), chunks=CHUNKS, scaleoffset=0)
    arr = open_dataset(path)
    write(path, COUNTS.astype("u2") + 1, chunks=CHUNKS, scaleoffset=0)
    with pytest.raises(StaleFileError):
        arr.compute()
    np.testing.assert_array_equal(open_dataset(path).compute(), COUNTS + 1)


def plugin_tasks(folder):
    """Write datasets that plugins read: 12 of 16 bits, parts of another dataset, another filter."""
    hdf5plugin = pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed")
    counts, path = COUNTS.astype("u2"), folder / "a.h5"
    bits, properties = h5py.h5t.STD_U16LE.copy(), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    bits.set_precision(12)
    properties.set_chunk(SHAPE)
    properties.set_filter(32008, 0, (0, 2))
    with h5py.File(path, "w") as file:
        sample = file.create_dataset("counts", data=counts, chunks=SHAPE, **pipeline("bits lz4"))
        space = h5py.h5s.create_simple(SHAPE)
        made = h5py.h5d.create(file.id, b"bits", bits, space, properties)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, counts, bits)
        layout = h5py.VirtualLayout((10, *SHAPE[1:]), "u2")
        layout[::2] = h5py.VirtualSource(sample)
        file.create_virtual_dataset("parts", layout, fillvalue=9)
        file.create_dataset("blosc2", data=counts, chunks=CHUNKS, **hdf5plugin.Blosc2())
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["bits", "parts", "blosc2"])
def test_plugins_read_in_another_process(tmp_path, started, name):
    """One process reads all, after it has opened the file."""
    path = plugin_tasks(tmp_path)
    arr = open_dataset(path, dataset=name)
    assert functions(path, dataset=name) == {"read"}
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(arr.compute(), oracle(path, name))
    np.testing.assert_array_equal(arr[1:3, 2, 3:7].compute(), oracle(path, name)[1:3, 2, 3:7])
    assert len(started) == 1
    assert started[0].process.poll() is None


@pytest.mark.parametrize(("name", "where"), [("bits", 0), ("parts", 12)])
def test_crashes_of_plugins_raise(tmp_path, name, where):
    """Lengths in damaged chunks crash plugins, but in another process."""
    path = plugin_tasks(tmp_path)
    data = bytearray(path.read_bytes())
    with h5py.File(path, "r") as file:
        for dataset in ("counts", "bits"):
            at = file[dataset].id.get_chunk_info(0).byte_offset + where
            data[at] = 0x7F
    path.write_bytes(data)
    arr = open_dataset(path, dataset=name)
    with pytest.raises(CorruptFileError, match="cannot be decoded") as caught:
        arr.compute()
    assert caught.value.path == str(path)


def test_plugins_read_values_of_axes_in_another_process(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["d"] = COUNTS
        file.attrs["emd_group_type"] = 1
        steps = np.arange(99.0) / 2 + 3
        made = file.create_dataset("dim0", data=steps, chunks=(99,), **pipeline("bits lz4"))
        at = made.id.get_chunk_info(0).byte_offset
    axis = describe(path, dataset="d").axes[0]
    assert (axis.scale, axis.offset) == (0.5, 3.0)
    data = bytearray(path.read_bytes())
    data[at + 12] = 0x7F
    refuses(path, kind=CorruptFileError, dataset="d", content=data)


@pytest.mark.parametrize("name", sorted({*PIPELINES, *PLUGINS} - {"only shuffled", "bits"}))
def test_damaged_chunks_raise(tmp_path, name):
    """The error names the place of the chunk."""
    path = write(tmp_path / "a.h5", COUNTS.astype("u2"), chunks=SHAPE, **pipeline(name))
    with h5py.File(path, "r") as file:
        chunk = file["scan/data"].id.get_chunk_info(0)
    with path.open("r+b") as stream:
        stream.seek(chunk.byte_offset)
        stream.write(b"\xff" * min(chunk.size, 99))
    with pytest.raises(CorruptFileError) as caught:
        open_dataset(path).compute()
    assert (caught.value.path, caught.value.where) == (str(path), f"byte {chunk.byte_offset}")


@pytest.mark.parametrize("options", [{"fletcher32": True}, {"shuffle": True}], ids=list)
def test_chunks_stored_as_pixels_outlive_the_next_read(tmp_path, options):
    """Pixels behind a checksum, or shuffled single bytes, stay in the buffer of the read."""
    counts = np.random.default_rng(0).integers(0, 256, (18, 64, 64), "u1")
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:  # tiles cut the chunks, some of which are kept
        for k, part in enumerate((counts[:9], counts[9:]), 1):
            name = f"entry/data/data_{k:06d}"
            file.create_dataset(name, data=part, chunks=(4, 32, 64), **options)
    arr = open_dataset(path, io="buffered", chunks=-1)
    request = TilingRequest("frame", depth=3)
    tiles = map_tiles(lambda tile, _: tile.copy(), arr, dtype="u1", tiling=request)
    np.testing.assert_array_equal(tiles.compute(), counts)
