"""Promises of every format, tested with each sample of the table."""

import math
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from formats_table import ONE_OF_EACH, TABLE
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import selections, shown

import dask_tiled
from dask_tiled import (
    DatasetError,
    StaleFileError,
    TiledArray,
    TilingRequest,
    TruncatedFileError,
    UnknownFormatError,
    describe,
    map_tiles,
    open_dataset,
    reduce_tiles,
)
from dask_tiled.formats.describing import detect
from dask_tiled.formats.registry import _MODULES, HEAD_BYTES
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.testing import check_format

pytestmark = pytest.mark.usefixtures("synchronous")

EVERY = pytest.mark.parametrize("name", TABLE)
SERIES = {"beton", "dm", "edf", "frms6", "k2is", "mib", "ome_tiff", "raw", "tiff", "tvips"}
"""Formats that open several files."""


def random_cuts(rng, shape):
    """Return integers and non-empty slices with positive steps."""
    index = []
    for n in shape:
        start = int(rng.integers(n))
        part = slice(start, int(rng.integers(start + 1, n + 1)), int(rng.integers(1, 4)))
        index.append((part, slice(None), start)[rng.integers(3)])
    return tuple(index)


# Descriptions


def not_plain(value, where="metadata"):
    """List all values but strings, numbers and booleans in nested tuples and dictionaries."""
    if type(value) in {str, int, float, bool}:
        return []
    if type(value) is tuple:
        return [x for k, item in enumerate(value) for x in not_plain(item, f"{where}[{k}]")]
    if type(value) is dict and all(type(key) is str for key in value):
        return [x for key, item in value.items() for x in not_plain(item, f"{where}.{key}")]
    return [f"{where} is {value!r}, of {type(value)}"]


@EVERY
def test_descriptions(sample_of, name):
    """Descriptions are right, printable, reproducible, and small enough for every task."""
    sample = sample_of(name)
    desc = describe(**sample.options)
    assert desc.format == name.split()[0]
    assert desc.shape == sample.expected.shape
    assert desc.sig_shape == sample.sig_shape
    assert desc.dtype == sample.expected.dtype
    assert desc.dtype.isnative
    assert desc.missing.size == 0
    assert len(set(desc.dims)) == desc.nav_ndim + sample.sig_dims
    for axis in desc.axes:
        assert type(axis.name) is type(axis.units) is str
        assert type(axis.scale) is type(axis.offset) is float
        assert math.isfinite(axis.scale)
        assert math.isfinite(axis.offset)
        assert axis.scale
    assert next(iter(desc.metadata)) == desc.format
    assert not_plain(desc.metadata) == []
    assert {file.path for file in desc.files} <= set(map(str, sample.members))
    rows = str(desc).splitlines()
    assert [row.split()[0] for row in rows[:5]] == [
        *("format", "files", "navigation", "signal", "dtype")
    ]
    for _, value in desc.rows():
        assert value.isprintable()
    assert f">{desc.format}</td>" in desc._repr_html_()
    assert desc._repr_html_().endswith("</pre></details>")
    again = describe(**sample.options)
    assert again == desc
    assert hash(again) == hash(desc)
    if len(desc.files) == 1:
        arr = open_dataset(**sample.options)
        folder = os.fsencode(os.path.dirname(desc.files[0].path))
        for value in (desc, arr._source):
            assert len(pickle.dumps(value).replace(folder, b"")) < 4096
        assert not arr._source.is_large


# Pixels


@EVERY
def test_reading(sample_of, name):
    """Every format passes the conformance check for third-party formats."""
    sample = sample_of(name)
    check_format(expected=sample.expected, cuts=5, **sample.options)


