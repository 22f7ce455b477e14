"""What the headers of frames say is an array, whose frames are those of the pixels."""

import contextlib
import gzip
import os
import re
import struct
from datetime import datetime

import dask.array as da
import numpy as np
import pytest
from checks import assert_names
from hypothesis import given, settings
from hypothesis import strategies as st
from manifest import by_file, manifest
from strategies import basic_indices, selections

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, frame_facts, open_dataset
from dask_tiled.testing import (
    write_blo,
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
    """Frames of which every pixel is their number, from 1 on: 0 is a missing one."""
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


def counted(times, first, step):
    """Turn times into numbers of frames; no time is 0."""
    return (np.where(np.isnat(times), first - step, times.astype("i8")) - first) // step + 1


# Of each format, what writes it, and what of its headers counts the frames.
WRITERS = {
    "mib": (mib, lambda facts: facts["sequence_number"]),
    "tvips": (tvips, lambda facts: counted(facts["time_utc"], 1_700_000_000_000_000, 20_000)),
    "ser": (ser, lambda facts: counted(facts["time_utc"], 1_456_150_000, 1)),
    "seq": (seq, lambda facts: counted(facts["time_utc"], 1_660_245_687_000_000, 1000)),
    "frms6": (frms6, lambda facts: counted(facts["time_utc"], 1_600_000_000_000_250, 1_000_000)),
    "blo": (blo, lambda facts: facts["number"] + 1),
}


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=15)
@given(data=st.data())
def test_headers_are_those_of_the_frames_that_are_shown(tmp_path_factory, name, data):
    """What counts the frames in the headers says what the pixels say, however they are shown."""
    write, number_of = WRITERS[name]
    frames = numbered(data.draw(st.integers(2, 20)))
    path = write(tmp_path_factory.mktemp("headers"), data.draw, frames)
    nav_shape, sync_offset, roi = data.draw(selections())
    options = {"nav_shape": nav_shape, "sync_offset": sync_offset, "roi": roi}
    arr = open_dataset(path, **options, missing="fill", chunks=-1)
    numbers = arr[..., 0, 0].compute()
    least = name == "blo"  # 0 is the number of the first frame, and of none
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
    """The first block of a frame tells, wherever the sectors begin."""
    frames = np.zeros((4, 1860, 2048), "u2")
    late = (40, 0, 0, 33, 0, 0, 0, 1)
    path = write_k2is(tmp_path / "scan_", frames, shutter_from=3, late=late, gtg=False)[0]
    found = frame_facts(open_dataset(path, nav_shape=(3,), missing="fill")).compute()
    there = found["number"] > 0
    np.testing.assert_array_equal(np.diff(found["number"][there]), 1)
    np.testing.assert_array_equal(np.diff(found["block_count"][there].astype("i8")), 32)
    assert found["number"].max() == 20


def test_real_tags_of_ser_files(data):
    """Times and positions are those that RosettaSciIO finds in the tags."""
    path = data / "ser/old/16x16-spectrum_image-5x5x1024_1.ser"
    found = frame_facts(open_dataset(path)).compute()
    reader = pytest.importorskip("rsciio.tia._api", reason="RosettaSciIO is not installed")
    _, theirs = reader.load_ser_file(str(path))
    np.testing.assert_array_equal(found["time_utc"].ravel().astype("i8"), theirs["Time"])
    np.testing.assert_array_equal(found["position_x"].ravel(), theirs["PositionX"])
    np.testing.assert_array_equal(found["position_y"].ravel(), theirs["PositionY"])


def test_real_headers_of_tvips_files(data):
    """Headers of all files of a series say what RosettaSciIO reads of them."""
    path = data / "tvips/test_tvips_2345_split_000.tvips"
    found = frame_facts(open_dataset(path, nav_shape=(6,))).compute()
    assert found["rotator_index"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["faraday"].tolist() == [23.0] * 6


@pytest.mark.parametrize("kind", [b"FEI1", b""])
def test_extended_headers_of_mrc_files(tmp_path, kind):
    record = np.zeros(4 if kind else 1024, ("V768" if kind else "V128"))
    content = bytearray(record.tobytes())
    for k in range(4):
        at = k * record.itemsize
        struct.pack_into("<i" if kind else "<f", content, at, 768 if kind else 1.5 * k)
        if kind:
            struct.pack_into("<d", content, at + 100, 1.5 * k)
    path = tmp_path / "scan.mrc"
    write_mrc(path, numbered(4, (3, 5), "u2"), extended=bytes(content), extended_type=kind)
    facts = frame_facts(open_dataset(path, roi=[3, 0]))
    np.testing.assert_array_equal(facts["alpha_tilt"].compute(), [4.5, 0.0])
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DatasetError, match="compressed"):
        frame_facts(open_dataset(path))
    path = write_mrc(tmp_path / "plain.mrc", numbered(4, (3, 5), "u2"))
    with pytest.raises(DatasetError, match="no extended header for each section"):
        frame_facts(open_dataset(path))


