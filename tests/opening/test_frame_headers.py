"""`frame_facts`: one record per frame, in the order of the pixels' frames."""

import gzip
import math
import re
import struct
from datetime import datetime

import dask.array as da
import nibabel
import numpy as np
import ome_writer
import pytest
import tifffile
from checks import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from manifest import by_file, manifest
from strategies import basic_indices, selections

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, frame_facts, open_dataset
from dask_tiled.testing import (
    write_blo,
    write_empad,
    write_frms6,
    write_k2is,
    write_mib,
    write_mib_series,
    write_mrc,
    write_seq,
    write_ser,
    write_tvips,
)

pytestmark = pytest.mark.usefixtures("synchronous")


def numbered(count, shape=(2, 64), dtype="u1"):
    """Return frames filled with their number, from 1; 0 marks missing frames."""
    return np.broadcast_to(np.arange(1, count + 1, dtype=dtype)[:, None, None], (count, *shape))


def mib(folder, draw, frames):
    kind, depth = draw(st.sampled_from([("U08", 6), ("R64", 6), ("U16", 12), ("R64", 24)]))
    frames = frames.astype({"U08": "u1", "U16": "u2"}.get(kind, "u1" if depth == 6 else "u4"))
    options = {"kind": kind, "depth": depth, "quad": draw(st.booleans()), "hdr": False}
    paths = write_mib_series(
        folder / "scan", frames, frames_per_file=draw(st.integers(1, 9)), **options
    )
    return paths[0]


def tvips(folder, draw, frames):
    size = draw(st.sampled_from([12, 50, 108, 200]))
    files = draw(st.integers(1, 9))
    return write_tvips(folder / "scan", frames, frame_header=size, frames_per_file=files)[0]


def ser(folder, draw, frames):
    gaps = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    version, positions = draw(st.sampled_from([0x210, 0x220])), draw(st.booleans())
    options = {"version": version, "gaps": gaps, "positions": positions}
    return write_ser(folder / "scan.ser", frames, **options)


def seq(folder, draw, frames):
    return write_seq(folder / "scan.seq", frames, version=draw(st.sampled_from([4, 5])))


def frms6(folder, _draw, frames):
    options = {"dark": frames[:1], "scan_shape": (1, len(frames))}
    return write_frms6(folder / "scan", frames.astype("u2"), **options)[1]


def blo(folder, draw, frames):
    frames = np.ascontiguousarray(frames[:, :, :2])
    options = {"nav_shape": (1, len(frames)), "order": draw(st.sampled_from("<>"))}
    return write_blo(folder / "scan.blo", frames, **options)


def mrc(folder, draw, frames):
    """Write numbered section headers of FEI, of an old or a new version, or of SerialEM."""
    kind, form, at, size = draw(
        st.sampled_from([(b"FEI1", "<d", 100, 768), (b"", "<f", 0, 128), (b"SERI", "<h", 0, 6)])
    )
    content = bytearray((len(frames) if kind else 1024) * size)
    for k in range(len(frames)):
        if kind == b"FEI1":
            struct.pack_into("<i", content, k * size, size)
        struct.pack_into(form, content, k * size + at, k + 1)
    path = folder / "scan.mrc"
    write_mrc(path, frames, extended=bytes(content), extended_type=kind)
    if kind == b"SERI":  # bytes per section, and a bit for the piece coordinates
        with path.open("r+b") as file:
            file.seek(128)
            file.write(struct.pack("<2h", size, 2))
    return path


def counted_by(facts):
    """Return the section numbers that `mrc` wrote."""
    name = "piece_x" if "piece_x" in facts.dtype.names else "alpha_tilt"
    return np.nan_to_num(facts[name])


def k2is(folder, _draw, _frames):
    """Write the same 3 frames for all examples: a frame has 6 MB."""
    stem = folder.parent / "k2is_"
    first = stem.with_name("k2is_1.bin")
    return first if first.exists() else write_k2is(stem, numbered(3, (1860, 2048), "u2"))[0]


def empad(folder, draw, frames):
    frames = np.broadcast_to(frames[:, :1, :1], (len(frames), 128, 128))
    return write_empad(folder / "scan.xml", frames, mode=draw(st.sampled_from(["acquire", None])))


