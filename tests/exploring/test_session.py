"""Sessions answer the messages of a page from their own threads."""

import io
import json
import threading
import time
import zipfile

import dask.array as da
import numpy as np
import pytest
import tifffile
from checks import wait_for
from range_server import serving

from dask_tiled import open_dataset
from dask_tiled.exploring.estimates import RATE
from dask_tiled.exploring.messages import LARGEST, picture_message
from dask_tiled.exploring.pictures import Pictures
from dask_tiled.exploring.session import PageSession
from dask_tiled.model.axes import Axis
from dask_tiled.opened.axes import labelled
from dask_tiled.reading.counting import counted
from dask_tiled.testing import Tile, counting_frames, write_czi, write_lif, write_mib

PIXELS = np.random.default_rng(0).integers(0, 99, (6, 7, 16, 20), "u2")
OURS = "image", "frame", "exploring", "growing"


class Page(list):
    """Records the messages of a session, and sends requests."""

    def __init__(self, data, **options):
        super().__init__()
        self.session = PageSession(Pictures.of(data, options), self.append, **options)
        self.session.begin()
        self.rest()

    def rest(self):
        # The first job starts further jobs.
        assert self.session.wait(300)
        assert self.session.wait(300)

    def ask(self, **changes):
        told = self.session.state.as_json()
        detector = {**told["detector"], **changes.pop("detector", {})}
        detector = {key: [*x] if isinstance(x, tuple) else x for key, x in detector.items()}
        lists = {key: [*told[key]] for key in ("sliders", "position")}
        message = {"type": "show", "region": None, "id": 1, **lists, "detector": detector}
        self.session.receive({**message, **changes})
        self.rest()

    def last(self, kind):
        message = [one for one in self if one.kind == kind][-1]
        if not message.data:
            return message.head
        values = np.frombuffer(message.data, message.head["dtype"])
        return values.reshape(message.head["shape"])


@pytest.fixture
def scan(tmp_path):
    return open_dataset(write_mib(tmp_path / "scan.mib", PIXELS))


@pytest.fixture
def page(scan):
    made = Page(scan)
    yield made
    made.session.close()
    left = [one.name for one in threading.enumerate()]
    assert not [name for name in left if name.startswith(OURS)]


def test_session_starts_with_both_pictures(page):
    assert page[0].kind == "scene"
    assert page[0].head["pictures"] == ["data"]
    assert [axis["name"] for axis in page[0].head["axes"]] == ["scan_y", "scan_x", "y", "x"]
    assert page.last("image").shape == (6, 7)
    assert np.array_equal(page.last("frame"), PIXELS[3, 3])


@pytest.mark.thorough
def test_image_at_rest_is_exact(page, scan):
    page.ask(detector={"shape": "ring", "center": [7.2, 9.1], "radius": 6.3, "inner": 2.1})
    session = page.session
    image = (scan * session.mask).sum(axis=(-2, -1)).compute()
    assert session.image().dtype == image.dtype
    assert np.array_equal(session.image(), image)
    assert np.array_equal(page.last("image"), image.astype("f4"))
    head = [one.head for one in page if one.kind == "image"][-1]
    assert (head["exact"], head["share"], head["id"]) == (True, 1.0, 1)
    assert head["code"] == session.code()


def test_known_pictures_are_not_computed_again(page):
    count = len([one for one in page if one.kind == "image"])
    page.ask(position=[1, 2])
    assert np.array_equal(page.last("frame"), PIXELS[1, 2])
    assert len([one for one in page if one.kind == "image"]) == count
    page.ask()
    assert page[-1].head == {"type": "known", "kinds": ["image", "frame"], "id": 1}


