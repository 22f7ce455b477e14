"""The synthetic writers, checked by independent readers."""

import itertools
import weakref

import numpy as np
import pytest
from conftest import DATA
from libertem_reader import libertem_reads

from dask_tiled import open_dataset
from dask_tiled.testing import (
    counting_frames,
    iter_counting_frames,
    iter_frames,
    write_dm,
    write_mib,
    write_mib_series,
    write_npy,
    write_raw,
    write_raw_csr,
    write_ser,
)
from dask_tiled.testing.mib_pixels import encode_frame

CAPTURES = "mib/Merlin_Single_Quad"

PROCESSED = {
    "u08": ("uint8", 8, {"kind": "U08"}),
    "u08_1bit": ("uint8", 1, {"kind": "U08", "depth": 1}),
    "u16": ("uint16", 16, {"kind": "U16"}),
    "u16_quad": ("uint16", 16, {"kind": "U16", "quad": True}),
    "u32": ("uint32", 24, {"kind": "U32"}),
    "u32_quad": ("uint32", 24, {"kind": "U32", "quad": True}),
}
RAW = {
    "r64_1bit": ("uint8", 1, {"depth": 1}),
    "r64_6bit": ("uint8", 6, {"depth": 6}),
    "r64_12bit": ("uint16", 12, {"depth": 12}),
    "r64_1bit_quad": ("uint8", 1, {"depth": 1, "quad": True}),
    "r64_6bit_quad": ("uint8", 6, {"depth": 6, "quad": True}),
    "r64_12bit_quad": ("uint16", 12, {"depth": 12, "quad": True}),
    "r64_12bit_gap": ("uint16", 12, {"depth": 12, "quad": True, "layout": "2x2G"}),
}
SHAPE = (3, 2, 128, 128)
# Name: shape, dtype, bits, options.
LIBERTEM_CASES = {
    **{name: (SHAPE, *case) for name, case in PROCESSED.items()},
    **{name: (SHAPE, *case[:2], {"kind": "R64", **case[2]}) for name, case in RAW.items()},
    "gap": ((2, 130, 130), "uint16", 16, {"quad": True, "layout": "2x2G"}),
    "roi": ((4, 5, 7), "uint16", 16, {}),
    "roi_raw": ((4, 5, 192), "uint8", 1, {"kind": "R64", "depth": 1}),
    "small_header": ((4, 8, 8), "uint16", 16, {"header_size": 344, "first_sequence": 7}),
    "odd_header": ((4, 8, 64), "uint8", 6, {"kind": "R64", "depth": 6, "header_size": 383}),
    "no_dacs": ((4, 8, 8), "uint16", 12, {"kind": "R64", "header_size": 200, "dacs": False}),
    "scan_keys": ((2, 3, 8, 8), "uint16", 16, {"scan_keys": True}),
}
# One frame per file: LiberTEM reads only the first frame of a 24-bit raw file.
LIBERTEM_SERIES = {
    "series": ((5, 2, 16, 64), "uint8", 1, {"kind": "R64", "depth": 1, "frames_per_file": 3}),
    "r64_24bit": ((4, 128, 128), "uint32", 24, {"kind": "R64", "depth": 24, "frames_per_file": 1}),
}
RAW_CAPTURES = [
    "Single_1_Frame_CounterDepth_1_Rows_256RAW",
    "Single_9_Frame_CounterDepth_1_Rows_256RAW",
    "Quad_1_Frame_CounterDepth_1_Rows_256RAW",
]
PROCESSED_CAPTURES = [
    "Single_1_Frame_CounterDepth_24_Rows_256",
    "Single_9_Frame_CounterDepth_1_Rows_256",
    "Single_9_Frame_CounterDepth_6_Rows_256",
    "Single_9_Frame_CounterDepth_12_Rows_256",
    "Quad_1_Frame_CounterDepth_6_Rows_256",
    "Quad_1_Frame_CounterDepth_12_Rows_256",
    "Quad_1_Frame_CounterDepth_24_Rows_256",
]


def made(case):
    shape, dtype, bits, options = case
    return counting_frames(shape, dtype, bits=bits), options