def nifti(folder, draw, frames):
    depth = draw(st.sampled_from([n for n in (1, 2, 3, 5) if len(frames) % n == 0]))
    volume = frames.reshape(-1, depth, *frames.shape[1:]).T
    image = draw(st.sampled_from([nibabel.Nifti1Image, nibabel.Nifti2Image]))(volume, None)
    scale, unit = draw(st.sampled_from([(1, "sec"), (1e3, "msec"), (1e6, "usec")]))
    image.header.set_xyzt_units("mm", unit)
    image.header.set_dim_info(slice=2)
    image.header["slice_code"], image.header["slice_end"] = 1, depth - 1
    image.header["slice_duration"], image.header["toffset"] = scale, scale
    image.header["pixdim"][4] = depth * scale
    path = folder / f"scan.{draw(st.sampled_from(['nii', 'nii.gz']))}"
    nibabel.save(image, path)
    return path


def tiff(folder, draw, frames):
    options = {"bigtiff": draw(st.booleans()), "byteorder": draw(st.sampled_from("<>"))}
    with tifffile.TiffWriter(folder / "scan.tif", **options) as writer:
        for frame in frames:
            day = datetime(2020, 1, int(frame[0, 0]))  # noqa: DTZ001 - TIFF stores no time zone
            writer.write(frame, datetime=day, metadata=None, contiguous=False)
    return folder / "scan.tif"


def ome_tiff(folder, draw, frames):
    order = draw(st.permutations("ZCT"))
    shape = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (3, 2)]))
    if len(frames) % math.prod(shape):
        shape = 1, 1
    planes = frames.reshape(-1, *shape, *frames.shape[1:])
    elements = [
        ome_writer.attributes(
            **{f"The{axis}": at for axis, at in zip("TCZ", place, strict=True)},
            DeltaT=1000 * int(planes[place][0, 0]),
            DeltaTUnit="ms",
        )
        for place in draw(st.permutations([*np.ndindex(planes.shape[:3])]))
    ]
    places = [*np.ndindex(tuple(planes.shape["TCZ".index(axis)] for axis in reversed(order)))]
    pages = planes.transpose(["TCZ".index(axis) for axis in reversed(order)] + [3, 4])
    inner = ome_writer.tiff_data() + "".join(f"<Plane{one}/>" for one in elements)
    options = {"order": "XY" + "".join(order), "dtype": "u1"}
    xml = ome_writer.document(ome_writer.image(planes.shape, inner, **options))
    pages = pages.reshape(len(places), *frames.shape[1:])
    return ome_writer.write_pages(folder / "scan.ome.tif", pages, xml)


def counted(times, first, step):
    """Return frame numbers from times; NaT gives 0."""
    return (np.where(np.isnat(times), first - step, times.astype("i8")) - first) // step + 1


# For each format, its writer, and a function from facts to frame numbers.
WRITERS = {
    "mib": (mib, lambda facts: facts["sequence_number"]),
    "tvips": (tvips, lambda facts: counted(facts["time_utc"], 1_700_000_000_000_000, 20_000)),
    "ser": (ser, lambda facts: counted(facts["time_utc"], 1_456_150_000, 1)),
    "seq": (seq, lambda facts: counted(facts["time_utc"], 1_660_245_687_000_000, 1000)),
    "frms6": (frms6, lambda facts: counted(facts["time_utc"], 1_600_000_000_000_250, 1_000_000)),
    "blo": (blo, lambda facts: facts["number"] + 1),
    "mrc": (mrc, counted_by),
    "k2is": (k2is, lambda facts: np.maximum(facts["number"].astype("i8") - 16, 0)),
    "empad": (empad, lambda facts: np.nan_to_num(facts["footer"][..., 0, 0] + 1)),
    "nifti": (
        nifti,
        lambda facts: np.nan_to_num(facts["elapsed_time"] + facts["slice_time"]).round(3),
    ),
    "tiff": (tiff, lambda facts: counted(facts["time"], 1_577_836_800_000_000, 86_400_000_000)),
    "ome_tiff": (ome_tiff, lambda facts: np.nan_to_num(facts["elapsed_time"])),
}


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=6)
@given(data=st.data())
def test_facts_follow_the_frames(tmp_path_factory, name, data):
    """Frame numbers in headers equal those in pixels for any nav_shape, roi, slice and mask."""
    write, number_of = WRITERS[name]
    frames = numbered(data.draw(st.integers(2, 20)))
    path = write(tmp_path_factory.mktemp("headers"), data.draw, frames)
    nav_shape, sync_offset, roi = data.draw(selections())
    options = {"nav_shape": nav_shape, "sync_offset": sync_offset, "roi": roi}
    arr = open_dataset(path, **options, missing="fill", chunks=-1)
    numbers = arr[..., 0, 0].compute()
    least = name == "blo"  # numbers begin at 0: the first frame looks like a missing one
    facts = frame_facts(arr)
    assert (facts.shape, facts.chunks) == (arr.shape[:-2], arr.chunks[:-2])
    found = facts.compute()
    assert found.dtype == facts.dtype
    np.testing.assert_array_equal(number_of(found), np.maximum(numbers, least))
    index = tuple(item for item in data.draw(basic_indices(numbers.shape)) if item is not Ellipsis)
    if numbers[index].size:
        part = frame_facts(arr[(*index, Ellipsis, 1)]).compute()
        np.testing.assert_array_equal(number_of(part), np.maximum(numbers[index], least))
    mask = numbers != 0
    if mask.any():
        chosen = frame_facts(arr[mask]).compute()
        np.testing.assert_array_equal(number_of(chosen), numbers[mask])
    flat = frame_facts(arr.reshape(-1, *arr.shape[-2:])).compute()
    np.testing.assert_array_equal(number_of(flat), np.maximum(numbers.ravel(), least))