def test_sections_of_serial_em(tmp_path):
    """Sections hold what bits of the header name, in IMOD's units."""
    sections = b"".join(struct.pack("<4h", -150 + k, 25, -50, 80) + b"more" for k in range(4))
    frames = numbered(4, (3, 5), "u2")
    path = write_mrc(tmp_path / "scan.mrc", frames, extended=sections, extended_type=b"SERI")
    content = bytearray(path.read_bytes())
    struct.pack_into("<2h", content, 128, 12, 1 | 4 | 8 | 32)
    path.write_bytes(content)
    found = frame_facts(open_dataset(path)).compute()
    assert found.dtype.names == ("tilt_angle", "stage_x", "stage_y", "magnification")
    np.testing.assert_allclose(found["tilt_angle"], [-1.5, -1.49, -1.48, -1.47])
    np.testing.assert_allclose(found["stage_x"], 1e-6)
    np.testing.assert_allclose(found["stage_y"], -2e-6)
    assert found["magnification"].tolist() == [8000] * 4


def test_headers_alone_are_read(tmp_path, loads):
    path = write_mib(tmp_path / "scan.mib", numbered(30, (64, 64)), kind="U08", hdr=False)
    facts = frame_facts(open_dataset(path, io="counting", chunks=(7, -1, -1)))
    assert not loads
    assert facts.numblocks == (5,)
    facts.compute()
    assert loads.nbytes == 30 * 384


def test_missing_headers_say_nothing(tmp_path):
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


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_everywhere(tmp_path, scheduler, processes):
    path = write_mib(tmp_path / "scan.mib", numbered(30), kind="U08", hdr=False)
    facts = frame_facts(open_dataset(path, chunks=(7, -1, -1)))
    again = frame_facts(open_dataset(path, chunks=(7, -1, -1)))
    assert facts.name == again.name
    options = processes if scheduler == "processes" else {"scheduler": scheduler}
    times = facts["time"].compute(**options)
    np.testing.assert_array_equal(np.diff(times), np.timedelta64(1, "ms"))


MIB_ROWS = [row for row in manifest("Merlin MIB") if row["file"].endswith(".mib")]


@by_file(MIB_ROWS, "row")
def test_real_mib_headers(data, row):
    """Fields stand where text editors show them, and RosettaSciIO reads the same exposures."""
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


def test_headers_of_other_lengths(tmp_path):
    """Values are found in each header; numbers may have more digits in one than in another."""
    path = write_mib(tmp_path / "scan.mib", numbered(6), kind="U08", hdr=False)
    change(path, 2, b",0.001000,", b",10.00100,")
    change(path, 3, b"1000000ns,6,\0", b"22000000ns,6,")
    change(path, 4, b"2.000000E+0", b"-2.00000E+1")
    found = frame_facts(open_dataset(path)).compute()
    np.testing.assert_array_equal(found["exposure_time"], [1e-3, 1e-3, 1e-3, 22e-3, 1e-3, 1e-3])
    np.testing.assert_array_equal(found["thresholds"][:, 0], [2, 2, 2, 2, -20, 2])
    np.testing.assert_array_equal(found["sequence_number"], np.arange(1, 7))


def change(path, frame, old, new):
    """Overwrite a part of the header of a frame."""
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
        (b"1000000ns", b"1000000xns"[:9]),
        (b"3RX,011", b"3RX,x11"),
        (b"3RX,011,", b"3RX,011 "),
    ],
)
def test_a_wrong_header_is_named(tmp_path, old, new):
    path = write_mib(tmp_path / "scan.mib", numbered(6), kind="U08", hdr=False)
    change(path, 2, old, new)
    facts = frame_facts(open_dataset(path, sync_offset=1, nav_shape=(4,)))
    if new == b"1000000xn":  # without a unit, the other field tells
        assert facts.compute()["exposure_time"][1] == 1e-3
        return
    with pytest.raises(CorruptFileError, match="header of frame 2, at byte 1024") as caught:
        facts.compute()
    assert_names(caught.value, path)
    assert facts[2:].shape == (2,)


def test_random_damage(tmp_path):
    """Whatever stands in a header, it is read, or an error says why not."""
    path = write_mib(tmp_path / "scan.mib", numbered(6), kind="U08", hdr=False)
    whole = path.read_bytes()
    random = np.random.default_rng(5)
    for _ in range(150):
        content = bytearray(whole)
        for at in random.integers(512, 512 + 330, 3):
            content[at] = random.choice(list(b",,0 9\0-.eZ\xff"))
        path.write_bytes(content)
        os.utime(path, ns=(0, int(random.integers(1 << 40))))
        with contextlib.suppress(DatasetError):
            frame_facts(open_dataset(path)).compute()


def test_what_has_no_headers(tmp_path):
    np.save(tmp_path / "scan.npy", np.zeros((3, 4, 4)))
    arr = open_dataset(tmp_path / "scan.npy")
    with pytest.raises(DatasetError, match="frames of this format have no headers") as caught:
        frame_facts(arr)
    assert_names(caught.value, tmp_path / "scan.npy")
    assert re.search("mib", caught.value.expected)
    for other in (arr + 1, da.ones(3), np.ones(3)):
        with pytest.raises(DatasetError, match="no frame headers; expected an array from open_"):
            frame_facts(other)


def test_of_files_that_grow(tmp_path):
    path = write_mib(tmp_path / "scan.mib", numbered(6), kind="U08", hdr=False)
    whole = path.read_bytes()
    path.write_bytes(whole[: 3 * 512])
    arr = open_dataset(path, follow=True)
    assert len(frame_facts(arr).compute()) == 3
    path.write_bytes(whole)
    arr = arr.refresh()
    assert frame_facts(arr)["sequence_number"].compute().tolist() == [1, 2, 3, 4, 5, 6]


def test_it_is_what_the_package_gives():
    assert dask_tiled.frame_facts is frame_facts
