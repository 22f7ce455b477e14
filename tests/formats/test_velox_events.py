"""Spectrum images of streams of X-ray events, and damaged streams."""

import dask
import h5py
import numpy as np
import pytest
from checks import refuses
from kinds import assert_equals_row, by_row, path_of, rows_of
from rsciio import emd

from dask_tiled import DatasetError, open_dataset
from dask_tiled.engine import run
from dask_tiled.testing import write_velox
from dask_tiled.testing.velox import write_streams

COUNTS = np.random.default_rng(1).poisson(0.1, (2, 3, 6, 8, 128)).astype("u2")
COUNTS[:, :, 2] = 0


@pytest.fixture
def path(tmp_path):
    return write_velox(tmp_path / "a.emd", COUNTS, chunk=512)


@pytest.mark.parametrize("options", [{}, {"chunk": None}, {"open_end": True}, {"whole": 8}])
def test_equals_rosettasciio(tmp_path, options):
    path = write_velox(tmp_path / "a.emd", COUNTS, **options)
    for summed, frames in ((True, "sum"), (False, slice(None))):
        read = emd.file_reader(str(path), sum_frames=summed)
        (theirs,) = (one["data"] for one in read if one["data"].ndim > 2)
        np.testing.assert_array_equal(open_dataset(path, frames=frames), theirs)


def test_axes_equal_those_of_rosettasciio(path):
    *_, spectra = emd.file_reader(str(path))
    for axis, theirs in zip(open_dataset(path).axes, spectra["axes"], strict=True):
        assert axis.units == theirs["units"]
        assert (axis.scale, axis.offset) == pytest.approx((theirs["scale"], theirs["offset"]))


def test_frames_detectors_and_bins(path):
    arr = open_dataset(path, dataset="EDS SuperXG22", frames=slice(2, None, -2), rebin_energy=4)
    expected = COUNTS[1, ::-2].reshape(2, 6, 8, 32, 4).sum(axis=-1)
    np.testing.assert_array_equal(arr, expected)
    assert arr.description.axes[-1].scale == 0.02
    assert arr.description.instrument["live_time"].value == 2.25
    assert arr.description.instrument["real_time"].value == 3.0
    told = arr.metadata["hdf5"]["facts"]["/Data/SpectrumStream/Detectors"]["SuperXG22"]
    units = {name: unit for name, unit in told.items() if name.endswith("@units")}
    times, energies = ("RealTime", "LiveTime", "DeadTime"), ("Dispersion", "OffsetEnergy")
    expected = dict.fromkeys(times, "s") | dict.fromkeys(energies, "eV")
    assert units == {f"{name}@units": unit for name, unit in expected.items()}
    wide = open_dataset(path, dtype="uint32")
    assert wide.dtype == np.uint32
    np.testing.assert_array_equal(wide, COUNTS.sum(axis=(0, 1)))


@pytest.mark.parametrize("axes", [None, 0, 1, 2, 3, (0, 1), (0, 1, 2), (1, 2), (0, 3), (1, 2, 3)])
def test_sums_are_histograms_of_events(path, monkeypatch, axes):
    """Sums of whole arrays and of parts are made without frames."""
    found, fold = [], run.fold_events
    monkeypatch.setattr(run, "fold_events", lambda *x: found.append(fold(*x)) or found[-1])
    arr = open_dataset(path, frames=slice(None), chunks=(1, 4, 8, 128))
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(arr.sum(axis=axes), COUNTS.sum(axis=(0)).sum(axis=axes))
        part = arr[1:, ::2, 3:, 20:70].sum(axis=axes).compute()
    np.testing.assert_array_equal(part, COUNTS.sum(axis=0)[1:, ::2, 3:, 20:70].sum(axis=axes))
    assert all(found)


def test_maps_spectra_and_maxima(path):
    arr = open_dataset(path)
    expected = COUNTS.sum(axis=(0, 1))
    np.testing.assert_array_equal(arr[..., 30:50].sum(axis=-1), expected[..., 30:50].sum(axis=-1))
    np.testing.assert_array_equal(arr[3, 2:, 5], expected[3, 2:, 5])
    np.testing.assert_array_equal(arr.max(axis=(0, 1)), expected.max(axis=(0, 1)))


STREAM = f"Data/SpectrumStream/{1:032x}"


