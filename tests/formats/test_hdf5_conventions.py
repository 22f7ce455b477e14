"""HDF5: a convention is one class and a row in one table."""

import re

import numpy as np
import pytest
from checks import write_hdf5

from dask_tiled import Axis, describe
from dask_tiled.formats.hdf5 import choice, conventions, descriptor, facts
from dask_tiled.formats.hdf5.attributes import attribute, number
from dask_tiled.formats.hdf5.convention import Calibration, Convention, Meant, Scan
from dask_tiled.formats.hdf5.datasets import by_size
from dask_tiled.testing import check_format

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

FRAMES = np.arange(12 * 5 * 7, dtype="u2").reshape(12, 5, 7)


class Camera(Convention):
    """Convention of files with ``/run/frames``."""

    name = "Camera"
    instrument = (("beam_energy", "*run/beam", "kV"),)

    def meant(self, tree, found):  # noqa: ARG002
        pictures = (x for x in found.pictures.values() if re.fullmatch("/run/frames", x.path))
        return Meant("frames of a Camera", by_size(pictures))

    def calibration(self, tree, picture):
        step = attribute(picture.group(tree), "pixel")
        axes = Axis(""), *(Axis.calibrated(name, "nm", number(step, 0.0)) for name in "yx")
        return None if step is None else Calibration(axes, 2)

    def scan(self, tree, picture, frames):
        rows = int(number(attribute(picture.group(tree), "rows"), 0))
        return Scan((rows, frames // rows), "rows of /run", ()) if rows else None

    def facts(self, tree, picture):  # noqa: ARG002
        return {picture.folder: ()} if picture.path == "/run/frames" else {}


@pytest.fixture
def path(tmp_path):
    run = {"run/frames": FRAMES, "run": {"pixel": 0.25, "rows": 3, "beam": 80.0}}
    return write_hdf5(tmp_path / "a.h5", {"large": np.zeros((99, 99)), **run})


@pytest.mark.usefixtures("hdf5_here")
def test_a_convention_is_one_class_and_a_row(path, monkeypatch):
    assert describe(path).metadata["hdf5"]["dataset"] == "/large"
    for module in (choice, descriptor, facts):
        monkeypatch.setattr(module, "CONVENTIONS", (*conventions.CONVENTIONS, Camera()))
    check_format(path, FRAMES.reshape(3, 4, 5, 7), cuts=1)
    desc = describe(path)
    assert list(map(str, desc.axes[2:])) == ["y (steps of 0.25 nm)", "x (steps of 0.25 nm)"]
    header = desc.metadata["hdf5"]
    assert header["dataset_from"] == "frames of a Camera"
    assert header["axes_from"] == "Camera"
    assert header["nav_shape_from"] == "rows of /run"
    assert header["facts"] == {"/run": {"beam": 80.0, "pixel": 0.25, "rows": 3}}
