"""The page of `explore` in a browser: drag, zoom, switch detectors, close during computation."""

import json
import re
import threading

import dask.array as da
import h5py
import numpy as np
import pytest
from checks import wait_for
from chromium.pages import drag_while_filling, place, shown
from ome_writer import document, image, tiff_data, uuid_of, write_pages

import dask_tiled
from dask_tiled.model.axes import Axis
from dask_tiled.opened.axes import labelled
from dask_tiled.testing import write_mib, write_nd2, write_ser, write_tpx3
from dask_tiled.testing.playing import merlin_messages, sending

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow

AXES = {"scan_y": "0.5 nm", "scan_x": "0.5 nm", "y": "1 mrad", "x": "1 mrad"}


def scan_of(shape=(24, 32, 48, 64)):
    y, x = np.indices(shape[2:])
    disk = np.hypot(y - shape[2] / 2, x - shape[3] / 2) < 9
    rates = np.where(disk, 20, 1) * np.linspace(0.5, 1.5, shape[1])[:, None, None]
    return np.random.default_rng(0).poisson(np.broadcast_to(rates, shape)).astype("u2")


def choose(tab, label, value):
    tab.run(
        f"""(() => {{
        const labels = [...document.querySelectorAll("label")];
        const select = labels.filter((one) => one.firstChild.textContent === {json.dumps(label)})
          .map((one) => one.querySelector("select")).find((one) => [...one.options].some(
            (option) => option.value === {json.dumps(value)}));
        select.value = {json.dumps(value)};
        select.dispatchEvent(new Event("change"));
        }})()"""
    )


def test_explore_a_scan(chromium, served, tmp_path):
    pixels = scan_of()
    path = write_mib(tmp_path / "scan.mib", pixels)
    page = served(path, axes=AXES)
    tab = chromium.open(page.url)
    shown(tab)
    session = page.sessions[0]
    found = session.state.detector
    assert found.shape == "disk"
    assert np.allclose(found.center, (24, 32), atol=1)
    assert np.array_equal(session.image(), (pixels * session.mask).sum((-2, -1)))

    # Drag the detector: the image follows, and is exact at rest.
    start = place(tab, "frame", 0.46, 0.48)
    tab.drag(start, *[(start[0] + k, start[1] + k) for k in range(0, 40, 4)])
    wait_for(lambda: session.state.detector.center[1] > found.center[1] + 2)
    shown(tab)
    assert np.array_equal(session.image(), (pixels * session.mask).sum((-2, -1)))

    # Move the position by pointer and by key.
    before = session.state.position
    tab.drag(place(tab, "scan", 0.3, 0.3), place(tab, "scan", 0.35, 0.35))
    shown(tab)
    assert session.state.position != before
    before = session.state.position
    tab.key("ArrowRight")
    wait_for(lambda: session.state.position == (before[0], before[1] + 1))

    # Zooming changes only the view.
    state = session.state
    tab.wheel(*place(tab, "scan"), -400)
    tab.key("0")
    assert session.state == state

    for shape in ("ring", "rectangle", "point", "all", "disk"):
        choose(tab, "detector", shape)
        wait_for(lambda shape=shape: session.state.detector.shape == shape)
        assert not tab.run("document.querySelector('.error').offsetParent")
    for signal in ("center of mass", "quadrants", "sum"):
        choose(tab, "signal", signal)
        wait_for(lambda signal=signal: session.state.detector.signal == signal)
        session.wait(300)
        word = {"sum": "sum(axis", "center of mass": "center_of_mass", "quadrants": "quadrants"}
        tab.wait(f"document.querySelector('pre').textContent.includes('{word[signal]}')")

    # Select a region, which shows its mean frame.
    buttons = "[...document.querySelectorAll('button')]"
    tab.run(f"{buttons}.find((one) => one.textContent === 'region').click()")
    tab.drag(place(tab, "scan", 0.2, 0.3), place(tab, "scan", 0.4, 0.6))
    wait_for(lambda: session.state.region is not None)
    tab.wait("document.querySelector('[data-plot=frame] h2').textContent.includes('mean frame')")
    assert tab.errors() == []

    # Closing the page during computation leaves no thread.
    start = place(tab, "frame")
    tab.drag(start, (start[0] + 20, start[1]))
    tab.close()
    names = ("image", "frame", "exploring")
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith(names)])