@pytest.fixture(scope="module")
def libertem_arrays(tmp_path_factory):
    """Return LiberTEM's frames of every case, by name."""
    folder = tmp_path_factory.mktemp("libertem")
    jobs = {}
    for name, case in {**LIBERTEM_CASES, **LIBERTEM_SERIES}.items():
        # A folder for each, as LiberTEM takes files with a common prefix for one scan.
        (folder / name).mkdir()
        frames, options = made(case)
        if name in LIBERTEM_SERIES:
            write_mib_series(folder / name / "scan", frames, **options)
        else:
            write_mib(folder / name / "scan.mib", frames, **options)
        jobs[name] = ("mib", {"path": folder / name / "scan.hdr"})
    for name in RAW_CAPTURES:
        if (DATA / CAPTURES / f"{name}.hdr").exists():
            jobs[name] = ("mib", {"path": DATA / CAPTURES / f"{name}.hdr"})
    return {name: found["frames"] for name, found in libertem_reads(folder, jobs).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LIBERTEM_CASES, *LIBERTEM_SERIES])
def test_libertem_reads_the_written_frames(libertem_arrays, name):
    frames, _ = made((LIBERTEM_CASES | LIBERTEM_SERIES)[name])
    found = libertem_arrays[name]
    # Without a scan shape LiberTEM returns a scan of one row.
    assert found.shape == (frames.shape if frames.ndim == 4 else (1, *frames.shape))
    np.testing.assert_array_equal(found.reshape(frames.shape), frames)


@pytest.mark.slow
@pytest.mark.parametrize("name", RAW_CAPTURES)
def test_raw_captures_are_reproduced_from_libertem_pixels(data, libertem_arrays, name, tmp_path):
    real = data / CAPTURES / f"{name}.mib"
    frames = libertem_arrays[name].astype("uint8")[0]
    quad = name.startswith("Quad")
    ours = write_mib(tmp_path / "scan.mib", frames, kind="R64", depth=1, quad=quad)
    header_size = 768 if quad else 384
    assert_same_but_for_times(ours, real, count=int(name.split("_")[1]), header_size=header_size)


@pytest.mark.parametrize("name", PROCESSED_CAPTURES)
def test_processed_captures_are_reproduced_from_rosettasciio_pixels(data, name, tmp_path):
    reader = pytest.importorskip("rsciio.quantumdetector", reason="RosettaSciIO is not installed")
    real = data / CAPTURES / f"{name}.mib"
    frames = np.array(reader.load_mib_data(str(real)))
    quad, depth = name.startswith("Quad"), int(name.split("_")[4])
    kind = {1: "U08", 6: "U08", 12: "U16", 24: "U32"}[depth]
    ours = write_mib(tmp_path / "scan.mib", frames, kind=kind, depth=depth, quad=quad)
    header_size = 768 if quad else 384
    assert_same_but_for_times(ours, real, count=int(name.split("_")[1]), header_size=header_size)


def assert_same_but_for_times(ours, real, *, count, header_size):
    ours, real = ours.read_bytes(), real.read_bytes()
    assert len(ours) == len(real)
    frame_bytes = len(real) // count
    for start in range(0, len(real), frame_bytes):
        fields = [data[start : start + header_size].split(b",") for data in (ours, real)]
        for local_time_or_utc in (9, -4):
            lengths = {len(found.pop(local_time_or_utc)) for found in fields}
            assert len(lengths) == 1
        assert fields[0] == fields[1]
        pixels = slice(start + header_size, start + frame_bytes)
        assert ours[pixels] == real[pixels]


@pytest.mark.parametrize("name", [RAW_CAPTURES[2], *PROCESSED_CAPTURES[1:4]])
def test_hdr_files_have_the_lines_of_real_ones(data, name, tmp_path):
    real = (data / CAPTURES / f"{name}.hdr").read_bytes()
    quad, depth = name.startswith("Quad"), int(name.split("_")[4])
    count = 1 if quad else 9
    write_mib(
        tmp_path / "scan.mib",
        np.zeros((count, 64, 128), "uint8"),
        kind="R64",
        depth=depth,
        quad=quad,
    )
    ours = (tmp_path / "scan.hdr").read_bytes()
    assert len(ours) == len(real) == 2048
    differ = {"Time and Date Stamp", "Chip ID", "bpc File", "DAC File", "Temperature", "Humidity"}
    for our_line, real_line in itertools.zip_longest(ours.split(b"\n"), real.split(b"\n")):
        assert our_line.split(b"\t")[0] == real_line.split(b"\t")[0]
        if not our_line.decode().startswith(tuple(differ)):
            assert our_line.rstrip(b" ") == real_line.rstrip(b" ")