def test_sized_disk_calibrates_the_frame(page, scan):
    page.ask(detector={"shape": "disk", "center": [7.5, 9.25], "radius": 5.0})
    before = page.last("image")
    page.session.receive({"type": "calibrate", "size": "20 mrad"})
    page.rest()
    axes = [one.head for one in page if one.kind == "scene"][-1]["axes"][2:]
    assert [(one["scale"], one["units"], one["offset"]) for one in axes] == [
        (4.0, "mrad", -30.0),
        (4.0, "mrad", -37.0),
    ]
    assert page.session.state.detector.radius == 5.0
    assert np.array_equal(page.last("image"), before)
    names = {"arr": scan}
    exec(page.session.code(), names)  # noqa: S102 - the code of the page
    assert np.array_equal(names["image"], page.session.image())
    assert names["arr"].axes[3].units == "mrad"
    page.session.receive({"type": "calibrate", "size": "20 kg"})
    assert "20 kg" in page.last("error")["text"]
    assert page.session.scene.axes[3].units == "mrad"


def test_region_shows_its_mean_frame(page):
    page.ask(region=[[1, 4], [2, 3]])
    assert np.allclose(page.last("frame"), PIXELS[1:4, 2:3].mean((0, 1)))


def test_image_is_saved_with_its_axes(page):
    page.session.receive({"type": "save"})
    message = next(one for one in page if one.kind == "file")
    assert message.head["name"] == "image.zarr.zip"
    with zipfile.ZipFile(io.BytesIO(message.data)) as file:
        told = json.loads(file.read("data/zarr.json"))
    assert told["dimension_names"] == ["scan_y", "scan_x"]
    assert told["shape"] == [6, 7]


def test_single_image_is_saved():
    page = Page(da.from_array(PIXELS[0, 0]))
    page.session.receive({"type": "save"})
    message = next(one for one in page if one.kind == "file")
    with zipfile.ZipFile(io.BytesIO(message.data)) as file:
        assert json.loads(file.read("data/zarr.json"))["shape"] == [16, 20]
    frame = next(one for one in page if one.kind == "frame")
    assert frame.head["code"].endswith("image = arr.compute()")
    page.session.close()


def test_large_images_are_not_saved(monkeypatch):
    """The file is held in memory: a page says the size, and how to write the image."""
    monkeypatch.setattr("dask_tiled.exploring.session.MOST_SAVED", 16 * 20 * 2 - 1)
    page = Page(da.from_array(PIXELS[0, 0]))
    page.session.receive({"type": "save"})
    told = page.last("error")["text"]
    assert "too large for a page; expected 639 B at most; found 640 B" in told
    assert "Run the code of the page with to_zarr in place of compute." in told
    assert not [one for one in page if one.kind == "file"]
    monkeypatch.setattr("dask_tiled.exploring.session.MOST_SAVED", 16 * 20 * 2)
    page.session.receive({"type": "save"})
    assert page[-1].kind == "file"
    page.session.close()


def test_estimates_are_not_saved(page):
    page.session.rest()
    page.session._image = None
    page.session.receive({"type": "save"})
    assert "still an estimate" in page.last("error")["text"]


def test_session_answers_again_after_rest(page):
    """A session continues when one of two views of a widget was closed."""
    page.session.rest()
    page.clear()
    page.ask()
    assert page.last("image").shape == PIXELS.shape[:2]


def test_closed_session_still_computes_images(page, scan):
    page.session._image = None
    page.session.close()
    mask = page.session.mask
    np.testing.assert_array_equal(page.session.image(), (scan * mask).sum((-2, -1)).compute())


@pytest.mark.parametrize("signal", ["center of mass", "quadrants"])
def test_vectors_have_two_components(page, signal):
    page.ask(detector={"signal": signal})
    head = [one.head for one in page if one.kind == "image"][-1]
    assert (head["components"], head["shape"]) == (2, (6, 7))