@EVERY
@settings(max_examples=2)
@example(selection=((3, 4), 0, np.eye(3, 4, dtype=bool)), seed=2)
@example(selection=((3, 5), -1, [14, 0, 3, 3, -2]), seed=3)
@example(selection=((2, 3, 4), 1, None), seed=5)
@example(selection=((1, 2), 0, None), seed=6)
@given(selection=selections(), seed=st.integers(0, 2**32 - 1))
def test_frames(sample_of, name, selection, seed):
    """Scan shape, offset and region select frames in all formats, also before slicing."""
    sample = sample_of(name)
    nav_shape, sync_offset, roi = selection
    rng = np.random.default_rng(seed)
    fill_value = sample.frames.dtype.type((0, 1, 77)[rng.integers(3)]).item()
    expected, missing = shown(sample.frames, nav_shape, sync_offset, roi, fill_value)
    arr = open_dataset(
        **sample.options,
        nav_shape=nav_shape,
        sync_offset=sync_offset,
        roi=roi,
        fill_value=fill_value,
        chunks=tuple(int(rng.integers(-(-n // 2), n + 1)) for n in expected.shape),
        io=rng.choice(["auto", *BACKENDS]).item(),
    )
    assert type(arr) is TiledArray
    if sample.frames[0].nbytes > 1 << 20:  # a part of the sensor, for speed
        arr, expected = arr[..., 600:950, 500:510], expected[..., 600:950, 500:510]
    assert arr.dtype == expected.dtype
    assert arr.description.missing.tolist() == missing
    nav = expected.ndim - sample.sig_dims
    assert arr.description.nav_shape == expected.shape[:nav]
    np.testing.assert_array_equal(arr.compute(), expected)
    index = random_cuts(rng, expected.shape)
    part = arr[index]
    np.testing.assert_array_equal(part.compute(), expected[index])
    absent = np.zeros(expected.shape[:nav], bool)
    absent.flat[missing] = True
    assert part.description.missing.tolist() == np.flatnonzero(absent[index[:nav]]).tolist()
    assert pickle.loads(pickle.dumps(part)).name == part.name


def take(tile, _info):
    return tile.copy()


def add(total, tile, _info):
    return total + tile.sum(dtype=total.dtype)


@EVERY
def test_tiles(sample_of, name):
    """Functions on tiles and reductions equal NumPy's, also where chunks cut the frames."""
    sample = sample_of(name)
    frames, sig = sample.frames, tuple(range(1, 1 + sample.sig_dims))
    whole = np.result_type(frames.dtype, "f8" if frames.dtype.kind in "fc" else "u8")
    near = {"rtol": 1e-6 if frames.dtype.kind in "fc" else 0}
    halves = tuple(-(-n // 2) for n in frames.shape)
    for chunks, by, axis in (None, "pixel", 0), (halves, "tile", None), (halves, "frame", sig):
        arr = open_dataset(**sample.options, nav_shape=len(frames), chunks=chunks)
        request = TilingRequest(by=by, depth=None if by == "pixel" else 2)
        tiles = map_tiles(take, arr, dtype=arr.dtype, tiling=request, sig_shape=None)
        np.testing.assert_array_equal(tiles.compute(), frames)
        np.testing.assert_allclose(arr.sum(axis=axis).compute(), frames.sum(axis=axis), **near)
        if frames.dtype.kind != "c":
            np.testing.assert_array_equal(arr.max(axis=axis).compute(), frames.max(axis=axis))
    total = reduce_tiles(arr, init=whole.type(0), step=add, combine=np.add)
    np.testing.assert_allclose(total.compute(), frames.sum(dtype=whole), **near)


# Names, detection, damage

ODD = " two  words [0-9] (1){a,b} größe 電子 e\u0301\U0001f52c\n2 *?[!a]%s{} #1&~$HOME.mib."
"""A file name of blanks, brackets, patterns, variables, other scripts, and a line break."""
if os.name == "nt":  # forbids some characters, and removes dots at the end
    ODD = ODD.translate(dict.fromkeys(map(ord, "*?\n"))).rstrip(".")


@EVERY
def test_odd_names(tmp_path, name):
    """Folders and files have any name; files listed in a header have no line break."""
    stem = ODD.replace("\n", "") if name.endswith(" list") else ODD
    folder = tmp_path / ODD.strip()
    folder.mkdir()
    sample = TABLE[name](folder, stem)
    assert all(stem in str(member.relative_to(folder)) for member in sample.members)
    arr = open_dataset(**sample.options)
    np.testing.assert_array_equal(arr.compute(), sample.expected)
    assert all(value.isprintable() for _, value in arr.description.rows())


def recognised_as(path):
    """Return the names of the formats that recognise a file by its content."""
    with open(path, "rb") as stream:
        head = stream.read(HEAD_BYTES)
    return [
        format.name
        for format in dask_tiled.formats().values()
        if format.sniff(str(path), head) is None
    ]


@EVERY
def test_detection(sample_of, tmp_path, name):
    """A file is recognised by its own format only."""
    sample = sample_of(name)
    path, own = sample.options["path"], [name.split()[0]]
    paths = path if isinstance(path, list) else [path]
    suffixes = {format.extensions[0] for format in dask_tiled.formats().values()}
    suffixes.discard(".gtg")  # tags of a K2 camera differ from DM files in the suffix only
    for member in sample.members:  # some have MRC files beside them
        assert recognised_as(member) in ([], own) or member.suffix == ".mrc"
    for path in paths:
        if sample.known_by == "content":
            assert recognised_as(path) == own
            for suffix in ["", ".unknown", *(sorted(suffixes) if name in ONE_OF_EACH else ())]:
                other = shutil.copy(path, tmp_path / f"other{suffix}")
                assert recognised_as(other) == own
        elif sample.known_by == "suffix":
            assert detect(str(path)).name == own[0]
            assert recognised_as(path) in ([], own)
            assert recognised_as(shutil.copy(path, tmp_path / "other")) == []
        else:
            assert recognised_as(path) == []
            with pytest.raises(UnknownFormatError):
                detect(shutil.copy(path, tmp_path / "other"))


@pytest.mark.parametrize("name", [name for name in TABLE if name.split()[0] not in SERIES])
def test_formats_of_one_file_refuse_two(sample_of, name):
    path, own = sample_of(name).options["path"], name.split()[0]
    with pytest.raises(DatasetError, match=f"{own} opens one file at a time; found 2 files"):
        describe([path, path], format=own)


@pytest.mark.thorough
def test_real_files_are_recognised_by_one_format_at_most(data):
    files = [path for path in sorted(data.rglob("*")) if path.is_file() and path.stat().st_size]
    found = {str(path.relative_to(data)): recognised_as(path) for path in files}
    assert {path: names for path, names in found.items() if len(names) > 1} == {}


FILL = 7


def check_cut(sample, path, options):
    """Read a truncated file: it raises a DatasetError, or every frame is right or missing.

    Return whether it opens.
    """
    try:
        arr = open_dataset(**sample.options, **options)
        pixels = arr.compute()
    except DatasetError as error:
        assert error.path is not None  # noqa: PT017 - a typed error is right, too
        return False
    pixels = pixels.reshape(-1, *arr.description.sig_shape)
    absent = np.zeros(len(pixels), bool)
    absent[arr.description.missing] = True
    present = np.flatnonzero(~absent)
    assert pixels.dtype == sample.expected.dtype
    assert len(pixels) <= len(sample.frames)
    assert len(pixels) == len(sample.frames) or not (sample.counted or "nav_shape" in options)
    np.testing.assert_array_equal(pixels[present], sample.frames[present], err_msg=str(path))
    assert (pixels[absent] == FILL).all()
    return True


def check_open_size(sample):
    """Infer a size from the frames that are there; the last line may lack some."""
    for width in (1, 5):
        options = {**sample.options, "nav_shape": (-1, width), "missing": "fill"}
        arr = open_dataset(**options, doubts="ignore")
        desc = arr.description
        assert desc.nav_shape[1:] == (width,)
        shown = np.setdiff1d(np.arange(width * desc.nav_shape[0]), desc.missing)
        assert width * (desc.nav_shape[0] - 1) < len(sample.frames)
        frames = arr.compute().reshape(-1, *desc.sig_shape)
        np.testing.assert_array_equal(frames[shown], sample.frames[shown])


@EVERY
def test_truncated_files(tmp_path, name):
    """Files truncated at twelve lengths in all, or three each, have no wrong frames."""
    sample = TABLE[name](tmp_path, "scan")
    nav_shape = sample.expected.shape[: sample.expected.ndim - sample.sig_dims]
    ways = [{}, {"missing": "fill", "fill_value": FILL}]
    ways += [{"nav_shape": nav_shape, "fill_value": FILL}] if nav_shape else []
    cut = sample.cut or sample.members
    for path in cut:
        whole = path.read_bytes()
        for length in np.linspace(len(whole) - 1, 0, max(3, 12 // len(cut)), dtype=int).tolist():
            os.truncate(path, length)
            opens = [check_cut(sample, path, options) for options in ways]
            if opens[-1] and nav_shape:
                check_open_size(sample)
            # Where a nav_shape shows what is left, the announced number of frames does, too.
            assert opens[1] or not (opens[-1] and sample.counted)
        path.write_bytes(whole)
    np.testing.assert_array_equal(open_dataset(**sample.options).compute(), sample.expected)


@pytest.mark.parametrize("name", ["blo", "jeol", "mrc i2", "mrc c8"])
def test_bytes_after_the_last_frame_are_ignored(sample_of, tmp_path, name):
    sample = sample_of(name)
    path = tmp_path / sample.members[0].name
    path.write_bytes(sample.members[0].read_bytes() + b"\x01 what others append")
    np.testing.assert_array_equal(open_dataset(path), sample.expected)


@pytest.mark.parametrize("name", ["blo", "empad scan", "mib u16", "mib hdr", "seq 5"])
def test_files_that_end_inside_a_frame_open_with_a_nav_shape(tmp_path, name):
    sample = TABLE[name](tmp_path, "scan")
    path = max(sample.members, key=lambda one: one.stat().st_size)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(TruncatedFileError):
        describe(**sample.options)
    nav_shape = sample.expected.shape[: sample.expected.ndim - sample.sig_dims]
    arr = open_dataset(**sample.options, nav_shape=nav_shape)
    assert arr.description.missing.tolist() == [len(sample.frames) - 1]
    frames = arr.compute().reshape(sample.frames.shape)
    np.testing.assert_array_equal(frames[:-1], sample.frames[:-1])


@EVERY
def test_appended_bytes(tmp_path, name):
    """More pixels at the end, or an error: none of those before is ever wrong."""
    sample = TABLE[name](tmp_path, "scan")
    files = sample.cut or sample.members
    for path in files:
        whole = path.read_bytes()
        for length in (5000, 300, 1)[: max(1, 3 // len(files))]:
            path.write_bytes(whole + np.random.default_rng(length).bytes(length))
            try:
                arr = open_dataset(**sample.options)
                pixels = arr.compute()
            except DatasetError as error:
                assert error.path is not None  # noqa: PT017 - an error is one of two right outcomes
                continue
            pixels = pixels.reshape(-1, *arr.description.sig_shape)[: len(sample.frames)]
            there = np.setdiff1d(np.arange(len(pixels)), arr.description.missing)
            np.testing.assert_array_equal(pixels[there], sample.frames[there], err_msg=str(path))
        path.write_bytes(whole)


@EVERY
def test_replaced_files(tmp_path, name):
    """Replaced files raise StaleFileError, even with the same size and time."""
    sample = TABLE[name](tmp_path, "scan")
    arr = open_dataset(**sample.options)
    np.testing.assert_array_equal(arr.compute(), sample.expected)
    for file in arr.description.files:
        if Path(file.path) == sample.links:
            continue
        before = os.stat(file.path)
        shutil.copy2(file.path, tmp_path / "other")
        os.replace(tmp_path / "other", file.path)
        after = os.stat(file.path)
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        for stale in (arr, arr.sum()):
            with pytest.raises(StaleFileError) as caught:
                stale.compute()
            assert caught.value.path == file.path
        arr = open_dataset(**sample.options)
        np.testing.assert_array_equal(arr.compute(), sample.expected)


def test_table_holds_every_format():
    assert set(_MODULES) == {name.split()[0] for name in TABLE}