@pytest.mark.parametrize("protocol", ["merlin", "tpx3"])
def test_a_scan_fills_while_a_detector_is_dragged(chromium, served, tmp_path, protocol):
    if protocol == "merlin":
        pixels, options, suffix = scan_of(), {}, "mib"
        messages = [*merlin_messages(write_mib(tmp_path / "played.mib", pixels))]
    else:
        pixels, suffix = np.random.default_rng(0).poisson(0.002, (8, 12, 256, 256)), "tpx3"
        options = {"frame_time": 0.02, "lines": "tdc1_rising", "nav_shape": (8, 12)}
        path = tmp_path / "played.tpx3"
        write_tpx3(path, pixels.reshape(-1, 256, 256), line=12, frame_time=0.02)
        content = path.read_bytes()
        messages = [content[k : k + 1000] for k in range(0, len(content), 1000)]
    goes_on = threading.Event()

    def half_at_first():
        for k, message in enumerate(messages):
            if k > len(messages) // 2:
                goes_on.wait()
            yield message

    with (
        sending(half_at_first, closes=protocol == "tpx3") as port,
        dask_tiled.record(
            f"{protocol}://127.0.0.1:{port}", tmp_path / f"scan.{suffix}", **options
        ) as recording,
    ):
        count = pixels.shape[0] * pixels.shape[1]
        session = drag_while_filling(chromium, served(recording), goes_on.set, count)
    assert np.array_equal(session.image(), (pixels * session.mask).sum((-2, -1)))


def test_pictures_without_pixels_have_no_colour_bar(chromium, served, tmp_path):
    messages = [*merlin_messages(write_mib(tmp_path / "played.mib", scan_of()))]
    goes_on = threading.Event()

    def three_at_first():
        for k, message in enumerate(messages):
            if k > 3:
                goes_on.wait()
            yield message

    colours = (  # right of each picture
        "[...document.querySelectorAll('[data-plot] canvas')].map((canvas) => {"
        " const { width, height } = canvas, from = Math.ceil(0.88 * width);"
        " const copy = Object.assign(document.createElement('canvas'), { width, height });"
        " const pixels = copy.getContext('2d'); pixels.drawImage(canvas, 0, 0);"
        " const { data } = pixels.getImageData(from, 0, width - from, height);"
        " return new Set(new Uint32Array(data.buffer)).size; })"
    )
    note = "document.querySelector('[data-plot={}] .note')?.textContent === 'has not arrived yet'"
    with (
        sending(three_at_first) as port,
        dask_tiled.record(f"merlin://127.0.0.1:{port}", tmp_path / "scan.mib") as recording,
    ):
        tab = chromium.open(served(recording).url)
        for plot in ("scan", "frame"):
            tab.wait(note.format(plot))
        assert max(tab.run(colours)) <= 3
        goes_on.set()
        tab.wait(f"Math.min(...{colours}) > 50")
        assert recording.wait(300)
    tab.close()


def test_size_of_the_circle_calibrates_the_frame(chromium, served, tmp_path):
    page = served(write_mib(tmp_path / "scan.mib", scan_of()))
    tab = chromium.open(page.url)
    shown(tab)
    known = "document.querySelector('[data-plot=frame] input[placeholder]')"
    tab.run(f"{known}.value = '30 mrad'; {known}.dispatchEvent(new Event('change'))")
    session = page.sessions[0]
    wait_for(lambda: session.scene.axes[3].scale == 30 / round(session.state.detector.radius, 3))
    tab.wait("document.querySelector('pre').textContent.includes('30 mrad')")
    assert tab.errors() == []
    tab.close()


