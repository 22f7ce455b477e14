"""EER files of electron events, compared with tifffile and the events that were written."""

import numpy as np
import pytest
import tifffile
from checks import axes_text, refused
from eer_writer import BITS, FACTS, coded, write_eer

from dask_tiled import describe, open_dataset
from dask_tiled.errors import DatasetError

pytestmark = pytest.mark.usefixtures("synchronous")

SHAPE = 40, 64
FRAMES = np.random.default_rng(3).random((5, *SHAPE)) < 0.02
FRAMES[2] = False
SPECIFICATION = bytes.fromhex("031bfcb135fb"), (7, 1, 1), [3, 17, 233, 311]
"""The example of the format's description: a stream, its bits, and the pixels of its events."""


@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("compression", BITS)
def test_frames_are_those_of_tifffile(tmp_path, compression, image):
    bits = BITS[compression]
    total = FRAMES.sum(0, "u2") if image else None
    streams = [coded(frame, bits) for frame in FRAMES]
    path = write_eer(tmp_path / "a.eer", streams, SHAPE, compression, bits, image=total)
    arr = open_dataset(path, doubts="raise")
    np.testing.assert_array_equal(arr.compute(), FRAMES)
    np.testing.assert_array_equal(tifffile.imread(path, series=0), FRAMES)
    assert arr.dtype == bool
    if image:
        np.testing.assert_array_equal(open_dataset(path, dataset=1).compute(), total)


def test_the_example_of_the_specification(tmp_path):
    stream, bits, pixels = SPECIFICATION
    path = write_eer(tmp_path / "a.eer", [stream], (1, 312), 65002, bits)
    assert np.flatnonzero(open_dataset(path).compute()).tolist() == pixels


def test_facts_of_the_acquisition(tmp_path):
    streams = [coded(frame, BITS[65001]) for frame in FRAMES]
    desc = describe(write_eer(tmp_path / "a.eer", streams, SHAPE, 65001, ()))
    assert axes_text(desc) == "t 0.005 s, y 6.25e-10 m, x 6.5e-10 m"
    assert desc.instrument["detector"].value == "Falcon 4"
    assert desc.instrument["date"].value == "2022-07-18T15:40:36.141000-08:00"
    assert desc.instrument["exposure_time"][:2] == (pytest.approx(0.005), "s")
    with tifffile.TiffFile(tmp_path / "a.eer") as file:
        told = file.eer_metadata
    tags = desc.metadata["tiff"]["tags"]
    assert float(tags["EER"]["exposureTime"].split()[0]) == told["exposureTime"]
    assert tags["ImageWidth"] == SHAPE[1]


@pytest.mark.parametrize(
    ("told", "other", "units"),
    [
        (b"6.25e-10", b"1.4e-5", ["s", "", "m"]),  # of the sensor
        (b'width" unit="m"', b'width" unit="px"', ["s", "m", ""]),
        (b'unit="s"', b'unit="h"', ["", "m", "m"]),
        (b">700<", b">0<", ["", "m", "m"]),
    ],
)
def test_facts_that_are_no_scales(tmp_path, told, other, units):
    streams = [coded(frame, BITS[65001]) for frame in FRAMES[:2]]
    facts = FACTS.replace(told, other)
    path = write_eer(tmp_path / "a.eer", streams, SHAPE, 65001, (), facts=facts)
    assert [axis.units for axis in describe(path).axes] == units


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"facts": b""}, "compression 65001"), ({"rows": 20}, "several strips")],
)
def test_other_files_with_these_numbers_are_refused(tmp_path, options, problem):
    path = write_eer(
        tmp_path / "a.eer", [coded(FRAMES[0], BITS[65001])], SHAPE, 65001, (), **options
    )
    with refused(path, problem, DatasetError):
        open_dataset(path).compute()