@pytest.mark.parametrize(
    ("at", "value", "name", "match"),
    [
        (7, 128, "Data", "no such channel"),
        (7, 65534, "Data", "no such channel"),
        (-1, 3, "Data", None),  # the last end may be missing
        (slice(-60, None), 3, "Data", "too few pixels"),
        (slice(0, 40), 65535, "Data", "too many pixels"),
        (slice(0, 40), 3, "Data", "too few pixels"),
        (0, 5, "FrameLocationTable", "table of frames"),
        (1, 1 << 62, "FrameLocationTable", "table of frames"),
        (1, 10, "FrameLocationTable", "too few pixels"),
        (2, 3, "FrameLocationTable", "table of frames"),
        (1, 300, "FrameLocationTable", "pixels"),
    ],
)
def test_damaged_streams_raise(path, at, value, name, match):
    """Damage raises in every sum, and in the whole array."""
    with h5py.File(path, "r+") as file:
        file[f"{STREAM}/{name}"][at] = value
    for axes in (None, (0, 1), 2, ()):
        if match is None:
            open_dataset(path).sum(axis=axes).compute()
        else:
            with pytest.raises(DatasetError, match=match):
                open_dataset(path).sum(axis=axes).compute()


def test_overflowing_pixels_raise(tmp_path):
    counts = np.zeros((2, 1, 2, 2, 4), "u4")
    counts[:, 0, 1, 1, 3] = 40_000
    path = write_velox(tmp_path / "a.emd", counts)
    with pytest.raises(DatasetError, match="uint32"):
        open_dataset(path).compute()
    np.testing.assert_array_equal(open_dataset(path, dtype="uint32"), counts.sum(axis=(0, 1)))
    assert open_dataset(path).sum().compute() == 80_000


@pytest.mark.parametrize(("chunk", "counts"), [(1 << 18, 65536), (512, 70_000), (512, 131_073)])
def test_overflowing_channels_raise(tmp_path, chunk, counts):
    """Counts never wrap, added to a pixel at once or one by one."""
    words = np.array([5] * counts + 4 * [65535], "<u2")
    path = write_streams(tmp_path / "a.emd", [(words, [0])], (2, 2, 16), chunk=chunk)
    for part in np.s_[0, 0, 5], np.s_[..., 5], np.s_[..., 5:6], np.s_[...]:
        with pytest.raises(DatasetError, match="uint32"):
            open_dataset(path)[part].compute()
        assert open_dataset(path, dtype="uint32")[part].max().compute() == counts
    assert open_dataset(path).sum().compute() == counts


def test_too_many_channels_raise(tmp_path):
    words = np.full(4, 65535, "<u2")
    path = write_streams(tmp_path / "a.emd", [(words, [0])], (2, 2, 65535))
    assert open_dataset(path).shape == (2, 2, 65535)
    path = write_streams(tmp_path / "a.emd", [(words, [0])], (2, 2, 65536))
    refuses(path, "not in a form that is known", dataset="/Data/SpectrumStream")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"frames": 1}, "invalid frames"),
        ({"frames": slice(3, None)}, "invalid frames"),
        ({"frames": slice("a")}, "invalid frames"),
        ({"frames": slice(None, None, 0)}, "invalid frames"),
        ({"rebin_energy": 3}, "divisor of 128"),
        ({"rebin_energy": 0}, "rebin_energy"),
        ({"dataset": "HAADF", "frames": slice(1)}, "for spectrum images"),
        ({"dataset": "HAADF", "rebin_energy": 2}, "for spectrum images"),
    ],
)
def test_invalid_options_raise(path, options, match):
    refuses(path, match, **options)


REAL = [row for row in rows_of("velox", "SERIES") if row["item"].endswith("| EDS")]
SCANS = [row for row in REAL if row["shape"].count(",") > 1 and "detectors" not in row["item"]]


@by_row(SCANS)
def test_real_files(row):
    path = path_of(row)
    frames = "sum" if "sum_frames=True" in row["item"] else slice(None)
    assert_equals_row(open_dataset(path, frames=frames).compute(), row)


@by_row(rows_of("velox"))
def test_real_files_open_with_their_spectrum_image(row):
    """A reduced file opens with its image."""
    assert_equals_row(open_dataset(path_of(row)).compute(), row)