def test_headers_of_a_sector_of_k2is(tmp_path):
    """Facts come from the first block of each frame, wherever a sector begins."""
    frames = np.zeros((4, 1860, 2048), "u2")
    late = (40, 0, 0, 33, 0, 0, 0, 1)
    path = write_k2is(tmp_path / "scan_", frames, shutter_from=3, late=late, gtg=False)[0]
    found = frame_facts(open_dataset(path, nav_shape=(3,), missing="fill")).compute()
    there = found["number"] > 0
    np.testing.assert_array_equal(np.diff(found["number"][there]), 1)
    np.testing.assert_array_equal(np.diff(found["block_count"][there].astype("i8")), 32)
    assert found["number"].max() == 20


def test_real_tags_of_ser_files(data):
    """Times and positions equal RosettaSciIO's."""
    path = data / "ser/old/16x16-spectrum_image-5x5x1024_1.ser"
    found = frame_facts(open_dataset(path)).compute()
    reader = pytest.importorskip("rsciio.tia._api", reason="RosettaSciIO is not installed")
    _, theirs = reader.load_ser_file(str(path))
    np.testing.assert_array_equal(found["time_utc"].ravel().astype("i8"), theirs["Time"])
    np.testing.assert_array_equal(found["position_x"].ravel(), theirs["PositionX"])
    np.testing.assert_array_equal(found["position_y"].ravel(), theirs["PositionY"])


def test_real_times_of_nifti_files(data):
    """Volumes follow at intervals of 2 s; the file stores no times of slices."""
    found = frame_facts(open_dataset(data / "nifti/functional.nii", roi=[0, 3, 59])).compute()
    np.testing.assert_array_equal(found["elapsed_time"], [0, 2, 38])
    assert found.dtype.names == ("elapsed_time",)
    for name in ("anatomical.nii", "standard.nii.gz"):
        with pytest.raises(DatasetError, match="has no times"):
            frame_facts(open_dataset(data / "nifti" / name))


@pytest.mark.parametrize(
    ("name", "date"),
    [
        ("test_hamamatsu_streak_SCAN.tif", "2022-02-09T18:39:41"),
        ("JEOL-SightX-TEM-mag-dummy.tif", "2019-11-27T16:11"),  # stored as 2019/11/27 16:11
    ],
)
def test_real_dates_of_tiff_files(data, name, date):
    found = frame_facts(open_dataset(data / "more/tiff" / name))
    assert found["time"].compute() == np.datetime64(date)


def test_real_footers_of_empad_files(data):
    """Footers are the last two rows of each record."""
    path = data / "empad/scan_x4_y4.raw"
    records = np.fromfile(path, "<f4").reshape(4, 4, 130, 128)
    found = frame_facts(open_dataset(path))["footer"].compute()
    np.testing.assert_array_equal(found, records[:, :, 128:])