@pytest.mark.filterwarnings("ignore:.*in a row")
def test_shapes_of_a_scan_are_buttons(chromium, served, tmp_path):
    """A button has a picture of the scan in a likely shape, and shows it so."""
    page = served(
        write_mib(tmp_path / "row.mib", scan_of((16, 16, 24, 32)).reshape(-1, 24, 32), hdr=False)
    )
    tab = chromium.open(page.url)
    buttons = "[...document.querySelectorAll('.shapes button')]"
    tab.wait(f"{buttons}.length === 2")
    pressed = f"{buttons}.map((one) => one.ariaPressed + ' ' + one.innerText).join()"
    assert tab.run(pressed) == "false 16 \N{MULTIPLICATION SIGN} 16,true in a row"
    size = f"(({{ width, height }}) => [width, height])({buttons}[0].querySelector('canvas'))"
    assert tab.run(size) == [16, 16]
    tab.run(f"{buttons}[0].click()")
    tab.wait(f"{pressed}.startsWith('true')")
    shown(tab)
    assert page.sessions[0].scene.scan_shape == (16, 16)
    tab.run(f"{buttons}[1].click()")
    tab.wait(f"{pressed}.startsWith('false')")
    assert page.sessions[0].scene.scan_shape == (256,)
    assert tab.errors() == []
    tab.close()


def hdf5(folder):
    path = folder / "scan.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("one", data=scan_of((6, 7, 16, 20)), chunks=(1, 7, 16, 20))
        file["two"] = scan_of((4, 5, 16, 20))
    return path


def ome_tiff(folder):
    path = folder / "cells.ome.tif"
    pixels = np.random.default_rng(0).integers(0, 99, (6, 16, 20), "u2")
    sizes = (1, 2, 3, 16, 20)
    write_pages(path, pixels, document(image(sizes, tiff_data(0, 6)), uuid_of("a")))
    return path


def ser(folder):
    path = folder / "spectra.ser"
    write_ser(path, np.random.default_rng(0).integers(0, 99, (3, 4, 200)).astype("u2"), sig_dims=1)
    return path


def nifti(folder):
    import nibabel

    path = folder / "brain.nii"
    pixels = np.random.default_rng(0).integers(0, 99, (20, 16, 8)).astype("i2")
    nibabel.save(nibabel.Nifti1Image(pixels, np.eye(4)), path)
    return path


@pytest.mark.parametrize("write", [hdf5, ome_tiff, ser, nifti], ids=lambda one: one.__name__)
def test_explore_other_formats(chromium, served, tmp_path, write):
    page = served(write(tmp_path))
    tab = chromium.open(page.url)
    shown(tab)
    session = page.sessions[0]
    if session.scene.scan:
        tab.drag(place(tab, "frame", 0.4, 0.4), place(tab, "frame", 0.5, 0.5))
        tab.drag(place(tab, "scan", 0.4, 0.4), place(tab, "scan", 0.5, 0.3))
    if session.scene.sliders:
        tab.run(
            "(() => { const s = document.querySelector('.sliders input, .sliders select');"
            " s.value = 0; s.dispatchEvent(new Event(s.tagName === 'INPUT' ? 'input' : 'change'));"
            " })()"
        )
        wait_for(lambda: session.state.places[0] == 0)
    shown(tab)
    if session.scene.scan:
        exact = session.lazy_image().compute()
        assert np.array_equal(session.image(), exact)
    assert not tab.run("document.querySelector('.error').offsetParent")
    assert tab.errors() == []
    tab.close()


