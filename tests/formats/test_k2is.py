"""Gatan K2 in-situ sets; without real ones, written sets are compared with LiberTEM."""

import importlib

import dask
import numpy as np
import pytest
from libertem_reader import SCRIPT, libertem_reads, start, stop

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    TilingRequest,
    TruncatedFileError,
    describe,
    formats,
    negotiate,
    open_dataset,
)
from dask_tiled.testing import counting_frames, write_k2is

blocks = importlib.import_module("dask_tiled.formats.k2is.sectors")
pytestmark = pytest.mark.usefixtures("synchronous")
BLOCK, SIG = 0x5758, (1860, 2048)
# Frames 0 and 1 are not complete in the third sector, frame 7 not in the last one.
LATE, EARLY = (0, 3, 40, 5, 0, 1, 2, 31), (0, 0, 0, 0, 0, 0, 0, 5)
FRAMES = counting_frames((8, *SIG), "u2", bits=12)
# LiberTEM looks for the shutter in steps of 400 frames, and fails beyond the end of the file.
SMALL_STEPS = """
from libertem.io.dataset.k2is import Sector
search = Sector.first_block_with_search
search.__defaults__ = (search.__defaults__[0], 32)
"""


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """Write a scan that begins at frame 3, the one before the first with the flag."""
    stem = tmp_path_factory.mktemp("scan 1 [k2]") / "Capture 5_"
    return write_k2is(stem, FRAMES, scan_shape=(2, 2), shutter_from=4, late=LATE, early=EARLY)


def small(folder, n=2, **options):
    return write_k2is(folder / "set7_", FRAMES[:n], **options)


def numbers(*args, **options):
    """Return the numbers of the frames that are read, None for missing ones."""
    frames = open_dataset(*args, **options)[..., ::310, ::128].compute().reshape(-1, 6, 16)
    known = [frame.tobytes() for frame in FRAMES[:, ::310, ::128]]
    return [known.index(f.tobytes()) if f.any() else None for f in frames]