@pytest.mark.parametrize(
    ("code", "order"), [(2, [4, 3, 2, 1, 0]), (3, [0, 3, 1, 4, 2]), (4, [2, 4, 1, 3, 0])]
)
def test_slices_of_a_volume(tmp_path, code, order):
    """Slice times follow nifti1.h; slices outside start and end have none."""
    volume = np.zeros((4, 4, 7, 2), "u1")
    image = nibabel.Nifti1Image(volume, None)
    image.header.set_xyzt_units("mm", "msec")
    image.header.set_dim_info(slice=2)
    image.header["pixdim"][4], image.header["toffset"] = 4000, 500
    for name, value in {"code": code, "start": 1, "end": 5, "duration": 250}.items():
        image.header[f"slice_{name}"] = value
    nibabel.save(image, tmp_path / "scan.nii")
    found = frame_facts(open_dataset(tmp_path / "scan.nii")).compute()
    np.testing.assert_array_equal(found["elapsed_time"][:, 0], [0.5, 4.5])
    assert np.isnan(found["slice_time"][:, [0, 6]]).all()
    np.testing.assert_array_equal(found["slice_time"][1, 1:6], 0.25 * np.array(order))


def test_planes_of_ome_tiff(tmp_path):
    """Lengths and times are converted to metres and seconds; values without units are renamed."""
    planes = [
        'TheT="1" ExposureTime="20" ExposureTimeUnit="ms" PositionX="5" PositionXUnit="µm"',
        'TheT="2" DeltaT="1.5" PositionX="7" PositionXUnit="reference frame" PositionZ="2"',
        'TheT="9" DeltaT="8"',
    ]
    inner = ome_writer.tiff_data() + "".join(f"<Plane {told}/>" for told in planes)
    first = ome_writer.image((1, 1, 1, 4, 4), '<TiffData/><Plane DeltaT="99"/>', dtype="u1")
    xml = ome_writer.image((3, 1, 1, 4, 4), inner, dtype="u1", number=1)
    path = tmp_path / "scan.ome.tif"
    xml = ome_writer.document(first + xml)
    ome_writer.write_pages(path, numbered(3, (4, 4)), xml)
    found = frame_facts(open_dataset(path, dataset=1)).compute()
    nan = np.nan
    expected = {
        "elapsed_time": [nan, nan, 1.5],
        "exposure_time": [nan, 0.02, nan],
        "position_x": [nan, 5e-6, nan],
        "stored_position_x": [nan, nan, 7],
        "stored_position_z": [nan, nan, 2],
    }
    assert found.dtype.names == tuple(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values)
    assert frame_facts(open_dataset(path, dataset=0)).compute()["elapsed_time"] == 99
    path.write_bytes(path.read_bytes().replace(b'"1.5"', b'"1,5"'))
    with pytest.raises(CorruptFileError, match=r"DeltaT of a Plane.*1,5"):
        frame_facts(open_dataset(path, dataset=1))


def test_planes_whose_files_are_missing(tmp_path):
    """Planes in present files keep their facts."""
    planes = np.arange(1, 7, dtype="u1").reshape(3, 2, 1, 1, 1) * np.ones((4, 4), "u1")
    paths = ome_writer.write_set(tmp_path, "scan", planes, [(0, 4), (1, 2), (3, 5)])
    told = "".join(
        f'<Plane TheT="{t}" TheC="{c}" TheZ="0" DeltaT="{planes[t, c, 0, 0, 0]}"/>'
        for t, c in np.ndindex(3, 2)
    )
    xml = tifffile.tiffcomment(paths[0]).replace("</Pixels>", f"{told}</Pixels>")
    tifffile.tiffcomment(paths[0], xml)
    paths[1].unlink()
    arr = open_dataset(paths[0], missing="fill")
    found = np.nan_to_num(frame_facts(arr)["elapsed_time"].compute())
    np.testing.assert_array_equal(found, [[1, 0], [0, 4], [5, 6]])
    np.testing.assert_array_equal(found, arr[..., 0, 0].compute())


def test_dates_of_tiff_pages(tmp_path):
    """Frames without a page of their own, zeros and blanks have no date."""
    frames = numbered(5, (8, 8))
    path = tmp_path / "scan.tif"
    tifffile.imwrite(path, frames, truncate=True, datetime="2020:01:02 03:04:05")
    found = frame_facts(open_dataset(path))["time"].compute()
    assert found[0] == np.datetime64("2020-01-02T03:04:05")
    assert np.isnat(found[1:]).all()
    dates = ["2020-01-02T03:04:05", "0000:00:00 00:00:00", "                   ", None, None]
    path.unlink()
    with tifffile.TiffWriter(path) as writer:
        for frame, date in zip(frames, dates, strict=True):
            extra = [] if date is None else [(306, 2, 0, date, True)]
            writer.write(frame, metadata=None, contiguous=False, extratags=extra)
    found = frame_facts(open_dataset(path, sync_offset=-1, missing="fill"))["time"].compute()
    assert found[1] == np.datetime64("2020-01-02T03:04:05")
    assert np.isnat(found[[0, 2, 3, 4]]).all()
    path.write_bytes(path.read_bytes().replace(b"2020-01-02", b"2020-13-02"))
    with refused(path, r"invalid DateTime.*2020-13-02", CorruptFileError, detailed=True):
        frame_facts(open_dataset(path))
    tifffile.imwrite(path, frames[0])
    with pytest.raises(DatasetError, match="the pages have no DateTime"):
        frame_facts(open_dataset(path))


