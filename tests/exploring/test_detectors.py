"""Detectors: the displayed image, the shown code and the mask agree."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tiled import open_dataset
from dask_tiled.exploring.detectors import SHAPES, SIGNALS, Detector, DetectorJob, usual
from dask_tiled.exploring.scene import Scene
from dask_tiled.testing import write_mib

PIXELS = np.random.default_rng(0).integers(0, 99, (5, 6, 16, 20), "u2")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scans")
    plain = open_dataset(write_mib(folder / "scan.mib", PIXELS))
    axes = {"scan_y": "0.5 nm", "y": "0.25 mrad from -30 mrad", "x": "1 mrad from 40000 mrad"}
    return {
        "without units": plain,
        "calibrated": plain.with_axes(axes),
        "of dask": da.from_array(PIXELS, chunks=(2, 6, 16, 20)),
        "with a slider": da.from_array(PIXELS[:, None] + np.arange(3)[:, None, None, None]),
        "real numbers": plain.astype("f4") / 3,
    }


NAMES = "without units", "calibrated", "of dask", "with a slider", "real numbers"


@pytest.mark.thorough
@settings(max_examples=30)
@given(
    st.sampled_from(NAMES),
    st.sampled_from(SHAPES),
    st.sampled_from(SIGNALS),
    st.tuples(st.floats(-3, 19), st.floats(-3, 22)),
    st.floats(0, 12),
    st.floats(0, 12),
    st.tuples(st.floats(0, 20), st.floats(0, 20)),
)
def test_code_computes_the_image(arrays, name, shape, signal, center, radius, inner, size):
    arr = arrays[name]
    scene = Scene.of(arr)
    places = (1,) * len(scene.sliders)
    job = DetectorJob.of(scene, places, Detector(shape, center, radius, inner, size, signal))
    names = {"arr": arr}
    exec(job.code(), names)  # noqa: S102 - the code under test
    image = job.expression(scene.view(places)).compute()
    assert image.dtype == names["image"].dtype
    assert np.array_equal(image, names["image"], equal_nan=True)
    if job.mask is not None:
        assert np.array_equal(names["mask"], job.mask)
    if signal == "sum":
        pixels = scene.view(places).compute()
        total = (pixels * job.covered).sum(axis=(-2, -1))
        assert np.allclose(image, total)
        assert pixels.dtype.kind == "f" or np.array_equal(image, total)
    assert job.picture(image).shape[-2:] == scene.scan_shape


def test_code_is_short(arrays):
    scene = Scene.of(arrays["calibrated"])
    job = DetectorJob.of(scene, (), Detector("disk", (8, 10), 4, 2, (3, 3), "sum"))
    assert job.code().splitlines() == [
        "from dask_tiled import tiles",
        "mask = tiles.disk(arr, 4.0, center=(-28.0, 40010.0))",
        "image = (arr * mask).sum(axis=(-2, -1)).compute()",
    ]


def test_rectangle_selects_a_range_of_spectra():
    arr = da.from_array(np.arange(60).reshape(3, 20))
    scene = Scene.of(arr)._replace(scan=(0,), frame=(1,))
    job = DetectorJob.of(scene, (), Detector("rectangle", (4.5,), 1, 1, (4.0,), "sum"))
    assert np.array_equal(np.flatnonzero(job.mask), [3, 4, 5, 6])
    names = {"arr": arr}
    exec(job.code(), names)  # noqa: S102 - the code under test
    assert np.array_equal(names["image"], arr[:, 3:7].sum(1).compute())


def test_first_detector_is_the_bright_disk(arrays):
    scene = Scene.of(arrays["without units"])
    assert usual(scene, (7.0, 9.0, 3.0))[:3] == ("disk", (7.0, 9.0), 3.0)
    assert usual(scene, None).center == (7.5, 9.5)