def overwrite(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.thorough
def test_any_file_opens_the_set(scan):
    layout = describe(scan[0]).layout
    gtg = scan[0].with_name("Capture 5_.gtg")
    assert all(describe(path).layout == layout for path in (*scan, gtg, scan))
    desc = describe(gtg)
    assert desc.format == "k2is"
    assert desc.base_shape == (1, 930, 16)
    assert desc.metadata["k2is"]["gtg"]["SI Dimensions"] == {"Size X": 2, "Size Y": 2}


@pytest.mark.parametrize(
    ("part", "depth", "plain", "tile"),
    [
        (np.s_[:], 4, (4, 930, 128), (2, 930, 256)),
        (np.s_[:], 1, (1, 930, 512), (1, 930, 512)),
        (np.s_[..., :100], 4, (2, 1860, 100), (2, 1860, 100)),
        (np.s_[:, 3], 4, (4, 2048), (4, 2048)),
    ],
)
def test_blocks_of_a_row_are_read_together(scan, part, depth, plain, tile):
    """Tiles cover whole rows of blocks, but not in slices: narrow ones take twice the time."""
    desc = open_dataset(scan[0], nav_shape=(4,))[part].description
    with dask.config.set({"dask-tiled.tile-bytes": 1 << 20}):
        scheme = negotiate(desc, TilingRequest("tile", depth=depth), chunk_bytes=1 << 30)
    reasons = dict(scheme.reasons)
    assert scheme.tile_shape == tile
    assert reasons["tile"].startswith(str(plain))
    assert ("k2is" in reasons.get("adjusted tile", "")) == (tile != plain)


@pytest.mark.slow
def test_scan_equals_libertem(scan, tmp_path):
    # A process that compiles with numba: without, millions of pixels take too long.
    process = start(SMALL_STEPS + SCRIPT)
    theirs = libertem_reads(tmp_path, {"k2is": ("k2is", {"path": scan[0]})}, process)
    stop(process)
    expected = FRAMES[3:7].reshape(2, 2, *SIG)
    np.testing.assert_array_equal(theirs["k2is"]["frames"], expected)
    np.testing.assert_array_equal(open_dataset(scan[0]), expected)


@pytest.mark.thorough
def test_sync_offset_counts_from_the_first_frame_of_the_scan(scan):
    assert numbers(scan[0]) == [3, 4, 5, 6]
    assert numbers(scan[0], sync_offset=-1) == [2, 3, 4, 5]
    assert numbers(scan[0], sync_offset=-2) == [None, 2, 3, 4]
    assert numbers(scan[0], sync_offset=2) == [5, 6, None, None]
    assert numbers(scan[0], nav_shape=(3,), sync_offset=1) == [4, 5, 6]
    assert numbers(scan[0], nav_shape=(5,)) == [3, 4, 5, 6, None]
    assert numbers(scan[0], roi=[3, 1]) == [6, 4]


@pytest.mark.parametrize("gtg", [False, True])
def test_series_begins_with_the_flag(tmp_path, gtg):
    paths = small(tmp_path, 4, shutter_from=1, gtg=gtg)
    assert describe(paths[0]).dims == ("frame", "y", "x")
    assert numbers(paths[0]) == [1, 2, 3]


@pytest.mark.parametrize("scan_shape", [None, (1, 2)])
@pytest.mark.parametrize("shutter_from", [0, 2])
def test_flag_that_never_changes(tmp_path, scan_shape, shutter_from):
    paths = small(tmp_path, scan_shape=scan_shape, shutter_from=shutter_from)
    assert numbers(paths[0]) == [0, 1]


def test_sectors_that_begin_inside_a_block(tmp_path):
    paths = small(tmp_path, 3)
    for path, lost in ((paths[0], 1), (paths[4], BLOCK - 1)):
        path.write_bytes(path.read_bytes()[lost:])
    assert numbers(paths[0]) == [1, 2]


def test_sectors_that_cannot_be_synchronised_raise(tmp_path):
    """LiberTEM #1200: the counter of one sector is completely off."""
    paths = small(tmp_path)
    for k in range(64):
        overwrite(paths[5], k * BLOCK + 16, (7 * k).to_bytes(4, "big"))
    with pytest.raises(CorruptFileError, match=r"cannot be synchronised.*byte"):
        describe(paths[0])


def test_lost_block_raises(tmp_path):
    paths = small(tmp_path, 4, early=(0,) * 7 + (1,))
    data = paths[7].read_bytes()
    paths[7].write_bytes(data[: 40 * BLOCK] + data[41 * BLOCK :])
    with pytest.raises(CorruptFileError, match="do not match"):
        describe(paths[0])


@pytest.mark.thorough
def test_sectors_that_end_early(tmp_path):
    paths = small(tmp_path, 4, early=(0, 0, 0, 70, 0, 0, 0, 0))
    with pytest.raises(TruncatedFileError, match=r"set7_4.*expected 3.*found 1.*nav_shape=\(1,\)"):
        describe(paths[0])
    assert numbers(paths[0], nav_shape=(2,)) == [0, None]
    paths = small(tmp_path, late=(3, *[0] * 7))
    paths[7].write_bytes(paths[7].read_bytes()[:-1])
    with pytest.raises(TruncatedFileError, match=r"set7_8.*no frame is complete"):
        describe(paths[0])
    paths = small(tmp_path, 2, scan_shape=(3, 1))
    with pytest.raises(TruncatedFileError, match=r"expected 3.*nav_shape=\(3, 1\)"):
        describe(paths[0])


def test_invalid_gtg_raises(tmp_path):
    paths = small(tmp_path, scan_shape=(0, 3))
    with pytest.raises(CorruptFileError, match=r"SI Dimensions.*\[0, 3\]"):
        describe(paths[0])
    gtg = tmp_path / "set7_.gtg"
    gtg.write_bytes(gtg.read_bytes()[:40])
    with pytest.raises(DatasetError, match="gtg"):
        describe(gtg)
    gtg.unlink()
    assert numbers(paths[0]) == [0, 1]


def test_incomplete_sets_raise(tmp_path):
    paths = small(tmp_path)
    other = paths[0].rename(tmp_path / "other_1.bin")
    with pytest.raises(TruncatedFileError, match=r"set7_1\.bin.*found 7"):
        describe(paths[3])
    with pytest.raises(DatasetError, match="not of one set"):
        describe([paths[3], other])


def test_shutter_is_found_with_few_reads(monkeypatch):
    reads = []
    n_frames = 100_000

    def is_open(_sector, i):
        reads.append(i)
        return {"flags": int(54_321 <= i // 32 < 60_000)}

    monkeypatch.setattr(blocks.Sector, "block", is_open)
    assert blocks.first_open(blocks.Sector(None, 0), 0, n_frames) == 54_321
    assert len(reads) < 80
    assert blocks.first_open(blocks.Sector(None, 0), 0, 1000) is None


def test_opening_reads_few_headers(scan, monkeypatch):
    reads = []
    read_fields = blocks.tools.read_fields
    monkeypatch.setattr(blocks.tools, "read_fields", lambda *a: reads.append(a) or read_fields(*a))
    describe(scan[0])
    assert len(reads) < 300


def test_tag_files_are_recognised_with_their_sectors_only(tmp_path):
    sniff = formats()["k2is"].sniff
    small(tmp_path)
    gtg = tmp_path / "set7_.gtg"
    head = gtg.read_bytes()[:4096]
    assert sniff(str(gtg), head) is None
    assert sniff(str(gtg.with_suffix(".dm4")), head) is not None
    assert sniff(str(tmp_path / "other.gtg"), head) is not None
    assert sniff(str(gtg), b"no tags") is not None
    assert sniff(str(gtg), head[:3]) is not None