def test_real_headers_of_tvips_files(data):
    """Facts cover the headers of all files of a series."""
    path = data / "tvips/test_tvips_2345_split_000.tvips"
    found = frame_facts(open_dataset(path, nav_shape=(6,))).compute()
    assert found["rotator_index"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["faraday"].tolist() == [23.0] * 6


def test_mrc_files_without_headers_of_sections(tmp_path):
    frames, path = numbered(4, (3, 5), "u2"), tmp_path / "scan.mrc"
    write_mrc(path, frames)
    with pytest.raises(DatasetError, match="no extended header for each section"):
        frame_facts(open_dataset(path))
    write_mrc(path, frames, extended=bytes(1024 * 128))
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DatasetError, match="compressed"):
        frame_facts(open_dataset(path))


def test_sections_of_serial_em(tmp_path):
    """Sections hold the fields whose bits the header sets, in IMOD's units."""
    places = (1, 2, 3), (25, -50)
    sections = b"".join(
        struct.pack("<8h", -150 + k, *places[0], *places[1], 80, 12500) + b"more" for k in range(4)
    )
    frames = numbered(4, (3, 5), "u2")
    path = write_mrc(tmp_path / "scan.mrc", frames, extended=sections, extended_type=b"SERI")
    content = bytearray(path.read_bytes())
    struct.pack_into("<2h", content, 128, 20, 1 | 2 | 4 | 8 | 16 | 32)
    path.write_bytes(content)
    found = frame_facts(open_dataset(path)).compute()
    assert found[["piece_x", "piece_y", "piece_z"]].tolist() == [places[0]] * 4
    np.testing.assert_allclose(found["tilt_angle"], [-1.5, -1.49, -1.48, -1.47])
    np.testing.assert_allclose(found["stage_x"], 1e-6)
    np.testing.assert_allclose(found["stage_y"], -2e-6)
    assert found["magnification"].tolist() == [8000] * 4
    assert found["intensity"].tolist() == [0.5] * 4
    for bit, names in enumerate([("tilt_angle",), found.dtype.names[1:4], ("stage_x", "stage_y")]):
        struct.pack_into("<h", content, 130, 1 << bit)
        path.write_bytes(content)
        assert frame_facts(open_dataset(path)).dtype.names == names


def test_only_headers_are_read(tmp_path, loads):
    path = write_mib(tmp_path / "scan.mib", numbered(30, (64, 64)), kind="U08", hdr=False)
    facts = frame_facts(open_dataset(path, io="counting", chunks=(7, -1, -1)))
    assert not loads
    assert facts.numblocks == (5,)
    facts.compute()
    assert loads.nbytes == 30 * 384


def test_facts_of_missing_frames(tmp_path):
    path = write_mib(tmp_path / "scan.mib", numbered(3), kind="U08", hdr=False)
    found = frame_facts(
        open_dataset(path, nav_shape=(2, 2), missing="fill", sync_offset=-1)
    ).compute()
    missing = found[0, 0]
    assert missing["sequence_number"] == missing["gain_mode"] == 0
    assert np.isnan(missing["exposure_time"])
    assert np.isnan(missing["thresholds"]).all()
    assert np.isnat(missing["time"])
    assert not missing["dacs"].any()
    none = frame_facts(open_dataset(path, nav_shape=(2,), sync_offset=99, missing="fill")).compute()
    assert np.isnat(none["time_utc"]).all()


MIB_ROWS = [row for row in manifest("Merlin MIB") if row["file"].endswith(".mib")]