def test_channels_have_the_colours_of_the_file(chromium, served, tmp_path):
    """Channels are added up in their colours, or drawn one at a time; contrast is each its own."""
    pixels = np.zeros((2, 40, 50), "u2")
    pixels[0, 10:30], pixels[1, 10:30, :40] = 100, 3000
    path = tmp_path / "a.nd2"
    write_nd2(path, pixels, "cyx", channels=["DAPI", "GFP"], colours=[0xFF0000, 0x0080FF])
    page = served(path)
    tab = chromium.open(page.url)
    shown(tab)

    def colour(x):
        return tab.run(
            "(() => { const c = document.querySelector('[data-plot=frame] canvas');"
            " const copy = document.createElement('canvas').getContext('2d');"
            " [copy.canvas.width, copy.canvas.height] = [c.width, c.height];"
            " copy.drawImage(c, 0, 0); const p = copy.getImageData(0, 0, c.width, c.height).data;"
            f" const at = 4 * (Math.floor(c.height * 0.55) * c.width + Math.floor(c.width * {x}));"
            " return [p[at], p[at + 1], p[at + 2]]; })()"
        )

    names = tab.run("[...document.querySelectorAll('.sliders option')].map((o) => o.textContent)")
    assert names == ["DAPI", "GFP", "together"]
    assert page.sessions[0].state.places == (2,)
    assert (colour(0.4), colour(0.8)) == ([255, 128, 255], [0, 0, 255])
    assert page.sessions[0].code().endswith("image = arr.compute()")
    for k, expected in ((0, [0, 0, 255]), (1, [255, 128, 0])):
        choose(tab, "c", str(k))
        wait_for(lambda expected=expected: colour(0.4) == expected)
    choose(tab, "c", "2")
    wait_for(lambda: colour(0.4) == [255, 128, 255])
    tab.mouse("mouseMoved", *place(tab, "frame", 0.4, 0.55))
    told = tab.run("document.querySelector('[data-plot=frame] .value').textContent")
    assert told.endswith("DAPI 100, GFP 3000")
    assert tab.errors() == []
    tab.close()


def test_channels_of_a_time_series(chromium, served):
    """The picture at a time is a composite, and each channel has a curve in its colour."""
    pixels = np.zeros((5, 2, 40, 50), "u2")
    pixels[:, 0, 10:30], pixels[:, 1, 10:30, :40] = 100, 3000
    pixels[:, 0] += 7 * np.arange(5, dtype="u2")[:, None, None]
    axes = Axis("t"), Axis("c", labels=("DAPI", "GFP"), colours=("#0000ff", "#ff8000"))
    page = served(labelled(da.from_array(pixels), [*axes, Axis("y"), Axis("x")]))
    tab = chromium.open(page.url)
    shown(tab)

    def has(plot, first, *, test):
        """Return whether a pixel passes a test, in rows from a share of the height on."""
        return tab.run(
            f"(() => {{ const c = document.querySelector('[data-plot={plot}] canvas');"
            " const copy = document.createElement('canvas').getContext('2d');"
            " [copy.canvas.width, copy.canvas.height] = [c.width, c.height];"
            f" const first = Math.round({first} * c.height), n = c.height - first;"
            " copy.drawImage(c, 0, 0); const p = copy.getImageData(0, first, c.width, n).data;"
            " for (let k = 0; k < p.length; k += 4) {"
            " const [r, g, b] = [p[k], p[k + 1], p[k + 2]];"
            f" if ({test}) return true; }} return false; }})()"
        )

    both, blue, orange = "r == 255 && g == 128 && b == 255", "b - g > 100", "r - b > 100"
    wait_for(lambda: has("frame", 0.3, test=both))
    wait_for(lambda: has("scan", 0.5, test=blue))  # below the legend
    assert has("scan", 0, test=orange)
    choose(tab, "c", "1")
    wait_for(lambda: not has("scan", 0, test=blue))
    wait_for(lambda: has("frame", 0.3, test=orange) and not has("frame", 0.3, test=both))
    assert tab.errors() == []
    tab.close()


