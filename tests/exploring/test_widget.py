"""The notebook widget of `explore`: its image, mask and code."""

import numpy as np
import pytest

import dask_tiled
from dask_tiled.testing import write_mib

pytest.importorskip("anywidget")

PIXELS = np.random.default_rng(0).integers(0, 99, (6, 7, 16, 20), "u2")


def run(code, **names):
    """Return the image that the widget's code computes."""
    exec(code, names)  # noqa: S102 - the code under test
    return names["image"]


@pytest.fixture
def arr(tmp_path):
    path = write_mib(tmp_path / "scan.mib", PIXELS)
    return dask_tiled.open_dataset(path, axes={"scan_x": "0.5 nm", "y": "2 mrad", "x": "2 mrad"})


def test_image_mask_and_code_agree(arr):
    widget = arr.explore()
    assert np.array_equal(widget.image, (PIXELS * widget.mask).sum((-2, -1)))
    assert np.array_equal(run(widget.code, arr=arr), widget.image)
    found = widget.to_xarray()
    assert found.dims == ("scan_y", "scan_x")
    assert found.scan_x.attrs["units"] == "nm"
    assert np.array_equal(found.values, widget.image)
    widget.close()


def test_detector_is_set_before_display(tmp_path):
    y, x = np.indices((32, 40))
    frame = np.where(np.hypot(y - 12, x - 25) < 6, 50, 0).astype("u2")
    arr = dask_tiled.open_dataset(write_mib(tmp_path / "a.mib", np.tile(frame, (4, 5, 1, 1))))
    widget = arr.explore()
    assert np.allclose(np.argwhere(widget.mask).mean(0), (12, 25), atol=0.5)
    assert widget._session.state.detector.radius < 8
    widget.close()


def test_messages_of_the_page_are_answered(arr, monkeypatch):
    widget = arr.explore()
    sent = []
    monkeypatch.setattr(widget, "send", lambda head, buffers: sent.append((head, buffers)))
    widget._receive(widget, {"type": "begin"}, [])
    assert widget._session.wait(300)
    assert widget._session.wait(300)
    kinds = [head["type"] for head, _ in sent]
    assert kinds[0] == "scene"
    assert {"image", "frame"} <= {*kinds}
    frame = next(buffers[0] for head, buffers in sent if head["type"] == "frame")
    assert np.array_equal(np.frombuffer(frame, "u2").reshape(16, 20), PIXELS[3, 3])
    widget._receive(widget, "nonsense", [])
    assert sent[-1][0]["type"] == "error"
    widget.close()


def test_explore_opens_paths(tmp_path):
    path = write_mib(tmp_path / "scan.mib", PIXELS)
    widget = dask_tiled.explore(path, nav_shape=(3, 7))
    assert widget.image.shape == (3, 7)
    assert np.array_equal(run(widget.code), widget.image)
    widget.close()


@pytest.mark.parametrize("shape", ["disk", "point"])
def test_code_runs_on_numpy_arrays(shape):
    widget = dask_tiled.explore(PIXELS)
    session = widget._session
    session.settle()
    session._show(session.state._replace(detector=session.state.detector._replace(shape=shape)))
    assert np.array_equal(run(widget.code, arr=PIXELS), widget.image)
    widget.close()


def test_single_image():
    widget = dask_tiled.explore(PIXELS[0, 0])
    session = widget._session
    assert session.scene.frame_shape == (16, 20)
    assert session.mask.all()
    assert np.array_equal(widget.image, PIXELS[0, 0])
    assert np.array_equal(run(widget.code, arr=PIXELS[0, 0]), widget.image)
    widget.close()


def test_missing_extra_is_named(arr, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match=r'pip install "dask-tiled\[explore\]"'):
        arr.explore()