def test_details_of_a_large_picture():
    pixels = np.random.default_rng(0).integers(0, 99, (3000, 2500), "u2")
    page = Page(da.from_array(pixels))
    frame = next(one for one in page if one.kind == "frame")
    assert (frame.head["shape"], frame.head["bins"]) == ((1500, 1250), [2, 2])
    window = [[2900, 3000.2], [-3, 50]]
    page.session.receive({"type": "detail", "plot": "frame", "window": window, "id": 7})
    page.rest()
    assert np.array_equal(page.last("frame detail"), pixels[2900:, :50])
    head = page[-1].head
    assert (head["window"], head["bins"], head["id"]) == (((2900, 3000), (0, 50)), [1, 1], 7)
    page.session.receive({"type": "detail", "plot": "frame", "window": [[0, 1]]})
    assert "a pair of numbers for each axis" in page.last("error")["text"]
    page.session.close()


def test_details_of_a_scan_and_of_a_mean():
    pixels = np.random.default_rng(0).integers(0, 99, (2100, 3, 5, 4), "u2")
    page = Page(da.from_array(pixels, chunks=(700, 3, 5, 4)))
    window = [[100, 300], [0, 2]]
    page.session.receive({"type": "detail", "plot": "scan", "window": window})
    image = (pixels * page.session.mask).sum((-2, -1))
    assert np.array_equal(page.last("scan detail"), image[100:300, :2])
    page.ask(region=[[0, 2100], [0, 2]])
    page.session.receive({"type": "detail", "plot": "frame", "window": [[1, 3], [0, 2]]})
    page.rest()
    mean = pixels[:, :2].mean((0, 1))
    assert np.allclose(page.last("frame detail"), mean[1:3, :2])
    page.session.close()


def test_pictures_too_large_for_memory_are_subsampled(monkeypatch):
    monkeypatch.setattr("dask_tiled.measuring.sampling.SAMPLE_BYTES", 1000)
    monkeypatch.setattr("dask_tiled.exploring.zooming.LARGEST", 8)
    pixels = np.arange(40 * 20).reshape(40, 20).astype("u2")
    page = Page(da.from_array(pixels))
    assert np.array_equal(page.last("frame"), pixels[::5, ::3])
    assert next(one for one in page if one.kind == "frame").head["bins"] == [5, 3]
    page.session.close()


