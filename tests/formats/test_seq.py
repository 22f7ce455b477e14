"""Norpix and Direct Electron sequences, and the corrections beside them."""

import numpy as np
import pytest
from checks import refuses
from libertem_reader import libertem_reads

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError, describe, open_dataset
from dask_tiled.testing import check_format, counting_frames, write_seq, write_seq_corrections

pytestmark = pytest.mark.usefixtures("synchronous")
FRAMES = counting_frames((6, 8, 10), "u2", bits=12)
DARK = counting_frames((8, 10), "f4", bits=6)
GAIN = 1 + counting_frames((8, 10), "f4", bits=7) / 256
FILES = {f"v{v} {8 * size} bit": (v, f"u{size}") for v in (4, 5) for size in (1, 2, 4, 8)}
DEFECTS = [
    {"Column": 5, "Row": 4},
    {"Row": 7},
    {"Rows": "0-2"},
    {"Column": 12},
    {"Columns": "9-10"},
]
MAP = {"Rows": 16, "Columns": 16, "defects": DEFECTS}


def excluded(path):
    """Return the mask of the excluded pixels beside a file."""
    desc = describe(path)
    pixels = dask_tiled.formats()["seq"].corrections(desc).excluded_pixels
    mask = np.zeros(desc.sig_shape, bool)
    mask[tuple(pixels.T)] = True
    return mask