def test_24_bit_quad_is_two_quad_images(tmp_path):
    frame = counting_frames((6, 16), "uint32", bits=24)
    halves = np.divmod(frame, 1 << 12)
    upper, lower = (encode_frame(half, kind="R64", depth=12, quad=True) for half in halves)
    assert encode_frame(frame, kind="R64", depth=24, quad=True) == upper + lower
    path = write_mib(tmp_path / "a.mib", frame[None], kind="R64", depth=24, quad=True)
    np.testing.assert_array_equal(open_dataset(path), frame[None])


def test_series_continues_the_sequence(tmp_path):
    frames = counting_frames((7, 4, 4), "uint16")
    paths = write_mib_series(
        tmp_path / "a.scan", iter(frames), frames_per_file=3, digits=4, first_sequence=999_998
    )
    assert [path.name for path in paths] == [f"a.scan{i:04d}.mib" for i in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.glob("*.hdr")) == ["a.scan.hdr"]
    sequences = [path.read_bytes().split(b",")[1] for path in paths]
    assert sequences == [b"999998", b"1000001", b"1000004"]
    assert [path.stat().st_size for path in paths] == [3 * 416, 3 * 416, 416]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"Frames in Acquisition (Number)": "6", "Frames per Trigger (Number)": "3"}),
        ({"nav_shape": (4, 5)}, {"Frames in Acquisition (Number)": "20"}),
        ({"nav_shape": (6, 1)}, {"Frames per Trigger (Number)": "1"}),
        ({"scan_keys": True}, {"ScanX": "3", "ScanY": "2"}),
    ],
)
def test_hdr_gives_the_scan_shape(tmp_path, options, expected):
    write_mib(tmp_path / "scan.mib", np.zeros((2, 3, 4, 4), "uint16"), **options)
    lines = (tmp_path / "scan.hdr").read_text().splitlines()
    found = dict(line.split(":\t", 1) for line in lines[1:-1])
    assert expected.items() <= found.items()
    assert ("ScanX" in found) == ("ScanX" in expected)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((0, 4, 4), {}, "at least one frame"),
        ((4,), {}, "at least 2 axes"),
        ((2, 4, 0), {}, r"\(height, width\)"),
        ((2, 4, 4), {"kind": "U64"}, "expected one of U08, U16, U32, R64"),
        ((2, 4, 4), {"kind": "U16", "depth": 24}, "expected one of"),
        ((2, 4, 4), {"layout": "2x2 G"}, "layout"),
        ((2, 4, 4), {"header_size": 343}, "expected 344 to 99999 bytes, found 343"),
        ((2, 4, 4), {"header_size": 100_000}, "found 100000"),
        ((2, 4, 96), {"kind": "R64", "depth": 1}, "a width in 64s"),
        ((2, 4, 64), {"kind": "R64", "depth": 1, "quad": True}, "a width in 128s"),
        ((2, 5, 64), {"kind": "R64", "depth": 6, "quad": True}, "an even height"),
        ((2, 4, 64), {"scan_keys": True}, "nav_shape"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, shape, options, message):
    with pytest.raises(ValueError, match=message):
        write_mib(tmp_path / "scan.mib", np.zeros(shape, "uint16"), **options)


@pytest.mark.parametrize(
    ("frame", "options"),
    [([[-1, 0]], {}), ([[65536, 0]], {}), ([[0, 0, 0, 64] * 2], {"kind": "R64", "depth": 6})],
)
def test_values_that_do_not_fit_are_refused(tmp_path, frame, options):
    with pytest.raises(ValueError, match="expected values from 0 to"):
        write_mib(tmp_path / "scan.mib", [np.array(frame)], **options)


def test_noninteger_and_ragged_frames_are_refused(tmp_path):
    with pytest.raises(TypeError, match="float64"):
        write_mib(tmp_path / "scan.mib", np.zeros((2, 4, 4)))
    ragged = [np.zeros((4, 4), int), np.zeros((4, 5), int)]
    with pytest.raises(ValueError, match="frame 1: expected shape"):
        write_mib(tmp_path / "scan.mib", ragged)
    with pytest.raises(ValueError, match="frame 1: expected shape"):
        write_raw(tmp_path / "scan.raw", ragged)
    with pytest.raises(ValueError, match="frames_per_file"):
        write_mib_series(tmp_path / "scan", ragged, frames_per_file=0)