def test_datasets_are_listed(chromium, served, tmp_path):
    page = served(hdf5(tmp_path))
    tab = chromium.open(page.url)
    shown(tab)
    assert tab.run("[...document.querySelectorAll('.head select option')].length") == 2
    names = page.sessions[0]._pictures.names
    choose(tab, "picture", str(1 - page.sessions[0]._number))
    wait_for(lambda: page.sessions[0]._number != page.sessions[0]._pictures.begins_with)
    assert len(names) == 2
    shown(tab)
    assert tab.errors() == []
    tab.close()


def test_zooming_loads_details(chromium, served):
    """The page loads full resolution for the visible part of a large picture."""
    pixels = np.random.default_rng(0).integers(0, 999, (2500, 5000), "u2")
    tab = chromium.open(served(da.from_array(pixels)).url)
    shown(tab)
    middle = place(tab, "frame")
    tab.run(  # and draw again before the page asks for details
        "(() => { const c = document.querySelector('[data-plot=frame] canvas');"
        " const b = c.getBoundingClientRect(), at = { clientX: b.left + b.width / 2,"
        " clientY: b.top + b.height / 2, deltaY: -1500, cancelable: true };"
        " c.dispatchEvent(new WheelEvent('wheel', at));"
        " setTimeout(() => { document.body.dataset.theme = 'new'; }, 50); })()"
    )
    tab.wait("document.querySelector('[data-plot=frame]').dataset.detail")
    tab.mouse("mouseMoved", *middle)
    found = tab.run("document.querySelector('[data-plot=frame] .value').textContent")
    y, x, value = map(float, re.fullmatch(r"axis 0 (\d+), axis 1 (\d+): (\d+)", found).groups())
    assert value == pixels[int(y), int(x)]
    assert tab.errors() == []
    tab.close()


def test_colour_image(chromium, served):
    pixels = np.zeros((20, 30), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    pixels["R"][:, :10], pixels["G"][:, 10:20], pixels["B"] = 255, 255, 9
    tab = chromium.open(served(da.from_array(pixels)).url)
    shown(tab)
    tab.mouse("mouseMoved", *place(tab, "frame"))
    found = tab.run("document.querySelector('[data-plot=frame] .value').textContent")
    assert found.endswith(": 0, 255, 9")
    assert tab.errors() == []
    tab.close()


def test_page_shows_errors(chromium, served, tmp_path):
    path = write_mib(tmp_path / "scan.mib", scan_of((6, 7, 16, 20)))
    page = served(path)
    tab = chromium.open(page.url)
    shown(tab)
    (tmp_path / "scan.mib").write_bytes(b"x" * 1000)
    tab.drag(place(tab, "scan", 0.2, 0.3), place(tab, "scan", 0.25, 0.35))
    tab.wait("document.querySelector('.error').textContent.includes('scan.mib')")
    tab.close()


@pytest.mark.filterwarnings("ignore:.*left out", "ignore:.*missing")
def test_doubts_are_shown(chromium, served, tmp_path):
    """Below the title: what files lack and leave open; nothing where they settle all."""
    told = "document.querySelector('.doubts').innerText"
    path = write_mib(tmp_path / "a.mib", scan_of((5, 6, 32, 32)), nav_shape=(5, 5), scan_keys=True)
    tab = chromium.open(served(path).url)
    shown(tab)
    assert "the scan (5, 5) of a.hdr takes 25 of 30 frames; 5 are left out" in tab.run(told)
    assert "pass nav_shape=(5, 5)" in tab.run(told)
    tab = chromium.open(served(path, nav_shape=(8, 4)).url)
    shown(tab)
    assert tab.run(told) == "not complete: 30 of 32 frames"
    tab = chromium.open(served(path, nav_shape=(5, 6)).url)
    shown(tab)
    assert tab.run("document.querySelector('.doubts').hidden")
    assert not tab.errors()