@pytest.fixture(scope="module")
def libertem(tmp_path_factory):
    """Write files of every kind, some with corrections; return these and what LiberTEM reads."""
    folder = tmp_path_factory.mktemp("seq")
    jobs = {}
    for name, (version, dtype) in FILES.items():
        frames = counting_frames((6, 8, 10), dtype, bits=min(52, 8 * int(dtype[1])))
        path = write_seq(folder / f"{name}.seq", frames, version=version, promised=0)
        jobs[name] = path, frames
    for name in ("plain.seq", "twice.seq.seq"):
        path = write_seq(folder / name, FRAMES)
        write_seq_corrections(path, dark=DARK, gain=GAIN, sections=1)
        jobs[name] = path, FRAMES
    # LiberTEM reads the metadata at byte 282, and maps of square sensors only.
    square = counting_frames((6, 8, 8), "u2", bits=12)
    for name, binning in (("whole.seq", 1), ("binned.seq", 2)):
        path = write_seq(folder / name, square)
        shape, offset = ((8 * binning,) * 2, (2 * binning, 4 * binning))
        maps = [MAP, MAP | {"Binning": 2, "defects": DEFECTS[:2]}]
        write_seq_corrections(path, maps=maps, shape=shape, offset=offset, binning=binning, at=282)
        jobs[name] = path, square
    given = {name: ("seq", {"path": path, "nav_shape": (2, 3)}) for name, (path, _) in jobs.items()}
    return jobs, libertem_reads(folder, given)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_synthetic_file_equals_libertem(libertem, name):
    jobs, theirs = libertem
    path, frames = jobs[name]
    check_format(path, frames, cuts=3)
    np.testing.assert_array_equal(frames.reshape(2, 3, 8, 10), theirs[name]["frames"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain.seq", "twice.seq.seq"])
def test_corrections_beside_seq_and_seq_seq_equal_libertem(libertem, name):
    """LiberTEM #1120: names are ``<root>.seq.dark.mrc``, as in its code, not in its docstring."""
    jobs, theirs = libertem
    arr = open_dataset(jobs[name][0], corrections="dataset")
    corrections = arr.description.conversion.corrections
    np.testing.assert_array_equal(corrections.dark, theirs[name]["dark"])
    np.testing.assert_array_equal(corrections.gain, theirs[name]["gain"])
    assert arr.dtype == np.float32
    np.testing.assert_allclose(arr, (FRAMES - DARK) * GAIN, rtol=1e-6)
    np.testing.assert_array_equal(open_dataset(jobs[name][0]), FRAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whole.seq", "binned.seq"])
def test_bad_pixels_equal_libertem(libertem, name):
    jobs, theirs = libertem
    np.testing.assert_array_equal(excluded(jobs[name][0]), theirs[name]["excluded"])


def test_missing_corrections_are_named(tmp_path):
    """The names of LiberTEM's docstring are not read."""
    path = write_seq(tmp_path / "a.seq", FRAMES)
    (corrections,) = write_seq_corrections(path, dark=DARK)
    corrections.rename(tmp_path / "a.dark.mrc")
    refuses(path, r"a\.seq\.dark\.mrc", corrections="dataset")


def test_bad_pixels_of_a_part_of_an_oblong_sensor(tmp_path):
    """LiberTEM confuses rows and columns, and loses ranges that meet."""
    defects = [*DEFECTS, {"Columns": "2-4", "Row": 9}, {"Column": 6, "Rows": "9-30", "pattern": 1}]
    path = write_seq(tmp_path / "a.seq", FRAMES)
    maps = [{"Rows": 4, "Columns": 4}, {"Rows": 40, "Columns": 20, "defects": defects}]
    write_seq_corrections(path, maps=maps, shape=(8, 10), offset=(6, 3))
    whole = np.zeros((40, 20), bool)
    whole[4, 5] = whole[7] = whole[:3] = whole[:, 12] = whole[:, 9:11] = True
    whole[9, 2:5] = whole[9:31, 6] = True
    np.testing.assert_array_equal(excluded(path), whole[6:14, 3:13])


def test_room_for_more_frames_is_ignored(tmp_path):
    """Real files are padded with zeros, which a larger nav_shape reads."""
    path = write_seq(tmp_path / "a.seq", FRAMES, room=3)
    desc = describe(path)
    check_format(path, FRAMES, cuts=3)
    assert desc.metadata["seq"]["header"]["allocated_frames"] == 6
    assert desc.metadata["seq"]["header"]["name"] == "Norpix seq"
    assert not open_dataset(path, nav_shape=(3, 3)).compute()[2].any()


@pytest.mark.parametrize(("version", "us"), [(4, 0), (5, 646)])
def test_time_stamps(tmp_path, version, us):
    """The writer counts milliseconds; only version 5 has microseconds."""
    path = write_seq(tmp_path / "a.seq", FRAMES, version=version)
    found = dask_tiled.frame_facts(open_dataset(path))["time_utc"].compute().astype("i8")
    np.testing.assert_array_equal(found, 1_660_245_687_000_000 + us + 1000 * np.arange(6))


@pytest.mark.parametrize(
    ("at", "value", "where"),
    [
        (556, 12, "bit_depth"),
        (568, 200, "image_format"),
        (580, 8 * 10 * 2 - 1, "true_image_size"),
        (620, 1, "compression_format"),
    ],
)
def test_headers_of_other_frames_raise(tmp_path, at, value, where):
    """Frames are not compressed, not coloured, and fit into their records."""
    path = write_seq(tmp_path / "a.seq", FRAMES)
    content = path.read_bytes()
    refuses(path, where, content=content[:at] + value.to_bytes(4, "little") + content[at + 4 :])


def test_half_a_character_in_a_name(tmp_path):
    path = write_seq(tmp_path / "a.seq", FRAMES)
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"a\0\x00\xd8b\0\0\0" + content[12:])
    assert describe(path).metadata["seq"]["header"]["name"] == "a\ufffdb"


def test_unfitting_corrections_raise(tmp_path):
    path = write_seq(tmp_path / "a.seq", FRAMES)
    (dark,) = write_seq_corrections(path, dark=DARK.T)
    with pytest.raises(DatasetError, match="differs in shape"):
        open_dataset(path, corrections="dataset")
    write_seq_corrections(path, dark=DARK)
    dark.write_bytes(dark.read_bytes()[:1100])
    with pytest.raises(TruncatedFileError, match="reference"):
        open_dataset(path, corrections="dataset")
    dark.unlink()
    write_seq_corrections(path, maps=[MAP], shape=(9, 10))
    with pytest.raises(CorruptFileError, match="metadata"):
        open_dataset(path, corrections="dataset")
    write_seq_corrections(path, maps=[MAP], shape=(8, 10), offset=(0, 7))
    with pytest.raises(CorruptFileError, match="does not cover"):
        open_dataset(path, corrections="dataset")
    files = write_seq_corrections(path, maps=[MAP], shape=(8, 10))
    files[-1].write_bytes(files[-1].read_bytes()[:290])
    with pytest.raises(DatasetError):
        open_dataset(path, corrections="dataset")


@pytest.mark.parametrize("part", ["dark", "gain"])
def test_error_about_corrections_names_their_file(tmp_path, part):
    path = write_seq(tmp_path / "a.seq", counting_frames((2, 4, 5), "u2"))
    (beside,) = write_seq_corrections(path, **{part: np.full((4, 5), np.nan, "f4")})
    with pytest.raises(DatasetError, match="not finite") as caught:
        open_dataset(path, corrections="dataset")
    assert caught.value.path == str(beside)