@by_file(MIB_ROWS, "row")
def test_real_mib_headers(data, row):
    """Facts equal the fields of the header's text, and exposures equal RosettaSciIO's."""
    path = data / row["file"]
    arr = open_dataset(path, nav_shape=None)
    found = np.atleast_1d(frame_facts(arr).compute()).ravel()
    content = path.read_bytes()
    size = len(content) // len(found)
    for k, facts in enumerate(found):
        text = content[k * size : k * size + 768].split(b"\0")[0].decode().split(",")
        end = text.index("MQ1A")
        assert facts["sequence_number"] == int(text[1])
        assert facts["time"].item() == datetime.fromisoformat(text[9])
        assert facts["exposure_time"] == float(text[10]) == int(text[end + 2][:-2]) / 1e9
        assert facts["thresholds"].tolist() == list(map(float, text[14:22]))
        assert [*facts["dacs"].ravel()] == [int(t) for t in text[22:end] if t != "3RX"]
        assert facts["dacs"].shape == (int(text[3]), 27)
        assert str(facts["time_utc"]) + "Z" == text[end + 1]
    reader = pytest.importorskip("rsciio.quantumdetector", reason="RosettaSciIO is not installed")
    if arr.description.metadata["mib"]["header"]["pixel type"] != "R64":
        _, headers = reader.load_mib_data(str(path), return_headers=True)
        theirs = reader.parse_exposures(np.ravel(headers).tolist())
        np.testing.assert_allclose(found["exposure_time"] * 1000, theirs)


def test_header_fields_of_varying_length(tmp_path):
    path = write_mib(tmp_path / "scan.mib", numbered(6), kind="U08", hdr=False)
    change(path, 2, b",0.001000,", b",10.00100,")
    change(path, 3, b"1000000ns,6,\0", b"22000000ns,6,")
    change(path, 4, b"2.000000E+0", b"-2.00000E+1")
    change(path, 5, b"1000000ns", b"1000000xn")  # unknown unit: the field in seconds is read
    found = frame_facts(open_dataset(path)).compute()
    np.testing.assert_array_equal(found["exposure_time"], [1e-3, 1e-3, 1e-3, 22e-3, 1e-3, 1e-3])
    np.testing.assert_array_equal(found["thresholds"][:, 0], [2, 2, 2, 2, -20, 2])
    np.testing.assert_array_equal(found["sequence_number"], np.arange(1, 7))


def change(path, frame, old, new):
    """Overwrite bytes in the header of a frame."""
    assert len(old) == len(new)
    content = bytearray(path.read_bytes())
    size = 384 + 128
    start = frame * size
    at = content.index(old, start, start + 384)
    content[at : at + len(old)] = new
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"2020-01-01 ", b"2020-13-01 "),
        (b"MQ1,000003", b"MQ1,00x003"),
        (b"2.000000E+0", b"2,000000E+0"),
        (b"3RX,011", b"3RX,x11"),
        (b"3RX,011,", b"3RX,011 "),
    ],
)
def test_errors_name_the_invalid_header(tmp_path, old, new):
    path = write_mib(tmp_path / "scan.mib", numbered(6), kind="U08", hdr=False)
    change(path, 2, old, new)
    facts = frame_facts(open_dataset(path, sync_offset=1, nav_shape=(4,)))
    with refused(path, "header of frame 2, at byte 1024", CorruptFileError, detailed=True):
        facts.compute()
    assert facts[2:].shape == (2,)


def test_arrays_without_headers_are_refused(tmp_path):
    np.save(path := tmp_path / "scan.npy", np.zeros((3, 4, 4)))
    arr = open_dataset(path)
    with refused(path, "frames of this format have no headers", detailed=True) as caught:
        frame_facts(arr)
    assert re.search("mib", caught.value.expected)
    for other in (arr + 1, da.ones(3), np.ones(3)):
        with pytest.raises(DatasetError, match="no frame headers; expected an array from open_"):
            frame_facts(other)
    path = write_mib(tmp_path / "scan.mib", numbered(3), kind="U08", hdr=False)
    with pytest.raises(DatasetError, match="volumes have no frame headers"):
        frame_facts(dask_tiled.open_volumes([path, path]))


def test_facts_of_growing_files(tmp_path):
    path = write_mib(tmp_path / "scan.mib", numbered(6), kind="U08", hdr=False)
    whole = path.read_bytes()
    path.write_bytes(whole[: 3 * 512])
    arr = open_dataset(path, follow=True)
    assert len(frame_facts(arr).compute()) == 3
    path.write_bytes(whole)
    arr = arr.refresh()
    assert frame_facts(arr)["sequence_number"].compute().tolist() == [1, 2, 3, 4, 5, 6]