@pytest.mark.parametrize("write", [write_dm, write_mib, write_raw_csr, write_ser])
@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([np.zeros((4, 4), "u2"), np.zeros((4, 4), "u1")], "frame 1: expected shape and dtype"),
        ([], "at least one frame"),
    ],
)
def test_mixed_dtypes_and_empty_scans_are_refused(tmp_path, write, frames, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "scan", frames, nav_shape=(2,))


@pytest.mark.parametrize(
    ("dtype", "gaps"),
    [("u1", (0, 0, 0)), ("<i2", (100, 7, 3)), (">f8", (0, 0, 5)), ("c8", (13, 0, 0))],
)
def test_raw_files_are_records_with_headers_and_footers(tmp_path, dtype, gaps):
    frames = counting_frames((3, 2, 4, 5), dtype)
    file_header, frame_header, frame_footer = gaps
    path = write_raw(
        tmp_path / "scan.raw",
        frames,
        file_header=file_header,
        frame_header=frame_header,
        frame_footer=frame_footer,
    )
    fields = [
        ("before", "u1", frame_header),
        ("frame", dtype, (4, 5)),
        ("after", "u1", frame_footer),
    ]
    records = np.fromfile(path, np.dtype(fields), offset=file_header)
    np.testing.assert_array_equal(records["frame"].reshape(frames.shape), frames)
    assert records["before"].all()
    assert records["after"].all()
    assert 0 not in path.read_bytes()[:file_header]


@pytest.mark.parametrize(
    ("version", "order", "dtype"),
    [((1, 0), "C", "u1"), ((2, 0), "F", ">u2"), ((3, 0), "C", "c16"), ((1, 0), "F", "<f4")],
)
def test_numpy_reads_npy_files(tmp_path, version, order, dtype):
    array = counting_frames((3, 4, 5), dtype)
    path = write_npy(tmp_path / "array.npy", array, version=version, order=order)
    assert path.read_bytes()[:8] == b"\x93NUMPY" + bytes(version)
    found = np.load(path)
    assert found.dtype == array.dtype
    assert found.flags.f_contiguous == (order == "F")
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("write", "options"),
    [
        (write_mib, {}),
        (write_mib_series, {"kind": "R64", "quad": True, "frames_per_file": 15}),
        (write_raw, {}),
    ],
)
def test_writers_hold_a_few_frames_only(tmp_path, write, options):
    made = []

    def frames():
        for frame in iter_counting_frames((20, 16, 16), "uint16", bits=12):
            made.append(weakref.ref(frame))
            assert sum(one() is not None for one in made) <= 4
            yield frame

    write(tmp_path / "scan.mib", frames(), **options)
    assert len(made) == 20


class IndexedOnly:
    """An array that records its indices, and has no other array methods."""

    def __init__(self, array):
        self.array, self.shape, self.taken = array, array.shape, []

    def __getitem__(self, index):
        self.taken.append(index)
        return self.array[index]


def test_arrays_are_only_indexed_frame_by_frame(tmp_path):
    frames = IndexedOnly(counting_frames((2, 3, 4, 5), "uint16"))
    path = write_raw(tmp_path / "scan.raw", frames)
    assert frames.taken == list(np.ndindex(2, 3))
    assert path.read_bytes() == frames.array.tobytes()


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("uint8", None), ("int8", None), (">i2", None), ("uint16", 12), (">f4", 12), ("c8", 12)],
)
def test_counting_frames_are_unique_if_possible(dtype, bits):
    frames = counting_frames((2, 8, 16), dtype, bits=bits)
    assert frames.dtype == np.dtype(dtype)
    assert np.unique(frames).size == frames.size
    if bits:
        assert frames.real.max() < 2**bits


def test_lazy_counting_frames_are_the_same():
    shape = (3, 5, 7, 11)
    frames = counting_frames(shape, "uint16", bits=10)
    one_by_one = list(iter_counting_frames(shape, "uint16", bits=10))
    np.testing.assert_array_equal(np.reshape(one_by_one, shape), frames)
    np.testing.assert_array_equal(np.reshape(list(iter_frames(frames)), shape), frames)
    assert counting_frames((0, 4, 4), "uint8").shape == (0, 4, 4)
    assert list(iter_counting_frames((0, 4, 4), "uint8")) == []


@pytest.mark.parametrize("bits", [0, 9])
def test_counting_frames_refuse_bits_that_do_not_fit(bits):
    with pytest.raises(ValueError, match="expected 1 to 8"):
        counting_frames((2, 2), "uint8", bits=bits)
    with pytest.raises(TypeError, match="numeric"):
        counting_frames((2, 2), "U4")
