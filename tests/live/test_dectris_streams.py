"""Series of DECTRIS detectors: compressed frames as they came, in files that are followed."""

import json
import shutil
from contextlib import nullcontext

import cbor2
import h5py
import hdf5plugin  # noqa: F401 - filters of h5py
import numpy as np
import psutil
import pytest
from mutating import receive, receiver_of
from played_series import framed, stream_v1, write_played_series

import dask_tiled
from dask_tiled import StreamError
from dask_tiled.live.dectris import DectrisReceiver
from dask_tiled.live.outputs import Bound
from dask_tiled.live.series import WrongMessageError
from dask_tiled.live.stream_v1 import read_parts
from dask_tiled.testing import counting_frames, play
from dask_tiled.testing.playing import dectris_messages, pushing

SECONDS = 300
FRAMES = counting_frames((24, 16, 24), "uint16")
SMALL = (18).to_bytes(8, "big") + bytes(9)
MASK = (np.arange(16 * 24).reshape(16, 24) == 40).astype("u4")
CASES = {
    "bslz4": FRAMES,
    "lz4": FRAMES.astype("u4") * 70_000,
    "bslz4 u1": (FRAMES % 251).astype("u1"),
    "bslz4 two": np.stack([FRAMES, FRAMES // 2], axis=1),
}


def played(name, folder):
    """Write the file of a case."""
    return write_played_series(folder / "played.h5", CASES[name], name.partition(" ")[0], MASK)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_stream_v2(tmp_path, name):
    frames = CASES[name]
    nav = {"nav_shape": (4, 6)} if frames.ndim == 3 else {}
    with (
        play(played(name, tmp_path)) as url,
        dask_tiled.record(url, tmp_path / "a.h5", **nav) as recording,
    ):
        assert recording.wait(SECONDS)
    assert recording.progress[:3] == (24, 24, 0)
    arr = recording.array
    np.testing.assert_array_equal(arr.reshape(frames.shape), frames)
    assert [(axis.name, axis.units, axis.scale) for axis in arr.axes[-2:]] == [
        ("y", "m", 5e-5),
        ("x", "m", 1e-4),
    ]
    assert "200000 eV" in str(arr.instrument)
    with h5py.File(tmp_path / "a.h5") as file, h5py.File(tmp_path / "played.h5") as source:
        written, sent = (one["entry/data/data_000001"] for one in (file, source))
        np.testing.assert_array_equal(written[...], frames)  # by the library
        place = (5,) + (0,) * (frames.ndim - 1)
        assert written.id.read_direct_chunk(place) == sent.id.read_direct_chunk(place)
        assert file["entry/instrument/detector/threshold_energy"][()] == 40_000
        group = "entry/instrument/detector"
        if frames.ndim == 4:
            group = f"{group}/0_channel"
        np.testing.assert_array_equal(file[f"{group}/pixel_mask"][...], MASK)
    assert group in str(arr.metadata["hdf5"]["detector"])


@pytest.mark.thorough
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("name", ["bslz4", "lz4"])
def test_stream_v1(tmp_path, name, split):
    path = played(name, tmp_path)
    messages = stream_v1(path, split=split, mask=None if split else MASK)
    with (
        pushing(messages) as port,
        dask_tiled.record(f"dectris://127.0.0.1:{port}", tmp_path / "a.h5") as recording,
    ):
        assert recording.wait(SECONDS)
    np.testing.assert_array_equal(recording.array, CASES[name])
    assert ("pixel_mask" in str(recording.array.metadata["hdf5"].get("detector"))) != split
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["entry/instrument/beam/incident_energy"][()] == 200_000
        assert file["entry/instrument/detector/description"][()] == b"ARINA"


@pytest.mark.parametrize(("width", "is_refused"), [((1 << 15) - 1, False), (1 << 15, True)])
def test_the_longest_block_of_lz4(width, is_refused):
    """The filter of HDF5 decodes blocks of less than 2 GiB."""
    pixels = {"shape": [width, 1 << 16], "type": "uint8", "encoding": "lz4<"}
    parts = {"htype": "dimage-1.0", "series": 1, "frame": 0}, pixels
    message = [*(json.dumps(part).encode() for part in parts), b"block"]
    with pytest.raises(WrongMessageError, match="shape") if is_refused else nullcontext():
        assert read_parts(message).channels["threshold_1"].shape == (1 << 16, width)


def messages_v2(folder, change=None):
    """Return the messages of stream V2, perhaps changed."""
    told = [cbor2.loads(one) for one in dectris_messages(played("bslz4", folder))]
    changed = [*change(told)] if change else told
    return [[one if isinstance(one, bytes) else cbor2.dumps(one)] for one in changed]


def at(number, **fields):
    """Return a function that changes fields of a message."""

    def change(told):
        return [one | fields if k == number else one for k, one in enumerate(told)]

    return change


def array(shape=(16, 24), tag=69, algorithm="bslz4", itemsize=2, data=None):
    """Return an image message's array."""
    data = (2 * 16 * 24).to_bytes(8, "big") + bytes(99) if data is None else data
    packed = cbor2.CBORTag(56500, [algorithm, itemsize, data])
    return {"threshold_1": cbor2.CBORTag(40, [[*shape], cbor2.CBORTag(tag, packed)])}


def numbered_v2(count):
    """Messages of a series as the detector sends them, with times, and its frames."""
    rng, frames = np.random.default_rng(0), counting_frames((count, 16, 24), "uint16")
    common = {"series_id": 5, "series_unique_id": "01HW"}
    yield common | {"type": "start", "number_of_images": count, "channels": ["a", "b"]}
    for number, frame in enumerate(frames):
        raw = {
            name: cbor2.CBORTag(40, [[16, 24], cbor2.CBORTag(69, pixels.tobytes())])
            for name, pixels in (("a", frame), ("b", frame + 1))
        }
        times = {"real_time": rng.integers(0, 1 << 40, 2).tolist(), "start_time": [number, 10**8]}
        yield common | {"type": "image", "image_id": number} | times | {"data": raw}
    yield common | {"type": "end"}


def numbered_v1(folder, count):
    frames = counting_frames((count, 16, 24), "uint16")
    for number, parts in enumerate(stream_v1(write_played_series(folder / "played.h5", frames))):
        yield [parts[0].replace(b"0" * 32, b"%032x" % (number * 999)), *parts[1:]]


@pytest.mark.parametrize("version", [1, 2])
def test_images_that_are_alike(tmp_path, monkeypatch, version):
    """All but the first are written as they lie in the stream; what is unusual is parsed."""
    count, parsed = 300, []
    messages = (
        [*numbered_v1(tmp_path, count)]
        if version == 1
        else [[cbor2.dumps(one)] for one in numbered_v2(count)]
    )
    take = DectrisReceiver.take
    monkeypatch.setattr(
        DectrisReceiver, "take", lambda self, parts: parsed.append(parts) or take(self, parts)
    )
    swapped = [*messages]
    swapped[40], swapped[41] = swapped[41], swapped[40]
    for order, long in ((messages, 3), (swapped, 5)):
        parsed.clear()
        receiver = receiver_of(f"stream V{version}", tmp_path)
        assert receive(receiver, b"".join(map(framed, order))) is None
        assert (receiver.is_complete, receiver.progress.frames) == (True, count)
        assert len(parsed) == long + (version == 1)
        with h5py.File(tmp_path / "recorded.h5") as file:
            written = file["entry/data/data_000001"][...]
        frames = counting_frames((count, 16, 24), "uint16")
        expected = frames if version == 1 else np.stack([frames, frames + 1], axis=1)
        np.testing.assert_array_equal(written, expected)


LIES = {
    "longer part": (b"\1]{", b"\1^{"),
    "other type": (b'"uint16"', b'"uint17"'),
    "other frame": (b'"frame": 7', b'"frame": 9999'),
    "fewer bytes of pixels": ((768).to_bytes(8, "big"), (767).to_bytes(8, "big")),
    "a command inside": (b"\0009{", b"\0049{"),
}


@pytest.mark.parametrize("name", LIES)
def test_alike_images_that_lie(tmp_path, name):
    """They are refused as any image is."""
    old, new = LIES[name]
    messages = [*map(framed, numbered_v1(tmp_path, 12))]
    wrong = messages[9].replace(old, new)
    assert wrong != messages[9]
    receiver = receiver_of("stream V1", tmp_path)
    data = b"".join([*messages[:9], wrong, *messages[10:]])
    assert isinstance(receive(receiver, data), StreamError)
    assert receiver.progress.frames == 7


FAULTS = {
    "another start": (lambda told: [*told[:9], told[0]], 8, "another acquisition has begun"),
    "another series": (at(9, series_id=7), 8, "series, at frame 8 of the series; expected 1"),
    "a number beyond the end": (at(9, image_id=24), 8, "number of the frame"),
    "a negative number": (at(9, image_id=-1), 8, "image_id"),
    "a number that is text": (at(9, image_id="8"), 8, "image_id"),
    "no data": (at(9, data=None), 8, "data"),
    "another channel": (at(9, data={"x": array()["threshold_1"]}), 8, "channels"),
    "another size": (at(9, data=array((16, 48))), 8, "bytes of the pixels"),
    "a transposed frame": (at(9, data=array((24, 16))), 8, "the frames differ"),
    "another type": (at(9, data=array((8, 24), 70, itemsize=4)), 8, "the frames differ"),
    "another element size": (at(9, data=array(itemsize=4)), 8, "element size"),
    "another compression": (at(9, data=array(algorithm="zstd")), 8, "compression"),
    "a huge frame": (at(9, data=array((1 << 40, 24))), 8, "shape"),
    "no array": (at(9, data={"threshold_1": 5}), 8, "an array"),
    "another tag": (at(9, data=array(tag=86)), 8, "type of the pixels"),
    "no compressed bytes": (at(9, data=array(data="text")), 8, "pixels"),
    "half a message": (lambda told: [*told[:9], cbor2.dumps(told[9])[:50]], 8, "encoding"),
    "no message": (lambda told: [*told[:9], b""], 8, "content"),
    "no series": (at(0, series_id=None), 0, "series_id"),
    "no number of frames": (at(0, number_of_images="many"), 0, "number_of_images"),
    "too many frames": (at(0, number_of_images=1 << 32), 0, "number of frames"),
    "a mask of another shape": (at(0, pixel_mask=array((3, 3), data=SMALL)), 0, "the pixel mask"),
    "two masks": (at(0, pixel_mask={**array(), "b": array()["threshold_1"]}), 0, "pixel_mask"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_keep_what_has_come(tmp_path, name):
    change, count, message = FAULTS[name]
    receiver = DectrisReceiver("dectris://test:1", str(tmp_path / "a.h5"), Bound())
    with pytest.raises(StreamError, match="dectris://test:1: ") as caught:
        [*map(receiver.take, messages_v2(tmp_path, change))]
    receiver.close()
    assert message in str(caught.value)
    assert receiver.progress.frames == count
    assert (tmp_path / "a.h5").exists() == bool(count)
    if count:
        arr = dask_tiled.open_dataset(tmp_path / "a.h5", missing="fill")
        np.testing.assert_array_equal(arr[:count], FRAMES[:count])
        assert arr.description.missing.tolist() == [*range(count, 24)]


def test_lost_and_late_frames(tmp_path):
    """Frames are where their numbers are, whatever their order; what is lost is missing."""
    told = messages_v2(tmp_path)
    start, images, end = told[0], told[1:-1], told[-1]
    path = tmp_path / "a.h5"
    receiver = DectrisReceiver("dectris://test:1", str(path), Bound())
    order = [0, 1, 5, 4, 1, 9]
    for parts in [end, images[3], start, *(images[k] for k in order)]:
        receiver.take(parts)
    receiver.flush()
    came = sorted({*order})
    arr = dask_tiled.open_dataset(path, nav_shape=(4, 6), follow=True, missing="fill")
    assert arr.description.missing.tolist() == [k for k in range(24) if k not in came]
    np.testing.assert_array_equal(arr.reshape(24, 16, 24)[came], FRAMES[came])
    progress = receiver.progress
    assert (progress.frames, progress.lost, progress.repeated) == (5, 5, 1)
    assert progress.skipped == len(end[0]) + len(images[3][0])
    receiver.take(images[12])
    receiver.flush()
    later = arr.refresh()
    assert len(arr.description.missing) - len(later.description.missing) == 1
    np.testing.assert_array_equal(later[2, 0], FRAMES[12])
    assert not receiver.take(end)
    receiver.close()
    assert receiver.is_complete


def renumbered(image, number):
    """Return the message of an image with another number."""
    return [cbor2.dumps(cbor2.loads(image[0]) | {"image_id": number})]


def test_a_jump_in_a_series_of_unknown_length(tmp_path):
    """A series without a number of frames may lose 2**20 at once."""
    start, image = messages_v2(tmp_path, at(0, number_of_images=0))[:2]
    receiver = DectrisReceiver("dectris://test:1", str(tmp_path / "a.h5"), Bound())
    [*map(receiver.take, (start, image, renumbered(image, 1 + (1 << 20))))]
    assert (receiver.progress.lost, receiver.progress.expected) == (1 << 20, 0)
    with pytest.raises(StreamError, match="number of the frame"):
        receiver.take(renumbered(image, 3 + (1 << 21)))
    receiver.close()


@pytest.mark.thorough
def test_the_largest_frame(tmp_path):
    """An EIGER2 16M's of 32 bits, not compressed."""
    shape = (4362, 4148)
    frame = np.arange(shape[0] * shape[1], dtype="<u4").reshape(shape)
    raw = {"a": cbor2.CBORTag(40, [[*shape], cbor2.CBORTag(70, frame.tobytes())])}
    start = {"type": "start", "series_id": 1, "number_of_images": 1, "channels": ["a"]}
    image = {"type": "image", "series_id": 1, "image_id": 0, "data": raw}
    receiver = receiver_of("stream V2", tmp_path)
    stream = b"".join(framed([cbor2.dumps(one)]) for one in (start, image))
    assert receive(receiver, stream, 16) is None
    with h5py.File(tmp_path / "recorded.h5") as file:
        np.testing.assert_array_equal(file["entry/data/data_000001"][0], frame)


def test_a_far_frame(tmp_path):
    """Many lost frames take no memory each; late ones are placed among them."""
    start, image = messages_v2(tmp_path, at(0, number_of_images=(1 << 32) - 1))[:2]
    receiver = DectrisReceiver("dectris://test:1", str(tmp_path / "a.h5"), Bound())
    receiver.take(start)
    for number in (0, 4 * 10**9, 5, 7, 6, 5, 6):
        receiver.take(renumbered(image, number))
    progress = receiver.progress
    assert (progress.lost, progress.repeated) == (4 * 10**9 + 1 - 5, 2)
    receiver.close()


@pytest.mark.thorough
def test_a_series_that_ends_early(tmp_path):
    told = messages_v2(tmp_path)
    with (
        pushing([*told[:11], told[-1]]) as port,
        dask_tiled.record(f"dectris://127.0.0.1:{port}", tmp_path / "a.h5") as recording,
        pytest.warns(dask_tiled.MissingFramesWarning, match="14 of 24 frames are missing"),
    ):
        assert recording.wait(SECONDS)
    assert recording.state == "complete"


def test_bound(tmp_path):
    told = messages_v2(tmp_path)
    room = sum(len(parts[0]) for parts in told[1:9])
    receiver = DectrisReceiver("dectris://test:1", str(tmp_path / "a.h5"), Bound(room))
    with pytest.raises(StreamError, match="the recording is full"):
        [*map(receiver.take, told)]
    receiver.close()
    assert 8 <= receiver.progress.frames < 24
    assert receiver.progress.nbytes <= room


@pytest.mark.thorough
def test_a_full_disk(tmp_path):
    """The receiver inherits the limit of the size of files; what it has allocated suffices."""
    resource = pytest.importorskip("resource")
    frames = np.random.default_rng(0).integers(0, 1 << 16, (400, 256, 256), "u2")
    path = write_played_series(tmp_path / "played.h5", frames)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (48 << 20, before[1]))
    try:
        with play(path) as url, dask_tiled.record(url, tmp_path / "a.h5") as recording:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            with pytest.raises(StreamError, match="the disk is full"):
                recording.wait(SECONDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    count = recording.progress.frames
    assert count > 100
    assert recording.array.description.missing.tolist() == [*range(count, 400)]
    np.testing.assert_array_equal(recording.array[:count], frames[:count])


@pytest.mark.thorough
@pytest.mark.parametrize("room", [500, 8_000])
def test_a_disk_that_is_full_before_the_first_frame(tmp_path, room):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pushing([]) as port:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            with pytest.raises(StreamError, match=r"the disk is full; .* It needs 40 MiB to begin"):
                dask_tiled.record(f"dectris://127.0.0.1:{port}", tmp_path / "a.h5")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.iterdir()]


def test_facts_that_hdf5_does_not_store(tmp_path):
    told = messages_v2(tmp_path, at(0, detector_description="a\0b", user=1 << 80, **{"x\0": "y"}))
    receiver = DectrisReceiver("dectris://test:1", str(tmp_path / "a.h5"), Bound())
    [*map(receiver.take, told)]
    receiver.close()
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["entry/instrument/detector/description"][()] == rb"a\x00b"


def slowly(messages):
    """Yield a start and some images; then nothing comes."""
    yield from messages[:9]
    while True:
        yield [cbor2.dumps({"type": "other", "series_id": 1})]


@pytest.mark.thorough
def test_a_killed_receiver(tmp_path):
    with (
        pushing(slowly(messages_v2(tmp_path)), interval=0.02) as port,
        dask_tiled.record(f"dectris://127.0.0.1:{port}", tmp_path / "a.h5") as recording,
    ):
        while recording.progress.frames < 8:
            recording.wait(0.01)
        arr = recording.array
        copy = shutil.copy(tmp_path / "a.h5", tmp_path / "copy.h5")
        (child,) = (
            one for one in psutil.Process().children() if "live.receiver" in str(one.cmdline())
        )
        child.kill()
        with pytest.raises(StreamError, match="the receiver has died"):
            recording.wait(SECONDS)
    for path in (tmp_path / "a.h5", copy):
        whole = dask_tiled.open_dataset(path, missing="fill", doubts="ignore")
        np.testing.assert_array_equal(whole[:8], FRAMES[:8])
        assert whole.description.missing.tolist() == [*range(8, 24)]
    np.testing.assert_array_equal(arr[:8], FRAMES[:8])


@pytest.mark.thorough
def test_a_detector_that_ends(tmp_path):
    with (
        pushing(messages_v2(tmp_path)[:9]) as port,
        dask_tiled.record(f"dectris://127.0.0.1:{port}", tmp_path / "a.h5") as recording,
    ):
        while recording.progress.frames < 8:
            recording.wait(0.01)
    assert recording.state == "stopped"
    with pushing([]) as port:
        url = f"dectris://127.0.0.1:{port}"
        recording = dask_tiled.record(url, tmp_path / "b.h5")
    with recording, pytest.raises(StreamError, match="has closed the connection"):
        recording.wait(SECONDS)