def test_large_frames_are_shown_at_stored_levels(tmp_path, monkeypatch):
    """Only the level that has enough pixels for the page is read, and of it what is seen."""
    monkeypatch.setattr("dask_tiled.exploring.zooming.LARGEST", 128)
    monkeypatch.setattr("dask_tiled.exploring.messages.LARGEST", 128)
    frames = np.random.default_rng(0).integers(0, 99, (2, 1000, 900), "u2")
    levels = [frames[:, ::step, ::step] + np.uint16(100 * step) for step in (1, 2, 4)]
    tiles = {"tile": (64, 64), "compression": "zstd"}
    with tifffile.TiffWriter(tmp_path / "a.ome.tif") as file:
        file.write(levels[0], subifds=2, metadata={"axes": "ZYX"}, **tiles)
        for level in levels[1:]:
            file.write(level, subfiletype=1, **tiles)
    arr = open_dataset(tmp_path / "a.ome.tif")
    with counted() as counter:
        page = Page(arr)
    with tifffile.TiffFile(tmp_path / "a.ome.tif") as file:
        stored = [
            np.reshape(one.pages[1].databytecounts, (-(-one.shape[1] // 64), -1))
            for one in file.series[0].levels
        ]
    frame = next(one for one in page if one.kind == "frame")
    assert (frame.head["shape"], frame.head["bins"]) == ((125, 112), [8, 8])
    binned = levels[2][1][:, :224].reshape(125, 2, 112, 2).mean((1, 3))
    assert np.array_equal(page.last("frame"), binned.astype("f4"))
    assert counter.nbytes == stored[2].sum()

    def zoom(*window):
        with counted() as counter:
            page.session.receive({"type": "detail", "plot": "frame", "window": [*window]})
            page.rest()
        return page.last("frame detail"), page[-1].head, counter.nbytes

    found, head, nbytes = zoom([128, 384], [0, 250])
    assert np.array_equal(found, levels[1][1][64:192, :125])
    assert (head["window"], head["bins"]) == (((128, 384), (0, 250)), [2, 2])
    assert nbytes == stored[1][1:3, :2].sum()
    found, head, nbytes = zoom([70, 120], [800, 900])
    assert np.array_equal(found, levels[0][1][70:120, 800:])
    assert nbytes == stored[0][1:2, 12:].sum()
    page.session.close()


def test_channels_together(tmp_path):
    """All channels of an image are sent at first, or one of them."""
    pixels = np.random.default_rng(0).integers(0, 99, (3, 4, 20, 30), "u2")
    tifffile.imwrite(tmp_path / "a.ome.tif", pixels, metadata={"axes": "CZYX"})
    page = Page(open_dataset(tmp_path / "a.ome.tif"))
    assert page[0].head["channels"] == 0
    assert page[0].head["axes"][0]["colours"] == ["#00ffff", "#ff00ff", "#ffff00"]
    frame = next(one for one in page if one.kind == "frame")
    assert (frame.head["together"], frame.head["components"]) == (True, 3)
    found = np.frombuffer(frame.data, "u2").reshape(3, 20, 30)
    assert np.array_equal(found, pixels[:, 2])
    assert np.array_equal(page.session.image(), pixels[:, 2])
    page.session.receive({"type": "detail", "plot": "frame", "window": [[3, 9], [10, 30]]})
    page.rest()
    detail = [one for one in page if one.kind == "frame detail"][-1]
    assert np.array_equal(np.frombuffer(detail.data, "u2"), pixels[:, 2, 3:9, 10:].ravel())
    page.ask(sliders=[1, 3])
    frame = [one for one in page if one.kind == "frame"][-1]
    assert (frame.head["together"], frame.head["components"]) == (False, 1)
    assert np.array_equal(page.last("frame"), pixels[1, 3])
    page.ask(sliders=[99, 0])
    assert page.session.state.places == (3, 0)
    page.session.close()


@pytest.mark.parametrize("axes", ["TCYX", "CTYX"])
def test_channels_of_a_time_series_together(axes):
    """A frame has all channels, and each has its own curve over time; or both have one channel."""
    pixels = np.random.default_rng(0).integers(0, 99, (6, 3, 20, 30), "u2")  # t, c, y, x
    stored = pixels if axes == "TCYX" else np.moveaxis(pixels, 0, 1)
    lazy = labelled(da.from_array(stored, chunks=(2, 2, -1, -1)), map(Axis, axes.lower()))
    page = Page(lazy)
    assert page[0].head["channels"] == axes.index("C")
    assert page.session.state.places == (3,)
    frame = next(one for one in page if one.kind == "frame")
    assert (frame.head["together"], frame.head["components"]) == (True, 3)
    assert np.array_equal(np.frombuffer(frame.data, "u2").reshape(3, 20, 30), pixels[3])

    def curves():
        found = [one for one in page if one.kind == "image"][-1]
        assert found.head["exact"]
        return np.frombuffer(found.data, found.head["dtype"]).reshape(-1, 6)

    page.ask(detector={"shape": "all", "signal": "center of mass"})  # of one channel only
    assert np.array_equal(curves(), pixels.sum((2, 3)).T)
    assert np.array_equal(page.session.image(), pixels.sum((2, 3)))
    scope = {"arr": lazy, "da": da}
    exec(page.session.code(), scope)  # noqa: S102
    assert np.array_equal(scope["image"], pixels.sum((2, 3)))
    page.ask(detector={"shape": "point", "center": [4, 7]}, position=[1])
    assert np.array_equal(curves(), pixels[:, :, 4, 7].T)
    frame = [one for one in page if one.kind == "frame"][-1]
    assert np.array_equal(np.frombuffer(frame.data, "u2").reshape(3, 20, 30), pixels[1])
    page.ask(region=[[1, 5]])
    frame = [one for one in page if one.kind == "frame"][-1]
    assert frame.head["together"]
    mean = np.frombuffer(frame.data, "f4").reshape(3, 20, 30)
    assert np.allclose(mean, pixels[1:5].mean(0))
    page.session.receive({"type": "detail", "plot": "frame", "window": [[3, 9], [10, 30]]})
    page.rest()
    detail = [one for one in page if one.kind == "frame detail"][-1]
    found = np.frombuffer(detail.data, "f4").reshape(3, 6, 20)
    assert np.allclose(found, pixels[1:5, :, 3:9, 10:].mean(0))
    page.ask(sliders=[1], detector={"shape": "all", "signal": "sum"}, region=None)
    frame = [one for one in page if one.kind == "frame"][-1]
    assert (frame.head["together"], frame.head["components"]) == (False, 1)
    assert np.array_equal(page.last("frame"), pixels[1, 1])
    assert np.array_equal(curves()[0], pixels[:, 1].sum((1, 2)))
    page.session.close()


def test_channels_of_a_scan_are_shown_one_at_a_time():
    pixels = np.zeros((4, 5, 3, 8, 9), "u2")
    names = "scan_y", "scan_x", "c", "y", "x"
    page = Page(labelled(da.from_array(pixels), map(Axis, names)))
    assert page[0].head["channels"] is None
    page.session.close()


def test_zoom_reads_the_tiles_in_view(tmp_path, monkeypatch):
    """Without levels, an overview is made of means of some tiles; parts are read in full."""
    monkeypatch.setattr("dask_tiled.measuring.sampling.SAMPLE_BYTES", 1 << 15)
    monkeypatch.setattr("dask_tiled.exploring.zooming.LARGEST", 128)
    monkeypatch.setattr("dask_tiled.exploring.messages.LARGEST", 128)
    pixels = np.random.default_rng(0).integers(0, 99, (1024, 1024), "u2")
    tifffile.imwrite(tmp_path / "a.tif", pixels, tile=(64, 64), compression="zstd")
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        stored = np.reshape(file.pages[0].databytecounts, (16, 16))
    with counted() as counter:
        page = Page(open_dataset(tmp_path / "a.tif"))
    means = pixels.reshape(16, 64, 16, 64).mean((1, 3))[::4, ::4]
    assert np.allclose(page.last("frame"), means)
    frame = next(one for one in page if one.kind == "frame")
    assert frame.head["bins"] == [256, 256]
    assert counter.nbytes == stored[::4, ::4].sum()
    with counted() as counter:
        window = [[70, 190], [1000, 1024]]
        page.session.receive({"type": "detail", "plot": "frame", "window": window})
        page.rest()
    assert np.array_equal(page.last("frame detail"), pixels[70:190, 1000:])
    assert counter.nbytes == stored[1:3, 15:].sum()
    page.session.close()


def czi(folder, colours):
    tile = Tile({"Y": 0, "X": 0}, colours[..., ::-1])
    return write_czi(folder / "slide.czi", [tile])


def lif(folder, colours):
    told = {"channels": ["Red", "Green", "Blue"], "tags": [1, 2, 3]}
    return write_lif(folder / "slide.lif", {"slide": colours}, "yxs", **told)


@pytest.mark.parametrize("write", [czi, lif])
def test_colour_channels_are_one_picture(tmp_path, write):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), "u1")
    page = Page(open_dataset(write(tmp_path, pixels)))
    head = next(one for one in page if one.kind == "frame").head
    assert (head["components"], head["shape"]) == (3, (6, 8))
    frame = next(one for one in page if one.kind == "frame")
    found = np.frombuffer(frame.data, "u1").reshape(3, 6, 8)
    assert np.array_equal(np.moveaxis(found, 0, -1), pixels)
    assert page[0].head["sliders"] == ()
    page.session.receive({"type": "detail", "plot": "frame", "window": [[0, 2], [1, 4]]})
    page.rest()
    detail = np.frombuffer(page[-1].data, "u1").reshape(3, 2, 3)
    assert np.array_equal(detail, found[:, :2, 1:4])
    page.session.close()


def test_errors_are_sent_as_messages(page):
    page.ask(detector={"shape": "hexagon"})
    assert "expected one of" in page.last("error")["text"]
    page.session.receive({"type": "open", "path": "/etc/passwd"})
    assert "unknown request of the page" in page.last("error")["text"]
    page.ask(position=[0, 0])
    assert np.array_equal(page.last("frame"), PIXELS[0, 0])


def test_file_errors_are_sent_as_messages(page, tmp_path):
    time.sleep(0.01)
    (tmp_path / "scan.mib").write_bytes(b"x" * 1000)
    page.ask(position=[0, 0])
    assert "scan.mib" in page.last("error")["text"]


def test_newest_request_wins(scan, monkeypatch):
    """The last of a hundred quick requests is computed, most others are skipped."""
    page = Page(scan)
    begun, image, asked = [], PageSession._images, threading.Event()

    def counted(self, *values):
        begun.append(1)
        asked.wait(300)
        yield from image(self, *values)

    monkeypatch.setattr(PageSession, "_images", counted)
    state = page.session.state
    for k in range(100):
        page.session._show(state._replace(detector=state.detector._replace(radius=1 + k / 10)))
    asked.set()
    page.rest()
    assert len(begun) < 5
    mask = page.session.mask
    assert np.array_equal(page.session.image(), (PIXELS * mask).sum((-2, -1)))
    page.session.close()


def test_closing_during_computation_leaves_no_thread():
    begun, blocks = threading.Event(), []

    def slowly(block):
        blocks.append(1)
        begun.set()
        time.sleep(0.1)
        return block

    arr = da.zeros((400, 2, 8, 8), chunks=(1, 2, 8, 8)).map_blocks(slowly, dtype=float)
    session = PageSession(Pictures.of(arr, {}), lambda _: None)
    session.begin()
    assert begun.wait(300)
    session.close()
    assert len(blocks) < 200
    session.begin()  # without effect
    left = [one.name for one in threading.enumerate()]
    assert not [name for name in left if name.startswith(OURS)]


def test_remote_files(tmp_path):
    path = write_mib(tmp_path / "scan.mib", PIXELS, hdr=False)
    with serving(tmp_path) as server:
        page = Page(open_dataset(server.url(path), nav_shape=(6, 7)))
        assert page.session._pace.rate < RATE
        image = (PIXELS * page.session.mask).sum(axis=(-2, -1))
        assert np.array_equal(page.session.image(), image)
        page.ask(position=[1, 2])
        assert np.array_equal(page.last("frame"), PIXELS[1, 2])
        page.session.close()


def test_growing_files_are_followed(tmp_path):
    path = tmp_path / "scan.raw"
    whole = counting_frames((4, 5, 8, 8), "u2")
    path.write_bytes(whole[:2].tobytes())
    options = {"dtype": "u2", "nav_shape": (4, 5), "sig_shape": (8, 8), "format": "raw"}
    sent, first = [], whole[:2].sum((-2, -1)).ravel().astype("f4")
    session = PageSession(Pictures.of(path, options, follow=True), sent.append, follow=True)

    def last(kind, dtype="f4"):
        return np.frombuffer(next((x.data for x in sent[::-1] if x.kind == kind), b""), dtype)

    session.settle()
    state = session.state
    state = state._replace(detector=state.detector._replace(shape="all"), position=(3, 4))
    session.receive(json.loads(json.dumps({"type": "show", **state.as_json()})))
    wait_for(lambda: np.array_equal(last("image")[:10], first))
    assert np.isnan(last("image")[10:]).all()
    assert np.isnan(last("frame")).all(), "it has not arrived"
    with path.open("ab") as file:
        file.write(whole[2:].tobytes())
    assert session.wait(300)
    assert np.array_equal(session.image(), whole.sum((-2, -1)))
    wait_for(lambda: np.array_equal(last("frame", "u2"), whole[3, 4].ravel()))
    wait_for(lambda: [x for x in sent if x.kind == "growth"][-1].head["frames"] == 20)
    assert not any(x.kind == "error" for x in sent)
    session.close()


def test_large_frames_are_averaged():
    values = np.arange(2 * LARGEST * 6.0).reshape(2 * LARGEST, 6)
    message = picture_message("frame", values, 2)
    assert message.head["shape"] == (LARGEST, 6)
    shown = np.frombuffer(message.data, "f4").reshape(LARGEST, 6)
    assert np.array_equal(shown, values.reshape(LARGEST, 2, 6).mean(1).astype("f4"))


def test_messages_are_bytes_with_a_head():
    packed = picture_message("frame", np.arange(6, dtype="u2").reshape(2, 3), 2, id=3).packed()
    length = int.from_bytes(packed[:4], "little")
    assert (4 + length) % 8 == 0
    assert np.array_equal(np.frombuffer(packed, "u2", offset=4 + length), np.arange(6))


@pytest.fixture
def row(tmp_path):
    """Return a file with the frames of a scan of 20 x 30 in a row, whose lines are alike."""
    y, x = np.mgrid[:20, :30]
    sums = 300 + 100 * np.sin(x / 2 + y / 9) + 80 * np.cos(x**2 / 70 + y / 7)
    frames = np.ones((600, 16, 16), "u2")
    frames[:, 6:10, 6:10] += sums.reshape(-1, 1, 1).astype("u2")
    return write_mib(tmp_path / "row.mib", frames, hdr=False)


@pytest.mark.filterwarnings("ignore:.*in a row")
def test_scans_of_unknown_shape_offer_shapes(row):
    """The page has a picture of each; a chosen one is opened, and its code opens it again."""
    session = PageSession(
        Pictures.of(row, {}), (sent := []).append, f"dask_tiled.open_dataset({str(row)!r})"
    )
    try:
        session.begin()
        wait_for(lambda: [one for one in sent if one.kind == "shapes"])
        (told,) = [one for one in sent if one.kind == "shapes"]
        assert (told.head["shapes"], told.head["chosen"]) == ([(20, 30)], None)
        assert told.head["reasons"] == ["neighbouring lines of 30 frames are alike"]
        frames = open_dataset(row, nav_shape=(20, 30)).compute()
        picture = np.frombuffer(told.data, "f4").reshape(20, 30)
        np.testing.assert_array_equal(picture, frames.sum((2, 3)))
        session.receive({"type": "shape", "number": 0})
        assert (session.wait(300), session.wait(300)) == (True, True)
        assert session.scene.scan_shape == (20, 30)
        assert not session.scene.doubts
        np.testing.assert_array_equal(session.image(), (frames * session.mask).sum((2, 3)))
        names = dict[str, object]()
        exec(session.code(), names)  # noqa: S102 - ours
        assert "nav_shape=(20, 30))" in session.code()
        np.testing.assert_array_equal(names["image"], session.image())
        wait_for(lambda: [one for one in sent if one.kind == "shapes"][-1].head["chosen"] == 0)
        session.receive({"type": "shape", "number": None})
        assert session.scene.scan_shape == (600,)
        session.receive({"type": "shape", "number": "a"})
        assert "invalid shape" in sent[-1].head["text"]
    finally:
        session.close()


@pytest.mark.filterwarnings("ignore:.*in a row")
def test_code_of_a_chosen_shape_reshapes_arrays(row):
    arr = open_dataset(row)
    page = Page(arr)
    page.session.receive({"type": "shape", "number": 0})
    page.rest()
    names = {"arr": arr}
    exec(page.session.code(), names)  # noqa: S102 - ours
    assert names["image"].shape == (20, 30)
    np.testing.assert_array_equal(names["image"], page.session.image())
    page.session.close()
    plain = Page(open_dataset(row, nav_shape=(20, 30)))
    assert plain.last("shapes")["shapes"] == []
    plain.session.receive({"type": "shape", "number": 0})
    assert "not open" in plain.last("error")["text"]
    plain.session.close()
